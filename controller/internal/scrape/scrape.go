// Package scrape exports metrics of each object of a kind. They are read from the cache at each scrape, so that the
// series of a deleted object vanish with it.
package scrape

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Object is an object with conditions.
type Object interface {
	client.Object
	GetConditions() []metav1.Condition
}

// Gauge is a metric of each object of a kind. Its first labels are the namespace and the name of the object.
type Gauge[T Object] struct {
	description *prometheus.Desc
	export      func(T, Export)
}

// Export exports one series of an object, with the values of the other labels of its Gauge.
type Export func(value float64, labels ...string)

// NewGauge returns the Gauge for which the function exports the series of an object: one, several or none.
func NewGauge[T Object](name, help string, labels []string, export func(T, Export)) Gauge[T] {
	all := append([]string{"namespace", "name"}, labels...)
	return Gauge[T]{prometheus.NewDesc(name, help, all, nil), export}
}

// Conditions returns the Gauge of the conditions of an object. Only the present status of a condition has a series, and
// not each status that it could have: an alert needs the reason, too, and the object would have three times as many
// series.
func Conditions[T Object](name string) Gauge[T] {
	const help = "1 for the status and the reason of each condition of the object."
	return NewGauge(name, help, []string{"type", "status", "reason"}, func(object T, export Export) {
		for _, c := range object.GetConditions() {
			export(1, c.Type, string(c.Status), c.Reason)
		}
	})
}

// Register registers the gauges of the objects that the reader lists. The list is empty, and has the type of the
// objects.
func Register[T Object](registry prometheus.Registerer, reader client.Reader, list client.ObjectList, gauges ...Gauge[T]) {
	registry.MustRegister(collector[T]{reader, list, gauges})
}

type collector[T Object] struct {
	reader client.Reader
	list   client.ObjectList
	gauges []Gauge[T]
}

func (c collector[T]) Describe(descriptions chan<- *prometheus.Desc) {
	for _, gauge := range c.gauges {
		descriptions <- gauge.description
	}
}

func (c collector[T]) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list := c.list.DeepCopyObject().(client.ObjectList)
	// Nothing changes the objects, so a scrape needs no copies of them.
	err := c.reader.List(ctx, list, client.UnsafeDisableDeepCopy)
	if err == nil {
		err = meta.EachListItem(list, func(o runtime.Object) error {
			c.export(o.(T), collected)
			return nil
		})
	}
	if err != nil {
		collected <- prometheus.NewInvalidMetric(c.gauges[0].description, err)
	}
}

func (c collector[T]) export(object T, collected chan<- prometheus.Metric) {
	for _, gauge := range c.gauges {
		gauge.export(object, func(value float64, labels ...string) {
			all := append([]string{object.GetNamespace(), object.GetName()}, labels...)
			collected <- prometheus.MustNewConstMetric(gauge.description, prometheus.GaugeValue, value, all...)
		})
	}
}

// Bool returns the value of a Gauge that is true or false.
func Bool(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

// Seconds returns the value of a Gauge that is a time.
func Seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
