package injection

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// oldPolicy returns the name of the old policy, or "" if the watch does not have it. The old policy is the policy for the
// other value of Per.
func (r *Reconciler) oldPolicy(ctx context.Context, subject policies.Subject) string {
	if !r.Kind.Shared {
		return ""
	}
	name := policies.NamespaceName(subject.GetNamespace())
	if r.Per == policies.PerNamespace {
		name = policies.NameOf(subject)
	}
	if r.watchedPolicy(ctx, name) == nil {
		return ""
	}
	return name
}

// replaceOld executes the next step of the removal of the old policy. It returns the requeue delay, or whether the step
// failed.
func (r *Reconciler) replaceOld(ctx context.Context, subject policies.Subject, old string) (recheck time.Duration, failed bool) {
	recheck, err := r.removeOld(ctx, subject, old)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("Failed to remove an old policy. New pods do not depend on it", "policy", old, "error", err.Error())
		return 0, true
	}
	return recheck, false
}

// inFlight is how long the API server may still call the webhook of the policy after a probe bypassed the policy. The API
// server selects the webhooks when a request starts, and waits this long for each webhook.
const inFlight = policies.WebhookTimeoutSeconds * time.Second

// removeOld removes the old policy and returns the requeue delay. It first disables the policy, and deletes it some time
// after a probe bypassed it. Kyverno rejects the pods of a webhook whose policy was deleted. An old policy of a namespace
// is kept up to date until a check has shown that each singleton's own policy works.
func (r *Reconciler) removeOld(ctx context.Context, subject policies.Subject, old string) (recheck time.Duration, err error) {
	if r.Per != policies.PerNamespace {
		all, err := r.notTerminating(ctx, r.Client, subject.GetNamespace())
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(all, r.awaitsCheck) {
			_, err := r.write(ctx, old, r.shared(subject.GetNamespace()))
			return replaceDelay, err
		}
	}
	found := policyMetadata(old)
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return replaceDelay, client.IgnoreNotFound(err)
	}
	last := r.lastDisabled(old)
	switch {
	case last.version != versionOf(found):
		return replaceDelay, r.disable(ctx, subject, found)
	case last.bypassedSince.IsZero():
		return r.checkBypassed(ctx, subject, old)
	case r.Clock.Since(last.bypassedSince) < inFlight:
		return inFlight - r.Clock.Since(last.bypassedSince), nil
	}
	return replaceDelay, r.deleteAsFound(ctx, found)
}

// disable makes the old policy select no pods. It fails if another client wrote the policy after the read.
func (r *Reconciler) disable(ctx context.Context, subject policies.Subject, found *metav1.PartialObjectMetadata) error {
	policy, err := r.renderOld(ctx, subject)
	if err != nil {
		return err
	}
	if err := policies.Disable(policy); err != nil {
		return err
	}
	policy.SetResourceVersion(found.ResourceVersion)
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership); err != nil {
		return err
	}
	r.setDisabled(found.Name, disabled{version: versionOf(policy)})
	return nil
}

// checkBypassed checks with a probe whether new pods bypass the disabled policy.
func (r *Reconciler) checkBypassed(ctx context.Context, subject policies.Subject, old string) (recheck time.Duration, err error) {
	pod, err := policies.ProbePodOf(subject, r.Options)
	if err != nil {
		return 0, err
	}
	if err := r.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return 0, fmt.Errorf("create a pod in a dry-run: %w", err)
	}
	if policies.Answered(pod, old) {
		return replaceDelay, nil
	}
	last := r.lastDisabled(old)
	last.bypassedSince = r.Clock.Now()
	r.setDisabled(old, last)
	return inFlight, nil
}

// renderOld renders the old policy.
func (r *Reconciler) renderOld(ctx context.Context, subject policies.Subject) (*unstructured.Unstructured, error) {
	if r.Per == policies.PerNamespace {
		return policies.RenderOf(subject, r.Options)
	}
	_, render, err := r.shared(subject.GetNamespace())(ctx, true)
	if err != nil {
		return nil, err
	}
	return render() // not nil, because at least this singleton is listed
}

// awaitsCheck returns true if no check of this controller has shown yet that the singleton's pods are injected.
func (r *Reconciler) awaitsCheck(subject policies.Subject) bool {
	last, _ := r.lastCheck(subject)
	if !last.at.IsZero() && !last.inherited {
		return false
	}
	return policies.ValidateOf(subject) == nil
}

// disabled is a policy that selects no pods.
type disabled struct {
	version version
	// bypassedSince is when a dry-run first showed that new pods bypass the policy. It is zero before.
	bypassedSince time.Time
}

func (r *Reconciler) lastDisabled(policy string) disabled {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replacing[policy]
}

func (r *Reconciler) setDisabled(policy string, now disabled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replacing == nil {
		r.replacing = map[string]disabled{}
	}
	r.replacing[policy] = now
}

// stopReplacing removes the policy from the policies that are being replaced.
func (r *Reconciler) stopReplacing(policy string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.replacing, policy)
}
