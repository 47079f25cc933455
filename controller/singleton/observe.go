package singleton

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

// observe reads everything that a decision rests on. The singleton was read
// before, so that a record which moves meanwhile fails the compare-and-swap.
func (r *Reconciler) observe(ctx context.Context, singleton *v1.StatefulSingleton) (handoff.Snapshot, error) {
	s := handoff.Snapshot{
		Singleton:    singleton,
		ReplicaSets:  map[types.UID]*appsv1.ReplicaSet{},
		Deployments:  map[types.UID]*appsv1.Deployment{},
		StatefulSets: map[types.UID]*appsv1.StatefulSet{},
		Nodes:        map[string]*corev1.Node{},
		CachedNodes:  map[string]*corev1.Node{},
		Claims:       map[string]*corev1.PersistentVolumeClaim{},
	}
	var err error
	if s.Pods, err = r.pods(ctx, singleton); err != nil {
		return s, fmt.Errorf("read the pods of StatefulSingleton %s: %w", client.ObjectKeyFromObject(singleton), err)
	}
	if s.Others, err = r.others(ctx, singleton); err != nil {
		return s, fmt.Errorf("list StatefulSingletons in namespace %s: %w", singleton.Namespace, err)
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.Client.List(ctx, &budgets, client.InNamespace(singleton.Namespace)); err != nil {
		return s, fmt.Errorf("list PodDisruptionBudgets in namespace %s: %w", singleton.Namespace, err)
	}
	s.Budgets = budgets.Items
	for i := range s.Pods {
		if err := r.surroundings(ctx, &s, &s.Pods[i]); err != nil {
			return s, fmt.Errorf("read what pod %s/%s belongs to: %w", s.Pods[i].Namespace, s.Pods[i].Name, err)
		}
	}
	return s, nil
}

// pods are those that the selector picks, those that bear the singleton's label
// though the selector does not pick them any more, and the recorded holder.
func (r *Reconciler) pods(ctx context.Context, singleton *v1.StatefulSingleton) ([]corev1.Pod, error) {
	matches := []client.ListOption{client.MatchingLabels{v1.SingletonLabel: singleton.Name}}
	// A selector that is none picks nothing: the Injector says what is wrong with it.
	if selector, err := metav1.LabelSelectorAsSelector(&singleton.Spec.Selector); err == nil {
		matches = append(matches, client.MatchingLabelsSelector{Selector: selector})
	}
	var pods []corev1.Pod
	seen := map[types.UID]bool{}
	add := func(pod corev1.Pod) {
		if !seen[pod.UID] {
			seen[pod.UID] = true
			pods = append(pods, pod)
		}
	}
	for _, match := range matches {
		var list corev1.PodList
		if err := r.Live.List(ctx, &list, client.InNamespace(singleton.Namespace), match); err != nil {
			return nil, err
		}
		for _, pod := range list.Items {
			add(pod)
		}
	}
	if holder := singleton.Status.ActivePod; holder != "" && !seen[singleton.Status.ActivePodUID] {
		var pod corev1.Pod
		err := r.Live.Get(ctx, client.ObjectKey{Namespace: singleton.Namespace, Name: holder}, &pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil && pod.UID == singleton.Status.ActivePodUID {
			add(pod)
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

// surroundings reads the pod's owners, and its node and claims where they count:
// during a handoff, and where the holder's node may be lost.
func (r *Reconciler) surroundings(ctx context.Context, s *handoff.Snapshot, pod *corev1.Pod) error {
	going, holds, alone := handoff.Going(pod), pod.UID == s.Singleton.Status.ActivePodUID, len(s.Pods) < 2
	if going || holds && !handoff.IsTrue(pod, corev1.PodReady) {
		if err := r.node(ctx, s, pod.Spec.NodeName); err != nil {
			return err
		}
	}
	if !going {
		if err := r.cachedNode(ctx, s, pod.Spec.NodeName); err != nil {
			return err
		}
	}
	if going || holds || !alone {
		if err := r.owners(ctx, s, pod); err != nil {
			return err
		}
	}
	if !going && alone {
		return nil
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil || s.Claims[volume.PersistentVolumeClaim.ClaimName] != nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		if found, err := r.get(ctx, pod.Namespace, volume.PersistentVolumeClaim.ClaimName, claim); err != nil {
			return err
		} else if found {
			s.Claims[claim.Name] = claim
		}
	}
	return nil
}

func (r *Reconciler) node(ctx context.Context, s *handoff.Snapshot, name string) error {
	if name == "" || s.Nodes[name] != nil {
		return nil
	}
	node := &corev1.Node{}
	found, err := r.get(ctx, "", name, node)
	if found {
		s.Nodes[name] = node
	}
	return err
}

// cachedNode reads a node that nothing is to be proven by: it costs no request.
func (r *Reconciler) cachedNode(ctx context.Context, s *handoff.Snapshot, name string) error {
	if name == "" || s.CachedNodes[name] != nil {
		return nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	s.CachedNodes[name] = node
	return nil
}

func (r *Reconciler) owners(ctx context.Context, s *handoff.Snapshot, pod *corev1.Pod) error {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
		return nil
	case owner.Kind == "StatefulSet" && s.StatefulSets[owner.UID] == nil:
		set := &appsv1.StatefulSet{}
		if found, err := r.get(ctx, pod.Namespace, owner.Name, set); err != nil || !found {
			return err
		}
		s.StatefulSets[set.UID] = set
	case owner.Kind == "ReplicaSet" && s.ReplicaSets[owner.UID] == nil:
		rs := &appsv1.ReplicaSet{}
		if found, err := r.get(ctx, pod.Namespace, owner.Name, rs); err != nil || !found {
			return err
		}
		s.ReplicaSets[rs.UID] = rs
		owner = metav1.GetControllerOf(rs)
		if owner == nil || owner.Kind != "Deployment" || s.Deployments[owner.UID] != nil {
			return nil
		}
		deployment := &appsv1.Deployment{}
		if found, err := r.get(ctx, pod.Namespace, owner.Name, deployment); err != nil || !found {
			return err
		}
		s.Deployments[deployment.UID] = deployment
	}
	return nil
}

// get reads one object live; found is false where it does not exist.
func (r *Reconciler) get(ctx context.Context, namespace, name string, object client.Object) (found bool, err error) {
	err = r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
