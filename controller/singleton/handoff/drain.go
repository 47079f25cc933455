package handoff

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// A holder whose node is drained, or that a person wants to replace, is replaced by a rollout of its
// Deployment. Meanwhile a PodDisruptionBudget blocks evictions of the holder. This file decides only when to
// replace the holder. It does not decide who may run.

// Reasons of condition EvictionBlocked.
const (
	budgetInPlace = "BudgetInPlace"
	drainIsEvict  = "DrainIsEvict"
	cannotSurge   = "CannotSurge"
	otherBudget   = "OtherBudget"
	drainTimedOut = "DrainTimedOut"
	// StandbyWaits: evictions are not blocked, because a pod is warm on another node.
	StandbyWaits = "StandbyWaits"
)

// nodeDrained is the reason of condition Draining.
const nodeDrained = "NodeDrained"

// BudgetName returns the name of the PodDisruptionBudget of a singleton, in the same namespace.
func BudgetName(singleton *v1.StatefulSingleton) string { return "statefulsingleton-" + singleton.Name }

// Budget returns the singleton's own PodDisruptionBudget, or nil.
func (s Snapshot) Budget() *policyv1.PodDisruptionBudget {
	return owner.Budget(s.Budgets, s.Singleton, owner.StatefulSingleton, BudgetName(s.Singleton))
}

// otherBudget returns a PodDisruptionBudget that covers the pod, or has the name of the singleton's own, and is not the
// singleton's own. It returns nil if there is none.
func (s Snapshot) otherBudget(pod *corev1.Pod) *policyv1.PodDisruptionBudget {
	return owner.OtherBudget(s.Budgets, s.Singleton, owner.StatefulSingleton, BudgetName(s.Singleton), pod)
}

// toleratesCordon returns true if the node is cordoned and the next pod could be scheduled to it again. Then a
// rollout would not move the holder.
func (d *decision) toleratesCordon() bool {
	node := d.CachedNodes[d.holder.Spec.NodeName]
	cordon := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return node != nil && node.Spec.Unschedulable && proof.Tolerates(d.holder.Pod, &cordon)
}

// drainDeadline returns until when evictions of the holder are blocked: maxTransitionTime after the drain was
// first seen.
func (d *decision) drainDeadline() time.Time {
	began := d.now
	if c := meta.FindStatusCondition(d.Singleton.Status.Conditions, v1.ConditionDraining); c != nil {
		began = c.LastTransitionTime.Time
	}
	return began.Add(time.Duration(d.Singleton.Spec.MaxTransitionTime) * time.Second)
}

// drainTimedOut returns true if the drain deadline has passed.
func (d *decision) drainTimedOut() bool { return !d.now.Before(d.drainDeadline()) }

// spare returns the warm standby if its node is not being drained, or nil.
func (d *decision) spare() *ClassifiedPod {
	if pod := d.warm(); pod != nil && pod.drained == "" {
		return pod
	}
	return nil
}

// handoverAsked returns the value of the annotation with which a person requests a handoff. Empty: there is no
// such request, or the request was handled.
func (d *decision) handoverAsked() string {
	value, last := d.Singleton.Annotations[v1.HandoverAnnotation], d.Singleton.Status.Handover
	if last != nil && last.Value == value {
		return ""
	}
	return value
}

// postpone returns true if a standby of a newer revision has to wait although it could take over.
func (d *decision) postpone(next *ClassifiedPod) bool {
	cold := ""
	if next.WaitsFor != "" {
		cold = d.waitsForHolder(next.Pod)
	}
	switch {
	case next.WaitsFor != "" && cold == "":
		return false
	case d.Singleton.Spec.Paused:
		d.found(Paused, "pod %s takes over from pod %s only when spec.paused is false", next.Name, d.holder.Name)
	case d.drained != "" && cold == "" && next.drained != "" && !d.drainTimedOut():
		d.found(StandbyNotWarm, "pod %s is warm, but %s; pod %s keeps running until a pod is warm on another node", next.Name, next.drained, d.holder.Name)
	case d.Singleton.Spec.Handoff == v1.HandoffManual && d.drained == "" && d.handoverAsked() == "":
		d.found(AwaitingHandover, "%s", d.awaitingHandoverMessage(next, cold))
	default:
		return false
	}
	d.adviseHolder()
	return true
}

// adviseHolder says why the holder is not Ready, if it is not.
func (d *decision) adviseHolder() {
	problem := nodeProblem(d.Nodes, d.holder.Pod)
	switch {
	case d.holderReady():
	case problem != "":
		d.advice = append(d.advice, fmt.Sprintf("node %s of pod %s %s", d.holder.Spec.NodeName, d.holder.Name, problem), d.lostNodeHelp(d.holder.Pod))
	default:
		d.advice = append(d.advice, fmt.Sprintf("pod %s is not Ready: %s", d.holder.Name, notReady(d.holder.Pod)))
	}
}

// replace rolls the holder's Deployment if the holder's node is drained or a person requests a handoff. It
// returns false if the holder is not replaced. While handoffs are paused, a request waits.
func (d *decision) replace() bool {
	asked := d.handoverAsked()
	deployment, why := d.surging(d.holder.Pod)
	if why != "" {
		if asked != "" {
			d.status.Handover = &v1.Handover{Value: asked, Refused: d.handoverRefusedMessage(asked, why)}
		}
		return false
	}
	if d.Singleton.Spec.Paused || asked == "" && (d.drained == "" || d.toleratesCordon() || d.spare() != nil) {
		return false
	}
	d.roll(deployment, d.holder.Pod)
	return true
}

