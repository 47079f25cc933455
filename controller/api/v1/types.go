package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StatefulSingleton makes of the pods that its selector picks a singleton: at no
// time do two of them run a held container's main process.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=statefulsingletons,singular=statefulsingleton,shortName=stfs,scope=Namespaced
// +kubebuilder:selectablefield:JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Active Pod",type=string,JSONPath=`.status.activePod`
// +kubebuilder:printcolumn:name="Standby",type=string,JSONPath=`.status.standbyPods[0]`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Gap",type=integer,JSONPath=`.status.lastTransition.gapMilliseconds`,priority=1,description="The last handoff's gap in milliseconds."
// +kubebuilder:printcolumn:name="Proof",type=string,JSONPath=`.status.lastTransition.proof`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name has more than 63 characters: it becomes the value of a label on the pods, so choose a shorter one"
type StatefulSingleton struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec StatefulSingletonSpec `json:"spec"`
	// +optional
	Status StatefulSingletonStatus `json:"status,omitempty"`
}

// StatefulSingletonSpec is what the user asks for.
type StatefulSingletonSpec struct {
	// Selector picks the pods of the singleton in its namespace. It is required,
	// must not be empty, and can't be changed.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="spec.selector is empty and would pick every pod of the namespace: give matchLabels (as {app: my-database}) or matchExpressions"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.selector can't be changed, since the pods it picked so far would be forgotten while they run: create another StatefulSingleton instead"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="spec.selector.matchExpressions: operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist take none"
	Selector LabelSelector `json:"selector"`

	// MaxTransitionTime is how long a handoff may take, in seconds, before phase
	// is Failed and the message says what would help. It bounds patience, not
	// safety: the handoff still completes if the proof comes later.
	//
	// +optional
	// +default=300
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="spec.maxTransitionTime is out of range: give seconds from 1 to 3600 (default 300)"
	MaxTransitionTime int32 `json:"maxTransitionTime,omitempty"`

	// TerminationGracePeriod is the time that a pod has to stop, in seconds. It
	// counts only where respectPodGracePeriod is false.
	//
	// +optional
	// +default=30
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="spec.terminationGracePeriod is out of range: give seconds from 0 to 3600 (default 30)"
	TerminationGracePeriod *int32 `json:"terminationGracePeriod,omitempty"`

	// RespectPodGracePeriod leaves the pod's own terminationGracePeriodSeconds as
	// it is. False sets it to terminationGracePeriod.
	//
	// +optional
	// +default=true
	RespectPodGracePeriod *bool `json:"respectPodGracePeriod,omitempty"`

	// Containers names the containers to hold, one regular container at least.
	// Default: every regular container of the pod. A container that is not named
	// runs in the standby too. An init container that is named is held: a native
	// sidecar that writes to the data, say. What comes after it in the pod is then
	// pulled and started after the release.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(name, size(name) > 0)",message="spec.containers has an empty name: give the names of containers as the pod has them, or leave the field out to hold all of them"
	// +kubebuilder:validation:XValidation:rule="self.all(name, self.exists_one(other, other == name))",message="spec.containers names a container twice: name each once"
	Containers []string `json:"containers,omitempty"`

	// HoldInitContainers holds all of the user's init containers. By default those
	// that containers does not name run in the standby while the old pod still runs,
	// so that the standby is warm. Set it where an init container touches the data (a
	// migration, a chown); the handoff then takes as long as they do.
	//
	// +optional
	// +default=false
	HoldInitContainers bool `json:"holdInitContainers,omitempty"`

	// Drain is what becomes of the holder when its node is drained: Surge (default)
	// or Evict.
	//
	// Surge replaces it first. A PodDisruptionBudget has evictions of the holder
	// wait, and once its node is cordoned, or takes a NoSchedule or NoExecute taint
	// that the pod does not tolerate, the owning Deployment is rolled, as `kubectl
	// rollout restart` does it: the next pod warms up on another node, and the
	// handoff is that of a rollout. If none is warm there within maxTransitionTime,
	// the budget is lifted and the drain goes on. Where the owner can bring up no pod
	// beside the holder (a StatefulSet, strategy Recreate, maxSurge 0, a Deployment
	// that is paused), and where another budget covers the holder, there is no such
	// budget: the condition EvictionBlocked tells which. A taint with effect NoExecute has
	// Kubernetes delete the pod without asking any budget, once its tolerationSeconds
	// are over.
	//
	// Evict lets an eviction stop the holder at once.
	//
	// +optional
	// +default="Surge"
	Drain DrainPolicy `json:"drain,omitempty"`

	// Handoff is when a rollout's pod takes over: Automatic (default), as soon as it
	// is warm, or Manual: it waits, warm, until a person gives the annotation
	// `apps.statefulsingleton.com/handover` a new value. Where the holder goes anyway,
	// since it was deleted or evicted, or its node is drained and drain is Surge,
	// nobody is waited for.
	//
	// While a pod waits, `kubectl rollout status` waits too, and after the
	// Deployment's progressDeadlineSeconds it reports that the deadline is exceeded.
	// The Deployment does nothing about that.
	//
	// +optional
	// +default="Automatic"
	Handoff HandoffPolicy `json:"handoff,omitempty"`
}

