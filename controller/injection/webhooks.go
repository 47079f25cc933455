package injection

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

const (
	// webhooksName is the name of the object with Kyverno's webhooks. No setting of Kyverno changes it.
	webhooksName = "kyverno-resource-mutating-webhook-cfg"
	// measurePeriod is the time between two reads of the object.
	measurePeriod = time.Minute
)

// nearlyFullWarning is a sentence of condition PolicyInstalled. It has no number, because each change of the condition is a write.
const nearlyFullWarning = ". Kyverno's webhooks, which all namespaces share, take more than 80% of the largest size that etcd stores. " +
	"Make room before new policies fail: set policyPer of the chart to namespace, or delete policies of Kyverno that nobody needs"

// Webhooks measures the size of Kyverno's webhooks. Only the leader measures.
type Webhooks struct {
	live  client.Reader
	bytes prometheus.Gauge
	full  atomic.Bool
}

// NewWebhooks returns Webhooks that read from the API server, and registers the metrics.
func NewWebhooks(registry prometheus.Registerer, live client.Reader) *Webhooks {
	metrics := promauto.With(registry)
	metrics.NewGauge(prometheus.GaugeOpts{
		Name: "statefulsingleton_kyverno_webhooks_limit_bytes",
		Help: "Size above which etcd rejects Kyverno's webhooks by default.",
	}).Set(policies.WebhooksLimit)
	return &Webhooks{live: live, bytes: metrics.NewGauge(prometheus.GaugeOpts{
		Name: "statefulsingleton_kyverno_webhooks_bytes",
		Help: "Size of Kyverno's webhooks for mutation, as etcd gets them. 0 if this replica is not the leader, or Kyverno has no webhooks.",
	})}
}

// Start implements manager.Runnable.
func (w *Webhooks) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := w.measure(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to read the size of Kyverno's webhooks. The next read follows in a minute")
		}
	}, measurePeriod)
	return nil
}

// measure reads the size without managed fields, because the API server drops them from an object that is too large.
func (w *Webhooks) measure(ctx context.Context) error {
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	err := w.live.Get(ctx, client.ObjectKey{Name: webhooksName}, configuration)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	size := 0
	if !apierrors.IsNotFound(err) {
		configuration.ManagedFields = nil
		size = configuration.Size()
	}
	w.bytes.Set(float64(size))
	w.full.Store(size > policies.WebhooksLimit*4/5)
	return nil
}

// nearlyFull returns true if the last read found more than 80% of the limit.
func (w *Webhooks) nearlyFull() bool { return w != nil && w.full.Load() }
