package plugin

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// clusterView is a StatefulCluster with its Snapshot, as the controller reads it.
type clusterView struct {
	membership.Snapshot
	place
}

// status implements observed.
func (s clusterView) status(now time.Time) Status {
	o, replicas := s.Cluster, ptr.Deref(s.Cluster.Spec.Replicas, 1)
	status := Status{
		kind: s.kind.name, state: fmt.Sprintf("%d of %d pods are available, %d have revision %s", o.Status.AvailableReplicas, replicas, o.Status.UpdatedReplicas, o.Status.UpdateRevision),
		Namespace: o.Namespace, Name: o.Name, Replicas: &replicas, AvailableReplicas: &o.Status.AvailableReplicas,
		UpdatedReplicas: &o.Status.UpdatedReplicas, Revision: o.Status.UpdateRevision, Message: o.Status.Message,
		Deleting: !o.DeletionTimestamp.IsZero(), Pods: []Pod{}, Conditions: append([]metav1.Condition{}, o.Status.Conditions...),
	}
	for _, m := range membership.Members(s.Snapshot, now) {
		waitsFor := m.WaitsFor
		if s.hidden != "" { // the node of the pod may exist, and its kubelet may still report
			waitsFor = ""
		}
		pod := Pod{Name: m.Name, UID: m.UID, Role: string(m.State), Node: m.Node, Gone: m.UID != "", WaitsFor: waitsFor}
		if m.Pod != nil {
			pod = podOf(m.Pod, string(m.State), waitsFor)
		}
		pod.Revision = m.Revision
		status.Pods = append(status.Pods, pod)
	}
	return status
}

// explanation implements observed.
func (s clusterView) explanation(now time.Time) explanation {
	if !s.Cluster.DeletionTimestamp.IsZero() {
		_, message := membership.Finalize(s.Snapshot, now)
		e := s.explainDeletion(message)
		if message != "" {
			e.helps = append(e.helps, s.attestMembers(now)...)
		}
		return e
	}
	reported := meta.FindStatusCondition(s.Cluster.Status.Conditions, v1.ConditionReady)
	status, stale := s.Cluster.Status, reported == nil
	refused := reported != nil && reported.Reason == string(membership.WriteRefused)
	if s.hidden == "" && !refused { // only the status has the error of a write
		plan := membership.Decide(s.Snapshot, now)
		status = plan.Status
		stale = reported == nil || reported.Reason != string(plan.Outcome)
	}
	e := explanation{place: s.place, headline: "is not Ready"}
	if is := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); is != nil {
		if is.Status == metav1.ConditionTrue {
			e.headline = "is Ready"
		}
		e.headline += ": " + is.Reason
		e.texts = append(e.texts, s.in.amended(status.Message))
		e.helps = slices.Concat(s.helps(membership.Outcome(is.Reason), now), s.attestMembers(now))
	}
	if is := meta.FindStatusCondition(status.Conditions, v1.ConditionExpansionRefused); is != nil && is.Status == metav1.ConditionTrue {
		e.texts = append(e.texts, s.in.amended(is.Message))
	}
	e.addCaveats(stale, s.Cluster.Status.Conditions, "")
	return e
}

// helps returns the commands that help with an outcome.
func (s clusterView) helps(outcome membership.Outcome, now time.Time) []help {
	follow := help{"follow the rollout", s.kubectl("stfs rollout status %s", s.arg())}
	switch outcome {
	case membership.Scaling, membership.RollingOut, membership.ResizeFailing:
		return append([]help{follow}, s.describeUnready(now)...)
	case membership.PodsUnavailable, membership.PodsUnschedulable:
		return s.describeUnready(now)
	default: // the message has the command, or none is needed
		return nil
	}
}

// describeUnready returns a command for the first pod that runs and is not Ready.
func (s clusterView) describeUnready(now time.Time) []help {
	pods := s.status(now).Pods
	i := slices.IndexFunc(pods, func(p Pod) bool { return p.Phase != "" && !p.Ready && !p.Stopping })
	if i < 0 {
		return nil
	}
	helps := []help{{"show what the kubelet and the scheduler report", s.kubectl("describe pod %s", pods[i].Name)}}
	if pods[i].Node != "" {
		helps = append(helps, help{"show the logs of the pod", s.kubectl("logs %s --all-containers --tail=50", pods[i].Name)})
	}
	return helps
}

// attestMembers returns the commands that attest the terminations that only an attestation can prove now.
func (s clusterView) attestMembers(now time.Time) []help {
	var pods []types.UID
	for _, m := range membership.Members(s.Snapshot, now) {
		if m.Pod == nil || proof.Going(m.Pod) {
			pods = append(pods, m.UID)
		}
	}
	return attestHelps(s, now, pods...)
}

// attested implements observed.
func (s clusterView) attested(uid types.UID, now time.Time) (client.Object, verdict) {
	attested := withAttestation(s.Cluster, uid)
	with := s.Snapshot
	with.Cluster = attested
	for _, step := range s.decide(with, now).Steps {
		if taken, is := step.(membership.TakeAttestation); is && taken.Refused != "" {
			return attested, verdict{refused: taken.Refused}
		}
	}
	remains := slices.ContainsFunc(s.decide(s.Snapshot, now).Status.Members, func(m v1.ClusterMember) bool { return m.UID == uid })
	return attested, verdict{proven: !remains}
}

// decide returns the controller's plan.
func (s clusterView) decide(snapshot membership.Snapshot, now time.Time) membership.Plan {
	if s.Cluster.DeletionTimestamp.IsZero() {
		return membership.Decide(snapshot, now)
	}
	plan, _ := membership.Finalize(snapshot, now)
	return plan
}

// podName implements observed.
func (s clusterView) podName(uid types.UID) string {
	recorded := ""
	for _, m := range s.Cluster.Status.Members {
		if m.UID == uid {
			recorded = m.Name
		}
	}
	return nameOfPod(s.Pods, uid, recorded)
}
