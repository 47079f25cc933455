package main

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The archive is that of fixture/image, and the program is beside it.
func TestBuild(t *testing.T) {
	tests := map[string]struct{ arg, want string }{
		"gate":   {"version", "gate 1.2.3 linux/" + runtime.GOARCH},
		"app":    {"--help", "An application that must never run twice"},
		"writer": {"--help", "writer writes numbered rows"},
	}
	tested := 0
	for _, p := range programs {
		tt, ok := tests[p.name]
		if !ok {
			continue // a manager, which is built like the gate
		}
		tested++
		t.Run(p.name, func(t *testing.T) {
			dir := t.TempDir()
			archive := filepath.Join(dir, "image.tar")
			p.module = filepath.Join("../../..", p.module)
			if err := p.build(archive, "registry.example.com/"+p.name+":1.2.3", "1.2.3", runtime.GOARCH); err != nil {
				t.Fatal(err)
			}
			if _, err := tarball.ImageFromPath(archive, nil); err != nil {
				t.Errorf("read the image: %v", err)
			}
			out, err := exec.Command(filepath.Join(dir, "bin", p.name), tt.arg).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tt.want) {
				t.Errorf("%s %s says %q (error %v), want %q", p.name, tt.arg, out, err, tt.want)
			}
		})
	}
	if tested != len(tests) {
		t.Errorf("%d programs are tested, want %d", tested, len(tests))
	}
}
