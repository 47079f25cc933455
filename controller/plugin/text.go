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
var shownConditions = []string{
	v1.ConditionReady, v1.ConditionFenced, v1.ConditionConnectionsQueued, v1.ConditionPolicyInstalled, v1.ConditionWarm, v1.ConditionEvictionBlocked,
	v1.ConditionDraining, v1.ConditionPaused, v1.ConditionExpansionRefused,
}

// text returns the status as text.
func (s *Status) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s: %s\n", s.kind, s.Namespace, s.Name, s.state)
	if s.Deleting {
		fmt.Fprintf(&b, "The %s is being deleted.\n", s.kind)
	}
	if s.Message != "" {
		fmt.Fprintf(&b, "  %s\n", s.Message)
	}
	b.WriteString("\nPods\n" + s.podsText() + "\nConditions\n" + s.conditionsText())
	if s.change.cause != "" {
		fmt.Fprintf(&b, "\nLast %s: %s\n", s.change.of, s.change)
	}
	return b.String()
}

// podsText returns a line for each pod, with its name, role, node and state.
func (s *Status) podsText() string {
	if len(s.Pods) == 0 {
		return "  none\n"
	}
	return columns(func(row func(cells ...string)) {
		for _, pod := range s.Pods {
			row("  "+pod.Name, strings.ToLower(pod.Role), cmp.Or(pod.Node, "-"), pod.state())
		}
	})
}

// conditionsText returns a line for each condition. It leaves out the message of Ready and the message that is printed already.
func (s *Status) conditionsText() string {
	return columns(func(row func(cells ...string)) {
		for _, conditionType := range shownConditions {
			c := meta.FindStatusCondition(s.Conditions, conditionType)
			if c == nil {
				continue
			}
			message := c.Message
			if conditionType == v1.ConditionReady || message == s.Message {
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
		return strings.TrimSuffix("gone: "+p.WaitsFor, ": ")
	case p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed:
		return "terminated: " + string(p.Phase)
	case p.Stopping && p.WaitsFor != "":
		return "terminating: " + p.WaitsFor
	case p.Stopping:
		return "terminating"
	case p.Role == string(handoff.Standby) && p.WaitsFor == "":
		return "warm"
	case p.Role == string(handoff.Standby):
		return "not warm: " + p.WaitsFor
	case p.Role == string(handoff.Foreign):
		return "held for another StatefulSingleton"
	case p.Ready:
		return "Ready"
	case p.Phase == "":
		return strings.TrimSuffix("does not exist: "+p.WaitsFor, ": ")
	case p.WaitsFor != "":
		return p.WaitsFor
	}
	return "not Ready"
}

// text returns a table for each kind. The tables have a column for the namespace if the objects are of all namespaces.
func (all StatusList) text(namespace string) string {
	var tables []string
	if len(all.Items) > 0 {
		tables = append(tables, table(all.Items, namespace, []string{"NAME", "PHASE", "HOLDER", "EPOCH", "STANDBYS", "POLICY", "LAST HANDOFF", "MESSAGE"}, func(s *Status) []string {
			return []string{string(cmp.Or(s.Phase, idle)), s.active(string(handoff.Holder)), fmt.Sprint(*s.Epoch), s.standbys(), s.policy(), s.change.short(), s.Message}
		}))
	}
	if len(all.Locks) > 0 {
		tables = append(tables, table(all.Locks, namespace, []string{"LOCK", "STATEFULSET", "WRITER", "EPOCH", "FENCING", "LAST CHANGE", "MESSAGE"}, func(s *Status) []string {
			return []string{s.StatefulSet, s.active(writer), fmt.Sprint(*s.Epoch), string(s.Fencing), s.change.short(), s.Message}
		}))
	}
	if len(all.Clusters) > 0 {
		tables = append(tables, table(all.Clusters, namespace, []string{"CLUSTER", "AVAILABLE", "UPDATED", "REVISION", "MESSAGE"}, func(s *Status) []string {
			return []string{fmt.Sprintf("%d/%d", *s.AvailableReplicas, *s.Replicas), fmt.Sprint(*s.UpdatedReplicas), cmp.Or(s.Revision, "-"), s.Message}
		}))
	}
	switch {
	case len(tables) > 0:
		return strings.Join(tables, "\n")
	case namespace == metav1.NamespaceAll:
		return "There are no StatefulSingletons, StatefulSetLocks or StatefulClusters.\n"
	}
	return fmt.Sprintf("There are no StatefulSingletons, StatefulSetLocks or StatefulClusters in namespace %s. To list all namespaces, use -A.\n", namespace)
}

// table returns a line for each status: its name, and the cells that describe returns.
func table(statuses []Status, namespace string, headings []string, describe func(*Status) []string) string {
	return columns(func(row func(cells ...string)) {
		inNamespace := func(namespaceCell string, cells ...string) {
			if namespace == metav1.NamespaceAll {
				cells = append([]string{namespaceCell}, cells...)
			}
			row(cells...)
		}
		inNamespace("NAMESPACE", headings...)
		for i := range statuses {
			s := &statuses[i]
			inNamespace(s.Namespace, append([]string{s.Name}, describe(s)...)...)
		}
	})
}

// active returns the name of the pod with the role, and its state unless it is Ready.
func (s *Status) active(role string) string {
	for _, pod := range s.Pods {
		switch {
		case pod.Role != role:
		case pod.state() == "Ready":
			return pod.Name
		default:
			return pod.Name + " (" + pod.state() + ")"
		}
	}
	return "-"
}

func (s *Status) standbys() string {
	all, warm := 0, 0
	for _, pod := range s.Pods {
		if pod.Role == string(handoff.Standby) {
			all++
		}
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

// change is a change of the holder or the writer.
type change struct {
	// of says what changed.
	of                   string
	cause, from, to, gap string
	proof                v1.Proof
}

// short returns the cause and the gap.
func (c change) short() string { return cmp.Or(c.cause, "-") + c.gap }

// String returns all that is known of the change.
func (c change) String() string {
	words := c.cause
	switch {
	case c.from != "" && c.to != "":
		words += fmt.Sprintf(", %s to %s", c.from, c.to)
	case c.from != "":
		words += fmt.Sprintf(", from %s, no other pod yet", c.from)
	case c.to != "":
		words += ", to " + c.to
	}
	if c.proof != "" {
		words += ", proof " + string(c.proof)
	}
	return words + c.gap
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
