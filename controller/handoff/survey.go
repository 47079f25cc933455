package handoff

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Part is what a pod is to a singleton.
type Part string

const (
	// Holder: the record names it, so it may run its main processes.
	Holder Part = "Holder"
	// Standby: held for this singleton, and may be the next holder.
	Standby Part = "Standby"
	// Runner: it may run a main process though the record does not name it.
	Runner Part = "Runner"
	// Stranger: held for a singleton of another name, and stays held.
	Stranger Part = "Stranger"
	// Ended: it has ended, or is held and nothing releases it as it is.
	Ended Part = "Ended"
)

// Surveyed is a pod, and what it is to the singleton.
type Surveyed struct {
	Pod  *corev1.Pod
	Part Part
	// WaitsFor says what keeps a standby from being warm. Empty: it is warm, or no standby.
	WaitsFor string
}

// Survey tells of each pod of the Snapshot what it is to the singleton, by the same rules
// as Decide: the holder first, then what may run besides it, the standbys in the order in
// which they would be released, and the rest.
func Survey(s Snapshot) []Surveyed {
	d := &decision{Snapshot: s, status: s.Singleton.Status.DeepCopy()}
	d.sort()
	var all []Surveyed
	add := func(part Part, waitsFor string, pods ...*corev1.Pod) {
		for _, pod := range pods {
			all = append(all, Surveyed{pod, part, waitsFor})
		}
	}
	if d.holder != nil {
		add(Holder, "", d.holder)
	}
	add(Runner, "", d.runners...)
	for _, standby := range d.standbys {
		add(Standby, standby.waitsFor, standby.pod)
	}
	add(Stranger, "", d.strangers...)
	for i := range d.Pods {
		if pod := &d.Pods[i]; !surveyed(all, pod) {
			add(Ended, "", pod)
		}
	}
	return all
}

func surveyed(all []Surveyed, pod *corev1.Pod) bool {
	return slices.ContainsFunc(all, func(one Surveyed) bool { return one.Pod == pod })
}

// Holding is what keeps a container from starting its main process before the signal.
type Holding string

const (
	// ByWrapper: the gate stands in front of its command.
	ByWrapper Holding = "Wrapper"
	// ByBarrier: it needs a ConfigMap that does not exist yet.
	ByBarrier Holding = "Barrier"
	// ByNothing: the singleton asks for it to be held, and nothing holds it.
	ByNothing Holding = "Nothing"
)

// Hold is a container that must not start its main process before the signal.
type Hold struct {
	Container string
	// Init is whether it is an init container.
	Init bool
	By   Holding
	// ConfigMap is what a barrier waits for.
	ConfigMap string
}

// Holds lists the containers of the pod that the law speaks of, init containers first.
func Holds(pod *corev1.Pod, singleton *v1.StatefulSingleton) []Hold {
	var all []Hold
	for _, h := range held(pod, singleton) {
		hold := Hold{Container: h.name, Init: h.init, By: ByWrapper, ConfigMap: h.configMap}
		switch {
		case h.open:
			hold.By = ByNothing
		case h.configMap != "":
			hold.By = ByBarrier
		}
		all = append(all, hold)
	}
	return all
}
