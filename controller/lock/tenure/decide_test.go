package tenure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// now is the time of the decisions.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const revision = "db-2"

// SnapshotWrapper builds a Snapshot of StatefulSet db with Lease db-lease.
type SnapshotWrapper struct{ tenure.Snapshot }

// MakeSnapshot returns a Snapshot in which no pod has been the writer. All nodes are Ready.
func MakeSnapshot(fencing v1.LockFencing, pods ...*PodWrapper) *SnapshotWrapper {
	lock := &v1.StatefulSetLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-lock", UID: "lock", Annotations: map[string]string{}},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 30, Fencing: fencing},
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db", UID: "set"}}
	set.Status.UpdateRevision = revision
	s := &SnapshotWrapper{tenure.Snapshot{Lock: lock, StatefulSet: set, Nodes: map[string]*corev1.Node{}, Lease: leases.Observed{Object: modelLease(&leaseState{}, lock)}}}
	for i, p := range pods {
		node := fmt.Sprintf("node%d", i+1)
		s.Nodes[node] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		if p.Labels[appsv1.StatefulSetRevisionLabel] == "" {
			p.Labels[appsv1.StatefulSetRevisionLabel] = revision
		}
		s.Pods = append(s.Pods, *p.ControlledBy(set).Node(node).Obj())
	}
	return s
}

// Writer records the writer of epoch 3. The Lease names it.
func (s *SnapshotWrapper) Writer(name string) *SnapshotWrapper {
	status := &s.Lock.Status
	status.WriterPod, status.WriterPodUID, status.Epoch = name, types.UID(name), 3
	lease := s.Lease.Object
	lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions = &name, new(int32(3))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(now))
	lease.Annotations = map[string]string{signal.WriterAnnotation: name}
	return s
}

// Ending records that the tenure of the writer began to end before the duration.
func (s *SnapshotWrapper) Ending(before time.Duration) *SnapshotWrapper {
	s.Lock.Status.LastTransition = &v1.TenureTransition{
		From: s.Lock.Status.WriterPod, FromUID: s.Lock.Status.WriterPodUID, Cause: v1.TenureDeletion, Started: new(metav1.NewMicroTime(now.Add(-before))),
	}
	return s
}

// With changes the Snapshot.
func (s *SnapshotWrapper) With(change func(*tenure.Snapshot)) *SnapshotWrapper {
	change(&s.Snapshot)
	return s
}

// reader returns a Ready pod, and writerPod the Ready writer of epoch 3.
func reader(name string) *PodWrapper { return MakePod(name).Ready(true) }

func writerPod(name string, ready bool) *PodWrapper {
	return MakePod(name).Ready(ready).Role(v1.StsRoleWriter).Tenure(3, 0)
}

func ref(name string) tenure.PodRef { return tenure.PodRef{Name: name, UID: types.UID(name)} }

// named is the step that names an unfenced writer in the Lease.
func named(name string, epoch int64) tenure.Step {
	return tenure.WriteLease{Version: "1", Holder: name, Writer: types.UID(name), Epoch: epoch, Duration: 30 * time.Second, Renew: true}
}

// granted are the steps that make a pod the writer without fencing.
func granted(name string, epoch int64) []tenure.Step {
	return []tenure.Step{
		tenure.Record{},
		named(name, epoch),
		tenure.LabelWriter{Pod: ref(name), Version: "1", Epoch: epoch},
	}
}

func labelOff(name string) []tenure.Step {
	return []tenure.Step{tenure.LabelReader{Pod: ref(name), Version: "1", Ends: 3}}
}

// decideTest is a Snapshot, and what Decide must return.
type decideTest struct {
	snapshot    *SnapshotWrapper
	wantOutcome tenure.Outcome
	wantSteps   []tenure.Step
	// wantCause is the cause of the last transition. Empty: there is none.
	wantCause v1.TenureCause
	// wantPerson is true if condition Error is True.
	wantPerson bool
	// wantMessage is a part of the message.
	wantMessage string
}

