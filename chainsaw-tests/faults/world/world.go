// Package world is a real cluster with singletons in it that have things done to
// them. The tests of single faults and the soak share it.
package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	// Patience is how long anything may take that has no reason to take long. The
	// longest of it is a leader's lease running out and a node coming back.
	Patience = 3 * time.Minute
	poll     = 100 * time.Millisecond

	kyvernoNamespace = "kyverno"
	// ControllerNamespace is where the chart is installed.
	ControllerNamespace = "statefulsingleton"
	controllerName      = "statefulsingleton"
	// ControllerUser is who the controller is to the API server.
	ControllerUser = "system:serviceaccount:" + ControllerNamespace + ":" + controllerName
)

// World is the cluster of the environment, as `cluster exec` sets it.
type World struct {
	client.WithWatch
	Config *rest.Config
	// App is the test application's program, which judges the journals. It needs no
	// library of this machine.
	App string
}

// Connect finds the cluster and builds, into the directory, what judges the journals.
func Connect(ctx context.Context, directory string) (*World, error) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // each fault would be told of again
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster (run this by `bin/cluster exec --`): %w", err)
	}
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	w := &World{Config: config, App: filepath.Join(directory, "app")}
	if w.WithWatch, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	_, err = run(ctx, "env", "CGO_ENABLED=0", "go", "build", "-o", w.App, "github.com/statefulsingleton/statefulsingleton/chainsaw-tests/app")
	return w, err
}

// run returns what the command wrote to its standard output.
func run(ctx context.Context, argv ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Cluster runs the cluster program, which `cluster exec` puts on PATH.
func (w *World) Cluster(ctx context.Context, args ...string) error {
	_, err := run(ctx, append([]string{"cluster"}, args...)...)
	return err
}

// Await polls until the condition holds. It says what it waited for and what the
// condition last said.
func Await(ctx context.Context, what string, condition func(context.Context) error) error {
	return AwaitFor(ctx, Patience, what, condition)
}

// AwaitFor is Await with another patience.
func AwaitFor(ctx context.Context, patience time.Duration, what string, condition func(context.Context) error) error {
	start, last := time.Now(), errors.New("the first look at it did not end")
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		err := condition(ctx)
		if ctx.Err() == nil {
			last = err // not that the time was over
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("gave up after %s: %s: %w", time.Since(start).Round(time.Second), what, last)
	}
	return nil
}

// AwaitWhole waits until every node, Kyverno and all replicas of the controller are
// Ready. It replaces pods of theirs that the kubelet makes wait, up to five minutes,
// after they have ended several times.
func (w *World) AwaitWhole(ctx context.Context) error {
	return Await(ctx, "a cluster that is whole", func(ctx context.Context) error {
		return errors.Join(w.endBackOff(ctx, kyvernoNamespace), w.endBackOff(ctx, ControllerNamespace), w.whole(ctx))
	})
}

func (w *World) endBackOff(ctx context.Context, namespace string) error {
	var pods corev1.PodList
	if err := w.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			if c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" {
				return w.DeletePod(ctx, &pods.Items[i], new(int64(0)))
			}
		}
	}
	return nil
}

func (w *World) whole(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := w.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if !NodeReady(&nodes.Items[i]) {
			return fmt.Errorf("%s is not Ready", nodes.Items[i].Name)
		}
	}
	for _, name := range []types.NamespacedName{
		{Namespace: kyvernoNamespace, Name: "kyverno-admission-controller"},
		{Namespace: ControllerNamespace, Name: controllerName},
	} {
		d := &appsv1.Deployment{}
		if err := w.Get(ctx, name, d); err != nil {
			return err
		}
		// A pod that is going may still be counted.
		if s := d.Status; *d.Spec.Replicas == 0 || s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas {
			return fmt.Errorf("deployment %s has %d of %d replicas Ready", name, s.ReadyReplicas, *d.Spec.Replicas)
		}
	}
	return nil
}

