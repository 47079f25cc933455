package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// wantProtected fails unless only users with permission to get /metrics can read the metrics, and only with HTTPS.
func wantProtected(t *testing.T, address string, authority []byte) {
	t.Helper()
	reader, other := createReader(t, "reader"), createToken(t, "other")
	for name, tc := range map[string]struct{ scheme, token, wantErr string }{
		"with permission":       {"https", reader, ""},
		"without permission":    {"https", other, "403 Forbidden: Authorization denied for user system:serviceaccount:statefulsingleton:other"},
		"no user":               {"https", "", "401 Unauthorized"},
		"an invalid token":      {"https", "wrong", "500 Internal Server Error: Authentication failed"},
		"HTTP, with permission": {"http", reader, "400 Bad Request|connection reset|EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := scraper{authority, tc.token}.scrape(tc.scheme + "://" + address + "/metrics")
			if tc.wantErr != "" {
				g.Expect(err).To(MatchError(MatchRegexp(tc.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(ContainSubstring(`statefulsingleton_build_info{version="unknown"} 1`))
		})
	}
}

// scraper reads metrics as Prometheus does.
type scraper struct {
	// authority is the PEM certificate of the trusted authority.
	authority []byte
	token     string
}

// scrape returns the body of the response, or an error if the status is not 200.
func (s scraper) scrape(url string) (string, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(s.authority)
	request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	if s.token != "" {
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %s: %s", url, response.Status, body)
	}
	return string(body), nil
}

// createReader returns a token of a new service account, to which the chart's role for reading metrics is bound.
func createReader(t *testing.T, name string) string {
	t.Helper()
	token := createToken(t, name)
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: release + "-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: release, Name: name}},
	})
	access := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:                  "system:serviceaccount:" + release + ":" + name,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	}}
	NewWithT(t).Eventually(func() (bool, error) {
		review := access.DeepCopy()
		err := c.Create(t.Context(), review)
		return review.Status.Allowed, err
	}).Should(BeTrue(), "the endpoint caches a denial")
	return token
}

// createToken returns a token of a new service account without permissions.
func createToken(t *testing.T, name string) string {
	t.Helper()
	account := create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: name}})
	request := &authenticationv1.TokenRequest{}
	if err := c.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatalf("create a token of %s: %v", name, err)
	}
	return request.Status.Token
}

// writeCertificate writes a certificate for 127.0.0.1, and returns its directory and its authority.
func writeCertificate(t *testing.T) (dir string, authority []byte) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, certificate
}
