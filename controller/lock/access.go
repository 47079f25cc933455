package lock

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/leaseaccess"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
)

// grantAccess lets the fenced pods of the lock renew the Lease. It does nothing in a reconcile with other writes, because
// another reconcile follows, and the next writer must not wait for the two reads.
func (r *Reconciler) grantAccess(ctx context.Context, s tenure.Snapshot, plan tenure.Plan) error {
	accounts := sets.New[string]()
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Annotations[v1.FencingAnnotation] == string(v1.FencingLease) {
			accounts.Insert(cmp.Or(p.Spec.ServiceAccountName, "default"))
		}
	}
	if accounts.Len() == 0 || plan.Outcome.Refused() || len(plan.Steps) > 0 {
		return nil
	}
	err := leaseaccess.Grant(ctx, r.Client, r.Live, leaseaccess.OfLock(s.Lock), sets.List(accounts))
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
