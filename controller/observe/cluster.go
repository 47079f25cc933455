package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// clusterReading returns the reading of a StatefulCluster.
func (o Observer) clusterReading(cluster *v1.StatefulCluster) *reading {
	return &reading{
		Observer: o, bounds: clusterBounds, namespace: cluster.Namespace,
		match: fmt.Sprintf("have the label %s=%s", v1.ClusterLabel, cluster.Name),
		help: fmt.Sprintf("The controller creates, replaces and deletes no pod and no claim until there are fewer. Remove the label from objects that do not "+
			"belong to the StatefulCluster, and delete claims that nobody needs: kubectl get pods,persistentvolumeclaims -n %s -l %s=%s",
			cluster.Namespace, v1.ClusterLabel, cluster.Name),
	}
}

// ObserveCluster reads the Snapshot of a StatefulCluster. The StatefulCluster was read before: if its record changes meanwhile,
// the compare-and-swap fails.
func (o Observer) ObserveCluster(ctx context.Context, cluster *v1.StatefulCluster) (s membership.Snapshot, err error) {
	s.Cluster = cluster
	r := o.clusterReading(cluster)
	if s.Pods, err = r.podsOfCluster(ctx, cluster); err != nil {
		return s, fmt.Errorf("read the pods of StatefulCluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	if s.Others, err = r.podsOfOthers(ctx, s); err != nil {
		return s, fmt.Errorf("read the pods of other StatefulClusters than %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	if s.Nodes, err = r.nodesOf(ctx, slices.Concat(s.Pods, s.Others)); err != nil {
		return s, err
	}
	if s.Serving, err = r.stillServing(ctx, s.Pods); err != nil {
		return s, err
	}
	if s.Claims, err = r.claimsOfCluster(ctx, &s); err != nil {
		return s, fmt.Errorf("read the claims of StatefulCluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	s.Revisions, err = r.revisionsOf(ctx, cluster)
	return s, err
}

// claimsOfCluster reads the claims with the label of the StatefulCluster, and the other claims whose names its members need.
// Another client created such a claim, or removed its label.
func (r *reading) claimsOfCluster(ctx context.Context, s *membership.Snapshot) (claims []corev1.PersistentVolumeClaim, err error) {
	missing := membership.NeededClaims(*s)
	err = r.pages(ctx, &corev1.PersistentVolumeClaimList{}, objectsPerPage, func(o client.Object) error {
		claim := o.(*corev1.PersistentVolumeClaim)
		missing.Delete(claim.Name)
		claims = append(claims, *claim)
		return r.keep(claim)
	}, client.MatchingLabels{v1.ClusterLabel: s.Cluster.Name})
	if err != nil {
		return nil, err
	}
	return withNamed(ctx, r, claims, missing)
}

// withNamed appends the objects with the names, in the order of the names.
func withNamed[T any, P object[T]](ctx context.Context, r *reading, all []T, names sets.Set[string]) ([]T, error) {
	others, err := named[T, P](ctx, r, r.Live, r.namespace, names)
	for _, name := range slices.Sorted(maps.Keys(others)) {
		all = append(all, *others[name])
	}
	return all, err
}

// revisionsOf reads the ControllerRevisions that the StatefulCluster controls, and the ControllerRevision of its template. Another
// client can have removed the label or the owner of the latter, and its name cannot be used again.
func (r *reading) revisionsOf(ctx context.Context, cluster *v1.StatefulCluster) (revisions []appsv1.ControllerRevision, err error) {
	err = r.pages(ctx, &appsv1.ControllerRevisionList{}, objectsPerPage, func(o client.Object) error {
		revision := o.(*appsv1.ControllerRevision)
		if !owner.Controls(cluster, owner.StatefulCluster, revision) {
			return nil
		}
		revisions = append(revisions, *revision)
		return r.keep(revision)
	}, client.MatchingLabels{v1.ClusterLabel: cluster.Name})
	if err != nil {
		return nil, fmt.Errorf("list the ControllerRevisions of StatefulCluster %s: %w", client.ObjectKeyFromObject(cluster), err)
	}
	name := membership.RevisionName(cluster)
	if slices.ContainsFunc(revisions, func(r appsv1.ControllerRevision) bool { return r.Name == name }) {
		return revisions, nil
	}
	latest, err := one[appsv1.ControllerRevision](ctx, r, name)
	if latest == nil {
		return revisions, err
	}
	return append(revisions, *latest), nil
}

// podsOfCluster reads the pods with the label of the StatefulCluster, and the other pods with the names of members. Another client
// created such a pod, or removed its label.
func (r *reading) podsOfCluster(ctx context.Context, cluster *v1.StatefulCluster) ([]corev1.Pod, error) {
	pods, err := r.matchingPods(ctx, client.MatchingLabels{v1.ClusterLabel: cluster.Name}, everyPod)
	if err != nil {
		return nil, err
	}
	missing := sets.New[string]()
	for _, m := range cluster.Status.Members {
		missing.Insert(m.Name)
	}
	for i := range pods {
		missing.Delete(pods[i].Name)
	}
	if missing.Len() == 0 {
		return pods, nil
	}
	exist := sets.New[string]()
	err = r.pages(ctx, podMetadataList(), objectsPerPage, func(o client.Object) error {
		if missing.Has(o.GetName()) {
			exist.Insert(o.GetName())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return withNamed(ctx, r, pods, exist)
}

// podsOfOthers reads the pods of other StatefulClusters with a claim of the record, if a decision can depend on them.
func (r *reading) podsOfOthers(ctx context.Context, s membership.Snapshot) (others []corev1.Pod, err error) {
	claims := membership.NeededClaims(membership.Snapshot{Cluster: s.Cluster})
	if len(claims) == 0 || !membership.GivesClaims(s) {
		return nil, nil
	}
	ofAnother, err := labels.Parse(fmt.Sprintf("%[1]s, %[1]s != %[2]s", v1.ClusterLabel, s.Cluster.Name))
	if err != nil {
		return nil, err
	}
	err = r.pages(ctx, &corev1.PodList{}, r.podsPerPage, func(o client.Object) error {
		pod := o.(*corev1.Pod)
		if !membership.MountsAny(pod, claims) {
			return nil
		}
		others = append(others, *pod)
		return r.keep(pod)
	}, client.MatchingLabelsSelector{Selector: ofAnother})
	return others, err
}

// stillServing returns the pods that must not serve, and that an EndpointSlice lists as serving. It reads the EndpointSlices only
// if there are pods that must not serve.
func (r *reading) stillServing(ctx context.Context, pods []corev1.Pod) (sets.Set[types.UID], error) {
	mustNot := sets.New[types.UID]()
	for i := range pods {
		if c := proof.Condition(&pods[i], v1.MemberServing); c != nil && c.Status == corev1.ConditionFalse {
			mustNot.Insert(pods[i].UID)
		}
	}
	if mustNot.Len() == 0 {
		return nil, nil
	}
	return r.serving(ctx, mustNot)
}
