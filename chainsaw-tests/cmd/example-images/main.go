// Command example-images builds the public images that examples and tests name, from Debian packages, without Docker and
// without a registry. It prints the paths of the archives. The examples also run with the public images.
package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/dirhash"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// sources determine the contents of the images, besides the versions of the packages.
//
//go:embed *.go docker-entrypoint.sh
var sources embed.FS

func main() {
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, `example-images builds the public images that examples and tests name from packages of Debian `+release+`, and prints the paths of
the archives. It uses the mirror of this machine's apt, and stores the archives in the cache directory
(XDG_CACHE_HOME, in statefulsingleton/example-images). To build the images again from newer packages, remove it.

Example:
  for archive in $(bin/example-images); do bin/cluster load "$archive"; done
`)
	}
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "example-images:", err)
		os.Exit(1)
	}
}

func run() error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the cache directory: %w: set HOME or XDG_CACHE_HOME", err)
	}
	key, err := keyOf(sources)
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "statefulsingleton/example-images", key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, r := range recipes {
		archive := filepath.Join(dir, r.name+".tar")
		if err := r.ensure(archive); err != nil {
			return fmt.Errorf("build %s: %w", r.image.Ref, err)
		}
		fmt.Println(archive)
	}
	return nil
}

// keyOf returns the cache directory for the sources and this type of machine.
func keyOf(sources fs.FS) (string, error) {
	names, err := fs.Glob(sources, "*")
	if err != nil {
		return "", err
	}
	hash, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) { return sources.Open(name) })
	return runtime.GOARCH + "-" + strings.NewReplacer("/", "_", ":", "-").Replace(hash), err
}

// ensure builds the archive if it does not exist.
func (r recipe) ensure(archive string) error {
	if _, err := os.Stat(archive); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	start := time.Now()
	work, err := os.MkdirTemp("", "example-images-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	packages, err := download(work, r.packages, slices.Concat(setUp, r.without))
	if err != nil {
		return err
	}
	spec := r.image
	spec.Root = filepath.Join(work, "root")
	if err := r.layOut(spec.Root, packages); err != nil {
		return err
	}
	if err := image.Write(archive, spec); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "made %s of %d packages in %s\n", spec.Ref, len(packages), time.Since(start).Round(time.Second))
	return nil
}
