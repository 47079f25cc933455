// Package program has what the programs with controllers share: flags, the log, leader election, health checks and the metrics
// endpoint.
package program

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Options are the flags that all programs have.
type Options struct {
	metricsAddress    string
	metricsCertDir    string
	leaderElect       bool
	probeAddress      string
	logLevel          string
	logFormat         string
	electionNamespace string
	leaseDuration     time.Duration
	renewDeadline     time.Duration
	retryPeriod       time.Duration
}

// AddFlags adds the flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
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

// Validate returns an error if flags contradict each other, or if the certificate of the metrics endpoint cannot be loaded.
func (o *Options) Validate() error {
	if o.retryPeriod <= 0 || o.renewDeadline <= time.Duration(leaderelection.JitterFactor*float64(o.retryPeriod)) || o.leaseDuration <= o.renewDeadline {
		return fmt.Errorf("--leader-election-lease-duration is %s, --leader-election-renew-deadline %s and --leader-election-retry-period %s: "+
			"the lease duration must be longer than the renew deadline, and the renew deadline longer than %.1f retry periods", o.leaseDuration, o.renewDeadline, o.retryPeriod, leaderelection.JitterFactor)
	}
	_, err := o.metricsOptions()
	return err
}

// Namespace returns the namespace of the program, or "" if it does not run in a cluster.
func (o *Options) Namespace() string {
	if o.electionNamespace != "" {
		return o.electionNamespace
	}
	namespace, _ := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace") // only in a cluster
	return string(namespace)
}

// NewManager returns a manager that is the leader while it holds the Lease with the name. It has the health checks.
func (o *Options) NewManager(lease string, config *rest.Config, cached cache.Options) (ctrl.Manager, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	serving, err := o.metricsOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cached,
		Metrics:                       serving,
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       o.electionNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("set up the health checks: %w", err)
	}
	return mgr, nil
}

// NewScheme returns a scheme with the kinds that the programs read and write.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("add the kinds of Kubernetes to the scheme: %w", err)
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("add the kinds of StatefulSingleton to the scheme: %w", err)
	}
	return scheme, nil
}

// RESTConfig returns the configuration of clients: from the service account in the cluster, or from the kubeconfig.
func RESTConfig() (*rest.Config, error) {
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

// SetLogger makes all packages log as the flags say, and returns the log.
func (o *Options) SetLogger() (logr.Logger, error) {
	log, err := newLogger(o.logLevel, o.logFormat)
	if err != nil {
		return logr.Logger{}, err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
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
	logger, err := c.Build(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return shortCore{core} }))
	if err != nil {
		return logr.Logger{}, fmt.Errorf("set up the log: %w", err)
	}
	return zapr.NewLogger(logger), nil
}

// RegisterVersion registers the metric that has the version of the program.
func RegisterVersion(version string) {
	promauto.With(metrics.Registry).NewGauge(prometheus.GaugeOpts{
		Name:        "statefulsingleton_build_info",
		Help:        "1, with the version of the program as a label.",
		ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
}
