package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
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
	// Locks are the StatefulSetLocks.
	Locks []LockStatus `json:"locks,omitempty"`
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
	// name is the name of a singleton, and lock that of a StatefulSetLock. Both are empty for all objects of the namespace.
	name   string
	lock   string
	all    bool
	watch  bool
	output string
}

func (c commands) statusCommand() *cobra.Command {
	var r statusRequest
	cmd := &cobra.Command{
		Use:   "status [NAME | lock/NAME]",
		Short: "Show the holder or the writer, the other pods and the last handoff",
		Long: `status shows the holder of a StatefulSingleton, its standbys and what they wait for, the conditions, and the last
handoff. With lock/NAME it shows the writer of a StatefulSetLock. Without NAME it shows one line for each
StatefulSingleton and each StatefulSetLock of the namespace.

-o json and -o yaml print the same data for scripts. Fields can be added, but are never renamed or removed.`,
		Example: `  # Show all details of a StatefulSingleton
  kubectl stfs status db

  # Show all details of a StatefulSetLock
  kubectl stfs status lock/postgres

  # List the StatefulSingletons and StatefulSetLocks of all namespaces
  kubectl stfs status -A

  # Follow a rollout
  kubectl stfs status db -w

  # Print the names of the warm standbys
  kubectl stfs status db -o json | jq -r '.pods[] | select(.role == "Standby" and .waitsFor == null) | .name'`,
		Args:              takes(0, 1),
		ValidArgsFunction: c.completeNameOrLock,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			if len(args) > 0 {
				if name, ok := lockName(args[0]); ok {
					r.lock = name
				} else {
					r.name = args[0]
				}
			}
			return c.status(ctx, in, r)
		}),
	}
	cmd.Flags().BoolVarP(&r.all, "all-namespaces", "A", false, "show the objects of all namespaces")
	cmd.Flags().BoolVarP(&r.watch, "watch", "w", false, "keep running, and show each change")
	cmd.Flags().StringVarP(&r.output, "output", "o", "text", "text, json or yaml")
	completeOutput(cmd, "text", "json", "yaml")
	return cmd
}

func (c commands) status(ctx context.Context, in *cluster, r statusRequest) error {
	switch {
	case r.all && r.name+r.lock != "":
		return errors.New("-A shows the objects of all namespaces, so it cannot be used with a name. Leave out the name, or replace -A with -n and a namespace")
	case r.output != "text" && r.output != "json" && r.output != "yaml":
		return fmt.Errorf("--output is %q: use text, json or yaml", r.output)
	}
	namespace := in.namespace
	if r.all {
		namespace = metav1.NamespaceAll
	}
	last := ""
	show := func() error {
		all, err := c.statuses(ctx, in, namespace, r)
		if err != nil {
			return err
		}
		text, err := r.format(all, namespace)
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
	return in.follow(ctx, namespace, r.changes(), show)
}

// changes returns the objects whose changes change the output.
func (r statusRequest) changes() []watched {
	switch {
	case r.name != "":
		return singletonChanges
	case r.lock != "":
		return lockChanges
	}
	return slices.Concat(singletonChanges, lockChanges)
}

// statuses reads the requested singleton or lock, or all of the namespace.
func (c commands) statuses(ctx context.Context, in *cluster, namespace string, r statusRequest) (all StatusList, err error) {
	var singletons []v1.StatefulSingleton
	var locks []v1.StatefulSetLock
	switch {
	case r.name != "":
		singleton, err := in.findSingleton(ctx, r.name)
		if err != nil {
			return all, err
		}
		singletons = []v1.StatefulSingleton{*singleton}
	case r.lock != "":
		lock, err := in.findLock(ctx, r.lock)
		if err != nil {
			return all, err
		}
		locks = []v1.StatefulSetLock{*lock}
	default:
		if singletons, err = in.list(ctx, namespace); err != nil {
			return all, err
		}
		if locks, err = in.locks(ctx, namespace); err != nil {
			return all, err
		}
	}
	const atOnce = 8
	all.Items, all.Locks = make([]Status, len(singletons)), make([]LockStatus, len(locks))
	reads, readContext := errgroup.WithContext(ctx)
	reads.SetLimit(atOnce)
	for i := range singletons {
		reads.Go(func() error {
			s, err := in.look(readContext, &singletons[i])
			if err != nil {
				return err
			}
			all.Items[i] = c.statusOf(s)
			return nil
		})
	}
	for i := range locks {
		reads.Go(func() error {
			s, err := in.lookAtLock(readContext, &locks[i])
			if err != nil {
				return err
			}
			all.Locks[i] = s.status()
			return nil
		})
	}
	return all, reads.Wait()
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
	if status.Deleting && s.hidden == "" {
		_, _, message := handoff.Finalize(s.Snapshot, c.clock.Now())
		status.Message = cmp.Or(message, status.Message)
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

// format writes one status, or all, in the requested format.
func (r statusRequest) format(all StatusList, namespace string) (string, error) {
	var object any = all
	switch {
	case r.name != "":
		object = all.Items[0]
	case r.lock != "":
		object = all.Locks[0]
	}
	switch {
	case r.output == "json":
		data, err := json.MarshalIndent(object, "", "  ")
		return string(data) + "\n", err
	case r.output == "yaml":
		data, err := yaml.Marshal(object)
		return string(data), err
	case r.name != "":
		return all.Items[0].text(), nil
	case r.lock != "":
		return all.Locks[0].text(), nil
	case len(all.Locks) == 0:
		return table(all.Items, namespace), nil
	case len(all.Items) == 0:
		return lockTable(all.Locks, namespace), nil
	}
	return table(all.Items, namespace) + "\n" + lockTable(all.Locks, namespace), nil
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
