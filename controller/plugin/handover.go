package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

func (c commands) handoverCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "handover [stfs/]NAME",
		Short: "Request a handoff from the holder to another pod",
		Long: `handover asks the controller to replace the holder once. If spec.handoff is Manual and a standby waits for a request,
the standby takes over. Otherwise the controller starts a rollout of the owning Deployment. The holder stops when
the next pod is warm.

handover does not wait for the handoff. If no pod can be warm beside the holder, for example in a StatefulSet,
handover writes nothing and fails with the reason.`,
		Example: `  kubectl stfs handover db -n prod
  kubectl stfs status db -n prod -w`,
		Args: takes(1, 1), ValidArgsFunction: c.completeKinds(singletonKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			singleton, err := in.read(ctx, args[0], singletonKind)
			if err != nil {
				return err
			}
			s, err := in.lookAtSingleton(ctx, singleton.(*v1.StatefulSingleton))
			if err != nil {
				return err
			}
			return c.handover(ctx, in, s)
		}),
	}
}

func (c commands) handover(ctx context.Context, in *cluster, s view) error {
	switch {
	case !s.Singleton.DeletionTimestamp.IsZero():
		return fmt.Errorf("StatefulSingleton %s is being deleted, so no handoff is possible. To show what the deletion waits for, run: %s",
			fullName(s.Singleton), s.kubectl("stfs explain %s", s.Singleton.Name))
	case s.Singleton.Status.ActivePodUID == "":
		return fmt.Errorf("StatefulSingleton %s has no holder, so there is no pod to replace. To show what the StatefulSingleton waits for, run: %s",
			fullName(s.Singleton), s.kubectl("stfs explain %s", s.Singleton.Name))
	}
	if s.Singleton.Spec.Paused {
		return fmt.Errorf("handoffs of StatefulSingleton %s are paused. To begin them again, run: %s", fullName(s.Singleton), s.kubectl("stfs resume %s", s.Singleton.Name))
	}
	now := c.clock.Now()
	requested := s.Singleton.DeepCopy()
	metav1.SetMetaDataAnnotation(&requested.ObjectMeta, v1.HandoverAnnotation, now.UTC().Format(time.RFC3339Nano))
	if done := s.decide(requested, now).Status.Handover; done != nil && done.Value == requested.Annotations[v1.HandoverAnnotation] && done.Refused != "" {
		return errors.New(in.amended(done.Refused))
	}
	if err := in.Patch(ctx, requested, client.MergeFrom(s.Singleton)); err != nil {
		return fmt.Errorf("annotate StatefulSingleton %s: %w", fullName(s.Singleton), err)
	}
	return c.print("StatefulSingleton %s: the controller replaces pod %s when another pod is warm. To follow the handoff, run: %s\n",
		fullName(s.Singleton), s.Singleton.Status.ActivePod, s.kubectl("stfs status %s -w", s.Singleton.Name))
}
