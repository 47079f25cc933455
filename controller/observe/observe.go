// Package observe reads the Snapshot of a decision.
package observe

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// Observer reads Snapshots.
type Observer struct {
	// Client reads from the cache. It may be the same as Live.
	Client client.Reader
	// Live reads from the API server.
	Live client.Reader
	// Silent returns Lease.Silent of a Lease. It is called after the answer with the Lease has arrived. Nil: Lease.Silent is
	// 0.
	Silent func(*coordinationv1.Lease) time.Duration
}

// Observe reads the Snapshot of a singleton. The reads are concurrent, because in a handoff they lengthen the gap. The
// singleton was read before: if its record changes meanwhile, the compare-and-swap fails.
func (o Observer) Observe(ctx context.Context, singleton *v1.StatefulSingleton) (handoff.Snapshot, error) {
	s := handoff.Snapshot{Singleton: singleton}
	r := o.singleton(singleton)
	if err := r.othersAndPods(ctx, &s); err != nil {
		return s, err
	}
	var err error
	if s.Budgets, err = r.budgets(ctx); err != nil {
		return s, err
	}
	if err := r.relatedObjects(ctx, &s); err != nil {
		return s, fmt.Errorf("read the owners, nodes and claims of the pods of StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
	}
	return s, nil
}

// budgets returns the PodDisruptionBudgets of the namespace, from the cache.
func (r *reading) budgets(ctx context.Context) ([]policyv1.PodDisruptionBudget, error) {
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.Client.List(ctx, &budgets, client.InNamespace(r.namespace)); err != nil {
		return nil, fmt.Errorf("list PodDisruptionBudgets in namespace %s: %w", r.namespace, err)
	}
	return budgets.Items, nil
}

// singleton returns the reading of a singleton.
func (o Observer) singleton(singleton *v1.StatefulSingleton) *reading {
	return &reading{
		Observer: o, bounds: singletonBounds, namespace: singleton.Namespace,
		match: fmt.Sprintf("match spec.selector or have the label %s=%s", v1.SingletonLabel, singleton.Name),
		help: fmt.Sprintf("The controller releases no pod and removes no finalizer until fewer pods match. Scale their owner down, or delete the pods that have ended: "+
			"kubectl delete pod -n %s -l '%s' --field-selector=status.phase=Failed. If pods of another application match, create a StatefulSingleton with a narrower selector",
			singleton.Namespace, metav1.FormatLabelSelector(singleton.Spec.Selector.Meta())),
	}
}

// othersAndPods reads the other singletons of the namespace and the Lease, and then the pods. If a singleton was deleted
// before the first read, the pods show the writes for that singleton. A singleton that is created later reads the writes
// for this singleton. Live reads are needed only if a pod may be released, or if its finalizer may be removed.
func (r *reading) othersAndPods(ctx context.Context, s *handoff.Snapshot) error {
	reads := []bool{true} // live
	if s.Singleton.DeletionTimestamp.IsZero() && (r.cachedWithoutPods(ctx, s.Singleton) || r.CachedHolderRuns(ctx, s.Singleton)) {
		reads = []bool{false, true}
	}
	for _, live := range reads {
		s.Pods = nil
		r.bytes.Store(0)
		if err := r.othersAndLease(ctx, s, live); err != nil {
			return err
		}
		if err := r.podsOfSingleton(ctx, s); err != nil {
			return fmt.Errorf("read the pods of StatefulSingleton %s: %w", client.ObjectKeyFromObject(s.Singleton), err)
		}
		noPods := s.Singleton.Status.ActivePodUID == "" && len(s.Pods) == 0
		if !live && (noPods || s.HolderStays()) {
			break
		}
	}
	return nil
}

// othersAndLease reads the other singletons and the Lease concurrently.
func (r *reading) othersAndLease(ctx context.Context, s *handoff.Snapshot, live bool) error {
	reads, readContext := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		if s.Others, err = r.others(readContext, live, s.Singleton); err != nil {
			return fmt.Errorf("list StatefulSingletons in namespace %s: %w", s.Singleton.Namespace, err)
		}
		return nil
	})
	reads.Go(func() error { return r.leaseBeforePods(readContext, s) })
	return reads.Wait()
}