// DrainPolicy is what becomes of the holder when its node is drained.
//
// +kubebuilder:validation:Enum=Surge;Evict
type DrainPolicy string

const (
	// DrainSurge: another pod warms up on another node first.
	DrainSurge DrainPolicy = "Surge"
	// DrainEvict: an eviction stops the holder at once.
	DrainEvict DrainPolicy = "Evict"
)

// HandoffPolicy is when a rollout's pod takes over.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type HandoffPolicy string

const (
	// HandoffAutomatic: as soon as it is warm.
	HandoffAutomatic HandoffPolicy = "Automatic"
	// HandoffManual: once a person says so.
	HandoffManual HandoffPolicy = "Manual"
)

// Phase is where a singleton stands. It is empty while no pod is there and none
// is expected.
//
// +kubebuilder:validation:Enum=Running;Transitioning;Failed
type Phase string

const (
	// PhaseRunning: there is a holder, and no handoff is under way.
	PhaseRunning Phase = "Running"
	// PhaseTransitioning: a handoff is under way.
	PhaseTransitioning Phase = "Transitioning"
	// PhaseFailed: a handoff takes longer than spec.maxTransitionTime, or can't go
	// on without a person. The message says what would help.
	PhaseFailed Phase = "Failed"
)

// Proof is why the controller knows that a holder is dead.
//
// +kubebuilder:validation:Enum=NeverSignalled;KubeletReported;NodeOutOfService;Attested
type Proof string

const (
	// ProofNeverSignalled: the holder was recorded, but was deleted or ended before
	// its signal, or deleted before it was bound to a node: it never started.
	ProofNeverSignalled Proof = "NeverSignalled"
	// ProofKubeletReported: the kubelet ended the pod, which its own hand wrote, and
	// reported every held container as terminated, or never created.
	ProofKubeletReported Proof = "KubeletReported"
	// ProofNodeOutOfService: the pod's node does not answer and bears the taint
	// `node.kubernetes.io/out-of-service`, by which a person vouches that it is off.
	ProofNodeOutOfService Proof = "NodeOutOfService"
	// ProofAttested: a person vouched for it with the annotation
	// `apps.statefulsingleton.com/attest-terminated`, and the kubelet could not be asked.
	ProofAttested Proof = "Attested"
)

// Cause is what began a handoff.
//
// +kubebuilder:validation:Enum=Created;Adopted;Rollout;Drain;Handover;Eviction;Deletion;ScaleDown;Completion
type Cause string

const (
	// CauseCreated: there was no holder, and a first pod came.
	CauseCreated Cause = "Created"
	// CauseAdopted: a pod that ran before the singleton existed holds by fact.
	CauseAdopted Cause = "Adopted"
	// CauseRollout: a pod of a newer revision came.
	CauseRollout Cause = "Rollout"
	// CauseDrain: the holder's node was drained, and the holder replaced before it
	// was evicted.
	CauseDrain Cause = "Drain"
	// CauseHandover: a person asked for it with the annotation
	// `apps.statefulsingleton.com/handover`.
	CauseHandover Cause = "Handover"
	// CauseEviction: the holder was evicted, preempted, or removed by a taint.
	CauseEviction Cause = "Eviction"
	// CauseDeletion: the holder was deleted.
	CauseDeletion Cause = "Deletion"
	// CauseScaleDown: the holder's owner wants no pod any more: it was scaled to zero or
	// deleted, or it is a Job whose pod has succeeded.
	CauseScaleDown Cause = "ScaleDown"
	// CauseCompletion: the holder's pod ended by itself, in phase Succeeded or Failed.
	CauseCompletion Cause = "Completion"
)

