package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

func (c commands) attestCommand() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use:   "attest (" + anyName + ") POD-UID",
		Short: "Attest that a pod has terminated, if nothing else proves it",
		Long: `With attest, you state that the pod with the uid has terminated: none of its processes runs, and none will start
again. The controller accepts the attestation as a proof of termination, and starts the next pod. If the attestation
is false, two pods run on the same data.

Use attest for a pod whose kubelet cannot report the termination, for example on a lost node. If the node is off,
you can add the taint node.kubernetes.io/out-of-service to the node instead. The taint applies to all pods of the
node. attest refuses a uid that the StatefulSingleton, StatefulSetLock or StatefulCluster does not wait for, and a pod
whose kubelet can still report the termination. attest asks for confirmation.`,
		Example: `  # Show the uid of the pod, and attest its termination
  kubectl stfs explain db -n prod
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod

  # Of a pod of a StatefulSetLock and of a StatefulCluster
  kubectl stfs attest ssl/postgres 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10
  kubectl stfs attest stc/cassandra 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10

  # In a script, without confirmation
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod --yes`,
		Args: takes(2, 2), ValidArgsFunction: c.completeKinds(allKinds...),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			o, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			return c.attest(ctx, in, o, types.UID(args[1]), sure)
		}),
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// verdict is what the controller would do with an attestation.
type verdict struct {
	// refused says why the controller would ignore the attestation.
	refused string
	// proven: the termination is proven without the attestation.
	proven bool
}

func (c commands) attest(ctx context.Context, in *cluster, o observed, uid types.UID, sure bool) error {
	at := o.at()
	if uid == "" {
		return fmt.Errorf("the uid is empty. To show the pod that the %s waits for, and its uid, run: %s", at.name, at.kubectl("stfs explain %s", at.arg()))
	}
	attested, would := o.attested(uid, c.clock.Now())
	switch {
	case would.refused != "":
		return errors.New(in.amended(would.refused))
	case would.proven:
		return fmt.Errorf("the termination of the pod with uid %s is already proven, so no attestation is needed. To show the status, run: %s",
			uid, at.kubectl("stfs status %s", at.arg()))
	}
	if !sure {
		if err := c.makeSure(at, o.podName(uid)); err != nil {
			return err
		}
	}
	if err := in.Patch(ctx, attested, client.MergeFrom(at.object)); err != nil {
		return fmt.Errorf("annotate %s: %w", at, err)
	}
	return c.print("%s: you attested that pod %s has terminated. If the controller refuses the attestation, it creates event AttestationRefused. To follow what happens next, run: %s\n",
		at, o.podName(uid), at.kubectl("stfs status %s -w", at.arg()))
}

// makeSure asks the user to type the name of the pod.
func (c commands) makeSure(of place, pod string) error {
	if !c.asks() {
		return errors.New("attest asks for confirmation, but standard input is not a terminal. Make sure that the pod has terminated, and then use --yes")
	}
	fmt.Fprintf(c.ErrOut, `You attest that pod %s of %s has terminated: none of its processes
runs, and none will start again, even if its node returns. The controller accepts the attestation as
a proof of termination, and starts the next pod. If the attestation is false, two pods run on the same data.

To confirm, type the name of the pod: `, pod, of)
	typed, _ := bufio.NewReader(c.In).ReadString('\n') // input without a final newline is valid
	if strings.TrimSpace(typed) != pod {
		return fmt.Errorf("the typed name is not %s, so nothing was changed. To attest, run the command again and type the name of the pod", pod)
	}
	return nil
}

// withAttestation returns a copy of an object with an attestation of the pod with the UID.
func withAttestation[T client.Object](o T, uid types.UID) T {
	attested := o.DeepCopyObject().(T)
	annotations := attested.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1.AttestAnnotation] = string(uid)
	attested.SetAnnotations(annotations)
	return attested
}

// attestHelp is the command that attests the termination of a pod.
func attestHelp(o observed, uid types.UID) help {
	at := o.at()
	return help{"attest that pod " + o.podName(uid) + " has terminated, after you made sure that none of its processes runs", at.kubectl("stfs attest %s %s", at.arg(), uid)}
}

// attestHelps returns the command for each of the pods whose termination only an attestation can prove now. If the user cannot read
// nodes, a kubelet may still report the termination.
func attestHelps(o observed, now time.Time, pods ...types.UID) (helps []help) {
	if o.at().hidden != "" {
		return nil
	}
	for _, uid := range pods {
		if uid == "" {
			continue
		}
		if _, would := o.attested(uid, now); would == (verdict{}) {
			helps = append(helps, attestHelp(o, uid))
		}
	}
	return helps
}

// nameOfPod returns the name of the pod with the UID. If the pod does not exist, it is the recorded name.
func nameOfPod(pods []corev1.Pod, uid types.UID, recorded string) string {
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.UID == uid })
	if i < 0 {
		return recorded
	}
	return pods[i].Name
}
