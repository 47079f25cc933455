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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// written is the last write of a policy.
type written struct {
	// content identifies the input from which the policy was rendered.
	content string
	// installed are the singletons in the policy. It is nil if the policy is not shared.
	installed policies.Installed
	version   version
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
// if the policy must not exist. found is the policy in the cluster. Its UID is empty if the policy does not exist.
type rendering func(ctx context.Context, found *metav1.PartialObjectMetadata) (content string, render func() (*unstructured.Unstructured, error), err error)

// policyOf returns the policy that injects the object's pods.
func (r *Reconciler) policyOf(subject policies.Subject) policies.Ref {
	if r.Per == policies.PerNamespace {
		return r.Options.Kind.OfNamespace(subject.GetNamespace())
	}
	return r.Options.Kind.Of(subject)
}

// ensurePolicy writes the policy that injects the object's pods, unless the policy is as it was last written. It compares
// versions, because Kyverno's CRD adds defaults to the spec. If trustWatch is set, ensurePolicy trusts the watch that
// the policy is unchanged. installable are the objects of the namespace that get a policy.
func (r *Reconciler) ensurePolicy(ctx context.Context, subject policies.Subject, installable []policies.Subject, trustWatch bool) (written, error) {
	policy, content, of := r.policyOf(subject), r.contentOf(subject), r.own(subject, r.Options.Kind)
	if r.Per == policies.PerNamespace {
		content = r.contentOf(installable...)
		of = r.shared(subject.GetNamespace(), policy)
	}
	if last, _ := r.written.get(policy); trustWatch && last.content == content {
		if found := r.watchedPolicy(ctx, policy); found != nil && versionOf(found) == last.version {
			return last, nil
		}
	}
	return r.write(ctx, policy, of)
}

// optionsOf returns the options of a policy of the kind, which can be an old one.
func (r *Reconciler) optionsOf(kind policies.Kind) policies.Options {
	o := r.Options
	o.Kind, o.APIServer = kind, r.apiServer()
	return o
}

// own returns the rendering of the policy of one object.
func (r *Reconciler) own(subject policies.Subject, kind policies.Kind) rendering {
	return func(context.Context, *metav1.PartialObjectMetadata) (string, func() (*unstructured.Unstructured, error), error) {
		return r.contentOf(subject), func() (*unstructured.Unstructured, error) { return policies.Render(subject, r.optionsOf(kind)) }, nil
	}
}

// shared returns the rendering of the policy of the namespace. If the policy is old, shared does not create it, but keeps an
// existing policy up to date.
func (r *Reconciler) shared(namespace string, policy policies.Ref) rendering {
	isOld := r.Per != policies.PerNamespace || policy != r.Options.Kind.OfNamespace(namespace)
	return func(ctx context.Context, found *metav1.PartialObjectMetadata) (string, func() (*unstructured.Unstructured, error), error) {
		if found.UID == "" && isOld {
			return "", nil, nil
		}
		installed, err := r.installedIn(ctx, namespace, found)
		if err != nil {
			return "", nil, err
		}
		all, err := r.notTerminatingLive(ctx, namespace)
		all = r.Budget.Within(all, policies.PerNamespace, installed)
		if err != nil || len(all) == 0 {
			return "", nil, err
		}
		return r.contentOf(all...), func() (*unstructured.Unstructured, error) {
			var singletons []v1.StatefulSingleton
			for _, s := range all {
				singletons = append(singletons, *s.(*v1.StatefulSingleton)) // only singletons share a policy
			}
			return policies.RenderNamespace(namespace, singletons, r.optionsOf(policy.Kind))
		}, nil
	}
}

// cached returns the objects of the namespace from the cache.
func (r *Reconciler) cached(ctx context.Context, namespace string) (all []policies.Subject, err error) {
	list := r.Kind.NewList()
	if err := r.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, r.listError(namespace, err)
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(policies.Subject))
		return nil
	})
	return all, err
}

// notTerminating returns the objects of the namespace that are not terminating, from the cache.
func (r *Reconciler) notTerminating(ctx context.Context, namespace string) ([]policies.Subject, error) {
	all, err := r.cached(ctx, namespace)
	return slices.DeleteFunc(all, isTerminating), err
}

// notTerminatingLive returns the same objects from the API server.
func (r *Reconciler) notTerminatingLive(ctx context.Context, namespace string) (all []policies.Subject, err error) {
	err = observe.Pages(ctx, r.Live, r.Kind.NewList(), subjectsPerPage, func(o client.Object) error {
		all = append(all, o.(policies.Subject))
		_, err := observe.TrimMetadata(o)
		return err
	}, client.InNamespace(namespace))
	if err != nil {
		return nil, r.listError(namespace, err)
	}
	return slices.DeleteFunc(all, isTerminating), nil
}

func (r *Reconciler) listError(namespace string, err error) error {
	return fmt.Errorf("list the objects of kind %s of namespace %s: %w", r.Kind.Name, namespace, err)
}

func isTerminating(s policies.Subject) bool { return s.GetDeletionTimestamp() != nil }

// apiServer returns what the policies say about the API server.
func (r *Reconciler) apiServer() signal.APIServer {
	if r.APIServer == nil {
		return r.Options.APIServer
	}
	return r.APIServer.current()
}

