package policies_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// engine mutates pods with Kyverno's engines.
var engine mutatingEngine

// mutatingEngine is a process of kyverno-mutate, which starts with the first request.
type mutatingEngine struct {
	mu  sync.Mutex
	pid int
	in  *json.Encoder
	out *json.Decoder
}

// mutate returns the pod as JSON after an admission request with the UID.
func (e *mutatingEngine) mutate(policy, pod json.RawMessage, requestUID string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.in == nil {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	request := map[string]any{"policy": policy, "uid": requestUID}
	if pod != nil {
		request["pod"] = pod
	}
	if err := e.in.Encode(request); err != nil {
		return nil, err
	}
	var result struct {
		Pod   json.RawMessage
		Error string
	}
	if err := e.out.Decode(&result); err != nil {
		return nil, err
	}
	if result.Error != "" {
		return nil, errors.New(result.Error)
	}
	return result.Pod, nil
}

// validate returns the error of Kyverno's webhook for policies.
func (e *mutatingEngine) validate(policy json.RawMessage) error {
	_, err := e.mutate(policy, nil, "")
	return err
}

func (e *mutatingEngine) start() error {
	program, err := exec.LookPath("kyverno-mutate")
	if err != nil {
		return fmt.Errorf("kyverno-mutate of chainsaw-tests/tools/kyverno must be on PATH (`make test` sees to that): %w", err)
	}
	c := exec.Command(program) // it ends with the test, because its input ends
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	var out io.Reader
	if out, err = c.StdoutPipe(); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	e.pid, e.in, e.out = c.Process.Pid, json.NewEncoder(in), json.NewDecoder(out)
	return nil
}
