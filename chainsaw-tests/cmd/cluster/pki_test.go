package main

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testCluster(t *testing.T) cluster {
	t.Helper()
	return cluster{name: "test", dir: t.TempDir()}
}

func TestCertificatesVerify(t *testing.T) {
	c := testCluster(t)
	must(t, c.ensureCertificates())
	ca, _, err := c.authority()
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, id := range identities() {
		t.Run(id.name, func(t *testing.T) {
			pair, err := tls.LoadX509KeyPair(c.cert(id.name), c.key(id.name))
			must(t, err)
			for _, host := range append(id.hosts, id.addresses...) {
				serves := x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
				if _, err := pair.Leaf.Verify(serves); err != nil {
					t.Errorf("as the server %s: %v", host, err)
				}
			}
			asks := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
			if _, err := pair.Leaf.Verify(asks); err != nil {
				t.Errorf("as a client: %v", err)
			}
			got := append([]string{pair.Leaf.Subject.CommonName}, pair.Leaf.Subject.Organization...)
			if diff := cmp.Diff(append([]string{id.user}, id.groups...), got); diff != "" {
				t.Errorf("user and groups (-want +got):\n%s", diff)
			}
			if info, err := os.Stat(c.key(id.name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the key can be read by others: %v %v", info.Mode(), err)
			}
		})
	}
}

// A second `up` must not replace the certificates of running programs.
func TestCertificatesStay(t *testing.T) {
	c := testCluster(t)
	contents := func() map[string]string {
		must(t, c.ensureCertificates())
		read := map[string]string{}
		must(t, filepath.WalkDir(c.dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(file)
			read[file] = string(content)
			return err
		}))
		return read
	}
	first := contents()
	if diff := cmp.Diff(first, contents()); diff != "" || first[c.kubeconfig()] == "" {
		t.Errorf("the second time differs (-first +second):\n%s", diff)
	}
}

// If a crash left a key without certificate, both are created again.
func TestCertificateIsCompleted(t *testing.T) {
	c := testCluster(t)
	must(t, c.ensureCertificates())
	must(t, os.Remove(c.cert("scheduler")))
	must(t, c.ensureCertificates())
	_, err := tls.LoadX509KeyPair(c.cert("scheduler"), c.key("scheduler"))
	must(t, err)
}
