package v1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// seed makes the random objects the same in each run.
const seed = 1

// All values of an object survive JSON, YAML and a deep copy, and are the same without the Go types.
func TestRoundTrip(t *testing.T) {
	ownScheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(ownScheme))
	codecs := serializer.NewCodecFactory(ownScheme)
	funcs := fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, templateFuncs)
	filler := fuzzer.FuzzerFor(funcs, rand.NewSource(seed), codecs)
	roundtrip.RoundTripExternalTypesWithoutProtobuf(t, ownScheme, codecs, filler, nil)
	roundtrip.RoundtripToUnstructured(t, ownScheme, funcs, nil, sets.KeySet(ownScheme.AllKnownTypes()))

	for range 100 {
		var want, got v1.StatefulSingleton
		filler.Fill(&want)
		data, err := yaml.Marshal(&want)
		must(t, err)
		if err := yaml.UnmarshalStrict(data, &got); err != nil {
			t.Fatalf("%v:\n%s", err, data)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("after YAML (-want +got):\n%s", diff)
		}
	}
}

// templateFuncs returns the function that fills a template of pods. CBOR sorts the keys of a template, so it has one.
func templateFuncs(serializer.CodecFactory) []any {
	return []any{func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"spec":{}}`) }}
}

// The API server keeps each field of the Go types, in spec and status. It would prune a field that the CRD does not have.
func TestAPIServerKeepsEveryField(t *testing.T) {
	filler := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, validFuncs), rand.NewSource(seed), scheme.Codecs).NilChance(0).NumElements(1, 3)
	for i := range 30 {
		var want v1.StatefulSingleton
		filler.Fill(&want.Spec)
		filler.Fill(&want.Status)
		want.Namespace, want.Name = metav1.NamespaceDefault, fmt.Sprintf("random-%d", i)

		created := want.DeepCopy()
		if err := c.Create(t.Context(), created); err != nil {
			t.Fatalf("create %+v: %v", want.Spec, err)
		}
		created.Status = *want.Status.DeepCopy()
		if err := c.Status().Update(t.Context(), created); err != nil {
			t.Fatalf("write status %+v: %v", want.Status, err)
		}
		var got v1.StatefulSingleton
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(&want), &got))
		if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
			t.Errorf("spec (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.Status, got.Status); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	}
}

// validFuncs returns functions that fill the fields that the CRD restricts. All other fields are random.
func validFuncs(serializer.CodecFactory) []any {
	name := func(r randfill.Continue) string { return fmt.Sprintf("n%d", r.Int31()) }
	return []any{
		func(s *v1.StatefulSingletonSpec, r randfill.Continue) {
			r.FillNoCustom(s)
			s.MaxTransitionTime = 1 + r.Int31n(3600)
			*s.TerminationGracePeriod = r.Int31n(3601)
			*s.LeaseDurationSeconds = 5 + r.Int31n(3596)
			*s.ShutdownDelaySeconds = r.Int31n(301)
			if s.Connections == v1.ConnectionsQueue {
				s.Fencing, s.ReadinessProbes = v1.FencingLease, v1.ReadinessSidecar
			}
			for i := range s.Containers {
				s.Containers[i] = fmt.Sprintf("%.40s-%d", r.String(40), i)
			}
		},
		func(s *v1.LabelSelector, r randfill.Continue) {
			s.MatchLabels = map[string]string{name(r): name(r), "empty": ""}
			s.MatchExpressions = []v1.LabelSelectorRequirement{
				{Key: name(r), Operator: metav1.LabelSelectorOpIn, Values: []string{name(r), ""}},
				{Key: "example.com/" + name(r), Operator: metav1.LabelSelectorOpExists},
			}
		},
		oneOf(v1.PhaseRunning, v1.PhaseTransitioning, v1.PhaseFailed),
		oneOf(v1.ProofNeverSignalled, v1.ProofKubeletReported, v1.ProofNodeOutOfService, v1.ProofAttested, v1.ProofLeaseReleased, v1.ProofLeaseExpired),
		oneOf(v1.CauseCreated, v1.CauseAdopted, v1.CauseRollout, v1.CauseDrain, v1.CauseHandover,
			v1.CauseEviction, v1.CauseDeletion, v1.CauseScaleDown, v1.CauseCompletion, v1.CauseExpiry),
		oneOf(v1.DrainSurge, v1.DrainEvict),
		oneOf(v1.HandoffAutomatic, v1.HandoffManual),
		oneOf(v1.ReadinessSidecar, v1.ReadinessKubelet),
		oneOf(v1.PlacementAuto, v1.PlacementNone),
		oneOf(v1.FencingKubelet, v1.FencingLease),
		oneOf(v1.ConnectionsRefuse, v1.ConnectionsQueue),
		oneOf(metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown),
		func(all *[]metav1.Condition, r randfill.Continue) {
			*all = nil
			for _, kind := range []string{v1.ConditionReady, v1.ConditionStalled} {
				condition := metav1.Condition{Type: kind, Reason: name(r), Message: r.String(0), ObservedGeneration: r.Int63()}
				r.Fill(&condition.Status)
				r.Fill(&condition.LastTransitionTime)
				*all = append(*all, condition)
			}
		},
	}
}

// oneOf returns a function that fills a field with one of the values.
func oneOf[T any](values ...T) func(*T, randfill.Continue) {
	return func(value *T, r randfill.Continue) { *value = values[r.Intn(len(values))] }
}

// The selector matches the same labels as a metav1.LabelSelector with the same JSON.
func TestSelectorMeta(t *testing.T) {
	const text = `{"matchLabels":{"app":"db"},"matchExpressions":[{"key":"tier","operator":"In","values":["gold","silver"]},{"key":"old","operator":"DoesNotExist"}]}`
	var own v1.LabelSelector
	var want metav1.LabelSelector
	must(t, errors.Join(json.Unmarshal([]byte(text), &own), json.Unmarshal([]byte(text), &want)))
	got := own.Meta()
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("as metav1.LabelSelector (-want +got):\n%s", diff)
	}
	got.MatchLabels["app"], got.MatchExpressions[0].Values[0] = "changed", "changed"
	if own.MatchLabels["app"] != "db" || own.MatchExpressions[0].Values[0] != "gold" {
		t.Errorf("a change of the copy changes the selector: %+v", own)
	}
	if again, err := json.Marshal(own); err != nil || string(again) != text {
		t.Errorf("JSON is %s (%v), want %s", again, err, text)
	}
	parsed, err := own.Parse()
	if err != nil || parsed.String() != "app=db,!old,tier in (gold,silver)" {
		t.Errorf("Parse gives %v, %v", parsed, err)
	}
	own.MatchLabels["app"] = "my database"
	if parsed, err := own.Parse(); err == nil {
		t.Errorf("Parse gives %v for a value that no label has, want an error", parsed)
	}
}
