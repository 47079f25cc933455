package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StatefulSetLock makes one pod of a StatefulSet the writer. The other pods are readers. The
// label `sts-role` of each pod is `writer` or `reader`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=statefulsetlocks,singular=statefulsetlock,shortName=ssl,scope=Namespaced
// +kubebuilder:selectablefield:JSONPath=`.spec.statefulSetName`
// +kubebuilder:printcolumn:name="Writer",type=string,JSONPath=`.status.writerPod`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Fencing",type=string,JSONPath=`.spec.fencing`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Lease",type=string,JSONPath=`.spec.leaseName`,priority=1
// +kubebuilder:printcolumn:name="Last Failover",type=date,JSONPath=`.status.lastTransition.started`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name has more than 63 characters and becomes the value of a label: choose a shorter name"
type StatefulSetLock struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec StatefulSetLockSpec `json:"spec"`
	// +optional
	Status StatefulSetLockStatus `json:"status,omitempty"`
}

// StatefulSetLockSpec is the desired state of a StatefulSetLock.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hooks) || (has(self.fencing) && self.fencing == 'Lease')",message="spec.hooks needs spec.fencing Lease, because only the gate runs hooks: set spec.fencing to Lease, or remove spec.hooks"
// +kubebuilder:validation:XValidation:rule="!has(self.fencing) || self.fencing != 'Lease' || self.leaseDurationSeconds >= 5",message="spec.leaseDurationSeconds is too short for spec.fencing Lease: set seconds from 5 to 3600"
type StatefulSetLockSpec struct {
	// StatefulSetName is the name of the StatefulSet in the same namespace. It cannot be
	// changed.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.statefulSetName is immutable, because the controller would forget a writer that still runs: create another StatefulSetLock instead"
	StatefulSetName string `json:"statefulSetName"`

	// LeaseName is the name of the Lease (coordination.k8s.io/v1) that names the writer. The
	// controller creates the Lease, and does not use a Lease that exists already. The name
	// cannot be changed.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue() && !self.startsWith('statefulsingleton-')",message="spec.leaseName must be the name of a Lease: lowercase letters, digits, '-' and '.'. Names that begin with statefulsingleton- are for StatefulSingletons"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.leaseName is immutable, because the old Lease could still name a writer: create another StatefulSetLock instead"
	LeaseName string `json:"leaseName"`

	// LeaseDurationSeconds is the time in seconds without a renewal after which the Lease
	// expires. The controller renews the Lease after half of the duration, but not more often
	// than every two seconds, so that a short duration does not burden the API server. If
	// fencing is Lease, the writer itself renews the Lease five times in this time, and only
	// then does an expired Lease end the tenure of the writer.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="spec.leaseDurationSeconds is out of range: set seconds from 1 to 3600"
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds"`

	// Fencing says what ends the tenure of a writer, before another pod becomes the writer:
	// None (default), Termination or Lease.
	//
	// With None, the controller removes the label of the writer. Open connections continue,
	// and the old writer can still write. Use None only if two writers do no harm.
	//
	// With Termination, the controller deletes the pod of the writer, and waits for the proof
	// that the pod has terminated. If the node is lost, it waits for a person.
	//
	// With Lease, a pod is the writer only while it renews the Lease. The gate stops the main
	// process when the tenure ends, and starts it again as a reader. If the node is lost,
	// another pod becomes the writer after the Lease has expired. Every regular container
	// needs a command. Pods that were created before cannot become the writer.
	//
	// +optional
	// +default="None"
	Fencing LockFencing `json:"fencing,omitempty"`

	// FailoverDelaySeconds is the time in seconds that a writer can be unready before another
	// pod becomes the writer.
	//
	// +optional
	// +default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="spec.failoverDelaySeconds is out of range: set seconds from 0 to 3600 (default 0)"
	FailoverDelaySeconds int32 `json:"failoverDelaySeconds,omitempty"`

	// Hooks are commands that change the role of a main process that runs. Without a hook,
	// the main process is started again in its new role. Hooks need fencing Lease.
	//
	// +optional
	Hooks *LockHooks `json:"hooks,omitempty"`
}

// LockHooks are commands in every regular container of a pod. The gate starts them with the
// environment of the main process. STATEFULSETLOCK_ROLE is the new role, and
// STATEFULSETLOCK_EPOCH is the epoch.
type LockHooks struct {
	// Promote is a command that makes the main process the writer. If it fails, the main
	// process is started again as a reader, and another pod becomes the writer.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	Promote []string `json:"promote,omitempty"`
	// Demote is a command that makes the main process a reader. If it fails, the main process
	// is started again as a reader.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	Demote []string `json:"demote,omitempty"`
}

