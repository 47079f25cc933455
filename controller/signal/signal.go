// Package signal is what controller, policies and gate agree on: the signal that the controller writes on a pod and the gate in
// the pod reads, the settings of fencing by a Lease, and the readiness probes that the status sidecar runs. The package imports
// little, because the gate's binary must be small.
//
// With fencing, a pod may run its main processes until 5/6 of the duration after it sent the last renewal. The pod writes the
// duration into the Lease with each renewal. Before the controller takes the Lease away, it must have seen no renewal for the
// duration in the Lease, and not for a duration that somebody has changed since.
package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"
)

const (
	// Annotation has the signal of a pod: a Signal as JSON. The kubelet projects it into the status sidecar with a
	// downward API volume.
	Annotation = "apps.statefulsingleton.com/start-signal"
	// Dir is the mount path of the signal volume in the sidecar and, read-only, in every held container.
	Dir = "/var/run/signal"
	// File is the path of the signal file, which has the Signal as JSON. It exists from the release of the pod until
	// the annotation is removed.
	File = Dir + "/start-signal"
	// PodinfoDir is the directory in the sidecar into which the kubelet projects Annotation. The file has the base
	// name of File.
	PodinfoDir = "/etc/statefulsingleton"
	// GatePath is the path of the gate's binary in held containers.
	GatePath = Dir + "/gate"
	// EpochEnv is the environment variable with the epoch, for the main process of a held container.
	EpochEnv = "STATEFULSINGLETON_EPOCH"
	// PodUIDEnv is the environment variable with the UID of the pod, for the wrapper. The policy sets it from the
	// downward API. The gate ignores a signal with another UID, and does not pass the variable to the main process.
	PodUIDEnv = "STATEFULSINGLETON_POD_UID"
	// EpochKey is the key of the epoch in the ConfigMap of a barrier.
	EpochKey = "epoch"
	// MaxLength is the maximum size of a signal in bytes. String returns about 150.
	MaxLength = 1024
)

// Wrapper is the command in front of the own command of a wrapped container. Policies write it, and the controller
// recognizes held containers by it. No other subcommand of the gate waits for the signal.
var Wrapper = []string{GatePath, "wrap", "--"}

// Signal releases one pod. The gate ignores a signal whose UID is not that of its own pod.
type Signal struct {
	// UID is the UID of the released pod.
	UID string `json:"uid"`
	// Epoch is the fencing token of the release, at least 1.
	Epoch int64 `json:"epoch"`
	// Time is when the controller released the pod. Only reports use it.
	Time time.Time `json:"time,omitzero"`
}

// Parse parses the content of the annotation or of the signal file. It returns an error for anything but one short
// JSON object with a UID, a positive epoch and, optionally, a valid time. Each field must occur once, with the exact
// name: every reader must read the same. Unknown fields are ignored, for newer versions.
func Parse(data []byte) (Signal, error) {
	s, err := parse(data)
	if err != nil {
		return Signal{}, fmt.Errorf("parse signal: %w", err)
	}
	return s, nil
}

func parse(data []byte) (s Signal, err error) {
	if len(data) > MaxLength {
		return s, fmt.Errorf("the signal is longer than %d bytes", MaxLength)
	}
	if !utf8.Valid(data) {
		return s, errors.New("the signal is not UTF-8")
	}
	duplicates, err := kjson.UnmarshalStrict(data, &s, kjson.DisallowDuplicateFields)
	if err := errors.Join(append(duplicates, err)...); err != nil {
		return s, err
	}
	year := s.Time.UTC().Year()
	switch {
	case s.UID == "":
		return s, errors.New("uid is empty")
	case s.Epoch < 1:
		return s, fmt.Errorf("epoch is %d, but must be at least 1", s.Epoch)
	case year < 1 || year > 9999:
		return s, errors.New("time is outside the years 1 to 9999")
	}
	return s, nil
}

// String returns the Signal as JSON.
func (s Signal) String() string {
	data, err := json.Marshal(s)
	if err != nil {
		// Only a time outside the years 0 to 9999 cannot be encoded.
		panic(fmt.Sprintf("encode signal: %v", err))
	}
	return string(data)
}
