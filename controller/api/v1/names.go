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

	// PolicyFinalizer keeps a singleton's object until its ClusterPolicy is gone:
	// a cluster-scoped object can't be owned by a namespaced one.
	PolicyFinalizer = "apps.statefulsingleton.com/policy"

	// AttestAnnotation is set on a singleton by a person who vouches that the pod
	// whose uid is its value has stopped for good. The controller believes it at once
	// or refuses it at once, and takes it off either way: an old word proves nothing.
	AttestAnnotation = "apps.statefulsingleton.com/attest-terminated"

	// SidecarName is the name of the status sidecar's container.
	SidecarName = "status-sidecar"
)
