package injection

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/authority"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// While the certificate authority is rotated, the controller reads the new file without a restart. The guard and the policies
// of fenced pods know both authorities, and other policies stay as they are.
func TestAPIServerChanges(t *testing.T) {
	old, renewed := authority.New(t), authority.New(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(authorities ...*authority.Authority) {
		t.Helper()
		var bundle []byte
		for _, a := range authorities {
			bundle = append(bundle, a.PEM()...)
		}
		if err := os.WriteFile(file, bundle, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(old)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: apiServerConfigMap}}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(configMap).Build()
	s := NewAPIServer(&rest.Config{Host: "https://10.96.0.1:443", TLSClientConfig: rest.TLSClientConfig{CAFile: file}}, c, c, "system")
	r := &Reconciler{Kind: Singletons, APIServer: s}
	changes := s.changes()
	fenced := &v1.StatefulSingleton{Spec: v1.StatefulSingletonSpec{Fencing: v1.FencingLease}}
	held := &v1.StatefulSingleton{}
	contents := func() []string { return []string{r.contentOf(fenced), r.contentOf(held)} }
	before := contents()

	for _, step := range []struct {
		name        string
		authorities []*authority.Authority
		wantChange  bool
	}{
		{"at the start", []*authority.Authority{old}, false},
		{"both", []*authority.Authority{old, renewed}, true},
		{"unchanged", []*authority.Authority{old, renewed}, false},
		{"the new one", []*authority.Authority{renewed}, true},
	} {
		write(step.authorities...)
		if err := s.sync(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var fingerprints []string
		for _, a := range step.authorities {
			fingerprints = append(fingerprints, signal.Fingerprint(a.DER()))
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(configMap), configMap); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"url": "https://10.96.0.1:443", "ca-sha256": strings.Join(fingerprints, ",")}
		if diff := cmp.Diff(want, configMap.Data); diff != "" {
			t.Errorf("%s: ConfigMap (-want +got):\n%s", step.name, diff)
		}
		if got := r.optionsOf("").APIServer; !slices.Equal(got.Authorities, fingerprints) {
			t.Errorf("%s: policies have authorities %v, want %v", step.name, got.Authorities, fingerprints)
		}
		now := contents()
		if changed := len(changes) == 1; changed != step.wantChange || (now[0] != before[0]) != step.wantChange || now[1] != before[1] {
			t.Errorf("%s: event %t, contents %v after %v; want only the fenced to change: %t", step.name, changed, now, before, step.wantChange)
		}
		before = now
		for len(changes) > 0 {
			<-changes
		}
	}

	// Without a certificate, and while the guard cannot know it, the policies stay.
	known := s.current()
	write()
	if err := s.sync(t.Context()); err == nil {
		t.Error("a file without a certificate is accepted")
	}
	write(old)
	if err := c.Delete(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "helm upgrade") {
		t.Errorf("the ConfigMap is missing: %v", err)
	}
	if diff := cmp.Diff(known, s.current()); diff != "" {
		t.Errorf("API server after errors (-want +got):\n%s", diff)
	}
}
