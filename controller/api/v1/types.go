package v1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StatefulSingleton makes the pods that its selector matches a singleton: at no time do
// two of them run the main process of a held container.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=statefulsingletons,singular=statefulsingleton,shortName=stfs,scope=Namespaced
// +kubebuilder:selectablefield:JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Active Pod",type=string,JSONPath=`.status.activePod`
// +kubebuilder:printcolumn:name="Standby",type=string,JSONPath=`.status.standbyPods[0]`
// +kubebuilder:printcolumn:name="Warm",type=string,JSONPath=`.status.conditions[?(@.type=="Warm")].status`,description="Whether a rollout warms up the next pod while the active pod runs."
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Gap",type=integer,JSONPath=`.status.lastTransition.gapMilliseconds`,priority=1,description="The last handoff's gap in milliseconds."
// +kubebuilder:printcolumn:name="Proof",type=string,JSONPath=`.status.lastTransition.proof`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name has more than 63 characters and becomes the value of a label: choose a shorter name"
type StatefulSingleton struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec StatefulSingletonSpec `json:"spec"`
	// +optional
	Status StatefulSingletonStatus `json:"status,omitempty"`
}

// StatefulSingletonSpec is the desired state of a StatefulSingleton.
//
// +kubebuilder:validation:XValidation:rule="self.connections != 'Queue' || self.fencing == 'Lease' && self.readinessProbes == 'Sidecar'",message="spec.connections is Queue, which needs fencing: Lease and readinessProbes: Sidecar: set both, or set connections: Refuse"
type StatefulSingletonSpec struct {
	// Selector selects the pods of the singleton in the same namespace. It must not be
	// empty and cannot be changed.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="spec.selector is empty and would select every pod of the namespace: set matchLabels (as {app: my-database}) or matchExpressions"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.selector is immutable, because the controller would forget pods that still run: create another StatefulSingleton instead"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="spec.selector.matchExpressions: operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist take none"
	Selector LabelSelector `json:"selector"`

	// MaxTransitionTime is the time in seconds after which a handoff that has not completed
	// sets phase to Failed. The message then says what to do. The handoff still completes
	// if the proof of termination comes later.
	//
	// +optional
	// +default=300
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="spec.maxTransitionTime is out of range: set seconds from 1 to 3600 (default 300)"
	MaxTransitionTime int32 `json:"maxTransitionTime,omitempty"`

	// TerminationGracePeriod is the time in seconds that each new pod has at least to stop. A
	// pod with a longer terminationGracePeriodSeconds keeps it.
	//
	// +optional
	// +default=30
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="spec.terminationGracePeriod is out of range: set seconds from 0 to 3600 (default 30)"
	TerminationGracePeriod *int32 `json:"terminationGracePeriod,omitempty"`

	// RespectPodGracePeriod has no effect. The API server accepts it so that older manifests
	// can be applied.
	//
	// Deprecated: the longer of the pod's own grace period and terminationGracePeriod applies.
	//
	// +optional
	RespectPodGracePeriod *bool `json:"respectPodGracePeriod,omitempty"`

	// Containers are the names of the containers to hold, with at least one regular container.
	// Default: all regular containers of the pod. Containers that are not named also run in
	// the standby. You can name init containers, for example a native sidecar that writes
	// to the data. The containers after a held init container are pulled and started
	// after the release.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(name, size(name) > 0)",message="spec.containers has an empty name: list names of containers of the pod, or remove the field to hold all containers"
	// +kubebuilder:validation:XValidation:rule="self.all(name, self.exists_one(other, other == name))",message="spec.containers has a name twice: remove one of them"
	Containers []string `json:"containers,omitempty"`

	// HoldInitContainers holds all init containers of the pod. By default, init containers that
	// spec.containers does not name run in the standby while the old pod still runs. Set
	// this field if an init container writes to the data, for example a migration. The
	// handoff then includes the time of the init containers.
	//
	// +optional
	// +default=false
	HoldInitContainers bool `json:"holdInitContainers,omitempty"`

	// Drain says what happens when the holder's node is drained: Surge (default) or Evict.
	//
	// With Surge, a PodDisruptionBudget blocks evictions of the holder. When the node is
	// cordoned, or has a NoSchedule or NoExecute taint that the pod does not tolerate, the
	// controller rolls the owning Deployment as `kubectl rollout restart` does. The next pod
	// warms up on another node, and the handoff follows. If no pod is warm on another node
	// within maxTransitionTime, the controller deletes the budget, and the drain continues.
	//
	// The controller creates no budget if the owner cannot create a pod beside the holder:
	// a StatefulSet, strategy Recreate, maxSurge 0, or a paused Deployment. It also creates
	// none if another budget covers the holder. The condition EvictionBlocked has the reason.
	// For a taint with effect NoExecute, Kubernetes deletes the pod after its
	// tolerationSeconds and does not consult budgets.
	//
	// With Evict, an eviction stops the holder at once.
	//
	// +optional
	// +default="Surge"
	Drain DrainPolicy `json:"drain,omitempty"`

	// Handoff says when the new pod of a rollout takes over. Automatic (default): as soon as
	// the pod is warm. Manual: when you give the annotation
	// `apps.statefulsingleton.com/handover` a new value. The handoff does not wait for
	// the annotation if the holder is deleted or evicted, or if its node is drained and
	// drain is Surge.
	//
	// While the new pod waits, `kubectl rollout status` waits too. After the Deployment's
	// progressDeadlineSeconds it reports that the deadline is exceeded. The Deployment
	// does not roll back.
	//
	// +optional
	// +default="Automatic"
	Handoff HandoffPolicy `json:"handoff,omitempty"`

	// Paused keeps rollouts, drains and requests from beginning a handoff until it is false again.
	// The pod of a rollout is created and waits. A drain waits for at most maxTransitionTime. If
	// the holder is deleted or evicted, or ends, the next pod starts as usual. A StatefulSet, and
	// a Deployment that cannot create a pod beside the holder, do not wait, because they delete
	// the holder themselves. The condition Paused says that the field is set.
	//
	// +optional
	// +default=false
	Paused bool `json:"paused,omitempty"`

	// ReadinessProbes says what runs the readiness probes of wrapped containers: Sidecar
	// (default) or Kubelet.
	//
	// With Sidecar, the kubelet asks the status sidecar, and the status sidecar runs the
	// httpGet or tcpSocket probe of the container with its own timeoutSeconds. The
	// kubelet learns that a new holder is ready as soon as the probe succeeds, instead of up
	// to a period later. Other probes do not change. The pod becomes unready while the
	// status sidecar does not run.
	//
	// With Kubelet, all readiness probes stay as they are. The field applies to new pods.
	//
	// +optional
	// +default="Sidecar"
	ReadinessProbes ReadinessProber `json:"readinessProbes,omitempty"`

	// Placement says to which nodes new pods should go: Auto (default) or None.
	//
	// With Auto, a new pod prefers the node of the holder if the holder has a volume that only
	// pods of one node can mount: a PersistentVolumeClaim that is ReadWriteOnce. There, the pod
	// can warm up. A pod whose podAffinity or podAntiAffinity has a term for
	// kubernetes.io/hostname stays as it is. A drain still moves the holder to another node.
	//
	// With None, affinities stay as they are. The field applies to new pods.
	//
	// +optional
	// +default="Auto"
	Placement Placement `json:"placement,omitempty"`

	// Fencing says what limits how long the pods may run their main processes: Kubelet
	// (default) or Lease.
	//
	// With Kubelet, a pod runs until its kubelet reports that the pod has terminated. If the
	// node is lost, the next pod waits for a person.
	//
	// With Lease, a pod runs only while it renews a Lease, and stops before the Lease expires.
	// The next pod starts as soon as the Lease is released, or after it has expired, also if
	// the node is lost. Every held container needs a command, and the pod needs access to the
	// API server. An outage of the API server of half of leaseDurationSeconds can stop the
	// application, unless leaseDurationSeconds is 0. The condition Fenced says whether the
	// holder is fenced.
	//
	// The field applies to new pods.
	//
	// +optional
	// +default="Kubelet"
	Fencing Fencing `json:"fencing,omitempty"`

	// LeaseDurationSeconds is the time in seconds without a renewal after which the Lease
	// expires. It applies only if fencing is Lease. A holder that cannot renew the Lease gets
	// SIGTERM after two thirds of the duration, and SIGKILL after five sixths. The field
	// applies to new pods.
	//
	// With 0, the Lease never expires. An outage of the API server then stops nothing, and if
	// the node is lost, the next pod waits for a person. A main process still starts only after
	// the pod has renewed the Lease.
	//
	// +optional
	// +default=15
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 5 && self <= 3600",message="spec.leaseDurationSeconds is out of range: set seconds from 5 to 3600 (default 15), or 0 for a Lease that never expires"
	LeaseDurationSeconds *int32 `json:"leaseDurationSeconds,omitempty"`

	// Connections says what happens to clients that connect while no main process runs: Refuse
	// (default) or Queue.
	//
	// With Refuse, the kernel refuses their connections until the application listens.
	//
	// With Queue, the next pod accepts connections to the TCP containerPorts of its held
	// containers before its main processes run, and becomes Ready as soon as the old pod must stop.
	// The application answers the waiting clients when it starts. A client waits for at most
	// maxTransitionTime. Queue needs fencing: Lease and readinessProbes: Sidecar. The condition
	// ConnectionsQueued says whether the next handoff queues connections, and what to change if
	// not. The field applies to new pods.
	//
	// +optional
	// +default="Refuse"
	Connections Connections `json:"connections,omitempty"`

	// ShutdownDelaySeconds is the time in seconds for which the old pod still serves after the
	// next pod is Ready, because Services take a moment to send new connections there. It
	// applies only if connections is Queue. A deleted pod serves for at most half of its grace
	// period, also if the next pod is not Ready yet. With 0, it stops at once.
	//
	// +optional
	// +default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 300",message="spec.shutdownDelaySeconds is out of range: set seconds from 0 to 300 (default 1)"
	ShutdownDelaySeconds *int32 `json:"shutdownDelaySeconds,omitempty"`
}

