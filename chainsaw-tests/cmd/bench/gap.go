package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/journal"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/prober"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

const (
	initTime = 5 * time.Second
	stopTime = 3 * time.Second
	// imageSize is the size of the pulled image in bytes, and pullRate the rate of the registry in bytes per second.
	imageSize = 300_000_000
	pullRate  = 30_000_000
	// manual is the cause that requests a handoff to a pod that is warm.
	manual = "manual"
	// leaseSeconds is the duration of the Leases of fenced systems.
	leaseSeconds = 15
)

// gap measures handoffs of a StatefulSingleton beside Kubernetes' own workloads.
var gap = subject{
	name:       "gap",
	systems:    []string{"wrapper", "barrier", "recreate", "statefulset", "rollingupdate", "wrapper-spare", "wrapper-lease", "wrapper-lease-spare"},
	causes:     []string{"rollout", "delete", "drain", nodeLost},
	conditions: []string{"cached", "pull", "init", "slow-stop"},
	measures:   measuresGap,
	metrics:    []string{"gap", "downtime", "downtime by EndpointSlices", "Ready"},
	drawn:      "downtime",
	rounds:     15,
	begin:      beginGap,
	guarded:    guarded,
}

// guarded returns true for the systems with a StatefulSingleton.
func guarded(system string) bool { return !gapOptions(workload{System: system}).Plain }

// measuresGap returns false if another combination tells the same.
func measuresGap(c combination) bool {
	lease, spare := strings.Contains(c.System, "-lease"), strings.HasSuffix(c.System, "-spare")
	switch {
	case c.Cause == nodeLost: // without a Lease, nothing takes over from a lost node
		return lease && c.Condition == "cached"
	case c.Condition != "cached": // a drain is then like a rollout or, with Kubernetes' own, like a deletion
		slow := spare && !lease && c.Cause == "delete" && c.Condition != "pull" // a warm spare has the image
		return c.Cause != "drain" && (slow || slices.Contains([]string{"wrapper", "recreate", "statefulset"}, c.System))
	case c.System == "rollingupdate": // the strategy only affects rollouts
		return c.Cause == "rollout"
	}
	return !spare || c.Cause != "rollout" // a rollout does not use the spare
}

func gapOptions(w workload) world.Options {
	o := world.Options{Env: map[string]string{"STOP_SECONDS": "0", "ALIVE_SECONDS": ""}}
	switch w.System {
	case "barrier":
		o.Barrier = true
	case "recreate":
		o.Plain, o.Recreate = true, true
	case "statefulset":
		o.Plain, o.StatefulSet = true, true
	case "rollingupdate":
		o.Plain = true
	}
	if strings.HasSuffix(w.System, "-spare") {
		o.Replicas = 2
	}
	o.Queue = strings.Contains(w.System, "-queue")
	if o.Queue || strings.Contains(w.System, "-lease") {
		// The application writes often into its journal, because it cannot record its exit on a lost node.
		o.LeaseDuration, o.Env["ALIVE_SECONDS"] = new(int32(leaseSeconds)), "0.05"
	}
	switch w.Condition {
	case "pull":
		o.Image = pulledImage
	case "init":
		o.InitTime = initTime
	case "slow-stop":
		o.Env["STOP_SECONDS"] = fmt.Sprint(stopTime.Seconds())
	}
	return o
}

// gapSeries is a series of handoffs of an application with a Service.
type gapSeries struct {
	*world.Singleton
	lab      *lab
	options  world.Options
	pull     bool
	url      string
	stop     context.CancelFunc
	observer *observer.Observer
	// active is the pod that runs.
	active *corev1.Pod
}

func beginGap(ctx context.Context, l *lab, w workload) (series, error) {
	t, err := newGapSeries(ctx, l, w)
	if t == nil {
		return nil, err
	}
	return t, err
}

// newGapSeries may return a series together with an error, to end it.
func newGapSeries(ctx context.Context, l *lab, w workload) (*gapSeries, error) {
	t := &gapSeries{lab: l, options: gapOptions(w), pull: w.Condition == "pull"}
	var err error
	if t.pull && l.registry == nil {
		if l.registry, err = serveImage(ctx); err != nil {
			return nil, err
		}
	}
	if t.pull {
		l.registry.limit(0)
	}
	if err := l.steer(ctx, ""); err != nil {
		return nil, err
	}
	t.Singleton, err = l.NewSingleton(ctx, "bench", t.options)
	if t.Singleton == nil {
		return nil, err
	}
	watches, stop := context.WithCancel(ctx)
	t.stop = stop
	var address string
	if err == nil {
		address, err = t.Expose(ctx, 8080)
	}
	if err == nil {
		t.url = "http://" + address
		t.observer, err = observer.Start(watches, l.World, cache.Options{DefaultNamespaces: map[string]cache.Config{t.Namespace: {}}})
	}
	if err == nil {
		t.active, err = t.awaitActive(ctx, "")
	}
	return t, err
}

