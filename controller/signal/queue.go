package signal

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
)

// maxQueueReport is the maximum size in bytes of the value of QueueAnnotation.
const maxQueueReport = 4096

// QueueReport is what the holder of the Lease reports about connections of clients that were queued, and about the next
// queue. It is the value of QueueAnnotation, as JSON.
type QueueReport struct {
	// Epoch is the epoch with which the main processes of all held containers have started.
	Epoch int64 `json:"epoch"`
	// Reason is why the queue of this pod was closed: QueueHandedOver if the application accepts the clients that waited.
	// Empty: the pod had no queue, or still has it.
	Reason string `json:"reason,omitempty"`
	// Message says what to change, if clients that waited were lost. It is a text for a person.
	Message string `json:"message,omitempty"`
	// Ports are the TCP ports of held containers on which the main processes listen on all addresses, with the name of a
	// Shape of package queue. The next pod queues connections to these ports.
	Ports map[uint16]string `json:"ports,omitempty"`
}

const (
	// QueueHandedOver is the reason of a queue that lost no client.
	QueueHandedOver = "HandedOver"
	// QueueTooManyPorts is the reason of a report that cannot have all ports.
	QueueTooManyPorts = "TooManyPorts"
)

// tooManyPorts is the message of a report that had to leave out its ports.
const tooManyPorts = "The main processes listen on too many ports. List only those of clients in ports of the containers."

// String returns the value of QueueAnnotation. A renewal with a longer value would be rejected, and the Lease would expire. So a
// report with too many ports leaves them out, and says so.
func (r QueueReport) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", r, err)) // it has only numbers and strings
	}
	if len(text) > maxQueueReport {
		return QueueReport{Epoch: r.Epoch, Reason: QueueTooManyPorts, Message: tooManyPorts}.String()
	}
	return string(text)
}

// ParseQueueReport parses the value of QueueAnnotation. An empty value is an empty report.
func ParseQueueReport(text string) (r QueueReport, err error) {
	if text == "" {
		return QueueReport{}, nil
	}
	if len(text) > maxQueueReport {
		return QueueReport{}, fmt.Errorf("annotation %s has %d bytes, and at most %d are allowed", QueueAnnotation, len(text), maxQueueReport)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return QueueReport{}, fmt.Errorf("annotation %s: %w", QueueAnnotation, err)
	}
	// The reason becomes that of a condition.
	if r.Reason != "" && !conditionReason.MatchString(r.Reason) || r.Reason == "" && r.Message != "" {
		return QueueReport{}, fmt.Errorf("annotation %s: invalid reason %q", QueueAnnotation, r.Reason)
	}
	for port, shape := range r.Ports {
		if !slices.Contains(shapes, shape) {
			return QueueReport{}, fmt.Errorf("annotation %s: port %d has the unknown shape %q", QueueAnnotation, port, shape)
		}
	}
	return r, nil
}

var (
	// conditionReason matches the reasons of package queue.
	conditionReason = regexp.MustCompile(`^[A-Za-z]{1,64}$`)
	// shapes are those of package queue, which only Linux has.
	shapes = []string{"IPv4", "IPv6", "Dual", "Pair"}
)
