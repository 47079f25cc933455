package singleton

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

// written is a policy as it was last written.
type written struct {
	// content tells apart what policies are rendered of.
	content string
	version version
	// at is when that was.
	at time.Time
	// whole is when it was last put right: before, somebody had changed or deleted it.
	// Zero: not since the controller has known it.
	whole time.Time
}

// version tells the specs apart that a policy has had.
type version struct {
	uid        types.UID
	generation int64
}

func versionOf(policy client.Object) version {
	return version{policy.GetUID(), policy.GetGeneration()}
}

// rendering is what a policy is to be rendered of, and how, or nil where there is to be
// none.
type rendering func(ctx context.Context, exists bool) (content string, render func() (*unstructured.Unstructured, error), err error)

// policyOf is the name of the policy that injects the singleton's pods.
func (i *Injector) policyOf(singleton *v1.StatefulSingleton) string {
	if i.Per == policies.PerNamespace {
		return policies.NamespaceName(singleton.Namespace)
	}
	return policies.Name(client.ObjectKeyFromObject(singleton))
}

// install writes the policy that injects the singleton's pods, unless it is as it was
// last written. Its spec can't be compared, since Kyverno's CRD fills in defaults; its
// version can. The word of the watch will do if it is said to, and if that knows of
// nothing else.
func (i *Injector) install(ctx context.Context, singleton *v1.StatefulSingleton, watchWillDo bool) (written, error) {
	name, content, of := i.policyOf(singleton), contentOf(*singleton), i.own(singleton)
	if i.Per == policies.PerNamespace {
		all, err := living(ctx, i.Client, singleton.Namespace)
		if err != nil {
			return written{}, err
		}
		all = slices.DeleteFunc(all, func(s v1.StatefulSingleton) bool { return s.Name == singleton.Name || policies.Validate(&s) != nil })
		content = contentOf(append(all, *singleton)...) // which was read live
		of = i.shared(singleton.Namespace)
	}
	if last := i.lastWritten(name); watchWillDo && last.content == content {
		if found := i.watchedPolicy(ctx, name); found != nil && versionOf(found) == last.version {
			return last, nil
		}
	}
	return i.write(ctx, name, of)
}

// own renders the policy of one singleton.
func (i *Injector) own(singleton *v1.StatefulSingleton) rendering {
	return func(context.Context, bool) (string, func() (*unstructured.Unstructured, error), error) {
		return contentOf(*singleton), func() (*unstructured.Unstructured, error) { return policies.Render(singleton, i.Options) }, nil
	}
}

// shared renders the policy of the namespace. It is not made where each singleton has
// its own, but kept as it should be until it goes.
func (i *Injector) shared(namespace string) rendering {
	return func(ctx context.Context, exists bool) (string, func() (*unstructured.Unstructured, error), error) {
		if !exists && i.Per != policies.PerNamespace {
			return "", nil, nil
		}
		all, err := living(ctx, i.Live, namespace)
		all = slices.DeleteFunc(all, func(s v1.StatefulSingleton) bool { return policies.Validate(&s) != nil })
		if err != nil || len(all) == 0 {
			return "", nil, err
		}
		return contentOf(all...), func() (*unstructured.Unstructured, error) { return policies.RenderNamespace(namespace, all, i.Options) }, nil
	}
}

// living are the singletons of the namespace that are not being deleted.
func living(ctx context.Context, reader client.Reader, namespace string) ([]v1.StatefulSingleton, error) {
	var list v1.StatefulSingletonList
	if err := reader.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the StatefulSingletons of namespace %s: %w", namespace, err)
	}
	return slices.DeleteFunc(list.Items, func(s v1.StatefulSingleton) bool { return !s.DeletionTimestamp.IsZero() }), nil
}

