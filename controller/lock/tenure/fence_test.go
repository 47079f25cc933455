package tenure_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// Held makes the Lease one that was created again so many seconds before.
func (s *SnapshotWrapper) Held(before int) *SnapshotWrapper {
	return s.With(renewed(before)).Silent(time.Duration(before) * time.Second)
}

// Silent is how long the Lease was not renewed.
func (s *SnapshotWrapper) Silent(d time.Duration) *SnapshotWrapper { s.Lease.Silent = d; return s }

// Annotated sets an annotation of the Lease.
func (s *SnapshotWrapper) Annotated(key, value string) *SnapshotWrapper {
	s.Lease.Object.Annotations[key] = value
	return s
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

func identity(name string) string { return signal.HolderIdentity(name, name) }

// namedFenced is the step that names a fenced pod in the Lease.
func namedFenced(name string, epoch int64) tenure.Step {
	return tenure.WriteLease{Holder: identity(name), Writer: types.UID(name), Epoch: epoch, Duration: 15 * time.Second}
}

// emptied is the step that removes the name of db-0, and revoked the step that tells the pod to end its tenure.
func emptied(expired types.UID) tenure.Step {
	return tenure.WriteLease{Writer: "db-0", Epoch: 3, Expired: expired}
}

func revoked(name string, epoch int64) tenure.Step {
	return tenure.WriteLease{Holder: identity(name), Writer: types.UID(name), Epoch: epoch, Revoked: epoch}
}

// grantsFenced: a fenced pod gets a tenure, and no label yet.
func grantsFenced(name string, epoch int64, cause v1.TenureCause, before ...tenure.Step) want {
	return is(tenure.Granted, cause, append(before, tenure.Record{}, tenure.MarkTenure{Pod: ref(name), Epoch: epoch}, namedFenced(name, epoch))...)
}

// The decisions about pods that are writers only while they hold the Lease.
func TestDecideFenced(t *testing.T) {
	const deletion, release, expiry, created = v1.TenureDeletion, v1.TenureRelease, v1.TenureExpiry, v1.TenureCreated
	fenced := func(name string) *PodWrapper { return reader(name).Fenced() }
	writer := func(ready bool) *PodWrapper { return writerPod("db-0", ready).Fenced() }
	last := func() *PodWrapper { return ended().Fenced() }
	fresh := func(pods ...*PodWrapper) *SnapshotWrapper { return MakeSnapshot(v1.LockFencingLease, pods...) }
	// lock returns a lock whose writer db-0 has epoch 3 and holds the Lease.
	lock := func(pods ...*PodWrapper) *SnapshotWrapper { return fresh(pods...).Writer("db-0").Holds("db-0", 3) }
	ending := func() *SnapshotWrapper { return lock(last().Terminating(), fenced("db-1")).Ending(deletion, 0) }
	removed := func() *SnapshotWrapper { return lock(fenced("db-1")).Ending(deletion, 0) }
	// unrecorded returns a lock without a writer whose Lease names db-0.
	unrecorded := func() *SnapshotWrapper {
		return fresh(fenced("db-1")).Holds("db-0", 3).With(func(s *tenure.Snapshot) { s.Lock.Status.Epoch = 3 })
	}
	// proven returns a lock with another proof of the termination of the last writer than the Lease, which names db-0.
	proven := func(from types.UID) *SnapshotWrapper {
		return removed().With(func(s *tenure.Snapshot) {
			s.Lock.Status.WriterPod, s.Lock.Status.WriterPodUID = "", ""
			s.Lock.Status.LastTransition.FromUID, s.Lock.Status.LastTransition.Proof = from, v1.ProofKubeletReported
		})
	}
	// failed returns a lock whose writer has released the Lease without being the writer, for the duration before.
	failed := func(before time.Duration) *SnapshotWrapper {
		return lock(last(), fenced("db-1")).Released().Annotated(signal.WritingAnnotation, "2").Ending(release, before)
	}
	takes := func(cause v1.TenureCause) want {
		return is(tenure.LeaseTaken, cause, emptied("db-0")).says("Lease db-lease has expired: pod db-0 did not renew it")
	}
	checkDecisions(t, map[string]decideTest{
		"a fenced pod gets a tenure, and no label yet":                       {fresh(fenced("db-0")), grantsFenced("db-0", 1, created, tenure.Confirm{})},
		"the Lease names a writer whose termination another proof has shown": {proven("db-0"), grantsFenced("db-1", 4, deletion)},
		"the Lease names another writer than the one whose termination another proof has shown": {
			proven("other"), is(tenure.LeaseHeld, deletion, revoked("db-0", 3)),
		},
		"a pod that follows another Lease gets no tenure, also without fencing": {
			MakeSnapshot(none, fenced("db-0")).With(pod(func(p *corev1.Pod) { p.Spec.InitContainers[0].Env[0].Value = "prod/other" })),
			is(tenure.NoReadyPod, "").says("FENCING_LEASE of container status-sidecar is not prod/db-lease"),
		},
		"the writer has not started": {
			lock(fenced("db-0"), fenced("db-1")).Annotated(signal.WritingAnnotation, "2").Starting(time.Second),
			is(tenure.Granted, created).says("becomes the writer when its main processes have started as the writer"),
		},
		"the writer has not started for too long": {
			lock(fenced("db-0"), fenced("db-1")).Annotated(signal.WritingAnnotation, "2").Starting(time.Minute), loses(v1.TenureUnready),
		},
		"the writer has started, and gets its label": {
			lock(fenced("db-0")), is(tenure.Granted, "", tenure.Record{}, tenure.LabelWriter{Pod: ref("db-0"), Epoch: 3}),
		},
		"a writer whose renewal is overdue gets no label": {lock(fenced("db-0")).Silent(8 * time.Second), is(tenure.Granted, "")},
		"the controller does not renew the Lease of a fenced writer": {
			lock(writer(true)).With(func(s *tenure.Snapshot) { s.Lease.Object.Spec.RenewTime = nil }), is(tenure.WriterReady, ""),
		},
		"a writer that was named by a clock that is ahead has time to become Ready": {
			lock(writer(false), fenced("db-1")).Starting(-time.Second), is(tenure.WriterNotReady, created),
		},
		"a writer that starts may be unready": {lock(writer(false), fenced("db-1")).Starting(time.Second), is(tenure.WriterNotReady, created)},
		"an unready writer loses its label":   {lock(writer(false), fenced("db-1")).Starting(time.Minute), loses(v1.TenureUnready)},
		"the tenure is revoked":               {ending(), is(tenure.TenureRevoked, deletion, revoked("db-0", 3))},
		"the revoked writer has time until the Lease expires": {
			ending().Annotated(signal.RevokedAnnotation, "3").Silent(29 * time.Second),
			is(tenure.TenureRevoked, deletion).says("pod db-0 must end its tenure"),
		},
		"the revoked writer has released the Lease": {ending().Annotated(signal.RevokedAnnotation, "3").Released(), grantsFenced("db-1", 4, deletion)},
		"the writer has released the Lease":         {lock(writer(true), fenced("db-1")).Released(), loses(release)},
		"a pod that could not become the writer delays the next attempt": {
			failed(4 * time.Second), is(tenure.StartFailed, release).says("The next attempt follows after 5s. To show why, run: kubectl logs -n prod db-0"),
		},
		"the next attempt": {failed(5 * time.Second), grantsFenced("db-1", 4, release)},
		"the next writer does not wait for Services after a release": {ending().Released().With(serving), grantsFenced("db-1", 4, deletion)},
		"each pod is tried before a pod is tried again": {
			fresh(fenced("db-0").Tenure(0, 2), fenced("db-1").Tenure(0, 3), fenced("db-2")).Writer("db-1").Holds("db-1", 3).
				Released().Ending(release, 6*time.Second), grantsFenced("db-2", 4, release),
		},
		"a pod that has just failed is chosen if it is the only one": {
			lock(last()).Released().Ending(release, 0), grantsFenced("db-0", 4, release),
		},
		"the Lease has expired": {lock(writer(true), fenced("db-1")).Silent(30 * time.Second), loses(expiry)},
		"a pod on the node of a writer whose Lease has expired is not chosen": {
			lock(last(), fenced("db-1"), fenced("db-2")).Released().Annotated(signal.ExpiredAnnotation, "db-0").Ending(expiry, 0).
				With(func(s *tenure.Snapshot) { s.Pods[1].Spec.NodeName = s.Pods[0].Spec.NodeName }), grantsFenced("db-2", 4, expiry),
		},
		"the duration of the lock is longer than that of the pod": {
			lock(writer(true), fenced("db-1")).Silent(29 * time.Second), is(tenure.WriterReady, ""),
		},
		"an expired Lease is taken": {ending().Silent(30 * time.Second), takes(deletion)},
		"an expired Lease is taken without a wait for Services": {
			lock(last().Terminating(), fenced("db-1")).Ending(expiry, 0).Silent(30 * time.Second).With(serving), takes(expiry),
		},
		"the writer is removed, and holds the Lease":       {removed(), is(tenure.TenureRevoked, deletion, revoked("db-0", 3))},
		"the writer is removed, and the Lease has expired": {removed().Silent(30 * time.Second), takes(deletion)},
		"the writer is removed, and the Lease was taken": {
			removed().Released().Annotated(signal.ExpiredAnnotation, "db-0"), grantsFenced("db-1", 4, deletion),
		},
		"the Lease has never named the removed writer": {
			removed().Holds("db-9", 2).Released(), is(tenure.TenureRevoked, deletion, emptied("")),
		},
		"the release of an earlier tenure proves nothing": {removed().Holds("db-0", 2).Released(), is(tenure.TenureRevoked, deletion, emptied(""))},
		"the release by another pod proves nothing":       {removed().Holds("db-9", 3).Released(), is(tenure.TenureRevoked, deletion)},
		"a Lease that was created again proves nothing":   {removed().With(newLease), is(tenure.TenureRevoked, deletion)},
		"a Lease that was created again names the writer": {
			lock(writer(true)).With(newLease), is(tenure.WriterReady, "", tenure.Record{}, namedFenced("db-0", 3)),
		},
		"no Lease, and a pod may still follow the Lease before": {
			lock(writer(true), fenced("db-1")).With(noLease), is(tenure.NoLease, "", tenure.CreateLease{Held: 30 * time.Second}),
		},
		"nobody gets a Lease that is held": {
			fresh(fenced("db-0"), fenced("db-1")).Held(29),
			is(tenure.LeaseHeld, "").says("Lease db-lease was created again, so a pod that the Lease before named may still be the writer"),
		},
		"the Lease that was held has expired": {fresh(fenced("db-0")).Held(30), grantsFenced("db-0", 1, created, tenure.Confirm{})},
		"the lock and its Lease were replaced while a pod became the writer": {
			fresh(fenced("db-0").Tenure(3, 0), fenced("db-1")).Held(1), adopts(4, "db-0", "db-1"),
		},
		"a fenced pod that is not recorded blocks the next writer": {
			unrecorded(), is(tenure.LeaseHeld, "", revoked("db-0", 3)).says("Lease db-lease names pod db-0, which status does not have"),
		},
		"a fenced pod that is not recorded blocks the next writer until the Lease expires": {unrecorded().Silent(30 * time.Second), takes("")},
		"the termination of the pod is a proof, too": {
			lock(MakePod("db-0").Fenced().Tenure(3, 3).Terminating().Terminated(), fenced("db-1")).Ending(deletion, 0), grantsFenced("db-1", 4, deletion),
		},
		"an unfenced writer stays until a fenced pod can follow": {
			fresh(writerPod("db-0", true).Protected(), reader("db-1")).Writer("db-0"), is(tenure.WriterReady, ""),
		},
		"an unfenced writer is deleted": {
			fresh(ended().Protected(), fenced("db-1")).Writer("db-0").Ending(deletion, 0),
			is(tenure.WriterStopping, deletion, tenure.Delete{Pod: ref("db-0")}),
		},
		"a fenced writer is revoked, although spec.fencing is None": {
			ending().With(func(s *tenure.Snapshot) { s.Lock.Spec.Fencing = none }), is(tenure.TenureRevoked, deletion, revoked("db-0", 3)),
		},
		"the record is lost, and the writer has released the Lease": {
			lock(fenced("db-0"), fenced("db-1")).Released().With(lostRecord), adopts(4, "db-0", "db-1"),
		},
	})
}

// A pod that is not prepared completely is not fenced. TestNotFencedBy of package injected has the other cases of the sidecar.
func TestNotFenced(t *testing.T) {
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	sidecar := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.InitContainers[0]) }
	}
	web := corev1.Container{Name: "web"}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"processes of the node":  {func(p *corev1.Pod) { p.Spec.HostPID = true }, "the pod has hostPID"},
		"no annotation":          {func(p *corev1.Pod) { p.Annotations = nil }, "the pod was created before spec.fencing was Lease"},
		"no wrapper":             {container(func(c *corev1.Container) { c.Command = []string{"db"} }), "the pod was created before spec.fencing was Lease"},
		"another container":      {container(func(c *corev1.Container) { c.Env[0].Value = "web" }), "the pod was created before spec.fencing was Lease"},
		"no command":             {container(func(c *corev1.Container) { c.Command = nil }), "container db needs a command"},
		"a second container":     {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, web) }, "container web needs a command"},
		"the sidecar of no lock": {sidecar(func(c *corev1.Container) { c.Env[3].Value = "" }), "does not know that the pod has a StatefulSetLock"},
		"another held container": {sidecar(func(c *corev1.Container) { c.Env[2].Value = "web" }), "FENCING_CONTAINERS of container status-sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := tenure.Decide(MakeSnapshot(v1.LockFencingLease, reader("db-0").Fenced()).With(pod(test.change)).Snapshot, now)
			if plan.Outcome != tenure.NoReadyPod || !strings.Contains(plan.Status.Message, test.want) {
				t.Errorf("outcome %s: %s\nwant %q", plan.Outcome, plan.Status.Message, test.want)
			}
		})
	}
}
