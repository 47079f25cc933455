package docs

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
)

// The same health script serves StatefulSetLocks.
func TestHealthOfLocks(t *testing.T) {
	for name, test := range map[string]struct {
		change          func(*tenure.Snapshot)
		argoCD, kstatus string
	}{
		"a Ready writer":   {func(*tenure.Snapshot) {}, "Healthy", "Current"},
		"the writer ends":  {func(s *tenure.Snapshot) { s.Pods[0].DeletionTimestamp = new(metav1.Now()) }, "Progressing", "InProgress"},
		"not Ready":        {func(s *tenure.Snapshot) { s.Pods[0].Status.Conditions[0].Status = corev1.ConditionFalse }, "Degraded", "InProgress"},
		"no StatefulSet":   {func(s *tenure.Snapshot) { s.StatefulSet, s.Pods, s.Lock.Status = nil, nil, v1.StatefulSetLockStatus{} }, "Progressing", "InProgress"},
		"a foreign Lease":  {func(s *tenure.Snapshot) { s.Lease.Object.OwnerReferences = nil }, "Degraded", "Failed"},
		"a removed writer": {func(s *tenure.Snapshot) { s.Pods = nil }, "Degraded", "Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := lockSnapshot()
			test.change(&s)
			s.Lock.Status = tenure.Decide(s, time.Now()).Status
			wantHealth(t, s.Lock, test.argoCD, test.kstatus)
		})
	}
}

// lockSnapshot returns a Snapshot with a Ready writer, which only its termination ends.
func lockSnapshot() tenure.Snapshot {
	lock := &v1.StatefulSetLock{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "StatefulSetLock"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db", UID: "lock", Generation: 1},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db", LeaseDurationSeconds: 15, Fencing: v1.LockFencingTermination},
		Status:     v1.StatefulSetLockStatus{WriterPod: "db-0", WriterPodUID: "db-0", Epoch: 1},
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db", UID: "set"}}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "prod", Name: "db-0", UID: "db-0", Finalizers: []string{v1.HandoffFinalizer},
		Labels:          map[string]string{v1.StsRoleLabel: v1.StsRoleWriter, v1.LockLabel: lock.Name},
		Annotations:     map[string]string{v1.TenureAnnotation: "1"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
	}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Labels:          map[string]string{v1.LockLabel: lock.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(lock, v1.GroupVersion.WithKind("StatefulSetLock"))},
	}}
	s := tenure.Snapshot{Lock: lock, StatefulSet: set, Pods: []corev1.Pod{pod}}
	s.Lease.Object = lease
	return s
}
