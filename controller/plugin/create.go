package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// installPatience is how long create waits until the controller has installed the policy.
const installPatience = time.Minute

// creation has the flags of create.
type creation struct {
	fencing, dryRun, output string
	fix, sure               bool
}

func (c commands) createCommand() *cobra.Command {
	var is creation
	cmd := &cobra.Command{
		Use:   "create deployment/NAME | statefulset/NAME",
		Short: "Create a StatefulSingleton for a Deployment or StatefulSet, and report what its handoffs will be like",
		Long: `create reads a Deployment or StatefulSet with one replica, and creates a StatefulSingleton with the same name that
selects its pods. Before that, it reports what holds each container, which volumes let the next pod warm up, and what
else affects handoffs: strategy, probes, PodDisruptionBudgets and HorizontalPodAutoscalers.

create asks for confirmation. The running pod does not restart: it becomes the holder. create returns when new pods are
held, so that you can start a rollout.

With --fix, create also changes the strategy of the Deployment, if a rollout would stop the old pod before it creates the
next one. That starts no rollout. If Helm or a GitOps tool manages the Deployment, --fix fails and says what to change.`,
		Example: `  # Report, ask, and create
  kubectl stfs create deployment/db -n prod

  # Only report, and let the API server check the StatefulSingleton
  kubectl stfs create deployment/db -n prod --dry-run=server

  # Write a manifest for a repository
  kubectl stfs create deployment/db -n prod --fencing=Lease --dry-run=client -o yaml > db.yaml

  # Also change strategy Recreate, without questions
  kubectl stfs create deployment/db -n prod --fix --yes`,
		Args: takes(1, 1), ValidArgsFunction: c.completeWorkload,
		PreRunE: func(*cobra.Command, []string) error { return is.check() },
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			w, err := in.findWorkload(ctx, args[0])
			if err != nil {
				return err
			}
			return c.create(ctx, in, w, is)
		}),
	}
	cmd.Flags().StringVar(&is.fencing, "fencing", string(v1.FencingKubelet), "spec.fencing: Kubelet or Lease")
	cmd.Flags().StringVar(&is.dryRun, "dry-run", "none", "none, client, or server. client and server change nothing. With server, the API server checks the changes")
	cmd.Flags().StringVarP(&is.output, "output", "o", "text", "text or yaml. With yaml, print the StatefulSingleton, and the report to standard error")
	cmd.Flags().BoolVar(&is.fix, "fix", false, "also change the strategy of the Deployment, if its rollouts would be cold")
	cmd.Flags().BoolVarP(&is.sure, "yes", "y", false, "do not ask for confirmation")
	completeOutput(cmd, "text", "yaml")
	completeFlag(cmd, "fencing", cobra.FixedCompletions([]cobra.Completion{string(v1.FencingKubelet), string(v1.FencingLease)}, cobra.ShellCompDirectiveNoFileComp))
	completeFlag(cmd, "dry-run", cobra.FixedCompletions([]cobra.Completion{"none", "client", "server"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check returns an error for a flag with an unknown value.
func (is creation) check() error {
	for _, flag := range []struct {
		name, value string
		values      []string
	}{
		{"fencing", is.fencing, []string{string(v1.FencingKubelet), string(v1.FencingLease)}},
		{"dry-run", is.dryRun, []string{"none", "client", "server"}},
		{"output", is.output, []string{"text", "yaml"}},
	} {
		if !slices.Contains(flag.values, flag.value) {
			return fmt.Errorf("--%s is %q: use %s", flag.name, flag.value, strings.Join(flag.values, " or "))
		}
	}
	return nil
}

func (c commands) create(ctx context.Context, in *cluster, w *workload, is creation) error {
	singleton, err := w.singleton(v1.Fencing(is.fencing))
	if err != nil {
		return err
	}
	if err := in.refuse(ctx, w, singleton); err != nil {
		return err
	}
	var fix []byte
	if is.fix {
		if fix, err = w.fix(in); err != nil {
			return err
		}
	}
	report, err := in.report(ctx, w, singleton, fix != nil)
	if err != nil {
		return err
	}
	to := c.Out
	if is.output == "yaml" {
		to = c.ErrOut
	}
	if err := printers.WriteEscaped(to, report); err != nil {
		return err
	}
	if is.dryRun == "none" && !is.sure {
		if err := c.confirm(singleton, fix); err != nil {
			return err
		}
	}
	if err := in.write(ctx, w, singleton, fix, is.dryRun); err != nil {
		return err
	}
	return c.created(to, in, w, singleton, fix, is)
}

// confirm asks the user.
func (c commands) confirm(singleton *v1.StatefulSingleton, fix []byte) error {
	if !c.asks() {
		return errors.New("create asks for confirmation, but standard input is not a terminal. Use --yes, or --dry-run=server to change nothing")
	}
	question := "Create StatefulSingleton " + fullName(singleton)
	if fix != nil {
		question += ", and change the strategy of the Deployment"
	}
	fmt.Fprintf(c.ErrOut, "\n%s? [y/N] ", question)
	typed, _ := bufio.NewReader(c.In).ReadString('\n') // input without a final newline is valid
	if answer := strings.ToLower(strings.TrimSpace(typed)); answer != "y" && answer != "yes" {
		return errors.New("you did not confirm, so nothing was changed")
	}
	return nil
}

// write creates the singleton, waits until its policy is installed, and then applies the JSON patch to the workload, unless it is nil.
// Before the policy is installed, a rollout that creates the next pod first could run two pods.
func (c *cluster) write(ctx context.Context, w *workload, singleton *v1.StatefulSingleton, fix []byte, dryRun string) error {
	if dryRun == "client" {
		return nil
	}
	patch := func(options ...client.PatchOption) error {
		if fix == nil {
			return nil
		}
		return c.Patch(ctx, w.Object.DeepCopyObject().(client.Object), client.RawPatch(types.JSONPatchType, fix), options...)
	}
	if err := patch(client.DryRunAll); err != nil {
		return fmt.Errorf("nothing is created, because the strategy of %s cannot be changed: %w", w, err)
	}
	var options []client.CreateOption
	if dryRun == "server" {
		options = append(options, client.DryRunAll)
	}
	if err := c.Create(ctx, singleton, options...); err != nil || dryRun == "server" {
		return err
	}
	err := c.awaitPolicy(ctx, singleton)
	if err == nil {
		err = patch()
	}
	if err == nil {
		return nil
	}
	undone := ""
	if fix != nil {
		undone = fmt.Sprintf(" The strategy of %s did not change. %s", w, w.surgeHelp(c))
	}
	return fmt.Errorf("StatefulSingleton %s is created, but %w. To show what to do, run: %s.%s",
		fullName(singleton), err, c.kubectl("stfs explain %s -n %s", singleton.Name, singleton.Namespace), undone)
}

// awaitPolicy waits until new pods of the singleton are held.
func (c *cluster) awaitPolicy(ctx context.Context, singleton *v1.StatefulSingleton) error {
	message := "the controller has reported nothing yet"
	err := wait.PollUntilContextTimeout(ctx, pollInterval/2, installPatience, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(singleton), singleton); err != nil {
			return false, err
		}
		is := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
		if is != nil {
			message = is.Message
		}
		return is != nil && is.Status == metav1.ConditionTrue, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("after %s new pods are not held: %s", installPatience, message)
	}
	return err
}

// created says what was changed, and what to do next.
func (c commands) created(to io.Writer, in *cluster, w *workload, singleton *v1.StatefulSingleton, fix []byte, is creation) error {
	if is.output == "yaml" {
		data, err := manifest(singleton)
		if err != nil {
			return err
		}
		if err := c.print("%s", data); err != nil {
			return err
		}
	}
	if is.dryRun != "none" {
		return printers.WriteEscaped(to, fmt.Sprintf("\nStatefulSingleton %s: nothing is created, because --dry-run is %s\n", fullName(singleton), is.dryRun))
	}
	text := fmt.Sprintf("\nStatefulSingleton %s is created, and new pods are held.", fullName(singleton))
	if fix != nil {
		text += fmt.Sprintf(" The strategy of %s is changed, and condition Warm shows that within five minutes.", w)
	}
	return printers.WriteEscaped(to, fmt.Sprintf("%s For a first handoff, run: %s\n", text, in.kubectl("rollout restart -n %s %s/%s", w.GetNamespace(), strings.ToLower(w.kind), w.GetName())))
}

// manifest returns the singleton without the fields that the cluster sets.
func manifest(singleton *v1.StatefulSingleton) ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "StatefulSingleton",
		"metadata": map[string]string{"name": singleton.Name, "namespace": singleton.Namespace},
		"spec":     singleton.Spec,
	})
}

