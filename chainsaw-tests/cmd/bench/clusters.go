package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const clustersUsage = `bench clusters replaces and adds pods of StatefulClusters and StatefulSets, and measures how long that takes.
It is the third part of make bench. Run it on the local cluster, without any other load.

Each round does one change for every useful combination of a system and a cause, each with a new workload.
Ctrl-C ends the run and writes the results so far. The exit code is 1 if a change failed (see "failed" in the file).

Systems:  %s
Causes:   %s

Flags:
`

// clusterSystem is a kind of workload.
type clusterSystem struct {
	figures.Term
	statefulSet bool
}

// clusterCause changes a workload.
type clusterCause struct {
	figures.Term
	// replicas is the number of pods before the change, and created the number of pods that the change creates.
	replicas, created int32
	begin             func(*clusterChange, context.Context) error
	// end runs after the measurement. It can be nil.
	end func(*clusterChange, context.Context) error
	// systems are the measured systems, or nil for all.
	systems []string
}

const (
	clusterName = "statefulcluster"
	manyPods    = 100
	// lostAfter is how long the pods stay bound to a lost node, in seconds.
	lostAfter = 5
	// clusterPatience is how long to wait for a change.
	clusterPatience = 5 * time.Minute
)

var allClusterSystems = []clusterSystem{
	{term(clusterName, "a StatefulCluster. Each pod has a claim"), false},
	{term("statefulset", "a StatefulSet with `podManagementPolicy: Parallel`. Each pod has a claim"), true},
}

var allClusterCauses = []clusterCause{
	{Term: term("deleted", "a pod of three is deleted, and the application stops immediately"), replicas: 3, created: 1, begin: (*clusterChange).deletePod},
	// A StatefulSet waits for the node.
	{
		Term:     term(nodeLost, fmt.Sprintf("the node of a pod of three is killed, as in a power failure. The pods tolerate that for %d s", lostAfter)),
		replicas: 3, created: 1, begin: (*clusterChange).loseNode, end: (*clusterChange).healNode, systems: []string{clusterName},
	},
	{
		Term:    term("scaled", fmt.Sprintf("a workload without pods is scaled to %d pods", manyPods)),
		created: manyPods, begin: func(c *clusterChange, ctx context.Context) error { return c.Scale(ctx, manyPods) },
	},
}

// clustersOptions are the options of bench clusters.
type clustersOptions struct {
	systems []clusterSystem
	causes  []clusterCause
	rounds  int
	// out is the file of all samples, and summary is the file of the figures.
	out, summary string
	report       bool
}

func parseClusters(args []string) (clustersOptions, error) {
	o := clustersOptions{}
	flags := flag.NewFlagSet("bench clusters", flag.ContinueOnError)
	systems := flags.String("systems", strings.Join(names(allClusterSystems), ","), "systems to measure, comma-separated")
	causes := flags.String("causes", strings.Join(names(allClusterCauses), ","), "causes of a change, comma-separated")
	flags.IntVar(&o.rounds, "n", 5, "number of changes of each combination")
	flags.StringVar(&o.out, "out", "dist/bench/clusters.json", "`file` of all samples")
	flags.StringVar(&o.summary, "summary", "", "`file` of the figures, without samples")
	flags.BoolVar(&o.report, "report", false, "write the figures of -summary into the page of the same name, without a run")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), clustersUsage, strings.Join(names(allClusterSystems), ", "), strings.Join(names(allClusterCauses), ", "))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var failed [3]error
	failed[0] = checkFlags(flags, o.rounds, o.report, o.summary)
	o.systems, failed[1] = choose(allClusterSystems, *systems)
	o.causes, failed[2] = choose(allClusterCauses, *causes)
	return o, errors.Join(failed[:]...)
}

// causesOf returns the measured causes of a system.
func (o clustersOptions) causesOf(s clusterSystem) []clusterCause {
	return slices.DeleteFunc(slices.Clone(o.causes), func(c clusterCause) bool {
		return c.systems != nil && !slices.Contains(c.systems, s.Name)
	})
}

func benchClusters(ctx context.Context, o clustersOptions) error {
	if o.report {
		return reportTables[figures.Clusters](o.summary)
	}
	nodes, described, err := connect(ctx, o.summary)
	if err != nil {
		return err
	}
	results := &figures.Clusters{Run: described, Systems: terms(o.systems), Causes: terms(o.causes)}
	for _, c := range o.causes { // in the order of the page
		for _, s := range o.systems {
			if c.systems == nil || slices.Contains(c.systems, s.Name) {
				results.Row(s.Name, c.Name)
			}
		}
	}
	failed := o.measure(ctx, nodes.World, results)
	printClusters(results)
	if o.summary != "" {
		err = figures.Write(o.summary, results.Summary())
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d changes failed, see \"failed\" in %s", failed, o.out))
	}
	return errors.Join(err, ctx.Err())
}

