package handoff

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// successor is a warm standby of the newest revision of the holder's StatefulSet, where
// the holder is of an older one; nil if there is none. The StatefulSet stops the holder
// only once the pod that it made before is Ready, which a standby never is.
func (d *decision) successor() *ClassifiedPod {
	set, next := d.statefulSet(d.holder.Pod), d.warm()
	if set == nil || next == nil || d.statefulSet(next.Pod) != set || !d.outdated(d.holder.Pod) || d.outdated(next.Pod) {
		return nil
	}
	return next
}

// newest is the first standby that is of a newer revision than the holder.
func (d *decision) newest() *ClassifiedPod {
	for _, pod := range d.standbys {
		if d.newer(pod.Pod, d.holder.Pod) {
			return pod
		}
	}
	return nil
}

// rollOver asks the holder to stop once a pod of a newer revision is warm, or can
// only warm up without it.
func (d *decision) rollOver(next *ClassifiedPod) {
	cold := ""
	if next.WaitsFor != "" {
		if cold = d.waitsForHolder(next.Pod); cold == "" {
			d.needsPerson = next.needsPerson
			d.usual = d.left(usuallyWarm, next.CreationTimestamp.Time)
			d.found(StandbyNotWarm, "pod %s %s; pod %s goes on until it is warm", next.Name, next.WaitsFor, d.holder.Name)
			d.adviseReplacement(next, next.silent)
			return
		}
	}
	if cold == "" {
		d.found(Retiring, "pod %s is warm; pod %s is asked to stop", next.Name, d.holder.Name)
		if d.usual = min(d.left(kubeletPause, lastWrite(next.Pod)), d.left(longestPause, lastStart(next.Pod))); d.usual > 0 {
			return
		}
	} else {
		d.found(RetiringCold, "pod %s is asked to stop before pod %s is warm, since %s", d.holder.Name, next.Name, cold)
	}
	rs := d.replicaSet(d.holder.Pod)
	if rs.Spec.Replicas != nil && *rs.Spec.Replicas == 0 {
		return
	}
	d.do(Retire{rs.Name})
	if cold == "" {
		d.usual = usuallyAsked
	}
}

// waitsForHolder says which volume keeps the standby from warming up while the
// holder has it; empty if none does, or if its node could not start it anyway.
func (d *decision) waitsForHolder(pod *corev1.Pod) string {
	if d.silentNode(pod) != "" {
		return ""
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil || !mounts(d.holder.Pod, volume.PersistentVolumeClaim.ClaimName) {
			continue
		}
		claim := d.Claims[volume.PersistentVolumeClaim.ClaimName]
		if claim == nil {
			continue
		}
		modes := claim.Spec.AccessModes
		scheduled := condition(pod, corev1.PodScheduled)
		switch {
		case slices.Contains(modes, corev1.ReadWriteOncePod):
			// The scheduler's own words (pkg/scheduler/framework/plugins/volumerestrictions).
			// A pod that no node could take anyway is told other ones.
			if scheduled != nil && scheduled.Status == corev1.ConditionFalse && strings.Contains(scheduled.Message, "ReadWriteOncePod") {
				return fmt.Sprintf("claim %s is ReadWriteOncePod", claim.Name)
			}
		case slices.Contains(modes, corev1.ReadWriteMany) || slices.Contains(modes, corev1.ReadOnlyMany):
		case pod.Spec.NodeName != "" && pod.Spec.NodeName != d.holder.Spec.NodeName &&
			!IsTrue(pod, corev1.PodReadyToStartContainers) &&
			scheduled != nil && d.now.Sub(scheduled.LastTransitionTime.Time) >= attachPatience:
			return fmt.Sprintf("claim %s is ReadWriteOnce and attached to node %s", claim.Name, d.holder.Spec.NodeName)
		}
	}
	return ""
}

func mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}
