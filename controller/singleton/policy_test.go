package singleton_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// kyverno sets the behavior of the webhook for Kyverno in the namespace of the test.
func (w *world) kyverno(does string) {
	w.t.Helper()
	w.label(kyvernoLabel, does)
}

// kyvernoStops makes Kyverno unavailable, and waits until the API server has applied the change.
func (w *world) kyvernoStops() {
	w.t.Helper()
	w.kyverno(isDown)
	w.Eventually(w.injectedNow).Should(BeFalse())
}

// injectedNow returns true if a dry-run of a new pod of the singleton is injected. It fails if the pod is rejected.
func (w *world) injectedNow() bool {
	w.t.Helper()
	pod := w.bare("new")
	w.Expect(c.Create(w.t.Context(), pod, client.DryRunAll)).To(Succeed())
	return pod.Annotations[v1.InjectedAnnotation] != ""
}

// label sets a label of the namespace to a JSON value.
func (w *world) label(label, value string) {
	w.t.Helper()
	w.merge(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, `{"metadata":{"labels":{"`+label+`":`+value+`}}}`)
}

const (
	serves  = `"serves"`
	refuses = `"refuses"`
	isDown  = `null`
)

// policy returns the policy of the singleton, or else the policy of its namespace, or nil.
func (w *world) policy() *unstructured.Unstructured {
	w.t.Helper()
	if own := w.policyNamed(policies.Name(w.key(singletonName))); own != nil {
		return own
	}
	return w.policyNamed(policies.NamespaceName(w.namespace))
}

func (w *world) policyNamed(name string) *unstructured.Unstructured {
	w.t.Helper()
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	return found(w, name, policy)
}

// installed waits until condition PolicyInstalled has the reason.
func (w *world) installed(reason string) *metav1.Condition {
	w.t.Helper()
	w.Eventually(w.reason(v1.ConditionPolicyInstalled)).Should(Equal(reason))
	condition := meta.FindStatusCondition(w.singleton().Status.Conditions, v1.ConditionPolicyInstalled)
	w.Expect(condition.Message).NotTo(ContainSubstring("\n"))
	w.Expect(condition.Status == metav1.ConditionTrue).To(Equal(reason == "Injected"), "status with reason %s", reason)
	return condition
}

// installedCondition returns condition PolicyInstalled of a singleton, or an empty one.
func (w *world) installedCondition(name string) metav1.Condition {
	w.t.Helper()
	return ptr.Deref(meta.FindStatusCondition(w.named(name).Status.Conditions, v1.ConditionPolicyInstalled), metav1.Condition{})
}

func (w *world) installedReason(name string) string { return w.installedCondition(name).Reason }

// reports waits until condition PolicyInstalled of a singleton has the reason. On a busy machine, checks fail while the API server
// learns of new policies, and the next check follows after up to a minute.
func (w *world) reports(name, reason string) {
	w.t.Helper()
	w.Eventually(func() string { return w.installedReason(name) }).WithTimeout(3*time.Minute).Should(Equal(reason), "PolicyInstalled of %s", name)
}

// edit changes the rules of the policy until the controller reverts the change. It repeats the change, because the
// watch of the controller may have just started.
func (w *world) edit(wanted []string) {
	w.t.Helper()
	rule := map[string]any{
		"name":     "harmless",
		"match":    map[string]any{"any": []any{map[string]any{"resources": map[string]any{"kinds": []any{"Secret"}}}}},
		"validate": map[string]any{"message": "no", "deny": map[string]any{}},
	}
	first := w.policy().GetGeneration()
	w.Eventually(func() bool {
		policy := w.policy()
		if policy.GetGeneration() > first && slices.Equal(w.ruleNames(), wanted) {
			return true
		}
		rule["validate"].(map[string]any)["message"] = policy.GetResourceVersion()
		w.Expect(unstructured.SetNestedField(policy.Object, []any{rule}, "spec", "rules")).To(Succeed())
		w.Expect(client.IgnoreNotFound(c.Update(w.t.Context(), policy))).To(Or(Succeed(), MatchError(apierrors.IsConflict, "conflict")))
		return false
	}).WithPolling(500 * time.Millisecond).Should(BeTrue())
}

