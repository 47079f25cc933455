package injection

import (
	"context"

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

// reported is the condition of the object with the UID.
type reported struct {
	uid       types.UID
	condition metav1.Condition
}

// Condition returns condition PolicyInstalled of the object. Before the first reconcile of this process, that is the
// condition in the status, or reason Installing.
func (r *Reconciler) Condition(subject policies.Subject) metav1.Condition {
	if last, known := r.conditions.get(client.ObjectKeyFromObject(subject)); known && last.uid == subject.GetUID() {
		return last.condition
	}
	if stored := meta.FindStatusCondition(subject.GetConditions(), v1.ConditionPolicyInstalled); stored != nil {
		return *stored
	}
	return installing(subject, r.policyOf(subject))
}

// Changes enqueues the objects whose condition changes.
func (r *Reconciler) Changes() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		changed := func(key types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: key}) }
		r.onChange.Store(&changed)
		return nil
	})
}

// report stores the condition of an object. Only one worker reconciles an object at a time.
func (r *Reconciler) report(subject policies.Subject, condition metav1.Condition) {
	key, now := client.ObjectKeyFromObject(subject), reported{subject.GetUID(), condition}
	if last, _ := r.conditions.get(key); last == now {
		return
	}
	r.conditions.set(key, now)
	if changed := r.onChange.Load(); changed != nil {
		(*changed)(key)
	}
}
