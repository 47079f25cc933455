package plugin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: staging
clusters:
- {name: one, cluster: {server: "https://kubernetes.example"}}
users:
- {name: somebody, user: {token: secret}}
contexts:
- {name: staging, context: {cluster: one, user: somebody, namespace: shop}}
- {name: production, context: {cluster: one, user: somebody, namespace: prod}}
- {name: plain, context: {cluster: one, user: somebody}}
`

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The plugin selects the same context and namespace as kubectl. The commands that it prints select the same context.
func TestConnect(t *testing.T) {
	t.Setenv("KUBECONFIG", file(t, "config", kubeconfig))
	other := file(t, "other", strings.ReplaceAll(kubeconfig, "namespace: shop", "namespace: elsewhere"))
	tests := map[string]struct {
		line          string
		wantNamespace string
		wantNamed     bool
		wantWhere     string
		wantErr       string
	}{
		"of the current context":      {"", "shop", false, "", ""},
		"of another context":          {"--context=production", "prod", false, " --context=production", ""},
		"a context without namespace": {"--context=plain", "default", false, " --context=plain", ""},
		"of a flag":                   {"-n cache", "cache", true, "", ""},
		"of a flag, other context":    {"--context=production --namespace=cache", "cache", true, " --context=production", ""},
		"of another kubeconfig":       {"--kubeconfig=" + other, "elsewhere", false, " --kubeconfig=" + other, ""},
		"a context that is missing":   {"--context=nowhere", "", false, "", `find the cluster: context "nowhere" does not exist`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			flags := newFlags()
			if err := flags.set.Parse(strings.Fields(tc.line)); err != nil {
				t.Fatal(err)
			}
			in, err := connect(flags, io.Discard)
			if tc.wantErr != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if in.namespace != tc.wantNamespace || in.named != tc.wantNamed || in.where != tc.wantWhere {
				t.Errorf("namespace %s, set by a flag: %t, flags %q; want %s, %t, %q",
					in.namespace, in.named, in.where, tc.wantNamespace, tc.wantNamed, tc.wantWhere)
			}
		})
	}
}

// Printed commands repeat the flags, quoted for a shell, but no secrets.
func TestWhere(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want string
	}{
		"none":          {nil, ""},
		"a space":       {[]string{"--kubeconfig", "/home/me/my clusters/config"}, " --kubeconfig='/home/me/my clusters/config'"},
		"a quote":       {[]string{"--context", "it's"}, ` --context='it'\''s'`},
		"a variable":    {[]string{"--context", "$HOME"}, " --context='$HOME'"},
		"a tilde":       {[]string{"--kubeconfig", "~/config"}, " --kubeconfig='~/config'"},
		"an ARN":        {[]string{"--context=arn:aws:eks:eu-west-1:1:cluster/db"}, " --context=arn:aws:eks:eu-west-1:1:cluster/db"},
		"several":       {[]string{"-s", "https://192.0.2.1:6443", "--insecure-skip-tls-verify"}, " --insecure-skip-tls-verify=true --server=https://192.0.2.1:6443"},
		"impersonation": {[]string{"--as=me", "--as-group=a", "--as-group=b c"}, " --as=me --as-group=a --as-group='b c'"},
		"a secret":      {[]string{"--token=secret", "--context=staging"}, " --context=staging"},
		"not repeated":  {[]string{"-n", "prod", "--request-timeout=5s"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			flags := newFlags()
			if err := flags.set.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			if got := flags.where(); got != tc.want {
				t.Errorf("where %q, want %q", got, tc.want)
			}
		})
	}
}

// If no API server answers, or if it rejects the credentials, each command says what to do next. Also check prints one
// error, instead of one line for each check.
func TestUnanswered(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	rejecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	}))
	t.Cleanup(rejecting.Close)
	tests := map[string]struct{ server, wantBegin, wantEnd string }{
		"no answer": {
			closed.URL, "cannot reach the API server: ",
			". Check the connection with `kubectl version --context=production`, or select another cluster with --context",
		},
		"rejected": {
			rejecting.URL, "the API server rejected your credentials: ",
			". Renew the credentials in your kubeconfig, or select another cluster with --context",
		},
	}
	lines := []string{
		"status", "status -w", "explain db", "handover db", "attest db 1 -y", "check",
		"inject -f testdata/manifests/deployment.yaml",
	}
	for name, tc := range tests {
		for _, line := range lines {
			t.Run(name+", "+line, func(t *testing.T) {
				t.Setenv("KUBECONFIG", file(t, "config", strings.ReplaceAll(kubeconfig, "https://kubernetes.example", tc.server)))
				streams, _, out, _ := genericiooptions.NewTestIOStreams()
				root := NewCommand("0.1.0", streams)
				root.SetArgs(append(strings.Fields(line), "--context=production"))
				err := root.ExecuteContext(t.Context())
				if err == nil || !strings.HasPrefix(err.Error(), tc.wantBegin) || !strings.HasSuffix(err.Error(), tc.wantEnd) {
					t.Errorf("error %v, want it to begin with %q and to end with %q", err, tc.wantBegin, tc.wantEnd)
				}
				if out.Len() > 0 {
					t.Errorf("stdout %q, want nothing", out)
				}
			})
		}
	}
}

// If a manifest cannot be fetched, the error names the manifest, and not the API server.
func TestManifestUnreachable(t *testing.T) {
	t.Parallel() // the fetch is retried for two seconds
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	s := newStage(t, "running", answers{})
	err := s.run(t.Context(), "inject -f "+closed.URL+"/pod.yaml")
	if want := "read " + closed.URL + "/pod.yaml: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want it to begin with %q", err, want)
	}
}
