package main

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// roundsOf returns the rounds of a seed as text.
func roundsOf(seed uint64, rounds int) (all []string, kinds map[string]int) {
	selected := newRounds(seed, faults)
	kinds = map[string]int{}
	for range rounds {
		next := selected.next()
		for _, b := range next.scheduled {
			all = append(all, b.String()+" "+b.lasts.String())
			kinds[b.fault.name]++
		}
		all = append(all, strconv.Itoa(next.handoffs))
	}
	return all, kinds
}

func TestFaultsAreDerivedFromTheSeed(t *testing.T) {
	first, _ := roundsOf(7, 50)
	again, _ := roundsOf(7, 50)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("two runs with one seed (-first +again):\n%s", diff)
	}
	if other, _ := roundsOf(8, 50); cmp.Equal(first, other) {
		t.Error("two seeds select the same faults")
	}
	_, kinds := roundsOf(7, len(faults))
	for _, f := range faults {
		if kinds[f.name] == 0 {
			t.Errorf("%q does not happen within %d rounds, so another fault happened twice before", f.name, len(faults))
		}
	}
}
