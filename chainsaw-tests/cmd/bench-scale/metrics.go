package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	controllerURL = "https://%s:8443/metrics"
	kyvernoURL    = "http://%s:8000/metrics"
	mebibyte      = 1 << 20
	requests      = "rest_client_requests_total"
	// metricsReader is the name of a ClusterRoleBinding.
	metricsReader = "bench-scale-metrics-reader"
)

// metrics are the metrics of a process.
type metrics map[string]*dto.MetricFamily

// scrape reads the metrics at the URL, with a token if it is not empty. It does not verify the self-signed certificate.
func scrape(ctx context.Context, url, token string) (metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	response, err := (&http.Client{Timeout: 5 * time.Second, Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// value returns the sum of a metric.
func (m metrics) value(name string) (sum float64) {
	for _, metric := range m[name].GetMetric() {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}

// reads returns the number of requests to the API server that changed nothing.
func (m metrics) reads() (sum float64) {
	for _, metric := range m[requests].GetMetric() {
		if slices.ContainsFunc(metric.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "method" && l.GetValue() == http.MethodGet }) {
			sum += metric.GetCounter().GetValue()
		}
	}
	return sum
}

func (m metrics) writes() float64 { return m.value(requests) - m.reads() }

func (m metrics) memory() float64 { return m.value("process_resident_memory_bytes") / mebibyte }
func (m metrics) cpu() float64    { return m.value("process_cpu_seconds_total") }

func (r *run) controller(ctx context.Context) (metrics, error) {
	leader, err := r.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return scrape(ctx, fmt.Sprintf(controllerURL, leader.Status.PodIP), r.token)
}

// readMetrics gets a token for the metrics of the controllers, for a default ServiceAccount that may read them until
// the end of this run.
func (r *run) readMetrics(ctx context.Context) error {
	_, err := r.Kubectl(ctx, "create", "clusterrolebinding", metricsReader,
		"--clusterrole=statefulsingleton-metrics-reader", "--serviceaccount="+world.ControllerNamespace+":default")
	if err != nil {
		return err
	}
	token, err := r.Kubectl(ctx, "create", "token", "default", "--namespace", world.ControllerNamespace, "--duration=24h")
	r.token = strings.TrimSpace(token)
	return err
}

// watchMemory returns a function that returns the maximum memory of the leader since the call.
func (r *run) watchMemory(ctx context.Context) func() float64 {
	ctx, stop := context.WithCancel(ctx)
	var most float64
	var done sync.WaitGroup
	done.Go(func() {
		for world.Pause(ctx, time.Second) == nil {
			if m, err := r.controller(ctx); err == nil { // nothing answers during a restart
				most = max(most, m.memory())
			}
		}
	})
	return func() float64 {
		stop()
		done.Wait()
		return most
	}
}
