package singleton

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// otherForm is the name of the policy of the other form, if the watch knows of one that
// injects the singleton's pods, or did.
func (i *Injector) otherForm(ctx context.Context, singleton *v1.StatefulSingleton) string {
	name := policies.NamespaceName(singleton.Namespace)
	if i.Per == policies.PerNamespace {
		name = policies.Name(client.ObjectKeyFromObject(singleton))
	}
	if i.watchedPolicy(ctx, name) == nil {
		return ""
	}
	return name
}

// retireInTurn does what is next on the way to have the policy of the other form gone,
// and returns when to look again.
func (i *Injector) retireInTurn(ctx context.Context, singleton *v1.StatefulSingleton, old string) (recheck time.Duration) {
	done := i.again.take(client.ObjectKeyFromObject(singleton), againAtOnce, i.Wake)
	if done == nil {
		return linePoll
	}
	defer done()
	recheck, err := i.retire(ctx, singleton, old)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Remove a policy that others took the place of; it does no harm, and is tried again", "policy", old, "every", installPoll.String())
		return installPoll
	}
	return recheck
}

// inFlight is how long after a probe went past a policy the API server may still ask it
// for a pod: it settles which webhooks there are when a request begins, and waits so long
// for each of them.
const inFlight = policies.WebhookTimeoutSeconds * time.Second

// retire removes the policy of the other form. It is first made to pick no pod, and
// deleted some time after a probe went past it: while Kyverno is asked for a policy that is
// gone, it refuses the pods. The policy of a namespace is kept as it should be until
// each of its singletons has one that was proven. It returns when to go on.
func (i *Injector) retire(ctx context.Context, singleton *v1.StatefulSingleton, old string) (recheck time.Duration, err error) {
	if i.Per != policies.PerNamespace {
		all, err := living(ctx, i.Client, singleton.Namespace)
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(all, i.awaitsProof) {
			_, err := i.write(ctx, old, i.shared(singleton.Namespace))
			return installingPoll, err
		}
	}
	found := policyMetadata(old)
	if err := i.Live.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return installingPoll, client.IgnoreNotFound(err)
	}
	last := i.disabledLast(old)
	switch {
	case last.version != versionOf(found):
		return installingPoll, i.disable(ctx, singleton, found)
	case last.past.IsZero():
		return i.goPast(ctx, singleton, old)
	case i.Clock.Since(last.past) < inFlight:
		return inFlight - i.Clock.Since(last.past), nil
	}
	return installingPoll, i.deleteAsFound(ctx, found)
}

// disable has the policy of the other form pick no pod, unless somebody writes it meanwhile.
func (i *Injector) disable(ctx context.Context, singleton *v1.StatefulSingleton, found *metav1.PartialObjectMetadata) error {
	policy, err := i.renderOther(ctx, singleton)
	if err != nil {
		return err
	}
	if err := policies.Disarm(policy); err != nil {
		return err
	}
	policy.SetResourceVersion(found.ResourceVersion)
	if err := i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership); err != nil {
		return err
	}
	i.wasDisarmed(found.Name, disabled{version: versionOf(policy)})
	return nil
}

// goPast finds out whether pods go past the policy that was disabled.
func (i *Injector) goPast(ctx context.Context, singleton *v1.StatefulSingleton, old string) (recheck time.Duration, err error) {
	pod, err := policies.ProbePod(singleton, i.Options)
	if err != nil {
		return 0, err
	}
	if err := i.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return 0, fmt.Errorf("create a pod in a dry-run: %w", err)
	}
	if policies.Answered(pod, old) {
		return installingPoll, nil
	}
	last := i.disabledLast(old)
	last.past = i.Clock.Now()
	i.wasDisarmed(old, last)
	return inFlight, nil
}

// renderOther renders the policy of the other form.
func (i *Injector) renderOther(ctx context.Context, singleton *v1.StatefulSingleton) (*unstructured.Unstructured, error) {
	if i.Per == policies.PerNamespace {
		return policies.Render(singleton, i.Options)
	}
	_, render, err := i.shared(singleton.Namespace)(ctx, true)
	if err != nil {
		return nil, err
	}
	return render() // of one at least: the singleton that asks
}

// awaitsProof tells whether a policy is to inject the singleton's pods, and was not
// proven to.
func (i *Injector) awaitsProof(singleton v1.StatefulSingleton) bool {
	last, _ := i.lastProof(&singleton)
	if !last.at.IsZero() && !last.fromCache {
		return false
	}
	return policies.Validate(&singleton) == nil
}

// disabled is a policy that picks no pod.
type disabled struct {
	version version
	// past is since when pods go past it. Zero: they do not yet.
	past time.Time
}

func (i *Injector) disabledLast(policy string) disabled {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.retiring[policy]
}

func (i *Injector) wasDisarmed(policy string, now disabled) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.retiring == nil {
		i.retiring = map[string]disabled{}
	}
	i.retiring[policy] = now
}

// keep has a policy retire no longer.
func (i *Injector) keep(policy string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.retiring, policy)
}
