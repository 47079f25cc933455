package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every entry of the lists applies: its file has the old text exactly once, and its package has the tests.
func TestListsApply(t *testing.T) {
	if _, err := readLists("../../..", lists); err != nil {
		t.Error(err)
	}
}

// What is wrong with a list is said before anything runs, by file and entry.
func TestReadLists(t *testing.T) {
	const add = "{name: add, file: sum/sum.go, old: a + b, new: a, tests: [{package: ./sum, run: TestAdd}]}"
	tests := map[string]struct {
		list string
		want []string
	}{
		"good":                       {"- " + add, nil},
		"no list":                    {"name: add", []string{"list.yaml: ", "cannot unmarshal"}},
		"unknown field":              {"- {name: add, test: []}", []string{"list.yaml: ", `unknown field "test"`}},
		"twice the field":            {"- {name: add, name: sub}", []string{"list.yaml: ", `key "name" already set`}},
		"same name":                  {"- " + add + "\n- " + add, []string{`list.yaml: "add": `, "list.yaml has an entry of the same name"}},
		"no name":                    {"- {file: sum/sum.go}", []string{"list.yaml: entry 1: name is missing"}},
		"nothing else":               {"- {name: add}", []string{`"add": file is missing`, `"add": tests is missing`}},
		"no such file":               {"- {name: add, file: sum/no.go, old: a}", []string{"no such file"}},
		"file outside":               {"- {name: add, file: ../no.go, old: a}", []string{`"add": file ../no.go is not a path from the root`}},
		"no old":                     {"- {name: add, file: sum/sum.go}", []string{`"add": old is missing`}},
		"no change":                  {"- {name: add, file: sum/sum.go, old: a + b, new: a + b}", []string{`"add": old and new are the same`}},
		"old not found":              {"- {name: add, file: sum/sum.go, old: a * b}", []string{`"add": old occurs 0 times in sum/sum.go, want exactly once`}},
		"old twice":                  {"- {name: add, file: sum/sum.go, old: 'a, b int'}", []string{`"add": old occurs 2 times in sum/sum.go, want exactly once`}},
		"no package":                 {"- {name: add, tests: [{run: TestAdd}]}", []string{`"add": package "" is not a path`}},
		"package by its import path": {"- {name: add, tests: [{package: example.com/module/sum, run: TestAdd}]}", []string{`package "example.com/module/sum" is not a path`}},
		"no run":                     {"- {name: add, tests: [{package: ./sum}]}", []string{`"add": run of package ./sum is missing`}},
		"bad run":                    {"- {name: add, tests: [{package: ./sum, run: Test(}]}", []string{`"add": run "Test(" of package ./sum: error parsing regexp`}},
		"no such test":               {"- {name: add, tests: [{package: ./sum, run: ^TestNo$}]}", []string{`"add": run "^TestNo$" matches no test function of package ./sum`}},
		"no such package":            {"- {name: add, tests: [{package: ./no, run: TestAdd}]}", []string{`"add": run "TestAdd" matches no test function of package ./no`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := readLists(module(t, tc.list), "list.yaml")
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

// The verdict of each mutation, what the report says of it, and whether make fails.
func TestVerdicts(t *testing.T) {
	tests := map[string]struct {
		entry  string
		failed bool
		want   []string
	}{
		"caught": {
			entry: "file: sum/sum.go, old: a + b, new: a - b, tests: [{package: ./sum, run: ^TestClamp$}, {package: ./sum, run: '^(TestAdd|TestEnds)$'}]",
			want:  []string{"[1/1] caught ", "list: mutated (TestAdd/small)"},
		},
		"caught by a panic": {
			entry: "file: sum/sum.go, old: a + b, new: a - b, tests: [{package: ./sum, run: ^TestLeavesAProcess$}]",
			want:  []string{"caught ", "list: mutated (TestLeavesAProcess)"},
		},
		"caught in a file that the test reads": {
			entry: "file: greeting.txt, old: hello, new: good-bye, tests: [{package: ./sum, run: ^TestGreeting$}]",
			want:  []string{"caught ", "list: mutated (TestGreeting)"},
		},
		"caught by a timeout": {
			entry: "file: sum/sum.go, old: a + b, new: a, tests: [{package: ./sum, run: ^TestEnds$}]",
			want:  []string{"timed out ", "list: mutated (TestEnds)", "These are only noticed by a timeout."},
		},
		"survived": {
			entry:  "file: sum/sum.go, old: a - b, new: b - a, tests: [{package: ./sum, run: ^TestAdd$}]",
			failed: true,
			want:   []string{"SURVIVED ", "No test notices these.", "\n  list: mutated (sum/sum.go)\n", `make mutations MUTATIONS="-area list -run '^mutated'"`},
		},
		"explained": {
			entry: "file: sum/sum.go, old: n > limit, new: n >= limit, tests: [{package: ./sum, run: ^TestClamp$}], survives: the results are equal",
			want:  []string{"explained ", "list: mutated\n"},
		},
		"stale explanation": {
			entry:  "file: sum/sum.go, old: n > limit, new: n < limit, tests: [{package: ./sum, run: ^TestClamp$}], survives: the results are equal",
			failed: true,
			want:   []string{"STALE ", "list: mutated (TestClamp)", "what their entries say in survives is wrong"},
		},
		"caught by a crash outside of a test": {
			entry: "file: sum/sum.go, old: return a - b, new: 'go panic(`lost`); select {}', tests: [{package: ./sum, run: ^TestSub$}]",
			want:  []string{"caught ", "list: mutated (panic: lost)"},
		},
		"no test begins": {
			entry:  "file: greeting.txt, old: hello, new: '', tests: [{package: ./sum, run: ^TestGreeting$}]",
			failed: true,
			want:   []string{"NO TEST FAILED ", "list: mutated\n", "The test program failed with these, and no test did.", "greeting.txt is empty"},
		},
		"does not build": {
			entry:  "file: sum/sum.go, old: a + b, new: a + c, tests: [{package: ./sum, run: ^TestAdd$}]",
			failed: true,
			want:   []string{"DOES NOT BUILD ", "list: mutated\n", "undefined: c"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := module(t, "- {name: mutated, "+tc.entry+"}")
			before := read(t, root)
			out, err := runIn(t.Context(), t, root)
			if errors.Is(err, errFailed) != tc.failed || err != nil && !tc.failed {
				t.Errorf("error %v, want a failure: %t", err, tc.failed)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("the report does not say %q:\n%s", want, out)
				}
			}
			if read(t, root) != before {
				t.Error("the tree is not as it was")
			}
		})
	}
}

// No mutation runs unless its tests run and pass without it.
func TestUnmutated(t *testing.T) {
	const entry = "- {name: add, file: sum/sum.go, old: a + b, new: a, tests: [{package: ./sum, run: %s}]}"
	tests := map[string]struct{ run, want string }{
		"fails":        {"^TestFails$", "unmutated: ./sum: the tests must pass before mutations mean anything: exit status 1\n"},
		"skipped":      {"^TestSkipped$", `unmutated: ./sum: run "^TestSkipped$": every test that it matches is skipped`},
		"no such case": {"^TestAdd$/^huge$", `unmutated: ./sum: run "^TestAdd$/^huge$": every test that it matches is skipped, or there is none`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := runIn(t.Context(), t, module(t, strings.ReplaceAll(entry, "%s", tc.run)))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
			if strings.Contains(out, "[1/1]") {
				t.Errorf("a mutation ran:\n%s", out)
			}
		})
	}
}

// -run and -area choose mutations, and -list prints them.
func TestChoice(t *testing.T) {
	const list = `
- {name: no sum, file: sum/sum.go, old: a + b, new: a, tests: [{package: ./sum, run: ^TestAdd$}]}
- {name: no limit, file: sum/sum.go, old: n > limit, new: n < limit, tests: [{package: ./sum, run: ^TestClamp$}]}
`
	tests := map[string]struct {
		names, areas, want string
	}{
		"all":          {"", "", "list  no sum    sum/sum.go\nlist  no limit  sum/sum.go\n"},
		"by name":      {"lim", "", "list  no limit  sum/sum.go\n"},
		"by area":      {"", "list", "list  no sum    sum/sum.go\nlist  no limit  sum/sum.go\n"},
		"half an area": {"", "lis", ""},
		"no such name": {"none", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			o := options{root: module(t, list), lists: "list.yaml", out: &out, parallel: 1, timeout: time.Second, list: true}
			if err := o.choose(tc.names, tc.areas); err != nil {
				t.Fatal(err)
			}
			if err := mutations(t.Context(), o); (err != nil) != (tc.want == "") || out.String() != tc.want {
				t.Errorf("printed %q, error %v, want %q", out.String(), err, tc.want)
			}
		})
	}
}

// What git does not track and ignores is not copied; a new file is, and so is a link.
func TestCopy(t *testing.T) {
	root := module(t, "")
	for name, text := range map[string]string{".gitignore": "/bin/\n", "bin/program": "", "new.sh": "exit"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("new.sh", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	workers, err := newWorkers(t.Context(), root, t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	tree := workers[0].tree
	if info, err := os.Stat(filepath.Join(tree, "new.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("new.sh: %v, %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(tree, "link")); target != "new.sh" {
		t.Errorf("link: %q, %v", target, err)
	}
	if _, err := os.Stat(filepath.Join(tree, "bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("bin is copied: %v", err)
	}
}

// What is interrupted leaves no copy and no process behind, and reports what it knows.
func TestInterrupt(t *testing.T) {
	root := module(t, `
- {name: no sum, file: sum/sum.go, old: a + b, new: a, tests: [{package: ./sum, run: ^TestAdd$}]}
- {name: endless, file: sum/sum.go, old: n > limit, new: "func() bool { for {} }()", tests: [{package: ./sum, run: ^TestClamp$}]}
`)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out := &watched{text: "[1/2] caught", seen: interrupt}
	o := options{root: root, lists: "list.yaml", out: out, parallel: 1, timeout: time.Hour}
	if err := o.choose("", ""); err != nil {
		t.Fatal(err)
	}
	err := mutations(ctx, o)
	if err == nil || err.Error() != "stopped after 1 of 2 mutations" {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder of temporary files: %v, %v", left, err)
	}
	if report := out.String(); !strings.Contains(report, " list          1       1 ") {
		t.Errorf("no table of what ran:\n%s", report)
	}
}

// What a test leaves running has ended when the next one begins.
func TestKillAll(t *testing.T) {
	w := worker{tree: t.TempDir(), tmp: t.TempDir()}
	output, err := w.run(t.Context(), w.tree, "sh", "-c", "sleep 1000 & echo $!")
	if err != nil {
		t.Fatal(err)
	}
	// A process that ended, and that nobody has waited for yet, has no environment any more.
	if data, err := os.ReadFile("/proc/" + strings.TrimSpace(output) + "/environ"); err == nil && len(data) > 0 {
		t.Errorf("process %s runs", output)
	}
}

// watched calls seen once the text was written.
type watched struct {
	bytes.Buffer
	text string
	seen func()
}

func (w *watched) Write(data []byte) (int, error) {
	n, err := w.Buffer.Write(data)
	if strings.Contains(w.String(), w.text) {
		w.seen()
	}
	return n, err
}

// module is a copy of the module in testdata, in a git repository of its own, with a list of mutations.
func module(t *testing.T, list string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/module")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("git", "init", "--quiet", root).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(root, "list.yaml"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// runIn runs every mutation of the module's list, and returns what is printed.
func runIn(ctx context.Context, t *testing.T, root string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	o := options{root: root, lists: "list.yaml", out: &out, parallel: 2, timeout: 5 * time.Second}
	if err := o.choose("", ""); err != nil {
		t.Fatal(err)
	}
	err := mutations(ctx, o)
	return out.String(), err
}

// read is the text of all files that mutations change.
func read(t *testing.T, root string) (all string) {
	t.Helper()
	for _, file := range []string{"sum/sum.go", "greeting.txt"} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		all += string(data)
	}
	return all
}
