package singleton

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// budgetOf returns the PodDisruptionBudget that blocks evictions of the singleton's holder. It selects the holder by its
// role, so a handoff does not change the budget. An unready pod can still be evicted. The singleton owns the
// budget.
func budgetOf(singleton *v1.StatefulSingleton) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: singleton.Namespace, Name: handoff.BudgetName(singleton),
			Labels:          map[string]string{v1.SingletonLabel: singleton.Name, policies.ManagedByLabel: policies.ManagedBy},
			OwnerReferences: controlledBy(singleton),
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(0)),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
				v1.SingletonLabel: singleton.Name, v1.RoleLabel: v1.RoleActive,
			}},
		},
	}
}

// controlledBy returns the owner references of an object that is garbage-collected with the singleton.
func controlledBy(singleton *v1.StatefulSingleton) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: singleton.Name, UID: singleton.UID,
		Controller: new(true),
	}}
}

// createBudget creates the singleton's PodDisruptionBudget if it is needed and does not exist.
func (r *Reconciler) createBudget(ctx context.Context, singleton *v1.StatefulSingleton, found *policyv1.PodDisruptionBudget, wanted bool) error {
	if found != nil || !wanted {
		return nil
	}
	budget := budgetOf(singleton)
	err := r.Client.Create(ctx, budget)
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("create PodDisruptionBudget %s, which blocks evictions of the holder: %w", client.ObjectKeyFromObject(budget), err)
}

// deleteBudget removes a PodDisruptionBudget that is no longer needed. A budget that somebody changed is deleted
// too: the next reconcile creates it again.
func (r *Reconciler) deleteBudget(ctx context.Context, singleton *v1.StatefulSingleton, found *policyv1.PodDisruptionBudget, wanted bool) error {
	budget := budgetOf(singleton)
	if found == nil || wanted && equality.Semantic.DeepEqual(found.Spec, budget.Spec) {
		return nil
	}
	if err := r.Client.Delete(ctx, budget, client.Preconditions{UID: &found.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PodDisruptionBudget %s, which blocks evictions of the holder: %w", client.ObjectKeyFromObject(budget), err)
	}
	return nil
}

// reasonBudgetRefused is the reason of condition EvictionBlocked if the budget cannot be created.
const reasonBudgetRefused = "BudgetRefused"

// reportNoBudget sets condition EvictionBlocked to False because the budget cannot be created.
func reportNoBudget(stored, singleton *v1.StatefulSingleton, err error) {
	c := metav1.Condition{
		Type: v1.ConditionEvictionBlocked, Status: metav1.ConditionFalse, Reason: reasonBudgetRefused, ObservedGeneration: singleton.Generation,
		Message: "an eviction stops the holder at once: can't " + handoff.OneLine(err.Error()),
	}
	if was := meta.FindStatusCondition(stored.Status.Conditions, v1.ConditionEvictionBlocked); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime // the plan set it to True
	}
	meta.SetStatusCondition(&singleton.Status.Conditions, c)
}
