package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

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
		peak := testenv.PeakHeap(func() {
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
		if peak > testenv.MemoryLimit/2 {
			b.Errorf("the heap reached %d MiB, want at most half of %d MiB", peak>>20, testenv.MemoryLimit>>20)
		}
	}
}
