package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// release is the Debian release of the public images, which can differ from that of this machine.
const release = "trixie"

// recipe says how an image is made.
type recipe struct {
	// name is that of the archive.
	name string
	// packages are unpacked with what they depend on, but for setUp and without: parts that the examples don't use.
	packages, without []string
	// links maps symbolic links to their targets, and texts files to their content. A text that begins with #! is a
	// program.
	links, texts map[string]string
	// image is what else there is to say; its Root is what comes of the rest.
	image image.Spec
}

var recipes = []recipe{
	{
		name:     "postgres",
		packages: []string{"postgresql-17", "coreutils", "dash", "gosu"},
		without: []string{
			// for compiled queries
			"libllvm19", "libz3-4",
			// what Debian manages several databases with
			"postgresql-common", "postgresql-common-dev", "postgresql-client-common", "libjson-perl", "ssl-cert", "openssl", "procps", "ucf",
			"libc-l10n", "locales", "openssl-provider-legacy",
		},
		texts: map[string]string{
			"usr/local/bin/docker-entrypoint.sh": source("docker-entrypoint.sh"),
			// the numbers that the official image has
			"etc/passwd": "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\n",
			"etc/group":  "root:x:0:\npostgres:x:999:\n",
		},
		links: map[string]string{"var/run": "../run"},
		image: image.Spec{
			Ref: "docker.io/library/postgres:17",
			Dirs: map[string]fs.FileMode{
				"/tmp":                     0o777 | fs.ModeSticky,
				"/run/postgresql":          0o777 | fs.ModeSticky,
				"/var/lib/postgresql/data": 0o777 | fs.ModeSticky,
			},
			Entrypoint: []string{"docker-entrypoint.sh"},
			Cmd:        []string{"postgres"},
			Env:        []string{"PATH=" + systemPath + ":/usr/lib/postgresql/17/bin", "PGDATA=/var/lib/postgresql/data"},
			// the fast shutdown: the default would wait until every client has gone
			StopSignal: "SIGINT",
		},
	},
	{
		name:     "python",
		packages: []string{"python3.13"},
		without:  []string{"mailcap"},
		links:    map[string]string{"usr/local/bin/python3": "../../bin/python3.13"},
		image: image.Spec{
			Ref:  "docker.io/library/python:3.13-slim",
			Dirs: map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
			Cmd:  []string{"python3"},
			Env:  []string{"PATH=" + systemPath},
		},
	},
}

// setUp are packages that others depend on for their set-up, which is not run.
var setUp = []string{
	"adduser", "base-files", "debconf", "passwd", "perl", "perl-base", "perl-modules-5.40", "libperl5.40", "sensible-utils",
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// source is one of the embedded files.
func source(name string) string {
	content, err := sources.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded by name
	}
	return string(content)
}

// unread are files and directories of packages that no program of the images reads.
var unread = []string{
	"usr/share/bug", "usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
	// Without libllvm19 they would fail queries; the server goes on without them.
	"usr/lib/postgresql/17/lib/bitcode", "usr/lib/postgresql/17/lib/llvmjit.so",
}

// layOut makes the image's files under root.
func (r recipe) layOut(root string, packages []string) error {
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, p := range packages {
		if err := unpack(p, root); err != nil {
			return fmt.Errorf("unpack %s: %w", p, err)
		}
	}
	for _, p := range unread {
		if err := os.RemoveAll(filepath.Join(root, p)); err != nil {
			return err
		}
	}
	for p, text := range r.texts {
		if err := writeText(filepath.Join(root, p), text); err != nil {
			return err
		}
	}
	for p, target := range r.links {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, p)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(root, p)); err != nil {
			return err
		}
	}
	return nil
}

// unpack leaves a symbolic link that leads to a directory as it is: what older packages have in /lib belongs in
// /usr/lib. dpkg-deb itself would replace it.
func unpack(file, root string) error {
	read := exec.Command("dpkg-deb", "--fsys-tarfile", file)
	write := exec.Command("tar", "--extract", "--keep-directory-symlink", "--directory", root)
	read.Stderr, write.Stderr = os.Stderr, os.Stderr
	content, err := read.StdoutPipe()
	if err != nil {
		return err
	}
	write.Stdin = content
	if err := read.Start(); err != nil {
		return err
	}
	err = write.Run()
	_ = content.Close() // lest dpkg-deb wait for a reader that has failed
	return errors.Join(err, read.Wait())
}

func writeText(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if len(text) > 2 && text[:2] == "#!" {
		mode = 0o755
	}
	return os.WriteFile(file, []byte(text), mode)
}
