package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"github.com/statefulsingleton/statefulsingleton/controller/gate/queue"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// helloTimeout is the timeout of the first message of a gate.
	helloTimeout = 2 * time.Second
	// maxGates is the maximum number of concurrent connections to the socket.
	maxGates = 64
)

// fencer runs in the sidecar of a pod with fencing by a Lease. It renews and releases the Lease, and tells the gates of
// the held containers when main processes may start and must stop.
type fencer struct {
	sidecar *Sidecar
	volume  Volume
	lease   *leaseClient
	// identity is the holder identity of the pod.
	identity string
	log      *slog.Logger
	// patience is how long a client may wait in a queue. 0: nothing is queued.
	patience time.Duration
	// restarted: an earlier sidecar let a main process start, and the pod has not lost the Lease since.
	restarted bool

	mu    sync.Mutex
	fence *fence
	gates map[string]*gateConnection
	// receptions are what gates have reported last about their queues, by container. The last report is kept when a released container
	// restarts, because its new gate has no queue and would hide why the first one was closed.
	receptions map[string]*reception
	// current is the Lease as last read or written.
	current *lease
	// role is the content of the file with the role. Nil: this sidecar has not written the file.
	role *roleFile
	// listening are the ports on which main processes listen, as this sidecar has seen.
	listening map[uint16]queue.Shape
	// rejected logs that the API server rejects what the pod reports.
	rejected func(error)
	// looks is how often this sidecar has looked for them.
	looks int
	// changed receives when the Lease should be renewed or released.
	changed chan struct{}
}

// gateConnection is the connection of the gate of a held container.
type gateConnection struct {
	conn net.Conn
	// runs is true since the gate was told to start the main process, or the writer in a pod of a StatefulSetLock.
	runs bool
	// started is true since the gate has reported the start. In a pod of a StatefulSetLock, that is so for each tenure.
	started bool
	// ports are those on which clients may wait.
	ports []uint16
	// reception is what the gate has reported about its queue. Nil: it has none.
	reception *reception
}

// Fence renews and releases the Lease, and tells the gates of the held containers when main processes may start and must
// stop. It returns nil when ctx ends. After an error the sidecar must exit: two fencers in one process could contradict
// each other. Gates then keep to the last term.
func Fence(ctx context.Context, s *Sidecar, settings *signal.LeaseSettings) error {
	f := &fencer{
		sidecar: s, volume: s.Volume, lease: newLeaseClient(settings, signal.CredentialsDir),
		identity: signal.HolderIdentity(settings.Pod, s.UID), log: s.Log,
		fence: newFence(s.UID, settings.Held, settings.Duration, settings.Lock), patience: settings.Queue,
		gates: map[string]*gateConnection{}, receptions: map[string]*reception{}, changed: make(chan struct{}, 1),
	}
	f.rejected = f.problem("The report of the pod is rejected. Renewing the Lease without it")
	if err := f.load(); err != nil {
		return fmt.Errorf("read the state of the held containers: %w. Delete the pod", err)
	}
	listener, err := f.listen(ctx)
	if err != nil {
		return fmt.Errorf("listen for the gates of the held containers: %w", err)
	}
	defer func() { _ = listener.Close() }()
	failed := make(chan error, 1)
	go func() { failed <- f.accept(listener) }()
	if !f.restarted { // otherwise a writer may run, and the role is known after the first renewal
		f.mu.Lock()
		f.writeRole()
		f.mu.Unlock()
	}
	go f.watch(ctx)
	go f.follow(ctx)
	if f.patience > 0 {
		go f.learn(ctx)
	}
	select {
	case err := <-failed:
		return fmt.Errorf("accept the connection of a gate: %w", err)
	case <-ctx.Done():
		f.finish()
		return nil
	}
}

// load reads the state that an earlier sidecar has stored.
func (f *fencer) load() error {
	data, err := os.ReadFile(f.volume.fenceFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	stored := &fence{}
	if err == nil {
		err = json.Unmarshal(data, stored)
	}
	if err != nil {
		return err
	}
	if err := f.fence.restore(stored); err != nil {
		return err
	}
	f.restarted = f.fence.wasReleased()
	return nil
}

func (v Volume) roleFile() string    { return filepath.Join(string(v), filepath.Base(signal.RoleFile)) }
func (v Volume) fenceFile() string   { return filepath.Join(string(v), "fence.json") }
func (v Volume) fenceSocket() string { return filepath.Join(string(v), "fence.sock") }

func (f *fencer) listen(ctx context.Context) (net.Listener, error) {
	if err := os.Remove(f.volume.fenceSocket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unixpacket", f.volume.fenceSocket())
	if err != nil {
		return nil, err
	}
	// Held containers run as any user.
	if err := os.Chmod(f.volume.fenceSocket(), 0o666); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return netutil.LimitListener(listener, maxGates), nil
}

func (f *fencer) accept(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go f.serve(conn)
	}
}

// serve handles the messages of one gate.
func (f *fencer) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(helloTimeout))
	hello, err := receive[fromGate](conn)
	if err != nil || !f.connect(hello, conn) {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	for {
		m, err := receive[fromGate](conn)
		if errors.Is(err, syscall.ECONNRESET) {
			// The gate exited before it read a term. Its report is still in the queue.
			m, err = receive[fromGate](conn)
		}
		if err != nil {
			f.leave(hello.Container)
			return
		}
		switch {
		case m.Ended:
			f.end(hello.Container, m.Epoch)
		case m.Runs:
			f.started(hello.Container, m.Epoch)
		case m.Reception != nil:
			f.seeReception(hello.Container, m.Reception)
		}
	}
}

