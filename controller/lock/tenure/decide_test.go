package tenure_test

import (
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
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// now is the time of the decisions.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	revision          = "db-2"
	none, termination = v1.LockFencingNone, v1.LockFencingTermination
)

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
	s := tenure.Snapshot{Lock: lock, StatefulSet: set, Nodes: map[string]*corev1.Node{}, Lease: leases.Observed{Object: modelLease(&leaseState{}, lock)}}
	for i, p := range pods {
		node := makeNode(i, corev1.ConditionTrue)
		s.Nodes[node.Name] = node
		if p.Labels[appsv1.StatefulSetRevisionLabel] == "" {
			p.Revision(revision)
		}
		s.Pods = append(s.Pods, *p.ControlledBy(set).Node(node.Name).Obj())
	}
	return &SnapshotWrapper{s}
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
func (s *SnapshotWrapper) Ending(cause v1.TenureCause, before time.Duration) *SnapshotWrapper {
	s.Lock.Status.LastTransition = &v1.TenureTransition{
		From: s.Lock.Status.WriterPod, FromUID: s.Lock.Status.WriterPodUID, Cause: cause, Started: new(metav1.NewMicroTime(now.Add(-before))),
	}
	return s
}

// With changes the Snapshot.
func (s *SnapshotWrapper) With(changes ...func(*tenure.Snapshot)) *SnapshotWrapper {
	for _, change := range changes {
		change(&s.Snapshot)
	}
	return s
}

// Changes of a Snapshot.
func lostRecord(s *tenure.Snapshot) { s.Lock.Status = v1.StatefulSetLockStatus{} }
func noLease(s *tenure.Snapshot)    { s.Lease.Object = nil }
func newLease(s *tenure.Snapshot)   { s.Lease.Object = modelLease(&leaseState{}, s.Lock) }
func notOwned(s *tenure.Snapshot)   { s.Lease.Object.OwnerReferences = nil }
func serving(s *tenure.Snapshot)    { s.Serving = true }

func attested(uid string) func(*tenure.Snapshot) {
	return func(s *tenure.Snapshot) { s.Lock.Annotations[v1.AttestAnnotation] = uid }
}

func cordoned(node string) func(*tenure.Snapshot) {
	return func(s *tenure.Snapshot) { s.Nodes[node].Spec.Unschedulable = true }
}

// pod changes the first pod.
func pod(change func(*corev1.Pod)) func(*tenure.Snapshot) {
	return func(s *tenure.Snapshot) { change(&s.Pods[0]) }
}

// renewed sets for how many seconds the Lease has not been renewed.
func renewed(seconds int) func(*tenure.Snapshot) {
	return func(s *tenure.Snapshot) {
		s.Lease.Object.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Duration(seconds) * time.Second)))
	}
}

// reader returns a Ready pod, and writerPod the Ready writer of epoch 3.
func reader(name string) *PodWrapper { return MakePod(name).Ready(true) }

func writerPod(name string, ready bool) *PodWrapper {
	return MakePod(name).Ready(ready).Role(v1.StsRoleWriter).Tenure(3, 0)
}

// ended returns db-0 without the label. Its tenure ends with epoch 3.
func ended() *PodWrapper { return reader("db-0").Tenure(3, 3) }

func ref(name string) tenure.PodRef {
	return tenure.PodRef{Name: name, UID: types.UID(name), Version: "1"}
}

// Steps.
func ends(name string, epoch int64) tenure.Step {
	return tenure.LabelReader{Pod: ref(name), Ends: epoch}
}
func protect(name string) tenure.Step   { return tenure.Protect{Pod: ref(name)} }
func unprotect(name string) tenure.Step { return tenure.Unprotect{Pod: ref(name)} }

// named is the step that names an unfenced writer in the Lease.
func named(name string, epoch int64) tenure.Step {
	return tenure.WriteLease{Holder: name, Writer: types.UID(name), Epoch: epoch, Duration: 30 * time.Second, Renew: true}
}

