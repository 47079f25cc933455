package membership

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Outcome names what Decide found. It is the reason of the conditions in status.
type Outcome string

const (
	// InvalidTemplate: pods of the template would not match the selector.
	InvalidTemplate Outcome = "InvalidTemplate"
	// PodsAdopted: pods were found that the record does not list, because the record was lost.
	PodsAdopted Outcome = "PodsAdopted"
	// TooManyLost: lost pods get no successor, because spec.replacement.maxLost lost pods have one already.
	TooManyLost Outcome = "TooManyLost"
	// PodsTerminating: pods are terminating, without a proof that they have terminated.
	PodsTerminating Outcome = "PodsTerminating"
	// ClaimInUse: pods wait, because another pod can run with one of their claims.
	ClaimInUse Outcome = "ClaimInUse"
	// PodsUnschedulable: the scheduler finds no node for a pod, and has not for a while.
	PodsUnschedulable Outcome = "PodsUnschedulable"
	// Scaling: pods are being created or removed.
	Scaling Outcome = "Scaling"
	// ResizeFailing: in a rollout, a kubelet cannot apply the new resources of a pod.
	ResizeFailing Outcome = "ResizeFailing"
	// RollingOut: pods get a new revision.
	RollingOut Outcome = "RollingOut"
	// PodsUnavailable: all pods exist, and some are not available.
	PodsUnavailable Outcome = "PodsUnavailable"
	// AllAvailable: all pods are available.
	AllAvailable Outcome = "AllAvailable"
	// WriteRefused: the API server rejected a write of the plan. Decide never returns it.
	WriteRefused Outcome = "WriteRefused"
)

// Plan is what to do now.
type Plan struct {
	Outcome Outcome
	// Steps are the writes in their order. The executor stops at the first that fails, unless the API server rejects a write after
	// Record. Then it skips only the pod that needs a rejected claim.
	Steps []Step
	// Status is the new status. Record writes it among the steps. Without a Record, the executor writes it after the last
	// step.
	Status v1.StatefulClusterStatus
	// Requeue is the delay after which to decide again if no event arrives before.
	Requeue time.Duration
}

// Step is one write to the API server.
//
//sumtype:decl
type Step interface{ isStep() }

// Ref identifies one object. Another object of the same name has another UID.
type Ref struct {
	Name string
	UID  types.UID
}

type (
	// Record writes Plan.Status if, and only if, the StatefulCluster is still as the Snapshot has it.
	Record struct{}

	// CreateRevision creates the ControllerRevision of spec.template. The template is its data.
	CreateRevision struct {
		Name   string
		Number int64
	}

	// RenumberRevision makes a ControllerRevision the newest.
	RenumberRevision struct {
		Name   string
		Number int64
	}

	// DeleteRevision deletes a ControllerRevision. It fails if any client wrote the ControllerRevision since the Snapshot.
	DeleteRevision struct{ Name, Version string }

	// CreateClaim creates a claim from the template with the name of the volume.
	CreateClaim struct{ Name, Volume string }

	// GrowClaim raises the request of a claim. If the API server rejects that, the pod runs on with the old size.
	GrowClaim struct {
		Claim   Ref
		Storage resource.Quantity
	}

	// DeleteClaim deletes a claim that no member has.
	DeleteClaim struct{ Claim Ref }

	// CreatePod creates the pod of a member, with the finalizer and the scheduling gate.
	CreatePod struct {
		Name, Revision string
		Claims         []v1.MemberClaim
	}

	// SetServing writes the condition MemberServing. It fails if any client wrote the pod since the Snapshot.
	SetServing struct {
		Pod     Ref
		Version string
		Serving bool
	}

	// Resize changes the resources of containers. It fails if any client wrote the pod since the Snapshot. It deletes the pod if
	// the pod can never have the resources, because some changes need a new pod. DryRun only finds out whether the API server
	// accepts the resources. If it does not, the executor skips SetServing.
	Resize struct {
		Pod       Ref
		Version   string
		Resources map[string]corev1.ResourceRequirements
		DryRun    bool
	}

	// PatchImages changes the images of a pod, and its label of the revision. It fails if any client wrote the pod since the
	// Snapshot.
	PatchImages struct {
		Pod      Ref
		Version  string
		Revision string
		// Images are the new images, and Before are the IDs of their containers now, by container.
		Images, Before map[string]string
	}

	// Protect adds the finalizer to a pod that lacks it.
	Protect struct{ Pod Ref }

	// Ungate removes the scheduling gate from a pod.
	Ungate struct{ Pod Ref }

	// Delete deletes a pod.
	Delete struct{ Pod Ref }

	// Unprotect removes the finalizer from a pod.
	Unprotect struct{ Pod Ref }

	// TakeAttestation removes AttestAnnotation from the StatefulCluster if its value is still UID. An attestation is used once,
	// and has no effect later. Refused says why it is not used. Empty: it was used.
	TakeAttestation struct {
		UID     types.UID
		Refused string
	}
)

func (Record) isStep()           {}
func (CreateRevision) isStep()   {}
func (RenumberRevision) isStep() {}
func (DeleteRevision) isStep()   {}
func (CreateClaim) isStep()      {}
func (GrowClaim) isStep()        {}
func (DeleteClaim) isStep()      {}
func (CreatePod) isStep()        {}
func (SetServing) isStep()       {}
func (Resize) isStep()           {}
func (PatchImages) isStep()      {}
func (Protect) isStep()          {}
func (Ungate) isStep()           {}
func (Delete) isStep()           {}
func (Unprotect) isStep()        {}
func (TakeAttestation) isStep()  {}
