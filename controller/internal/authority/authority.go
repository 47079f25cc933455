// Package authority makes certificate authorities for tests. It is not part of testenv, because the test program of the gate runs
// itself in containers, where envtest cannot be initialized.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Authority is a certificate authority.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New returns a new authority. All authorities have the same name.
func New(t testing.TB) *Authority {
	t.Helper()
	template := &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true}
	a := &Authority{key: newKey(t)}
	a.certificate = a.sign(t, template, template, &a.key.PublicKey)
	return a
}

// DER returns the certificate of the authority.
func (a *Authority) DER() []byte { return a.certificate.Raw }

// PEM returns the certificate of the authority as in ca.crt.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// Certify returns the certificate of a server at 127.0.0.1.
func (a *Authority) Certify(t testing.TB) tls.Certificate {
	t.Helper()
	key := newKey(t)
	signed := a.sign(t, &x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.certificate, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: key}
}

func (a *Authority) sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "kubernetes"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
