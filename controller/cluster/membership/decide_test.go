package membership_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// decideTest is a Snapshot, and what Decide must return.
type decideTest struct {
	snapshot *SnapshotWrapper
	outcome  membership.Outcome
	// steps are the steps as text returns them, with semicolons between them.
	steps string
	// members is the record as describe returns it. Empty: it does not change.
	members string
	// message is a part of the message.
	message string
}

func (test decideTest) run(t *testing.T) membership.Plan {
	t.Helper()
	want := test.members
	if want == "" {
		want = describe(test.snapshot.Cluster.Status)
	}
	plan := membership.Decide(test.snapshot.Snapshot, now)
	if plan.Outcome != test.outcome || !strings.Contains(plan.Status.Message, test.message) {
		t.Errorf("the outcome is %s with message %q, want %s with %q", plan.Outcome, plan.Status.Message, test.outcome, test.message)
	}
	wantSteps(t, plan, test.steps)
	if got := describe(plan.Status); got != want {
		t.Errorf("the members are %s, want %s", got, want)
	}
	return plan
}

func runAll(t *testing.T, tests map[string]decideTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test.run(t) })
	}
}

func wantSteps(t *testing.T, plan membership.Plan, want string) {
	t.Helper()
	var got []string
	for _, step := range plan.Steps {
		got = append(got, text(step))
	}
	if diff := cmp.Diff(want, strings.Join(got, "; ")); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func hasStep(plan membership.Plan, want string) bool {
	return slices.ContainsFunc(plan.Steps, func(step membership.Step) bool { return text(step) == want })
}

// text returns the kind of a step and the values of its fields. In these tests, the UID of an object is its name.
func text(step membership.Step) string {
	of := reflect.ValueOf(step)
	words := []string{of.Type().Name()}
	for _, field := range of.Fields() {
		var word string
		switch value := field.Interface().(type) {
		case membership.Ref:
			if word = value.Name; string(value.UID) != value.Name {
				word += " of UID " + string(value.UID)
			}
		case resource.Quantity:
			word = value.String()
		case map[string]corev1.ResourceRequirements:
			data, _ := json.Marshal(value)
			word = string(data)
		default:
			word = fmt.Sprint(value)
		}
		words = append(words, strings.ReplaceAll(word, latest, "latest"))
	}
	return strings.Join(words, " ")
}

// describe returns the name, the state and the claims of each member, and the counter.
func describe(status v1.StatefulClusterStatus) string {
	var all []string
	for _, m := range status.Members {
		text := fmt.Sprintf("%s %s", strings.TrimPrefix(m.Name, "coder-"), m.State)
		for _, c := range m.Claims {
			text += " " + c.Name
		}
		all = append(all, text)
	}
	return strings.Join(append(all, fmt.Sprintf("next %d", status.Next)), ", ")
}

// created returns the creation of a pod with a claim, and fresh the creation of a pod with its claim.
func created(pod, claim string) string {
	return fmt.Sprintf("CreatePod %s latest [{data %s}]", pod, claim)
}

func fresh(pod string) string {
	return fmt.Sprintf("CreateClaim data-%s data; %s", pod, created(pod, "data-"+pod))
}

// carried is the replacement of coder-0, which has terminated.
var carried = "Record; Unprotect coder-0; " + created("coder-1", "data-coder-0")

func ordered(s *v1.StatefulClusterSpec)  { s.PodManagementPolicy = v1.ClusterOrderedReady }
func onDelete(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterOnDelete }
func carryNot(s *v1.StatefulClusterSpec) { s.Replacement.State = v1.ReplacementFresh }
func without(s *membership.Snapshot)     { s.Pods = s.Pods[1:] } // its first pod

// from moves the counter.
func from(next int64) func(*membership.Snapshot) {
	return func(s *membership.Snapshot) { s.Cluster.Status.Next = next }
}

// in changes the state of the first member.
func in(state v1.MemberState) func(*membership.Snapshot) {
	return func(s *membership.Snapshot) { s.Cluster.Status.Members[0].State = state }
}

func attest(name string) func(*membership.Snapshot) {
	return func(s *membership.Snapshot) { s.Cluster.Annotations[v1.AttestAnnotation] = name }
}

func foreignClaim(s *membership.Snapshot) { s.Claims[len(s.Claims)-1].Labels = nil }

// allDeleted deletes all claims that no member has.
var allDeleted = v1.ClaimRetentionPolicy{WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}

func TestDecideCreates(t *testing.T) {
	deselect := func(s *v1.StatefulClusterSpec) { s.Template.Raw = []byte(`{"metadata":{"labels":{"app":"other"}}}`) }
	adopted := func() *SnapshotWrapper { return MakeSnapshot(1).Pod(ready("coder-4").Node("a").Claim("data-coder-2")) }
	const mismatch = "do not match spec.selector (app=coder). Change spec.template.metadata.labels"
	runAll(t, map[string]decideTest{
		"the first pods": {
			MakeSnapshot(2), "Scaling", "Record; " + fresh("coder-0") + "; " + fresh("coder-1"), "0 Pending data-coder-0, 1 Pending data-coder-1, next 2", "",
		},
		"the first revision": {
			MakeSnapshot(0).With(func(s *membership.Snapshot) { s.Revisions = nil }), "AllAvailable", "CreateRevision latest 1", "", "",
		},
		"from a number": {
			MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Ordinals.Start = 7 }), "Scaling",
			"Record; " + fresh("coder-7"), "7 Pending data-coder-7, next 8", "",
		},
		"the claims of an older StatefulCluster are left alone": {
			MakeSnapshot(1).Claim("data-coder-3"), "Scaling", "Record; " + fresh("coder-4"), "4 Pending data-coder-4, next 5", "",
		},
		"one after the other": {
			MakeSnapshot(3).Spec(ordered).Recorded(ready("coder-0")), "Scaling",
			"Record; " + fresh("coder-1"), "0 Active data-coder-0, 1 Pending data-coder-1, next 2", "",
		},
		"not before the last is Ready": {MakeSnapshot(3).Spec(ordered).Recorded(unready("coder-0")), "Scaling", "", "", ""},
		"the UID is recorded before the pod can run": {
			MakeSnapshot(1).Pod(MakePod("coder-0")).Pending("coder-0", ""), "PodsUnavailable", "Record; Ungate coder-0", "0 Active, next 1", "",
		},
		"an unrecorded pod is removed": {
			MakeSnapshot(1).Recorded(ready("coder-1")).Pod(MakePod("coder-0")), "AllAvailable", "Delete coder-0; Unprotect coder-0", "", "",
		},
		"another client has the name": {
			MakeSnapshot(1).Pod(MakePod("coder-0")).Pending("coder-0", "data-coder-9").Claim("data-coder-9").With(func(s *membership.Snapshot) {
				s.Pods[0].OwnerReferences, s.Pods[0].Labels, s.Pods[0].Finalizers = nil, nil, nil
			}), "Scaling", "Record; " + created("coder-10", "data-coder-9"), "10 Pending data-coder-9, next 11", "",
		},
		"another client has the claim": {
			MakeSnapshot(1).Pending("coder-0", "data-coder-0").Claim("data-coder-0").With(foreignClaim), "Scaling",
			"Record; " + fresh("coder-1"), "1 Pending data-coder-1, next 2", "",
		},
		"a lost record": {adopted(), "PodsAdopted", "Record", "4 Active data-coder-2, next 5", ""},
		"a lost record, a claim of the template": {
			MakeSnapshot(1).Pod(ready("coder-4").Node("a").Claim("data-coder-2").Volume("shared", "shared")), "PodsAdopted",
			"Record", "4 Active data-coder-2, next 5", "",
		},
		"a lost record, another client's claim": {
			adopted().Claim("data-coder-2").With(foreignClaim), "PodsAdopted", "Record", "4 Active, next 5", "",
		},
		"a pod of a StatefulCluster that had the same name": {
			MakeSnapshot(1).Recorded(ready("coder-1")).Pod(ready("coder-0").Node("a")).With(func(s *membership.Snapshot) {
				s.Pods[1].OwnerReferences[0].UID = "earlier"
			}), "AllAvailable", "Unprotect coder-0", "", "",
		},
		"labels in a field that the API server ignores": {
			MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) {
				s.Selector = v1.LabelSelector{MatchExpressions: []v1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
				s.Template.Raw = []byte(`{"Metadata":{"labels":{"app":"coder"}}}`)
			}), "InvalidTemplate", "", "", "do not match spec.selector (app). Change spec.template.metadata.labels",
		},
		"a selector of another StatefulCluster": {
			MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Selector.MatchLabels = map[string]string{v1.ClusterLabel: "other"} }),
			"InvalidTemplate", "", "", "do not match spec.selector (" + v1.ClusterLabel + "=other)",
		},
		"labels that do not match": {MakeSnapshot(1).Spec(deselect), "InvalidTemplate", "", "", mismatch},
	})
}

