package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

const certificateLife = 10 * 365 * 24 * time.Hour

// identity is a certificate's subject and the names and addresses that it serves under.
type identity struct {
	name          string // of the files
	user          string
	groups        []string
	hosts         []string
	addresses     []string
	hasKubeconfig bool
}

func controlIdentities() []identity {
	return []identity{
		{name: "apiserver", user: "kube-apiserver",
			hosts:     []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"},
			addresses: []string{controlAddress, serviceAddress, "127.0.0.1"}},
		{name: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{name: "front-proxy-client", user: "front-proxy-client"},
		{name: "admin", user: "kubernetes-admin", groups: []string{"system:masters"}, hasKubeconfig: true},
		{name: "controller-manager", user: "system:kube-controller-manager", hasKubeconfig: true},
		{name: "scheduler", user: "system:kube-scheduler", hasKubeconfig: true},
		{name: "proxy", user: "system:kube-proxy", hasKubeconfig: true},
	}
}

func nodeIdentity(n int) identity {
	return identity{name: nodeName(n), user: "system:node:" + nodeName(n), groups: []string{"system:nodes"},
		hosts: []string{nodeName(n)}, addresses: []string{nodeAddress(n)}, hasKubeconfig: true}
}

// ensureAuthority makes the certificate authority and the service account key, unless they exist.
func (c cluster) ensureAuthority() error {
	if !exists(c.cert("ca")) {
		key, err := newKey(c.key("ca"))
		if err != nil {
			return err
		}
		template, err := certificateTemplate(pkix.Name{CommonName: "statefulsingleton-" + c.name})
		if err != nil {
			return err
		}
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		if err := writeCertificate(c.cert("ca"), template, template, key, key); err != nil {
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
	return writeFile(c.path("pki/sa.pub"), encodePEM("PUBLIC KEY", public))
}

// ensureIdentity makes an identity's certificate, key and kubeconfig, unless they exist.
func (c cluster) ensureIdentity(id identity) error {
	if !exists(c.cert(id.name)) {
		if err := c.issue(id); err != nil {
			return fmt.Errorf("make the certificate of %s: %w", id.name, err)
		}
	}
	if !id.hasKubeconfig {
		return nil
	}
	return writeFile(c.path(id.name+".kubeconfig"), encode(kubeconfig(c, id.name)))
}

func (c cluster) issue(id identity) error {
	ca, caKey, err := c.authority()
	if err != nil {
		return err
	}
	key, err := newKey(c.key(id.name))
	if err != nil {
		return err
	}
	template, err := certificateTemplate(pkix.Name{CommonName: id.user, Organization: id.groups})
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.DNSNames = id.hosts
	for _, a := range id.addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	if len(id.hosts)+len(id.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return writeCertificate(c.cert(id.name), template, ca, key, caKey)
}

// authority reads what ensureAuthority wrote.
func (c cluster) authority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certificate, err := readPEM(c.cert("ca"))
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", c.cert("ca"), err)
	}
	private, err := readPEM(c.key("ca"))
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", c.key("ca"), err)
	}
	return ca, key.(*ecdsa.PrivateKey), nil
}

// certificateTemplate is valid from an hour ago, for clocks that are set back.
func certificateTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife)}, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// writeFile's temporary file, and so this one, is readable by its owner only
	return key, writeFile(path, encodePEM("PRIVATE KEY", der))
}

func writeCertificate(path string, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return err
	}
	return writeFile(path, encodePEM("CERTIFICATE", der))
}

func encodePEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func readPEM(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}
