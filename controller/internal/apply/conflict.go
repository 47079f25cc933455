// Package apply has the rules by which all reconcilers write: patches that fail if somebody wrote the object meanwhile, finalizers and
// attestations, what follows a conflict, how long a text may be, and the PodDisruptionBudgets of holders and writers.
package apply

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// firstDelay is how long to wait after the first conflict. The delay doubles with each conflict in a row.
	firstDelay = 10 * time.Millisecond
	// inRow is the number of conflicts in a row after which a conflict counts as an error. The delays before add up to 2.5 s.
	inRow = 8
)

// Conflicts counts the conflicts in a row of each object: the answers with code 409 of the API server. Other writers cause a few
// conflicts, after which a reconcile with new reads succeeds. An admission webhook that answers 409 causes one each time. The zero
// value is ready for use.
type Conflicts struct {
	mu        sync.Mutex
	conflicts map[types.NamespacedName]int
}

// Tolerates returns true if a conflict in this reconcile of the object is temporary, and false if it must be reported.
func (c *Conflicts) Tolerates(object types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conflicts[object] < inRow
}

// MustReport returns true if the status of the object must report the error. inConflict is true if the error is a conflict, which is
// temporary unless it happens each time. The removal of an object since it was read is temporary too.
func (c *Conflicts) MustReport(ctx context.Context, object client.Object, err error, inConflict bool) bool {
	overtaken := inConflict && c.Tolerates(client.ObjectKeyFromObject(object))
	return err != nil && ctx.Err() == nil && !overtaken && !apierrors.IsNotFound(err)
}

// Result returns what Reconcile returns for the object. inConflict is true if the error is a conflict. A conflict that is tolerated
// becomes a delay, so that the queue does not log it as an error. Nothing is an error after the context has ended, because the
// controller then stops.
func (c *Conflicts) Result(ctx context.Context, object types.NamespacedName, result ctrl.Result, err error, inConflict bool) (ctrl.Result, error) {
	if ctx.Err() != nil {
		return ctrl.Result{}, nil
	}
	if delay := c.Ended(object, inConflict); delay > 0 {
		ctrl.LoggerFrom(ctx).V(1).Info("Requeued after a conflict", "conflict", err.Error())
		return ctrl.Result{RequeueAfter: delay}, nil
	}
	return result, err
}

// Ended counts a reconcile of the object that ended in a conflict, or resets the count after any other result. It returns how long
// to wait before the next reconcile. After a conflict that is not tolerated, and without a conflict, it returns 0: the queue decides.
func (c *Conflicts) Ended(object types.NamespacedName, inConflict bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !inConflict {
		delete(c.conflicts, object)
		return 0
	}
	if c.conflicts == nil {
		c.conflicts = map[types.NamespacedName]int{}
	}
	before := c.conflicts[object]
	if before >= inRow {
		return 0
	}
	c.conflicts[object]++
	return firstDelay << before
}
