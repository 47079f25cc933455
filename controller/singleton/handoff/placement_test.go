package handoff_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

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
