package gate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// Probe executes a liveness or readiness probe of this container once the main process has started. It returns without an error
// for the liveness of a container before, and for the readiness of one whose clients can connect. Without a command, it does the
// check in signal.LivenessEnv.
func (v Volume) Probe(ctx context.Context, kind string, argv []string) error {
	name, err := gateName()
	switch {
	case err != nil:
		return err
	case name != startedName && (kind == "liveness" || name == queueingName):
		return nil
	case name != startedName:
		return errNotStarted
	case len(argv) == 0:
		return v.checkLiveness(ctx)
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	return startError(argv[0], syscall.Exec(path, argv, os.Environ()))
}

// checkLiveness does the check in the environment, as the kubelet would. It does not need the sidecar, whose port other pods can
// block.
func (v Volume) checkLiveness(ctx context.Context) error {
	p, err := signal.ParseProbe(os.Getenv(signal.LivenessEnv))
	if err != nil {
		return fmt.Errorf("%s: %w. Delete the pod: the policy of the StatefulSingleton sets the variable in the next pod", signal.LivenessEnv, err)
	}
	podIP, err := os.ReadFile(v.podIPFile())
	if err != nil {
		return fmt.Errorf("read the address of the pod: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout())
	defer cancel()
	return newChecker(strings.TrimSpace(string(podIP))).check(ctx, p, "kube-probe/gate")
}

// podIPFile is the file with the address of the pod, for probes.
func (v Volume) podIPFile() string { return filepath.Join(string(v), "pod-ip") }
