package lock

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/tenure"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// budgetOf returns the PodDisruptionBudget that blocks evictions of the writer. It selects the writer by its role, so a
// change of the writer does not change the budget. An unready pod can still be evicted.
func budgetOf(lock *v1.StatefulSetLock) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lock.Namespace, Name: tenure.BudgetName(lock),
			Labels:          map[string]string{v1.LockLabel: lock.Name, policies.ManagedByLabel: policies.ManagedBy},
			OwnerReferences: controlledBy(lock),
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(0)),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
			Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{v1.LockLabel: lock.Name, v1.StsRoleLabel: v1.StsRoleWriter}},
		},
	}
}

// writeBudget creates or deletes the PodDisruptionBudget of the lock.
func (r *Reconciler) writeBudget(ctx context.Context, lock *v1.StatefulSetLock, wanted bool) error {
	budget, found := budgetOf(lock), &policyv1.PodDisruptionBudget{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(budget), found)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PodDisruptionBudget %s: %w", client.ObjectKeyFromObject(budget), err)
	}
	switch exists := err == nil; {
	case wanted && !exists:
		if err := r.Client.Create(ctx, budget); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create PodDisruptionBudget %s: %w", client.ObjectKeyFromObject(budget), err)
		}
	case !wanted && exists && metav1.IsControlledBy(found, lock):
		if err := r.Client.Delete(ctx, found, client.Preconditions{UID: &found.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete PodDisruptionBudget %s: %w", client.ObjectKeyFromObject(budget), err)
		}
	}
	return nil
}
