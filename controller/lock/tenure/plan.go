package tenure

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Outcome names what Decide found. It is the reason of the conditions in status.
type Outcome string

const (
	// NoStatefulSet: the StatefulSet does not exist.
	NoStatefulSet Outcome = "NoStatefulSet"
	// NoLease: the Lease was just created.
	NoLease Outcome = "NoLease"
	// NoReadyPod: there is no writer, and no pod can become the writer.
	NoReadyPod Outcome = "NoReadyPod"
	// Granted: a pod becomes the writer. If it is fenced, it has not said yet that it is the writer.
	Granted Outcome = "Granted"
	// WriterReady: the writer has its label and is Ready.
	WriterReady Outcome = "WriterReady"
	// WriterNotReady: the writer is unready, and no other pod replaces it yet.
	WriterNotReady Outcome = "WriterNotReady"
	// LabelRemoved: the tenure of the writer is ending, and its label was removed.
	LabelRemoved Outcome = "LabelRemoved"
	// AwaitingEndpoints: EndpointSlices of Services for writers still list the old writer.
	AwaitingEndpoints Outcome = "AwaitingEndpoints"
	// WriterStopping: the pod of the old writer is terminating, without a proof that it has terminated.
	WriterStopping Outcome = "WriterStopping"
	// StartFailed: the pod gave up its tenure before it was the writer. Another attempt follows.
	StartFailed Outcome = "StartFailed"
	// TenureRevoked: the old writer was told to release the Lease.
	TenureRevoked Outcome = "TenureRevoked"
	// LeaseTaken: the Lease has expired, and is taken from the pod that it names.
	LeaseTaken Outcome = "LeaseTaken"
	// LeaseHeld: the Lease names a pod that is not recorded, or may have been created again while a pod was the writer, and has not
	// expired yet.
	LeaseHeld Outcome = "LeaseHeld"
	// TenureEnded: the tenure of the old writer has ended, and no pod can become the writer yet.
	TenureEnded Outcome = "TenureEnded"
	// Adopted: the pods or the Lease have a later tenure than the record, which was lost.
	Adopted Outcome = "Adopted"
	// WriterLost: the object of the writer was removed without a proof that the pod has terminated.
	WriterLost Outcome = "WriterLost"
	// SecondLock: another StatefulSetLock of the StatefulSet is older.
	SecondLock Outcome = "SecondLock"
	// ForeignLease: the lock does not control the Lease.
	ForeignLease Outcome = "ForeignLease"
	// WriteRefused: the API server rejected a write of the plan. Decide never returns it.
	WriteRefused Outcome = "WriteRefused"
)

// Settled returns true if nothing is in progress: there is a writer, or only a person continues.
func (o Outcome) Settled() bool {
	switch o {
	case WriterReady, WriterNotReady, SecondLock, ForeignLease:
		return true
	default:
		return false
	}
}

// Refused returns true if the lock must not change anything.
func (o Outcome) Refused() bool { return o == SecondLock || o == ForeignLease }

// Plan is what to do now.
type Plan struct {
	Outcome Outcome
	// Steps are the writes in their order. The executor stops at the first that fails.
	Steps []Step
	// Status is the new status of the lock. Record writes it among the steps. Without a Record, the executor writes it
	// after the last step.
	Status v1.StatefulSetLockStatus
	// Budget is true if a PodDisruptionBudget must block evictions of the writer.
	Budget bool
	// Requeue is the delay after which to decide again if no event arrives before.
	Requeue time.Duration
}

// Step is one write to the API server, or Confirm.
//
//sumtype:decl
type Step interface{ isStep() }

// PodRef identifies one pod. Another pod of the same name has another UID.
type PodRef struct {
	Name string
	UID  types.UID
	// Version is the resourceVersion of the pod in the Snapshot. Steps that write the pod fail if any client wrote it since the
	// Snapshot, except for the steps before.
	Version string
}

type (
	// Record writes Plan.Status if, and only if, the lock is still as the Snapshot has it.
	Record struct{}

	// Confirm fails if the lock is not as the Snapshot has it. Record fails then, too, but other writes come before it.
	Confirm struct{}

	// MarkTenure writes the epoch of the tenure on a fenced pod, before the Lease names the pod. If lock and Lease are lost, the pod
	// still shows the epoch.
	MarkTenure struct {
		Pod   PodRef
		Epoch int64
	}

	// LabelWriter labels the pod as the writer of a tenure.
	LabelWriter struct {
		Pod   PodRef
		Epoch int64
	}

	// LabelReader labels the pod as a reader.
	LabelReader struct {
		Pod PodRef
		// Ends is the epoch of the tenure that ends. 0: the pod has no tenure.
		Ends int64
	}

	// Protect adds the finalizer to a pod.
	Protect struct{ Pod PodRef }

	// Unprotect removes the finalizer from a pod.
	Unprotect struct{ Pod PodRef }

	// Forget removes the labels of a lock that is being deleted from a pod. The annotations stay: from them, the next lock
	// of the StatefulSet learns which pod was the writer.
	Forget struct {
		Pod PodRef
		// Ends is the last epoch of the lock, so that the next lock uses no epoch again. 0: there was no tenure.
		Ends int64
		// Unprotect is true if the step removes the finalizer, too.
		Unprotect bool
	}

	// Delete deletes a pod of any Version, because only its termination ends its tenure.
	Delete struct{ Pod PodRef }

	// CreateLease creates the Lease, which names no pod.
	CreateLease struct {
		// Held is how long no pod can get the Lease, because a pod that an earlier Lease named may still be the writer. 0: no such pod
		// can exist.
		Held time.Duration
	}

	// TakeAttestation removes AttestAnnotation from the lock if its value is still UID. An attestation is used once, and has
	// no effect later. Refused says why it is not used. Empty: it was used.
	TakeAttestation struct {
		UID     types.UID
		Refused string
	}

	// WriteLease writes the Lease. It fails if any client wrote the Lease since the Snapshot.
	WriteLease struct {
		// Holder is the holder identity. Empty: no pod.
		Holder string
		// Writer is the UID of the pod that the Lease names, or named last.
		Writer types.UID
		Epoch  int64
		// Duration is the new duration. 0: it stays.
		Duration time.Duration
		// Renew is true if the step renews the Lease. Only a fenced pod itself renews its Lease.
		Renew bool
		// Revoked is the epoch that the fenced holder must end. 0: none.
		Revoked int64
		// Expired is the UID of the pod from which the Lease is taken. Empty: none.
		Expired types.UID
	}
)

func (Record) isStep()          {}
func (Confirm) isStep()         {}
func (MarkTenure) isStep()      {}
func (LabelWriter) isStep()     {}
func (LabelReader) isStep()     {}
func (Protect) isStep()         {}
func (Unprotect) isStep()       {}
func (Forget) isStep()          {}
func (Delete) isStep()          {}
func (CreateLease) isStep()     {}
func (TakeAttestation) isStep() {}
func (WriteLease) isStep()      {}

func refOf(p *pod) PodRef { return PodRef{Name: p.Name, UID: p.UID, Version: p.ResourceVersion} }
