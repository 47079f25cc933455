package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

func (c commands) planCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan NAME",
		Short: "Say what the controller would do now, and change nothing",
		Long: `plan observes a StatefulSingleton as the controller does, has the same code decide, and says what it would
write, step by step. It writes nothing. The controller may be about to do just that, or may have done it by
the time that you read it.`,
		Example: `  kubectl stfs plan db -n prod`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeName,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			s, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			if s.nodesHidden {
				return fmt.Errorf("you may not read nodes, and a plan may hang on them: ask for the right to get them, or see what the controller says with `%s`", s.kubectl("stfs status %s", s.Singleton.Name))
			}
			return c.print("%s", planInWords(s, c.clock.Now()))
		}),
	}
}

func planInWords(s sight, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "StatefulSingleton %s, as it is at %s:\n\n", fullName(s.Singleton), now.UTC().Format(time.RFC3339))
	if !s.Singleton.DeletionTimestamp.IsZero() {
		keep, message := handoff.KeptWhileDeleting(s.Snapshot, now)
		b.WriteString(farewellInWords(keep, s.in.amended(message)))
		return b.String()
	}
	plan := handoff.Decide(s.Snapshot, now)
	fmt.Fprintf(&b, "%s: %s\n", plan.Outcome, s.in.amended(plan.Status.Message))
	if len(plan.Steps) == 0 {
		b.WriteString("\nNo step is to be taken.\n")
	} else {
		b.WriteString("\nSteps, each of which comes only if the ones before it succeed:\n")
	}
	for i, step := range plan.Steps {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, s.in.amended(stepInWords(step, plan)))
	}
	switch {
	case plan.Status.ActivePodUID == "":
	case plan.Budget:
		b.WriteString("\nA PodDisruptionBudget has evictions of the holder are blocked.\n")
	default:
		b.WriteString("\nNo PodDisruptionBudget of the controller's has evictions of the holder are blocked.\n")
	}
	fmt.Fprintf(&b, "\nIf nothing is seen to change before, it decides again in %s.\n", plan.Requeue)
	return b.String()
}

func farewellInWords(keep []handoff.PodRef, message string) string {
	text := "It is being deleted, and nothing keeps it: it goes, and lets go of its pods.\n"
	if message != "" {
		text = "It is being deleted: " + message + "\n"
	}
	for _, pod := range keep {
		text += fmt.Sprintf("Pod %s is not let go of: it stops, or another StatefulSingleton picks it.\n", pod.Name)
	}
	return text
}

// stepInWords says what a step of the plan writes, and what for.
func stepInWords(step handoff.Step, plan handoff.Plan) string {
	switch step := step.(type) {
	case handoff.Protect:
		text := fmt.Sprintf("put the finalizer on pod %s, so that it can't vanish unseen", step.Pod.Name)
		if step.ChosenBy != "" {
			text += ", and write on it who may open its barrier"
		}
		return text
	case handoff.Record:
		if plan.Status.ActivePodUID == "" {
			return "record that nobody holds"
		}
		return fmt.Sprintf("record that pod %s holds, with epoch %d, unless somebody has written the record since", plan.Status.ActivePod, plan.Status.Epoch)
	case handoff.OpenBarrier:
		return fmt.Sprintf("create ConfigMap %s with epoch %d, which opens the barrier of pod %s", step.ConfigMap, step.Epoch, step.Pod.Name)
	case handoff.Signal:
		return fmt.Sprintf("signal pod %s with epoch %d: its main processes start", step.Pod.Name, step.Signal.Epoch)
	case handoff.Nudge:
		return fmt.Sprintf("annotate pod %s, so that its kubelet looks again", step.Pod.Name)
	case handoff.Unprotect:
		return fmt.Sprintf("let go of pod %s: take finalizer, signal and role off it", step.Pod.Name)
	case handoff.Retire:
		return fmt.Sprintf("scale ReplicaSet %s to zero, so that the holder is asked to stop", step.ReplicaSet)
	case handoff.Roll:
		return fmt.Sprintf("roll Deployment %s, so that a pod comes that takes over from pod %s", step.Deployment, step.Replaces.Name)
	case handoff.MarkReady:
		return fmt.Sprintf("open the readiness gate of pod %s", step.Pod.Name)
	case handoff.TakeAttestation:
		if step.Refused != "" {
			return fmt.Sprintf("take the attestation of %s off, unbelieved: %s", step.UID, step.Refused)
		}
		return fmt.Sprintf("take the attestation of %s off: it is not needed any more", step.UID)
	case handoff.RemoveFinalizer:
		return fmt.Sprintf("take the finalizer off pod %s", step.Pod.Name)
	case handoff.ConfirmGone:
		return "read again whether the StatefulSingleton is gone"
	case handoff.Finish:
		return "take the finalizer off the StatefulSingleton, which is gone then"
	}
	return fmt.Sprintf("%T", step)
}
