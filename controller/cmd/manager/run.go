package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/statefulsingleton/statefulsingleton/controller/cmd/internal/program"
	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

type runOptions struct {
	program.Options
	gateImage       string
	gatePullPolicy  string
	gatePullSecrets []string
	sidecarRequests amounts
	sidecarLimits   amounts
	policyKind      string
	policyPer       string
}

func (o *runOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.gateImage, "gate-image", "", "image of the gate, which the policies inject into every held pod (required)")
	flags.StringVar(&o.gatePullPolicy, "gate-image-pull-policy", string(corev1.PullIfNotPresent), "pull policy of the gate's image: Always, IfNotPresent or Never")
	flags.StringArrayVar(&o.gatePullSecrets, "gate-image-pull-secret", nil, "name of an image pull Secret for the gate's image. The policies add the Secret to every held pod, so the Secret must exist in the namespaces of the pods. Repeat the flag for each Secret")
	sidecar := policies.DefaultSidecarResources()
	o.sidecarRequests, o.sidecarLimits = amounts(sidecar.Requests), amounts(sidecar.Limits)
	flags.Var(&o.sidecarRequests, "sidecar-requests", "resource requests of the status sidecar in every held pod: cpu, memory and ephemeral-storage")
	flags.Var(&o.sidecarLimits, "sidecar-limits", "resource limits of the status sidecar. If cpu is missing, the sidecar has a CPU limit only in pods whose other containers all have a CPU limit")
	flags.StringVar(&o.policyKind, "policy-kind", string(policies.ClusterPolicy), "kind of Kyverno's policies: ClusterPolicy, or NamespacedMutatingPolicy, which needs Kyverno 1.19 and the guards of the chart")
	flags.StringVar(&o.policyPer, "policy-per", string(policies.PerSingleton), "singleton for one policy for each StatefulSingleton, or namespace for one policy for each namespace. Use namespace in a cluster with hundreds of StatefulSingletons")
	o.AddFlags(flags)
}

func (o *runOptions) validate() error {
	if o.gateImage == "" {
		return errors.New("--gate-image is missing: set the flag to the image of the gate, for example ghcr.io/statefulsingleton/gate:0.1.0")
	}
	if !slices.Contains(policies.Kinds, policies.Kind(o.policyKind)) {
		return fmt.Errorf("--policy-kind is %q: use ClusterPolicy or NamespacedMutatingPolicy", o.policyKind)
	}
	switch policies.Per(o.policyPer) {
	case policies.PerSingleton, policies.PerNamespace:
	default:
		return fmt.Errorf("--policy-per is %q: use singleton or namespace", o.policyPer)
	}
	if err := o.Validate(); err != nil {
		return err
	}
	for _, secret := range o.gatePullSecrets {
		if wrong := validation.NameIsDNSSubdomain(secret, false); len(wrong) > 0 {
			return fmt.Errorf("--gate-image-pull-secret is %q, which is not a valid name of a Secret: %s", secret, strings.Join(wrong, "; "))
		}
	}
	for name, limit := range o.sidecarLimits {
		if request := o.sidecarRequests[name]; request.Cmp(limit) > 0 {
			return fmt.Errorf("--sidecar-requests has %s=%s, more than the %s in --sidecar-limits: the API server would reject every held pod. Raise the limit or lower the request", name, &request, &limit)
		}
	}
	switch corev1.PullPolicy(o.gatePullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		return nil
	}
	return fmt.Errorf("--gate-image-pull-policy is %q: use Always, IfNotPresent or Never", o.gatePullPolicy)
}

// policyOptions returns the options of the policies from the flags.
func (o *runOptions) policyOptions() policies.Options {
	return policies.Options{
		Kind:               policies.Kind(o.policyKind),
		SidecarImage:       o.gateImage,
		SidecarPullPolicy:  corev1.PullPolicy(o.gatePullPolicy),
		SidecarPullSecrets: o.gatePullSecrets,
		SidecarResources: &corev1.ResourceRequirements{
			Requests: corev1.ResourceList(o.sidecarRequests), Limits: corev1.ResourceList(o.sidecarLimits),
		},
	}
}

// injection returns the reconciler of the policies of a kind, with the options of the flags.
func (o *runOptions) injection(kind injection.Kind, c client.Client, live client.Reader) *injection.Reconciler {
	per := policies.Per(o.policyPer)
	if !kind.Shared {
		per = policies.PerSingleton
	}
	return &injection.Reconciler{
		Client: c, Live: live, Clock: clock.RealClock{}, Kind: kind, Options: o.policyOptions(),
		Per: per, Budget: policies.DefaultBudget,
	}
}

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the controller",
		Example: `  # In the cluster, as in the chart
  manager run --gate-image=ghcr.io/statefulsingleton/gate:0.1.0

  # On a workstation, against the cluster of the current kubeconfig
  manager run --gate-image=ghcr.io/statefulsingleton/gate:0.1.0 --leader-elect=false --log-format=console --log-level=debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), o)
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

func run(ctx context.Context, o runOptions) error {
	log, err := o.SetLogger()
	if err != nil {
		return err
	}
	log.Info("Starting the controller", "version", version, "gateImage", o.gateImage)
	config, err := program.RESTConfig()
	if err != nil {
		return err
	}
	observe.LimitLargeResponses(config)
	mgr, err := o.NewManager("statefulsingleton", config, singleton.CacheOptions())
	if err != nil {
		return err
	}
	live := observe.Limited(mgr.GetAPIReader())
	program.RegisterVersion(version)
	policyReconciler := o.injection(injection.Singletons, mgr.GetClient(), live)
	lockPolicies := o.injection(injection.Locks, mgr.GetClient(), live)
	apiServer := injection.NewAPIServer(config, mgr.GetClient(), live, o.Namespace())
	policyReconciler.APIServer, lockPolicies.APIServer = apiServer, apiServer
	recorder := mgr.GetEventRecorder("statefulsingleton")
	reconciler := &singleton.Reconciler{
		Client: mgr.GetClient(), Live: live, Clock: clock.RealClock{},
		Recorder:  recorder,
		Metrics:   singleton.NewMetrics(metrics.Registry, mgr.GetClient()),
		Injection: policyReconciler,
	}
	gates := &singleton.ReadinessGates{Client: mgr.GetClient(), Live: live, Clock: clock.RealClock{}}
	access := &singleton.LeaseAccess{Client: mgr.GetClient(), Live: live, Recorder: recorder}
	lock.RegisterMetrics(metrics.Registry, mgr.GetClient())
	locks := &lock.Reconciler{Client: mgr.GetClient(), Live: live, Clock: clock.RealClock{}, Recorder: recorder, Injection: lockPolicies}
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{policyReconciler, lockPolicies, reconciler, gates, access, locks} {
		if err := r.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	if err := mgr.Add(apiServer); err != nil {
		return fmt.Errorf("set up what fenced pods know of the API server: %w", err)
	}
	if err := mgr.Add(kubeletUsers{client: mgr.GetClient(), live: live, log: log}); err != nil {
		return fmt.Errorf("set up the check of kubelet users: %w", err)
	}
	return mgr.Start(ctx)
}
