// Command images builds the project's images for a local cluster, from scratch
// and without Docker: an archive for each, which containerd imports.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/image"
)

// programs are the images' names and their main packages.
var programs = []struct{ name, pkg, user string }{
	{"gate", "./controller/cmd/gate", "65532:65532"},
	{"manager", "./controller/cmd/manager", "65532:65532"},
	{"app", "./chainsaw-tests/app", "65532:65532"},
}

func main() {
	registry := flag.String("registry", "ghcr.io/statefulsingleton", "what the images' names begin with")
	version := flag.String("version", "0.1.0", "the images' tag")
	out := flag.String("out", "dist/images", "directory of the archives")
	flag.Parse()
	for _, p := range programs {
		start := time.Now()
		archive := filepath.Join(*out, p.name+".tar")
		ref := fmt.Sprintf("%s/%s:%s", *registry, p.name, *version)
		if err := build(archive, ref, p.name, p.pkg, p.user); err != nil {
			fmt.Fprintf(os.Stderr, "images: build %s: %v\n", ref, err)
			os.Exit(1)
		}
		fmt.Printf("built %s into %s in %s\n", ref, archive, time.Since(start).Round(100*time.Millisecond))
	}
}

func build(archive, ref, name, pkg, user string) error {
	binary := filepath.Join(filepath.Dir(archive), "bin", name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build %s: %w", pkg, err)
	}
	return image.Write(archive, image.Spec{
		Ref: ref, Arch: runtime.GOARCH, User: user,
		Files: map[string]string{"/" + name: binary}, Entrypoint: []string{"/" + name},
	})
}
