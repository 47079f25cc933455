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
	defer content.Close()
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
