package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// limit is the memory limit of the controller in the chart.
const limit = 512 << 20

// peakHeap returns the largest heap in bytes while do runs. As in the chart, Go collects garbage before the limit.
func peakHeap(do func()) (peak uint64) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
	ctx, stop := context.WithCancel(context.Background())
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		for ctx.Err() == nil {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	do()
	stop()
	<-sampled
	return peak
}

// BenchmarkLockMemory measures the heap of the controller while a user creates 150 locks with annotations of 250 KB, half of them for
// one StatefulSet. The heap must stay below half of the limit.
func BenchmarkLockMemory(b *testing.B) {
	g := NewWithT(b)
	as(b, release)
	installCRDs(b)
	const locks = 150
	long := strings.Repeat("x", 250<<10)
	for range b.N {
		ctx, stop := context.WithCancel(b.Context())
		stopped := make(chan error, 1)
		peak := peakHeap(func() {
			go func() {
				stopped <- execute(ctx, runCommand(), "--gate-image=gate", "--leader-elect=false", "--health-probe-bind-address=0", "--metrics-bind-address=0", "--log-level=error")
			}()
			for i := range locks {
				name, set := fmt.Sprintf("lock-%d", i), "db"
				if i%2 == 0 {
					set = name
				}
				g.Expect(c.Create(b.Context(), &v1.StatefulSetLock{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"long": long}},
					Spec:       v1.StatefulSetLockSpec{StatefulSetName: set, LeaseName: name, LeaseDurationSeconds: 15},
				})).To(Succeed())
			}
			for i := range locks {
				g.Eventually(func() ([]metav1.Condition, error) {
					lock := &v1.StatefulSetLock{}
					err := c.Get(b.Context(), client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("lock-%d", i)}, lock)
					return lock.Status.Conditions, err
				}, 5*time.Minute, time.Second).ShouldNot(BeEmpty())
			}
		})
		b.ReportMetric(float64(peak>>20), "MiB")
		stop()
		g.Eventually(stopped).Should(Receive(BeNil()))
		if peak > limit/2 {
			b.Errorf("the heap reached %d MiB, want at most half of %d MiB", peak>>20, limit>>20)
		}
	}
}
