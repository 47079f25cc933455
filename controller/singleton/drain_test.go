package singleton_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// node creates a node for this test only, with the name of the namespace.
func (w *world) node() *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	w.create(node)
	w.t.Cleanup(func() { _ = c.Delete(context.Background(), node) })
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.Expect(c.Status().Update(w.t.Context(), node)).To(Succeed())
	return node
}

func (w *world) cordon(node *corev1.Node, cordoned bool) {
	w.t.Helper()
	before := node.DeepCopy()
	node.Spec.Unschedulable = cordoned
	w.Expect(c.Patch(w.t.Context(), node, client.MergeFrom(before))).To(Succeed())
}

func onNode(node *corev1.Node) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node.Name }
}

// budget returns the PodDisruptionBudget of the singleton, or nil if it does not exist.
func (w *world) budget() *policyv1.PodDisruptionBudget {
	w.t.Helper()
	return found(w, "statefulsingleton-"+singletonName, &policyv1.PodDisruptionBudget{})
}

func (w *world) annotate(key, value string) {
	w.t.Helper()
	w.merge(w.singleton(), `{"metadata":{"annotations":{"`+key+`":"`+value+`"}}}`)
}

// replaces returns the uid of the holder that the Deployment was rolled to replace.
func (w *world) replaces(d *appsv1.Deployment) func() string {
	return func() string {
		w.Expect(c.Get(w.t.Context(), client.ObjectKeyFromObject(d), d)).To(Succeed())
		return d.Spec.Template.Annotations[v1.ReplacesAnnotation]
	}
}

// takeOver ends the terminating holder, and makes the next pod serve.
func (w *world) takeOver(first, second *corev1.Pod) {
	w.t.Helper()
	w.end(first)
	w.Eventually(w.holder).Should(Equal(second.Name))
	w.remove(first)
	w.serve(second)
}

// A holder on a cordoned node is replaced while its budget blocks evictions. The budget is not written again.
func TestWarmDrain(t *testing.T) {
	w := newRunning(t)
	d, node := w.deployment(), w.node()
	first := w.hold("db-1", ownedBy(w.replicaSet(d, 1)), withCommand, onNode(node))
	w.Expect(w.singleton().Status.ActiveNode).To(Equal(node.Name))

	w.Eventually(w.budget).ShouldNot(BeNil())
	budget := w.budget()
	w.Expect(metav1.IsControlledBy(budget, w.singleton())).To(BeTrue(), "the singleton owns the budget")
	w.Expect(budget.Labels).To(Equal(map[string]string{v1.SingletonLabel: singletonName, v1.ManagedByLabel: v1.ManagedBy}), "by which manager uninstall finds it")
	w.Expect(budget.Spec).To(Equal(policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(1)), UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.SingletonLabel: singletonName, v1.RoleLabel: v1.RoleActive}},
	}))

	w.cordon(node, true)
	w.Eventually(w.replaces(d)).Should(Equal(string(first.UID)))
	s := w.eventually("Rolling")
	w.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionDraining)).To(BeTrue())
	w.Expect(s.Status.Message).To(ContainSubstring("node " + node.Name + " is cordoned: evictions of the holder are blocked until another pod is warm, at most until "))
	w.wantEvent(corev1.EventTypeNormal, "Rolled")
	w.wantEvent(corev1.EventTypeNormal, "Draining")

	second := w.warmPod("db-2", ownedBy(w.replicaSet(d, 2)), withCommand)
	w.retired()
	w.takeOver(first, second)
	s = w.singleton()
	wantTransition(t, s, v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseDrain, Proof: v1.ProofKubeletReported})
	w.Expect(s.Status.ActiveNode).To(Equal(nodeName))
	w.Expect(meta.FindStatusCondition(s.Status.Conditions, v1.ConditionDraining)).To(BeNil())
	w.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionEvictionBlocked)).To(BeTrue())
	w.Expect(w.budget()).To(Equal(budget), "a handoff leaves the budget as it is")
	w.Expect(d.Generation).To(Equal(int64(2)), "the Deployment is rolled once")
	w.Expect(w.journal.wantOneAtATime()).To(Equal(2))
}

