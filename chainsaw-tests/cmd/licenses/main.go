// Command licenses prints the licences and notices that must be distributed with a program: those of Go, and of each
// module that has a package in the program. go-licenses cannot replace it: go-licenses 2.0.1 does not recognize the
// licences of ten packages of the manager, and omits the licence of Go.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

const usage = `Print the licences and notices of the modules that a program is built from, on any of the platforms.

Usage:
  licenses PACKAGE OS/ARCH...

Examples:
  bin/licenses ./controller/cmd/gate linux/amd64 linux/arm64
`

func main() {
	if len(os.Args) < 3 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	text, err := licenses(os.Args[1], os.Args[2:])
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "licenses: gather those of %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// module is a unit with its own licence: a Go module, where Main is set for that of the program, or Go itself.
type module struct {
	Path, Version, Dir string
	Main               bool
}

// imported is a package in the output of go list. For the standard library, Module is nil and Root is Go's directory.
type imported struct {
	Dir, Root string
	Module    *module
}

// licenses returns the licences for the program, without that of its own module. It fails for a module without a
// licence.
func licenses(program string, platforms []string) ([]byte, error) {
	files := map[module]map[string]bool{}
	for _, platform := range platforms {
		packages, err := packagesOf(program, platform)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			m := module{Path: "Go", Version: runtime.Version(), Dir: p.Root}
			if p.Module != nil {
				m = *p.Module
			}
			if m.Main {
				continue
			}
			if files[m] == nil {
				files[m] = map[string]bool{}
			}
			if err := addTerms(files[m], p.Dir, m.Dir); err != nil {
				return nil, err
			}
		}
	}
	var text bytes.Buffer
	text.WriteString("This program contains the following modules. The source of each module is published under its path and version.\n")
	for _, m := range slices.SortedFunc(maps.Keys(files), func(a, b module) int { return strings.Compare(a.Path, b.Path) }) {
		if len(files[m]) == 0 {
			readme, err := readmeWithTerms(m)
			if err != nil {
				return nil, err
			}
			files[m] = map[string]bool{readme: true}
		}
		for _, file := range slices.Sorted(maps.Keys(files[m])) {
			terms, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(m.Dir, file)
			if err != nil {
				return nil, err
			}
			rule := strings.Repeat("=", 80)
			fmt.Fprintf(&text, "\n%s\n%s %s: %s\n%s\n\n%s\n", rule, m.Path, m.Version, filepath.ToSlash(name), rule, bytes.TrimSpace(terms))
		}
	}
	return text.Bytes(), nil
}

// licenseHeading matches the heading of a section about the licence.
var licenseHeading = regexp.MustCompile(`(?mi)^#+ *licen[cs]e *$`)

// readmeWithTerms returns the path of the module's README, if a section of the README names the licence.
func readmeWithTerms(m module) (string, error) {
	readme := filepath.Join(m.Dir, "README.md")
	text, err := os.ReadFile(readme)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if !licenseHeading.Match(text) {
		return "", fmt.Errorf("%s %s has no licence in %s: ask its authors for one, or do without it", m.Path, m.Version, m.Dir)
	}
	return readme, nil
}

// packagesOf returns the packages of which the program is built on the platform, including the program itself. No
// program uses cgo.
func packagesOf(program, platform string) ([]imported, error) {
	system, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return nil, fmt.Errorf("%q is not a platform: use for example linux/amd64", platform)
	}
	list := exec.Command("go", "list", "-deps", "-json=Dir,Root,Module", ".")
	list.Dir = program // in its module
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s for %s: %w", program, platform, err)
	}
	var packages []imported
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p imported
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("read what go list says of %s: %w", program, err)
		}
		packages = append(packages, p)
	}
}

// termsName matches the names of files with licences and notices.
var termsName = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|copyright|notice)`)

// addTerms adds the licences and notices that apply to a package: those in its directory and in the parent directories
// up to the module's.
func addTerms(files map[string]bool, dir, root string) error {
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := entry.Name()
			if entry.Type().IsRegular() && termsName.MatchString(name) && filepath.Ext(name) != ".go" {
				files[filepath.Join(dir, name)] = true
			}
		}
		if dir == root || dir == filepath.Dir(dir) {
			return nil
		}
	}
}
