package main

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// heading is the heading of a file: its module, the version of the module and the path in the module.
var heading = regexp.MustCompile(`(?m)^={80}\n(\S+) (.+): (\S+)\n={80}$`)

// The output has the complete licences of everything that is linked into a program, and nothing else.
func TestOfTheGate(t *testing.T) {
	const gate = "../../../controller/cmd/gate"
	binary := filepath.Join(t.TempDir(), "gate")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", binary, ".")
	build.Dir = gate
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", gate, err, out)
	}
	linked, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Go " + linked.GoVersion}
	for _, m := range linked.Deps {
		want = append(want, m.Path+" "+m.Version)
	}

	text, err := licenses(gate, []string{runtime.GOOS + "/" + runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, match := range heading.FindAllSubmatch(text, -1) {
		got = append(got, string(match[1])+" "+string(match[2]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("what the gate is linked from, and whose terms are told (-want +got):\n%s", diff)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	terms, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), strings.TrimSpace(string(terms))) {
		t.Error("Go's licence is not there as a whole")
	}
}

// world is a program with modules, one of them only for Windows, and one with a part under another licence.
var world = map[string]string{
	"go.mod": `module example.com/program

go 1.26

require (
	example.com/mit v1.0.0
	example.com/none v1.0.0
	example.com/readme v1.0.0
	example.com/windows v1.0.0
)

replace (
	example.com/mit => ./mit
	example.com/none => ./none
	example.com/readme => ./readme
	example.com/windows => ./windows
)
`,
	"LICENSE":               "of the program's own module",
	"program/main.go":       "package main\n\nimport _ \"example.com/mit/forked/part\"\nimport _ \"example.com/readme\"\n\nfunc main() {}\n",
	"program/on_windows.go": "//go:build windows\n\npackage main\n\nimport _ \"example.com/windows\"\n",
	"careless/main.go":      "package main\n\nimport _ \"example.com/none\"\n\nfunc main() {}\n",

	"mit/go.mod":               "module example.com/mit\n",
	"mit/LICENSE.txt":          "of all of it",
	"mit/NOTICE":               "by whom it is",
	"mit/license.go":           "package mit\n",
	"mit/README":               "what it is",
	"mit/forked/COPYING":       "of what was forked",
	"mit/forked/part/part.go":  "package part\n",
	"mit/other/LICENSE":        "of what the program has not",
	"mit/other/other.go":       "package other\n",
	"readme/go.mod":            "module example.com/readme\n",
	"readme/README.md":         "# Text\n\n## License\n\nof the README\n",
	"readme/readme.go":         "package readme\n",
	"none/go.mod":              "module example.com/none\n",
	"none/none.go":             "package none\n",
	"windows/go.mod":           "module example.com/windows\n",
	"windows/Licence-of-it.md": "of what Windows needs",
	"windows/windows.go":       "package windows\n",
}

// enter creates the world, and changes into it until the test ends.
func enter(t *testing.T) {
	t.Helper()
	files := fstest.MapFS{}
	for name, content := range world {
		files[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o600}
	}
	root := t.TempDir()
	if err := os.CopyFS(root, files); err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
}

// Each dependency of the released programs has a licence.
func TestReleasedPrograms(t *testing.T) {
	for _, program := range []string{"manager", "gate", "kubectl-stfs"} {
		if _, err := licenses("../../../controller/cmd/"+program, []string{"linux/amd64", "linux/arm64"}); err != nil {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func TestFiles(t *testing.T) {
	mit := []string{"example.com/mit LICENSE.txt: of all of it", "example.com/mit NOTICE: by whom it is", "example.com/mit forked/COPYING: of what was forked", "example.com/readme README.md: # Text\n\n## License\n\nof the README"}
	windows := append(slices.Clone(mit), "example.com/windows Licence-of-it.md: of what Windows needs")
	tests := map[string]struct {
		program, platforms string
		want               []string
		wantErr            string
	}{
		"one platform":           {"./program", "linux/amd64", mit, ""},
		"either of two":          {"./program", "linux/amd64 windows/arm64", windows, ""},
		"the same, turned":       {"./program", "windows/arm64 linux/amd64", windows, ""},
		"a module without terms": {"./careless", "linux/amd64", nil, "example.com/none v1.0.0 has no licence in "},
		"no such program":        {"./missing", "linux/amd64", nil, "go list ./missing for linux/amd64: "},
		"no platform":            {"./program", "linux", nil, `"linux" is not a platform: use for example linux/amd64`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			enter(t)
			text, err := licenses(test.program, strings.Fields(test.platforms))
			if (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("error %v, want %q", err, test.wantErr)
			}
			var got []string
			headings := heading.FindAllStringSubmatch(string(text), -1)
			terms := heading.Split(string(text), -1)
			for i, heading := range headings {
				if heading[1] != "Go" {
					got = append(got, heading[1]+" "+heading[3]+": "+strings.TrimSpace(terms[i+1]))
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("what is told of the modules (-want +got):\n%s", diff)
			}
		})
	}
}
