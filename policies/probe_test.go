package policies_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

func TestCheckInjected(t *testing.T) {
	env := func(env ...corev1.EnvVar) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Env = env }
	}
	barrierWith := func(change func(*corev1.ConfigMapKeySelector)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			barred(p)
			change(p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef)
		}
	}
	otherField := podUID()
	otherField.ValueFrom.FieldRef.FieldPath = "metadata.name"
	tests := map[string]struct {
		change   func(*corev1.Pod)
		wantHeld bool
	}{
		"as injected":                {change: func(*corev1.Pod) {}, wantHeld: true},
		"a barrier":                  {change: barred, wantHeld: true},
		"an optional barrier":        {change: barrierWith(func(r *corev1.ConfigMapKeySelector) { r.Optional = new(true) })},
		"a barrier of another form":  {change: barrierWith(func(r *corev1.ConfigMapKeySelector) { r.Name = "statefulsingleton-mine" })},
		"a barrier of another key":   {change: barrierWith(func(r *corev1.ConfigMapKeySelector) { r.Key = "mine" })},
		"a barrier in a shared pod":  {change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true); barred(p) }, wantHeld: true},
		"processes are not shared":   {change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(false) }, wantHeld: true},
		"processes of the pod":       {change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }},
		"processes of the node":      {change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"no volume":                  {change: func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }},
		"no uid":                     {change: env()},
		"a literal uid":              {change: env(corev1.EnvVar{Name: podUID().Name, Value: "a"})},
		"another field as uid":       {change: env(otherField)},
		"the uid twice":              {change: env(podUID(), podUID())},
		"a literal after the uid":    {change: env(podUID(), corev1.EnvVar{Name: podUID().Name, Value: "a"})},
		"the uid under another name": {change: env(corev1.EnvVar{Name: "POD_UID", ValueFrom: podUID().ValueFrom})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := decoded[corev1.Pod](t, readFile(t, "testdata/injected/shell.yaml"))
			tc.change(&pod)
			err := policies.CheckInjected(&pod, readSingleton(t, "default"))
			if tc.wantHeld && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if !tc.wantHeld && (err == nil || !strings.Contains(err.Error(), "container db is not held")) {
				t.Errorf("error %v, want that container db is not held", err)
			}
		})
	}
}

func barred(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.Command, c.Env = c.Command[3:], []corev1.EnvVar{barrier(firstRequest)}
}