// A recorded pod gets the finalizer back, also before it is deleted. The API server rejects it for a terminating pod.
func TestDecideProtects(t *testing.T) {
	bare := func(p *PodWrapper) *SnapshotWrapper { p.Finalizers = nil; return MakeSnapshot(1).Recorded(p) }
	runAll(t, map[string]decideTest{
		"a pod that runs": {bare(ready("coder-0")), "AllAvailable", "Protect coder-0", "", ""},
		"a pod that leaves": {
			bare(ready("coder-0")).With(in(v1.MemberLeaving)).Spec(func(s *v1.StatefulClusterSpec) { s.Replicas = new(int32(0)) }), "Scaling",
			"Protect coder-0; Delete coder-0", "", "",
		},
		"a pod that ends": {bare(ready("coder-0").Terminating()), "PodsTerminating", "", "", ""},
	})
}

// forged returns a pod that another client created, with the label of the StatefulCluster and with its UID in an owner of another kind.
func forged(name, claim string) *PodWrapper {
	p := ready(name).Node("f").Claim(claim)
	p.OwnerReferences[0].Kind, p.Finalizers = "StatefulSet", nil
	return p
}

// The StatefulCluster does not adopt a forged pod. While the pod can run with a claim, no other pod gets the claim, and the claim is not
// deleted.
func TestDecideClaimsInUse(t *testing.T) {
	other := func(p *PodWrapper) func(*membership.Snapshot) {
		p.Labels[v1.ClusterLabel], p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "db", "db", "another"
		return func(s *membership.Snapshot) { s.Others = []corev1.Pod{p.Pod} }
	}
	ephemeral := forged("data", "data-data-0")
	ephemeral.Spec.Volumes = append(ephemeral.Spec.Volumes, corev1.Volume{Name: "coder-0", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
	leftOver := terminating("coder-0").Node("a").Claim("data-coder-0")
	leftOver.Finalizers = nil
	plan := membership.Decide(MakeSnapshot(0).Recorded(ended("coder-0")).Pod(forged("db", "data-coder-0")).
		Spec(func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete }).Snapshot, now)
	if diff := cmp.Diff([]v1.ReleasedClaim{{Name: "data-coder-0", Policy: v1.ClaimDelete}}, plan.Status.Released); diff != "" ||
		len(plan.Status.Members) > 0 || hasStep(plan, "DeleteClaim data-coder-0") {
		t.Errorf("members %v, steps %v, released claims (-want +got):\n%s", plan.Status.Members, plan.Steps, diff)
	}
	one := func(pods ...*PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(pods...) }
	pending := func() *SnapshotWrapper { return MakeSnapshot(1).Pending("coder-1", "data-coder-0") }
	const waits = "a pod waits for claim data-coder-0, because pod db can run with the claim"
	runAll(t, map[string]decideTest{
		"it is not adopted": {one(ready("coder-0")).Pod(forged("coder-7", "data-coder-0")), "AllAvailable", "", "", ""},
		"of a pod that has terminated": {
			one(ended("coder-0")).Pod(forged("db", "data-coder-0")), "ClaimInUse", "", "",
			waits + " and has not provably terminated. If nothing needs the pod, delete the pod: kubectl delete pod -n prod db",
		},
		"of a pod that has terminated, by an ended pod": {
			one(ended("coder-0")).Pod(forged("db", "data-coder-0").Terminated()), "Scaling", carried, "1 Pending data-coder-0, next 2", "",
		},
		"of a pod that has terminated, by a pod that waits for the gate": {
			one(ended("coder-0")).Pod(MakePod("coder-00").Claim("data-coder-0")), "Scaling",
			"Record; Unprotect coder-0; Delete coder-00; Unprotect coder-00; " + created("coder-1", "data-coder-0"), "1 Pending data-coder-0, next 2", "",
		},
		"of a pod that was removed, attested": {
			one(ready("coder-0")).With(without).With(attest("coder-0")).Pod(forged("db", "data-coder-0")), "ClaimInUse", "", "", waits,
		},
		"of a new pod":   {pending().Pod(forged("db", "data-coder-0")), "ClaimInUse", "", "", waits},
		"of a gated pod": {one(MakePod("coder-0")).Pod(forged("db", "data-coder-0")), "ClaimInUse", "", "", waits},
		"after an attestation, the object of the pod stays": {
			pending().Pod(leftOver).Lose("a"), "Scaling", "CreateClaim data-coder-0 data; " + created("coder-1", "data-coder-0"), "", "",
		},
		"of a gated pod, by an ephemeral volume": {
			one(MakePod("coder-0")).Pod(ephemeral), "ClaimInUse", "", "", "a pod waits for claim data-coder-0, because pod data can run with the claim",
		},
		"of a gated pod, by a gated pod of another StatefulCluster": {
			one(MakePod("coder-0")).With(other(MakePod("db").Claim("data-coder-0"))), "ClaimInUse", "", "", waits,
		},
		"of a gated pod, by a pod of another StatefulCluster that has terminated": {
			one(MakePod("coder-0")).With(other(ended("db").Claim("data-coder-0"))), "PodsUnavailable", "Ungate coder-0", "", "",
		},
		"of a pod that has terminated, by another StatefulCluster whose claim it is": {
			one(ended("coder-0")).With(other(ready("db").Claim("data-coder-0"))).With(func(s *membership.Snapshot) {
				s.Claims[0].Labels[v1.ClusterLabel] = "db"
			}), "Scaling", "Record; Unprotect coder-0; " + fresh("coder-2"), "2 Pending data-coder-2, next 3", "",
		},
		"of a pod of the last revision of the record": {
			one(ready("coder-0").Claim("data-coder-9")).Claim("data-coder-9").Released("data-coder-9"), "AllAvailable", "", "",
			"claim data-coder-9 is not deleted, because pod coder-0 can run with the claim",
		},
	})
}

// The counter passes the numbers of pods and claims up to 32 bits. Larger numbers do not count.
func TestDecideLargeNumbers(t *testing.T) {
	claims := func(numbers ...string) *SnapshotWrapper {
		s := MakeSnapshot(1)
		for _, n := range numbers {
			s.Claim("data-coder-" + n)
		}
		return s
	}
	start := func(s *v1.StatefulClusterSpec) { s.Ordinals.Start = math.MaxInt32 }
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		want     int64
	}{
		"31 bits":        {claims("2147483646"), 2147483647},
		"32 bits":        {claims("2147483647", "2147483648", "4294967295"), 4294967296},
		"too long":       {claims("4294967296", "9999999999", "9223372036854775807", "9223372036854775808"), 0},
		"pods":           {claims().Pod(forged("coder-4294967294", "a")).Pod(forged("coder-99999999999", "b")), 4294967295},
		"above all":      {claims().With(from(100_000_000_000)), 5000000000},
		"start":          {claims().Spec(start), 2147483647},
		"the pods after": {claims().Spec(start).With(from(1 << 31)), 2147483648},
	} {
		t.Run(name, func(t *testing.T) {
			pod, record := fmt.Sprintf("coder-%d", test.want), fmt.Sprintf("%d Pending data-coder-%[1]d, next %d", test.want, test.want+1)
			decideTest{test.snapshot, "Scaling", "Record; " + fresh(pod), record, ""}.run(t)
		})
	}
	runAll(t, map[string]decideTest{
		"the successor of a pod": {
			MakeSnapshot(2).Recorded(ready("coder-4294967296"), ended("coder-4294967295")), "Scaling",
			"Record; Unprotect coder-4294967295; " + created("coder-4294967297", "data-coder-4294967295"),
			"4294967296 Active data-coder-4294967296, 4294967297 Pending data-coder-4294967295, next 4294967298", "",
		},
		"a member with a name that is too long": {
			MakeSnapshot(2).Recorded(ready("coder-3")).Pending("coder-100000000000", "data-coder-2").Claim("data-coder-2"), "Scaling",
			"Record; " + created("coder-5000000000", "data-coder-2"), "3 Active data-coder-3, 5000000000 Pending data-coder-2, next 5000000001", "",
		},
		"a pod with a number from the mended counter": {
			MakeSnapshot(1).Recorded(ready("coder-9999999999")).With(from(100_000_000_000)), "AllAvailable", "", "", "",
		},
		"a lost record": {
			MakeSnapshot(1).Pod(ready("coder-4294967299").Node("a").Claim("data-coder-2")), "PodsAdopted",
			"Record", "4294967299 Active data-coder-2, next 4294967300", "",
		},
	})
}

