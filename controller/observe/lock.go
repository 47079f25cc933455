package observe

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// StatefulSetNameField is the field by which the API server and the cache select locks.
const StatefulSetNameField = "spec.statefulSetName"

// lockReading returns the reading of a lock.
func (o Observer) lockReading(lock *v1.StatefulSetLock) *reading {
	return &reading{
		Observer: o, bounds: lockBounds, namespace: lock.Namespace,
		match: fmt.Sprintf("match the selector of StatefulSet %s or have the label %s=%s", lock.Spec.StatefulSetName, v1.LockLabel, lock.Name),
		help: fmt.Sprintf("The controller changes no writer and removes no finalizer until there are fewer. Remove the labels from pods of other "+
			"applications, and delete the pods that have ended: kubectl delete pod -n %s -l %s=%s --field-selector=status.phase=Failed",
			lock.Namespace, v1.LockLabel, lock.Name),
	}
}

// ObserveLock reads the Snapshot of a lock. The lock was read before: if its record changes meanwhile, the compare-and-swap
// fails.
func (o Observer) ObserveLock(ctx context.Context, lock *v1.StatefulSetLock) (s tenure.Snapshot, err error) {
	s.Lock = lock
	r := o.lockReading(lock)
	if s.Others, err = r.otherLocks(ctx, lock); err != nil {
		return s, fmt.Errorf("list StatefulSetLocks in namespace %s: %w", lock.Namespace, err)
	}
	if s.StatefulSet, err = one[appsv1.StatefulSet](ctx, r, lock.Spec.StatefulSetName); err != nil {
		return s, err
	}
	if s.Lease.Object, err = one[coordinationv1.Lease](ctx, r, lock.Spec.LeaseName); err != nil {
		return s, err
	}
	if s.Lease.Object != nil && s.Lease.Object.Labels[v1.LockLabel] == lock.Name { // otherwise it is somebody else's
		s.Lease.Silent = o.silence(s.Lease.Object)
	}
	if s.Pods, err = r.podsOfLock(ctx, &s); err != nil {
		return s, fmt.Errorf("read the pods of StatefulSetLock %s: %w", client.ObjectKeyFromObject(lock), err)
	}
	if s.Nodes, err = r.nodesOf(ctx, s.Pods); err != nil {
		return s, err
	}
	if s.Serving, err = r.writerServes(ctx, &s); err != nil {
		return s, err
	}
	s.Budgets, err = r.budgets(ctx)
	return s, err
}

// otherLocks reads the other locks of the StatefulSet. A lock waits for an older one, so only the oldest in the cache needs a live
// read.
func (r *reading) otherLocks(ctx context.Context, lock *v1.StatefulSetLock) (others []v1.StatefulSetLock, err error) {
	use := func(o client.Object) error {
		if other := o.(*v1.StatefulSetLock); other.UID != lock.UID {
			others = append(others, v1.StatefulSetLock{
				ObjectMeta: metav1.ObjectMeta{Namespace: other.Namespace, Name: other.Name, UID: other.UID, CreationTimestamp: other.CreationTimestamp},
				Spec:       v1.StatefulSetLockSpec{StatefulSetName: other.Spec.StatefulSetName},
			})
		}
		return nil
	}
	list, same := &v1.StatefulSetLockList{}, client.MatchingFields{StatefulSetNameField: lock.Spec.StatefulSetName}
	if err := r.Client.List(ctx, list, client.InNamespace(lock.Namespace), same); err != nil {
		return nil, err
	}
	if err := eachObject(list, use); err != nil || tenure.OlderLock(lock, others) != "" {
		return others, err
	}
	others = nil
	return others, r.pages(ctx, &v1.StatefulSetLockList{}, objectsPerPage, use, same)
}

