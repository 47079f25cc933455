package singleton

import (
	"strings"
	"testing"

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
	one := func(namespace, name string, phase v1.Phase, conditions ...metav1.Condition) *v1.StatefulSingleton {
		return &v1.StatefulSingleton{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Status:     v1.StatefulSingletonStatus{Phase: phase, Conditions: conditions},
		}
	}
	lost := metav1.Condition{Type: v1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "HolderLost"}
	fine := metav1.Condition{Type: v1.ConditionStalled, Status: metav1.ConditionFalse, Reason: "HolderReady"}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		one("shop", "db", v1.PhaseFailed, lost), one("shop", "licences", v1.PhaseFailed, lost), one("shop", "new", ""),
		one("wiki", "db", v1.PhaseRunning, fine),
	).Build()
	want := `
# HELP statefulsingleton_conditions StatefulSingletons of a namespace by each of their conditions.
# TYPE statefulsingleton_conditions gauge
statefulsingleton_conditions{namespace="shop",reason="HolderLost",status="True",type="Stalled"} 2
statefulsingleton_conditions{namespace="wiki",reason="HolderReady",status="False",type="Stalled"} 1
# HELP statefulsingleton_singletons StatefulSingletons by phase (Idle: no pod is there and none is expected).
# TYPE statefulsingleton_singletons gauge
statefulsingleton_singletons{phase="Failed"} 2
statefulsingleton_singletons{phase="Idle"} 1
statefulsingleton_singletons{phase="Running"} 1
statefulsingleton_singletons{phase="Transitioning"} 0
`
	if err := testutil.CollectAndCompare(states{reader}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