// ruleNames returns the names of the policy's rules.
func (w *world) ruleNames() []string {
	w.t.Helper()
	var names []string
	if policy := w.policy(); policy != nil {
		rules, _, err := unstructured.NestedSlice(policy.Object, "spec", "rules")
		w.Expect(err).NotTo(HaveOccurred())
		for _, rule := range rules {
			names = append(names, rule.(map[string]any)["name"].(string))
		}
	}
	return names
}

// A policy that somebody changes or deletes is restored, and changes with the spec. The watch shows in each reconcile that the
// policy is unchanged, so a handoff reads no policy from the API server.
func TestPolicy(t *testing.T) {
	w := newInjected(t)
	w.eventually("NoPods")
	w.Expect(meta.IsStatusConditionTrue(w.singleton().Status.Conditions, v1.ConditionReady)).To(BeTrue(), "clients that wait for Ready create the first pod")
	wanted := w.ruleNames()
	w.Expect(wanted).To(ContainElement("add-sidecar"))
	w.edit(wanted) // the watch has started after this
	w.installed("Injected")

	first := w.hold("db-1", withCommand)
	before := w.policyReads.Load()
	w.warmPod("db-2", withCommand)
	w.end(first)
	w.Eventually(w.holder).Should(Equal("db-2"))
	w.serve(w.pod("db-2"))
	w.Expect(w.policyReads.Load() - before).To(BeZero())

	policy := w.policy()
	w.delete(policy)
	w.Eventually(w.ruleNames).Should(Equal(wanted))
	w.Expect(w.policy().GetUID()).NotTo(Equal(policy.GetUID()))
	w.merge(w.singleton(), `{"spec":{"holdInitContainers":true}}`)
	w.Eventually(w.ruleNames).Should(ContainElement("hold-init-containers"))
	w.Eventually(func() int64 { return w.singleton().Status.ObservedGeneration }).Should(Equal(int64(2)))
	w.installed("Injected")
}

// Deletion of a singleton deletes its policy and removes the finalizers of all pods. The holder keeps running.
func TestDeletion(t *testing.T) {
	w := newRunning(t)
	w.hold("db-1", withCommand)
	w.warmPod("db-2", withCommand)
	w.Eventually(func() []string { return w.singleton().Status.StandbyPods }).Should(Equal([]string{"db-2"}))
	w.Expect(w.policy()).NotTo(BeNil())

	w.delete(w.singleton())
	w.gone()
	w.Expect(w.policy()).To(BeNil())
	holder := w.pod("db-1")
	w.Expect(holder.DeletionTimestamp).To(BeNil())
	w.Expect(hasFinalizer(holder)).To(BeFalse())
	w.Expect(signalled(w.pod("db-2"))).To(BeFalse())
	w.journal.wantOrder(
		writeStep{"the finalizer of db-1 is removed", wrote("db-1", func(p *corev1.Pod) bool {
			return signalled(p) && proof.IsTrue(p, corev1.PodReady) && !hasFinalizer(p)
		})},
		writeStep{"the singleton is removed", removes[*v1.StatefulSingleton](singletonName)},
	)
}

