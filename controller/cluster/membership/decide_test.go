package membership_test

import (
	"fmt"
	"math"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// SnapshotWrapper builds a Snapshot of StatefulCluster coder.
type SnapshotWrapper struct {
	membership.Snapshot
	cluster *ClusterWrapper
}

// MakeSnapshot returns a Snapshot without pods and without a record. The revision of the template exists.
func MakeSnapshot(replicas int32) *SnapshotWrapper {
	cluster := MakeCluster(replicas)
	s := &SnapshotWrapper{membership.Snapshot{Cluster: &cluster.StatefulCluster, Nodes: map[string]*corev1.Node{}}, cluster}
	return s.Revision(latest, 5)
}

// latest is the name of the revision of the template.
var latest = membership.RevisionName(&MakeCluster(0).StatefulCluster)

// Revision adds a ControllerRevision.
func (s *SnapshotWrapper) Revision(name string, number int64) *SnapshotWrapper {
	s.Revisions = append(s.Revisions, appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Revision: number})
	return s
}

// Recorded adds Active members for the pods, with one claim each. A pod without a node is on a Ready node of its own.
func (s *SnapshotWrapper) Recorded(pods ...*PodWrapper) *SnapshotWrapper {
	for _, p := range pods {
		claim := "data-" + p.Name
		s.cluster.Member(p.Name, v1.MemberActive, p.Pod.UID, claim)
		m := &s.Cluster.Status.Members[len(s.Cluster.Status.Members)-1]
		m.Revision = p.Labels[appsv1.StatefulSetRevisionLabel]
		s.Cluster.Status.Next = max(s.Cluster.Status.Next, int64(number(p.Name))+1)
		if p.Spec.NodeName == "" && !isGated(p) {
			p.Node("node-" + p.Name)
		}
		s.Claims = append(s.Claims, makeClaim(claim))
		s.Pod(p)
	}
	return s
}

func isGated(p *PodWrapper) bool { return len(p.Spec.SchedulingGates) > 0 }

// Pod adds a pod that the record does not list. Its node is Ready if it was not added before.
func (s *SnapshotWrapper) Pod(p *PodWrapper) *SnapshotWrapper {
	if node := p.Spec.NodeName; node != "" && s.Nodes[node] == nil {
		s.Nodes[node] = makeNode(node, true, false)
	}
	s.Pods = append(s.Pods, *p.Obj())
	return s
}

// Lose makes nodes unready.
func (s *SnapshotWrapper) Lose(nodes ...string) *SnapshotWrapper {
	for _, name := range nodes {
		s.Nodes[name] = makeNode(name, false, false)
	}
	return s
}

// With changes the Snapshot.
func (s *SnapshotWrapper) With(change func(*membership.Snapshot)) *SnapshotWrapper {
	change(&s.Snapshot)
	return s
}

// Spec changes the spec.
func (s *SnapshotWrapper) Spec(change func(*v1.StatefulClusterSpec)) *SnapshotWrapper {
	s.cluster.With(change)
	return s
}

// ready returns a Ready pod of the latest revision, and old a Ready pod of an old revision.
func ready(name string) *PodWrapper { return MakePod(name).Ungated().Ready() }

func old(name string) *PodWrapper { return ready(name).Revision("coder-old") }

func unready(name string) *PodWrapper { return MakePod(name).Ungated() }

func ref(name string) membership.Ref { return membership.Ref{Name: name, UID: types.UID(name)} }

func created(name, claim string) membership.CreatePod {
	return membership.CreatePod{Name: name, Revision: latest, Claims: []v1.MemberClaim{{Volume: "data", Name: claim}}}
}

// describe returns the members as name, state and claim.
func describe(status v1.StatefulClusterStatus) string {
	var all []string
	for _, m := range status.Members {
		text := fmt.Sprintf("%s %s", strings.TrimPrefix(m.Name, "coder-"), m.State)
		for _, c := range m.Claims {
			text += " " + c.Name
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

type steps = []membership.Step

// decideTest is a Snapshot, and what Decide must return.
type decideTest struct {
	snapshot    *SnapshotWrapper
	wantOutcome membership.Outcome
	wantSteps   steps
	// wantMembers are the members as describe returns them. Empty: they do not change.
	wantMembers string
	// wantMessage is a part of the message.
	wantMessage string
	// wantNext is the counter. 0: it is not checked.
	wantNext int64
}

func (test decideTest) run(t *testing.T) {
	t.Helper()
	before := describe(test.snapshot.Cluster.Status)
	plan := membership.Decide(test.snapshot.Snapshot, now)
	if plan.Outcome != test.wantOutcome || !strings.Contains(plan.Status.Message, test.wantMessage) {
		t.Errorf("the outcome is %s with message %q, want %s with %q", plan.Outcome, plan.Status.Message, test.wantOutcome, test.wantMessage)
	}
	if diff := cmp.Diff(test.wantSteps, plan.Steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if test.wantNext != 0 && plan.Status.Next != test.wantNext {
		t.Errorf("the counter is %d, want %d", plan.Status.Next, test.wantNext)
	}
	if test.wantMembers == "" {
		test.wantMembers = before
	}
	if got := describe(plan.Status); got != test.wantMembers {
		t.Errorf("the members are %s, want %s", got, test.wantMembers)
	}
}

func runAll(t *testing.T, tests map[string]decideTest) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test.run(t) })
	}
}

