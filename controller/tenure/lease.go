package tenure

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
)

// ownsLease returns true if the lock controls the Lease, and has created it.
func (d *decision) ownsLease() bool {
	owner := metav1.GetControllerOf(d.Lease)
	return owner != nil && owner.UID == d.Lock.UID && owner.Kind == "StatefulSetLock" &&
		strings.HasPrefix(owner.APIVersion, v1.GroupVersion.Group+"/") && d.Lease.Labels[v1.LockLabel] == d.Lock.Name
}

// namedInLease returns the epoch and the writer that the Lease has. The epoch is 0 before the first writer.
func (d *decision) namedInLease() (epoch int64, writer PodRef) {
	return int64(ptr.Deref(d.Lease.Spec.LeaseTransitions, 0)),
		PodRef{Name: leases.HolderOf(d.Lease), UID: types.UID(d.Lease.Annotations[fencing.WriterAnnotation])}
}

// isNamed returns true if the Lease names the recorded writer with its epoch.
func (d *decision) isNamed() bool {
	epoch, writer := d.namedInLease()
	return epoch == d.status.Epoch && writer == refOf(d.writer)
}

// nameInLease names the recorded writer, and renews the Lease.
func (d *decision) nameInLease(p *pod) {
	d.do(WriteLease{Version: Version(d.Lease.ResourceVersion), Writer: refOf(p), Epoch: d.status.Epoch})
	d.requeueIn(renewAfter(d.Lock))
}

// renewalIsDue returns true if the last renewal is half of the duration ago. Otherwise, it decides again then.
func (d *decision) renewalIsDue() bool {
	renewed := d.Lease.Spec.RenewTime
	return renewed == nil || d.left(renewAfter(d.Lock), renewed.Time) <= 0
}
