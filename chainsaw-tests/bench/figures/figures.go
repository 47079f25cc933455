// Package figures stores the samples of the benchmark, computes figures from the samples, and renders the figures.
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

// Events of a handoff. The keys of Sample.Moments.
const (
	// Asked: a watch reports that the old pod is terminating.
	Asked = "asked"
	// Stopping: the old application records that it received SIGTERM.
	Stopping = "stopping"
	// Exit: the old application records that it exits.
	Exit = "exit"
	// Status: a watch reports that the old pod's status shows the exit.
	Status = "status"
	// Gone: a watch reports that the old pod is removed.
	Gone = "gone"
	// Created: a watch reports the new pod.
	Created = "created"
	// Warm: a watch reports that the new pod is warm.
	Warm = "warm"
	// Record: a watch reports that the singleton's status names the new pod.
	Record = "record"
	// Signal: a watch reports that the new pod has the signal.
	Signal = "signal"
	// Start: the new application records that it starts.
	Start = "start"
	// Ready: a watch reports that the new pod is Ready.
	Ready = "ready"
)

// Recreate is the system that the other systems are compared with.
const Recreate = "recreate"

// Sample is one handoff. All its times are in milliseconds.
type Sample struct {
	// GapMS is the time from the exit of the old application to the start of the new application. GapMS is negative if
	// both ran.
	GapMS int64 `json:"gap_ms"`
	// DowntimeMS is the longest time without a successful response to a client.
	DowntimeMS int64 `json:"downtime_ms"`
	// ReadyMS is the time from the cause until the new pod was Ready.
	ReadyMS int64 `json:"ready_ms"`
	// Overlaps counts the applications that started while another application ran.
	Overlaps int `json:"overlaps"`
	// Moments has the time of each event since the cause. Events that did not occur are missing.
	Moments map[string]int64 `json:"moments"`
}

// Row holds the results of one combination.
type Row struct {
	System    string `json:"system"`
	Cause     string `json:"cause"`
	Condition string `json:"condition"`
	// N is the number of handoffs that did not fail.
	N          int          `json:"n"`
	GapMS      Distribution `json:"gap_ms"`
	DowntimeMS Distribution `json:"downtime_ms"`
	ReadyMS    Distribution `json:"ready_ms"`
	Overlaps   int          `json:"overlaps"`
	// RatioToRecreate is the median gap divided by the median gap of Recreate, or 0 unless both are positive.
	RatioToRecreate float64 `json:"ratio_to_recreate,omitempty"`
	// Legs are the stages of handoffs with a signal.
	Legs []Leg `json:"legs,omitempty"`
	// Failed has the error of each handoff that failed.
	Failed  []string `json:"failed,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
}

// Leg is a stage: the time from one event to the next event.
type Leg struct {
	From string `json:"from"`
	To   string `json:"to"`
	Distribution
}

// Distribution has percentiles in milliseconds. Each percentile is the smallest measured value that this share of the
// values does not exceed.
type Distribution struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	Max int64 `json:"max"`
}

// Distribute computes the distribution of the values. Without values, the percentiles are 0.
func Distribute(values []int64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := func(percent int) int64 { return sorted[(percent*len(sorted)+99)/100-1] }
	return Distribution{P50: rank(50), P95: rank(95), Max: rank(100)}
}

// way lists the events of a handoff with a signal, in their order.
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

// Results holds the results of one run.
type Results struct {
	Date     time.Time         `json:"date"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	// Systems, Causes and Conditions explain the names in the rows.
	Systems    []Term `json:"systems"`
	Causes     []Term `json:"causes"`
	Conditions []Term `json:"conditions"`
	Rows       []Row  `json:"rows"`
}

// Term is a name and its description.
type Term struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// Named returns the term itself, for types that embed Term.
func (t Term) Named() Term { return t }

// Machine describes the machine of the run.
type Machine struct {
	CPU       string `json:"cpu"`
	CPUs      int    `json:"cpus"`
	MemoryGiB int    `json:"memory_gib"`
	Kernel    string `json:"kernel"`
	System    string `json:"system"`
	Nodes     int    `json:"nodes"`
}

// Continue takes the rows from an earlier run. Continue fails if the machine, the cluster or the applications differ,
// because the figures are not comparable. If only the code differs, the results name both versions. Each round measures
// every system with the same code, and the systems stay comparable.
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
			return fmt.Errorf("cannot continue the earlier run, because it measured %v instead of %v: start a new run", was[i], is[i])
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

// Fewest returns the smallest number of handoffs of a combination. Fewest returns 0 if there are fewer rows than
// combinations.
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

// Compute computes the figures from the samples.
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
			// The figures are not more precise than three digits.
			r.Rows[i].RatioToRecreate = float64(r.Rows[i].GapMS.P50*1000/other.GapMS.P50) / 1000
		}
	}
}

// Row returns the row of the combination, or nil.
func (r *Results) Row(system, cause, condition string) *Row {
	i := slices.IndexFunc(r.Rows, func(row Row) bool {
		return row.System == system && row.Cause == cause && row.Condition == condition
	})
	if i < 0 {
		return nil
	}
	return &r.Rows[i]
}

// Read reads the results from a file.
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

// Write replaces the file with the results. If Write fails, the file is unchanged.
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
