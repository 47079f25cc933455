package cluster

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

func TestStates(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	one := func(namespace, name, reason string, states ...v1.MemberState) *v1.StatefulCluster {
		o := &v1.StatefulCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		o.Status.Conditions = []metav1.Condition{{Type: v1.ConditionStalled, Status: metav1.ConditionTrue, Reason: reason}}
		for i, state := range states {
			o.Status.Members = append(o.Status.Members, v1.ClusterMember{Name: name + "-" + string(rune('0'+i)), State: state})
		}
		return o
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		one("shop", "db", "TooManyLost", v1.MemberActive, v1.MemberLost), one("shop", "cache", "TooManyLost", v1.MemberActive), one("wiki", "db", "WriteRefused"),
	).Build()
	want := `
# HELP statefulsingleton_cluster_conditions StatefulClusters of a namespace by each of their conditions.
# TYPE statefulsingleton_cluster_conditions gauge
statefulsingleton_cluster_conditions{namespace="shop",reason="TooManyLost",status="True",type="Stalled"} 2
statefulsingleton_cluster_conditions{namespace="wiki",reason="WriteRefused",status="True",type="Stalled"} 1
# HELP statefulsingleton_cluster_members Members of the StatefulClusters of a namespace by their state.
# TYPE statefulsingleton_cluster_members gauge
statefulsingleton_cluster_members{namespace="shop",state="Active"} 2
statefulsingleton_cluster_members{namespace="shop",state="Lost"} 1
`
	if err := testutil.CollectAndCompare(states{reader}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

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
