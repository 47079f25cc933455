package cluster

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Each replacement is counted once, with its cause.
func TestReplacements(t *testing.T) {
	of := func(members ...string) (all []v1.ClusterMember) {
		for _, text := range members {
			part := strings.Fields(text) // name, state and revision
			all = append(all, v1.ClusterMember{Name: part[0], State: v1.MemberState(part[1]), Revision: part[2]})
		}
		return all
	}
	for name, test := range map[string]struct {
		before, after []v1.ClusterMember
		want          map[string]float64
	}{
		"the first pods":      {of(), of("0 Pending new", "1 Pending new"), nil},
		"the UID is recorded": {of("0 Pending new"), of("0 Active new"), nil},
		"a deletion":          {of("0 Active new", "1 Active new"), of("1 Active new", "2 Pending new"), map[string]float64{"Deletion": 1}},
		"a rollout":           {of("0 Active old", "1 Active new"), of("1 Active new", "2 Pending new"), map[string]float64{"Rollout": 1}},
		"a lost pod":          {of("0 Active new"), of("0 Lost new", "1 Pending new"), map[string]float64{"Lost": 1}},
		"a lost pod has gone": {of("0 Lost new", "1 Active new"), of("1 Active new"), nil},
		"scaled down":         {of("0 Leaving new", "1 Active new"), of("1 Active new"), nil},
		"scaled up, too":      {of("0 Leaving new", "1 Active new"), of("1 Active new", "2 Pending new"), nil},
		"the name was taken":  {of("0 Pending new"), of("1 Pending new"), nil},
		"two causes":          {of("0 Active new", "1 Active new"), of("0 Lost new", "2 Pending new", "3 Pending new"), map[string]float64{"Lost": 1, "Deletion": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMetrics(prometheus.NewRegistry(), nil)
			added, lost, removed := difference(test.before, test.after)
			m.replaced(added, lost, removed, "new")
			want := map[string]float64{"Lost": 0, "Rollout": 0, "Deletion": 0}
			maps.Copy(want, test.want)
			if got := testutil.CollectAndCount(m.replacements); got != len(want) {
				t.Errorf("%d causes, want %d", got, len(want))
			}
			for cause, count := range want {
				if got := testutil.ToFloat64(m.replacements.WithLabelValues(cause)); got != count {
					t.Errorf("%v replacements with cause %s, want %v", got, cause, count)
				}
			}
		})
	}
}
