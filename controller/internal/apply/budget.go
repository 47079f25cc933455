package apply

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// BudgetRefused is the reason of condition EvictionBlocked if the PodDisruptionBudget cannot be created.
const BudgetRefused = "BudgetRefused"

// BudgetOfSingleton returns the PodDisruptionBudget that blocks evictions of the holder of a StatefulSingleton. It selects the pod by
// its role, so a change of the role does not change it. An unready pod can still be evicted.
func BudgetOfSingleton(s *v1.StatefulSingleton, name string) *policyv1.PodDisruptionBudget {
	return budgetOf(s, owner.StatefulSingleton, name, v1.SingletonLabel, v1.RoleLabel, v1.RoleActive)
}

// BudgetOfLock returns the same for the writer of a StatefulSetLock.
func BudgetOfLock(l *v1.StatefulSetLock, name string) *policyv1.PodDisruptionBudget {
	return budgetOf(l, owner.StatefulSetLock, name, v1.LockLabel, v1.StsRoleLabel, v1.StsRoleWriter)
}

// budgetOf returns the PodDisruptionBudget that the object owns, and that selects the pod with the object's label and the role. With
// maxUnavailable, Kubernetes would count the pods that the pod's owner wants. Spares and readers would count as missing, and a
// pod without an owner, for example after a change of its labels, would cause warnings.
func budgetOf(o client.Object, kind schema.GroupKind, name, label, roleLabel, role string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: name,
			Labels:          map[string]string{label: o.GetName(), v1.ManagedByLabel: v1.ManagedBy},
			OwnerReferences: owner.References(o, kind),
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable:               new(intstr.FromInt32(1)),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
			Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{label: o.GetName(), roleLabel: role}},
		},
	}
}

// CreateBudget creates the PodDisruptionBudget if it is wanted and was not found.
func CreateBudget(ctx context.Context, c client.Client, budget, found *policyv1.PodDisruptionBudget, wanted bool) error {
	if found != nil || !wanted {
		return nil
	}
	err := c.Create(ctx, budget)
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("create PodDisruptionBudget %s: %w", client.ObjectKeyFromObject(budget), err)
}

// DeleteBudget deletes the PodDisruptionBudget that was found if it is not wanted, or if somebody changed it: the next reconcile creates
// it again.
func DeleteBudget(ctx context.Context, c client.Client, budget, found *policyv1.PodDisruptionBudget, wanted bool) error {
	if found == nil || wanted && equality.Semantic.DeepEqual(found.Spec, budget.Spec) {
		return nil
	}
	if err := c.Delete(ctx, budget, client.Preconditions{UID: &found.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PodDisruptionBudget %s: %w", client.ObjectKeyFromObject(budget), err)
	}
	return nil
}

// ReportRefusedBudget sets condition EvictionBlocked to False because of an error of CreateBudget. The role of the pod is "holder" or
// "writer". The stored conditions are those before the plan set the condition to True.
func ReportRefusedBudget(stored []metav1.Condition, conditions *[]metav1.Condition, budget *policyv1.PodDisruptionBudget, role string, err error, generation int64) {
	c := metav1.Condition{
		Type: v1.ConditionEvictionBlocked, Status: metav1.ConditionFalse, Reason: BudgetRefused, ObservedGeneration: generation,
		Message: fmt.Sprintf("an eviction stops the %s at once: can't %s. The controller tries again. To show the quotas, run: kubectl describe quota -n %s",
			role, OneLine(err.Error()), budget.Namespace),
	}
	if was := meta.FindStatusCondition(stored, c.Type); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	meta.SetStatusCondition(conditions, c)
}
