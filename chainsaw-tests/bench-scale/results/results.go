// Package results is what the benchmark of many singletons measured, and how it is shown.
package results

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/bench/figures"
)

// Results are those of one run.
type Results struct {
	Date     time.Time         `json:"date"`
	Machine  figures.Machine   `json:"machine"`
	Versions map[string]string `json:"versions"`
	// Namespaces and Nodes are how many the singletons were spread over.
	Namespaces int `json:"namespaces"`
	Nodes      int `json:"nodes"`
	// IdleSeconds is how long nothing happened while what is idle was measured.
	IdleSeconds int    `json:"idle_seconds"`
	Steps       []Step `json:"steps"`
	// Forms are what the policies of the last step could look like.
	Forms []Form `json:"forms"`
}

// Form is what was measured of one form of the policies.
type Form struct {
	Name string `json:"name"`
	// WrittenSeconds is how long it took to write all policies, and ServedSeconds until
	// the last one worked too; 0: it never did.
	WrittenSeconds float64 `json:"written_seconds"`
	ServedSeconds  float64 `json:"served_seconds"`
	// Refused is what became of a pod of the last singleton. Empty: it was injected.
	Refused string  `json:"refused,omitempty"`
	Kyverno Kyverno `json:"kyverno"`
}

// Step is what was measured with that many singletons.
type Step struct {
	Singletons int `json:"singletons"`
	// PolicyPer is what had a policy of its own: singleton or namespace.
	PolicyPer policies.Per `json:"policy_per"`
	// Injected of them have a policy that works, by their condition PolicyInstalled.
	Injected int `json:"injected"`
	// Refused is why the others have not, by the condition of one of them.
	Refused string `json:"refused,omitempty"`
	// InstallSeconds is the time from the first new StatefulSingleton, or from when the
	// controller is told to share policies, to the last policy that works.
	InstallSeconds float64    `json:"install_seconds"`
	Controller     Controller `json:"controller"`
	Kyverno        Kyverno    `json:"kyverno"`
	Handoffs       []Handoffs `json:"handoffs"`
}

// Controller is about the process that leads.
type Controller struct {
	// IdleMiB and PeakMiB are resident memory: while nothing happens, and the most that
	// was seen at any time of the step.
	IdleMiB float64 `json:"idle_mib"`
	PeakMiB float64 `json:"peak_mib"`
	// IdleCores is CPU time by time.
	IdleCores float64 `json:"idle_cores"`
	// IdleReconciles and IdleRequests are per second.
	IdleReconciles float64 `json:"idle_reconciles"`
	IdleRequests   float64 `json:"idle_requests"`
	// RestartSeconds is the time from a new leader's start to its first reconcile of the
	// last singleton, with nothing left in the queue.
	RestartSeconds float64 `json:"restart_seconds"`
}

// Kyverno is about its admission controller.
type Kyverno struct {
	MiB float64 `json:"mib"`
	// Policies is how many policies of any kind there are, Webhooks how many webhooks they
	// have in its MutatingWebhookConfiguration.
	Policies int `json:"policies"`
	Webhooks int `json:"webhooks"`
	// WebhookBytes is the size of that object as it is stored.
	WebhookBytes int `json:"webhook_bytes"`
	// Error is the last that Kyverno logged about that object. Empty: none.
	Error string `json:"error,omitempty"`
	// SelectedMS is how long the creation of a pod takes that a singleton selects, OtherMS
	// one that none selects; both in a server-side dry-run.
	SelectedMS figures.Distribution `json:"selected_ms"`
	OtherMS    figures.Distribution `json:"other_ms"`
}

// Handoffs are many at once.
type Handoffs struct {
	// Cause is what began them.
	Cause string `json:"cause"`
	N     int    `json:"n"`
	// DecidedMS is the time from the first cause of all to the record of the next holder,
	// ReadyMS to its being Ready.
	DecidedMS figures.Distribution `json:"decided_ms"`
	ReadyMS   figures.Distribution `json:"ready_ms"`
	// Legs are the parts of the way, as watches told of them.
	Legs []figures.Leg `json:"legs"`
	// Cores is the controller's CPU time by time, from the first cause to the last Ready.
	Cores float64 `json:"cores"`
	// QueueMS is how long a singleton waited in the controller's queue on average.
	QueueMS float64 `json:"queue_ms"`
	// Writes, DryRuns and Reads are the controller's requests for each handoff. Requests
	// tells them apart by verb and resource.
	Writes   float64            `json:"writes"`
	DryRuns  float64            `json:"dry_runs"`
	Reads    float64            `json:"reads"`
	Requests map[string]float64 `json:"requests"`
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
	encoder.SetEscapeHTML(false)
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

//go:embed tables.md.tmpl
var tables string

var parsed = template.Must(template.New("").Funcs(template.FuncMap{
	"triple": func(d figures.Distribution) string { return fmt.Sprintf("%d / %d / %d", d.P50, d.P95, d.Max) },
	"number": func(s Step) string {
		if s.PolicyPer == policies.PerNamespace {
			return fmt.Sprintf("%d, sharing policies", s.Singletons)
		}
		return strconv.Itoa(s.Singletons)
	},
	"sorted": func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) },
	"requests": func(m map[string]float64) string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(m)) {
			all = append(all, fmt.Sprintf("%s %.2f", name, m[name]))
		}
		return strings.Join(all, ", ")
	},
}).Parse(tables))

// Tables are all figures, in Markdown.
func (r *Results) Tables() (string, error) {
	var text bytes.Buffer
	err := parsed.Execute(&text, r)
	return text.String(), err
}