// LockFencing says what ends the tenure of a writer.
//
// +kubebuilder:validation:Enum=None;Termination;Lease
type LockFencing string

const (
	// LockFencingNone: the label is removed.
	LockFencingNone LockFencing = "None"
	// LockFencingTermination: the pod is deleted, and has terminated.
	LockFencingTermination LockFencing = "Termination"
	// LockFencingLease: the pod has released the Lease, or the Lease has expired.
	LockFencingLease LockFencing = "Lease"
)

// TenureCause is what began the change of a writer.
//
// +kubebuilder:validation:Enum=Created;Adopted;Rollout;Drain;Unready;Eviction;Deletion;Left;Release;Expiry
type TenureCause string

const (
	// TenureCreated: there was no writer, and a pod became Ready.
	TenureCreated TenureCause = "Created"
	// TenureAdopted: the pods or the Lease show a writer that the record does not have.
	TenureAdopted TenureCause = "Adopted"
	// TenureRollout: the writer has an old revision, and a pod of the new revision is Ready.
	TenureRollout TenureCause = "Rollout"
	// TenureDrain: the node of the writer is drained.
	TenureDrain TenureCause = "Drain"
	// TenureUnready: the writer was unready for spec.failoverDelaySeconds.
	TenureUnready TenureCause = "Unready"
	// TenureEviction: the writer was evicted, preempted, or removed by a taint.
	TenureEviction TenureCause = "Eviction"
	// TenureDeletion: the writer was deleted.
	TenureDeletion TenureCause = "Deletion"
	// TenureLeft: the StatefulSet no longer controls the writer, or a StatefulSingleton selects it.
	TenureLeft TenureCause = "Left"
	// TenureRelease: the writer has released the Lease, because its main process has ended.
	TenureRelease TenureCause = "Release"
	// TenureExpiry: the writer has not renewed the Lease for its duration.
	TenureExpiry TenureCause = "Expiry"
)

// TenureTransition is one change of the writer.
type TenureTransition struct {
	// From is the name of the old writer. Empty if there was none.
	// +optional
	From string `json:"from,omitempty"`
	// FromUID is the UID of the old writer.
	// +optional
	FromUID types.UID `json:"fromUID,omitempty"`
	// To is the name of the new writer. Empty until the new writer is recorded.
	// +optional
	To string `json:"to,omitempty"`
	// Cause is what began the change.
	// +required
	Cause TenureCause `json:"cause"`
	// Proof is the proof that the tenure of the old writer has ended. Empty if there was no old
	// writer, or if fencing is None.
	// +optional
	Proof Proof `json:"proof,omitempty"`
	// Started is when the controller saw the cause.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// Ended is when the controller saw that the tenure of the old writer had ended.
	// +optional
	Ended *metav1.MicroTime `json:"ended,omitempty"`
	// Labelled is when the controller saw the label of the new writer.
	// +optional
	Labelled *metav1.MicroTime `json:"labelled,omitempty"`
}

// StatefulSetLockStatus is the observed state of a StatefulSetLock. The writer and the epoch
// are the record: every change of the record is a compare-and-swap.
type StatefulSetLockStatus struct {
	// WriterPod is the name of the writer.
	// +optional
	WriterPod string `json:"writerPod,omitempty"`
	// WriterPodUID is the UID of the writer.
	// +optional
	WriterPodUID types.UID `json:"writerPodUID,omitempty"`
	// WriterNode is the node of the writer.
	// +optional
	WriterNode string `json:"writerNode,omitempty"`
	// Epoch is the number of the tenure. Each writer has a higher epoch than the writers before.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Message describes the state and, if a person is needed, says what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// LastTransition is the last change of the writer.
	// +optional
	LastTransition *TenureTransition `json:"lastTransition,omitempty"`
	// Conditions: Available, Progressing, Error, Ready, Reconciling, Stalled, Fenced,
	// EvictionBlocked, PolicyInstalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec from which the status was computed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Conditions of a StatefulSetLock, in addition to those that a StatefulSingleton has too.
const (
	// ConditionAvailable: the writer has its label, and is Ready.
	ConditionAvailable = "Available"
	// ConditionProgressing: a change of the writer is in progress.
	ConditionProgressing = "Progressing"
	// ConditionError: the lock needs a person. The message says what to do.
	ConditionError = "Error"
)

// StatefulSetLockList is a list of StatefulSetLocks.
//
// +kubebuilder:object:root=true
type StatefulSetLockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StatefulSetLock `json:"items"`
}
