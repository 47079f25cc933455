package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// cause starts handoffs.
type cause struct {
	name string
	// replicas is the number of pods of each Deployment.
	replicas int
	begin    func(*run, context.Context, singleton) error
	// way has the events of a handoff in their order.
	way []string
}

var (
	// In a rollout, Kubernetes' controllers create and remove the pods at their own pace.
	rollout = cause{"rollout", 1, func(r *run, ctx context.Context, s singleton) error {
		return r.patch(ctx, s, `{"spec":{"template":{"metadata":{"annotations":{"rolled":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	}, []string{"cause", figures.Created, figures.Warm, figures.Asked, figures.Status, figures.Record, figures.Signal, figures.Ready}}
	// With deletions and a warm spare, all holders terminate at once.
	deletion = cause{"deletion", 2, func(r *run, ctx context.Context, s singleton) error {
		name := r.observer.Singleton(s).Status.ActivePod
		return r.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}})
	}, []string{"cause", figures.Asked, figures.Status, figures.Record, figures.Signal, figures.Ready}}
)

// chosen returns the singletons that are handed over at once. They are whole namespaces if possible, to distinguish
// their requests from those of the others.
func (r *run) chosen() []singleton {
	all := slices.Clone(r.served)
	slices.SortFunc(all, func(a, b singleton) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all[:min(r.options.handoffs, len(all))]
}

func (r *run) handOver(ctx context.Context, step *figures.Step, c cause) error {
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
	busy, err := cpuSeconds()
	if err != nil {
		return err
	}
	begin, begun := time.Now(), observer.Now()
	group, groupContext := errgroup.WithContext(ctx) // concurrently
	for _, s := range all {
		group.Go(func() error { return c.begin(r, groupContext, s) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.awaitOthers(ctx, all, old); err != nil {
		return err
	}
	seconds := time.Since(begin).Seconds()
	busyAfter, err := cpuSeconds()
	if err != nil {
		return err
	}
	after, err := r.controller(ctx)
	if err != nil {
		return err
	}
	h := figures.Handoffs{
		Cause: c.name, N: len(all), Cores: (after.cpu() - before.cpu()) / seconds, Programs: cores(busy, busyAfter, seconds),
		ReconcileMS: (after.reconciling() - before.reconciling()) * 1000 / float64(len(all)),
		CPUMS:       (after.cpu() - before.cpu()) * 1000 / float64(len(all)),
	}
	count, waited := before.queued()
	nowCount, nowWaited := after.queued()
	if nowCount > count {
		h.QueueMS = (nowWaited - waited) / (nowCount - count) * 1000
	}
	r.times(&h, c, old, begun)
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
	err := forAll(ctx, all, func(ctx context.Context, s singleton) error {
		return r.patch(ctx, s, `{"spec":{"replicas":%d}}`, replicas)
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

// times computes the distributions from the observed events.
func (r *run) times(h *figures.Handoffs, c cause, old map[singleton]types.UID, begun time.Duration) {
	var decided, ready []int64
	stages := make([][]int64, len(c.way))
	for s, from := range old {
		to := r.observer.Singleton(s).Status.ActivePodUID
		since := observer.Times(r.observer.LifeOf(from), r.observer.LifeOf(to), begun)
		decided, ready = append(decided, since[figures.Record]), append(ready, since[figures.Ready])
		for i := 1; i < len(c.way); i++ {
			stages[i] = append(stages[i], since[c.way[i]]-since[c.way[i-1]])
		}
	}
	h.DecidedMS, h.ReadyMS = figures.Distribute(decided), figures.Distribute(ready)
	for i := 1; i < len(c.way); i++ {
		h.Stages = append(h.Stages, figures.Stage{From: c.way[i-1], To: c.way[i], Distribution: figures.Distribute(stages[i])})
	}
}
