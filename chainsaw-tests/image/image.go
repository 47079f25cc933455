// Package image writes one-layer container images without Docker: archives that `ctr images import` and
// `docker load` read. The same Spec over the same files gives the same bytes.
//
// The layer is packed here, and the rest is go-containerregistry's: its own packer, crane.Layer, knows no modes,
// directories or links. ko, which builds the release's images, packs one Go program upon a base that it pulls, and the
// tests are to need no registry.
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
	// Root is a directory of this machine that the image holds as its own root: directories, regular files and
	// symbolic links, their owner root. Files and Dirs come on top. None if empty.
	Root string
	// Entrypoint is the command in exec form.
	Entrypoint []string
	// Cmd are the arguments of Entrypoint that a pod's args replace.
	Cmd []string
	// Env are the environment's variables, each "NAME=value".
	Env []string
	// StopSignal is what asks the main process to end, "SIGINT"; SIGTERM if empty.
	StopSignal string
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
	config.Config.Entrypoint, config.Config.Cmd, config.Config.User = s.Entrypoint, s.Cmd, s.User
	config.Config.Env, config.Config.StopSignal = s.Env, s.StopSignal
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
	defer func() { _ = os.Remove(partial.Name()) }()
	if err := tarball.Write(ref, img, partial); err != nil {
		_ = partial.Close()
		return fmt.Errorf("write image %s to %s: %w", s.Ref, tarPath, err)
	}
	if err := partial.Close(); err != nil {
		return fmt.Errorf("write image %s to %s: %w", s.Ref, tarPath, err)
	}
	return os.Rename(partial.Name(), tarPath)
}

// tree is what a layer holds, by the paths in its archive.
type tree struct {
	dirs map[string]fs.FileMode
	// files and links lead to files of this machine, and to the links' targets.
	files, links map[string]string
}

func treeOf(s Spec) (tree, error) {
	t := tree{map[string]fs.FileMode{}, map[string]string{}, map[string]string{}}
	if s.Root != "" {
		if err := t.addRoot(s.Root); err != nil {
			return tree{}, err
		}
	}
	for p, source := range s.Files {
		t.addParents(inside(p))
		t.files[inside(p)] = source
	}
	for p, mode := range s.Dirs {
		t.addParents(inside(p))
		t.dirs[inside(p)] = mode
	}
	return t, nil
}

func (t tree) addRoot(root string) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			info, err := d.Info()
			if err != nil {
				return err
			}
			t.dirs[name] = info.Mode()
		case fs.ModeSymlink:
			t.links[name], err = os.Readlink(p)
		default:
			t.files[name] = p
		}
		return err
	})
}

// addParents leaves directories that are known as they are.
func (t tree) addParents(p string) {
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if _, ok := t.dirs[dir]; !ok {
			t.dirs[dir] = 0o755
		}
	}
}

// layer packs directories before files before links, each in order of their names, without times and owners.
func layer(s Spec) ([]byte, error) {
	t, err := treeOf(s)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, dir := range slices.Sorted(maps.Keys(t.dirs)) {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: unixMode(t.dirs[dir])}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(t.files)) {
		if err := addFile(archive, p, t.files[p]); err != nil {
			return nil, err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(t.links)) {
		header := &tar.Header{Typeflag: tar.TypeSymlink, Name: p, Linkname: t.links[p], Mode: 0o777}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	err = archive.Close()
	return out.Bytes(), err
}

func addFile(archive *tar.Writer, name, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
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
