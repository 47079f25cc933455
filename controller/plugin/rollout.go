package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
)

// rolloutCommand returns the counterpart of kubectl rollout for StatefulClusters.
func (c commands) rolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Follow, list and undo the rollouts of a StatefulCluster",
		Long: `rollout does for a StatefulCluster what kubectl rollout does for a StatefulSet. kubectl rollout works only with kinds
of Kubernetes itself.`,
		Example: `  # Wait until all pods have the new template
  kubectl stfs rollout status stc/db

  # List the revisions of the template, and return to the last one
  kubectl stfs rollout history stc/db
  kubectl stfs rollout undo stc/db`,
	}
	cmd.AddCommand(c.rolloutStatusCommand(), c.rolloutHistoryCommand(), c.rolloutUndoCommand())
	return cmd
}

func (c commands) rolloutStatusCommand() *cobra.Command {
	watch, timeout := true, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "status stc/NAME",
		Short: "Wait until a rollout is complete",
		Long: `status prints each change of a rollout, until all pods have the new template and are available. The exit code is 1 if a
person must act, or if the rollout takes longer than --timeout.`,
		Example: `  kubectl stfs rollout status stc/db --timeout=5m`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeKinds(clusterKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			return c.rolloutStatus(ctx, in, args[0], watch, timeout)
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "wait until the rollout is complete")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "time after which the command fails. 0: no limit")
	return cmd
}

func (c commands) rolloutStatus(ctx context.Context, in *cluster, arg string, watch bool, timeout time.Duration) error {
	if timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	_, name, err := parse(arg, []kind{clusterKind})
	if err != nil {
		return err
	}
	last, complete := "", false
	err = follow(ctx, func(ctx context.Context) (done bool, err error) {
		o, err := in.findCluster(ctx, arg)
		if err != nil {
			return false, err
		}
		var text string
		if text, complete, err = rolloutState(o); err != nil {
			return false, errors.New(in.amended(err.Error()))
		}
		if text != last {
			err = c.print("%s\n", text)
		}
		last = text
		return complete || !watch, err
	})
	if !complete && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the rollout is not complete after %s: %s. To show the pods, run: %s", timeout, last, in.kubectl("get pods -n %s -l %s=%s", in.namespace, v1.ClusterLabel, name))
	}
	return err
}

// rolloutState returns what a rollout waits for, and whether it is complete. The error says what a person must do.
func rolloutState(o *v1.StatefulCluster) (text string, complete bool, err error) {
	switch {
	case o.Spec.UpdateStrategy.Type == v1.ClusterOnDelete:
		return "", false, fmt.Errorf("StatefulCluster %s has update strategy OnDelete, so no rollout replaces its pods. Delete the pods that must get the new template", fullName(o))
	case o.Status.ObservedGeneration < o.Generation:
		return fmt.Sprintf("StatefulCluster %s: waits until the controller has seen the change", fullName(o)), false, nil
	case meta.IsStatusConditionTrue(o.Status.Conditions, v1.ConditionStalled):
		return "", false, fmt.Errorf("the rollout of StatefulCluster %s waits for a person: %s", fullName(o), o.Status.Message)
	}
	text = fmt.Sprintf("StatefulCluster %s: %s", fullName(o), o.Status.Message)
	return text, meta.IsStatusConditionTrue(o.Status.Conditions, v1.ConditionReady), nil
}

func (c commands) rolloutHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history stc/NAME",
		Short: "List the revisions of the template",
		Long: `history lists the revisions of the template that still exist, the number of pods with each revision, and the images. Each
revision is a ControllerRevision.`,
		Example: `  kubectl stfs rollout history stc/db`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeKinds(clusterKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			return c.rolloutHistory(ctx, in, args[0])
		}),
	}
}