// A pod is not created while one of its claims is being deleted. Until a pod is scheduled, its claim can disappear.
func TestDecideDeletedClaim(t *testing.T) {
	one := func(p *PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(p) }
	deletes := func(s *membership.Snapshot) { s.Claims[0].DeletionTimestamp = new(metav1.NewTime(now)) }
	gone := func(s *membership.Snapshot) { s.Claims = nil }
	unscheduled := func(s *membership.Snapshot) {
		s.Pods[0].Spec.NodeName, s.Pods[0].Status = "", corev1.PodStatus{Phase: corev1.PodPending}
	}
	runAll(t, map[string]decideTest{
		"of a successor": {
			one(ended("coder-0")).With(deletes), "Scaling", "Record; Unprotect coder-0", "1 Pending data-coder-0, next 2",
			"a pod waits until claim data-coder-0 is deleted. Then the pod gets a new claim with this name. " +
				"To show what keeps the claim, run: kubectl describe pvc -n prod data-coder-0",
		},
		"of a pod that runs":        {one(ready("coder-0")).With(deletes), "AllAvailable", "", "", ""},
		"of an unscheduled pod":     {one(unready("coder-0")).With(unscheduled).With(deletes), "PodsUnavailable", "", "", ""},
		"removed, unscheduled pod":  {one(unready("coder-0")).With(unscheduled).With(gone), "PodsUnavailable", "CreateClaim data-coder-0 data", "", ""},
		"removed, pod that runs":    {one(ready("coder-0")).With(gone), "AllAvailable", "", "", ""},
		"removed, pod that is lost": {one(terminating("coder-0")).Lose("node-coder-0").With(gone), "TooManyLost", "", "", ""},
	})
}

