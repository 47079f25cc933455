package injection

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// conditions has the last reported condition PolicyInstalled of each object.
type conditions struct {
	mu       sync.Mutex
	reported map[types.NamespacedName]reported
	onChange func(types.NamespacedName)
}

// reported is the condition of the object with the UID.
type reported struct {
	uid       types.UID
	condition metav1.Condition
}

// Condition returns condition PolicyInstalled of the object. Before the first reconcile of this process, that is the
// condition in the status, or reason Installing.
func (r *Reconciler) Condition(subject policies.Subject) metav1.Condition {
	if last, ok := r.conditions.last(subject); ok {
		return last
	}
	if stored := meta.FindStatusCondition(subject.GetConditions(), v1.ConditionPolicyInstalled); stored != nil {
		return *stored
	}
	return installing(subject, r.policyOf(subject))
}

// Changes enqueues the objects whose condition changes.
func (r *Reconciler) Changes() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.conditions.mu.Lock()
		defer r.conditions.mu.Unlock()
		r.conditions.onChange = func(key types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: key}) }
		return nil
	})
}

func (c *conditions) last(subject policies.Subject) (condition metav1.Condition, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.reported[client.ObjectKeyFromObject(subject)]
	return last.condition, last.uid != "" && last.uid == subject.GetUID()
}

func (c *conditions) report(subject policies.Subject, condition metav1.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := client.ObjectKeyFromObject(subject), reported{subject.GetUID(), condition}
	if c.reported[key] == now {
		return
	}
	if c.reported == nil {
		c.reported = map[types.NamespacedName]reported{}
	}
	c.reported[key] = now
	if c.onChange != nil {
		c.onChange(key)
	}
}

func (c *conditions) forget(subject types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reported, subject)
}