func (c commands) rolloutHistory(ctx context.Context, in *cluster, arg string) error {
	o, revisions, err := in.history(ctx, arg)
	if err != nil {
		return err
	}
	return c.print("%s", columns(func(row func(cells ...string)) {
		row("REVISION", "NAME", "PODS", "IMAGES")
		for i := range revisions {
			pods := 0
			for _, m := range o.Status.Members {
				if m.Revision == revisions[i].Name && m.UID != "" {
					pods++
				}
			}
			row(strconv.FormatInt(revisions[i].Revision, 10), revisions[i].Name, strconv.Itoa(pods), imagesOf(revisions[i].Data.Raw))
		}
	}))
}

// imagesOf returns the images of a template.
func imagesOf(data []byte) string {
	var template corev1.PodTemplateSpec
	if json.Unmarshal(data, &template) != nil {
		return "-"
	}
	var images []string
	for i := range template.Spec.Containers {
		images = append(images, template.Spec.Containers[i].Image)
	}
	return strings.Join(images, ", ")
}

func (c commands) rolloutUndoCommand() *cobra.Command {
	number := int64(0)
	cmd := &cobra.Command{
		Use:   "undo stc/NAME",
		Short: "Return to an earlier revision of the template",
		Long: `undo writes the template of an earlier revision into spec.template. The controller then rolls the pods out as after any
other change. By default, it is the revision before the newest one.`,
		Example: `  kubectl stfs rollout undo stc/db
  kubectl stfs rollout undo stc/db --to-revision=2`,
		Args: takes(1, 1), ValidArgsFunction: c.completeKinds(clusterKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			return c.rolloutUndo(ctx, in, args[0], number)
		}),
	}
	cmd.Flags().Int64Var(&number, "to-revision", 0, "revision to return to. 0: the revision before the newest one")
	return cmd
}

func (c commands) rolloutUndo(ctx context.Context, in *cluster, arg string, number int64) error {
	o, revisions, err := in.history(ctx, arg)
	if err != nil {
		return err
	}
	if number == 0 {
		if len(revisions) < 2 {
			return fmt.Errorf("StatefulCluster %s has no earlier revision. spec.revisionHistoryLimit is the number of old revisions that are kept", fullName(o))
		}
		number = revisions[len(revisions)-2].Revision
	}
	i := slices.IndexFunc(revisions, func(r appsv1.ControllerRevision) bool { return r.Revision == number })
	if i < 0 {
		return fmt.Errorf("StatefulCluster %s has no revision %d. To list the revisions, run: %s", fullName(o), number, in.kubectl("stfs rollout history stc/%s -n %s", o.Name, o.Namespace))
	}
	template := revisions[i].Data.Raw
	if sameTemplate(o.Spec.Template.Raw, template) {
		return c.print("StatefulCluster %s already has the template of revision %d\n", fullName(o), number)
	}
	before := o.DeepCopy()
	o.Spec.Template.Raw = template
	if err := in.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("change the template of StatefulCluster %s: %w", fullName(o), err)
	}
	return c.print("StatefulCluster %s has the template of revision %d. To follow the rollout, run: %s\n", fullName(o), number, in.kubectl("stfs rollout status stc/%s -n %s", o.Name, o.Namespace))
}

func sameTemplate(a, b []byte) bool {
	var one, other any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && equality.Semantic.DeepEqual(one, other)
}

// findCluster reads the StatefulCluster of an argument such as stc/db.
func (c *cluster) findCluster(ctx context.Context, arg string) (*v1.StatefulCluster, error) {
	o, err := c.read(ctx, arg, clusterKind)
	if err != nil {
		return nil, err
	}
	return o.(*v1.StatefulCluster), nil
}

// history reads a StatefulCluster and its revisions, with the newest last.
func (c *cluster) history(ctx context.Context, arg string) (*v1.StatefulCluster, []appsv1.ControllerRevision, error) {
	o, err := c.findCluster(ctx, arg)
	if err != nil {
		return nil, nil, err
	}
	var list appsv1.ControllerRevisionList
	if err := c.List(ctx, &list, client.InNamespace(o.Namespace), client.MatchingLabels{v1.ClusterLabel: o.Name}); err != nil {
		return nil, nil, err
	}
	revisions := slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool { return !owner.Controls(o, owner.StatefulCluster, &r) })
	slices.SortFunc(revisions, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return o, revisions, nil
}
