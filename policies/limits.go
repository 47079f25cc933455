package policies

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// A pod above one of these limits is not sent to Kyverno, which would be busy with it for long after the API server stopped
// waiting. The guards of the chart reject the pod, and name the limits.
const (
	// MaxContainers is the maximum number of containers, including init containers.
	MaxContainers = 50
	// MaxVariables is the maximum number of environment variables and volume mounts of all these containers.
	MaxVariables = 1000
	// MaxSelecting is the maximum number of StatefulSingletons with a shared policy that select the pod. Kyverno evaluates
	// rules for each of them. No pod that two select is ever released.
	MaxSelecting = 4
)

// isSmall is the condition on the pods that are sent to Kyverno. It is short, because Kyverno keeps the conditions of all
// policies in one object.
var isSmall = admissionregistrationv1.MatchCondition{Name: "size", Expression: fmt.Sprintf(
	"[object.spec.containers + object.spec.?initContainers.orValue([])].all(l, l.size() <= %d && "+
		"l.map(c, c.?env.orValue([]).size() + c.?volumeMounts.orValue([]).size()).sum() <= %d)", MaxContainers, MaxVariables)}

// selectedByFewCEL returns the condition on the pods that are sent to Kyverno for a shared policy: at least one and at most
// MaxSelecting of the selectors match, which are CEL. It has each selector once, because Kyverno keeps it in the same object.
func selectedByFewCEL(selectors []string) string {
	return fmt.Sprintf("[[%s].filter(s, s).size()].all(n, 1 <= n && n <= %d)", strings.Join(selectors, ", "), MaxSelecting)
}
