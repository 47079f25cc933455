package docs

import (
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// named finds the names in the code of a folder that the reference must have.
type named func(t *testing.T, dir string) (values []string)

// The reference contains every name.
func TestReferenceIsComplete(t *testing.T) {
	page := read(t, "reference.md")
	tests := map[string]struct {
		dir  string
		find named
	}{
		"the API":                        {"../controller/api/v1", texts(func(name, _ string) bool { return ast.IsExported(name) })},
		"what pods and controller share": {"../controller/signal", texts(func(name, _ string) bool { return ast.IsExported(name) })},
		"outcomes, and what proofs read": {"../controller/singleton/handoff", texts(func(string, string) bool { return true })},
		"outcomes of locks":              {"../controller/lock/tenure", texts(func(name, _ string) bool { return ast.IsExported(name) })},
		"outcomes of clusters":           {"../controller/cluster/membership", texts(func(name, _ string) bool { return ast.IsExported(name) })},
		"events of locks":                {"../controller/lock", texts(func(name, _ string) bool { return strings.HasPrefix(name, "event") })},
		"events of clusters":             {"../controller/cluster", texts(func(name, _ string) bool { return strings.HasPrefix(name, "event") })},
		"reasons of clusters":            {"../controller/cluster", texts(isReason)},
		"reasons of PolicyInstalled":     {"../controller/injection", texts(isReason)},
		"reasons of other conditions":    {"../controller/singleton", texts(isReason)},
		"what policies write":            {"../policies", texts(func(_, value string) bool { return strings.Contains(value, "statefulsingleton") })},
		"what policies are per":          {"../policies", texts(func(name, _ string) bool { return strings.HasPrefix(name, "Per") })},
		"events that no condition tells": {"../controller/singleton", texts(func(name, _ string) bool { return strings.HasPrefix(name, "event") })},
		"metrics":                        {"../controller/singleton", metricNames},
		"metrics of clusters":            {"../controller/cluster", metricNames},
		"exit codes of the gate":         {"../controller/gate", exitCodes},
		"exit codes of the gate alone":   {"../controller/cmd/gate", exitCodes},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			values := tc.find(t, tc.dir)
			if len(values) == 0 {
				t.Fatalf("%s has no such names: adapt the test", tc.dir)
			}
			for _, value := range values {
				if !strings.Contains(page, "`"+value) {
					t.Errorf("reference.md does not name `%s`, of %s", value, tc.dir)
				}
			}
		})
	}
}

// isReason returns true for the name of a constant with the reason of a condition.
func isReason(name, _ string) bool { return strings.HasPrefix(strings.ToLower(name), "reason") }

// ourName does not match statefulsingleton.apps.statefulsingleton.com/db, as kubectl prints objects.
var ourName = regexp.MustCompile(`(?:^|[^.\w])(apps\.statefulsingleton\.com/[a-z0-9-]+)`)

// Each label, annotation and finalizer that a page names exists.
func TestNamesOnPagesExist(t *testing.T) {
	known := []string{"apps.statefulsingleton.com/v1"}
	for _, dir := range []string{"../controller/api/v1", "../controller/signal", "../policies"} {
		known = append(known, texts(func(string, string) bool { return true })(t, dir)...)
	}
	for _, name := range ourName.FindAllStringSubmatch(read(t, "../charts/statefulsingleton/templates/guards.yaml"), -1) {
		known = append(known, name[1])
	}
	for _, page := range pages(t) {
		for _, name := range ourName.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.Contains(known, name[1]) {
				t.Errorf("%s names %s, which does not exist", page, name[1])
			}
		}
	}
}

// Readers search the page for the text of a message, so the texts on the page are those of the code.
func TestMessagesAreTheCodes(t *testing.T) {
	said := slices.Concat(literals(t, "../controller/singleton/handoff"), literals(t, "../controller/observe"), literals(t, "../controller/singleton"), literals(t, "../controller/injection"),
		literals(t, "../controller/cluster/membership"), literals(t, "../controller/cluster"), literals(t, "../controller/internal/apply"), literals(t, "../policies"))
	for _, guards := range []string{"guards.yaml", "guards-writes.yaml", "guards-controller.yaml", "guards-leases.yaml", "guards-policies.yaml", "guards-status.yaml"} {
		said = append(said, read(t, "../charts/statefulsingleton/templates/"+guards))
	}
	messages := firstCells(read(t, "troubleshooting.md"), "message")
	if len(messages) == 0 {
		t.Fatal("troubleshooting.md has no table of messages")
	}
	for _, message := range messages {
		for fragment := range strings.SplitSeq(strings.Trim(message, "`"), "…") {
			fragment = strings.TrimSpace(fragment)
			if !slices.ContainsFunc(said, func(text string) bool { return strings.Contains(text, fragment) }) {
				t.Errorf("troubleshooting.md quotes %q of %s, which is in no source file", fragment, message)
			}
		}
	}
}