// refuse returns why the singleton must not be created.
func (c *cluster) refuse(ctx context.Context, w *workload, singleton *v1.StatefulSingleton) error {
	var singletons v1.StatefulSingletonList
	if err := c.List(ctx, &singletons, client.InNamespace(w.GetNamespace())); err != nil {
		return err
	}
	for i := range singletons.Items {
		s := &singletons.Items[i]
		if s.Name == w.GetName() && !selects(s, w.pod()) {
			return fmt.Errorf("StatefulSingleton %s exists, and selects other pods. Print a manifest with --dry-run=client -o yaml from a namespace without it, and change its name", fullName(s))
		}
		if selects(s, w.pod()) {
			return fmt.Errorf("StatefulSingleton %s selects the pods of %s already. To show its state, run: %s", fullName(s), w, c.kubectl("stfs explain %s -n %s", s.Name, s.Namespace))
		}
	}
	if w.deployment == nil {
		var locks v1.StatefulSetLockList
		if err := c.List(ctx, &locks, client.InNamespace(w.GetNamespace())); err != nil && !meta.IsNoMatchError(err) {
			return err
		}
		if i := slices.IndexFunc(locks.Items, func(l v1.StatefulSetLock) bool { return l.Spec.StatefulSetName == w.GetName() }); i >= 0 {
			return fmt.Errorf("StatefulSetLock %s grants one pod of %s to write, so a StatefulSingleton would hold the others", fullName(&locks.Items[i]), w)
		}
	}
	if w.replicas > 1 {
		if w.deployment == nil {
			return fmt.Errorf("%s has %d replicas, and all of them run. For one writer among them, create a StatefulSetLock", w, w.replicas)
		}
		return fmt.Errorf("%s has %d replicas, and all of them run. Scale it to one, and back when the StatefulSingleton exists. Then one pod runs, and the others are spares: %s",
			w, w.replicas, c.kubectl("scale -n %s deployment/%s --replicas=1", w.GetNamespace(), w.GetName()))
	}
	if d := w.deployment; d != nil && (d.Status.ObservedGeneration < d.Generation || d.Status.Replicas != d.Status.UpdatedReplicas || ptr.Deref(d.Status.TerminatingReplicas, 0) > 0) {
		return fmt.Errorf("a rollout of %s is in progress, and two of its pods may run. To wait for its end, run: %s", w, c.kubectl("rollout status -n %s deployment/%s", w.GetNamespace(), w.GetName()))
	}
	if problem := w.notFenceable(singleton); singleton.Spec.Fencing == v1.FencingLease && problem != "" {
		return fmt.Errorf("the Lease can fence no pod of %s, because %s. Change the pod template, or leave out --fencing", w, problem)
	}
	others, err := c.otherWorkloads(ctx, w, singleton)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("the selector %s of %s also selects the pods of %s, so only one pod of them all would run. Give the pods of each a label of their own",
			metav1.FormatLabelSelector(w.selector), w, strings.Join(others, ", "))
	}
	return nil
}

// fix returns the JSON patch with which a rollout of the workload creates the next pod first. Nil: it does already.
func (w *workload) fix(in *cluster) (patch []byte, err error) {
	if w.deployment == nil {
		return nil, fmt.Errorf("--fix changes the strategy of a Deployment, and %s deletes its pod before it creates the next one in any case. Leave out --fix", w)
	}
	why := handoff.CannotSurge(w.deployment)
	switch manager := managerOf(w.deployment); {
	case why == "":
		return nil, nil
	case w.deployment.Spec.Paused:
		return nil, fmt.Errorf("--fix changes the strategy, and %s. %s", why, w.surgeHelp(in))
	case manager.reverts:
		return nil, fmt.Errorf("%s, and %s would undo a change of it: %s. Then run create without --fix", why, manager.name, manager.change)
	}
	return handoff.SurgePatch(), nil
}
