package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// members is a subject: a StatefulCluster.
type members struct {
	*world.Cluster
	names    *world.Names
	replicas int32
	random   *rand.Rand
}

// clusterSpecs are the specs of the StatefulClusters.
var clusterSpecs = []v1.StatefulClusterSpec{
	{Replicas: new(int32(3))},
	{Replicas: new(int32(3)), PodManagementPolicy: v1.ClusterOrderedReady},
	{Replicas: new(int32(5)), UpdateStrategy: v1.ClusterUpdateStrategy{RollingUpdate: &v1.ClusterRollout{MaxUnavailable: new(intstr.FromInt32(2))}}},
	{Replicas: new(int32(4)), PersistentVolumeClaimRetentionPolicy: v1.ClaimRetentionPolicy{WhenScaled: v1.ClaimDelete, WhenReplaced: v1.ClaimDelete}},
}

// volumes is the number of volumes of each StatefulCluster: each lost pod and each additional pod needs one more.
const volumes = 100

func (r *run) newMembers(ctx context.Context, spec v1.StatefulClusterSpec, random *rand.Rand) (subject, error) {
	c, err := r.NewCluster(ctx, "soak", world.ClusterOptions{Spec: spec, Volumes: volumes, Pod: world.TolerateLostNodes(2)})
	if c == nil {
		return nil, err
	}
	names, failed := c.WatchNames(ctx)
	return members{c, names, *spec.Replicas, random}, errors.Join(err, failed)
}

func (m members) journals() string { return m.Dir }

func (m members) causes() []cause {
	one := func(name string, do func(context.Context, *corev1.Pod) error) cause {
		return cause{name, func(ctx context.Context) (end, error) {
			pod, err := m.anyPod(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return m.AwaitAvailable(ctx, pod.Name) }, do(ctx, pod)
		}}
	}
	return []cause{
		one("delete", func(ctx context.Context, pod *corev1.Pod) error { return m.DeletePod(ctx, pod, nil) }),
		one("force delete", func(ctx context.Context, pod *corev1.Pod) error { return m.DeletePod(ctx, pod, new(int64(0))) }),
		one("evict", m.EvictPod),
		{"rollout", func(ctx context.Context) (end, error) {
			pods, err := m.Pods(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return m.AwaitAvailable(ctx, slices.Collect(maps.Keys(pods))...) }, m.Roll(ctx)
		}},
		{"scale up and down", func(ctx context.Context) (end, error) {
			if err := errors.Join(m.Scale(ctx, m.replicas+1), m.AwaitAvailable(ctx)); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return m.AwaitAvailable(ctx) }, m.Scale(ctx, m.replicas)
		}},
	}
}

// anyPod returns a pod that is not terminating.
func (m members) anyPod(ctx context.Context) (*corev1.Pod, error) {
	pods, err := m.Pods(ctx)
	maps.DeleteFunc(pods, func(_ string, p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(pods) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no running pod", m.Namespace))
	}
	names := slices.Sorted(maps.Keys(pods))
	return pods[names[m.random.IntN(len(names))]], err
}

// Check also returns an error if a name was used twice, which counts as stale.
func (m members) Check() (journal.Summary, error) {
	summary, err := m.Cluster.Check()
	_, twice := m.names.Count()
	if twice != nil {
		summary.Stale++
	}
	return summary, errors.Join(err, twice)
}

// evict requests the eviction of all pods on the node.
func (m members) evict(ctx context.Context, node string) error {
	pods, err := m.Pods(ctx)
	for _, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		if failed := m.EvictPod(ctx, pod); !apierrors.IsTooManyRequests(failed) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// settle waits until all pods are available, and none is lost.
func (m members) settle(ctx context.Context) error {
	if err := m.Scale(ctx, m.replicas); err != nil {
		return err
	}
	return world.Await(ctx, m.Namespace+": all pods are available, and none is lost", func(ctx context.Context) error {
		got, err := m.Read(ctx)
		if err != nil || len(got.Status.Members) == int(m.replicas) && got.Status.AvailableReplicas == m.replicas {
			return err
		}
		return errors.Join(fmt.Errorf("members %v: %s", world.MembersOf(got), got.Status.Message), m.attestFailed(ctx))
	})
}

// attestFailed attests the termination of pods, as a person does. After a node was killed, its kubelet can report that it could not
// locate the containers of a pod. That is no proof, although no process of the pod runs.
func (m members) attestFailed(ctx context.Context) error {
	pods, err := m.Pods(ctx)
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil && pod.Status.Phase == corev1.PodFailed {
			err = errors.Join(err, m.Attest(ctx, pod.UID))
		}
	}
	return err
}