// A pod for which the scheduler finds no node is reported at once, and is a person's work only after some minutes. The message has the
// claim that keeps the pod from other nodes, and the command that gives the pod a new claim.
func TestDecideUnschedulable(t *testing.T) {
	const pinned = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's node affinity."
	const command = `run: kubectl describe pv pv-1. Let one of them take the pod. If no such node returns, and the data of the claim can be lost, ` +
		`give the pod a new claim: kubectl patch -n prod stc coder --type=merge -p '{"spec":{"replacement":{"state":"Fresh"}}}' && ` +
		`kubectl delete pod -n prod coder-1 && kubectl patch -n prod stc coder --type=merge -p '{"spec":{"replacement":{"state":"Carry"}}}'. The old claim is kept`
	// of returns a Snapshot with a Ready pod, and with a pod without a node, since that time.
	of := func(reason, message string, since time.Duration) *SnapshotWrapper {
		return MakeSnapshot(2).Recorded(ready("coder-0"), unready("coder-1")).With(func(s *membership.Snapshot) {
			p := &s.Pods[1]
			p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-since)),
			}}}
			s.Claims[1].Spec.VolumeName = "pv-1"
		})
	}
	stuck := func() *SnapshotWrapper { return of(corev1.PodReasonUnschedulable, pinned, time.Hour) }
	for name, test := range map[string]decideTest{
		"its claim binds it": {stuck(), "PodsUnschedulable", "", "", command},
		"the claim and the scheduler's reason": {
			stuck(), "PodsUnschedulable", "", "", "pod coder-1 can't be scheduled: " + strings.TrimSuffix(pinned, ".") +
				". The pod needs a node on which it can use claim data-coder-1.",
		},
		"an autoscaler adds a node": {
			of(corev1.PodReasonUnschedulable, pinned, time.Minute), "PodsUnavailable", "", "",
			"1 of 2 pods are available: pod coder-1 can't be scheduled: 0/3 nodes",
		},
		"another scheduling gate": {of(corev1.PodReasonSchedulingGated, "gated", time.Hour), "PodsUnavailable", "", "", ""},
		"the nodes are full": {
			of(corev1.PodReasonUnschedulable, "0/3 nodes are available: 3 Insufficient cpu.", time.Hour), "PodsUnschedulable", "", "",
			"3 Insufficient cpu. Add a node that fits the pod, or change spec.template.",
		},
		"successors get new claims anyway": {
			stuck().Spec(carryNot).Spec(func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenReplaced = v1.ClaimDelete }),
			"PodsUnschedulable", "", "", "give the pod a new claim: kubectl delete pod -n prod coder-1. That deletes the old claim",
		},
		"in a rollout": {
			stuck().With(func(s *membership.Snapshot) { s.Pods[0].Labels[appsv1.StatefulSetRevisionLabel] = "coder-old" }), "PodsUnschedulable",
			"Record", "", command,
		},
	} {
		t.Run(name, func(t *testing.T) {
			conditions := test.run(t).Status.Conditions
			if stalled := meta.IsStatusConditionTrue(conditions, v1.ConditionStalled); stalled != (test.outcome == membership.PodsUnschedulable) {
				t.Errorf("outcome %s, and Stalled is %t", test.outcome, stalled)
			}
		})
	}
}

// After a lost record, a pod that has terminated and its successor can have one claim, and so can a pod that was created late. Only the
// newest of them keeps the claim.
func TestDecideSeparatesClaims(t *testing.T) {
	for name, test := range map[string]struct {
		pod     *PodWrapper
		members string
	}{
		"has terminated":    {ended("coder-0"), "0 Active, 3 Active data-coder-0, next 4"},
		"was never started": {MakePod("coder-0"), "3 Active data-coder-0, next 4"},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(1).Pod(test.pod.Claim("data-coder-0")).Pod(ready("coder-3").Node("b").Claim("data-coder-0")).Claim("data-coder-0").
				Spec(func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete })
			s.Cluster.Status = decideTest{s, "PodsAdopted", "Record", test.members, ""}.run(t).Status
			plan := membership.Decide(s.Snapshot, now)
			if got := describe(plan.Status); got != "3 Active data-coder-0, next 4" || len(plan.Status.Released) > 0 || !hasStep(plan, "Unprotect coder-0") {
				t.Errorf("the members are %s, released claims %v, steps %v", got, plan.Status.Released, plan.Steps)
			}
		})
	}
}

