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

// The changelog has a section for the version of the chart.
func TestChangelogTellsOfTheVersion(t *testing.T) {
	chart := read(t, "../charts/statefulsingleton/Chart.yaml")
	version := regexp.MustCompile(`(?m)^appVersion: (\S+)$`).FindStringSubmatch(chart)
	if version == nil {
		t.Fatalf("the chart has no appVersion:\n%s", chart)
	}
	section := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(version[1]) + `\] - (unreleased|\d{4}-\d{2}-\d{2})$`)
	if !section.MatchString(read(t, "../CHANGELOG.md")) {
		t.Errorf("CHANGELOG.md has no section of the chart's appVersion, as %q", "## ["+version[1]+"] - unreleased")
	}
}

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

// The versions in the list of tested versions are those that the tests build.
func TestSupportNamesWhatIsTested(t *testing.T) {
	page := read(t, "support.md")
	tests := map[string]string{
		"kubernetes": "k8s.io/kubernetes",
		"kyverno":    "github.com/kyverno/kyverno",
		"containerd": "github.com/containerd/containerd/v2",
		"helm":       "helm.sh/helm/v4",
	}
	for name, module := range tests {
		t.Run(name, func(t *testing.T) {
			requires := regexp.MustCompile(`(?m)^(?:require |\t)` + regexp.QuoteMeta(module) + ` v(\S+)`)
			version := requires.FindStringSubmatch(read(t, filepath.Join("../chainsaw-tests/tools", name, "go.mod")))
			if version == nil {
				t.Fatalf("go.mod does not require %s", module)
			}
			if want := "tested with " + version[1] + ")"; !strings.Contains(page, want) {
				t.Errorf("support.md does not say %q", want)
			}
		})
	}
}

var (
	action   = regexp.MustCompile(`uses: (.+)`)
	pinned   = regexp.MustCompile(`^[^@ ]+@[0-9a-f]{40} # v[0-9.]+$`)
	runsMake = regexp.MustCompile(`\bmake ((?:[a-z-]+ ?)+)`)
)

// Workflows run only targets that a user can run too, and actions of others are pinned.
func TestWorkflows(t *testing.T) {
	workflows, err := filepath.Glob("../.github/workflows/*")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("workflows: %v, %v", workflows, err)
	}
	makefile := read(t, "../Makefile")
	for _, workflow := range workflows {
		t.Run(filepath.Base(workflow), func(t *testing.T) {
			text := read(t, workflow)
			if err := yaml.UnmarshalStrict([]byte(text), new(any)); err != nil {
				t.Error(err)
			}
			for _, used := range action.FindAllStringSubmatch(text, -1) {
				if !strings.HasPrefix(used[1], "./") && !pinned.MatchString(used[1]) {
					t.Errorf("%s is not pinned to a commit, with its version beside it", used[1])
				}
			}
			for _, run := range runsMake.FindAllStringSubmatch(text, -1) {
				for target := range strings.FieldsSeq(run[1]) {
					if !strings.Contains(makefile, "\n"+target+":") {
						t.Errorf("the Makefile has no target %s", target)
					}
				}
			}
		})
	}
}

// The base image of the release images is pinned, and Renovate updates the pin.
func TestBaseImageIsPinned(t *testing.T) {
	base := regexp.MustCompile(`(?m)^defaultBaseImage: (.+)$`).FindStringSubmatch(read(t, "../.ko.yaml"))
	if base == nil {
		t.Fatal(".ko.yaml has no defaultBaseImage")
	}
	if !regexp.MustCompile(`^[a-z0-9./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}$`).MatchString(base[1]) {
		t.Errorf(".ko.yaml builds upon %s, want repository, tag and digest", base[1])
	}
	if strings.Contains(read(t, "../.ko.yaml"), "baseImageOverrides") {
		t.Error(".ko.yaml has baseImageOverrides, which nothing pins")
	}
}

