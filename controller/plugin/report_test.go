package plugin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// unpack returns the files of a report by their path, and their paths in the order of the archive.
func unpack(t *testing.T, data []byte) (files map[string]string, order []string) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, order
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		path, found := strings.CutPrefix(header.Name, "stfs-report-20260102T030405Z/")
		if !found {
			t.Errorf("path %s", header.Name)
		}
		files[path] = string(content)
		order = append(order, path)
	}
}

// reported runs the command, and returns the files of the report.
func reported(t *testing.T, line string, a answers) (map[string]string, []string) {
	t.Helper()
	s := newStage(t, "report", a)
	if err := s.run(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	return unpack(t, s.out.Bytes())
}

// A report has what belongs to the objects of the namespace, and nothing else of the namespace.
func TestReport(t *testing.T) {
	files, _ := reported(t, "report -o -", answers{})
	want := []string{
		"check.txt", "errors.txt", "versions.yaml", "cluster/nodes.yaml",
		"controller/deployments.yaml", "controller/pods.yaml", "controller/statefulsingleton/logs/statefulsingleton-1-manager.log",
		"namespaces/prod/statefulsingletons.yaml", "namespaces/prod/explain/stfs-db.txt", "namespaces/prod/pods.yaml",
		"namespaces/prod/replicasets.yaml", "namespaces/prod/deployments.yaml", "namespaces/prod/leases.yaml",
		"namespaces/prod/poddisruptionbudgets.yaml", "namespaces/prod/persistentvolumeclaims.yaml",
		"namespaces/prod/persistentvolumes.yaml", "namespaces/prod/configmaps.yaml", "namespaces/prod/events.yaml",
		"namespaces/prod/logs/db-5c9f-h2qpb-status-sidecar.log", "namespaces/prod/logs/db-5c9f-h2qpb-status-sidecar-previous.log",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for path, parts := range map[string][]string{
		"versions.yaml":                             {"plugin: 0.1.0", "kubernetes: v1.36.3", "statefulsingleton-0.1.0"},
		"check.txt":                                 {"Deployment statefulsingleton/statefulsingleton"},
		"controller/deployments.yaml":               {"--log-level=debug"},
		"namespaces/prod/pods.yaml":                 {"/bin/db", "--kept", "name: db-password", "PASSWORD", "prod/db"},
		"namespaces/prod/persistentvolumes.yaml":    {"driver: csi.example", "storageClassName: fast"},
		"namespaces/prod/configmaps.yaml":           {`epoch: "1"`},
		"namespaces/prod/explain/stfs-db.txt":       {"StatefulSingleton prod/db is not Ready: Released"},
		"namespaces/prod/poddisruptionbudgets.yaml": {"of-a-user"},
		"namespaces/prod/events.yaml":               {"HandoffCompleted"},
	} {
		for _, part := range parts {
			if !strings.Contains(files[path], part) {
				t.Errorf("%s does not contain %q:\n%s", path, part, files[path])
			}
		}
	}
	for path, content := range files {
		for _, part := range []string{"unrelated", "of-another-application", "shop"} {
			if strings.Contains(content, part) {
				t.Errorf("%s contains %q:\n%s", path, part, content)
			}
		}
	}
}

// No value that can be a secret is in a report.
func TestReportHasNoSecrets(t *testing.T) {
	if !strings.Contains(read(t, "testdata/worlds/report.yaml"), "hunter2") {
		t.Fatal("the world has no secrets")
	}
	files, _ := reported(t, "report -A -o -", answers{})
	for path, content := range files {
		if strings.Contains(content, "hunter2") || strings.Contains(content, "kind: Secret\n") {
			t.Errorf("%s has a secret:\n%s", path, content)
		}
	}
	if !strings.Contains(files["namespaces/shop/statefulsets.yaml"], "name: queue") {
		t.Errorf("-A leaves out the StatefulSet of the lock in another namespace: %q", files["namespaces/shop/statefulsets.yaml"])
	}
}

// A policy of a lock contains its hooks.
func TestRedactPolicy(t *testing.T) {
	policy := map[string]any{"spec": map[string]any{"expression": `[{"name": "STATEFULSETLOCK_HOOKS", "value": "{\"promote\":[\"psql\",\"hunter2\"]}"}]`, "name": "STATEFULSETLOCK_HOOKS"}}
	redact(&unstructured.Unstructured{Object: policy}, true)
	want := map[string]any{"spec": map[string]any{"expression": `[{"name": "STATEFULSETLOCK_HOOKSREDACTED`, "name": "STATEFULSETLOCK_HOOKS"}}
	if diff := cmp.Diff(want, policy); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

// What the user cannot read is listed, and the rest is written.
func TestReportWithoutPermission(t *testing.T) {
	files, _ := reported(t, "report -o -", answers{forbidden: []string{"list nodes", "get persistentvolumes", "list pods", "get pods/log", "list statefulsetlocks"}})
	for _, part := range []string{"list Nodes: ", "list Pods in namespace prod: ", "list StatefulSetLocks in namespace prod: "} {
		if !strings.Contains(files["errors.txt"], part) {
			t.Errorf("errors.txt does not contain %q:\n%s", part, files["errors.txt"])
		}
	}
	if files["namespaces/prod/statefulsingletons.yaml"] == "" || files["namespaces/prod/deployments.yaml"] == "" {
		t.Errorf("the report stopped: it has only %v", slices.Sorted(maps.Keys(files)))
	}
}

// Two reports about the same state are equal.
func TestReportIsDeterministic(t *testing.T) {
	_, first := reported(t, "report -A -o -", answers{})
	_, second := reported(t, "report -A -o -", answers{})
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("paths (-first +second):\n%s", diff)
	}
}

// The default file is in the current directory, only the user can read it, and report replaces no file.
func TestReportFile(t *testing.T) {
	s, again := newStage(t, "report", answers{}), newStage(t, "report", answers{})
	t.Chdir(t.TempDir())
	if err := s.run(t.Context(), "report"); err != nil {
		t.Fatal(err)
	}
	const file = "stfs-report-20260102T030405Z.tar.gz"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if files, _ := unpack(t, data); files["namespaces/prod/statefulsingletons.yaml"] == "" {
		t.Error("the report has no StatefulSingleton")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	if err := again.run(t.Context(), "report -o "+file); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("error %v, want that the file exists", err)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, data) {
		t.Errorf("the file changed, error %v", err)
	}
}
