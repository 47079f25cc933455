package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// identity is the subject of a certificate with its names and addresses.
type identity struct {
	name          string // of the files
	user          string
	groups        []string
	hosts         []string
	addresses     []string
	hasKubeconfig bool
}

// identities returns the identities of the control plane and of the nodes.
func identities() []identity {
	addresses := []string{controlAddress, serviceAddress, "127.0.0.1"}
	for i := 1; i <= maxAPIServers; i++ {
		addresses = append(addresses, apiServerAddress(i))
	}
	all := []identity{
		{name: "apiserver", user: "kube-apiserver",
			hosts: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"}, addresses: addresses},
		{name: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{name: "front-proxy-client", user: "front-proxy-client"},
		{name: "admin", user: "kubernetes-admin", groups: []string{"system:masters"}, hasKubeconfig: true},
		{name: "controller-manager", user: "system:kube-controller-manager", hasKubeconfig: true},
		{name: "scheduler", user: "system:kube-scheduler", hasKubeconfig: true},
		{name: "proxy", user: "system:kube-proxy", hasKubeconfig: true},
	}
	for _, n := range nodes {
		all = append(all, identity{name: nodeName(n), user: "system:node:" + nodeName(n), groups: []string{"system:nodes"},
			hosts: []string{nodeName(n)}, addresses: []string{nodeAddress(n)}, hasKubeconfig: true})
	}
	return all
}

// ensureCertificates creates all certificates and kubeconfigs that do not exist.
func (c cluster) ensureCertificates() error {
	if err := c.ensureAuthority(); err != nil {
		return err
	}
	for _, id := range identities() {
		if !exists(c.cert(id.name)) {
			if err := c.issue(id); err != nil {
				return fmt.Errorf("make the certificate of %s: %w", id.name, err)
			}
		}
		if id.hasKubeconfig {
			if err := writeFile(c.path(id.name+".kubeconfig"), encode(kubeconfig(c, id.name))); err != nil {
				return err
			}
		}
	}
	return nil
}

// ensureAuthority creates the certificate authority and the service account key, unless they exist.
func (c cluster) ensureAuthority() error {
	if !exists(c.cert("ca")) {
		key, err := newKey(c.key("ca"))
		if err != nil {
			return err
		}
		ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "statefulsingleton-" + c.name, NotBefore: anHourAgo()}, key)
		if err != nil {
			return err
		}
		if err := writePEM(c.cert("ca"), cert.CertificateBlockType, ca.Raw); err != nil {
			return err
		}
	}
	if exists(c.path("pki/sa.pub")) {
		return nil
	}
	key, err := newKey(c.key("sa"))
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return writePEM(c.path("pki/sa.pub"), keyutil.PublicKeyBlockType, public)
}

// issue signs a certificate with the authority. Package cert of client-go creates only self-signed certificates, and
// server certificates with an authority each.
func (c cluster) issue(id identity) error {
	ca, caKey, err := c.authority()
	if err != nil {
		return err
	}
	key, err := newKey(c.key(id.name))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: id.user, Organization: id.groups},
		NotBefore:   anHourAgo(),
		NotAfter:    ca.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    id.hosts,
	}
	for _, a := range id.addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	if len(id.hosts)+len(id.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	return writePEM(c.cert(id.name), cert.CertificateBlockType, certificate)
}

// authority reads the files of ensureAuthority.
func (c cluster) authority() (*x509.Certificate, any, error) {
	certificates, err := cert.CertsFromFile(c.cert("ca"))
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(c.key("ca"))
	return certificates[0], key, err
}

// anHourAgo is the time from which certificates are valid, because clocks may be set back.
func anHourAgo() time.Time { return time.Now().Add(-time.Hour) }

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	// Only the owner can read the files of writeFile.
	return key, writeFile(path, string(text))
}

func writePEM(path, kind string, der []byte) error {
	return writeFile(path, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}
