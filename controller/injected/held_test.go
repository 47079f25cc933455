package injected_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/injected"
)

func TestContainers(t *testing.T) {
	pod := makePod(barrier("app"), wrapped("side"), corev1.Container{Name: "late"})
	withInit(withInit(pod, barrier("migrate")), corev1.Container{Name: "seed"})
	type found struct {
		Name                string
		Init, Named, Unheld bool
		ConfigMap           string
	}
	var got []found
	for _, h := range injected.Containers(pod, holdInit()) {
		got = append(got, found{h.Name, h.Init, h.Named, h.Unheld, h.ConfigMap})
	}
	want := []found{
		{Name: "migrate", Named: true, Init: true, ConfigMap: "statefulsingleton-db-1"},
		{Name: "seed", Named: true, Init: true, Unheld: true},
		{Name: "app", Named: true, ConfigMap: "statefulsingleton-db-1"},
		{Name: "side", Named: true},
		{Name: "late", Named: true, Unheld: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
