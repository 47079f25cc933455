package handoff

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// kubeletPause is how long a standby has not been written before the holder is asked
	// to stop. The kubelet looks at a pod after each write, and only once its list of
	// containers is newer than its last look (pkg/kubelet/pod_workers: GetNewerThan). It
	// makes that list every second: a signal shortly after anything else about the pod
	// would wait for the next one, while nothing runs.
	kubeletPause = 3 * time.Second
	// longestPause is how long after its start a standby is waited for that somebody
	// writes again and again.
	longestPause = 15 * time.Second
	// usuallyWarm is how long a standby takes to warm up where all it needs is there.
	usuallyWarm = 5 * time.Second
	// usuallyAsked is how long it takes from Retire to the request for deletion.
	usuallyAsked = time.Second
	// usuallySeen is how long the kubelet takes from the signal to the report that a
	// container is beyond its barrier.
	usuallySeen = 2 * time.Second
	// kubeletLook is how long after the signal the kubelet can look at a pod again at once.
	// With the signal it runs the readiness probe, too early, and then not before a whole
	// period has passed (pkg/kubelet/prober: worker.run), unless it looks at the pod again.
	kubeletLook = time.Second
	// usuallyStops is how long it takes from the request for deletion, which is dated in
	// whole seconds, to the kubelet's report of the end.
	usuallyStops = 4 * time.Second
	// usuallyReady is how long a holder takes from its signal to Ready.
	usuallyReady = 5 * time.Second
)

const (
	// transitionPoll is how often to look again during a handoff for what no watch
	// reports: taints of nodes, pods without the singleton's label.
	transitionPoll = 5 * time.Second
	// settledPoll is the same while no handoff is under way.
	settledPoll = 5 * time.Minute
)

// longestUntold is how far back a handoff may have begun of which no status tells yet.
const longestUntold = usuallyWarm + longestPause + usuallyAsked + usuallyStops

// attachPatience is how long a volume that is attached to the holder's node may
// keep the standby waiting on another: some volumes of that kind do mount twice.
const attachPatience = 20 * time.Second

// nudge has the kubelet look again at a holder that starts, once, where it usually would
// have seen by now what it looks for. It may have missed the signal: it goes through lists
// of pods and of volumes to project anew what has changed, and a pod that changes meanwhile
// it may project as the list has it (pkg/kubelet/volumemanager: findAndAddNewPods,
// mountOrAttachVolumes). By itself it would look again after 60 to 90 s.
func (d *decision) nudge(containers []heldContainer, given signal.Signal) {
	t := d.status.LastTransition
	starts := t != nil && t.To == d.holder.Name && t.Ready == nil && !IsTrue(d.holder.Pod, corev1.PodReady)
	atBarrier := slices.ContainsFunc(containers, heldContainer.atBarrier)
	after := nudgeAfter(containers)
	nudged := d.holder.Annotations[v1.NudgeAnnotation] == fmt.Sprint(given.Epoch)
	if after == 0 || !atBarrier && (!starts || nudged) {
		return
	}
	if d.again = d.left(after, given.Time); d.again > 0 {
		return
	}
	if atBarrier {
		d.do(d.barriers(d.holder)...)
	}
	if !nudged {
		d.do(Nudge{refOf(d.holder.Pod), given.Epoch})
	}
}

// nudgeAfter is how long after the signal the kubelet is made to look again. 0: it is not.
func nudgeAfter(containers []heldContainer) time.Duration {
	switch {
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return h.configMap != "" }):
		return usuallySeen
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return h.seldomProbed }):
		return kubeletLook
	case slices.ContainsFunc(containers, func(h heldContainer) bool { return !h.open && !(h.gateProbe && h.started()) }):
		return usuallyReady
	}
	return 0
}

// left is what is left of a time since then. None is left where that is later than
// now, by another machine's clock.
func (d *decision) left(of time.Duration, since time.Time) time.Duration {
	passed := d.now.Sub(since)
	if passed < 0 {
		return 0
	}
	return max(0, of-passed)
}

// begun is when the handoff that is under way began: now, if none was, or when the pod
// was created that the holder makes room for, or the holder was asked to stop.
func (d *decision) begun() *metav1.MicroTime {
	was := &d.Singleton.Status
	if was.TransitionTimestamp != nil && (was.Phase == v1.PhaseTransitioning || was.Phase == v1.PhaseFailed) {
		return was.TransitionTimestamp.DeepCopy()
	}
	began := d.now
	if d.holder != nil {
		moments := []time.Time{askedToStop(d.holder.Pod)}
		if next := d.newest(); next != nil {
			moments = append(moments, next.CreationTimestamp.Time)
		}
		for _, moment := range moments {
			if d.left(longestUntold, moment) > 0 && moment.Before(began) {
				began = moment
			}
		}
	}
	return new(metav1.NewMicroTime(began))
}

// untold tells whether the status need not be written yet.
func (d *decision) untold() bool {
	was, is := &d.Singleton.Status, d.status
	unchanged := func(kind string) bool {
		before, after := meta.FindStatusCondition(was.Conditions, kind), meta.FindStatusCondition(is.Conditions, kind)
		return before == nil && after == nil || before != nil && after != nil && before.Reason == after.Reason
	}
	return !d.needsPerson && !slices.Contains(d.plan.Steps, Step(Record{})) &&
		unchanged(v1.ConditionDraining) && unchanged(v1.ConditionGuarded) && equality.Semantic.DeepEqual(was.Handover, is.Handover)
}

// lastWrite is when the pod was written last, by anybody, in whole seconds.
func lastWrite(pod *corev1.Pod) (last time.Time) {
	for _, writer := range pod.ManagedFields {
		if writer.Time != nil && writer.Time.After(last) {
			last = writer.Time.Time
		}
	}
	return last
}

// lastStart is when the last of the pod's containers started, as the kubelet's clock
// has it, in whole seconds. A barrier's container has not; the init containers before it
// have.
func lastStart(pod *corev1.Pod) (last time.Time) {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if started := status.State.Running; started != nil && started.StartedAt.After(last) {
			last = started.StartedAt.Time
		}
	}
	return last
}
