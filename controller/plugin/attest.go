package plugin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (c commands) attestCommand() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use:   "attest NAME POD-UID",
		Short: "Attest that a pod has terminated, if nothing else proves it",
		Long: `With attest, you state that the pod with the uid has terminated: none of its processes runs, and none will start
again. The controller accepts the attestation as a proof of termination, and starts the next pod. If the attestation
is false, two pods run on the same data.

Use attest for a pod whose kubelet cannot report the termination, for example on a lost node. If the node is off,
you can add the taint node.kubernetes.io/out-of-service to the node instead. The taint applies to all pods of the
node. attest refuses a uid that the StatefulSingleton does not wait for, and a pod whose kubelet can still report the
termination. attest asks for confirmation.`,
		Example: `  # Show the uid of the pod, and attest its termination
  kubectl stfs explain db -n prod
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod

  # In a script, without confirmation
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod --yes`,
		Args: takes(2, 2), ValidArgsFunction: c.completeName,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			s, err := in.lookAtSingleton(ctx, args[0])
			if err != nil {
				return err
			}
			return c.attest(ctx, in, s, args[1], sure)
		}),
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func (c commands) attest(ctx context.Context, in *cluster, s view, uid string, sure bool) error {
	if uid == "" {
		return fmt.Errorf("the uid is empty. To show the pod that the StatefulSingleton waits for, and its uid, run: %s", s.kubectl("stfs explain %s", s.Singleton.Name))
	}
	attested, taken := s.attested(types.UID(uid), c.clock.Now())
	if taken != nil {
		return errors.New(cmp.Or(in.amended(taken.Refused), fmt.Sprintf("the termination of the pod with uid %s is already proven, so no attestation is needed. To show the status, run: %s",
			uid, s.kubectl("stfs status %s", s.Singleton.Name))))
	}
	if !sure {
		if err := c.makeSure(s, uid); err != nil {
			return err
		}
	}
	if err := in.Patch(ctx, attested, client.MergeFrom(s.Singleton)); err != nil {
		return fmt.Errorf("annotate StatefulSingleton %s: %w", fullName(s.Singleton), err)
	}
	return c.print("StatefulSingleton %s: you attested that pod %s has terminated. If the controller refuses the attestation, it creates event AttestationRefused. To follow the handoff, run: %s\n",
		fullName(s.Singleton), s.podName(uid), s.kubectl("stfs status %s -w", s.Singleton.Name))
}

// makeSure asks the user to type the name of the pod.
func (c commands) makeSure(s view, uid string) error {
	if !c.asks() {
		return errors.New("attest asks for confirmation, but standard input is not a terminal. Make sure that the pod has terminated, and then use --yes")
	}
	name := s.podName(uid)
	fmt.Fprintf(c.ErrOut, `You attest that pod %s of StatefulSingleton %s has terminated: none of its processes
runs, and none will start again, even if its node returns. The controller accepts the attestation as
a proof of termination, and starts the next pod. If the attestation is false, two pods run on the same data.

To confirm, type the name of the pod: `, name, fullName(s.Singleton))
	typed, _ := bufio.NewReader(c.In).ReadString('\n') // input without a final newline is valid
	if strings.TrimSpace(typed) != name {
		return fmt.Errorf("the typed name is not %s, so nothing was changed. To attest, run the command again and type the name of the pod", name)
	}
	return nil
}
