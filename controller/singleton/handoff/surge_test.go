package handoff_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func TestDecideReportsWarm(t *testing.T) {
	rolling := appsv1.RollingUpdateDeploymentStrategyType
	one := func() *SnapshotWrapper {
		return MakeSnapshot(MakePod("db-1").Injected().Revision(1).Holding()).Holder("db-1")
	}
	set := MakeSnapshot(MakePod("db-1").OwnedBy("StatefulSet", "db").Injected().Holding()).Holder("db-1").StatefulSet("db", 1, "")
	const patch = "kubectl patch -n prod deployment db --type=json"
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// want is the status of the condition. Empty: there is none.
		want     string
		wantSays string
	}{
		"the defaults":                     {one(), "True", "pod db-1 runs until the pod of the next rollout is warm"},
		"Recreate":                         {one().Strategy(appsv1.RecreateDeploymentStrategyType, "1", "0"), "False", patch},
		"maxSurge is 0":                    {one().Strategy(rolling, "0", "1"), "False", patch},
		"the Deployment is paused":         {one().Paused(), "False", "kubectl rollout resume -n prod deployment/db"},
		"a StatefulSet":                    {set, "False", "Only a Deployment can create the next pod first"},
		"the Deployment is scaled to zero": {one().Deployment(0), "", ""},
		"there is no pod":                  {MakeSnapshot(), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			got := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionWarm)
			switch {
			case (got == nil) != (tc.want == ""):
				t.Fatalf("condition %+v, want status %q", got, tc.want)
			case got != nil && (string(got.Status) != tc.want || !strings.Contains(got.Message, tc.wantSays)):
				t.Errorf("condition %s: %s, want %s with %q", got.Status, got.Message, tc.want, tc.wantSays)
			}
		})
	}
}
