package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// worker runs tests in a copy of the tree of its own.
type worker struct {
	// tree is the copy.
	tree string
	// binaries is the folder of the test binaries.
	binaries string
	// tmp is the folder of temporary files. Its name in the environment also marks the processes of the worker.
	tmp string
}

// newWorkers makes n copies of the tree at root, below dir: the files that git tracks, and the new ones that it does
// not ignore.
func newWorkers(ctx context.Context, root, dir string, n int) ([]worker, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s, which names the files to copy: %w", root, err)
	}
	var workers []worker
	for i := range n {
		base := filepath.Join(dir, strconv.Itoa(i+1))
		w := worker{tree: filepath.Join(base, "tree"), binaries: filepath.Join(base, "bin"), tmp: filepath.Join(base, "tmp")}
		for _, folder := range []string{w.tree, w.binaries, w.tmp} {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return nil, err
			}
		}
		for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if err := copyFile(filepath.Join(root, file), filepath.Join(w.tree, file)); err != nil {
				return nil, err
			}
		}
		workers = append(workers, w)
	}
	return workers, nil
}

// copyFile copies a file with its permissions, or a symbolic link. A file that git tracks and that was deleted is
// left out.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}

// mutate changes the copy, and returns a function that undoes the change.
func (w worker) mutate(m mutation) (undo func() error, err error) {
	path := filepath.Join(w.tree, m.File)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	mutated := strings.Replace(string(data), m.Old, m.New, 1)
	// WriteFile keeps the permissions of a file that exists.
	return func() error { return os.WriteFile(path, data, 0o644) }, os.WriteFile(path, []byte(mutated), 0o644)
}

// build builds the test binary of a package. What it returns is the compiler's output if the package does not build.
// Go builds nothing if the binary is up to date, as after a change of a file that tests read. Debugging information is
// left out, because most of the time of a build is that of the linker.
func (w worker) build(ctx context.Context, pkg string) (output string, err error) {
	return w.run(ctx, filepath.Join(w.tree, pkg), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", w.binary(pkg), ".")
}

func (w worker) binary(pkg string) string {
	return filepath.Join(w.binaries, strings.ReplaceAll(filepath.Clean(pkg), string(filepath.Separator), "_")+".test")
}

// test runs the binary of a package, which build has built, as go test does.
func (w worker) test(ctx context.Context, pkg, run string, timeout time.Duration, flags ...string) (output string, err error) {
	// A binary that can't stop itself is killed.
	ctx, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	args := append([]string{"-test.count=1", "-test.paniconexit0", "-test.timeout=" + timeout.String(), "-test.run=" + run}, flags...)
	return w.run(ctx, filepath.Join(w.tree, pkg), w.binary(pkg), args...)
}

// run runs a program in a folder, and returns what it prints. It also ends processes that the program started: a test
// that panics or times out leaves an API server behind.
func (w worker) run(ctx context.Context, dir, program string, args ...string) (output string, err error) {
	file, err := os.Create(filepath.Join(w.tmp, "output"))
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, w.mark())
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the terminal reaches this program alone
	err = cmd.Run()
	w.killAll()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	data, readErr := os.ReadFile(file.Name())
	return string(data), errors.Join(err, readErr)
}

func (w worker) mark() string { return "TMPDIR=" + w.tmp }

// killAll kills every process that has the worker's mark in its environment. It looks again until there is none, for
// those that were started meanwhile.
func (w worker) killAll() {
	for range 100 {
		environments, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
		found := false
		for _, environment := range environments {
			data, err := os.ReadFile(environment)
			if err != nil || !bytes.Contains(append([]byte{0}, data...), []byte("\x00"+w.mark()+"\x00")) {
				continue
			}
			if pid, err := strconv.Atoi(strings.Split(environment, "/")[2]); err == nil {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
		if !found {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
