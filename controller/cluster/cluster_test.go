package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Each pod has its own claim, and what the template says. A reconcile without a change writes nothing.
func TestCreates(t *testing.T) {
	w := started(t, 3)
	got, before := w.cluster(), w.pods()
	w.wantPods("coder-0", "coder-1", "coder-2")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	for _, p := range before {
		w.wantClaim(p.Name, "data-"+p.Name)
		wantLabels := map[string]string{"app": "coder", "tier": "gold", v1.ClusterLabel: clusterName, appsv1.StatefulSetRevisionLabel: got.Status.UpdateRevision}
		if !maps.Equal(p.Labels, wantLabels) || p.Annotations["note"] != "kept" || len(p.Spec.Volumes) != 2 || p.Spec.Volumes[0].EmptyDir == nil {
			t.Errorf("labels %v, annotations %v and volumes %+v of pod %s", p.Labels, p.Annotations, p.Spec.Volumes, p.Name)
		}
		if !slices.Equal(p.Finalizers, []string{v1.MemberFinalizer}) || len(p.Spec.SchedulingGates) > 0 || !metav1.IsControlledBy(&p, got) {
			t.Errorf("finalizers %v, scheduling gates %v and owners %v of pod %s", p.Finalizers, p.Spec.SchedulingGates, p.OwnerReferences, p.Name)
		}
		if m := w.member(p.Name); m.UID != p.UID || m.State != v1.MemberActive || m.Node != p.Spec.NodeName {
			t.Errorf("member %+v", m)
		}
	}
	claim := w.claim("data-coder-0")
	wantLabels := map[string]string{"app": "coder", "kind": "project", v1.ClusterLabel: clusterName}
	if !maps.Equal(claim.Labels, wantLabels) || claim.Annotations["backup"] != "daily" || len(claim.OwnerReferences) > 0 || sizeOf(claim) != "1Gi" {
		t.Errorf("claim %+v", claim)
	}
	s := got.Status
	if counts := fmt.Sprint(s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.UpdatedReplicas, s.CurrentReplicas, s.Next); counts != "3 3 3 3 3 3" {
		t.Errorf("status %+v", s)
	}
	w.wantEvents("MembersAdded new pods: coder-0 (data-coder-0), coder-1 (data-coder-1), coder-2 (data-coder-2)")
	same := func(a, b corev1.Pod) bool { return a.ResourceVersion == b.ResourceVersion }
	if w.settled().ResourceVersion != got.ResourceVersion || !slices.EqualFunc(w.pods(), before, same) {
		t.Error("a reconcile without a change writes the status or a pod")
	}
}

