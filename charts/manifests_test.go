package charts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKustomization: the manifests of a release, with other images by kustomize, are what the chart renders with these images.
func TestKustomization(t *testing.T) {
	dir := t.TempDir()
	run(t, "make", "-C", "..", "release-manifest", "helm=helm", "release="+dir)
	edit(t, filepath.Join(dir, "kustomization.yaml"), "  # - statefulsingleton-clusters.yaml\n", "  - statefulsingleton-clusters.yaml\n",
		"\nconfigurations:", "\nimages:\n"+image("manager")+image("cluster-manager")+image("gate")+"\nconfigurations:")

	got := byName(decode(t, run(t, "kubectl", "kustomize", dir)))
	if got["Namespace statefulsingleton"] == nil {
		t.Error("no Namespace statefulsingleton")
	}
	delete(got, "Namespace statefulsingleton")
	const served = "apps.statefulsingleton.com/v1/StatefulSingleton,apps.statefulsingleton.com/v1/StatefulSetLock,apps.statefulsingleton.com/v1/StatefulCluster"
	out, err := helm(t, "template", chart, chart, "--namespace", chart, "--no-hooks", "--api-versions", served, "--set", "crds.install=false,statefulClusters.enabled=true,image.manager.repository=mirror.example/manager,"+
		"image.clusterManager.repository=mirror.example/cluster-manager,image.gate.repository=mirror.example/gate")
	if err != nil {
		t.Fatal(err)
	}
	// Some versions of kustomize add empty lines to folded texts, where CEL has only white space.
	sameWords := cmp.Comparer(func(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) })
	if diff := cmp.Diff(byName(decode(t, out)), got, sameWords); diff != "" {
		t.Errorf("objects (-chart +kustomize):\n%s", diff)
	}
}

// image returns an entry of a kustomization's images.
func image(name string) string {
	return fmt.Sprintf("  - {name: ghcr.io/statefulsingleton/%s, newName: mirror.example/%s}\n", name, name)
}

// edit replaces strings in a file, each of which the file must have.
func edit(t *testing.T, path string, oldnew ...string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(data), oldnew[i]) {
			t.Fatalf("%s does not have %q", path, oldnew[i])
		}
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(oldnew...).Replace(string(data))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a program and returns what it prints. The test fails with the messages of the program.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
