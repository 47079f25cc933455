package singleton

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// observe reads everything that a decision rests on, as much at once as can be: while
// it reads, nothing may run. The singleton was read before, so that a record which moves
// meanwhile fails the compare-and-swap.
func (r *Reconciler) observe(ctx context.Context, singleton *v1.StatefulSingleton) (handoff.Snapshot, error) {
	s := handoff.Snapshot{Singleton: singleton}
	reads, readContext := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		if s.Pods, err = r.pods(readContext, singleton); err != nil {
			err = fmt.Errorf("read the pods of StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
		}
		return err
	})
	reads.Go(func() (err error) {
		if s.Others, err = r.others(readContext, singleton); err != nil {
			err = fmt.Errorf("list StatefulSingletons in namespace %s: %w", singleton.Namespace, err)
		}
		return err
	})
	if err := reads.Wait(); err != nil {
		return s, err
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.Client.List(ctx, &budgets, client.InNamespace(singleton.Namespace)); err != nil {
		return s, fmt.Errorf("list PodDisruptionBudgets in namespace %s: %w", singleton.Namespace, err)
	}
	s.Budgets = budgets.Items
	if err := r.surroundings(ctx, &s); err != nil {
		return s, fmt.Errorf("read what the pods of StatefulSingleton %s belong to: %w", client.ObjectKeyFromObject(singleton), err)
	}
	return s, nil
}

// pods are those that bear the singleton's label, those that the selector picks, and
// the recorded holder.
func (r *Reconciler) pods(ctx context.Context, singleton *v1.StatefulSingleton) ([]corev1.Pod, error) {
	var labelled, selected corev1.PodList
	reads, readContext := errgroup.WithContext(ctx)
	list := func(into *corev1.PodList, match client.ListOption) {
		reads.Go(func() error { return r.Live.List(readContext, into, client.InNamespace(singleton.Namespace), match) })
	}
	list(&labelled, client.MatchingLabels{v1.SingletonLabel: singleton.Name})
	// A selector that is none picks nothing: the Injector says what is wrong with it.
	if selector, err := metav1.LabelSelectorAsSelector(&singleton.Spec.Selector); err == nil {
		list(&selected, client.MatchingLabelsSelector{Selector: selector})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	seen := map[types.UID]bool{}
	for _, pod := range slices.Concat(labelled.Items, selected.Items) {
		if !seen[pod.UID] {
			seen[pod.UID] = true
			pods = append(pods, pod)
		}
	}
	if holder := singleton.Status.ActivePod; holder != "" && !seen[singleton.Status.ActivePodUID] {
		var pod corev1.Pod
		err := r.Live.Get(ctx, client.ObjectKey{Namespace: singleton.Namespace, Name: holder}, &pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil && pod.UID == singleton.Status.ActivePodUID {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

func (r *Reconciler) others(ctx context.Context, singleton *v1.StatefulSingleton) ([]v1.StatefulSingleton, error) {
	var list v1.StatefulSingletonList
	if err := r.Live.List(ctx, &list, client.InNamespace(singleton.Namespace)); err != nil {
		return nil, err
	}
	var others []v1.StatefulSingleton
	for _, other := range list.Items {
		if other.Name != singleton.Name {
			others = append(others, other)
		}
	}
	return others, nil
}

// surroundings reads the pods' owners, and their nodes and claims where they count:
// during a handoff, and where the holder's node may be lost.
func (r *Reconciler) surroundings(ctx context.Context, s *handoff.Snapshot) error {
	namespace := s.Singleton.Namespace
	replicaSets, statefulSets, nodes, cachedNodes, claims := names{}, names{}, names{}, names{}, names{}
	for i := range s.Pods {
		pod := &s.Pods[i]
		going, holds, alone := handoff.Going(pod), pod.UID == s.Singleton.Status.ActivePodUID, len(s.Pods) < 2
		if going || holds && !handoff.IsTrue(pod, corev1.PodReady) {
			nodes.add(pod.Spec.NodeName)
		}
		if !going {
			cachedNodes.add(pod.Spec.NodeName)
		}
		if going || holds || !alone {
			replicaSets.add(ownerName(pod, "ReplicaSet"))
			statefulSets.add(ownerName(pod, "StatefulSet"))
		}
		if !going && alone {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil {
				claims.add(volume.PersistentVolumeClaim.ClaimName)
			}
		}
	}
	reads, readContext := errgroup.WithContext(ctx)
	reads.Go(func() (err error) {
		s.Nodes, err = named[corev1.Node](readContext, r.Live, "", nodes)
		return err
	})
	reads.Go(func() (err error) {
		// Nothing is proven by these, and they cost no request.
		s.CachedNodes, err = named[corev1.Node](readContext, r.Client, "", cachedNodes)
		return err
	})
	reads.Go(func() (err error) {
		s.Claims, err = named[corev1.PersistentVolumeClaim](readContext, r.Live, namespace, claims)
		return err
	})
	reads.Go(func() error {
		found, err := named[appsv1.StatefulSet](readContext, r.Live, namespace, statefulSets)
		s.StatefulSets = byUID(found)
		return err
	})
	reads.Go(func() error {
		found, err := named[appsv1.ReplicaSet](readContext, r.Live, namespace, replicaSets)
		if err != nil {
			return err
		}
		s.ReplicaSets = byUID(found)
		deployments := names{}
		for _, rs := range found {
			deployments.add(ownerName(rs, "Deployment"))
		}
		owners, err := named[appsv1.Deployment](readContext, r.Live, namespace, deployments)
		s.Deployments = byUID(owners)
		return err
	})
	return reads.Wait()
}

// names are those of objects to read.
type names map[string]struct{}

func (n names) add(name string) {
	if name != "" {
		n[name] = struct{}{}
	}
}

// ownerName is the name of the owner that controls the object, if it is of that kind.
func ownerName(object metav1.Object, kind string) string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == kind {
		return owner.Name
	}
	return ""
}

// named reads objects, all at once. One that does not exist is missing from what
// it returns, by name.
func named[T any, P interface {
	*T
	client.Object
}](ctx context.Context, reader client.Reader, namespace string, wanted names) (map[string]*T, error) {
	var mu sync.Mutex
	found := map[string]*T{}
	reads, readContext := errgroup.WithContext(ctx)
	for name := range wanted {
		reads.Go(func() error {
			object := P(new(T))
			err := reader.Get(readContext, client.ObjectKey{Namespace: namespace, Name: name}, object)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				found[name] = object
			}
			return client.IgnoreNotFound(err)
		})
	}
	return found, reads.Wait()
}

func byUID[T any, P interface {
	*T
	client.Object
}](objects map[string]*T) map[types.UID]*T {
	all := map[types.UID]*T{}
	for _, object := range objects {
		all[P(object).GetUID()] = object
	}
	return all
}
