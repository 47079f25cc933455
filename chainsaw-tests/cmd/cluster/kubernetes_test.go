package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

func TestChooseKubernetes(t *testing.T) {
	tools := t.TempDir()
	write(t, tools, "kubernetes/go.mod", "module kubernetes\n\nrequire k8s.io/kubernetes v1.36.3\n")
	write(t, tools, "kubernetes-1.9/go.mod", "module kubernetes-1.9\n\nrequire k8s.io/kubernetes v1.9.11\n")
	write(t, tools, "kubernetes-1.34/go.mod", "module kubernetes-1.34\n\nrequire k8s.io/kubernetes v1.34.4\n")
	tests := map[string]struct {
		version string
		want    kubernetesRelease
		wantErr string
	}{
		"the default":                {version: "", want: kubernetesRelease{version: "v1.36.3", dir: "kubernetes"}},
		"the default, by its number": {version: "v1.36.3", want: kubernetesRelease{version: "v1.36.3", dir: "kubernetes"}},
		"an older version":           {version: "v1.34.4", want: kubernetesRelease{version: "v1.34.4", dir: "kubernetes-1.34"}},
		"another patch":              {version: "v1.34.5", wantErr: "Set KUBERNETES to one of v1.9.11, v1.34.4, v1.36.3"},
		"a minor version":            {version: "v1.34", wantErr: "KUBERNETES=v1.34: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := chooseKubernetes(tools, tt.version)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(kubernetesRelease{})); diff != "" {
				t.Errorf("release (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChooseKubernetesWithoutVersion(t *testing.T) {
	tools := t.TempDir()
	write(t, tools, "kubernetes/go.mod", "module kubernetes\n")
	if _, err := chooseKubernetes(tools, ""); err == nil || !strings.Contains(err.Error(), "does not require k8s.io/kubernetes") {
		t.Errorf("error %v", err)
	}
}

// checkoutReleases returns chainsaw-tests/tools of this checkout, and its releases of Kubernetes.
func checkoutReleases(t *testing.T) (source string, releases []kubernetesRelease) {
	t.Helper()
	source, err := findSource()
	if err != nil {
		t.Fatal(err)
	}
	if releases, err = kubernetesReleases(source); err != nil || len(releases) < 2 {
		t.Fatalf("releases %v, error %v", releases, err)
	}
	return source, releases
}

// Each version has its own cache directory, and the other tools keep theirs.
func TestEachKubernetesIsCachedSeparately(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	source, releases := checkoutReleases(t)
	all := map[string]string{}
	for _, r := range releases {
		s := toolsSource{dir: source, kubernetes: r}
		located, err := s.locate()
		if err != nil {
			t.Fatal(err)
		}
		if other := all[located.dir]; other != "" {
			t.Errorf("%s and %s have the directory %s", r.version, other, located.dir)
		}
		all[located.dir] = r.version
		for i, m := range s.modules() {
			if m.name != toolModules[i].name || m.name != kubernetesModule && m.source("") != toolModules[i].source("") {
				t.Errorf("with %s, the module %s is in %s", r.version, toolModules[i].name, m.source(""))
			}
		}
	}
}

// The directories of Kubernetes differ only in the version: in their names, their modules and their programs.
func TestKubernetesModules(t *testing.T) {
	source, releases := checkoutReleases(t)
	for _, r := range releases {
		t.Run(r.version, func(t *testing.T) {
			if want := kubernetesModule + "-" + strings.TrimPrefix(semver.MajorMinor(r.version), "v"); r.dir != kubernetesModule && r.dir != want {
				t.Errorf("directory %s, want %s", r.dir, want)
			}
			file := filepath.Join(source, r.dir, "go.mod")
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			module, err := modfile.Parse(file, content, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := "/chainsaw-tests/tools/" + r.dir; !strings.HasSuffix(module.Module.Mod.Path, want) {
				t.Errorf("module %s, want …%s", module.Module.Mod.Path, want)
			}
			want := "v0." + strings.TrimPrefix(r.version, "v1.")
			for _, replace := range module.Replace {
				if replace.New.Version != want {
					t.Errorf("%s is replaced by %s, want %s", replace.Old.Path, replace.New.Version, want)
				}
			}
			var programs []string
			for _, tool := range module.Tool {
				programs = append(programs, filepath.Base(tool.Path))
			}
			if diff := cmp.Diff([]string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"}, programs); diff != "" {
				t.Errorf("programs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckKubernetes(t *testing.T) {
	tests := map[string]struct {
		has     string
		asked   string
		wantErr string
	}{
		"a new cluster":    {asked: "v1.36.3"},
		"the same version": {has: "v1.36.3", asked: "v1.36.3"},
		"a newer cluster":  {has: "v1.36.3", asked: "v1.34.4", wantErr: "start the cluster test with Kubernetes v1.34.4: the cluster has Kubernetes v1.36.3"},
		"an older cluster": {has: "v1.34.4", asked: "v1.36.3", wantErr: "set KUBERNETES=v1.34.4. To create it again with v1.36.3, first run: cluster --name test down"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := testCluster(t)
			if tt.has != "" {
				write(t, c.tools().dir, "versions/kubernetes", tt.has+"\n")
			}
			err := c.checkKubernetes(tt.asked)
			switch {
			case tt.wantErr == "" && err != nil:
				t.Error(err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}
