package cluster_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Each pod has its own claim, and what the template says. A reconcile without a change writes nothing.
func TestCreates(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	got := w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	for _, p := range w.pods() {
		w.wantClaim(p.Name, "data-"+p.Name)
		wantLabels := map[string]string{"app": "coder", "tier": "gold", v1.ClusterLabel: clusterName, appsv1.StatefulSetRevisionLabel: got.Status.UpdateRevision}
		if !maps.Equal(p.Labels, wantLabels) || p.Annotations["note"] != "kept" {
			t.Errorf("labels %v and annotations %v of pod %s", p.Labels, p.Annotations, p.Name)
		}
		if !slices.Equal(p.Finalizers, []string{v1.MemberFinalizer}) || len(p.Spec.SchedulingGates) > 0 || !metav1.IsControlledBy(&p, got) {
			t.Errorf("finalizers %v, scheduling gates %v and owners %v of pod %s", p.Finalizers, p.Spec.SchedulingGates, p.OwnerReferences, p.Name)
		}
		if len(p.Spec.Volumes) != 2 || p.Spec.Volumes[0].EmptyDir == nil {
			t.Errorf("volumes %+v of pod %s", p.Spec.Volumes, p.Name)
		}
		if m := w.member(p.Name); m.UID != p.UID || m.State != v1.MemberActive || m.Node != p.Spec.NodeName {
			t.Errorf("member %+v", m)
		}
	}
	claim := &corev1.PersistentVolumeClaim{}
	w.exists(claim, "data-coder-0")
	wantLabels := map[string]string{"app": "coder", "kind": "project", v1.ClusterLabel: clusterName}
	if !maps.Equal(claim.Labels, wantLabels) || claim.Annotations["backup"] != "daily" || len(claim.OwnerReferences) > 0 || claim.Spec.Resources.Requests.Storage().String() != "1Gi" {
		t.Errorf("claim %+v", claim)
	}
	if s := got.Status; s.Replicas != 3 || s.ReadyReplicas != 3 || s.AvailableReplicas != 3 || s.UpdatedReplicas != 3 || s.CurrentReplicas != 3 || s.Next != 3 {
		t.Errorf("status %+v", s)
	}
	if events := w.emitted(); !strings.Contains(events, "MembersAdded new pods: coder-0 (data-coder-0), coder-1 (data-coder-1), coder-2 (data-coder-2)") {
		t.Errorf("events:\n%s", events)
	}
	before := w.pods()
	if w.settle(membership.AllAvailable).ResourceVersion != got.ResourceVersion {
		t.Error("a reconcile without a change writes the status")
	}
	for i, p := range w.pods() {
		if p.ResourceVersion != before[i].ResourceVersion {
			t.Errorf("a reconcile without a change writes pod %s", p.Name)
		}
	}
}