// leaseBeforePods reads the Lease if the singleton uses a Lease, or if the cache has the Lease. HolderStays may depend on
// the Lease, and is called while the pods are read.
func (r *reading) leaseBeforePods(ctx context.Context, s *handoff.Snapshot) error {
	if s.Singleton.Spec.Fencing != v1.FencingLease && r.Client.Get(ctx, leaseKey(s.Singleton), &coordinationv1.Lease{}) != nil {
		return nil
	}
	return r.lease(ctx, s)
}

// leaseOfPods reads the Lease if one of the pods has fencing. Singletons that never used fencing need no request.
func (r *reading) leaseOfPods(ctx context.Context, s *handoff.Snapshot) error {
	for i := range s.Pods {
		if _, has := s.Pods[i].Annotations[v1.FencingAnnotation]; has {
			return r.lease(ctx, s)
		}
	}
	return nil
}

// lease reads the Lease once.
func (r *reading) lease(ctx context.Context, s *handoff.Snapshot) error {
	if r.leaseRead {
		return nil
	}
	key := leaseKey(s.Singleton)
	found, err := named[coordinationv1.Lease](ctx, r, r.Live, key.Namespace, sets.New(key.Name))
	if err != nil {
		return fmt.Errorf("read Lease %s: %w", key, err)
	}
	r.leaseRead = true
	s.Lease.Object = found[key.Name]
	s.Lease.Silent = r.silence(s.Lease.Object)
	return nil
}

// silence returns Lease.Silent of a Lease, which is nil if it does not exist.
func (o Observer) silence(lease *coordinationv1.Lease) time.Duration {
	if o.Silent == nil || lease == nil {
		return 0
	}
	return o.Silent(lease)
}

func leaseKey(singleton *v1.StatefulSingleton) client.ObjectKey {
	return client.ObjectKey{Namespace: singleton.Namespace, Name: signal.LeaseName(singleton.Name)}
}

// podsOfSingleton reads the pods with the singleton's label, the pods that the selector matches, and the recorded holder.
func (r *reading) podsOfSingleton(ctx context.Context, s *handoff.Snapshot) error {
	singleton := s.Singleton
	labelled := client.MatchingLabels{v1.SingletonLabel: singleton.Name}
	selector, err := singleton.Spec.Selector.Parse()
	selected := client.MatchingLabelsSelector{Selector: selector}
	switch {
	case err != nil:
		// An invalid selector matches no pod. Package injection reports it.
		err = r.listPods(ctx, s, labelled)
	case !r.selectorSuffices(ctx, singleton, selector):
		err = r.listPods(ctx, s, selected, labelled)
	default:
		if err = r.listPods(ctx, s, selected); err == nil && !s.HolderStays() {
			err = r.listPods(ctx, s, labelled)
		}
	}
	holder := singleton.Status.ActivePod
	if err != nil || holder == "" || hasPod(s, singleton.Status.ActivePodUID) {
		return err
	}
	pod, err := one[corev1.Pod](ctx, r, holder)
	if err != nil {
		return err
	}
	if pod != nil && pod.UID == singleton.Status.ActivePodUID {
		s.Pods = append(s.Pods, *pod)
	}
	return r.leaseOfPods(ctx, s)
}

// selectorSuffices returns true if, in the cache, the holder keeps running and the selector matches every pod with the
// singleton's label.
func (o Observer) selectorSuffices(ctx context.Context, singleton *v1.StatefulSingleton, selector labels.Selector) bool {
	if !singleton.DeletionTimestamp.IsZero() || !o.CachedHolderRuns(ctx, singleton) {
		return false
	}
	pods, err := o.Labelled(ctx, singleton)
	return err == nil && !slices.ContainsFunc(pods, func(pod metav1.PartialObjectMetadata) bool { return !selector.Matches(labels.Set(pod.Labels)) })
}