// want is what Decide must return.
type want struct {
	outcome tenure.Outcome
	// cause is the cause of the last transition. Empty: there is none.
	cause v1.TenureCause
	steps []tenure.Step
	// person is true if condition Error is True.
	person bool
	// message is a part of the message.
	message string
}

func is(outcome tenure.Outcome, cause v1.TenureCause, steps ...tenure.Step) want {
	return want{outcome: outcome, cause: cause, steps: steps}
}

func (w want) then(step tenure.Step) want {
	w.steps = append(w.steps, step)
	return w
}

func (w want) says(message string) want {
	w.message = message
	return w
}

func (w want) needsPerson() want {
	w.person = true
	return w
}

// loses: db-0 loses its label. grants: a pod becomes the writer without fencing. The steps before are in front.
func loses(cause v1.TenureCause) want { return is(tenure.LabelRemoved, cause, ends("db-0", 3)) }

func grants(name string, epoch int64, cause v1.TenureCause, before ...tenure.Step) want {
	return is(tenure.Granted, cause, append(before, tenure.Record{}, named(name, epoch), tenure.LabelWriter{Pod: ref(name), Epoch: epoch})...)
}

// adopts: a tenure is recorded after these pods have become readers.
func adopts(epoch int64, readers ...string) want {
	steps := []tenure.Step{tenure.Confirm{}}
	for _, name := range readers {
		steps = append(steps, ends(name, epoch))
	}
	return is(tenure.Adopted, v1.TenureAdopted, append(steps, tenure.Record{})...)
}

func refusesAttestation(uid types.UID, why string) want {
	refused := "annotation " + v1.AttestAnnotation + "=" + string(uid) + " is ignored: " + why
	return is(tenure.WriterReady, "", tenure.TakeAttestation{UID: uid, Refused: refused})
}

type decideTest struct {
	snapshot *SnapshotWrapper
	want     want
}