// The manager sets what makes a pod a member, whatever the template says. Nothing in the template appears twice, or is lost.
func TestHostileTemplate(t *testing.T) {
	type parts struct {
		Labels              map[string]string
		Finalizers          []string
		Hostname, Subdomain string
		ReadinessGates      []corev1.PodReadinessGate
	}
	theirs, serving := corev1.PodReadinessGate{ConditionType: "example.com/theirs"}, corev1.PodReadinessGate{ConditionType: v1.MemberServing}
	tests := map[string]struct {
		metadata, spec string
		serviceName    string
		updates        v1.ClusterUpdateType
		want           func(*parts)
		// wantGates are the scheduling gates of the recorded pod.
		wantGates []corev1.PodSchedulingGate
	}{
		"nothing": {},
		"labels of the selector": {
			metadata: `"labels": {"app": "coder", "tier": "gold"}`,
			want:     func(p *parts) { p.Labels["tier"] = "gold" },
		},
		"labels of the manager": {metadata: `"labels": {"` + v1.ClusterLabel + `": "other", "` + appsv1.StatefulSetRevisionLabel + `": "other"}`},
		"the finalizer": {
			metadata: `"finalizers": ["` + v1.MemberFinalizer + `", "example.com/theirs"]`,
			want:     func(p *parts) { p.Finalizers = append(p.Finalizers, "example.com/theirs") },
		},
		"another finalizer": {
			metadata: `"finalizers": ["example.com/theirs"]`,
			want:     func(p *parts) { p.Finalizers = []string{"example.com/theirs", v1.MemberFinalizer} },
		},
		"another name and owner": {metadata: `"name": "db-9", "namespace": "kube-system", "generateName": "db-", "ownerReferences": []`},
		"fields of other names":  {metadata: `"Labels": {"app": "other"}, "Finalizers": ["example.com/theirs"]`},
		"a host name":            {spec: `"hostname": "theirs"`},
		"a subdomain": {
			spec: `"subdomain": "theirs"`,
			want: func(p *parts) { p.Subdomain = "theirs" },
		},
		"another subdomain": {
			spec: `"subdomain": "theirs"`, serviceName: "coders",
			want: func(p *parts) { p.Subdomain = "coders" },
		},
		"updates in place": {
			updates: v1.ClusterInPlaceIfPossible,
			want:    func(p *parts) { p.ReadinessGates = []corev1.PodReadinessGate{serving} },
		},
		"the readiness gate": {
			spec: `"readinessGates": [{"conditionType": "` + v1.MemberServing + `"}, {"conditionType": "example.com/theirs"}]`, updates: v1.ClusterInPlaceIfPossible,
			want: func(p *parts) { p.ReadinessGates = []corev1.PodReadinessGate{serving, theirs} },
		},
		"another readiness gate": {
			spec: `"readinessGates": [{"conditionType": "example.com/theirs"}]`, updates: v1.ClusterInPlaceIfPossible,
			want: func(p *parts) { p.ReadinessGates = []corev1.PodReadinessGate{theirs, serving} },
		},
		"no list of readiness gates": {
			spec: `"readinessGates": null`, updates: v1.ClusterInPlaceIfPossible,
			want: func(p *parts) { p.ReadinessGates = []corev1.PodReadinessGate{serving} },
		},
		"the scheduling gate":         {spec: `"schedulingGates": [{"name": "` + v1.MemberGate + `"}]`},
		"another scheduling gate":     {spec: `"schedulingGates": [{"name": "example.com/theirs"}]`, wantGates: []corev1.PodSchedulingGate{{Name: "example.com/theirs"}}},
		"no list of scheduling gates": {spec: `"schedulingGates": null`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(1, func(spec *v1.StatefulClusterSpec) {
				spec.ServiceName, spec.UpdateStrategy.Type = test.serviceName, cmp.Or(test.updates, v1.ClusterRollingUpdate)
				if test.spec != "" {
					test.spec += ","
				}
				spec.Template.Raw = fmt.Appendf(nil, `{"metadata": {%s}, "spec": {%s "containers": [{"name": "coder", "image": "coder:1"}]}}`, test.metadata, test.spec)
			})
			reconcile := func() corev1.Pod {
				t.Helper()
				_, err := w.reconciler.Reconcile(t.Context(), w.request())
				w.must(err)
				w.wantPods("coder-0")
				return *w.pod("coder-0")
			}
			created := reconcile()
			want := parts{
				Labels:     map[string]string{"app": "coder", v1.ClusterLabel: clusterName, appsv1.StatefulSetRevisionLabel: w.cluster().Status.UpdateRevision},
				Finalizers: []string{v1.MemberFinalizer}, Hostname: "coder-0",
			}
			if test.want != nil {
				test.want(&want)
			}
			got := parts{created.Labels, created.Finalizers, created.Spec.Hostname, created.Spec.Subdomain, created.Spec.ReadinessGates}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
			gate := corev1.PodSchedulingGate{Name: v1.MemberGate}
			if !slices.Contains(created.Spec.SchedulingGates, gate) || !metav1.IsControlledBy(&created, w.cluster()) {
				t.Errorf("scheduling gates %v and owners %v of the new pod", created.Spec.SchedulingGates, created.OwnerReferences)
			}
			if diff := gocmp.Diff(test.wantGates, reconcile().Spec.SchedulingGates); diff != "" {
				t.Errorf("scheduling gates of the recorded pod (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod that is not Ready yet is not deleted. With OrderedReady, the next pod waits.
func TestSlowStart(t *testing.T) {
	for policy, want := range map[v1.ClusterManagementPolicy][]string{v1.ClusterParallel: {"coder-0", "coder-1"}, v1.ClusterOrderedReady: {"coder-0"}} {
		t.Run(string(policy), func(t *testing.T) {
			w := newWorld(t)
			w.unready["coder:1"] = true
			w.create(2, func(spec *v1.StatefulClusterSpec) { spec.PodManagementPolicy = policy })
			outcome := membership.PodsUnavailable
			if policy == v1.ClusterOrderedReady {
				outcome = membership.Scaling
			}
			w.settle(outcome)
			before := w.pods()
			for range 10 {
				w.settle(outcome)
			}
			w.wantPods(want...)
			for i, p := range w.pods() {
				if p.UID != before[i].UID || p.DeletionTimestamp != nil {
					t.Errorf("pod %s is replaced", p.Name)
				}
			}
			delete(w.unready, "coder:1")
			w.settle(membership.AllAvailable)
			w.wantPods("coder-0", "coder-1")
		})
	}
}

// A lost pod gets a successor with a new claim, and keeps its own claim. More lost pods than maxLost wait for a person, or for their
// nodes. A lost pod whose node returns terminates, and is never counted.
func TestNodesLost(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	first := w.lose("coder-0")
	got := w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2", "data-coder-3")
	if m := w.member("coder-0"); m.State != v1.MemberLost || m.Claims[0].Name != "data-coder-0" || got.Status.Replicas != 3 {
		t.Errorf("member %+v, %d replicas", m, got.Status.Replicas)
	}
	if events := w.emitted(); !strings.Contains(events, "Warning MemberLost lost pods, whose successors get new claims: coder-0 (data-coder-0) on node "+first) {
		t.Errorf("events:\n%s", events)
	}

	second := w.lose("coder-1")
	got = w.settle(membership.TooManyLost)
	if !meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionStalled) || !strings.Contains(got.Status.Message, "kubectl taint node "+second+" ") {
		t.Errorf("conditions %+v, message %q", got.Status.Conditions, got.Status.Message)
	}
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-3")
	if events := w.emitted(); !strings.Contains(events, "Warning TooManyLost ") {
		t.Errorf("events:\n%s", events)
	}

	w.heal(first)
	got = w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2", "coder-3", "coder-4")
	w.wantClaim("coder-4", "data-coder-4")
	if got.Status.Replicas != 3 || !slices.Contains(got.Status.Released, v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimRetain}) {
		t.Errorf("%d replicas, released claims %v", got.Status.Replicas, got.Status.Released)
	}
	w.heal(second)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-2", "coder-3", "coder-4")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2", "data-coder-3", "data-coder-4")
}

// A person states that the node of a lost pod is off. The pod has then terminated.
func TestNodeOutOfService(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	node := w.lose("coder-0")
	w.settle(membership.AllAvailable)
	o := w.node(node)
	o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
	w.must(c.Update(t.Context(), o))
	delete(w.claims, w.pod("coder-0").UID)                                        // the node is off
	w.must(c.Delete(t.Context(), w.pod("coder-0"), client.GracePeriodSeconds(0))) // as the pod garbage collector does
	w.until("pod coder-0 is removed", func() bool { return w.member("coder-0") == nil && !slices.Contains(w.podNames(), "coder-0") })
	w.wantPods("coder-1", "coder-2", "coder-3")
}

// A drain evicts a pod. Its successor has the same claim on another node, and is created after the pod has terminated.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	node := w.node(w.pod("coder-0").Spec.NodeName)
	node.Spec.Unschedulable = true
	w.must(c.Update(t.Context(), node))
	w.slow["coder-0"] = true
	w.must(c.SubResource("eviction").Create(t.Context(), w.pod("coder-0"), &policyv1.Eviction{ObjectMeta: w.named("coder-0")}))
	got := w.settle(membership.PodsTerminating)
	w.wantPods("coder-0", "coder-1", "coder-2")
	if got.Status.AvailableReplicas != 2 {
		t.Errorf("%d available, want 2", got.Status.AvailableReplicas)
	}
	delete(w.slow, "coder-0")
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-0")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	if w.pod("coder-3").Spec.NodeName == node.Name {
		t.Error("the pod is on the drained node")
	}
}

// The volume of a successor is on a node that does not return. The status names the claim and the command that gives the pod a new one.
func TestUnusableVolume(t *testing.T) {
	w := newWorld(t)
	w.create(2)
	w.settle(membership.AllAvailable)
	claim := &corev1.PersistentVolumeClaim{}
	w.exists(claim, "data-coder-0")
	claim.Spec.VolumeName = "volume-of-coder-0"
	w.must(c.Update(t.Context(), claim))
	w.pinned = claim.Name
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	got := w.settle(membership.PodsUnschedulable)
	w.wantPods("coder-1", "coder-2")
	for _, want := range []string{
		"pod coder-2 can't be scheduled: 0/5 nodes are available", "claim data-coder-0", "kubectl describe pv volume-of-coder-0", `"state":"Fresh"`, "kubectl delete pod -n " + w.namespace + " coder-2",
	} {
		if !strings.Contains(got.Status.Message, want) {
			t.Errorf("message %q, want %q", got.Status.Message, want)
		}
	}
	if !meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionStalled) || meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady) {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
	if events := w.emitted(); !strings.Contains(events, "Warning PodsUnschedulable pod coder-2 can't be scheduled") {
		t.Errorf("events:\n%s", events)
	}

	// The commands of the message.
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replacement.State = v1.ReplacementFresh })
	w.must(c.Delete(t.Context(), w.pod("coder-2")))
	w.until("pod coder-2 is removed", func() bool { return !slices.Contains(w.podNames(), "coder-2") })
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replacement.State = v1.ReplacementCarry })
	got = w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	if !slices.Contains(got.Status.Released, v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimRetain}) || meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionStalled) {
		t.Errorf("released claims %v, conditions %+v", got.Status.Released, got.Status.Conditions)
	}
}

