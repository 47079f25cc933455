// Package results stores the results of the benchmark of many singletons, and renders them as Markdown.
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

// Results holds the results of one run.
type Results struct {
	Date     time.Time         `json:"date"`
	Machine  figures.Machine   `json:"machine"`
	Versions map[string]string `json:"versions"`
	// Namespaces and Nodes are the numbers of namespaces and nodes with singletons.
	Namespaces int `json:"namespaces"`
	Nodes      int `json:"nodes"`
	// IdleSeconds is the duration of the measurement without any change, in seconds.
	IdleSeconds int    `json:"idle_seconds"`
	Steps       []Step `json:"steps"`
	// Forms are other kinds of policies, measured without singletons.
	Forms []Form `json:"forms"`
}

// Form holds the results for another kind of policies.
type Form struct {
	Name string `json:"name"`
	// WrittenSeconds is the time to write all policies. ServedSeconds is the time until the last policy
	// worked, or 0 if it never worked.
	WrittenSeconds float64 `json:"written_seconds"`
	ServedSeconds  float64 `json:"served_seconds"`
	// Refused is why a pod of the last singleton was not injected. Empty if the pod was injected.
	Refused string  `json:"refused,omitempty"`
	Kyverno Kyverno `json:"kyverno"`
}

// Step holds the results for one number of singletons.
type Step struct {
	Singletons int `json:"singletons"`
	// PolicyPer is the value of policyPer: singleton or namespace.
	PolicyPer policies.Per `json:"policy_per"`
	// Injected is the number of singletons with a working policy, by their condition PolicyInstalled.
	Injected int `json:"injected"`
	// Refused is the reason and message of PolicyInstalled of a singleton without a working policy.
	Refused string `json:"refused,omitempty"`
	// InstallSeconds is the time until the last policy works. It starts with the first new StatefulSingleton, or with
	// the change of policyPer.
	InstallSeconds float64    `json:"install_seconds"`
	Controller     Controller `json:"controller"`
	Kyverno        Kyverno    `json:"kyverno"`
	Handoffs       []Handoffs `json:"handoffs"`
}

// Controller holds the figures of the leader.
type Controller struct {
	// IdleMiB is the resident memory without any change. PeakMiB is the maximum during the step.
	IdleMiB float64 `json:"idle_mib"`
	PeakMiB float64 `json:"peak_mib"`
	// IdleCores is CPU time divided by time.
	IdleCores float64 `json:"idle_cores"`
	// IdleReconciles and IdleRequests are per second.
	IdleReconciles float64 `json:"idle_reconciles"`
	IdleRequests   float64 `json:"idle_requests"`
	// RestartSeconds is the time from the start of a new leader until it has reconciled every singleton and its queue
	// is empty.
	RestartSeconds float64 `json:"restart_seconds"`
}

// Kyverno holds the figures of Kyverno's admission controller.
type Kyverno struct {
	MiB float64 `json:"mib"`
	// Policies is the number of policies of any kind. Webhooks is the number of their webhooks in Kyverno's
	// MutatingWebhookConfiguration.
	Policies int `json:"policies"`
	Webhooks int `json:"webhooks"`
	// WebhookBytes is the stored size of the MutatingWebhookConfiguration.
	WebhookBytes int `json:"webhook_bytes"`
	// Error is the last error that Kyverno logged about the MutatingWebhookConfiguration. Empty if there is none.
	Error string `json:"error,omitempty"`
	// SelectedMS is the time to create a pod that a singleton selects, and OtherMS to create a pod that no singleton
	// selects. Both are server-side dry-runs.
	SelectedMS figures.Distribution `json:"selected_ms"`
	OtherMS    figures.Distribution `json:"other_ms"`
}

// Handoffs holds the figures of many handoffs at once.
type Handoffs struct {
	// Cause is the cause of the handoffs: rollout or deletion.
	Cause string `json:"cause"`
	N     int    `json:"n"`
	// DecidedMS is the time from the first cause to the record of the next holder. ReadyMS is the time from the first
	// cause until the next holder is Ready.
	DecidedMS figures.Distribution `json:"decided_ms"`
	ReadyMS   figures.Distribution `json:"ready_ms"`
	// Legs are the stages of the handoffs, measured by watches.
	Legs []figures.Leg `json:"legs"`
	// Cores is the controller's CPU time divided by time, from the first cause until the last holder is Ready.
	Cores float64 `json:"cores"`
	// QueueMS is the mean time in the controller's queue.
	QueueMS float64 `json:"queue_ms"`
	// Writes, DryRuns and Reads are the controller's requests per handoff. Requests counts them by verb and resource.
	Writes   float64            `json:"writes"`
	DryRuns  float64            `json:"dry_runs"`
	Reads    float64            `json:"reads"`
	Requests map[string]float64 `json:"requests"`
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
			all = append(all, fmt.Sprintf("`%s` %.2f", name, m[name]))
		}
		return strings.Join(all, ", ")
	},
}).Parse(tables))

// Tables renders all figures as Markdown.
func (r *Results) Tables() (string, error) {
	var text bytes.Buffer
	err := parsed.Execute(&text, r)
	return text.String(), err
}
