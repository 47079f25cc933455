//go:build cluster

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// A force delete also ends the grace period, and with it the slow stop. The object stays until the kubelet has killed
// the process. The pod is Ready only when the application is, and a waiting process obeys SIGTERM at once.
func TestForceDelete(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "20", "START_SECONDS": "3"}})
	old := holder(t, s)
	deletePod(t, old, force)
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
	starts, err := s.Starts()
	must(t, err)
	got, err := s.Read(t.Context())
	must(t, err)
	if ready := got.Status.LastTransition.Ready; ready.Sub(starts[1].Time) < 3*time.Second {
		t.Errorf("it was called Ready at %s, and takes 3 s from its start at %s", ready, starts[1].Time)
	}
}

// A graceful deletion of an application that stops slowly, and then a force deletion of the same pod while it stops.
func TestForceDeleteWhileItStops(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Barrier: true, Env: map[string]string{"STOP_SECONDS": "30"}})
	old := holder(t, s)
	deletePod(t, old, nil)
	standby(t, s)
	wantNobodyElse(t, 3*time.Second, old, s) // it takes 30 s to stop
	deletePod(t, old, force)
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
}

// A standby that is deleted while it waits terminates at once, and does not use its grace period of a minute.
func TestStandbyObeysSIGTERM(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "20"}})
	deletePod(t, holder(t, s), nil)
	held := standby(t, s)
	deletePod(t, held, nil)
	before := time.Now()
	podGone(t, held)
	if took := time.Since(before); took > 15*time.Second {
		t.Errorf("a waiting pod took %s to end", took)
	}
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
}

// A holder that crashes repeatedly stays the holder even if a standby is warm, because the kubelet starts its container
// again. A rollout replaces the holder.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"CRASH_SECONDS": "3"}})
	old := holder(t, s)
	// The second pod has the same revision. It is a standby, and nothing causes a handoff.
	must(t, s.Scale(t.Context(), 2))
	standby(t, s)
	must(t, world.Await(t.Context(), "CrashLoopBackOff", func(ctx context.Context) error {
		pod, err := s.Holder(ctx)
		if err != nil {
			return err
		}
		if state := pod.Status.ContainerStatuses[0].State; state.Waiting == nil || state.Waiting.Reason != "CrashLoopBackOff" {
			return fmt.Errorf("it is %+v", state)
		}
		return nil
	}))
	wantStays(t, old, s)
	deletePod(t, old, nil)
	must(t, s.Await(t.Context(), "the next holder", func(got *v1.StatefulSingleton) bool { return got.Status.Epoch == 2 }))
	wantProof(t, s, v1.ProofKubeletReported)
	podGone(t, old)
}

// The kernel kills the application because of its memory limit, which also counts the gate of a fenced pod. The pod starts
// the application again and stays the holder. A rollout in the meantime hands over.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]world.Options{"Kubelet": {Env: map[string]string{}}, "Lease": fenced()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Memory, o.Env["MEMORY_SECONDS"] = "64Mi", "2"
			s := singleton(t, o)
			old := holder(t, s)
			must(t, world.Await(t.Context(), "an out-of-memory kill", func(ctx context.Context) error {
				pod := &corev1.Pod{}
				if err := w.Get(ctx, client.ObjectKeyFromObject(old), pod); err != nil {
					return err
				}
				status := pod.Status.ContainerStatuses[0]
				if last := status.LastTerminationState.Terminated; status.RestartCount == 0 || last == nil || last.Reason != "OOMKilled" {
					return fmt.Errorf("restarted %d times, ended %+v", status.RestartCount, last)
				}
				return nil
			}))
			if got := holder(t, s); got.UID != old.UID {
				t.Errorf("pod %s holds, want %s still", got.Name, old.Name)
			}
			must(t, s.SetEnv(t.Context(), "MEMORY_SECONDS", "0"))
			must(t, s.AwaitHolder(t.Context(), 2))
			if o.LeaseDuration == nil { // otherwise the kubelet's report or the release of the Lease can come first
				wantProof(t, s, v1.ProofKubeletReported)
			}
		})
	}
}

