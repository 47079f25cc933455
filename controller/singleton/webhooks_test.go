package singleton_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// webhooksOf returns Kyverno's object with webhooks for no existing resource, and with about the given size in bytes.
func webhooksOf(size int) *admissionregistrationv1.MutatingWebhookConfiguration {
	const each = 10_000
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "kyverno-resource-mutating-webhook-cfg"}}
	for i := range size / each {
		webhook := *kyvernoWebhooks()[0].Webhooks[0].DeepCopy()
		webhook.Name = fmt.Sprintf("mutate-%d.kyverno.svc", i)
		webhook.Rules[0].Rule = admissionregistrationv1.Rule{APIGroups: []string{"test"}, APIVersions: []string{"v1"}, Resources: []string{"nothing"}}
		webhook.ClientConfig.CABundle = bytes.Repeat([]byte("x"), each-webhook.Size())
		configuration.Webhooks = append(configuration.Webhooks, webhook)
	}
	return configuration
}

// setWebhooks replaces Kyverno's object, and returns the size that etcd gets.
func setWebhooks(w *world, size int) int {
	w.t.Helper()
	configuration := webhooksOf(size)
	w.Expect(client.IgnoreNotFound(c.Delete(w.t.Context(), webhooksOf(0)))).To(Succeed())
	w.Expect(c.Create(w.t.Context(), configuration)).To(Succeed())
	configuration.ManagedFields = nil
	return configuration.Size()
}

// measured starts the measurement, and waits until the metric has the size.
func (w *world) measured(registry *prometheus.Registry, webhooks *injection.Webhooks, size int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	go func() { _ = webhooks.Start(ctx) }()
	want := fmt.Sprintf(`
# HELP statefulsingleton_kyverno_webhooks_bytes Size of Kyverno's webhooks for mutation, as etcd gets them. 0 if this replica is not the leader, or Kyverno has no webhooks.
# TYPE statefulsingleton_kyverno_webhooks_bytes gauge
statefulsingleton_kyverno_webhooks_bytes %v
# HELP statefulsingleton_kyverno_webhooks_limit_bytes Size above which etcd rejects Kyverno's webhooks by default.
# TYPE statefulsingleton_kyverno_webhooks_limit_bytes gauge
statefulsingleton_kyverno_webhooks_limit_bytes 1.572864e+06
`, float64(size))
	w.Eventually(func() error { return testutil.GatherAndCompare(registry, strings.NewReader(want)) }).Should(Succeed())
}

// The controller warns before Kyverno's webhooks are too large for etcd: in a metric, and in the condition of each
// singleton after the next regular check. A restart of the controller changes no condition. The test cannot run in
// parallel, because the cluster has one object with Kyverno's webhooks.
func TestWebhooksNearlyFull(t *testing.T) {
	w := newLonelyWorld(t)
	w.kyverno(serves)
	t.Cleanup(func() { _ = c.Delete(context.Background(), webhooksOf(0)) })
	registry := prometheus.NewRegistry()
	webhooks := injection.NewWebhooks(registry, controllerClient) // with the rights of the chart
	r := newReconciler(controllerClient, controllerClient, w.clock)
	r.Injection.Webhooks = webhooks
	message := func() string {
		w.reconcile(r)
		return w.installedMessage(singletonName)
	}
	const warning = "take more than 80% of the largest size that etcd stores. Make room before new policies fail"

	w.measured(registry, webhooks, 0)
	w.createSingleton()
	w.Eventually(message).Should(ContainSubstring("injects new pods"))
	w.measured(registry, webhooks, setWebhooks(w, policies.WebhooksLimit*7/10))
	w.clock.advance(6 * time.Minute)
	w.Expect(message()).NotTo(ContainSubstring(warning))

	w.measured(registry, webhooks, setWebhooks(w, policies.WebhooksLimit*9/10))
	w.Expect(message()).NotTo(ContainSubstring(warning), "not before the next regular check")
	w.clock.advance(6 * time.Minute)
	w.Expect(message()).To(ContainSubstring(warning))
	w.Expect(w.isInstalled(w.key(singletonName))).To(BeTrue())

	r = newReconciler(controllerClient, controllerClient, w.clock)
	r.Injection.Webhooks = injection.NewWebhooks(prometheus.NewRegistry(), controllerClient)
	before := w.singleton().ResourceVersion
	w.Expect(message()).To(ContainSubstring(warning))
	w.Expect(w.singleton().ResourceVersion).To(Equal(before), "a restart writes no status")

	w.clock.advance(6 * time.Minute)
	w.Expect(message()).NotTo(ContainSubstring(warning))
}

// etcd accepts webhooks up to the limit that the controller assumes, and rejects larger webhooks. Managed fields do not
// count: the API server drops them from an object that is too large.
func TestWebhooksLimit(t *testing.T) {
	w := newLonelyWorld(t)
	t.Cleanup(func() { _ = c.Delete(context.Background(), webhooksOf(0)) })
	setWebhooks(w, policies.WebhooksLimit*98/100)
	stored := webhooksOf(0)
	w.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(stored), stored)).To(Succeed())
	larger := webhooksOf(policies.WebhooksLimit * 101 / 100)
	larger.ResourceVersion = stored.ResourceVersion
	w.Expect(c.Update(t.Context(), larger)).To(MatchError(ContainSubstring("request is too large")))

	many := webhooksOf(0)
	many.ResourceVersion = stored.ResourceVersion
	for i := range 2000 {
		webhook := *larger.Webhooks[0].DeepCopy()
		webhook.Name, webhook.ClientConfig.CABundle = fmt.Sprintf("mutate-%d.kyverno.svc", i), []byte("x")
		many.Webhooks = append(many.Webhooks, webhook)
	}
	w.Expect(c.Update(t.Context(), many)).To(Succeed())
	w.Expect(many.ManagedFields).To(BeEmpty())
}