func TestDecideCreates(t *testing.T) {
	runAll(t, map[string]decideTest{
		"the first pods": {
			snapshot: MakeSnapshot(2), wantOutcome: membership.Scaling, wantMembers: "0 Pending data-coder-0, 1 Pending data-coder-1",
			wantSteps: steps{
				membership.Record{},
				membership.CreateClaim{Name: "data-coder-0", Volume: "data"}, created("coder-0", "data-coder-0"),
				membership.CreateClaim{Name: "data-coder-1", Volume: "data"}, created("coder-1", "data-coder-1"),
			},
		},
		"the first revision": {
			snapshot: MakeSnapshot(0).With(func(s *membership.Snapshot) { s.Revisions = nil }), wantOutcome: membership.AllAvailable,
			wantSteps: steps{membership.CreateRevision{Name: latest, Number: 1}},
		},
		"from a number": {
			snapshot:    MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Ordinals.Start = 7 }),
			wantOutcome: membership.Scaling, wantMembers: "7 Pending data-coder-7",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-7", Volume: "data"}, created("coder-7", "data-coder-7")},
		},
		"the claims of an older StatefulCluster are left alone": {
			snapshot:    MakeSnapshot(1).With(func(s *membership.Snapshot) { s.Claims = append(s.Claims, makeClaim("data-coder-3")) }),
			wantOutcome: membership.Scaling, wantMembers: "4 Pending data-coder-4",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-4", Volume: "data"}, created("coder-4", "data-coder-4")},
		},
		"one after the other": {
			snapshot:    MakeSnapshot(3).Spec(func(s *v1.StatefulClusterSpec) { s.PodManagementPolicy = v1.ClusterOrderedReady }).Recorded(ready("coder-0")),
			wantOutcome: membership.Scaling, wantMembers: "0 Active data-coder-0, 1 Pending data-coder-1",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-1", Volume: "data"}, created("coder-1", "data-coder-1")},
		},
		"not before the last is Ready": {
			snapshot:    MakeSnapshot(3).Spec(func(s *v1.StatefulClusterSpec) { s.PodManagementPolicy = v1.ClusterOrderedReady }).Recorded(unready("coder-0")),
			wantOutcome: membership.Scaling,
		},
		"the UID is recorded before the pod can run": {
			snapshot: MakeSnapshot(1).Pod(MakePod("coder-0")).With(func(s *membership.Snapshot) {
				s.Cluster.Status.Next = 1
				s.Cluster.Status.Members = []v1.ClusterMember{{Name: "coder-0", State: v1.MemberPending, Revision: latest}}
			}),
			wantOutcome: membership.PodsUnavailable, wantMembers: "0 Active",
			wantSteps: steps{membership.Record{}, membership.Ungate{Pod: ref("coder-0")}},
		},
		"an unrecorded pod is removed": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-1")).Pod(MakePod("coder-0")),
			wantOutcome: membership.AllAvailable, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}, membership.Unprotect{Pod: ref("coder-0")}},
		},
		"another client has the name": {
			snapshot: MakeSnapshot(1).Pod(MakePod("coder-0")).With(func(s *membership.Snapshot) {
				s.Pods[0].OwnerReferences, s.Pods[0].Labels, s.Pods[0].Finalizers = nil, nil, nil
				s.Cluster.Status.Next = 1
				s.Cluster.Status.Members = []v1.ClusterMember{{Name: "coder-0", State: v1.MemberPending, Revision: latest, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-9"}}}}
				s.Claims = []corev1.PersistentVolumeClaim{makeClaim("data-coder-9")}
			}),
			wantOutcome: membership.Scaling, wantMembers: "10 Pending data-coder-9", wantSteps: steps{membership.Record{}, created("coder-10", "data-coder-9")},
		},
		"another client has the claim": {
			snapshot: MakeSnapshot(1).With(func(s *membership.Snapshot) {
				s.Cluster.Status.Next = 1
				s.Cluster.Status.Members = []v1.ClusterMember{{Name: "coder-0", State: v1.MemberPending, Revision: latest, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-0"}}}}
				s.Claims = []corev1.PersistentVolumeClaim{makeClaim("data-coder-0")}
				s.Claims[0].Labels = nil
			}),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-1",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-1", Volume: "data"}, created("coder-1", "data-coder-1")},
		},
		"a lost record": {
			snapshot:    MakeSnapshot(1).Pod(ready("coder-4").Node("a").Claim("data-coder-2")),
			wantOutcome: membership.PodsAdopted, wantMembers: "4 Active data-coder-2", wantSteps: steps{membership.Record{}}, wantNext: 5,
		},
		"a lost record, a claim of the template": {
			snapshot:    MakeSnapshot(1).Pod(ready("coder-4").Node("a").Claim("data-coder-2").Volume("shared", "shared")),
			wantOutcome: membership.PodsAdopted, wantMembers: "4 Active data-coder-2", wantSteps: steps{membership.Record{}},
		},
		"a lost record, another client's claim": {
			snapshot: MakeSnapshot(1).Pod(ready("coder-4").Node("a").Claim("data-coder-2")).With(func(s *membership.Snapshot) {
				s.Claims = []corev1.PersistentVolumeClaim{makeClaim("data-coder-2")}
				s.Claims[0].Labels = nil
			}),
			wantOutcome: membership.PodsAdopted, wantMembers: "4 Active", wantSteps: steps{membership.Record{}},
		},
		"a pod of a StatefulCluster that had the same name": {
			snapshot: MakeSnapshot(1).Recorded(ready("coder-1")).Pod(ready("coder-0").Node("a")).With(func(s *membership.Snapshot) {
				s.Pods[1].OwnerReferences[0].UID = "earlier"
			}),
			wantOutcome: membership.AllAvailable, wantSteps: steps{membership.Unprotect{Pod: ref("coder-0")}},
		},
		"labels in a field that the API server ignores": {
			snapshot: MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) {
				s.Selector = v1.LabelSelector{MatchExpressions: []v1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
				s.Template.Raw = []byte(`{"Metadata":{"labels":{"app":"coder"}}}`)
			}),
			wantOutcome: membership.InvalidTemplate, wantMessage: "do not match spec.selector (app). Change spec.template.metadata.labels",
		},
		"a selector of another StatefulCluster": {
			snapshot:    MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Selector.MatchLabels = map[string]string{v1.ClusterLabel: "other"} }),
			wantOutcome: membership.InvalidTemplate, wantMessage: "do not match spec.selector (" + v1.ClusterLabel + "=other)",
		},
		"labels that do not match": {
			snapshot:    MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Template.Raw = []byte(`{"metadata":{"labels":{"app":"other"}}}`) }),
			wantOutcome: membership.InvalidTemplate, wantMessage: "do not match spec.selector (app=coder). Change spec.template.metadata.labels",
		},
	})
}

