package observe

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// ObserveCluster reads the Snapshot of a StatefulCluster. The StatefulCluster was read before: if its record changes meanwhile,
// the compare-and-swap fails.
func (o Observer) ObserveCluster(ctx context.Context, cluster *v1.StatefulCluster) (s membership.Snapshot, err error) {
	s.Cluster = cluster
	if s.Pods, err = o.podsOfCluster(ctx, cluster); err != nil {
		return s, err
	}
	if s.Nodes, err = o.nodesOf(ctx, s.Pods); err != nil {
		return s, err
	}
	if s.Serving, err = o.stillServing(ctx, cluster.Namespace, s.Pods); err != nil {
		return s, err
	}
	var claims corev1.PersistentVolumeClaimList
	if err := o.Live.List(ctx, &claims, client.InNamespace(cluster.Namespace)); err != nil {
		return s, fmt.Errorf("list PersistentVolumeClaims in namespace %s: %w", cluster.Namespace, err)
	}
	s.Claims = claims.Items
	s.Revisions, err = o.revisionsOf(ctx, cluster)
	return s, err
}

// revisionsOf reads the ControllerRevisions that the StatefulCluster controls, and the ControllerRevision of its template. Another
// client can have removed the label or the owner of the latter, and its name cannot be used again.
func (o Observer) revisionsOf(ctx context.Context, cluster *v1.StatefulCluster) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := o.Live.List(ctx, &list, client.InNamespace(cluster.Namespace), client.MatchingLabels{v1.ClusterLabel: cluster.Name}); err != nil {
		return nil, fmt.Errorf("list ControllerRevisions in namespace %s: %w", cluster.Namespace, err)
	}
	revisions := slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool { return !metav1.IsControlledBy(&r, cluster) })
	name := membership.RevisionName(cluster)
	if slices.ContainsFunc(revisions, func(r appsv1.ControllerRevision) bool { return r.Name == name }) {
		return revisions, nil
	}
	latest := appsv1.ControllerRevision{}
	if found, err := o.get(ctx, cluster.Namespace, name, &latest); !found {
		return revisions, err
	}
	return append(revisions, latest), nil
}

// podsOfCluster reads the pods with the label of the StatefulCluster, and the other pods with the names of members. Another client
// created such a pod, or removed its label.
func (o Observer) podsOfCluster(ctx context.Context, cluster *v1.StatefulCluster) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := o.Live.List(ctx, &pods, client.InNamespace(cluster.Namespace), client.MatchingLabels{v1.ClusterLabel: cluster.Name}); err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w", cluster.Namespace, err)
	}
	missing := sets.New[string]()
	for _, m := range cluster.Status.Members {
		missing.Insert(m.Name)
	}
	for i := range pods.Items {
		missing.Delete(pods.Items[i].Name)
	}
	if missing.Len() == 0 {
		return pods.Items, nil
	}
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := o.Live.List(ctx, all, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("list the names of pods in namespace %s: %w", cluster.Namespace, err)
	}
	for i := range all.Items {
		if !missing.Has(all.Items[i].Name) {
			continue
		}
		pod := &corev1.Pod{}
		found, err := o.get(ctx, cluster.Namespace, all.Items[i].Name, pod)
		if err != nil {
			return nil, err
		}
		if found {
			pods.Items = append(pods.Items, *pod)
		}
	}
	return pods.Items, nil
}

// stillServing returns the pods that must not serve, and that an EndpointSlice lists as serving. It reads the EndpointSlices only
// if there are pods that must not serve.
func (o Observer) stillServing(ctx context.Context, namespace string, pods []corev1.Pod) (map[types.UID]bool, error) {
	serving := map[types.UID]bool{}
	for i := range pods {
		if c := proof.Condition(&pods[i], v1.MemberServing); c != nil && c.Status == corev1.ConditionFalse {
			serving[pods[i].UID] = false
		}
	}
	if len(serving) == 0 {
		return serving, nil
	}
	var list discoveryv1.EndpointSliceList
	if err := o.Live.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list EndpointSlices in namespace %s: %w", namespace, err)
	}
	for uid := range serving {
		serving[uid] = slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool { return serves(&s, uid) })
	}
	return serving, nil
}
