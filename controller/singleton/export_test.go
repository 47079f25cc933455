package singleton

import (
	"context"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// Execute executes the plan of a test.
func (r *Reconciler) Execute(ctx context.Context, snapshot handoff.Snapshot, plan handoff.Plan) error {
	return r.execute(ctx, snapshot, plan)
}