// A user deletes a claim and its pod. The successor gets a new claim with the name after the old claim is removed. It also does if the
// claim is deleted at the last moment.
func TestClaimDeleted(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{}
	for name, early := range map[string]bool{"before the pod": true, "while the successor is created": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2)
			w.settle(membership.AllAvailable)
			delete := func() {
				w.must(c.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: w.named("data-coder-0")}))
			}
			w.holdClaims = true
			if early {
				delete()
			}
			w.must(c.Delete(t.Context(), w.pod("coder-0")))
			if early {
				got := w.settle(membership.Scaling)
				w.wantPods("coder-1")
				if !strings.Contains(got.Status.Message, "a pod waits until claim data-coder-0 is deleted") {
					t.Errorf("message %q", got.Status.Message)
				}
			} else {
				w.until("the successor exists", func() bool {
					return slices.Contains(w.podNames(), "coder-2") && len(w.pod("coder-2").Spec.NodeName) == 0
				})
				delete()
			}
			w.holdClaims = false
			w.settle(membership.AllAvailable)
			w.wantPods("coder-1", "coder-2")
			w.wantClaim("coder-2", "data-coder-0")
			if !w.exists(claim, "data-coder-0") {
				t.Error("the claim does not exist")
			}
		})
	}
}

// After a force deletion, the claim waits until the kubelet has reported the end of the pod.
func TestForceDeletion(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	w.slow["coder-0"] = true
	w.must(c.Delete(t.Context(), w.pod("coder-0"), client.GracePeriodSeconds(0)))
	w.settle(membership.PodsTerminating)
	w.wantPods("coder-0", "coder-1", "coder-2")
	delete(w.slow, "coder-0")
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-0")
}

// A pod whose finalizer somebody removed is lost after a force deletion, because its processes can still run. A person attests its
// termination. An attestation for a running pod is refused.
func TestAttestation(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	lost := w.pod("coder-0")
	lost.Finalizers = nil
	w.must(uninstaller.Update(t.Context(), lost))
	w.must(c.Delete(t.Context(), lost, client.GracePeriodSeconds(0)))
	got := w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	if m := w.member("coder-0"); m == nil || m.State != v1.MemberLost {
		t.Errorf("member %+v", m)
	}
	if want := "kubectl annotate -n " + w.namespace + " stc coder " + v1.AttestAnnotation + "=" + string(lost.UID); !strings.Contains(got.Status.Message, want) {
		t.Errorf("message %q, want %q", got.Status.Message, want)
	}

	w.emitted()
	w.attest(w.pod("coder-1"))
	w.settle(membership.AllAvailable)
	if events := w.emitted(); !strings.Contains(events, "Warning AttestationRefused ") {
		t.Errorf("events:\n%s", events)
	}
	w.wantPods("coder-1", "coder-2", "coder-3")

	delete(w.claims, lost.UID) // the processes have ended
	w.attest(lost)
	got = w.settle(membership.AllAvailable)
	if m := w.member("coder-0"); m != nil || got.Annotations[v1.AttestAnnotation] != "" {
		t.Errorf("member %+v, annotations %v", m, got.Annotations)
	}
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2", "data-coder-3")
}

func (w *world) attest(pod *corev1.Pod) {
	w.t.Helper()
	o := w.cluster()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1.AttestAnnotation, string(pod.UID))
	w.must(c.Update(w.t.Context(), o))
}

// After the chart was uninstalled and installed, the pods get the finalizer back. A later deletion then keeps the object until the proof.
func TestUninstalled(t *testing.T) {
	w := newWorld(t)
	w.create(2)
	w.settle(membership.AllAvailable)
	for _, p := range w.pods() {
		p.Finalizers = []string{"example.com/other"}
		w.must(uninstaller.Update(t.Context(), &p))
	}
	w.settle(membership.AllAvailable)
	for _, p := range w.pods() {
		if !slices.Equal(slices.Sorted(slices.Values(p.Finalizers)), []string{v1.MemberFinalizer, "example.com/other"}) {
			t.Errorf("finalizers %v of pod %s", p.Finalizers, p.Name)
		}
		controllerutil.RemoveFinalizer(&p, "example.com/other")
		w.must(c.Update(t.Context(), &p))
	}
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2")
	w.wantClaim("coder-2", "data-coder-0")
}

// The status is lost while the object of a terminated pod still exists. Its successor keeps the claim.
func TestStatusLost(t *testing.T) {
	w := newWorld(t)
	w.create(2, func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete
	})
	w.settle(membership.AllAvailable)
	p := w.pod("coder-0")
	p.Finalizers = append(p.Finalizers, "example.com/other")
	w.must(c.Update(t.Context(), p))
	w.must(c.Delete(t.Context(), p))
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2")
	w.wantClaim("coder-2", "data-coder-0")

	o := w.cluster()
	o.Status.Members, o.Status.Next = nil, 0
	w.must(controller.Status().Update(t.Context(), o)) // as the manager, because the guard rejects other users
	w.settle(membership.AllAvailable)
	if m := w.member("coder-2"); w.member("coder-0") != nil || m == nil || m.UID != w.pod("coder-2").UID || m.Claims[0].Name != "data-coder-0" {
		t.Errorf("members %+v", w.cluster().Status.Members)
	}
	p = w.pod("coder-0")
	p.Finalizers = nil
	w.must(c.Update(t.Context(), p))
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2")
	if !w.exists(&corev1.PersistentVolumeClaim{}, "data-coder-0") {
		t.Error("the claim of coder-2 is deleted")
	}
}

// A pod with the label of the StatefulCluster, and with its UID in an owner of another kind, is not adopted and does not move the counter.
// While it can run with a claim, no other pod gets the claim, and the claim is not deleted. Without the guards, users can create
// such a pod.
func TestForgedPod(t *testing.T) {
	w := newWorld(t)
	w.create(2, func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete
	})
	w.settle(membership.AllAvailable)
	forge := func(name string) *corev1.Pod {
		t.Helper()
		forged := &corev1.Pod{ObjectMeta: w.named(name)}
		forged.Labels = map[string]string{v1.ClusterLabel: clusterName}
		forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: clusterName, UID: w.cluster().UID, Controller: new(true)}}
		forged.Spec = corev1.PodSpec{NodeName: w.nodes[4], Containers: []corev1.Container{{Name: "coder", Image: "coder:1"}}, Volumes: []corev1.Volume{{
			Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-coder-0"}},
		}}}
		if err := c.Create(t.Context(), forged.DeepCopy()); !apierrors.IsForbidden(err) {
			t.Errorf("the guards admit a forged pod: %v", err)
		}
		forged.Labels[unguarded] = ""
		w.must(c.Create(t.Context(), forged))
		return forged
	}
	forged := forge("coder-99999999999")
	if got := w.settle(membership.AllAvailable); len(got.Status.Members) != 2 || got.Status.Next != 2 {
		t.Errorf("%d members, and the next number is %d", len(got.Status.Members), got.Status.Next)
	}
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	if got := w.settle(membership.ClaimInUse); !strings.Contains(got.Status.Message, "data-coder-0") || !strings.Contains(got.Status.Message, forged.Name) {
		t.Errorf("message %q", got.Status.Message)
	}
	w.must(c.Delete(t.Context(), forged))
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2")
	w.wantClaim("coder-2", "data-coder-0")

	forged = forge("coder-7")
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(0)) })
	w.settle(membership.AllAvailable)
	w.wantPods("coder-7")
	w.wantClaims("data-coder-0")
	w.must(c.Delete(t.Context(), forged))
	w.settle(membership.AllAvailable)
	w.wantClaims()
}

