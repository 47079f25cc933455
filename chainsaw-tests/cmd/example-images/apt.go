package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// keyring has the keys of Debian's releases, including future releases.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// download downloads packages of the release with their dependencies, except without, into the directory. It returns
// the file names in order.
func download(dir string, packages, without []string) ([]string, error) {
	mirror, err := findMirror()
	if err != nil {
		return nil, err
	}
	a, err := newAPT(filepath.Join(dir, "apt"), mirror)
	if err != nil {
		return nil, err
	}
	if _, err := a.get("update"); err != nil {
		return nil, err
	}
	uris, err := a.get(append([]string{"--print-uris", "--yes", "--no-install-recommends", "install"}, packages...)...)
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(packageNames(uris), func(name string) bool { return slices.Contains(without, name) })
	if len(names) == 0 {
		return nil, fmt.Errorf("apt would download nothing for %s: %s", strings.Join(packages, ", "), uris)
	}
	if _, err := a.get(append([]string{"download"}, names...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(a.dir, "*.deb"))
}

// apt is a package manager with its own state directory. It knows one release of Debian and has no installed packages.
// Otherwise it uses the configuration of this machine, for example proxies. debootstrap and mmdebstrap install all
// dependencies; here some of them are left out, see setUp and recipe.without.
type apt struct {
	dir     string
	options []string
}

func newAPT(dir, mirror string) (apt, error) {
	sources, status := filepath.Join(dir, "sources.list"), filepath.Join(dir, "state/status")
	line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror, release)
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "state/lists/partial"), 0o755),
		os.MkdirAll(filepath.Join(dir, "cache/archives/partial"), 0o755),
		os.WriteFile(status, nil, 0o644), os.WriteFile(sources, []byte(line), 0o644))
	return apt{dir, []string{
		"--quiet=2",
		"--option=Dir::State=" + filepath.Join(dir, "state"),
		"--option=Dir::State::status=" + status,
		"--option=Dir::Cache=" + filepath.Join(dir, "cache"),
		"--option=Dir::Etc::sourcelist=" + sources,
		"--option=Dir::Etc::sourceparts=/dev/null",
		"--option=Dir::Etc::preferencesparts=/dev/null",
		// The user _apt cannot write to the directory.
		"--option=APT::Sandbox::User=root",
	}}, err
}

func (a apt) get(args ...string) (string, error) {
	return aptGet(a.dir, append(slices.Clone(a.options), args...)...)
}

// findMirror returns the Debian mirror that this machine's apt uses.
func findMirror() (string, error) {
	find := func() (string, error) {
		return aptGet("/", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
	}
	mirrors, err := find()
	if err == nil && mirrors == "" {
		// The label of a mirror is known after its lists are downloaded.
		if _, err = aptGet("/", "--quiet=2", "update"); err == nil {
			mirrors, err = find()
		}
	}
	if err != nil {
		return "", err
	}
	if mirrors == "" {
		return "", errors.New("apt knows no mirror of Debian: name one in /etc/apt/sources.list.d, then try again")
	}
	first, _, _ := strings.Cut(mirrors, "\n")
	return first, nil
}

func aptGet(dir string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("apt-get", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// packageNames parses the output of apt-get --print-uris. Each line has a file: 'URI' NAME_VERSION_ARCH.deb SIZE HASH.
func packageNames(uris string) []string {
	var names []string
	for line := range strings.Lines(uris) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasSuffix(fields[1], ".deb") {
			continue
		}
		name, _, _ := strings.Cut(fields[1], "_")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
