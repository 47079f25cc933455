// Package gate is what runs inside a held pod: the wrapper in front of the main
// process, which waits for the signal, and the sidecar, which delivers it.
package gate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Volume is the directory that the sidecar and the held containers share.
type Volume string

func (v Volume) signalFile() string { return filepath.Join(string(v), filepath.Base(signal.File)) }
func (v Volume) gateFile() string   { return filepath.Join(string(v), filepath.Base(signal.GatePath)) }

// Signal reads the signal file. The error is fs.ErrNotExist while the pod is held;
// any other error holds it too.
func (v Volume) Signal() (signal.Signal, error) {
	data, err := os.ReadFile(v.signalFile())
	if err != nil {
		return signal.Signal{}, err
	}
	return signal.Parse(data)
}

// Delivered tells whether the gate's binary is there for the held containers.
func (v Volume) Delivered() bool {
	_, err := os.Stat(v.gateFile())
	return err == nil
}

// deliver copies the program at source into the volume.
func (v Volume) deliver(source string) error {
	in, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("deliver the gate: %w", err)
	}
	defer func() { _ = in.Close() }()
	if err := v.write(v.gateFile(), 0o755, in); err != nil {
		return fmt.Errorf("deliver the gate: %w", err)
	}
	return nil
}

// write puts a file into the volume whole: whoever sees it, sees all of it.
func (v Volume) write(path string, mode fs.FileMode, content io.Reader) error {
	partial, err := os.CreateTemp(string(v), ".partial-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(partial.Name()) }() // gone already once it is renamed
	_, err = io.Copy(partial, content)
	err = errors.Join(err, partial.Chmod(mode), partial.Close())
	if err != nil {
		return err
	}
	return os.Rename(partial.Name(), path)
}
