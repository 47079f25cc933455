package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testCluster(t *testing.T) cluster {
	t.Helper()
	return cluster{name: "test", dir: t.TempDir()}
}

func TestCertificatesVerify(t *testing.T) {
	c := testCluster(t)
	if err := c.ensureAuthority(); err != nil {
		t.Fatal(err)
	}
	ca, _, err := c.authority()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, id := range identities() {
		t.Run(id.name, func(t *testing.T) {
			if err := c.ensureIdentity(id); err != nil {
				t.Fatal(err)
			}
			pair, err := tls.LoadX509KeyPair(c.cert(id.name), c.key(id.name))
			if err != nil {
				t.Fatal(err)
			}
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
	files := []string{c.cert("ca"), c.key("ca"), c.key("sa"), c.path("pki/sa.pub"), c.cert("admin"), c.key("admin"), c.kubeconfig()}
	var contents [2]map[string]string
	for i := range contents {
		if err := c.ensureCertificates(); err != nil {
			t.Fatal(err)
		}
		contents[i] = map[string]string{}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			contents[i][file] = string(content)
		}
	}
	if diff := cmp.Diff(contents[0], contents[1]); diff != "" {
		t.Errorf("the second time differs (-first +second):\n%s", diff)
	}
}

// If a crash left a key without certificate, both are created again.
func TestCertificateIsCompleted(t *testing.T) {
	c := testCluster(t)
	if err := c.ensureCertificates(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.cert("scheduler")); err != nil {
		t.Fatal(err)
	}
	if err := c.ensureCertificates(); err != nil {
		t.Fatal(err)
	}
	if _, err := tls.LoadX509KeyPair(c.cert("scheduler"), c.key("scheduler")); err != nil {
		t.Error(err)
	}
}