// Connections says what happens to clients that connect while no main process runs.
//
// +kubebuilder:validation:Enum=Refuse;Queue
type Connections string

const (
	// ConnectionsRefuse: the kernel refuses their connections.
	ConnectionsRefuse Connections = "Refuse"
	// ConnectionsQueue: the next pod accepts their connections, and answers when its main processes run.
	ConnectionsQueue Connections = "Queue"
)

// Fencing says what limits how long the pods may run their main processes.
//
// +kubebuilder:validation:Enum=Kubelet;Lease
type Fencing string

const (
	// FencingKubelet: only the report of the kubelet, or a person, proves the termination.
	FencingKubelet Fencing = "Kubelet"
	// FencingLease: the pods run only while they hold the Lease of the singleton.
	FencingLease Fencing = "Lease"
)

// ReadinessProber says what runs the readiness probes of wrapped containers.
//
// +kubebuilder:validation:Enum=Sidecar;Kubelet
type ReadinessProber string

const (
	// ReadinessSidecar: the status sidecar, at the request of the kubelet.
	ReadinessSidecar ReadinessProber = "Sidecar"
	// ReadinessKubelet: the kubelet.
	ReadinessKubelet ReadinessProber = "Kubelet"
)

// Placement says to which nodes new pods should go.
//
// +kubebuilder:validation:Enum=Auto;None
type Placement string