// NodeReady tells whether the node's kubelet reports that it is Ready.
func NodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// KillController kills every controller process as kill -9 does. It also deletes the pods, because the kubelet delays
// the start of containers that have crashed.
func (w *World) KillController(ctx context.Context) error {
	if err := w.Cluster(ctx, "process", "kill", "manager"); err != nil {
		return err
	}
	return w.deletePods(ctx, ControllerNamespace, client.MatchingLabels{"app.kubernetes.io/name": "statefulsingleton"})
}

// KillKyverno kills every Kyverno process as kill -9 does, and its pods go too.
func (w *World) KillKyverno(ctx context.Context) error {
	if err := w.Cluster(ctx, "process", "kill", "kyverno"); err != nil {
		return err
	}
	return w.deletePods(ctx, kyvernoNamespace, client.MatchingLabels{"app.kubernetes.io/component": "admission-controller"})
}

func (w *World) deletePods(ctx context.Context, namespace string, which client.MatchingLabels) error {
	return w.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), which, client.GracePeriodSeconds(0))
}

// ScaleKyverno sets how many replicas of Kyverno there shall be.
func (w *World) ScaleKyverno(ctx context.Context, replicas int) error {
	_, err := run(ctx, "kubectl", "scale", "-n", kyvernoNamespace, "deployment/kyverno-admission-controller", fmt.Sprintf("--replicas=%d", replicas))
	return err
}

// KyvernoGone tells whether no pod of Kyverno is left.
func (w *World) KyvernoGone(ctx context.Context) error {
	var pods corev1.PodList
	if err := w.List(ctx, &pods, client.InNamespace(kyvernoNamespace)); err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("pod %s is there", pods.Items[0].Name)
	}
	return nil
}

// KyvernoNode is the node that Kyverno's pod is on.
func (w *World) KyvernoNode(ctx context.Context) (string, error) {
	var pods corev1.PodList
	if err := w.List(ctx, &pods, client.InNamespace(kyvernoNamespace)); err != nil {
		return "", err
	}
	if len(pods.Items) == 0 {
		return "", errors.New("kyverno has no pod")
	}
	return pods.Items[0].Spec.NodeName, nil
}

// Leader is the controller's pod that leads.
func (w *World) Leader(ctx context.Context) (*corev1.Pod, error) {
	name, err := run(ctx, "kubectl", "get", "lease", "-n", ControllerNamespace, "statefulsingleton", "-o", "jsonpath={.spec.holderIdentity}")
	if err != nil {
		return nil, err
	}
	name, _, _ = strings.Cut(name, "_")
	pod := &corev1.Pod{}
	return pod, w.Get(ctx, types.NamespacedName{Namespace: ControllerNamespace, Name: name}, pod)
}

// Cordon lets no new pod come to the node, or lets them come again.
func (w *World) Cordon(ctx context.Context, node string, closed bool) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	return w.Patch(ctx, n, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed)))
}

// ControllerLogs writes what the controller's pods have logged.
func (w *World) ControllerLogs(ctx context.Context, file string) error {
	out, err := run(ctx, "kubectl", "logs", "-n", ControllerNamespace, "-l", "app.kubernetes.io/name=statefulsingleton", "--tail=-1", "--prefix")
	return errors.Join(err, os.WriteFile(file, []byte(out), 0o644))
}

// Evidence writes into the directory what tells how the cluster and the controller fared.
func (w *World) Evidence(ctx context.Context, directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	failed := w.ControllerLogs(ctx, filepath.Join(directory, "controller.log"))
	for file, args := range map[string][]string{
		"singletons.yaml": {"get", "statefulsingletons", "-A", "-o", "yaml"},
		"pods.yaml":       {"get", "pods", "-A", "-o", "yaml"},
		"events.txt":      {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"nodes.yaml":      {"get", "nodes", "-o", "yaml"},
		"previous.log":    {"logs", "-n", ControllerNamespace, "-l", "app.kubernetes.io/name=statefulsingleton", "--tail=-1", "--prefix", "--previous"},
	} {
		out, err := run(ctx, append([]string{"kubectl"}, args...)...)
		if err != nil && file != "previous.log" { // there may have been no previous one
			failed = errors.Join(failed, err)
		}
		failed = errors.Join(failed, os.WriteFile(filepath.Join(directory, file), []byte(out), 0o644))
	}
	return failed
}
