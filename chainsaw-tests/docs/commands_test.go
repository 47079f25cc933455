package docs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var (
	// command matches a line that looks like a shell command.
	command = regexp.MustCompile(`^\s*(\$ |(kubectl|helm|make|flux|argocd|kyverno|curl) )`)
	// notRun matches the info of a block of commands that the tests do not run.
	notRun = regexp.MustCompile(`^shell not run: .+`)
	// placeholder matches text that the reader must replace.
	placeholder = regexp.MustCompile(`<[a-z][a-z -]*>`)
)

// The tests run every command of the pages as written, by make pages or make e2e, or the block explains why not.
func TestEveryCommandIsRun(t *testing.T) {
	for _, page := range pages(t) {
		for _, problem := range commandsNotRun(read(t, page)) {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

func TestCommandsNotRun(t *testing.T) {
	for page, want := range map[string]string{
		"```sh\nkubectl get stfs\n```\n":                                   "",
		"```shell not run: it empties a node\nkubectl drain <node>\n```\n": "",
		"```console\nnode/node-2 cordoned\n```\n":                          "",
		"Then `kubectl get stfs` tells.\n":                                 "",
		"```shell not run:\nkubectl get stfs\n```\n":                       "in no sh block",
		"```console\n$ date\n```\n":                                        "in no sh block",
		"```yaml\na: b\n```\n```\nhelm list\n```\n":                        "in no sh block",
		"1. Do\n\n   ```sh\n   kubectl get stfs\n   ```\n":                 "in no sh block",
		"```sh\nkubectl drain <node name>\n```\n":                          "can't be run",
		"```sh\nkubectl apply -f - <<EOF\nEOF\n```\n":                      "file of examples",
	} {
		got := strings.Join(commandsNotRun(page), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("problems of %q: %q, want %q", page, got, want)
		}
	}
}

// commandsNotRun returns the commands of a page that chainsaw-tests/scripts/commands.awk does not print, or that cannot
// run.
func commandsNotRun(page string) (problems []string) {
	for _, b := range blocksOf(page) {
		for _, line := range b.lines {
			switch {
			case notRun.MatchString(b.info):
			case b.info != "sh" && command.MatchString(line):
				problems = append(problems, fmt.Sprintf("%q stands in no sh block, so nobody runs it", line))
			case b.info == "sh" && placeholder.MatchString(line):
				problems = append(problems, fmt.Sprintf("%q can't be run as it is written", line))
			case b.info == "sh" && strings.Contains(line, "<<"):
				problems = append(problems, fmt.Sprintf("%q writes down what is applied: have it be a file of examples", line))
			}
		}
	}
	return problems
}

// block is a fenced code block of a page.
type block struct {
	// info is the info string of the first fence, with the leading blanks.
	info  string
	lines []string
}

func blocksOf(page string) (blocks []block) {
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		before, after, found := strings.Cut(line, "```")
		switch isFence := found && strings.TrimSpace(before) == ""; {
		case isFence && inside:
			inside = false
		case isFence:
			inside = true
			blocks = append(blocks, block{info: before + after})
		case inside:
			last := &blocks[len(blocks)-1]
			last.lines = append(last.lines, line)
		}
	}
	return blocks
}

// The index links to every page.
func TestIndexIsComplete(t *testing.T) {
	index := read(t, "README.md")
	for _, page := range pages(t) {
		// A page in a subdirectory is linked from the page to which it belongs.
		if filepath.Dir(page) == "." && page != "README.md" && !strings.Contains(index, "]("+page+")") {
			t.Errorf("README.md does not lead to %s", page)
		}
	}
}

// Each example has a README, whose commands the case chainsaw-tests/cases/examples/examples runs.
func TestEachExampleIsRun(t *testing.T) {
	examples, err := filepath.Glob("../examples/*/README.md")
	if err != nil || len(examples) == 0 {
		t.Fatalf("examples: %v, %v", examples, err)
	}
	var want []string
	for _, page := range examples {
		example := filepath.Base(filepath.Dir(page))
		want = append(want, example)
		if apply := "\nkubectl apply -f examples/" + example + "\n"; !strings.Contains(read(t, page), apply) {
			t.Errorf("%s does not say %q", page, apply)
		}
	}
	var test struct {
		Spec struct {
			Scenarios []struct {
				Bindings []struct{ Name, Value string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../chainsaw-tests/cases/examples/examples/chainsaw-test.yaml")), &test); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, scenario := range test.Spec.Scenarios {
		for _, binding := range scenario.Bindings {
			if binding.Name == "example" {
				got = append(got, binding.Value)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scenarios of chainsaw-tests/cases/examples/examples (-want +got):\n%s", diff)
	}
}

// pages returns the pages of this directory and its subdirectories, the README, and those of the chart and the
// examples.
func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../examples/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, "../README.md", "../examples/README.md", "../charts/statefulsingleton/README.md")
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
