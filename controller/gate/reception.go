package gate

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// learnPause is the time between two looks at the ports on which main processes listen, and lookPause the time between two looks
	// after ports were found. A look takes longer the more connections the pod has.
	learnPause, lookPause = time.Second, 30 * time.Second
	// maxLooks is the number of looks after which a pod whose main processes listen on no port does not report the ports of the pod
	// before any more.
	maxLooks = 30
	// maxDelay is the maximum delay of a stop.
	maxDelay = time.Hour
)

// tellClients tells the gates to queue clients if this pod runs next, and to delay a stop if the pod is deleted. f.mu is locked.
func (f *fencer) tellClients() {
	if f.patience == 0 || f.current == nil {
		return
	}
	annotations := f.current.Metadata.Annotations
	switch {
	case f.names(f.current) || f.fence.Retired:
	case annotations[signal.NextAnnotation] == f.fence.UID:
		f.queueClients()
	default:
		f.sendClientsAway()
	}
	if annotations[signal.RetireAnnotation] != f.fence.UID {
		return
	}
	// Without the annotation there is no delay.
	milliseconds, _ := strconv.ParseInt(annotations[signal.DelayAnnotation], 10, 32)
	delay := min(max(0, time.Duration(milliseconds)*time.Millisecond), maxDelay)
	for container, gate := range f.gates {
		f.send(container, gate, fromSidecar{Delay: &delay})
	}
}

// queueClients tells the gates to queue clients, if a main process of the pod before listens on a port of this pod. f.mu is locked.
func (f *fencer) queueClients() {
	report, err := signal.ParseQueueReport(f.current.Metadata.Annotations[signal.QueueAnnotation])
	if err != nil {
		f.log.Error("Connections are refused until the main process listens", "error", err)
		return
	}
	orders, known := map[string]*receptionOrder{}, false
	for container, gate := range f.gates {
		order := &receptionOrder{Ports: []queue.Port{}, Patience: f.patience}
		for _, number := range gate.ports {
			port := queue.Port{Number: number}
			if port.Shape.UnmarshalText([]byte(report.Ports[number])) == nil {
				order.Ports, known = append(order.Ports, port), true
			}
		}
		orders[container] = order
	}
	for container, gate := range f.gates {
		if known && (gate.reception == nil || gate.reception.SentAway) && f.fence.Containers[container].State == "" {
			f.send(container, gate, fromSidecar{Receive: orders[container]})
		}
	}
}

// sendClientsAway tells the gates that another pod runs next. f.mu is locked.
func (f *fencer) sendClientsAway() {
	for container, gate := range f.gates {
		if gate.reception.losesNone() && f.fence.Containers[container].State == "" {
			f.send(container, gate, fromSidecar{SendAway: true})
		}
	}
}

func (f *fencer) send(container string, gate *gateConnection, message fromSidecar) {
	if err := send(gate.conn, message); err != nil {
		f.log.Warn("Cannot reach the gate of a container", "container", container, "error", err)
	}
}

// seeReception records what a gate reports about its queue.
func (f *fencer) seeReception(container string, is *reception) {
	f.volume.wakeWrappers() // the startup probe succeeds while clients can connect
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.receptions[container]
	f.gates[container].reception, f.receptions[container] = is, is
	f.sidecar.setReceiving(container, is.losesNone())
	if (was == nil || *was != *is) && !f.fence.Retired { // a renewal would delay the release
		f.wake()
	}
}

// reports returns the annotations of a renewal: what the pod says about its main processes. The Lease names the pod, or reports
// returns nothing. f.mu is locked.
func (f *fencer) reports() map[string]string {
	switch {
	case f.current == nil || !f.names(f.current) || !f.allStarted():
	case f.fence.roles && !f.fence.ending() && f.fence.Tenure > 0:
		return map[string]string{signal.WritingAnnotation: strconv.FormatInt(f.fence.Tenure, 10)}
	case f.patience > 0 && f.fence.term.Epoch > 0:
		return map[string]string{signal.QueueAnnotation: f.queueReport().String()}
	}
	return nil
}

// queueReport returns what the pod reports about queued clients. f.mu is locked.
func (f *fencer) queueReport() signal.QueueReport {
	report := signal.QueueReport{Epoch: f.fence.term.Epoch, Ports: map[uint16]string{}}
	open := false
	for _, container := range slices.Sorted(maps.Keys(f.receptions)) {
		switch is := f.receptions[container]; {
		case is == nil || report.Message != "":
		case is.losesNone():
			open = open || is.Reason == ""
			report.Reason = string(is.Reason)
		default:
			report.Reason, report.Message = string(is.Reason), is.Reason.Message()
		}
	}
	if open && report.Message == "" {
		report.Reason = ""
	}
	for number, shape := range f.listening {
		report.Ports[number] = string(shape)
	}
	if len(f.listening) == 0 && report.Message == "" && f.looks < maxLooks { // not seen yet
		before, _ := signal.ParseQueueReport(f.current.Metadata.Annotations[signal.QueueAnnotation])
		report.Ports = before.Ports
	}
	return report
}

// learn looks on which ports the main processes listen, until ctx ends.
func (f *fencer) learn(ctx context.Context) {
	l, pause := &listeners{known: map[string]queue.Shape{}}, learnPause
	problem := f.problem("Cannot see on which ports the main processes listen")
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = learnPause
		ports := f.learnable()
		if len(ports) == 0 {
			continue
		}
		found, err := l.find(ctx, ports)
		problem(err)
		if len(found) > 0 || err != nil {
			pause = lookPause
		}
		f.mu.Lock()
		if f.looks++; f.looks == maxLooks {
			f.wake() // the ports of the pod before do not count any more
		}
		if len(found) > 0 && !maps.Equal(found, f.listening) {
			f.listening = found
			f.log.Info("The main processes listen. The next pod queues connections to these ports", "ports", found)
			f.wake()
		}
		f.mu.Unlock()
	}
}

// learnable returns the ports of the held containers, if their main processes run and no queue listens on them.
func (f *fencer) learnable() (ports []uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.allStarted() {
		return nil
	}
	for _, gate := range f.gates {
		if gate.reception != nil && gate.reception.Reason == "" && len(gate.ports) > 0 {
			return nil
		}
		ports = append(ports, gate.ports...)
	}
	return ports
}
