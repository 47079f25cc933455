package v1

// Names of labels, annotations, finalizers and conditions.
const (
	// ManagedByLabel is a label of every object that the controller creates for others, with the value ManagedBy.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of ManagedByLabel.
	ManagedBy = "statefulsingleton"

	// InjectedAnnotation has the singleton whose policy injected the pod, as <namespace>/<name>.
	InjectedAnnotation = "apps.statefulsingleton.com/injected"

	// SingletonLabel has the name of the pod's singleton. The controller caches only pods with this label, or with LockLabel.
	SingletonLabel = "apps.statefulsingleton.com/singleton"

	// RoleLabel is RoleActive on the holder, and does not exist on other pods.
	RoleLabel = "apps.statefulsingleton.com/role"

	// RoleActive is the value of RoleLabel on the holder.
	RoleActive = "active"

	// ReadyCondition is the readiness gate of a held pod. The controller sets it to True on the holder, and on a new
	// pod whose probes fail until its release. The pod is then Ready when its containers are.
	ReadyCondition = "apps.statefulsingleton.com/singleton-ready"

	// ReadyReasonHolds is the reason of ReadyCondition on a pod that was released.
	ReadyReasonHolds = "Holds"

	// ReadyReasonStandby is the reason of ReadyCondition on a pod that was not released.
	ReadyReasonStandby = "Standby"

	// HandoffFinalizer keeps the object of a holder until there is a proof of termination.
	// It is also on warm standbys, which may become the holder, and on the writer of a StatefulSetLock with fencing
	// Termination.
	HandoffFinalizer = "apps.statefulsingleton.com/handoff"

	// ChosenByAnnotation has the UID of the singleton that may open the pod's barrier. The controller adds it with
	// the finalizer, to a pod with a barrier.
	ChosenByAnnotation = "apps.statefulsingleton.com/chosen-by"

	// NudgeAnnotation makes the kubelet reconcile a pod that was signalled with the epoch in its value.
	NudgeAnnotation = "apps.statefulsingleton.com/nudged"

	// PolicyFinalizer keeps the object of a singleton or a StatefulSetLock until its policy is deleted. A namespaced object cannot
	// own a cluster-scoped object.
	PolicyFinalizer = "apps.statefulsingleton.com/policy"

	// AttestAnnotation is an annotation of a singleton or a StatefulSetLock with which a person attests that a pod has terminated. Its
	// value is the UID of the pod. The controller removes the annotation when it refuses or does not need the
	// attestation, or after the object of the pod is removed.
	AttestAnnotation = "apps.statefulsingleton.com/attest-terminated"

	// HandoverAnnotation is an annotation of a singleton with which a person requests a handoff. Each new value
	// causes one handoff. The controller rolls the owning Deployment, unless a pod of a newer revision exists. If the
	// owner cannot create a pod beside the holder, the controller only reports that.
	HandoverAnnotation = "apps.statefulsingleton.com/handover"

	// ReplacesAnnotation is an annotation of a Deployment's pod template that the controller sets to roll the
	// Deployment. Its value is the UID of the holder to replace.
	ReplacesAnnotation = "apps.statefulsingleton.com/replaces"

	// FencingAnnotation is FencingLease on a pod that a policy has prepared for fencing by a Lease.
	FencingAnnotation = "apps.statefulsingleton.com/fencing"

	// LockLabel has the name of the StatefulSetLock of a pod.
	LockLabel = "apps.statefulsingleton.com/lock"

	// StsRoleLabel is StsRoleWriter on the writer of a StatefulSetLock, and StsRoleReader on its other pods.
	StsRoleLabel = "sts-role"

	// StsRoleWriter and StsRoleReader are the values of StsRoleLabel.
	StsRoleWriter, StsRoleReader = "writer", "reader"

	// TenureAnnotation has the epoch of the last tenure of a pod. A fenced pod has it before the Lease names the pod, and another pod
	// when it is labelled as the writer.
	TenureAnnotation = "apps.statefulsingleton.com/tenure"

	// TenureEndedAnnotation has the epoch of the last tenure of a pod that has ended or is ending. The pod is not labelled
	// again for this tenure.
	TenureEndedAnnotation = "apps.statefulsingleton.com/tenure-ended"

	// ClusterLabel has the name of the StatefulCluster of a pod or of a claim.
	ClusterLabel = "apps.statefulsingleton.com/cluster"

	// MemberFinalizer keeps the object of a member's pod until the end of the member is recorded. It also keeps the object of
	// a StatefulCluster until all of its members have ended.
	MemberFinalizer = "apps.statefulsingleton.com/member"

	// MemberGate is the scheduling gate of a pod whose UID is not recorded yet.
	MemberGate = "apps.statefulsingleton.com/member"

	// MemberServing is the readiness gate of a pod whose images can be changed. It is False while they are being changed.
	MemberServing = "apps.statefulsingleton.com/serving"

	// MemberImagesAnnotation has the IDs of the containers of a pod before its images were changed, by container, as JSON.
	MemberImagesAnnotation = "apps.statefulsingleton.com/images-changed"

	// SidecarName is the name of the status sidecar's container.
	SidecarName = "status-sidecar"
)