func (f *fencer) leave(container string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fence.disconnect(container)
	delete(f.gates, container)
	f.wake()
}

func (f *fencer) started(container string, epoch int64) {
	f.volume.wakeWrappers() // the startup probe waits for the wake-up, too
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fence.isLate(epoch) {
		return
	}
	f.gates[container].started = true
	if f.fence.roles || f.patience > 0 {
		f.wake() // the Lease says that the main processes run
	}
}

func (f *fencer) end(container string, epoch int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fence.end(container, epoch) {
		return
	}
	f.gates[container].runs, f.gates[container].started = false, false
	f.log.Info("The processes of the container have ended", "container", container)
	if !f.fence.mayRelease() {
		f.store() // a release must not wait for the disk, see update
		f.tell()  // writers in other containers must end, too
	}
	f.wake()
}

func (f *fencer) connect(hello fromGate, conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fence.connect(hello.Container, hello.Runs, bootTime()) {
		return false // the gate logs that it is not connected
	}
	f.gates[hello.Container] = &gateConnection{conn: conn, runs: hello.Runs, started: hello.Started, ports: hello.Ports, reception: hello.Reception}
	if hello.Reception != nil || f.fence.Containers[hello.Container].State == "" {
		f.receptions[hello.Container] = hello.Reception
	}
	f.sidecar.setReceiving(hello.Container, hello.Reception.losesNone())
	f.tell()
	f.tellClients()
	if f.fence.ending() {
		f.writeRole()
	}
	if f.fence.ending() || f.fence.neverExpires() {
		f.wake() // the container was restarted
	}
	return true
}

// tell tells each gate what its main process may do. f.mu is locked.
func (f *fencer) tell() {
	defer f.announce()
	if f.fence.term == (Term{}) && (f.current == nil || f.names(f.current)) {
		return // a sidecar that has not renewed the Lease yet must not end main processes that an earlier sidecar started
	}
	var starts []*gateConnection
	for container, gate := range f.gates {
		if !gate.runs && f.fence.start(container, bootTime()) {
			starts = append(starts, gate)
		}
	}
	// The state must outlive this sidecar before a main process starts.
	if len(starts) > 0 && f.store() {
		for _, gate := range starts {
			gate.runs = true
		}
		f.writeRole()
	}
	for container, gate := range f.gates {
		if !gate.runs {
			continue
		}
		term := f.fence.term
		term.Ends, term.Delays = f.fence.ending(), f.patience > 0
		if err := send(gate.conn, fromSidecar{Term: &term}); err != nil {
			f.log.Warn("Cannot reach the gate of a container", "container", container, "error", err)
		}
	}
	f.writeRole()
}

// allStarted returns true if the gates of all held containers have started their main processes, of which some may have ended, or
// the writer in a pod of a StatefulSetLock. f.mu is locked.
func (f *fencer) allStarted() bool {
	for container, c := range f.fence.Containers {
		hasEnded := c.State == ended && !f.fence.roles
		if gate := f.gates[container]; !hasEnded && (gate == nil || !gate.started) {
			return false
		}
	}
	return true
}

// writeRole writes the role of the pod and its epoch, if they have changed, for main processes that read them from a file.
// f.mu is locked.
func (f *fencer) writeRole() {
	if !f.fence.roles {
		return
	}
	role := roleFile{Role: signal.ReaderRole}
	if f.fence.wasReleased() && f.fence.term.Epoch > 0 && bootTime() < f.fence.term.Stop && !f.fence.ending() {
		role = roleFile{Role: signal.WriterRole, Epoch: f.fence.term.Epoch}
	}
	if f.role != nil && *f.role == role {
		return
	}
	data, err := json.Marshal(role)
	if err == nil {
		err = writeWhole(f.volume.roleFile(), 0o644, bytes.NewReader(append(data, '\n')))
	}
	if err != nil {
		f.log.Error("Cannot write the role of the pod", "file", f.volume.roleFile(), "error", err)
		return
	}
	f.role = &role
}

// roleFile is the content of the file with the role of the pod.
type roleFile struct {
	Role string `json:"role"`
	// Epoch is the epoch of the writer.
	Epoch int64 `json:"epoch,omitempty"`
}

// announce says in the status of the sidecar whether main processes may run. f.mu is locked.
func (f *fencer) announce() {
	if f.current != nil && !f.names(f.current) {
		f.restarted = false
		f.sidecar.leaseReleases(false, 0, false)
		return
	}
	for _, gate := range f.gates {
		if gate.runs {
			f.sidecar.leaseReleases(true, f.fence.term.Epoch, f.restarted)
		}
	}
}

// store stores the state of the held containers. f.mu is locked.
func (f *fencer) store() bool {
	data, err := json.Marshal(f.fence)
	if err == nil {
		err = writeWhole(f.volume.fenceFile(), 0o600, bytes.NewReader(data))
	}
	if err != nil {
		f.log.Error("Cannot store the state of the held containers", "error", err)
	}
	return err == nil
}

// wake makes follow look at the Lease.
func (f *fencer) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}
