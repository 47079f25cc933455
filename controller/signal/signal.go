// Package signal is the contract between the controller, which writes the signal
// on a pod, and the gate inside that pod, which obeys it. It imports little, so
// that the gate's binary stays small.
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
	// Annotation holds a pod's signal: a Signal as JSON. The kubelet projects it
	// into the status sidecar through a downward API volume.
	Annotation = "apps.statefulsingleton.com/start-signal"

	// Dir is where the signal volume is mounted in the sidecar and, read-only,
	// in every held container.
	Dir = "/var/run/signal"

	// File is the signal file: it exists from the release of the pod until the
	// signal is taken back, and holds the Signal as JSON.
	File = Dir + "/start-signal"

	// PodinfoDir is where the kubelet projects Annotation in the sidecar, into a file
	// of the name that File has.
	PodinfoDir = "/etc/statefulsingleton"

	// GatePath is where the sidecar delivers the gate's binary for the held
	// containers to run.
	GatePath = Dir + "/gate"

	// EpochEnv is the environment variable in which a held container's main
	// process finds its epoch, the fencing token.
	EpochEnv = "STATEFULSINGLETON_EPOCH"

	// PodUIDEnv is the environment variable that gives a wrapped container the uid of
	// its pod. The policy sets it from the downward API. The gate obeys only a signal
	// with that uid, and does not pass the variable on to the main process.
	PodUIDEnv = "STATEFULSINGLETON_POD_UID"

	// EpochKey is the key of the epoch in the ConfigMap that a barrier waits for.
	EpochKey = "epoch"

	// MaxLength is how many bytes a signal may have. String writes some 150.
	MaxLength = 1024
)

// Signal releases one pod. It is worth nothing in any other pod: the gate obeys
// it only where UID is its own pod's.
type Signal struct {
	// UID is the uid of the pod that is released.
	UID string `json:"uid"`
	// Epoch is the fencing token of this release, 1 or more.
	Epoch int64 `json:"epoch"`
	// Time is when the controller released the pod. It is for reports only.
	Time time.Time `json:"time,omitzero"`
}

// Parse reads a Signal as the annotation and the signal file hold it. It fails
// on anything but one short JSON object with a uid, a positive epoch and, if any, a
// time that can be reported: whoever can't read the signal must hold. Each field
// is there once and named to the letter, so that whoever reads it reads the same.
// Unknown fields are left to a newer version.
func Parse(data []byte) (Signal, error) {
	s, err := parse(data)
	if err != nil {
		return Signal{}, fmt.Errorf("parse signal: %w", err)
	}
	return s, nil
}

func parse(data []byte) (s Signal, err error) {
	if len(data) > MaxLength {
		return s, fmt.Errorf("it is longer than %d bytes", MaxLength)
	}
	if !utf8.Valid(data) {
		return s, errors.New("it is not UTF-8")
	}
	duplicates, err := kjson.UnmarshalStrict(data, &s, kjson.DisallowDuplicateFields)
	if err := errors.Join(append(duplicates, err)...); err != nil {
		return s, err
	}
	switch year := s.Time.UTC().Year(); {
	case s.UID == "":
		return s, errors.New("uid is empty")
	case s.Epoch < 1:
		return s, fmt.Errorf("epoch is %d, want 1 or more", s.Epoch)
	case year < 1 || year > 9999:
		return s, errors.New("time is outside the years 1 to 9999")
	}
	return s, nil
}

// String is the Signal as Parse reads it.
func (s Signal) String() string {
	data, err := json.Marshal(s)
	if err != nil {
		// Only a time outside the years 0 to 9999 can't be encoded.
		panic(fmt.Sprintf("encode signal: %v", err))
	}
	return string(data)
}