func TestDecideReplaces(t *testing.T) {
	one := func(p *PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(p) }
	lost := func() *SnapshotWrapper { return one(terminating("coder-0")).Lose("node-coder-0") }
	const attestation = "kubectl annotate -n prod stc coder apps.statefulsingleton.com/attest-terminated=coder-0 --overwrite"
	const ignored = "TakeAttestation %[1]s annotation apps.statefulsingleton.com/attest-terminated=%[1]s is ignored: "
	const successor = "0 Lost data-coder-0, 1 Active data-coder-1, 2 Active data-coder-2, 3 Pending data-coder-3, next 4"
	runAll(t, map[string]decideTest{
		"unready is not dead":              {one(unready("coder-0")).Lose("node-coder-0"), "PodsUnavailable", "", "", ""},
		"a terminating pod is waited for":  {one(terminating("coder-0")), "PodsTerminating", "", "", ""},
		"the successor carries the claims": {one(ended("coder-0")), "Scaling", carried, "1 Pending data-coder-0, next 2", ""},
		"the successor gets new claims": {
			one(ended("coder-0")).Spec(carryNot), "Scaling", "Record; Unprotect coder-0; " + fresh("coder-1"), "1 Pending data-coder-1, next 2", "",
		},
		"a pod that was never scheduled": {one(MakePod("coder-0").Terminating()), "Scaling", carried, "1 Pending data-coder-0, next 2", ""},
		"a pod that has ended": {
			one(ready("coder-0").Node("a").Terminated()), "Scaling",
			"Record; Delete coder-0; Unprotect coder-0; " + created("coder-1", "data-coder-0"), "1 Pending data-coder-0, next 2", "",
		},
		"one of three is lost": {
			MakeSnapshot(3).Recorded(terminating("coder-0"), ready("coder-1"), ready("coder-2")).Lose("node-coder-0"), "Scaling",
			"Record; " + fresh("coder-3"), successor,
			"If the node is off, run: kubectl taint node node-coder-0 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		},
		"a returned kubelet that could not locate a container": {
			one(ended("coder-0").Unlocated()), "PodsTerminating", "", "",
			"Look for its processes on node a. Make sure that the processes of the pod have ended, then run: " + attestation,
		},
		"two of three are lost": {
			MakeSnapshot(3).Recorded(terminating("coder-0"), terminating("coder-1"), ready("coder-2")).Lose("node-coder-0", "node-coder-1"),
			"TooManyLost", "Record; " + fresh("coder-3"), successor,
			"1 lost pod gets no successor, because spec.replacement.maxLost is 1. Pod coder-1 is replaced after its termination is proven",
		},
		"the only pod is lost": {lost(), "TooManyLost", "", "", ""},
		"maxLost": {
			lost().Spec(func(s *v1.StatefulClusterSpec) { s.Replacement.MaxLost = new(int32(1)) }), "Scaling",
			"Record; " + fresh("coder-1"), "0 Lost data-coder-0, 1 Pending data-coder-1, next 2", "",
		},
		"a node that is off": {
			lost().With(func(s *membership.Snapshot) { s.Nodes["node-coder-0"] = makeNode("node-coder-0", false, true) }), "Scaling",
			carried, "1 Pending data-coder-0, next 2", "",
		},
		"a removed object proves nothing": {one(ready("coder-0")).With(without), "TooManyLost", "", "", attestation},
		"an attestation": {
			one(ready("coder-0")).With(without).With(attest("coder-0")), "Scaling",
			"Record; " + created("coder-1", "data-coder-0") + "; TakeAttestation coder-0 ", "1 Pending data-coder-0, next 2", "",
		},
		"an attestation of a pod that runs": {
			one(ready("coder-0")).With(attest("coder-0")), "AllAvailable", fmt.Sprintf(ignored, "coder-0") + "pod coder-0 is not terminating, " +
				"or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n prod coder-0", "", "",
		},
		"an attestation of nothing": {
			one(ready("coder-0")).With(attest("x")), "AllAvailable", fmt.Sprintf(ignored, "x") + "no member has a pod with this uid", "", "",
		},
	})
}

// A member that leaves has no successor.
func TestDecideLeaving(t *testing.T) {
	of := func(p *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(1).Recorded(p, ready("coder-1")).With(in(v1.MemberLeaving))
	}
	runAll(t, map[string]decideTest{
		"it runs": {of(ready("coder-0")), "Scaling", "Delete coder-0", "", "1 pod is being removed: coder-0"},
		"it ends": {of(terminating("coder-0")), "Scaling", "", "", ""},
		"it is lost": {
			of(terminating("coder-0")).Lose("node-coder-0"), "AllAvailable", "", "",
			"; pod coder-0 is lost and keeps its claims: its node node-coder-0 does not report",
		},
		"it is lost, and the next pod is created": {
			of(terminating("coder-0")).Lose("node-coder-0").Spec(ordered).Spec(func(s *v1.StatefulClusterSpec) { s.Replicas = new(int32(2)) }), "Scaling",
			"Record; " + fresh("coder-2"), "0 Leaving data-coder-0, 1 Active data-coder-1, 2 Pending data-coder-2, next 3", "",
		},
		"it has left": {of(ended("coder-0")), "AllAvailable", "Record; Unprotect coder-0", "1 Active data-coder-1, next 2", ""},
	})
}

// A released claim without the label belongs to a person.
func TestDecideKeepsForeignClaims(t *testing.T) {
	s := MakeSnapshot(1).Recorded(ready("coder-1")).Claim("data-coder-0").Released("data-coder-0").With(foreignClaim)
	if released := (decideTest{s, "AllAvailable", "Record", "", ""}).run(t).Status.Released; len(released) > 0 {
		t.Errorf("released claims %v", released)
	}
}

// The returned pod of a lost member ends, and is never counted.
func TestDecideLostMemberReturns(t *testing.T) {
	lost := func(p *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(1).Recorded(p, ready("coder-1")).With(in(v1.MemberLost)).Spec(func(s *v1.StatefulClusterSpec) { s.Replacement.MaxLost = new(int32(1)) })
	}
	runAll(t, map[string]decideTest{
		"it still runs": {lost(terminating("coder-0")), "AllAvailable", "", "", ""},
		"it has ended":  {lost(ended("coder-0")), "AllAvailable", "Record; Unprotect coder-0", "1 Active data-coder-1, next 2", ""},
		"its claims are deleted": {
			lost(ended("coder-0")).Spec(func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenReplaced = v1.ClaimDelete }),
			"AllAvailable", "Record; Unprotect coder-0; DeleteClaim data-coder-0", "1 Active data-coder-1, next 2", "",
		},
	})
}

