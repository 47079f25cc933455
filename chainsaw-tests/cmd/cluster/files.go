package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// lockTimeout is longer than any other command takes, even if it builds every binary.
const lockTimeout = time.Hour

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writeFile replaces a file atomically, and creates its directory. Only the owner can read the file.
func writeFile(path, content string) error {
	return writeFrom(path, strings.NewReader(content))
}

func writeFrom(path string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(path), ".partial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(partial.Name()) }()
	if _, err := io.Copy(partial, content); err != nil {
		_ = partial.Close()
		return err
	}
	if err := partial.Close(); err != nil {
		return err
	}
	return os.Rename(partial.Name(), path)
}

// linkAll creates symbolic links to the files of a module's cache directory in one directory for all modules.
// Directories that several modules have are linked file by file.
func linkAll(from, to string) error {
	return filepath.WalkDir(from, func(source string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(source, from))
		if source == from || slices.Contains([]string{"bin", "images", "versions"}, d.Name()) {
			return os.MkdirAll(target, 0o755)
		}
		if err := os.Symlink(source, target); err != nil || !d.IsDir() {
			return err
		}
		return fs.SkipDir
	})
}

// copyDir adds the files of a directory to another.
func copyDir(to, from string) error { return os.CopyFS(to, os.DirFS(from)) }

// lock takes an exclusive lock on a file. It prints the reason if it has to wait.
func lock(ctx context.Context, path, reason string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	take := func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	err = take()
	if errors.Is(err, unix.EWOULDBLOCK) {
		progress("waiting: %s (lock %s)", reason, path)
		err = poll(ctx, lockTimeout, 100*time.Millisecond, take)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

// strikeDependencies removes charts from the dependencies in a Chart.yaml.
func strikeDependencies(chart []byte, names ...string) ([]byte, error) {
	var content map[string]any
	if err := yaml.Unmarshal(chart, &content); err != nil {
		return nil, err
	}
	dependencies, ok := content["dependencies"].([]any)
	if !ok {
		return nil, errors.New("no list of dependencies")
	}
	kept := slices.DeleteFunc(slices.Clone(dependencies), func(d any) bool {
		name, _ := d.(map[string]any)["name"].(string)
		return slices.Contains(names, name)
	})
	if len(kept) != len(dependencies)-len(names) {
		return nil, fmt.Errorf("not every one of %s is among the dependencies", strings.Join(names, ", "))
	}
	content["dependencies"] = kept
	return yaml.Marshal(content)
}

// tail returns the last lines of a text.
func tail(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
