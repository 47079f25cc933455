package handoff

import (
	"fmt"
	"slices"
	"time"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Finalize returns the writes for a singleton that is being deleted, once its policy is deleted. The deletion waits for
// the pods in waitsFor, or for the lost holder, and the message says so. It is empty if the deletion waits for nothing.
// RemoveFinalizer fails if its pod was written or removed since the Snapshot: the pod may have been signalled, or may be
// lost. For the same reason the finalizer of the singleton is removed after those of its pods.
//
// A terminating pod keeps its finalizer, because its object could be removed while its processes run. A
// lost holder keeps the singleton, because only the record names the lost holder. A new singleton of the same
// name would know neither the terminating pod nor the lost holder. A running pod that another singleton selects
// keeps its finalizer too: that singleton removes it.
func Finalize(s Snapshot, now time.Time) (steps []Step, waitsFor []PodRef, message string) {
	recorded := s.Singleton.Status.ActivePodUID
	lost := recorded != "" && s.proofForMissingHolder() == ""
	for _, pod := range classify(s) {
		lost = lost && pod.UID != recorded
		mayRun := pod.Proof == "" && protected(pod.Pod)
		// A pod that is not recorded now never will be, and then nothing opens its barrier.
		unchoose := pod.UID != recorded && chosenBy(pod.Pod) != "" && chosenBy(pod.Pod) == s.Singleton.UID
		switch {
		case mayRun && proof.Going(pod.Pod):
			waitsFor = append(waitsFor, refOf(pod.Pod))
			message = fmt.Sprintf("the StatefulSingleton is removed once pod %s has terminated: the pod is terminating%s", pod.Name, s.stoppingHelp(pod, now))
		case mayRun && s.runsForAnother(pod):
		case protected(pod.Pod) || unchoose:
			steps = append(steps, RemoveFinalizer{Pod: refOf(pod.Pod), Version: Version(pod.ResourceVersion), Unchoose: unchoose})
		}
	}
	if lost {
		message = "the StatefulSingleton is removed once there is a proof that its holder has terminated: " + s.lostHelp()
	}
	if message == "" {
		steps = append(steps, Finish{Version: Version(s.Singleton.ResourceVersion)})
	}
	return steps, waitsFor, message
}

// Orphans returns the writes for the pods of a singleton that no longer exists. It removes the finalizer of
// pods with a proof of termination, unless another singleton selects them and does so itself.
// ConfirmGone comes first, because a new singleton of the same name may have recorded one of the pods.
// A singleton that is created later finds the pods terminated and records none of them.
func Orphans(s Snapshot) (steps []Step) {
	for _, pod := range classify(s) {
		selected := slices.ContainsFunc(s.Others, func(other v1.StatefulSingleton) bool { return selects(&other, pod.Pod) })
		if pod.Proof != "" && protected(pod.Pod) && !selected {
			steps = append(steps, RemoveFinalizer{Pod: refOf(pod.Pod), Version: Version(pod.ResourceVersion)})
		}
	}
	if len(steps) > 0 {
		steps = slices.Insert(steps, 0, Step(ConfirmGone{}))
	}
	return steps
}

// runsForAnother returns true if the pod may run its main process and a singleton that is not being
// deleted selects it. A held pod does not count, because this singleton may be about to signal it.
func (s Snapshot) runsForAnother(pod *ClassifiedPod) bool {
	runs := !injected.IsHeld(pod.Pod, pod.held) || released(pod.Pod) || slices.ContainsFunc(pod.held, pastBarrier)
	return runs && slices.ContainsFunc(s.Others, func(other v1.StatefulSingleton) bool {
		return other.DeletionTimestamp.IsZero() && selects(&other, pod.Pod)
	})
}
