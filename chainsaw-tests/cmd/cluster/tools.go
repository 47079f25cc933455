package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// toolModule is a directory of chainsaw-tests/tools: a Go module with the version of the tools built from it.
type toolModule struct {
	name string
	// dir is the directory, if its name is not that of the module.
	dir string
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
}

// build is the build of one toolModule.
type build struct {
	source  string // directory of the module in the checkout
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
	dir        string // chainsaw-tests/tools of a checkout
	kubernetes kubernetesRelease
	tool       string // the only tool to build, or empty for all tools of a cluster
}

// openSource returns the source in chainsaw-tests/tools of a checkout, with the version of Kubernetes that the environment
// selects.
func openSource(dir string) (toolsSource, error) {
	kubernetes, err := chooseKubernetes(dir, os.Getenv(kubernetesVariable))
	return toolsSource{dir: dir, kubernetes: kubernetes}, err
}

// checkoutSource is openSource for the checkout that findSource finds.
func checkoutSource() (toolsSource, error) {
	dir, err := findSource()
	if err != nil {
		return toolsSource{}, err
	}
	return openSource(dir)
}

// modules returns the modules to build, with the directory of the selected version of Kubernetes.
func (s toolsSource) modules() []toolModule {
	var modules []toolModule
	for _, m := range toolModules {
		if s.tool == "" && m.extra || s.tool != "" && s.tool != m.name {
			continue
		}
		if m.name == kubernetesModule {
			m.dir = s.kubernetes.dir
		}
		modules = append(modules, m)
	}
	return modules
}

// locate returns the cache directory for the modules, whether they are built or not.
func (s toolsSource) locate() (tools, error) {
	root, err := cacheRoot()
	if err != nil {
		return tools{}, err
	}
	sum := sha256.New()
	for _, m := range s.modules() {
		key, err := m.key(s.dir)
		if err != nil {
			return tools{}, err
		}
		fmt.Fprintln(sum, key)
	}
	return tools{filepath.Join(root, "all-"+hex.EncodeToString(sum.Sum(nil))[:16])}, nil
}

// ensure builds everything that the cache does not have.
func (s toolsSource) ensure(ctx context.Context) (tools, error) {
	t, err := s.locate()
	if err != nil || exists(t.dir) {
		return t, err
	}
	root := filepath.Dir(t.dir)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return tools{}, err
	}
	unlock, err := lock(ctx, filepath.Join(root, "lock"), "another run builds the tools")
	if err != nil {
		return tools{}, err
	}
	defer unlock()
	if exists(t.dir) {
		return t, nil
	}
	if err := removePartial(root); err != nil {
		return tools{}, err
	}
	if err := s.buildMissing(ctx, root); err != nil {
		return tools{}, err
	}
	partial, err := os.MkdirTemp(root, "partial-")
	if err != nil {
		return tools{}, err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	whole := filepath.Join(partial, "out")
	for _, m := range s.modules() {
		dir, err := m.cached(s.dir, root)
		if err != nil {
			return tools{}, err
		}
		if err := linkAll(dir, whole); err != nil {
			return tools{}, err
		}
	}
	return t, os.Rename(whole, t.dir)
}

