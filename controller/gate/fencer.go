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
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/statefulsingleton/statefulsingleton/controller/fencing"
)

const (
	// renewals is how many times the sidecar renews the Lease in one duration.
	renewals = 5
	// retryPause is the time between two attempts to read or renew the Lease.
	retryPause = 500 * time.Millisecond
	// sendTimeout is the timeout of a message to a gate.
	sendTimeout = 100 * time.Millisecond
	// maxMessage is the maximum length of a message between gate and sidecar.
	maxMessage = 1 << 10
)

// fromGate is a message from the gate of a held container to the sidecar.
type fromGate struct {
	// Container is set in the first message.
	Container string `json:"container,omitempty"`
	// Runs: the main process was started before this connection.
	Runs bool `json:"runs,omitempty"`
	// Ended: every process of the container has ended.
	Ended bool `json:"ended,omitempty"`
}

// fromSidecar is a message from the sidecar to the gate of a held container.
type fromSidecar struct {
	// Term is the time for which the main process may run. The first message lets the main process start.
	Term Term `json:"term"`
}

// fencer runs in the sidecar of a pod with fencing by a Lease. It renews and releases the Lease, and tells the gates of
// the held containers when main processes may start and must stop.
type fencer struct {
	volume Volume
	lease  *leaseClient
	// identity is the holder identity of the pod: name and UID.
	identity, uid string
	log           *slog.Logger

	mu    sync.Mutex
	fence *fence
	gates map[string]*gateConnection
	// current is the Lease as last read or written.
	current *lease
	// changed receives when the Lease should be renewed or released.
	changed chan struct{}
}

// gateConnection is the connection of the gate of a held container.
type gateConnection struct {
	conn net.Conn
	// runs is true since the gate was told to start the main process.
	runs bool
}

// Fence renews and releases the Lease in the environment, and tells the gates of the held containers when main processes
// may start and must stop. It returns when ctx ends, or at once if the environment names no Lease.
func Fence(ctx context.Context, v Volume, uid string, log *slog.Logger) error {
	namespace, name, ok := strings.Cut(os.Getenv(fencing.LeaseEnv), "/")
	if !ok {
		return nil
	}
	seconds, err := strconv.Atoi(os.Getenv(fencing.DurationEnv))
	if err != nil {
		return fmt.Errorf("read %s: %w", fencing.DurationEnv, err)
	}
	client, err := newLeaseClient(namespace, name, fencing.CredentialsDir)
	if err != nil {
		return fmt.Errorf("set up the client for Lease %s/%s: %w", namespace, name, err)
	}
	f := &fencer{
		volume: v, lease: client, identity: fencing.HolderIdentity(os.Getenv(fencing.PodNameEnv), uid), uid: uid, log: log,
		fence: newFence(strings.Split(os.Getenv(fencing.HeldEnv), ","), time.Duration(seconds)*time.Second),
		gates: map[string]*gateConnection{}, changed: make(chan struct{}, 1),
	}
	if err := f.load(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer f.disconnect()
	go f.follow(ctx)
	return f.listen(ctx)
}

// disconnect closes the connections of the gates, which then connect to the next fencer.
func (f *fencer) disconnect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, gate := range f.gates {
		_ = gate.conn.Close()
	}
}

// load reads the state that an earlier sidecar of the pod has stored.
func (f *fencer) load() error {
	stored, err := os.ReadFile(f.volume.fenceFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(stored, f.fence)
	}
	if err != nil {
		return fmt.Errorf("read the state of the held containers: %w. Delete the pod", err)
	}
	return nil
}

func (v Volume) fenceFile() string   { return filepath.Join(string(v), "fence.json") }
func (v Volume) fenceSocket() string { return filepath.Join(string(v), "fence.sock") }

// bootTime returns the time of CLOCK_BOOTTIME, which also counts while the machine is suspended.
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // the kernel has the clock
	}
	return time.Duration(now.Nano())
}