// If no pod takes over in time, the budget is deleted. The budget is created again after the node is uncordoned.
func TestDrainTimesOut(t *testing.T) {
	w := newRunning(t)
	d, node := w.deployment(), w.node()
	w.hold("db-1", ownedBy(w.replicaSet(d, 1)), withCommand, onNode(node))
	w.Eventually(w.budget).ShouldNot(BeNil())
	w.cordon(node, true)
	w.eventually("Rolling")
	second := w.createPod("db-2", ownedBy(w.replicaSet(d, 2)))
	w.eventually("StandbyNotWarm")
	w.Expect(w.budget()).NotTo(BeNil())

	w.clock.advance(301 * time.Second)
	w.report(second, pulling)
	w.Eventually(w.budget).Should(BeNil())
	s := w.singleton()
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseFailed))
	w.Expect(s.Status.Message).To(ContainSubstring("an eviction stops the holder at once, because no pod was warm on another node within maxTransitionTime (300s)"))
	w.Expect(s.Status.ActivePod).To(Equal("db-1"))
	w.wantEvent(corev1.EventTypeWarning, "DrainTimedOut")

	w.cordon(node, false)
	w.Eventually(w.budget).ShouldNot(BeNil())
	w.Eventually(w.reason(v1.ConditionEvictionBlocked)).Should(Equal("BudgetInPlace"))
	w.Expect(w.reason(v1.ConditionDraining)()).To(BeEmpty())
}

// The time limit of a drain also applies if the Deployment cannot be rolled.
func TestRollIsRefused(t *testing.T) {
	w, _ := newSteps(t)
	d, node := w.deployment(), w.node()
	r := w.refusing(isOf[*appsv1.Deployment])
	w.holdBy(r, "db-1", ownedBy(w.replicaSet(d, 1)), withCommand, onNode(node))
	w.cordon(node, true)
	w.reconcile(r)
	w.Expect(w.reason(v1.ConditionReady)()).To(Equal("Rolling"))
	w.Expect(meta.IsStatusConditionTrue(w.singleton().Status.Conditions, v1.ConditionDraining)).To(BeTrue())

	w.clock.advance(301 * time.Second)
	w.Expect(w.budget()).NotTo(BeNil())
	w.reconcile(r)
	w.Expect(w.budget()).To(BeNil())
}

// One budget covers the holder. If the user has a budget, the singleton has none.
func TestBudgets(t *testing.T) {
	w := newRunning(t)
	w.hold("db-1", ownedBy(w.replicaSet(w.deployment(), 1)), withCommand)
	w.Eventually(w.budget).ShouldNot(BeNil())

	theirs := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "theirs"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		},
	}
	w.create(theirs)
	w.Eventually(w.budget).Should(BeNil())
	w.Eventually(w.reason(v1.ConditionEvictionBlocked)).Should(Equal("OtherBudget"))
	w.wantEvent(corev1.EventTypeNormal, "OtherBudget")
	w.delete(theirs)
	w.Eventually(w.budget).ShouldNot(BeNil())

	// The controller reverts changes to the budget of the singleton.
	w.delete(w.budget())
	w.Eventually(w.budget).ShouldNot(BeNil())
	changed := w.budget()
	changed.Spec.MinAvailable = new(intstr.FromInt32(0))
	w.Expect(c.Update(t.Context(), changed)).To(Succeed())
	w.Eventually(func() bool {
		b := w.budget()
		return b != nil && b.UID != changed.UID && b.Spec.MinAvailable.IntValue() == 1
	}).Should(BeTrue())

	w.merge(w.singleton(), `{"spec":{"drain":"Evict"}}`)
	w.Eventually(w.budget).Should(BeNil())
}

