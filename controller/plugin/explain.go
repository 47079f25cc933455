package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

func (c commands) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain NAME | lock/NAME",
		Short: "Explain why a StatefulSingleton or a StatefulSetLock is not Ready, and which commands help",
		Long: `explain says why a StatefulSingleton is not Ready, or why the next pod would not be held. It also prints commands
that help. explain reads the cluster itself, so it works while the controller is down. With lock/NAME it explains a
StatefulSetLock.`,
		Example: `  kubectl stfs explain db -n prod

  kubectl stfs explain lock/postgres -n prod`,
		Args: takes(1, 1), ValidArgsFunction: c.completeNameOrLock,
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			if name, ok := lockName(args[0]); ok {
				return c.explainLock(ctx, in, name)
			}
			s, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			return c.print("%s", explain(s, c.clock.Now()))
		}),
	}
}

func (c commands) explainLock(ctx context.Context, in *cluster, name string) error {
	lock, err := in.findLock(ctx, name)
	if err != nil {
		return err
	}
	s, err := in.lookAtLock(ctx, lock)
	if err != nil {
		return err
	}
	return c.print("%s", explainLock(s, c.clock.Now()))
}

// help is a command for the user, with its purpose.
type help struct{ to, command string }

// explanation is the state of a singleton, with commands that help.
type explanation struct {
	headline string
	texts    []string
	helps    []help
	// refused: the object has no policy, and needs none.
	refused bool
}

// explain explains the state of the singleton at the time now.
func explain(s view, now time.Time) string {
	e := s.explanation(now)
	if s.Singleton.DeletionTimestamp.IsZero() {
		e.addPolicy(s.place, s.Singleton.Status.Conditions, "are held")
	}
	return e.text("StatefulSingleton " + fullName(s.Singleton))
}

// text returns the explanation of the object as text.
func (e explanation) text(object string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", object, e.headline)
	for _, text := range e.texts {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	if len(e.helps) > 0 {
		b.WriteString("\nCommands that help:\n")
	}
	for _, h := range slices.Compact(e.helps) {
		fmt.Fprintf(&b, "  to %s:\n      %s\n", h.to, h.command)
	}
	return b.String()
}

// addPolicy says why it is not known that new pods are injected, if condition PolicyInstalled is not True.
func (e *explanation) addPolicy(p place, conditions []metav1.Condition, pods string) {
	if meta.IsStatusConditionTrue(conditions, v1.ConditionPolicyInstalled) {
		return
	}
	message := "the controller has not set condition PolicyInstalled yet"
	if installed := meta.FindStatusCondition(conditions, v1.ConditionPolicyInstalled); installed != nil {
		message = installed.Message
	}
	e.texts = append(e.texts, fmt.Sprintf("No dry-run has shown that new pods %s: %s", pods, p.in.amended(message)))
	e.helps = append(e.helps, p.check())
}

// addCaveats says that the status is stale, or that the explanation is only the status, because the user cannot read all that
// the controller reads.
func (e *explanation) addCaveats(p place, kind string, stale bool) {
	if stale {
		e.texts = append(e.texts, "The status of the "+kind+" does not report this yet. "+
			"If the status does not change within a few seconds, the controller does not run.")
		e.helps = append(e.helps, p.check())
	}
	if p.hidden != "" {
		e.texts = append(e.texts, "You do not have permission to read "+p.hidden+", so this is what the status of the "+kind+" says.")
	}
}

func (s view) explanation(now time.Time) explanation {
	if !s.Singleton.DeletionTimestamp.IsZero() {
		return s.deleting(now)
	}
	reported := meta.FindStatusCondition(s.Singleton.Status.Conditions, v1.ConditionReady)
	status, stale := s.Singleton.Status, reported == nil
	if s.hidden == "" {
		plan := handoff.Decide(s.Snapshot, now)
		status = plan.Status
		stale = reported == nil || reported.Reason != string(plan.Outcome) && !aboutPolicy(s.Singleton, reported)
	}
	e := explanation{headline: "is not Ready"}
	if is := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); is != nil {
		outcome := handoff.Outcome(is.Reason)
		injected := meta.IsStatusConditionTrue(status.Conditions, v1.ConditionPolicyInstalled)
		ready := is.Status == metav1.ConditionTrue && (injected || outcome != handoff.NoPods) // without a policy, the first pod is not held
		if ready {
			e.headline = "is Ready"
		}
		e.headline += ": " + is.Reason
		message := status.Message
		if reported := s.Singleton.Status.Message; strings.HasPrefix(reported, message+"; can't ") {
			message = reported // it has the error of a write of the controller
		}
		e.texts = append(e.texts, s.in.amended(message))
		if !ready || outcome == handoff.AwaitingHandover {
			e.helps = s.helps(outcome, status.Phase == v1.PhaseFailed)
		}
	}
	e.addCaveats(s.place, "StatefulSingleton", stale)
	return e
}