func TestFirstCells(t *testing.T) {
	page := "| message | so |\n| --- | --- |\n| `a …` | b |\n| `c` | d |\n\n| reason | so |\n| --- | --- |\n| `e` | f |\n"
	if diff := cmp.Diff([]string{"`a …`", "`c`"}, firstCells(page, "message")); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
}

// firstCells returns the cells of the first column of the tables whose first column has the name.
func firstCells(page, column string) (cells []string) {
	inside := false
	for line := range strings.Lines(page) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		switch {
		case !strings.HasPrefix(line, "| "):
			inside = false
		case cell == column:
			inside = true
		case inside && cell != "---":
			cells = append(cells, cell)
		}
	}
	return cells
}

// texts finds the selected text constants of a package, without templates that only Kyverno fills in.
func texts(pick func(name, value string) bool) named {
	return func(t *testing.T, dir string) (values []string) {
		t.Helper()
		for name, c := range constantsOf(t, dir) {
			if c.Kind() != constant.String {
				continue
			}
			if value := constant.StringVal(c); pick(name, value) && !strings.Contains(value, "{{") {
				values = append(values, value)
			}
		}
		return values
	}
}

func exitCodes(t *testing.T, dir string) (values []string) {
	t.Helper()
	for name, c := range constantsOf(t, dir) {
		if strings.HasPrefix(name, "exit") {
			values = append(values, c.ExactString())
		}
	}
	return values
}

var metricName = regexp.MustCompile(`^statefulsingleton_[a-z_]+$`)

func metricNames(t *testing.T, dir string) (values []string) {
	t.Helper()
	inspect(t, dir, func(n ast.Node) {
		if text, ok := textOf(n); ok && metricName.MatchString(text) {
			values = append(values, text)
		}
	})
	return values
}

var verb = regexp.MustCompile(`%[+#]?[a-zA-Z]`)

// literals returns the texts of a package, with … for each inserted value.
func literals(t *testing.T, dir string) (values []string) {
	t.Helper()
	inspect(t, dir, func(n ast.Node) {
		if text, ok := textOf(n); ok {
			values = append(values, strings.ReplaceAll(verb.ReplaceAllString(text, "…"), "%%", "%"))
		}
	})
	return values
}

// textOf returns the text of a string literal. ok is false for other nodes.
func textOf(n ast.Node) (text string, ok bool) {
	literal, ok := n.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

func inspect(t *testing.T, dir string, visit func(ast.Node)) {
	t.Helper()
	for _, file := range sourcesOf(t, token.NewFileSet(), dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			visit(n)
			return true
		})
	}
}

// constantsOf returns the constants of a package, by name.
func constantsOf(t *testing.T, dir string) map[string]constant.Value {
	t.Helper()
	found := map[string]constant.Value{}
	for _, c := range typedConstantsOf(t, dir) {
		found[c.Name()] = c.Val()
	}
	return found
}

// typedConstantsOf returns the constants of a package with their types.
func typedConstantsOf(t *testing.T, dir string) (found []*types.Const) {
	t.Helper()
	files := token.NewFileSet()
	// The values of the constants do not depend on other packages, so no package is imported, and type errors are ignored.
	config := types.Config{Importer: importsNothing{}, IgnoreFuncBodies: true, Error: func(error) {}}
	pkg, _ := config.Check(dir, files, sourcesOf(t, files, dir), nil)
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok {
			found = append(found, c)
		}
	}
	return found
}

type importsNothing struct{}

func (importsNothing) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("import %s: %w", path, errors.ErrUnsupported)
}

// sourcesOf returns the files of a package, without its tests.
func sourcesOf(t *testing.T, files *token.FileSet, dir string) (sources []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("sources in %s: %v, %v", dir, paths, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(files, path, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, file)
	}
	return sources
}
