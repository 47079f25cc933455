package handoff_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func TestUnreadyUntilReleased(t *testing.T) {
	probed := func() *PodWrapper { return MakePod("db-1").Injected().Probed() }
	with := func(change func(*corev1.HTTPGetAction)) *PodWrapper {
		return probed().With(func(p *corev1.Pod) { change(p.Spec.Containers[0].ReadinessProbe.HTTPGet) })
	}
	unwrapped := heldInit("db-1").Probed()
	unwrapped.Spec.Containers[0].Command = nil
	for name, tc := range map[string]struct {
		pod  *PodWrapper
		want bool
	}{
		"new":                                   {probed(), true},
		"warm":                                  {probed().Warm().Protected(), true},
		"its gate is open":                      {probed().OpenGate(v1.ReadyReasonStandby), true},
		"with a held init container":            {heldInit("db-1").Probed(), true},
		"beside a container that nothing holds": {probed().Container(corev1.Container{Name: "web"}), true},
		"not injected":                          {probed().Annotation(v1.InjectedAnnotation, ""), false},
		"a barrier":                             {MakePod("db-1").Barrier().Injected(), false},
		"no readiness probe":                    {MakePod("db-1").Injected(), false},
		"a startup probe":                       {MakePod("db-1").Injected().GateProbe(), false},
		"a startup probe of a queue":            {MakePod("db-1").Injected().Fenced().Queues().GateProbe(), true},
		"no startup probe in a queue":           {MakePod("db-1").Injected().Fenced().Queues(), false},
		"no held regular container":             {unwrapped, false},
		"one probe is of the kubelet":           {MakePod("db-1").Container(corev1.Container{Name: "web", Command: []string{"a"}}).Injected().Probed(), false},
		"the probe asks for another container":  {with(func(get *corev1.HTTPGetAction) { get.Path = "/ready/web" }), false},
		"the probe asks another port":           {with(func(get *corev1.HTTPGetAction) { get.Port = intstr.FromInt32(8080) }), false},
		"the probe asks another host":           {with(func(get *corev1.HTTPGetAction) { get.Host = "127.1.1.1" }), false},
		"the probe uses HTTPS":                  {with(func(get *corev1.HTTPGetAction) { get.Scheme = corev1.URISchemeHTTPS }), false},
		"signalled":                             {probed().Signalled(7), false},
		"the gate of a released pod":            {probed().OpenGate(v1.ReadyReasonHolds), false},
		"the role of a released pod":            {probed().Label(v1.RoleLabel, v1.RoleActive), false},
		"terminating":                           {probed().Deleting(), false},
		"terminal":                              {probed().Phase(corev1.PodFailed), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := handoff.UnreadyUntilReleased(tc.pod.Obj()); got != tc.want {
				t.Errorf("UnreadyUntilReleased returned %t, want %t", got, tc.want)
			}
		})
	}
}
