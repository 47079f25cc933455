package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// system is a way to run the application.
type system struct {
	figures.Term
	// apply changes the options of the application for the system.
	apply func(*world.Options)
	// causes and conditions are the measured causes and conditions, or nil for all.
	causes, conditions []string
}

// cause starts a handoff.
type cause struct {
	figures.Term
	begin func(*series, *handoff) error
	// systems and conditions are the measured systems and conditions, or nil for all.
	systems, conditions []string
}

// condition makes handoffs slower.
type condition struct {
	figures.Term
	apply func(*world.Options)
	// causes are the measured causes, or nil for all.
	causes []string
	// pull removes the image from the next pod's node.
	pull bool
}

const (
	initTime = 5 * time.Second
	stopTime = 3 * time.Second
	// imageSize is the size of the pulled image in bytes, and pullRate the rate of the registry in bytes per second.
	imageSize = 300_000_000
	pullRate  = 30_000_000
)

var allSystems = []system{
	{Term: term("wrapper", "StatefulSingleton with a Deployment with one replica, held by the wrapper"), apply: func(*world.Options) {}},
	{Term: term("barrier", "StatefulSingleton with a Deployment with one replica, held by the barrier"), apply: func(o *world.Options) { o.Barrier = true }, conditions: []string{"cached"}},
	{Term: term(figures.Recreate, "a Deployment with one replica and strategy Recreate"), apply: func(o *world.Options) { o.Plain, o.Recreate = true, true }},
	{Term: term("statefulset", "a StatefulSet with one replica"), apply: func(o *world.Options) { o.Plain, o.StatefulSet = true, true }},
	// The strategy only affects rollouts. After other causes, the ReplicaSet replaces the pod as with Recreate.
	{Term: term("rollingupdate", "a Deployment with one replica and strategy RollingUpdate, which runs two pods at once. After a deletion or a drain, it behaves like Recreate"),
		apply: func(o *world.Options) { o.Plain = true }, causes: []string{"rollout"}, conditions: []string{"cached"}},
	// A rollout does not use the spare.
	{Term: term("wrapper-spare", "StatefulSingleton with a Deployment with two replicas, held by the wrapper: one pod is always warm"),
		apply: func(o *world.Options) { o.Replicas = 2 }, causes: []string{"delete", "drain"}},
	{Term: term("wrapper-lease", "as wrapper, with fencing by a Lease of 15 s"), apply: fenced, conditions: []string{"cached"}},
	{Term: term("wrapper-lease-spare", "as wrapper-spare, with fencing by a Lease of 15 s"),
		apply:  func(o *world.Options) { fenced(o); o.Replicas = 2 },
		causes: []string{"delete", "drain", nodeLost}, conditions: []string{"cached"}},
}

var allCauses = []cause{
	{Term: term("rollout", "an annotation of the pod template is changed"), begin: func(t *series, _ *handoff) error { return t.Roll(t.ctx) }},
	{Term: term("delete", "the pod is deleted"), begin: func(t *series, h *handoff) error { return t.DeletePod(t.ctx, h.old, nil) }},
	{Term: term("drain", "the pod's node is cordoned and the pod is evicted, as `kubectl drain` does"), begin: (*series).drain},
	// Without a Lease, nothing takes over from a lost node.
	{Term: term(nodeLost, "the pod's node is killed, as in a power failure. The gap begins with the last entry of the old process, which writes one every 50 ms"),
		begin: (*series).loseNode, systems: []string{"wrapper-lease", "wrapper-lease-spare"}, conditions: []string{"cached"}},
}

const nodeLost = "node-lost"

// fenced turns on fencing. The application writes often into its journal, because it cannot record its exit on a lost node.
func fenced(o *world.Options) {
	o.LeaseDuration, o.Env["ALIVE_SECONDS"] = 15, "0.05"
}

var allConditions = []condition{
	{Term: term("cached", "the image is on the node"), apply: func(*world.Options) {}},
	{Term: term("pull", "an image of 300 MB is pulled at 30 MB/s, as from a registry across a network"),
		apply: func(o *world.Options) { o.Image = pulledImage }, causes: notDrained, pull: true},
	{Term: term("init", "an init container takes 5 s"), apply: func(o *world.Options) { o.InitTime = initTime }, causes: notDrained},
	{Term: term("slow-stop", "the application takes 3 s to stop"),
		apply: func(o *world.Options) { o.Env["STOP_SECONDS"] = fmt.Sprint(stopTime.Seconds()) }, causes: notDrained},
}

// notDrained are the causes under conditions. In a drain, StatefulSingleton works as in a rollout, and Kubernetes works as
// after a deletion.
var notDrained = []string{"rollout", "delete"}

func term(name, about string) figures.Term { return figures.Term{Name: name, About: about} }

// plan has the combinations that a run measures.
type plan struct {
	systems    []system
	causes     []cause
	conditions []condition
}

func (p plan) combinations() (n int) {
	for _, w := range p.workloads(0) {
		n += len(p.causesOf(w))
	}
	return n
}

// causesOf returns the measured causes of a workload.
func (p plan) causesOf(w workload) (causes []cause) {
	allowed := func(only []string, name string) bool { return only == nil || slices.Contains(only, name) }
	s, condition := find(p.systems, w.system), find(p.conditions, w.condition)
	for _, c := range p.causes {
		if allowed(s.causes, c.Name) && allowed(s.conditions, w.condition) && allowed(condition.causes, c.Name) &&
			allowed(c.systems, w.system) && allowed(c.conditions, w.condition) {
			causes = append(causes, c)
		}
	}
	return causes
}

// workloads returns the applications of a round in random order, so changes of the machine over time affect all systems
// equally.
func (p plan) workloads(round int) []workload {
	var all []workload
	for _, c := range p.conditions {
		for _, s := range p.systems {
			w := workload{s.Name, c.Name}
			pullsNothing := c.pull && p.options(w).Replicas > 1 // a warm spare has the image
			if len(p.causesOf(w)) > 0 && !pullsNothing {
				all = append(all, w)
			}
		}
	}
	rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// options returns the options of the application.
func (p plan) options(w workload) world.Options {
	o := world.Options{Env: map[string]string{"STOP_SECONDS": "0", "ALIVE_SECONDS": ""}}
	find(p.systems, w.system).apply(&o)
	find(p.conditions, w.condition).apply(&o)
	return o
}

// workload is one application of a run.
type workload struct{ system, condition string }

type named interface{ Named() figures.Term }

func names[T named](all []T) []string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.Named().Name)
	}
	return texts
}

func terms[T named](all []T) []figures.Term {
	var terms []figures.Term
	for _, one := range all {
		terms = append(terms, one.Named())
	}
	return terms
}

func find[T named](all []T, name string) T {
	return all[slices.IndexFunc(all, func(one T) bool { return one.Named().Name == name })]
}

// choose returns the named elements without duplicates, in the order of all.
func choose[T named](all []T, text string) ([]T, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(text, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	var chosen []T
	for _, one := range all {
		if wanted[one.Named().Name] {
			chosen = append(chosen, one)
			delete(wanted, one.Named().Name)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("%q is unknown: choose among %s", strings.Join(slices.Sorted(maps.Keys(wanted)), ","), strings.Join(names(all), ", "))
	}
	return chosen, nil
}
