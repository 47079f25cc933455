package plugin

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// idle is printed for an empty phase.
const idle v1.Phase = "Idle"

// shownConditions are the conditions that are printed.
var shownConditions = []string{v1.ConditionReady, v1.ConditionPolicyInstalled, v1.ConditionEvictionBlocked, v1.ConditionDraining}

// text returns the status of the singleton as text.
func (s *Status) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "StatefulSingleton %s/%s: %s, epoch %d\n", s.Namespace, s.Name, cmp.Or(s.Phase, idle), s.Epoch)
	b.WriteString(messageText("StatefulSingleton", s.Deleting, s.Message))
	b.WriteString(podsText(s.Pods, func(p Pod) []string { return []string{p.Name, string(p.Role), p.Node, p.state()} }))
	b.WriteString(conditionsText(s.Conditions, shownConditions, s.Message))
	if t := s.LastTransition; t != nil {
		fmt.Fprintf(&b, "\nLast handoff: %s%s\n", inWords(string(t.Cause), t.From, t.To, "holder", t.Proof), gap(t))
	}
	return b.String()
}

// messageText returns the message of the status of an object.
func messageText(kind string, deleting bool, message string) (text string) {
	if deleting {
		text = "The " + kind + " is being deleted.\n"
	}
	if message != "" {
		text += "  " + message + "\n"
	}
	return text
}

// podsText returns a line for each pod, with its name, role, node and state.
func podsText[P any](pods []P, describe func(P) []string) string {
	if len(pods) == 0 {
		return "\nPods\n  none\n"
	}
	return "\nPods\n" + columns(func(row func(cells ...string)) {
		for _, pod := range pods {
			cells := describe(pod)
			row("  "+cells[0], strings.ToLower(cells[1]), cmp.Or(cells[2], "-"), cells[3])
		}
	})
}

// conditionsText returns the conditions of the types. It leaves out the message of Ready and the message that is printed
// already.
func conditionsText(conditions []metav1.Condition, types []string, printed string) string {
	return "\nConditions\n" + columns(func(row func(cells ...string)) {
		for _, conditionType := range types {
			c := meta.FindStatusCondition(conditions, conditionType)
			if c == nil {
				continue
			}
			message := c.Message
			if conditionType == v1.ConditionReady || message == printed {
				message = ""
			}
			row("  "+c.Type, string(c.Status), c.Reason, "since "+c.LastTransitionTime.UTC().Format(time.RFC3339), message)
		}
	})
}

// state returns the state of a pod as a short text.
func (p Pod) state() string {
	switch {
	case p.Gone:
		return "gone, without proof of termination"
	case p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed:
		return "terminated: " + string(p.Phase)
	case p.Stopping:
		return "terminating"
	case p.Role == handoff.Standby && p.WaitsFor == "":
		return "warm"
	case p.Role == handoff.Standby:
		return "not warm: " + p.WaitsFor
	case p.Role == handoff.Foreign:
		return "held for another StatefulSingleton"
	case p.Ready:
		return "Ready"
	}
	return "not Ready"
}

// table returns one line for each singleton, with a column of namespaces if needed.
func table(statuses []Status, namespace string) string {
	if len(statuses) == 0 && namespace == "" {
		return "There are no StatefulSingletons.\n"
	}
	if len(statuses) == 0 {
		return fmt.Sprintf("There are no StatefulSingletons in namespace %s. To list all namespaces, use -A.\n", namespace)
	}
	return columnsIn(namespace, func(row func(cells ...string)) {
		row("NAMESPACE", "NAME", "PHASE", "HOLDER", "EPOCH", "STANDBYS", "POLICY", "LAST HANDOFF", "MESSAGE")
		for i := range statuses {
			s := &statuses[i]
			row(s.Namespace, s.Name, string(cmp.Or(s.Phase, idle)), s.holder(), fmt.Sprint(s.Epoch), s.standbys(), s.policy(), s.lastHandoff(), s.Message)
		}
	})
}

func (s *Status) holder() string {
	if len(s.Pods) == 0 || s.Pods[0].Role != handoff.Holder {
		return "-"
	}
	return nameAndState(s.Pods[0].Name, s.Pods[0].state())
}

// nameAndState leaves out the state Ready.
func nameAndState(name, state string) string {
	if state == "Ready" {
		return name
	}
	return name + " (" + state + ")"
}

func (s *Status) standbys() string {
	all, warm := 0, 0
	for _, pod := range s.Pods {
		if pod.Role != handoff.Standby {
			continue
		}
		all++
		if pod.state() == "warm" {
			warm++
		}
	}
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d warm", warm, all)
}

func (s *Status) policy() string {
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionPolicyInstalled); c != nil {
		return c.Reason
	}
	return "-"
}

func (s *Status) lastHandoff() string {
	if s.LastTransition == nil {
		return "-"
	}
	return string(s.LastTransition.Cause) + gap(s.LastTransition)
}

// inWords describes the cause, the pods and the proof of a change of the holder or the writer.
func inWords(cause, from, to, role string, proof v1.Proof) string {
	words := cause
	switch {
	case from != "" && to != "":
		words += fmt.Sprintf(", %s to %s", from, to)
	case from != "":
		words += fmt.Sprintf(", from %s, no new %s yet", from, role)
	case to != "":
		words += ", to " + to
	}
	if proof != "" {
		words += ", proof " + string(proof)
	}
	return words
}

// gap returns the gap of a handoff as text, if it is known.
func gap(t *v1.Transition) string {
	if t.GapMilliseconds == nil {
		return ""
	}
	return fmt.Sprintf(", gap %s", time.Duration(*t.GapMilliseconds)*time.Millisecond)
}

// columnsIn is columns without the first column, the namespace, for objects of one namespace.
func columnsIn(namespace string, write func(row func(cells ...string))) string {
	return columns(func(row func(cells ...string)) {
		write(func(cells ...string) {
			if namespace != "" {
				cells = cells[1:]
			}
			row(cells...)
		})
	})
}

// columns aligns cells in columns.
func columns(write func(row func(cells ...string))) string {
	var aligned, trimmed strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	write(func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) })
	_ = w.Flush() // into memory
	for line := range strings.Lines(aligned.String()) {
		fmt.Fprintln(&trimmed, strings.TrimRight(line, " \n"))
	}
	return trimmed.String()
}