// Labelled returns the pods with the singleton's label, from the cache.
func (o Observer) Labelled(ctx context.Context, singleton *v1.StatefulSingleton) ([]metav1.PartialObjectMetadata, error) {
	pods := podMetadataList()
	err := o.Client.List(ctx, pods, client.InNamespace(singleton.Namespace), client.MatchingLabels{v1.SingletonLabel: singleton.Name})
	return pods.Items, err
}

// LabelledLive returns the pods with the singleton's label, from the API server. They are bounded and trimmed like the
// pods of a Snapshot.
func (o Observer) LabelledLive(ctx context.Context, singleton *v1.StatefulSingleton) ([]corev1.Pod, error) {
	return o.singleton(singleton).matchingPods(ctx, client.MatchingLabels{v1.SingletonLabel: singleton.Name}, everyPod)
}

// cachedWithoutPods returns true if no holder is recorded, and the cache has no pod with the singleton's label.
func (o Observer) cachedWithoutPods(ctx context.Context, singleton *v1.StatefulSingleton) bool {
	if singleton.Status.ActivePodUID != "" {
		return false
	}
	pods, err := o.Labelled(ctx, singleton)
	return err == nil && len(pods) == 0
}

// CachedHolderRuns returns true if, in the cache, the recorded holder exists and is not terminating.
func (o Observer) CachedHolderRuns(ctx context.Context, singleton *v1.StatefulSingleton) bool {
	holder := PodMetadata()
	err := o.Client.Get(ctx, client.ObjectKey{Namespace: singleton.Namespace, Name: singleton.Status.ActivePod}, holder)
	return err == nil && holder.UID == singleton.Status.ActivePodUID && holder.DeletionTimestamp == nil
}

// PodMetadata returns an object with which to read the metadata of a pod.
func PodMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return m
}

