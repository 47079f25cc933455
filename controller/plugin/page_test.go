package plugin

import (
	"reflect"
	"strings"
	"testing"
)

// The page documents each field of -o json, because scripts depend on the fields.
func TestFieldsAreDocumented(t *testing.T) {
	page := read(t, "../../docs/kubectl-stfs.md")
	for _, kind := range []reflect.Type{reflect.TypeFor[StatusList](), reflect.TypeFor[Status](), reflect.TypeFor[Pod]()} {
		for field := range kind.Fields() {
			if !field.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !strings.Contains(page, "`"+name+"`") {
				t.Errorf("kubectl-stfs.md does not explain `%s` of %s", name, kind.Name())
			}
		}
	}
}