const (
	// PlacementAuto: to the node of the holder, if only pods of that node can mount its volumes.
	PlacementAuto Placement = "Auto"
	// PlacementNone: to those that the pod asks for.
	PlacementNone Placement = "None"
)

// DrainPolicy says what happens when the holder's node is drained.
//
// +kubebuilder:validation:Enum=Surge;Evict
type DrainPolicy string

const (
	// DrainSurge: the next pod warms up on another node before the holder stops.
	DrainSurge DrainPolicy = "Surge"
	// DrainEvict: an eviction stops the holder at once.
	DrainEvict DrainPolicy = "Evict"
)

// HandoffPolicy says when the new pod of a rollout takes over.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type HandoffPolicy string

const (
	// HandoffAutomatic: as soon as the pod is warm.
	HandoffAutomatic HandoffPolicy = "Automatic"
	// HandoffManual: when a person requests the handoff.
	HandoffManual HandoffPolicy = "Manual"
)

// Phase is the phase of a singleton. It is empty while no pod exists and none is expected.
//
// +kubebuilder:validation:Enum=Running;Transitioning;Failed
type Phase string

const (
	// PhaseRunning: there is a holder, and no handoff is in progress.
	PhaseRunning Phase = "Running"
	// PhaseTransitioning: a handoff is in progress.
	PhaseTransitioning Phase = "Transitioning"
	// PhaseFailed: a handoff takes longer than spec.maxTransitionTime, or cannot continue
	// without a person. The message says what to do.
	PhaseFailed Phase = "Failed"
)

