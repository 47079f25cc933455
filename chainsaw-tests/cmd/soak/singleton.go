package main

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// singleton is a subject.
type singleton struct {
	*world.Singleton
	options world.Options
}

// kinds are the options of the singletons.
var kinds = []world.Options{
	{},
	{Barrier: true},
	{StatefulSet: true},
	{StatefulSet: true, Barrier: true},
	{Env: map[string]string{"STOP_SECONDS": "3"}},
	{Barrier: true, Env: map[string]string{"STOP_SECONDS": "0", "START_SECONDS": "2"}},
	// Some faults last longer than the shorter duration.
	{LeaseDuration: new(int32(5)), Env: map[string]string{"STOP_SECONDS": "0.1"}},
	{LeaseDuration: new(int32(5)), Queue: true, Env: map[string]string{"STOP_SECONDS": "0.1"}},
	{LeaseDuration: new(int32(0)), Queue: true},
	{StatefulSet: true, LeaseDuration: new(int32(15))},
}

func (r *run) newSingleton(ctx context.Context, options world.Options) (subject, error) {
	s, err := r.NewSingleton(ctx, "soak", options)
	if s == nil {
		return nil, err
	}
	return singleton{s, options}, err
}

func (s singleton) journals() string { return s.Dir }

func (s singleton) causes() []cause {
	all := []cause{
		s.handoff("rollout", s.Roll),
		s.handoff("delete", func(ctx context.Context) error { return s.deleteHolder(ctx, nil) }),
		s.handoff("force delete", func(ctx context.Context) error { return s.deleteHolder(ctx, new(int64(0))) }),
		s.handoff("scale to zero and back", s.scaleToZeroAndBack),
		// The pod stays the holder, and only its process restarts.
		{"crash", func(ctx context.Context) (end, error) {
			return s.holderAfter(ctx, 0, s.KillApp)
		}},
	}
	if s.options.StatefulSet {
		return append(all, s.handoff("evict", s.Evict))
	}
	return append(all, s.handoff("undo", s.Undo), s.handoff("handover", s.HandOver))
}

// handoff returns a cause of a handoff.
func (s singleton) handoff(name string, begin func(context.Context) error) cause {
	return cause{name, func(ctx context.Context) (end, error) { return s.holderAfter(ctx, 1, begin) }}
}

// holderAfter begins a change, and returns a function that waits for a holder after so many handoffs.
func (s singleton) holderAfter(ctx context.Context, handoffs int64, begin func(context.Context) error) (end, error) {
	got, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	epoch := got.Status.Epoch + handoffs
	return func(ctx context.Context) error { return s.AwaitHolder(ctx, epoch) }, begin(ctx)
}

func (s singleton) deleteHolder(ctx context.Context, grace *int64) error {
	pod, err := s.Holder(ctx)
	if err != nil {
		return err
	}
	return s.DeletePod(ctx, pod, grace)
}

func (s singleton) scaleToZeroAndBack(ctx context.Context) error {
	if err := s.Scale(ctx, 0); err != nil {
		return err
	}
	err := world.Await(ctx, s.Namespace+": no holder", func(ctx context.Context) error {
		got, err := s.Read(ctx)
		if err == nil && got.Status.ActivePod != "" {
			err = fmt.Errorf("%s is the holder: %s", got.Status.ActivePod, got.Status.Message)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.Scale(ctx, 1)
}

// evict requests the eviction of a holder on the node. A rejected eviction waits for the successor, which the cordon causes.
func (s singleton) evict(ctx context.Context, node string) error {
	pod, err := s.Holder(ctx)
	if err != nil || pod.Spec.NodeName != node {
		return nil // there is no holder
	}
	if err := s.Evict(ctx); !apierrors.IsTooManyRequests(err) {
		return err
	}
	return nil
}

// settle waits for a holder.
func (s singleton) settle(ctx context.Context) error {
	err := world.Await(ctx, s.Namespace+": one replica", func(ctx context.Context) error {
		return errors.Join(s.Scale(ctx, 1), s.TryAgain(ctx))
	})
	return errors.Join(err, s.AwaitHolder(ctx, 1))
}
