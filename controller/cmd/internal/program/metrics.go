package program

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsOptions returns the options of the metrics endpoint: HTTPS, for users whom the API server authenticates and
// allows to get the path /metrics.
func (o *Options) metricsOptions() (metricsserver.Options, error) {
	options := metricsserver.Options{
		BindAddress:    o.metricsAddress,
		SecureServing:  true,
		FilterProvider: authorizeMetrics,
		CertDir:        o.metricsCertDir,
	}
	if o.metricsCertDir == "" {
		return options, nil
	}
	// Without this check, controller-runtime uses a self-signed certificate if a file is missing.
	_, err := tls.LoadX509KeyPair(filepath.Join(o.metricsCertDir, "tls.crt"), filepath.Join(o.metricsCertDir, "tls.key"))
	if err != nil {
		return options, fmt.Errorf("load the certificate of the metrics endpoint from --metrics-cert-dir %s: %w. "+
			"Put PEM files tls.crt and tls.key into the directory, or leave out the flag for a self-signed certificate", o.metricsCertDir, err)
	}
	return options, nil
}

// metricsAuthQPS and metricsAuthBurst limit the TokenReviews and SubjectAccessReviews that clients of the metrics
// endpoint cause, for each kind. Results are cached for each token. Prometheus causes about one review a minute, but a
// client with a new wrong token in each request causes one review for each request. API Priority and Fairness counts
// the reviews as requests of the controller, so without a limit they could delay handoffs.
const (
	metricsAuthQPS   = 5
	metricsAuthBurst = 10
)

// authorizeMetrics returns a filter that authenticates and authorizes requests with the API server.
func authorizeMetrics(config *rest.Config, client *http.Client) (metricsserver.Filter, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = metricsAuthQPS, metricsAuthBurst
	return filters.WithAuthenticationAndAuthorization(config, client)
}
