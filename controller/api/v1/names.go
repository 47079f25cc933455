package v1

// What a held pod bears, and what the controller writes on it.
const (
	// InjectedAnnotation names the singleton, as <namespace>/<name>, whose policy
	// injected the pod.
	InjectedAnnotation = "apps.statefulsingleton.com/injected"

	// SingletonLabel names the singleton that a pod belongs to. The controller
	// caches only pods that bear it.
	SingletonLabel = "apps.statefulsingleton.com/singleton"

	// RoleLabel is RoleActive on the holder and absent on every other pod.
	RoleLabel = "apps.statefulsingleton.com/role"

	// RoleActive is the holder's value of RoleLabel.
	RoleActive = "active"

	// ReadyCondition is the readiness gate of a held pod. The controller sets it
	// True on the holder, which is Ready then as soon as its containers are; a held
	// container is not.
	ReadyCondition = "apps.statefulsingleton.com/singleton-ready"

	// HandoffFinalizer keeps a holder's object until it is proven dead.
	HandoffFinalizer = "apps.statefulsingleton.com/handoff"

	// ChosenByAnnotation names the singleton, by uid, that may become a pod's and open its
	// barrier. Only the controller sets it, with the finalizer, where a barrier waits.
	ChosenByAnnotation = "apps.statefulsingleton.com/chosen-by"

	// NudgeAnnotation has the kubelet look again at a pod that was signalled with the epoch
	// that is its value.
	NudgeAnnotation = "apps.statefulsingleton.com/nudged"

	// PolicyFinalizer keeps a singleton's object until its ClusterPolicy is gone:
	// a cluster-scoped object can't be owned by a namespaced one.
	PolicyFinalizer = "apps.statefulsingleton.com/policy"

	// AttestAnnotation is set on a singleton by a person who vouches that the pod
	// whose uid is its value has stopped for good. The controller believes it at once
	// or refuses it at once, and takes it off either way: an old word proves nothing.
	AttestAnnotation = "apps.statefulsingleton.com/attest-terminated"

	// HandoverAnnotation is set on a singleton by a person who wants the holder
	// replaced: each new value does it once, warm. The owning Deployment is rolled,
	// unless a pod of a newer revision is there already. Where the owner can bring up
	// no pod beside the holder, nothing is done but to say so.
	HandoverAnnotation = "apps.statefulsingleton.com/handover"

	// ReplacesAnnotation is set on the pod template of a Deployment to roll it. Its
	// value is the uid of the holder to be replaced, so that it is rolled once.
	ReplacesAnnotation = "apps.statefulsingleton.com/replaces"

	// SidecarName is the name of the status sidecar's container.
	SidecarName = "status-sidecar"
)