// A singleton without pods is Ready only after new pods would be held.
func TestKyvernoDown(t *testing.T) {
	tests := map[string]struct {
		kyverno     string
		wantReason  string
		wantMessage string
	}{
		"does not inject": {kyverno: isDown, wantReason: "NotInjected", wantMessage: "new pods are not held"},
		"refuses":         {kyverno: refuses, wantReason: "ProbeRefused", wantMessage: `denied the request: resource Pod was blocked due to the following policies; some-policy: some-rule: not on my watch. Check whether Kyverno runs: kubectl get pods -A`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(test.kyverno)
			w.startManager()
			w.createSingleton()
			w.installed("Installing")
			w.clock.advance(time.Minute)

			condition := w.installed(test.wantReason)
			w.Expect(condition.Message).To(ContainSubstring(test.wantMessage))
			s := w.singleton()
			w.Expect(s.Status.Message).To(Equal(condition.Message))
			w.Expect(meta.IsStatusConditionFalse(s.Status.Conditions, v1.ConditionReady)).To(BeTrue())
			w.wantEvent(corev1.EventTypeWarning, test.wantReason)

			w.kyverno(serves)
			w.installed("Injected")
			w.eventually("NoPods")
		})
	}
}

// A policy is checked again after a success, even while a holder runs. An event reports a lost injection.
func TestInjectionLost(t *testing.T) {
	w := newServed(t)
	r := w.fresh()
	w.holdBy(r, "db-1", withCommand)
	w.checked(r, singletonName)

	w.kyverno(isDown)
	w.reconcile(r)
	w.installed("Injected") // the last check is recent
	w.clock.advance(time.Hour)
	w.Eventually(func() string {
		w.reconcile(r)
		w.clock.advance(time.Hour)
		return w.reason(v1.ConditionPolicyInstalled)()
	}).Should(Equal("NotInjected"))
	w.Expect(w.singleton().Status.Phase).To(Equal(v1.PhaseRunning), "the holder is not touched")
	w.Expect(r.emitted()).To(ContainElement(HavePrefix("Warning NotInjected new pods are not held")))
}

// Policy options may change when the controller restarts. The controller then writes and checks each policy again, and
// changes no pod.
func TestOtherOptions(t *testing.T) {
	w := newServed(t)
	r := w.fresh()
	w.holdBy(r, "db-1", withCommand)
	w.checked(r, singletonName)
	w.reconcile(r)
	settled := w.pod("db-1").ResourceVersion

	w.kyvernoStops()
	other := w.fresh()
	other.Injection.Options.SidecarImage = "another"
	w.reconcile(other)
	w.installed("Installing")
	w.Expect(fmt.Sprint(w.policy().Object["spec"])).To(ContainSubstring(`"image":"another"`))

	w.kyverno(serves)
	w.checked(other, singletonName)
	w.Expect(w.pod("db-1").ResourceVersion).To(Equal(settled))
}

// wantEvent waits for an event for the singleton.
func (w *world) wantEvent(kind, reason string) eventsv1.Event {
	w.t.Helper()
	var found eventsv1.Event
	w.Eventually(func() bool {
		var list eventsv1.EventList
		w.Expect(c.List(w.t.Context(), &list, client.InNamespace(w.namespace))).To(Succeed())
		for _, e := range list.Items {
			if e.Regarding.Name == singletonName && e.Type == kind && e.Reason == reason {
				found = e
				return true
			}
		}
		return false
	}).Should(BeTrue(), "event %s %s", kind, reason)
	return found
}

// If the CRD accepts a selector that Kubernetes rejects, the status says so, and no pod of the namespace is changed.
func TestInvalidSelector(t *testing.T) {
	w, r := newSteps(t, func(s *v1.StatefulSingleton) { s.Spec.Selector.MatchLabels = map[string]string{"app": "my database"} })
	bystander := w.bare("bystander")
	w.create(bystander)
	w.reconcile(r)
	condition := w.installed("InvalidSpec")
	w.Expect(condition.Message).To(ContainSubstring("spec.selector"))
	w.Expect(w.singleton().Status.Message).To(Equal(condition.Message))
	w.Expect(w.pod("bystander").ResourceVersion).To(Equal(bystander.ResourceVersion))
}

