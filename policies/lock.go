package policies

import (
	"fmt"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// LockAnnotation has the StatefulSetLock of a policy, as <namespace>/<name>.
const LockAnnotation = "apps.statefulsingleton.com/lock"

// renderLock returns the policy that makes each new pod of the lock's StatefulSet a reader. With fencing by a Lease, the
// policy also prepares the pod for the gate.
func renderLock(l *v1.StatefulSetLock, o Options) (*unstructured.Unstructured, error) {
	if o.Kind == NamespacedMutatingPolicy {
		return mutatingLock(l, o)
	}
	policy := clusterPolicy(o.Kind.Of(l), l.Namespace, ownedCEL(l))
	policy.Labels[v1.LockLabel] = l.Name
	// While Kyverno is down, pods are created without a role. The controller makes them readers, and a guard rejects writers.
	// With fencing by a Lease, such a pod never becomes the writer, because the controller gives the Lease only to fenced pods.
	policy.Spec.WebhookConfiguration.FailurePolicy = new(kyvernov1.Ignore)
	policy.Annotations[LockAnnotation] = keyOf(l).String()
	// Kyverno evaluates the rules of every policy that matches, also for pods of other StatefulSets.
	ofSet := owned(l)
	rules := []kyvernov1.Rule{
		{
			Name:                "make-reader",
			RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(ofSet)},
			Mutation: &kyvernov1.Mutation{PatchesJSON6902: patch(
				add("/metadata/labels/"+pointer(v1.StsRoleLabel), v1.StsRoleReader),
				add("/metadata/labels/"+pointer(v1.LockLabel), l.Name),
			)},
		},
	}
	if l.Spec.Fencing == v1.LockFencingLease {
		addCondition(policy, isSmall)
		rules = append(rules, lockFencingRules(l, o, ofSet)...)
	}
	rules = append(rules, kyvernov1.Rule{
		Name:                "answer-probe",
		RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(isProbe, ofSet)},
		Mutation:            &kyvernov1.Mutation{PatchesJSON6902: patch(add("/metadata/annotations/"+pointer(answer(o.Kind.Of(l))), "true"))},
	})
	policy.Spec.Rules = forPods(kyvernov1.ResourceFilters{newPods(l.Namespace, lockSelector())}, rules...)
	return toUnstructured(policy)
}

// ownedCEL and owned return the condition that the lock's StatefulSet controls the pod. They compare the group too, as package
// owner does.
func ownedCEL(l *v1.StatefulSetLock) string {
	return fmt.Sprintf("has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == %q && o.apiVersion.startsWith(%q) && "+
		"o.name == %s && has(o.controller) && o.controller)", owner.StatefulSet.Kind, owner.StatefulSet.Group+"/", celString(l.Spec.StatefulSetName))
}

func owned(l *v1.StatefulSetLock) string {
	return fmt.Sprintf("contains(request.object.metadata.ownerReferences[?kind == '%s' && starts_with(apiVersion, '%s/') && controller].name || `[]`, %s)",
		owner.StatefulSet.Kind, owner.StatefulSet.Group, stringLiteral(l.Spec.StatefulSetName))
}

// lockSelector selects the pods of all StatefulSets.
func lockSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: appsv1.StatefulSetPodNameLabel, Operator: metav1.LabelSelectorOpExists,
	}}}
}

// stringLiteral returns a string as a JMESPath literal.
func stringLiteral(text string) string {
	list := listLiteral([]string{text})
	return "`" + list[2:len(list)-2] + "`" // without the brackets of the list
}

// lockProbe returns a pod of the lock's StatefulSet for a server-side dry-run.
func lockProbe(l *v1.StatefulSetLock, o Options) *corev1.Pod {
	pod := probePod(l.Namespace, "probe", o)
	pod.Labels = map[string]string{appsv1.StatefulSetPodNameLabel: probeName}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet", Name: l.Spec.StatefulSetName,
		UID: l.UID, Controller: new(true), // a dry-run stores nothing, so any UID will do
	}}
	return pod
}

// checkLockProbe returns nil if the probe pod is a reader of the lock, and fenced if the lock asks for it.
func checkLockProbe(pod *corev1.Pod, l *v1.StatefulSetLock) error {
	switch {
	case pod.Labels[v1.LockLabel] != l.Name:
		return fmt.Errorf("label %s is %q", v1.LockLabel, pod.Labels[v1.LockLabel])
	case pod.Labels[v1.StsRoleLabel] != v1.StsRoleReader:
		return fmt.Errorf("label %s is %q", v1.StsRoleLabel, pod.Labels[v1.StsRoleLabel])
	}
	// Another webhook may have added a container to the probe that keeps pods from being fenced.
	if l.Spec.Fencing == v1.LockFencingLease && lockFenceable(pod) {
		if problem := notFencedByLock(pod, l); problem != "" {
			return fmt.Errorf("%w: %s", ErrNotFenced, problem)
		}
	}
	return nil
}