func TestDecide(t *testing.T) {
	none, termination := v1.LockFencingNone, v1.LockFencingTermination
	attest := func(uid string) func(*tenure.Snapshot) {
		return func(s *tenure.Snapshot) { s.Lock.Annotations[v1.AttestAnnotation] = uid }
	}
	drained := func(node string) func(*tenure.Snapshot) {
		return func(s *tenure.Snapshot) { s.Nodes[node].Spec.Unschedulable = true }
	}
	checkDecisions(t, map[string]decideTest{
		"the lowest Ready ordinal is elected first": {
			snapshot:    MakeSnapshot(none, MakePod("db-0").Ready(false), reader("db-1"), reader("db-2")),
			wantOutcome: tenure.Granted,
			wantSteps: append([]tenure.Step{
				tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-0"), Version: "1", Ends: 1}, tenure.LabelReader{Pod: ref("db-2"), Version: "1", Ends: 1},
			}, granted("db-1", 1)...),
			wantCause:   v1.TenureCreated,
			wantMessage: "pod db-1 becomes the writer with epoch 1",
		},
		"no pod is Ready": {
			snapshot: MakeSnapshot(none, MakePod("db-0").Ready(false)), wantOutcome: tenure.NoReadyPod, wantMessage: "pod db-0 can't become the writer: it is not Ready",
		},
		"no StatefulSet": {
			snapshot:    MakeSnapshot(none).With(func(s *tenure.Snapshot) { s.StatefulSet = nil }),
			wantOutcome: tenure.NoStatefulSet, wantMessage: "StatefulSet db does not exist",
		},
		"no Lease": {
			snapshot:    MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) { s.Lease.Object = nil }),
			wantOutcome: tenure.NoLease, wantSteps: []tenure.Step{tenure.CreateLease{}},
		},
		"a foreign Lease is left untouched": {
			snapshot:    MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) { s.Lease.Object.OwnerReferences = nil }),
			wantOutcome: tenure.ForeignLease, wantPerson: true, wantMessage: "delete it: kubectl delete lease -n prod db-lease",
		},
		"a Lease of an owner of another kind is left untouched": {
			snapshot:    MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) { s.Lease.Object.OwnerReferences[0].Kind = "StatefulCluster" }),
			wantOutcome: tenure.ForeignLease, wantPerson: true, wantMessage: "delete it: kubectl delete lease -n prod db-lease",
		},
		"the second lock changes nothing": {
			snapshot: MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) {
				s.Lock.CreationTimestamp = metav1.NewTime(now)
				s.Others = []v1.StatefulSetLock{{ObjectMeta: metav1.ObjectMeta{Name: "older"}, Spec: v1.StatefulSetLockSpec{StatefulSetName: "db"}}}
			}),
			wantOutcome: tenure.SecondLock, wantPerson: true, wantMessage: "StatefulSetLock older already labels the pods of StatefulSet db",
		},
		"the writer stays although a lower pod is Ready again": {
			snapshot: MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1"), wantOutcome: tenure.WriterReady, wantMessage: "pod db-1 is the writer with epoch 3",
		},
		"the Lease is renewed after half of its duration": {
			snapshot: MakeSnapshot(none, writerPod("db-0", true)).Writer("db-0").With(func(s *tenure.Snapshot) {
				s.Lease.Object.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-15 * time.Second)))
			}),
			wantOutcome: tenure.WriterReady,
			wantSteps:   []tenure.Step{named("db-0", 3)},
		},
		"a Lease that was renewed by a clock that is ahead is renewed at once": {
			snapshot: MakeSnapshot(none, writerPod("db-0", true)).Writer("db-0").With(func(s *tenure.Snapshot) {
				s.Lease.Object.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(10 * time.Minute)))
			}),
			wantOutcome: tenure.WriterReady,
			wantSteps:   []tenure.Step{named("db-0", 3)},
		},
		"a short Lease is renewed only every two seconds": {
			snapshot: MakeSnapshot(none, writerPod("db-0", true)).Writer("db-0").With(func(s *tenure.Snapshot) {
				s.Lock.Spec.LeaseDurationSeconds = 1
				s.Lease.Object.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Second)))
			}),
			wantOutcome: tenure.WriterReady,
		},
		"an unready writer without another pod stays": {
			snapshot: MakeSnapshot(none, writerPod("db-0", false)).Writer("db-0"), wantOutcome: tenure.WriterNotReady, wantMessage: "no other pod can become the writer",
		},
		"an unready writer loses its label": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", false), reader("db-1")).Writer("db-0"),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureUnready,
		},
		"an unready writer stays for failoverDelaySeconds": {
			snapshot: MakeSnapshot(none, writerPod("db-0", false), reader("db-1")).Writer("db-0").With(func(s *tenure.Snapshot) {
				s.Lock.Spec.FailoverDelaySeconds = 60
				s.Pods[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-59 * time.Second))
			}),
			wantOutcome: tenure.WriterNotReady, wantMessage: "If it stays unready for spec.failoverDelaySeconds (60), pod db-1 becomes the writer",
		},
		"the writer on a drained node loses its label": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true), reader("db-1")).Writer("db-0").With(drained("node1")),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureDrain,
		},
		"a drain moves the writer to no other drained node": {
			snapshot:    MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1").With(drained("node1")).With(drained("node2")),
			wantOutcome: tenure.WriterReady,
		},
		"a rollout moves the writer to an updated pod": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true).Revision("db-1"), reader("db-1").Revision("db-1"), reader("db-2")).Writer("db-0"),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureRollout,
		},
		"a rollout does not move the writer to another old pod": {
			snapshot:    MakeSnapshot(none, reader("db-0").Revision("db-1"), writerPod("db-1", true).Revision("db-1")).Writer("db-1"),
			wantOutcome: tenure.WriterReady,
		},
		"a deleted writer loses its label": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true).Terminating(), reader("db-1")).Writer("db-0"),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureDeletion,
		},
		"Services still send requests to the old writer": {
			snapshot:    MakeSnapshot(none, reader("db-0").Tenure(3, 3).Terminating(), reader("db-1")).Writer("db-0").Ending(time.Second).With(func(s *tenure.Snapshot) { s.Serving = true }),
			wantOutcome: tenure.AwaitingEndpoints, wantCause: v1.TenureDeletion,
		},
		"Services send requests to the old writer for too long": {
			snapshot:    MakeSnapshot(none, reader("db-0").Tenure(3, 3).Terminating(), reader("db-1")).Writer("db-0").Ending(6 * time.Second).With(func(s *tenure.Snapshot) { s.Serving = true }),
			wantOutcome: tenure.Granted, wantSteps: granted("db-1", 4), wantCause: v1.TenureDeletion,
		},
		"None does not wait for the termination": {
			snapshot:    MakeSnapshot(none, reader("db-0").Tenure(3, 3).Terminating(), reader("db-1")).Writer("db-0").Ending(0),
			wantOutcome: tenure.Granted, wantSteps: granted("db-1", 4), wantCause: v1.TenureDeletion,
		},
		"Termination protects the writer": {
			snapshot:    MakeSnapshot(termination, writerPod("db-0", true), reader("db-1")).Writer("db-0"),
			wantOutcome: tenure.WriterReady, wantSteps: []tenure.Step{tenure.Protect{Pod: ref("db-0"), Version: "1"}},
		},
		"Termination deletes an unready writer": {
			snapshot:    MakeSnapshot(termination, MakePod("db-0").Ready(false).Tenure(3, 3).Protected(), reader("db-1")).Writer("db-0").Ending(0),
			wantOutcome: tenure.WriterStopping, wantSteps: []tenure.Step{tenure.Delete{Pod: ref("db-0")}}, wantCause: v1.TenureDeletion,
		},
		"Termination waits for the proof": {
			snapshot:    MakeSnapshot(termination, reader("db-0").Tenure(3, 3).Protected().Terminating(), reader("db-1")).Writer("db-0").Ending(0),
			wantOutcome: tenure.WriterStopping, wantCause: v1.TenureDeletion, wantMessage: "pod db-0 is terminating",
		},
		"Termination, and the node does not report": {
			snapshot: MakeSnapshot(termination, reader("db-0").Tenure(3, 3).Protected().Terminating(), reader("db-1")).Writer("db-0").Ending(0).With(func(s *tenure.Snapshot) {
				s.Nodes["node1"].Status.Conditions[0].Status = corev1.ConditionUnknown
			}),
			wantOutcome: tenure.WriterStopping, wantCause: v1.TenureDeletion, wantPerson: true,
			wantMessage: "kubectl taint node node1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		},
		"Termination, and the node does not exist": {
			snapshot: MakeSnapshot(termination, reader("db-0").Tenure(3, 3).Protected().Terminating(), reader("db-1")).Writer("db-0").Ending(0).With(func(s *tenure.Snapshot) {
				delete(s.Nodes, "node1")
			}),
			wantOutcome: tenure.WriterStopping, wantCause: v1.TenureDeletion, wantPerson: true,
			wantMessage: "run: kubectl annotate -n prod ssl db-lock apps.statefulsingleton.com/attest-terminated=db-0 --overwrite",
		},
		"the kubelet has reported the termination": {
			snapshot:    MakeSnapshot(termination, MakePod("db-0").Tenure(3, 3).Protected().Terminating().Terminated(), reader("db-1")).Writer("db-0").Ending(0),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion,
			wantSteps: append(append([]tenure.Step{tenure.Protect{Pod: ref("db-1"), Version: "1"}}, granted("db-1", 4)...),
				tenure.Unprotect{Pod: ref("db-0"), Version: "1"}),
		},
		"somebody removed the finalizer of the writer": {
			snapshot:    MakeSnapshot(termination, reader("db-1")).Writer("db-0"),
			wantOutcome: tenure.WriterLost, wantCause: v1.TenureDeletion, wantPerson: true, wantMessage: "kubectl annotate -n prod ssl db-lock apps.statefulsingleton.com/attest-terminated=db-0 --overwrite",
		},
		"a person attests": {
			snapshot:    MakeSnapshot(termination, reader("db-1")).Writer("db-0").Ending(0).With(attest("db-0")),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion,
			wantSteps: append(append([]tenure.Step{tenure.Protect{Pod: ref("db-1"), Version: "1"}}, granted("db-1", 4)...), tenure.TakeAttestation{UID: "db-0"}),
		},
		"an attestation of a writer that runs is refused": {
			snapshot:    MakeSnapshot(termination, writerPod("db-0", true).Protected(), reader("db-1")).Writer("db-0").With(attest("db-0")),
			wantOutcome: tenure.WriterReady,
			wantSteps: []tenure.Step{tenure.TakeAttestation{UID: "db-0", Refused: "annotation apps.statefulsingleton.com/attest-terminated=db-0 is ignored: " +
				"pod db-0 is not terminating, or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n prod db-0"}},
		},
		"an attestation of another pod is refused": {
			snapshot:    MakeSnapshot(termination, writerPod("db-0", true).Protected()).Writer("db-0").With(attest("other")),
			wantOutcome: tenure.WriterReady,
			wantSteps:   []tenure.Step{tenure.TakeAttestation{UID: "other", Refused: "annotation apps.statefulsingleton.com/attest-terminated=other is ignored: the lock waits for no pod with this uid"}},
		},
		"a writer that another operator labelled is adopted": {
			snapshot:    MakeSnapshot(none, reader("db-0"), MakePod("db-1").Ready(true).Role(v1.StsRoleWriter)),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-0"), Version: "1", Ends: 2}, tenure.Record{}},
		},
		"the first pod is adopted if another operator labelled it": {
			snapshot:    MakeSnapshot(none, MakePod("db-0").Ready(true).Role(v1.StsRoleWriter), reader("db-1")),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-1"), Version: "1", Ends: 2}, tenure.Record{}},
		},
		"a writer that left the StatefulSet loses its label": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true), reader("db-1")).Writer("db-0").With(func(s *tenure.Snapshot) { s.Pods[0].OwnerReferences = nil }),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureLeft,
		},
		"a writer whose owner is of another kind loses its label": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true), reader("db-1")).Writer("db-0").With(func(s *tenure.Snapshot) { s.Pods[0].OwnerReferences[0].Kind = "ReplicaSet" }),
			wantOutcome: tenure.LabelRemoved, wantSteps: labelOff("db-0"), wantCause: v1.TenureLeft,
		},
		"None removes the finalizer that Termination has added": {
			snapshot:    MakeSnapshot(none, writerPod("db-0", true).Protected()).Writer("db-0"),
			wantOutcome: tenure.WriterReady, wantSteps: []tenure.Step{tenure.Unprotect{Pod: ref("db-0"), Version: "1"}},
		},
		"the finalizer of a StatefulSingleton stays": {
			snapshot: MakeSnapshot(none, reader("db-0").Tenure(3, 3).Protected().Terminating(), reader("db-1")).Writer("db-0").Ending(0).With(func(s *tenure.Snapshot) {
				s.Pods[0].Labels[v1.SingletonLabel] = "db"
			}),
			wantOutcome: tenure.Granted, wantSteps: granted("db-1", 4), wantCause: v1.TenureDeletion,
		},
		"a reader has the finalizer of an earlier writer": {
			snapshot:    MakeSnapshot(termination, writerPod("db-0", true).Protected(), reader("db-1").Protected()).Writer("db-0"),
			wantOutcome: tenure.WriterReady, wantSteps: []tenure.Step{tenure.Unprotect{Pod: ref("db-1"), Version: "1"}},
		},
		"an unfenced writer that no longer exists is not fenced by a later change of fencing": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, reader("db-1").Fenced()).Writer("db-0"),
			wantOutcome: tenure.WriterLost, wantCause: v1.TenureDeletion, wantPerson: true, wantMessage: "attest-terminated=db-0",
		},
		"the last change is complete, and the record has no writer": {
			snapshot: MakeSnapshot(none, reader("db-0"), reader("db-1")).With(func(s *tenure.Snapshot) {
				s.Lock.Status.Epoch, s.Lock.Status.LastTransition = 3, &v1.TenureTransition{To: "db-1", Cause: v1.TenureDrain}
			}),
			wantOutcome: tenure.Granted, wantCause: v1.TenureCreated,
			wantSteps: append([]tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-1"), Version: "1", Ends: 4}}, granted("db-0", 4)...),
		},
		"the record is lost, and the writer no longer exists": {
			snapshot:    MakeSnapshot(termination, reader("db-1")).Writer("db-0").With(func(s *tenure.Snapshot) { s.Lock.Status = v1.StatefulSetLockStatus{} }),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-1"), Version: "1", Ends: 4}, tenure.Record{}},
		},
		"the record is lost": {
			snapshot:    MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1").With(func(s *tenure.Snapshot) { s.Lock.Status = v1.StatefulSetLockStatus{} }),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-0"), Version: "1", Ends: 4}, tenure.Record{}},
		},
	})
}

