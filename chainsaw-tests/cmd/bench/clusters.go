package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	// manyPods is the number of pods that "scaled" creates.
	manyPods = 100
	// lostAfter is how long the pods stay bound to a lost node, in seconds.
	lostAfter = 5
	// clusterPatience is how long to wait for a change.
	clusterPatience = 5 * time.Minute
)

// clusters measures replaced and added pods of a StatefulCluster beside a StatefulSet.
var clusters = subject{
	name:    "clusters",
	systems: []string{"statefulcluster", "statefulset"},
	causes:  []string{"deleted", nodeLost, "scaled"},
	// A StatefulSet waits for a lost node.
	measures: func(c combination) bool { return c.Cause != nodeLost || c.System == "statefulcluster" },
	metrics:  []string{"created", "Ready"},
	drawn:    "Ready",
	rounds:   5,
	begin: func(_ context.Context, l *lab, w workload) (series, error) {
		return &clusterSeries{l, w.System == "statefulset"}, nil
	},
	guarded: func(string) bool { return true },
}

// clusterSeries is a series of changes, each of a new workload.
type clusterSeries struct {
	*lab
	statefulSet bool
}

func (t *clusterSeries) end(context.Context) error { return nil }

// once measures one change of a new workload.
func (t *clusterSeries) once(ctx context.Context, cause string) (_ sample, err error) {
	replicas, added := int32(3), 1
	if cause == "scaled" {
		replicas, added = 0, manyPods
	}
	cluster, err := t.NewCluster(ctx, "bench", world.ClusterOptions{
		Spec:        v1.StatefulClusterSpec{Replicas: &replicas, PodManagementPolicy: v1.ClusterParallel},
		StatefulSet: t.statefulSet, Volumes: int(replicas) + added,
		Env: map[string]string{"STOP_SECONDS": "0", "ALIVE_SECONDS": ""}, Pod: onBothNodes,
	})
	if cluster == nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, t.remove(context.WithoutCancel(ctx), cluster)) }()
	if err != nil {
		return sample{}, err
	}
	before, err := cluster.Pods(ctx)
	if err != nil {
		return sample{}, err
	}
	ms, err := follow(ctx, cluster, before, added, func(ctx context.Context) error {
		switch cause {
		case "scaled":
			return cluster.Scale(ctx, manyPods)
		case "deleted":
			return t.DeletePod(ctx, onLastNode(before), nil)
		}
		return t.loseNode(ctx, onLastNode(before).Spec.NodeName)
	})
	if cause == nodeLost {
		err = errors.Join(err, t.healNode(context.WithoutCancel(ctx)))
	}
	return sample{ms: ms}, err
}

// onLastNode returns a pod on the second node, if there is one. The leader and Kyverno are on the first node.
func onLastNode(pods map[string]*corev1.Pod) (last *corev1.Pod) {
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if last == nil || pods[name].Spec.NodeName > last.Spec.NodeName {
			last = pods[name]
		}
	}
	return last
}

func onBothNodes(spec *corev1.PodSpec) {
	world.TolerateLostNodes(lostAfter)(spec)
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{},
	}}
}

// follow causes the change, and follows the new pods by a watch until all of them are Ready.
func follow(ctx context.Context, c *world.Cluster, before map[string]*corev1.Pod, added int, cause func(context.Context) error) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	watched, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(c.Namespace))
	if err != nil {
		return nil, err
	}
	defer watched.Stop()
	old := map[types.UID]bool{}
	for _, pod := range before {
		old[pod.UID] = true
	}
	begun, ms := time.Now(), map[string]int64{}
	if err := cause(ctx); err != nil {
		return nil, err
	}
	created, ready := map[types.UID]bool{}, map[types.UID]bool{}
	for event := range watched.ResultChan() {
		pod, is := event.Object.(*corev1.Pod)
		if !is || old[pod.UID] {
			continue
		}
		created[pod.UID] = true
		if len(created) == added && ms["created"] == 0 {
			ms["created"] = time.Since(begun).Milliseconds()
		}
		if world.IsTrue(pod, corev1.PodReady) {
			ready[pod.UID] = true
		}
		if len(ready) == added {
			ms["Ready"] = time.Since(begun).Milliseconds()
			return ms, nil
		}
	}
	return nil, fmt.Errorf("%d of %d new pods exist, and %d are Ready", len(created), added, len(ready))
}
