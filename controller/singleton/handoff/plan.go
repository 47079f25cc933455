package handoff

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Outcome names what Decide found. It is the reason of the conditions in status.
type Outcome string

const (
	// NoPods: there is no pod, and none is expected.
	NoPods Outcome = "NoPods"
	// AwaitingPod: the last holder has terminated, and the next pod does not exist yet.
	AwaitingPod Outcome = "AwaitingPod"
	// WarmingUp: there is no holder, and no standby is warm yet.
	WarmingUp Outcome = "WarmingUp"
	// Released: a standby becomes the holder and is signalled, or the holder is signalled
	// another time.
	Released Outcome = "Released"
	// Starting: the holder was signalled or adopted, and has not been Ready yet.
	Starting Outcome = "Starting"
	// HolderReady: the holder is Ready and no handoff is under way.
	HolderReady Outcome = "HolderReady"
	// HolderNotReady: the holder was Ready and is now unready. No handoff is under way.
	HolderNotReady Outcome = "HolderNotReady"
	// Rolling: the Deployment was rolled to replace the holder, and the next pod does not
	// exist yet.
	Rolling Outcome = "Rolling"
	// AwaitingHandover: a pod of a newer revision could take over, and waits for a person
	// to request the handoff. No handoff is under way.
	AwaitingHandover Outcome = "AwaitingHandover"
	// Paused: a pod of a newer revision could take over, and waits until spec.paused is false. No
	// handoff is under way.
	Paused Outcome = "Paused"
	// StandbyNotWarm: a pod of a newer revision is not warm. The holder keeps running.
	StandbyNotWarm Outcome = "StandbyNotWarm"
	// Retiring: a pod of a newer revision is warm, and the ReplicaSet of the holder is scaled
	// down.
	Retiring Outcome = "Retiring"
	// RetiringCold: a pod of a newer revision can only warm up after the holder has
	// terminated, and the ReplicaSet of the holder is scaled down.
	RetiringCold Outcome = "RetiringCold"
	// HolderStopping: the holder is terminating, and there is no proof of termination yet.
	HolderStopping Outcome = "HolderStopping"
	// HolderEnded: the holder has terminated, and no standby may be released yet.
	HolderEnded Outcome = "HolderEnded"
	// HolderLost: the object of the holder was removed without a proof of termination.
	HolderLost Outcome = "HolderLost"
	// LeaseTaken: the Lease had expired, and was taken from the pod that it named.
	LeaseTaken Outcome = "LeaseTaken"
	// LeaseHeld: the Lease names a pod that does not exist, and has not expired yet. No pod is signalled.
	LeaseHeld Outcome = "LeaseHeld"
	// Adopted: a pod that already runs becomes the holder.
	Adopted Outcome = "Adopted"
	// SeveralRun: pods beside the holder run, or may run. No pod is signalled.
	SeveralRun Outcome = "SeveralRun"
	// Overlapping: another singleton selects a pod of this one. No pod is signalled.
	Overlapping Outcome = "Overlapping"
)

// Plan is what to do now: the steps in their order, and the status to report.
type Plan struct {
	Outcome Outcome
	// Steps are the writes in their order. The executor stops at the first that fails, and the
	// controller can stop after any of them.
	Steps []Step
	// Status is the new status of the singleton. Record writes it among the steps; without a Record
	// the executor writes it after the last step.
	Status v1.StatefulSingletonStatus
	// Budget is whether a PodDisruptionBudget must block evictions of the holder.
	Budget bool
	// Requeue is the delay after which to decide again if no event arrives before.
	Requeue time.Duration
}

// decision is a Snapshot with its pods classified, and the Plan under construction.
type decision struct {
	Snapshot
	now time.Time

	// pods are the pods of the Snapshot.
	pods []*ClassifiedPod
	// holder is the recorded holder; nil if its object does not exist or no holder is recorded.
	holder *ClassifiedPod
	// unrecorded are the pods that may run a main process although the record does not name them.
	unrecorded []*ClassifiedPod
	// standbys are in the order in which they would be released.
	standbys []*ClassifiedPod
	// overlap names another singleton and a pod that both select. Empty: there is none.
	overlap string
	// drained says why the node of the holder is being drained. Empty: it is not.
	drained string
	// receives is the UID of the standby that accepts connections of clients. Empty: none does.
	receives types.UID

	plan   Plan
	status *v1.StatefulSingletonStatus
	// message says what the outcome means for this singleton.
	message string
	// advice are sentences that say what a person can do. They follow the message; a command ends its
	// sentence.
	advice []string
	// needsPerson: the handoff cannot continue without a person.
	needsPerson bool
	// requeueAfter is when to decide again if no event arrives before. 0: at the next poll.
	requeueAfter time.Duration
}

func (d *decision) do(steps ...Step) { d.plan.Steps = append(d.plan.Steps, steps...) }

// found sets the outcome, and the message that says what the outcome means here.
func (d *decision) found(outcome Outcome, format string, args ...any) {
	d.plan.Outcome, d.message = outcome, fmt.Sprintf(format, args...)
}

// Step is one write to the API server, or a read that the next write depends on.
//
//sumtype:decl
type Step interface{ isStep() }

