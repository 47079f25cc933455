package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z]*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z]*)\(`)
	caseName = regexp.MustCompile("`(chainsaw-tests/[a-z/-]+)`")
	linkTo   = regexp.MustCompile(`\]\(([^):#]+)[#)]`)
	anchorTo = regexp.MustCompile(`\]\(([^):#]*)#([^)]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	// unspoken matches the characters that GitHub omits in the anchor of a heading.
	unspoken = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Tests, cases, links and headings that a page names exist.
func TestWhatPagesNameExists(t *testing.T) {
	tests := testsOfTheTree(t)
	for _, page := range markdown(t) {
		text := read(t, page)
		for _, name := range testName.FindAllStringSubmatch(text, -1) {
			if !tests[name[1]] {
				t.Errorf("%s names %s, which is no test", page, name[1])
			}
		}
		for _, name := range caseName.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", name[1])); err != nil {
				t.Errorf("%s names a case that is not there: %v", page, err)
			}
		}
		for _, link := range linkTo.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), link[1])); err != nil {
				t.Errorf("%s links to what is not there: %v", page, err)
			}
		}
		for _, link := range anchorTo.FindAllStringSubmatch(text, -1) {
			target := page
			if link[1] != "" {
				target = filepath.Join(filepath.Dir(page), link[1])
			}
			if !slices.Contains(anchorsOf(read(t, target)), link[2]) {
				t.Errorf("%s links to heading %s of %s, which is not there", page, link[2], target)
			}
		}
	}
}

// anchorsOf returns the anchors of the page's headings, as GitHub computes them.
func anchorsOf(page string) (anchors []string) {
	for _, title := range heading.FindAllStringSubmatch(page, -1) {
		anchors = append(anchors, strings.ReplaceAll(unspoken.ReplaceAllString(strings.ToLower(title[1]), ""), " ", "-"))
	}
	return anchors
}

// The figures of the pages are those of the summary that the benchmark wrote. Without a summary, there are no figures.
func TestFiguresAreTheMeasuredOnes(t *testing.T) {
	table, err := figures.Between(read(t, "../README.md"))
	if err != nil {
		t.Fatalf("README.md: %v", err)
	}
	summary, err := figures.Read[figures.Gap]("benchmarks/gap.json")
	if errors.Is(err, fs.ErrNotExist) {
		if table != "" {
			t.Errorf("README.md has figures, and no benchmarks/gap.json: %s", table)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		got  string
		make func() (string, error)
	}{
		"README.md":          {table, func() (string, error) { return summary.Readme("docs/benchmarks") }},
		"benchmarks/gap.md":  {read(t, "benchmarks/gap.md"), summary.Page},
		"benchmarks/gap.svg": {read(t, "benchmarks/gap.svg"), summary.Picture},
	}
	for name, tc := range tests {
		want, err := tc.make()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, tc.got); diff != "" {
			t.Errorf("%s is not what benchmarks/gap.json gives, run make bench-report (-want +got):\n%s", name, diff)
		}
	}
}

// So are the figures between the markers of the other pages.
func TestTablesAreTheMeasuredOnes(t *testing.T) {
	for name, tables := range map[string]func(summary string) (string, error){
		"locks":    tablesOf[figures.Locks],
		"clusters": tablesOf[figures.Clusters],
		"scale":    tablesOf[figures.Scale],
	} {
		t.Run(name, func(t *testing.T) {
			page, summary := "benchmarks/"+name+".md", "benchmarks/"+name+".json"
			got, err := figures.Between(read(t, page))
			if err != nil {
				t.Fatalf("%s: %v", page, err)
			}
			want, err := tables(summary)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s is not what %s gives, run make bench-report (-want +got):\n%s", page, summary, diff)
			}
		})
	}
}

// tablesOf returns the tables of the results in a file.
func tablesOf[T figures.Locks | figures.Clusters | figures.Scale, R interface {
	*T
	Tables() (string, error)
}](file string) (string, error) {
	results, err := figures.Read[T](file)
	if err != nil {
		return "", err
	}
	return R(results).Tables()
}

// The costs that pages state are those of benchmarks/scale.json.
func TestCostsAreTheMeasuredOnes(t *testing.T) {
	scale, err := figures.Read[figures.Scale]("benchmarks/scale.json")
	if err != nil {
		t.Fatal(err)
	}
	type form struct {
		kind policies.Kind
		per  policies.Per
	}
	of := map[form]map[int]figures.Step{}
	var rows []string
	most := 0.0
	for _, step := range scale.Steps {
		f := form{step.PolicyKind, step.PolicyPer}
		if of[f] == nil {
			of[f] = map[int]figures.Step{}
		}
		of[f][step.Singletons] = step
		most = max(most, step.Controller.PeakMiB)
		if step.Singletons == 100 || step.Singletons == 1000 {
			rows = append(rows, fmt.Sprintf("| %s | `%s` | `%s` | %s ms | %.2f MiB | %.0f MiB | %s |\n", thousands(step.Singletons), f.kind, f.per,
				scale.Added(step), float64(step.Kyverno.WebhookBytes)/(1<<20), step.Kyverno.MiB, thousands(step.Injected)))
		}
	}
	byDefault, shared := of[form{policies.ClusterPolicy, policies.PerSingleton}], of[form{policies.ClusterPolicy, policies.PerNamespace}]
	tests := map[string][]string{
		"../README.md": {
			fmt.Sprintf("a policy for each singleton: %s ms longer with 100 singletons, and %s ms with 1,000.", scale.Added(byDefault[100]), scale.Added(byDefault[1000])),
			fmt.Sprintf(": %s ms with 1,000 |", scale.Added(shared[1000])),
			fmt.Sprintf("%d of 1,000 singletons had no working policy", 1000-byDefault[1000].Injected),
		},
		"scale.md": append(rows,
			fmt.Sprintf("the controller used at most %.0f MiB", most),
			fmt.Sprintf("%.0f reads for one alone and %.0f among 1,000 singletons", rollout(byDefault[1]).Reads, rollout(shared[1000]).Reads),
			fmt.Sprintf("Writes stay at %.0f to %.0f", rollout(byDefault[1]).Writes, rollout(shared[1000]).Writes)),
	}
	for page, wants := range tests {
		text := read(t, page)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not have the measured costs: %q", page, want)
			}
		}
	}
}

// thousands formats a number below a million with a comma between the thousands.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

// rollout returns the figures of the rollouts of a step.
func rollout(step figures.Step) figures.Handoffs {
	return step.Handoffs[slices.IndexFunc(step.Handoffs, func(h figures.Handoffs) bool { return h.Cause == "rollout" })]
}

func testsOfTheTree(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, name := range testFunc.FindAllStringSubmatch(read(t, path), -1) {
			tests[name[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