// The manager sets what makes a pod a member, whatever the template says. Nothing in the template appears twice, or is lost.
func TestHostileTemplate(t *testing.T) {
	type parts struct {
		Labels              map[string]string
		Finalizers          []string
		Hostname, Subdomain string
		ReadinessGates      []corev1.PodReadinessGate
		// SchedulingGates are those of the recorded pod.
		SchedulingGates []corev1.PodSchedulingGate
	}
	const theirs = "example.com/theirs"
	ready := func(gates ...corev1.PodConditionType) func(*parts) {
		return func(p *parts) {
			for _, gate := range gates {
				p.ReadinessGates = append(p.ReadinessGates, corev1.PodReadinessGate{ConditionType: gate})
			}
		}
	}
	w := newWorld(t)
	for name, test := range map[string]struct {
		// metadata and spec are fields of the template.
		metadata, spec string
		change         func(*v1.StatefulClusterSpec)
		want           func(*parts)
	}{
		"nothing": {},
		"labels-of-the-selector": {
			metadata: `"labels": {"app": "coder", "tier": "gold"}`,
			want:     func(p *parts) { p.Labels["tier"] = "gold" },
		},
		"labels-of-the-manager": {metadata: `"labels": {"` + v1.ClusterLabel + `": "other", "` + appsv1.StatefulSetRevisionLabel + `": "other"}`},
		"the-finalizer": {
			metadata: `"finalizers": ["` + v1.MemberFinalizer + `", "example.com/theirs"]`,
			want:     func(p *parts) { p.Finalizers = append(p.Finalizers, theirs) },
		},
		"another-finalizer": {
			metadata: `"finalizers": ["example.com/theirs"]`,
			want:     func(p *parts) { p.Finalizers = []string{theirs, v1.MemberFinalizer} },
		},
		"another-name-and-owner": {metadata: `"name": "db-9", "namespace": "kube-system", "generateName": "db-", "ownerReferences": []`},
		"fields-of-other-names":  {metadata: `"Labels": {"app": "other"}, "Finalizers": ["example.com/theirs"]`},
		"a-host-name":            {spec: `"hostname": "theirs"`},
		"a-subdomain":            {spec: `"subdomain": "theirs"`, want: func(p *parts) { p.Subdomain = "theirs" }},
		"another-subdomain": {
			spec: `"subdomain": "theirs"`, change: func(s *v1.StatefulClusterSpec) { s.ServiceName = "coders" },
			want: func(p *parts) { p.Subdomain = "coders" },
		},
		"updates-in-place": {change: inPlace, want: ready(v1.MemberServing)},
		"the-readiness-gate": {
			spec:   `"readinessGates": [{"conditionType": "` + v1.MemberServing + `"}, {"conditionType": "example.com/theirs"}]`,
			change: inPlace, want: ready(v1.MemberServing, theirs),
		},
		"another-readiness-gate": {
			spec:   `"readinessGates": [{"conditionType": "example.com/theirs"}]`,
			change: inPlace, want: ready(theirs, v1.MemberServing),
		},
		"no-readiness-gates":  {spec: `"readinessGates": null`, change: inPlace, want: ready(v1.MemberServing)},
		"the-scheduling-gate": {spec: `"schedulingGates": [{"name": "` + v1.MemberGate + `"}]`},
		"another-scheduling-gate": {
			spec: `"schedulingGates": [{"name": "example.com/theirs"}]`,
			want: func(p *parts) { p.SchedulingGates = []corev1.PodSchedulingGate{{Name: theirs}} },
		},
		"no-scheduling-gates": {spec: `"schedulingGates": null`},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.another(t, name)
			w.create(1, func(spec *v1.StatefulClusterSpec) {
				if test.change != nil {
					test.change(spec)
				}
				if test.spec != "" {
					test.spec += ","
				}
				spec.Template.Raw = fmt.Appendf(nil, `{"metadata": {%s}, "spec": {%s "containers": [{"name": "coder", "image": "coder:1"}]}}`, test.metadata, test.spec)
			})
			w.reconcile()
			pod := w.pod(name + "-0")
			if gate := (corev1.PodSchedulingGate{Name: v1.MemberGate}); !slices.Contains(pod.Spec.SchedulingGates, gate) || !metav1.IsControlledBy(pod, w.cluster()) {
				t.Errorf("scheduling gates %v and owners %v of the new pod", pod.Spec.SchedulingGates, pod.OwnerReferences)
			}
			w.reconcile()
			recorded := w.pod(pod.Name).Spec.SchedulingGates
			want := parts{
				Labels:     map[string]string{"app": "coder", v1.ClusterLabel: name, appsv1.StatefulSetRevisionLabel: w.cluster().Status.UpdateRevision},
				Finalizers: []string{v1.MemberFinalizer}, Hostname: pod.Name,
			}
			if test.want != nil {
				test.want(&want)
			}
			got := parts{pod.Labels, pod.Finalizers, pod.Spec.Hostname, pod.Spec.Subdomain, pod.Spec.ReadinessGates, recorded}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
		})
	}
}

// A lost pod gets a successor with a new claim, and keeps its own claim. More lost pods than maxLost wait for a person, or for their
// nodes. A lost pod whose node returns terminates, and is never counted.
func TestNodesLost(t *testing.T) {
	w := started(t, 3)
	first := w.lose("coder-0")
	got := w.settled()
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2", "data-coder-3")
	if m := w.member("coder-0"); m.State != v1.MemberLost || m.Claims[0].Name != "data-coder-0" || got.Status.Replicas != 3 {
		t.Errorf("member %+v, %d replicas", m, got.Status.Replicas)
	}
	w.wantEvents("Warning MemberLost lost pods, whose successors get new claims: coder-0 (data-coder-0) on node " + first)

	second := w.lose("coder-1")
	w.settle(membership.TooManyLost)
	w.wantStalled("TooManyLost", "kubectl taint node "+second+" ")
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-3")
	w.wantEvents("Warning TooManyLost ")

	w.heal(first)
	got = w.settled()
	w.wantPods("coder-1", "coder-2", "coder-3", "coder-4")
	w.wantClaim("coder-4", "data-coder-4")
	if got.Status.Replicas != 3 || !slices.Contains(got.Status.Released, v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimRetain}) {
		t.Errorf("%d replicas, released claims %v", got.Status.Replicas, got.Status.Released)
	}
	w.heal(second)
	w.settled()
	w.wantPods("coder-2", "coder-3", "coder-4")
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2", "data-coder-3", "data-coder-4")
}