func (t *gapSeries) end(ctx context.Context) error {
	t.stop()
	return t.lab.remove(ctx, t.Singleton)
}

// key names the application for the observer.
func (t *gapSeries) key() types.NamespacedName {
	key := t.Key()
	if t.options.Plain {
		key.Name = ""
	}
	return key
}

// awaitActive waits until another pod than the old one is active, and no handoff is in progress.
func (t *gapSeries) awaitActive(ctx context.Context, old types.UID) (*corev1.Pod, error) {
	return t.another(ctx, old, func(key types.NamespacedName) (*corev1.Pod, error) {
		return t.observer.Settled(key, max(int(t.options.Replicas), 1))
	})
}

// another waits until the observer finds another active pod than the old one.
func (t *gapSeries) another(ctx context.Context, old types.UID, find func(types.NamespacedName) (*corev1.Pod, error)) (active *corev1.Pod, err error) {
	err = world.AwaitFor(ctx, patience, "another Ready pod", func(context.Context) error {
		active, err = find(t.key())
		if err == nil && active.UID == old {
			err = fmt.Errorf("pod %s is still active", active.Name)
		}
		return err
	})
	return active, err
}

// once measures one handoff.
func (t *gapSeries) once(ctx context.Context, cause string) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.prepare(ctx, cause); err != nil {
		return sample{}, err
	}
	pods, err := followEndpoints(ctx, &t.Application)
	if err != nil {
		return sample{}, err
	}
	service := probe(ctx, http.MethodGet, func() string { return t.url })
	direct := probe(ctx, http.MethodGet, pods.address)
	pulled := t.pulled()
	s, err := t.handOff(ctx, cause, service, direct)
	if err != nil {
		return sample{}, err
	}
	cancel()
	if t.pull && t.pulled()-pulled < imageSize {
		return sample{}, fmt.Errorf("only %d bytes of the image were pulled: %s had some of it", t.pulled()-pulled, t.active.Spec.NodeName)
	}
	s.ms["downtime"], s.ms["downtime by EndpointSlices"] = service.Downtime().Milliseconds(), direct.Downtime().Milliseconds()
	return s, nil
}

// handOff causes a handoff, which prepare has prepared, while the clients send requests. It returns when the new pod has answered
// each of them, and measures the gap and the time until the new pod is Ready.
func (t *gapSeries) handOff(ctx context.Context, cause string, clients ...*prober.Prober) (_ sample, err error) {
	defer func() { err = errors.Join(err, t.restore(context.WithoutCancel(ctx), cause)) }()
	before, err := t.overlaps()
	if err != nil {
		return sample{}, err
	}
	if err := answered(ctx, clients...); err != nil {
		return sample{}, err
	}
	old, begun := t.active, journal.Now()
	if err := t.cause(ctx, cause, clients...); err != nil {
		return sample{}, fmt.Errorf("begin it: %w", err)
	}
	if t.active, err = t.awaitActive(ctx, old.UID); err != nil {
		return sample{}, err
	}
	if err := answered(ctx, clients...); err != nil {
		return sample{}, err
	}
	after, err := t.overlaps()
	if err != nil {
		return sample{}, err
	}
	entries, err := t.Journal()
	if err != nil {
		return sample{}, err
	}
	exit, start, err := processes(entries, begun, cause == nodeLost)
	return sample{overlaps: after - before, ms: map[string]int64{
		"gap": (start - exit).Milliseconds(), "Ready": (t.observer.LifeOf(t.active.UID).Ready - begun).Milliseconds(),
	}}, err
}

func (t *gapSeries) pulled() int64 {
	if !t.pull {
		return 0
	}
	return t.lab.registry.bytes.Load()
}

// prepare makes the next pod start on the other node, without the image if it must be pulled.
func (t *gapSeries) prepare(ctx context.Context, cause string) error {
	if cause == nodeLost {
		if err := t.prepareLoss(ctx, t.lab.names[1]); err != nil {
			return err
		}
	}
	to := t.lab.other(t.active.Spec.NodeName)
	if err := t.lab.steer(ctx, to); err != nil {
		return err
	}
	switch {
	case cause == manual:
		return t.prepareManual(ctx)
	case !t.pull:
		return nil
	}
	t.lab.registry.limit(pullRate)
	return t.lab.Cluster(ctx, "unload", pulledImage, "--on", to)
}

// prepareManual makes the next pod wait for a request.
func (t *gapSeries) prepareManual(ctx context.Context) error {
	if err := t.SetHandoff(ctx, v1.HandoffManual); err != nil {
		return err
	}
	if err := t.Roll(ctx); err != nil {
		return err
	}
	return t.Await(ctx, "a warm pod waits for a request", func(got *v1.StatefulSingleton) bool {
		ready := meta.FindStatusCondition(got.Status.Conditions, v1.ConditionReady)
		return ready != nil && ready.Reason == string(handoff.AwaitingHandover)
	})
}

