package handoff

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// A holder that is to go, since its node is drained or a person wants it replaced,
// is replaced in one way: its Deployment is rolled. What follows is a rollout like
// any other. Meanwhile a PodDisruptionBudget has evictions of the holder wait.
// Nothing here is about who may run; a drain is but a hint of when to hand over.

// Reasons of condition Guarded.
const (
	guardStands   = "Guarded"
	drainIsEvict  = "DrainIsEvict"
	cannotSurge   = "CannotSurge"
	otherBudget   = "OtherBudget"
	drainTimedOut = "DrainTimedOut"
	// StandbyWaits: evictions don't wait, since a pod is warm on another node already.
	StandbyWaits = "StandbyWaits"
)

// BudgetName is the name of the PodDisruptionBudget of a singleton, in its namespace.
func BudgetName(singleton *v1.StatefulSingleton) string { return "statefulsingleton-" + singleton.Name }

// Budget is the singleton's own, nil if it does not exist.
func (s Snapshot) Budget() *policyv1.PodDisruptionBudget {
	i := slices.IndexFunc(s.Budgets, func(b policyv1.PodDisruptionBudget) bool { return s.ownBudget(&b) })
	if i < 0 {
		return nil
	}
	return &s.Budgets[i]
}

func (s Snapshot) ownBudget(b *policyv1.PodDisruptionBudget) bool {
	return b.Name == BudgetName(s.Singleton) && metav1.IsControlledBy(b, s.Singleton)
}

// otherBudget is one of somebody else's that covers the pod, or stands where the
// singleton's own would; nil if there is none. A pod that two cover can't be
// evicted at all.
func (s Snapshot) otherBudget(pod *corev1.Pod) *policyv1.PodDisruptionBudget {
	for i := range s.Budgets {
		b := &s.Budgets[i]
		if s.ownBudget(b) {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if b.Name == BudgetName(s.Singleton) || err == nil && selector.Matches(labels.Set(pod.Labels)) {
			return b
		}
	}
	return nil
}

// surging is the Deployment that brings up a pod beside the holder when it is
// rolled, and does not stop the holder before; nil if there is none, and then why.
func (d *decision) surging() (deployment *appsv1.Deployment, why string) {
	owner := metav1.GetControllerOf(d.holder.Pod)
	if owner == nil {
		return nil, fmt.Sprintf("pod %s belongs to no Deployment", d.holder.Name)
	}
	if deployment = d.deployment(d.holder.Pod); deployment == nil {
		return nil, fmt.Sprintf("pod %s belongs to %s %s, and not to a Deployment", d.holder.Name, owner.Kind, owner.Name)
	}
	spec := &deployment.Spec
	replicas := int(ptr.Deref(spec.Replicas, 1))
	surge, unavailable := 1, 0 // of one replica, by default
	if rolling := spec.Strategy.RollingUpdate; rolling != nil {
		surge = resolve(rolling.MaxSurge, replicas, true)
		unavailable = resolve(rolling.MaxUnavailable, replicas, false)
	}
	switch {
	case deployment.DeletionTimestamp != nil || replicas == 0:
		why = "wants no pod any more"
	case spec.Paused:
		why = "is paused"
	case spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		why = "has strategy Recreate"
	case surge == 0:
		why = "has maxSurge 0"
	case unavailable >= replicas:
		why = "stops the holder at once when it is rolled, since its maxUnavailable is not below its replicas"
	default:
		return deployment, ""
	}
	return nil, fmt.Sprintf("Deployment %s %s", deployment.Name, why)
}

// resolve is the number of pods that a count or a percentage comes to, as the
// Deployment controller rounds it (k8s.io/kubernetes/pkg/controller/deployment/util.ResolveFenceposts).
func resolve(value *intstr.IntOrString, replicas int, roundUp bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromString("25%")), replicas, roundUp)
	if err != nil {
		return 0 // the API server lets no such value in
	}
	return n
}

// noDrain are taints of which something else tells: the condition Ready, the cordon,
// and a person's word that the node is off.
var noDrain = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeOutOfService}