// With handoff Manual, a rollout waits for a new value of the annotation. Each value starts one handoff.
func TestHandover(t *testing.T) {
	// Otherwise each check of the injection would also read the annotation.
	w := newInjected(t, func(s *v1.StatefulSingleton) { s.Spec.Handoff = v1.HandoffManual })
	d := w.deployment()
	first := w.hold("db-1", ownedBy(w.replicaSet(d, 1)), withCommand)
	second := w.warmPod("db-2", ownedBy(w.replicaSet(d, 2)), withCommand)
	s := w.eventually("AwaitingHandover")
	w.Expect(s.Status.Phase).To(Equal(v1.PhaseRunning))
	w.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionReady)).To(BeTrue())
	w.Expect(s.Status.Message).To(ContainSubstring("Run: kubectl annotate -n " + w.namespace + " stfs db " + v1.HandoverAnnotation + "="))

	w.annotate(v1.HandoverAnnotation, "one")
	w.retired()
	w.Expect(w.replaces(d)()).To(BeEmpty(), "a pod that takes over is there already")
	w.takeOver(first, second)
	s = w.singleton()
	wantTransition(t, s, v1.Transition{From: "db-1", To: "db-2", Cause: v1.CauseHandover, Proof: v1.ProofKubeletReported})
	w.Expect(s.Status.Handover).To(Equal(&v1.Handover{Value: "one"}))

	w.annotate(v1.HandoverAnnotation, "two")
	w.Eventually(w.replaces(d)).Should(Equal(string(second.UID)))
}

// A requested handoff is refused and reported if no pod can be warm before the holder stops.
func TestHandoverIsRefused(t *testing.T) {
	w, r := newSteps(t)
	w.holdBy(r, "db-1", withCommand)
	w.annotate(v1.HandoverAnnotation, "one")
	w.reconcile(r)
	status := w.singleton().Status
	w.Expect(status.ActivePod).To(Equal("db-1"))
	w.Expect(status.Handover.Refused).To(ContainSubstring("pod db-1 belongs to no Deployment"))
	w.Expect(status.Message).To(HaveSuffix(status.Handover.Refused))
	w.Expect(r.emitted()).To(ContainElement("Warning HandoverRefused " + status.Handover.Refused))
	w.Expect(w.budget()).To(BeNil())
}

// If the budget cannot be created, evictions do not wait, and condition EvictionBlocked reports the error.
func TestBudgetIsRefused(t *testing.T) {
	w, _ := newSteps(t)
	refusing := w.refusing(isOf[*policyv1.PodDisruptionBudget])
	pod := w.warmPod("db-1", ownedBy(w.replicaSet(w.deployment(), 1)), withCommand)
	w.reconcileHandoff(refusing)
	w.report(pod, ready)
	var versions []string
	for range 2 {
		_, err := refusing.Reconciler.Reconcile(t.Context(), w.request())
		w.Expect(err).To(MatchError(apierrors.IsForbidden, "forbidden"), "it is tried again")
		s := w.singleton()
		versions = append(versions, s.ResourceVersion)
		guarded := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionEvictionBlocked)
		w.Expect(guarded.Status).To(Equal(metav1.ConditionFalse))
		w.Expect(guarded.Reason).To(Equal("BudgetRefused"))
		w.Expect(guarded.Message).To(And(ContainSubstring("can't create PodDisruptionBudget "), ContainSubstring(notOnMyWatch), ContainSubstring("kubectl ")))
		w.Expect(w.reason(v1.ConditionReady)()).To(Equal("HolderReady"))
	}
	w.Expect(versions[1]).To(Equal(versions[0]), "what was said is not written again")

	w.reconcile(w.fresh())
	w.Expect(w.reason(v1.ConditionEvictionBlocked)()).To(Equal("BudgetInPlace"))
	w.Expect(w.budget()).NotTo(BeNil())
}