// measure runs all rounds. It records failures, and returns how many there were.
func (o clustersOptions) measure(ctx context.Context, w *world.World, results *figures.Clusters) (failed int) {
	for round := range o.rounds {
		systems := slices.Clone(o.systems)
		// In random order, so changes of the machine over time affect all systems equally.
		rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(systems), func(i, j int) { systems[i], systems[j] = systems[j], systems[i] })
		for _, s := range systems {
			for _, c := range o.causesOf(s) {
				sample, err := once(ctx, w, s, c)
				if ctx.Err() != nil {
					return failed
				}
				row := results.Row(s.Name, c.Name)
				if err != nil {
					failed++
					row.Failed = append(row.Failed, err.Error())
				} else {
					row.Samples = append(row.Samples, sample)
				}
				fmt.Printf("bench: round %d/%d: %s %s: created after %d ms, Ready after %d ms, %v\n", round+1, o.rounds, s.Name, c.Name, sample.CreatedMS, sample.ReadyMS, err)
				results.Compute()
				if err := figures.Write(o.out, results); err != nil {
					fmt.Printf("bench: %v\n", err)
				}
			}
		}
	}
	return failed
}

func printClusters(results *figures.Clusters) {
	line, flush := newTable(os.Stdout)
	defer flush()
	line("\nmilliseconds: p50 p95 max", "cause", "n", "failed", "created", "Ready", "to a StatefulSet")
	for _, row := range results.Rows {
		line(row.System, row.Cause, row.N, len(row.Failed), triple(row.CreatedMS), triple(row.ReadyMS), results.RatioTo("statefulset", row))
	}
}

// clusterChange is one change of a workload.
type clusterChange struct {
	*world.Cluster
	// pod is the pod that is deleted, or whose node is lost.
	pod *corev1.Pod
}

// once measures one change of a new workload.
func once(ctx context.Context, w *world.World, s clusterSystem, c clusterCause) (_ figures.Replacement, err error) {
	cluster, err := w.NewCluster(ctx, "bench", world.ClusterOptions{
		Spec:        v1.StatefulClusterSpec{Replicas: &c.replicas, PodManagementPolicy: v1.ClusterParallel},
		StatefulSet: s.statefulSet, Volumes: int(c.replicas + c.created),
		Env: map[string]string{"STOP_SECONDS": "0", "ALIVE_SECONDS": ""}, Pod: spread,
	})
	if cluster == nil {
		return figures.Replacement{}, err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, cluster.Remove(ctx), awaitRemoved(ctx, w, cluster.Namespace))
	}()
	if err != nil {
		return figures.Replacement{}, err
	}
	pods, err := cluster.Pods(ctx)
	if err != nil {
		return figures.Replacement{}, err
	}
	change := &clusterChange{Cluster: cluster}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		// The leader and Kyverno are on the first node.
		if change.pod == nil || pods[name].Spec.NodeName > change.pod.Spec.NodeName {
			change.pod = pods[name]
		}
	}
	sample, err := change.measure(ctx, c, pods)
	if c.end != nil {
		err = errors.Join(err, c.end(change, context.WithoutCancel(ctx)))
	}
	return sample, err
}

// spread puts pods on both nodes.
func spread(spec *corev1.PodSpec) {
	world.TolerateLostNodes(lostAfter)(spec)
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{},
	}}
}

// measure causes the change, and follows the new pods by a watch until all of them are Ready.
func (c *clusterChange) measure(ctx context.Context, cause clusterCause, before map[string]*corev1.Pod) (sample figures.Replacement, err error) {
	ctx, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	watched, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(c.Namespace))
	if err != nil {
		return sample, err
	}
	defer watched.Stop()
	old := map[types.UID]bool{}
	for _, pod := range before {
		old[pod.UID] = true
	}
	start := time.Now()
	if err := cause.begin(c, ctx); err != nil {
		return sample, err
	}
	created, ready := map[types.UID]bool{}, map[types.UID]bool{}
	for event := range watched.ResultChan() {
		pod, is := event.Object.(*corev1.Pod)
		if !is || old[pod.UID] {
			continue
		}
		created[pod.UID] = true
		if len(created) == int(cause.created) && sample.CreatedMS == 0 {
			sample.CreatedMS = time.Since(start).Milliseconds()
		}
		if world.IsTrue(pod, corev1.PodReady) {
			ready[pod.UID] = true
		}
		if len(ready) == int(cause.created) {
			sample.ReadyMS = time.Since(start).Milliseconds()
			return sample, nil
		}
	}
	return sample, fmt.Errorf("%d of %d new pods exist, and %d are Ready", len(created), cause.created, len(ready))
}

func (c *clusterChange) deletePod(ctx context.Context) error { return c.DeletePod(ctx, c.pod, nil) }

func (c *clusterChange) loseNode(ctx context.Context) error {
	return c.World.Cluster(ctx, "node", "kill", c.pod.Spec.NodeName)
}

func (c *clusterChange) healNode(ctx context.Context) error {
	return errors.Join(c.World.Cluster(ctx, "up"), c.AwaitWhole(ctx))
}
