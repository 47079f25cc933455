package docs

import (
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// The API reference has everything that the definition has. Another generator creates it from the same types.
func TestAPIReferenceIsTheDefinition(t *testing.T) {
	page := read(t, "api.md")
	var crd apiextensionsv1.CustomResourceDefinition
	text := read(t, "../charts/statefulsingleton/files/crds/apps.statefulsingleton.com_statefulsingletons.yaml")
	if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
		t.Fatal(err)
	}
	fields := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	tests := map[string]map[string]apiextensionsv1.JSONSchemaProps{
		"spec":                  fields["spec"].Properties,
		"status":                fields["status"].Properties,
		"status.lastTransition": fields["status"].Properties["lastTransition"].Properties,
		"status.handover":       fields["status"].Properties["handover"].Properties,
	}
	for name, fields := range tests {
		t.Run(name, func(t *testing.T) {
			if len(fields) == 0 {
				t.Fatal("the definition has no such fields")
			}
			for field, schema := range fields {
				if !slices.ContainsFunc(rowsOf(page, field), func(row string) bool { return saysAll(row, schema) }) {
					t.Errorf("api.md does not say of %s what the definition says: %q", field, schema.Description)
				}
				for _, value := range schema.Enum {
					if row := "\n| `" + unquoted(value) + "` | "; !strings.Contains(page, row) {
						t.Errorf("api.md does not say what %s of %s is", value.Raw, field)
					}
				}
			}
		})
	}
}

// rowsOf returns the rows of the page's tables for fields with the name.
func rowsOf(page, field string) (rows []string) {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| `"+field+"`<br>") {
			rows = append(rows, line)
		}
	}
	return rows
}

// saysAll returns true if a row has the description of the field, its default, and the messages of its validation.
func saysAll(row string, schema apiextensionsv1.JSONSchemaProps) bool {
	want := []string{strings.ReplaceAll(strings.ReplaceAll(schema.Description, "\n\n", "<br><br>"), "\n", " ")}
	if schema.Default != nil {
		want = append(want, "| `"+unquoted(*schema.Default)+"` |")
	}
	for _, rule := range schema.XValidations {
		want = append(want, rule.Message)
	}
	return !slices.ContainsFunc(want, func(text string) bool { return !strings.Contains(row, text) })
}

func unquoted(value apiextensionsv1.JSON) string { return strings.Trim(string(value.Raw), `"`) }