// buildMissing builds the modules that the cache lacks one after the other, because each build uses all processors.
// Meanwhile it downloads the sources of the next module.
func (s toolsSource) buildMissing(ctx context.Context, root string) error {
	var missing []toolModule
	for _, m := range s.modules() {
		dir, err := m.cached(s.dir, root)
		if err != nil {
			return err
		}
		if !exists(dir) {
			missing = append(missing, m)
		}
	}
	if len(missing) > 0 {
		progress("building what the cache %s lacks", root)
	}
	ctx, stop := context.WithCancel(ctx)
	var downloads sync.WaitGroup
	defer downloads.Wait()
	defer stop()
	for i, m := range missing {
		if i+1 < len(missing) {
			// If it fails, so does the build, with a better error.
			downloads.Go(func() { _, _ = goOutput(ctx, missing[i+1].source(s.dir), "mod", "download") })
		}
		if err := step(buildTitle(missing, i), func() error { return m.make(ctx, s.dir, root) }); err != nil {
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
	return fmt.Sprintf("[%s] build %s", place, filepath.Base(modules[i].source("")))
}

// removePartial removes the results of builds that were killed.
func removePartial(root string) error {
	left, err := filepath.Glob(filepath.Join(root, "partial-*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// source returns the directory of the module in chainsaw-tests/tools.
func (m toolModule) source(toolsDir string) string {
	return filepath.Join(toolsDir, cmp.Or(m.dir, m.name))
}

// key returns the name of the module and a hash of everything that determines its result.
func (m toolModule) key(toolsDir string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH, buildFlags)
	if m.cgo != "" {
		fmt.Fprintln(sum, m.cgo)
	}
	dir := m.source(toolsDir)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".mod", ".sum"}, filepath.Ext(p)) {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		fmt.Fprintf(sum, "%s %d\n%s", rel, len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the tools module %s: %w", dir, err)
	}
	return m.name + "-" + hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// cached returns the cache directory of the module, whether it is built or not.
func (m toolModule) cached(toolsDir, root string) (string, error) {
	key, err := m.key(toolsDir)
	return filepath.Join(root, key), err
}

// make builds the module into its cache directory.
func (m toolModule) make(ctx context.Context, toolsDir, root string) error {
	dir, err := m.cached(toolsDir, root)
	if err != nil {
		return err
	}
	partial, err := os.MkdirTemp(root, "partial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	b := &build{source: m.source(toolsDir), work: partial, out: filepath.Join(partial, "out")}
	if err := m.build(ctx, b); err != nil {
		return err
	}
	return os.Rename(b.out, dir)
}

// buildFlags are the flags of the Makefile and of cmd/images too, so that the modules share the packages that Go compiles. For
// the same reason, the modules require one version of what several of them need. Kyverno needs an older k8s.io.
var buildFlags = []string{"-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}

func (m toolModule) build(ctx context.Context, b *build) error {
	source, err := patched(ctx, b, m.main)
	if err != nil {
		return err
	}
	ldflags, what := "-s -w", "tool"
	if m.own {
		what = "."
	}
	if m.main != "" {
		if b.version, err = goOutput(ctx, b.source, "list", "-m", "-f", "{{.Version}}", m.main); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(b.out, "versions", m.name), b.version+"\n"); err != nil {
			return err
		}
	}
	if m.stamp != nil {
		ldflags += " " + m.stamp(b.version)
	}
	bin := filepath.Join(b.out, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-tags=" + m.cgo, "-ldflags=" + ldflags, "-o", bin + "/"}, buildFlags...)
	_, err = goCommand(ctx, source, m.cgo != "", append(args, what)...)
	if err != nil || m.finish == nil {
		return err
	}
	return m.finish(ctx, b)
}

// patched returns the directory for the build. If the module has a directory _patch, the build uses a copy of the main
// module with the files of _patch.
func patched(ctx context.Context, b *build, main string) (string, error) {
	patch := filepath.Join(b.source, "_patch")
	if !exists(patch) {
		return b.source, nil
	}
	copied := filepath.Join(b.work, "source")
	upstream, err := moduleDir(ctx, b.source, main)
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(copied, os.DirFS(b.source)); err != nil {
		return "", err
	}
	if err := os.CopyFS(filepath.Join(copied, "main"), os.DirFS(upstream)); err != nil {
		return "", err
	}
	if err := os.CopyFS(filepath.Join(copied, "main"), os.DirFS(patch)); err != nil {
		return "", fmt.Errorf("add %s to %s: %w", patch, main, err)
	}
	_, err = goOutput(ctx, copied, "mod", "edit", "-replace", main+"=./main")
	return copied, err
}

// moduleDir downloads a module that the go.mod in the directory requires, and returns its path.
func moduleDir(ctx context.Context, source, module string) (string, error) {
	if _, err := goOutput(ctx, source, "mod", "download", module); err != nil {
		return "", err
	}
	return goOutput(ctx, source, "list", "-m", "-f", "{{.Dir}}", module)
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
	kyverno, err := moduleDir(ctx, b.source, "github.com/kyverno/kyverno")
	if err != nil {
		return err
	}
	api, err := moduleDir(ctx, b.source, "github.com/kyverno/api")
	if err != nil {
		return err
	}
	chart := filepath.Join(b.out, "kyverno-chart")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(kyverno, "charts/kyverno"))); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(chart, "charts/kyverno-api"), os.DirFS(filepath.Join(api, "charts/kyverno-api"))); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(chart, "Chart.lock")); err != nil {
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

// goOutput is goCommand without cgo.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	return goCommand(ctx, dir, false, args...)
}

// goCommand runs the go command in a directory, without the caller's workspace and flags. GOGC saves a third of the
// compiler's processor time, for about twice the memory.
func goCommand(ctx context.Context, dir string, cgo bool, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	enabled := "CGO_ENABLED=0"
	if cgo {
		enabled = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), enabled, "GOFLAGS=", "GOWORK=off", "GOGC=400")
	out, err := output(cmd)
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the go command is not on PATH: install Go, then try again")
	}
	if err != nil {
		return "", fmt.Errorf("in %s: %w", dir, err)
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

func cacheRoot() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: set HOME or XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "statefulsingleton/tools"), nil
}
