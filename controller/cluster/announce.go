package cluster

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
)

// Reasons of the events.
const (
	// eventMembersAdded: the record has new members. The note names their pods and claims.
	eventMembersAdded = "MembersAdded"
	// eventMembersRemoved: members have provably terminated, and the record does not list them any more.
	eventMembersRemoved = "MembersRemoved"
	// eventMemberLost: a lost pod gets a successor with new claims.
	eventMemberLost = "MemberLost"
	// eventRolloutStarted: spec.template has a new revision.
	eventRolloutStarted = "RolloutStarted"
	// eventRolloutCompleted: all pods have the new revision, and are available.
	eventRolloutCompleted = "RolloutCompleted"
	// eventAttestationRefused: why an attestation is refused.
	eventAttestationRefused = "AttestationRefused"
)

// announce reports a change of the status by events and log lines.
func (r *Reconciler) announce(ctx context.Context, was *v1.StatefulClusterStatus, cluster *v1.StatefulCluster) {
	is := &cluster.Status
	added, lost, removed := difference(was.Members, is.Members)
	r.Metrics.replaced(added, lost, removed, is.UpdateRevision)
	// One event for each reason, because the recorder drops the notes of further events with the reason and the object.
	if len(lost) > 0 {
		r.emit(ctx, cluster, corev1.EventTypeWarning, eventMemberLost, "lost pods, whose successors get new claims: "+join(lost, func(m v1.ClusterMember) string {
			return fmt.Sprintf("%s on node %s", withClaims(m), m.Node)
		}))
	}
	if len(added) > 0 {
		r.emit(ctx, cluster, corev1.EventTypeNormal, eventMembersAdded, "new pods: "+join(added, withClaims))
	}
	if len(removed) > 0 {
		name := func(m v1.ClusterMember) string { return m.Name }
		r.emit(ctx, cluster, corev1.EventTypeNormal, eventMembersRemoved, "pods that have terminated: "+join(removed, name))
	}
	if was.UpdateRevision != is.UpdateRevision && was.UpdateRevision != "" {
		r.emit(ctx, cluster, corev1.EventTypeNormal, eventRolloutStarted, fmt.Sprintf("pods get revision %s", is.UpdateRevision))
	}
	if was.CurrentRevision != is.CurrentRevision && was.CurrentRevision != "" {
		r.emit(ctx, cluster, corev1.EventTypeNormal, eventRolloutCompleted, fmt.Sprintf("all pods have revision %s", is.CurrentRevision))
	}
	if refused := meta.FindStatusCondition(is.Conditions, v1.ConditionExpansionRefused); refused != nil && !meta.IsStatusConditionTrue(was.Conditions, refused.Type) {
		r.emit(ctx, cluster, corev1.EventTypeWarning, refused.Type, refused.Message)
	}
	before, after := meta.FindStatusCondition(was.Conditions, v1.ConditionStalled), meta.FindStatusCondition(is.Conditions, v1.ConditionStalled)
	switch {
	case after == nil || before != nil && before.Reason == after.Reason:
	case after.Status == metav1.ConditionTrue:
		r.emit(ctx, cluster, corev1.EventTypeWarning, after.Reason, after.Message)
	default:
		ctrl.LoggerFrom(ctx).Info(after.Message, "reason", after.Reason)
	}
}

// difference returns the new members, the members that have become Lost, and the members that the record does not list any more. The
// latter two are as they were before.
func difference(before, after []v1.ClusterMember) (added, lost, removed []v1.ClusterMember) {
	gone := map[string]v1.ClusterMember{}
	for _, m := range before {
		gone[m.Name] = m
	}
	for _, m := range after {
		was, known := gone[m.Name]
		delete(gone, m.Name)
		switch {
		case !known:
			added = append(added, m)
		case m.State == v1.MemberLost && was.State != v1.MemberLost:
			lost = append(lost, was)
		}
	}
	for _, m := range before {
		if _, is := gone[m.Name]; is {
			removed = append(removed, m)
		}
	}
	return added, lost, removed
}

// withClaims returns the name of the pod and the names of its claims.
func withClaims(m v1.ClusterMember) string {
	if len(m.Claims) == 0 {
		return m.Name
	}
	return fmt.Sprintf("%s (%s)", m.Name, join(m.Claims, func(c v1.MemberClaim) string { return c.Name }))
}

func join[T any](all []T, text func(T) string) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, text(one))
	}
	return strings.Join(texts, ", ")
}

func (r *Reconciler) emit(ctx context.Context, cluster *v1.StatefulCluster, eventType, reason, note string) {
	ctrl.LoggerFrom(ctx).Info(note, "reason", reason)
	r.Recorder.Eventf(cluster, nil, eventType, reason, "Reconcile", "%s", apply.CutNote(note))
}