// A lock without a writer is in progress, and says what it waits for.
func TestWaits(t *testing.T) {
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		want     string
	}{
		"for the StatefulSet": {MakeSnapshot(v1.LockFencingNone).With(func(s *tenure.Snapshot) { s.StatefulSet = nil }), "StatefulSet db"},
		"for a Ready pod":     {MakeSnapshot(v1.LockFencingNone, MakePod("db-0").Ready(false)), "pod db-0"},
	} {
		t.Run(name, func(t *testing.T) {
			got := meta.FindStatusCondition(tenure.Decide(test.snapshot.Snapshot, now).Status.Conditions, v1.ConditionProgressing)
			if got == nil || got.Status != metav1.ConditionTrue || !strings.Contains(got.Message, test.want) {
				t.Errorf("condition %+v", got)
			}
		})
	}
}

// If the clock of the writer's node is ahead, spec.failoverDelaySeconds begins when the lock reports that the writer is not Ready.
func TestNodeClockAhead(t *testing.T) {
	s := MakeSnapshot(v1.LockFencingNone, writerPod("db-0", false), reader("db-1")).Writer("db-0").With(func(s *tenure.Snapshot) {
		s.Pods[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(10 * time.Minute))
	})
	// The lock was not available either before the pod got its label.
	s.Lock.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAvailable, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}
	s.Lock.Status.LastTransition = &v1.TenureTransition{To: "db-0", Cause: v1.TenureCreated, Labelled: new(metav1.NewMicroTime(now.Add(-time.Second)))}
	for name, test := range map[string]struct {
		delay int32
		ready bool // the lock reports Available=True
		after time.Duration
		want  tenure.Outcome
	}{
		"without a delay":             {want: tenure.LabelRemoved},
		"the first report":            {delay: 30, ready: true, want: tenure.WriterNotReady},
		"before the delay has passed": {delay: 30, ready: true, after: 29 * time.Second, want: tenure.WriterNotReady},
		"after the delay has passed":  {delay: 30, ready: true, after: 30 * time.Second, want: tenure.LabelRemoved},
		"shortly after the label":     {delay: 30, want: tenure.WriterNotReady},
		"long after the label":        {delay: 30, after: 29 * time.Second, want: tenure.LabelRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.Snapshot
			s.Lock = s.Lock.DeepCopy()
			s.Lock.Spec.FailoverDelaySeconds = test.delay
			if test.ready {
				s.Lock.Status.Conditions[0].Status = metav1.ConditionTrue
			}
			plan := tenure.Decide(s, now)
			if test.after > 0 {
				s.Lock.Status = plan.Status
				plan = tenure.Decide(s, now.Add(test.after))
			}
			if plan.Outcome != test.want {
				t.Errorf("outcome %s, want %s", plan.Outcome, test.want)
			}
		})
	}
}

