package handoff

import (
	"fmt"
	"slices"
	"time"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Finalize says what to write for a singleton that is being deleted, once its policy is
// gone, and what the deletion waits for, in words; "" if there is nothing. A pod that was
// written or has vanished since the Snapshot makes its Strip fail, and has to be looked at
// again: it may have been signalled, or be lost. So the singleton goes after its pods only.
func Finalize(s Snapshot, now time.Time) (steps []Step, message string) {
	keep, message := Farewell(s, now)
	for i := range s.Pods {
		pod := &s.Pods[i]
		// What is not recorded now never will be, and then nobody opens its barrier.
		unchoose := pod.UID != s.Singleton.Status.ActivePodUID && chosenBy(pod) != "" && chosenBy(pod) == s.Singleton.UID
		if !slices.Contains(keep, refOf(pod)) && (protected(pod) || unchoose) {
			steps = append(steps, Strip{Pod: refOf(pod), Version: Version(pod.ResourceVersion), Unchoose: unchoose})
		}
	}
	if message == "" {
		steps = append(steps, Finish{Version: Version(s.Singleton.ResourceVersion)})
	}
	return steps, message
}

// Farewell tells what a singleton that is being deleted waits for, in words, and
// which pods it does not let go of until then; "" if there is nothing. A pod that was
// asked to stop could vanish while its processes run on, and only the record knows a pod
// that is lost already: a new singleton of the same name would not know of either. It also
// keeps a running pod that another singleton picks: that singleton lets go of the pod.
func Farewell(s Snapshot, now time.Time) (keep []PodRef, message string) {
	status := &s.Singleton.Status
	lost := status.ActivePodUID != "" && s.proveGone() == ""
	for _, pod := range classify(s) {
		lost = lost && pod.UID != status.ActivePodUID
		switch {
		case pod.Proof != "" || !protected(pod.Pod):
		case Going(pod.Pod):
			keep = append(keep, refOf(pod.Pod))
			message = fmt.Sprintf("the StatefulSingleton goes once pod %s has ended: the pod stops%s", pod.Name, s.stoppingHelp(pod, now))
		case s.runsForAnother(pod):
			keep = append(keep, refOf(pod.Pod))
		}
	}
	if lost {
		message = "the StatefulSingleton goes once its holder is proven dead: " + s.lostHelp()
	}
	return keep, message
}

// Orphans returns what to write for the pods of a singleton that is gone: it lets go of pods
// that are proven dead, unless another singleton picks them and lets go of them itself.
// ConfirmGone comes first, because a new singleton of the same name may have recorded one of
// these pods. A singleton that is created later finds the pods dead and records none of them.
func Orphans(s Snapshot) (steps []Step) {
	for _, pod := range classify(s) {
		picked := slices.ContainsFunc(s.Others, func(other v1.StatefulSingleton) bool { return picks(&other, pod.Pod) })
		if pod.Proof != "" && protected(pod.Pod) && !picked {
			steps = append(steps, Strip{Pod: refOf(pod.Pod), Version: Version(pod.ResourceVersion)})
		}
	}
	if len(steps) > 0 {
		steps = slices.Insert(steps, 0, Step(ConfirmGone{}))
	}
	return steps
}

// runsForAnother tells whether a pod that is not going runs, and a singleton that is not being
// deleted picks it. A pod that is still held does not count, because this singleton may be
// about to signal it.
func (s Snapshot) runsForAnother(pod *ClassifiedPod) bool {
	runs := !isHeld(pod.Pod, pod.held) || released(pod.Pod) || slices.ContainsFunc(pod.held, heldContainer.pastBarrier)
	return runs && slices.ContainsFunc(s.Others, func(other v1.StatefulSingleton) bool {
		return other.DeletionTimestamp.IsZero() && picks(&other, pod.Pod)
	})
}
