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
	for _, p := range programs {
		if p.name == name {
			p.module = filepath.Join("../../..", p.module)
			return p
		}
	}
	t.Fatalf("there is no program %q", name)
	return program{}
}

// unpack returns the image in the archive and the path of its only file, unpacked.
func unpack(t *testing.T, archive string) (img v1.Image, name, path string) {
	t.Helper()
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	content := mutate.Extract(img)
	defer func() { _ = content.Close() }()
	files := tar.NewReader(content)
	header, err := files.Next()
	for err == nil && header.Typeflag == tar.TypeDir {
		header, err = files.Next()
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := files.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("the image holds %v besides %s (error %v), want one file", more, header.Name, err)
	}
	path = filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, data, header.FileInfo().Mode()); err != nil {
		t.Fatal(err)
	}
	return img, header.Name, path
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
			if err := p.build(archive, "registry.example.com/"+name+":1.2.3", "1.2.3", runtime.GOARCH); err != nil {
				t.Fatal(err)
			}
			img, file, path := unpack(t, archive)
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program needs a dynamic loader")
		}
	}
}

func TestBuildErrors(t *testing.T) {
	tests := map[string]struct {
		program program
		ref     string
		wantErr string
	}{
		"no such package":         {program: program{"x", ".", "./missing", "/x"}, ref: "registry.example.com/x:1", wantErr: "go build ./missing"},
		"a reference without tag": {program: find(t, "gate"), ref: "registry.example.com/gate", wantErr: "needs registry, repository and tag"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			archive := filepath.Join(t.TempDir(), "x.tar")
			err := tc.program.build(archive, tc.ref, "1.2.3", runtime.GOARCH)
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if _, err := os.Stat(archive); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an archive is there (error %v), want none", err)
			}
		})
	}
}
