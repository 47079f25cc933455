package plugin

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// redacted replaces a value that may be a secret.
const redacted = "REDACTED"

// publicDomains are the domains of annotations whose values are no secrets.
var publicDomains = []string{"kubernetes.io", "k8s.io", "kyverno.io", "helm.sh", "statefulsingleton.com"}

// redact replaces all values of an object in which users keep secrets: the values of environment variables and of most annotations,
// arguments of commands, headers and queries of probes, attributes of volumes, and what an application wrote before it ended. Own
// objects, which the chart or the controller created, keep the arguments of commands.
func redact(o *unstructured.Unstructured, own bool) {
	if o.GetKind() != "Pod" { // proofs depend on the managed fields of pods
		o.SetManagedFields(nil)
	}
	redactFields(o.Object, own)
}

// redactFields redacts the fields of an object and of all objects in it, because templates of pods are in objects of many kinds.
func redactFields(fields map[string]any, own bool) {
	ours := own || fields["name"] == v1.SidecarName
	for key, value := range fields {
		switch is := value.(type) {
		case map[string]any:
			redactMap(key, is)
		case []any:
			redactList(key, is, ours)
		case string:
			fields[key] = withoutHooks(is)
		}
		redactIn(fields[key], own)
	}
}

// withoutHooks removes the hooks of a StatefulSetLock from the text of a policy, and what follows them.
func withoutHooks(text string) string {
	if i := strings.Index(text, signal.HooksEnv); i >= 0 && text != signal.HooksEnv {
		return text[:i+len(signal.HooksEnv)] + redacted
	}
	return text
}

func redactIn(value any, own bool) {
	switch is := value.(type) {
	case map[string]any:
		redactFields(is, own)
	case []any:
		for _, entry := range is {
			redactIn(entry, own)
		}
	}
}

func redactMap(key string, fields map[string]any) {
	switch key {
	case "annotations":
		for name := range fields {
			if !isPublic(name) {
				fields[name] = redacted
			}
		}
	case "volumeAttributes", "options":
		for name := range fields {
			fields[name] = redacted
		}
	case "httpGet":
		if url, ok := fields["path"].(string); ok && strings.Contains(url, "?") {
			before, _, _ := strings.Cut(url, "?")
			fields["path"] = before + "?" + redacted
		}
	case "terminated":
		if fields["message"] != nil {
			fields["message"] = redacted
		}
	}
}

func redactList(key string, entries []any, own bool) {
	switch key {
	case "env", "httpHeaders":
		for _, entry := range entries {
			if fields, ok := entry.(map[string]any); ok && fields["value"] != nil {
				fields["value"] = redacted
			}
		}
	case "command":
		if !own {
			redactFrom(entries, programEnd(entries))
		}
	case "args":
		if !own {
			redactFrom(entries, 0)
		}
	case "promote", "demote": // hooks of a StatefulSetLock
		redactFrom(entries, 1)
	}
}

func redactFrom(words []any, first int) {
	for i := first; i < len(words); i++ {
		words[i] = redacted
	}
}

// programEnd returns the number of words of a command before the arguments of its program. They include those of the wrapper.
func programEnd(command []any) int {
	if len(command) > 0 && command[0] == signal.GatePath {
		if i := slices.Index(command, any("--")); i >= 0 {
			return i + 2
		}
	}
	return 1
}

// changeCause is the annotation with the command of a user, which can set environment variables
// (k8s.io/kubectl/pkg/util: ChangeCauseAnnotation).
const changeCause = "kubernetes.io/change-cause"

// isPublic returns true if the value of the annotation is no secret.
func isPublic(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	return annotation != corev1.LastAppliedConfigAnnotation && annotation != changeCause && slices.ContainsFunc(publicDomains, func(public string) bool {
		return domain == public || strings.HasSuffix(domain, "."+public)
	})
}

// keepFields removes all other fields of a field that holds an object.
func keepFields(o *unstructured.Unstructured, field string, keep ...string) {
	fields, _, _ := unstructured.NestedMap(o.Object, field) // a field of another type is removed
	maps.DeleteFunc(fields, func(key string, _ any) bool { return !slices.Contains(keep, key) })
	o.Object[field] = fields
}
