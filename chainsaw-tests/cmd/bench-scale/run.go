package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// run is one run of the benchmark.
type run struct {
	*world.World
	options
	results  *figures.Scale
	observer *observer.Observer
	start    time.Time
	// token is a token for the metrics of the controllers.
	token string
	// made are all singletons so far, and served are the singletons whose policies work.
	made, served []singleton
}

func measure(ctx context.Context, o options) (err error) {
	scratch, err := os.MkdirTemp("", "bench-scale")
	if err != nil {
		return err
	}
	w, err := world.Connect(ctx, ".")
	if err != nil {
		return err
	}
	described, err := machine.Describe(ctx, w, o.out)
	if err != nil {
		return err
	}
	r := &run{World: w, options: o, start: time.Now(), results: &figures.Scale{
		Run: described, Namespaces: o.namespaces, IdleSeconds: int(o.idle.Seconds()),
		Nodes: o.singletons[len(o.singletons)-1]/podsOnNode + 2,
	}}
	stop, err := startKwok(scratch)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, r.clean(ctx), setValues(ctx, policies.PerSingleton))
		stop()
		if err != nil {
			err = fmt.Errorf("%w\nkwok's log: %s", err, filepath.Join(scratch, "kwok.log"))
		} else {
			_ = os.RemoveAll(scratch)
		}
	}()
	if err := r.clean(ctx); err != nil { // of a killed run
		return err
	}
	if err := r.readMetrics(ctx); err != nil {
		return err
	}
	if err := setValues(ctx, policies.PerSingleton, kwokUser); err != nil {
		return err
	}
	if err := r.refuseOthers(ctx); err != nil {
		return err
	}
	if err := r.giveKyvernoMemory(ctx); err != nil {
		return err
	}
	if err := r.addNodes(ctx); err != nil {
		return err
	}
	if r.observer, err = observeInjected(ctx, w); err != nil {
		return err
	}
	if err := r.measureKinds(ctx); err != nil {
		return err
	}
	for _, n := range o.singletons {
		if err := r.step(ctx, n, policies.PerSingleton); err != nil {
			return fmt.Errorf("with %d singletons: %w", n, err)
		}
	}
	if err := r.step(ctx, len(r.made), policies.PerNamespace); err != nil {
		return fmt.Errorf("with %d singletons that share policies: %w", len(r.made), err)
	}
	return nil
}

// step measures with the number of singletons, and writes each result at once.
func (r *run) step(ctx context.Context, n int, per policies.Per) error {
	r.results.Steps = append(r.results.Steps, figures.Step{Singletons: n, PolicyPer: per})
	s := &r.results.Steps[len(r.results.Steps)-1]
	memory := r.watchMemory(ctx)
	for _, part := range []struct {
		name string
		do   func(context.Context, *figures.Step) error
	}{
		{"singletons", r.grow},
		{"idle", r.measureIdle},
		{"Kyverno", r.measureKyverno},
		{"handoffs by rollout", func(ctx context.Context, s *figures.Step) error { return r.handOver(ctx, s, rollout) }},
		{"handoffs by deletion", func(ctx context.Context, s *figures.Step) error { return r.handOver(ctx, s, deletion) }},
		{"restart", r.measureRestart},
	} {
		r.tell("%d, a policy per %s: %s", n, per, part.name)
		if err := part.do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		if err := figures.Write(r.out, r.results); err != nil {
			return err
		}
	}
	s.Controller.PeakMiB = memory()
	return figures.Write(r.out, r.results)
}

func (r *run) tell(format string, args ...any) {
	fmt.Printf("bench-scale: %s %s\n", time.Since(r.start).Round(time.Second), fmt.Sprintf(format, args...))
}

// clean removes everything that this run, or a killed run, created.
func (r *run) clean(ctx context.Context) error {
	if err := r.removePolicies(ctx); err != nil {
		return err
	}
	var namespaces corev1.NamespaceList
	if err := r.List(ctx, &namespaces, client.MatchingLabels(ours)); err != nil {
		return err
	}
	for i := range namespaces.Items {
		if err := client.IgnoreNotFound(r.Delete(ctx, &namespaces.Items[i])); err != nil {
			return err
		}
	}
	err := world.AwaitFor(ctx, 10*time.Minute, "the end of the bench's namespaces", func(ctx context.Context) error {
		err := r.List(ctx, &namespaces, client.MatchingLabels(ours))
		if err == nil && len(namespaces.Items) > 0 {
			err = fmt.Errorf("%d are there", len(namespaces.Items))
		}
		return err
	})
	return errors.Join(err,
		r.DeleteAllOf(ctx, &corev1.Node{}, client.MatchingLabels(ours)),
		r.DeleteAllOf(ctx, &rbacv1.ClusterRoleBinding{}, client.MatchingLabels(ours)))
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

func report(file, page string) error {
	measured, err := figures.Read[figures.Scale](file)
	if err != nil {
		return err
	}
	tables, err := measured.Tables()
	if err != nil {
		return err
	}
	return figures.ReplaceIn(page, tables)
}