// The disk of the signal volume is full when the signal comes. The sidecar cannot write the signal file and reports
// that, and nothing starts. It continues after space is freed.
func TestSignalVolumeFull(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "10"}})
	old := holder(t, s)
	deletePod(t, old, nil)
	held := standby(t, s)
	makeRoom := fillDisk(t, held)
	must(t, s.Await(t.Context(), held.Name+" is signalled", func(got *v1.StatefulSingleton) bool {
		return got.Status.ActivePod == held.Name && reason(got) == "Starting"
	}))
	must(t, world.Await(t.Context(), "the sidecar's complaint", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "kubectl", "logs", "-n", held.Namespace, held.Name, "-c", v1.SidecarName).Output()
		if err == nil && !strings.Contains(string(out), "no space left on device") {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	}))
	wantNobodyElse(t, 2*time.Second, old, s) // the sidecar tries every second
	makeRoom()
	wantHandedOver(t, s, 2, v1.CauseDeletion, v1.ProofKubeletReported)
}

// fillDisk mounts a full disk over the signal volume of the pod, as the sidecar sees it, until makeRoom is called.
func fillDisk(t *testing.T, pod *corev1.Pod) (makeRoom func()) {
	t.Helper()
	sidecar, err := world.Process(pod, "/ko-app/gate", "sidecar")
	must(t, err)
	must(t, insideMounts(sidecar, func() error {
		if err := unix.Mount("tmpfs", signal.Dir, "tmpfs", 0, "size=4k,mode=777"); err != nil {
			return fmt.Errorf("mount a small disk: %w", err)
		}
		return os.WriteFile(signal.Dir+"/ballast", make([]byte, 4096), 0o644)
	}))
	return func() {
		must(t, insideMounts(sidecar, func() error { return unix.Unmount(signal.Dir, unix.MNT_DETACH) }))
	}
}

// insideMounts runs a function in the mount namespace of a process.
func insideMounts(pid int, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		done <- func() error {
			mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return err
			}
			defer func() { _ = mounts.Close() }()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leave the other threads' directories: %w", err)
			}
			if err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the mounts of process %d: %w", pid, err)
			}
			return do()
		}()
	}()
	return <-done
}

// The signal volumes of a standby and of the holder, which no longer needs its own, exceed their limits. The kubelet
// evicts each pod when it notices. The next pod takes over.
func TestSignalVolumeOverItsLimit(t *testing.T) {
	t.Parallel()
	s := singleton(t, world.Options{Env: map[string]string{"STOP_SECONDS": "15"}})
	old := holder(t, s)
	deletePod(t, old, nil)
	overfill(t, standby(t, s))
	wantNobodyElse(t, time.Second, old, s) // it takes 15 s to stop
	must(t, s.AwaitHolder(t.Context(), 2))
	next := holder(t, s)
	overfill(t, next)
	must(t, world.Await(t.Context(), "the eviction of "+next.Name, func(ctx context.Context) error {
		got, err := s.Read(ctx)
		if err == nil && got.Status.ActivePodUID == next.UID {
			err = errors.New("it holds: " + got.Status.Message)
		}
		return err
	}))
	must(t, s.AwaitHolder(t.Context(), 3))
	wantProof(t, s, v1.ProofKubeletReported)
}

// overfill fills the signal volume of the pod beyond its limit of 32 MiB, on the disk of its node.
func overfill(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	state := filepath.Dir(os.Getenv("KUBECONFIG"))
	volume := filepath.Join(state, "machines", pod.Spec.NodeName, "lib/kubelet/pods", string(pod.UID), "volumes/kubernetes.io~empty-dir/statefulsingleton-signal")
	if _, err := os.Stat(volume); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(filepath.Join(volume, "ballast"), make([]byte, 48<<20), 0o644))
}
