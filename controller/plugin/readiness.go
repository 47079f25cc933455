package plugin

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// movedProbe is a readiness probe that the status sidecar runs.
type movedProbe struct{ container, probe string }

// movedProbes returns the readiness probes that the status sidecar runs, as the pod template has them.
func movedProbes(pod *corev1.Pod) (all []movedProbe) {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name != v1.SidecarName {
			continue
		}
		for _, variable := range pod.Spec.InitContainers[i].Env {
			container, ok := strings.CutPrefix(variable.Name, signal.ProbeEnvPrefix)
			if !ok {
				continue
			}
			text := "invalid"
			if probe, err := signal.ParseProbe(variable.Value); err == nil {
				text = probe.String()
			}
			all = append(all, movedProbe{container, text})
		}
	}
	return all
}

// probesInWords describes the readiness probes that the status sidecar runs. Empty: there are none.
func probesInWords(pod *corev1.Pod) string {
	probes := movedProbes(pod)
	if len(probes) == 0 {
		return ""
	}
	return columns(func(row func(cells ...string)) {
		row("CONTAINER", "READINESS PROBE THAT THE SIDECAR RUNS")
		for _, p := range probes {
			row(p.container, p.probe)
		}
	})
}
