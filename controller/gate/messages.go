package gate

import (
	"encoding/json"
	"net"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
)

const (
	// sendTimeout is the timeout of a message between gate and sidecar.
	sendTimeout = 100 * time.Millisecond
	// maxMessage is the maximum length of a message between gate and sidecar. One with maxPorts ports is the longest.
	maxMessage = 1 << 14
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
	// Ports is set in the first message: the ports on which clients may wait.
	Ports []uint16 `json:"ports,omitempty"`
	// Reception is set when it changes, and in the first message unless there is none.
	Reception *reception `json:"reception,omitempty"`
}

// fromSidecar is a message from the sidecar to the gate of a held container.
type fromSidecar struct {
	// Term is the time for which the main process may run. The first lets the main process start.
	Term *Term `json:"term,omitempty"`
	// Receive makes the gate queue clients, unless it has already done so.
	Receive *receptionOrder `json:"receive,omitempty"`
	// SendAway makes the gate close its queue, because another pod runs next.
	SendAway bool `json:"sendAway,omitempty"`
	// Delay is for how long the main process still runs after a stop signal to the container, because the pod is deleted.
	Delay *time.Duration `json:"delay,omitempty"`
}

// receptionOrder says which clients a gate queues.
type receptionOrder struct {
	// Ports can be empty: the main process listens on no port, but runs next.
	Ports []queue.Port `json:"ports"`
	// Patience is how long a client may wait.
	Patience time.Duration `json:"patience"`
}

// reception is what a gate reports about its queue.
type reception struct {
	// Reason is why the queue is closed. Empty: clients can wait in the queue.
	Reason queue.Reason `json:"reason,omitempty"`
	// SentAway: the sidecar had the queue closed, and can ask for another.
	SentAway bool `json:"sentAway,omitempty"`
}

// losesNone returns true if clients can wait, or have been accepted.
func (r *reception) losesNone() bool {
	return r != nil && (r.Reason == "" || r.Reason == queue.HandedOver)
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