// Claims of two StatefulClusters can have the same name. A pod that is not scheduled yet does not keep its claim, so a claim of the other
// StatefulCluster can take its place.
func TestClaimOfTwoClusters(t *testing.T) {
	w := newWorld(t)
	other := *w
	other.name = "x-" + clusterName
	other.create(1, func(spec *v1.StatefulClusterSpec) {
		held := strings.Replace(string(spec.Template.Raw), `"containers"`, `"schedulingGates": [{"name": "example.com/held"}], "containers"`, 1)
		spec.Template.Raw = []byte(held)
	})
	held := func() bool {
		pods := w.pods()
		return len(pods) == 1 && slices.Equal(pods[0].Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: "example.com/held"}})
	}
	other.until("the pod waits only for a gate of its template", held)
	w.must(c.Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: w.named("data-x-coder-0")}))
	w.play()

	w.create(1, func(spec *v1.StatefulClusterSpec) { spec.VolumeClaimTemplates[0].Metadata.Name = "data-x" })
	if got := w.settle(membership.ClaimInUse); !strings.Contains(got.Status.Message, "pod x-coder-0 can run with the claim") {
		t.Errorf("message %q", got.Status.Message)
	}
	w.must(c.Patch(t.Context(), w.pod("x-coder-0"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`))))
	other.settle(membership.AllAvailable)
	w.settle(membership.ClaimInUse)
	w.must(c.Delete(t.Context(), w.pod("x-coder-0")))
	other.change(func(spec *v1.StatefulClusterSpec) { spec.Template = templateOf("coder:1") })
	other.settle(membership.AllAvailable)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "x-coder-2")
	w.wantClaim("coder-0", "data-x-coder-0")
	w.wantClaim("x-coder-2", "data-x-coder-2")
}

// Each field of the retention policy applies to its own claims.
func TestRetention(t *testing.T) {
	tests := map[string]v1.ClaimRetentionPolicy{
		"none":         {WhenDeleted: v1.ClaimRetain, WhenScaled: v1.ClaimRetain, WhenReplaced: v1.ClaimRetain},
		"whenDeleted":  {WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimRetain, WhenReplaced: v1.ClaimRetain},
		"whenScaled":   {WhenDeleted: v1.ClaimRetain, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimRetain},
		"whenReplaced": {WhenDeleted: v1.ClaimRetain, WhenScaled: v1.ClaimRetain, WhenReplaced: v1.ClaimDelete},
		"all":          {WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete},
	}
	for name, policy := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, func(spec *v1.StatefulClusterSpec) {
				spec.PersistentVolumeClaimRetentionPolicy = policy
				spec.Replacement.MaxLost = new(int32(1))
			})
			w.settle(membership.AllAvailable)
			node := w.lose("coder-0")
			w.settle(membership.AllAvailable)
			w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
			w.heal(node)
			w.settle(membership.AllAvailable)
			kept := append([]string{"data-coder-1", "data-coder-2"}, keptBy(policy.WhenReplaced, "data-coder-0")...)
			w.wantClaims(kept...)

			w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(1)) })
			w.settle(membership.AllAvailable)
			w.wantPods("coder-1")
			kept = append(kept[2:], append(keptBy(policy.WhenScaled, "data-coder-2"), "data-coder-1")...)
			w.wantClaims(kept...)

			w.must(c.Delete(t.Context(), w.cluster()))
			w.until("the StatefulCluster is removed", w.isRemoved)
			w.wantClaims(append(kept[:len(kept)-1], keptBy(policy.WhenDeleted, "data-coder-1")...)...)
		})
	}
}

func keptBy(policy v1.ClaimRetention, claim string) []string {
	if policy == v1.ClaimRetain {
		return []string{claim}
	}
	return nil
}

// The deletion waits until all pods have provably terminated.
func TestDeletion(t *testing.T) {
	w := newWorld(t)
	w.create(2)
	w.settle(membership.AllAvailable)
	w.slow["coder-1"] = true
	w.must(c.Delete(t.Context(), w.cluster()))
	w.until("only pod coder-1 exists", func() bool { return slices.Equal(w.podNames(), []string{"coder-1"}) })
	w.until("the message names the pod", func() bool {
		return strings.Contains(w.cluster().Status.Message, "the deletion waits until pod coder-1 has terminated")
	})
	delete(w.slow, "coder-1")
	w.until("the StatefulCluster is removed", func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), w.request().NamespacedName, &v1.StatefulCluster{}))
	})
	w.wantPods()
	w.wantClaims("data-coder-0", "data-coder-1")
}

// With kubectl delete --cascade=orphan, the pods run on with their claims, and their later deletion waits for nothing. A new
// StatefulCluster with the name leaves them alone.
func TestOrphans(t *testing.T) {
	w := newWorld(t)
	policy := v1.ClaimRetentionPolicy{WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}
	w.create(2, func(spec *v1.StatefulClusterSpec) { spec.PersistentVolumeClaimRetentionPolicy = policy })
	w.settle(membership.AllAvailable)
	w.must(c.Delete(t.Context(), w.cluster(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	w.until("only the garbage collector keeps the StatefulCluster", func() bool {
		return slices.Equal(w.cluster().Finalizers, []string{metav1.FinalizerOrphanDependents})
	})
	w.collectOrphans()
	if !w.isRemoved() {
		t.Error("the StatefulCluster remains")
	}
	w.wantPods("coder-0", "coder-1")
	w.wantClaims("data-coder-0", "data-coder-1")
	for _, p := range w.pods() {
		if len(p.Finalizers) > 0 || p.DeletionTimestamp != nil || !proof.IsTrue(&p, corev1.PodReady) {
			t.Errorf("finalizers %v, deletion %v and conditions %+v of pod %s", p.Finalizers, p.DeletionTimestamp, p.Status.Conditions, p.Name)
		}
	}

	w.create(1)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	w.until("the orphan is removed", func() bool { return !slices.Contains(w.podNames(), "coder-0") })
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
}

// collectOrphans removes the StatefulCluster from the owners of its objects, as the garbage collector does.
func (w *world) collectOrphans() {
	w.t.Helper()
	for _, p := range w.pods() {
		p.OwnerReferences = nil
		w.must(c.Update(w.t.Context(), &p))
	}
	newest, old := w.revisions()
	for _, r := range append(old, newest) {
		r.OwnerReferences = nil
		w.must(c.Update(w.t.Context(), &r))
	}
	o := w.cluster()
	controllerutil.RemoveFinalizer(o, metav1.FinalizerOrphanDependents)
	w.must(c.Update(w.t.Context(), o))
}

// An autoscaler scales the StatefulCluster. The pods with the lowest pod-deletion-cost are removed.
func TestDeletionCost(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	for name, cost := range map[string]string{"coder-0": "-5", "coder-1": "100", "coder-2": "0"} {
		p := w.pod(name)
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.PodDeletionCost, cost)
		w.must(c.Update(t.Context(), p))
	}
	scale := func(replicas int32) {
		t.Helper()
		var read autoscalingv1.Scale
		w.must(c.SubResource("scale").Get(t.Context(), w.cluster(), &read))
		if read.Status.Selector != "app=coder" {
			t.Errorf("selector %q", read.Status.Selector)
		}
		read.Spec.Replicas = replicas
		w.must(c.SubResource("scale").Update(t.Context(), w.cluster(), client.WithSubResourceBody(&read)))
	}
	scale(2)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-2")
	scale(1)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1")
	scale(2)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-1", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
}

// A rollout stops at a pod of a broken revision. The fix needs no manual deletion.
func TestBrokenRevision(t *testing.T) {
	w := newWorld(t)
	w.create(3)
	w.settle(membership.AllAvailable)
	w.unready["broken"] = true
	w.setImage("broken")
	got := w.settle(membership.RollingOut)
	if got.Status.AvailableReplicas != 2 || got.Status.UpdatedReplicas != 1 {
		t.Errorf("status %+v", got.Status)
	}
	w.setImage("coder:2")
	w.settle(membership.AllAvailable)
	for _, p := range w.pods() {
		if p.Spec.Containers[0].Image != "coder:2" || p.DeletionTimestamp != nil {
			t.Errorf("pod %s has image %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	if events := w.emitted(); !strings.Contains(events, "RolloutStarted ") || !strings.Contains(events, "RolloutCompleted ") {
		t.Errorf("events:\n%s", events)
	}
}

// With a partition, the other pods keep the current revision, also after a deletion.
func TestPartition(t *testing.T) {
	w := newWorld(t)
	w.create(3, func(spec *v1.StatefulClusterSpec) {
		spec.UpdateStrategy.RollingUpdate = &v1.ClusterRollout{Partition: 2}
	})
	w.settle(membership.AllAvailable)
	w.setImage("coder:2")
	w.settle(membership.AllAvailable)
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	got := w.settle(membership.AllAvailable)
	want := map[string]string{"coder-1": "coder:1", "coder-3": "coder:2", "coder-4": "coder:1"}
	images := map[string]string{}
	for _, p := range w.pods() {
		images[p.Name] = p.Spec.Containers[0].Image
	}
	if !maps.Equal(images, want) || got.Status.UpdatedReplicas != 1 || got.Status.CurrentReplicas != 2 {
		t.Errorf("images %v, want %v; status %+v", images, want, got.Status)
	}
}

// A template that the API server rejects is reported in the status. The fix needs no manual deletion.
func TestRejectedTemplate(t *testing.T) {
	tests := map[string]struct{ template, want string }{
		"invalid":         {`{"metadata":{"labels":{"app":"coder"}},"spec":{"containers":[{"name":"Coder!","image":"a"}]}}`, "spec.containers[0].name: Invalid value"},
		"unknown field":   {`{"metadata":{"labels":{"app":"coder"}},"spec":{"containers":[{"name":"coder","image":"a","imagePulPolicy":"Never"}]}}`, `unknown field "spec.containers[0].imagePulPolicy"`},
		"unlike selector": {`{"metadata":{"labels":{"app":"other"}},"spec":{"containers":[{"name":"coder","image":"a"}]}}`, "do not match spec.selector"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, func(spec *v1.StatefulClusterSpec) { spec.Template = runtime.RawExtension{Raw: []byte(tc.template)} })
			w.until("the status is Stalled", func() bool { return meta.IsStatusConditionTrue(w.cluster().Status.Conditions, v1.ConditionStalled) })
			if got := w.cluster(); !strings.Contains(got.Status.Message, tc.want) || meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady) {
				t.Errorf("message %q, want %q", got.Status.Message, tc.want)
			}
			w.wantPods()
			w.setImage("coder:1")
			got := w.settle(membership.AllAvailable)
			if meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionStalled) || len(w.pods()) != 2 {
				t.Errorf("conditions %+v, pods %v", got.Status.Conditions, w.podNames())
			}
		})
	}
}

// A pod that an admission policy rejects is reported in the status, with what to do. The counts of the other pods stay correct.
func TestAdmissionRejects(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settle(membership.AllAvailable)
	accept := w.reject("pods", "!has(object.spec.subdomain)", "no pods here", &corev1.Pod{
		ObjectMeta: w.named("probe"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	})
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(2)) })
	w.until("the status reports the rejection", func() bool {
		return strings.Contains(w.cluster().Status.Message, "no pods here") && w.cluster().Status.ReadyReplicas == 1
	})
	got := w.cluster()
	stalled := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionStalled)
	if stalled.Status != metav1.ConditionTrue || stalled.Reason != "WriteRefused" || !strings.HasPrefix(got.Status.Message, "can't create Pod "+w.namespace+"/coder-1: ") {
		t.Errorf("condition %+v, message %q", stalled, got.Status.Message)
	}
	if events := w.emitted(); !strings.Contains(events, "Warning WriteRefused can't create Pod ") {
		t.Errorf("events:\n%s", events)
	}
	if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsForbidden(err) || w.cluster().ResourceVersion != got.ResourceVersion {
		t.Errorf("error %v, want the same rejection without a write", err)
	}
	w.unready["coder:1"] = true // no record changes
	w.until("the counts are those of the world", func() bool { return w.cluster().Status.ReadyReplicas == 0 })
	delete(w.unready, "coder:1")
	accept()
	w.settle(membership.AllAvailable)
	if n := len(w.pods()); n != 2 {
		t.Errorf("%d pods, want 2", n)
	}
}

// A webhook can answer each write with 409. The writes are retried less and less often. After a few conflicts, the status, an event and
// the error report them.
func TestRepeatedConflicts(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settle(membership.AllAvailable)
	denies := true
	w.reconciler = w.newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Create: func(ctx context.Context, writes client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "Pod" && denies {
				return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), errors.New("no pods here"))
			}
			return writes.Create(ctx, o, options...)
		},
	}))
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(2)) })
	stalled := func() bool { return meta.IsStatusConditionTrue(w.cluster().Status.Conditions, v1.ConditionStalled) }
	for i := range 8 {
		want := 10 * time.Millisecond << i
		if result, err := w.reconciler.Reconcile(t.Context(), w.request()); err != nil || result.RequeueAfter != want {
			t.Errorf("the next reconcile is after %s with error %v, want %s", result.RequeueAfter, err, want)
		}
	}
	if stalled() {
		t.Errorf("the StatefulCluster is stalled after eight conflicts: %q", w.cluster().Status.Message)
	}
	w.emitted()
	if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want the conflict", err)
	}
	for _, report := range []string{w.cluster().Status.Message, w.emitted()} {
		for _, part := range []string{"can't create Pod " + w.namespace + "/coder-1: ", "no pods here", "kubectl get "} {
			if !strings.Contains(report, part) {
				t.Errorf("report %q, want %q in it", report, part)
			}
		}
	}
	if !stalled() {
		t.Error("the StatefulCluster is not stalled")
	}
	denies = false
	w.settle(membership.AllAvailable)
	if stalled() {
		t.Error("the StatefulCluster is stalled without conflicts")
	}
}

// reject lets an admission policy reject new objects of the kind for which the expression is true, and waits until it rejects the
// probe. accept ends that.
func (w *world) reject(kind, expression, message string, probe client.Object) (accept func()) {
	w.t.Helper()
	return w.deny(admissionregistrationv1.Create, kind, admissionregistrationv1.Validation{
		Expression: "!(" + expression + ")", Message: message, Reason: new(metav1.StatusReasonForbidden),
	}, func() error {
		return c.Create(w.t.Context(), probe.DeepCopyObject().(client.Object), client.DryRunAll)
	})
}

// deny lets an admission policy validate an operation on resources, and waits until the API server rejects the probe. accept ends
// that.
func (w *world) deny(operation admissionregistrationv1.OperationType, resources string, validation admissionregistrationv1.Validation, probe func() error) (accept func()) {
	w.t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{operation},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resources}},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{validation},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: w.namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	w.must(c.Create(w.t.Context(), policy))
	w.must(c.Create(w.t.Context(), binding))
	w.t.Cleanup(func() { _, _ = c.Delete(context.Background(), policy), c.Delete(context.Background(), binding) })
	return w.whileRejected(policy, probe)
}

// whileRejected waits until the API server rejects the probe. accept deletes the object for which it does.
func (w *world) whileRejected(by client.Object, probe func() error) (accept func()) {
	w.t.Helper()
	g := gomega.NewWithT(w.t)
	g.Eventually(probe).ShouldNot(gomega.Succeed())
	return func() {
		w.t.Helper()
		w.must(c.Delete(w.t.Context(), by))
		g.Eventually(probe).Should(gomega.Succeed())
	}
}

// A claim or a pod that the API server rejects does not stop the replacement of other pods, and the steps after it. The rejected
// successor of a lost pod is created later.
func TestRejectedMember(t *testing.T) {
	for kind, probe := range map[string]client.Object{
		"persistentvolumeclaims": &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data-coder-3"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		},
		"pods": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "coder-3"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}},
	} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.create(3)
			w.settle(membership.AllAvailable)
			probe.SetNamespace(w.namespace)
			accept := w.reject(kind, "object.metadata.name == '"+probe.GetName()+"'", "over the quota", probe)
			w.lose("coder-0")
			w.until("the status reports the rejection", func() bool { return strings.Contains(w.cluster().Status.Message, "over the quota") })
			w.must(c.Delete(t.Context(), w.pod("coder-1")))
			w.attest(w.pod("coder-2"))
			w.until("pod coder-1 is replaced, and the attestation is refused", func() bool {
				return slices.Equal(w.podNames(), []string{"coder-0", "coder-2", "coder-4"}) && w.cluster().Annotations[v1.AttestAnnotation] == ""
			})
			w.wantClaim("coder-4", "data-coder-1")
			w.until("the counts are those of the world", func() bool { return w.cluster().Status.ReadyReplicas == 2 })
			if got := w.cluster().Status; strings.Count(got.Message, "can't create") != 1 || !strings.HasSuffix(got.Message, "over the quota") {
				t.Errorf("message %q", got.Message)
			}
			accept()
			w.settle(membership.AllAvailable)
			w.wantPods("coder-0", "coder-2", "coder-3", "coder-4")
		})
	}
}

// While the namespace is being deleted, new pods are rejected. That is no error.
func TestNamespaceIsDeleted(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settle(membership.AllAvailable)
	w.must(c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})) // no controller empties the namespace
	w.must(c.Delete(t.Context(), w.pod("coder-0")))
	for range 5 {
		if _, err := w.reconciler.Reconcile(t.Context(), w.request()); err != nil {
			t.Error(err)
		}
		w.play()
	}
	w.wantPods()
	if events := w.emitted(); meta.IsStatusConditionTrue(w.cluster().Status.Conditions, v1.ConditionStalled) || strings.Contains(events, "WriteRefused") {
		t.Errorf("conditions %+v, events:\n%s", w.cluster().Status.Conditions, events)
	}
	w.must(c.Delete(t.Context(), w.cluster()))
	w.until("the StatefulCluster is removed", w.isRemoved)
}

// A record that the API server rejects has no effect, and is reported even if the reason is too long for a message.
func TestRecordRejected(t *testing.T) {
	w := newWorld(t)
	w.create(2)
	rejected := false
	w.reconciler = w.newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if !rejected {
				rejected = true
				return apierrors.NewForbidden(v1.GroupVersion.WithResource("statefulclusters").GroupResource(), o.GetName(), errors.New("not now"+strings.Repeat(", and not later", 10_000)))
			}
			return writes.SubResource(resource).Update(ctx, o, options...)
		},
	}))
	if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want the rejection", err)
	}
	if got := w.cluster(); len(got.Status.Members) > 0 || got.Status.Next != 0 || !strings.Contains(got.Status.Message, "not now") {
		t.Errorf("members %v, message %q", got.Status.Members, got.Status.Message)
	}
	w.wantPods()
	w.wantClaims()
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1")
}

// A pod with the name of a member, or a claim, that another client created stays as it is. The member gets another name.
func TestForeignNames(t *testing.T) {
	w := newWorld(t)
	pod := &corev1.Pod{ObjectMeta: w.named("coder-0"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "coder", Image: "theirs"}}, SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/wait"}}}}
	w.must(c.Create(t.Context(), pod))
	w.create(2)
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2")
	if got := w.pod("coder-0"); got.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the foreign pod was written: %+v", got)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.named("data-coder-3"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	w.must(c.Create(t.Context(), claim))
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(3)) })
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-4")
	w.wantClaim("coder-4", "data-coder-4")
}

// Images change without a new pod: after the EndpointSlices no longer list the pod as serving. The pod serves after the kubelet has
// reported the new container, also if the new image has the digest of the old one. Other changes replace the pods.
func TestInPlace(t *testing.T) {
	w := newWorld(t)
	w.create(2, func(spec *v1.StatefulClusterSpec) { spec.UpdateStrategy.Type = v1.ClusterInPlaceIfPossible })
	w.must(c.Create(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: w.named(clusterName), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}))
	w.settle(membership.AllAvailable)
	before := w.pods()
	images := func() (images []string) {
		for _, p := range w.pods() {
			images = append(images, p.Spec.Containers[0].Image)
		}
		return slices.Sorted(slices.Values(images))
	}

	w.holdImages, w.holdSlices = true, true
	w.setImage("coder:2")
	w.until("a pod must not serve", func() bool { return slices.ContainsFunc(w.pods(), isRefused) })
	w.reconciler.Clock = clocktesting.NewFakePassiveClock(time.Now()) // so the controller does not lose its patience
	for range 5 {
		if _, err := w.reconciler.Reconcile(t.Context(), w.request()); err != nil {
			t.Fatal(err)
		}
		w.play()
	}
	if got := images(); !slices.Equal(got, []string{"coder:1", "coder:1"}) {
		t.Errorf("images %v while the EndpointSlice lists the pod", got)
	}
	w.reconciler.Clock, w.holdSlices = clock.RealClock{}, false
	w.until("one image changes", func() bool { return slices.Equal(images(), []string{"coder:1", "coder:2"}) })
	w.settle(membership.RollingOut)
	if got := images(); !slices.Equal(got, []string{"coder:1", "coder:2"}) || !slices.ContainsFunc(w.pods(), isRefused) {
		t.Errorf("images %v while the kubelet has not started the new container", got)
	}
	w.holdImages = false
	got := w.settle(membership.AllAvailable)
	for i, p := range w.pods() {
		if p.UID != before[i].UID || p.Spec.Containers[0].Image != "coder:2" || p.Labels[appsv1.StatefulSetRevisionLabel] != got.Status.UpdateRevision || !proof.IsTrue(&p, v1.MemberServing) {
			t.Errorf("pod %s: labels %v, image %s, conditions %+v", p.Name, p.Labels, p.Spec.Containers[0].Image, p.Status.Conditions)
		}
	}
	w.wantPods("coder-0", "coder-1")

	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.Template = runtime.RawExtension{Raw: []byte(strings.ReplaceAll(string(spec.Template.Raw), "gold", "silver"))}
	})
	w.settle(membership.AllAvailable)
	w.wantPods("coder-2", "coder-3")
	w.wantClaims("data-coder-0", "data-coder-1")
}

// Resources change without a new pod, and without a restart. If the API server rejects the resources, the pod is replaced.
func TestResize(t *testing.T) {
	w := newWorld(t)
	w.create(2, func(spec *v1.StatefulClusterSpec) {
		spec.UpdateStrategy.Type, spec.Template = v1.ClusterInPlaceIfPossible, sized(`{"requests": {"cpu": "100m"}}`)
	})
	w.settle(membership.AllAvailable)
	before := w.pods()
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Template = sized(`{"requests": {"cpu": "200m"}}`) })
	got := w.settle(membership.AllAvailable)
	for i, p := range w.pods() {
		if p.UID != before[i].UID || p.Spec.Containers[0].Resources.Requests.Cpu().String() != "200m" || p.Labels[appsv1.StatefulSetRevisionLabel] != got.Status.UpdateRevision {
			t.Errorf("pod %s: labels %v, resources %+v", p.Name, p.Labels, p.Spec.Containers[0].Resources)
		}
		if was, is := proof.Condition(&before[i], corev1.PodReady), proof.Condition(&p, corev1.PodReady); !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Errorf("pod %s was not Ready at %s", p.Name, is.LastTransitionTime)
		}
	}
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.Template = sized(`{"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "200m", "memory": "1Gi"}}`) // another QoS class
	})
	w.settle(membership.AllAvailable)
	w.wantPods("coder-2", "coder-3")
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.Template = sized(`{"requests": {"cpu": "100", "memory": "1Gi"}, "limits": {"cpu": "100", "memory": "1Gi"}}`) // more than a node has
	})
	w.settle(membership.AllAvailable)
	w.wantPods("coder-4", "coder-5")
	w.wantClaims("data-coder-0", "data-coder-1")
}

