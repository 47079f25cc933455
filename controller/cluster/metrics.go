package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/scrape"
)

// gauges are the metrics of each StatefulCluster. Their labels are bounded, because only the controller writes status.
var gauges = []scrape.Gauge[*v1.StatefulCluster]{
	scrape.NewGauge("statefulcluster_replicas", "spec.replicas of the StatefulCluster.",
		nil, func(c *v1.StatefulCluster, export scrape.Export) { export(float64(ptr.Deref(c.Spec.Replicas, 1))) }),
	scrape.NewGauge("statefulcluster_available_replicas", "Pods of the StatefulCluster that are available.",
		nil, func(c *v1.StatefulCluster, export scrape.Export) { export(float64(c.Status.AvailableReplicas)) }),
	scrape.NewGauge("statefulcluster_updated_replicas", "Pods of the StatefulCluster that have the newest revision.",
		nil, func(c *v1.StatefulCluster, export scrape.Export) { export(float64(c.Status.UpdatedReplicas)) }),
	scrape.NewGauge("statefulcluster_lost_members", "Members of the StatefulCluster that are lost and keep their claims.",
		nil, func(c *v1.StatefulCluster, export scrape.Export) {
			lost := 0
			for _, member := range c.Status.Members {
				if member.State == v1.MemberLost {
					lost++
				}
			}
			export(float64(lost))
		}),
	scrape.Conditions[*v1.StatefulCluster]("statefulcluster_condition"),
}

// Causes of replacements.
const (
	// causeLost: the pod is lost, and its successor has new claims.
	causeLost = "Lost"
	// causeRollout: the pod had an old revision.
	causeRollout = "Rollout"
	// causeDeletion: the pod was deleted or evicted, or it ended.
	causeDeletion = "Deletion"
)

// Metrics are the metrics of StatefulClusters.
type Metrics struct {
	replacements *prometheus.CounterVec
}

// NewMetrics registers the metrics. Those of each StatefulCluster are read at each scrape, from the reader.
// Replacements of each cause are counted from 0.
func NewMetrics(registry prometheus.Registerer, reader client.Reader) *Metrics {
	scrape.Register(registry, reader, &v1.StatefulClusterList{}, gauges...)
	m := &Metrics{replacements: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "statefulcluster_replacements_total",
		Help: "Pods of StatefulClusters that got a successor, by cause.",
	}, []string{"cause"})}
	// A series that begins at 1 is no increase for Prometheus.
	for _, cause := range []string{causeLost, causeRollout, causeDeletion} {
		m.replacements.WithLabelValues(cause)
	}
	return m
}

// replaced counts the members that get a successor by one write of the record. A removed member that gets no successor now was
// scaled down, or was counted when it was lost.
func (m *Metrics) replaced(added, lost, removed []v1.ClusterMember, updateRevision string) {
	m.replacements.WithLabelValues(causeLost).Add(float64(len(lost)))
	successors := len(added) - len(lost)
	for _, old := range removed {
		if old.State != v1.MemberActive || successors <= 0 {
			continue
		}
		successors--
		cause := causeDeletion
		if old.Revision != updateRevision {
			cause = causeRollout
		}
		m.replacements.WithLabelValues(cause).Inc()
	}
}
