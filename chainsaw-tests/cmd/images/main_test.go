package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The archive is that of fixture/image, and the program is beside it.
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
			dir := t.TempDir()
			archive := filepath.Join(dir, name+".tar")
			must(t, find(t, name).build(archive, "registry.example.com/"+name+":1.2.3", "1.2.3", runtime.GOARCH))
			if _, err := tarball.ImageFromPath(archive, nil); err != nil {
				t.Errorf("read the image: %v", err)
			}
			out, err := exec.Command(filepath.Join(dir, "bin", name), tc.args...).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tc.want) {
				t.Errorf("%s %v says %q (error %v), want %q", name, tc.args, out, err, tc.want)
			}
		})
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
