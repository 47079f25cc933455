//go:build cluster && apiservers

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// severalServers marks a test that breaks one of several API servers. The tests of this file run only on a cluster with three:
// make faults API_SERVERS=3.
func severalServers(t *testing.T) {
	t.Helper()
	if len(w.Servers) != 3 {
		t.Fatalf("the cluster has %d API servers, want 3: run `make down`, then `make faults API_SERVERS=3`", len(w.Servers))
	}
	alone(t)
	t.Cleanup(func() { healServers(t) })
}

func healServers(t *testing.T) {
	t.Helper()
	for i := range w.Servers {
		must(t, w.Cluster(context.Background(), "apiserver", "heal", strconv.Itoa(i+1)))
	}
}

const (
	// late is a delay of watches that an API server bridges: a client that starts to watch waits for the newest state, for 3 s.
	late = 2 * time.Second
	// tooLate is a delay with which no client can start to watch. A kubelet then mounts no ConfigMap, and starts no new pod.
	tooLate = 5 * time.Second
	// farBehind is longer than a test. The server answers from the state at the beginning of the delay.
	farBehind = 10 * time.Minute
	// ofControllers is the API server of the controller manager and the scheduler.
	ofControllers = 3
)

// One API server after the other receives changes late. So do the kubelet, the controller, Kyverno or the controller manager that
// uses the server. Each handoff takes place, and no two pods run.
func TestServerWithLateWatches(t *testing.T) {
	severalServers(t)
	s := singleton(t, world.Options{})
	epoch := int64(1)
	for i := range w.Servers {
		cluster(t, "apiserver", "delay", strconv.Itoa(i+1), late.String())
		must(t, s.Roll(t.Context()))
		epoch++
		must(t, s.AwaitHolder(t.Context(), epoch))
		deletePod(t, holder(t, s), nil)
		epoch++
		must(t, s.AwaitHolder(t.Context(), epoch))
		healServers(t)
	}
	wantStarts(t, s, int(epoch))
}

// The API server of the leader is cut off from etcd. The other replica leads, and completes the handoff.
func TestServerOfTheLeaderCutOff(t *testing.T) {
	severalServers(t)
	// The controllers of Kubernetes and the kubelet of the test keep their servers.
	servers := leaderOn(t, func(servers []int) bool { return len(servers) == 1 && servers[0] != ofControllers })
	node := "node" + strconv.Itoa(3-servers[0]) // of the other kubelet
	s := singleton(t, world.Options{Node: node})
	cluster(t, "apiserver", "cut", strconv.Itoa(servers[0]))
	// The balancer closes the connections to the server that is cut off.
	must(t, world.Await(t.Context(), "a rollout", s.Roll))
	must(t, s.AwaitHolder(t.Context(), 2))
	healServers(t)
	must(t, w.AwaitWhole(t.Context()))
	wantHandedOver(t, s, 2, v1.CauseRollout, v1.ProofKubeletReported)
}

// leaderOn replaces the leader until it uses the API servers that the test needs, and returns their numbers.
func leaderOn(t *testing.T, fits func(servers []int) bool) (servers []int) {
	t.Helper()
	must(t, world.Await(t.Context(), "a leader on other API servers", func(ctx context.Context) error {
		leader, err := w.Leader(ctx)
		if err != nil {
			return err
		}
		if servers, err = w.ServersOf(leader); err == nil && !fits(servers) {
			err = errors.Join(fmt.Errorf("it uses %v", servers), w.Delete(ctx, leader))
		}
		return err
	}))
	must(t, w.AwaitWhole(t.Context()))
	return servers
}

// leaderElsewhere replaces the leader until it does not use the API server.
func leaderElsewhere(t *testing.T, server int) {
	t.Helper()
	leaderOn(t, func(servers []int) bool { return !slices.Contains(servers, server) })
}

func serversOf(t *testing.T, pod *corev1.Pod) []int {
	t.Helper()
	servers, err := w.ServersOf(pod)
	must(t, err)
	return servers
}

// The API server of a fenced pod is cut off from etcd for longer than the Lease lasts. The sidecar finds another server, and the
// application does not stop.
func TestServerOfAFencedPodCutOff(t *testing.T) {
	severalServers(t)
	const duration = 20
	s := singleton(t, world.Options{LeaseDuration: new(int32(duration)), Env: map[string]string{"STOP_SECONDS": "0.1"}})
	pod := holder(t, s)
	servers := serversOf(t, pod)
	cut := time.Now()
	cluster(t, "apiserver", "cut", strconv.Itoa(servers[0]))
	lease, err := s.Lease(t.Context())
	must(t, err)
	awaitRenewal(t, client.ObjectKeyFromObject(lease), cut.Add(2*duration*time.Second))
	healServers(t)
	wantStarts(t, s, 1)
	if got := holder(t, s); got.UID != pod.UID {
		t.Errorf("pod %s holds the Lease, want %s", got.Name, pod.Name)
	}
}

