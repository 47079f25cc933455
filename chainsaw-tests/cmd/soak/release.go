package main

import (
	"context"
	"slices"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// faults returns the faults of the run. With several API servers, they include faults of one server. With another release, its
// installation is a fault that lasts until this release is installed again. Meanwhile, new pods have the gate of the other
// release.
func (r *run) faults() []fault {
	all := slices.Clone(faults)
	if r.clusters {
		all = append(all, clusterFaults...)
	}
	if len(r.Servers) > 1 {
		all = append(all, serverFaults...)
	}
	if r.other == "" {
		return all
	}
	return append(all, fault{
		name:   "other release",
		inject: func(ctx context.Context, r *run, _ string) error { return world.Install(ctx, r.other, world.OtherTag) },
		end:    func(ctx context.Context, r *run, _ string) error { return world.Install(ctx, ".", r.version) },
	})
}
