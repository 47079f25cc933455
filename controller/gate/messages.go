package gate

import (
	"encoding/json"
	"net"
	"time"
)

const (
	// sendTimeout is the timeout of a message between gate and sidecar.
	sendTimeout = 100 * time.Millisecond
	// maxMessage is the maximum length of a message between gate and sidecar.
	maxMessage = 1 << 10
)

// fromGate is a message from the gate of a held container to the sidecar.
type fromGate struct {
	// Container is set in the first message.
	Container string `json:"container,omitempty"`
	// Runs: the main process was started. In the first message: before this connection.
	Runs bool `json:"runs,omitempty"`
	// Started is set in the first message: the start was reported before this connection. A promote hook may still run if
	// only Runs is set.
	Started bool `json:"started,omitempty"`
	// Ended: every process of the container has ended, or in a pod of a StatefulSetLock, none is the writer.
	Ended bool `json:"ended,omitempty"`
	// Epoch is that of the writer that has started or ended. In the first message, and in other pods, it is 0.
	Epoch int64 `json:"epoch,omitempty"`
}

// fromSidecar is a message from the sidecar to the gate of a held container.
type fromSidecar struct {
	// Term is the time for which the main process may run. The first message lets the main process start.
	Term Term `json:"term"`
}

// receive returns the next message of a connection.
func receive[M any](conn net.Conn) (m M, err error) {
	buffer := make([]byte, maxMessage)
	n, err := conn.Read(buffer)
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(buffer[:n], &m)
}

// send sends a message as one packet. A receiver that does not read must not delay the sender.
func send(conn net.Conn, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err = conn.Write(data)
	return err
}
