package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPackageNames(t *testing.T) {
	const uris = "Reading package lists...\n" +
		"'http://mirror.example.com/pool/main/g/glibc/libc6_2.41-12_amd64.deb' libc6_2.41-12_amd64.deb 2848996 SHA256:1f\n" +
		"'http://mirror.example.com/pool/main/d/dash/dash_0.5.12-12_amd64.deb' dash_0.5.12-12_amd64.deb 98000 SHA256:2e\n"
	if diff := cmp.Diff([]string{"dash", "libc6"}, packageNames(uris)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if got := packageNames(""); len(got) > 0 {
		t.Errorf("names in an empty output: %v", got)
	}
}

// An image without packages has the recipe's own files and a merged /usr.
func TestLayOut(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	r := recipe{
		texts: map[string]string{"etc/passwd": "root:x:0:0\n", "usr/local/bin/start": "#!/bin/sh\n"},
		links: map[string]string{"var/run": "../run"},
	}
	if err := r.layOut(root, nil); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"etc/passwd": "-rw-r--r--", "usr/local/bin/start": "-rwxr-xr-x",
		"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin", "var/run": "../run",
	}
	got := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink {
			got[name], err = os.Readlink(p)
			return err
		}
		info, err := d.Info()
		if err == nil {
			got[name] = info.Mode().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
