package injection

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/policies"
)

// oldPolicy returns an old policy that the watch has. An old policy is for the other value of Per, or of the other kind.
func (r *Reconciler) oldPolicy(ctx context.Context, subject policies.Subject) (old policies.Ref, exists bool) {
	for _, kind := range policies.Kinds {
		candidates := []policies.Ref{kind.Of(subject)}
		if r.Kind.Shared {
			candidates = append(candidates, kind.OfNamespace(subject.GetNamespace()))
		}
		for _, candidate := range candidates {
			if candidate != r.policyOf(subject) && r.watchedPolicy(ctx, candidate) != nil {
				return candidate, true
			}
		}
	}
	return policies.Ref{}, false
}

// replaceOld executes the next step of the removal of the old policy. It returns the requeue delay, or whether the step
// failed.
func (r *Reconciler) replaceOld(ctx context.Context, subject policies.Subject, old policies.Ref) (recheck time.Duration, failed bool) {
	recheck, err := r.removeOld(ctx, subject, old)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("Failed to remove an old policy. New pods do not depend on it", "policy", old.String(), "error", err.Error())
		return 0, true
	}
	return recheck, false
}

// inFlight is how long the API server may still call the webhook of the policy after a probe bypassed the policy. The API
// server selects the webhooks when a request starts, and waits this long for each webhook.
const inFlight = policies.WebhookTimeoutSeconds * time.Second

// removeOld removes the old policy and returns the requeue delay. It first disables the policy, and deletes it some time
// after a probe bypassed it. Kyverno rejects the pods of a webhook whose policy was deleted. An old policy of a namespace
// is kept up to date until a check has shown for each object that the new policy works.
func (r *Reconciler) removeOld(ctx context.Context, subject policies.Subject, old policies.Ref) (recheck time.Duration, err error) {
	if old == old.Kind.OfNamespace(subject.GetNamespace()) {
		all, err := r.notTerminating(ctx, subject.GetNamespace())
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(all, r.awaitsCheck) {
			_, err := r.write(ctx, old, r.shared(subject.GetNamespace(), old))
			return maxRetryDelay, err // the last check, or a change of the policy, continues the removal earlier
		}
	}
	found := policyMetadata(old)
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return replaceDelay, client.IgnoreNotFound(err)
	}
	last, _ := r.replacing.get(old)
	switch {
	case last.version != versionOf(found):
		return replaceDelay, r.disable(ctx, subject, old, found)
	case last.bypassedSince.IsZero():
		return r.checkBypassed(ctx, subject, old)
	case r.Clock.Since(last.bypassedSince) < inFlight:
		return inFlight - r.Clock.Since(last.bypassedSince), nil
	}
	return replaceDelay, r.deleteAsFound(ctx, old, found)
}

// disable makes the old policy select no pods. It fails if another client wrote the policy after the read. It deletes the
// policy if Kyverno rejects the change: Kyverno 1.20 rejects all changes of ClusterPolicies.
func (r *Reconciler) disable(ctx context.Context, subject policies.Subject, old policies.Ref, found *metav1.PartialObjectMetadata) error {
	policy, err := r.renderOld(ctx, subject, old, found)
	if err != nil {
		return err
	}
	if err := policies.Disable(policy); err != nil {
		return err
	}
	policy.SetResourceVersion(found.ResourceVersion)
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership)
	if apierrors.IsBadRequest(err) { // the reason with which the API server returns the rejection of a webhook
		return r.deleteAsFound(ctx, old, found)
	}
	if err != nil {
		return err
	}
	r.replacing.set(old, disabled{version: versionOf(policy)})
	return nil
}

// checkBypassed checks with a probe whether new pods bypass the disabled policy.
func (r *Reconciler) checkBypassed(ctx context.Context, subject policies.Subject, old policies.Ref) (recheck time.Duration, err error) {
	pod, err := policies.ProbePod(subject, r.Options)
	if err != nil {
		return 0, err
	}
	if err := r.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return 0, fmt.Errorf("create a pod in a dry-run: %w", err)
	}
	if policies.Answered(pod, old) {
		return replaceDelay, nil
	}
	last, _ := r.replacing.get(old)
	last.bypassedSince = r.Clock.Now()
	r.replacing.set(old, last)
	return inFlight, nil
}

// renderOld renders the old policy, which was found in the cluster.
func (r *Reconciler) renderOld(ctx context.Context, subject policies.Subject, old policies.Ref, found *metav1.PartialObjectMetadata) (*unstructured.Unstructured, error) {
	of := r.own(subject, old.Kind)
	if old != old.Kind.Of(subject) {
		of = r.shared(subject.GetNamespace(), old)
	}
	_, render, err := of(ctx, found)
	if err != nil {
		return nil, err
	}
	return render() // not nil, because at least this object is listed
}

// awaitsCheck returns true if no check of this controller has shown yet that the object's pods are injected. An object with an
// earlier spec in the new shared policy gets no check. The check of another singleton shows that Kyverno serves the policy.
func (r *Reconciler) awaitsCheck(subject policies.Subject) bool {
	last, _ := r.checks.get(client.ObjectKeyFromObject(subject))
	if !last.at.IsZero() && !last.inherited {
		return false
	}
	now, _ := r.written.get(r.policyOf(subject))
	return policies.Validate(subject) == nil && !now.installed.HasEarlier(subject)
}

// disabled is a policy that selects no pods.
type disabled struct {
	version version
	// bypassedSince is when a dry-run first showed that new pods bypass the policy. It is zero before.
	bypassedSince time.Time
}
