package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// newSingletons is the number of new singletons, one after another.
const newSingletons = 5

// measureNew measures the time until a new singleton is enforced, and removes it again. It stops after the first new
// singleton that is not enforced.
func (r *run) measureNew(ctx context.Context, step *figures.Step) error {
	var installed, injected []int64
	for i := range newSingletons {
		s := singleton{Namespace: r.made[0].Namespace, Name: fmt.Sprintf("new-%d", i)}
		if err := r.create(ctx, s); err != nil {
			return err
		}
		begin := time.Now()
		group, both := errgroup.WithContext(ctx)
		group.Go(func() error {
			return timed(both, begin, &installed, "a policy of StatefulSingleton "+s.String(), func(context.Context) error {
				if c := r.installed(s); c == nil || c.Status != metav1.ConditionTrue {
					return fmt.Errorf("PolicyInstalled is %+v", c)
				}
				return nil
			})
		})
		group.Go(func() error {
			return timed(both, begin, &injected, "a pod of StatefulSingleton "+s.String()+" that is held", func(ctx context.Context) error {
				pod := dryRunPod(s.Namespace, labelsOf(s))
				if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
					return err
				}
				return policies.CheckInjected(pod, statefulSingleton(s))
			})
		})
		if err := group.Wait(); ctx.Err() != nil {
			return err
		} else if err != nil {
			step.New.Refused = err.Error()
		}
		if err := r.remove(ctx, s); err != nil {
			return err
		}
		if step.New.Refused != "" {
			return nil
		}
	}
	step.New.InstalledMS, step.New.InjectedMS = figures.Distribute(installed), figures.Distribute(injected)
	return nil
}

// timed waits for the condition, and appends the milliseconds since begin.
func timed(ctx context.Context, begin time.Time, took *[]int64, what string, condition func(context.Context) error) error {
	err := world.AwaitFor(ctx, standstill, what, condition)
	*took = append(*took, time.Since(begin).Milliseconds())
	return err
}

// remove removes a StatefulSingleton without pods.
func (r *run) remove(ctx context.Context, s singleton) error {
	if err := r.Delete(ctx, statefulSingleton(s)); err != nil {
		return err
	}
	return world.Await(ctx, "the end of StatefulSingleton "+s.String(), func(context.Context) error {
		if r.observer.Singleton(s) != nil {
			return errors.New("it is there")
		}
		return nil
	})
}
