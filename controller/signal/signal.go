// Package signal is the contract between the controller, which writes the signal
// on a pod, and the gate inside that pod, which obeys it. It imports only the
// standard library, so that the gate's binary stays small.
package signal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
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

	// GatePath is where the sidecar delivers the gate's binary for the held
	// containers to run.
	GatePath = Dir + "/gate"

	// EpochEnv is the environment variable in which a held container's main
	// process finds its epoch, the fencing token.
	EpochEnv = "STATEFULSINGLETON_EPOCH"

	// EpochKey is the key of the epoch in the ConfigMap that a barrier waits for.
	EpochKey = "epoch"
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
// on anything but one JSON object with a uid and a positive epoch: whoever can't
// read the signal must hold.
func Parse(data []byte) (Signal, error) {
	var s Signal
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&s); err != nil {
		return Signal{}, fmt.Errorf("parse signal: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Signal{}, errors.New("parse signal: something follows the JSON object")
	}
	if s.UID == "" {
		return Signal{}, errors.New("parse signal: uid is empty")
	}
	if s.Epoch < 1 {
		return Signal{}, fmt.Errorf("parse signal: epoch is %d, want 1 or more", s.Epoch)
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
