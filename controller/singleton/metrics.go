package singleton

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/scrape"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// gauges are the metrics of each StatefulSingleton. Their labels are bounded, because only the controller writes
// status.
var gauges = []scrape.Gauge[*v1.StatefulSingleton]{
	scrape.NewGauge("statefulsingleton_info", "1, with the phase of the StatefulSingleton (Idle: no pod exists and none is expected) and its active pod.",
		[]string{"phase", "active_pod", "node", "fencing"}, func(s *v1.StatefulSingleton, export scrape.Export) {
			export(1, cmp.Or(string(s.Status.Phase), "Idle"), s.Status.ActivePod, s.Status.ActiveNode, string(s.Spec.Fencing))
		}),
	scrape.NewGauge("statefulsingleton_active", "1 while the StatefulSingleton has an active pod that is Ready or serves until the next pod is warm, otherwise 0.",
		nil, func(s *v1.StatefulSingleton, export scrape.Export) { export(scrape.Bool(isActive(&s.Status))) }),
	scrape.NewGauge("statefulsingleton_last_gap_seconds", "Gap of the last handoff. No series until the gap is known.",
		nil, func(s *v1.StatefulSingleton, export scrape.Export) {
			if t := s.Status.LastTransition; t != nil && t.GapMilliseconds != nil {
				export(float64(*t.GapMilliseconds) / 1000)
			}
		}),
	scrape.NewGauge("statefulsingleton_last_handoff_timestamp_seconds", "When the last handoff completed. No series until the new active pod is Ready.",
		nil, func(s *v1.StatefulSingleton, export scrape.Export) {
			if t := s.Status.LastTransition; t != nil && t.Ready != nil {
				export(scrape.Seconds(t.Ready.Time))
			}
		}),
	scrape.Conditions[*v1.StatefulSingleton]("statefulsingleton_condition"),
}

// isActive returns true if the active pod is Ready, or serves until the next pod of a rollout is warm. In a rollout,
// the status does not say whether the active pod is still as Ready as it was before.
func isActive(status *v1.StatefulSingletonStatus) bool {
	switch outcomeOf(status) {
	case handoff.Rolling, handoff.StandbyNotWarm, handoff.Retiring:
		return status.LastTransition != nil && status.LastTransition.Ready != nil
	default:
		return status.ActivePod != "" && meta.IsStatusConditionTrue(status.Conditions, v1.ConditionReady)
	}
}

// Metrics are the metrics of handoffs.
type Metrics struct {
	handoffs *prometheus.CounterVec
	gap      prometheus.Histogram
	seconds  prometheus.Histogram
}

// NewMetrics registers the controller's metrics. Those of each singleton are read at each scrape, from the reader.
// Handoffs of each cause and proof are counted from 0.
func NewMetrics(registry prometheus.Registerer, reader client.Reader) *Metrics {
	scrape.Register(registry, reader, &v1.StatefulSingletonList{}, gauges...)
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
