package main

import (
	"context"
	"slices"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// faults returns the faults of the run. With another release, its installation is a fault that lasts until this release is
// installed again. Meanwhile, new pods have the gate of the other release.
func (r *run) faults() []fault {
	if r.other == "" {
		return faults
	}
	return append(slices.Clone(faults), fault{
		name:   "other release",
		inject: func(ctx context.Context, r *run, _ string) error { return world.Install(ctx, r.other, world.OtherTag) },
		end:    func(ctx context.Context, r *run, _ string) error { return world.Install(ctx, ".", r.version) },
	})
}
