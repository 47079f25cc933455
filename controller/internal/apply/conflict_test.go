package apply

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A few conflicts in a row are retried with growing delays. Then they are errors until a reconcile ends without a conflict. Each
// object has its own count.
func TestConflicts(t *testing.T) {
	one, other := types.NamespacedName{Name: "one"}, types.NamespacedName{Name: "other"}
	var c Conflicts
	for i := range 8 {
		if want, got := 10*time.Millisecond<<i, c.Ended(one, true); got != want {
			t.Errorf("the delay after conflict %d is %s, want %s", i+1, got, want)
		}
		if tolerates := c.Tolerates(one); tolerates != (i < 7) {
			t.Errorf("after %d conflicts, the next one is tolerated: %t", i+1, tolerates)
		}
	}
	for range 2 {
		if got := c.Ended(one, true); got != 0 || c.Tolerates(one) {
			t.Errorf("the delay after more conflicts is %s, and the next one is tolerated: %t", got, c.Tolerates(one))
		}
	}
	if got := c.Ended(other, true); got != 10*time.Millisecond {
		t.Errorf("the delay of another object is %s", got)
	}
	if got := c.Ended(one, false); got != 0 || !c.Tolerates(one) {
		t.Errorf("without a conflict, the delay is %s, and the next conflict is tolerated: %t", got, c.Tolerates(one))
	}
	if got := c.Ended(one, true); got != 10*time.Millisecond {
		t.Errorf("the delay starts with %s again", got)
	}
}
