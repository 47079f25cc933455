package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	kyvernoNamespace = "kyverno"
	kyvernoName      = "kyverno-admission-controller"
	kyvernoWebhooks  = "kyverno-resource-mutating-webhook-cfg"
	// kyvernoMemory is the memory limit of Kyverno in this benchmark. A thousand NamespacedMutatingPolicies need more
	// than the 384 MiB of its chart.
	kyvernoMemory = "8Gi"
	// elsewhere is a namespace without singletons.
	elsewhere = "bench-scale-elsewhere"
	// samples is the number of measured pod creations, and of the singletons that are observed after a restart.
	samples = 50
)

// measureKyverno measures the cost of all policies: for Kyverno, and for the creation of pods.
func (r *run) measureKyverno(ctx context.Context, s *figures) error {
	if err := r.measureWebhooks(ctx, s); err != nil {
		return err
	}
	namespace := r.nth(0).Namespace
	if s.Singletons > 0 {
		enforced := r.enforced(s)
		if len(enforced) == 0 {
			return errors.New("no policy works")
		}
		last := enforced[len(enforced)-1]
		namespace = last.Namespace
		var err error
		if s.SelectedMS, err = r.createPods(ctx, namespace, labelsOf(last)); err != nil {
			return err
		}
	}
	for name, took := range map[string]*report.Distribution{namespace: &s.OtherMS, elsewhere: &s.ElsewhereMS} {
		var err error
		if *took, err = r.createPods(ctx, name, nil); err != nil {
			return err
		}
	}
	return nil
}

// measureWebhooks measures the memory of Kyverno, and the size of its webhooks.
func (r *run) measureWebhooks(ctx context.Context, s *figures) (err error) {
	if s.KyvernoMiB, err = r.kyvernoMiB(ctx); err != nil {
		return err
	}
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := r.Get(ctx, types.NamespacedName{Name: kyvernoWebhooks}, configuration); client.IgnoreNotFound(err) != nil {
		return err
	}
	s.WebhookBytes = configuration.Size()
	return nil
}

// kyvernoMiB returns the resident memory of Kyverno.
func (r *run) kyvernoMiB(ctx context.Context) (float64, error) {
	pod, err := r.kyvernoPod(ctx)
	if err != nil {
		return 0, err
	}
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
	_, err := r.Kubectl(ctx, "rollout", "restart", "--namespace", kyvernoNamespace, "deployment/"+kyvernoName)
	return errors.Join(err, r.awaitKyverno(ctx))
}

// giveKyvernoMemory waits until Kyverno runs with kyvernoMemory.
func (r *run) giveKyvernoMemory(ctx context.Context) error {
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"kyverno","resources":{"limits":{"memory":%q}}}]}}}}`, kyvernoMemory)
	_, err := r.Kubectl(ctx, "patch", "--namespace", kyvernoNamespace, "deployment/"+kyvernoName, "--patch", patch)
	return errors.Join(err, r.awaitKyverno(ctx))
}

// awaitKyverno waits until Kyverno's newest revision is Ready.
func (r *run) awaitKyverno(ctx context.Context) error {
	_, err := r.Kubectl(ctx, "rollout", "status", "--namespace", kyvernoNamespace, "deployment/"+kyvernoName, "--timeout=3m")
	return errors.Join(err, r.AwaitWhole(ctx))
}

// kyvernoPod returns the only pod of Kyverno that is not terminating.
func (r *run) kyvernoPod(ctx context.Context) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := r.List(ctx, &pods, client.InNamespace(kyvernoNamespace), client.MatchingLabels{"app.kubernetes.io/component": "admission-controller"})
	pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	if err == nil && len(pods.Items) != 1 {
		err = fmt.Errorf("Kyverno has %d pods, want one", len(pods.Items))
	}
	if err != nil {
		return nil, err
	}
	return &pods.Items[0], nil
}

// createPods measures the creation of pods in a server-side dry-run.
func (r *run) createPods(ctx context.Context, namespace string, labels map[string]string) (report.Distribution, error) {
	var took []int64
	for range samples {
		pod := dryRunPod(namespace, labels)
		begin := time.Now()
		if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
			return report.Distribution{}, err
		}
		took = append(took, time.Since(begin).Milliseconds())
	}
	return report.Distribute(took), nil
}

func dryRunPod(namespace string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "dry-run-", Labels: labels}, Spec: podSpec()}
}

// measureRestart kills Kyverno, and measures its memory when a pod of each of many singletons is held again. It fails if a pod
// is admitted that is not held.
func (r *run) measureRestart(ctx context.Context, s *figures) error {
	if err := r.KillKyverno(ctx); err != nil {
		return err
	}
	enforced := r.enforced(s)
	err := forAll(ctx, writers, enforced[:min(len(enforced), samples)], func(ctx context.Context, of singleton) error {
		var unheld error
		err := world.AwaitFor(ctx, 10*time.Minute, "a pod of StatefulSingleton "+of.String()+" that is held", func(ctx context.Context) error {
			pod := dryRunPod(of.Namespace, labelsOf(of))
			if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
				return err // the webhook or a guard rejects it
			}
			unheld = policies.CheckInjected(pod, statefulSingleton(of))
			return nil
		})
		if unheld != nil {
			return fmt.Errorf("a pod of StatefulSingleton %s was admitted after the restart: %w", of, unheld)
		}
		return err
	})
	if err := errors.Join(err, r.AwaitWhole(ctx)); err != nil {
		return err
	}
	s.RestartedMiB, err = r.kyvernoMiB(ctx)
	return err
}
