package main

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
)

var (
	errKyvernoAway = errors.New(`Internal error occurred: failed calling webhook "mutate.kyverno.svc-fail": no endpoints available`)
	errGuard       = errors.New(`pods "restart-x" is forbidden: ValidatingAdmissionPolicy 'statefulsingleton-held' with binding 'statefulsingleton-held' denied request`)
)

func TestRecovery(t *testing.T) {
	db, web := singleton{Namespace: "shop", Name: "db"}, singleton{Namespace: "shop", Name: "web"}
	c := newRecovery([]singleton{db, web})
	for _, answer := range []struct {
		of      singleton
		pod     *corev1.Pod
		refused error
	}{
		{of: db, refused: errKyvernoAway},
		{of: web, refused: errKyvernoAway},
		{of: db, refused: errGuard},
		{of: db, pod: heldPod(t, db)},
		{of: web, refused: errGuard},
		{of: db, refused: errGuard}, // it was held before
		{of: web, pod: heldPod(t, web)},
	} {
		if err := c.count(answer.of, answer.pod, answer.refused); err != nil {
			t.Fatal(err)
		}
		if c.recovered() {
			t.Fatalf("recovered while the last pod of db was rejected: %+v", c.Restart)
		}
	}
	if err := c.count(db, heldPod(t, db), nil); err != nil {
		t.Fatal(err)
	}
	if !c.recovered() || c.admitted != nil {
		t.Errorf("not recovered: %+v, %v", c.Restart, c.admitted)
	}
	got := c.Restart
	if got.FirstSeconds <= 0 || got.LastSeconds < got.FirstSeconds {
		t.Errorf("first after %g s, last after %g s", got.FirstSeconds, got.LastSeconds)
	}
	got.FirstSeconds, got.LastSeconds = 0, 0
	want := figures.Restart{Singletons: 2, Held: 3, RefusedByWebhook: 2, RefusedByGuards: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestRecoveryFindsAdmittedPods(t *testing.T) {
	db := singleton{Namespace: "shop", Name: "db"}
	c := newRecovery([]singleton{db})
	if err := c.count(db, dryRunPod(db.Namespace, labelsOf(db)), nil); err != nil {
		t.Fatal(err)
	}
	if c.Unheld != 1 || c.admitted == nil || c.recovered() {
		t.Errorf("a pod that is not held: %+v, %v", c.Restart, c.admitted)
	}
}

func TestRecoveryReturnsUnknownAnswers(t *testing.T) {
	db := singleton{Namespace: "shop", Name: "db"}
	if err := newRecovery([]singleton{db}).count(db, nil, errors.New("quota exceeded")); err == nil {
		t.Error("an answer that is neither Kyverno's nor a guard's was counted")
	}
}

// heldPod returns a pod of the singleton that the policy has injected.
func heldPod(t *testing.T, of singleton) *corev1.Pod {
	t.Helper()
	data, err := os.ReadFile("../../../policies/testdata/injected/shell.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, pod); err != nil {
		t.Fatal(err)
	}
	pod.Namespace = of.Namespace
	pod.Annotations[v1.InjectedAnnotation] = of.String()
	pod.Labels[v1.SingletonLabel] = of.Name
	return pod
}

func TestSpread(t *testing.T) {
	var all []singleton
	for i := range 10 {
		all = append(all, singleton{Name: string(rune('a' + i))})
	}
	tests := map[string]struct {
		all  []singleton
		want []singleton
	}{
		"fewer": {all: all[:2], want: all[:2]},
		"more":  {all: all, want: []singleton{{Name: "a"}, {Name: "d"}, {Name: "g"}, {Name: "j"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, spread(test.all, 4)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