// In a terminating namespace, the controller creates no budget and reports no error.
func TestNoBudgetInTerminatingNamespace(t *testing.T) {
	w, r := newSteps(t)
	pod := w.warmPod("db-1", ownedBy(w.replicaSet(w.deployment(), 1)), withCommand)
	w.reconcileHandoff(r)
	w.Expect(w.budget()).To(BeNil())
	w.delete(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
	w.report(pod, ready)
	w.reconcileHandoff(r)
	w.Expect(w.reason(v1.ConditionEvictionBlocked)()).To(Equal("BudgetInPlace"))
	w.Expect(w.budget()).To(BeNil())
}

// readiness sets the Ready condition that the node controller writes.
func (w *world) readiness(node *corev1.Node, ready corev1.ConditionStatus) {
	w.t.Helper()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.Expect(c.Status().Update(w.t.Context(), node)).To(Succeed())
}

// A standby is not warm while its node does not answer. Node events update the status, because the next requeue is
// minutes later.
func TestStandbyOnUnreachableNode(t *testing.T) {
	w := newInjected(t) // otherwise each check of the injection would also read the node
	d, node := w.deployment(), w.node()
	d.Spec.Replicas = new(int32(2))
	w.Expect(c.Update(t.Context(), d)).To(Succeed())
	rs := w.replicaSet(d, 1)
	w.hold("db-1", ownedBy(rs), withCommand)
	w.clock.advance(time.Minute) // a younger standby is reconciled again soon even without node events
	w.warmPod("db-2", ownedBy(rs), withCommand, onNode(node))
	message := func() string { return w.singleton().Status.Message }
	w.Eventually(message).Should(ContainSubstring("pod db-2 is warm"))

	w.readiness(node, corev1.ConditionUnknown)
	w.Eventually(message).Should(ContainSubstring("pod db-2 can't start: its node " + node.Name + " does not answer"))
	w.readiness(node, corev1.ConditionTrue)
	w.Eventually(message).Should(ContainSubstring("pod db-2 is warm"))
	w.delete(node)
	w.Eventually(message).Should(ContainSubstring("pod db-2 can't start: its node " + node.Name + " does not exist"))
}

// A rollout waits while the node of the new pod does not answer, and continues after the node is Ready.
func TestRolloutToUnreachableNode(t *testing.T) {
	w := newRunning(t)
	d, node := w.deployment(), w.node()
	first := w.hold("db-1", ownedBy(w.replicaSet(d, 1)), withCommand)
	w.readiness(node, corev1.ConditionFalse)
	second := w.warmPod("db-2", ownedBy(w.replicaSet(d, 2)), withCommand, onNode(node))
	s := w.eventually("StandbyNotWarm")
	w.Expect(s.Status.Message).To(ContainSubstring("pod db-2 can't start: its node " + node.Name + " does not answer; pod db-1 keeps running until pod db-2 is warm"))
	w.Expect(w.pod("db-1").DeletionTimestamp).To(BeNil())

	w.readiness(node, corev1.ConditionTrue)
	w.retired()
	w.takeOver(first, second)
	w.Expect(w.singleton().Status.ActiveNode).To(Equal(node.Name))
}

// oldBudgets is a client with an old cache of budgets.
type oldBudgets struct {
	client.Client
	budgets []policyv1.PodDisruptionBudget
}

func (o oldBudgets) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if budgets, ok := list.(*policyv1.PodDisruptionBudgetList); ok {
		budgets.Items = o.budgets
		return nil
	}
	return o.Client.List(ctx, list, options...)
}

// A budget cache that lags causes no error and no wrong write.
func TestBudgetInAnOldCache(t *testing.T) {
	w, r := newSteps(t)
	w.holdBy(r, "db-1", ownedBy(w.replicaSet(w.deployment(), 1)), withCommand)
	w.reconcile(r)
	budget := w.budget()
	w.Expect(budget).NotTo(BeNil())
	recreated := budget.DeepCopy()
	recreated.UID, recreated.Spec.MinAvailable = "before", nil
	for what, known := range map[string][]policyv1.PodDisruptionBudget{"none": nil, "the budget before": {*recreated}} {
		w.reconcile(w.controllersWith(oldBudgets{controllerClient, known}))
		w.Expect(w.budget()).To(Equal(budget), "the cache has %s", what)
		w.Expect(w.reason(v1.ConditionEvictionBlocked)()).To(Equal("BudgetInPlace"))
	}
	w.delete(budget.DeepCopy())
	w.merge(w.singleton(), `{"spec":{"drain":"Evict"}}`)
	w.reconcile(w.controllersWith(oldBudgets{controllerClient, []policyv1.PodDisruptionBudget{*budget}}))
	w.Expect(w.budget()).To(BeNil())
}