func hiddenMessage(kind, hidden string) string {
	return "You do not have permission to read " + hidden + ", so this command cannot show what the deletion waits for. The events of the " + kind + " show it."
}

func deletedSoonMessage(kind string) string {
	return fmt.Sprintf("Nothing blocks the deletion, and the controller removes the %[1]s within seconds. If the %[1]s stays longer, the controller does not run.", kind)
}

// aboutPolicy returns true if the condition Ready has the reason of PolicyInstalled, as before the first pod.
func aboutPolicy(singleton *v1.StatefulSingleton, ready *metav1.Condition) bool {
	installed := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	return installed != nil && installed.Reason == ready.Reason
}

func (s view) deleting(now time.Time) explanation {
	e := explanation{headline: "is being deleted"}
	if s.hidden != "" {
		e.texts = []string{hiddenMessage("StatefulSingleton", s.hidden)}
		e.helps = []help{{"show the events", s.kubectl("describe stfs %s", s.Singleton.Name)}}
		return e
	}
	_, waitsFor, message := handoff.Finalize(s.Snapshot, now)
	if reported := s.Singleton.Status.Message; message == "" && strings.HasPrefix(reported, "the StatefulSingleton can't be removed yet: ") {
		message = reported
	}
	if message == "" {
		e.texts = []string{deletedSoonMessage("StatefulSingleton")}
		e.helps = []help{s.check()}
		return e
	}
	e.texts = []string{s.in.amended(message)}
	for _, ref := range waitsFor {
		e.helps = append(e.helps, s.attestations(ref.UID)...)
	}
	if holder := s.Singleton.Status.ActivePodUID; holder != "" && s.pod(holder) == nil {
		e.helps = append(e.helps, s.attestations(holder)...)
	}
	return e
}

// helps returns the commands that help with an outcome. If stuck is true, the handoff may need a person to continue.
func (s view) helps(outcome handoff.Outcome, stuck bool) []help {
	name := s.Singleton.Name
	follow := help{"follow the handoff", s.kubectl("stfs status %s -w", name)}
	switch outcome {
	case handoff.Released, handoff.Retiring, handoff.RetiringCold, handoff.Adopted, handoff.HolderEnded, handoff.LeaseTaken, handoff.LeaseHeld:
		return []help{follow}
	case handoff.AwaitingPod:
		return []help{{"show why no pod is created", s.kubectl("get events --field-selector reason=FailedCreate")}}
	case handoff.WarmingUp, handoff.StandbyNotWarm:
		return s.aboutPods(handoff.Standby, "show what the pod waits for", "describe pod %s")
	case handoff.Starting, handoff.HolderNotReady:
		if helps := s.aboutLostNode(s.Singleton.Status.ActivePodUID); helps != nil {
			return helps
		}
		return slices.Concat(s.aboutPods(handoff.Holder, "show the logs of the holder", "logs %s --all-containers --tail=50"),
			s.aboutProbes(),
			s.aboutPods(handoff.Holder, "show what the kubelet reports", "describe pod %s"))
	case handoff.Rolling:
		return s.aboutDeployments()
	case handoff.AwaitingHandover:
		if len(s.StatefulSets) > 0 { // a StatefulSet continues only after the holder is deleted
			return s.aboutPods(handoff.Holder, "replace the holder with the warm pod", "delete pod %s")
		}
		return []help{{"replace the holder with the warm pod", s.kubectl("stfs handover %s", name)}}
	case handoff.HolderStopping, handoff.HolderLost:
		helps := s.attestations(s.Singleton.Status.ActivePodUID)
		if len(helps) == 0 || !stuck && s.lostNode(s.Singleton.Status.ActivePodUID) == nil {
			return []help{follow}
		}
		return helps
	case handoff.SeveralRun:
		return s.deleteUnrecorded()
	case handoff.Overlapping:
		return []help{{"show which selectors match the same pods", s.kubectl("get stfs -o custom-columns=NAME:.metadata.name,SELECTOR:.spec.selector")}}
	case handoff.NoPods, handoff.HolderReady: // no command helps
	}
	return nil
}

