package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	kyvernoNamespace = "kyverno"
	kyvernoWebhooks  = "kyverno-resource-mutating-webhook-cfg"
	// kyvernoMemory is the memory limit of Kyverno in this benchmark. A thousand NamespacedMutatingPolicies need more
	// than the 384 MiB of its chart.
	kyvernoMemory = "8Gi"
	// elsewhere is a namespace without singletons.
	elsewhere = "bench-scale-elsewhere"
	// samples is the number of measured pod creations.
	samples = 50
)

// colour matches the escape sequences in the log of Kyverno.
var colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// measureKyverno measures the cost of all policies: for Kyverno, and for the creation of pods.
func (r *run) measureKyverno(ctx context.Context, step *figures.Step) error {
	if err := r.measureWebhooks(ctx, step); err != nil {
		return err
	}
	k, namespace := &step.Kyverno, r.nth(0).Namespace
	if step.Singletons > 0 {
		enforced := r.enforced(step)
		if len(enforced) == 0 {
			return errors.New("no policy works")
		}
		last := enforced[len(enforced)-1]
		namespace = last.Namespace
		var err error
		if k.SelectedMS, err = r.createPods(ctx, namespace, labelsOf(last)); err != nil {
			return err
		}
	}
	for name, took := range map[string]*figures.Distribution{namespace: &k.OtherMS, elsewhere: &k.ElsewhereMS} {
		var err error
		if *took, err = r.createPods(ctx, name, nil); err != nil {
			return err
		}
	}
	return nil
}

// measureWebhooks measures the memory of Kyverno, and the size of its webhooks.
func (r *run) measureWebhooks(ctx context.Context, step *figures.Step) error {
	k := &step.Kyverno
	pod, err := r.kyvernoPod(ctx)
	if err != nil {
		return err
	}
	if k.MiB, err = kyvernoMiB(ctx, pod); err != nil {
		return err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(step.PolicyKind.GVK())
	if err := r.List(ctx, list); err != nil {
		return err
	}
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := r.Get(ctx, types.NamespacedName{Name: kyvernoWebhooks}, configuration); client.IgnoreNotFound(err) != nil {
		return err
	}
	k.Policies, k.Webhooks, k.WebhookBytes = len(list.Items), len(configuration.Webhooks), configuration.Size()
	k.Error, err = r.kyvernoError(ctx, pod)
	return err
}

// kyvernoMiB returns the resident memory of Kyverno.
func kyvernoMiB(ctx context.Context, pod *corev1.Pod) (float64, error) {
	m, err := scrape(ctx, fmt.Sprintf(kyvernoURL, pod.Status.PodIP), "")
	return m.memory(), err
}

// awaitNoWebhooks waits until Kyverno has removed its webhooks.
func (r *run) awaitNoWebhooks(ctx context.Context) error {
	return world.AwaitFor(ctx, removal, "the end of the webhooks", func(ctx context.Context) error {
		configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
		err := r.Get(ctx, types.NamespacedName{Name: kyvernoWebhooks}, configuration)
		if err == nil && len(configuration.Webhooks) > 0 {
			err = fmt.Errorf("%d are there", len(configuration.Webhooks))
		}
		return client.IgnoreNotFound(err)
	})
}

// restartKyverno replaces Kyverno, and waits until the new one is Ready.
func (r *run) restartKyverno(ctx context.Context) error {
	pod, err := r.kyvernoPod(ctx)
	if err != nil {
		return err
	}
	if err := r.Delete(ctx, pod); err != nil {
		return err
	}
	err = world.Await(ctx, "another Kyverno", func(ctx context.Context) error {
		now, err := r.kyvernoPod(ctx)
		if err == nil && (now.UID == pod.UID || !world.IsTrue(now, corev1.PodReady)) {
			err = errors.New("it is not Ready")
		}
		return err
	})
	return errors.Join(err, r.AwaitWhole(ctx))
}

// giveKyvernoMemory waits until Kyverno runs with kyvernoMemory.
func (r *run) giveKyvernoMemory(ctx context.Context) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: kyvernoNamespace, Name: "kyverno-admission-controller"}}
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"kyverno","resources":{"limits":{"memory":%q}}}]}}}}`, kyvernoMemory)
	if err := r.Patch(ctx, deployment, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		return err
	}
	return world.Await(ctx, "Kyverno with "+kyvernoMemory+" of memory", func(ctx context.Context) error {
		pod, err := r.kyvernoPod(ctx)
		if err == nil && (pod.Spec.Containers[0].Resources.Limits.Memory().Cmp(resource.MustParse(kyvernoMemory)) != 0 || !world.IsTrue(pod, corev1.PodReady)) {
			err = errors.New("it is not Ready")
		}
		return err
	})
}

func (r *run) kyvernoPod(ctx context.Context) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := r.List(ctx, &pods, client.InNamespace(kyvernoNamespace), client.MatchingLabels{"app.kubernetes.io/component": "admission-controller"})
	if err == nil && len(pods.Items) != 1 {
		err = fmt.Errorf("Kyverno has %d pods, want one", len(pods.Items))
	}
	if err != nil {
		return nil, err
	}
	return &pods.Items[0], nil
}

// kyvernoError returns the last error that Kyverno logged about writing a webhook configuration.
func (r *run) kyvernoError(ctx context.Context, pod *corev1.Pod) (last string, err error) {
	clients, err := kubernetes.NewForConfig(r.Config)
	if err != nil {
		return "", err
	}
	log, err := clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "kyverno"}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	text, err := io.ReadAll(log)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "ERR") && strings.Contains(line, "webhook-controller") && strings.Contains(line, "large") {
			last = strings.TrimSpace(colour.ReplaceAllString(line, ""))
		}
	}
	return last, err
}

// createPods measures the creation of pods in a server-side dry-run.
func (r *run) createPods(ctx context.Context, namespace string, labels map[string]string) (figures.Distribution, error) {
	var took []int64
	for range samples {
		pod := dryRunPod(namespace, labels)
		begin := time.Now()
		if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
			return figures.Distribution{}, err
		}
		took = append(took, time.Since(begin).Milliseconds())
	}
	return figures.Distribute(took), nil
}

func dryRunPod(namespace string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "dry-run-", Labels: labels}, Spec: podSpec()}
}
