package policies

import (
	"fmt"
	"slices"
	"strings"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
)

// Kyverno copies the whole pod for each element of a foreach, and decodes and encodes it for each patch. A foreach over the
// containers or their variables would therefore take a time that is quadratic in the size of the pod. So a step computes the
// operations for all containers in one JMESPath expression, and applies them in one patch.

// step returns the foreach that applies the operations of all lists in one patch. It does nothing if there are none. The
// lists are JMESPath expressions, and all of them see the pod before the step.
func step(lists ...string) kyvernov1.ForEachMutation {
	return stepWith(requestUID, "'{{request.uid}}'", lists...)
}

// stepWith is like step, and replaces the placeholder in the operations by the string of a JMESPath expression.
func stepWith(placeholder, expression string, lists ...string) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{
		List:            fmt.Sprintf("[[%s][]][?length(@) > `0`]", strings.Join(lists, ", ")),
		PatchesJSON6902: fmt.Sprintf("{{ replace_all(to_string(element), '%s', %s) }}", placeholder, expression),
	}
}

// sidecarIndex stands for the index of the status sidecar in the operations of a sidecarStep, and sidecarPlace for the JSON
// pointer to the sidecar. Expressions of operations see only their container.
const (
	sidecarIndex = "INDEX-OF-THE-STATUS-SIDECAR"
	sidecarPlace = "/spec/initContainers/" + sidecarIndex
)

// sidecarStep is like step, and its operations can change the status sidecar.
func sidecarStep(lists ...string) kyvernov1.ForEachMutation {
	return stepWith(sidecarIndex, fmt.Sprintf("to_string(%s | [0].i)", statusSidecar), lists...)
}

// when returns the operations of all lists if the condition is true, and no operations otherwise.
func when(condition string, lists ...string) string {
	return fmt.Sprintf("(%s) && [%s][] || `[]`", condition, strings.Join(lists, ", "))
}

// indexed returns the containers of spec.<list> for which all conditions are true, as a JMESPath expression. Each element has
// the container in c and its index in i.
func indexed(list string, conditions ...string) string {
	if len(conditions) == 0 {
		conditions = []string{"`true`"}
	}
	return fmt.Sprintf("items(request.object.spec.%s || `[]`, 'i', 'c')[?(%s)]", list, strings.Join(conditions, ") && ("))
}

// operations returns the operations for each of the containers, which are an expression of indexed.
func operations(containers string, each ...string) string {
	return fmt.Sprintf("%s.[%s][]", containers, strings.Join(each, ", "))
}

// addEach returns the operation of operations that adds a value to each container of spec.<list>, at a path in the container.
func addEach(list, path string, value any) string {
	return addExpression(list, path, jmesLiteral(value))
}

// addExpression is like addEach. The value is a JMESPath expression.
func addExpression(list, path, value string) string {
	return fmt.Sprintf("{op: 'add', path: join('', ['/spec/%s/', to_string(i), '/%s']), value: %s}", list, path, value)
}

// prepend returns the operations that add values before the first element of a field of each container of spec.<list>.
func prepend(list, field string, values []string) (each []string) {
	for _, value := range slices.Backward(values) {
		each = append(each, addEach(list, field+"/0", value))
	}
	return each
}

// removeFrom returns the operations that remove the elements e of a field for which the condition is true, from the containers
// of spec.<list> for which isContainer is true. The last is removed first, because a removal moves the elements after it.
func removeFrom(list, isContainer, field, condition string) string {
	return fmt.Sprintf("reverse(%s)[].{op: 'remove', path: @}", pointersOf(list, isContainer, field, condition))
}

// pointersOf returns JSON pointers to the elements e of a field for which the condition is true, in the containers of
// spec.<list> for which isContainer is true. They contain no text of the pod.
func pointersOf(list, isContainer, field, condition string) string {
	// The index of the container is unknown where the elements are filtered, so it is in the separator that joins their indices.
	return fmt.Sprintf("(%s.split(join(join('', [' /spec/%s/', to_string(i), '/%s/']), [[''], items(c.%s || `[]`, 'j', 'e')[?%s].to_string(j)][]), ' ')[] | [?@ != ''])",
		indexed(list, isContainer), list, field, field, condition)
}

// jmesLiteral returns a value as a JMESPath literal.
func jmesLiteral(value any) string {
	return "`" + strings.ReplaceAll(string(literal(value)), "`", `\u0060`) + "`"
}

// sidecarPath is the JSON pointer to the status sidecar in changeSidecar.
const sidecarPath = "/spec/initContainers/{{element.i}}"

// changeSidecar returns the foreach that applies the operations to the status sidecar, element.c, if all conditions are true.
func changeSidecar(ops []op, conditions ...string) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{List: statusSidecar, AnyAllConditions: all(conditions...), PatchesJSON6902: patch(ops...)}
}

// statusSidecar is the status sidecar as a list of one element of indexed. The API server rejects containers with the same
// name only after the policy.
var statusSidecar = indexed("initContainers", isStatusSidecar) + " | [:1]"
