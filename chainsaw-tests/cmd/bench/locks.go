package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// locks measures changes of the writer of a StatefulSetLock with three pods. A system is a value of spec.fencing.
var locks = subject{
	name:    "locks",
	systems: []string{"none", "termination", "lease"},
	causes:  []string{"switchover", "killed", "deleted", nodeLost},
	// Without a Lease, the lock waits for the node, or for Kubernetes to declare the node lost.
	measures: func(c combination) bool { return c.Cause != nodeLost || c.System == "lease" },
	metrics:  []string{"write gap", "label gap", "downtime"},
	drawn:    "downtime",
	rounds:   15,
	begin:    beginLock,
	guarded:  func(system string) bool { return system != "none" },
}

// lockSeries is a series of changes of one lock.
type lockSeries struct {
	*world.Lock
	lab *lab
	// url is the address of the Service for the writer.
	url string
	// writer is the current writer. After a change, last is the writer before.
	writer, last *corev1.Pod
}

func beginLock(ctx context.Context, l *lab, w workload) (series, error) {
	fencing := map[string]v1.LockFencing{"none": v1.LockFencingNone, "termination": v1.LockFencingTermination, "lease": v1.LockFencingLease}[w.System]
	lock, err := l.NewLock(ctx, "bench", world.LockOptions{
		Spec:   v1.StatefulSetLockSpec{LeaseDurationSeconds: leaseSeconds, Fencing: fencing},
		Shared: true, Roles: fencing == v1.LockFencingLease,
		Env: map[string]string{"ALIVE_SECONDS": "0.05", "STOP_SECONDS": "0"},
	})
	if lock == nil {
		return nil, err
	}
	t := &lockSeries{Lock: lock, lab: l}
	service := &corev1.Service{}
	if err == nil {
		err = l.Get(ctx, lock.Key(), service)
	}
	if err == nil {
		t.url = "http://" + service.Spec.ClusterIP + ":8080"
		t.writer, err = lock.AwaitWriter(ctx, nil)
	}
	if err == nil {
		err = t.settle(ctx)
	}
	return t, err
}

func (t *lockSeries) end(ctx context.Context) error { return t.lab.remove(ctx, t.Lock) }

// once measures one change of the writer.
func (t *lockSeries) once(ctx context.Context, cause string) (_ sample, err error) {
	defer func() { err = errors.Join(err, t.lab.uncordon(context.WithoutCancel(ctx))) }()
	if cause == nodeLost {
		if err := t.prepareLoss(ctx); err != nil {
			return sample{}, fmt.Errorf("prepare it: %w", err)
		}
	}
	m, err := t.measure(ctx, cause)
	switch cause {
	case "killed":
		err = errors.Join(err, t.replaceKilled(context.WithoutCancel(ctx)))
	case nodeLost:
		err = errors.Join(err, t.lab.healNode(context.WithoutCancel(ctx)))
	}
	if err == nil {
		err = t.lab.uncordon(ctx)
	}
	if err == nil {
		err = t.settle(ctx)
	}
	if err != nil {
		return sample{}, err
	}
	// The journal is complete now: an old writer on a lost node runs again.
	entries, err := t.Journal()
	if err != nil {
		return sample{}, err
	}
	return newChange(m, entries)
}

// measurement is what was observed during a change.
type measurement struct {
	// begun is the time of the cause.
	begun    time.Duration
	downtime time.Duration
	tenures  []world.Tenure
}

// measure causes the change, while a client writes through the Service and a watch records the writers. It waits until the
// next writer has written.
func (t *lockSeries) measure(ctx context.Context, cause string) (measurement, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	service := probe(ctx, http.MethodPost, func() string { return t.url })
	if err := answered(ctx, service); err != nil {
		return measurement{}, err
	}
	writers, err := t.WatchWriters(ctx)
	if err != nil {
		return measurement{}, err
	}
	m := measurement{begun: journal.Now()}
	err = t.cause(ctx, cause)
	if err == nil {
		t.last = t.writer
		t.writer, err = t.AwaitWriter(ctx, t.last)
	}
	if err == nil {
		err = t.written(ctx, m.begun)
	}
	tenures, two := writers.Stop()
	m.tenures, m.downtime = tenures, service.Downtime()
	return m, errors.Join(err, two)
}

func (t *lockSeries) cause(ctx context.Context, cause string) error {
	switch cause {
	case "switchover": // a drain begins
		return t.lab.cordon(ctx, t.writer.Spec.NodeName)
	case "killed":
		pid, err := world.Process(t.writer, "/app")
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	case "deleted":
		return t.DeletePod(ctx, t.writer, nil)
	}
	return t.lab.loseNode(ctx, t.writer.Spec.NodeName)
}