// Proof is the proof of termination of a holder.
//
// +kubebuilder:validation:Enum=NeverSignalled;KubeletReported;NodeOutOfService;Attested;LeaseReleased;LeaseExpired
type Proof string

const (
	// ProofNeverSignalled: the pod never started its main process. It was deleted or ended
	// before its signal, or deleted before it was bound to a node.
	ProofNeverSignalled Proof = "NeverSignalled"
	// ProofKubeletReported: the kubelet reported a terminal phase, and reported every held
	// container as terminated or as never created.
	ProofKubeletReported Proof = "KubeletReported"
	// ProofNodeOutOfService: the pod's node does not answer and has the taint
	// `node.kubernetes.io/out-of-service`, with which a person states that the node is off.
	ProofNodeOutOfService Proof = "NodeOutOfService"
	// ProofAttested: a person attested the termination with the annotation
	// `apps.statefulsingleton.com/attest-terminated`, and the kubelet cannot report it.
	ProofAttested Proof = "Attested"
	// ProofLeaseReleased: the pod ended its main processes, will not start them again, and
	// released the Lease of the singleton.
	ProofLeaseReleased Proof = "LeaseReleased"
	// ProofLeaseExpired: the pod did not renew the Lease of the singleton for its whole
	// duration, before which the pod stops its main processes.
	ProofLeaseExpired Proof = "LeaseExpired"
)

// Cause is what began a handoff.
//
// +kubebuilder:validation:Enum=Created;Adopted;Rollout;Drain;Handover;Eviction;Deletion;ScaleDown;Completion;Expiry
type Cause string

const (
	// CauseCreated: there was no holder, and a pod was created.
	CauseCreated Cause = "Created"
	// CauseAdopted: a pod that ran before the singleton existed became the holder.
	CauseAdopted Cause = "Adopted"
	// CauseRollout: a pod of a newer revision was created.
	CauseRollout Cause = "Rollout"
	// CauseDrain: the holder's node was drained, and the holder was replaced before it was
	// evicted.
	CauseDrain Cause = "Drain"
	// CauseHandover: a person requested the handoff with the annotation
	// `apps.statefulsingleton.com/handover`.
	CauseHandover Cause = "Handover"
	// CauseEviction: the holder was evicted, preempted, or removed by a taint.
	CauseEviction Cause = "Eviction"
	// CauseDeletion: the holder was deleted.
	CauseDeletion Cause = "Deletion"
	// CauseScaleDown: the holder's owner was scaled to zero or deleted, or is a Job whose pod
	// has succeeded.
	CauseScaleDown Cause = "ScaleDown"
	// CauseCompletion: the pod ended by itself, with phase Succeeded or Failed.
	CauseCompletion Cause = "Completion"
	// CauseExpiry: the Lease of the singleton expired.
	CauseExpiry Cause = "Expiry"
)

