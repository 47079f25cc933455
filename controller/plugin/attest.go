package plugin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

func (c commands) attestCommand() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use:   "attest NAME POD-UID",
		Short: "Vouch that a pod has stopped for good, where nothing else proves it",
		Long: `attest tells the controller that the pod with that uid has stopped for good: none of its processes runs,
and none will start again. The controller takes it for proof and has the next pod start. If it is not
true, two run on the same data.

It is for a pod whose kubelet can't be asked, as on a node that is lost. Where the node as a whole is
off, the taint node.kubernetes.io/out-of-service says so of all its pods. A uid that the StatefulSingleton
does not wait for is refused, and so is a pod whose kubelet answers. It asks before it does it.`,
		Example: `  # The uid is in the message
  kubectl stfs explain db -n prod
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod

  # In a script that has made sure
  kubectl stfs attest db 0e8c6d0a-6c2b-4c55-9d6c-6a0f2f4f7f10 -n prod --yes`,
		Args: takes(2, 2), ValidArgsFunction: c.completeNameAndUID,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			s, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			return c.attest(ctx, in, s, args[1], sure)
		}),
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask: it is made sure that the pod has stopped")
	return cmd
}

func (c commands) attest(ctx context.Context, in *cluster, s view, uid string, sure bool) error {
	if uid == "" {
		return fmt.Errorf("the uid is empty: `%s` says which pod is waited for, and its uid", s.kubectl("stfs explain %s", s.Singleton.Name))
	}
	attested := s.Singleton.DeepCopy()
	metav1.SetMetaDataAnnotation(&attested.ObjectMeta, v1.AttestAnnotation, uid)
	for _, step := range s.decide(attested, c.clock.Now()).Steps {
		if word, ok := step.(handoff.TakeAttestation); ok {
			return errors.New(cmp.Or(in.amended(word.Refused), fmt.Sprintf("the pod with uid %s is proven dead already: there is nothing to attest", uid)))
		}
	}
	if !sure {
		if err := c.makeSure(s, uid); err != nil {
			return err
		}
	}
	if err := in.Patch(ctx, attested, client.MergeFrom(s.Singleton)); err != nil {
		return fmt.Errorf("annotate StatefulSingleton %s: %w", fullName(s.Singleton), err)
	}
	return c.print("StatefulSingleton %s: you vouch that pod %s has stopped for good. The controller believes it at once, or refuses it with an event AttestationRefused. To follow it: %s\n",
		fullName(s.Singleton), s.podName(uid), s.kubectl("stfs status %s -w", s.Singleton.Name))
}

// makeSure asks the user to type the name of the pod.
func (c commands) makeSure(s view, uid string) error {
	if !c.asks() {
		return errors.New("attest asks before it does it, and there is no terminal to ask on: give --yes once you have made sure that the pod has stopped for good")
	}
	name := s.podName(uid)
	fmt.Fprintf(c.ErrOut, `You vouch that pod %s of StatefulSingleton %s has stopped for good: none of its processes
runs, and none will start again, not even when its node is back. The controller takes your word
for proof, and the next pod starts. If it is wrong, two run on the same data.

Type the name of the pod to vouch for it: `, name, fullName(s.Singleton))
	typed, _ := bufio.NewReader(c.In).ReadString('\n') // what is typed counts, also without a line's end
	if strings.TrimSpace(typed) != name {
		return errors.New("that is not its name: nothing was done")
	}
	return nil
}

// podName returns the name of the pod with the UID, which exists or is recorded.
func (s view) podName(uid string) string {
	if pod := s.pod(types.UID(uid)); pod != nil {
		return pod.Name
	}
	return s.Singleton.Status.ActivePod
}

// pod returns the pod with the UID, or nil.
func (s view) pod(uid types.UID) *corev1.Pod {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == uid })
	if i < 0 {
		return nil
	}
	return &s.Pods[i]
}
