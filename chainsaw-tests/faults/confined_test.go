//go:build cluster

package faults_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// The gate works in pods with more and with fewer restrictions.
func TestConfinement(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		pod func(*corev1.PodSpec)
		// wantBarrier is true if the barrier holds a container although the container has a command.
		wantBarrier bool
	}{
		"a user namespace of its own": {
			pod: func(spec *corev1.PodSpec) { spec.HostUsers = new(false) },
		},
		"a seccomp profile of the node": {
			pod: func(spec *corev1.PodSpec) {
				spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{
					Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: new("strict.json"),
				}}
			},
		},
		"no capability, and no write to the root file system": {
			pod: func(spec *corev1.PodSpec) {
				c := spec.Containers[0].SecurityContext
				c.AllowPrivilegeEscalation, c.ReadOnlyRootFilesystem = new(false), new(true)
				c.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
			},
		},
		// Any process of the pod could write the signal through /proc.
		"a process namespace that its containers share": {
			pod:         func(spec *corev1.PodSpec) { spec.ShareProcessNamespace = new(true) },
			wantBarrier: true,
		},
		"the process namespace of the node": {
			pod:         func(spec *corev1.PodSpec) { spec.HostPID = true },
			wantBarrier: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := singleton(t, world.Options{Pod: tt.pod})
			wrapped := holder(t, s).Spec.Containers[0].Command[0] == signal.GatePath
			if wrapped == tt.wantBarrier {
				t.Errorf("held by the wrapper: %t, want %t", wrapped, !tt.wantBarrier)
			}
			must(t, s.Roll(t.Context()))
			wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
		})
	}
}
