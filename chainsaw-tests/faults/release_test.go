//go:build cluster && release

package faults_test

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

var (
	other   = flag.String("other", "", "checkout of another release, whose images have the tag "+world.OtherTag)
	version = flag.String("version", "", "tag of the images of this checkout")
)

// installation is a checkout, whose images have the tag.
type installation struct{ checkout, tag string }

func (i installation) install(ctx context.Context) error { return world.Install(ctx, i.checkout, i.tag) }

// This release replaces another one, and the other one replaces this release. No pod restarts. Each time, the installed
// controller hands over between old pods, and then from an old pod to a new one. It does so for a singleton, a fenced
// singleton and the writer of a lock.
func TestOtherRelease(t *testing.T) {
	alone(t)
	this, that := installation{"../..", *version}, installation{*other, world.OtherTag}
	t.Cleanup(func() { must(t, this.install(context.Background())) })
	must(t, that.install(t.Context()))

	plain, _ := withSpare(t, world.Options{})
	fenced, _ := withSpare(t, world.Options{LeaseDuration: 15})
	options := leased()
	options.Spec.LeaseDurationSeconds = 15
	l, _, _ := leasedLock(t, options)
	wantHeld := []func(*testing.T){watchPods(t, plain.Namespace), watchPods(t, fenced.Namespace)}

	for _, each := range []struct{ from, to installation }{{that, this}, {this, that}} {
		before := podsOf(t, plain, fenced, l)
		must(t, each.to.install(t.Context()))
		for _, pod := range before {
			wantGate(t, &pod, each.from.tag)
			wantSamePod(t, &pod)
		}
		for _, s := range []*world.Singleton{plain, fenced} {
			awaitPolicy(t, each.to.tag, func(ctx context.Context) (policies.Subject, error) { return s.Read(ctx) })
			replaceHolder(t, s, each.from.tag)
			replaceHolder(t, s, each.to.tag)
			wantExplained(t, s, each.from)
		}
		awaitFenced(t, fenced, metav1.ConditionTrue, "LeaseRenewed")
		awaitPolicy(t, each.to.tag, func(ctx context.Context) (policies.Subject, error) { return l.Read(ctx) })
		replaceWriter(t, l)
		must(t, l.RollOut(t.Context()))
		must(t, l.AwaitReplicas(t.Context()))
		writer(t, l, nil)
		awaitLockFenced(t, l, metav1.ConditionTrue, string(v1.LockFencingLease))
		for _, pod := range podsOf(t, plain, fenced, l) {
			wantGate(t, &pod, each.to.tag)
		}
	}
	for _, held := range wantHeld {
		held(t)
	}
	wantStarts(t, plain, 5)
	wantStarts(t, fenced, 5)
}

// podsOf returns the pods of the applications.
func podsOf(t *testing.T, applications ...application) (all []corev1.Pod) {
	t.Helper()
	for _, a := range applications {
		var pods corev1.PodList
		must(t, w.List(t.Context(), &pods, client.InNamespace(a.Key().Namespace)))
		all = append(all, slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })...)
	}
	return all
}

// wantGate checks that the gate of the pod has the tag.
func wantGate(t *testing.T, pod *corev1.Pod, tag string) {
	t.Helper()
	if image := gateOf(pod); !strings.HasSuffix(image, ":"+tag) {
		t.Errorf("%s: pod %s has gate %q, want tag %s", pod.Namespace, pod.Name, image, tag)
	}
}

// gateOf returns the image of the pod's sidecar.
func gateOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == v1.SidecarName {
			return c.Image
		}
	}
	return ""
}

// wantSamePod checks that the pod exists, and that its containers were not restarted.
func wantSamePod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	is := &corev1.Pod{}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(pod), is))
	restarts := int32(0)
	for _, status := range slices.Concat(is.Status.InitContainerStatuses, is.Status.ContainerStatuses) {
		restarts += status.RestartCount
	}
	if is.UID != pod.UID || restarts > 0 {
		t.Errorf("%s: pod %s was replaced or restarted: uid %s instead of %s, %d restarts", pod.Namespace, pod.Name, is.UID, pod.UID, restarts)
	}
}

// awaitPolicy waits until new pods get the gate with the tag.
func awaitPolicy(t *testing.T, tag string, read func(context.Context) (policies.Subject, error)) {
	t.Helper()
	must(t, world.Await(t.Context(), "the gate "+tag+" in new pods", func(ctx context.Context) error {
		subject, err := read(ctx)
		if err != nil {
			return err
		}
		pod, err := policies.ProbePodOf(subject, policies.Options{})
		if err != nil {
			return err
		}
		if err := w.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if image := gateOf(pod); !strings.HasSuffix(image, ":"+tag) {
			return fmt.Errorf("the gate is %q", image)
		}
		return nil
	}))
}

// replaceHolder deletes the holder. The standby, whose gate has the tag, takes over.
func replaceHolder(t *testing.T, s *world.Singleton, tag string) {
	t.Helper()
	got, err := s.Read(t.Context())
	must(t, err)
	spare := standby(t, s)
	wantGate(t, spare, tag)
	deletePod(t, holder(t, s), nil)
	must(t, s.AwaitHolder(t.Context(), got.Status.Epoch+1))
	if is := holder(t, s); is.UID != spare.UID {
		t.Errorf("%s: pod %s is the holder, want %s", s.Namespace, is.Name, spare.Name)
	}
	standby(t, s)
}

// replaceWriter deletes the writer. Another pod becomes the writer.
func replaceWriter(t *testing.T, l *world.Lock) {
	t.Helper()
	last := writer(t, l, nil)
	deletePod(t, last, nil)
	writer(t, l, last)
	must(t, l.AwaitReplicas(t.Context()))
}

// wantExplained checks that the plugin of a release explains a singleton of another release.
func wantExplained(t *testing.T, s *world.Singleton, from installation) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(from.checkout, "bin/kubectl-stfs"), "explain", s.Key().Name, "-n", s.Namespace).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "HolderReady") {
		t.Errorf("kubectl stfs of %s: %v: %s", from.tag, err, out)
	}
}