// Transition is one change of the holder.
type Transition struct {
	// From is the name of the old holder. Empty if there was none.
	// +optional
	From string `json:"from,omitempty"`
	// FromUID is the UID of the old holder.
	// +optional
	FromUID types.UID `json:"fromUID,omitempty"`
	// FromNode is the node of the old holder.
	// +optional
	FromNode string `json:"fromNode,omitempty"`
	// To is the name of the new holder. Empty until the new holder is recorded.
	// +optional
	To string `json:"to,omitempty"`
	// Cause is what began the handoff.
	// +required
	Cause Cause `json:"cause"`
	// Proof is the proof that the old holder has terminated. Empty if there was no old holder.
	// +optional
	Proof Proof `json:"proof,omitempty"`
	// Started is when the controller saw the cause. In a rollout it is when the new pod was
	// created.
	// +optional
	Started *metav1.MicroTime `json:"started,omitempty"`
	// Terminated is when the controller saw the proof.
	// +optional
	Terminated *metav1.MicroTime `json:"terminated,omitempty"`
	// Signalled is when the controller released or adopted the new holder.
	// +optional
	Signalled *metav1.MicroTime `json:"signalled,omitempty"`
	// Ready is when the controller saw the new holder's pod Ready.
	// +optional
	Ready *metav1.MicroTime `json:"ready,omitempty"`
	// GapMilliseconds is the time in milliseconds from the exit of the old main process to
	// the start of the new main process, measured when the kubelet's reports reached the
	// controller. If only a readiness probe reports the start, the gap includes the time
	// until the probe succeeds.
	// +optional
	GapMilliseconds *int64 `json:"gapMilliseconds,omitempty"`
}

// PastHandoff is an earlier change of the holder.
type PastHandoff struct {
	// Time is when the controller released or adopted the new holder.
	// +optional
	Time *metav1.MicroTime `json:"time,omitempty"`
	// From is the name of the old holder. Empty if there was none.
	// +optional
	From string `json:"from,omitempty"`
	// To is the name of the new holder.
	// +required
	To string `json:"to"`
	// Cause is what began the handoff.
	// +required
	Cause Cause `json:"cause"`
	// Proof is the proof that the old holder had terminated. Empty if there was no old holder.
	// +optional
	Proof Proof `json:"proof,omitempty"`
	// GapMilliseconds is as in lastTransition.
	// +optional
	GapMilliseconds *int64 `json:"gapMilliseconds,omitempty"`
}

// Past returns the transition as an entry of status.history.
func (t *Transition) Past() PastHandoff {
	return PastHandoff{
		Time: cmp.Or(t.Signalled, t.Started), From: t.From, To: t.To, Cause: t.Cause, Proof: t.Proof, GapMilliseconds: t.GapMilliseconds,
	}
}

// MaxHistory is how many handoffs status.history has at most. With status.lastTransition, they are ten.
const MaxHistory = 9

