package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// eventLog prints the events of a singleton and its pods, each event once, with the time since the beginning.
type eventLog struct {
	start      time.Time
	singletons watch.Interface
	pods       watch.Interface
	// epoch is the epoch at the beginning. The handoff is complete when a pod runs with a higher epoch.
	epoch int64
	told  map[string]bool
}

// watchEvents starts the watches. It does not print the initial state.
func watchEvents(ctx context.Context, c client.WithWatch) (*eventLog, error) {
	s := &eventLog{told: map[string]bool{}}
	singleton := &v1.StatefulSingleton{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, singleton); err != nil {
		return nil, fmt.Errorf("read StatefulSingleton %s: %w", name, err)
	}
	s.epoch = singleton.Status.Epoch
	var pods corev1.PodList
	own := client.MatchingLabels{v1.SingletonLabel: name}
	if err := c.List(ctx, &pods, client.InNamespace(namespace), own); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		for _, line := range podLines(&pods.Items[i]) {
			s.told[line] = true
		}
	}
	var err error
	if s.singletons, err = c.Watch(ctx, &v1.StatefulSingletonList{}, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("watch StatefulSingletons: %w", err)
	}
	if s.pods, err = c.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), own); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return s, nil
}

func (s *eventLog) begin(now time.Time) {
	s.start = now
	fmt.Printf("%9s  %s\n", "ms", "event")
}

// tell prints a line for each step until the next holder runs.
func (s *eventLog) tell(ctx context.Context) error {
	defer s.singletons.Stop()
	defer s.pods.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the handoff is not complete after %s; see kubectl describe stfs %s", patience, name)
		case e := <-s.pods.ResultChan():
			if pod, ok := e.Object.(*corev1.Pod); ok {
				s.say(podLines(pod)...)
				if e.Type == watch.Deleted {
					s.say(fmt.Sprintf("%s is removed", pod.Name))
				}
			}
		case e := <-s.singletons.ResultChan():
			singleton, ok := e.Object.(*v1.StatefulSingleton)
			if !ok || singleton.Name != name {
				continue
			}
			s.recorded(singleton)
			if singleton.Status.Epoch > s.epoch && singleton.Status.Phase == v1.PhaseRunning {
				return nil
			}
		}
	}
}

func (s *eventLog) say(lines ...string) {
	for _, line := range lines {
		if !s.told[line] {
			s.told[line] = true
			fmt.Printf("%9d  %s\n", time.Since(s.start).Milliseconds(), line)
		}
	}
}

// recorded prints changes of the record.
func (s *eventLog) recorded(singleton *v1.StatefulSingleton) {
	status := &singleton.Status
	t := status.LastTransition
	if status.Epoch > s.epoch && t != nil {
		s.say(fmt.Sprintf("controller: record: %s is the holder with epoch %d; %s is dead, by proof %s", status.ActivePod, status.Epoch, t.From, t.Proof))
	}
	s.say("controller: " + strings.SplitN(status.Message, "; pod ", 2)[0])
	if status.Epoch > s.epoch && t != nil && t.Ready != nil {
		s.say("controller: handoff complete")
	}
}

// podLines returns the lines for the state of a pod.
func podLines(pod *corev1.Pod) []string {
	lines := []string{fmt.Sprintf("%s was created, and Kyverno injected it", pod.Name)}
	say := func(when bool, format string) {
		if when {
			lines = append(lines, fmt.Sprintf(format, pod.Name))
		}
	}
	app := slices.IndexFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.Name == "app" })
	say(pod.Spec.NodeName != "", "%s is scheduled to "+pod.Spec.NodeName)
	say(app >= 0 && pod.Status.ContainerStatuses[app].State.Running != nil, "%s is warm: image, volumes and sidecar are ready, and the main process is held")
	say(pod.Annotations[signal.Annotation] != "", "%s is signalled")
	say(proof.IsTrue(pod, corev1.PodReady), "%s is Ready")
	say(pod.DeletionTimestamp != nil, "%s is terminating")
	say(app >= 0 && pod.Status.ContainerStatuses[app].State.Terminated != nil, "%s: the kubelet reports that the process has terminated")
	return lines
}
