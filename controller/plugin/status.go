package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Status is the output of `kubectl stfs status -o json` for one StatefulSingleton. Fields can be added, but are never
// renamed or removed.
type Status struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is status.phase. It is empty while no pod exists and none is expected.
	Phase v1.Phase `json:"phase"`
	// Epoch is the epoch of the holder, or of the last holder.
	Epoch int64 `json:"epoch"`
	// Message describes the state. If the handoff does not continue without a person, the message says what to do.
	Message string `json:"message"`
	// Deleting: the StatefulSingleton is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Pods are the pods of the singleton: the holder, unrecorded pods, the standbys in the order of their release,
	// and the rest.
	Pods []Pod `json:"pods"`
	// LastTransition is status.lastTransition.
	LastTransition *v1.Transition `json:"lastTransition,omitempty"`
	// Handover is status.handover.
	Handover *v1.Handover `json:"handover,omitempty"`
	// Conditions are status.conditions.
	Conditions []metav1.Condition `json:"conditions"`
}

// StatusList is the output of `kubectl stfs status -o json` for several StatefulSingletons.
type StatusList struct {
	Items []Status `json:"items"`
}

// Pod is a pod of a singleton.
type Pod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Role is the role of the pod, as in package handoff.
	Role handoff.Role `json:"role"`
	// Node is the node of the pod. It is empty before the pod is bound.
	Node string `json:"node,omitempty"`
	// Phase is the phase of the pod: Pending, Running, Succeeded or Failed.
	Phase corev1.PodPhase `json:"phase,omitempty"`
	Ready bool            `json:"ready"`
	// Stopping: the pod is terminating.
	Stopping bool `json:"stopping,omitempty"`
	// Gone: the record names the pod, but the pod does not exist.
	Gone bool `json:"gone,omitempty"`
	// WaitsFor is the reason why a standby is not warm. Empty: the standby is warm.
	WaitsFor string `json:"waitsFor,omitempty"`
}

// statusRequest has the arguments of the command.
type statusRequest struct {
	// name is empty for all singletons of the namespace.
	name   string
	all    bool
	watch  bool
	output string
}

func (c commands) statusCommand() *cobra.Command {
	var r statusRequest
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show the holder, the standbys and the last handoff",
		Long: `status shows the holder of a StatefulSingleton, its standbys and what they wait for, the conditions, and a timeline
of the last handoff. Without NAME it shows one line for each StatefulSingleton of the namespace.

-o json and -o yaml print the same data for scripts. Fields can be added, but are never renamed or removed.`,
		Example: `  # Show all details of a StatefulSingleton
  kubectl stfs status db

  # List the StatefulSingletons of all namespaces
  kubectl stfs status -A

  # Follow a rollout
  kubectl stfs status db -w

  # Print the names of the warm standbys
  kubectl stfs status db -o json | jq -r '.pods[] | select(.role == "Standby" and .waitsFor == null) | .name'`,
		Args:              takes(0, 1),
		ValidArgsFunction: c.completeName,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			if len(args) > 0 {
				r.name = args[0]
			}
			return c.status(ctx, in, r)
		}),
	}
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "show the StatefulSingletons of all namespaces")
	cmd.Flags().BoolVarP(&r.watch, "watch", "w", false, "keep running, and show each change")
	cmd.Flags().StringVarP(&r.output, "output", "o", "text", "text, json or yaml")
	completeOutput(cmd, "text", "json", "yaml")
	return cmd
}

func (c commands) status(ctx context.Context, in *cluster, r statusRequest) error {
	switch {
	case r.all && r.name != "":
		return errors.New("-A shows the StatefulSingletons of all namespaces, so it cannot be used with a name. Leave out the name, or replace -A with -n and a namespace")
	case r.output != "text" && r.output != "json" && r.output != "yaml":
		return fmt.Errorf("--output is %q: use text, json or yaml", r.output)
	}
	namespace := in.namespace
	if r.all {
		namespace = metav1.NamespaceAll
	}
	last := ""
	show := func() error {
		statuses, err := c.statuses(ctx, in, namespace, r.name)
		if err != nil {
			return err
		}
		text, err := r.format(statuses, namespace)
		if err != nil || text == last {
			return err
		}
		before := ""
		if last != "" {
			before = separator(r.output)
		}
		last = text
		return c.print("%s%s", before, text)
	}
	if !r.watch {
		return show()
	}
	return in.follow(ctx, namespace, show)
}

