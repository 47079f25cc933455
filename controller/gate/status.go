package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// description is what `gate status` prints.
type description struct {
	state, containers, waitsFor string
	// epoch is 0 if the pod has none.
	epoch int64
	// problem says why the signal is ignored. Empty: it is not.
	problem string
}

// Describe returns the state of the pod as text for a person. It reads only files of the sidecar, and changes nothing. settings
// is nil if the pod has no fencing.
func (s *Sidecar) Describe(settings *signal.LeaseSettings) (string, error) {
	d, err := s.describeSignal()
	if err == nil && settings != nil {
		err = s.describeFence(&d, settings)
	}
	if err == nil && settings != nil && settings.Lock {
		err = s.describeRole(&d, settings)
	}
	return d.String(), err
}

// describeSignal describes a pod without fencing.
func (s *Sidecar) describeSignal() (d description, err error) {
	annotation, err := s.annotation()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if _, refusal := judge(annotation, s.UID); refusal != nil {
		d.problem = refusal.Error()
	}
	released, err := s.Volume.Signal(s.UID)
	if err != nil {
		d.state, d.containers = "standby", "held containers wait before their main process"
		d.waitsFor = "the start signal of the controller. To see what the controller waits for, run kubectl stfs explain with the name of the StatefulSingleton"
		if !errors.Is(err, fs.ErrNotExist) {
			d.problem = err.Error()
		}
		return d, nil
	}
	d.state, d.epoch, d.containers, d.waitsFor = "active", released.Epoch, "held containers may run their main process", "nothing"
	return d, nil
}

// describeFence describes what the Lease changes in the description of a pod. The epoch is that of the signal.
func (s *Sidecar) describeFence(d *description, settings *signal.LeaseSettings) error {
	f := &fencer{volume: s.Volume, fence: newFence(s.UID, settings.Held, settings.Duration, settings.Lock)}
	if err := f.load(); err != nil {
		return fmt.Errorf("read the state of the held containers: %w", err)
	}
	var states []string
	waits := false
	for _, name := range slices.Sorted(slices.Values(settings.Held)) {
		state := f.fence.Containers[name].State
		states = append(states, name+" "+state.text())
		waits = waits || state == ""
	}
	d.containers = strings.Join(states, ", ")
	switch {
	case f.fence.Retired:
		d.state, d.waitsFor = "retired: this pod starts no main process any more", "the end of the pod"
	case f.fence.wasReleased():
		d.state = "active"
	}
	if waits && !f.fence.Retired {
		d.waitsFor = leaseOf(settings)
	}
	return nil
}

// describeRole describes a pod of a StatefulSetLock, whose main processes run in any case.
func (s *Sidecar) describeRole(d *description, settings *signal.LeaseSettings) error {
	*d = description{state: "starting", waitsFor: "the sidecar to write the role of the pod"}
	data, err := os.ReadFile(s.Volume.roleFile())
	if errors.Is(err, fs.ErrNotExist) {
		d.containers = strings.Join(settings.Held, ", ") + " held"
		return nil
	}
	var is roleFile
	if err == nil {
		err = json.Unmarshal(data, &is)
	}
	if err != nil {
		return fmt.Errorf("read the role of the pod: %w", err)
	}
	d.state, d.epoch, d.waitsFor = is.Role, is.Epoch, "nothing"
	if is.Role == signal.ReaderRole {
		d.waitsFor = leaseOf(settings) + ", to become the writer"
	}
	d.containers = fmt.Sprintf("%s may run their main process as the %s", strings.Join(settings.Held, ", "), is.Role)
	return nil
}

// leaseOf says that the pod waits for its Lease.
func leaseOf(settings *signal.LeaseSettings) string {
	return fmt.Sprintf("Lease %s/%s to name this pod. To see which pod it names, run: kubectl get lease -n %[1]s %[2]s", settings.Namespace, settings.Lease)
}

// text says what a held container does.
func (r runState) text() string {
	switch r {
	case mayRun:
		return "may run its main process"
	case ended:
		return "has ended"
	case unknown:
		return "may run its main process (its gate lost the connection to the sidecar)"
	}
	return "waits before its main process"
}

// String returns one line for each field.
func (d description) String() string {
	epoch := "none"
	if d.epoch > 0 {
		epoch = fmt.Sprint(d.epoch)
	}
	text := fmt.Sprintf("State:      %s\nEpoch:      %s\nContainers: %s\nWaits for:  %s\n", d.state, epoch, d.containers, d.waitsFor)
	if d.problem != "" {
		text += "Problem:    " + d.problem + "\n"
	}
	return text
}
