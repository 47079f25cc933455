package membership

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Finalize returns the writes for a StatefulCluster that is being deleted. The message says what the deletion waits for. It is
// empty if the deletion waits for nothing.
//
// All pods are deleted. The deletion waits for a proof for each pod, also for lost pods, because only the record says which
// claims a lost pod can still use. Then it waits until the claims that are not retained are deleted.
//
// With kubectl delete --cascade=orphan, all pods and claims stay. The deletion waits only until each pod can run and serve without
// the StatefulCluster.
func Finalize(s Snapshot, now time.Time) (plan Plan, message string) {
	d := begin(s, now)
	if lost := d.lostPods(); len(lost) > 0 {
		d.adopt(lost)
	} else {
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
	orphans := slices.ContainsFunc(d.members, d.isOrphan)
	for _, m := range slices.Clone(d.members) {
		switch {
		case d.isOrphan(m), orphans && m.State == v1.MemberPending:
			if isIndependent(m) {
				d.remove(m)
			}
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

// orphansAll returns true until the garbage collector has removed the StatefulCluster from the owners of all its objects.
func (d *decision) orphansAll() bool {
	return slices.Contains(d.Cluster.Finalizers, metav1.FinalizerOrphanDependents)
}

// isOrphan returns true if the pod and the claims of the member outlive the StatefulCluster.
func (d *decision) isOrphan(m *member) bool {
	return d.orphansAll() || m.pod != nil && !d.controls(m.pod)
}

// isIndependent returns true if the pod of the member needs no further write to run and to serve.
func isIndependent(m *member) bool {
	return m.pod == nil || m.going || m.State != v1.MemberActive ||
		!isGated(m.pod) && (!hasServingGate(m.pod) || proof.IsTrue(m.pod, v1.MemberServing))
}

// waitsFor returns what the deletion waits for, or nothing.
func (d *decision) waitsFor() string {
	if len(d.members) > 0 {
		m := d.members[0]
		if d.isOrphan(m) {
			return fmt.Sprintf("the deletion waits until pod %s can run without the StatefulCluster", m.Name)
		}
		if m.lost {
			return fmt.Sprintf("the deletion waits for pod %s, which is lost: %s", m.Name, d.proveMessage(m))
		}
		return fmt.Sprintf("the deletion waits until pod %s has terminated", m.Name)
	}
	for i := range d.Pods {
		if d.controls(&d.Pods[i]) && !d.orphansAll() {
			return fmt.Sprintf("the deletion waits until pod %s is removed", d.Pods[i].Name)
		}
	}
	if len(d.status.Released) > 0 {
		return fmt.Sprintf("the deletion waits until claim %s is deleted", d.status.Released[0].Name) + d.keptMessage()
	}
	return ""
}