func TestDecide(t *testing.T) {
	// lock returns a lock whose writer is db-0. db-1 is Ready.
	lock := func(fencing v1.LockFencing, db0 *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(fencing, db0, reader("db-1")).Writer("db-0")
	}
	alone := func(fencing v1.LockFencing, db0 *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(fencing, db0).Writer("db-0")
	}
	deletion := func(fencing v1.LockFencing, db0 *PodWrapper) *SnapshotWrapper {
		return lock(fencing, db0).Ending(v1.TenureDeletion, 0)
	}
	removed := func(fencing v1.LockFencing, db1 *PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(fencing, db1).Writer("db-0")
	}
	stopping := func() *SnapshotWrapper { return deletion(termination, ended().Protected().Terminating()) }
	writer := func() *PodWrapper { return writerPod("db-0", true) }
	foreign := is(tenure.ForeignLease, "").needsPerson().says("delete it: kubectl delete lease -n prod db-lease")
	renews := is(tenure.WriterReady, "", named("db-0", 3))
	cannotReport := is(tenure.WriterStopping, v1.TenureDeletion).needsPerson()
	checkDecisions(t, map[string]decideTest{
		"the lowest Ready ordinal is elected first": {
			MakeSnapshot(none, MakePod("db-0").Ready(false), reader("db-1"), reader("db-2")),
			grants("db-1", 1, v1.TenureCreated, tenure.Confirm{}, ends("db-0", 1), ends("db-2", 1)).says("pod db-1 becomes the writer with epoch 1"),
		},
		"no pod is Ready": {
			MakeSnapshot(none, MakePod("db-0").Ready(false)), is(tenure.NoReadyPod, "").says("pod db-0 can't become the writer: it is not Ready"),
		},
		"no StatefulSet": {
			MakeSnapshot(none).With(func(s *tenure.Snapshot) { s.StatefulSet = nil }), is(tenure.NoStatefulSet, "").says("StatefulSet db does not exist"),
		},
		"no Lease":                          {MakeSnapshot(none, reader("db-0")).With(noLease), is(tenure.NoLease, "", tenure.CreateLease{})},
		"a foreign Lease is left untouched": {MakeSnapshot(none, reader("db-0")).With(notOwned), foreign},
		"a Lease of an owner of another kind is left untouched": {
			MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) { s.Lease.Object.OwnerReferences[0].Kind = "StatefulCluster" }), foreign,
		},
		"the second lock changes nothing": {
			MakeSnapshot(none, reader("db-0")).With(func(s *tenure.Snapshot) {
				s.Lock.CreationTimestamp = metav1.NewTime(now)
				s.Others = []v1.StatefulSetLock{{ObjectMeta: metav1.ObjectMeta{Name: "older"}, Spec: v1.StatefulSetLockSpec{StatefulSetName: "db"}}}
			}), is(tenure.SecondLock, "").needsPerson().says("StatefulSetLock older already labels the pods of StatefulSet db"),
		},
		"the writer stays although a lower pod is Ready again": {
			MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1"), is(tenure.WriterReady, "").says("pod db-1 is the writer with epoch 3"),
		},
		"the Lease is renewed after half of its duration":                      {alone(none, writer()).With(renewed(15)), renews},
		"a Lease that was renewed by a clock that is ahead is renewed at once": {alone(none, writer()).With(renewed(-600)), renews},
		"a short Lease is renewed only every two seconds": {
			alone(none, writer()).With(renewed(1), func(s *tenure.Snapshot) { s.Lock.Spec.LeaseDurationSeconds = 1 }), is(tenure.WriterReady, ""),
		},
		"an unready writer without another pod stays": {
			alone(none, writerPod("db-0", false)), is(tenure.WriterNotReady, "").says("no other pod can become the writer"),
		},
		"an unready writer loses its label": {lock(none, writerPod("db-0", false)), loses(v1.TenureUnready)},
		"an unready writer stays for failoverDelaySeconds": {
			lock(none, writerPod("db-0", false)).With(func(s *tenure.Snapshot) {
				s.Lock.Spec.FailoverDelaySeconds = 60
				s.Pods[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-59 * time.Second))
			}), is(tenure.WriterNotReady, "").says("If it stays unready for spec.failoverDelaySeconds (60), pod db-1 becomes the writer"),
		},
		"the writer on a drained node loses its label": {lock(none, writer()).With(cordoned("node1")), loses(v1.TenureDrain)},
		"a drain moves the writer to no other drained node": {
			MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1").With(cordoned("node1"), cordoned("node2")), is(tenure.WriterReady, ""),
		},
		"a rollout moves the writer to an updated pod": {
			MakeSnapshot(none, writer().Revision("db-1"), reader("db-1").Revision("db-1"), reader("db-2")).Writer("db-0"), loses(v1.TenureRollout),
		},
		"a rollout does not move the writer to another old pod": {
			MakeSnapshot(none, reader("db-0").Revision("db-1"), writerPod("db-1", true).Revision("db-1")).Writer("db-1"), is(tenure.WriterReady, ""),
		},
		"a deleted writer loses its label": {lock(none, writer().Terminating()), loses(v1.TenureDeletion)},
		"Services still send requests to the old writer": {
			lock(none, ended().Terminating()).Ending(v1.TenureDeletion, time.Second).With(serving), is(tenure.AwaitingEndpoints, v1.TenureDeletion),
		},
		"Services send requests to the old writer for too long": {
			lock(none, ended().Terminating()).Ending(v1.TenureDeletion, 6*time.Second).With(serving), grants("db-1", 4, v1.TenureDeletion),
		},
		"None does not wait for the termination": {deletion(none, ended().Terminating()), grants("db-1", 4, v1.TenureDeletion)},
		"Termination protects the writer":        {lock(termination, writer()), is(tenure.WriterReady, "", protect("db-0"))},
		"Termination deletes an unready writer": {
			deletion(termination, MakePod("db-0").Ready(false).Tenure(3, 3).Protected()),
			is(tenure.WriterStopping, v1.TenureDeletion, tenure.Delete{Pod: ref("db-0")}),
		},
		"Termination waits for the proof": {stopping(), is(tenure.WriterStopping, v1.TenureDeletion).says("pod db-0 is terminating")},
		"Termination, and the node does not report": {
			stopping().With(func(s *tenure.Snapshot) { s.Nodes["node1"].Status.Conditions[0].Status = corev1.ConditionUnknown }),
			cannotReport.says("kubectl taint node node1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
		},
		"Termination, and the node does not exist": {
			stopping().With(func(s *tenure.Snapshot) { delete(s.Nodes, "node1") }),
			cannotReport.says("run: kubectl annotate -n prod ssl db-lock " + v1.AttestAnnotation + "=db-0 --overwrite"),
		},
		"a node out of service proves nothing about a pod that is not terminating": {
			deletion(termination, ended().Protected()).With(func(s *tenure.Snapshot) {
				s.Nodes["node1"].Status.Conditions[0].Status = corev1.ConditionUnknown
				s.Nodes["node1"].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}
			}), is(tenure.WriterStopping, v1.TenureDeletion, tenure.Delete{Pod: ref("db-0")}),
		},
		"the kubelet has reported the termination": {
			deletion(termination, MakePod("db-0").Tenure(3, 3).Protected().Terminating().Terminated()),
			grants("db-1", 4, v1.TenureDeletion, protect("db-1")).then(unprotect("db-0")),
		},
		"somebody removed the finalizer of the writer": {
			removed(termination, reader("db-1")), is(tenure.WriterLost, v1.TenureDeletion).needsPerson().says(v1.AttestAnnotation + "=db-0 --overwrite"),
		},
		"a person attests": {
			removed(termination, reader("db-1")).Ending(v1.TenureDeletion, 0).With(attested("db-0")),
			grants("db-1", 4, v1.TenureDeletion, protect("db-1")).then(tenure.TakeAttestation{UID: "db-0"}),
		},
		"an attestation of a writer that runs is refused": {
			lock(termination, writer().Protected()).With(attested("db-0")), refusesAttestation("db-0", "pod db-0 is not terminating, or its "+
				"kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n prod db-0"),
		},
		"an attestation of another pod is refused": {
			alone(termination, writer().Protected()).With(attested("other")), refusesAttestation("other", "the lock waits for no pod with this uid"),
		},
		"a writer that another operator labelled is adopted": {
			MakeSnapshot(none, reader("db-0"), MakePod("db-1").Ready(true).Role(v1.StsRoleWriter)), adopts(2, "db-0"),
		},
		"the first pod is adopted if another operator labelled it": {
			MakeSnapshot(none, MakePod("db-0").Ready(true).Role(v1.StsRoleWriter), reader("db-1")), adopts(2, "db-1"),
		},
		"a writer that left the StatefulSet loses its label": {
			lock(none, writer()).With(pod(func(p *corev1.Pod) { p.OwnerReferences = nil })), loses(v1.TenureLeft),
		},
		"a writer whose owner is of another kind loses its label": {
			lock(none, writer()).With(pod(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" })), loses(v1.TenureLeft),
		},
		"None removes the finalizer that Termination has added": {alone(none, writer().Protected()), is(tenure.WriterReady, "", unprotect("db-0"))},
		"the finalizer of a StatefulSingleton stays": {
			deletion(none, ended().Protected().Terminating()).With(pod(func(p *corev1.Pod) { p.Labels[v1.SingletonLabel] = "db" })),
			grants("db-1", 4, v1.TenureDeletion),
		},
		"a reader has the finalizer of an earlier writer": {
			MakeSnapshot(termination, writer().Protected(), reader("db-1").Protected()).Writer("db-0"), is(tenure.WriterReady, "", unprotect("db-1")),
		},
		"an unfenced writer that no longer exists is not fenced by a later change of fencing": {
			removed(v1.LockFencingLease, reader("db-1").Fenced()), is(tenure.WriterLost, v1.TenureDeletion).needsPerson(),
		},
		"the last change is complete, and the record has no writer": {
			MakeSnapshot(none, reader("db-0"), reader("db-1")).With(func(s *tenure.Snapshot) {
				s.Lock.Status.Epoch, s.Lock.Status.LastTransition = 3, &v1.TenureTransition{To: "db-1", Cause: v1.TenureDrain}
			}), grants("db-0", 4, v1.TenureCreated, tenure.Confirm{}, ends("db-1", 4)),
		},
		"the record is lost, and the writer no longer exists": {removed(termination, reader("db-1")).With(lostRecord), adopts(4, "db-1")},
		"the record is lost": {
			MakeSnapshot(none, reader("db-0"), writerPod("db-1", true)).Writer("db-1").With(lostRecord), adopts(4, "db-0"),
		},
	})
}