// A recorded pod gets the finalizer back, also before it is deleted. The API server rejects it for a terminating pod.
func TestDecideProtects(t *testing.T) {
	bare := func(p *PodWrapper) *PodWrapper { p.Finalizers = nil; return p }
	protects := membership.Protect{Pod: ref("coder-0")}
	leaves := func(s *membership.Snapshot) { s.Cluster.Status.Members[0].State = v1.MemberLeaving }
	runAll(t, map[string]decideTest{
		"a pod that runs":   {snapshot: MakeSnapshot(1).Recorded(bare(ready("coder-0"))), wantOutcome: membership.AllAvailable, wantSteps: steps{protects}},
		"a pod that leaves": {snapshot: MakeSnapshot(0).Recorded(bare(ready("coder-0"))).With(leaves), wantOutcome: membership.Scaling, wantSteps: steps{protects, membership.Delete{Pod: ref("coder-0")}}},
		"a pod that ends":   {snapshot: MakeSnapshot(1).Recorded(bare(ready("coder-0").Terminating())), wantOutcome: membership.PodsTerminating},
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
	ended := func() *PodWrapper { return ready("coder-0").Terminating().Node("a").Terminated() }
	deletes := func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete }
	released := func(s *membership.Snapshot) {
		s.Cluster.Status.Released = []v1.ReleasedClaim{{Name: "data-coder-9", Policy: v1.ClaimDelete}}
		s.Claims = append(s.Claims, makeClaim("data-coder-9"))
	}
	pending := func(s *membership.Snapshot) {
		s.Cluster.Status.Next = 2
		s.Cluster.Status.Members = []v1.ClusterMember{{Name: "coder-1", State: v1.MemberPending, Revision: latest, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-0"}}}}
	}
	attested := func(s *membership.Snapshot) { s.Cluster.Annotations[v1.AttestAnnotation] = "coder-0" }
	removed := func(s *membership.Snapshot) { s.Pods = s.Pods[1:] }
	other := func(p *PodWrapper) func(*membership.Snapshot) {
		p.Labels[v1.ClusterLabel], p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "db", "db", "another"
		return func(s *membership.Snapshot) { s.Others = []corev1.Pod{p.Pod} }
	}
	withEphemeralVolume := func(s *membership.Snapshot) {
		p := forged("data", "data-data-0")
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "coder-0", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		s.Pods = append(s.Pods, p.Pod)
	}
	leaving := MakeSnapshot(0).Spec(deletes).Recorded(ended()).Pod(forged("db", "data-coder-0"))
	plan := membership.Decide(leaving.Snapshot, now)
	if got := plan.Status.Released; len(plan.Status.Members) > 0 || len(got) != 1 || got[0].Name != "data-coder-0" ||
		slices.Contains(plan.Steps, membership.Step(membership.DeleteClaim{Claim: ref("data-coder-0")})) {
		t.Errorf("members %v, released claims %v, steps %v", plan.Status.Members, got, plan.Steps)
	}
	const waits = "a pod waits for claim data-coder-0, because pod db can run with the claim"
	runAll(t, map[string]decideTest{
		"it is not adopted": {snapshot: MakeSnapshot(1).Recorded(ready("coder-0")).Pod(forged("coder-7", "data-coder-0")), wantOutcome: membership.AllAvailable},
		"of a pod that has terminated": {
			snapshot:    MakeSnapshot(1).Recorded(ended()).Pod(forged("db", "data-coder-0")),
			wantOutcome: membership.ClaimInUse, wantMessage: waits + " and has not provably terminated. If nothing needs the pod, delete the pod: kubectl delete pod -n prod db",
		},
		"of a pod that has terminated, by an ended pod": {
			snapshot:    MakeSnapshot(1).Recorded(ended()).Pod(forged("db", "data-coder-0").Terminated()),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, created("coder-1", "data-coder-0")},
		},
		"of a pod that has terminated, by a pod that waits for the gate": {
			snapshot:    MakeSnapshot(1).Recorded(ended()).Pod(MakePod("coder-00").Claim("data-coder-0")),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, membership.Delete{Pod: ref("coder-00")}, membership.Unprotect{Pod: ref("coder-00")}, created("coder-1", "data-coder-0")},
		},
		"of a pod that was removed, attested": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0")).With(removed).With(attested).Pod(forged("db", "data-coder-0")),
			wantOutcome: membership.ClaimInUse, wantMessage: waits,
		},
		"of a new pod":   {snapshot: MakeSnapshot(1).With(pending).Pod(forged("db", "data-coder-0")), wantOutcome: membership.ClaimInUse, wantMessage: waits},
		"of a gated pod": {snapshot: MakeSnapshot(1).Recorded(MakePod("coder-0")).Pod(forged("db", "data-coder-0")), wantOutcome: membership.ClaimInUse, wantMessage: waits},
		"after an attestation, the object of the pod stays": {
			snapshot:    MakeSnapshot(1).With(pending).Pod(leftOver(ready("coder-0").Node("a").Claim("data-coder-0").Terminating())).Lose("a"),
			wantOutcome: membership.Scaling, wantSteps: steps{membership.CreateClaim{Name: "data-coder-0", Volume: "data"}, created("coder-1", "data-coder-0")},
		},
		"of a gated pod, by an ephemeral volume": {
			snapshot:    MakeSnapshot(1).Recorded(MakePod("coder-0")).With(withEphemeralVolume),
			wantOutcome: membership.ClaimInUse, wantMessage: "a pod waits for claim data-coder-0, because pod data can run with the claim",
		},
		"of a gated pod, by a gated pod of another StatefulCluster": {
			snapshot:    MakeSnapshot(1).Recorded(MakePod("coder-0")).With(other(MakePod("db").Claim("data-coder-0"))),
			wantOutcome: membership.ClaimInUse, wantMessage: waits,
		},
		"of a gated pod, by a pod of another StatefulCluster that has terminated": {
			snapshot:    MakeSnapshot(1).Recorded(MakePod("coder-0")).With(other(ready("db").Claim("data-coder-0").Terminating().Node("a").Terminated())),
			wantOutcome: membership.PodsUnavailable, wantSteps: steps{membership.Ungate{Pod: ref("coder-0")}},
		},
		"of a pod that has terminated, by another StatefulCluster whose claim it is": {
			snapshot: MakeSnapshot(1).Recorded(ended()).With(other(ready("db").Claim("data-coder-0"))).With(func(s *membership.Snapshot) {
				s.Claims[0].Labels[v1.ClusterLabel] = "db"
			}),
			wantOutcome: membership.Scaling, wantMembers: "2 Pending data-coder-2",
			wantSteps: steps{
				membership.Record{}, membership.Unprotect{Pod: ref("coder-0")},
				membership.CreateClaim{Name: "data-coder-2", Volume: "data"}, created("coder-2", "data-coder-2"),
			},
		},
		"of a pod of the last revision of the record": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Claim("data-coder-9")).With(released),
			wantOutcome: membership.AllAvailable, wantMessage: "claim data-coder-9 is not deleted, because pod coder-0 can run with the claim",
		},
	})
}

// leftOver returns a pod whose finalizer the manager has removed.
func leftOver(p *PodWrapper) *PodWrapper { p.Finalizers = nil; return p }

// The counter passes the numbers of pods and claims up to 32 bits. Larger numbers do not count.
func TestDecideLargeNumbers(t *testing.T) {
	claims := func(names ...string) *SnapshotWrapper {
		s := MakeSnapshot(1)
		for _, name := range names {
			s.Claims = append(s.Claims, makeClaim("data-coder-"+name))
		}
		return s
	}
	counter := func(n int64) func(*membership.Snapshot) {
		return func(s *membership.Snapshot) { s.Cluster.Status.Next = n }
	}
	next := func(name string) decideTest {
		return decideTest{
			wantOutcome: membership.Scaling, wantMembers: name + " Pending data-coder-" + name,
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-" + name, Volume: "data"}, created("coder-"+name, "data-coder-"+name)},
		}
	}
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		decideTest
	}{
		"31 bits":        {claims("2147483646"), next("2147483647")},
		"32 bits":        {claims("2147483647", "2147483648", "4294967295"), next("4294967296")},
		"too long":       {claims("4294967296", "9999999999", "9223372036854775807", "9223372036854775808"), next("0")},
		"pods":           {claims().Pod(forged("coder-4294967294", "a")).Pod(forged("coder-99999999999", "b")), next("4294967295")},
		"above all":      {claims().With(counter(100_000_000_000)), next("5000000000")},
		"start":          {claims().Spec(func(s *v1.StatefulClusterSpec) { s.Ordinals.Start = math.MaxInt32 }), next("2147483647")},
		"the pods after": {claims().Spec(func(s *v1.StatefulClusterSpec) { s.Ordinals.Start = math.MaxInt32 }).With(func(s *membership.Snapshot) { s.Cluster.Status.Next = 1 << 31 }), next("2147483648")},
	} {
		t.Run(name, func(t *testing.T) {
			test.decideTest.snapshot = test.snapshot
			test.run(t)
		})
	}
	const tooLong = "100000000000"
	runAll(t, map[string]decideTest{
		"the successor of a pod": {
			snapshot:    MakeSnapshot(2).Recorded(ready("coder-4294967296"), ready("coder-4294967295").Terminating().Node("a").Terminated()),
			wantOutcome: membership.Scaling, wantMembers: "4294967296 Active data-coder-4294967296, 4294967297 Pending data-coder-4294967295",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-4294967295")}, created("coder-4294967297", "data-coder-4294967295")},
		},
		"a member with a name that is too long": {
			snapshot: MakeSnapshot(2).Recorded(ready("coder-3")).With(counter(100_000_000_001)).With(func(s *membership.Snapshot) {
				s.Cluster.Status.Members = append(s.Cluster.Status.Members, v1.ClusterMember{
					Name: "coder-" + tooLong, State: v1.MemberPending, Revision: latest, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-2"}},
				})
				s.Claims = append(s.Claims, makeClaim("data-coder-2"))
			}),
			wantOutcome: membership.Scaling, wantMembers: "3 Active data-coder-3, 5000000000 Pending data-coder-2", wantNext: 5000000001,
			wantSteps: steps{membership.Record{}, created("coder-5000000000", "data-coder-2")},
		},
		"a pod with a number from the mended counter": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-9999999999")).With(counter(100_000_000_000)),
			wantOutcome: membership.AllAvailable, wantNext: 100_000_000_000,
		},
		"a lost record": {
			snapshot:    MakeSnapshot(1).Pod(ready("coder-4294967299").Node("a").Claim("data-coder-2")),
			wantOutcome: membership.PodsAdopted, wantMembers: "4294967299 Active data-coder-2", wantSteps: steps{membership.Record{}}, wantNext: 4294967300,
		},
	})
}

