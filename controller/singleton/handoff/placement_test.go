package handoff_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func TestDecideReportsNodeClaims(t *testing.T) {
	with := func(claims ...string) *SnapshotWrapper {
		pod := MakePod("db-1").Injected().Revision(1).Holding()
		for _, name := range claims {
			pod.Claim(name)
		}
		return MakeSnapshot(pod).Holder("db-1")
	}
	known := func() *SnapshotWrapper {
		s := with("data")
		s.Singleton.Status.NodeClaims = []string{"data"}
		return s
	}
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("claim-%02d", i))
	}
	many := with(names...)
	for _, name := range names {
		many.Claim(name, corev1.ReadWriteOnce)
	}
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		want     []string
	}{
		"no claim":                        {with(), nil},
		"ReadWriteOnce":                   {with("data").Claim("data", corev1.ReadWriteOnce), []string{"data"}},
		"ReadWriteMany":                   {with("data").Claim("data", corev1.ReadWriteMany), nil},
		"ReadWriteOnce and ReadWriteMany": {with("data").Claim("data", corev1.ReadWriteOnce, corev1.ReadWriteMany), nil},
		"ReadWriteOncePod":                {with("data").Claim("data", corev1.ReadWriteOncePod), nil},
		"several":                         {with("wal", "data", "data").Claim("data", corev1.ReadWriteOnce).Claim("wal", corev1.ReadWriteOnce), []string{"data", "wal"}},
		"it is no longer ReadWriteOnce":   {known().Claim("data", corev1.ReadWriteMany), nil},
		"it was not read":                 {known(), []string{"data"}},
		"too many":                        {many, names[:handoff.MaxNodeClaims]},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, handoff.Decide(tc.snapshot.Snapshot, now).Status.NodeClaims); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// The status keeps how long the volumes took to follow to another node.
func TestDecideMeasuresAttach(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *SnapshotWrapper, next *PodWrapper)
		want   *int32
	}{
		"another node":  {func(*SnapshotWrapper, *PodWrapper) {}, new(int32(12))},
		"the same node": {func(s *SnapshotWrapper, _ *PodWrapper) { s.Singleton.Status.LastTransition.FromNode = node2 }, new(int32(7))},
		"the node is lost": {func(s *SnapshotWrapper, _ *PodWrapper) {
			s.Singleton.Status.LastTransition.Proof = v1.ProofLeaseExpired
		}, new(int32(7))},
		"not ReadWriteOnce": {func(s *SnapshotWrapper, _ *PodWrapper) { s.Singleton.Status.NodeClaims = nil }, new(int32(7))},
		"another claim":     {func(s *SnapshotWrapper, _ *PodWrapper) { s.Singleton.Status.NodeClaims = []string{"other"} }, new(int32(7))},
		"mounted before":    {func(_ *SnapshotWrapper, next *PodWrapper) { mountedAt(next, -40*time.Second) }, new(int32(7))},
		"scheduled meanwhile": {func(_ *SnapshotWrapper, next *PodWrapper) {
			next.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-20 * time.Second))
		}, new(int32(2))},
	} {
		t.Run(name, func(t *testing.T) {
			next := MakePod("db-2").Injected().Claim("data").Warm().On(node2)
			next.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Minute))
			mountedAt(next, -18*time.Second)
			s := MakeSnapshot(next).Claim("data", corev1.ReadWriteOnce)
			status := &s.Singleton.Status
			status.NodeClaims, status.AttachSeconds = []string{"data"}, new(int32(7))
			status.LastTransition = &v1.Transition{From: "db-1", FromNode: node1, Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported, Terminated: new(metav1.NewMicroTime(now.Add(-30 * time.Second)))}
			tc.change(s, next)
			plan := handoff.Decide(s.Snapshot, now)
			if signalledBy(plan) != "db-2" {
				t.Fatalf("outcome %s, message %q", plan.Outcome, plan.Status.Message)
			}
			if diff := cmp.Diff(tc.want, plan.Status.AttachSeconds); diff != "" {
				t.Errorf("seconds (-want +got):\n%s", diff)
			}
		})
	}
}

// mountedAt sets when the pod had mounted its volumes, relative to now.
func mountedAt(pod *PodWrapper, at time.Duration) {
	pod.Condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, "", "")
	pod.Status.Conditions[len(pod.Status.Conditions)-1].LastTransitionTime = metav1.NewTime(now.Add(at))
}
