package proof_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestLeft(t *testing.T) {
	for name, test := range map[string]struct{ passed, want time.Duration }{
		"just begun":       {0, time.Minute},
		"some has passed":  {20 * time.Second, 40 * time.Second},
		"all has passed":   {time.Hour, 0},
		"a clock is ahead": {-time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := proof.Left(time.Minute, now.Add(-test.passed), now); got != test.want {
				t.Errorf("%s is left, want %s", got, test.want)
			}
		})
	}
}

// A clock that is ahead never shortens the wait for a condition to last, and lengthens it only up to the last write of the status.
func TestChangedAt(t *testing.T) {
	const none = 24 * time.Hour
	for name, test := range map[string]struct{ changed, written, want time.Duration }{
		"a right clock":                        {time.Minute, time.Second, time.Minute},
		"a clock ahead":                        {-time.Minute, time.Second, time.Second},
		"a clock ahead of the API server's":    {-time.Minute, -time.Second, 0},
		"a clock ahead, and nobody knows more": {-time.Minute, none, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := corev1.PodCondition{LastTransitionTime: metav1.NewTime(now.Add(-test.changed))}
			pod := &corev1.Pod{}
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(metav1.NewTime(now))}, {Subresource: "status"}}
			if test.written != none {
				pod.ManagedFields[1].Time = new(metav1.NewTime(now.Add(-test.written)))
			}
			if got := now.Sub(proof.ChangedAt(pod, &c, now)); got != test.want {
				t.Errorf("the condition changed %s ago, want %s", got, test.want)
			}
		})
	}
}
