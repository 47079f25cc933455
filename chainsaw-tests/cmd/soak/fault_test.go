package main

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dealt returns the rounds of a seed as text.
func dealt(seed uint64, rounds int) (all []string, kinds map[string]int) {
	deal := newRounds(seed)
	kinds = map[string]int{}
	for range rounds {
		next := deal.next()
		for _, b := range next.blows {
			all = append(all, b.String()+" "+b.lasts.String())
			kinds[b.fault.name]++
		}
		all = append(all, strconv.Itoa(next.handoffs))
	}
	return all, kinds
}

func TestFaultsAreDerivedFromTheSeed(t *testing.T) {
	first, _ := dealt(7, 50)
	again, _ := dealt(7, 50)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("one seed, two runs (-first +again):\n%s", diff)
	}
	other, _ := dealt(8, 50)
	if cmp.Equal(first, other) {
		t.Error("two seeds deal the same faults")
	}
}

func TestEveryFaultComesBeforeAnyComesAgain(t *testing.T) {
	_, kinds := dealt(7, len(faults))
	for _, f := range faults {
		if kinds[f.name] == 0 {
			t.Errorf("%q has not come within %d rounds", f.name, len(faults))
		}
	}
}
