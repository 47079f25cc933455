package policies

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The expressions of a NamespacedMutatingPolicy use these variables:
//
//	c, i  a container and its index in the list
//	e, j  an element of a list of the container, for example an environment variable, and its index
//	s, k  the status sidecar and its index
//
// Each mutation is a list of JSONPatch operations. A later mutation sees the results of the earlier ones.

// celValue returns a value as CEL, with the same result as its JSON.
func celValue(value any) string {
	decoder := json.NewDecoder(bytes.NewReader(encode(value)))
	decoder.UseNumber()
	var decoded any
	if err := decoder.Decode(&decoded); err != nil {
		panic(fmt.Sprintf("decode %T: %v", value, err)) // it was just encoded
	}
	return celLiteral(decoded)
}

// celLiteral returns a decoded JSON value as CEL.
func celLiteral(value any) string {
	switch value := value.(type) {
	case string:
		return celString(value)
	case []any:
		var elements []string
		for _, element := range value {
			elements = append(elements, celElement(element, slices.Values(value)))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	case map[string]any:
		var entries []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			entries = append(entries, celString(key)+": "+celElement(value[key], maps.Values(value)))
		}
		return "{" + strings.Join(entries, ", ") + "}"
	}
	return fmt.Sprint(value) // a number, a bool, or nil in pods has the same text in Go and in CEL
}

// celElement returns an element of a list or map with the given elements. Kyverno's CEL rejects a list or a map unless all
// its elements have the same type. They are therefore all strings or all dynamic.
func celElement(element any, all iter.Seq[any]) string {
	for other := range all {
		if _, isString := other.(string); !isString {
			return "dyn(" + celLiteral(element) + ")"
		}
	}
	return celLiteral(element)
}

// celString quotes s for CEL, which has the same escapes as Go.
func celString(s string) string {
	return strconv.Quote(s)
}

// celVariable returns an environment variable as CEL. Its value is a CEL expression.
func celVariable(name, value string) string {
	return fmt.Sprintf(`{"name": dyn(%s), "value": dyn(%s)}`, celString(name), value)
}

// celAll returns the condition that all conditions are true.
func celAll(conditions ...string) string {
	var terms []string
	for _, condition := range conditions {
		if condition != "true" {
			terms = append(terms, "("+condition+")")
		}
	}
	return cmp.Or(strings.Join(terms, " && "), "true")
}

// celBoth returns the operations of all lists. They see the same pod: none may change an index that another uses, or add a list
// or map that another adds.
func celBoth(operations ...string) string {
	return "(" + strings.Join(operations, ") + (") + ")"
}

// celEachIf returns the mutations, each only for pods that meet the condition.
func celEachIf(condition string, mutations ...string) (conditional []string) {
	for _, mutation := range mutations {
		if condition != "true" {
			mutation = celIf(mutation, condition)
		}
		conditional = append(conditional, mutation)
	}
	return conditional
}

// celIf returns the operations if all conditions are true, and no operations otherwise.
func celIf(operations string, conditions ...string) string {
	return fmt.Sprintf("%s ? (%s) : []", celAll(conditions...), operations)
}

// celAdd returns one "add" operation. The path and the value are CEL expressions.
func celAdd(path, value string) string {
	return fmt.Sprintf(`JSONPatch{op: "add", path: %s, value: %s}`, path, value)
}

// celRemove returns one "remove" operation. The path is a CEL expression.
func celRemove(path string) string {
	return fmt.Sprintf(`JSONPatch{op: "remove", path: %s}`, path)
}

// celEnsure returns the operations that add an empty list or map to an object that has none, because an operation cannot
// add to a missing one. The object is a CEL path like object.spec.
func celEnsure(object, field, path, empty string) string {
	return fmt.Sprintf("(has(%s.%s) ? [] : [%s])", object, field, celAdd(celPath(path, field), empty))
}

// celAppend returns the operations that append values to the list in a field of an object.
func celAppend(object, field, path string, values ...string) string {
	var operations []string
	for _, value := range values {
		operations = append(operations, celAdd(celPath(path, field+"/-"), value))
	}
	return fmt.Sprintf(`%s + [%s]`, celEnsure(object, field, path, "[]"), strings.Join(operations, ", "))
}

// celSet returns the operations that set the value of a key in a map of the pod's metadata. The value is a CEL expression.
func celSet(field, key, value string) string {
	return fmt.Sprintf("%s + [%s]", celEnsure("object.metadata", field, `"/metadata"`, "{}"),
		celAdd(celString("/metadata/"+field+"/"+pointer(key)), value))
}

// celPath returns the CEL expression of a JSON pointer below another. The lower part is text, and the upper is CEL.
func celPath(path, below string) string {
	if constant, ok := strings.CutSuffix(path, `"`); ok {
		return constant + "/" + below + `"`
	}
	return path + celString("/"+below)
}

// celListOf returns a list in the spec of the pod, which can be missing.
func celListOf(list string) string {
	return fmt.Sprintf("object.spec.?%s.orValue([])", list)
}

// celPathOf returns the JSON pointer of the container c.
func celPathOf(list string) string {
	return fmt.Sprintf(`"/spec/%s/" + string(i) + `, list)
}

// celEach returns the operations for each container of spec.<list> for which all conditions are true.
func celEach(list, operations string, conditions ...string) string {
	return fmt.Sprintf("%s.transformList(i, c, %s, %s).flatten()", celListOf(list), celAll(conditions...), operations)
}

// celAppendEach appends a value to a list of each container of spec.<list> for which all conditions are true.
func celAppendEach(list, field, value string, conditions ...string) string {
	return celEach(list, celAppend("c", field, celPathOf(list), value), conditions...)
}

// celRemoveFrom removes the elements of a field for which the condition is true, from the containers of spec.<list> for
// which isContainer is true. It removes the last first, because a removal moves the elements after it.
func celRemoveFrom(list, isContainer, field, condition string) string {
	return celEach(list, fmt.Sprintf("c.?%s.orValue([]).transformList(j, e, %s, %s).reverse()",
		field, condition, celRemove(celPathOf(list)+celString("/"+field+"/")+" + string(j)")), isContainer)
}
