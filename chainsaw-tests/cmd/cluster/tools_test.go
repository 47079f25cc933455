package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKey(t *testing.T) {
	tests := map[string]struct {
		file, content string
		wantSame      bool
	}{
		"another module changed": {file: "etcd/go.mod", content: "module etcd\n", wantSame: true},
		"go.mod changed":         {file: "helm/go.mod", content: "module helm // v2\n"},
		"go.sum changed":         {file: "helm/go.sum", content: "helm v1 h1:other\n"},
		"a patch was added":      {file: "helm/_patch/main.go", content: "package main\n"},
		"a page was added":       {file: "helm/README.md", content: "Helm\n", wantSame: true},
		"a file was renamed":     {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			source := t.TempDir()
			write(t, source, "helm/go.mod", "module helm\n")
			write(t, source, "helm/go.sum", "helm v1 h1:one\n")
			helm := toolModule{name: "helm", source: filepath.Join(source, "helm")}
			before, err := helm.key()
			must(t, err)
			if tt.file == "" {
				must(t, os.Rename(filepath.Join(source, "helm/go.sum"), filepath.Join(source, "helm/sum.go")))
			} else {
				write(t, source, tt.file, tt.content)
			}
			after, err := helm.key()
			must(t, err)
			if same := before == after; same != tt.wantSame {
				t.Errorf("keys %s and %s: same %v, want %v", before, after, same, tt.wantSame)
			}
		})
	}
}

// The tools that no cluster needs are built only when they are asked for.
func TestOpenTools(t *testing.T) {
	cluster, err := openTools("")
	must(t, err)
	for _, m := range toolModules {
		modules := cluster.modules
		if m.extra {
			alone, err := openTools(m.name)
			must(t, err)
			modules = alone.modules
		}
		is := func(other toolModule) bool { return other.name == m.name }
		if slices.ContainsFunc(cluster.modules, is) == m.extra || m.extra && len(modules) != 1 {
			t.Errorf("%s is among %v", m.name, modules)
		}
		if i := slices.IndexFunc(modules, is); i < 0 || !exists(filepath.Join(modules[i].source, "go.mod")) {
			t.Errorf("%s has no go.mod", m.name)
		}
	}
	_, err = openTools("nosuch")
	wantError(t, err, "has no tool nosuch")
}

func TestBuildTitle(t *testing.T) {
	modules := []toolModule{{source: "tools/large", share: 30}, {source: "tools/small", share: 10}}
	for want, got := range map[string]string{
		"[1/2, 0% done] build large":  buildTitle(modules, 0),
		"[2/2, 75% done] build small": buildTitle(modules, 1),
		"[1/1] build extra":           buildTitle([]toolModule{{source: "tools/extra"}}, 0),
	} {
		if got != want {
			t.Errorf("title %q, want %q", got, want)
		}
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	must(t, writeFile(filepath.Join(dir, name), content))
}

func TestKubernetesVersion(t *testing.T) {
	got := kubernetesVersion("v1.36.3")
	for _, want := range []string{"gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

func TestStrikeDependencies(t *testing.T) {
	chart := []byte("name: kyverno\ndependencies:\n- name: crds\n  version: 1\n- name: openreports\n- name: reports-server\n")
	got, err := strikeDependencies(chart, "openreports", "reports-server")
	must(t, err)
	if diff := cmp.Diff("dependencies:\n- name: crds\n  version: 1\nname: kyverno\n", string(got)); diff != "" {
		t.Errorf("chart (-want +got):\n%s", diff)
	}
	_, err = strikeDependencies(chart, "openreports", "gone")
	wantError(t, err, "openreports, gone")
}

// linkAll links what several modules have file by file, and the rest whole.
func TestLinkAll(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "one/bin/a", "a")
	write(t, dir, "one/chart/Chart.yaml", "one")
	write(t, dir, "two/bin/b", "b")
	to := filepath.Join(dir, "all")
	must(t, errors.Join(linkAll(filepath.Join(dir, "one"), to), linkAll(filepath.Join(dir, "two"), to)))
	got := map[string]string{}
	for _, link := range []string{"bin/a", "bin/b", "chart"} {
		got[link], _ = os.Readlink(filepath.Join(to, link))
	}
	want := map[string]string{"bin/a": dir + "/one/bin/a", "bin/b": dir + "/two/bin/b", "chart": dir + "/one/chart"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}

func TestMissingPackages(t *testing.T) {
	for missing, want := range map[string][]string{
		"":                     nil,
		"ptp portmap loopback": {"containernetworking-plugins"}, // once
		"nft iptables":         {"iptables", "nftables"},
		"/usr/include/seccomp.h nft iptables ptp": {"containernetworking-plugins", "iptables", "libseccomp-dev", "nftables"},
	} {
		installed := func(program string) bool { return !slices.Contains(strings.Fields(missing), program) }
		if diff := cmp.Diff(want, missingPackages(installed, buildNeeds, systemPrograms)); diff != "" {
			t.Errorf("packages without %s (-want +got):\n%s", missing, diff)
		}
	}
}
