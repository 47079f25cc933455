package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// The policies are rendered with the values of the flags for the sidecar.
func TestPolicyOptions(t *testing.T) {
	memory := resource.MustParse("32Mi")
	tests := map[string]struct {
		args []string
		want policies.Options
	}{
		"default": {
			nil,
			policies.Options{Kind: policies.ClusterPolicy, SidecarPullPolicy: corev1.PullIfNotPresent, SidecarResources: new(policies.DefaultSidecarResources())},
		},
		"everything": {
			[]string{"--policy-kind=NamespacedMutatingPolicy", "--gate-image=gate:1", "--gate-image-pull-policy=Always", "--gate-image-pull-secret=mine", "--gate-image-pull-secret=yours",
				"--sidecar-requests=cpu=0.05,memory=3.3554432e+07", "--sidecar-limits=memory=32Mi,ephemeral-storage=1Gi"},
			policies.Options{Kind: policies.NamespacedMutatingPolicy, SidecarImage: "gate:1", SidecarPullPolicy: corev1.PullAlways, SidecarPullSecrets: []string{"mine", "yours"}, SidecarResources: &corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: memory},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: memory, corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")},
			}},
		},
		"no limit": {
			[]string{"--sidecar-limits="},
			policies.Options{Kind: policies.ClusterPolicy, SidecarPullPolicy: corev1.PullIfNotPresent, SidecarResources: &corev1.ResourceRequirements{
				Requests: policies.DefaultSidecarResources().Requests, Limits: corev1.ResourceList{},
			}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var o runOptions
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			o.addFlags(flags)
			if err := flags.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, o.policyOptions()); diff != "" {
				t.Errorf("%v (-want +got):\n%s", test.args, diff)
			}
		})
	}
}

// The reconciler of the policies has the values of --policy-per and of the other flags.
func TestInjection(t *testing.T) {
	for args, want := range map[string]policies.Per{
		"--gate-image=gate:1":                        policies.PerSingleton,
		"--gate-image=gate:1 --policy-per=namespace": policies.PerNamespace,
	} {
		t.Run(args, func(t *testing.T) {
			var o runOptions
			flags := pflag.NewFlagSet(args, pflag.ContinueOnError)
			o.addFlags(flags)
			if err := flags.Parse(strings.Fields(args)); err != nil {
				t.Fatal(err)
			}
			if got := o.injection(injection.Singletons, nil, nil); got.Per != want || got.Options.SidecarImage != "gate:1" {
				t.Errorf("--policy-per %q and image %q, want %q and image gate:1", got.Per, got.Options.SidecarImage, want)
			}
		})
	}
}
