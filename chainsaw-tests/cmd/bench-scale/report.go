package main

import (
	"fmt"
	"strings"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/machine"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
)

// results are the figures of a run. The steps are grouped by the form of the policies. The first step of each form has no
// singletons.
type results struct {
	machine.Run
	Steps []figures `json:"steps"`
}

// figures are those with one number of singletons.
type figures struct {
	Singletons int           `json:"singletons"`
	PolicyKind policies.Kind `json:"policy_kind"`
	PolicyPer  policies.Per  `json:"policy_per"`
	// Injected is the number of singletons with a working policy, by their condition PolicyInstalled.
	Injected int `json:"injected"`
	// WebhookBytes is the stored size of Kyverno's MutatingWebhookConfiguration.
	WebhookBytes int `json:"webhook_bytes"`
	// KyvernoMiB and RestartedMiB are the resident memory of Kyverno's admission controller, before and after a restart.
	KyvernoMiB   float64 `json:"kyverno_mib"`
	RestartedMiB float64 `json:"restarted_mib,omitempty"`
	// ControllerMiB is the maximum of the leader's resident memory during the step.
	ControllerMiB float64 `json:"controller_mib"`
	// SelectedMS is the time to create a pod that a singleton selects. OtherMS is the time for a pod that no singleton selects,
	// in a namespace with singletons, and ElsewhereMS in a namespace without. All are server-side dry-runs.
	SelectedMS  report.Distribution `json:"selected_ms"`
	OtherMS     report.Distribution `json:"other_ms"`
	ElsewhereMS report.Distribution `json:"elsewhere_ms"`
	Handoffs    []handoffs          `json:"handoffs,omitempty"`
}

// handoffs has the figures of many handoffs at once.
type handoffs struct {
	Cause string `json:"cause"`
	N     int    `json:"n"`
	// DecidedMS is the time from the first cause until the status names the next pod.
	DecidedMS report.Distribution `json:"decided_ms"`
	// CPUMS is the controller's CPU time per handoff, and Writes and Reads are its requests per handoff, with those for its own Lease.
	CPUMS  float64 `json:"cpu_ms"`
	Writes float64 `json:"writes"`
	Reads  float64 `json:"reads"`
}

// write writes the table and the picture of the page beside the file.
func write(file string) error {
	var r results
	if err := report.ReadJSON(file, &r); err != nil {
		return err
	}
	return report.Write(strings.TrimSuffix(file, ".json"), r.Text(), 2, r.table(), r.picture())
}

func (r *results) table() [][]string {
	rows := [][]string{{"`policyKind`", "`policyPer`", "singletons", "working", "webhooks MiB", "Kyverno MiB", "after restart", "controller MiB",
		"selected pod", "another pod", "elsewhere", "reads, writes", "decided", "CPU"}}
	for _, s := range r.Steps {
		number := func(n float64) string {
			if n == 0 {
				return "–"
			}
			return fmt.Sprintf("%.0f", n)
		}
		row := []string{
			"`" + string(s.PolicyKind) + "`", "`" + string(s.PolicyPer) + "`", fmt.Sprint(s.Singletons), fmt.Sprint(s.Injected),
			fmt.Sprintf("%.2f", float64(s.WebhookBytes)/mebibyte), number(s.KyvernoMiB), number(s.RestartedMiB), number(s.ControllerMiB),
			number(float64(s.SelectedMS.P50)), number(float64(s.OtherMS.P50)), number(float64(s.ElsewhereMS.P50)),
		}
		requests, decided, cpu := "–", "–", "–"
		for _, h := range s.Handoffs {
			if h.Cause == rollout.name {
				requests = fmt.Sprintf("%.0f, %.0f", h.Reads, h.Writes)
			} else {
				decided, cpu = fmt.Sprint(h.DecidedMS.P50), fmt.Sprintf("%.0f", h.CPUMS)
			}
		}
		rows = append(rows, append(row, requests, decided, cpu))
	}
	return rows
}

// picture has a group of bars for each number of singletons, and a bar for each form of the policies.
func (r *results) picture() *report.Bars {
	bars := &report.Bars{Title: "Creation of a pod that no singleton selects, in a namespace with singletons", Unit: "median, milliseconds", Left: true}
	for _, s := range r.Steps {
		bars.Add(fmt.Sprintf("%d singletons", s.Singletons), fmt.Sprintf("%s per %s", s.PolicyKind, s.PolicyPer), float64(s.OtherMS.P50))
	}
	return bars
}