// contentOf tells apart what a policy of these singletons is rendered of, in whatever
// order they come.
func contentOf(singletons ...v1.StatefulSingleton) string {
	var all []string
	for _, s := range singletons {
		all = append(all, fmt.Sprintf("%s %s %d", s.Name, s.UID, s.Generation))
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	return hex.EncodeToString(sum[:])
}

// write writes a policy, or deletes it where there is to be none, unless it is as it was
// last written. Whoever writes it meanwhile, of more than we knew, is not overwritten:
// then it is rendered anew.
func (i *Injector) write(ctx context.Context, name string, of rendering) (now written, err error) {
	defer i.lock(name)()
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, overtaken, func() (err error) {
		now, err = i.writeOnce(ctx, name, of)
		return err
	})
	if err == nil {
		i.wrote(name, now)
		i.keep(name)
	}
	return now, err
}

func (i *Injector) writeOnce(ctx context.Context, name string, of rendering) (written, error) {
	last, found := i.lastWritten(name), policyMetadata(name)
	err := i.Live.Get(ctx, client.ObjectKeyFromObject(found), found)
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
		return written{}, i.deleteAsFound(ctx, found)
	case render == nil:
		return written{}, nil
	}
	policy, err := render()
	if err != nil {
		return last, err
	}
	now := written{content: content, at: i.Clock.Now(), whole: last.whole}
	if exists {
		policy.SetResourceVersion(found.ResourceVersion)
		err = i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership)
	} else {
		err = i.Client.Create(ctx, policy, fieldOwner)
	}
	now.version = versionOf(policy)
	asFound := last.content == "" && now.version == versionOf(found)
	if !asWritten && !asFound {
		now.whole = now.at
	}
	return now, err
}

// Remove deletes the singleton's policy, and its part in the one of its namespace.
func (i *Injector) Remove(ctx context.Context, singleton *v1.StatefulSingleton) error {
	key := client.ObjectKeyFromObject(singleton)
	if err := i.remove(ctx, policies.Name(key)); err != nil {
		return fmt.Errorf("delete the ClusterPolicy of StatefulSingleton %s: %w", key, err)
	}
	_, err := i.write(ctx, policies.NamespaceName(key.Namespace), i.shared(key.Namespace))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return fmt.Errorf("take StatefulSingleton %s out of the ClusterPolicy of its namespace: %w", key, err)
	}
	i.forget(key)
	return nil
}

// deleteAsFound deletes a policy unless somebody wrote it since it was read.
func (i *Injector) deleteAsFound(ctx context.Context, found *metav1.PartialObjectMetadata) error {
	err := i.Client.Delete(ctx, found, client.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion})
	if err == nil {
		i.deleted(found.Name)
	}
	return err
}

func (i *Injector) remove(ctx context.Context, policy string) error {
	err := i.Client.Delete(ctx, policyMetadata(policy))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return err
	}
	i.deleted(policy)
	return nil
}

func (i *Injector) deleted(policy string) {
	i.wrote(policy, written{})
	i.keep(policy)
}

// watchedPolicy is the policy as the watch knows it; nil where it knows of none, or not
// of all yet.
func (i *Injector) watchedPolicy(ctx context.Context, name string) *metav1.PartialObjectMetadata {
	i.mu.Lock()
	watched := i.watched
	i.mu.Unlock()
	if watched.Reader == nil || !watched.HasSynced() {
		return nil
	}
	found := policyMetadata(name)
	if err := watched.Get(ctx, client.ObjectKeyFromObject(found), found); err != nil {
		return nil
	}
	return found
}

// policyMetadata is the metadata of a policy, to be read.
func policyMetadata(name string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.SetGroupVersionKind(policies.GVK)
	return m
}

// lock has nobody else write the policy until it is unlocked.
func (i *Injector) lock(policy string) (unlock func()) {
	i.mu.Lock()
	if i.writing == nil {
		i.writing = keymutex.NewHashed(256)
	}
	i.mu.Unlock()
	i.writing.LockKey(policy)
	return func() { _ = i.writing.UnlockKey(policy) } // it fails for none
}

func (i *Injector) lastWritten(policy string) written {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written[policy]
}

// wrote keeps what was written; nothing, of a policy that was deleted.
func (i *Injector) wrote(policy string, now written) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.written == nil {
		i.written = map[string]written{}
	}
	if i.written[policy] = now; now.content == "" {
		delete(i.written, policy)
	}
}