// restartedOnBrokenServer hands over from a pod on node2. Then it restarts the kubelet of node2 on an API server that has seen
// neither the deletion nor the end of the old pod, because the fault began before. Whether the old pod starts again is up to the
// caller.
func restartedOnBrokenServer(t *testing.T, fault ...string) (s *world.Singleton, next *corev1.Pod) {
	t.Helper()
	const node, broken = "node2", 2
	severalServers(t)
	connectKubelet(t, node, 1)
	must(t, w.AwaitWhole(t.Context()))
	leaderElsewhere(t, broken) // it would learn of the deletion late
	// A pod with a token would wait for an API server that can issue tokens.
	s, old := placed(t, node, world.Options{Drain: v1.DrainEvict, Pod: func(spec *corev1.PodSpec) { spec.AutomountServiceAccountToken = new(false) }})
	t.Cleanup(func() { must(t, w.Cordon(context.Background(), node, false)) })
	must(t, w.Cordon(t.Context(), node, true))
	seen := throughCache(t, broken, old)
	if seen == nil {
		t.Fatalf("API server %d does not know pod %s", broken, old.Name)
	}
	cluster(t, fault...)
	// The balancer closes the connections to a server that is cut off, so the first attempt can fail.
	must(t, world.Await(t.Context(), "a deletion", func(ctx context.Context) error { return w.DeletePod(ctx, old, nil) }))
	must(t, s.AwaitHolder(t.Context(), 2))
	podGone(t, old)
	if seen := throughCache(t, broken, old); seen == nil || seen.DeletionTimestamp != nil {
		t.Fatalf("the cache of API server %d has pod %s as %+v, want it as it was before its deletion", broken, old.Name, seen)
	}
	next = holder(t, s)
	connectKubelet(t, node, broken)
	return s, next
}

// throughCache returns the pod from the cache of an API server, which can be older than etcd. It returns nil if the cache does not
// have the pod.
func throughCache(t *testing.T, server int, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, through(t, server).List(t.Context(), &pods, client.InNamespace(pod.Namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}))
	for i := range pods.Items {
		if pods.Items[i].UID == pod.UID {
			return &pods.Items[i]
		}
	}
	return nil
}

// connectKubelet restarts the kubelet of a node with another API server, until the end of the test.
func connectKubelet(t *testing.T, node string, server int) {
	t.Helper()
	file := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), node+".kubeconfig")
	before, err := os.ReadFile(file)
	must(t, err)
	restart := func(config []byte) {
		must(t, os.WriteFile(file, config, 0o600))
		err := w.Cluster(context.Background(), "process", "kill", "kubelet", "--on", node)
		if err != nil && !strings.Contains(err.Error(), "no process") { // it starts just now
			t.Error(err)
		}
	}
	t.Cleanup(func() { restart(before) })
	restart(regexp.MustCompile(`https://[^"]*:6443`).ReplaceAll(before, []byte(w.ServerURL(server))))
}

// A kubelet restarts on an API server with late watches. It does not start the deleted pod again, because it waits for the newest
// state of its pods (client feature WatchListClient, the default since Kubernetes 1.35).
func TestKubeletRestartedOnLateServer(t *testing.T) {
	s, next := restartedOnBrokenServer(t, "apiserver", "delay", "2", farBehind.String())
	wantNobodyElse(t, time.Minute, next, s)
	healServers(t)
	must(t, w.AwaitWhole(t.Context()))
	wantStays(t, next, s)
	wantStarts(t, s, 2)
}

// A kubelet restarts on an API server that is cut off from etcd. It does not start the deleted pod again in the first minute.
// TestCutOffAPIServer shows what a client does after 5 to 10 minutes.
func TestKubeletRestartedOnCutServer(t *testing.T) {
	s, next := restartedOnBrokenServer(t, "apiserver", "cut", "2")
	wantNobodyElse(t, time.Minute, next, s)
	healServers(t)
	must(t, w.AwaitWhole(t.Context()))
	wantStays(t, next, s)
	wantStarts(t, s, 2)
}

