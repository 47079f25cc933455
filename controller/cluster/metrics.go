package cluster

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

var (
	conditionsDesc = prometheus.NewDesc("statefulsingleton_cluster_conditions",
		"StatefulClusters of a namespace by each of their conditions.", []string{"namespace", "type", "status", "reason"}, nil)
	membersDesc = prometheus.NewDesc("statefulsingleton_cluster_members",
		"Members of the StatefulClusters of a namespace by their state.", []string{"namespace", "state"}, nil)
)

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

// NewMetrics registers the metrics. Conditions and members are counted at each scrape, from the reader. Replacements of each cause are
// counted from 0.
func NewMetrics(registry prometheus.Registerer, reader client.Reader) *Metrics {
	registry.MustRegister(states{reader})
	m := &Metrics{replacements: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "statefulsingleton_cluster_replacements_total",
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

// states counts the StatefulClusters of the cache at each scrape.
type states struct{ reader client.Reader }

func (s states) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- conditionsDesc
	descriptions <- membersDesc
}

func (s states) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var list v1.StatefulClusterList
	if err := s.reader.List(ctx, &list); err != nil {
		collected <- prometheus.NewInvalidMetric(conditionsDesc, err)
		return
	}
	type condition struct{ namespace, conditionType, status, reason string }
	type member struct{ namespace, state string }
	conditions, members := map[condition]int{}, map[member]int{}
	for i := range list.Items {
		one := &list.Items[i]
		for _, c := range one.Status.Conditions {
			conditions[condition{one.Namespace, c.Type, string(c.Status), c.Reason}]++
		}
		for _, m := range one.Status.Members {
			members[member{one.Namespace, string(m.State)}]++
		}
	}
	for c, count := range conditions {
		collected <- prometheus.MustNewConstMetric(conditionsDesc, prometheus.GaugeValue, float64(count), c.namespace, c.conditionType, c.status, c.reason)
	}
	for m, count := range members {
		collected <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(count), m.namespace, m.state)
	}
}
