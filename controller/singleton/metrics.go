package singleton

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

var singletonsDesc = prometheus.NewDesc("statefulsingleton_singletons",
	"StatefulSingletons by phase (Idle: no pod is there and none is expected).", []string{"phase"}, nil)

// Metrics are what the controller counts.
type Metrics struct {
	handoffs *prometheus.CounterVec
	gap      prometheus.Histogram
	seconds  prometheus.Histogram
}

// NewMetrics registers the controller's metrics. The singletons are counted, at
// each scrape, as the reader has them.
func NewMetrics(registry prometheus.Registerer, reader client.Reader) *Metrics {
	registry.MustRegister(phases{reader})
	metrics := promauto.With(registry)
	return &Metrics{
		handoffs: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "statefulsingleton_handoffs_total",
			Help: "Handoffs completed, by what began them and by why the old holder was known to be dead (None: there was none).",
		}, []string{"cause", "proof"}),
		gap: metrics.NewHistogram(prometheus.HistogramOpts{
			Name:    "statefulsingleton_handoff_gap_seconds",
			Help:    "Time from the old main process's exit to the new one's start, as the kubelet's reports reached the controller.",
			Buckets: []float64{.05, .1, .2, .3, .5, .75, 1, 2, 5, 10, 30, 60, 300},
		}),
		seconds: metrics.NewHistogram(prometheus.HistogramOpts{
			Name:    "statefulsingleton_handoff_seconds",
			Help:    "Time from a handoff's first cause to the new holder being Ready.",
			Buckets: []float64{.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
		}),
	}
}

// completed counts a handoff whose new holder is Ready.
func (m *Metrics) completed(t *v1.Transition) {
	proof := string(t.Proof)
	if proof == "" {
		proof = "None"
	}
	m.handoffs.WithLabelValues(string(t.Cause), proof).Inc()
	if t.GapMilliseconds != nil {
		m.gap.Observe(float64(*t.GapMilliseconds) / 1000)
	}
	if t.Started != nil {
		m.seconds.Observe(t.Ready.Sub(t.Started.Time).Seconds())
	}
}

// phases counts the singletons in the cache whenever it is scraped.
type phases struct{ reader client.Reader }

func (p phases) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- singletonsDesc }

func (p phases) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list v1.StatefulSingletonList
	if err := p.reader.List(ctx, &list); err != nil {
		collected <- prometheus.NewInvalidMetric(singletonsDesc, err)
		return
	}
	counts := map[v1.Phase]int{"Idle": 0, v1.PhaseRunning: 0, v1.PhaseTransitioning: 0, v1.PhaseFailed: 0}
	for i := range list.Items {
		phase := list.Items[i].Status.Phase
		if phase == "" {
			phase = "Idle"
		}
		counts[phase]++
	}
	for phase, count := range counts {
		collected <- prometheus.MustNewConstMetric(singletonsDesc, prometheus.GaugeValue, float64(count), string(phase))
	}
}
