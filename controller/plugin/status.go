package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Status is the output of `kubectl stfs status -o json` for one StatefulSingleton or StatefulSetLock. Fields can be added, but
// are never renamed or removed.
type Status struct {
	kind      string
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is status.phase of a StatefulSingleton. It is empty while no pod exists and none is expected.
	Phase v1.Phase `json:"phase,omitempty"`
	// StatefulSet is spec.statefulSetName of a StatefulSetLock.
	StatefulSet string `json:"statefulSet,omitempty"`
	// Fencing is spec.fencing of a StatefulSetLock.
	Fencing v1.LockFencing `json:"fencing,omitempty"`
	// Epoch is the epoch of the holder or the writer, or of the last one.
	Epoch int64 `json:"epoch"`
	// Message describes the state. If nothing continues without a person, the message says what to do.
	Message string `json:"message"`
	// Deleting: the object is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Pods are the pods of a StatefulSingleton: the holder, unrecorded pods, the standbys in the order of their release, and the
	// rest. The pods of a StatefulSetLock are in the order of their ordinals.
	Pods []Pod `json:"pods"`
	// LastTransition is status.lastTransition.
	LastTransition any `json:"lastTransition,omitempty"`
	// change describes LastTransition.
	change change
	// Handover is status.handover of a StatefulSingleton.
	Handover *v1.Handover `json:"handover,omitempty"`
	// Conditions are status.conditions.
	Conditions []metav1.Condition `json:"conditions"`
}

// StatusList is the output of `kubectl stfs status -o json` for several objects.
type StatusList struct {
	// Items are the StatefulSingletons.
	Items []Status `json:"items"`
	// Locks are the StatefulSetLocks.
	Locks []Status `json:"locks,omitempty"`
}

// Pod is a pod of a StatefulSingleton or a StatefulSetLock.
type Pod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Role is the role of the pod, as in package handoff. In a StatefulSetLock, it is Writer for the recorded writer, and
	// Reader for other pods.
	Role string `json:"role"`
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
	// name is the name of a StatefulSingleton, or that of a StatefulSetLock after lock/. Empty: all objects.
	name   string
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
				r.name = args[0]
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
	case r.all && r.name != "":
		return errors.New("-A shows the objects of all namespaces, so it cannot be used with a name. Leave out the name, or replace -A with -n and a namespace")
	case r.output != "text" && r.output != "json" && r.output != "yaml":
		return fmt.Errorf("--output is %q: use text, json or yaml", r.output)
	}
	last := ""
	show := func(ctx context.Context) error {
		text, err := c.statusText(ctx, in, r)
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
		return show(ctx)
	}
	return follow(ctx, func(ctx context.Context) (done bool, err error) { return false, show(ctx) })
}

// pollInterval is how often a command that keeps running looks for changes.
const pollInterval = time.Second

// follow calls show now and periodically, until show is done or ctx ends.
func follow(ctx context.Context, show func(context.Context) (done bool, err error)) error {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, show)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// statusText returns the status of the requested objects in the requested format.
func (c commands) statusText(ctx context.Context, in *cluster, r statusRequest) (string, error) {
	if r.name != "" {
		o, err := in.lookAt(ctx, r.name)
		if err != nil {
			return "", err
		}
		status := o.status(c.clock.Now())
		return format(r.output, status, status.text())
	}
	namespace := in.namespace
	if r.all {
		namespace = metav1.NamespaceAll
	}
	all, err := c.statuses(ctx, in, namespace)
	if err != nil {
		return "", err
	}
	return format(r.output, all, all.text(namespace))
}

// statuses reads all objects of the namespace.
func (c commands) statuses(ctx context.Context, in *cluster, namespace string) (all StatusList, err error) {
	var singletons v1.StatefulSingletonList
	var locks v1.StatefulSetLockList
	if err := in.List(ctx, &singletons, client.InNamespace(namespace)); err != nil {
		return all, err
	}
	if err := in.List(ctx, &locks, client.InNamespace(namespace)); err != nil {
		return all, err
	}
	const atOnce = 8
	all.Items, all.Locks = make([]Status, len(singletons.Items)), make([]Status, len(locks.Items))
	reads, readContext := errgroup.WithContext(ctx)
	reads.SetLimit(atOnce)
	read := func(to *Status, look func() (observed, error)) {
		reads.Go(func() error {
			o, err := look()
			if err != nil {
				return err
			}
			*to = o.status(c.clock.Now())
			return nil
		})
	}
	for i := range singletons.Items {
		read(&all.Items[i], func() (observed, error) { return in.look(readContext, &singletons.Items[i]) })
	}
	for i := range locks.Items {
		read(&all.Locks[i], func() (observed, error) { return in.lookAtLock(readContext, &locks.Items[i]) })
	}
	return all, reads.Wait()
}

// format returns the object in the format of --output. The text is that of the object.
func format(output string, object any, text string) (string, error) {
	switch output {
	case "json":
		data, err := json.MarshalIndent(object, "", "  ")
		return string(data) + "\n", err
	case "yaml":
		data, err := yaml.Marshal(object)
		return string(data), err
	}
	return text, nil
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
