package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// sidecarPoll is how often the sidecar looks at the kubelet's file where inotify
// fails it.
const sidecarPoll = 250 * time.Millisecond

// Sidecar carries the signal from the pod's annotation into the volume that the
// held containers read.
type Sidecar struct {
	Volume Volume
	// Podinfo is the directory into which the kubelet projects the annotation.
	Podinfo string
	// UID is the pod's own.
	UID string
	// Program is the gate's binary, which is delivered into the volume.
	Program string
	Log     *slog.Logger

	mu     sync.Mutex
	status Status
}

// Status is what the sidecar serves under /status.
type Status struct {
	// UID is the pod's.
	UID string `json:"uid"`
	// Delivered: the held containers find the gate's binary.
	Delivered bool `json:"delivered"`
	// Released: the held containers may start their main processes.
	Released bool `json:"released"`
	// Epoch is the fencing token of the release, 0 while held.
	Epoch int64 `json:"epoch"`
	// Since is when the pod came to be held, or released.
	Since time.Time `json:"since,omitzero"`
	// Problem says why a signal is not obeyed. Empty where there is none.
	Problem string `json:"problem,omitempty"`
}

// Run delivers the gate's binary and then follows the annotation until ctx ends.
func (s *Sidecar) Run(ctx context.Context) error {
	if s.UID == "" {
		return errors.New("POD_UID is empty, so no signal could be told from another pod's: the pod was not injected as it should be")
	}
	if err := s.Volume.deliver(s.Program); err != nil {
		return err
	}
	s.update(func(status *Status) { status.UID, status.Delivered = s.UID, true })
	for range changes(ctx, s.Podinfo, sidecarPoll, s.Log) {
		s.follow()
	}
	return nil
}

// Status is where the sidecar stands.
func (s *Sidecar) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Sidecar) update(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// follow makes the signal file what the annotation says.
func (s *Sidecar) follow() {
	want, released, err := s.wanted()
	if errors.Is(err, errUnreadable) {
		// It tells nothing about the annotation, so the signal file stays as it is.
		s.problem(err)
		return
	}
	s.problem(err)
	have, haveErr := s.Volume.Signal()
	switch {
	case released && (haveErr != nil || have != want):
		if err := s.Volume.write(s.Volume.signalFile(), 0o644, strings.NewReader(want.String())); err != nil {
			s.problem(fmt.Errorf("write the signal file: %w", err))
			return
		}
		s.Log.Info("Released: the held containers may start", "epoch", want.Epoch)
	case !released && !errors.Is(haveErr, fs.ErrNotExist):
		if err := os.Remove(s.Volume.signalFile()); err != nil {
			s.problem(fmt.Errorf("remove the signal file: %w", err))
			return
		}
		s.Log.Info("The signal was taken back: a held container that starts now waits")
	}
	s.update(func(status *Status) {
		if status.Since.IsZero() || status.Released != released {
			status.Since = time.Now().UTC()
		}
		status.Released, status.Epoch = released, want.Epoch
	})
}

// errUnreadable: the kubelet's file is there and can't be read.
var errUnreadable = errors.New("the projected annotation can't be read")

// wanted is what the annotation says. An error beside released false is why it is
// not obeyed.
func (s *Sidecar) wanted() (want signal.Signal, released bool, err error) {
	data, err := os.ReadFile(filepath.Join(s.Podinfo, filepath.Base(signal.File)))
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0:
		return signal.Signal{}, false, nil
	case err != nil:
		return signal.Signal{}, false, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	want, err = signal.Parse(data)
	if err != nil {
		return signal.Signal{}, false, fmt.Errorf("the annotation %s is not obeyed: %w", signal.Annotation, err)
	}
	if want.UID != s.UID {
		return signal.Signal{}, false, fmt.Errorf("the annotation %s is not obeyed: it releases pod uid %s, and this one is %s", signal.Annotation, want.UID, s.UID)
	}
	return want, true, nil
}

// problem notes why a signal is not obeyed, and logs it when it changes.
func (s *Sidecar) problem(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.update(func(status *Status) {
		if text != "" && text != status.Problem {
			s.Log.Error(text)
		}
		status.Problem = text
	})
}
