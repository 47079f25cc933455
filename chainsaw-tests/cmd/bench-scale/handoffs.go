package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// handoffsAtOnce is the number of handoffs at once, at most one for each singleton.
const handoffsAtOnce = 100

// cause starts handoffs.
type cause struct {
	name string
	// replicas is the number of pods of each Deployment.
	replicas int
	begin    func(*run, context.Context, singleton) error
}

var (
	// In a rollout, Kubernetes' controllers create and remove the pods at their own pace.
	rollout = cause{"rollout", 1, func(r *run, ctx context.Context, s singleton) error {
		return r.Restart(ctx, deployment(s))
	}}
	// With deletions and a warm spare, all holders terminate at once.
	deletion = cause{"deletion", 2, func(r *run, ctx context.Context, s singleton) error {
		name := r.observer.Singleton(s).Status.ActivePod
		return r.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}})
	}}
)

// handOver hands singletons over at once, and measures the controller meanwhile.
func (r *run) handOver(ctx context.Context, step *figures, c cause) error {
	all := r.served[:min(handoffsAtOnce, len(r.served))]
	if err := r.scale(ctx, all, c.replicas); err != nil {
		return err
	}
	old := map[singleton]types.UID{}
	for _, s := range all {
		old[s] = r.observer.Singleton(s).Status.ActivePodUID
	}
	before, err := r.controller(ctx)
	if err != nil {
		return err
	}
	begun := journal.Now()
	if err := forAll(ctx, len(all), all, func(ctx context.Context, s singleton) error { return c.begin(r, ctx, s) }); err != nil {
		return err
	}
	if err := r.awaitOthers(ctx, all, old); err != nil {
		return err
	}
	if err := world.Pause(ctx, 2*time.Second); err != nil { // for the last writes
		return err
	}
	after, err := r.controller(ctx)
	if err != nil {
		return err
	}
	each := func(value float64) float64 { return value / float64(len(all)) }
	h := handoffs{
		Cause: c.name, N: len(all), CPUMS: each(1000 * (after.cpu() - before.cpu())),
		Reads: each(after.reads() - before.reads()), Writes: each(after.writes() - before.writes()),
	}
	var decided []int64
	for _, s := range all {
		life := r.observer.LifeOf(r.observer.Singleton(s).Status.ActivePodUID)
		decided = append(decided, (life.Record - begun).Milliseconds())
	}
	h.DecidedMS = report.Distribute(decided)
	step.Handoffs = append(step.Handoffs, h)
	return r.scale(ctx, all, 1)
}

// scale sets the replicas, and waits for a holder and the warm spares of each singleton.
func (r *run) scale(ctx context.Context, all []singleton, replicas int) error {
	err := forAll(ctx, writers, all, func(ctx context.Context, s singleton) error {
		return r.Merge(ctx, deployment(s), `{"spec":{"replicas":%d}}`, replicas)
	})
	if err != nil {
		return err
	}
	return r.awaitSettled(ctx, all, replicas)
}

// awaitOthers waits until each singleton has another Ready holder.
func (r *run) awaitOthers(ctx context.Context, all []singleton, old map[singleton]types.UID) error {
	return world.AwaitFor(ctx, 5*time.Minute, "another holder of each", func(context.Context) error {
		for _, s := range all {
			holder, err := r.observer.Holder(s)
			if err == nil && holder.UID == old[s] {
				err = fmt.Errorf("pod %s still holds %s", holder.Name, s)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