// An API server with late watches does not know a new StatefulSingleton yet. Until it does, it admits pods that are not held. The
// other servers hold them from the moment at which PolicyInstalled is True. With -v, the log has the times.
func TestServerDoesNotKnowTheSingletonYet(t *testing.T) {
	severalServers(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "faults-"}}
	must(t, w.Create(t.Context(), ns))
	t.Cleanup(func() { must(t, w.Delete(context.Background(), ns)) })
	known, behind := through(t, 1), through(t, 2)
	must(t, world.Await(t.Context(), "the namespace on API server 2", func(ctx context.Context) error {
		_, err := tryHeld(ctx, behind, ns.Name)
		return err
	}))
	cluster(t, "apiserver", "delay", "2", tooLate.String())
	created := time.Now()
	s := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "db"},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: world.Labels()}},
	}
	must(t, known.Create(t.Context(), s))
	if held, err := tryHeld(t.Context(), behind, ns.Name); err != nil || held {
		t.Errorf("API server 2 knows the StatefulSingleton at once: held %t, error %v", held, err)
	}
	var installed, lastUnheld time.Time
	for time.Since(created) < 3*tooLate {
		must(t, known.Get(t.Context(), client.ObjectKeyFromObject(s), s))
		if installed.IsZero() && meta.IsStatusConditionTrue(s.Status.Conditions, v1.ConditionPolicyInstalled) {
			installed = time.Now()
		}
		if held, err := tryHeld(t.Context(), behind, ns.Name); err == nil && !held {
			lastUnheld = time.Now()
		}
		if held, err := tryHeld(t.Context(), known, ns.Name); err == nil && !held && !installed.IsZero() {
			t.Errorf("API server 1 admits a pod that is not held, %s after PolicyInstalled", time.Since(installed))
		}
	}
	t.Logf("PolicyInstalled after %s; API server 2 admitted pods that are not held until %s after the creation",
		installed.Sub(created).Round(time.Millisecond), lastUnheld.Sub(created).Round(time.Millisecond))
	if lastUnheld.Sub(created) > tooLate+2*time.Second {
		t.Errorf("API server 2 admits pods that are not held %s after the creation, want %s at most", lastUnheld.Sub(created), tooLate)
	}
	for name, c := range map[string]client.Client{"1": known, "2": behind} {
		if held, err := tryHeld(t.Context(), c, ns.Name); err != nil || !held {
			t.Errorf("API server %s, in the end: held %t, error %v", name, held, err)
		}
	}
}

// tryHeld creates a selected pod in a dry run, and returns whether it is held. An error means that the pod is rejected.
func tryHeld(ctx context.Context, c client.Client, namespace string) (bool, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "try-", Labels: world.Labels()},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "app", Image: "ghcr.io/statefulsingleton/app:0.1.0", Command: []string{"/app"}}},
		},
	}
	err := client.NewDryRunClient(c).Create(ctx, pod)
	return pod.Annotations[v1.InjectedAnnotation] != "", err
}

// A node is cut off together with one of two replicas of Kyverno. API servers may ask the lost replica until its node is called not
// Ready, and then reject pods. A rollout completes, and each pod is held or rejected. With -v, the log has the times.
func TestKyvernoReplicaCutOff(t *testing.T) {
	severalServers(t)
	const lost = "node2"
	must(t, world.Await(t.Context(), "one replica of Kyverno on each node", func(ctx context.Context) error {
		pods, err := w.KyvernoOn(ctx, lost)
		if err == nil && len(pods) != 1 {
			err = errors.Join(fmt.Errorf("%d are on %s", len(pods), lost), w.KillKyverno(ctx), w.AwaitWhole(ctx))
		}
		return err
	}))
	must(t, w.LeadElsewhere(t.Context(), lost))
	s := singleton(t, world.Options{Node: otherNode(lost)})
	wantHeld, create := watchPods(t, s.Namespace), keepCreating(t, s)
	cluster(t, "node", "partition", lost)
	cut := time.Now()
	must(t, s.Roll(t.Context()))
	create(time.Minute) // the node is called not Ready after 40 s
	must(t, s.AwaitHolder(t.Context(), 2))
	got, err := s.Read(t.Context())
	must(t, err)
	must(t, world.Await(t.Context(), "pods that are held", func(context.Context) error {
		if held := create(time.Second); held == 0 {
			return errors.New("all are rejected")
		}
		return nil
	}))
	t.Logf("the next holder was Ready %s after the node was cut off, and pods were held after %s at the latest",
		got.Status.LastTransition.Ready.Sub(cut).Round(time.Second), time.Since(cut).Round(time.Second))
	cluster(t, "node", "heal", lost)
	wantHeld(t)
	wantStarts(t, s, 2)
}
