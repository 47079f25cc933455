package handoff

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// successor returns a warm standby of the newest revision of the holder's StatefulSet if the holder has an older
// revision, or nil. The StatefulSet does not delete the holder before its newer pod is Ready, and a standby
// is never Ready while the holder stays.
func (d *decision) successor() *ClassifiedPod {
	set, next := d.statefulSet(d.holder.Pod), d.warm()
	if set == nil || next == nil || d.statefulSet(next.Pod) != set || !d.outdated(d.holder.Pod) || d.outdated(next.Pod) {
		return nil
	}
	return next
}

// newest returns the first standby with a newer revision than the holder, or nil.
func (d *decision) newest() *ClassifiedPod {
	return find(d.standbys, func(pod *ClassifiedPod) bool { return d.newer(pod.Pod, d.holder.Pod) })
}

// rollOver scales down the ReplicaSet of the holder once a pod of a newer revision is warm, or can warm up only
// after the holder has terminated.
func (d *decision) rollOver(next *ClassifiedPod) {
	cold := ""
	if next.WaitsFor != "" {
		if cold = d.waitsForHolder(next.Pod); cold == "" {
			d.needsPerson = next.needsPerson
			d.found(StandbyNotWarm, "pod %s %s; pod %s keeps running until pod %[1]s is warm", next.Name, next.WaitsFor, d.holder.Name)
			d.adviseReplacement(next, next.nodeProblem)
			return
		}
	}
	if cold == "" {
		d.found(Retiring, "pod %s is warm; next, the ReplicaSet of pod %s is scaled to zero", next.Name, d.holder.Name)
		if wait := d.settling(next); wait > 0 {
			d.requeueIn(wait)
			return
		}
	} else {
		d.found(RetiringCold, "pod %s stops before pod %s is warm, because %s", d.holder.Name, next.Name, cold)
	}
	rs := d.replicaSet(d.holder.Pod)
	if isZero(rs.Spec.Replicas) {
		return
	}
	d.do(Retire{rs.Name})
	if cold == "" {
		next = d.warm() // as after the proof
	} else {
		next = nil
	}
	d.retireInLease(next) // only now is it certain that the pod will be deleted
}

// waitsForHolder returns which volume keeps the standby cold while the holder runs. Empty: there is no such
// volume, or the node cannot start the standby in any case.
func (d *decision) waitsForHolder(pod *corev1.Pod) string {
	if nodeProblem(d.CachedNodes, pod) != "" {
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
		scheduled := proof.Condition(pod, corev1.PodScheduled)
		switch {
		case slices.Contains(modes, corev1.ReadWriteOncePod):
			// This is the scheduler's message (pkg/scheduler/framework/plugins/volumerestrictions). A pod
			// that no node can run for other reasons has another message.
			if scheduled != nil && scheduled.Status == corev1.ConditionFalse && strings.Contains(scheduled.Message, "ReadWriteOncePod") {
				return fmt.Sprintf("claim %s is ReadWriteOncePod", claim.Name)
			}
		case slices.Contains(modes, corev1.ReadWriteMany) || slices.Contains(modes, corev1.ReadOnlyMany):
		case lacksVolumes(pod, d.holder.Spec.NodeName) &&
			(d.Attached[claim.Name] || scheduled != nil && d.left(attachPatience, proof.ChangedAt(pod, scheduled, d.now)) == 0):
			return fmt.Sprintf("claim %s is ReadWriteOnce and attached to node %s%s", claim.Name, d.holder.Spec.NodeName, d.attachHelp())
		}
	}
	return ""
}

func mounts(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}
