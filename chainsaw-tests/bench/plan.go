package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/faults/world"
)

// system is what hands an application over.
type system struct {
	Name string
	// apply makes of an application one of this system.
	apply func(*world.Options)
}

// cause begins a handoff.
type cause struct {
	Name  string
	begin func(*turn, *handoff) error
}

// condition is what makes a handoff long.
type condition struct {
	Name string
	// About is what a reader of the figures is told.
	About string
	apply func(*world.Options)
	// pull: the node that takes the next pod lacks the image, and the registry serves
	// rate bytes a second, as many as it can where that is 0.
	pull bool
	rate int
}

const (
	initTime = 5 * time.Second
	stopTime = 3 * time.Second
	// imageSize and slow are those of the image that is pulled.
	imageSize = 300_000_000
	slow      = 30_000_000
)

const (
	wrapper  = "wrapper"
	barrier  = "barrier"
	recreate = "recreate"
)

var allSystems = []system{
	{wrapper, func(*world.Options) {}},
	{barrier, func(o *world.Options) { o.Barrier = true }},
	{recreate, func(o *world.Options) { o.Plain, o.Recreate = true, true }},
	{"statefulset", func(o *world.Options) { o.Plain, o.StatefulSet = true, true }},
	{"rollingupdate", func(o *world.Options) { o.Plain = true }},
}

var allCauses = []cause{
	{"rollout", func(t *turn, _ *handoff) error { return t.Roll(t.ctx) }},
	{"delete", func(t *turn, h *handoff) error { return t.DeletePod(t.ctx, h.old, nil) }},
	{"drain", (*turn).drain},
}

var allConditions = []condition{
	{Name: "cached", About: "the image is on the node", apply: func(*world.Options) {}},
	{Name: "pull", About: "an image of 300 MB is pulled at 30 MB/s", apply: pulled, pull: true, rate: slow},
	{Name: "pull-unlimited", About: "an image of 300 MB is pulled from a registry on the same machine, as fast as it goes", apply: pulled, pull: true},
	{Name: "init", About: "an init container takes 5 s", apply: func(o *world.Options) { o.InitTime = initTime }},
	{Name: "slow-stop", About: "the application takes 3 s to stop", apply: func(o *world.Options) {
		o.Env["STOP_SECONDS"] = fmt.Sprint(stopTime.Seconds())
	}},
}

func pulled(o *world.Options) { o.Image = pulledImage }

// plan is what a run measures.
type plan struct {
	systems    []system
	causes     []cause
	conditions []condition
}

func (p plan) combinations() int { return len(p.systems) * len(p.causes) * len(p.conditions) }

// workloads are the applications of one round, in an order of its own: what the
// machine does over time shall meet no system more than another.
func (p plan) workloads(round int) []workload {
	var all []workload
	for _, c := range p.conditions {
		for _, s := range p.systems {
			all = append(all, workload{s.Name, c.Name})
		}
	}
	rand.New(rand.NewPCG(0, uint64(round))).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// options are those of the application.
func (p plan) options(w workload) world.Options {
	o := world.Options{Env: map[string]string{"STOP_SECONDS": "0", "ALIVE_SECONDS": ""}}
	find(p.systems, w.system).apply(&o)
	find(p.conditions, w.condition).apply(&o)
	return o
}

// workload names one application of a run.
type workload struct{ system, condition string }

type named interface{ name() string }

func (s system) name() string    { return s.Name }
func (c cause) name() string     { return c.Name }
func (c condition) name() string { return c.Name }

func names[T named](all []T) []string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.name())
	}
	return texts
}

func find[T named](all []T, name string) T {
	return all[slices.IndexFunc(all, func(one T) bool { return one.name() == name })]
}

// choose finds the named ones, each once, in the order of all.
func choose[T named](all []T, text string) ([]T, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(text, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	var chosen []T
	for _, one := range all {
		if wanted[one.name()] {
			chosen = append(chosen, one)
			delete(wanted, one.name())
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("%q is unknown: choose among %s", strings.Join(slices.Sorted(maps.Keys(wanted)), ","), strings.Join(names(all), ", "))
	}
	return chosen, nil
}
