package injection

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// installable returns the objects of the subject's namespace that get a policy, from the cache. The subject was read live.
func (r *Reconciler) installable(ctx context.Context, subject policies.Subject) ([]policies.Subject, error) {
	all, err := r.notTerminating(ctx, r.Client, subject.GetNamespace())
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s policies.Subject) bool { return s.GetName() == subject.GetName() })
	return policies.WithinBudget(append(all, subject), r.Per), nil
}

// hasPolicy returns true if the subject already has a policy of its own. Such a policy stays, even if the namespace has no
// room for it, because new pods of the subject depend on it. Earlier versions did not limit the policies of a namespace.
func (r *Reconciler) hasPolicy(ctx context.Context, subject policies.Subject) (bool, error) {
	own := r.policyOf(subject)
	if own != own.Kind.Of(subject) {
		return false, nil
	}
	err := r.Live.Get(ctx, own.NamespacedName, policyMetadata(own))
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}

// unreadable returns the state of a subject whose room in the budget is unknown.
func unreadable(subject policies.Subject, err error) installation {
	return notInstalled(subject, reasonPolicyRefused, fmt.Sprintf("the controller cannot read which policies namespace %s has, and tries again within %s: %v. "+
		"If this lasts, check the API server and the permissions of the controller", subject.GetNamespace(), maxRetryDelay, err))
}

// namespaceFull returns the state of a subject without room in the budget of its namespace. The deletion of another object
// reconciles the subject.
func (r *Reconciler) namespaceFull(subject policies.Subject) installation {
	full := fmt.Sprintf("the %d bytes that namespace %s gets of Kyverno's webhooks, which all namespaces share", policies.NamespaceBudget, subject.GetNamespace())
	share := ""
	switch {
	case r.Per == policies.PerNamespace:
		full = "their shared policy, or " + full
	case r.Kind.Shared:
		share = ", or set policyPer of the chart to namespace"
	}
	message := fmt.Sprintf("%[1]s %[2]s/%[3]s gets no policy: older objects fill %[4]s. "+
		"Create this %[1]s in another namespace, or delete others (kubectl get %[5]s -n %[2]s --sort-by=.metadata.creationTimestamp)%[6]s",
		r.Kind.Name, subject.GetNamespace(), subject.GetName(), full, strings.ToLower(r.Kind.Name), share)
	return installation{condition: newCondition(subject, metav1.ConditionFalse, reasonNamespaceFull, message), recheck: nextCheck()}
}

// isDeletion passes deletions.
var isDeletion = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// waitingBeside returns the objects that waited for room in the budget of their namespace, and have it after the deletion
// of an object.
func (r *Reconciler) waitingBeside(ctx context.Context, deleted client.Object) (requests []reconcile.Request) {
	all, err := r.notTerminating(ctx, r.Client, deleted.GetNamespace())
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list objects after a deletion. The periodic reconcile handles the deletion")
		return nil
	}
	for _, s := range policies.WithinBudget(all, r.Per) {
		if r.Condition(s).Reason == reasonNamespaceFull {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
		}
	}
	return requests
}