// written waits until the writer has served several writes of the client since the time.
func (t *lockSeries) written(ctx context.Context, since time.Duration) error {
	const enough = 10
	return world.AwaitFor(ctx, patience, "writes of pod "+t.writer.Name, func(context.Context) error {
		entries, err := t.Journal()
		n := 0
		for _, e := range entries {
			if e.Event == "write" && e.Pod == t.writer.Name && time.Duration(e.Monotonic) > since {
				n++
			}
		}
		if err == nil && n < enough {
			err = fmt.Errorf("%d writes by %s", n, t.url)
		}
		return err
	})
}

// newChange computes a sample from the watch, the client and the journal. A writer with a role also records its start, its
// stop, and that it is alive. All entries of a writer count as writes.
func newChange(m measurement, entries []journal.Entry) (sample, error) {
	if len(m.tenures) != 2 || m.tenures[0].Pod == m.tenures[1].Pod || m.tenures[0].Unlabelled.IsZero() {
		return sample{}, fmt.Errorf("the watch showed the writers %v, want the old and the next", m.tenures)
	}
	old, next := m.tenures[0], m.tenures[1]
	var last, first time.Duration
	for _, e := range entries {
		switch at := time.Duration(e.Monotonic); {
		case e.Pod == old.Pod:
			last = max(last, at)
		case at <= m.begun:
		case e.Pod != next.Pod:
			return sample{}, fmt.Errorf("pod %s wrote too, between %s and %s", e.Pod, old.Pod, next.Pod)
		case first == 0 || at < first:
			first = at
		}
	}
	if last == 0 || first == 0 {
		return sample{}, fmt.Errorf("the journal lacks writes of pod %s or %s", old.Pod, next.Pod)
	}
	change := sample{ms: map[string]int64{
		"write gap": (first - last).Milliseconds(), "label gap": next.Seen.Sub(old.Unlabelled).Milliseconds(), "downtime": m.downtime.Milliseconds(),
	}}
	for _, e := range entries {
		at := time.Duration(e.Monotonic)
		if e.Pod == old.Pod && at > first || e.Event == "overlap" && at > m.begun {
			change.overlaps++
		}
	}
	return change, nil
}

// settle waits until all pods are Ready, and both nodes have a pod. Otherwise, no pod could follow a writer whose node is
// drained or lost.
func (t *lockSeries) settle(ctx context.Context) error {
	return world.AwaitFor(ctx, patience, "three Ready pods on both nodes", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := t.List(ctx, &pods, client.InNamespace(t.Namespace)); err != nil {
			return err
		}
		nodes := map[string]bool{}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.DeletionTimestamp != nil || !world.IsTrue(pod, corev1.PodReady) {
				return fmt.Errorf("pod %s is terminating or not Ready", pod.Name)
			}
			nodes[pods.Items[i].Spec.NodeName] = true
		}
		switch {
		case len(pods.Items) != 3:
			return fmt.Errorf("%d pods", len(pods.Items))
		case len(nodes) == 1:
			i := slices.IndexFunc(pods.Items, func(pod corev1.Pod) bool { return pod.UID != t.writer.UID })
			return errors.Join(errors.New("all pods are on one node"), t.DeletePod(ctx, &pods.Items[i], nil))
		}
		return nil
	})
}

// replaceKilled deletes the pod of the killed process, if it still exists. After several crashes, the kubelet would delay the
// start of its container.
func (t *lockSeries) replaceKilled(ctx context.Context) error {
	if t.last == nil || t.last.UID == t.writer.UID {
		return nil // no other pod became the writer
	}
	err := t.DeletePod(ctx, t.last, nil)
	if apierrors.IsConflict(err) {
		return nil // a new pod has the name
	}
	return err
}

// prepareLoss makes the writer run on the second node, and the leader of the controller elsewhere.
func (t *lockSeries) prepareLoss(ctx context.Context) (err error) {
	if t.writer.Spec.NodeName != t.lab.names[1] {
		if err := t.lab.cordon(ctx, t.lab.names[0]); err != nil {
			return err
		}
		if t.writer, err = t.AwaitWriter(ctx, t.writer); err != nil {
			return err
		}
		if err := errors.Join(t.lab.uncordon(ctx), t.settle(ctx)); err != nil {
			return err
		}
	}
	return t.LeadElsewhere(ctx, t.lab.names[1])
}