// drainOf says why the pod's node is being drained. Empty: it is not, or it does
// not answer, which is no drain.
func (s Snapshot) drainOf(pod *corev1.Pod) string {
	node := s.CachedNodes[pod.Spec.NodeName]
	if node == nil || !NodeReady(node) {
		return ""
	}
	if node.Spec.Unschedulable {
		return fmt.Sprintf("node %s is cordoned", node.Name)
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		switch {
		case taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute:
		case slices.Contains(noDrain, taint.Key):
		case !tolerates(pod, taint):
			return fmt.Sprintf("node %s bears taint %s", node.Name, taint.ToString())
		}
	}
	return ""
}

// tolerates tells whether the pod may stay on a node that bears the taint, for good.
func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.TolerationSeconds == nil && t.ToleratesTaint(logr.Discard(), taint, true)
	})
}

// toleratesCordon tells whether the next pod may come to the holder's node though it
// is cordoned, so that rolling would lead nowhere.
func (d *decision) toleratesCordon() bool {
	node := d.CachedNodes[d.holder.Spec.NodeName]
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return node != nil && node.Spec.Unschedulable && tolerates(d.holder.Pod, &cordon)
}

// drainDeadline is until when evictions of the holder wait; now and its patience, if
// the drain was not noticed before.
func (d *decision) drainDeadline() time.Time {
	began := d.now
	if c := meta.FindStatusCondition(d.Singleton.Status.Conditions, v1.ConditionDraining); c != nil {
		began = c.LastTransitionTime.Time
	}
	return began.Add(time.Duration(d.Singleton.Spec.MaxTransitionTime) * time.Second)
}

// drainTimedOut tells whether evictions of the holder have waited long enough.
func (d *decision) drainTimedOut() bool { return !d.now.Before(d.drainDeadline()) }

// spare is a pod that is warm on a node that is not drained, and would take over.
func (d *decision) spare() *ClassifiedPod {
	if pod := d.warm(); pod != nil && pod.drained == "" {
		return pod
	}
	return nil
}

// handoverAsked is a person's word that the holder be replaced. Empty: there is
// none that is not done with.
func (d *decision) handoverAsked() string {
	value, last := d.Singleton.Annotations[v1.HandoverAnnotation], d.Singleton.Status.Handover
	if last != nil && last.Value == value {
		return ""
	}
	return value
}

// postpone has a standby of a newer revision wait, though it could take over. It
// returns false where nothing speaks against that.
func (d *decision) postpone(next *ClassifiedPod) bool {
	cold := ""
	if next.WaitsFor != "" {
		cold = d.waitsForHolder(next.Pod)
	}
	switch {
	case next.WaitsFor != "" && cold == "":
		return false
	case d.drained != "" && cold == "" && next.drained != "" && !d.drainTimedOut():
		d.found(StandbyNotWarm, "pod %s is warm, but %s; pod %s goes on until one is warm elsewhere", next.Name, next.drained, d.holder.Name)
	case d.Singleton.Spec.Handoff == v1.HandoffManual && d.drained == "" && d.handoverAsked() == "":
		state := "is warm"
		if cold != "" {
			state = "can only warm up once pod " + d.holder.Name + " is gone, since " + cold
		}
		d.found(AwaitingHandover, "pod %s %s, and takes over from pod %s when you say so, since spec.handoff is Manual. Run: kubectl annotate -n %s stfs %s %s=\"$(date +%%s)\" --overwrite",
			next.Name, state, d.holder.Name, d.Singleton.Namespace, d.Singleton.Name, v1.HandoverAnnotation)
	default:
		return false
	}
	return true
}

// replace has a pod come that takes over from the holder, where the holder's node is
// drained or a person asks for it. It returns false where none is to come.
func (d *decision) replace() bool {
	asked := d.handoverAsked()
	deployment, why := d.surging()
	if why != "" {
		d.refuseHandover(asked, why)
		return false
	}
	if asked == "" && (d.drained == "" || d.toleratesCordon() || d.spare() != nil) {
		return false
	}
	rolled := deployment.Spec.Template.Annotations[v1.ReplacesAnnotation] == string(d.holder.UID) ||
		revisionOf(deployment) > d.revision(d.holder.Pod)
	if !rolled {
		d.do(Roll{Deployment: deployment.Name, UID: deployment.UID, Version: Version(deployment.ResourceVersion), Replaces: refOf(d.holder.Pod)})
	}
	d.found(Rolling, "Deployment %s is rolled, and the pod that takes over from pod %s has not come yet", deployment.Name, d.holder.Name)
	return true
}