// podsOfLock reads the pods of the StatefulSet, the pods with the lock's label, and the recorded writer.
func (r *reading) podsOfLock(ctx context.Context, s *tenure.Snapshot) (all []corev1.Pod, err error) {
	which := []client.ListOption{client.MatchingLabels{v1.LockLabel: s.Lock.Name}}
	if s.StatefulSet != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.StatefulSet.Spec.Selector)
		if err != nil {
			return nil, fmt.Errorf("parse the selector of StatefulSet %s: %w", s.StatefulSet.Name, err)
		}
		which = append(which, client.MatchingLabelsSelector{Selector: selector})
	}
	seen := map[types.UID]bool{}
	mine := func(p *corev1.Pod) bool {
		is := p.Labels[v1.LockLabel] == s.Lock.Name || s.StatefulSet != nil && owner.Controls(s.StatefulSet, owner.StatefulSet, p)
		if !is && p.UID != s.Lock.Status.WriterPodUID || seen[p.UID] {
			return false
		}
		seen[p.UID] = true
		return true
	}
	for _, matches := range which {
		pods, err := r.matchingPods(ctx, matches, mine)
		if err != nil {
			return nil, err
		}
		all = append(all, pods...)
	}
	if name := s.Lock.Status.WriterPod; name != "" && !seen[s.Lock.Status.WriterPodUID] {
		writer, err := one[corev1.Pod](ctx, r, name)
		if err != nil {
			return nil, err
		}
		if writer != nil && writer.UID == s.Lock.Status.WriterPodUID {
			all = append(all, *writer)
		}
	}
	return all, nil
}

// nodesOf reads the nodes of the pods from the cache, and the nodes of terminating pods from the API server, because proofs
// depend on these nodes.
func (r *reading) nodesOf(ctx context.Context, pods []corev1.Pod) (map[string]*corev1.Node, error) {
	live, cached := sets.New[string](), sets.New[string]()
	for i := range pods {
		if proof.Going(&pods[i]) {
			live.Insert(pods[i].Spec.NodeName)
		} else {
			cached.Insert(pods[i].Spec.NodeName)
		}
	}
	nodes, err := named[corev1.Node](ctx, r, r.Client, "", cached.Difference(live))
	if err != nil {
		return nil, fmt.Errorf("read the nodes of the pods: %w", err)
	}
	proving, err := named[corev1.Node](ctx, r, r.Live, "", live)
	if err != nil {
		return nil, fmt.Errorf("read the nodes of the terminating pods: %w", err)
	}
	maps.Copy(nodes, proving)
	return nodes, nil
}

// writerServes returns true if an EndpointSlice of a Service for writers lists the recorded writer as serving. It reads them only
// after the label of the writer was removed.
func (r *reading) writerServes(ctx context.Context, s *tenure.Snapshot) (bool, error) {
	uid := s.Lock.Status.WriterPodUID
	if uid == "" || !tenure.Ending(*s) {
		return false, nil
	}
	services := sets.New[string]()
	err := r.pages(ctx, &corev1.ServiceList{}, objectsPerPage, func(o client.Object) error {
		if o.(*corev1.Service).Spec.Selector[v1.StsRoleLabel] != v1.StsRoleWriter {
			return nil
		}
		if services.Insert(o.GetName()); services.Len() > maxServices {
			return &TooLargeError{
				What: fmt.Sprintf("namespace %s has more than %d Services for writers", s.Lock.Namespace, maxServices),
				Help: fmt.Sprintf("The controller changes no writer until there are fewer. Delete those that nobody needs: kubectl get services -n %s -o wide", s.Lock.Namespace),
			}
		}
		return nil
	})
	if err != nil || services.Len() == 0 {
		return false, err
	}
	ofThese, err := labels.NewRequirement(discoveryv1.LabelServiceName, selection.In, sets.List(services))
	if err != nil {
		return false, err
	}
	serving, err := r.serving(ctx, sets.New(uid), client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*ofThese)})
	return serving.Has(uid), err
}

// maxServices is the maximum number of Services for writers in a namespace. A request has all of their names.
const maxServices = 100

// serving returns which of the pods an EndpointSlice lists as serving.
func (r *reading) serving(ctx context.Context, pods sets.Set[types.UID], which ...client.ListOption) (sets.Set[types.UID], error) {
	serving := sets.New[types.UID]()
	err := r.pages(ctx, &discoveryv1.EndpointSliceList{}, objectsPerPage, func(o client.Object) error {
		for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
			if e.TargetRef != nil && pods.Has(e.TargetRef.UID) && ptr.Deref(e.Conditions.Serving, true) {
				serving.Insert(e.TargetRef.UID)
			}
		}
		return nil
	}, which...)
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices in namespace %s: %w", r.namespace, err)
	}
	return serving, nil
}
