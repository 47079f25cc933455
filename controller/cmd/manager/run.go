package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/statefulsingleton/statefulsingleton/controller/injection"
	"github.com/statefulsingleton/statefulsingleton/controller/leaseaccess"
	"github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/readinessgate"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

type runOptions struct {
	gateImage         string
	gatePullPolicy    string
	gatePullSecrets   []string
	sidecarRequests   amounts
	sidecarLimits     amounts
	policyKind        string
	policyPer         string
	leaderElect       bool
	metricsAddress    string
	metricsCertDir    string
	probeAddress      string
	logLevel          string
	logFormat         string
	electionNamespace string
	leaseDuration     time.Duration
	renewDeadline     time.Duration
	retryPeriod       time.Duration
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
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while this replica is the leader. Several active replicas are safe, but repeat the work")
	flags.StringVar(&o.electionNamespace, "leader-election-namespace", "", "namespace of the leader election Lease (default: the namespace of the manager)")
	flags.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "time after the last renewal of the Lease until another replica can become the leader. Must be longer than the renew deadline")
	flags.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "time after which a leader that cannot renew its Lease exits. A single renewal request times out after half of this time")
	flags.DurationVar(&o.retryPeriod, "leader-election-retry-period", 2*time.Second, "interval between attempts to renew or to acquire the Lease")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "address of the metrics endpoint, or 0 for no endpoint. The endpoint serves HTTPS to users who have permission to get the path /metrics")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key, the certificate of the metrics endpoint. The manager reloads changed files (default: a self-signed certificate, new at each start)")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	flags.StringVar(&o.logLevel, "log-level", "info", "level of the log: debug, info or error. The level debug logs each write")
	flags.StringVar(&o.logFormat, "log-format", "json", "format of the log: json or console")
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
	if o.retryPeriod <= 0 || o.renewDeadline <= time.Duration(leaderelection.JitterFactor*float64(o.retryPeriod)) || o.leaseDuration <= o.renewDeadline {
		return fmt.Errorf("--leader-election-lease-duration is %s, --leader-election-renew-deadline %s and --leader-election-retry-period %s: "+
			"the lease duration must be longer than the renew deadline, and the renew deadline longer than %.1f retry periods", o.leaseDuration, o.renewDeadline, o.retryPeriod, leaderelection.JitterFactor)
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
		Client: c, Live: live, Clock: clock.RealClock{}, Kind: kind, Options: o.policyOptions(), Per: per,
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
	log, err := newLogger(o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	log.Info("Starting the controller", "version", version, "gateImage", o.gateImage)
	metricsOptions, err := o.metricsOptions()
	if err != nil {
		return err
	}
	config, err := restConfig()
	if err != nil {
		return err
	}
	observe.LimitLargeResponses(config)
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         singleton.CacheOptions(),
		Metrics:                       metricsOptions,
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "statefulsingleton",
		LeaderElectionNamespace:       o.electionNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("set up the health checks: %w", err)
	}
	singleton.RegisterVersion(metrics.Registry, version)
	policyReconciler := o.injection(injection.Singletons, mgr.GetClient(), mgr.GetAPIReader())
	lockPolicies := o.injection(injection.Locks, mgr.GetClient(), mgr.GetAPIReader())
	webhooks := injection.NewWebhooks(metrics.Registry, mgr.GetAPIReader())
	policyReconciler.Webhooks, lockPolicies.Webhooks = webhooks, webhooks
	recorder := mgr.GetEventRecorder("statefulsingleton")
	reconciler := &singleton.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{},
		Recorder:  recorder,
		Metrics:   singleton.NewMetrics(metrics.Registry, mgr.GetClient()),
		Injection: policyReconciler,
	}
	gates := &readinessgate.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}}
	access := &leaseaccess.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: recorder}
	locks := &lock.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: recorder, Injection: lockPolicies}
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{policyReconciler, lockPolicies, reconciler, gates, access, locks} {
		if err := r.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	if err := mgr.Add(webhooks); err != nil {
		return fmt.Errorf("set up the measurement of Kyverno's webhooks: %w", err)
	}
	if err := mgr.Add(kubeletUsers{client: mgr.GetClient(), live: mgr.GetAPIReader(), log: log}); err != nil {
		return fmt.Errorf("set up the check of kubelet users: %w", err)
	}
	return mgr.Start(ctx)
}

// restConfig returns the configuration of clients: from the service account in the cluster, or from the kubeconfig.
func restConfig() (*rest.Config, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	// API Priority and Fairness limits the requests. A limit of the client would only lengthen the gap.
	config.QPS = -1
	// Kyverno warns about each write of a ClusterPolicy, which is deprecated.
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

func newLogger(level, format string) (logr.Logger, error) {
	var c zap.Config
	switch format {
	case "json":
		c = zap.NewProductionConfig()
		c.Sampling = nil // sampling would drop handoffs from the log
		c.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		c.EncoderConfig.TimeKey = "time"
	case "console":
		c = zap.NewDevelopmentConfig()
	default:
		return logr.Logger{}, fmt.Errorf("--log-format is %q: use json or console", format)
	}
	parsed, err := zapcore.ParseLevel(level)
	if err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level is %q: use debug, info or error", level)
	}
	c.Level = zap.NewAtomicLevelAt(parsed)
	c.DisableStacktrace = true
	logger, err := c.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("set up the log: %w", err)
	}
	return zapr.NewLogger(logger), nil
}