// A pod is not created while one of its claims is being deleted. Until a pod is scheduled, its claim can disappear.
func TestDecideDeletedClaim(t *testing.T) {
	delete := func(s *membership.Snapshot) { s.Claims[0].DeletionTimestamp = new(metav1.NewTime(now)) }
	gone := func(s *membership.Snapshot) { s.Claims = nil }
	unscheduled := func(s *membership.Snapshot) {
		s.Pods[0].Spec.NodeName, s.Pods[0].Status = "", corev1.PodStatus{Phase: corev1.PodPending}
	}
	renewed := steps{membership.CreateClaim{Name: "data-coder-0", Volume: "data"}}
	runAll(t, map[string]decideTest{
		"of a successor": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Terminating().Node("a").Terminated()).With(delete),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0", wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}},
			wantMessage: "a pod waits until claim data-coder-0 is deleted. Then the pod gets a new claim with this name. To show what keeps the claim, run: kubectl describe pvc -n prod data-coder-0",
		},
		"of a pod that runs":        {snapshot: MakeSnapshot(1).Recorded(ready("coder-0")).With(delete), wantOutcome: membership.AllAvailable},
		"of an unscheduled pod":     {snapshot: MakeSnapshot(1).Recorded(unready("coder-0")).With(unscheduled).With(delete), wantOutcome: membership.PodsUnavailable},
		"removed, unscheduled pod":  {snapshot: MakeSnapshot(1).Recorded(unready("coder-0")).With(unscheduled).With(gone), wantOutcome: membership.PodsUnavailable, wantSteps: renewed},
		"removed, pod that runs":    {snapshot: MakeSnapshot(1).Recorded(ready("coder-0")).With(gone), wantOutcome: membership.AllAvailable},
		"removed, pod that is lost": {snapshot: MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).Lose("node-coder-0").With(gone), wantOutcome: membership.TooManyLost},
	})
}

// A pod for which the scheduler finds no node is reported at once, and is a person's work only after some minutes. The message has the
// claim that keeps the pod from other nodes, and the command that gives the pod a new claim.
func TestDecideUnschedulable(t *testing.T) {
	const pinned = "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match PersistentVolume's node affinity."
	const fresh = `run: kubectl describe pv pv-1. Let one of them take the pod. If no such node returns, and the data of the claim can be lost, give the pod a new claim: ` +
		`kubectl patch -n prod stc coder --type=merge -p '{"spec":{"replacement":{"state":"Fresh"}}}' && kubectl delete pod -n prod coder-1 && ` +
		`kubectl patch -n prod stc coder --type=merge -p '{"spec":{"replacement":{"state":"Carry"}}}'. The old claim is kept`
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
		"its claim binds it": {snapshot: stuck(), wantOutcome: membership.PodsUnschedulable, wantMessage: fresh},
		"the claim and the scheduler's reason": {
			snapshot: stuck(), wantOutcome: membership.PodsUnschedulable,
			wantMessage: "pod coder-1 can't be scheduled: " + strings.TrimSuffix(pinned, ".") + ". The pod needs a node on which it can use claim data-coder-1.",
		},
		"an autoscaler adds a node": {
			snapshot: of(corev1.PodReasonUnschedulable, pinned, time.Minute), wantOutcome: membership.PodsUnavailable, wantMessage: "1 of 2 pods are available: pod coder-1 can't be scheduled: 0/3 nodes",
		},
		"another scheduling gate": {snapshot: of(corev1.PodReasonSchedulingGated, "gated", time.Hour), wantOutcome: membership.PodsUnavailable},
		"the nodes are full": {
			snapshot: of(corev1.PodReasonUnschedulable, "0/3 nodes are available: 3 Insufficient cpu.", time.Hour), wantOutcome: membership.PodsUnschedulable,
			wantMessage: "3 Insufficient cpu. Add a node that fits the pod, or change spec.template.",
		},
		"successors get new claims anyway": {
			snapshot: stuck().Spec(func(s *v1.StatefulClusterSpec) {
				s.Replacement.State, s.PersistentVolumeClaimRetentionPolicy.WhenReplaced = v1.ReplacementFresh, v1.ClaimDelete
			}), wantOutcome: membership.PodsUnschedulable, wantMessage: "give the pod a new claim: kubectl delete pod -n prod coder-1. That deletes the old claim",
		},
		"in a rollout": {
			snapshot:    stuck().With(func(s *membership.Snapshot) { s.Pods[0].Labels[appsv1.StatefulSetRevisionLabel] = "coder-old" }),
			wantOutcome: membership.PodsUnschedulable, wantMessage: fresh, wantSteps: steps{membership.Record{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.run(t)
			conditions := membership.Decide(test.snapshot.Snapshot, now).Status.Conditions
			if stalled := meta.IsStatusConditionTrue(conditions, v1.ConditionStalled); stalled != (test.wantOutcome == membership.PodsUnschedulable) {
				t.Errorf("outcome %s, and Stalled is %t", test.wantOutcome, stalled)
			}
		})
	}
}

// After a lost record, a pod that has terminated and its successor can have one claim, and so can a pod that was created late. Only the
// newest of them keeps the claim.
func TestDecideSeparatesClaims(t *testing.T) {
	of := func(p *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(1).Pod(p.Claim("data-coder-0")).Pod(ready("coder-3").Node("a").Claim("data-coder-0")).
			With(func(s *membership.Snapshot) { s.Claims = append(s.Claims, makeClaim("data-coder-0")) }).
			Spec(func(s *v1.StatefulClusterSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenScaled = v1.ClaimDelete })
	}
	ended, late := of(ready("coder-0").Node("b").Terminating().Terminated()), of(MakePod("coder-0"))
	recorded := steps{membership.Record{}}
	runAll(t, map[string]decideTest{
		"has terminated":    {snapshot: ended, wantOutcome: membership.PodsAdopted, wantMembers: "0 Active, 3 Active data-coder-0", wantSteps: recorded, wantNext: 4},
		"was never started": {snapshot: late, wantOutcome: membership.PodsAdopted, wantMembers: "3 Active data-coder-0", wantSteps: recorded, wantNext: 4},
	})
	for _, s := range []*SnapshotWrapper{ended, late} {
		s.Cluster.Status = membership.Decide(s.Snapshot, now).Status
		plan := membership.Decide(s.Snapshot, now)
		if got := describe(plan.Status); got != "3 Active data-coder-0" || len(plan.Status.Released) > 0 || !slices.Contains(plan.Steps, membership.Step(membership.Unprotect{Pod: ref("coder-0")})) {
			t.Errorf("the members are %s, released claims %v, steps %v", got, plan.Status.Released, plan.Steps)
		}
	}
}