// The order of scaling down: the deletion cost, and then lost, unready, drained and outdated pods, and then the newest pod.
func TestDecideScalesDown(t *testing.T) {
	of := func(pods ...*PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(pods...) }
	drained := func(s *membership.Snapshot) { s.Nodes["node-coder-0"].Spec.Unschedulable = true }
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		want     string
	}{
		"the newest":           {of(ready("coder-0"), ready("coder-1")), "coder-1"},
		"by number":            {of(ready("coder-9"), ready("coder-10")), "coder-10"},
		"an outdated pod":      {of(old("coder-0"), ready("coder-1")).Spec(onDelete), "coder-0"},
		"a drained pod":        {of(ready("coder-0"), ready("coder-1")).With(drained), "coder-0"},
		"unready over drained": {of(ready("coder-0"), unready("coder-1"), ready("coder-2")).With(drained), "coder-0 coder-1"},
		"lost over unready":    {of(terminating("coder-0"), unready("coder-1"), ready("coder-2")).Lose("node-coder-0"), "coder-0 coder-1"},
		"the cost over all":    {of(unready("coder-0"), ready("coder-1").Cost("-5")), "coder-1"},
		"the lowest cost":      {of(ready("coder-0").Cost("7"), ready("coder-1").Cost("9"), ready("coder-2").Cost("8")), "coder-0 coder-2"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := membership.Decide(test.snapshot.Snapshot, now)
			var got []string
			for i, m := range plan.Status.Members {
				if m.State != v1.MemberLeaving {
					continue
				}
				got = append(got, m.Name)
				if test.snapshot.Pods[i].DeletionTimestamp == nil && !hasStep(plan, "Delete "+m.Name) {
					t.Errorf("pod %s is not deleted: %v", m.Name, plan.Steps)
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("the members %v leave, want %s", got, test.want)
			}
		})
	}
}

// The 2x3 table of persistentVolumeClaimRetentionPolicy. Claims are deleted only after the proof.
func TestDecideRetention(t *testing.T) {
	decide := func(s membership.Snapshot) membership.Plan { return membership.Decide(s, now) }
	finalize := func(s membership.Snapshot) membership.Plan { plan, _ := membership.Finalize(s, now); return plan }
	for name, test := range map[string]struct {
		replacement bool
		decide      func(membership.Snapshot) membership.Plan
		set         func(*v1.ClaimRetentionPolicy)
	}{
		"whenScaled":   {false, decide, func(p *v1.ClaimRetentionPolicy) { p.WhenScaled = v1.ClaimDelete }},
		"whenReplaced": {true, decide, func(p *v1.ClaimRetentionPolicy) { p.WhenReplaced = v1.ClaimDelete }},
		"whenDeleted":  {true, finalize, func(p *v1.ClaimRetentionPolicy) { p.WhenDeleted = v1.ClaimDelete }},
	} {
		for i := range 4 {
			deletes, proven := i&1 != 0, i&2 != 0
			t.Run(fmt.Sprintf("%s, delete %v, proven %v", name, deletes, proven), func(t *testing.T) {
				p := terminating("coder-0")
				if proven {
					p = ended("coder-0")
				}
				s := MakeSnapshot(1).Recorded(p).Spec(carryNot)
				if !test.replacement {
					s.Recorded(ready("coder-1")).With(in(v1.MemberLeaving))
				}
				if deletes {
					test.set(&s.Cluster.Spec.PersistentVolumeClaimRetentionPolicy)
				}
				plan := test.decide(s.Snapshot)
				released := slices.Contains(plan.Status.Released, v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimDelete})
				if want := deletes && proven; released != want || hasStep(plan, "DeleteClaim data-coder-0") != want {
					t.Errorf("released claims %v, steps %v, want the claim deleted: %v", plan.Status.Released, plan.Steps, want)
				}
			})
		}
	}
}

