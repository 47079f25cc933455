package membership

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Finalize returns the writes for a StatefulCluster that is being deleted. The message says what the deletion waits for. It is
// empty if the deletion waits for nothing.
//
// All pods are deleted. The deletion waits for a proof for each pod, also for lost pods, because only the record says which
// claims a lost pod can still use. Then it waits until the claims are deleted that are not retained.
func Finalize(s Snapshot, now time.Time) (plan Plan, message string) {
	d := begin(s, now)
	if !d.adopt() {
		d.endAll()
		d.record()
		d.syncPods()
		d.deleteClaims()
		d.takeAttestation()
	}
	message = d.waitsFor()
	d.status.Message = message
	d.plan.Status = *d.status
	return d.plan, message
}

// endAll deletes the pods of all members. It removes members that have provably terminated, and members without a recorded pod.
func (d *decision) endAll() {
	retention := d.Cluster.Spec.PersistentVolumeClaimRetentionPolicy
	for _, m := range slices.Clone(d.members) {
		switch {
		case m.State == v1.MemberPending:
			d.release(m, retention.WhenDeleted)
		case m.proven == "" && m.State == v1.MemberActive:
			d.rolled = append(d.rolled, m) // its pod is deleted, and whenDeleted still applies
		case m.proven == "":
		case m.State == v1.MemberLost:
			d.release(m, retention.WhenReplaced)
		case m.State == v1.MemberLeaving:
			d.release(m, retention.WhenScaled)
		default:
			d.release(m, retention.WhenDeleted)
		}
	}
}

// waitsFor returns what the deletion waits for, or nothing.
func (d *decision) waitsFor() string {
	if len(d.members) > 0 {
		m := d.members[0]
		if m.lost {
			return fmt.Sprintf("the deletion waits for pod %s, which is lost: %s", m.Name, d.proveMessage(m))
		}
		return fmt.Sprintf("the deletion waits until pod %s has terminated", m.Name)
	}
	for i := range d.Pods {
		if metav1.IsControlledBy(&d.Pods[i], d.Cluster) {
			return fmt.Sprintf("the deletion waits until pod %s is removed", d.Pods[i].Name)
		}
	}
	if len(d.status.Released) > 0 {
		return fmt.Sprintf("the deletion waits until claim %s is deleted", d.status.Released[0].Name)
	}
	return ""
}