// checkDecisions checks what Decide returns. A lock without a writer is in progress, unless only a person continues.
func checkDecisions(t *testing.T, tests map[string]decideTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, want := tenure.Decide(test.snapshot.Snapshot, now), test.want
			isTrue := func(condition string) bool { return meta.IsStatusConditionTrue(plan.Status.Conditions, condition) }
			got := is(plan.Outcome, "", plan.Steps...)
			if last := plan.Status.LastTransition; last != nil {
				got.cause = last.Cause
			}
			if got.person = isTrue(v1.ConditionError); strings.Contains(plan.Status.Message, want.message) {
				got.message = want.message
			} else {
				got.message = plan.Status.Message
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(want)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			ready := want.outcome == tenure.WriterReady
			progressing := !ready && want.outcome != tenure.WriterNotReady && !want.person
			if isTrue(v1.ConditionReady) != ready || isTrue(v1.ConditionAvailable) != ready || isTrue(v1.ConditionProgressing) != progressing {
				t.Errorf("conditions %+v for outcome %s", plan.Status.Conditions, plan.Outcome)
			}
		})
	}
}

// If the clock of the writer's node is ahead, spec.failoverDelaySeconds begins when the lock reports that the writer is not Ready.
func TestNodeClockAhead(t *testing.T) {
	s := MakeSnapshot(none, writerPod("db-0", false), reader("db-1")).Writer("db-0").With(pod(func(p *corev1.Pod) {
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(10 * time.Minute))
	}))
	// The lock was not available either before the pod got its label.
	s.Lock.Status.Conditions = []metav1.Condition{{
		Type: v1.ConditionAvailable, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
	}}
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

