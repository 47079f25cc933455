package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// StatefulCluster runs pods with stable storage and names that are never used twice. A claim
// is used by a second pod only after the first pod has provably terminated.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:path=statefulclusters,singular=statefulcluster,shortName=stc,scope=Namespaced
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.availableReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updatedReplicas`,priority=1
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.updateRevision`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self.metadata.name).hasValue() && size(self.metadata.name) <= 52",message="metadata.name becomes part of host names and labels: choose at most 52 characters, lowercase letters, digits and '-'"
type StatefulCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec StatefulClusterSpec `json:"spec"`
	// +optional
	Status StatefulClusterStatus `json:"status,omitempty"`
}

// StatefulClusterSpec is the desired state of a StatefulCluster. It has the fields of the spec of a
// StatefulSet (apps/v1) with the same meaning, and the field replacement.
//
// +kubebuilder:validation:XValidation:rule="has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates)",message="spec.volumeClaimTemplates is immutable, because running pods cannot get or lose a volume: create another StatefulCluster instead"
type StatefulClusterSpec struct {
	// Replicas is the number of pods. Lost pods do not count.
	//
	// +optional
	// +default=1
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 1000",message="spec.replicas is out of range: set a number from 0 to 1000 (default 1)"
	Replicas *int32 `json:"replicas,omitempty"`

	// Selector selects the pods. New pods get the labels in matchLabels that the template does not
	// have. It must not be empty and cannot be changed.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="spec.selector is empty and would select every pod of the namespace: set matchLabels (as {app: my-database}) or matchExpressions"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.selector is immutable, because the pods would keep their old labels: create another StatefulCluster instead"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="spec.selector.matchExpressions: operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist take none"
	Selector LabelSelector `json:"selector"`

	// Template is the template of the pods, as in a StatefulSet. The API server validates it when a
	// pod is created.
	//
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	Template runtime.RawExtension `json:"template"`

	// VolumeClaimTemplates are the claims of each pod. A volume of the pod has the name of its
	// template. The requests for storage can be changed to larger values. Then the claims grow.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(t, self.exists_one(o, o.metadata.name == t.metadata.name))",message="spec.volumeClaimTemplates: two templates have the same metadata.name, and each is a volume of the pod: choose another name"
	// +kubebuilder:validation:XValidation:rule="size(self) == size(oldSelf) && self.all(t, oldSelf.exists(o, o.metadata.name == t.metadata.name && has(t.spec.accessModes) == has(o.spec.accessModes) && (!has(t.spec.accessModes) || t.spec.accessModes == o.spec.accessModes) && has(t.spec.storageClassName) == has(o.spec.storageClassName) && (!has(t.spec.storageClassName) || t.spec.storageClassName == o.spec.storageClassName) && has(t.spec.volumeMode) == has(o.spec.volumeMode) && (!has(t.spec.volumeMode) || t.spec.volumeMode == o.spec.volumeMode) && has(t.spec.volumeName) == has(o.spec.volumeName) && (!has(t.spec.volumeName) || t.spec.volumeName == o.spec.volumeName) && has(t.spec.dataSource) == has(o.spec.dataSource) && (!has(t.spec.dataSource) || t.spec.dataSource == o.spec.dataSource) && has(t.spec.dataSourceRef) == has(o.spec.dataSourceRef) && (!has(t.spec.dataSourceRef) || t.spec.dataSourceRef == o.spec.dataSourceRef) && has(t.spec.volumeAttributesClassName) == has(o.spec.volumeAttributesClassName) && (!has(t.spec.volumeAttributesClassName) || t.spec.volumeAttributesClassName == o.spec.volumeAttributesClassName) && has(t.spec.resources.limits) == has(o.spec.resources.limits) && (!has(t.spec.resources.limits) || t.spec.resources.limits == o.spec.resources.limits)))",message="spec.volumeClaimTemplates is immutable except for spec.resources.requests.storage, because claims that exist cannot be changed: create another StatefulCluster instead"
	// +kubebuilder:validation:XValidation:rule="self.all(t, oldSelf.all(o, o.metadata.name != t.metadata.name || !has(o.spec.resources.requests.storage) || (has(t.spec.resources.requests.storage) && quantity(t.spec.resources.requests.storage).compareTo(quantity(o.spec.resources.requests.storage)) >= 0)))",message="spec.volumeClaimTemplates: spec.resources.requests.storage cannot be lowered, because volumes do not shrink: set the old value or a larger one"
	VolumeClaimTemplates []ClaimTemplate `json:"volumeClaimTemplates,omitempty"`

	// ServiceName is the name of the headless Service that gives the pods their DNS names. It cannot be
	// changed.
	//
	// +optional
	// +default=""
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1035Label().validate(self).hasValue()",message="spec.serviceName must be the name of a Service: lowercase letters, digits and '-'"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.serviceName is immutable, because running pods would keep their DNS names: create another StatefulCluster instead"
	ServiceName string `json:"serviceName,omitempty"`

	// PodManagementPolicy says whether pods are created and deleted at the same time (Parallel, the
	// default) or one after the other (OrderedReady). It cannot be changed.
	//
	// +optional
	// +default="Parallel"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec.podManagementPolicy is immutable, as in a StatefulSet: create another StatefulCluster instead"
	PodManagementPolicy ClusterManagementPolicy `json:"podManagementPolicy,omitempty"`

	// UpdateStrategy says how pods get a new template.
	//
	// +optional
	// +default={}
	UpdateStrategy ClusterUpdateStrategy `json:"updateStrategy,omitempty"`

	// RevisionHistoryLimit is the number of old revisions of the template to keep.
	//
	// +optional
	// +default=10
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="spec.revisionHistoryLimit is negative: set 0 or more (default 10)"
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`

	// MinReadySeconds is the time in seconds that a pod must be Ready to be available.
	//
	// +optional
	// +default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="spec.minReadySeconds is negative: set 0 or more (default 0)"
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`

	// PersistentVolumeClaimRetentionPolicy says whether claims are kept that no pod needs. Claims are
	// deleted only after their pod has provably terminated.
	//
	// +optional
	// +default={}
	PersistentVolumeClaimRetentionPolicy ClaimRetentionPolicy `json:"persistentVolumeClaimRetentionPolicy,omitempty"`

	// Ordinals says where the numbers in the names of the pods begin.
	//
	// +optional
	// +default={}
	Ordinals ClusterOrdinals `json:"ordinals,omitempty"`

	// Replacement says what a pod gets that replaces another pod.
	//
	// +optional
	// +default={}
	Replacement ClusterReplacement `json:"replacement,omitempty"`
}

