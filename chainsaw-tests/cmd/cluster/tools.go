package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// toolModule is a directory of chainsaw-tests/tools: a Go module with the version of the tools built from it.
type toolModule struct {
	name string
	// source is the directory in the checkout, and cache that of the results, whether they are built or not. Both are set by openTools.
	source, cache string
	// main is the module that determines the version. It is empty if only the directory does.
	main string
	// own is true if the directory has the main package. Otherwise its go.mod has tool directives.
	own bool
	// cgo has the build tags of a program that needs cgo.
	cgo string
	// extra is true for a tool that no cluster needs. `cluster tools NAME` builds it.
	extra bool
	// share is the share of the build in the processor time for all tools of a cluster, in percent.
	share int
	// stamp returns additional linker flags for the version of main.
	stamp func(version string) string
	// finish builds everything besides the binaries.
	finish func(ctx context.Context, b *build) error
}

var toolModules = []toolModule{
	{name: kubernetesModule, main: kubernetesMain, share: 50, stamp: kubernetesVersion},
	{name: "etcd", main: "go.etcd.io/etcd/server/v3", own: true, share: 2},
	{name: "containerd", main: "github.com/containerd/containerd/v2", share: 7},
	// Debian 12 has version 1.1, which does not support user namespaces for pods.
	{name: "runc", main: "github.com/opencontainers/runc", cgo: "seccomp", share: 2},
	{name: "kyverno", main: "github.com/kyverno/kyverno", share: 37, finish: kyvernoAssets},
	{name: "helm", main: "helm.sh/helm/v4", share: 2},
	{name: "pause", own: true, finish: pauseImage},
	{name: "chainsaw", main: "github.com/kyverno/chainsaw", extra: true},
	{name: "controller-gen", main: "sigs.k8s.io/controller-tools", extra: true},
	{name: "kwok", main: "sigs.k8s.io/kwok", extra: true},
	{name: "csi", extra: true},
}

// build is the build of one toolModule.
type build struct {
	toolModule
	title   string // what progress calls it
	work    string // temporary files of the build
	out     string // directory with bin/, images/ and other results
	version string // version of toolModule.main
}

// kubernetesVersion returns the linker flags for the version that `kubectl version` and the nodes report. The default
// is v0.0.0-master.
func kubernetesVersion(version string) string {
	const p = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return fmt.Sprintf("-X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", p, version, p, parts[0], p, parts[1])
}

// tools is the directory with the cached results of all modules.
type tools struct{ dir string }

func (t tools) bin() string          { return filepath.Join(t.dir, "bin") }
func (t tools) images() string       { return filepath.Join(t.dir, "images") }
func (t tools) kyvernoChart() string { return filepath.Join(t.dir, "kyverno-chart") }

// version returns the version of a module's tools, or "" if they do not exist or have no version.
func (t tools) version(module string) string {
	version, _ := os.ReadFile(filepath.Join(t.dir, "versions", module))
	return strings.TrimSpace(string(version))
}

// toolsSource is what the tools are built from.
type toolsSource struct {
	kubernetes string // version
	modules    []toolModule
	tools      tools // the results of all modules together, whether they are built or not
}

// openTools returns the source of all tools of a cluster, or that of one tool, in the checkout. The environment selects the
// version of Kubernetes.
func openTools(tool string) (toolsSource, error) {
	dir, err := findSource()
	if err != nil {
		return toolsSource{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return toolsSource{}, fmt.Errorf("find the cache directory: %w: set HOME or XDG_CACHE_HOME", err)
	}
	root := filepath.Join(cache, "statefulsingleton/tools")
	version, kubernetesDir, err := chooseKubernetes(dir, os.Getenv(kubernetesVariable))
	if err != nil {
		return toolsSource{}, err
	}
	s := toolsSource{kubernetes: version}
	all := sha256.New()
	for _, m := range toolModules {
		if tool == "" && m.extra || tool != "" && tool != m.name {
			continue
		}
		m.source = filepath.Join(dir, m.name)
		if m.name == kubernetesModule {
			m.source = filepath.Join(dir, kubernetesDir)
		}
		key, err := m.key()
		if err != nil {
			return toolsSource{}, err
		}
		m.cache = filepath.Join(root, key)
		fmt.Fprintln(all, key)
		s.modules = append(s.modules, m)
	}
	if len(s.modules) == 0 {
		return toolsSource{}, fmt.Errorf("%s has no tool %s", dir, tool)
	}
	s.tools.dir = filepath.Join(root, "all-"+shortSum(all))
	return s, nil
}

func shortSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil))[:16] }

