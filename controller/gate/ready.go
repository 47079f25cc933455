package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Readiness answers the kubelet's readiness probes of held containers.
//
// While the pod is held it answers at the end of a long wait. The kubelet therefore has an open request when the pod is
// released, and learns within milliseconds that the application is ready. With a probe of its own the kubelet would
// ask once at the signal, too early, and again only after a whole period.
type Readiness struct {
	sidecar *Sidecar
	checker *checker
	probes  map[string]*signal.Probe
	// polling has an element for each container that a request polls at the moment.
	polling map[string]chan struct{}
	// ready has the containers that were ready once since the release.
	ready sync.Map
	// said has the last state of each container in the log.
	said sync.Map
}

// NewReadiness returns the Readiness for the probes in the environment of the sidecar. It leaves out and logs probes
// that cannot be decoded.
func NewReadiness(s *Sidecar, podIP string, environ []string) *Readiness {
	r := &Readiness{sidecar: s, checker: newChecker(podIP), probes: map[string]*signal.Probe{}, polling: map[string]chan struct{}{}}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		container, ok := strings.CutPrefix(name, signal.ProbeEnvPrefix)
		if !ok {
			continue
		}
		p, err := signal.ParseProbe(value)
		if err != nil {
			s.Log.Error("The readiness probe of a container is invalid, and the container never becomes ready", "container", container, "variable", name, "error", err)
			continue
		}
		r.probes[container], r.polling[container] = p, make(chan struct{}, 1)
	}
	return r
}

var (
	// errHeld is the answer for a container of a held pod.
	errHeld = errors.New("held: the main process is not started")
	// errPolled is the answer to a request that waited for the result of another request.
	errPolled = errors.New("the container is not ready, as another request found")
)

// ServeHTTP answers one readiness probe of the kubelet: 200 if the container is ready. Otherwise the status is that of
// the application, if it answered.
func (r *Readiness) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	container := request.PathValue("container")
	p, ok := r.probes[container]
	if !ok {
		http.Error(w, "this sidecar has no readiness probe of the container", http.StatusNotFound)
		return
	}
	if request.ContentLength != 0 { // the server does not notice that such a client is gone
		w.Header().Set("Connection", "close")
		http.Error(w, "a request for readiness has no body", http.StatusBadRequest)
		return
	}
	deadline := time.Now().Add(p.Patience() + p.Timeout() + writeTimeout)
	if err := http.NewResponseController(w).SetWriteDeadline(deadline); err != nil {
		r.sidecar.Log.Warn("A slow answer to a readiness probe will be cut off", "error", err)
	}
	err := r.answer(request.Context(), container, p, request.UserAgent())
	if request.Context().Err() != nil {
		return // the kubelet has given up
	}
	r.log(container, err)
	if err != nil {
		http.Error(w, "not ready: "+seeLog, statusOf(err))
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

func statusOf(err error) int {
	if code, ok := errors.AsType[statusError](err); ok && code >= http.StatusOK && code < 1000 {
		return int(code)
	}
	switch {
	case errors.Is(err, errHeld), errors.Is(err, errPolled):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// answer returns nil if the container is ready. Until the container was ready for the first time since the release, it
// waits for that, for the patience of the probe. Later it checks once, as the kubelet would. After a restart of the
// sidecar, answer also checks only once: the container may have been ready before, and must not fail unnoticed.
func (r *Readiness) answer(ctx context.Context, container string, p *signal.Probe, userAgent string) error {
	waiting, cancel := context.WithTimeout(ctx, p.Patience())
	defer cancel()
	status, err := r.awaitRelease(waiting, container)
	if err != nil {
		return err
	}
	if !status.Released {
		return nil // its clients can connect
	}
	checksOnce := func() bool {
		_, wasReady := r.ready.Load(container)
		return status.Restarted || wasReady
	}
	if !checksOnce() {
		// One request polls for all, because each client could otherwise cause hundreds of checks per second.
		select {
		case r.polling[container] <- struct{}{}:
			defer func() { <-r.polling[container] }()
		case <-waiting.Done():
			return errPolled
		}
	}
	for {
		err := r.checker.check(ctx, p, userAgent)
		if !r.sidecar.Status().Released {
			return errHeld // with hostNetwork, the next pod may have answered
		}
		if err == nil {
			r.ready.Store(container, true)
			return nil
		}
		if r.starts(container, status) {
			return nil // otherwise its clients could not connect any more
		}
		if checksOnce() {
			return err
		}
		select {
		case <-waiting.Done():
			return err
		case <-time.After(checkInterval(time.Since(status.Since))):
		}
	}
}

// starts returns true for a container whose clients can connect, and that may still need time to answer them: it was never ready
// since the release.
func (r *Readiness) starts(container string, status Status) bool {
	_, wasReady := r.ready.Load(container)
	receiving, _ := r.sidecar.receiving(container)
	return !wasReady && !status.Restarted && receiving && time.Since(status.Since) < r.sidecar.Patience
}

// awaitRelease returns the state of the sidecar once the pod is released, or clients of the container can connect. It waits as long
// as ctx allows, except for a container whose queue was closed, which must not stay ready.
func (r *Readiness) awaitRelease(ctx context.Context, container string) (Status, error) {
	for {
		status, changed := r.sidecar.watch()
		receiving, closed := r.sidecar.receiving(container)
		if status.Released || receiving {
			return status, nil
		}
		r.ready.Clear()
		if closed {
			return Status{}, errHeld
		}
		select {
		case <-ctx.Done():
			return Status{}, errHeld
		case <-changed:
		}
	}
}

// log logs why a container is not ready, once for each reason, and when it is ready again. The kubelet's events do not
// have the reason.
func (r *Readiness) log(container string, err error) {
	if errors.Is(err, errHeld) || errors.Is(err, errPolled) {
		return
	}
	state := "ready"
	if err != nil {
		state = err.Error()
	}
	before, _ := r.said.Swap(container, state)
	switch {
	case state == before:
	case err == nil:
		r.sidecar.Log.Info("Container is ready", "container", container)
	default:
		r.sidecar.Log.Warn("Container is not ready", "container", container, "error", err)
	}
}

// lingerShortly limits how long a closed connection of a probe stays in the kernel to one second.
func lingerShortly(_, _ string, conn syscall.RawConn) error {
	var err error
	if controlErr := conn.Control(func(fd uintptr) {
		err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
	}); controlErr != nil {
		return fmt.Errorf("set SO_LINGER: %w", controlErr)
	}
	return err
}