// If a selector is too large for Kyverno's webhooks, the status says so and what to do. No policy has the selector, and
// the other singletons of the namespace are installed.
func TestSelectorTooLarge(t *testing.T) {
	for _, per := range []policies.Per{policies.PerSingleton, policies.PerNamespace} {
		t.Run(string(per), func(t *testing.T) {
			w := newWorld(t)
			w.kyverno(serves)
			r := w.controllerOf(per, controllerClient)
			w.createSingleton(func(s *v1.StatefulSingleton) {
				expression := v1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn}
				for i := range 32 {
					expression.Values = append(expression.Values, fmt.Sprintf("db-%d-", i)+strings.Repeat("x", 55))
				}
				s.Spec.Selector = v1.LabelSelector{MatchExpressions: slices.Repeat([]v1.LabelSelectorRequirement{expression}, 16)}
			})
			w.reconcile(r)
			condition := w.installed("SelectorTooLarge")
			w.Expect(condition.Message).To(ContainSubstring("Create another StatefulSingleton with fewer or shorter labels and values"))
			w.Expect(w.singleton().Status.Message).To(Equal(condition.Message))

			w.createNamed("queue")
			w.checked(r, "queue")
			w.Expect(w.injectedNames()).To(Equal([]string{"queue"}))
			w.delete(w.singleton())
			w.reconcile(r)
			w.gone()
		})
	}
}

// Without Kyverno's CRD, the status reports that Kyverno is missing. The test cannot run in parallel, because it
// removes the CRD for all tests.
func TestKyvernoMissing(t *testing.T) {
	w := newLonelyWorld(t)
	w.uninstallCRDs(kyvernoCRDs)
	w.Eventually(func() bool { return meta.IsNoMatchError(listPolicies(t)) }).Should(BeTrue())
	install := func() {
		_, err := envtest.InstallCRDs(config, kyvernoCRDs)
		w.Expect(err).NotTo(HaveOccurred())
	}
	installed := false
	t.Cleanup(func() {
		if !installed {
			install()
		}
	})
	w.kyverno(serves)
	w.startManager()
	s := w.createSingleton()

	condition := w.installed("KyvernoMissing")
	w.Expect(condition.Message).To(ContainSubstring("the cluster serves no kyverno.io/v1 ClusterPolicy"))
	w.Expect(w.singleton().Status.Message).To(Equal(condition.Message))
	w.wantEvent(corev1.EventTypeWarning, "KyvernoMissing")

	// A singleton can be deleted without Kyverno.
	w.delete(s)
	w.removed(s)

	// If Kyverno is installed after the controller, the policies are also watched.
	w.createSingleton()
	w.installed("KyvernoMissing")
	install()
	installed = true
	w.installed("Injected")
	w.edit(w.ruleNames())
}

// uninstallCRDs waits until the definitions are deleted, because envtest updates a definition that is being deleted
// instead of creating it again. It lists the objects first: kube-apiserver can fail to delete a definition for minutes
// ("storage is (re)initializing") if the deletion is the first reader of the objects.
func (w *world) uninstallCRDs(options envtest.CRDInstallOptions) {
	w.t.Helper()
	w.Expect(envtest.ReadCRDFiles(&options)).To(Succeed())
	options.Paths = nil
	for _, definition := range options.CRDs {
		objects := &metav1.PartialObjectMetadataList{}
		objects.SetGroupVersionKind(schema.GroupVersionKind{Group: definition.Spec.Group, Version: definition.Spec.Versions[0].Name, Kind: definition.Spec.Names.ListKind})
		w.Eventually(func() error { return c.List(w.t.Context(), objects) }).Should(Succeed())
	}
	w.Expect(envtest.UninstallCRDs(config, options)).To(Succeed())
	for _, definition := range options.CRDs {
		w.Eventually(func() error {
			return c.Get(w.t.Context(), client.ObjectKeyFromObject(definition), definition)
		}).Should(MatchError(apierrors.IsNotFound, "not found"), func() string { return fmt.Sprintf("%s: %+v", definition.Name, definition.Status.Conditions) })
	}
}

// listPolicies lists policies with a new client, which discovers the served kinds again.
func listPolicies(t *testing.T) error {
	anew, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	return anew.List(t.Context(), list)
}