// A drain evicts a pod, or somebody deletes a pod by force. Its successor has the same claim, and is created after the kubelet has
// reported the end of the pod.
func TestDrain(t *testing.T) {
	for name, end := range map[string]func(w *world, p *corev1.Pod) error{
		"eviction": func(w *world, p *corev1.Pod) error {
			node := w.node(p.Spec.NodeName)
			node.Spec.Unschedulable = true
			w.must(c.Update(w.t.Context(), node))
			return c.SubResource("eviction").Create(w.t.Context(), p, &policyv1.Eviction{ObjectMeta: w.named(p.Name)})
		},
		"force deletion": func(w *world, p *corev1.Pod) error { return c.Delete(w.t.Context(), p, client.GracePeriodSeconds(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := started(t, 3)
			w.slow["coder-0"] = true
			pod := w.pod("coder-0")
			w.must(end(w, pod))
			if got := w.settle(membership.PodsTerminating); got.Status.AvailableReplicas != 2 {
				t.Errorf("%d available, want 2", got.Status.AvailableReplicas)
			}
			w.wantPods("coder-0", "coder-1", "coder-2")
			delete(w.slow, "coder-0")
			w.settled()
			w.wantPods("coder-1", "coder-2", "coder-3")
			w.wantClaim("coder-3", "data-coder-0")
			w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
			if node := w.pod("coder-3").Spec.NodeName; node == pod.Spec.NodeName && w.node(node).Spec.Unschedulable {
				t.Error("the pod is on the drained node")
			}
		})
	}
}

// The volume of a successor is on a node that does not return. The commands of the message give the pod a new claim.
func TestUnusableVolume(t *testing.T) {
	w := started(t, 2)
	claim := w.claim("data-coder-0")
	claim.Spec.VolumeName = "volume-of-coder-0"
	w.must(c.Update(t.Context(), claim))
	w.pinned = claim.Name
	w.deletePod("coder-0")
	w.settle(membership.PodsUnschedulable)
	w.wantPods("coder-1", "coder-2")
	w.wantStalled("PodsUnschedulable", "claim data-coder-0", "kubectl describe pv volume-of-coder-0", `"state":"Fresh"`, "kubectl delete pod -n "+w.namespace+" coder-2")
	w.wantEvents("Warning PodsUnschedulable pod coder-2 can't be scheduled")

	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replacement.State = v1.ReplacementFresh })
	w.deletePod("coder-2")
	w.until("pod coder-2 is removed", func() bool { return !slices.Contains(w.podNames(), "coder-2") })
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replacement.State = v1.ReplacementCarry })
	got := w.settled()
	w.wantPods("coder-1", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	if !slices.Contains(got.Status.Released, v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimRetain}) || isStalled(got) {
		t.Errorf("released claims %v, conditions %+v", got.Status.Released, got.Status.Conditions)
	}
}

// A pod whose finalizer somebody removed is lost after a force deletion, because its processes can still run. A person attests its
// termination. An attestation for a running pod is refused.
func TestAttestation(t *testing.T) {
	w := started(t, 3)
	lost := w.pod("coder-0")
	lost.Finalizers = nil
	w.must(uninstaller.Update(t.Context(), lost))
	w.must(c.Delete(t.Context(), lost, client.GracePeriodSeconds(0)))
	got := w.settled()
	w.wantPods("coder-1", "coder-2", "coder-3")
	w.wantClaim("coder-3", "data-coder-3")
	if m := w.member("coder-0"); m == nil || m.State != v1.MemberLost {
		t.Errorf("member %+v", m)
	}
	if want := "kubectl annotate -n " + w.namespace + " stc coder " + v1.AttestAnnotation + "=" + string(lost.UID); !strings.Contains(got.Status.Message, want) {
		t.Errorf("message %q, want %q", got.Status.Message, want)
	}
	w.attest(w.pod("coder-1"))
	w.settled()
	w.wantEvents("Warning AttestationRefused ")
	w.wantPods("coder-1", "coder-2", "coder-3")

	delete(w.claims, lost.UID) // the processes have ended
	w.attest(lost)
	got = w.settled()
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
	w := started(t, 2)
	for _, p := range w.pods() {
		p.Finalizers = []string{"example.com/other"}
		w.must(uninstaller.Update(t.Context(), &p))
	}
	w.settled()
	for _, p := range w.pods() {
		if !slices.Equal(slices.Sorted(slices.Values(p.Finalizers)), []string{v1.MemberFinalizer, "example.com/other"}) {
			t.Errorf("finalizers %v of pod %s", p.Finalizers, p.Name)
		}
		controllerutil.RemoveFinalizer(&p, "example.com/other")
		w.must(c.Update(t.Context(), &p))
	}
	w.deletePod("coder-0")
	w.settled()
	w.wantPods("coder-1", "coder-2")
	w.wantClaim("coder-2", "data-coder-0")
}