// statuses reads the singleton with the name, or all singletons of the namespace.
func (c commands) statuses(ctx context.Context, in *cluster, namespace, name string) ([]Status, error) {
	var singletons []v1.StatefulSingleton
	if name != "" {
		singleton, err := in.find(ctx, name)
		if err != nil {
			return nil, err
		}
		singletons = []v1.StatefulSingleton{*singleton}
	} else {
		var err error
		if singletons, err = in.list(ctx, namespace); err != nil {
			return nil, err
		}
	}
	const atOnce = 8
	statuses := make([]Status, len(singletons))
	reads, readContext := errgroup.WithContext(ctx)
	reads.SetLimit(atOnce)
	for i := range singletons {
		reads.Go(func() error {
			s, err := in.look(readContext, &singletons[i])
			if err != nil {
				return err
			}
			statuses[i] = c.statusOf(s)
			return nil
		})
	}
	return statuses, reads.Wait()
}

func (c commands) statusOf(s view) Status {
	singleton := s.Singleton
	status := Status{
		Namespace: singleton.Namespace, Name: singleton.Name,
		Phase: singleton.Status.Phase, Epoch: singleton.Status.Epoch, Message: singleton.Status.Message,
		Deleting: !singleton.DeletionTimestamp.IsZero(), Pods: podsOf(s.Snapshot),
		LastTransition: singleton.Status.LastTransition, Handover: singleton.Status.Handover,
		Conditions: append([]metav1.Condition{}, singleton.Status.Conditions...),
	}
	if status.Deleting && !s.nodesHidden {
		_, waitsFor := handoff.KeptWhileDeleting(s.Snapshot, c.clock.Now())
		status.Message = cmp.Or(waitsFor, status.Message)
	}
	return status
}

// podsOf returns the pods of the singleton, including a recorded holder that does not exist.
func podsOf(s handoff.Snapshot) []Pod {
	pods := []Pod{}
	record := &s.Singleton.Status
	classified := handoff.Classify(s)
	if record.ActivePodUID != "" && (len(classified) == 0 || classified[0].Pod.UID != record.ActivePodUID) {
		pods = append(pods, Pod{Name: record.ActivePod, UID: record.ActivePodUID, Role: handoff.Holder, Node: record.ActiveNode, Gone: true})
	}
	for _, is := range classified {
		pods = append(pods, Pod{
			Name: is.Pod.Name, UID: is.Pod.UID, Role: is.Role, Node: is.Pod.Spec.NodeName, Phase: is.Pod.Status.Phase,
			Ready:    proof.IsTrue(is.Pod, corev1.PodReady),
			Stopping: is.Pod.DeletionTimestamp != nil,
			WaitsFor: is.WaitsFor,
		})
	}
	return pods
}

// format writes one status, or a list, in the requested format.
func (r statusRequest) format(statuses []Status, namespace string) (string, error) {
	var object any = StatusList{Items: statuses}
	if r.name != "" {
		object = statuses[0]
	}
	switch {
	case r.output == "json":
		data, err := json.MarshalIndent(object, "", "  ")
		return string(data) + "\n", err
	case r.output == "yaml":
		data, err := yaml.Marshal(object)
		return string(data), err
	case r.name != "":
		return statuses[0].text(), nil
	}
	return table(statuses, namespace), nil
}

// separator is printed before each update.
func separator(output string) string {
	switch output {
	case "json":
		return ""
	case "yaml":
		return "---\n"
	}
	return "\n"
}
