package lock

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/scrape"
)

// RegisterMetrics registers the metrics of each StatefulSetLock, which are read at each scrape, from the reader. Their
// labels are bounded, because only the controller writes status.
func RegisterMetrics(registry prometheus.Registerer, reader client.Reader) {
	scrape.Register(registry, reader, &v1.StatefulSetLockList{},
		scrape.NewGauge("statefulsetlock_info", "1, with the StatefulSet of the StatefulSetLock and its writer.",
			[]string{"statefulset", "writer_pod", "node", "fencing"}, func(l *v1.StatefulSetLock, export scrape.Export) {
				export(1, l.Spec.StatefulSetName, l.Status.WriterPod, l.Status.WriterNode, string(l.Spec.Fencing))
			}),
		scrape.NewGauge("statefulsetlock_active", "1 while the StatefulSetLock has a writer that is Ready, otherwise 0.",
			nil, func(l *v1.StatefulSetLock, export scrape.Export) {
				export(scrape.Bool(meta.IsStatusConditionTrue(l.Status.Conditions, v1.ConditionReady)))
			}),
		scrape.NewGauge("statefulsetlock_last_gap_seconds", "Time without a writer in the last handoff. No series until the new writer has its label.",
			nil, func(l *v1.StatefulSetLock, export scrape.Export) {
				if t := l.Status.LastTransition; t != nil && t.From != "" && t.Started != nil && t.Labelled != nil {
					export(t.Labelled.Sub(t.Started.Time).Seconds())
				}
			}),
		scrape.NewGauge("statefulsetlock_last_handoff_timestamp_seconds", "When the last handoff completed. No series until the new writer has its label.",
			nil, func(l *v1.StatefulSetLock, export scrape.Export) {
				if t := l.Status.LastTransition; t != nil && t.Labelled != nil {
					export(scrape.Seconds(t.Labelled.Time))
				}
			}),
		scrape.Conditions[*v1.StatefulSetLock]("statefulsetlock_condition"),
	)
}