// Tests and releases use the Go version of go.mod.
func TestOneGo(t *testing.T) {
	named := regexp.MustCompile(`(?m)^go (\d+\.\d+\.\d+)$`).FindStringSubmatch(read(t, "../go.mod"))
	if named == nil {
		t.Fatal("go.mod names no version of Go with its patch, as go 1.26.8")
	}
	if strings.Contains(read(t, "../go.mod"), "\ntoolchain ") {
		t.Error("go.mod names a toolchain beside its version of Go, and actions/setup-go prefers it")
	}
	workflows, err := filepath.Glob("../.github/workflows/*")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("workflows: %v, %v", workflows, err)
	}
	for _, workflow := range workflows {
		text := read(t, workflow)
		for _, image := range regexp.MustCompile(`golang:([0-9.]+)`).FindAllStringSubmatch(text, -1) {
			if image[1] != named[1] {
				t.Errorf("%s runs in %s, and go.mod names Go %s", workflow, image[0], named[1])
			}
		}
		setup, byFile := strings.Count(text, "actions/setup-go@"), strings.Count(text, "go-version-file: go.mod")
		if setup != byFile || strings.Contains(text, "go-version:") {
			t.Errorf("%s sets up Go %d times, and %d times by go.mod", workflow, setup, byFile)
		}
	}
	// So do releases without a workflow.
	if want := "\nrelease-%: export GOTOOLCHAIN := go$(shell awk '/^go / {print $$2}' go.mod)\n"; !strings.Contains(read(t, "../Makefile"), want) {
		t.Errorf("the Makefile does not say %q", want)
	}
}

// Renovate finds the versions that are neither in a go.mod nor in a workflow.
func TestRenovateFindsVersions(t *testing.T) {
	var config struct {
		CustomManagers []struct {
			MatchStrings []string `json:"matchStrings"`
		} `json:"customManagers"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../.github/renovate.json")), &config); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	text := read(t, "../Makefile") + read(t, "../.ko.yaml")
	for _, manager := range config.CustomManagers {
		for _, pattern := range manager.MatchStrings {
			expression := regexp.MustCompile(pattern)
			for _, match := range expression.FindAllStringSubmatch(text, -1) {
				got[match[expression.SubexpIndex("depName")]] = match[expression.SubexpIndex("currentValue")]
			}
		}
	}
	want := map[string]string{}
	for _, run := range toolVersion.FindAllStringSubmatch(text, -1) {
		want[run[1]] = run[2]
	}
	want["gcr.io/distroless/static-debian12"] = "nonroot"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the Makefile runs by version, with the images' base, and what Renovate finds (-want +got):\n%s", diff)
	}
}

// toolVersion matches the module and the version that go run downloads.
var toolVersion = regexp.MustCompile(`go run (\S+?)(?:/cmd/\S+)?@(v[0-9.]+)`)

// Each released image is built for the platforms that the pages and the chart name, and has its version.
func TestReleaseImages(t *testing.T) {
	var config struct {
		DefaultPlatforms []string `json:"defaultPlatforms"`
		Builds           []struct {
			ID      string   `json:"id"`
			Ldflags []string `json:"ldflags"`
		} `json:"builds"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../.ko.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, config.DefaultPlatforms); diff != "" {
		t.Errorf("platforms of .ko.yaml (-want +got):\n%s", diff)
	}
	want := map[string]bool{"manager": true, "cluster-manager": true, "gate": true}
	got := map[string]bool{}
	for _, build := range config.Builds {
		got[build.ID] = slices.Contains(build.Ldflags, "-X main.version={{.Env.VERSION}}")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("builds of .ko.yaml, and whether they are given the version (-want +got):\n%s", diff)
	}
}

// Krew finds, for each platform, the archive that chainsaw-tests/scripts/release-plugin.sh builds.
func TestKrewManifest(t *testing.T) {
	type platform struct{ URI, SHA256, Bin string }
	want := map[string]platform{}
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			archive := fmt.Sprintf("kubectl-stfs-%s-%s.tar.gz", system, arch)
			p := platform{
				URI:    "https://github.com/statefulsingleton/statefulsingleton/releases/download/v{{version}}/" + archive,
				SHA256: "{{" + archive + "}}",
				Bin:    "kubectl-stfs",
			}
			if system == "windows" {
				p.Bin += ".exe"
			}
			want[system+"/"+arch] = p
		}
	}
	var manifest struct {
		Spec struct {
			Platforms []struct {
				Selector         struct{ MatchLabels struct{ OS, Arch string } }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../.krew.yaml")), &manifest); err != nil {
		t.Fatal(err)
	}
	got := map[string]platform{}
	for _, p := range manifest.Spec.Platforms {
		got[p.Selector.MatchLabels.OS+"/"+p.Selector.MatchLabels.Arch] = platform{p.URI, p.SHA256, p.Bin}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("platforms of .krew.yaml (-want +got):\n%s", diff)
	}
}

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