func TestDecideReplaces(t *testing.T) {
	fresh := func(s *v1.StatefulClusterSpec) { s.Replacement.State = v1.ReplacementFresh }
	attest := func(name string) func(*membership.Snapshot) {
		return func(s *membership.Snapshot) { s.Cluster.Annotations[v1.AttestAnnotation] = name }
	}
	runAll(t, map[string]decideTest{
		"unready is not dead": {
			snapshot: MakeSnapshot(1).Recorded(unready("coder-0")).Lose("node-coder-0"), wantOutcome: membership.PodsUnavailable,
		},
		"a terminating pod is waited for": {
			snapshot: MakeSnapshot(1).Recorded(ready("coder-0").Terminating()), wantOutcome: membership.PodsTerminating,
		},
		"the successor carries the claims": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Terminating().Node("a").Terminated()),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, created("coder-1", "data-coder-0")},
		},
		"the successor gets new claims": {
			snapshot:    MakeSnapshot(1).Spec(fresh).Recorded(ready("coder-0").Terminating().Node("a").Terminated()),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-1",
			wantSteps: steps{
				membership.Record{}, membership.Unprotect{Pod: ref("coder-0")},
				membership.CreateClaim{Name: "data-coder-1", Volume: "data"}, created("coder-1", "data-coder-1"),
			},
		},
		"a pod that was never scheduled": {
			snapshot:    MakeSnapshot(1).Recorded(MakePod("coder-0").Terminating()),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, created("coder-1", "data-coder-0")},
		},
		"a pod that has ended": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Node("a").Terminated()),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Delete{Pod: ref("coder-0")}, membership.Unprotect{Pod: ref("coder-0")}, created("coder-1", "data-coder-0")},
		},
		"one of three is lost": {
			snapshot:    MakeSnapshot(3).Recorded(ready("coder-0").Terminating(), ready("coder-1"), ready("coder-2")).Lose("node-coder-0"),
			wantOutcome: membership.Scaling, wantMembers: "0 Lost data-coder-0, 1 Active data-coder-1, 2 Active data-coder-2, 3 Pending data-coder-3",
			wantSteps:   steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-3", Volume: "data"}, created("coder-3", "data-coder-3")},
			wantMessage: "If the node is off, run: kubectl taint node node-coder-0 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		},
		"a returned kubelet that could not locate a container": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Terminating().Node("a").Terminated().Unlocated()),
			wantOutcome: membership.PodsTerminating,
			wantMessage: "Look for its processes on node a. Make sure that the processes of the pod have ended, then run: kubectl annotate -n prod stc coder apps.statefulsingleton.com/attest-terminated=coder-0 --overwrite",
		},
		"two of three are lost": {
			snapshot:    MakeSnapshot(3).Recorded(ready("coder-0").Terminating(), ready("coder-1").Terminating(), ready("coder-2")).Lose("node-coder-0", "node-coder-1"),
			wantOutcome: membership.TooManyLost, wantMembers: "0 Lost data-coder-0, 1 Active data-coder-1, 2 Active data-coder-2, 3 Pending data-coder-3",
			wantSteps:   steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-3", Volume: "data"}, created("coder-3", "data-coder-3")},
			wantMessage: "1 lost pod gets no successor, because spec.replacement.maxLost is 1. Pod coder-1 is replaced after its termination is proven",
		},
		"the only pod is lost": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).Lose("node-coder-0"),
			wantOutcome: membership.TooManyLost,
		},
		"maxLost": {
			snapshot:    MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Replacement.MaxLost = new(int32(1)) }).Recorded(ready("coder-0").Terminating()).Lose("node-coder-0"),
			wantOutcome: membership.Scaling, wantMembers: "0 Lost data-coder-0, 1 Pending data-coder-1",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-1", Volume: "data"}, created("coder-1", "data-coder-1")},
		},
		"a node that is off": {
			snapshot: MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).With(func(s *membership.Snapshot) {
				s.Nodes["node-coder-0"] = makeNode("node-coder-0", false, true)
			}),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, created("coder-1", "data-coder-0")},
		},
		"a removed object proves nothing": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0")).With(func(s *membership.Snapshot) { s.Pods = nil }),
			wantOutcome: membership.TooManyLost, wantMessage: "kubectl annotate -n prod stc coder apps.statefulsingleton.com/attest-terminated=coder-0 --overwrite",
		},
		"an attestation": {
			snapshot:    MakeSnapshot(1).Recorded(ready("coder-0")).With(func(s *membership.Snapshot) { s.Pods = nil }).With(attest("coder-0")),
			wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, created("coder-1", "data-coder-0"), membership.TakeAttestation{UID: "coder-0"}},
		},
		"an attestation of a pod that runs": {
			snapshot: MakeSnapshot(1).Recorded(ready("coder-0")).With(attest("coder-0")), wantOutcome: membership.AllAvailable,
			wantSteps: steps{membership.TakeAttestation{UID: "coder-0", Refused: "annotation apps.statefulsingleton.com/attest-terminated=coder-0 is ignored: pod coder-0 is not terminating, or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n prod coder-0"}},
		},
		"an attestation of nothing": {
			snapshot: MakeSnapshot(1).Recorded(ready("coder-0")).With(attest("x")), wantOutcome: membership.AllAvailable,
			wantSteps: steps{membership.TakeAttestation{UID: "x", Refused: "annotation apps.statefulsingleton.com/attest-terminated=x is ignored: no member has a pod with this uid"}},
		},
	})
}

// A member that leaves has no successor.
func TestDecideLeaving(t *testing.T) {
	of := func(p *PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(1).Recorded(p, ready("coder-1"))
		s.Cluster.Status.Members[0].State = v1.MemberLeaving
		return s
	}
	runAll(t, map[string]decideTest{
		"it runs":    {snapshot: of(ready("coder-0")), wantOutcome: membership.Scaling, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}}, wantMessage: "1 pod is being removed: coder-0"},
		"it ends":    {snapshot: of(ready("coder-0").Terminating()), wantOutcome: membership.Scaling},
		"it is lost": {snapshot: of(ready("coder-0").Terminating()).Lose("node-coder-0"), wantOutcome: membership.AllAvailable, wantMessage: "; pod coder-0 is lost and keeps its claims: its node node-coder-0 does not report"},
		"it is lost, and the next pod is created": {
			snapshot: of(ready("coder-0").Terminating()).Lose("node-coder-0").Spec(func(s *v1.StatefulClusterSpec) {
				s.Replicas, s.PodManagementPolicy = new(int32(2)), v1.ClusterOrderedReady
			}), wantOutcome: membership.Scaling, wantMembers: "0 Leaving data-coder-0, 1 Active data-coder-1, 2 Pending data-coder-2",
			wantSteps: steps{membership.Record{}, membership.CreateClaim{Name: "data-coder-2", Volume: "data"}, created("coder-2", "data-coder-2")},
		},
		"it has left": {snapshot: of(ready("coder-0").Terminating().Node("a").Terminated()), wantOutcome: membership.AllAvailable, wantMembers: "1 Active data-coder-1", wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}}, wantNext: 2},
	})
}

// A released claim without the label belongs to a person.
func TestDecideKeepsForeignClaims(t *testing.T) {
	s := MakeSnapshot(1).Recorded(ready("coder-1")).With(func(s *membership.Snapshot) {
		s.Cluster.Status.Released = []v1.ReleasedClaim{{Name: "data-coder-0", Policy: v1.ClaimDelete}}
		s.Claims = append(s.Claims, makeClaim("data-coder-0"))
		s.Claims[1].Labels = nil
	})
	decideTest{snapshot: s, wantOutcome: membership.AllAvailable, wantSteps: steps{membership.Record{}}}.run(t)
	if released := membership.Decide(s.Snapshot, now).Status.Released; len(released) > 0 {
		t.Errorf("released claims %v", released)
	}
}

