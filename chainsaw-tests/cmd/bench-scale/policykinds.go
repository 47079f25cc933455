package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// policyKind is a way to write the policies of all singletons. The kinds that the chart offers are measured with
// singletons instead.
type policyKind struct {
	name string
	of   func([]singleton) ([]*unstructured.Unstructured, error)
}

var policyKinds = []policyKind{
	{"one policy each, all with one webhook that fails open", shared},
	{"one MutatingPolicy each, those of a namespace with one webhook that fails closed", mutating},
}

// shared returns policies without the matchConditions that give a policy a webhook of its own.
func shared(all []singleton) (rendered []*unstructured.Unstructured, err error) {
	for _, s := range all {
		policy, err := policies.Render(statefulSingleton(s), policies.Options{SidecarImage: "gate"})
		if err != nil {
			return nil, err
		}
		policy.SetLabels(ours) // the controller watches policies with its own label
		unstructured.RemoveNestedField(policy.Object, "spec", "webhookConfiguration", "matchConditions")
		if err := unstructured.SetNestedField(policy.Object, "Ignore", "spec", "webhookConfiguration", "failurePolicy"); err != nil {
			return nil, err
		}
		rendered = append(rendered, policy)
	}
	return rendered, nil
}

var mutatingPolicy = schema.GroupVersionKind{Group: "policies.kyverno.io", Version: "v1", Kind: "MutatingPolicy"}

// mutating returns MutatingPolicies, the successors of ClusterPolicies. They only annotate a pod, because only the
// admission is measured.
func mutating(all []singleton) (each []*unstructured.Unstructured, err error) {
	for _, s := range all {
		policy := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"failurePolicy": "Fail",
			"autogen":       map[string]any{"podControllers": map[string]any{"controllers": []any{}}},
			"matchConstraints": map[string]any{
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: s.Namespace}},
				"resourceRules": []any{map[string]any{
					"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "resources": []any{"pods"}, "operations": []any{"CREATE"},
				}},
			},
			"mutations": []any{map[string]any{"patchType": "JSONPatch", "jsonPatch": map[string]any{"expression": fmt.Sprintf(
				`object.metadata.?labels.?app.orValue("") == %q && !has(object.metadata.annotations) ?
				[JSONPatch{op: "add", path: "/metadata/annotations", value: {%q: "%s"}}] : []`, s.Name, v1.InjectedAnnotation, s)}}},
		}}}
		policy.SetGroupVersionKind(mutatingPolicy)
		policy.SetName(policies.Name(s))
		policy.SetLabels(ours)
		each = append(each, policy)
	}
	return each, nil
}

// measureKinds measures the cost of each kind for Kyverno, without singletons, and with as many policies as the last
// step has singletons.
func (r *run) measureKinds(ctx context.Context) error {
	var all []singleton
	for i := range r.singletons[len(r.singletons)-1] {
		all = append(all, r.nth(i))
	}
	for _, s := range all[:min(r.namespaces, len(all))] {
		if err := r.createNamespace(ctx, s); err != nil {
			return err
		}
	}
	for _, f := range policyKinds {
		r.tell("%s", f.name)
		measured, err := r.measureKind(ctx, f, all)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		r.results.PolicyKinds = append(r.results.PolicyKinds, measured)
		if err := figures.Write(r.out, r.results); err != nil {
			return err
		}
	}
	return r.restartKyverno(ctx)
}

func (r *run) measureKind(ctx context.Context, f policyKind, all []singleton) (figures.PolicyKind, error) {
	measured := figures.PolicyKind{Name: f.name}
	if err := r.restartKyverno(ctx); err != nil {
		return measured, err
	}
	rendered, err := f.of(all)
	if err != nil {
		return measured, err
	}
	begin := time.Now()
	group, groupContext := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, policy := range rendered {
		group.Go(func() error { return r.Create(groupContext, policy) })
	}
	if err := group.Wait(); err != nil {
		return measured, err
	}
	measured.WrittenSeconds = time.Since(begin).Seconds()
	last := all[len(all)-1]
	err = world.AwaitFor(ctx, standstill, "an injected pod", func(ctx context.Context) error {
		pod := dryRunPod(last.Namespace, labelsOf(last))
		if err := r.Create(ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if pod.Annotations[v1.InjectedAnnotation] == "" {
			return errors.New("a pod that the last policy is for is not injected")
		}
		return nil
	})
	if ctx.Err() != nil {
		return measured, err
	}
	if err != nil {
		measured.Refused = err.Error()
	} else {
		measured.ServedSeconds = time.Since(begin).Seconds()
	}
	// With a kind that does not work, Kyverno may not answer.
	if err := r.measureAdmission(ctx, &measured.Kyverno, last); err != nil && measured.Refused == "" {
		return measured, err
	}
	return measured, errors.Join(r.removePolicies(ctx), r.awaitNoWebhooks(ctx))
}

// removePolicies deletes the policies that this run created without singletons.
func (r *run) removePolicies(ctx context.Context) error {
	for _, kind := range []schema.GroupVersionKind{policies.ClusterPolicy.GVK(), mutatingPolicy} {
		policy := &metav1.PartialObjectMetadata{}
		policy.SetGroupVersionKind(kind)
		if err := r.DeleteAllOf(ctx, policy, client.MatchingLabels(ours)); err != nil {
			return err
		}
	}
	return nil
}

// awaitNoWebhooks waits until Kyverno has removed its webhooks.
func (r *run) awaitNoWebhooks(ctx context.Context) error {
	return world.Await(ctx, "the end of the webhooks", func(ctx context.Context) error {
		configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
		err := r.Get(ctx, types.NamespacedName{Name: kyvernoWebhooks}, configuration)
		if client.IgnoreNotFound(err) == nil && len(configuration.Webhooks) > 0 {
			err = fmt.Errorf("%d are there", len(configuration.Webhooks))
		}
		return client.IgnoreNotFound(err)
	})
}

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
