package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// otherTag is the tag of the images of the other release.
const otherTag = "other"

// faults returns the faults of the run. With another release, its installation is a fault that lasts until this release is
// installed again. Meanwhile, new pods have the gate of the other release.
func (r *run) faults() []fault {
	if r.other == "" {
		return faults
	}
	return append(slices.Clone(faults), fault{
		name:   "other release",
		inject: func(ctx context.Context, r *run, _ string) error { return install(ctx, r.other, otherTag) },
		end:    func(ctx context.Context, r *run, _ string) error { return install(ctx, ".", r.version) },
	})
}

// install installs the chart of a checkout, with images that have the tag.
func install(ctx context.Context, checkout, tag string) error {
	const release = "statefulsingleton"
	out, err := exec.CommandContext(ctx, "helm", "upgrade", release, filepath.Join(checkout, "charts", release), "--namespace", release,
		"--reset-then-reuse-values", "--set", "image.manager.tag="+tag, "--set", "image.gate.tag="+tag, "--wait", "--timeout", "3m").CombinedOutput()
	if err != nil {
		return fmt.Errorf("install the chart of %s: %w: %s", checkout, err, out)
	}
	return nil
}