// Conditions of a StatefulSingleton. Ready, Reconciling and Stalled follow kstatus.
const (
	// ConditionReady: the holder is Ready and no handoff is in progress. It is also True if no
	// pod is expected and new pods are held.
	ConditionReady = "Ready"
	// ConditionReconciling: a handoff is in progress.
	ConditionReconciling = "Reconciling"
	// ConditionStalled: the handoff takes longer than spec.maxTransitionTime, or cannot continue
	// without a person.
	ConditionStalled = "Stalled"
	// ConditionPolicyInstalled: a dry-run showed that new pods are injected.
	ConditionPolicyInstalled = "PolicyInstalled"
	// ConditionWarm exists while there is a holder. It is True if a rollout warms up the next pod
	// while the holder runs. If it is False, the message says what to change.
	ConditionWarm = "Warm"
	// ConditionDraining exists, with status True, while the holder's node is drained and
	// spec.drain is Surge. Its lastTransitionTime is when the controller saw the drain.
	ConditionDraining = "Draining"
	// ConditionEvictionBlocked: evictions of the holder are blocked until another pod is warm. If
	// it is False, the reason says why.
	ConditionEvictionBlocked = "EvictionBlocked"
	// ConditionPaused exists, with status True, while spec.paused is true.
	ConditionPaused = "Paused"
	// ConditionFenced exists while there is a holder, if spec.fencing is Lease or the holder is
	// fenced. It is True if the holder runs only while it holds the Lease. If it is False, the
	// reason says why.
	ConditionFenced = "Fenced"
	// ConditionConnectionsQueued exists while there is a holder and spec.connections is Queue. It
	// is True if the next handoff queues the connections of clients. If it is False, the reason
	// says why.
	ConditionConnectionsQueued = "ConnectionsQueued"
)

// Handover is a handoff that a person requested.
type Handover struct {
	// Value is the value of the annotation `apps.statefulsingleton.com/handover`.
	// +required
	Value string `json:"value"`
	// Refused says why the request was ignored. Empty: the holder was replaced.
	// +optional
	Refused string `json:"refused,omitempty"`
}

// StatefulSingletonStatus is the observed state of a StatefulSingleton. The holder and the
// epoch are the record: every change of the record is a compare-and-swap.
type StatefulSingletonStatus struct {
	// ActivePod is the name of the holder: the pod that may run its main processes.
	// +optional
	ActivePod string `json:"activePod,omitempty"`
	// ActivePodUID is the UID of the holder.
	// +optional
	ActivePodUID types.UID `json:"activePodUID,omitempty"`
	// ActiveNode is the node of the holder.
	// +optional
	ActiveNode string `json:"activeNode,omitempty"`
	// NodeClaims are those PersistentVolumeClaims of the holder that only pods of one node can
	// mount, at most 32 of them. See spec.placement.
	// +optional
	// +listType=atomic
	NodeClaims []string `json:"nodeClaims,omitempty"`
	// AttachSeconds is how long the volumes of nodeClaims took to follow to another node the
	// last time: from the proof of termination of the old pod, or the scheduling of the next pod
	// if that was later, until the next pod had mounted its volumes. Another drain will take
	// about as long. The field is absent before the first such handoff.
	// +optional
	AttachSeconds *int32 `json:"attachSeconds,omitempty"`
	// ActiveBarrier is the ConfigMap of the holder's barriers. Empty: the holder has no
	// barrier. A new pod with the same ConfigMap is rejected, because nothing would hold it.
	// +optional
	ActiveBarrier string `json:"activeBarrier,omitempty"`
	// Epoch is the fencing token. It grows by one with each holder.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Phase is the phase of the singleton.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// TransitionTimestamp is when the current or last handoff began.
	// +optional
	TransitionTimestamp *metav1.MicroTime `json:"transitionTimestamp,omitempty"`
	// Message describes the state and, if a person is needed, says what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// StandbyPods are the names of the standbys, in the order in which they would be released.
	// +optional
	// +listType=atomic
	StandbyPods []string `json:"standbyPods,omitempty"`
	// LastTransition is the last change of the holder.
	// +optional
	LastTransition *Transition `json:"lastTransition,omitempty"`
	// History are the handoffs before lastTransition, at most nine. The newest is the first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=9
	History []PastHandoff `json:"history,omitempty"`
	// Handover is the last value of the annotation `apps.statefulsingleton.com/handover`
	// that was handled. Each value causes at most one handoff.
	// +optional
	Handover *Handover `json:"handover,omitempty"`
	// Conditions: Ready, Reconciling, Stalled, PolicyInstalled, Warm, EvictionBlocked, Draining,
	// Paused, Fenced, ConnectionsQueued.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec from which the status was computed.
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