// A pod with the label of the StatefulCluster, and with its UID in an owner of another kind, is not adopted and does not move the counter.
// While it can run with a claim, no other pod gets the claim, and the claim is not deleted. Without the guards, users can create
// such a pod.
func TestForgedPod(t *testing.T) {
	w := started(t, 2, func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete
	})
	forge := func(name string) *corev1.Pod {
		t.Helper()
		forged := &corev1.Pod{ObjectMeta: w.named(name), Spec: podSpec()}
		forged.Labels = map[string]string{v1.ClusterLabel: clusterName}
		forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: clusterName, UID: w.cluster().UID, Controller: new(true)}}
		forged.Spec.NodeName = w.nodes[4]
		forged.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-coder-0"},
		}}}
		if err := c.Create(t.Context(), forged.DeepCopy()); !apierrors.IsForbidden(err) {
			t.Errorf("the guards admit a forged pod: %v", err)
		}
		forged.Labels[unguarded] = ""
		w.must(c.Create(t.Context(), forged))
		return forged
	}
	forged := forge("coder-99999999999")
	if got := w.settled(); len(got.Status.Members) != 2 || got.Status.Next != 2 {
		t.Errorf("%d members, and the next number is %d", len(got.Status.Members), got.Status.Next)
	}
	w.deletePod("coder-0")
	w.settle(membership.ClaimInUse)
	w.wantStalled("ClaimInUse", "data-coder-0", forged.Name)
	w.must(c.Delete(t.Context(), forged))
	w.settled()
	w.wantPods("coder-1", "coder-2")
	w.wantClaim("coder-2", "data-coder-0")

	forged = forge("coder-7")
	w.scale(0)
	w.settled()
	w.wantPods("coder-7")
	w.wantClaims("data-coder-0")
	w.must(c.Delete(t.Context(), forged))
	w.settled()
	w.wantClaims()
}