// contentOf returns a hash of the objects from which a policy is rendered, and of the API server if the policy says which one
// it is. The hash does not depend on the order of the objects.
func (r *Reconciler) contentOf(subjects ...policies.Subject) string {
	var all []string
	for _, s := range subjects {
		all = append(all, fmt.Sprintf("%s %s %d %s", s.GetName(), s.GetUID(), s.GetGeneration(), policies.Variant(s)))
	}
	if slices.ContainsFunc(subjects, policies.Fences) {
		all = append(all, fmt.Sprint(r.apiServer()))
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	return hex.EncodeToString(sum[:])
}

// write writes or deletes a policy, unless the policy is as it was last written. It does not overwrite a concurrent
// write of another client: it reads the input again and retries.
func (r *Reconciler) write(ctx context.Context, policy policies.Ref, of rendering) (now written, err error) {
	defer r.lock(policy)()
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, overtaken, func() (err error) {
		now, err = r.writeOnce(ctx, policy, of)
		return err
	})
	switch {
	case err != nil:
	case now.content == "":
		r.forgetPolicy(policy)
	default:
		r.written.set(policy, now)
		r.replacing.delete(policy)
	}
	return now, err
}

func (r *Reconciler) writeOnce(ctx context.Context, ref policies.Ref, of rendering) (written, error) {
	last, _ := r.written.get(ref)
	found := policyMetadata(ref)
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(found), found)
	exists := err == nil
	if client.IgnoreNotFound(err) != nil {
		return last, err
	}
	content, render, err := of(ctx, found)
	asWritten := exists && last.version == versionOf(found)
	switch {
	case err != nil || asWritten && last.content == content:
		return last, err
	case render == nil && exists:
		return written{}, r.deleteAsFound(ctx, ref, found)
	case render == nil:
		return written{}, nil
	}
	policy, err := render()
	if err != nil {
		return last, err
	}
	installed, err := policies.InstalledIn(policy)
	if err != nil {
		return last, err
	}
	now := written{content: content, installed: installed, at: r.Clock.Now(), recreatedAt: last.recreatedAt}
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

// uninstall removes the policy of a deleted object, and returns the new state.
func (r *Reconciler) uninstall(ctx context.Context, subject policies.Subject) installation {
	switch err := r.removeFromPolicies(ctx, subject); {
	case apierrors.IsConflict(err):
		return installation{condition: r.Condition(subject), recheck: conflictDelay}
	case err != nil:
		return notInstalled(subject, NotRemoved, err.Error())
	}
	return installation{condition: newCondition(subject, metav1.ConditionFalse, Removed,
		fmt.Sprintf("%s no longer injects new pods, because the %s is being deleted", r.policyOf(subject), r.Kind.Name))}
}

// removeFromPolicies deletes the object's policy, and removes the object from the policy of its namespace. It does so
// for both kinds, because an old policy may still exist.
func (r *Reconciler) removeFromPolicies(ctx context.Context, subject policies.Subject) error {
	key := client.ObjectKeyFromObject(subject)
	for _, kind := range policies.Kinds {
		if err := r.remove(ctx, kind.Of(subject)); err != nil {
			return fmt.Errorf("delete the %s of %s %s: %w", kind, r.Kind.Name, key, err)
		}
		if !r.Kind.Shared {
			continue
		}
		policy := kind.OfNamespace(key.Namespace)
		_, err := r.write(ctx, policy, r.shared(key.Namespace, policy))
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return fmt.Errorf("remove %s %s from the %s of its namespace: %w", r.Kind.Name, key, kind, err)
		}
	}
	return nil
}

// deleteAsFound deletes a policy unless another client wrote it after the read.
func (r *Reconciler) deleteAsFound(ctx context.Context, policy policies.Ref, found *metav1.PartialObjectMetadata) error {
	err := r.Client.Delete(ctx, found, client.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion})
	if err == nil {
		r.forgetPolicy(policy)
	}
	return err
}

func (r *Reconciler) remove(ctx context.Context, policy policies.Ref) error {
	err := r.Client.Delete(ctx, policyMetadata(policy))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return err
	}
	r.forgetPolicy(policy)
	return nil
}

// forgetPolicy removes what the reconciler remembers of a deleted policy.
func (r *Reconciler) forgetPolicy(policy policies.Ref) {
	r.written.delete(policy)
	r.replacing.delete(policy)
}

// watchedPolicy returns the policy from the watch. It returns nil if the watch does not have the policy or has not
// synced.
func (r *Reconciler) watchedPolicy(ctx context.Context, policy policies.Ref) *metav1.PartialObjectMetadata {
	watched := r.watched.Load()
	if watched == nil || watched.Reader == nil || !watched.HasSynced() {
		return nil
	}
	found := policyMetadata(policy)
	if err := watched.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return nil
	}
	return found
}

// policyMetadata returns an empty metadata object with kind, namespace and name of the policy.
func policyMetadata(policy policies.Ref) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: policy.Namespace, Name: policy.Name}}
	m.SetGroupVersionKind(policy.Kind.GVK())
	return m
}

// lock prevents concurrent writes of the policy by this controller until unlock.
func (r *Reconciler) lock(policy policies.Ref) (unlock func()) {
	r.init()
	r.writing.LockKey(policy.Key())
	return func() { _ = r.writing.UnlockKey(policy.Key()) } // UnlockKey of this type never fails
}
