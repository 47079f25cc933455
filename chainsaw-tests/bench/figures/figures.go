// Package figures is what the benchmark measured: the samples, what is computed of
// them, and how they are shown.
package figures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// The moments of a handoff. Those of the old pod, and of the new one.
const (
	// Asked: the old pod's deletion was asked for, a watch told.
	Asked = "asked"
	// Stopping: the old application got its SIGTERM, as it wrote down.
	Stopping = "stopping"
	// Exit: the old application ended, as it wrote down.
	Exit = "exit"
	// Status: the old pod's status says so, a watch told.
	Status = "status"
	// Gone: the old pod's object is gone, a watch told.
	Gone = "gone"
	// Created: there is a new pod, a watch told.
	Created = "created"
	// Warm: the new pod waits for the signal alone, a watch told.
	Warm = "warm"
	// Record: the singleton's status names the new pod, a watch told.
	Record = "record"
	// Signal: the new pod bears the signal, a watch told.
	Signal = "signal"
	// Start: the new application began, as it wrote down.
	Start = "start"
	// Ready: the new pod is Ready, a watch told.
	Ready = "ready"
)

// Recreate is the system that the others are held against.
const Recreate = "recreate"

// Sample is one handoff. All its times are in milliseconds.
type Sample struct {
	// GapMS is the time from the old application's end to the new one's start;
	// negative where both ran.
	GapMS int64 `json:"gap_ms"`
	// DowntimeMS is the longest time in which no client got a good answer.
	DowntimeMS int64 `json:"downtime_ms"`
	// ReadyMS is the time from the cause until the new pod was Ready.
	ReadyMS int64 `json:"ready_ms"`
	// Overlaps counts the applications that began while another one ran.
	Overlaps int `json:"overlaps"`
	// Moments are times since the cause. One that did not come is not there.
	Moments map[string]int64 `json:"moments"`
}

// Row is what was measured of one combination.
type Row struct {
	System    string `json:"system"`
	Cause     string `json:"cause"`
	Condition string `json:"condition"`
	// N is the number of handoffs that count.
	N          int          `json:"n"`
	GapMS      Distribution `json:"gap_ms"`
	DowntimeMS Distribution `json:"downtime_ms"`
	ReadyMS    Distribution `json:"ready_ms"`
	Overlaps   int          `json:"overlaps"`
	// RatioToRecreate is the median gap divided by Recreate's. It is not there where
	// one of them is not above zero.
	RatioToRecreate float64 `json:"ratio_to_recreate,omitempty"`
	// Legs are the parts of the way, in a handoff that goes by a signal.
	Legs []Leg `json:"legs,omitempty"`
	// Failed tells of each handoff that does not count, why.
	Failed  []string `json:"failed,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
}

// Leg is the time from one moment to another.
type Leg struct {
	From string `json:"from"`
	To   string `json:"to"`
	Distribution
}

// Distribution is of milliseconds. Each figure is one that was measured: the smallest
// that so many of all do not exceed.
type Distribution struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	Max int64 `json:"max"`
}

// Distribute computes the distribution. None has zeros.
func Distribute(values []int64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := func(percent int) int64 { return sorted[(percent*len(sorted)+99)/100-1] }
	return Distribution{P50: rank(50), P95: rank(95), Max: rank(100)}
}

// way is the one that a handoff by a signal goes.
var way = []string{"cause", Asked, Exit, Status, Record, Signal, Start, Ready}

func legs(samples []Sample) []Leg {
	var all []Leg
	for i := 1; i < len(way); i++ {
		var values []int64
		for _, s := range samples {
			from, known := s.Moments[way[i-1]]
			to, ended := s.Moments[way[i]]
			if ended && (known || i == 1) {
				values = append(values, to-from)
			}
		}
		if len(values) == len(samples) {
			all = append(all, Leg{way[i-1], way[i], Distribute(values)})
		}
	}
	return all
}

// Results are those of one run.
type Results struct {
	Date     time.Time         `json:"date"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	// Systems, Causes and Conditions tell what the names in the rows mean.
	Systems    []Term `json:"systems"`
	Causes     []Term `json:"causes"`
	Conditions []Term `json:"conditions"`
	Rows       []Row  `json:"rows"`
}

