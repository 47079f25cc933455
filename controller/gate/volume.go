// Package gate runs inside held pods. The wrapper is in front of a main process and waits for the signal. The sidecar
// delivers the wrapper and the signal.
package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Volume is the signal volume: the directory that the sidecar and the held containers share.
type Volume string

func (v Volume) signalFile() string { return filepath.Join(string(v), filepath.Base(signal.File)) }
func (v Volume) gateFile() string   { return filepath.Join(string(v), filepath.Base(signal.GatePath)) }

// Signal reads the signal of the pod with the UID. The error is fs.ErrNotExist if there is no signal file. With any
// other error the pod is held too: the file cannot be read, or is for another pod.
func (v Volume) Signal(uid string) (signal.Signal, error) {
	data, err := readSignal(v.signalFile())
	if err != nil {
		return signal.Signal{}, err
	}
	s, err := signal.Parse(data)
	if err != nil {
		return signal.Signal{}, fmt.Errorf("%s: %w", v.signalFile(), err)
	}
	if s.UID != uid {
		return signal.Signal{}, fmt.Errorf("%s has the signal of another pod, with uid %q", v.signalFile(), s.UID)
	}
	return s, nil
}

// readSignal reads a file that may contain a signal, up to one byte above the maximum length. It returns an error for
// anything but a regular file: the read of a pipe could block.
func readSignal(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file, but has mode %s", path, info.Mode())
	}
	return io.ReadAll(io.LimitReader(file, signal.MaxLength+1))
}

// deliveryPoll is how often AwaitDelivery checks the volume. It waits only milliseconds.
const deliveryPoll = 5 * time.Millisecond

// AwaitDelivery returns nil when the held containers of the pod with the UID may be created. Then the gate's binary is
// in the volume, and the volume has no signal for another pod. A backup tool can have restored both before the sidecar
// started. AwaitDelivery returns an error if ctx ends first.
func (v Volume) AwaitDelivery(ctx context.Context, uid string) error {
	ticker := time.NewTicker(deliveryPoll)
	defer ticker.Stop()
	for {
		err := v.delivered(uid)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the sidecar did not prepare the signal volume in time, so no held container starts: %w. See the log of container status-sidecar", err)
		case <-ticker.C:
		}
	}
}

// delivered returns nil if held containers may be created, or the reason why they must not be created yet.
func (v Volume) delivered(uid string) error {
	if _, err := os.Stat(v.gateFile()); err != nil {
		return err
	}
	if _, err := v.Signal(uid); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// deliver copies the program at source into the volume.
func (v Volume) deliver(source string) error {
	in, err := os.Open(source)
	if err == nil {
		defer func() { _ = in.Close() }()
		err = writeWhole(v.gateFile(), 0o755, in)
	}
	if err != nil {
		return fmt.Errorf("deliver the gate to the held containers: %w", err)
	}
	return nil
}

// apply writes the annotation to the signal file, or removes the file if the annotation is nil.
func (v Volume) apply(annotation []byte) error {
	have, err := readSignal(v.signalFile())
	switch {
	case annotation == nil && errors.Is(err, fs.ErrNotExist):
		return nil
	case annotation == nil:
		if err := os.Remove(v.signalFile()); err != nil {
			return fmt.Errorf("remove the signal file: %w", err)
		}
	case err != nil || !bytes.Equal(have, annotation):
		if err := writeWhole(v.signalFile(), 0o644, bytes.NewReader(annotation)); err != nil {
			return fmt.Errorf("write the signal file: %w", err)
		}
		v.wakeWrappers()
	}
	return nil
}

// writeWhole writes a file atomically. It overwrites the temporary file of a writer that was killed, because the size
// of the volume is limited.
func writeWhole(path string, mode fs.FileMode, content io.Reader) error {
	partial := path + ".partial"
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	// The umask reduced the mode that OpenFile set.
	if err := errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return err
	}
	return os.Rename(partial, path)
}
