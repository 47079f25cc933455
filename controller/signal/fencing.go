package signal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// ContainerEnv is the environment variable with the name of a held container. With it, the gate stays PID 1 of the
	// container, and starts the main process only while the pod holds the Lease.
	ContainerEnv = "STATEFULSINGLETON_CONTAINER"
	// LeaseEnv is the sidecar's environment variable with the namespace and the name of the Lease, as
	// <namespace>/<name>. Empty: no fencing.
	LeaseEnv = "FENCING_LEASE"
	// LeaseDurationEnv is the sidecar's environment variable with the duration of the Lease in seconds.
	LeaseDurationEnv = "FENCING_DURATION_SECONDS"
	// HeldEnv is the sidecar's environment variable with the names of the held containers, separated by commas.
	HeldEnv = "FENCING_CONTAINERS"
	// QueueEnv is the sidecar's environment variable with the number of seconds for which a client may wait in a queue, until
	// the main process accepts its connection. Empty: nothing is queued.
	QueueEnv = "FENCING_QUEUE_SECONDS"
	// PortsEnv is the environment variable of a held container with the TCP ports on which clients may wait, separated by
	// commas. Empty: there are none.
	PortsEnv = "STATEFULSINGLETON_PORTS"
	// LockEnv is the sidecar's environment variable with the name of the StatefulSetLock. Empty: the pod has none.
	LockEnv = "STATEFULSETLOCK"
	// PodNameEnv is the sidecar's environment variable with the name of the pod.
	PodNameEnv = "POD_NAME"
	// APIServerEnv is the sidecar's environment variable with the URL of the API server, as https://<host>:<port>.
	APIServerEnv = "FENCING_API_SERVER"
	// AuthoritiesEnv is the sidecar's environment variable with the fingerprints of the certificate authorities that can
	// have signed the certificate of the API server, separated by commas.
	AuthoritiesEnv = "FENCING_CA_SHA256"
	// CredentialsDir is the directory in the sidecar with the token of the pod's service account, and with certificates, of
	// which those in AuthoritiesEnv are the certificate authorities of the API server.
	CredentialsDir = "/var/run/secrets/statefulsingleton"
	// CredentialsVolume is the pod's volume at CredentialsDir.
	CredentialsVolume = "statefulsingleton-credentials"
	// RetireAnnotation is the annotation of a Lease with the UID of the pod that must not start a main process again.
	// The controller sets it as soon as the pod is terminating.
	RetireAnnotation = "apps.statefulsingleton.com/retire"
	// NextAnnotation is the annotation of a Lease with the UID of the pod that queues the connections of clients now, because
	// it runs next.
	NextAnnotation = "apps.statefulsingleton.com/next"
	// DelayAnnotation is the annotation of a Lease with the number of milliseconds for which the pod in RetireAnnotation
	// still serves after it was asked to stop and has read this number.
	DelayAnnotation = "apps.statefulsingleton.com/shutdown-delay"
	// QueueAnnotation is the annotation of a Lease with the QueueReport of the pod that holds the Lease.
	QueueAnnotation = "apps.statefulsingleton.com/queue"
	// ExpiredAnnotation is the annotation of a Lease with the UID of the pod from which the controller took the Lease.
	// The pod had not renewed the Lease for its duration. Without it, a Lease without a holder was released.
	ExpiredAnnotation = "apps.statefulsingleton.com/expired"
	// WriterAnnotation is the annotation of the Lease of a StatefulSetLock with the UID of the writer.
	WriterAnnotation = "apps.statefulsingleton.com/writer-uid"
	// HooksEnv is the environment variable of a held container in a pod of a StatefulSetLock, with the hooks of the lock as
	// JSON. With it, the main process also runs while the pod does not hold the Lease, as a reader.
	HooksEnv = "STATEFULSETLOCK_HOOKS"
	// RoleEnv and LockEpochEnv are environment variables of the main process in a pod of a StatefulSetLock: WriterRole or
	// ReaderRole, and the epoch of the writer.
	RoleEnv, LockEpochEnv = "STATEFULSETLOCK_ROLE", "STATEFULSETLOCK_EPOCH"
	// RoleFile is the file in held containers of such a pod with the role and the epoch, as JSON: {"role": "writer", "epoch": 7}.
	RoleFile = "/var/run/signal/role"
	// WriterRole and ReaderRole are the values of RoleEnv.
	WriterRole, ReaderRole = "writer", "reader"
	// RevokedAnnotation is the annotation of the Lease of a StatefulSetLock with the epoch of the tenure that the holder must
	// end.
	RevokedAnnotation = "apps.statefulsingleton.com/revoked"
	// WritingAnnotation is the annotation of the Lease of a StatefulSetLock with the epoch with which the holder has started
	// the writer.
	WritingAnnotation = "apps.statefulsingleton.com/writing"
	// MinLeaseSeconds and MaxLeaseSeconds are the limits of the duration in seconds of a Lease that expires.
	MinLeaseSeconds, MaxLeaseSeconds = 5, 3600
	// NeverExpires is the duration in seconds of a Lease that never expires. It is the longest that a Lease can have, 68 years.
	NeverExpires = math.MaxInt32

	defaultLeaseSeconds = 15
	// maxQueueSeconds is the maximum of spec.maxTransitionTime of a StatefulSingleton.
	maxQueueSeconds = 3600
)

// LeaseSeconds returns the duration of the Lease in seconds for spec.leaseDurationSeconds of a StatefulSingleton. Nil: the default.
func LeaseSeconds(spec *int32) int32 {
	switch {
	case spec == nil:
		return defaultLeaseSeconds
	case *spec == 0:
		return NeverExpires
	}
	return *spec
}

