package main

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// find returns the program of that name, with the path of its module from here.
func find(t *testing.T, name string) program {
	t.Helper()
	i := slices.IndexFunc(programs, func(p program) bool { return p.name == name })
	if i < 0 {
		t.Fatalf("there is no program %q", name)
	}
	p := programs[i]
	p.module = filepath.Join("../../..", p.module)
	return p
}

// unpack returns the configuration of the image in the archive, and the path of its only file, unpacked.
func unpack(t *testing.T, archive string) (config *v1.ConfigFile, name, path string) {
	t.Helper()
	img, err := tarball.ImageFromPath(archive, nil)
	must(t, err)
	config, err = img.ConfigFile()
	must(t, err)
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return config, name, path
		}
		must(t, err)
		if header.Typeflag == tar.TypeDir {
			continue
		}
		if name != "" {
			t.Fatalf("the image holds %s besides %s, want one file", header.Name, name)
		}
		data, err := io.ReadAll(files)
		must(t, err)
		name, path = header.Name, filepath.Join(t.TempDir(), "program")
		must(t, os.WriteFile(path, data, header.FileInfo().Mode()))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBuild(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"gate":   {args: []string{"version"}, want: "gate 1.2.3 linux/" + runtime.GOARCH},
		"app":    {args: []string{"--help"}, want: "An application that must never run twice"},
		"writer": {args: []string{"--help"}, want: "writer writes numbered rows"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			archive := filepath.Join(t.TempDir(), name+".tar")
			p := find(t, name)
			must(t, p.build(archive, "registry.example.com/"+name+":1.2.3", "1.2.3", runtime.GOARCH))
			config, file, path := unpack(t, archive)
			got := []string{file, config.OS, config.Architecture, config.Config.User, strings.Join(config.Config.Entrypoint, " ")}
			if diff := cmp.Diff([]string{strings.TrimPrefix(p.path, "/"), "linux", runtime.GOARCH, "65532:65532", p.path}, got); diff != "" {
				t.Errorf("image (-want +got):\n%s", diff)
			}
			wantStatic(t, path)
			out, err := exec.Command(path, tc.args...).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tc.want) {
				t.Errorf("%s %v says %q (error %v), want %q", name, tc.args, out, err, tc.want)
			}
		})
	}
}

// wantStatic fails if the program needs a dynamic loader, which the image does not have.
func wantStatic(t *testing.T, path string) {
	t.Helper()
	file, err := elf.Open(path)
	must(t, err)
	defer func() { _ = file.Close() }()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program needs a dynamic loader")
		}
	}
}

func TestBuildErrors(t *testing.T) {
	for wantErr, build := range map[string]func(archive string) error{
		"go build ./missing": func(archive string) error {
			return program{"x", ".", "./missing", "/x"}.build(archive, "registry.example.com/x:1", "1.2.3", runtime.GOARCH)
		},
		"needs registry, repository and tag": func(archive string) error {
			return find(t, "gate").build(archive, "registry.example.com/gate", "1.2.3", runtime.GOARCH)
		},
	} {
		archive := filepath.Join(t.TempDir(), "x.tar")
		if err := build(archive); err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("error %v, want %q", err, wantErr)
		}
		if _, err := os.Stat(archive); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("an archive is there (error %v), want none", err)
		}
	}
}
