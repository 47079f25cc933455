package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	podLabelsCEL = "(has(object.metadata.labels) ? object.metadata.labels : {})"

	// notMirrorCEL excludes mirror pods: their static pods run in any case.
	notMirrorCEL = `!(has(object.metadata.annotations) && "kubernetes.io/config.mirror" in object.metadata.annotations)`
)

// MaxSelectorCEL is the maximum size in bytes of a selector as CEL. Kyverno keeps the expressions of all policies in
// one object, which etcd limits to 1.5 MiB. The largest selector that the definition admits is seven times larger.
const MaxSelectorCEL = 8 << 10

// ErrSelectorTooLarge is the error for a selector above MaxSelectorCEL. Use errors.Is.
var ErrSelectorTooLarge = errors.New("spec.selector is too large")

// selectorCEL returns the selector as a CEL expression over the pod in object. Keys and values of a valid selector
// are valid label keys and values, which contain no quotes.
func selectorCEL(selector *v1.LabelSelector) (string, error) {
	if _, err := selector.Parse(); err != nil {
		return "", fmt.Errorf("spec.selector: %w", err)
	}
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		terms = append(terms, labelIn(key, selector.MatchLabels[key]))
	}
	for _, e := range selector.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			terms = append(terms, labelIn(e.Key, e.Values...))
		case metav1.LabelSelectorOpNotIn:
			terms = append(terms, "!("+labelIn(e.Key, e.Values...)+")")
		case metav1.LabelSelectorOpExists:
			terms = append(terms, hasLabel(e.Key))
		case metav1.LabelSelectorOpDoesNotExist:
			terms = append(terms, "!("+hasLabel(e.Key)+")")
		}
	}
	if len(terms) == 0 {
		return "", errors.New("spec.selector is empty and would select every pod of the namespace")
	}
	expression := strings.Join(terms, " && ")
	if len(expression) > MaxSelectorCEL {
		return "", fmt.Errorf("%w: Kyverno would get %d bytes of it as CEL, and at most %d are allowed, because Kyverno keeps the selectors of all namespaces in one object. "+
			"Create another StatefulSingleton with fewer or shorter labels and values", ErrSelectorTooLarge, len(expression), MaxSelectorCEL)
	}
	return expression, nil
}

func hasLabel(key string) string {
	return celString(key) + " in " + podLabelsCEL
}

func labelIn(key string, values ...string) string {
	quoted := make([]string, len(values))
	for i, value := range values {
		quoted[i] = celString(value)
	}
	return fmt.Sprintf("%s && %s[%s] in [%s]", hasLabel(key), podLabelsCEL, celString(key), strings.Join(quoted, ", "))
}

// selectedLabels returns a minimal set of labels that the selector matches. It returns an error if no labels match.
func selectedLabels(selector *v1.LabelSelector) (labels.Set, error) {
	parsed, err := selector.Parse()
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	requirements, _ := parsed.Requirements()
	set := labels.Set{}
	for _, r := range requirements {
		if !r.Matches(set) {
			set[r.Key()] = labelValue(r.Key(), requirements)
		}
	}
	if !parsed.Matches(set) {
		return nil, fmt.Errorf("spec.selector contradicts itself: no pod can meet %q", parsed)
	}
	return set, nil
}

// labelValue returns a value that fulfils all requirements on key, if there is one.
func labelValue(key string, requirements labels.Requirements) string {
	var candidates []string
	for _, r := range requirements {
		if r.Key() == key {
			candidates = append(candidates, slices.Sorted(maps.Keys(r.Values()))...)
		}
	}
	// There is one generated candidate more than values, so the requirements cannot exclude all of them.
	for i := range len(candidates) + 1 {
		candidates = append(candidates, "any-"+strconv.Itoa(i))
	}
	for _, candidate := range candidates {
		meets := func(r labels.Requirement) bool {
			return r.Key() != key || r.Matches(labels.Set{key: candidate})
		}
		if !slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return !meets(r) }) {
			return candidate
		}
	}
	return ""
}
