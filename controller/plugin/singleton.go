package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// view is a singleton with its Snapshot, as the controller reads it.
type view struct {
	handoff.Snapshot
	place
}

// status implements observed.
func (s view) status(now time.Time) Status {
	singleton := s.Singleton
	status := Status{
		kind: s.kind.name, state: fmt.Sprintf("%s, epoch %d", cmp.Or(singleton.Status.Phase, idle), singleton.Status.Epoch),
		Namespace: singleton.Namespace, Name: singleton.Name,
		Phase: singleton.Status.Phase, Epoch: &singleton.Status.Epoch, Message: singleton.Status.Message,
		Deleting: !singleton.DeletionTimestamp.IsZero(), Pods: s.pods(),
		Handover: singleton.Status.Handover, Conditions: append([]metav1.Condition{}, singleton.Status.Conditions...),
	}
	if status.Deleting && s.hidden == "" {
		_, _, message := handoff.Finalize(s.Snapshot, now)
		status.Message = cmp.Or(message, status.Message)
	}
	if t := singleton.Status.LastTransition; t != nil {
		status.LastTransition, status.change = t, change{of: "handoff", cause: string(t.Cause), from: t.From, to: t.To, proof: t.Proof}
		if t.GapMilliseconds != nil {
			status.change.gap = fmt.Sprintf(", gap %s", time.Duration(*t.GapMilliseconds)*time.Millisecond)
		}
	}
	return status
}

// pods returns the pods of the singleton, including a recorded holder that does not exist.
func (s view) pods() []Pod {
	pods := []Pod{}
	record := &s.Singleton.Status
	classified := handoff.Classify(s.Snapshot)
	if record.ActivePodUID != "" && (len(classified) == 0 || classified[0].Pod.UID != record.ActivePodUID) {
		pods = append(pods, Pod{Name: record.ActivePod, UID: record.ActivePodUID, Role: string(handoff.Holder), Node: record.ActiveNode, Gone: true})
	}
	for _, is := range classified {
		pods = append(pods, podOf(is.Pod, string(is.Role), is.WaitsFor))
	}
	return pods
}

// podOf returns an existing pod.
func podOf(pod *corev1.Pod, role, waitsFor string) Pod {
	return Pod{
		Name: pod.Name, UID: pod.UID, Role: role, Node: pod.Spec.NodeName, Phase: pod.Status.Phase,
		Ready: proof.IsTrue(pod, corev1.PodReady), Stopping: pod.DeletionTimestamp != nil, WaitsFor: waitsFor,
	}
}

// explanation implements observed.
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
	e := explanation{place: s.place, headline: "is not Ready"}
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
		if !ready || outcome == handoff.AwaitingHandover || outcome == handoff.Paused {
			e.helps = s.helps(outcome, status.Phase == v1.PhaseFailed)
		}
	}
	if len(s.Singleton.Status.History) > 0 {
		e.texts = append(e.texts, "The last handoffs:\n"+strings.TrimSuffix(historyText(&s.Singleton.Status), "\n"))
	}
	e.addCaveats(stale, s.Singleton.Status.Conditions, "are held")
	return e
}

// aboutPolicy returns true if the condition Ready has the reason of PolicyInstalled, as before the first pod.
func aboutPolicy(singleton *v1.StatefulSingleton, ready *metav1.Condition) bool {
	installed := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	return installed != nil && installed.Reason == ready.Reason
}

func (s view) deleting(now time.Time) explanation {
	_, waitsFor, message := handoff.Finalize(s.Snapshot, now)
	if reported := s.Singleton.Status.Message; message == "" && strings.HasPrefix(reported, "the StatefulSingleton can't be removed yet: ") {
		message = reported
	}
	e := s.explainDeletion(message)
	if s.hidden != "" || message == "" {
		return e
	}
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
	case handoff.Paused:
		return append([]help{{"begin handoffs again", s.kubectl("stfs resume %s", name)}}, s.aboutLostNode(s.Singleton.Status.ActivePodUID)...)
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

// attestations returns the commands with which a person states that the node is off, or attests the termination of the
// pod. It leaves out an attestation that the controller would refuse.
func (s view) attestations(uid types.UID) []help {
	helps := s.aboutLostNode(uid)
	if _, would := s.attested(uid, time.Time{}); would.refused == "" {
		helps = append(helps, attestHelp(s, uid))
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
		{"state that node " + node.Name + " is off, after you made sure that the node is off", handoff.TaintCommand(node.Name) + s.in.where},
	}
}

// lostNode returns the node of the pod with the UID if the node is not Ready, or nil.
func (s view) lostNode(uid types.UID) *corev1.Node {
	if pod := s.pod(uid); pod != nil {
		return s.LostNode(pod)
	}
	return nil
}

// attested implements observed.
func (s view) attested(uid types.UID, now time.Time) (client.Object, verdict) {
	attested := withAttestation(s.Singleton, uid)
	for _, step := range s.decide(attested, now).Steps {
		if taken, is := step.(handoff.TakeAttestation); is {
			return attested, verdict{refused: taken.Refused, proven: taken.Refused == ""}
		}
	}
	return attested, verdict{}
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

// podName implements observed.
func (s view) podName(uid types.UID) string {
	return nameOfPod(s.Pods, uid, s.Singleton.Status.ActivePod)
}

// pod returns the pod with the UID, or nil.
func (s view) pod(uid types.UID) *corev1.Pod {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == uid })
	if i < 0 {
		return nil
	}
	return &s.Pods[i]
}

// decide returns the controller's plan for the given singleton.
func (s view) decide(singleton *v1.StatefulSingleton, now time.Time) handoff.Plan {
	snapshot := s.Snapshot
	snapshot.Singleton = singleton
	return handoff.Decide(snapshot, now)
}
