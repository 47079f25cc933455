package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// BenchmarkMemory measures the heap of the controller while a user has 136 claims with annotations of 250 KB, half of them with the label
// of a StatefulCluster, and creates eight StatefulClusters without replicas. The heap must stay below half of the limit.
func BenchmarkMemory(b *testing.B) {
	g := NewWithT(b)
	env.Connect(b, release+"-clusters")
	long := strings.Repeat("x", 250<<10)
	for i := range 136 {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim-%d", i), Annotations: map[string]string{"long": long}},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		if i%2 == 0 {
			claim.Labels = map[string]string{v1.ClusterLabel: fmt.Sprintf("cluster-%d", i%8)}
		}
		g.Expect(c.Create(b.Context(), claim)).To(Succeed())
	}
	for range b.N {
		ctx, stop := context.WithCancel(b.Context())
		stopped := make(chan error, 1)
		peak := testenv.PeakHeap(func() {
			go func() {
				stopped <- execute(ctx, "--leader-elect=false", "--health-probe-bind-address=0", "--metrics-bind-address=0", "--log-level=error")
			}()
			for i := range 8 {
				cluster := newCluster("default", fmt.Sprintf("cluster-%d", i))
				cluster.Spec.Replicas = new(int32(0))
				g.Expect(c.Create(b.Context(), cluster)).To(Succeed())
			}
			for i := range 8 {
				g.Eventually(func() ([]metav1.Condition, error) {
					cluster := &v1.StatefulCluster{}
					err := c.Get(b.Context(), client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("cluster-%d", i)}, cluster)
					return cluster.Status.Conditions, err
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
