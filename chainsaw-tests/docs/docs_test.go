package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
