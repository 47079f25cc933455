package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// sidecarPoll is how often the sidecar reads the projected file if inotify fails.
const sidecarPoll = 250 * time.Millisecond

// Sidecar copies the signal from the pod's annotation into the volume that the held containers read.
type Sidecar struct {
	Volume Volume
	// Podinfo is the directory into which the kubelet projects the annotation.
	Podinfo string
	// UID is the UID of the pod.
	UID string
	// Program is the path of the gate's binary, which is copied into the volume.
	Program string
	// Fenced: the Lease releases the pod, and not the signal. See Fence.
	Fenced bool
	// Lock: main processes also run while the pod is not released, as readers.
	Lock bool
	// PodIP is the address of the pod. Only probes of containers whose clients can wait need it.
	PodIP string
	// Patience is how long clients can wait for a main process to start. 0: they cannot.
	Patience time.Duration
	// Log must never block if the pod is fenced.
	Log *slog.Logger

	// sawHeld is true after this sidecar found the pod held. Only follow uses it.
	sawHeld bool

	mu     sync.Mutex
	status Status
	// queues has the held containers whose clients could connect before their main process listens, and whether they still can.
	queues map[string]bool
	// changed is closed when the pod is held or released, or when queues changes. Nil: nobody waits.
	changed chan struct{}
}

// Status is the state of the sidecar. Clients can read only the fields of served.
type Status struct {
	// Delivered: the gate's binary is in the volume.
	Delivered bool
	// Released: the held containers may start their main processes, or the writer in a pod of a StatefulSetLock.
	Released bool
	// Restarted: the pod was already released when this sidecar started.
	Restarted bool
	// Epoch is the fencing token of the release; 0 while the pod is held, or if a restarted sidecar has not read the Lease.
	Epoch int64
	// Since is when the sidecar found the pod held or released; the zero time before the first read.
	Since time.Time
	// Problem says why the annotation is ignored or cannot be read, or why the signal file cannot be written. Empty:
	// there is no problem. It can contain UIDs.
	Problem string
}

// Run copies the gate's binary into the volume and then follows the annotation until ctx ends.
func (s *Sidecar) Run(ctx context.Context) error {
	if s.UID == "" {
		return errors.New("POD_UID is empty, so the sidecar cannot recognize the signal of its own pod. The policy did not inject this pod correctly: delete the pod")
	}
	if err := s.Volume.createPipe(); err != nil {
		s.Log.Warn("Cannot create the wake-up pipe. The held containers poll the signal file instead", "error", err)
	}
	if s.Patience > 0 {
		if err := writeWhole(s.Volume.podIPFile(), 0o644, strings.NewReader(s.PodIP)); err != nil {
			return err
		}
	}
	if err := s.Volume.deliver(s.Program); err != nil {
		return err
	}
	s.mu.Lock()
	s.status.Delivered = true
	s.mu.Unlock()
	s.awaitRelease(ctx)
	// After the release nothing is urgent. A process with inotify would also take about 15 ms longer to exit, because
	// of a grace period of the kernel. The sidecar is the last container of the pod to exit, which is in the gap of
	// the handoff.
	ticker := time.NewTicker(fallbackPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.follow()
		}
	}
}

// awaitRelease follows the annotation with inotify until the pod is released or ctx ends.
func (s *Sidecar) awaitRelease(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range changes(ctx, s.Podinfo, sidecarPoll, s.Log) {
		if s.follow(); s.Status().Released {
			return
		}
	}
}

// Status returns the state of the sidecar.
func (s *Sidecar) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// setReceiving stores whether clients of a container can connect before its main process listens.
func (s *Sidecar) setReceiving(container string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[container] == is {
		return
	}
	if s.queues == nil {
		s.queues = map[string]bool{}
	}
	s.queues[container] = is
	s.notify()
}

// receiving returns whether clients of a container can connect before its main process listens, and whether they could and cannot
// any more.
func (s *Sidecar) receiving(container string) (now, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, known := s.queues[container]
	return now, known && !now
}

// notify closes changed. s.mu is locked.
func (s *Sidecar) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// watch returns the state of the sidecar, and a channel that is closed when the pod is held or released, or when
// clients of a container can connect or not any more.
func (s *Sidecar) watch() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.status, s.changed
}

// follow writes the annotation to the signal file. If the annotation cannot be read, or the file cannot be written,
// the file does not change. If the kubelet projects no file, follow removes the signal file.
func (s *Sidecar) follow() {
	annotation, refusal := s.annotation()
	missing := errors.Is(refusal, fs.ErrNotExist)
	if refusal != nil && !missing {
		s.report(s.Status().Epoch, refusal)
		return
	}
	var epoch int64
	if !missing {
		epoch, refusal = judge(annotation, s.UID)
	}
	if epoch == 0 {
		annotation = nil
	}
	if err := s.Volume.apply(annotation); err != nil {
		s.report(s.Status().Epoch, err)
		return
	}
	if epoch == 0 {
		s.sawHeld = true
	}
	s.report(epoch, refusal)
}

// annotation reads the projected annotation. It is empty if the pod has no signal. The error is fs.ErrNotExist if
// nothing is projected.
func (s *Sidecar) annotation() ([]byte, error) {
	path := filepath.Join(s.Podinfo, filepath.Base(signal.File))
	data, err := readSignal(path)
	if errors.Is(err, fs.ErrNotExist) {
		// The kubelet replaces the directory behind the path, and the old directory may be missing.
		data, err = readSignal(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the pod's annotation %s: %w. The kubelet projects this file. If the error persists, delete the pod", signal.Annotation, err)
	}
	return data, nil
}

// judge returns the epoch with which the annotation releases the pod, or 0. The error says why an annotation is
// ignored.
func judge(annotation []byte, uid string) (epoch int64, err error) {
	if len(annotation) == 0 {
		return 0, nil
	}
	s, err := signal.Parse(annotation)
	if err != nil {
		return 0, fmt.Errorf("annotation %s does not release the pod: %w", signal.Annotation, err)
	}
	if s.UID != uid {
		return 0, fmt.Errorf("annotation %s does not release the pod: it is for a pod with uid %q, and this pod has uid %q", signal.Annotation, s.UID, uid)
	}
	return s.Epoch, nil
}

// report stores what follow found, and logs changes.
func (s *Sidecar) report(epoch int64, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	if text != s.status.Problem && text != "" {
		s.Log.Error(text)
	}
	s.status.Problem = text
	if !s.Fenced {
		s.setReleased(epoch > 0, epoch, !s.sawHeld)
	}
}

// leaseReleases stores whether the Lease releases the pod, and logs changes. restarted is true if an earlier sidecar let
// a main process start.
func (s *Sidecar) leaseReleases(released bool, epoch int64, restarted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setReleased(released, epoch, restarted)
}

// setReleased stores whether the pod is released. s.mu is locked.
func (s *Sidecar) setReleased(released bool, epoch int64, restarted bool) {
	if !s.status.Since.IsZero() && s.status.Released == released && s.status.Epoch == epoch {
		return
	}
	s.status.Restarted = released && restarted
	s.status.Released, s.status.Epoch, s.status.Since = released, epoch, time.Now()
	s.notify()
	switch {
	case s.Lock && released:
		s.Log.Info("Writer: the main processes may run as the writer", "epoch", epoch)
	case s.Lock:
		s.Log.Info("Reader: the main processes run as readers")
	case released:
		s.Log.Info("Released: the held containers may start their main processes", "epoch", epoch)
	default:
		s.Log.Info("Held: main processes wait until the controller releases this pod")
	}
}
