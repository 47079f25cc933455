package gate

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
)

const (
	// backlog is the number of clients that may wait for each socket, up to net.core.somaxconn.
	backlog = 1024
	// maxPorts is the maximum number of ports of a container on which clients can wait.
	maxPorts = 128
	// keepSockets is how long the queue keeps a descriptor of a socket that it handed over. In that time, a program that only tests
	// its configuration has ended.
	keepSockets = 5 * time.Second
)

// clients are those of a main process that does not run yet.
type clients struct {
	sidecar *sidecarConnection
	log     *slog.Logger
	// queue is nil while the sidecar has not asked for it, and if the main process listens on no port.
	queue *queue.Queue
	// patience ends the wait of clients whose main process does not start, at the time until.
	patience *time.Timer
	until    time.Time
	// asked: the sidecar has asked for a queue, and has not sent the clients away since. sentAway: it has, and the queue is closing.
	asked, sentAway bool
}

// queuedPorts returns the ports in the variable signal.PortsEnv, each once. A container can list a port several times.
func queuedPorts(text string, log *slog.Logger) (ports []uint16) {
	if text == "" {
		return nil
	}
	for number := range strings.SplitSeq(text, ",") {
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			log.Warn("The variable with the ports of the container is invalid, so connections are not queued", "error", err)
			return nil
		}
		ports = append(ports, uint16(port))
	}
	slices.Sort(ports)
	if ports = slices.Compact(ports); len(ports) > maxPorts {
		log.Warn("The container has too many ports, so connections are not queued", "ports", len(ports), "most", maxPorts)
		return nil
	}
	return ports
}

// receive lets clients connect from now on, unless they already can, or had waited too long. The caller must be on the main thread.
func (c *clients) receive(order receptionOrder) {
	if c.asked {
		return
	}
	c.asked = true
	is := reception{Reason: queue.HandedOver} // nobody waits for a main process that listens on no port
	if len(order.Ports) > 0 {
		is = reception{}
		q, err := queue.Listen(order.Ports, queue.Options{Backlog: backlog, BindWithin: order.Patience, Keep: keepSockets, Log: c.log})
		if err != nil {
			c.log.Warn("Connections are refused until the main process listens", "error", err)
			closed, _ := errors.AsType[queue.Closed](err)
			c.sidecar.reportReception(reception{Reason: closed.Reason})
			return
		}
		c.queue = q
		c.until = time.Now().Add(order.Patience)
		c.patience = time.AfterFunc(order.Patience, func() { q.Close(queue.Stopped) })
	}
	c.log.Info("Clients can connect, and wait until the main process runs", "ports", order.Ports)
	c.rename(queueingName)
	c.sidecar.reportReception(is)
}

// sendAway closes the queue, because another pod runs next.
func (c *clients) sendAway() {
	c.sentAway = true
	c.stopping()
	if c.queue == nil {
		c.gone()
	}
}

// closed returns a channel that is closed with the queue. Nil: there is none.
func (c *clients) closed() <-chan struct{} {
	if c.queue == nil {
		return nil
	}
	return c.queue.Done()
}

// gone makes the probes fail again after the queue was closed. The caller must be on the main thread.
func (c *clients) gone() {
	is := reception{Reason: queue.Stopped, SentAway: c.sentAway}
	if c.queue != nil {
		is.Reason = c.queue.Closed().Reason
	}
	c.queue, c.asked, c.sentAway = nil, !c.sentAway, false
	c.rename(waitingName)
	c.sidecar.reportReception(is)
}

func (c *clients) rename(name string) {
	if err := setName(name); err != nil {
		c.log.Error("The probes of the container cannot see whether clients can connect", "error", err)
	}
}

// starter returns the Starter of the main process, which gets the clients. If mayStart returns an error, it does not start.
func (c *clients) starter(path string, argv, env []string, mayStart func() error) Starter {
	return func(attr *syscall.ProcAttr) (pid int, err error) {
		attr.Env = env
		if q := c.queue; q != nil {
			// The start does not lengthen the time for which the first client waits.
			c.patience.Stop()
			time.AfterFunc(time.Until(c.until), func() { q.Close(queue.NotBound) })
			go func() { c.sidecar.reportReception(reception{Reason: q.Closed().Reason}) }()
			return q.ForkExec(path, argv, attr, mayStart)
		}
		if err := mayStart(); err != nil {
			return 0, err
		}
		return syscall.ForkExec(path, argv, attr)
	}
}

// ended closes the queue for the reason, unless it is closed, because no main process runs any more. It reports the reason, because
// the gate exits before the report of starter.
func (c *clients) ended(reason queue.Reason) {
	if c.queue != nil {
		c.queue.Close(reason)
		c.sidecar.reportReception(reception{Reason: c.queue.Closed().Reason})
	}
}

// stopping closes the queue, because clients must not wait for a main process that stops, or that does not start in this pod.
func (c *clients) stopping() {
	if c.queue != nil {
		go c.queue.Close(queue.Stopped) // the main process can make it block
	}
}