func TestDecideRollsOut(t *testing.T) {
	rollout := func(partition int32, maxUnavailable intstr.IntOrString) func(*v1.StatefulClusterSpec) {
		return func(s *v1.StatefulClusterSpec) {
			s.UpdateStrategy.RollingUpdate = &v1.ClusterRollout{Partition: partition, MaxUnavailable: &maxUnavailable}
		}
	}
	broken := func(name string) *PodWrapper { return unready(name).Revision("coder-old") }
	of := func(pods ...*PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(int32(len(pods))).Revision("coder-old", 4).Recorded(pods...)
		s.Cluster.Status.CurrentRevision = "coder-old"
		return s
	}
	// since returns a Snapshot whose second pod is Ready by a clock that is ahead, and reported that so long ago.
	since := func(reported time.Duration, minReady int32) *SnapshotWrapper {
		return of(old("coder-0"), ready("coder-1").Reported(-10*time.Minute, reported)).Spec(func(s *v1.StatefulClusterSpec) { s.MinReadySeconds = minReady })
	}
	pending := of().Pending("coder-0", "").Spec(func(s *v1.StatefulClusterSpec) { s.Replicas = new(int32(1)) })
	pending.Cluster.Status.Members[0].Revision = "coder-broken"
	partial := of(old("coder-0"), old("coder-1"), ready("coder-2")).Spec(rollout(2, intstr.FromInt32(3)))
	runAll(t, map[string]decideTest{
		"one at a time":            {of(old("coder-0"), old("coder-1"), old("coder-2")), "RollingOut", "Delete coder-2", "", ""},
		"not while one is unready": {of(old("coder-0"), old("coder-1"), unready("coder-2")), "RollingOut", "", "", ""},
		"percent": {
			of(old("coder-0"), old("coder-1"), old("coder-2")).Spec(rollout(0, intstr.FromString("50%"))), "RollingOut",
			"Delete coder-1; Delete coder-2", "", "",
		},
		"broken pods do not wait":  {of(broken("coder-0"), broken("coder-1"), old("coder-2")), "RollingOut", "Delete coder-0; Delete coder-1", "", ""},
		"a broken revision, fixed": {of(old("coder-0"), unready("coder-1").Revision("coder-broken")), "RollingOut", "Delete coder-1", "", ""},
		"a partition": {
			of(old("coder-0"), old("coder-1"), old("coder-2")).Spec(rollout(2, intstr.FromInt32(3))), "RollingOut", "Delete coder-2", "", "",
		},
		"a partition is complete":   {partial, "AllAvailable", "", "", ""},
		"the cheapest first":        {of(old("coder-0").Cost("-1"), old("coder-1"), old("coder-2")), "RollingOut", "Delete coder-0", "", ""},
		"OnDelete":                  {of(old("coder-0"), old("coder-1")).Spec(onDelete), "AllAvailable", "", "", ""},
		"a short time Ready":        {of(old("coder-0"), ready("coder-1")).Spec(func(s *v1.StatefulClusterSpec) { s.MinReadySeconds = 3601 }), "RollingOut", "", "", ""},
		"Ready by a clock ahead":    {since(0, 0), "RollingOut", "Delete coder-0", "", ""},
		"ahead, not long enough":    {since(29*time.Second, 30), "RollingOut", "", "", ""},
		"ahead, long enough":        {since(30*time.Second, 30), "RollingOut", "Delete coder-0", "", ""},
		"ordered: one broken pod":   {of(broken("coder-0"), broken("coder-1"), old("coder-2")).Spec(ordered), "RollingOut", "Delete coder-1", "", ""},
		"ordered: another has gone": {of(broken("coder-0"), old("coder-1"), old("coder-2").Terminating()).Spec(ordered), "PodsTerminating", "", "", ""},
		"the successor is new": {
			of(old("coder-0"), ended("coder-1").Revision("coder-old")), "Scaling", "Record; Unprotect coder-1; " + created("coder-2", "data-coder-1"),
			"0 Active data-coder-0, 2 Pending data-coder-1, next 3", "",
		},
		"behind the partition the successor is old": {
			of(ended("coder-0").Revision("coder-old")).Spec(rollout(1, intstr.FromInt32(1))), "Scaling",
			"Record; Unprotect coder-0; CreatePod coder-1 coder-old [{data data-coder-0}]", "1 Pending data-coder-0, next 2", "",
		},
		"a template that the API server rejects, fixed": {pending, "Scaling", "Record; CreatePod coder-0 latest []", "", ""},
	})
}

func TestDecideKeepsRevisions(t *testing.T) {
	history := func(limit int32) *SnapshotWrapper {
		return MakeSnapshot(1).Revision("coder-1", 1).Revision("coder-2", 2).Revision("coder-3", 3).Recorded(ready("coder-0")).
			Spec(func(s *v1.StatefulClusterSpec) { s.RevisionHistoryLimit = &limit })
	}
	undone, complete := history(10), history(0)
	undone.Revisions[0].Revision = 2
	complete.Cluster.Status.CurrentRevision = "coder-3"
	complete.Revisions = slices.DeleteFunc(complete.Revisions, func(r appsv1.ControllerRevision) bool { return r.Revision < 3 })
	runAll(t, map[string]decideTest{
		"all":  {history(3), "AllAvailable", "", "", ""},
		"two":  {history(2), "AllAvailable", "DeleteRevision coder-1 1", "", ""},
		"none": {history(0), "AllAvailable", "DeleteRevision coder-1 1; DeleteRevision coder-2 1; DeleteRevision coder-3 1", "", ""},
		"used": {
			history(0).Recorded(old("coder-1").Revision("coder-2")).Spec(onDelete).Spec(func(s *v1.StatefulClusterSpec) { s.Replicas = new(int32(2)) }),
			"AllAvailable", "DeleteRevision coder-1 1; DeleteRevision coder-3 1", "", "",
		},
		"the last rollout is complete": {complete, "AllAvailable", "DeleteRevision coder-3 1", "", ""},
		"undo":                         {undone, "AllAvailable", "RenumberRevision latest 4", "", ""},
	})
	same := makeCluster(0)
	same.Spec.Template.Raw = []byte(` { "spec": {"containers": [{"name": "coder"}]}}`)
	if got := membership.RevisionName(same); got != latest {
		t.Errorf("equal templates have the revisions %s and %s", got, latest)
	}
	same.UID = "another"
	if got := membership.RevisionName(same); got == latest {
		t.Errorf("another StatefulCluster has revision %s too", got)
	}
}

func TestDecideGrowsClaims(t *testing.T) {
	grown := func() *SnapshotWrapper {
		return MakeSnapshot(1).Recorded(ready("coder-0")).Spec(func(s *v1.StatefulClusterSpec) {
			s.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage = new(resource.MustParse("2Gi"))
		})
	}
	runAll(t, map[string]decideTest{
		"grown":   {grown(), "AllAvailable", "GrowClaim data-coder-0 2Gi", "", ""},
		"unbound": {grown().With(func(s *membership.Snapshot) { s.Claims[0].Status.Phase = corev1.ClaimPending }), "AllAvailable", "", "", ""},
		"same":    {MakeSnapshot(1).Recorded(ready("coder-0")), "AllAvailable", "", "", ""},
	})
}

