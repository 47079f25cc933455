package tenure_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Holds makes the Lease name the fenced pod with the epoch. It says that the pod is the writer.
func (s *SnapshotWrapper) Holds(name string, epoch int32) *SnapshotWrapper {
	lease := s.Lease.Object
	lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions, lease.Spec.LeaseDurationSeconds = new(identity(name)), &epoch, new(int32(15))
	lease.Annotations = map[string]string{signal.WriterAnnotation: name, signal.WritingAnnotation: "3"}
	return s
}

// Released makes the Lease name no pod.
func (s *SnapshotWrapper) Released() *SnapshotWrapper {
	s.Lease.Object.Spec.HolderIdentity = new("")
	return s
}

// Held makes the Lease one that was created again before the duration.
func (s *SnapshotWrapper) Held(before time.Duration) *SnapshotWrapper {
	s.Lease.Object.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-before)))
	return s.Silent(before)
}

// Silent is how long the Lease was not renewed.
func (s *SnapshotWrapper) Silent(d time.Duration) *SnapshotWrapper { s.Lease.Silent = d; return s }

// Annotated sets an annotation of the Lease.
func (s *SnapshotWrapper) Annotated(key, value string) *SnapshotWrapper {
	s.Lease.Object.Annotations[key] = value
	return s
}

func identity(name string) string { return signal.HolderIdentity(name, name) }

// namedFenced is the step that names a fenced pod in the Lease.
func namedFenced(name string, epoch int64) tenure.WriteLease {
	return tenure.WriteLease{Version: "1", Holder: identity(name), Writer: types.UID(name), Epoch: epoch, Duration: 15 * time.Second}
}

// emptied is the step that removes the name of db-0.
func emptied(expired types.UID) []tenure.Step {
	return []tenure.Step{tenure.WriteLease{Version: "1", Writer: "db-0", Epoch: 3, Expired: expired}}
}

func revoked(name string, epoch int64) []tenure.Step {
	return []tenure.Step{tenure.WriteLease{Version: "1", Holder: identity(name), Writer: types.UID(name), Epoch: epoch, Revoked: epoch}}
}

