package main

import (
	"fmt"
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
	for dir, version := range map[string]string{"kubernetes": "v1.36.3", "kubernetes-1.9": "v1.9.11", "kubernetes-1.34": "v1.34.4"} {
		write(t, tools, dir+"/go.mod", "module x\n\nrequire k8s.io/kubernetes "+version+"\n")
	}
	for asked, want := range map[string]string{
		"":        "v1.36.3 kubernetes",
		"v1.36.3": "v1.36.3 kubernetes",
		"v1.34.4": "v1.34.4 kubernetes-1.34",
		"v1.34.5": "Set KUBERNETES to one of v1.9.11, v1.34.4, v1.36.3",
		"v1.34":   "KUBERNETES=v1.34: ",
	} {
		version, dir, err := chooseKubernetes(tools, asked)
		if got := strings.TrimSpace(fmt.Sprint(version, " ", dir, " ", err)); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %q", asked, got, want)
		}
	}
	write(t, tools, "kubernetes/go.mod", "module x\n")
	if _, _, err := chooseKubernetes(tools, ""); err == nil || !strings.Contains(err.Error(), "does not require k8s.io/kubernetes") {
		t.Errorf("without a version: error %v", err)
	}
}

// The directories of Kubernetes differ only in the version: in their names, their modules and their programs. Each version has its
// own cache directory, and the other tools keep theirs.
func TestKubernetesModules(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	source, err := findSource()
	must(t, err)
	releases, err := kubernetesReleases(source)
	if err != nil || len(releases) < 2 {
		t.Fatalf("releases %v, error %v", releases, err)
	}
	all, others := map[string]string{}, map[string]bool{}
	for version, dir := range releases {
		t.Run(version, func(t *testing.T) {
			t.Setenv(kubernetesVariable, version)
			s, err := openTools("")
			must(t, err)
			if other := all[s.tools.dir]; other != "" {
				t.Errorf("%s has the same cache", other)
			}
			all[s.tools.dir] = version
			for _, m := range s.modules[1:] {
				others[m.cache] = true
			}
			if len(others) != len(s.modules)-1 || s.modules[0].source != filepath.Join(source, dir) {
				t.Errorf("other tools %v, Kubernetes in %s", others, s.modules[0].source)
			}
			if want := kubernetesModule + "-" + strings.TrimPrefix(semver.MajorMinor(version), "v"); dir != kubernetesModule && dir != want {
				t.Errorf("directory %s, want %s", dir, want)
			}
			file := filepath.Join(source, dir, "go.mod")
			content, err := os.ReadFile(file)
			must(t, err)
			module, err := modfile.Parse(file, content, nil)
			must(t, err)
			if want := "/chainsaw-tests/tools/" + dir; !strings.HasSuffix(module.Module.Mod.Path, want) {
				t.Errorf("module %s, want …%s", module.Module.Mod.Path, want)
			}
			want := "v0." + strings.TrimPrefix(version, "v1.")
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
	for _, tc := range []struct{ has, asked, wantErr string }{
		{has: "", asked: "v1.36.3"},
		{has: "v1.36.3", asked: "v1.36.3"},
		{has: "v1.36.3", asked: "v1.34.4", wantErr: "start the cluster test with Kubernetes v1.34.4: the cluster has Kubernetes v1.36.3"},
		{has: "v1.34.4", asked: "v1.36.3", wantErr: "set KUBERNETES=v1.34.4. To create it again with v1.36.3, first run: cluster --name test down"},
	} {
		c := testCluster(t)
		if tc.has != "" {
			write(t, c.tools().dir, "versions/kubernetes", tc.has+"\n")
		}
		wantError(t, c.checkKubernetes(tc.asked), tc.wantErr)
	}
}

// wantError checks that an error contains the text, or that there is none.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