// The returned pod of a lost member ends, and is never counted.
func TestDecideLostMemberReturns(t *testing.T) {
	lost := func(p *PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(1).Recorded(p, ready("coder-1"))
		s.Cluster.Status.Members[0].State = v1.MemberLost
		return s.Spec(func(s *v1.StatefulClusterSpec) { s.Replacement.MaxLost = new(int32(1)) })
	}
	runAll(t, map[string]decideTest{
		"it still runs": {snapshot: lost(ready("coder-0").Terminating()), wantOutcome: membership.AllAvailable},
		"it has ended": {
			snapshot: lost(ready("coder-0").Terminating().Node("a").Terminated()), wantOutcome: membership.AllAvailable,
			wantMembers: "1 Active data-coder-1", wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}},
		},
		"its claims are deleted": {
			snapshot: lost(ready("coder-0").Terminating().Node("a").Terminated()).Spec(func(s *v1.StatefulClusterSpec) {
				s.PersistentVolumeClaimRetentionPolicy.WhenReplaced = v1.ClaimDelete
			}), wantOutcome: membership.AllAvailable, wantMembers: "1 Active data-coder-1",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, membership.DeleteClaim{Claim: ref("data-coder-0")}},
		},
	})
}

// The order of scaling down: the deletion cost, and then lost, unready, drained and outdated pods, and then the newest pod.
func TestDecideScalesDown(t *testing.T) {
	drained := func(s *membership.Snapshot) { s.Nodes["node-coder-0"].Spec.Unschedulable = true }
	tests := map[string]struct {
		snapshot *SnapshotWrapper
		want     string
	}{
		"the newest":           {MakeSnapshot(1).Recorded(ready("coder-0"), ready("coder-1")), "coder-1"},
		"by number":            {MakeSnapshot(1).Recorded(ready("coder-9"), ready("coder-10")), "coder-10"},
		"an outdated pod":      {MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterOnDelete }).Recorded(old("coder-0"), ready("coder-1")), "coder-0"},
		"a drained pod":        {MakeSnapshot(1).Recorded(ready("coder-0"), ready("coder-1")).With(drained), "coder-0"},
		"unready over drained": {MakeSnapshot(1).Recorded(ready("coder-0"), unready("coder-1"), ready("coder-2")).With(drained), "coder-1 coder-0"},
		"lost over unready":    {MakeSnapshot(1).Recorded(ready("coder-0").Terminating(), unready("coder-1"), ready("coder-2")).Lose("node-coder-0"), "coder-0 coder-1"},
		"the cost over all":    {MakeSnapshot(1).Recorded(unready("coder-0"), ready("coder-1").Cost("-5")), "coder-1"},
		"the lowest cost":      {MakeSnapshot(1).Recorded(ready("coder-0").Cost("7"), ready("coder-1").Cost("9"), ready("coder-2").Cost("8")), "coder-0 coder-2"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := membership.Decide(test.snapshot.Snapshot, now)
			var got []string
			for _, m := range plan.Status.Members {
				if m.State == v1.MemberLeaving {
					got = append(got, m.Name)
				}
			}
			want := strings.Fields(test.want)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("members that leave (-want +got):\n%s", diff)
			}
			for _, name := range got {
				if p := test.snapshot.podNamed(name); p.DeletionTimestamp == nil && !slices.Contains(plan.Steps, membership.Step(membership.Delete{Pod: ref(name)})) {
					t.Errorf("pod %s is not deleted: %v", name, plan.Steps)
				}
			}
		})
	}
}

func (s *SnapshotWrapper) podNamed(name string) *corev1.Pod {
	return &s.Pods[slices.IndexFunc(s.Pods, func(p corev1.Pod) bool { return p.Name == name })]
}

// The 2x3 table of persistentVolumeClaimRetentionPolicy. Claims are deleted only after the proof.
func TestDecideRetention(t *testing.T) {
	leaving := func(p *PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(1).Recorded(p, ready("coder-1"))
		s.Cluster.Status.Members[0].State = v1.MemberLeaving
		return s
	}
	replaced := func(p *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.Replacement.State = v1.ReplacementFresh }).Recorded(p)
	}
	decide := func(s membership.Snapshot) membership.Plan { return membership.Decide(s, now) }
	finalize := func(s membership.Snapshot) membership.Plan { plan, _ := membership.Finalize(s, now); return plan }
	tests := map[string]struct {
		snapshot func(*PodWrapper) *SnapshotWrapper
		decide   func(membership.Snapshot) membership.Plan
		set      func(*v1.ClaimRetentionPolicy)
	}{
		"whenScaled":   {leaving, decide, func(p *v1.ClaimRetentionPolicy) { p.WhenScaled = v1.ClaimDelete }},
		"whenReplaced": {replaced, decide, func(p *v1.ClaimRetentionPolicy) { p.WhenReplaced = v1.ClaimDelete }},
		"whenDeleted":  {replaced, finalize, func(p *v1.ClaimRetentionPolicy) { p.WhenDeleted = v1.ClaimDelete }},
	}
	for name, test := range tests {
		for _, deletes := range []bool{false, true} {
			for _, proven := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, delete %v, proven %v", name, deletes, proven), func(t *testing.T) {
					p := ready("coder-0").Terminating().Node("a")
					if proven {
						p.Terminated()
					}
					s := test.snapshot(p)
					if deletes {
						test.set(&s.Cluster.Spec.PersistentVolumeClaimRetentionPolicy)
					}
					plan := test.decide(s.Snapshot)
					want := deletes && proven
					if got := slices.Contains(plan.Steps, membership.Step(membership.DeleteClaim{Claim: ref("data-coder-0")})); got != want {
						t.Errorf("the claim is deleted: %v, want %v", got, want)
					}
					wantReleased := v1.ReleasedClaim{Name: "data-coder-0", Policy: v1.ClaimDelete}
					if got := slices.Contains(plan.Status.Released, wantReleased); got != want {
						t.Errorf("released claims are %v", plan.Status.Released)
					}
				})
			}
		}
	}
}

