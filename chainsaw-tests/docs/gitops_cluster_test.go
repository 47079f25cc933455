package docs

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// The health of a StatefulCluster with one pod, as Argo CD with the script and kstatus compute it.
func TestHealthOfClusters(t *testing.T) {
	unreachable := corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
	for name, test := range map[string]struct {
		change          func(*membership.Snapshot)
		argoCD, kstatus string
	}{
		"available": {func(*membership.Snapshot) {}, "Healthy", "Current"},
		"not Ready": {func(s *membership.Snapshot) { s.Pods[0].Status.Conditions = nil }, "Progressing", "InProgress"},
		"scaled":    {func(s *membership.Snapshot) { s.Cluster.Spec.Replicas = new(int32(2)) }, "Progressing", "InProgress"},
		"rolled": {func(s *membership.Snapshot) {
			s.Cluster.Spec.Template.Raw = []byte(`{"spec":{"containers":[{"name":"next"}]}}`)
		}, "Progressing", "InProgress"},
		"terminating": {func(s *membership.Snapshot) { s.Pods[0].DeletionTimestamp = new(metav1.Now()) }, "Progressing", "InProgress"},
		"too many lost": {func(s *membership.Snapshot) {
			s.Pods[0].DeletionTimestamp = new(metav1.Now())
			s.Nodes["node"] = &unreachable
		}, "Degraded", "Failed"},
		"invalid template": {func(s *membership.Snapshot) {
			s.Cluster.Spec.Template.Raw = []byte(`{"metadata":{"labels":{"app":"other"}}}`)
		}, "Degraded", "Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := clusterSnapshot()
			test.change(&s)
			s.Cluster.Status = membership.Decide(s, time.Now()).Status
			wantHealth(t, s.Cluster, test.argoCD, test.kstatus)
			s.Cluster.Generation++ // a change of the spec that the manager has not seen
			wantHealth(t, s.Cluster, "Progressing", "InProgress")
		})
	}
}

// clusterSnapshot returns a Snapshot with an available pod.
func clusterSnapshot() membership.Snapshot {
	cluster := &v1.StatefulCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "StatefulCluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "cache", UID: "cluster", Generation: 1},
		Spec: v1.StatefulClusterSpec{
			Replicas: new(int32(1)), Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"cache"}]}}`)},
		},
	}
	revision := membership.RevisionName(cluster)
	cluster.Status = v1.StatefulClusterStatus{
		Next: 1, Members: []v1.ClusterMember{{Name: "cache-0", UID: "pod", State: v1.MemberActive, Revision: revision}},
		Conditions: []metav1.Condition{{Type: v1.ConditionPolicyInstalled, Status: metav1.ConditionTrue}},
	}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "prod", Name: "cache-0", UID: "pod", Finalizers: []string{v1.MemberFinalizer},
		Labels:          map[string]string{v1.ClusterLabel: cluster.Name, appsv1.StatefulSetRevisionLabel: revision},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cluster, v1.GroupVersion.WithKind("StatefulCluster"))},
	}}
	pod.Spec.NodeName = "node"
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	return membership.Snapshot{Cluster: cluster, Pods: []corev1.Pod{pod}, Nodes: map[string]*corev1.Node{"node": node}}
}
