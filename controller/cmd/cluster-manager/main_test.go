package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// The tests run a real etcd and kube-apiserver with the CRDs and the guards of the chart. The command connects as its service account,
// with the permissions of the chart.
var (
	env *testenv.Env
	c   client.Client
)

const (
	namespace = "clusters"
	release   = testenv.Release
)

func TestMain(m *testing.M) {
	testenv.Main(m, nil, func(ctx context.Context, e *testenv.Env) error {
		env, c = e, e.Client
		guards, err := testenv.Guards()
		if err != nil {
			return err
		}
		objects, err := testenv.Chart(ctx, append(guards, "clusters.yaml")...)
		if err != nil {
			return err
		}
		return errors.Join(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}), e.Create(ctx, objects))
	})
}

func newCluster(namespace, name string) *v1.StatefulCluster {
	return &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.StatefulClusterSpec{
			Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"db","image":"db"}]}}`)},
		},
	}
}

func execute(ctx context.Context, args ...string) error {
	command := runCommand()
	command.SetArgs(args)
	command.SilenceErrors, command.SilenceUsage = true, true
	return command.ExecuteContext(ctx)
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"a short lease":  {[]string{"--leader-election-renew-deadline=15s"}, "the lease duration must be longer than the renew deadline"},
		"log level":      {[]string{"--log-level=loud"}, `--log-level is "loud": use debug, info or error`},
		"no certificate": {[]string{"--metrics-cert-dir=/nowhere"}, "load the certificate of the metrics endpoint from --metrics-cert-dir /nowhere"},
		"an argument":    {[]string{"now"}, `unknown command "now" for "run"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := execute(t.Context(), tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

// The manager becomes the leader, creates the pod of a StatefulCluster, serves its endpoints, and stops when its context ends.
func TestRun(t *testing.T) {
	g := NewWithT(t)
	env.Connect(t, release+"-clusters")
	health := freeAddress(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		stopped <- execute(ctx, "--leader-election-namespace="+release, "--health-probe-bind-address="+health, "--metrics-bind-address=0")
	}()
	for _, path := range []string{"/healthz", "/readyz"} {
		g.Eventually(func() (int, error) {
			response, err := http.Get("http://" + health + path)
			if err != nil {
				return 0, err
			}
			return response.StatusCode, response.Body.Close()
		}).Should(Equal(http.StatusOK))
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: "statefulclusters"}}
	db := newCluster(namespace, "db")
	g.Expect(c.Create(t.Context(), db)).To(Succeed())
	g.Eventually(func() ([]v1.ClusterMember, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(db), db)
		return db.Status.Members, err
	}).Should(HaveExactElements(And(HaveField("Name", "db-0"), HaveField("State", v1.MemberActive))))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	renewed := lease.Spec.RenewTime.Time
	g.Eventually(func() (time.Time, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)
		return lease.Spec.RenewTime.Time, err
	}).Should(BeTemporally(">", renewed), "the manager renews the Lease")

	stop()
	g.Eventually(stopped).Should(Receive(BeNil()))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	g.Expect(lease.Spec.HolderIdentity).To(HaveValue(BeEmpty()), "the manager releases the Lease")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}
