//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// A user deletes the definition past its guard, and every StatefulSingleton is deleted with it. The API servers then
// restart, and cannot give the guards their parameters. Only the pods of the cluster itself are admitted. Running pods
// stay. The chart restores the definition, and a new StatefulSingleton finds its holder.
func TestDefinitionDeleted(t *testing.T) {
	alone(t)
	s := singleton(t, world.Options{})
	old := holder(t, s)
	image := old.Spec.Containers[0].Image
	mend := mendDefinition(t)

	deleteDefinition(t)
	cluster(t, "process", "kill", "kube-apiserver")
	everywhere(t, "a pod that is refused, since the guards can't ask", func(ctx context.Context, c client.Client) error {
		err := tryPod(ctx, c, s.Namespace, image)
		if err == nil {
			err = errors.New("it is admitted")
		}
		if guardsCannotAsk(err) {
			return nil
		}
		return err
	})
	wantPodRuns(t, metav1.NamespaceSystem, image)
	wantStarts(t, s, 1)

	must(t, mend())
	must(t, s.Await(t.Context(), "the policy is installed", func(got *v1.StatefulSingleton) bool {
		return meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionPolicyInstalled)
	}))
	must(t, s.AwaitHolder(t.Context(), 1))
	if now := holder(t, s); now.UID != old.UID {
		t.Errorf("pod %s holds, want %s, which ran all along", now.Name, old.Name)
	}
	wantStarts(t, s, 1)
}

// definition is the CustomResourceDefinition of StatefulSingletons.
func definition() *metav1.PartialObjectMetadata {
	d := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "statefulsingletons." + v1.GroupVersion.Group}}
	d.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return d
}

// deleteDefinition deletes the definition after the binding of its guard, and waits until it is removed.
func deleteDefinition(t *testing.T) {
	t.Helper()
	if err := w.Delete(t.Context(), definition(), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Fatalf("delete the definition: %v, want a guard that refuses it", err)
	}
	must(t, w.Delete(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: release + "-definition"}}))
	must(t, world.Await(t.Context(), "the end of the definition", func(ctx context.Context) error {
		err := w.Delete(ctx, definition())
		if err == nil {
			err = errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	}))
}

// release is the name of the chart's release, with which the names of its objects begin.
const release = "statefulsingleton"

// mendDefinition returns a function that restores everything that the chart installs, and then the current
// StatefulSingletons. The function runs at the end of the test at the latest.
func mendDefinition(t *testing.T) func() error {
	t.Helper()
	var singletons v1.StatefulSingletonList
	must(t, w.List(t.Context(), &singletons))
	mend := sync.OnceValue(func() error {
		ctx := context.Background()
		err := world.Await(ctx, "the upgrade of the chart", func(ctx context.Context) error {
			return upgradeChart(ctx)
		})
		for i := 0; i < len(singletons.Items) && err == nil; i++ {
			err = makeAgain(ctx, &singletons.Items[i])
		}
		return err
	})
	t.Cleanup(func() { must(t, mend()) })
	return mend
}

// upgradeChart installs the chart again, with the values of the last installation and more flags of Helm.
func upgradeChart(ctx context.Context, flags ...string) error {
	args := append([]string{"upgrade", release, "../../charts/statefulsingleton", "--namespace", world.ControllerNamespace, "--reuse-values"}, flags...)
	if out, err := exec.CommandContext(ctx, "helm", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// makeAgain creates the singleton again, unless it exists or its namespace is terminating.
func makeAgain(ctx context.Context, s *v1.StatefulSingleton) error {
	return world.Await(ctx, "StatefulSingleton "+s.Namespace+"/"+s.Name, func(ctx context.Context) error {
		namespace := &corev1.Namespace{}
		err := w.Get(ctx, client.ObjectKey{Name: s.Namespace}, namespace)
		if err != nil || namespace.DeletionTimestamp != nil {
			return client.IgnoreNotFound(err)
		}
		return client.IgnoreAlreadyExists(w.Create(ctx, &v1.StatefulSingleton{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: s.Labels, Annotations: s.Annotations},
			Spec:       s.Spec,
		}))
	})
}

// plainPod returns a pod that no StatefulSingleton selects.
func plainPod(namespace, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "plain-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image, Command: []string{"/app", "wait", "10m"}}}},
	}
}

// tryPod creates such a pod in a dry-run.
func tryPod(ctx context.Context, c client.Client, namespace, image string) error {
	return c.Create(ctx, plainPod(namespace, image), client.DryRunAll)
}

// guardsCannotAsk returns true if a pod was rejected because the API server could not read the StatefulSingletons for
// the guards.
func guardsCannotAsk(err error) bool {
	return err != nil && strings.Contains(err.Error(), "paramKind")
}

// wantPodRuns checks that a new pod of the namespace runs. The pod is deleted at the end of the test.
func wantPodRuns(t *testing.T, namespace, image string) {
	t.Helper()
	pod := plainPod(namespace, image)
	must(t, w.Create(t.Context(), pod))
	t.Cleanup(func() { must(t, w.DeletePod(context.Background(), pod, force)) })
	must(t, world.Await(t.Context(), "a pod that runs in "+namespace, func(ctx context.Context) error {
		err := w.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
		}
		return err
	}))
}
