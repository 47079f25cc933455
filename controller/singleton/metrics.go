package singleton

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

var (
	singletonsDesc = prometheus.NewDesc("statefulsingleton_singletons",
		"StatefulSingletons by phase (Idle: no pod exists and none is expected).", []string{"phase"}, nil)
	conditionsDesc = prometheus.NewDesc("statefulsingleton_conditions",
		"StatefulSingletons of a namespace by each of their conditions.", []string{"namespace", "type", "status", "reason"}, nil)
)

// Metrics are the metrics of handoffs.
type Metrics struct {
	handoffs *prometheus.CounterVec
	gap      prometheus.Histogram
	seconds  prometheus.Histogram
}

// NewMetrics registers the controller's metrics. Singletons and their conditions are counted at each scrape, from the
// reader. Handoffs of each cause and proof are counted from 0.
func NewMetrics(registry prometheus.Registerer, reader client.Reader) *Metrics {
	registry.MustRegister(states{reader})
	metrics := promauto.With(registry)
	m := &Metrics{
		handoffs: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "statefulsingleton_handoffs_total",
			Help: "Completed handoffs, by cause and by the proof that the old holder had terminated (None: there was no old holder).",
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
	// A series that begins at 1 is no increase for Prometheus.
	for _, cause := range causes {
		for _, proof := range proofsOf(cause) {
			m.handoffs.WithLabelValues(string(cause), proof)
		}
	}
	return m
}

// noProof is the proof of a handoff without an old holder.
const noProof = "None"

var (
	causes = []v1.Cause{
		v1.CauseCreated, v1.CauseAdopted, v1.CauseRollout, v1.CauseDrain, v1.CauseHandover, v1.CauseEviction, v1.CauseDeletion,
		v1.CauseScaleDown, v1.CauseCompletion, v1.CauseExpiry,
	}
	proofs = []string{
		string(v1.ProofNeverSignalled), string(v1.ProofKubeletReported), string(v1.ProofNodeOutOfService), string(v1.ProofAttested),
		string(v1.ProofLeaseReleased), string(v1.ProofLeaseExpired),
	}
)

// proofsOf returns the proofs that a handoff of the cause can have.
func proofsOf(cause v1.Cause) []string {
	if cause == v1.CauseCreated || cause == v1.CauseAdopted {
		return []string{noProof}
	}
	return proofs
}

// completed counts a handoff whose new holder is Ready.
func (m *Metrics) completed(t *v1.Transition) {
	m.handoffs.WithLabelValues(string(t.Cause), cmp.Or(string(t.Proof), noProof)).Inc()
	if t.GapMilliseconds != nil {
		m.gap.Observe(float64(*t.GapMilliseconds) / 1000)
	}
	if t.Started != nil {
		m.seconds.Observe(t.Ready.Sub(t.Started.Time).Seconds())
	}
}

// states counts the singletons of the cache at each scrape.
type states struct{ reader client.Reader }

func (s states) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- singletonsDesc
	descriptions <- conditionsDesc
}

func (s states) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list v1.StatefulSingletonList
	if err := s.reader.List(ctx, &list); err != nil {
		collected <- prometheus.NewInvalidMetric(singletonsDesc, err)
		return
	}
	// Each phase has a series, even at 0, because alerts can compare it.
	phases := map[string]int{"Idle": 0, string(v1.PhaseRunning): 0, string(v1.PhaseTransitioning): 0, string(v1.PhaseFailed): 0}
	type condition struct{ namespace, conditionType, status, reason string }
	conditions := map[condition]int{}
	for i := range list.Items {
		one := &list.Items[i]
		phases[cmp.Or(string(one.Status.Phase), "Idle")]++
		for _, c := range one.Status.Conditions {
			conditions[condition{one.Namespace, c.Type, string(c.Status), c.Reason}]++
		}
	}
	for phase, count := range phases {
		collected <- prometheus.MustNewConstMetric(singletonsDesc, prometheus.GaugeValue, float64(count), phase)
	}
	for c, count := range conditions {
		collected <- prometheus.MustNewConstMetric(conditionsDesc, prometheus.GaugeValue, float64(count), c.namespace, c.conditionType, c.status, c.reason)
	}
}