func (p place) check() help { return help{"check the installation", p.kubectl("stfs check")} }

// attestations returns the commands with which a person states that the node is off, or attests the termination of the
// pod. It leaves out an attestation that the controller would refuse.
func (s view) attestations(uid types.UID) []help {
	helps := s.aboutLostNode(uid)
	if s.acceptsAttestation(uid) {
		helps = append(helps, s.attest(uid))
	}
	return helps
}

// aboutLostNode returns the commands for a pod whose node does not answer, or none.
func (s view) aboutLostNode(uid types.UID) []help {
	node := s.lostNode(uid)
	if node == nil {
		return nil
	}
	return []help{
		{"show since when node " + node.Name + " does not answer", s.in.kubectl("describe node %s", node.Name)},
		{"state that node " + node.Name + " is off, after you made sure that the node is off", handoff.TaintCommand(node) + s.in.where},
	}
}

// lostNode returns the node of the pod with the UID if the node is not Ready, or nil.
func (s view) lostNode(uid types.UID) *corev1.Node {
	if pod := s.pod(uid); pod != nil {
		return s.LostNode(pod)
	}
	return nil
}

func (s view) attest(uid types.UID) help {
	return help{"attest that pod " + s.podName(string(uid)) + " has terminated, after you made sure that none of its processes runs", s.kubectl("stfs attest %s %s", s.Singleton.Name, uid)}
}

// acceptsAttestation returns true if the controller would accept an attestation of the pod with the UID.
func (s view) acceptsAttestation(uid types.UID) bool {
	attested := s.Singleton.DeepCopy()
	metav1.SetMetaDataAnnotation(&attested.ObjectMeta, v1.AttestAnnotation, string(uid))
	return !slices.ContainsFunc(s.decide(attested, time.Time{}).Steps, func(step handoff.Step) bool {
		taken, is := step.(handoff.TakeAttestation)
		return is && taken.Refused != ""
	})
}

// deleteUnrecorded returns a command for each pod that the record does not name: it deletes the pod, or attests its
// termination.
func (s view) deleteUnrecorded() (helps []help) {
	for _, is := range handoff.Classify(s.Snapshot) {
		switch {
		case is.Role != handoff.Unrecorded:
		case proof.Going(is.Pod):
			helps = append(helps, s.attestations(is.Pod.UID)...)
		default:
			helps = append(helps, help{"delete pod " + is.Pod.Name + ", if you keep another pod", s.kubectl("delete pod %s", is.Pod.Name)})
		}
	}
	return helps
}

// aboutPods returns a command for each pod with the role.
func (s view) aboutPods(role handoff.Role, to, command string) (helps []help) {
	for _, is := range handoff.Classify(s.Snapshot) {
		if is.Role == role && (role != handoff.Standby || is.WaitsFor != "") {
			helps = append(helps, help{to, s.kubectl(command, is.Pod.Name)})
		}
	}
	return helps
}

// aboutProbes returns a command for the readiness probes of the holder that the status sidecar runs, or none.
func (s view) aboutProbes() (helps []help) {
	pod := s.pod(s.Singleton.Status.ActivePodUID)
	if pod == nil {
		return nil
	}
	for _, p := range movedProbes(pod) {
		helps = append(helps, help{
			fmt.Sprintf("show why readiness probe %s of container %s fails", p.probe, p.container),
			s.kubectl("logs %s -c %s --tail=50", pod.Name, v1.SidecarName),
		})
	}
	return helps
}

// aboutDeployments returns a command for each Deployment of the singleton's pods.
func (s view) aboutDeployments() (helps []help) {
	names := map[string]bool{}
	for _, deployment := range s.Deployments {
		names[deployment.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		helps = append(helps, help{"show why no new pod is created", s.kubectl("describe deployment %s", name)})
	}
	return helps
}
