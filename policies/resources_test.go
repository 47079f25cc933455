package policies_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// testLimitRange creates a LimitRange whose minimum is higher than the default resources of the sidecar. With sidecar
// resources of that minimum, the API server admits pods and the dry-run of the probe.
func testLimitRange(t *testing.T, c client.Client) {
	least := func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	}
	s := createSingleton(t, c, "limited", readSingleton(t, "default"))
	create(t, c, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "least"},
		Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: least()}}},
	})
	enough := options
	enough.SidecarResources = &corev1.ResourceRequirements{
		Requests: least(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
	// The container of this pod has no requests, so the LimitRange sets sufficient requests.
	own := decoded[corev1.Pod](t, readFile(t, "testdata/pods/shell.yaml"))
	own.Namespace = s.Namespace
	injected := func(t *testing.T, pod *corev1.Pod, o policies.Options) *corev1.Pod {
		t.Helper()
		p := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, o)).mutate(t, encode(t, pod), firstRequest))
		return &p
	}
	const tooLittle = "minimum cpu usage per Container is 50m, but request is 10m"
	waitForRefusal(t, c, injected(t, &own, options), tooLittle)
	tests := map[string]struct {
		options     policies.Options
		wantRefused string
	}{
		"as it is by default": {options, tooLittle},
		"as much as is asked": {enough, ""},
	}
	for name, test := range tests {
		probe, err := policies.ProbePod(s, test.options)
		if err != nil {
			t.Fatal(err)
		}
		for what, pod := range map[string]*corev1.Pod{"a pod": &own, "the probe": probe} {
			t.Run(name+"/"+what, func(t *testing.T) {
				wantAnswer(t, c.Create(t.Context(), injected(t, pod, test.options), client.DryRunAll), test.wantRefused)
			})
		}
	}
}