// Claims of two StatefulClusters can have the same name. A pod that is not scheduled yet does not keep its claim, so a claim of the other
// StatefulCluster can take its place.
func TestClaimOfTwoClusters(t *testing.T) {
	w := newWorld(t)
	other := w.another(t, "x-"+clusterName)
	other.create(1, func(spec *v1.StatefulClusterSpec) {
		held := strings.Replace(string(spec.Template.Raw), `"containers"`, `"schedulingGates": [{"name": "example.com/held"}], "containers"`, 1)
		spec.Template.Raw = []byte(held)
	})
	other.until("the pod waits only for a gate of its template", func() bool {
		pods := w.pods()
		return len(pods) == 1 && slices.Equal(pods[0].Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: "example.com/held"}})
	})
	w.must(c.Delete(t.Context(), w.claim("data-x-coder-0")))
	w.play()

	w.create(1, func(spec *v1.StatefulClusterSpec) { spec.VolumeClaimTemplates[0].Metadata.Name = "data-x" })
	w.settle(membership.ClaimInUse)
	w.wantStalled("ClaimInUse", "pod x-coder-0 can run with the claim")
	w.must(c.Patch(t.Context(), w.pod("x-coder-0"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`))))
	other.settled()
	w.settle(membership.ClaimInUse)
	w.deletePod("x-coder-0")
	other.setImage("coder:1")
	other.settled()
	w.settled()
	w.wantPods("coder-0", "x-coder-2")
	w.wantClaim("coder-0", "data-x-coder-0")
	w.wantClaim("x-coder-2", "data-x-coder-2")
}

// The retention policy applies to the claims of lost pods, of pods that are scaled down, and of the StatefulCluster. Its deletion waits
// until all pods have provably terminated.
func TestRetention(t *testing.T) {
	for _, deletes := range []v1.ClaimRetention{v1.ClaimRetain, v1.ClaimDelete} {
		t.Run(string(deletes), func(t *testing.T) {
			w := started(t, 2, func(spec *v1.StatefulClusterSpec) {
				spec.PersistentVolumeClaimRetentionPolicy = v1.ClaimRetentionPolicy{WhenDeleted: deletes, WhenScaled: deletes, WhenReplaced: deletes}
				spec.Replacement.MaxLost = new(int32(1))
			})
			wantClaims := func(needed []string, others ...string) {
				t.Helper()
				if deletes == v1.ClaimRetain {
					needed = append(needed, others...)
				}
				w.wantClaims(needed...)
			}
			node := w.lose("coder-0")
			w.settled()
			wantClaims([]string{"data-coder-0", "data-coder-1", "data-coder-2"})
			w.heal(node)
			w.settled()
			wantClaims([]string{"data-coder-1", "data-coder-2"}, "data-coder-0")
			w.scale(1)
			w.settled()
			w.wantPods("coder-1")
			wantClaims([]string{"data-coder-1"}, "data-coder-0", "data-coder-2")

			w.slow["coder-1"] = true
			w.must(c.Delete(t.Context(), w.cluster()))
			w.until("the message names the pod", func() bool {
				return strings.Contains(w.cluster().Status.Message, "the deletion waits until pod coder-1 has terminated")
			})
			wantClaims([]string{"data-coder-1"}, "data-coder-0", "data-coder-2")
			delete(w.slow, "coder-1")
			w.until("the StatefulCluster is removed", w.isRemoved)
			w.wantPods()
			wantClaims(nil, "data-coder-0", "data-coder-1", "data-coder-2")
		})
	}
}

// With kubectl delete --cascade=orphan, the pods run on with their claims, and their later deletion waits for nothing. A new
// StatefulCluster with the name leaves them alone.
func TestOrphans(t *testing.T) {
	w := started(t, 2, func(spec *v1.StatefulClusterSpec) {
		spec.PersistentVolumeClaimRetentionPolicy = v1.ClaimRetentionPolicy{WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}
	})
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
	w.settled()
	w.wantPods("coder-0", "coder-1", "coder-2")
	w.deletePod("coder-0")
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
	for _, r := range w.revisions() {
		r.OwnerReferences = nil
		w.must(c.Update(w.t.Context(), &r))
	}
	o := w.cluster()
	controllerutil.RemoveFinalizer(o, metav1.FinalizerOrphanDependents)
	w.must(c.Update(w.t.Context(), o))
}

// An autoscaler scales the StatefulCluster. The pod with the lowest pod-deletion-cost is removed.
func TestScale(t *testing.T) {
	w := started(t, 2)
	p := w.pod("coder-0")
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.PodDeletionCost, "-5")
	w.must(c.Update(t.Context(), p))
	for _, want := range [][]string{{"coder-1"}, {"coder-1", "coder-2"}} {
		var read autoscalingv1.Scale
		w.must(c.SubResource("scale").Get(t.Context(), w.cluster(), &read))
		if read.Status.Selector != "app=coder" {
			t.Errorf("selector %q", read.Status.Selector)
		}
		read.Spec.Replicas = int32(len(want))
		w.must(c.SubResource("scale").Update(t.Context(), w.cluster(), client.WithSubResourceBody(&read)))
		w.settled()
		w.wantPods(want...)
	}
	w.wantClaim("coder-2", "data-coder-2")
}

// A rollout stops at a pod of a broken revision. The fix needs no manual deletion. With a partition, the other pods keep the current
// revision, also after a deletion.
func TestRollout(t *testing.T) {
	w := started(t, 3, func(spec *v1.StatefulClusterSpec) {
		spec.UpdateStrategy.RollingUpdate = &v1.ClusterRollout{Partition: 1}
	})
	w.unready["broken"] = true
	w.setImage("broken")
	if got := w.settle(membership.RollingOut).Status; got.AvailableReplicas != 2 || got.UpdatedReplicas != 1 {
		t.Errorf("status %+v", got)
	}
	w.setImage("coder:2")
	w.settled()
	w.deletePod("coder-0")
	got := w.settled().Status
	images := map[string]int{}
	for _, p := range w.pods() {
		images[p.Spec.Containers[0].Image]++
	}
	if !maps.Equal(images, map[string]int{"coder:1": 1, "coder:2": 2}) || got.UpdatedReplicas != 2 || got.CurrentReplicas != 1 {
		t.Errorf("images %v; status %+v", images, got)
	}
	w.wantClaims("data-coder-0", "data-coder-1", "data-coder-2")
	w.change(func(spec *v1.StatefulClusterSpec) { spec.UpdateStrategy.RollingUpdate = nil })
	w.settled()
	w.wantEvents("RolloutStarted ", "RolloutCompleted ")
}

// A pod with the name of a member, or a claim, that another client created stays as it is. The member gets another name.
func TestForeignNames(t *testing.T) {
	w := newWorld(t)
	pod := &corev1.Pod{ObjectMeta: w.named("coder-0"), Spec: podSpec()}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	w.must(c.Create(t.Context(), pod))
	w.create(2)
	w.settled()
	w.wantPods("coder-0", "coder-1", "coder-2")
	if got := w.pod("coder-0"); got.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the foreign pod was written: %+v", got)
	}
	w.must(c.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: w.named("data-coder-3"), Spec: claimSpec()}))
	w.scale(3)
	w.settled()
	w.wantPods("coder-0", "coder-1", "coder-2", "coder-4")
	w.wantClaim("coder-4", "data-coder-4")
}

// Old revisions are deleted above the limit. A return to the template of an old revision makes that revision the newest. A revision
// without its label is used, and is not created again and again.
func TestHistory(t *testing.T) {
	w := started(t, 1, func(spec *v1.StatefulClusterSpec) { spec.RevisionHistoryLimit = new(int32(1)) })
	for _, image := range []string{"coder:2", "coder:3", "coder:4"} {
		w.setImage(image)
		w.settled()
	}
	all := w.revisions()
	if len(all) != 2 || all[0].Name != w.cluster().Status.UpdateRevision || !strings.Contains(string(all[1].Data.Raw), "coder:3") {
		t.Fatalf("revisions %+v, want the newest and that of coder:3", all)
	}
	old := all[1]
	var template any
	if err := json.Unmarshal(old.Data.Raw, &template); err != nil || !metav1.IsControlledBy(&old, w.cluster()) {
		t.Errorf("error %v, owners %v", err, old.OwnerReferences)
	}
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Template = runtime.RawExtension{Raw: old.Data.Raw} })
	got := w.settled()
	if newest := w.revisions()[0]; got.Status.CurrentRevision != old.Name || newest.Name != old.Name || w.pods()[0].Spec.Containers[0].Image != "coder:3" {
		t.Errorf("current revision %s and newest revision %s, want %s", got.Status.CurrentRevision, newest.Name, old.Name)
	}

	newest := w.revisions()[0]
	newest.Labels = nil
	w.must(c.Update(t.Context(), &newest))
	w.scale(2)
	w.settled()
	if all := w.revisions(); len(w.pods()) != 2 || len(all) != 2 || all[0].UID != newest.UID {
		t.Errorf("pods %v, revisions %+v", w.podNames(), all)
	}
}

// revisions returns the revisions from the newest to the oldest.
func (w *world) revisions() []appsv1.ControllerRevision {
	w.t.Helper()
	var list appsv1.ControllerRevisionList
	w.must(c.List(w.t.Context(), &list, client.InNamespace(w.namespace)))
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(b.Revision - a.Revision) })
	return list.Items
}

// If the claims of a StatefulCluster take too much memory, the controller makes no decision and reports what to do.
func TestTooLarge(t *testing.T) {
	w := started(t, 1)
	w.reconciler.Live = interceptor.NewClient(controller, interceptor.Funcs{
		List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := live.List(ctx, list, options...)
			if claims, ok := list.(*corev1.PersistentVolumeClaimList); ok {
				large := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "large", Labels: map[string]string{"large": strings.Repeat("x", 1<<20)}}}
				claims.Items = append(claims.Items, slices.Repeat([]corev1.PersistentVolumeClaim{large}, 20)...)
			}
			return err
		},
	})
	w.scale(2)
	result := w.reconcile()
	w.wantStalled("TooManyPods", "kubectl get pods,persistentvolumeclaims -n "+w.namespace)
	if got := w.cluster().Status.Members; len(got) != 1 || result.RequeueAfter == 0 {
		t.Errorf("%d members, requeue after %s", len(got), result.RequeueAfter)
	}
}
