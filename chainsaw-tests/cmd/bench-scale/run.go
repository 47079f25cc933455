package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// run is one run of the benchmark.
type run struct {
	*world.World
	options
	results  results
	observer *observer.Observer
	start    time.Time
	// token is a token for the metrics of the controllers.
	token string
	// made are all singletons of the form so far, and served are the singletons with a Deployment.
	made, served []singleton
}

func measure(ctx context.Context, o options) (err error) {
	scratch, err := os.MkdirTemp("", "bench-scale")
	if err != nil {
		return err
	}
	w, err := world.Connect(ctx)
	if err != nil {
		return err
	}
	described, err := machine.Describe(ctx, w)
	if err != nil {
		return err
	}
	r := &run{World: w, options: o, start: time.Now(), results: results{Run: described}}
	stop, err := startKwok(scratch)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, r.clean(ctx), setValues(ctx, form{policies.ClusterPolicy, policies.PerSingleton}))
		stop()
		if err != nil {
			err = fmt.Errorf("%w\nkwok's log: %s", err, filepath.Join(scratch, "kwok.log"))
		} else {
			_ = os.RemoveAll(scratch)
		}
	}()
	for _, prepare := range []func(context.Context) error{
		r.clean, // of a killed run
		r.readMetrics,
		r.refuseOthers,
		r.giveKyvernoMemory,
		r.addNodes,
	} {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	if r.observer, err = observeInjected(ctx, w); err != nil {
		return err
	}
	for _, kind := range policies.Kinds {
		for _, per := range []policies.Per{policies.PerSingleton, policies.PerNamespace} {
			if err := r.measureForm(ctx, form{kind, per}); err != nil {
				return fmt.Errorf("%s for each %s: %w", kind, per, err)
			}
		}
	}
	return nil
}

// form is the form of all policies.
type form struct {
	kind policies.Kind
	per  policies.Per
}

// measureForm measures with increasing numbers of singletons. It starts with a new Kyverno and without any policy.
func (r *run) measureForm(ctx context.Context, f form) error {
	r.tell("%s for each %s", f.kind, f.per)
	if err := r.removeSingletons(ctx); err != nil {
		return err
	}
	// Pods can be created in them some moments later, when they have a ServiceAccount.
	if err := errors.Join(r.createNamespace(ctx, r.nth(0).Namespace), r.createNamespace(ctx, elsewhere)); err != nil {
		return err
	}
	if err := setValues(ctx, f, kwokUser); err != nil {
		return err
	}
	if err := errors.Join(r.awaitNoWebhooks(ctx), r.restartKyverno(ctx)); err != nil {
		return err
	}
	for _, n := range append([]int{0}, r.singletons...) {
		if err := r.step(ctx, f, n); err != nil {
			return fmt.Errorf("with %d singletons: %w", n, err)
		}
	}
	return nil
}

// part is a part of a step.
type part struct {
	name string
	do   func(context.Context, *figures) error
}

// parts returns what is measured with the number of singletons. Without singletons, only Kyverno is measured. Handoffs
// take long, so they are measured with the most singletons that share policies, and with few singletons by default.
func (r *run) parts(f form, n int) []part {
	const few = 100
	if n == 0 {
		return []part{{"Kyverno", r.measureKyverno}}
	}
	all := []part{{"singletons", r.grow}, {"Kyverno", r.measureKyverno}}
	most := r.singletons[len(r.singletons)-1]
	if f.per == policies.PerNamespace && n == most || f == (form{policies.ClusterPolicy, policies.PerSingleton}) && n <= few {
		all = append(all,
			part{"Deployments", r.deploy},
			part{"handoffs by rollout", func(ctx context.Context, s *figures) error { return r.handOver(ctx, s, rollout) }},
			part{"handoffs by deletion", func(ctx context.Context, s *figures) error { return r.handOver(ctx, s, deletion) }})
	}
	if f.kind == policies.NamespacedMutatingPolicy {
		all = append(all, part{"restart of Kyverno", r.measureRestart})
	}
	return all
}

// step measures with the number of singletons, and writes each result at once, also that of a part that fails.
func (r *run) step(ctx context.Context, f form, n int) error {
	r.results.Steps = append(r.results.Steps, figures{PolicyKind: f.kind, PolicyPer: f.per, Singletons: n})
	s := &r.results.Steps[len(r.results.Steps)-1]
	memory := r.watchMemory(ctx)
	for _, part := range r.parts(f, n) {
		r.tell("%d: %s", n, part.name)
		failed := part.do(ctx, s)
		if failed != nil {
			failed = fmt.Errorf("%s: %w", part.name, failed)
		}
		if err := errors.Join(failed, report.WriteJSON(r.out, r.results)); err != nil {
			return err
		}
	}
	s.ControllerMiB = memory()
	return report.WriteJSON(r.out, r.results)
}

func (r *run) tell(format string, args ...any) {
	fmt.Printf("bench-scale: %s %s\n", time.Since(r.start).Round(time.Second), fmt.Sprintf(format, args...))
}

// clean removes everything that this run, or a killed run, created.
func (r *run) clean(ctx context.Context) error {
	err := r.removeSingletons(ctx)
	_, nodes := r.Kubectl(ctx, "delete", "nodes", "--selector", selector)
	_, binding := r.Kubectl(ctx, "delete", "clusterrolebinding", metricsReader, "--ignore-not-found")
	return errors.Join(err, nodes, binding)
}

// removeSingletons removes all singletons with their namespaces.
func (r *run) removeSingletons(ctx context.Context) error {
	r.made, r.served = nil, nil
	_, err := r.Kubectl(ctx, "delete", "namespaces", "--selector", selector, "--timeout", removal.String())
	return err
}

// refuseOthers returns an error if other singletons exist, because they would be measured too.
func (r *run) refuseOthers(ctx context.Context) error {
	var others v1.StatefulSingletonList
	if err := r.List(ctx, &others); err != nil || len(others.Items) == 0 {
		return err
	}
	s := &others.Items[0]
	return fmt.Errorf("StatefulSingleton %s would be measured along: run `%s` and this again",
		client.ObjectKeyFromObject(s), "kubectl delete stfs --all --all-namespaces")
}