// sized returns a template with the resources of the container, and further fields.
func sized(resources string) runtime.RawExtension {
	return runtime.RawExtension{Raw: []byte(strings.Replace(string(templateOf("coder:1").Raw), `"name": "coder",`, `"name": "coder", "resources": `+resources+`,`, 1))}
}

// New resources that a quota or a policy rejects cost no pod, and no pod stops serving for them. The status says what rejects them.
func TestResizeRejected(t *testing.T) {
	const restarts = `, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]`
	for name, test := range map[string]struct {
		policy string
		reject func(*world) (accept func())
	}{
		"by a quota":                          {"", (*world).fillQuota},
		"by a policy":                         {"", (*world).denyResizes},
		"by a quota, and containers restart":  {restarts, (*world).fillQuota},
		"by a policy, and containers restart": {restarts, (*world).denyResizes},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, func(spec *v1.StatefulClusterSpec) {
				spec.UpdateStrategy.Type, spec.Template = v1.ClusterInPlaceIfPossible, sized(`{"requests": {"cpu": "100m"}}`+test.policy)
			})
			w.settle(membership.AllAvailable)
			before := w.pods()
			accept := test.reject(w)
			w.change(func(spec *v1.StatefulClusterSpec) {
				spec.Template = sized(`{"requests": {"cpu": "200m"}}` + test.policy)
			})
			for range 20 { // the rejection is an error
				_, _ = w.reconciler.Reconcile(t.Context(), w.request())
				w.play()
			}
			same := func(is, was corev1.Pod) bool {
				return is.UID == was.UID && is.DeletionTimestamp == nil && proof.IsTrue(&is, corev1.PodReady)
			}
			if !slices.EqualFunc(w.pods(), before, same) {
				t.Fatalf("pods %v, want the pods from before, and all Ready", w.podNames())
			}
			stalled := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionStalled)
			remedy := regexp.MustCompile(`kubectl delete pod -n ` + w.namespace + ` coder-[01]$`)
			if stalled.Status != metav1.ConditionTrue || stalled.Reason != "WriteRefused" || !strings.Contains(stalled.Message, "too-much-cpu") || !remedy.MatchString(stalled.Message) {
				t.Errorf("condition %+v", stalled)
			}
			accept()
			w.settle(membership.AllAvailable)
			w.wantPods("coder-0", "coder-1")
			for _, p := range w.pods() {
				if cpu := p.Spec.Containers[0].Resources.Requests.Cpu(); cpu.String() != "200m" {
					t.Errorf("pod %s requests %s CPU", p.Name, cpu)
				}
			}
		})
	}
}