// PodRef identifies one pod. Another pod of the same name has another UID.
type PodRef struct {
	Name string
	UID  types.UID
}

// Version is the resourceVersion of an object in the Snapshot. A step with a version fails if any
// client wrote the object since the Snapshot, except for the steps before it. Empty: no such precondition.
type Version string

type (
	// Protect adds the finalizer and the singleton's label to a pod that may run now or soon, and the
	// role if the pod is the holder. The finalizer keeps the object until the pod has terminated.
	Protect struct {
		Pod     PodRef
		Version Version
		Holder  bool
		// ChosenBy is the UID of the singleton if the pod waits at a barrier or is fenced: the singleton may start the pod
		// from now on, without a signal. Empty: only the signal starts the pod.
		ChosenBy types.UID
	}

	// Record writes Plan.Status if, and only if, the singleton is still as the
	// Snapshot has it.
	Record struct{}

	// OpenBarrier creates the ConfigMap that a pod's barrier waits for. An existing ConfigMap is not
	// changed.
	OpenBarrier struct {
		Pod       PodRef
		ConfigMap string
		Epoch     int64
	}

	// Signal releases a pod: signal, role and readiness gate in one patch. The pod becomes Ready with its
	// containers. The write also makes the kubelet check the barriers. The executor sets the time of
	// the signal.
	Signal struct {
		Pod     PodRef
		Version Version
		Signal  signal.Signal
	}

	// WriteLease writes the Lease that fences the pods. It fails if any client wrote the Lease since the Snapshot, except
	// for the steps before it.
	WriteLease struct {
		// Version is empty if the Lease does not exist. WriteLease then creates it, and fails if it exists.
		Version Version
		// Holder is the pod that may run its main processes. Zero: no pod.
		Holder PodRef
		// Duration is how long the Lease is valid after a renewal. It is 0 without a Holder: the Lease keeps the duration.
		Duration time.Duration
		Epoch    int64
		// Expired is the UID of the pod from which the Lease is taken, because the Lease has expired. Empty: there is none.
		Expired types.UID
		// Retire is the UID of a pod that must not start a main process again. Empty: there is none.
		Retire types.UID
		// Next is the UID of the pod that accepts connections of clients now, because it runs next. Empty: there is none.
		Next types.UID
		// Delay is how long the Retire pod still serves after it was asked to stop and has read this.
		Delay time.Duration
	}

	// Demote does what Unprotect does, and removes the pod from Services: it closes the readiness gate, and marks the pod as
	// not Ready, because the kubelet may be slow or unreachable. A pod that lost the Lease is a standby afterwards.
	Demote struct {
		Pod     PodRef
		Version Version
	}

	// Nudge makes the kubelet reconcile a signalled pod once more: ConfigMap, signal file and readiness.
	Nudge struct {
		Pod   PodRef
		Epoch int64
	}

	// Unprotect removes finalizer, signal and role from a pod with a proof of termination, or from a held pod:
	// the write then makes the Signal of a late controller fail.
	Unprotect struct {
		Pod     PodRef
		Version Version
	}

	// Retire scales a ReplicaSet to zero. Its pods are deleted, and the Deployment controller does not
	// recreate them.
	Retire struct{ ReplicaSet string }

	// Roll changes the pod template of a Deployment with ReplacesAnnotation, which creates a pod of a newer
	// revision. It fails if any client wrote the Deployment since the Snapshot.
	Roll struct {
		Deployment string
		UID        types.UID
		Version    Version
		// Replaces is the holder.
		Replaces PodRef
	}

	// MarkReady sets the condition of the readiness gate of a signalled pod back to True.
	MarkReady struct{ Pod PodRef }

	// TakeAttestation removes AttestAnnotation from the singleton if its value is still UID. An attestation is
	// used once, or refused.
	TakeAttestation struct {
		UID types.UID
		// Refused says why the attestation was refused, and what to do next. Empty: it was used, or is not needed.
		Refused string
	}

	// RemoveFinalizer removes the finalizer from a pod of a deleted singleton, and keeps signal and role.
	// It fails if the pod does not exist.
	RemoveFinalizer struct {
		Pod     PodRef
		Version Version
		// Unchoose removes ChosenByAnnotation too: no singleton will open the barrier of the pod.
		Unchoose bool
	}

	// ConfirmGone writes nothing. It fails if the singleton exists.
	ConfirmGone struct{}

	// Finish removes PolicyFinalizer from the singleton. It fails if any client wrote the singleton since
	// the Snapshot.
	Finish struct{ Version Version }
)

func (Protect) isStep()         {}
func (Record) isStep()          {}
func (OpenBarrier) isStep()     {}
func (Signal) isStep()          {}
func (WriteLease) isStep()      {}
func (Demote) isStep()          {}
func (Nudge) isStep()           {}
func (Unprotect) isStep()       {}
func (Retire) isStep()          {}
func (Roll) isStep()            {}
func (MarkReady) isStep()       {}
func (TakeAttestation) isStep() {}
func (RemoveFinalizer) isStep() {}
func (ConfirmGone) isStep()     {}
func (Finish) isStep()          {}

func refOf(pod *corev1.Pod) PodRef { return PodRef{Name: pod.Name, UID: pod.UID} }
