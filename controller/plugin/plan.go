package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func (c commands) planCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan NAME",
		Short: "Show what the controller would write now",
		Long: `plan reads a StatefulSingleton and its pods as the controller does, and runs the same code. It prints the next writes
of the controller in order, and writes nothing. The controller may already have executed the plan when you read it.`,
		Example: `  kubectl stfs plan db -n prod`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeName,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			s, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			if s.hidden != "" {
				return fmt.Errorf("you do not have permission to read %[1]s, and the plan can depend on %[1]s. Ask an administrator for permission to get %[1]s. To show the status instead, run: %[2]s", s.hidden, s.kubectl("stfs status %s", s.Singleton.Name))
			}
			return c.print("%s", planInWords(s, c.clock.Now()))
		}),
	}
}

func planInWords(s view, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "StatefulSingleton %s at %s:\n\n", fullName(s.Singleton), now.UTC().Format(time.RFC3339))
	if !s.Singleton.DeletionTimestamp.IsZero() {
		keep, message := handoff.KeptWhileDeleting(s.Snapshot, now)
		b.WriteString(deletionInWords(keep, s.in.amended(message)))
		return b.String()
	}
	plan := handoff.Decide(s.Snapshot, now)
	fmt.Fprintf(&b, "%s: %s\n", plan.Outcome, s.in.amended(plan.Status.Message))
	if len(plan.Steps) == 0 {
		b.WriteString("\nThe controller has nothing to write.\n")
	} else {
		b.WriteString("\nSteps in order. If a step fails, the controller does not execute the steps after it:\n")
	}
	for i, step := range plan.Steps {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, s.in.amended(stepInWords(step, plan)))
	}
	switch {
	case plan.Status.ActivePodUID == "":
	case plan.Budget:
		b.WriteString("\nA PodDisruptionBudget blocks evictions of the holder.\n")
	default:
		b.WriteString("\nNo PodDisruptionBudget of the controller blocks evictions of the holder.\n")
	}
	fmt.Fprintf(&b, "\nThe controller decides again after a change, or in %s.\n", plan.Requeue)
	return b.String()
}

func deletionInWords(keep []handoff.PodRef, message string) string {
	text := "Deletion: the controller removes the finalizers from the pods, and then from the StatefulSingleton.\n"
	if message != "" {
		text = "Deletion: " + message + "\n"
	}
	for _, pod := range keep {
		text += fmt.Sprintf("Pod %s keeps its finalizer, because the pod is terminating, or because another StatefulSingleton selects the pod.\n", pod.Name)
	}
	return text
}

// leaseInWords describes a write of the Lease.
func leaseInWords(step handoff.WriteLease) string {
	text := "write that no pod holds the Lease"
	switch {
	case step.Version == "" && step.Holder == (handoff.PodRef{}):
		return "create the Lease without a holder"
	case step.Holder != (handoff.PodRef{}):
		text = fmt.Sprintf("write that pod %s holds the Lease with epoch %d", step.Holder.Name, step.Epoch)
	case step.Expired != "":
		text = fmt.Sprintf("take the Lease from the pod with uid %s, which has not renewed it", step.Expired)
	}
	if step.Retire != "" {
		text += fmt.Sprintf(", and that the pod with uid %s must not start a main process again", step.Retire)
	}
	return text
}

// stepInWords describes a step of the plan.
func stepInWords(step handoff.Step, plan handoff.Plan) string {
	switch step := step.(type) {
	case handoff.Protect:
		text := fmt.Sprintf("add the finalizer to pod %s, to keep the object of the pod until the pod has terminated", step.Pod.Name)
		if step.ChosenBy != "" {
			text += ", and annotate the pod with the StatefulSingleton that may open its barrier"
		}
		return text
	case handoff.Record:
		if plan.Status.ActivePodUID == "" {
			return "record that there is no holder"
		}
		return fmt.Sprintf("record pod %s as the holder with epoch %d, unless the StatefulSingleton has changed", plan.Status.ActivePod, plan.Status.Epoch)
	case handoff.OpenBarrier:
		return fmt.Sprintf("create ConfigMap %s with epoch %d, which opens the barrier of pod %s", step.ConfigMap, step.Epoch, step.Pod.Name)
	case handoff.Signal:
		return fmt.Sprintf("signal pod %s with epoch %d: its main processes start", step.Pod.Name, step.Signal.Epoch)
	case handoff.WriteLease:
		return leaseInWords(step)
	case handoff.Demote:
		return fmt.Sprintf("remove the finalizer, the signal and the role from pod %s, set its readiness gate to False, and mark it as not Ready, because the pod has lost the Lease", step.Pod.Name)
	case handoff.Nudge:
		return fmt.Sprintf("annotate pod %s to make its kubelet reconcile the pod", step.Pod.Name)
	case handoff.Unprotect:
		return fmt.Sprintf("remove the finalizer, the signal and the role from pod %s", step.Pod.Name)
	case handoff.Retire:
		return fmt.Sprintf("scale ReplicaSet %s to zero, which deletes the holder", step.ReplicaSet)
	case handoff.Roll:
		return fmt.Sprintf("start a rollout of Deployment %s, to create the pod that takes over from pod %s", step.Deployment, step.Replaces.Name)
	case handoff.MarkReady:
		return fmt.Sprintf("set the readiness gate of pod %s to True", step.Pod.Name)
	case handoff.TakeAttestation:
		if step.Refused != "" {
			return fmt.Sprintf("remove the attestation of the pod with uid %s, which the controller refuses: %s", step.UID, step.Refused)
		}
		return fmt.Sprintf("remove the attestation of the pod with uid %s, which is not needed", step.UID)
	case handoff.RemoveFinalizer:
		return fmt.Sprintf("remove the finalizer from pod %s", step.Pod.Name)
	case handoff.ConfirmGone:
		return "check that the StatefulSingleton does not exist"
	case handoff.Finish:
		return "remove the finalizer from the StatefulSingleton"
	}
	return fmt.Sprintf("%T", step)
}
