// Package fencing is the contract between the policies, the controller and the gate about fencing by a Lease. It imports
// little, because the gate's binary must be small.
package fencing

const (
	// ContainerEnv is the environment variable with the name of a held container. With it, the gate stays PID 1 of the
	// container, and starts the main process only while the pod holds the Lease.
	ContainerEnv = "STATEFULSINGLETON_CONTAINER"

	// LeaseEnv is the sidecar's environment variable with the namespace and the name of the Lease, as
	// <namespace>/<name>. Empty: no fencing.
	LeaseEnv = "FENCING_LEASE"

	// DurationEnv is the sidecar's environment variable with the duration of the Lease in seconds.
	DurationEnv = "FENCING_DURATION_SECONDS"

	// HeldEnv is the sidecar's environment variable with the names of the held containers, separated by commas.
	HeldEnv = "FENCING_CONTAINERS"

	// PodNameEnv is the sidecar's environment variable with the name of the pod.
	PodNameEnv = "POD_NAME"

	// CredentialsDir is the directory in the sidecar with the token of the pod's service account, and the certificate
	// authority of the API server.
	CredentialsDir = "/var/run/secrets/statefulsingleton"

	// RetireAnnotation is the annotation of a Lease with the UID of the pod that must not start a main process again.
	// The controller sets it as soon as the pod is terminating.
	RetireAnnotation = "apps.statefulsingleton.com/retire"
)

// HolderIdentity is the holderIdentity of a Lease that names the pod.
func HolderIdentity(pod, uid string) string { return pod + "_" + uid }
