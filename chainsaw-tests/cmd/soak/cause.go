package main

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// cause changes the pods of a workload.
type cause struct {
	name string
	// begin starts the change, and returns what waits for its end. It may be repeated if the API server does not answer.
	begin func(context.Context) (end, error)
}

type end func(context.Context) error

// subject is a workload that is changed again and again.
type subject interface {
	Key() types.NamespacedName
	causes() []cause
	// Check checks the journals.
	Check() (journal.Summary, error)
	// evict requests the eviction of the pods on the node that count.
	evict(ctx context.Context, node string) error
	// settle waits until the workload is complete.
	settle(context.Context) error
	// journals is the directory of the journals.
	journals() string
	// Remove deletes the workload.
	Remove(context.Context) error
}

// actor repeats changes of one subject.
type actor struct {
	*run
	subject
	random *rand.Rand
}

// patience is how long to wait for the end of a change before the next cause. A ReplicaSet whose pod was rejected while
// Kyverno was down retries with growing delays.
const patience = 30 * time.Second

// act runs until the context ends.
func (a *actor) act(ctx context.Context) {
	all := a.causes()
	next := all[0] // the fault must change something
	for ctx.Err() == nil {
		if err := a.once(ctx, next); err != nil && ctx.Err() == nil {
			a.note(a.Key().Namespace, next.name+": failed, another cause follows: "+err.Error())
		}
		next = all[a.random.IntN(len(all))]
	}
}

func (a *actor) once(ctx context.Context, c cause) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var await end
	err := world.Await(ctx, c.name, func(ctx context.Context) (err error) {
		await, err = c.begin(ctx)
		return err
	})
	if err != nil {
		return err
	}
	a.count(a.caused, a.Key().Namespace, c.name)
	return await(ctx)
}
