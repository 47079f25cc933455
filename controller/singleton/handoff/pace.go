package handoff

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// standbyQuietPeriod is how long a standby must not have been written before the ReplicaSet of the
	// holder is scaled to zero. The kubelet reconciles a pod after each write, but only once its list of
	// containers is newer than its last reconcile (pkg/kubelet/pod_workers: GetNewerThan). It
	// makes that list every second, so a signal shortly after another write would wait for the
	// next list while no main process runs.
	standbyQuietPeriod = 3 * time.Second
	// maxQuietWait limits standbyQuietPeriod for a standby that is written all the time. It counts
	// from the start of the last container.
	maxQuietWait = 15 * time.Second
	// kubeletRelist is how long after the signal the kubelet can reconcile a pod again at once.
	// With the signal it runs the readiness probe, too early, and not again before a whole
	// period has passed (pkg/kubelet/prober: worker.run), unless it reconciles the pod again.
	kubeletRelist = time.Second
)

const (
	// transitionPoll is how often to decide again during a handoff, for changes that no watch
	// reports: taints of nodes, pods without the singleton's label.
	transitionPoll = 5 * time.Second
	// settledPoll is the same while no handoff is under way.
	settledPoll = 5 * time.Minute
)

// maxUnreportedAge is the longest time that a handoff can be under way before the status reports it, for example
// while the controller restarts.
const maxUnreportedAge = 25 * time.Second

// barrierPatience is how long the kubelet typically takes from the signal to the report that a container is past its
// barrier, startPatience how long the holder takes until it is Ready.
const (
	barrierPatience = 2 * time.Second
	startPatience   = 5 * time.Second
)

// maxRenewalAge is how long after the last renewal the status says that the pod renews its Lease that never expires. The pod does
// so once per minute.
const maxRenewalAge = 5 * time.Minute

// listenPatience is how long a main process typically takes from its release until it listens. For so long the status does not report
// that it is unknown on which ports it does.
const listenPatience = 30 * time.Second

// readyPatience is how long a holder that stops waits for the next pod to be Ready, before its shutdown delay. Busy nodes took 3 s.
const readyPatience = 5 * time.Second

// replacementPatience is how long the owner of a deleted holder typically takes to create its replacement.
const replacementPatience = 5 * time.Second

// warmUpPatience is how long a standby typically takes from its creation to warm, if images and volumes are there. For
// so long the status does not report that a spare is cold.
const warmUpPatience = 5 * time.Second

// lostNodePatience is the time after which a lost node no longer appears Ready. It is longer than the default of
// --node-monitor-grace-period of kube-controller-manager, which is 50 s.
const lostNodePatience = time.Minute

// attachPatience is how long a standby on another node waits for a ReadWriteOnce volume of the
// holder before the handoff goes cold. Some volumes with that access mode can be attached twice.
const attachPatience = 20 * time.Second

// requeueIn decides again after the delay, unless an earlier decision is due. 0: it changes nothing.
func (d *decision) requeueIn(delay time.Duration) {
	if delay > 0 && (d.requeueAfter == 0 || delay < d.requeueAfter) {
		d.requeueAfter = delay
	}
}

// settling is how long to wait before the ReplicaSet of the holder is scaled to zero, until the kubelet has
// processed the last write of the standby. A fenced pod does not wait for its kubelet: its sidecar watches the Lease.
func (d *decision) settling(standby *ClassifiedPod) time.Duration {
	if standby.fencing != nil {
		return 0
	}
	return min(d.left(standbyQuietPeriod, lastWrite(standby.Pod)), d.left(maxQuietWait, lastStart(standby.Pod)))
}

// nudge makes the kubelet reconcile a starting holder once more, at the time when the start is
// typically reported. The kubelet may have missed the signal: while it projects changed pods into
// volumes it can use an older version of the pod (pkg/kubelet/volumemanager: findAndAddNewPods,
// mountOrAttachVolumes). By itself it would reconcile the pod after 60 to 90 s.
func (d *decision) nudge(containers []injected.Container, given signal.Signal) {
	t := d.status.LastTransition
	starts := t != nil && t.To == d.holder.Name && t.Ready == nil && !proof.IsTrue(d.holder.Pod, corev1.PodReady)
	waits := slices.ContainsFunc(containers, atBarrier)
	after := nudgeAfter(containers)
	nudged := d.holder.Annotations[v1.NudgeAnnotation] == fmt.Sprint(given.Epoch)
	if after == 0 || !waits && (!starts || nudged) {
		return
	}
	if left := d.left(after, given.Time); left > 0 {
		d.requeueIn(left)
		return
	}
	if waits {
		d.do(d.barriers(d.holder)...)
	}
	if !nudged {
		d.do(Nudge{refOf(d.holder.Pod), given.Epoch})
	}
}

// nudgeAfter is how long after the signal nudge acts. 0: never.
func nudgeAfter(containers []injected.Container) time.Duration {
	switch {
	case slices.ContainsFunc(containers, func(h injected.Container) bool { return h.ConfigMap != "" }):
		return barrierPatience
	case slices.ContainsFunc(containers, seldomProbed):
		return kubeletRelist
	case slices.ContainsFunc(containers, func(h injected.Container) bool { return !h.Unheld && !(hasGateProbe(h) && started(h)) }):
		return startPatience
	}
	return 0
}

// left returns how much of a duration that began at since is left.
func (d *decision) left(of time.Duration, since time.Time) time.Duration {
	return proof.Left(of, since, d.now)
}

// begun returns when the current handoff began: as status has it, or else when the newer pod was
// created, or when the deletion of the holder was requested. Without any of them, it is now.
func (d *decision) begun() *metav1.MicroTime {
	was := &d.Singleton.Status
	if was.TransitionTimestamp != nil && (was.Phase == v1.PhaseTransitioning || was.Phase == v1.PhaseFailed) {
		return was.TransitionTimestamp.DeepCopy()
	}
	began := d.now
	since := func(at time.Time) {
		if d.left(maxUnreportedAge, at) > 0 && at.Before(began) {
			began = at
		}
	}
	if d.holder != nil {
		since(askedToStop(d.holder.Pod))
		if next := d.newest(); next != nil {
			since(next.CreationTimestamp.Time)
		}
	}
	return new(metav1.NewMicroTime(began))
}

// lastWrite returns when the pod was last written by any client, in whole seconds.
func lastWrite(pod *corev1.Pod) (last time.Time) {
	for _, writer := range pod.ManagedFields {
		if writer.Time != nil && writer.Time.After(last) {
			last = writer.Time.Time
		}
	}
	return last
}

// lastStart returns when the last of the pod's containers started, by the kubelet's clock, in whole
// seconds. A container behind a barrier has not started, but its init containers have.
func lastStart(pod *corev1.Pod) (last time.Time) {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if started := status.State.Running; started != nil && started.StartedAt.After(last) {
			last = started.StartedAt.Time
		}
	}
	return last
}