// restore undoes what the cause of a handoff has changed.
func (t *gapSeries) restore(ctx context.Context, cause string) error {
	if cause == manual {
		return t.SetHandoff(ctx, v1.HandoffAutomatic)
	}
	return t.lab.uncordon(ctx)
}

func (t *gapSeries) cause(ctx context.Context, cause string, clients ...*prober.Prober) error {
	switch cause {
	case "rollout":
		return t.Roll(ctx)
	case "delete":
		return t.DeletePod(ctx, t.active, nil)
	case "drain":
		return t.drain(ctx)
	case manual:
		return t.HandOver(ctx)
	}
	return t.loseNode(ctx, clients)
}

// overlaps returns how often a process of the application started while another process ran.
func (t *gapSeries) overlaps() (int, error) {
	s, err := t.Check()
	if s.Overlaps > 0 {
		err = nil // overlaps are counted, and are no error here
	}
	return s.Overlaps, err
}

// drain does what kubectl drain does, for the application's pod only.
func (t *gapSeries) drain(ctx context.Context) error {
	const again = 5 * time.Second // as kubectl drain does
	if err := t.lab.cordon(ctx, t.active.Spec.NodeName); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, again, patience, true, func(ctx context.Context) (bool, error) {
		err := t.EvictPod(ctx, t.active)
		if apierrors.IsTooManyRequests(err) && t.observer.LifeOf(t.active.UID).Gone == 0 {
			return false, nil
		}
		return true, err
	})
	if err == nil || apierrors.IsConflict(err) || t.observer.LifeOf(t.active.UID).Gone > 0 {
		return nil
	}
	return fmt.Errorf("evict pod %s: %w", t.active.Name, err)
}

// prepareLoss makes the active pod run on the node, and the leader of the controller and the spare elsewhere.
func (t *gapSeries) prepareLoss(ctx context.Context, node string) error {
	if err := t.LeadElsewhere(ctx, node); err != nil {
		return err
	}
	if t.active.Spec.NodeName != node {
		if err := t.placeSpare(ctx, node); err != nil { // the spare takes over
			return err
		}
		if err := t.lab.steer(ctx, node); err != nil {
			return err
		}
		old := t.active
		if err := t.DeletePod(ctx, old, nil); err != nil {
			return err
		}
		var err error
		if t.active, err = t.awaitActive(ctx, old.UID); err == nil && t.active.Spec.NodeName != node {
			err = fmt.Errorf("pod %s is on %s, want %s", t.active.Name, t.active.Spec.NodeName, node)
		}
		if err != nil {
			return err
		}
	}
	return t.placeSpare(ctx, t.lab.other(node))
}

// placeSpare makes the spare run on the node, if the application has a spare.
func (t *gapSeries) placeSpare(ctx context.Context, node string) error {
	if t.options.Replicas < 2 {
		return nil
	}
	if err := t.lab.steer(ctx, node); err != nil {
		return err
	}
	return world.AwaitFor(ctx, patience, "a warm spare on "+node, func(ctx context.Context) error {
		if _, err := t.observer.Settled(t.key(), int(t.options.Replicas)); err != nil {
			return err
		}
		pods, err := t.Pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if pod := &pods[i]; pod.UID != t.active.UID && pod.Spec.NodeName != node {
				return errors.Join(fmt.Errorf("pod %s is on %s", pod.Name, pod.Spec.NodeName), t.DeletePod(ctx, pod, nil))
			}
		}
		return nil
	})
}

// loseNode kills the node of the active pod, and starts it again after another pod is Ready. The old pod is then a standby.
func (t *gapSeries) loseNode(ctx context.Context, clients []*prober.Prober) error {
	if err := t.lab.loseNode(ctx, t.active.Spec.NodeName); err != nil {
		return err
	}
	_, err := t.another(ctx, t.active.UID, t.observer.Holder)
	if err == nil {
		err = answered(ctx, clients...)
	}
	return errors.Join(err, t.lab.healNode(context.WithoutCancel(ctx)))
}

// processes returns, by the journal, when the process that ran when the handoff began ended, and when the next process
// started. A process on a lost node ends with its last entry.
func processes(entries []journal.Entry, begun time.Duration, lost bool) (exit, start time.Duration, err error) {
	var run int64
	starts := 0
	for _, e := range entries {
		switch at := time.Duration(e.Monotonic); {
		case e.Event == "start" && at < begun:
			run = e.Run
		case e.Event == "start":
			start, starts = at, starts+1
		}
	}
	if starts != 1 {
		return 0, 0, fmt.Errorf("the application started %d times", starts)
	}
	for _, e := range entries {
		if e.Run == run && (lost || e.Event == "stop") {
			exit = max(exit, time.Duration(e.Monotonic))
		}
	}
	if exit == 0 {
		err = errors.New("the old application wrote down no end")
	}
	return exit, start, err
}
