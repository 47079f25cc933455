package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (c commands) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause NAME",
		Short: "Keep rollouts, drains and requests from beginning a handoff",
		Long: `pause sets spec.paused of a StatefulSingleton. The pod of a rollout then waits, and a drain waits for at most
maxTransitionTime. If the holder is deleted or evicted, or ends, the next pod starts as usual. To begin handoffs again,
use resume.`,
		Example: `  kubectl stfs pause db -n prod
  kubectl stfs resume db -n prod`,
		Args: takes(1, 1), ValidArgsFunction: c.completeKinds(singletonKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			return c.setPaused(ctx, in, args[0], true)
		}),
	}
}

func (c commands) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume NAME",
		Short:   "Begin handoffs again after pause",
		Long:    `resume removes spec.paused of a StatefulSingleton. If a pod waits to take over, the handoff begins at once.`,
		Example: `  kubectl stfs resume db -n prod`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeKinds(singletonKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			return c.setPaused(ctx, in, args[0], false)
		}),
	}
}

func (c commands) setPaused(ctx context.Context, in *cluster, arg string, paused bool) error {
	singleton, err := in.read(ctx, arg, singletonKind)
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused))
	if err := in.Patch(ctx, singleton, patch); err != nil {
		return fmt.Errorf("patch StatefulSingleton %s: %w", fullName(singleton), err)
	}
	if !paused {
		return c.print("StatefulSingleton %s: handoffs begin as usual. To follow one, run: %s\n", fullName(singleton), in.kubectl("stfs status %s -n %s -w", singleton.GetName(), in.namespace))
	}
	return c.print("StatefulSingleton %s: no rollout, drain or request begins a handoff. To resume, run: %s\n", fullName(singleton), in.kubectl("stfs resume %s -n %s", singleton.GetName(), in.namespace))
}
