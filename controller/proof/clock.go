package proof

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Left returns how much of the duration that began at since is left at now. It is at least 0, and at most the duration.
//
// Nothing is left if since is in the future. The clock of the machine that wrote it is ahead, and a wait until then could take as
// long as that clock is wrong. A caller that must not skip the wait passes a time that is not in the future, such as that of
// ChangedAt. No proof depends on such a wait: the time of a Lease is that of package leases.
func Left(duration time.Duration, since, now time.Time) time.Duration {
	if since.After(now) {
		return 0
	}
	return max(0, duration-now.Sub(since))
}

// ChangedAt returns when the condition of the pod changed, and never a time after now. If the time in the condition is in the
// future, the clock of the node or of the client that wrote the condition is ahead. Then ChangedAt returns the time of the last
// write of the pod's status, which comes from the API server. The condition changed with that write or before.
func ChangedAt(pod *corev1.Pod, c *corev1.PodCondition, now time.Time) time.Time {
	if !c.LastTransitionTime.After(now) {
		return c.LastTransitionTime.Time
	}
	var last time.Time
	for _, writer := range pod.ManagedFields {
		if writer.Subresource == "status" && writer.Time != nil && writer.Time.After(last) {
			last = writer.Time.Time
		}
	}
	if last.IsZero() || last.After(now) {
		return now
	}
	return last
}