// The decisions about pods that are writers only while they hold the Lease.
func TestDecideFenced(t *testing.T) {
	fencedReader := func(name string) *PodWrapper { return reader(name).Fenced() }
	fencedWriter := func(ready bool) *PodWrapper { return writerPod("db-0", ready).Fenced() }
	// lock returns a lock whose writer db-0 has epoch 3 and holds the Lease.
	lock := func(pods ...*PodWrapper) *SnapshotWrapper {
		return MakeSnapshot(v1.LockFencingLease, pods...).Writer("db-0").Holds("db-0", 3)
	}
	ending := func() *SnapshotWrapper {
		return lock(fencedReader("db-0").Tenure(3, 3).Terminating(), fencedReader("db-1")).Ending(0)
	}
	// starting returns a lock whose writer has released the Lease without being the writer, for the duration before.
	starting := func(before time.Duration) *SnapshotWrapper {
		return lock(fencedReader("db-0").Tenure(3, 3), fencedReader("db-1")).Released().Annotated(signal.WritingAnnotation, "2").Ending(before).With(func(s *tenure.Snapshot) {
			s.Lock.Status.LastTransition.Cause = v1.TenureRelease
		})
	}
	grantedFenced := func(name string, epoch int64) []tenure.Step {
		return []tenure.Step{tenure.Record{}, tenure.MarkTenure{Pod: ref(name), Version: "1", Epoch: epoch}, namedFenced(name, epoch)}
	}
	checkDecisions(t, map[string]decideTest{
		"a fenced pod gets a tenure, and no label yet": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, fencedReader("db-0")),
			wantOutcome: tenure.Granted, wantSteps: append([]tenure.Step{tenure.Confirm{}}, grantedFenced("db-0", 1)...), wantCause: v1.TenureCreated,
		},
		"the Lease names a writer whose termination another proof has shown": {
			snapshot: lock(fencedReader("db-1")).Ending(0).With(func(s *tenure.Snapshot) {
				s.Lock.Status.WriterPod, s.Lock.Status.WriterPodUID = "", ""
				s.Lock.Status.LastTransition.Proof = v1.ProofKubeletReported
			}),
			wantOutcome: tenure.Granted, wantSteps: grantedFenced("db-1", 4), wantCause: v1.TenureDeletion,
		},
		"the Lease names another writer than the one whose termination another proof has shown": {
			snapshot: lock(fencedReader("db-1")).Ending(0).With(func(s *tenure.Snapshot) {
				s.Lock.Status.WriterPod, s.Lock.Status.WriterPodUID = "", ""
				s.Lock.Status.LastTransition.FromUID, s.Lock.Status.LastTransition.Proof = "other", v1.ProofKubeletReported
			}),
			wantOutcome: tenure.LeaseHeld, wantSteps: revoked("db-0", 3), wantCause: v1.TenureDeletion,
		},
		"an unfenced pod gets no tenure": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, reader("db-0")),
			wantOutcome: tenure.NoReadyPod, wantMessage: "pod db-0 can't become the writer: container db needs a command",
		},
		"a pod that was created before gets no tenure": {
			snapshot: MakeSnapshot(v1.LockFencingLease, reader("db-0")).With(func(s *tenure.Snapshot) {
				s.Pods[0].Spec.Containers[0].Command = []string{"db"}
			}),
			wantOutcome: tenure.NoReadyPod, wantMessage: "the pod was created before spec.fencing was Lease",
		},
		"a pod that follows another Lease gets no tenure, also without fencing": {
			snapshot:    MakeSnapshot(v1.LockFencingNone, fencedReader("db-0")).With(func(s *tenure.Snapshot) { s.Pods[0].Spec.InitContainers[0].Env[0].Value = "prod/other" }),
			wantOutcome: tenure.NoReadyPod, wantMessage: "FENCING_LEASE of container status-sidecar is not prod/db-lease",
		},
		"the writer has not started": {
			snapshot:    lock(fencedReader("db-0"), fencedReader("db-1")).Annotated(signal.WritingAnnotation, "2").Starting(time.Second),
			wantOutcome: tenure.Granted, wantCause: v1.TenureCreated, wantMessage: "becomes the writer when its main processes have started as the writer",
		},
		"the writer has not started for too long": {
			snapshot:    lock(fencedReader("db-0"), fencedReader("db-1")).Annotated(signal.WritingAnnotation, "2").Starting(time.Minute),
			wantOutcome: tenure.LabelRemoved, wantCause: v1.TenureUnready, wantSteps: labelOff("db-0"),
		},
		"the writer has started, and gets its label": {
			snapshot:    lock(fencedReader("db-0")),
			wantOutcome: tenure.Granted,
			wantSteps:   []tenure.Step{tenure.Record{}, tenure.LabelWriter{Pod: ref("db-0"), Version: "1", Epoch: 3}},
		},
		"a writer whose renewal is overdue gets no label": {
			snapshot: lock(fencedReader("db-0")).Silent(8 * time.Second), wantOutcome: tenure.Granted,
		},
		"the controller does not renew the Lease of a fenced writer": {
			snapshot: lock(fencedWriter(true)).With(func(s *tenure.Snapshot) { s.Lease.Object.Spec.RenewTime = nil }), wantOutcome: tenure.WriterReady,
		},
		"a writer that was named by a clock that is ahead has time to become Ready": {
			snapshot: lock(fencedWriter(false), fencedReader("db-1")).Starting(-time.Second), wantOutcome: tenure.WriterNotReady, wantCause: v1.TenureCreated,
		},
		"a writer that starts may be unready": {
			snapshot: lock(fencedWriter(false), fencedReader("db-1")).Starting(time.Second), wantOutcome: tenure.WriterNotReady, wantCause: v1.TenureCreated,
		},
		"an unready writer loses its label": {
			snapshot:    lock(fencedWriter(false), fencedReader("db-1")).Starting(time.Minute),
			wantOutcome: tenure.LabelRemoved, wantCause: v1.TenureUnready, wantSteps: labelOff("db-0"),
		},
		"the tenure is revoked": {
			snapshot: ending(), wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantSteps: revoked("db-0", 3),
		},
		"the revoked writer has time until the Lease expires": {
			snapshot:    ending().Annotated(signal.RevokedAnnotation, "3").Silent(29 * time.Second),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantMessage: "pod db-0 must end its tenure",
		},
		"the revoked writer has released the Lease": {
			snapshot:    ending().Annotated(signal.RevokedAnnotation, "3").Released(),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion, wantSteps: grantedFenced("db-1", 4),
		},
		"the writer has released the Lease": {
			snapshot:    lock(fencedWriter(true), fencedReader("db-1")).Released(),
			wantOutcome: tenure.LabelRemoved, wantCause: v1.TenureRelease, wantSteps: labelOff("db-0"),
		},
		"a pod that could not become the writer delays the next attempt": {
			snapshot:    starting(4 * time.Second),
			wantOutcome: tenure.StartFailed, wantCause: v1.TenureRelease, wantMessage: "The next attempt follows after 5s. To show why, run: kubectl logs -n prod db-0",
		},
		"the next attempt": {
			snapshot:    starting(5 * time.Second),
			wantOutcome: tenure.Granted, wantCause: v1.TenureRelease, wantSteps: grantedFenced("db-1", 4),
		},
		"the next writer does not wait for Services after a release": {
			snapshot:    ending().Released().With(func(s *tenure.Snapshot) { s.Serving = true }),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion, wantSteps: grantedFenced("db-1", 4),
		},
		"a pod that has just failed is not chosen": {
			snapshot: lock(fencedReader("db-0").Tenure(3, 3), fencedReader("db-1")).Released().Ending(0).With(func(s *tenure.Snapshot) {
				s.Lock.Status.LastTransition.Cause = v1.TenureRelease
			}),
			wantOutcome: tenure.Granted, wantCause: v1.TenureRelease, wantSteps: grantedFenced("db-1", 4),
		},
		"each pod is tried before a pod is tried again": {
			snapshot: lock(fencedReader("db-0").Tenure(0, 2), fencedReader("db-1").Tenure(0, 3), fencedReader("db-2")).With(func(s *tenure.Snapshot) {
				s.Lock.Status.WriterPod, s.Lock.Status.WriterPodUID = "db-1", "db-1"
			}).Holds("db-1", 3).Released().Ending(6 * time.Second).With(func(s *tenure.Snapshot) { s.Lock.Status.LastTransition.Cause = v1.TenureRelease }),
			wantOutcome: tenure.Granted, wantCause: v1.TenureRelease, wantSteps: grantedFenced("db-2", 4),
		},
		"a pod that has just failed is chosen if it is the only one": {
			snapshot: lock(fencedReader("db-0").Tenure(3, 3)).Released().Ending(0).With(func(s *tenure.Snapshot) {
				s.Lock.Status.LastTransition.Cause = v1.TenureRelease
			}),
			wantOutcome: tenure.Granted, wantCause: v1.TenureRelease, wantSteps: grantedFenced("db-0", 4),
		},
		"the Lease has expired": {
			snapshot:    lock(fencedWriter(true), fencedReader("db-1")).Silent(30 * time.Second),
			wantOutcome: tenure.LabelRemoved, wantCause: v1.TenureExpiry, wantSteps: labelOff("db-0"),
		},
		"a pod on the node of a writer whose Lease has expired is not chosen": {
			snapshot: lock(fencedReader("db-0").Tenure(3, 3), fencedReader("db-1"), fencedReader("db-2")).
				Released().Annotated(signal.ExpiredAnnotation, "db-0").Ending(0).With(func(s *tenure.Snapshot) {
				s.Pods[1].Spec.NodeName = s.Pods[0].Spec.NodeName
				s.Lock.Status.LastTransition.Cause = v1.TenureExpiry
			}),
			wantOutcome: tenure.Granted, wantCause: v1.TenureExpiry, wantSteps: grantedFenced("db-2", 4),
		},
		"the duration of the lock is longer than that of the pod": {
			snapshot: lock(fencedWriter(true), fencedReader("db-1")).Silent(29 * time.Second), wantOutcome: tenure.WriterReady,
		},
		"an expired Lease is taken": {
			snapshot:    ending().Silent(30 * time.Second),
			wantOutcome: tenure.LeaseTaken, wantCause: v1.TenureDeletion, wantSteps: emptied("db-0"), wantMessage: "Lease db-lease has expired: pod db-0 did not renew it",
		},
		"an expired Lease is taken without a wait for Services": {
			snapshot: ending().Silent(30 * time.Second).With(func(s *tenure.Snapshot) {
				s.Serving, s.Lock.Status.LastTransition.Cause = true, v1.TenureExpiry
			}),
			wantOutcome: tenure.LeaseTaken, wantCause: v1.TenureExpiry, wantSteps: emptied("db-0"),
		},
		"the writer is removed, and holds the Lease": {
			snapshot:    lock(fencedReader("db-1")).Ending(0),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantSteps: revoked("db-0", 3),
		},
		"the writer is removed, and the Lease has expired": {
			snapshot: lock(fencedReader("db-1")).Ending(0).Silent(30 * time.Second), wantOutcome: tenure.LeaseTaken, wantCause: v1.TenureDeletion, wantSteps: emptied("db-0"),
		},
		"the writer is removed, and the Lease was taken": {
			snapshot:    lock(fencedReader("db-1")).Ending(0).Released().Annotated(signal.ExpiredAnnotation, "db-0"),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion, wantSteps: grantedFenced("db-1", 4),
		},
		"the Lease has never named the removed writer": {
			snapshot:    lock(fencedReader("db-1")).Ending(0).Holds("db-9", 2).Released(),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantSteps: emptied(""),
		},
		"the release of an earlier tenure proves nothing": {
			snapshot:    lock(fencedReader("db-1")).Ending(0).Holds("db-0", 2).Released(),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantSteps: emptied(""),
		},
		"the release by another pod proves nothing": {
			snapshot:    lock(fencedReader("db-1")).Ending(0).Holds("db-9", 3).Released(),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion,
		},
		"a Lease that was created again proves nothing": {
			snapshot:    lock(fencedReader("db-1")).Ending(0).With(func(s *tenure.Snapshot) { s.Lease.Object = modelLease(&leaseState{}, s.Lock) }),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion,
		},
		"a Lease that was created again names the writer": {
			snapshot:    lock(fencedWriter(true)).With(func(s *tenure.Snapshot) { s.Lease.Object = modelLease(&leaseState{}, s.Lock) }),
			wantOutcome: tenure.WriterReady, wantSteps: []tenure.Step{tenure.Record{}, namedFenced("db-0", 3)},
		},
		"no Lease, and a pod may still follow the Lease before": {
			snapshot:    lock(fencedWriter(true), fencedReader("db-1")).With(func(s *tenure.Snapshot) { s.Lease.Object = nil }),
			wantOutcome: tenure.NoLease, wantSteps: []tenure.Step{tenure.CreateLease{Held: 30 * time.Second}},
		},
		"nobody gets a Lease that is held": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, fencedReader("db-0"), fencedReader("db-1")).Held(29 * time.Second),
			wantOutcome: tenure.LeaseHeld, wantMessage: "Lease db-lease was created again, so a pod that the Lease before named may still be the writer",
		},
		"the Lease that was held has expired": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, fencedReader("db-0")).Held(30 * time.Second),
			wantOutcome: tenure.Granted, wantCause: v1.TenureCreated, wantSteps: append([]tenure.Step{tenure.Confirm{}}, grantedFenced("db-0", 1)...),
		},
		"the lock and its Lease were replaced while a pod became the writer": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, fencedReader("db-0").Tenure(3, 0), fencedReader("db-1")).Held(time.Second),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-0"), Version: "1", Ends: 4}, tenure.LabelReader{Pod: ref("db-1"), Version: "1", Ends: 4}, tenure.Record{}},
		},
		"a fenced pod that is not recorded blocks the next writer": {
			snapshot: MakeSnapshot(v1.LockFencingLease, fencedReader("db-1")).Holds("db-0", 3).With(func(s *tenure.Snapshot) {
				s.Lock.Status.Epoch = 3
			}),
			wantOutcome: tenure.LeaseHeld, wantSteps: revoked("db-0", 3), wantMessage: "Lease db-lease names pod db-0, which status does not have",
		},
		"a fenced pod that is not recorded blocks the next writer until the Lease expires": {
			snapshot: MakeSnapshot(v1.LockFencingLease, fencedReader("db-1")).Holds("db-0", 3).Silent(30 * time.Second).With(func(s *tenure.Snapshot) {
				s.Lock.Status.Epoch = 3
			}),
			wantOutcome: tenure.LeaseTaken, wantSteps: emptied("db-0"),
		},
		"the termination of the pod is a proof, too": {
			snapshot:    lock(MakePod("db-0").Fenced().Tenure(3, 3).Terminating().Terminated(), fencedReader("db-1")).Ending(0),
			wantOutcome: tenure.Granted, wantCause: v1.TenureDeletion, wantSteps: grantedFenced("db-1", 4),
		},
		"an unfenced writer stays until a fenced pod can follow": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, writerPod("db-0", true).Protected(), reader("db-1")).Writer("db-0"),
			wantOutcome: tenure.WriterReady,
		},
		"an unfenced writer is deleted": {
			snapshot:    MakeSnapshot(v1.LockFencingLease, reader("db-0").Tenure(3, 3).Protected(), fencedReader("db-1")).Writer("db-0").Ending(0),
			wantOutcome: tenure.WriterStopping, wantCause: v1.TenureDeletion, wantSteps: []tenure.Step{tenure.Delete{Pod: ref("db-0")}},
		},
		"a fenced writer is revoked, although spec.fencing is None": {
			snapshot:    ending().With(func(s *tenure.Snapshot) { s.Lock.Spec.Fencing = v1.LockFencingNone }),
			wantOutcome: tenure.TenureRevoked, wantCause: v1.TenureDeletion, wantSteps: revoked("db-0", 3),
		},
		"the record is lost, and the writer has released the Lease": {
			snapshot:    lock(fencedReader("db-0"), fencedReader("db-1")).Released().With(func(s *tenure.Snapshot) { s.Lock.Status = v1.StatefulSetLockStatus{} }),
			wantOutcome: tenure.Adopted, wantCause: v1.TenureAdopted,
			wantSteps: []tenure.Step{tenure.Confirm{}, tenure.LabelReader{Pod: ref("db-0"), Version: "1", Ends: 4}, tenure.LabelReader{Pod: ref("db-1"), Version: "1", Ends: 4}, tenure.Record{}},
		},
	})
}

