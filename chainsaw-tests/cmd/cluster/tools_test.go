package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestToolsSourceIsFoundFromHere(t *testing.T) {
	source, err := findSource()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range toolModules {
		if !exists(filepath.Join(m.source(source), "go.mod")) {
			t.Errorf("%s has no go.mod", m.name)
		}
	}
}

func TestKey(t *testing.T) {
	tests := map[string]struct {
		change   func(t *testing.T, source string)
		wantSame bool
	}{
		"nothing changed": {
			change:   func(*testing.T, string) {},
			wantSame: true,
		},
		"another module changed": {
			change:   func(t *testing.T, source string) { write(t, source, "etcd/go.mod", "module etcd\n") },
			wantSame: true,
		},
		"go.mod changed": {
			change: func(t *testing.T, source string) { write(t, source, "helm/go.mod", "module helm // v2\n") },
		},
		"go.sum changed": {
			change: func(t *testing.T, source string) { write(t, source, "helm/go.sum", "helm v1 h1:other\n") },
		},
		"a patch was added": {
			change: func(t *testing.T, source string) { write(t, source, "helm/_patch/main.go", "package main\n") },
		},
		"a file was renamed": {
			change: func(t *testing.T, source string) {
				if err := os.Rename(filepath.Join(source, "helm/go.sum"), filepath.Join(source, "helm/go.work")); err != nil {
					t.Fatal(err)
				}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			source := t.TempDir()
			write(t, source, "helm/go.mod", "module helm\n")
			write(t, source, "helm/go.sum", "helm v1 h1:one\n")
			write(t, source, "etcd/go.mod", "module etcd // old\n")
			helm := toolModule{name: "helm"}
			before, err := helm.key(source)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(t, source)
			after, err := helm.key(source)
			if err != nil {
				t.Fatal(err)
			}
			if same := before == after; same != tt.wantSame {
				t.Errorf("keys %s and %s: same %v, want %v", before, after, same, tt.wantSame)
			}
		})
	}
}

func TestModules(t *testing.T) {
	tests := map[string]struct {
		tool       string
		has, lacks string
	}{
		"for a cluster":            {has: "kyverno", lacks: "chainsaw"},
		"a tool that it needs not": {tool: "chainsaw", has: "chainsaw", lacks: "kyverno"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, m := range (toolsSource{tool: tt.tool}).modules() {
				names = append(names, m.name)
			}
			if !slices.Contains(names, tt.has) || slices.Contains(names, tt.lacks) {
				t.Errorf("modules %v, want %s and not %s", names, tt.has, tt.lacks)
			}
		})
	}
}

func TestBuildTitle(t *testing.T) {
	modules := []toolModule{{name: "large", share: 30}, {name: "small", share: 10}}
	tests := map[string]struct {
		modules []toolModule
		i       int
		want    string
	}{
		"the first":      {modules: modules, i: 0, want: "[1/2, 0% done] build large"},
		"the last":       {modules: modules, i: 1, want: "[2/2, 75% done] build small"},
		"without shares": {modules: []toolModule{{name: "extra"}}, want: "[1/1] build extra"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := buildTitle(tt.modules, tt.i); got != tt.want {
				t.Errorf("title %q, want %q", got, tt.want)
			}
		})
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := writeFile(filepath.Join(dir, name), content); err != nil {
		t.Fatal(err)
	}
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
	chart := "name: kyverno\ndependencies:\n- name: crds\n  version: 1\n- name: openreports\n- name: reports-server\n"
	tests := map[string]struct {
		strike  []string
		want    string
		wantErr string
	}{
		"two":            {strike: []string{"openreports", "reports-server"}, want: "dependencies:\n- name: crds\n  version: 1\nname: kyverno\n"},
		"one is unknown": {strike: []string{"openreports", "gone"}, wantErr: "openreports, gone"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := strikeDependencies([]byte(chart), tt.strike...)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("chart (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissingPackages(t *testing.T) {
	tests := map[string]struct {
		missing []string
		want    []string
	}{
		"nothing":               {},
		"one package, once":     {missing: []string{"ptp", "portmap", "loopback"}, want: []string{"containernetworking-plugins"}},
		"several, in order":     {missing: []string{"nft", "iptables"}, want: []string{"iptables", "nftables"}},
		"a bare Debian machine": {missing: []string{"/usr/include/seccomp.h", "nft", "iptables", "ptp"}, want: []string{"containernetworking-plugins", "iptables", "libseccomp-dev", "nftables"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := missingPackages(func(program string) bool { return !slices.Contains(tt.missing, program) }, buildNeeds, systemPrograms)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("packages (-want +got):\n%s", diff)
			}
		})
	}
}
