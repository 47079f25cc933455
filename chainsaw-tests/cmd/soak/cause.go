package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// cause starts a handoff of one singleton.
type cause struct {
	name string
	// begin starts the handoff. It may be repeated if the API server does not answer.
	begin func(context.Context, *world.Singleton) error
	// stays is true if the pod stays the holder and only its process restarts.
	stays bool
}

func causes(o world.Options) []cause {
	all := []cause{
		{name: "rollout", begin: func(ctx context.Context, s *world.Singleton) error { return s.Roll(ctx) }},
		{name: "delete", begin: func(ctx context.Context, s *world.Singleton) error { return deleteHolder(ctx, s, nil) }},
		{name: "force delete", begin: func(ctx context.Context, s *world.Singleton) error { return deleteHolder(ctx, s, new(int64(0))) }},
		{name: "scale to zero and back", begin: scaleToZeroAndBack},
		{name: "crash", begin: func(ctx context.Context, s *world.Singleton) error { return s.KillApp(ctx) }, stays: true},
	}
	if o.StatefulSet {
		return append(all, cause{name: "evict", begin: func(ctx context.Context, s *world.Singleton) error { return s.Evict(ctx) }})
	}
	return append(all,
		cause{name: "undo", begin: func(ctx context.Context, s *world.Singleton) error { return s.Undo(ctx) }},
		cause{name: "handover", begin: func(ctx context.Context, s *world.Singleton) error { return s.HandOver(ctx) }},
	)
}

func deleteHolder(ctx context.Context, s *world.Singleton, grace *int64) error {
	pod, err := s.Holder(ctx)
	if err != nil {
		return err
	}
	return s.DeletePod(ctx, pod, grace)
}

func scaleToZeroAndBack(ctx context.Context, s *world.Singleton) error {
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

// actor repeats handoffs of one singleton.
type actor struct {
	*run
	*world.Singleton
	options world.Options
	random  *rand.Rand
}

// handoffPatience is how long to wait for a handoff before the next cause. A ReplicaSet whose pod was rejected while
// Kyverno was down retries with growing delays.
const handoffPatience = 30 * time.Second

// act runs until the context ends.
func (a *actor) act(ctx context.Context) {
	all := causes(a.options)
	next := all[0] // the fault must change something
	for ctx.Err() == nil {
		if err := a.once(ctx, next); err != nil && ctx.Err() == nil {
			a.note(a.Namespace, next.name+": failed, another cause follows: "+err.Error())
		}
		next = all[a.random.IntN(len(all))]
	}
}

func (a *actor) once(ctx context.Context, c cause) error {
	ctx, cancel := context.WithTimeout(ctx, handoffPatience)
	defer cancel()
	var epoch int64
	err := world.Await(ctx, c.name, func(ctx context.Context) error {
		got, err := a.Read(ctx)
		if err != nil {
			return err
		}
		epoch = got.Status.Epoch
		return c.begin(ctx, a.Singleton)
	})
	if err != nil {
		return err
	}
	a.count(a.Namespace, c.name)
	if !c.stays {
		epoch++
	}
	return a.AwaitHolder(ctx, epoch)
}