// fillQuota creates a quota that is used up. No controller updates it.
func (w *world) fillQuota() (accept func()) {
	w.t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: w.named("too-much-cpu")}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("200m")}
	w.must(c.Create(w.t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	w.must(c.Status().Update(w.t.Context(), quota))
	return w.whileRejected(quota, w.tryResize)
}

// tryResize asks whether pod coder-0 can have more CPU.
func (w *world) tryResize() error {
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"coder","resources":{"requests":{"cpu":"150m"}}}]}}`))
	return c.SubResource("resize").Patch(w.t.Context(), &corev1.Pod{ObjectMeta: w.named("coder-0")}, patch, client.DryRunAll)
}

// denyResizes lets an admission policy without a reason reject all resizes. Its rejections have HTTP status 422, as those of invalid
// pods.
func (w *world) denyResizes() (accept func()) {
	w.t.Helper()
	return w.deny(admissionregistrationv1.Update, "pods/resize", admissionregistrationv1.Validation{Expression: "false", Message: "too-much-cpu"}, w.tryResize)
}

// isRefused returns true if the controller has taken the pod out of the endpoints.
func isRefused(p corev1.Pod) bool {
	serving := proof.Condition(&p, v1.MemberServing)
	return serving != nil && serving.Status == corev1.ConditionFalse
}

// Claims grow when their template does. New claims have the new size.
func TestClaimsGrow(t *testing.T) {
	w := newWorld(t)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "example.com/none", AllowVolumeExpansion: new(true)}
	w.must(c.Create(t.Context(), class))
	w.create(2, func(spec *v1.StatefulClusterSpec) { spec.VolumeClaimTemplates[0].Spec.StorageClassName = &class.Name })
	w.settle(membership.AllAvailable)
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.Replicas = new(int32(3))
		spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage = new(resource.MustParse("2Gi"))
	})
	w.settle(membership.AllAvailable)
	for _, name := range []string{"data-coder-0", "data-coder-1", "data-coder-2"} {
		claim := &corev1.PersistentVolumeClaim{}
		if w.exists(claim, name); claim.Spec.Resources.Requests.Storage().String() != "2Gi" {
			t.Errorf("claim %s has %s", name, claim.Spec.Resources.Requests.Storage())
		}
	}
}

// Claims that cannot grow leave the StatefulCluster Ready, and are not tried again until something changes. A condition says which
// claims cannot grow, why, and what to do.
func TestClaimsCannotGrow(t *testing.T) {
	w := newWorld(t)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "example.com/none"}
	w.must(c.Create(t.Context(), class))
	w.create(2, func(spec *v1.StatefulClusterSpec) { spec.VolumeClaimTemplates[0].Spec.StorageClassName = &class.Name })
	w.settle(membership.AllAvailable)
	w.emitted()
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage = new(resource.MustParse("2Gi"))
	})
	got := w.settle(membership.AllAvailable)
	refused := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionExpansionRefused)
	if refused == nil || refused.Status != metav1.ConditionTrue || !meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady) ||
		meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionStalled) {
		t.Fatalf("conditions %+v", got.Status.Conditions)
	}
	for _, want := range []string{
		"claim data-coder-0 of storage class " + class.Name + " and 1 other claim from 1Gi to 2Gi", "must support resize", "kubectl patch storageclass " + class.Name + " ",
	} {
		if !strings.Contains(refused.Message, want) || !strings.Contains(got.Status.Message, want) {
			t.Errorf("condition %q and message %q, want %q", refused.Message, got.Status.Message, want)
		}
	}
	if events := w.emitted(); !strings.Contains(events, "Warning ExpansionRefused ") {
		t.Errorf("events:\n%s", events)
	}
	result, err := w.reconciler.Reconcile(t.Context(), w.request())
	if err != nil || result.RequeueAfter < time.Minute || w.cluster().ResourceVersion != got.ResourceVersion {
		t.Errorf("error %v, and a retry after %s", err, result.RequeueAfter)
	}
	class.AllowVolumeExpansion = new(true)
	w.must(c.Update(t.Context(), class))
	w.until("the condition is removed", func() bool {
		return meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionExpansionRefused) == nil
	})
	claim := &corev1.PersistentVolumeClaim{}
	if w.exists(claim, "data-coder-1"); claim.Spec.Resources.Requests.Storage().String() != "2Gi" {
		t.Errorf("claim %+v", claim.Spec)
	}
}

// Old revisions are deleted above the limit. A return to the template of an old revision makes that revision the newest.
func TestHistory(t *testing.T) {
	w := newWorld(t)
	w.create(1, func(spec *v1.StatefulClusterSpec) { spec.RevisionHistoryLimit = new(int32(1)) })
	w.settle(membership.AllAvailable)
	third := ""
	for _, image := range []string{"coder:2", "coder:3", "coder:4"} {
		w.setImage(image)
		got := w.settle(membership.AllAvailable)
		if image == "coder:3" {
			third = got.Status.CurrentRevision
		}
	}
	newest, old := w.revisions()
	if newest.Name != w.cluster().Status.UpdateRevision || len(old) != 1 || old[0].Name != third {
		t.Fatalf("newest revision %s, and %d old revisions, want %s", newest.Name, len(old), third)
	}
	var template any
	if err := json.Unmarshal(old[0].Data.Raw, &template); err != nil || !metav1.IsControlledBy(&old[0], w.cluster()) {
		t.Errorf("error %v, owners %v", err, old[0].OwnerReferences)
	}
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Template = runtime.RawExtension{Raw: old[0].Data.Raw} })
	got := w.settle(membership.AllAvailable)
	newest, _ = w.revisions()
	if got.Status.CurrentRevision != third || newest.Name != third || w.pods()[0].Spec.Containers[0].Image != "coder:3" {
		t.Errorf("current revision %s and newest revision %s, want %s", got.Status.CurrentRevision, newest.Name, third)
	}
}

// A revision without its label is used, and is not created again and again.
func TestRevisionWithoutLabel(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settle(membership.AllAvailable)
	revision, _ := w.revisions()
	revision.Labels = nil
	w.must(c.Update(t.Context(), &revision))
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(2)) })
	w.settle(membership.AllAvailable)
	w.wantPods("coder-0", "coder-1")
	if newest, old := w.revisions(); newest.UID != revision.UID || len(old) > 0 {
		t.Errorf("revision %s and %d others", newest.Name, len(old))
	}
}

// revisions returns the newest revision, and the others.
func (w *world) revisions() (newest appsv1.ControllerRevision, old []appsv1.ControllerRevision) {
	w.t.Helper()
	var list appsv1.ControllerRevisionList
	w.must(c.List(w.t.Context(), &list, client.InNamespace(w.namespace)))
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(b.Revision - a.Revision) })
	return list.Items[0], list.Items[1:]
}

// If the claims of a StatefulCluster take too much memory, the controller makes no decision and reports what to do.
func TestTooLarge(t *testing.T) {
	w := newWorld(t)
	w.create(1)
	w.settle(membership.AllAvailable)
	w.reconciler.Live = interceptor.NewClient(controller, interceptor.Funcs{
		List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := live.List(ctx, list, options...)
			if claims, ok := list.(*corev1.PersistentVolumeClaimList); ok {
				for i := range 20 {
					claims.Items = append(claims.Items, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
						Name: fmt.Sprintf("large-%d", i), Labels: map[string]string{"large": strings.Repeat("x", 1<<20)},
					}})
				}
			}
			return err
		},
	})
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = new(int32(2)) })
	result, err := w.reconciler.Reconcile(t.Context(), w.request())
	w.must(err)
	got := w.cluster()
	is := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionStalled)
	if is == nil || is.Status != metav1.ConditionTrue || is.Reason != "TooManyPods" || !strings.Contains(got.Status.Message, "kubectl get pods,persistentvolumeclaims -n "+w.namespace) {
		t.Errorf("message %q, condition %+v", got.Status.Message, is)
	}
	if len(got.Status.Members) != 1 || result.RequeueAfter == 0 {
		t.Errorf("%d members, requeue after %s", len(got.Status.Members), result.RequeueAfter)
	}
}