// ensure builds everything that the cache does not have.
func (s toolsSource) ensure(ctx context.Context) error {
	if exists(s.tools.dir) {
		return nil
	}
	root := filepath.Dir(s.tools.dir)
	unlock, err := lock(ctx, filepath.Join(root, "lock"), "another run builds the tools")
	if err != nil {
		return err
	}
	defer unlock()
	if exists(s.tools.dir) {
		return nil
	}
	// Builds that were killed have left partial results.
	left, err := filepath.Glob(filepath.Join(root, "partial-*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return err
	}
	if err := s.buildMissing(ctx); err != nil {
		return err
	}
	return complete(s.tools.dir, func(partial string) (err error) {
		for _, m := range s.modules {
			err = errors.Join(err, linkAll(m.cache, filepath.Join(partial, "out")))
		}
		return err
	})
}

// complete calls make with a temporary directory, in whose folder out it makes the directory dir.
func complete(dir string, make func(partial string) error) error {
	partial, err := os.MkdirTemp(filepath.Dir(dir), "partial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	if err := make(partial); err != nil {
		return err
	}
	return os.Rename(filepath.Join(partial, "out"), dir)
}

// buildMissing builds the modules that the cache lacks one after the other, because each build uses all processors.
// Meanwhile it downloads the sources of the next module.
func (s toolsSource) buildMissing(ctx context.Context) error {
	missing := slices.DeleteFunc(slices.Clone(s.modules), func(m toolModule) bool { return exists(m.cache) })
	if len(missing) > 0 {
		progress("building what the cache %s lacks", filepath.Dir(s.tools.dir))
	}
	ctx, stop := context.WithCancel(ctx)
	var downloads sync.WaitGroup
	defer downloads.Wait()
	defer stop()
	for i, m := range missing {
		if i+1 < len(missing) {
			// If it fails, so does the build, with a better error.
			downloads.Go(func() { _, _ = missing[i+1].goCommand(ctx, "mod", "download") })
		}
		title := buildTitle(missing, i)
		err := step(title, func() error {
			return complete(m.cache, func(partial string) error {
				return (&build{toolModule: m, title: title, work: partial, out: filepath.Join(partial, "out")}).run(ctx)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// buildTitle returns the name of a build, with its number and how much of the work is done before it.
func buildTitle(modules []toolModule, i int) string {
	done, all := 0, 0
	for j, m := range modules {
		if j < i {
			done += m.share
		}
		all += m.share
	}
	place := fmt.Sprintf("%d/%d", i+1, len(modules))
	if all > 0 {
		place += fmt.Sprintf(", %d%% done", 100*done/all)
	}
	return fmt.Sprintf("[%s] build %s", place, filepath.Base(modules[i].source))
}

// key returns the name of the module and a hash of everything that determines its result.
func (m toolModule) key() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH, buildFlags)
	if m.cgo != "" {
		fmt.Fprintln(sum, m.cgo)
	}
	dir := os.DirFS(m.source)
	err := fs.WalkDir(dir, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".mod", ".sum"}, filepath.Ext(p)) {
			return err
		}
		content, err := fs.ReadFile(dir, p)
		fmt.Fprintf(sum, "%s %d\n%s", p, len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the tools module %s: %w", m.source, err)
	}
	return m.name + "-" + shortSum(sum), nil
}

// buildFlags are the flags of the Makefile and of cmd/images too, so that the modules share the packages that Go compiles. For
// the same reason, the modules require one version of what several of them need. Kyverno needs an older k8s.io.
var buildFlags = []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}

func (b *build) run(ctx context.Context) error {
	ldflags, what := "-s -w", "tool"
	if b.own {
		what = "."
	}
	if b.main != "" {
		var err error
		if b.version, err = b.goCommand(ctx, "list", "-m", "-f", "{{.Version}}", b.main); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(b.out, "versions", b.name), b.version+"\n"); err != nil {
			return err
		}
	}
	if b.stamp != nil {
		ldflags += " " + b.stamp(b.version)
	}
	if err := b.patch(ctx); err != nil {
		return err
	}
	bin := filepath.Join(b.out, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-v", "-tags=" + b.cgo, "-ldflags=" + ldflags, "-o", bin + "/"}, buildFlags...)
	if err := b.compile(ctx, what, append(args, what)...); err != nil || b.finish == nil {
		return err
	}
	return b.finish(ctx, b)
}

// compile runs the go command, and reports from time to time how many packages it has compiled.
func (b *build) compile(ctx context.Context, what string, args ...string) error {
	needed, err := b.goCommand(ctx, "list", "-deps", what)
	if err != nil {
		return err
	}
	cmd := b.command(ctx, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	var printed strings.Builder
	compiled, reported := 0, time.Now()
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		printed.WriteString(line)
		if err != nil {
			break // the command has ended
		}
		if compiled++; time.Since(reported) > 20*time.Second {
			progress("%s: %d of at most %d packages", b.title, compiled, strings.Count(needed, "\n")+1)
			reported = time.Now()
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(printed.String()))
	}
	return nil
}

// patch replaces the source by a copy if the module has a directory _patch. The copy uses the main module with the files of _patch.
func (b *build) patch(ctx context.Context) error {
	patch := filepath.Join(b.source, "_patch")
	if !exists(patch) {
		return nil
	}
	upstream, err := b.moduleDir(ctx, b.main)
	if err != nil {
		return err
	}
	copied := filepath.Join(b.work, "source")
	main := filepath.Join(copied, "main")
	if err := errors.Join(copyDir(copied, b.source), copyDir(main, upstream), copyDir(main, patch)); err != nil {
		return fmt.Errorf("add %s to %s: %w", patch, b.main, err)
	}
	b.source = copied
	_, err = b.goCommand(ctx, "mod", "edit", "-replace", b.main+"=./main")
	return err
}

// moduleDir downloads a module that the go.mod requires, and returns its path.
func (m toolModule) moduleDir(ctx context.Context, module string) (string, error) {
	if _, err := m.goCommand(ctx, "mod", "download", module); err != nil {
		return "", err
	}
	return m.goCommand(ctx, "list", "-m", "-f", "{{.Dir}}", module)
}

// kyvernoAssets builds the two images of the admission controller that the Helm chart of Kyverno names, and copies the
// chart from the module.
func kyvernoAssets(ctx context.Context, b *build) error {
	for binary, repository := range map[string]string{"kyverno": "kyverno", "kyverno-init": "kyvernopre"} {
		file := filepath.Join(b.out, "bin", binary)
		err := writeImage(b, repository, image.Spec{
			Ref:        "reg.kyverno.io/kyverno/" + repository + ":" + b.version,
			Files:      map[string]string{"/ko-app/" + binary: file},
			Dirs:       map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
			Entrypoint: []string{"/ko-app/" + binary},
			User:       "65532:65532",
		})
		if err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return kyvernoChart(ctx, b)
}

// kyvernoChart adds dependencies of the chart that its module does not have. kyverno-api comes from the module with
// that name. The other two, openreports and reports-server, are disabled by default, and are removed.
func kyvernoChart(ctx context.Context, b *build) error {
	kyverno, err := b.moduleDir(ctx, "github.com/kyverno/kyverno")
	if err != nil {
		return err
	}
	api, err := b.moduleDir(ctx, "github.com/kyverno/api")
	if err != nil {
		return err
	}
	chart := filepath.Join(b.out, "kyverno-chart")
	err = errors.Join(copyDir(chart, filepath.Join(kyverno, "charts/kyverno")),
		copyDir(filepath.Join(chart, "charts/kyverno-api"), filepath.Join(api, "charts/kyverno-api")),
		os.Remove(filepath.Join(chart, "Chart.lock")))
	if err != nil {
		return err
	}
	file := filepath.Join(chart, "Chart.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	content, err = strikeDependencies(content, "openreports", "reports-server")
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, content, 0o644)
}

func pauseImage(_ context.Context, b *build) error {
	return writeImage(b, "pause", image.Spec{
		Ref:        pauseImageRef,
		Files:      map[string]string{"/pause": filepath.Join(b.out, "bin/pause")},
		Entrypoint: []string{"/pause"},
		User:       "65535:65535",
	})
}

func writeImage(b *build, name string, spec image.Spec) error {
	dir := filepath.Join(b.out, "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return image.Write(filepath.Join(dir, name+".tar"), spec)
}

// command returns the go command in the module, without the caller's workspace and flags. GOGC saves a third of the
// compiler's processor time, for about twice the memory.
func (m toolModule) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOGC=400")
	if m.cgo != "" {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	return cmd
}

// goCommand runs the go command in the module, and returns what it prints.
func (m toolModule) goCommand(ctx context.Context, args ...string) (string, error) {
	out, err := output(m.command(ctx, args...))
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the go command is not on PATH: install Go, then try again")
	}
	if err != nil {
		return "", fmt.Errorf("in %s: %w", m.source, err)
	}
	return out, nil
}

// findSource returns chainsaw-tests/tools of the checkout that has the working directory or this program.
func findSource() (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			source := filepath.Join(dir, "chainsaw-tests/tools")
			if exists(filepath.Join(source, kubernetesModule, "go.mod")) {
				return source, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("chainsaw-tests/tools is neither above the working directory nor above this program: run it inside the checkout")
}