// onlyLost returns the standby whose Lease expired if the nodes of all other standbys cannot start them, or nil. The node
// of the pod may be lost, even if it still appears Ready.
func (d *decision) onlyLost() (lost *ClassifiedPod) {
	for _, p := range d.standbys {
		switch {
		case d.lostLease(p):
			lost = p
		case p.nodeProblem == "":
			return nil
		}
	}
	return lost
}

// rollsLost returns the Deployment that may be rolled to replace a pod whose node may be lost, or nil.
func (d *decision) rollsLost(pod *corev1.Pod) *appsv1.Deployment {
	// The scheduler could bind the next pod to the lost node too, and so on.
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}
	deployment, why := d.surging(pod)
	if why != "" || d.Singleton.Spec.Drain == v1.DrainEvict || proof.Tolerates(pod, &unreachable) {
		return nil
	}
	return deployment
}

// roll rolls the Deployment to replace the pod, unless it was rolled already.
func (d *decision) roll(deployment *appsv1.Deployment, pod *corev1.Pod) {
	rolled := deployment.Spec.Template.Annotations[v1.ReplacesAnnotation] == string(pod.UID) ||
		revisionOf(deployment) > d.revision(pod)
	if !rolled {
		d.do(Roll{Deployment: deployment.Name, UID: deployment.UID, Version: Version(deployment.ResourceVersion), Replaces: refOf(pod)})
	}
	d.found(Rolling, "Deployment %s is rolled, and the pod that takes over from pod %s does not exist yet", deployment.Name, pod.Name)
}

// replaced returns CauseDrain or CauseHandover if that is why the holder's Deployment was rolled. Empty: there
// is another cause.
func (d *decision) replaced() v1.Cause {
	_, why := d.surging(d.holder.Pod)
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

// reportEvictions decides whether evictions of the holder are blocked, and reports that and a drain.
func (d *decision) reportEvictions() {
	reason, message := d.evictions()
	d.plan.Budget = reason == budgetInPlace
	d.setCondition(v1.ConditionEvictionBlocked, d.plan.Budget, reason, message)
	if d.drained == "" {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionDraining)
	} else {
		message = d.drained + ": " + message
		d.message += "; " + message
		d.setCondition(v1.ConditionDraining, true, nodeDrained, message)
	}
	if h := d.status.Handover; h != nil && h.Refused != "" && h.Value == d.Singleton.Annotations[v1.HandoverAnnotation] {
		d.message += "; " + h.Refused
	}
}

// evictions returns what happens to an eviction of the holder, as reason and message of a condition. The
// reason is budgetInPlace if evictions are blocked.
func (d *decision) evictions() (reason, message string) {
	_, why := d.surging(d.holder.Pod)
	other := d.otherBudget(d.holder.Pod)
	switch {
	case d.Singleton.Spec.Drain == v1.DrainEvict:
		return drainIsEvict, evictionMessage("spec.drain is Evict")
	case other != nil:
		return otherBudget, fmt.Sprintf("PodDisruptionBudget %s exists, and the controller creates none beside it: "+
			"a pod that two budgets cover cannot be evicted", other.Name)
	case why != "":
		return cannotSurge, evictionMessage(why)
	case d.drained != "" && d.toleratesCordon():
		return cannotSurge, evictionMessage("the holder tolerates cordoned nodes, and the next pod could be scheduled to the same node")
	case d.drained != "" && d.Singleton.Spec.Paused && !d.drainTimedOut():
		return budgetInPlace, fmt.Sprintf("evictions of the holder are blocked while spec.paused is true, at most until %s",
			d.drainDeadline().UTC().Format(time.RFC3339))
	case d.drained != "" && d.newest() == nil && d.spare() != nil:
		return StandbyWaits, fmt.Sprintf("an eviction hands over to pod %s, which is warm on node %s", d.spare().Name, d.spare().Spec.NodeName)
	case d.drained != "" && d.drainTimedOut() && d.Singleton.Spec.Paused:
		return drainTimedOut, evictionMessage("spec.paused is true, and maxTransitionTime has passed since the drain began")
	case d.drained != "" && d.drainTimedOut():
		return drainTimedOut, evictionMessage(fmt.Sprintf("no pod was warm on another node within maxTransitionTime (%ds)", d.Singleton.Spec.MaxTransitionTime))
	case d.drained != "":
		return budgetInPlace, fmt.Sprintf("evictions of the holder are blocked until another pod is warm, at most until %s",
			d.drainDeadline().UTC().Format(time.RFC3339))
	}
	if d.Singleton.Spec.Paused {
		return budgetInPlace, "evictions of the holder are blocked; in a drain, at most for maxTransitionTime while spec.paused is true"
	}
	return budgetInPlace, "evictions of the holder are blocked; once its node is cordoned, another pod warms up first"
}

// concludeDrain ends a drain and a requested handoff when the holder changes.
func (d *decision) concludeDrain() {
	if d.status.ActivePodUID == d.Singleton.Status.ActivePodUID {
		return
	}
	meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionDraining)
	if asked := d.handoverAsked(); asked != "" {
		d.status.Handover = &v1.Handover{Value: asked}
	}
}
