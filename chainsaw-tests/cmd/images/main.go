// Command images builds the project's images from scratch, without Docker. It writes an archive for each image, which
// containerd can import.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// program is the content of an image: the binary of a package in the module of the directory, at path, as entrypoint.
type program struct{ name, module, pkg, path string }

var programs = []program{
	// ko puts the release images' programs there, and the policies run the gate by its path.
	{"gate", ".", "./controller/cmd/gate", "/ko-app/gate"},
	{"manager", ".", "./controller/cmd/manager", "/ko-app/manager"},
	{"cluster-manager", ".", "./controller/cmd/cluster-manager", "/ko-app/cluster-manager"},
	{"app", "chainsaw-tests", "./images/app", "/app"},
	{"writer", "chainsaw-tests", "./images/writer", "/writer"},
}

// user is the user nonroot of distroless, as in the release images.
const user = "65532:65532"

func main() {
	registry := flag.String("registry", "ghcr.io/statefulsingleton", "registry and repository of the images")
	version := flag.String("version", "0.1.0", "tag of the images")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the images, as in GOARCH")
	out := flag.String("out", "dist/images", "directory of the archives")
	flag.Parse()
	for _, p := range programs {
		start := time.Now()
		archive := filepath.Join(*out, p.name+".tar")
		ref := fmt.Sprintf("%s/%s:%s", *registry, p.name, *version)
		if err := p.build(archive, ref, *version, *arch); err != nil {
			fmt.Fprintf(os.Stderr, "images: build %s: %v\n", ref, err)
			os.Exit(1)
		}
		fmt.Printf("built %s into %s in %s\n", ref, archive, time.Since(start).Round(100*time.Millisecond))
	}
}

// build compiles the program for arch and writes its image with the name ref into the archive. The same code results in
// the same image, in each commit.
func (p program) build(archive, ref, version, arch string) error {
	binary, err := filepath.Abs(filepath.Join(filepath.Dir(archive), "bin", p.name))
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w -X main.version="+version, "-o", binary, p.pkg)
	cmd.Dir = p.module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOGC=400")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build %s: %w", p.pkg, err)
	}
	return image.Write(archive, image.Spec{
		Ref: ref, Arch: arch, User: user,
		Files: map[string]string{p.path: binary}, Entrypoint: []string{p.path},
	})
}
