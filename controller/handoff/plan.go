package handoff

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Outcome names what Decide found. It is the reason of the conditions in status.
type Outcome string

const (
	// NoPods: no pod is there, and none is expected.
	NoPods Outcome = "NoPods"
	// AwaitingPod: the last holder is dead, and the pod that follows has not come.
	AwaitingPod Outcome = "AwaitingPod"
	// WarmingUp: there is no holder, and no standby is warm yet.
	WarmingUp Outcome = "WarmingUp"
	// Released: a standby becomes the holder and is signalled, or the signal of
	// the recorded holder is repeated.
	Released Outcome = "Released"
	// Starting: the holder was signalled and is not Ready yet.
	Starting Outcome = "Starting"
	// HolderReady: the holder is Ready and no handoff is under way.
	HolderReady Outcome = "HolderReady"
	// HolderNotReady: the holder was Ready once, and now is not. No handoff is
	// under way.
	HolderNotReady Outcome = "HolderNotReady"
	// Rolling: the holder is to be replaced, and the pod that takes over from it has
	// not come yet.
	Rolling Outcome = "Rolling"
	// AwaitingHandover: a pod of a newer revision could take over, and waits for a
	// person's word. No handoff is under way.
	AwaitingHandover Outcome = "AwaitingHandover"
	// StandbyNotWarm: a pod of a newer revision is not warm. The holder stays.
	StandbyNotWarm Outcome = "StandbyNotWarm"
	// Retiring: a pod of a newer revision is warm, and the holder is asked to stop.
	Retiring Outcome = "Retiring"
	// RetiringCold: a pod of a newer revision can only warm up once the holder is
	// gone, and the holder is asked to stop.
	RetiringCold Outcome = "RetiringCold"
	// HolderStopping: the holder is going, and nothing proves it dead yet.
	HolderStopping Outcome = "HolderStopping"
	// HolderEnded: the holder is proven dead, and no standby may be released yet.
	HolderEnded Outcome = "HolderEnded"
	// HolderLost: the holder's object is gone without proof of its death.
	HolderLost Outcome = "HolderLost"
	// Adopted: a pod that already runs becomes the holder.
	Adopted Outcome = "Adopted"
	// SeveralRun: pods besides the holder run, or may. Nothing is signalled.
	SeveralRun Outcome = "SeveralRun"
	// Overlapping: another singleton picks a pod of this one. Nothing is signalled.
	Overlapping Outcome = "Overlapping"
)

// Plan is what to do now: the steps in their order, and the status to report.
type Plan struct {
	Outcome Outcome
	// Steps are writes, each of which may be the last one before a crash. Whoever
	// executes them stops at the first that fails.
	Steps []Step
	// Status is what the singleton's status shall be. A Record among the steps
	// writes it at its place; without one it is written after the last step.
	Status v1.StatefulSingletonStatus
	// Untold: the status need not be written yet, since what is under way takes no longer
	// so far than it usually does. There is no Record among the steps.
	Untold bool
	// Budget is whether a PodDisruptionBudget shall have evictions of the holder wait.
	Budget bool
	// Requeue is when to decide again if nothing is seen to change before.
	Requeue time.Duration
}

// Step is one write to the API server, or a read that a write rests on: one of those below,
// and no other.
//
//sumtype:decl
type Step interface{ isStep() }

// PodRef names one pod for good.
type PodRef struct {
	Name string
	UID  types.UID
}

// Version is the resourceVersion that an object has in the Snapshot. A step that bears
// one fails if anybody but the steps before it wrote the object since. Empty: it does
// not matter who did.
type Version string

type (
	// Protect puts the finalizer and the singleton's label on a pod that may run, or
	// is about to, so that it can't vanish unseen, and the role if it is the holder.
	Protect struct {
		Pod     PodRef
		Version Version
		Holder  bool
		// ChosenBy is the singleton's uid, where the pod waits at a barrier that may be
		// opened from now on. Empty: it does not.
		ChosenBy types.UID
	}

	// Record writes Plan.Status if, and only if, the singleton is still as the
	// Snapshot has it.
	Record struct{}

	// OpenBarrier creates the ConfigMap that a pod's barrier waits for. One that
	// exists is left as it is.
	OpenBarrier struct {
		Pod       PodRef
		ConfigMap string
		Epoch     int64
	}

	// Signal releases a pod: signal, role and readiness gate in one patch. The
	// pod is Ready as soon as its containers are, and the kubelet looks whether a barrier
	// is open. Whoever executes it gives the signal its time.
	Signal struct {
		Pod     PodRef
		Version Version
		Signal  signal.Signal
	}

	// Nudge makes the kubelet look again at a pod that was signalled: whether the ConfigMap
	// exists, what the signal is, and whether the pod is ready.
	Nudge struct {
		Pod   PodRef
		Epoch int64
	}

	// LetGo takes finalizer, signal and role off a pod that is proven dead, or that
	// was not signalled yet and is not to be.
	LetGo struct {
		Pod     PodRef
		Version Version
	}

	// Retire scales a ReplicaSet to zero: its pods are asked to stop, and the
	// Deployment controller does not bring them back.
	Retire struct{ ReplicaSet string }

	// Roll changes the pod template of a Deployment, by ReplacesAnnotation, so that a
	// pod of a newer revision comes. It fails if anybody wrote the Deployment since
	// the Snapshot.
	Roll struct {
		Deployment string
		UID        types.UID
		Version    Version
		// Replaces is the holder that is to be replaced.
		Replaces PodRef
	}

	// MarkReady opens the readiness gate of a pod that bears its signal, where somebody
	// has shut it.
	MarkReady struct{ Pod PodRef }

	// TakeAttestation takes AttestAnnotation off the singleton if it is still UID: the
	// word was believed, or refused, and is worth nothing later.
	TakeAttestation struct {
		UID types.UID
		// Refused says why it was not believed, and what to do. Empty: it was.
		Refused string
	}

	// Strip takes the finalizer off a pod of a singleton that goes or is gone, and leaves
	// signal and role. It fails if the pod is gone.
	Strip struct {
		Pod     PodRef
		Version Version
		// Unchoose takes ChosenByAnnotation off as well: nobody will open the pod's barrier.
		Unchoose bool
	}

	// ConfirmGone writes nothing. It fails if the singleton exists.
	ConfirmGone struct{}

	// Finish takes PolicyFinalizer off the singleton. It fails if anybody wrote the
	// singleton since the Snapshot.
	Finish struct{ Version Version }
)

func (Protect) isStep()         {}
func (Record) isStep()          {}
func (OpenBarrier) isStep()     {}
func (Signal) isStep()          {}
func (Nudge) isStep()           {}
func (LetGo) isStep()           {}
func (Retire) isStep()          {}
func (Roll) isStep()            {}
func (MarkReady) isStep()       {}
func (TakeAttestation) isStep() {}
func (Strip) isStep()           {}
func (ConfirmGone) isStep()     {}
func (Finish) isStep()          {}

func refOf(pod *corev1.Pod) PodRef { return PodRef{Name: pod.Name, UID: pod.UID} }