// Starting records that the writer got its tenure before the duration.
func (s *SnapshotWrapper) Starting(before time.Duration) *SnapshotWrapper {
	long := new(metav1.NewMicroTime(now.Add(-time.Hour))) // the tenure before ended long ago
	s.Lock.Status.LastTransition = &v1.TenureTransition{
		To: s.Lock.Status.WriterPod, Cause: v1.TenureCreated, Started: long, Ended: long, Labelled: new(metav1.NewMicroTime(now)),
	}
	s.Lease.Object.Spec.AcquireTime = new(metav1.NewMicroTime(now.Add(-before)))
	return s
}

// A pod that is not prepared completely is not fenced.
func TestNotFenced(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"shared processes":       {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, "the pod has shareProcessNamespace"},
		"processes of the node":  {func(p *corev1.Pod) { p.Spec.HostPID = true }, "the pod has hostPID"},
		"no annotation":          {func(p *corev1.Pod) { p.Annotations = nil }, "the pod was created before spec.fencing was Lease"},
		"no wrapper":             {func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"db"} }, "the pod was created before spec.fencing was Lease"},
		"another container":      {func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = "web" }, "the pod was created before spec.fencing was Lease"},
		"a second container":     {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "web"}) }, "container web needs a command"},
		"no sidecar":             {func(p *corev1.Pod) { p.Spec.InitContainers = nil }, "container status-sidecar has no volume statefulsingleton-credentials"},
		"the sidecar of no lock": {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env[3].Value = "" }, "does not know that the pod has a StatefulSetLock"},
		"another held container": {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env[2].Value = "web" }, "FENCING_CONTAINERS of container status-sidecar are not the held containers"},
		"an overwritten variable": {func(p *corev1.Pod) {
			c := &p.Spec.InitContainers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: signal.LeaseEnv, Value: "prod/mine"})
		}, "FENCING_LEASE of container status-sidecar is not prod/db-lease"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := reader("db-0").Fenced()
			test.change(&pod.Pod)
			plan := tenure.Decide(MakeSnapshot(v1.LockFencingLease, pod).Snapshot, now)
			if plan.Outcome != tenure.NoReadyPod || !strings.Contains(plan.Status.Message, test.want) {
				t.Errorf("outcome %s: %s\nwant %q", plan.Outcome, plan.Status.Message, test.want)
			}
		})
	}
}

