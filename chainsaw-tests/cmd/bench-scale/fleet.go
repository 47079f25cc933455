package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	// writers is the number of concurrent writes.
	writers = 32
	// standstill is the time after which no more policies are expected to work.
	standstill = 90 * time.Second
	// namespaces is the number of namespaces with singletons.
	namespaces = 50
	// removal is the timeout of the removal of all singletons.
	removal = 20 * time.Minute
)

// singleton is the name of a StatefulSingleton and its Deployment.
type singleton = types.NamespacedName

// nth returns the name of a singleton. The singletons are spread over the namespaces.
func (r *run) nth(i int) singleton {
	return singleton{Namespace: fmt.Sprintf("bench-scale-%03d", i%namespaces), Name: fmt.Sprintf("s%04d", i)}
}

// forAll calls do for all singletons, at most so many at once, until the first error.
func forAll(ctx context.Context, atOnce int, all []singleton, do func(context.Context, singleton) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, s := range all {
		group.Go(func() error { return do(ctx, s) })
	}
	return group.Wait()
}

// grow adds singletons up to the number of the step, and waits until their policies work.
func (r *run) grow(ctx context.Context, step *figures) error {
	var added []singleton
	for i := len(r.made); i < step.Singletons; i++ {
		added = append(added, r.nth(i))
	}
	if err := forAll(ctx, writers, added, r.create); err != nil {
		return err
	}
	r.made = append(r.made, added...)
	return r.awaitPolicies(ctx, step)
}

// enforced returns the singletons whose policies work.
func (r *run) enforced(step *figures) []singleton {
	return slices.DeleteFunc(slices.Clone(r.made), func(s singleton) bool { return !r.injected(s, step) })
}

// deploy adds a Deployment to each singleton whose policy works, and waits for the holders.
func (r *run) deploy(ctx context.Context, step *figures) error {
	fresh := slices.DeleteFunc(r.enforced(step), func(s singleton) bool { return slices.Contains(r.served, s) })
	if err := forAll(ctx, writers, fresh, func(ctx context.Context, s singleton) error { return r.Create(ctx, deployment(s)) }); err != nil {
		return err
	}
	r.served = append(r.served, fresh...)
	return r.awaitSettled(ctx, r.served, 1)
}

func (r *run) create(ctx context.Context, s singleton) error {
	if err := r.createNamespace(ctx, s.Namespace); err != nil {
		return err
	}
	return r.Create(ctx, statefulSingleton(s))
}

func (r *run) createNamespace(ctx context.Context, name string) error {
	err := r.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: ours}})
	return client.IgnoreAlreadyExists(err)
}

func statefulSingleton(s singleton) *v1.StatefulSingleton {
	return &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: labelsOf(s)}},
	}
}

func labelsOf(s singleton) map[string]string { return map[string]string{"app": s.Name} }

func deployment(s singleton) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labelsOf(s)},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(s)}, Spec: podSpec()},
		},
	}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		Containers:   []corev1.Container{{Name: "app", Image: "app", Command: []string{"/app"}}},
		NodeSelector: ours,
		Tolerations:  []corev1.Toleration{{Key: benchLabel, Value: benchName, Effect: corev1.TaintEffectNoSchedule}},
	}
}

// awaitPolicies waits until every policy works, or until the number of working policies stops growing.
func (r *run) awaitPolicies(ctx context.Context, step *figures) error {
	for last := time.Now(); step.Injected < len(r.made) && time.Since(last) < standstill; {
		if err := world.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if injected := len(r.enforced(step)); injected != step.Injected {
			step.Injected, last = injected, time.Now()
		}
	}
	if step.Injected < len(r.made) {
		r.tell("%d of %d policies work: see condition %s of the others", step.Injected, len(r.made), v1.ConditionPolicyInstalled)
	}
	return nil
}

// observeInjected observes the singletons, and the pods that a policy injected.
func observeInjected(ctx context.Context, w *world.World) (*observer.Observer, error) {
	injected, err := labels.Parse(v1.SingletonLabel)
	if err != nil {
		return nil, err
	}
	return observer.Start(ctx, w, cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: injected}}})
}

// injected returns true if a check of the singleton's policy succeeded.
func (r *run) injected(s singleton, step *figures) bool {
	object := r.observer.Singleton(s)
	if object == nil {
		return false
	}
	c := meta.FindStatusCondition(object.Status.Conditions, v1.ConditionPolicyInstalled)
	return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, policyOf(s, step).String())
}

func policyOf(s singleton, step *figures) policies.Ref {
	if step.PolicyPer == policies.PerNamespace {
		return step.PolicyKind.OfNamespace(s.Namespace)
	}
	return step.PolicyKind.Of(statefulSingleton(s))
}

// kwokUser is the user name of kwok, from the kubeconfig of the local cluster.
const kwokUser = "kubernetes-admin"

// setValues sets the chart's values for the form of the policies, and the users that may report about pods as kubelets
// do.
func setValues(ctx context.Context, f form, kubelets ...string) error {
	users, err := json.Marshal(append([]string{}, kubelets...))
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "helm", "upgrade", "statefulsingleton", "charts/statefulsingleton",
		"--namespace", world.ControllerNamespace, "--reuse-values", "--set", "policyKind="+string(f.kind), "--set", "policyPer="+string(f.per),
		"--set-json", "guards.kubeletUsers="+string(users), "--wait", "--timeout", "3m").CombinedOutput()
	if err != nil {
		return fmt.Errorf("set policies %s for each %s and guards.kubeletUsers to %s by helm: %w: %s", f.kind, f.per, users, err, out)
	}
	return nil
}

// awaitSettled waits until each singleton has a Ready holder, warm spares, and no handoff in progress.
func (r *run) awaitSettled(ctx context.Context, all []singleton, replicas int) error {
	return world.AwaitFor(ctx, 10*time.Minute, "a Ready holder and warm spares of each singleton", func(context.Context) error {
		for _, s := range all {
			if _, err := r.observer.Settled(s, replicas); err != nil {
				return err
			}
		}
		return nil
	})
}
