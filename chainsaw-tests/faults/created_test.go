//go:build cluster

package faults_test

import (
	"testing"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// A pod is released and deleted before the kubelet has checked whether its barrier is open. Its container is never
// created, and the kubelet's report differs from that of other pods.
func TestDeletedBeforeItsContainerIsCreated(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Barrier: true})
	r := refuse(t, s, "OpenBarrier")
	deletePod(t, holder(t, s), nil)
	r.await(t)
	released := holder(t, s)
	deletePod(t, released, nil)
	r.lift(t)
	must(t, s.AwaitHolder(t.Context(), 3))
	wantProof(t, s, v1.ProofKubeletReported)
}
