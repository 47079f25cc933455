package injection

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// written is the last write of a policy.
type written struct {
	// content identifies the input from which the policy was rendered.
	content string
	version version
	// at is the time of the write.
	at time.Time
	// recreatedAt is the time of the last write that created the policy, or that restored the policy after a change by
	// another client. It is zero if there was no such write.
	recreatedAt time.Time
}

// version identifies one spec of a policy.
type version struct {
	uid        types.UID
	generation int64
}

func versionOf(policy client.Object) version {
	return version{policy.GetUID(), policy.GetGeneration()}
}

// rendering returns what identifies the input of a policy, and a function that renders the policy. The function is nil
// if the policy must not exist.
type rendering func(ctx context.Context, exists bool) (content string, render func() (*unstructured.Unstructured, error), err error)

// policyOf returns the name of the policy that injects the singleton's pods.
func (r *Reconciler) policyOf(subject policies.Subject) string {
	if r.Per == policies.PerNamespace {
		return policies.NamespaceName(subject.GetNamespace())
	}
	return policies.NameOf(subject)
}

// ensurePolicy writes the policy that injects the singleton's pods, unless the policy is as it was last written. It compares
// versions, because Kyverno's CRD adds defaults to the spec. If trustWatch is set, ensurePolicy trusts the watch that
// the policy is unchanged.
func (r *Reconciler) ensurePolicy(ctx context.Context, subject policies.Subject, trustWatch bool) (written, error) {
	name, content, of := r.policyOf(subject), contentOf(subject), r.own(subject)
	if r.Per == policies.PerNamespace {
		all, err := r.notTerminating(ctx, r.Client, subject.GetNamespace())
		if err != nil {
			return written{}, err
		}
		all = slices.DeleteFunc(all, func(s policies.Subject) bool {
			return s.GetName() == subject.GetName() || policies.ValidateOf(s) != nil
		})
		content = contentOf(append(all, subject)...) // singleton was read live
		of = r.shared(subject.GetNamespace())
	}
	if last := r.lastWritten(name); trustWatch && last.content == content {
		if found := r.watchedPolicy(ctx, name); found != nil && versionOf(found) == last.version {
			return last, nil
		}
	}
	return r.write(ctx, name, of)
}

// own returns the rendering of the policy of one singleton.
func (r *Reconciler) own(subject policies.Subject) rendering {
	return func(context.Context, bool) (string, func() (*unstructured.Unstructured, error), error) {
		return contentOf(subject), func() (*unstructured.Unstructured, error) { return policies.RenderOf(subject, r.Options) }, nil
	}
}

// shared returns the rendering of the policy of the namespace. If each singleton has its own policy, shared does not
// create the policy, but keeps an existing policy up to date.
func (r *Reconciler) shared(namespace string) rendering {
	return func(ctx context.Context, exists bool) (string, func() (*unstructured.Unstructured, error), error) {
		if !exists && r.Per != policies.PerNamespace {
			return "", nil, nil
		}
		all, err := r.notTerminating(ctx, r.Live, namespace)
		all = slices.DeleteFunc(all, func(s policies.Subject) bool { return policies.ValidateOf(s) != nil })
		if err != nil || len(all) == 0 {
			return "", nil, err
		}
		return contentOf(all...), func() (*unstructured.Unstructured, error) {
			var singletons []v1.StatefulSingleton
			for _, s := range all {
				singletons = append(singletons, *s.(*v1.StatefulSingleton)) // only singletons share a policy
			}
			return policies.RenderNamespace(namespace, singletons, r.Options)
		}, nil
	}
}

// notTerminating returns the objects of the namespace that are not terminating.
func (r *Reconciler) notTerminating(ctx context.Context, reader client.Reader, namespace string) ([]policies.Subject, error) {
	all, err := r.Kind.List(ctx, reader, namespace)
	if err != nil {
		return nil, fmt.Errorf("list the objects of kind %s of namespace %s: %w", r.Kind.Name, namespace, err)
	}
	return slices.DeleteFunc(all, func(s policies.Subject) bool { return s.GetDeletionTimestamp() != nil }), nil
}

// contentOf returns a hash of the objects from which a policy is rendered. It does not depend on their order.
func contentOf(subjects ...policies.Subject) string {
	var all []string
	for _, s := range subjects {
		all = append(all, fmt.Sprintf("%s %s %d", s.GetName(), s.GetUID(), s.GetGeneration()))
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	return hex.EncodeToString(sum[:])
}

// write writes or deletes a policy, unless the policy is as it was last written. It does not overwrite a concurrent
// write of another client: it reads the input again and retries.
func (r *Reconciler) write(ctx context.Context, name string, of rendering) (now written, err error) {
	defer r.lock(name)()
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, overtaken, func() (err error) {
		now, err = r.writeOnce(ctx, name, of)
		return err
	})
	if err == nil {
		r.setWritten(name, now)
		r.stopReplacing(name)
	}
	return now, err
}

