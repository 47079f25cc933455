package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func testSpec(t *testing.T) Spec {
	t.Helper()
	app := filepath.Join(t.TempDir(), "app")
	if err := os.WriteFile(app, []byte("#!binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Spec{
		Ref:        "docker.io/statefulsingleton/app:dev",
		Files:      map[string]string{"/bin/app": app, "/app": app},
		Dirs:       map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
		Entrypoint: []string{"/bin/app", "--x"},
		User:       "65532:65532",
		Arch:       "arm64",
	}
}

func TestWrite(t *testing.T) {
	spec := testSpec(t)
	archive := filepath.Join(t.TempDir(), "app.tar")
	if err := Write(archive, spec); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{config.OS, config.Architecture, config.Config.User, strings.Join(config.Config.Entrypoint, " ")}
	if diff := cmp.Diff([]string{"linux", "arm64", "65532:65532", "/bin/app --x"}, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	wantModes := map[string]fs.FileMode{
		"app": 0o755, "bin": 0o755 | fs.ModeDir, "bin/app": 0o755, "tmp": 0o777 | fs.ModeSticky | fs.ModeDir,
	}
	gotModes := map[string]fs.FileMode{}
	for files := tar.NewReader(content); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		gotModes[h.Name] = h.FileInfo().Mode()
	}
	if diff := cmp.Diff(wantModes, gotModes); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// A whole directory becomes the image's root; what Files and Dirs name lies on top.
func TestWriteOfADirectory(t *testing.T) {
	spec, root := testSpec(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "usr"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr", "tool"), []byte("#!tool"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/tool", filepath.Join(root, "tool")); err != nil {
		t.Fatal(err)
	}
	spec.Root, spec.Dirs = root, nil
	spec.Files = map[string]string{"/usr/app": spec.Files["/app"]}
	spec.Cmd, spec.Env, spec.StopSignal = []string{"serve"}, []string{"LANG=C"}, "SIGINT"
	img, err := Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	gotConfig := []string{strings.Join(config.Config.Cmd, " "), strings.Join(config.Config.Env, " "), config.Config.StopSignal}
	if diff := cmp.Diff([]string{"serve", "LANG=C", "SIGINT"}, gotConfig); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	want := map[string]string{"usr": "drwx------", "usr/tool": "-rwxr-x---", "usr/app": "-rwxr-xr-x", "tool": "Lrwxrwxrwx usr/tool"}
	got := map[string]string{}
	for files := tar.NewReader(content); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = strings.TrimSpace(h.FileInfo().Mode().String() + " " + h.Linkname)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestWriteIsDeterministic(t *testing.T) {
	spec, dir := testSpec(t), t.TempDir()
	var archives [2][]byte
	for i := range archives {
		p := filepath.Join(dir, "app.tar")
		if err := Write(p, spec); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two writes of one spec differ")
	}
}

func TestWriteErrors(t *testing.T) {
	tests := map[string]struct {
		change  func(*Spec)
		wantErr string
	}{
		"reference without a tag": {func(s *Spec) { s.Ref = "docker.io/statefulsingleton/app" }, "needs registry, repository and tag"},
		"missing file":            {func(s *Spec) { s.Files["/x"] = "/does/not/exist" }, "no such file"},
		"a directory as file":     {func(s *Spec) { s.Files["/x"] = "/" }, "not a regular file"},
		"missing root":            {func(s *Spec) { s.Root = "/does/not/exist" }, "no such file"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec, dir := testSpec(t), t.TempDir()
			tt.change(&spec)
			err := Write(filepath.Join(dir, "app.tar"), spec)
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
