package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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

// chosen returns the singletons that are handed over at once. They are whole namespaces if possible, to distinguish
// their requests from those of the others.
func (r *run) chosen() []singleton {
	all := slices.Clone(r.served)
	slices.SortFunc(all, func(a, b singleton) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all[:min(handoffsAtOnce, len(all))]
}

func (r *run) handOver(ctx context.Context, step *figures, c cause) error {
	all := r.chosen()
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
	begin, begun := time.Now(), journal.Now()
	if err := forAll(ctx, len(all), all, func(ctx context.Context, s singleton) error { return c.begin(r, ctx, s) }); err != nil {
		return err
	}
	if err := r.awaitOthers(ctx, all, old); err != nil {
		return err
	}
	after, err := r.controller(ctx)
	if err != nil {
		return err
	}
	h := handoffs{Cause: c.name, N: len(all), CPUMS: (after.cpu() - before.cpu()) * 1000 / float64(len(all))}
	var decided, ready []int64
	for _, s := range all {
		life := r.observer.LifeOf(r.observer.Singleton(s).Status.ActivePodUID)
		decided, ready = append(decided, (life.Record-begun).Milliseconds()), append(ready, (life.Ready-begun).Milliseconds())
	}
	h.DecidedMS, h.ReadyMS = report.Distribute(decided), report.Distribute(ready)
	if err := pause(ctx, 2*time.Second); err != nil { // for the last writes
		return err
	}
	if err := countRequests(&h, all, begin, time.Now()); err != nil {
		return err
	}
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
