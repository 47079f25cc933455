package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/injection"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	controllerURL = "https://%s:8443/metrics"
	kyvernoURL    = "http://%s:8000/metrics"
	mebibyte      = 1 << 20
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

// sum adds the values of the metric by the function. If named is not empty, only series with the label name=named
// count.
func (m metrics) sum(name, named string, of func(*dto.Metric) float64) (sum float64) {
	for _, metric := range m[name].GetMetric() {
		matches := named == ""
		for _, label := range metric.GetLabel() {
			matches = matches || (label.GetName() == "name" || label.GetName() == "controller") && label.GetValue() == named
		}
		if matches {
			sum += of(metric)
		}
	}
	return sum
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

func (m metrics) memory() float64 {
	return m.sum("process_resident_memory_bytes", "", value) / mebibyte
}
func (m metrics) cpu() float64      { return m.sum("process_cpu_seconds_total", "", value) }
func (m metrics) started() float64  { return m.sum("process_start_time_seconds", "", value) }
func (m metrics) requests() float64 { return m.sum("rest_client_requests_total", "", value) }
func (m metrics) depth() float64    { return m.sum("workqueue_depth", controllerName, value) }
func (m metrics) reconciles() float64 {
	return m.sum("controller_runtime_reconcile_total", controllerName, value)
}

// queued returns the number of items taken from the queue, and the total seconds that they waited.
func (m metrics) queued() (count, seconds float64) {
	const name = "workqueue_queue_duration_seconds"
	return m.sum(name, controllerName, func(h *dto.Metric) float64 { return float64(h.GetHistogram().GetSampleCount()) }),
		m.sum(name, controllerName, func(h *dto.Metric) float64 { return h.GetHistogram().GetSampleSum() })
}

// reconciling returns the total seconds of all reconciles, without those of the policies.
func (m metrics) reconciling() float64 {
	const name = "controller_runtime_reconcile_time_seconds"
	seconds := func(h *dto.Metric) float64 { return h.GetHistogram().GetSampleSum() }
	return m.sum(name, "", seconds) - m.sum(name, injection.Singletons.Controller, seconds)
}

// cpuSeconds returns the CPU seconds of the machine's processes, by the names of their programs.
func cpuSeconds() (map[string]float64, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for _, p := range processes {
		command, _ := p.CmdLine() // the process may have ended
		if stat, err := p.Stat(); err == nil && len(command) > 0 {
			all[filepath.Base(command[0])] += stat.CPUTime()
		}
	}
	return all, nil
}

// cores returns the CPU time divided by time of the programs with a hundredth of a core or more.
func cores(before, after map[string]float64, seconds float64) map[string]float64 {
	all := map[string]float64{}
	for program, cpu := range after {
		if used := math.Round((cpu-before[program])/seconds*100) / 100; used >= 0.01 {
			all[program] = used
		}
	}
	return all
}

// controllerName is the name of the controller and its queue in the metrics.
const controllerName = "statefulsingleton"

func (r *run) controller(ctx context.Context) (metrics, error) {
	leader, err := r.Leader(ctx)
	if err != nil {
		return nil, err
	}
	return r.scrapeController(ctx, leader)
}

func (r *run) scrapeController(ctx context.Context, pod *corev1.Pod) (metrics, error) {
	return scrape(ctx, fmt.Sprintf(controllerURL, pod.Status.PodIP), r.token)
}

// readMetrics gets a token for the metrics of the controllers, for a default ServiceAccount that may read them until
// the end of this run.
func (r *run) readMetrics(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: world.ControllerNamespace, Name: "default"}}
	err := r.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench-scale-metrics-reader", Labels: ours},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: controllerName + "-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	})
	if err != nil {
		return err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 60 * 60))}}
	if err := r.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("get a token to read the metrics with: %w", err)
	}
	r.token = request.Status.Token
	return nil
}

// watchMemory returns a function that returns the maximum memory of the leader since the call.
func (r *run) watchMemory(ctx context.Context) func() float64 {
	ctx, stop := context.WithCancel(ctx)
	var most float64
	var done sync.WaitGroup
	done.Go(func() {
		for pause(ctx, time.Second) == nil {
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

// measureIdle waits until the queue is empty, and then measures without any change.
func (r *run) measureIdle(ctx context.Context, step *figures.Step) error {
	err := world.Await(ctx, "an empty queue", func(ctx context.Context) error {
		m, err := r.controller(ctx)
		if err == nil && m.depth() > 0 {
			err = fmt.Errorf("%.0f wait in it", m.depth())
		}
		return err
	})
	if err := errors.Join(err, pause(ctx, 10*time.Second)); err != nil {
		return err
	}
	before, err := r.controller(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := pause(ctx, r.idle); err != nil {
		return err
	}
	after, err := r.controller(ctx)
	if err != nil {
		return err
	}
	seconds := time.Since(begin).Seconds()
	step.Controller = figures.Controller{
		IdleMiB:        after.memory(),
		IdleCores:      (after.cpu() - before.cpu()) / seconds,
		IdleReconciles: (after.reconciles() - before.reconciles()) / seconds,
		IdleRequests:   (after.requests() - before.requests()) / seconds,
	}
	return nil
}

// measureRestart replaces all controllers at once, and waits until the new leader has reconciled every singleton and
// its queue is empty.
func (r *run) measureRestart(ctx context.Context, step *figures.Step) error {
	old, err := r.Leader(ctx)
	if err != nil {
		return err
	}
	if err := r.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(world.ControllerNamespace), world.ControllerPods); err != nil {
		return err
	}
	err = world.AwaitFor(ctx, 10*time.Minute, "the first reconcile of the last singleton", func(ctx context.Context) error {
		leader, err := r.Leader(ctx)
		if err != nil {
			return err
		}
		if leader.UID == old.UID {
			return errors.New("nobody leads")
		}
		m, err := r.scrapeController(ctx, leader)
		if err != nil {
			return err
		}
		if m.reconciles() < float64(len(r.made)) || m.depth() > 0 {
			return fmt.Errorf("%.0f reconciles, %.0f wait", m.reconciles(), m.depth())
		}
		step.Controller.RestartSeconds = float64(time.Now().UnixMilli())/1000 - m.started()
		return nil
	})
	return errors.Join(err, r.AwaitWhole(ctx))
}
