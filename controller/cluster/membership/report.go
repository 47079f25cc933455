package membership

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	// minRequeue is the shortest delay of the next decision.
	minRequeue = time.Millisecond
	// settledPoll is how often to decide again if all pods are available, and poll otherwise.
	settledPoll, poll = 5 * time.Minute, 5 * time.Second
	// servingPoll is how often to read the EndpointSlices, and servingPatience how long to wait for them. A Service with
	// publishNotReadyAddresses lists a pod until it is removed.
	servingPoll, servingPatience = 100 * time.Millisecond, 5 * time.Second
	// resizePatience is how long a kubelet may fail to apply new resources, before the pod is replaced or a person must act.
	resizePatience = 5 * time.Minute
	// schedulingPatience is how long the scheduler may find no node for a pod before a person must act. A cluster autoscaler needs
	// some minutes for a new node.
	schedulingPatience = 5 * time.Minute
	// maxReleased is the number of retained claims in the status. The size of an object is limited.
	maxReleased = 50
)

// minReady returns how long a pod must be Ready to be available.
func minReady(cluster *v1.StatefulCluster) time.Duration {
	return time.Duration(cluster.Spec.MinReadySeconds) * time.Second
}

// report sets the outcome, and the status that is not part of the record.
func (d *decision) report() {
	counted, status := d.counted(), d.status
	number := func(is func(*member) bool) int32 {
		return int32(countOf(counted, func(m *member) bool { return m.pod != nil && is(m) }))
	}
	status.Replicas = number(func(*member) bool { return true })
	status.ReadyReplicas = number(func(m *member) bool { return m.ready })
	status.AvailableReplicas = number(d.available)
	status.UpdatedReplicas = number(func(m *member) bool { return m.Revision == status.UpdateRevision })
	all := int(status.AvailableReplicas) == d.replicas() && len(counted) == d.replicas()
	if all && int(status.UpdatedReplicas) == len(counted) {
		status.CurrentRevision = status.UpdateRevision
	}
	status.CurrentReplicas = number(func(m *member) bool { return m.Revision == status.CurrentRevision })
	d.reportReleased()
	d.reportOutcome(counted, all)
}

func (d *decision) reportOutcome(counted []*member, all bool) {
	going := slices.IndexFunc(counted, func(m *member) bool { return m.going })
	stuck := slices.IndexFunc(counted, d.isStuck)
	rolling := d.Cluster.Spec.UpdateStrategy.Type != v1.ClusterOnDelete && d.updated() < d.replicas()-d.partition()
	switch {
	case len(d.excess) > 0:
		d.found(TooManyLost, d.tooManyLostMessage())
	case len(d.uses) > 0:
		d.found(ClaimInUse, d.inUseMessage(d.uses[0]))
	case going >= 0:
		m := counted[going]
		d.found(PodsTerminating, fmt.Sprintf("pod %s is terminating. It is replaced after its termination is proven: %s", m.Name, d.proveMessage(m)))
	case stuck >= 0:
		d.found(PodsUnschedulable, d.unschedulableMessage(counted[stuck]))
	case len(counted) != d.replicas() || slices.ContainsFunc(d.members, isChanging):
		d.found(Scaling, d.scalingMessage())
	case rolling && slices.ContainsFunc(d.resizing, d.failsResize):
		d.found(ResizeFailing, d.rollingOutMessage())
	case rolling:
		d.found(RollingOut, d.rollingOutMessage())
	case !all:
		d.found(PodsUnavailable, d.unavailableMessage())
	default:
		d.found(AllAvailable, fmt.Sprintf("all %d pods are available", d.replicas()))
	}
	d.status.Message += d.lostMessage() + d.keptMessage()
	if d.plan.Outcome != AllAvailable {
		d.requeueIn(poll)
	}
}

// isStuck returns true if the scheduler has found no node for the pod for schedulingPatience.
func (d *decision) isStuck(m *member) bool {
	c := m.unschedulable()
	return c != nil && d.left(schedulingPatience, m.pod, c) == 0
}

// failsResize returns true if the kubelet of the pod has failed to apply new resources for resizePatience.
func (d *decision) failsResize(m *member) bool {
	c := resizeCondition(m.pod, corev1.PodResizeInProgress)
	return c != nil && c.Reason == corev1.PodReasonError && d.left(resizePatience, m.pod, c) == 0
}

// reportReleased lists claims that are retained. The claims of a removed member are no longer in the record.
func (d *decision) reportReleased() {
	listed := map[string]bool{}
	for _, released := range d.status.Released {
		listed[released.Name] = true
	}
	for _, m := range d.members {
		for _, c := range m.Claims {
			listed[c.Name] = true
		}
	}
	limit := len(d.status.Released) + maxReleased
	for i := range d.Claims {
		if c := &d.Claims[i]; d.isOurs(c) && !listed[c.Name] && len(d.status.Released) < limit {
			d.status.Released = append(d.status.Released, v1.ReleasedClaim{Name: c.Name, Policy: v1.ClaimRetain})
		}
	}
}

// reportConditions sets the conditions from the outcome.
func (d *decision) reportConditions() {
	outcome := d.plan.Outcome
	stalled := slices.Contains([]Outcome{InvalidTemplate, TooManyLost, ClaimInUse, PodsUnschedulable, ResizeFailing}, outcome)
	d.status.ObservedGeneration = d.Cluster.Generation
	if selector, err := d.Cluster.Spec.Selector.Parse(); err == nil {
		d.status.Selector = selector.String()
	}
	d.setCondition(v1.ConditionReady, outcome == AllAvailable)
	d.setCondition(v1.ConditionReconciling, !stalled && outcome != AllAvailable && outcome != PodsUnavailable)
	d.setCondition(v1.ConditionStalled, stalled)
}

func (d *decision) setCondition(conditionType string, value bool) {
	status := metav1.ConditionFalse
	if value {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: string(d.plan.Outcome), Message: d.status.Message, ObservedGeneration: d.Cluster.Generation,
	})
}
