package singleton

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Prometheus sees each series of the API's causes and proofs before the first handoff, and no other series.
func TestHandoffsAreCountedFromZero(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry(), nil)
	series := testutil.CollectAndCount(metrics.handoffs)
	want := 0
	for _, cause := range enumOfTransition(t, "cause") {
		proofs := enumOfTransition(t, "proof")
		if cause == "Created" || cause == "Adopted" {
			proofs = []string{"None"}
		}
		for _, proof := range proofs {
			want++
			if count := testutil.ToFloat64(metrics.handoffs.WithLabelValues(cause, proof)); count != 0 {
				t.Errorf("%v handoffs with cause %s and proof %s", count, cause, proof)
			}
		}
	}
	now := metav1.NowMicro()
	metrics.completed(&v1.Transition{Cause: v1.CauseCreated, Ready: &now})
	metrics.completed(&v1.Transition{Cause: v1.CauseDrain, Proof: v1.ProofAttested, Ready: &now})
	for cause, proof := range map[string]string{"Created": "None", "Drain": "Attested"} {
		if count := testutil.ToFloat64(metrics.handoffs.WithLabelValues(cause, proof)); count != 1 {
			t.Errorf("%v handoffs with cause %s and proof %s, want one", count, cause, proof)
		}
	}
	if after := testutil.CollectAndCount(metrics.handoffs); series != want || after != want {
		t.Errorf("%d series at first, and %d after all were used, want %d", series, after, want)
	}
}

// Metrics measure durations in seconds, from the first cause until the new holder is Ready.
func TestHandoffSeconds(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry, fakeClient())
	began := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	ready := metav1.NewMicroTime(began.Add(2500 * time.Millisecond))
	metrics.completed(&v1.Transition{Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, Started: &began, Ready: &ready, GapMilliseconds: new(int64(250))})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, family := range families {
		if h := family.Metric[0].GetHistogram(); h != nil {
			sums[family.GetName()] = h.GetSampleSum()
		}
	}
	if diff := cmp.Diff(map[string]float64{"statefulsingleton_handoff_gap_seconds": 0.25, "statefulsingleton_handoff_seconds": 2.5}, sums); diff != "" {
		t.Errorf("sums of the histograms (-want +got):\n%s", diff)
	}
}

// enumOfTransition returns the values that the API server accepts for a field of status.lastTransition.
func enumOfTransition(t *testing.T, field string) (values []string) {
	t.Helper()
	data, err := os.ReadFile("../../charts/statefulsingleton/files/crds/apps.statefulsingleton.com_statefulsingletons.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &definition); err != nil {
		t.Fatal(err)
	}
	status := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
	for _, value := range status.Properties["lastTransition"].Properties[field].Enum {
		var text string
		if err := json.Unmarshal(value.Raw, &text); err != nil {
			t.Fatal(err)
		}
		values = append(values, text)
	}
	if len(values) == 0 {
		t.Fatalf("the definition has no values for status.lastTransition.%s", field)
	}
	return values
}
