package main

import (
	"context"
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/statefulsingleton/statefulsingleton/controller/cmd/internal/program"
)

// Only a user with permission to get /metrics can read the metrics, and only with HTTPS. The default certificate is
// self-signed. The controller has the permissions of the chart.
func TestMetricsAreProtected(t *testing.T) {
	as(t, release)
	url := serveMetrics(t)
	reader, other := createReader(t, "reader"), createToken(t, "other")
	tests := map[string]struct {
		url     string
		token   string
		want    string
		wantErr string
	}{
		"a user with permission": {url: "https://" + url, token: reader, want: "# TYPE go_goroutines gauge"},
		"without permission":     {url: "https://" + url, token: other, wantErr: "403 Forbidden: Authorization denied for user system:serviceaccount:statefulsingleton:other"},
		"no user":                {url: "https://" + url, wantErr: "401 Unauthorized"},
		"an invalid token":       {url: "https://" + url, token: "wrong", wantErr: "500 Internal Server Error: Authentication failed"},
		"HTTP, with permission":  {url: "http://" + url, token: reader, wantErr: "400 Bad Request|connection reset|EOF"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := scraper{token: tc.token}.scrape(tc.url)
			if tc.wantErr != "" {
				g.Expect(err).To(MatchError(MatchRegexp(tc.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(ContainSubstring(tc.want))
		})
	}
}

// serveMetrics serves the metrics as run does with default flags, and returns the address and the path.
func serveMetrics(t *testing.T) string {
	t.Helper()
	o := program.Options{MetricsAddress: freeAddress(t)}
	options, err := o.MetricsOptions()
	if err != nil {
		t.Fatal(err)
	}
	config, err := program.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := metricsserver.NewServer(options, config, client)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- server.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("serve the metrics: %v", err)
		}
	})
	NewWithT(t).Eventually(func() error {
		connection, err := tls.Dial("tcp", o.MetricsAddress, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		return connection.Close()
	}).Should(Succeed())
	return o.MetricsAddress + "/metrics"
}

// scraper reads metrics as Prometheus does.
type scraper struct {
	// authority is the PEM certificate of the trusted authority. Nil: the certificate is not verified.
	authority []byte
	token     string
}

// scrape returns the body of the response, or an error if the status is not 200.
func (s scraper) scrape(url string) (string, error) {
	config := &tls.Config{InsecureSkipVerify: s.authority == nil}
	if s.authority != nil {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(s.authority)
	}
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