// Transition is one change of holder.
type Transition struct {
	// From is the pod that held before. Empty where there was none.
	// +optional
	From string `json:"from,omitempty"`
	// FromUID is the uid of the pod that held before.
	// +optional
	FromUID types.UID `json:"fromUID,omitempty"`
	// To is the pod that holds now. Empty while no pod has been chosen.
	// +optional
	To string `json:"to,omitempty"`
	// Cause is what began the handoff.
	Cause Cause `json:"cause"`
	// Proof is why the old holder is known to be dead. Empty where there was none.
	// +optional
	Proof Proof `json:"proof,omitempty"`
	// Started is when the controller saw the cause, or, in a rollout, when the new
	// pod was created.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// Terminated is when the controller saw the proof.
	// +optional
	Terminated *metav1.MicroTime `json:"terminated,omitempty"`
	// Signalled is when the controller released the new holder.
	// +optional
	Signalled *metav1.MicroTime `json:"signalled,omitempty"`
	// Ready is when the controller saw the new holder's pod Ready.
	// +optional
	Ready *metav1.MicroTime `json:"ready,omitempty"`
	// GapMilliseconds is the time from the old main process's exit to the new
	// one's start, in milliseconds, as the kubelet's reports of both reached the
	// controller. A pod that only a readiness probe tells of counts as started
	// when that probe succeeds, so its gap includes the application's own start.
	// +optional
	GapMilliseconds *int64 `json:"gapMilliseconds,omitempty"`
}

// Conditions of a StatefulSingleton, besides Ready, Reconciling and Stalled as
// kstatus reads them.
const (
	// ConditionReady: the holder is Ready and no handoff is under way, or no pod
	// is asked for. Pods that are created now are held.
	ConditionReady = "Ready"
	// ConditionReconciling: a handoff is under way.
	ConditionReconciling = "Reconciling"
	// ConditionStalled: nothing goes on without a person.
	ConditionStalled = "Stalled"
	// ConditionPolicyInstalled: a dry-run showed that a pod which is created now
	// is injected.
	ConditionPolicyInstalled = "PolicyInstalled"
	// ConditionDraining is there, and True, while the holder's node is drained and
	// spec.drain is Surge. Its lastTransitionTime is when the controller saw that.
	ConditionDraining = "Draining"
	// ConditionEvictionBlocked: evictions of the holder are blocked until another pod is warm. The
	// reason tells why they don't.
	ConditionEvictionBlocked = "EvictionBlocked"
)

// Handover is a person's word that the holder be replaced.
type Handover struct {
	// Value is that of the annotation `apps.statefulsingleton.com/handover`.
	Value string `json:"value"`
	// Refused is why nothing was done. Empty: the holder was replaced.
	// +optional
	Refused string `json:"refused,omitempty"`
}

// StatefulSingletonStatus is what the controller saw and did. Holder and epoch in
// it are the record: every change of them is a compare-and-swap.
type StatefulSingletonStatus struct {
	// ActivePod is the holder: the pod that may run its main processes. At most one.
	// +optional
	ActivePod string `json:"activePod,omitempty"`
	// ActivePodUID is the uid of the holder.
	// +optional
	ActivePodUID types.UID `json:"activePodUID,omitempty"`
	// ActiveNode is the node that the holder is bound to.
	// +optional
	ActiveNode string `json:"activeNode,omitempty"`
	// ActiveBarrier is the ConfigMap that the holder's barriers read, empty where it
	// has none. It exists already: a new pod whose barrier names it is refused, since
	// nothing would hold it.
	// +optional
	ActiveBarrier string `json:"activeBarrier,omitempty"`
	// Epoch grows by one with each holder: the fencing token.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Phase is where the singleton stands.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// TransitionTimestamp is when the current handoff began, or the last one.
	// +optional
	TransitionTimestamp *metav1.MicroTime `json:"transitionTimestamp,omitempty"`
	// Message says in a sentence what goes on and, where a person is needed, what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// StandbyPods are the names of the injected pods that are held, the one that
	// would be released next first.
	// +optional
	// +listType=atomic
	StandbyPods []string `json:"standbyPods,omitempty"`
	// LastTransition is the last change of holder.
	// +optional
	LastTransition *Transition `json:"lastTransition,omitempty"`
	// Handover is the last value of the annotation `apps.statefulsingleton.com/handover`
	// that is done with: it acts once.
	// +optional
	Handover *Handover `json:"handover,omitempty"`
	// Conditions: Ready, Reconciling, Stalled, PolicyInstalled, EvictionBlocked, Draining.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// StatefulSingletonList is a list of StatefulSingletons.
//
// +kubebuilder:object:root=true
type StatefulSingletonList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StatefulSingleton `json:"items"`
}