// ClaimTemplate is the template of a PersistentVolumeClaim.
//
// +structType=atomic
type ClaimTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// Metadata has the name of the volume, and labels and annotations of the claims.
	//
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	Metadata ClaimMetadata `json:"metadata"`

	// Spec is the spec of the claims.
	//
	// +required
	Spec ClaimSpec `json:"spec"`

	// Status has no effect. Manifests of a StatefulSet that were read from the API server have it.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status *runtime.RawExtension `json:"status,omitempty"`
}

// ClaimMetadata is the metadata of a ClaimTemplate.
type ClaimMetadata struct {
	// Name is the name of the volume in the pods. A claim has the name `<volume>-<pod>`, with the first
	// pod that uses the claim.
	//
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="spec.volumeClaimTemplates: metadata.name must be the name of a volume: lowercase letters, digits and '-'"
	Name string `json:"name"`
	// Labels are labels of the claims.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are annotations of the claims.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ClaimSpec is the spec of a PersistentVolumeClaim. Its fields have upper bounds, because the API server
// compares them with the old spec.
type ClaimSpec struct {
	// AccessModes are the access modes of the volume.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:Enum=ReadWriteOnce;ReadOnlyMany;ReadWriteMany;ReadWriteOncePod
	AccessModes []string `json:"accessModes,omitempty"`
	// Selector selects the volume by its labels. A change applies to new claims.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Resources has the size of the volume.
	//
	// +optional
	// +default={}
	Resources ClaimResources `json:"resources,omitempty"`
	// VolumeName is the name of the volume.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	VolumeName string `json:"volumeName,omitempty"`
	// StorageClassName is the name of the StorageClass. Default: the default StorageClass of the
	// cluster.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// VolumeMode is Filesystem or Block.
	//
	// +optional
	// +kubebuilder:validation:Enum=Filesystem;Block
	VolumeMode *string `json:"volumeMode,omitempty"`
	// DataSource is the object from which the volume is filled.
	//
	// +optional
	DataSource *ClaimSource `json:"dataSource,omitempty"`
	// DataSourceRef is the object from which the volume is filled, of any kind.
	//
	// +optional
	DataSourceRef *ClaimSource `json:"dataSourceRef,omitempty"`
	// VolumeAttributesClassName is the name of the VolumeAttributesClass.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	VolumeAttributesClassName *string `json:"volumeAttributesClassName,omitempty"`
}

// ClaimResources has the size of a volume.
type ClaimResources struct {
	// Requests is the least size.
	// +optional
	// +default={}
	Requests ClaimSize `json:"requests,omitempty"`
	// Limits is the largest size.
	// +optional
	Limits *ClaimSize `json:"limits,omitempty"`
}

// ClaimSize is the size of a volume.
type ClaimSize struct {
	// Storage is the size in bytes, for example 10Gi.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self)",message="spec.volumeClaimTemplates: storage must be a quantity, for example 10Gi"
	Storage *resource.Quantity `json:"storage,omitempty"`
}

// ClaimSource is the object from which a volume is filled.
type ClaimSource struct {
	// APIGroup is the API group of the object. Empty: the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	APIGroup *string `json:"apiGroup,omitempty"`
	// Kind is the kind of the object.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Kind string `json:"kind"`
	// Name is the name of the object.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// Namespace is the namespace of the object, in dataSourceRef.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace *string `json:"namespace,omitempty"`
}

// ClusterManagementPolicy says whether pods are created and deleted at the same time.
//
// +kubebuilder:validation:Enum=Parallel;OrderedReady
type ClusterManagementPolicy string

const (
	// ClusterParallel: at the same time.
	ClusterParallel ClusterManagementPolicy = "Parallel"
	// ClusterOrderedReady: one after the other, and only while the other pods are Ready.
	ClusterOrderedReady ClusterManagementPolicy = "OrderedReady"
)

// ClusterUpdateStrategy says how pods get a new template.
//
// +kubebuilder:validation:XValidation:rule="!has(self.rollingUpdate) || !has(self.type) || self.type != 'OnDelete'",message="spec.updateStrategy.rollingUpdate has no effect with type OnDelete: remove one of the two"
type ClusterUpdateStrategy struct {
	// Type is RollingUpdate (default), InPlaceIfPossible or OnDelete. With InPlaceIfPossible, the images
	// and resources of containers change without a new pod, if the template has no other change and the
	// node has the resources. Pods that were created with another type are replaced.
	//
	// +optional
	// +default="RollingUpdate"
	Type ClusterUpdateType `json:"type,omitempty"`

	// RollingUpdate has the parameters of a rollout.
	//
	// +optional
	RollingUpdate *ClusterRollout `json:"rollingUpdate,omitempty"`
}

// ClusterUpdateType says how pods get a new template.
//
// +kubebuilder:validation:Enum=RollingUpdate;InPlaceIfPossible;OnDelete
type ClusterUpdateType string

const (
	// ClusterRollingUpdate: the controller replaces pods. Unready pods are replaced first.
	ClusterRollingUpdate ClusterUpdateType = "RollingUpdate"
	// ClusterInPlaceIfPossible: the controller changes the images and resources of pods, and replaces
	// pods if the template has other changes.
	ClusterInPlaceIfPossible ClusterUpdateType = "InPlaceIfPossible"
	// ClusterOnDelete: only new pods have the new template.
	ClusterOnDelete ClusterUpdateType = "OnDelete"
)

// ClusterRollout has the parameters of a rollout.
type ClusterRollout struct {
	// Partition is the number of pods that keep the current revision.
	//
	// +optional
	// +default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="spec.updateStrategy.rollingUpdate.partition is negative: set 0 or more (default 0)"
	Partition int32 `json:"partition,omitempty"`

	// MaxUnavailable is the number or the percentage of pods that can be unavailable in a rollout.
	// Percentages are rounded up.
	//
	// +optional
	// +default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^[1-9][0-9]*%$')",message="spec.updateStrategy.rollingUpdate.maxUnavailable must be a number or a percentage above 0, for example 1 or 25%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// ClaimRetentionPolicy says whether claims are kept that no pod needs.
type ClaimRetentionPolicy struct {
	// WhenDeleted applies to the claims of the pods when the StatefulCluster is deleted.
	//
	// +optional
	// +default="Retain"
	WhenDeleted ClaimRetention `json:"whenDeleted,omitempty"`
	// WhenScaled applies to the claims of pods that are removed because replicas was lowered.
	//
	// +optional
	// +default="Retain"
	WhenScaled ClaimRetention `json:"whenScaled,omitempty"`
	// WhenReplaced applies to the claims of pods whose successor has new claims.
	//
	// +optional
	// +default="Retain"
	WhenReplaced ClaimRetention `json:"whenReplaced,omitempty"`
}

// ClaimRetention is Retain or Delete.
//
// +kubebuilder:validation:Enum=Retain;Delete
type ClaimRetention string

const (
	// ClaimRetain: the claim is kept.
	ClaimRetain ClaimRetention = "Retain"
	// ClaimDelete: the claim is deleted.
	ClaimDelete ClaimRetention = "Delete"
)

// ClusterOrdinals says where the numbers in the names of the pods begin.
type ClusterOrdinals struct {
	// Start is the lowest number in a name.
	//
	// +optional
	// +default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="spec.ordinals.start is negative: set 0 or more (default 0)"
	Start int32 `json:"start,omitempty"`
}

// ClusterReplacement says what a pod gets that replaces another pod.
type ClusterReplacement struct {
	// State is Carry (default) or Fresh. With Carry, the successor gets the claims of the old pod after
	// that pod has provably terminated. With Fresh, it gets new claims. The successor of a lost pod
	// always gets new claims.
	//
	// +optional
	// +default="Carry"
	State ReplacementState `json:"state,omitempty"`

	// MaxLost is the number of lost pods that are replaced before they have provably terminated. A pod
	// is lost if it is terminating and its node is unready. Default: less than half of replicas.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0",message="spec.replacement.maxLost is negative: set 0 or more, or remove the field for the default, less than half of spec.replicas"
	MaxLost *int32 `json:"maxLost,omitempty"`
}

// ReplacementState says which claims a successor gets.
//
// +kubebuilder:validation:Enum=Carry;Fresh
type ReplacementState string

const (
	// ReplacementCarry: the claims of the old pod.
	ReplacementCarry ReplacementState = "Carry"
	// ReplacementFresh: new claims.
	ReplacementFresh ReplacementState = "Fresh"
)

// ConditionExpansionRefused exists, with status True, while the API server rejects the larger
// request of a claim, for example because the storage class does not allow expansion. The pods
// run on with the old size.
const ConditionExpansionRefused = "ExpansionRefused"

// MemberState is the state of a member in the record.
//
// +kubebuilder:validation:Enum=Pending;Active;Leaving;Lost
type MemberState string

const (
	// MemberPending: the member has a name and claims. Its pod can be created, and cannot be scheduled.
	MemberPending MemberState = "Pending"
	// MemberActive: the UID of the pod is recorded, and the pod can be scheduled.
	MemberActive MemberState = "Active"
	// MemberLeaving: the pod is deleted without a successor, because replicas was lowered.
	MemberLeaving MemberState = "Leaving"
	// MemberLost: the pod has a successor with new claims, and has not provably terminated.
	MemberLost MemberState = "Lost"
)

// ClusterMember is one member of a StatefulCluster.
type ClusterMember struct {
	// Name is the name of the pod. No other member of the StatefulCluster gets this name.
	// +required
	Name string `json:"name"`
	// UID is the UID of the pod. It is empty until the pod was created.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// State is Pending, Active, Leaving or Lost.
	// +required
	State MemberState `json:"state"`
	// Node is the node of the pod.
	// +optional
	Node string `json:"node,omitempty"`
	// Revision is the name of the ControllerRevision with the template of the pod.
	// +required
	Revision string `json:"revision"`
	// Claims are the claims of the pod.
	// +optional
	// +listType=map
	// +listMapKey=volume
	Claims []MemberClaim `json:"claims,omitempty"`
}

// MemberClaim is a claim of a member.
type MemberClaim struct {
	// Volume is the name of the volume in the pod.
	// +required
	Volume string `json:"volume"`
	// Name is the name of the PersistentVolumeClaim.
	// +required
	Name string `json:"name"`
}

// ReleasedClaim is a claim that no member has.
type ReleasedClaim struct {
	// Name is the name of the PersistentVolumeClaim.
	// +required
	Name string `json:"name"`
	// Policy is Delete if the controller deletes the claim.
	// +required
	Policy ClaimRetention `json:"policy"`
}

// StatefulClusterStatus is the observed state of a StatefulCluster. Next, the members, and the
// released claims with policy Delete are the record: every change of the record is a
// compare-and-swap.
type StatefulClusterStatus struct {
	// Replicas is the number of pods that exist and count for spec.replicas.
	// +optional
	Replicas int32 `json:"replicas"`
	// ReadyReplicas is the number of these pods that are Ready.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// AvailableReplicas is the number of these pods that were Ready for spec.minReadySeconds.
	// +optional
	AvailableReplicas int32 `json:"availableReplicas"`
	// CurrentReplicas is the number of these pods with the current revision.
	// +optional
	CurrentReplicas int32 `json:"currentReplicas,omitempty"`
	// UpdatedReplicas is the number of these pods with the update revision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// CurrentRevision is the revision that all pods had after the last complete rollout.
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the revision of spec.template.
	// +optional
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Selector is spec.selector as text. A HorizontalPodAutoscaler needs it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// Next is the number in the name of the next member.
	// +optional
	Next int64 `json:"next,omitempty"`
	// Members are the pods with their claims.
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []ClusterMember `json:"members,omitempty"`
	// Released are claims that no member has: all claims that the controller deletes, and the first 50
	// of the others.
	// +optional
	// +listType=map
	// +listMapKey=name
	Released []ReleasedClaim `json:"released,omitempty"`
	// Message describes the state and, if a person is needed, says what to do.
	// +optional
	Message string `json:"message,omitempty"`
	// Conditions: Ready, Reconciling, Stalled, ExpansionRefused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the spec from which the status was computed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// StatefulClusterList is a list of StatefulClusters.
//
// +kubebuilder:object:root=true
type StatefulClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StatefulCluster `json:"items"`
}
