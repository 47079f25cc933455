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

// otherForm returns the name of the old policy, or "" if the watch does not have it. The old policy is the policy for
// the other value of Per.
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

// retireInTurn executes the next step of the removal of the old policy if a slot is free. It returns the requeue delay.
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

// inFlight is the time for which the API server may still ask the policy for a pod after a probe bypassed it. The API
// server selects the webhooks when a request starts, and waits this long for each webhook.
const inFlight = policies.WebhookTimeoutSeconds * time.Second

// retire removes the old policy and returns the requeue delay. It first disables the policy, and deletes it some time
// after a probe bypassed it. Kyverno rejects pods if it is asked for a deleted policy. An old policy of a namespace is
// kept up to date until each singleton has a proven policy of its own.
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

// disable makes the old policy select no pods. It fails if another client wrote the policy after the read.
func (i *Injector) disable(ctx context.Context, singleton *v1.StatefulSingleton, found *metav1.PartialObjectMetadata) error {
	policy, err := i.renderOther(ctx, singleton)
	if err != nil {
		return err
	}
	if err := policies.Disable(policy); err != nil {
		return err
	}
	policy.SetResourceVersion(found.ResourceVersion)
	if err := i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership); err != nil {
		return err
	}
	i.wasDisabled(found.Name, disabled{version: versionOf(policy)})
	return nil
}

// goPast checks with a probe whether new pods bypass the disabled policy.
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
	i.wasDisabled(old, last)
	return inFlight, nil
}

// renderOther renders the old policy.
func (i *Injector) renderOther(ctx context.Context, singleton *v1.StatefulSingleton) (*unstructured.Unstructured, error) {
	if i.Per == policies.PerNamespace {
		return policies.Render(singleton, i.Options)
	}
	_, render, err := i.shared(singleton.Namespace)(ctx, true)
	if err != nil {
		return nil, err
	}
	return render() // not nil, because at least this singleton is listed
}

// awaitsProof returns true if this controller must still prove the injection of the singleton's pods.
func (i *Injector) awaitsProof(singleton v1.StatefulSingleton) bool {
	last, _ := i.lastProof(&singleton)
	if !last.at.IsZero() && !last.fromCache {
		return false
	}
	return policies.Validate(&singleton) == nil
}

// disabled is a policy that selects no pods.
type disabled struct {
	version version
	// past is the time since which new pods bypass the policy. It is zero if they do not bypass it yet.
	past time.Time
}

func (i *Injector) disabledLast(policy string) disabled {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.retiring[policy]
}

func (i *Injector) wasDisabled(policy string, now disabled) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.retiring == nil {
		i.retiring = map[string]disabled{}
	}
	i.retiring[policy] = now
}

// keep removes the policy from the policies that are being removed.
func (i *Injector) keep(policy string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.retiring, policy)
}