// listPods adds the pods that match, without duplicates. It reads the Lease if one of them has fencing.
func (r *reading) listPods(ctx context.Context, s *handoff.Snapshot, matches ...client.ListOption) error {
	lists := make([][]corev1.Pod, len(matches))
	reads, readContext := errgroup.WithContext(ctx)
	for i := range matches {
		reads.Go(func() (err error) {
			lists[i], err = r.matchingPods(readContext, matches[i], everyPod)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	for _, pods := range lists {
		for _, pod := range pods {
			if !hasPod(s, pod.UID) {
				s.Pods = append(s.Pods, pod)
			}
		}
	}
	return r.leaseOfPods(ctx, s)
}

func hasPod(s *handoff.Snapshot, uid types.UID) bool {
	return slices.ContainsFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == uid })
}

func everyPod(*corev1.Pod) bool { return true }

// others reads the other singletons of the namespace. It keeps what decides whether they select a pod.
func (r *reading) others(ctx context.Context, live bool, singleton *v1.StatefulSingleton) (others []v1.StatefulSingleton, err error) {
	size := 0
	use := func(o client.Object) error {
		other := o.(*v1.StatefulSingleton)
		if other.Name == singleton.Name {
			return nil
		}
		others = append(others, v1.StatefulSingleton{
			ObjectMeta: metav1.ObjectMeta{Namespace: other.Namespace, Name: other.Name, UID: other.UID, DeletionTimestamp: other.DeletionTimestamp},
			Spec:       v1.StatefulSingletonSpec{Selector: other.Spec.Selector},
		})
		if size += minSize + other.Spec.Selector.Meta().Size(); int64(size) > r.maxBytes {
			return &TooLargeError{
				What: fmt.Sprintf("the StatefulSingletons of namespace %s take more than %d MiB", singleton.Namespace, r.maxBytes>>20),
				Help: fmt.Sprintf("The controller releases no pod and removes no finalizer until there are fewer. Delete those that nobody needs, "+
					"or create them in another namespace: kubectl get statefulsingletons -n %s", singleton.Namespace),
			}
		}
		return nil
	}
	list := &v1.StatefulSingletonList{}
	if live {
		return others, r.pages(ctx, list, objectsPerPage, use)
	}
	if err := r.Client.List(ctx, list, client.InNamespace(singleton.Namespace)); err != nil {
		return nil, err
	}
	return others, eachObject(list, use)
}

// relatedObjects reads the other objects of the Snapshot concurrently. No proof rests on the nodes from the cache.
func (r *reading) relatedObjects(ctx context.Context, s *handoff.Snapshot) error {
	namespace, want := s.Singleton.Namespace, wantedFor(s)
	reads, readContext := errgroup.WithContext(ctx)
	var statefulSets map[string]*appsv1.StatefulSet
	var replicaSets map[string]*appsv1.ReplicaSet
	var deployments map[string]*appsv1.Deployment
	into(readContext, reads, r, r.Live, "", want.nodes, &s.Nodes)
	into(readContext, reads, r, r.Client, "", want.cachedNodes, &s.CachedNodes)
	into(readContext, reads, r, r.Live, namespace, want.claims, &s.Claims)
	into(readContext, reads, r, r.Live, namespace, want.statefulSets, &statefulSets)
	reads.Go(func() (err error) {
		if replicaSets, err = named[appsv1.ReplicaSet](readContext, r, r.Live, namespace, want.replicaSets); err != nil {
			return err
		}
		owners := sets.New[string]()
		for _, rs := range replicaSets {
			owners.Insert(ownerName(rs, owner.Deployment))
		}
		deployments, err = named[appsv1.Deployment](readContext, r, r.Live, namespace, owners)
		return err
	})
	err := reads.Wait()
	s.StatefulSets, s.ReplicaSets, s.Deployments = byUID(statefulSets), byUID(replicaSets), byUID(deployments)
	if err != nil {
		return err
	}
	if err := r.attachments(ctx, s); err != nil && !apierrors.IsForbidden(err) { // a role of an earlier version does not allow it
		return fmt.Errorf("read the volumes of the claims: %w", err)
	}
	return nil
}

// into starts a read of the objects by name.
func into[T any, P object[T]](ctx context.Context, reads *errgroup.Group, r *reading, reader client.Reader, namespace string, names sets.Set[string], to *map[string]*T) {
	reads.Go(func() (err error) {
		*to, err = named[T, P](ctx, r, reader, namespace, names)
		return err
	})
}

// wanted has the names of the pods' owners, nodes and claims. Nodes and claims of other pods are read during a handoff, or if the
// holder's node may be lost. An empty name stands for no object.
type wanted struct{ replicaSets, statefulSets, nodes, cachedNodes, claims sets.Set[string] }

func wantedFor(s *handoff.Snapshot) wanted {
	w := wanted{sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string]()}
	last := s.Singleton.Status.LastTransition
	moves := s.Singleton.Status.ActivePodUID == "" && last != nil && last.To == "" // the next pod may wait for the volumes of the last one
	if moves {
		w.cachedNodes.Insert(last.FromNode)
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		going, holds, onlyPod := proof.Going(pod), pod.UID == s.Singleton.Status.ActivePodUID, len(s.Pods) < 2
		lost := last != nil && pod.UID == last.FromUID // if its Lease has expired, its Deployment may have to be rolled
		if going || holds && !proof.IsTrue(pod, corev1.PodReady) {
			w.nodes.Insert(pod.Spec.NodeName)
		}
		if !going {
			w.cachedNodes.Insert(pod.Spec.NodeName)
		}
		if going || holds || lost || !onlyPod {
			w.replicaSets.Insert(ownerName(pod, owner.ReplicaSet))
			w.statefulSets.Insert(ownerName(pod, owner.StatefulSet))
		}
		switch claims := handoff.ClaimsOf(pod); {
		case going || !onlyPod || moves:
			w.claims.Insert(claims...)
		case holds: // for status.nodeClaims
			w.claims.Insert(claims[:min(len(claims), handoff.MaxNodeClaims)]...)
		}
	}
	return w
}

// ownerName returns the name of the object's controller if it has the kind. Empty: it has not.
func ownerName(object metav1.Object, kind schema.GroupKind) string {
	if ref := owner.Of(object, kind); ref != nil {
		return ref.Name
	}
	return ""
}

func byUID[T any, P object[T]](objects map[string]*T) map[types.UID]*T {
	all := map[types.UID]*T{}
	for _, object := range objects {
		all[P(object).GetUID()] = object
	}
	return all
}
