package plugin

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
)

// Roles of pods of a StatefulSetLock in the output.
const (
	writer = "Writer"
	reader = "Reader"
)

// lockView is a StatefulSetLock with its Snapshot, as the controller reads it.
type lockView struct {
	tenure.Snapshot
	place
}

// status implements observed.
func (s lockView) status(time.Time) Status {
	lock := s.Lock
	status := Status{
		kind: s.kind.name, state: fmt.Sprintf("StatefulSet %s, fencing %s, epoch %d", lock.Spec.StatefulSetName, lock.Spec.Fencing, lock.Status.Epoch),
		Namespace: lock.Namespace, Name: lock.Name, StatefulSet: lock.Spec.StatefulSetName, Fencing: lock.Spec.Fencing,
		Epoch: &lock.Status.Epoch, Message: lock.Status.Message, Deleting: !lock.DeletionTimestamp.IsZero(),
		Pods: []Pod{}, Conditions: append([]metav1.Condition{}, lock.Status.Conditions...),
	}
	uid, known := lock.Status.WriterPodUID, false
	for _, pod := range tenure.InOrder(s.Snapshot) {
		role := reader
		if pod.UID == uid {
			role, known = writer, true
		}
		status.Pods = append(status.Pods, podOf(pod, role, ""))
	}
	if uid != "" && !known {
		status.Pods = append(status.Pods, Pod{Name: lock.Status.WriterPod, UID: uid, Role: writer, Node: lock.Status.WriterNode, Gone: true})
	}
	if t := lock.Status.LastTransition; t != nil {
		status.LastTransition, status.change = t, change{of: "change of the writer", cause: string(t.Cause), from: t.From, to: t.To, proof: t.Proof}
	}
	return status
}

// explanation implements observed.
func (s lockView) explanation(now time.Time) explanation {
	if !s.Lock.DeletionTimestamp.IsZero() {
		_, message := tenure.Finalize(s.Snapshot)
		e := s.explainDeletion(message)
		if message != "" {
			e.helps = append(e.helps, s.attestWriter(now)...)
		}
		return e
	}
	reported := meta.FindStatusCondition(s.Lock.Status.Conditions, v1.ConditionReady)
	status, stale := s.Lock.Status, reported == nil
	refused := reported != nil && reported.Reason == string(tenure.WriteRefused)
	if s.hidden == "" && !refused { // only the status has the error of a write
		plan := tenure.Decide(s.Snapshot, now)
		status = plan.Status
		stale = reported == nil || reported.Reason != string(plan.Outcome)
	}
	e := explanation{place: s.place, headline: "is not Ready"}
	newPods := "become readers"
	if is := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); is != nil {
		if is.Status == metav1.ConditionTrue {
			e.headline = "is Ready"
		}
		e.headline += ": " + is.Reason
		e.texts = append(e.texts, s.in.amended(status.Message))
		e.helps = s.helps(tenure.Outcome(is.Reason), now)
		if tenure.Outcome(is.Reason).Refused() { // the lock has no policy, and needs none
			newPods = ""
		}
	}
	if fenced := meta.FindStatusCondition(status.Conditions, v1.ConditionFenced); fenced != nil && fenced.Status != metav1.ConditionTrue {
		e.texts = append(e.texts, "Fencing: "+fenced.Message)
	}
	e.addCaveats(stale, s.Lock.Status.Conditions, newPods)
	return e
}

// helps returns the commands that help with an outcome.
func (s lockView) helps(outcome tenure.Outcome, now time.Time) []help {
	spec, pod := s.Lock.Spec, s.Lock.Status.WriterPod
	switch outcome {
	case tenure.NoStatefulSet, tenure.NoReadyPod:
		return []help{{"show the StatefulSet and its events", s.kubectl("describe statefulset %s", spec.StatefulSetName)}}
	case tenure.WriterNotReady:
		return []help{
			{"show the logs of the writer", s.kubectl("logs %s --all-containers --tail=50", pod)},
			{"show what the kubelet reports", s.kubectl("describe pod %s", pod)},
		}
	case tenure.Granted:
		if spec.Fencing != v1.LockFencingLease {
			return nil
		}
		return []help{
			{"show the logs of the pod", s.kubectl("logs %s --all-containers --tail=50", pod)},
			{"show the Lease", s.kubectl("get lease %s -o yaml", spec.LeaseName)},
		}
	case tenure.WriterStopping:
		return append([]help{{"show what the kubelet reports", s.kubectl("describe pod %s", pod)}}, s.attestWriter(now)...)
	case tenure.WriterLost:
		return s.attestWriter(now)
	case tenure.SecondLock:
		return []help{{"show the locks of the namespace", s.kubectl("get ssl -o custom-columns=NAME:.metadata.name,STATEFULSET:.spec.statefulSetName")}}
	case tenure.ForeignLease, tenure.TenureRevoked, tenure.LeaseHeld:
		return []help{{"show the Lease", s.kubectl("get lease %s -o yaml", spec.LeaseName)}}
	default: // the message of the lock has the command, or none is needed
		return nil
	}
}

// attestWriter returns the command that attests the termination of the writer, or none if the controller needs no attestation.
func (s lockView) attestWriter(now time.Time) []help {
	return attestHelps(s, now, s.Lock.Status.WriterPodUID)
}

// attested implements observed.
func (s lockView) attested(uid types.UID, now time.Time) (client.Object, verdict) {
	attested := withAttestation(s.Lock, uid)
	with := s.Snapshot
	with.Lock = attested
	for _, step := range tenure.Decide(with, now).Steps {
		if taken, is := step.(tenure.TakeAttestation); is && taken.Refused != "" {
			return attested, verdict{refused: taken.Refused}
		}
	}
	return attested, verdict{proven: tenure.Decide(s.Snapshot, now).Status.WriterPodUID != uid}
}

// podName implements observed.
func (s lockView) podName(uid types.UID) string {
	return nameOfPod(s.Pods, uid, s.Lock.Status.WriterPod)
}