// The deletion of a lock frees its pods. It waits for a writer that may still run although it is being deleted, and until a fenced
// writer is a reader.
func TestFinalize(t *testing.T) {
	forget := func(name string, epoch int64) tenure.Step {
		return tenure.Forget{Pod: ref(name), Ends: epoch, Unprotect: true}
	}
	frees := func(name string) []tenure.Step { return []tenure.Step{tenure.Record{}, forget(name, 3)} }
	fenced := func() *SnapshotWrapper {
		return MakeSnapshot(v1.LockFencingLease, writerPod("db-0", true).Fenced()).Writer("db-0").Holds("db-0", 3)
	}
	for name, test := range map[string]struct {
		snapshot *SnapshotWrapper
		steps    []tenure.Step
		// waits is a part of the message. Empty: the deletion does not wait.
		waits string
	}{
		"a writer that runs": {
			MakeSnapshot(termination, writerPod("db-0", true).Protected(), reader("db-1")).Writer("db-0"), append(frees("db-0"), forget("db-1", 3)), "",
		},
		"a writer that is terminating": {
			MakeSnapshot(termination, writerPod("db-0", true).Protected().Terminating(), reader("db-1")).Writer("db-0"),
			[]tenure.Step{forget("db-1", 3)}, "pod db-0 is terminating",
		},
		"a writer that has terminated": {
			MakeSnapshot(termination, MakePod("db-0").Tenure(3, 3).Protected().Terminating().Terminated()).Writer("db-0"), frees("db-0"), "",
		},
		"a writer that is lost": {
			MakeSnapshot(termination, reader("db-1")).Writer("db-0"), []tenure.Step{forget("db-1", 3)}, "pod db-0, the last writer, does not exist",
		},
		"a writer that is removed, without fencing": {MakeSnapshot(none, reader("db-1")).Writer("db-0"), frees("db-1"), ""},
		"a pod of a StatefulSingleton keeps its finalizer": {
			MakeSnapshot(none, reader("db-0").Protected()).With(pod(func(p *corev1.Pod) { p.Labels[v1.SingletonLabel] = "db" })),
			[]tenure.Step{tenure.Forget{Pod: ref("db-0")}}, "",
		},
		"the writer holds the Lease": {fenced(), []tenure.Step{revoked("db-0", 3)}, "pod db-0 must end its tenure"},
		"the writer is a reader":     {fenced().Released(), frees("db-0"), ""},
		"the Lease has expired":      {fenced().Silent(time.Minute), []tenure.Step{emptied("db-0")}, "Lease db-lease has expired"},
		"a fenced writer has terminated": {
			fenced().With(pod(func(p *corev1.Pod) { *p = *MakePod("db-0").Fenced().Tenure(3, 3).Terminating().Terminated().Obj() })), frees("db-0"), "",
		},
		"the Lease names another pod": {
			fenced().With(lostRecord), []tenure.Step{revoked("db-0", 3), forget("db-0", 0)}, "Lease db-lease names pod db-0",
		},
		"a fenced writer does not exist": {
			fenced().With(func(s *tenure.Snapshot) { s.Pods = nil }), []tenure.Step{revoked("db-0", 3)}, "pod db-0 must end its tenure",
		},
		"the Lease belongs to somebody": {fenced().With(notOwned), frees("db-0"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan, message := tenure.Finalize(test.snapshot.Snapshot)
			if diff := cmp.Diff(test.steps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if !strings.Contains(message, test.waits) || test.waits == "" && message != "" {
				t.Errorf("message %q, want %q in it", message, test.waits)
			}
		})
	}
}

// A PodDisruptionBudget blocks evictions of the writer while another pod can become the writer. Condition Fenced is True if the
// tenure of a writer provably ends before the next one begins.
func TestConditions(t *testing.T) {
	both := func() *SnapshotWrapper {
		return MakeSnapshot(none, writerPod("db-0", true), reader("db-1")).Writer("db-0")
	}
	lease := func(db0 *PodWrapper) *SnapshotWrapper { return MakeSnapshot(v1.LockFencingLease, db0).Writer("db-0") }
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	for name, test := range map[string]struct {
		snapshot  *SnapshotWrapper
		condition string
		status    metav1.ConditionStatus
		reason    string
	}{
		"another pod can become the writer":  {both(), v1.ConditionEvictionBlocked, yes, "BudgetInPlace"},
		"no other pod":                       {MakeSnapshot(none, writerPod("db-0", true)).Writer("db-0"), v1.ConditionEvictionBlocked, no, "NoOtherPod"},
		"no writer":                          {MakeSnapshot(none, MakePod("db-0").Ready(false)), v1.ConditionEvictionBlocked, "", ""},
		"the other pod is on a drained node": {both().With(cordoned("node2")), v1.ConditionEvictionBlocked, no, "NoOtherPod"},
		"a budget of the user covers the writer": {both().With(func(s *tenure.Snapshot) {
			s.Budgets = []policyv1.PodDisruptionBudget{{
				ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			}}
		}), v1.ConditionEvictionBlocked, no, "OtherBudget"},
		"no fencing":                {both(), v1.ConditionFenced, no, "None"},
		"fenced":                    {lease(writerPod("db-0", true).Fenced()).Holds("db-0", 3), v1.ConditionFenced, yes, "Lease"},
		"not fenced":                {lease(writerPod("db-0", true)), v1.ConditionFenced, no, "NotFenced"},
		"fencing, without a writer": {MakeSnapshot(v1.LockFencingLease), v1.ConditionFenced, yes, "Lease"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := tenure.Decide(test.snapshot.Snapshot, now)
			got := meta.FindStatusCondition(plan.Status.Conditions, test.condition)
			if got == nil {
				got = &metav1.Condition{}
			}
			if got.Status != test.status || got.Reason != test.reason {
				t.Errorf("condition %+v, want %s because of %s", got, test.status, test.reason)
			}
			if budget := test.status == yes; test.condition == v1.ConditionEvictionBlocked && plan.Budget != budget {
				t.Errorf("a budget: %t, want %t", plan.Budget, budget)
			}
		})
	}
}