// listen accepts the connections of gates until ctx ends.
func (f *fencer) listen(ctx context.Context) error {
	if err := os.Remove(f.volume.fenceSocket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unixpacket", f.volume.fenceSocket())
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	// Held containers run as any user.
	if err := os.Chmod(f.volume.fenceSocket(), 0o666); err != nil {
		return err
	}
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
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	hello, err := receive[fromGate](conn)
	if err != nil || !f.connect(hello, conn) {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	for {
		m, err := receive[fromGate](conn)
		f.mu.Lock()
		if err != nil {
			f.fence.disconnect(hello.Container)
			delete(f.gates, hello.Container)
			f.mu.Unlock()
			return
		}
		if m.Ended {
			f.fence.end(hello.Container)
			f.gates[hello.Container].runs = false
			f.log.Info("The processes of the container have ended", "container", hello.Container)
			f.store()
			f.wake()
		}
		f.mu.Unlock()
	}
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

func (f *fencer) connect(hello fromGate, conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fence.connect(hello.Container) {
		f.log.Warn("A connection is refused: the container is not held, or its gate is connected already", "container", hello.Container)
		return false
	}
	f.gates[hello.Container] = &gateConnection{conn: conn, runs: hello.Runs}
	f.tell()
	return true
}

// tell tells each gate what its main process may do. f.mu is locked.
func (f *fencer) tell() {
	var starts []*gateConnection
	for container, gate := range f.gates {
		if gate.runs {
			continue
		}
		if _, ok := f.fence.start(container, bootTime()); ok {
			starts = append(starts, gate)
		}
	}
	// The state must outlive this sidecar before a main process starts.
	if len(starts) > 0 && f.store() {
		for _, gate := range starts {
			gate.runs = true
		}
	}
	for container, gate := range f.gates {
		if !gate.runs {
			continue
		}
		// A gate that does not read must not delay the others.
		_ = gate.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
		if err := send(gate.conn, fromSidecar{Term: f.fence.term}); err != nil {
			f.log.Warn("Cannot reach the gate of a container", "container", container, "error", err)
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
		f.log.Error("Cannot store the state of the held containers, so none of them starts", "error", err)
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

// follow renews and releases the Lease until ctx ends.
func (f *fencer) follow(ctx context.Context) {
	go f.watch(ctx)
	ticker := time.NewTicker(f.fence.duration / renewals)
	defer ticker.Stop()
	for {
		if err := f.update(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("Cannot update the Lease", "lease", f.lease.name, "error", err)
			time.AfterFunc(retryPause, f.wake)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-f.changed:
		}
	}
}

// watch keeps the Lease current until ctx ends.
func (f *fencer) watch(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := f.lease.get(ctx)
		if err == nil {
			f.see(l)
			err = f.lease.watch(ctx, l, f.see)
		}
		f.log.Debug("The watch of the Lease ended", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// see records a state of the Lease. It ignores a late event about an older state.
func (f *fencer) see(l *lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && l.version() < f.current.version() {
		return
	}
	news := f.current == nil || f.names(f.current) != f.names(l)
	f.current = l
	if !f.names(l) {
		f.fence.lose()
		f.tell()
	}
	if f.retire() || news {
		f.wake()
	}
}

// retire returns true if it retires the pod because the Lease says so. It tries again at the next renewal if the state
// cannot be stored. f.mu is locked.
func (f *fencer) retire() bool {
	if f.fence.Retired || f.current.Metadata.Annotations[fencing.RetireAnnotation] != f.uid {
		return false
	}
	f.fence.Retired = true
	f.fence.Retired = f.store()
	return f.fence.Retired
}

// names returns true if the pod holds the Lease.
func (f *fencer) names(l *lease) bool { return l.Spec.HolderIdentity == f.identity }

// update renews the Lease if it names the pod, or releases it if no main process runs and none will.
func (f *fencer) update(ctx context.Context) error {
	f.mu.Lock()
	current, release := f.current, f.fence.mayRelease()
	f.mu.Unlock()
	if current == nil || !f.names(current) {
		return nil
	}
	sent := bootTime()
	write := f.lease.renew
	if release {
		write = f.lease.release
	}
	next, err := write(ctx, current)
	if err != nil {
		return errors.Join(err, f.readAgain(ctx, current))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = next
	if release {
		f.fence.lose()
		f.log.Info("Released the Lease: no main process of this pod runs, and none will start", "lease", f.lease.name)
		return nil
	}
	f.fence.renew(next.Spec.LeaseTransitions, sent)
	f.tell()
	if f.retire() {
		f.wake()
	}
	return nil
}

// readAgain replaces a state of the Lease whose update failed.
func (f *fencer) readAgain(ctx context.Context, failed *lease) error {
	l, err := f.lease.get(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	if f.current == failed {
		f.current = nil // the version can be lower, for example after a restore of etcd
	}
	f.mu.Unlock()
	f.see(l)
	return nil
}