// The counts are those of a StatefulSet. The conditions follow kstatus.
func TestDecideReports(t *testing.T) {
	s := MakeSnapshot(4).Revision("coder-old", 4).Recorded(old("coder-0"), ready("coder-1"), unready("coder-2"), terminating("coder-3")).Spec(onDelete).Claim("data-coder-9")
	s.Cluster.Status.CurrentRevision, s.Cluster.Generation = "coder-old", 7
	got := membership.Decide(s.Snapshot, now).Status
	want := v1.StatefulClusterStatus{
		Replicas: 4, ReadyReplicas: 2, AvailableReplicas: 2, CurrentReplicas: 1, UpdatedReplicas: 3, CurrentRevision: "coder-old", UpdateRevision: latest,
		Selector: "app=coder", ObservedGeneration: 7, Released: []v1.ReleasedClaim{{Name: "data-coder-9", Policy: v1.ClaimRetain}},
	}
	want.Members, want.Next, want.Message, want.Conditions = got.Members, got.Next, got.Message, got.Conditions
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		want     string
	}{
		"available":   {MakeSnapshot(1).Recorded(ready("coder-0")), "True False False"},
		"unavailable": {MakeSnapshot(1).Recorded(unready("coder-0")), "False False False"},
		"terminating": {MakeSnapshot(1).Recorded(terminating("coder-0")), "False True False"},
		"scaling":     {MakeSnapshot(1), "False True False"},
		"lost":        {MakeSnapshot(1).Recorded(terminating("coder-0")).Lose("node-coder-0"), "False False True"},
	} {
		status := membership.Decide(test.snapshot.Snapshot, now).Status
		var got []string
		for _, c := range []string{v1.ConditionReady, v1.ConditionReconciling, v1.ConditionStalled} {
			got = append(got, string(meta.FindStatusCondition(status.Conditions, c).Status))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: Ready, Reconciling and Stalled are %v, want %s", name, got, test.want)
		}
	}
	long := func(s *v1.StatefulClusterSpec) { s.MinReadySeconds = 3602 }
	if plan := membership.Decide(MakeSnapshot(1).Spec(long).Recorded(ready("coder-0")).Snapshot, now); plan.Requeue != 2*time.Second || plan.Status.AvailableReplicas != 0 {
		t.Errorf("the next decision is after %s with %d available pods, want 2s and 0", plan.Requeue, plan.Status.AvailableReplicas)
	}
}

// finalizeTest is a Snapshot, and what Finalize must return. The message is the beginning of the message, or empty.
type finalizeTest struct {
	snapshot       *SnapshotWrapper
	steps, message string
}

func (test finalizeTest) run(t *testing.T) {
	t.Helper()
	plan, message := membership.Finalize(test.snapshot.Snapshot, now)
	if !strings.HasPrefix(message, test.message) || message == "" != (test.message == "") {
		t.Errorf("the message is %q, want %q", message, test.message)
	}
	wantSteps(t, plan, test.steps)
}

// With kubectl delete --cascade=orphan, pods and claims stay, also after the garbage collector has removed the owner of the pods.
func TestFinalizeOrphans(t *testing.T) {
	orphan := func(s *membership.Snapshot) {
		s.Cluster.DeletionTimestamp, s.Cluster.Finalizers = new(metav1.NewTime(now)), []string{metav1.FinalizerOrphanDependents}
		s.Cluster.Spec.PersistentVolumeClaimRetentionPolicy = allDeleted
	}
	orphaned := func(s *membership.Snapshot) {
		orphan(s)
		s.Cluster.Finalizers, s.Pods[0].OwnerReferences = nil, nil
	}
	of := func(p *PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(p) }
	const released = "Record; Unprotect coder-0"
	const waits = "the deletion waits until pod coder-0 can run without the StatefulCluster"
	for name, test := range map[string]finalizeTest{
		"a pod that runs":           {of(ready("coder-0")).With(orphan), released, ""},
		"an orphaned pod":           {of(ready("coder-0")).With(orphaned), released, ""},
		"a pod that ends":           {of(terminating("coder-0")).With(orphan), released, ""},
		"a pod that leaves":         {of(terminating("coder-0")).With(orphan).With(in(v1.MemberLeaving)), released, ""},
		"a lost pod":                {of(terminating("coder-0")).Lose("node-coder-0").With(orphan).With(in(v1.MemberLost)), released, ""},
		"a removed pod":             {of(ready("coder-0")).With(orphan).With(without), "Record", ""},
		"a pod that cannot run yet": {of(MakePod("coder-0")).With(orphan), "Ungate coder-0", waits},
		"a pod that does not serve yet": {
			of(unready("coder-0").inPlace("False").changed(`{"coder":"containerd://1"}`)).With(orphan), "SetServing coder-0 7 true", waits,
		},
		"an unrecorded pod":   {MakeSnapshot(1).Pod(MakePod("coder-0")).With(from(1)).With(orphan), "Delete coder-0; Unprotect coder-0", ""},
		"a pod without a UID": {of(ready("coder-0")).With(orphaned).Pending("coder-1", "data-coder-1").Claim("data-coder-1"), released, ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.run(t)
			if plan, _ := membership.Finalize(test.snapshot.Snapshot, now); len(plan.Status.Released) > 0 {
				t.Errorf("released claims %v", plan.Status.Released)
			}
		})
	}
}

func TestFinalize(t *testing.T) {
	of := func(p *PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(p) }
	unrecorded := of(ready("coder-1")).Pod(MakePod("coder-0")).With(func(s *membership.Snapshot) { s.Cluster.Status.Members = nil })
	const waits = "the deletion waits until pod coder-0 has terminated"
	for name, test := range map[string]finalizeTest{
		"nothing":         {MakeSnapshot(1), "", ""},
		"a pod that runs": {of(ready("coder-0")), "Delete coder-0", waits},
		"a pod that ends": {of(terminating("coder-0")), "", waits},
		"a lost pod": {
			of(terminating("coder-0")).Lose("node-coder-0"), "",
			"the deletion waits for pod coder-0, which is lost: its node node-coder-0 does not report. If the node is off",
		},
		"a pod that leaves":   {of(terminating("coder-0")).With(in(v1.MemberLeaving)), "", waits},
		"a pod that ended":    {of(ended("coder-0")), "Record; Unprotect coder-0", "the deletion waits until pod coder-0 is removed"},
		"a pod that is gated": {unrecorded, "Delete coder-1; Unprotect coder-1; Delete coder-0; Unprotect coder-0", "the deletion waits until pod coder-1 is removed"},
	} {
		t.Run(name, test.run)
	}
}
