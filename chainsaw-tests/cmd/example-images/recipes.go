package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

// release is the Debian release of the public images, which can differ from that of this machine.
const release = "trixie"

// recipe describes how an image is built.
type recipe struct {
	// name is the name of the archive.
	name string
	// packages are unpacked with their dependencies, except setUp and without, which the examples do not use.
	packages, without []string
	// links maps symbolic links to their targets, and texts maps files to their contents. A text that begins with #! is
	// executable.
	links, texts map[string]string
	// image has the other fields of the image. Its Root is set by the build.
	image image.Spec
}

var recipes = []recipe{
	{
		name:     "postgres",
		packages: []string{"postgresql-17", "coreutils", "dash", "gosu"},
		without: []string{
			// For compiled queries.
			"libllvm19", "libz3-4",
			// For several databases on one machine.
			"postgresql-common", "postgresql-common-dev", "postgresql-client-common", "libjson-perl", "ssl-cert", "openssl", "procps", "ucf",
			"libc-l10n", "locales", "openssl-provider-legacy",
		},
		texts: map[string]string{
			"usr/local/bin/docker-entrypoint.sh": entrypoint,
			// The ids are those of the official image.
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
			// The fast shutdown. The default would wait for all clients to disconnect.
			StopSignal: "SIGINT",
		},
	},
	{
		name:     "pgbouncer",
		packages: []string{"pgbouncer", "postgresql-client-17", "coreutils", "dash", "sed"},
		without:  []string{"postgresql-common", "postgresql-client-common", "openssl", "openssl-provider-legacy", "ucf"},
		links:    map[string]string{"var/run": "../run"},
		image: image.Spec{
			Ref:  "registry.example.com/pgbouncer:trixie",
			Dirs: map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
			Cmd:  []string{"sh"},
			Env:  []string{"PATH=/usr/lib/postgresql/17/bin:" + systemPath},
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
	{
		name:     "nginx",
		packages: []string{"nginx-light"},
		texts: map[string]string{
			"etc/nginx/nginx.conf": "user root;\nevents {}\nhttp {\n  server {\n    listen 80;\n  }\n}\n",
			"etc/passwd":           "root:x:0:0:root:/root:/bin/sh\n",
			"etc/group":            "root:x:0:\n",
		},
		links: map[string]string{"var/run": "../run"},
		image: image.Spec{
			Ref:  "docker.io/library/nginx:1.26",
			Dirs: map[string]fs.FileMode{"/run": 0o755, "/var/lib/nginx": 0o755, "/var/log/nginx": 0o755},
			Cmd:  []string{"nginx", "-g", "daemon off;"},
			Env:  []string{"PATH=" + systemPath},
			// The graceful shutdown.
			StopSignal: "SIGQUIT",
		},
	},
	{
		name:     "valkey",
		packages: []string{"valkey-server", "valkey-tools"},
		image: image.Spec{
			Ref: "docker.io/valkey/valkey:8",
			Cmd: []string{"valkey-server"},
			Env: []string{"PATH=" + systemPath},
		},
	},
	{
		name:     "node",
		packages: []string{"nodejs"},
		without:  []string{"ca-certificates", "openssl", "openssl-provider-legacy"},
		image: image.Spec{
			Ref:  "docker.io/library/node:20-slim",
			Dirs: map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
			Cmd:  []string{"node"},
			Env:  []string{"PATH=" + systemPath},
		},
	},
	{
		name:     "java",
		packages: []string{"openjdk-21-jre-headless"},
		without:  []string{"ca-certificates", "ca-certificates-java", "java-common", "openssl", "openssl-provider-legacy"},
		links:    map[string]string{"usr/bin/java": "../lib/jvm/java-21-openjdk-" + runtime.GOARCH + "/bin/java"},
		image: image.Spec{
			Ref:  "docker.io/library/eclipse-temurin:21-jre",
			Dirs: map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky},
			Env:  []string{"PATH=" + systemPath},
		},
	},
}

// setUp are dependencies that only set packages up. The build does not run that.
var setUp = []string{
	"adduser", "base-files", "debconf", "passwd", "perl", "perl-base", "perl-modules-5.40", "libperl5.40", "sensible-utils",
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

//go:embed docker-entrypoint.sh
var entrypoint string

// unread are files and directories of packages that no program of the images reads.
var unread = []string{
	"usr/share/bug", "usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
	// Without libllvm19, they would make queries fail. The server works without them.
	"usr/lib/postgresql/17/lib/bitcode", "usr/lib/postgresql/17/lib/llvmjit.so",
}

// layOut creates the image's files under root.
func (r recipe) layOut(root string, packages []string) error {
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		err := errors.Join(os.MkdirAll(filepath.Join(root, "usr", dir), 0o755), os.Symlink("usr/"+dir, filepath.Join(root, dir)))
		if err != nil {
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
		link := filepath.Join(root, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(target, link)); err != nil {
			return err
		}
	}
	return nil
}

// unpack keeps symbolic links to directories. Files that older packages have in /lib belong in /usr/lib. dpkg-deb
// itself would replace the link.
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
	_ = content.Close() // otherwise dpkg-deb would block
	return errors.Join(err, read.Wait())
}

func writeText(file, text string) error {
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode))
}
