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
	all, err := r.notTerminating(ctx, subject.GetNamespace())
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s policies.Subject) bool { return s.GetName() == subject.GetName() })
	return r.withinBudget(ctx, append(all, subject), r.policyOf(subject))
}

// withinBudget returns the objects of a namespace that get a policy. If not all of them have room, it reads from the API server
// which singletons the policy that they share already has.
func (r *Reconciler) withinBudget(ctx context.Context, all []policies.Subject, policy policies.Ref) ([]policies.Subject, error) {
	installable := r.Budget.Within(all, r.Per, nil)
	if r.Per != policies.PerNamespace || len(installable) == len(all) {
		return installable, nil
	}
	found, err := r.livePolicy(ctx, policy)
	if err != nil {
		return nil, err
	}
	installed, err := r.installedIn(ctx, all[0].GetNamespace(), found)
	return r.Budget.Within(all, r.Per, installed), err
}

// installedIn returns the singletons of the shared policy that was found. If the policy does not exist, installedIn returns the
// singletons of the shared policy of the other kind. Thus a change of policyKind keeps their rules.
func (r *Reconciler) installedIn(ctx context.Context, namespace string, found *metav1.PartialObjectMetadata) (policies.Installed, error) {
	for _, kind := range policies.Kinds {
		if found.UID != "" {
			break
		}
		var err error
		if found, err = r.livePolicy(ctx, kind.OfNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	return policies.InstalledIn(found)
}

// livePolicy reads the policy from the API server. It returns an object without a UID if the policy does not exist.
func (r *Reconciler) livePolicy(ctx context.Context, policy policies.Ref) (*metav1.PartialObjectMetadata, error) {
	found := policyMetadata(policy)
	err := r.Live.Get(ctx, policy.NamespacedName, found)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return policyMetadata(policy), nil
	}
	return found, err
}

// hasPolicy returns true if the present spec of the subject has no room, but a policy already injects its pods. A policy of its own
// stays, even if the namespace has no room for it since an older object has grown, because new pods of the subject depend on it.
// In a shared policy, an earlier spec of the subject is installable.
func (r *Reconciler) hasPolicy(ctx context.Context, subject policies.Subject, installable []policies.Subject) (bool, error) {
	if r.Per == policies.PerNamespace {
		return slices.ContainsFunc(installable, func(s policies.Subject) bool { return s.GetName() == subject.GetName() }), nil
	}
	own, err := r.livePolicy(ctx, r.policyOf(subject))
	return err == nil && own.UID != "", err
}

// unreadable returns the state of a subject whose room in the budget is unknown.
func unreadable(subject policies.Subject, err error) installation {
	return notInstalled(subject, reasonPolicyRefused, fmt.Sprintf("the controller cannot read which policies namespace %s has, and tries again within %s: %v. "+
		"If this lasts, check the API server and the permissions of the controller", subject.GetNamespace(), maxRetryDelay, err))
}

// namespaceFull returns the state of a subject without room in the budget of its namespace. The deletion of another object
// reconciles the subject.
func (r *Reconciler) namespaceFull(subject policies.Subject) installation {
	full := fmt.Sprintf("the %d bytes that namespace %s gets of Kyverno's webhooks, which all namespaces share", r.Budget.Webhooks, subject.GetNamespace())
	share := ""
	switch {
	case r.Per == policies.PerNamespace:
		full = "their shared policy, or " + full
	case r.Kind.Shared:
		share = ", or set policyPer of the chart to namespace"
	}
	message := fmt.Sprintf("%[1]s %[2]s/%[3]s gets no policy: other objects fill %[4]s. "+
		"Create this %[1]s in another namespace, or delete others (kubectl get %[5]s -n %[2]s --sort-by=.metadata.creationTimestamp)%[6]s",
		r.Kind.Name, subject.GetNamespace(), subject.GetName(), full, strings.ToLower(r.Kind.Name), share)
	return installation{condition: newCondition(subject, metav1.ConditionFalse, reasonNamespaceFull, message), recheck: nextCheck()}
}

// outgrown returns the state of a subject whose present spec has no room in the shared policy. The policy has an earlier spec.
// A change of the policy reconciles the subject.
func (r *Reconciler) outgrown(subject policies.Subject) installation {
	message := fmt.Sprintf("%[1]s %[2]s/%[3]s has an earlier spec in %[4]s, because the policy has no room for the present one within %[5]d bytes. "+
		"New pods still get the earlier spec.containers, spec.holdInitContainers, spec.readinessProbes and spec.fencing. "+
		"Revert the change of these fields, or delete others (kubectl get %[6]s -n %[2]s)",
		r.Kind.Name, subject.GetNamespace(), subject.GetName(), r.policyOf(subject), r.Budget.Policy, strings.ToLower(r.Kind.Name))
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
	all, err := r.notTerminating(ctx, deleted.GetNamespace())
	if err == nil {
		all, err = r.withinBudget(ctx, all, r.Options.Kind.OfNamespace(deleted.GetNamespace()))
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list objects after a deletion. The periodic reconcile handles the deletion")
		return nil
	}
	for _, s := range all {
		if r.Condition(s).Reason == reasonNamespaceFull {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
		}
	}
	return requests
}
