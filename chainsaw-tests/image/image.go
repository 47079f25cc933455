// Package image writes one-layer container images without Docker: archives that `ctr images import` and
// `docker load` read. The same Spec over the same files gives the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec says what an image holds.
type Spec struct {
	// Ref is the full name, registry and tag included: "docker.io/library/gate:dev".
	Ref string
	// Files maps a path in the image to a file of this machine. The file's permission bits are kept,
	// its owner becomes root. Parent directories are made, mode 0755.
	Files map[string]string
	// Dirs maps a directory in the image to its mode, fs.ModeSticky included ("/tmp": 0o777|fs.ModeSticky).
	Dirs map[string]fs.FileMode
	// Entrypoint is the command in exec form.
	Entrypoint []string
	// User is "uid" or "uid:gid"; root if empty.
	User string
	// Arch is the GOARCH of the files; this machine's if empty.
	Arch string
}

// Build assembles the image in memory.
func Build(s Spec) (v1.Image, error) {
	content, err := layer(s)
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", s.Ref, err)
	}
	// not compressed: a local import is faster without, and nothing leaves the machine
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(content, types.DockerUncompressedLayer))
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", s.Ref, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("build image %s: %w", s.Ref, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", s.Arch
	if s.Arch == "" {
		config.Architecture = runtime.GOARCH
	}
	config.Config.Entrypoint, config.Config.User = s.Entrypoint, s.User
	return mutate.ConfigFile(img, config)
}

// Write builds the image and writes it to tarPath, whole or not at all.
func Write(tarPath string, s Spec) error {
	ref, err := name.NewTag(s.Ref, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image reference %q needs registry, repository and tag: %w", s.Ref, err)
	}
	img, err := Build(s)
	if err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(tarPath), filepath.Base(tarPath)+".*")
	if err != nil {
		return fmt.Errorf("write image %s: %w", s.Ref, err)
	}
	defer os.Remove(partial.Name())
	if err := tarball.Write(ref, img, partial); err != nil {
		partial.Close()
		return fmt.Errorf("write image %s to %s: %w", s.Ref, tarPath, err)
	}
	if err := partial.Close(); err != nil {
		return fmt.Errorf("write image %s to %s: %w", s.Ref, tarPath, err)
	}
	return os.Rename(partial.Name(), tarPath)
}

// layer packs directories before files, both in order of their names, without times and owners.
func layer(s Spec) ([]byte, error) {
	dirs := map[string]fs.FileMode{}
	for p := range s.Files {
		for dir := path.Dir(inside(p)); dir != "."; dir = path.Dir(dir) {
			dirs[dir] = 0o755
		}
	}
	for p, mode := range s.Dirs {
		for dir := path.Dir(inside(p)); dir != "."; dir = path.Dir(dir) {
			if _, ok := dirs[dir]; !ok {
				dirs[dir] = 0o755
			}
		}
		dirs[inside(p)] = mode
	}
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: unixMode(dirs[dir])}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(s.Files)) {
		if err := addFile(archive, inside(p), s.Files[p]); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return out.Bytes(), err
}

func addFile(archive *tar.Writer, name, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", source)
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: unixMode(info.Mode())}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}

// inside turns "/ko-app/kyverno" into the archive's "ko-app/kyverno".
func inside(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}
