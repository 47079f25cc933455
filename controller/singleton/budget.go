package singleton

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// budgetOf has every eviction of the singleton's holder wait, whichever pod that is,
// so that a handoff leaves the budget as it is. A pod that is not Ready, and so
// serves nobody, may be evicted all the same. It belongs to the singleton and goes
// with it.
func budgetOf(singleton *v1.StatefulSingleton) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: singleton.Namespace, Name: handoff.BudgetName(singleton),
			Labels: map[string]string{v1.SingletonLabel: singleton.Name, policies.ManagedByLabel: policies.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: singleton.Name, UID: singleton.UID,
				Controller: new(true),
			}},
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

// ensureBudget has the singleton's PodDisruptionBudget be there or not. One that
// somebody changed is deleted: that is seen, and it is created anew.
func (r *Reconciler) ensureBudget(ctx context.Context, singleton *v1.StatefulSingleton, found *policyv1.PodDisruptionBudget, wanted bool) error {
	budget := budgetOf(singleton)
	key := client.ObjectKeyFromObject(budget)
	switch {
	case found == nil && wanted:
		err := r.Client.Create(ctx, budget)
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return fmt.Errorf("create PodDisruptionBudget %s, which has evictions of the holder wait: %w", key, err)
		}
	case found != nil && !(wanted && equality.Semantic.DeepEqual(found.Spec, budget.Spec)):
		if err := r.Client.Delete(ctx, budget, client.Preconditions{UID: &found.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete PodDisruptionBudget %s, so that evictions of the holder wait no longer: %w", key, err)
		}
	}
	return nil
}