// refuseHandover is done with a person's word that can't be followed.
func (d *decision) refuseHandover(asked, why string) {
	if asked != "" {
		d.status.Handover = &v1.Handover{Value: asked, Refused: fmt.Sprintf(
			"annotation %s=%s is not followed: %s, and so no pod can be warm before the holder stops. To replace it all the same, run: kubectl delete -n %s pod %s",
			v1.HandoverAnnotation, asked, why, d.holder.Namespace, d.holder.Name)}
	}
}

// replaced is what had the holder's owner scale it away, besides a rollout; empty if
// nothing else did.
func (d *decision) replaced() v1.Cause {
	_, why := d.surging()
	switch {
	case why != "" || d.holder.DeletionTimestamp == nil || !d.outdated(d.holder.Pod):
		return ""
	case meta.IsStatusConditionTrue(d.Singleton.Status.Conditions, v1.ConditionDraining):
		return v1.CauseDrain
	case d.handoverAsked() != "":
		return v1.CauseHandover
	}
	return ""
}

// guard decides whether evictions of a holder that is not going have to wait, and
// tells of that and of a drain.
func (d *decision) guard() {
	reason, message := d.evictions()
	d.plan.Budget = reason == guardStands
	kind := metav1.ConditionFalse
	if d.plan.Budget {
		kind = metav1.ConditionTrue
	}
	d.setConditionTo(v1.ConditionGuarded, kind, reason, message)
	if d.drained == "" {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionDraining)
	} else {
		d.message += "; " + d.drained + ": " + message
		d.setConditionTo(v1.ConditionDraining, metav1.ConditionTrue, "NodeDrained", d.drained+": "+message)
	}
	if h := d.status.Handover; h != nil && h.Refused != "" && h.Value == d.Singleton.Annotations[v1.HandoverAnnotation] {
		d.message += "; " + h.Refused
	}
}

// evictions tells what becomes of one of the holder: the reason is guardStands where it
// waits.
func (d *decision) evictions() (reason, message string) {
	const atOnce = "an eviction stops the holder at once, since "
	_, why := d.surging()
	other := d.otherBudget(d.holder.Pod)
	switch {
	case d.Singleton.Spec.Drain == v1.DrainEvict:
		return drainIsEvict, atOnce + "spec.drain is Evict"
	case other != nil:
		return otherBudget, fmt.Sprintf("PodDisruptionBudget %s decides on evictions of the holder, and not one of the controller's: a pod that two cover can't be evicted at all", other.Name)
	case why != "":
		return cannotSurge, atOnce + why
	case d.drained != "" && d.toleratesCordon():
		return cannotSurge, atOnce + "it tolerates cordoned nodes, and the next pod might come to the same one"
	case d.drained != "" && d.newest() == nil && d.spare() != nil:
		return StandbyWaits, fmt.Sprintf("an eviction hands over to pod %s, which is warm on node %s", d.spare().Name, d.spare().Spec.NodeName)
	case d.drained != "" && d.drainTimedOut():
		return drainTimedOut, fmt.Sprintf("%sno pod was warm on another node within maxTransitionTime (%ds)", atOnce, d.Singleton.Spec.MaxTransitionTime)
	case d.drained != "":
		return guardStands, fmt.Sprintf("evictions of the holder wait until another pod is warm, at most until %s", d.drainDeadline().UTC().Format(time.RFC3339))
	}
	return guardStands, "evictions of the holder wait; once its node is cordoned, another pod warms up first"
}

// concludeDrain is for what changed along with the holder: neither drain nor word is
// about the next one.
func (d *decision) concludeDrain() {
	if d.status.ActivePodUID == d.Singleton.Status.ActivePodUID {
		return
	}
	meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionDraining)
	if asked := d.handoverAsked(); asked != "" {
		d.status.Handover = &v1.Handover{Value: asked}
	}
}