// LeaseName returns the name of the Lease of a StatefulSingleton, in the same namespace. The Role and the RoleBinding that
// let the pods renew the Lease have the same name.
func LeaseName(singleton string) string { return namePrefix + singleton }

// SingletonOf returns the name of the StatefulSingleton whose Lease has the name.
func SingletonOf(lease string) string { return strings.TrimPrefix(lease, namePrefix) }

const namePrefix = "statefulsingleton-"

// HolderIdentity is the holderIdentity of a Lease that names the pod.
func HolderIdentity(pod, uid string) string { return pod + "_" + uid }

// Hooks are commands that change the role of a running main process. Without a hook, the main process starts again.
type Hooks struct {
	Promote []string `json:"promote,omitempty"`
	Demote  []string `json:"demote,omitempty"`
}

// ParseHooks returns the hooks in the environment, or nil if the pod has no StatefulSetLock.
func ParseHooks(getenv func(string) string) (*Hooks, error) {
	text := getenv(HooksEnv)
	if text == "" {
		return nil, nil //nolint:nilnil // no lock is no error
	}
	hooks := &Hooks{}
	if err := json.Unmarshal([]byte(text), hooks); err != nil {
		return nil, fmt.Errorf("%s: %w", HooksEnv, err)
	}
	return hooks, nil
}

// APIServer says where a sidecar finds the API server, and by which certificate authorities it recognizes the API server.
// Variables of Services and the ConfigMap kube-root-ca.crt say that too, but users of the namespace can change both.
type APIServer struct {
	// URL is https://<host>:<port>.
	URL string
	// Authorities are the fingerprints of the certificates of the authorities.
	Authorities []string
}

// Fingerprint returns the SHA-256 of a certificate in DER, in hexadecimal.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// parseAPIServer returns the API server in the environment.
func parseAPIServer(getenv func(string) string) (APIServer, error) {
	s := APIServer{URL: getenv(APIServerEnv), Authorities: strings.Split(getenv(AuthoritiesEnv), ",")}
	const help = "Restart the pod: the policies of the controller set the variable in new pods"
	if !strings.HasPrefix(s.URL, "https://") {
		return APIServer{}, fmt.Errorf("%s is %q: it must be the https URL of the API server. %s", APIServerEnv, s.URL, help)
	}
	for _, fingerprint := range s.Authorities {
		if sum, err := hex.DecodeString(fingerprint); err != nil || len(sum) != sha256.Size {
			return APIServer{}, fmt.Errorf("%s is %q: it must be the SHA-256 of each certificate authority of the API server. %s", AuthoritiesEnv, getenv(AuthoritiesEnv), help)
		}
	}
	return s, nil
}

// LeaseSettings are the settings of the sidecar of a pod with fencing.
type LeaseSettings struct {
	// Namespace and Lease name the Lease.
	Namespace, Lease string
	// Duration is how long the Lease is valid after a renewal.
	Duration  time.Duration
	APIServer APIServer
	// Held are the names of the held containers.
	Held []string
	// Pod is the name of the pod.
	Pod string
	// Queue is how long a client may wait in a queue. 0: nothing is queued.
	Queue time.Duration
	// Lock is true if the pod has a StatefulSetLock: main processes also run while the pod does not hold the Lease.
	Lock bool
}

// NeverExpires returns true if the Lease never expires.
func (s *LeaseSettings) NeverExpires() bool { return s.Duration == NeverExpires*time.Second }

// ParseLeaseSettings returns the settings in the environment, or nil if the pod has no fencing.
func ParseLeaseSettings(getenv func(string) string) (*LeaseSettings, error) {
	lease := getenv(LeaseEnv)
	if lease == "" {
		return nil, nil //nolint:nilnil // no fencing is no error
	}
	s := &LeaseSettings{Pod: getenv(PodNameEnv), Held: strings.Split(getenv(HeldEnv), ","), Lock: getenv(LockEnv) != ""}
	s.Namespace, s.Lease, _ = strings.Cut(lease, "/")
	if s.Namespace == "" || s.Lease == "" {
		return nil, fmt.Errorf("%s is %q: it must be <namespace>/<name>", LeaseEnv, lease)
	}
	seconds, err := strconv.Atoi(getenv(LeaseDurationEnv))
	never := seconds == NeverExpires && !s.Lock
	if err != nil || !never && (seconds < MinLeaseSeconds || seconds > MaxLeaseSeconds) {
		return nil, fmt.Errorf("%s is %q: it must be a number from %d to %d", LeaseDurationEnv, getenv(LeaseDurationEnv), MinLeaseSeconds, MaxLeaseSeconds)
	}
	s.Duration = time.Duration(seconds) * time.Second
	if text := getenv(QueueEnv); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 || seconds > maxQueueSeconds || s.Lock {
			return nil, fmt.Errorf("%s is %q: it must be a number from 1 to %d, in the pod of a StatefulSingleton", QueueEnv, text, maxQueueSeconds)
		}
		s.Queue = time.Duration(seconds) * time.Second
	}
	if s.Pod == "" {
		return nil, fmt.Errorf("%s is empty", PodNameEnv)
	}
	if slices.Contains(s.Held, "") {
		return nil, fmt.Errorf("%s is %q: it must have names of containers, separated by commas", HeldEnv, getenv(HeldEnv))
	}
	if s.APIServer, err = parseAPIServer(getenv); err != nil {
		return nil, err
	}
	return s, nil
}
