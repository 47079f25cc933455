package observe

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/leases"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/tenure"
)

// ObserveLock reads the Snapshot of a lock. The lock was read before: if its record changes meanwhile, the compare-and-swap
// fails.
func (o Observer) ObserveLock(ctx context.Context, lock *v1.StatefulSetLock) (tenure.Snapshot, error) {
	s := tenure.Snapshot{Lock: lock}
	inNamespace := client.InNamespace(lock.Namespace)
	var others v1.StatefulSetLockList
	if err := o.Live.List(ctx, &others, inNamespace); err != nil {
		return s, fmt.Errorf("list StatefulSetLocks in namespace %s: %w", lock.Namespace, err)
	}
	for _, other := range others.Items {
		if other.UID != lock.UID {
			s.Others = append(s.Others, other)
		}
	}
	set := &appsv1.StatefulSet{}
	found, err := o.get(ctx, lock.Namespace, lock.Spec.StatefulSetName, set)
	if err != nil {
		return s, err
	} else if found {
		s.StatefulSet = set
	}
	lease := &coordinationv1.Lease{}
	if found, err = o.get(ctx, lock.Namespace, lock.Spec.LeaseName, lease); err != nil {
		return s, err
	} else if found && lease.Labels[v1.LockLabel] != lock.Name {
		s.Lease.Object = lease // somebody else's
	} else if found {
		s.Lease = leases.Observed{Object: lease, Silent: o.silence(lease)}
	}
	if err := o.podsOfLock(ctx, &s); err != nil {
		return s, err
	}
	if s.Nodes, err = o.nodesOf(ctx, s.Pods); err != nil {
		return s, err
	}
	if s.Serving, err = o.serving(ctx, &s); err != nil {
		return s, err
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := o.Client.List(ctx, &budgets, inNamespace); err != nil {
		return s, fmt.Errorf("list PodDisruptionBudgets in namespace %s: %w", lock.Namespace, err)
	}
	s.Budgets = budgets.Items
	return s, nil
}

// get reads an object from the API server. It returns false if the object does not exist.
func (o Observer) get(ctx context.Context, namespace, name string, object client.Object) (found bool, err error) {
	err = o.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read %T %s: %w", object, name, err)
	}
	return err == nil, nil
}

// podsOfLock reads the pods that the selector of the StatefulSet matches, the pods with the lock's label, and the recorded writer.
func (o Observer) podsOfLock(ctx context.Context, s *tenure.Snapshot) error {
	which := []client.ListOption{client.MatchingLabels{v1.LockLabel: s.Lock.Name}}
	if s.StatefulSet != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.StatefulSet.Spec.Selector)
		if err != nil {
			return fmt.Errorf("parse the selector of StatefulSet %s: %w", s.StatefulSet.Name, err)
		}
		which = append(which, client.MatchingLabelsSelector{Selector: selector})
	}
	seen := map[types.UID]bool{}
	add := func(p corev1.Pod) {
		mine := p.Labels[v1.LockLabel] == s.Lock.Name || s.StatefulSet != nil && metav1.IsControlledBy(&p, s.StatefulSet)
		if (mine || p.UID == s.Lock.Status.WriterPodUID) && !seen[p.UID] {
			seen[p.UID] = true
			s.Pods = append(s.Pods, p)
		}
	}
	for _, matches := range which {
		var list corev1.PodList
		if err := o.Live.List(ctx, &list, client.InNamespace(s.Lock.Namespace), matches); err != nil {
			return fmt.Errorf("list pods in namespace %s: %w", s.Lock.Namespace, err)
		}
		for _, p := range list.Items {
			add(p)
		}
	}
	writer := &corev1.Pod{}
	if name := s.Lock.Status.WriterPod; name != "" && !seen[s.Lock.Status.WriterPodUID] {
		found, err := o.get(ctx, s.Lock.Namespace, name, writer)
		if err != nil {
			return err
		}
		if found && writer.UID == s.Lock.Status.WriterPodUID {
			add(*writer)
		}
	}
	return nil
}

// nodesOf reads the nodes of the pods from the cache, and the nodes of terminating pods from the API server, because proofs
// depend on these nodes.
func (o Observer) nodesOf(ctx context.Context, pods []corev1.Pod) (map[string]*corev1.Node, error) {
	nodes, live := map[string]*corev1.Node{}, map[string]bool{}
	for i := range pods {
		name, reader, going := pods[i].Spec.NodeName, o.Client, proof.Going(&pods[i])
		if _, known := nodes[name]; name == "" || live[name] || known && !going {
			continue
		}
		if going {
			reader, live[name] = o.Live, true
		}
		node := &corev1.Node{}
		err := reader.Get(ctx, client.ObjectKey{Name: name}, node)
		switch {
		case err == nil:
			nodes[name] = node
		case apierrors.IsNotFound(err):
			delete(nodes, name)
		default:
			return nil, fmt.Errorf("read Node %s: %w", name, err)
		}
	}
	return nodes, nil
}

// serving returns true if an EndpointSlice of a Service for writers lists the recorded writer as serving. It reads them only
// after the label of the writer was removed.
func (o Observer) serving(ctx context.Context, s *tenure.Snapshot) (bool, error) {
	uid := s.Lock.Status.WriterPodUID
	if uid == "" || !tenure.Ending(*s) {
		return false, nil
	}
	var services corev1.ServiceList
	if err := o.Live.List(ctx, &services, client.InNamespace(s.Lock.Namespace)); err != nil {
		return false, fmt.Errorf("list Services in namespace %s: %w", s.Lock.Namespace, err)
	}
	for i := range services.Items {
		if services.Items[i].Spec.Selector[v1.StsRoleLabel] != v1.StsRoleWriter {
			continue
		}
		var slices discoveryv1.EndpointSliceList
		of := client.MatchingLabels{discoveryv1.LabelServiceName: services.Items[i].Name}
		if err := o.Live.List(ctx, &slices, client.InNamespace(s.Lock.Namespace), of); err != nil {
			return false, fmt.Errorf("list the EndpointSlices of Service %s: %w", services.Items[i].Name, err)
		}
		for j := range slices.Items {
			if serves(&slices.Items[j], uid) {
				return true, nil
			}
		}
	}
	return false, nil
}

// serves returns true if the EndpointSlice lists the pod as serving.
func serves(slice *discoveryv1.EndpointSlice, uid types.UID) bool {
	for _, e := range slice.Endpoints {
		if e.TargetRef != nil && e.TargetRef.UID == uid && ptr.Deref(e.Conditions.Serving, true) {
			return true
		}
	}
	return false
}
