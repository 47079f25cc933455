package singleton

import (
	"context"
	"fmt"
	"slices"
	"time"

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
	if err := i.retire(ctx, singleton, old); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Remove a policy that others took the place of; it does no harm, and is tried again", "policy", old, "every", installPoll.String())
		return installPoll
	}
	return installingPoll
}

// retire removes the policy of the other form. It is first made to pick no pod, and
// deleted once a probe goes past it: while Kyverno has a webhook for a policy that is
// gone, it refuses the pods. The policy of a namespace is kept as it should be until
// each of its singletons has one that was proven.
func (i *Injector) retire(ctx context.Context, singleton *v1.StatefulSingleton, old string) error {
	if i.Per != policies.PerNamespace {
		all, err := living(ctx, i.Client, singleton.Namespace)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, i.awaitsProof) {
			_, err := i.write(ctx, old, i.shared(singleton.Namespace))
			return err
		}
	}
	if !i.isRetired(old) {
		policy, err := i.renderOther(ctx, singleton)
		if err != nil {
			return err
		}
		if err := policies.Disarm(policy); err != nil {
			return err
		}
		if err := i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership); err != nil {
			return err
		}
		i.setRetired(old, true)
		return nil
	}
	pod, err := policies.ProbePod(singleton)
	if err != nil {
		return err
	}
	if err := i.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return fmt.Errorf("create a pod in a dry-run: %w", err)
	}
	if policies.Answered(pod, old) {
		return nil
	}
	return i.remove(ctx, old)
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
	if !last.at.IsZero() && !last.hearsay {
		return false
	}
	return policies.Validate(&singleton) == nil
}

func (i *Injector) isRetired(policy string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.retired[policy]
}

func (i *Injector) setRetired(policy string, retired bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.retired == nil {
		i.retired = map[string]bool{}
	}
	if i.retired[policy] = retired; !retired {
		delete(i.retired, policy)
	}
}