func (r *Reconciler) writeOnce(ctx context.Context, name string, of rendering) (written, error) {
	last, found := r.lastWritten(name), policyMetadata(name)
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(found), found)
	exists := err == nil
	if client.IgnoreNotFound(err) != nil {
		return last, err
	}
	content, render, err := of(ctx, exists)
	asWritten := exists && last.version == versionOf(found)
	switch {
	case err != nil || asWritten && last.content == content:
		return last, err
	case render == nil && exists:
		return written{}, r.deleteAsFound(ctx, found)
	case render == nil:
		return written{}, nil
	}
	policy, err := render()
	if err != nil {
		return last, err
	}
	now := written{content: content, at: r.Clock.Now(), recreatedAt: last.recreatedAt}
	if exists {
		policy.SetResourceVersion(found.ResourceVersion)
		err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership)
	} else {
		err = r.Client.Create(ctx, policy, fieldOwner)
	}
	now.version = versionOf(policy)
	asFound := last.content == "" && now.version == versionOf(found)
	if !asWritten && !asFound {
		now.recreatedAt = now.at
	}
	return now, err
}

// uninstall removes the policy of a deleted singleton, and returns the new state.
func (r *Reconciler) uninstall(ctx context.Context, subject policies.Subject) installation {
	switch err := r.removeFromPolicies(ctx, subject); {
	case apierrors.IsConflict(err):
		return installation{condition: r.Condition(subject), recheck: conflictDelay}
	case err != nil:
		return notInstalled(subject, NotRemoved, err.Error())
	}
	return installation{condition: newCondition(subject, metav1.ConditionFalse, Removed,
		fmt.Sprintf("ClusterPolicy %s no longer injects new pods, because the %s is being deleted", r.policyOf(subject), r.Kind.Name))}
}

// removeFromPolicies deletes the singleton's policy, and removes the singleton from the policy of its namespace.
func (r *Reconciler) removeFromPolicies(ctx context.Context, subject policies.Subject) error {
	key := client.ObjectKeyFromObject(subject)
	if err := r.remove(ctx, policies.NameOf(subject)); err != nil {
		return fmt.Errorf("delete the ClusterPolicy of %s %s: %w", r.Kind.Name, key, err)
	}
	if !r.Kind.Shared {
		return nil
	}
	_, err := r.write(ctx, policies.NamespaceName(key.Namespace), r.shared(key.Namespace))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return fmt.Errorf("remove %s %s from the ClusterPolicy of its namespace: %w", r.Kind.Name, key, err)
	}
	return nil
}

// deleteAsFound deletes a policy unless another client wrote it after the read.
func (r *Reconciler) deleteAsFound(ctx context.Context, found *metav1.PartialObjectMetadata) error {
	err := r.Client.Delete(ctx, found, client.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion})
	if err == nil {
		r.forgetPolicy(found.Name)
	}
	return err
}

func (r *Reconciler) remove(ctx context.Context, policy string) error {
	err := r.Client.Delete(ctx, policyMetadata(policy))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return err
	}
	r.forgetPolicy(policy)
	return nil
}

// forgetPolicy removes what the reconciler remembers of a deleted policy.
func (r *Reconciler) forgetPolicy(policy string) {
	r.setWritten(policy, written{})
	r.stopReplacing(policy)
}

// watchedPolicy returns the policy from the watch. It returns nil if the watch does not have the policy or has not
// synced.
func (r *Reconciler) watchedPolicy(ctx context.Context, name string) *metav1.PartialObjectMetadata {
	r.mu.Lock()
	watched := r.watched
	r.mu.Unlock()
	if watched.Reader == nil || !watched.HasSynced() {
		return nil
	}
	found := policyMetadata(name)
	if err := watched.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return nil
	}
	return found
}

// policyMetadata returns an empty metadata object with the name of the policy.
func policyMetadata(name string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.SetGroupVersionKind(policies.GVK)
	return m
}

// lock prevents concurrent writes of the policy by this controller until unlock.
func (r *Reconciler) lock(policy string) (unlock func()) {
	r.mu.Lock()
	if r.writing == nil {
		r.writing = keymutex.NewHashed(256)
	}
	r.mu.Unlock()
	r.writing.LockKey(policy)
	return func() { _ = r.writing.UnlockKey(policy) } // UnlockKey of this type never fails
}

func (r *Reconciler) lastWritten(policy string) written {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written[policy]
}

// setWritten stores the last write of a policy. It removes the entry if the policy was deleted.
func (r *Reconciler) setWritten(policy string, now written) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written == nil {
		r.written = map[string]written{}
	}
	if r.written[policy] = now; now.content == "" {
		delete(r.written, policy)
	}
}
