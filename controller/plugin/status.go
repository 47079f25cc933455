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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Status is the output of `kubectl stfs status -o json` for one object. Fields can be added, but
// are never renamed or removed.
type Status struct {
	kind string
	// state is the first line of the text.
	state     string
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is status.phase of a StatefulSingleton. It is empty while no pod exists and none is expected.
	Phase v1.Phase `json:"phase,omitempty"`
	// StatefulSet is spec.statefulSetName of a StatefulSetLock.
	StatefulSet string `json:"statefulSet,omitempty"`
	// Fencing is spec.fencing of a StatefulSetLock.
	Fencing v1.LockFencing `json:"fencing,omitempty"`
	// Epoch is the epoch of the holder or the writer, or of the last one. A StatefulCluster has none.
	Epoch *int64 `json:"epoch,omitempty"`
	// Replicas and Revision are spec.replicas and status.updateRevision of a StatefulCluster. AvailableReplicas and UpdatedReplicas are
	// those of its status.
	Replicas          *int32 `json:"replicas,omitempty"`
	AvailableReplicas *int32 `json:"availableReplicas,omitempty"`
	UpdatedReplicas   *int32 `json:"updatedReplicas,omitempty"`
	Revision          string `json:"revision,omitempty"`
	// Message describes the state. If nothing continues without a person, the message says what to do.
	Message string `json:"message"`
	// Deleting: the object is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Pods are the pods of a StatefulSingleton: the holder, unrecorded pods, the standbys in the order of their release, and the
	// rest. The pods of a StatefulSetLock are in the order of their ordinals, and those of a StatefulCluster in the order of its
	// record.
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
	// Clusters are the StatefulClusters.
	Clusters []Status `json:"clusters,omitempty"`
}

// Pod is a pod of an object.
type Pod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Role is the role of the pod, as in package handoff. In a StatefulSetLock, it is Writer for the recorded writer, and
	// Reader for other pods. In a StatefulCluster, it is the state of the member.
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
	// Revision is the revision of the pod of a StatefulCluster.
	Revision string `json:"revision,omitempty"`
	// WaitsFor is the reason why a standby is not warm, or what a member of a StatefulCluster waits for.
	WaitsFor string `json:"waitsFor,omitempty"`
}

// statusRequest has the arguments of the command.
type statusRequest struct {
	// args are no argument, or one that names an object.
	args   []string
	all    bool
	watch  bool
	output string
}

func (c commands) statusCommand() *cobra.Command {
	var r statusRequest
	cmd := &cobra.Command{
		Use:   "status [" + anyName + "]",
		Short: "Show the holder, the writer or the members, the other pods and the last handoff",
		Long: `status shows the holder of a StatefulSingleton, its standbys and what they wait for, the conditions, and the last
handoff. With ssl/NAME it shows the writer of a StatefulSetLock, and with stc/NAME the members of a StatefulCluster.
Without NAME it shows one line for each StatefulSingleton, StatefulSetLock and StatefulCluster of the namespace.

-o json and -o yaml print the same data for scripts. Fields can be added, but are never renamed or removed.`,
		Example: `  # Show all details of a StatefulSingleton
  kubectl stfs status db

  # Show all details of a StatefulSetLock
  kubectl stfs status ssl/postgres

  # Show the members of a StatefulCluster
  kubectl stfs status stc/cassandra

  # List the objects of all namespaces
  kubectl stfs status -A

  # Follow a rollout
  kubectl stfs status db -w

  # Print the names of the warm standbys
  kubectl stfs status db -o json | jq -r '.pods[] | select(.role == "Standby" and .waitsFor == null) | .name'`,
		Args:              takes(0, 1),
		ValidArgsFunction: c.completeKinds(allKinds...),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			r.args = args
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
	case r.all && len(r.args) > 0:
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
	if len(r.args) > 0 {
		o, err := in.lookAt(ctx, r.args[0])
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
	all.Items = []Status{}
	for _, of := range []struct {
		kind
		to *[]Status
	}{{singletonKind, &all.Items}, {lockKind, &all.Locks}, {clusterKind, &all.Clusters}} {
		objects, err := in.objects(ctx, of.kind, namespace)
		if err != nil {
			return all, err
		}
		looks, err := in.lookAtAll(ctx, objects)
		if err != nil {
			return all, err
		}
		for _, o := range looks {
			*of.to = append(*of.to, o.status(c.clock.Now()))
		}
	}
	return all, nil
}

// objects lists the objects of a kind in the namespace. There are no StatefulClusters if the chart was installed without them.
func (c *cluster) objects(ctx context.Context, of kind, namespace string) (objects []client.Object, err error) {
	list := of.emptyList.DeepCopyObject().(client.ObjectList)
	err = c.List(ctx, list, client.InNamespace(namespace))
	if meta.IsNoMatchError(err) && of.name == clusterKind.name {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		objects = append(objects, o.(client.Object))
		return nil
	})
	return objects, err
}

// lookAtAll reads the Snapshots of the objects.
func (c *cluster) lookAtAll(ctx context.Context, objects []client.Object) ([]observed, error) {
	const atOnce = 8
	all := make([]observed, len(objects))
	reads, readContext := errgroup.WithContext(ctx)
	reads.SetLimit(atOnce)
	for i := range objects {
		reads.Go(func() (err error) {
			all[i], err = c.look(readContext, objects[i])
			return err
		})
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
