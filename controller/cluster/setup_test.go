package cluster

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The first pods wait for condition PolicyInstalled, so a change of its status causes a reconcile. Other writes of the status do not.
func TestPolicyChanges(t *testing.T) {
	of := func(conditionType string, status metav1.ConditionStatus, message string) *v1.StatefulCluster {
		return &v1.StatefulCluster{Status: v1.StatefulClusterStatus{Conditions: []metav1.Condition{{Type: conditionType, Status: status, Message: message}}}}
	}
	tests := map[string]struct {
		before, after *v1.StatefulCluster
		want          bool
	}{
		"reported":          {&v1.StatefulCluster{}, of(v1.ConditionPolicyInstalled, metav1.ConditionFalse, ""), true},
		"installed":         {of(v1.ConditionPolicyInstalled, metav1.ConditionFalse, ""), of(v1.ConditionPolicyInstalled, metav1.ConditionTrue, ""), true},
		"another message":   {of(v1.ConditionPolicyInstalled, metav1.ConditionTrue, ""), of(v1.ConditionPolicyInstalled, metav1.ConditionTrue, "nearly full"), false},
		"another condition": {of(v1.ConditionReady, metav1.ConditionFalse, ""), of(v1.ConditionReady, metav1.ConditionTrue, ""), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := policyChanges().Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
				t.Errorf("the event passes: %v, want %v", got, test.want)
			}
		})
	}
}