// checkDecisions checks what Decide returns.
func checkDecisions(t *testing.T, tests map[string]decideTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := tenure.Decide(test.snapshot.Snapshot, now)
			if plan.Outcome != test.wantOutcome {
				t.Errorf("outcome %s, want %s", plan.Outcome, test.wantOutcome)
			}
			if diff := cmp.Diff(test.wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			var cause v1.TenureCause
			if last := plan.Status.LastTransition; last != nil {
				cause = last.Cause
			}
			if cause != test.wantCause {
				t.Errorf("cause %q of the last transition, want %q", cause, test.wantCause)
			}
			if !strings.Contains(plan.Status.Message, test.wantMessage) {
				t.Errorf("message %q, want %q in it", plan.Status.Message, test.wantMessage)
			}
			if person := meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionError); person != test.wantPerson {
				t.Errorf("condition Error is %t, want %t", person, test.wantPerson)
			}
			ready := meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionReady)
			if ready != (test.wantOutcome == tenure.WriterReady) || ready != meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionAvailable) {
				t.Errorf("conditions %+v for outcome %s", plan.Status.Conditions, plan.Outcome)
			}
		})
	}
}

// The deletion of a lock frees its pods, and waits for a writer that may still run although it is being deleted.
func TestFinalize(t *testing.T) {
	forget := func(name string) tenure.Step {
		return tenure.Forget{Pod: ref(name), Version: "1", Ends: 3, Unprotect: true}
	}
	tests := map[string]struct {
		snapshot    *SnapshotWrapper
		wantSteps   []tenure.Step
		wantMessage string
	}{
		"a writer that runs": {
			snapshot:  MakeSnapshot(v1.LockFencingTermination, writerPod("db-0", true).Protected(), reader("db-1")).Writer("db-0"),
			wantSteps: []tenure.Step{tenure.Record{}, forget("db-0"), forget("db-1")},
		},
		"a writer that is terminating": {
			snapshot:    MakeSnapshot(v1.LockFencingTermination, writerPod("db-0", true).Protected().Terminating(), reader("db-1")).Writer("db-0"),
			wantSteps:   []tenure.Step{forget("db-1")},
			wantMessage: "pod db-0 is terminating",
		},
		"a writer that has terminated": {
			snapshot:  MakeSnapshot(v1.LockFencingTermination, MakePod("db-0").Tenure(3, 3).Protected().Terminating().Terminated()).Writer("db-0"),
			wantSteps: []tenure.Step{tenure.Record{}, forget("db-0")},
		},
		"a writer that is lost": {
			snapshot:    MakeSnapshot(v1.LockFencingTermination, reader("db-1")).Writer("db-0"),
			wantSteps:   []tenure.Step{forget("db-1")},
			wantMessage: "pod db-0, the last writer, does not exist",
		},
		"a writer that is removed, without fencing": {
			snapshot:  MakeSnapshot(v1.LockFencingNone, reader("db-1")).Writer("db-0"),
			wantSteps: []tenure.Step{tenure.Record{}, forget("db-1")},
		},
		"a pod of a StatefulSingleton keeps its finalizer": {
			snapshot:  MakeSnapshot(v1.LockFencingNone, reader("db-0").Protected()).With(func(s *tenure.Snapshot) { s.Pods[0].Labels[v1.SingletonLabel] = "db" }),
			wantSteps: []tenure.Step{tenure.Forget{Pod: ref("db-0"), Version: "1"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, message := tenure.Finalize(test.snapshot.Snapshot)
			if diff := cmp.Diff(test.wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if !strings.Contains(message, test.wantMessage) || test.wantMessage == "" && message != "" {
				t.Errorf("message %q, want %q in it", message, test.wantMessage)
			}
		})
	}
}

// A PodDisruptionBudget blocks evictions of the writer while another pod can become the writer.
func TestBudget(t *testing.T) {
	both := func() *SnapshotWrapper {
		return MakeSnapshot(v1.LockFencingNone, writerPod("db-0", true), reader("db-1")).Writer("db-0")
	}
	tests := map[string]struct {
		snapshot *SnapshotWrapper
		want     bool
	}{
		"another pod can become the writer":  {both(), true},
		"no other pod":                       {MakeSnapshot(v1.LockFencingNone, writerPod("db-0", true)).Writer("db-0"), false},
		"no writer":                          {MakeSnapshot(v1.LockFencingNone, MakePod("db-0").Ready(false)), false},
		"the other pod is on a drained node": {both().With(func(s *tenure.Snapshot) { s.Nodes["node2"].Spec.Unschedulable = true }), false},
		"a budget of the user covers the writer": {both().With(func(s *tenure.Snapshot) {
			s.Budgets = []policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}}
		}), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tenure.Decide(test.snapshot.Snapshot, now).Budget; got != test.want {
				t.Errorf("a budget: %t, want %t", got, test.want)
			}
		})
	}
}