func TestConditionFenced(t *testing.T) {
	for name, test := range map[string]struct {
		snapshot     *SnapshotWrapper
		want         metav1.ConditionStatus
		reason, text string
	}{
		"fenced": {
			MakeSnapshot(v1.LockFencingLease, writerPod("db-0", true).Fenced()).Writer("db-0").Holds("db-0", 3), metav1.ConditionTrue, "Lease", "only while it renews Lease db-lease",
		},
		"not fenced": {
			MakeSnapshot(v1.LockFencingLease, writerPod("db-0", true)).Writer("db-0"), metav1.ConditionFalse, "NotFenced",
			"container db needs a command. To create the pods again, run: kubectl rollout restart -n prod statefulset db",
		},
		"without a writer": {MakeSnapshot(v1.LockFencingLease), metav1.ConditionTrue, "Lease", "only while"},
	} {
		t.Run(name, func(t *testing.T) {
			got := meta.FindStatusCondition(tenure.Decide(test.snapshot.Snapshot, now).Status.Conditions, v1.ConditionFenced)
			if got == nil || got.Status != test.want || got.Reason != test.reason || !strings.Contains(got.Message, test.text) {
				t.Errorf("condition %+v", got)
			}
		})
	}
}

// The deletion of a lock waits until a fenced writer is a reader.
func TestFinalizeFenced(t *testing.T) {
	forget := tenure.Forget{Pod: ref("db-0"), Version: "1", Ends: 3, Unprotect: true}
	lock := func() *SnapshotWrapper {
		return MakeSnapshot(v1.LockFencingLease, writerPod("db-0", true).Fenced()).Writer("db-0").Holds("db-0", 3)
	}
	for name, test := range map[string]struct {
		snapshot    *SnapshotWrapper
		wantSteps   []tenure.Step
		wantMessage string
	}{
		"the writer holds the Lease": {lock(), revoked("db-0", 3), "pod db-0 must end its tenure"},
		"the writer is a reader":     {lock().Released(), []tenure.Step{tenure.Record{}, forget}, ""},
		"the Lease has expired":      {lock().Silent(time.Minute), emptied("db-0"), "Lease db-lease has expired"},
		"the writer has terminated": {lock().With(func(s *tenure.Snapshot) {
			s.Pods[0] = *MakePod("db-0").Fenced().Tenure(3, 3).Terminating().Terminated().Obj()
		}), []tenure.Step{tenure.Record{}, forget}, ""},
		"the Lease names another pod":   {lock().With(func(s *tenure.Snapshot) { s.Lock.Status = v1.StatefulSetLockStatus{} }), append(revoked("db-0", 3), tenure.Forget{Pod: ref("db-0"), Version: "1", Unprotect: true}), "Lease db-lease names pod db-0"},
		"the writer does not exist":     {lock().With(func(s *tenure.Snapshot) { s.Pods = nil }), revoked("db-0", 3), "pod db-0 must end its tenure"},
		"the Lease belongs to somebody": {lock().With(func(s *tenure.Snapshot) { s.Lease.Object.OwnerReferences = nil }), []tenure.Step{tenure.Record{}, forget}, ""},
	} {
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
