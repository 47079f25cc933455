package machine

import (
	"os"
	"path/filepath"
	"testing"
)

// What was measured of one code is no figure of another one, and a test or a page is no code.
func TestBuiltFrom(t *testing.T) {
	checkout := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(checkout, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write("controller/cmd/manager/main.go", "package main\n\nimport _ \"example.com/m/handoff\"\n\nfunc main() {}\n")
	write("controller/cmd/gate/main.go", "package main\n\nfunc main() {}\n")
	write("handoff/decide.go", "package handoff\n")
	sum := func() string {
		t.Helper()
		code, err := builtFrom(t.Context(), checkout)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	before := sum()
	write("handoff/decide_test.go", "package handoff\n")
	write("plugin/plugin.go", "package plugin\n")
	if got := sum(); got != before {
		t.Errorf("%s with a test and a package besides, want %s", got, before)
	}
	write("handoff/decide.go", "package handoff\n\nconst patience = 1\n")
	if got := sum(); got == before {
		t.Errorf("%s with other code of package handoff, too", got)
	}
}
