// Package docs holds the documentation against the tree: what it names exists.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z]*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z]*)\(`)
	caseName = regexp.MustCompile("`(chainsaw-tests/[a-z-]+)`")
	linkTo   = regexp.MustCompile(`\]\(([^):#]+)[#)]`)
)

// No claim without the test that carries it: a test that a page names is there.
func TestWhatPagesNameExists(t *testing.T) {
	tests := testsOfTheTree(t)
	pages, err := filepath.Glob("*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	for _, page := range append(pages, "../README.md") {
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
	}
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