func TestDecideRollsOut(t *testing.T) {
	rollout := func(partition int32, maxUnavailable intstr.IntOrString) func(*v1.StatefulClusterSpec) {
		return func(s *v1.StatefulClusterSpec) {
			s.UpdateStrategy.RollingUpdate = &v1.ClusterRollout{Partition: partition, MaxUnavailable: &maxUnavailable}
		}
	}
	deleted := func(names ...string) (all steps) {
		for _, name := range names {
			all = append(all, membership.Delete{Pod: ref(name)})
		}
		return all
	}
	ordered := func(s *v1.StatefulClusterSpec) { s.PodManagementPolicy = v1.ClusterOrderedReady }
	minReady := func(seconds int32) func(*v1.StatefulClusterSpec) {
		return func(s *v1.StatefulClusterSpec) { s.MinReadySeconds = seconds }
	}
	of := func(replicas int32) *SnapshotWrapper {
		s := MakeSnapshot(replicas).Revision("coder-old", 4)
		s.Cluster.Status.CurrentRevision = "coder-old"
		return s
	}
	runAll(t, map[string]decideTest{
		"one at a time":             {snapshot: of(3).Recorded(old("coder-0"), old("coder-1"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-2")},
		"not while one is unready":  {snapshot: of(3).Recorded(old("coder-0"), old("coder-1"), unready("coder-2")), wantOutcome: membership.RollingOut},
		"percent":                   {snapshot: of(3).Spec(rollout(0, intstr.FromString("50%"))).Recorded(old("coder-0"), old("coder-1"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-1", "coder-2")},
		"broken pods do not wait":   {snapshot: of(3).Recorded(unready("coder-0").Revision("coder-old"), unready("coder-1").Revision("coder-old"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-0", "coder-1")},
		"a broken revision, fixed":  {snapshot: of(2).Recorded(old("coder-0"), unready("coder-1").Revision("coder-broken")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-1")},
		"a partition":               {snapshot: of(3).Spec(rollout(2, intstr.FromInt32(3))).Recorded(old("coder-0"), old("coder-1"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-2")},
		"a partition is complete":   {snapshot: of(3).Spec(rollout(2, intstr.FromInt32(3))).Recorded(old("coder-0"), old("coder-1"), ready("coder-2")), wantOutcome: membership.AllAvailable},
		"the cheapest first":        {snapshot: of(3).Recorded(old("coder-0").Cost("-1"), old("coder-1"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-0")},
		"OnDelete":                  {snapshot: of(2).Spec(func(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterOnDelete }).Recorded(old("coder-0"), old("coder-1")), wantOutcome: membership.AllAvailable},
		"a short time Ready":        {snapshot: of(2).Spec(minReady(3601)).Recorded(old("coder-0"), ready("coder-1")), wantOutcome: membership.RollingOut},
		"Ready by a clock ahead":    {snapshot: of(2).Spec(minReady(0)).Recorded(old("coder-0"), ready("coder-1").Reported(-10*time.Minute, 0)), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-0")},
		"ahead, not long enough":    {snapshot: of(2).Spec(minReady(30)).Recorded(old("coder-0"), ready("coder-1").Reported(-10*time.Minute, 29*time.Second)), wantOutcome: membership.RollingOut},
		"ahead, long enough":        {snapshot: of(2).Spec(minReady(30)).Recorded(old("coder-0"), ready("coder-1").Reported(-10*time.Minute, 30*time.Second)), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-0")},
		"ordered: one broken pod":   {snapshot: of(3).Spec(ordered).Recorded(unready("coder-0").Revision("coder-old"), unready("coder-1").Revision("coder-old"), old("coder-2")), wantOutcome: membership.RollingOut, wantSteps: deleted("coder-1")},
		"ordered: another has gone": {snapshot: of(3).Spec(ordered).Recorded(unready("coder-0").Revision("coder-old"), old("coder-1"), old("coder-2").Terminating()), wantOutcome: membership.PodsTerminating},
		"the successor is new": {
			snapshot: of(2).Recorded(old("coder-0"), old("coder-1").Terminating().Node("a").Terminated()), wantOutcome: membership.Scaling, wantMembers: "0 Active data-coder-0, 2 Pending data-coder-1",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-1")}, created("coder-2", "data-coder-1")},
		},
		"behind the partition the successor is old": {
			snapshot: of(1).Spec(rollout(1, intstr.FromInt32(1))).Recorded(old("coder-0").Terminating().Node("a").Terminated()), wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, membership.CreatePod{Name: "coder-1", Revision: "coder-old", Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-0"}}}},
		},
		"a template that the API server rejects, fixed": {
			snapshot: of(1).With(func(s *membership.Snapshot) {
				s.Cluster.Status.Next = 1
				s.Cluster.Status.Members = []v1.ClusterMember{{Name: "coder-0", State: v1.MemberPending, Revision: "coder-broken"}}
			}),
			wantOutcome: membership.Scaling, wantMembers: "0 Pending", wantSteps: steps{membership.Record{}, membership.CreatePod{Name: "coder-0", Revision: latest}},
		},
	})
}

func TestDecideKeepsRevisions(t *testing.T) {
	history := func(limit int32) *SnapshotWrapper {
		return MakeSnapshot(1).Revision("coder-1", 1).Revision("coder-2", 2).Revision("coder-3", 3).Recorded(ready("coder-0")).
			Spec(func(s *v1.StatefulClusterSpec) { s.RevisionHistoryLimit = &limit })
	}
	undone := history(10)
	undone.Revisions[0].Revision = 2
	runAll(t, map[string]decideTest{
		"all":  {snapshot: history(3), wantOutcome: membership.AllAvailable},
		"two":  {snapshot: history(2), wantOutcome: membership.AllAvailable, wantSteps: steps{membership.DeleteRevision{Name: "coder-1", Version: "1"}}},
		"none": {snapshot: history(0), wantOutcome: membership.AllAvailable, wantSteps: steps{membership.DeleteRevision{Name: "coder-1", Version: "1"}, membership.DeleteRevision{Name: "coder-2", Version: "1"}, membership.DeleteRevision{Name: "coder-3", Version: "1"}}},
		"used": {
			snapshot:    history(0).Recorded(old("coder-1").Revision("coder-2")).Spec(func(s *v1.StatefulClusterSpec) { s.Replicas, s.UpdateStrategy.Type = new(int32(2)), v1.ClusterOnDelete }),
			wantOutcome: membership.AllAvailable, wantSteps: steps{membership.DeleteRevision{Name: "coder-1", Version: "1"}, membership.DeleteRevision{Name: "coder-3", Version: "1"}},
		},
		"the last rollout is complete": {
			snapshot: history(0).With(func(s *membership.Snapshot) {
				s.Cluster.Status.CurrentRevision = "coder-3"
				s.Revisions = slices.DeleteFunc(s.Revisions, func(r appsv1.ControllerRevision) bool { return r.Revision < 3 })
			}),
			wantOutcome: membership.AllAvailable, wantSteps: steps{membership.DeleteRevision{Name: "coder-3", Version: "1"}},
		},
		"undo": {snapshot: undone, wantOutcome: membership.AllAvailable, wantSteps: steps{membership.RenumberRevision{Name: latest, Number: 4}}},
	})
	same := MakeCluster(0)
	same.Spec.Template.Raw = []byte(` { "spec": {"containers": [{"name": "coder"}]}}`)
	if got := membership.RevisionName(&same.StatefulCluster); got != latest {
		t.Errorf("equal templates have the revisions %s and %s", got, latest)
	}
	same.UID = "another"
	if got := membership.RevisionName(&same.StatefulCluster); got == latest {
		t.Errorf("another StatefulCluster has revision %s too", got)
	}
}

func TestDecideGrowsClaims(t *testing.T) {
	grown := func(s *v1.StatefulClusterSpec) {
		s.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage = new(resource.MustParse("2Gi"))
	}
	unbound := func(s *membership.Snapshot) { s.Claims[0].Status.Phase = corev1.ClaimPending }
	runAll(t, map[string]decideTest{
		"grown":   {snapshot: MakeSnapshot(1).Spec(grown).Recorded(ready("coder-0")), wantOutcome: membership.AllAvailable, wantSteps: steps{membership.GrowClaim{Claim: ref("data-coder-0"), Storage: resource.MustParse("2Gi")}}},
		"unbound": {snapshot: MakeSnapshot(1).Spec(grown).Recorded(ready("coder-0")).With(unbound), wantOutcome: membership.AllAvailable},
		"same":    {snapshot: MakeSnapshot(1).Recorded(ready("coder-0")), wantOutcome: membership.AllAvailable},
	})
}

// The counts are those of a StatefulSet. The conditions follow kstatus.
func TestDecideReports(t *testing.T) {
	s := MakeSnapshot(4).Revision("coder-old", 4).Recorded(old("coder-0"), ready("coder-1"), unready("coder-2"), ready("coder-3").Terminating()).
		Spec(func(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterOnDelete })
	s.Cluster.Status.CurrentRevision = "coder-old"
	s.Claims = append(s.Claims, makeClaim("data-coder-9"))
	s.Cluster.Generation = 7
	status := membership.Decide(s.Snapshot, now).Status
	got := fmt.Sprintln(status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.CurrentReplicas, status.UpdatedReplicas, status.CurrentRevision, status.Selector, status.ObservedGeneration)
	if want := "4 2 2 1 3 coder-old app=coder 7\n"; got != want {
		t.Errorf("the status has %s, want %s", got, want)
	}
	if diff := cmp.Diff([]v1.ReleasedClaim{{Name: "data-coder-9", Policy: v1.ClaimRetain}}, status.Released); diff != "" {
		t.Errorf("released claims (-want +got):\n%s", diff)
	}
	conditions := func(s *SnapshotWrapper) string {
		status := membership.Decide(s.Snapshot, now).Status
		var all []string
		for _, c := range []string{v1.ConditionReady, v1.ConditionReconciling, v1.ConditionStalled} {
			all = append(all, string(meta.FindStatusCondition(status.Conditions, c).Status))
		}
		return strings.Join(all, " ")
	}
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		want     string
	}{
		"available":   {MakeSnapshot(1).Recorded(ready("coder-0")), "True False False"},
		"unavailable": {MakeSnapshot(1).Recorded(unready("coder-0")), "False False False"},
		"terminating": {MakeSnapshot(1).Recorded(ready("coder-0").Terminating()), "False True False"},
		"scaling":     {MakeSnapshot(1), "False True False"},
		"lost":        {MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).Lose("node-coder-0"), "False False True"},
	} {
		if got := conditions(test.snapshot); got != test.want {
			t.Errorf("%s: Ready, Reconciling and Stalled are %s, want %s", name, got, test.want)
		}
	}
	if plan := membership.Decide(MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) { s.MinReadySeconds = 3602 }).Recorded(ready("coder-0")).Snapshot, now); plan.Requeue != 2*time.Second || plan.Status.AvailableReplicas != 0 {
		t.Errorf("the next decision is after %s with %d available pods, want 2s and 0", plan.Requeue, plan.Status.AvailableReplicas)
	}
}

// With kubectl delete --cascade=orphan, pods and claims stay, also after the garbage collector has removed the owner of the pods.
func TestFinalizeOrphans(t *testing.T) {
	orphan := func(s *membership.Snapshot) {
		s.Cluster.DeletionTimestamp, s.Cluster.Finalizers = new(metav1.NewTime(now)), []string{metav1.FinalizerOrphanDependents}
		s.Cluster.Spec.PersistentVolumeClaimRetentionPolicy = v1.ClaimRetentionPolicy{WhenDeleted: v1.ClaimDelete, WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}
	}
	orphaned := func(s *membership.Snapshot) {
		orphan(s)
		s.Cluster.Finalizers, s.Pods[0].OwnerReferences = nil, nil
	}
	in := func(state v1.MemberState) func(*membership.Snapshot) {
		return func(s *membership.Snapshot) { s.Cluster.Status.Members[0].State = state }
	}
	gone := func(s *membership.Snapshot) { s.Pods = nil }
	pending := func(s *membership.Snapshot) {
		s.Cluster.Status.Members = append(s.Cluster.Status.Members, v1.ClusterMember{Name: "coder-1", State: v1.MemberPending, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-1"}}})
		s.Claims = append(s.Claims, makeClaim("data-coder-1"))
	}
	recorded := func(p *PodWrapper) *SnapshotWrapper { return MakeSnapshot(1).Recorded(p) }
	released := steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}}
	const waits = "the deletion waits until pod coder-0 can run without the StatefulCluster"
	for name, test := range map[string]struct {
		snapshot    *SnapshotWrapper
		wantSteps   steps
		wantMessage string
	}{
		"a pod that runs":               {snapshot: recorded(ready("coder-0")).With(orphan), wantSteps: released},
		"an orphaned pod":               {snapshot: recorded(ready("coder-0")).With(orphaned), wantSteps: released},
		"a pod that ends":               {snapshot: recorded(ready("coder-0").Terminating()).With(orphan), wantSteps: released},
		"a pod that leaves":             {snapshot: recorded(ready("coder-0").Terminating()).With(orphan).With(in(v1.MemberLeaving)), wantSteps: released},
		"a lost pod":                    {snapshot: recorded(ready("coder-0").Terminating()).Lose("node-coder-0").With(orphan).With(in(v1.MemberLost)), wantSteps: released},
		"a removed pod":                 {snapshot: recorded(ready("coder-0")).With(orphan).With(gone), wantSteps: steps{membership.Record{}}},
		"a pod that cannot run yet":     {recorded(MakePod("coder-0")).With(orphan), steps{membership.Ungate{Pod: ref("coder-0")}}, waits},
		"a pod that does not serve yet": {recorded(unready("coder-0").inPlace("False").changed(`{"coder":"containerd://1"}`)).With(orphan), steps{membership.SetServing{Pod: ref("coder-0"), Version: "7", Serving: true}}, waits},
		"an unrecorded pod":             {snapshot: MakeSnapshot(1).Pod(MakePod("coder-0")).With(func(s *membership.Snapshot) { s.Cluster.Status.Next = 1 }).With(orphan), wantSteps: steps{membership.Delete{Pod: ref("coder-0")}, membership.Unprotect{Pod: ref("coder-0")}}},
		"a pod without a UID":           {snapshot: recorded(ready("coder-0")).With(orphaned).With(pending), wantSteps: released},
	} {
		t.Run(name, func(t *testing.T) {
			plan, message := membership.Finalize(test.snapshot.Snapshot, now)
			if message != test.wantMessage || len(plan.Status.Released) > 0 {
				t.Errorf("the message is %q, want %q. Released claims are %v", message, test.wantMessage, plan.Status.Released)
			}
			if diff := cmp.Diff(test.wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFinalize(t *testing.T) {
	leaves := func(s *membership.Snapshot) { s.Cluster.Status.Members[0].State = v1.MemberLeaving }
	tests := map[string]struct {
		snapshot    *SnapshotWrapper
		wantSteps   steps
		wantMessage string
	}{
		"nothing":             {snapshot: MakeSnapshot(1)},
		"a pod that runs":     {MakeSnapshot(1).Recorded(ready("coder-0")), steps{membership.Delete{Pod: ref("coder-0")}}, "the deletion waits until pod coder-0 has terminated"},
		"a pod that ends":     {MakeSnapshot(1).Recorded(ready("coder-0").Terminating()), nil, "the deletion waits until pod coder-0 has terminated"},
		"a lost pod":          {MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).Lose("node-coder-0"), nil, "the deletion waits for pod coder-0, which is lost: its node node-coder-0 does not report. If the node is off"},
		"a pod that leaves":   {MakeSnapshot(1).Recorded(ready("coder-0").Terminating()).With(leaves), nil, "the deletion waits until pod coder-0 has terminated"},
		"a pod that ended":    {MakeSnapshot(1).Recorded(ready("coder-0").Terminating().Node("a").Terminated()), steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}}, "the deletion waits until pod coder-0 is removed"},
		"a pod that is gated": {MakeSnapshot(1).Recorded(ready("coder-1")).Pod(MakePod("coder-0")).With(func(s *membership.Snapshot) { s.Cluster.Status.Members = nil }), steps{membership.Delete{Pod: ref("coder-1")}, membership.Unprotect{Pod: ref("coder-1")}, membership.Delete{Pod: ref("coder-0")}, membership.Unprotect{Pod: ref("coder-0")}}, "is removed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, message := membership.Finalize(test.snapshot.Snapshot, now)
			if !strings.Contains(message, test.wantMessage) || message == "" != (test.wantMessage == "") {
				t.Errorf("the message is %q, want %q", message, test.wantMessage)
			}
			if diff := cmp.Diff(test.wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}
