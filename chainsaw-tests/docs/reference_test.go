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
)

// named finds the names in the code of a folder that the reference must have.
type named func(t *testing.T, dir string) (values []string)

// The reference contains every name.
func TestReferenceIsComplete(t *testing.T) {
	page := read(t, "reference.md")
	exported := texts(func(c *types.Const, _ string) bool { return c.Exported() })
	all := texts(func(*types.Const, string) bool { return true })
	starting := func(prefix string) named {
		return texts(func(c *types.Const, _ string) bool { return strings.HasPrefix(c.Name(), prefix) })
	}
	ours := texts(func(_ *types.Const, value string) bool { return strings.Contains(value, "statefulsingleton") })
	for dir, finders := range map[string][]named{
		"../controller/api/v1":             {exported},
		"../controller/signal":             {exported},
		"../controller/singleton/handoff":  {all},
		"../controller/lock/tenure":        {exported},
		"../controller/cluster/membership": {exported},
		"../controller/lock":               {starting("event"), metricNames},
		"../controller/cluster":            {starting("event"), texts(isReason), metricNames},
		"../controller/injection":          {texts(isReason)},
		"../controller/singleton":          {starting("event"), texts(isReason), metricNames},
		"../policies":                      {ours, starting("Per")},
		"../controller/gate":               {exitCodes},
		"../controller/cmd/gate":           {exitCodes},
	} {
		for i, find := range finders {
			values := find(t, dir)
			if len(values) == 0 {
				t.Errorf("finder %d finds no names in %s: adapt the test", i, dir)
			}
			for _, value := range values {
				if !strings.Contains(page, "`"+value) {
					t.Errorf("reference.md does not name `%s`, of %s", value, dir)
				}
			}
		}
	}
}

// isReason returns true for a constant with the reason of a condition.
func isReason(c *types.Const, _ string) bool {
	return strings.HasPrefix(strings.ToLower(c.Name()), "reason")
}

// isOutcome returns true for a reason of Ready, Reconciling and Stalled.
func isOutcome(c *types.Const, _ string) bool {
	kind, ok := c.Type().(*types.Named)
	return ok && kind.Obj().Name() == "Outcome"
}

// ourName does not match statefulsingleton.apps.statefulsingleton.com/db, as kubectl prints objects.
var ourName = regexp.MustCompile(`(?:^|[^.\w])(apps\.statefulsingleton\.com/[a-z0-9-]+)`)

// Each label, annotation and finalizer that a page names exists.
func TestNamesOnPagesExist(t *testing.T) {
	known := []string{"apps.statefulsingleton.com/v1"}
	for _, dir := range []string{"../controller/api/v1", "../controller/signal", "../policies"} {
		known = append(known, texts(func(*types.Const, string) bool { return true })(t, dir)...)
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
	var said []string
	for _, dir := range []string{"singleton/handoff", "observe", "singleton", "injection", "cluster/membership", "cluster", "internal/apply", "../policies"} {
		said = append(said, literals(t, "../controller/"+dir)...)
	}
	for _, guards := range []string{"guards", "guards-writes", "guards-controller", "guards-leases", "guards-policies", "guards-status"} {
		said = append(said, read(t, "../charts/statefulsingleton/templates/"+guards+".yaml"))
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
func texts(pick func(c *types.Const, value string) bool) named {
	return func(t *testing.T, dir string) (values []string) {
		t.Helper()
		for _, c := range constantsOf(t, dir) {
			if c.Val().Kind() != constant.String {
				continue
			}
			if value := constant.StringVal(c.Val()); pick(c, value) && !strings.Contains(value, "{{") {
				values = append(values, value)
			}
		}
		return values
	}
}

func exitCodes(t *testing.T, dir string) (values []string) {
	t.Helper()
	for _, c := range constantsOf(t, dir) {
		if strings.HasPrefix(c.Name(), "exit") {
			values = append(values, c.Val().ExactString())
		}
	}
	return values
}

var metricName = regexp.MustCompile(`^stateful(singleton|setlock|cluster)_[a-z_]+$`)

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

// constantsOf returns the constants of a package.
func constantsOf(t *testing.T, dir string) (found []*types.Const) {
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
