package docs

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// A command that is copied from a page installs the version of the page.
func TestPagesNameTheRelease(t *testing.T) {
	chart := read(t, "../charts/statefulsingleton/Chart.yaml")
	version := regexp.MustCompile(`(?m)^version: (\S+)$`).FindStringSubmatch(chart)
	if version == nil {
		t.Fatalf("the chart has no version:\n%s", chart)
	}
	found := false
	for _, page := range markdown(t) {
		for _, named := range releaseName.FindAllStringSubmatch(read(t, page), -1) {
			found = true
			if named[1] != version[1] {
				t.Errorf("%s says %q, and the chart is of version %s", page, named[0], version[1])
			}
		}
	}
	if !found {
		t.Errorf("no page names a version by %s", releaseName)
	}
}

// releaseName matches versions of the project in a page: of its chart, images, tag and release files.
var releaseName = regexp.MustCompile(`(?:charts/statefulsingleton --version |ghcr\.io/statefulsingleton/[a-z]+:|refs/tags/v|releases/download/v|statefulsingleton-)(\d+\.\d+\.\d+)`)

// markdown returns the pages of the whole tree, except built or generated files.
func markdown(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata"}, entry.Name()):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