// Term is a name with what it means.
type Term struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// Named is the term, of what has one.
func (t Term) Named() Term { return t }

// Machine is what it ran on.
type Machine struct {
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	MemoryGiB int    `json:"memory_gib"`
	Kernel    string `json:"kernel"`
	System    string `json:"system"`
	Nodes     int    `json:"nodes"`
}

// Continue takes over what an earlier run has measured. It fails where that was of
// another machine, another cluster or other applications: then the figures of the two are
// not those of one run. Where the code has changed since, the results name both: each
// round measures every system by the same code, so what is compared is alike.
func (r *Results) Continue(earlier *Results) error {
	const and = " and "
	ours := []string{"statefulsingleton", "code"}
	subject := func(r *Results) []any {
		versions := maps.Clone(r.Versions)
		for _, key := range ours {
			delete(versions, key)
		}
		return []any{r.Machine, versions, r.Systems, r.Causes, r.Conditions}
	}
	was, is := subject(earlier), subject(r)
	for i := range is {
		if !reflect.DeepEqual(was[i], is[i]) {
			return fmt.Errorf("it was of something else, so begin anew: %v, now %v", was[i], is[i])
		}
	}
	r.Rows = earlier.Rows
	for _, key := range ours {
		all := strings.Split(earlier.Versions[key], and)
		if !slices.Contains(all, r.Versions[key]) {
			all = append(all, r.Versions[key])
		}
		r.Versions[key] = strings.Join(all, and)
	}
	return nil
}

// Fewest is how many handoffs were measured of the combination that has fewest, of so
// many combinations.
func (r *Results) Fewest(combinations int) int {
	if len(r.Rows) < combinations {
		return 0
	}
	fewest := math.MaxInt
	for _, row := range r.Rows {
		fewest = min(fewest, len(row.Samples))
	}
	return fewest
}

// Compute fills in what follows from the samples.
func (r *Results) Compute() {
	for i := range r.Rows {
		row := &r.Rows[i]
		row.N, row.Overlaps = len(row.Samples), 0
		var gaps, downtimes, readies []int64
		signalled := row.N > 0
		for _, s := range row.Samples {
			gaps, downtimes, readies = append(gaps, s.GapMS), append(downtimes, s.DowntimeMS), append(readies, s.ReadyMS)
			row.Overlaps += s.Overlaps
			_, bySignal := s.Moments[Signal]
			signalled = signalled && bySignal
		}
		row.GapMS, row.DowntimeMS, row.ReadyMS = Distribute(gaps), Distribute(downtimes), Distribute(readies)
		row.Legs = nil
		if signalled {
			row.Legs = legs(row.Samples)
		}
	}
	for i := range r.Rows {
		r.Rows[i].RatioToRecreate = 0
		other := r.Row(Recreate, r.Rows[i].Cause, r.Rows[i].Condition)
		if other != nil && other.GapMS.P50 > 0 && r.Rows[i].GapMS.P50 > 0 {
			// three digits are more than the figures bear
			r.Rows[i].RatioToRecreate = float64(r.Rows[i].GapMS.P50*1000/other.GapMS.P50) / 1000
		}
	}
}

// Row finds one, nil if it was not measured.
func (r *Results) Row(system, cause, condition string) *Row {
	i := slices.IndexFunc(r.Rows, func(row Row) bool {
		return row.System == system && row.Cause == cause && row.Condition == condition
	})
	if i < 0 {
		return nil
	}
	return &r.Rows[i]
}

// Read reads what Write wrote.
func Read(file string) (*Results, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &Results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read the results %s: %w", file, err)
	}
	return r, nil
}

// Write writes the results whole, or leaves the file as it was.
func (r *Results) Write(file string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	partial := file + ".partial"
	if err := os.WriteFile(partial, text.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, file)
}
