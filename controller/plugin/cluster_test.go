package plugin

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
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

// Context and namespace are those that kubectl would take.
func TestConnect(t *testing.T) {
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Setenv("KUBECONFIG", file("config", kubeconfig))
	other := file("other", strings.ReplaceAll(kubeconfig, "namespace: shop", "namespace: elsewhere"))
	tests := map[string]struct {
		line          string
		wantNamespace string
		wantNamed     bool
		wantErr       string
	}{
		"the current context's":       {"", "shop", false, ""},
		"another context's":           {"--context=production", "prod", false, ""},
		"a context that names none":   {"--context=plain", "default", false, ""},
		"a flag's":                    {"-n cache", "cache", true, ""},
		"a flag's, of another":        {"--context=production --namespace=cache", "cache", true, ""},
		"another file's":              {"--kubeconfig=" + other, "elsewhere", false, ""},
		"a context that is not there": {"--context=nowhere", "", false, `find the cluster: context "nowhere" does not exist`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			flags := genericclioptions.NewConfigFlags(true)
			set := pflag.NewFlagSet("stfs", pflag.ContinueOnError)
			flags.AddFlags(set)
			if err := set.Parse(strings.Fields(tc.line)); err != nil {
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
			if in.namespace != tc.wantNamespace || in.named != tc.wantNamed {
				t.Errorf("namespace %s, named by a flag: %t; want %s, %t", in.namespace, in.named, tc.wantNamespace, tc.wantNamed)
			}
		})
	}
}
