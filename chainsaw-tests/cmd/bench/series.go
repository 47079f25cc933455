package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/observer"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// application is a workload with its Service, which exists during the whole run. It has pods only during its series.
type application struct {
	*world.Singleton
	options   world.Options
	condition condition
	url       string
}

// newApplication creates an application with a pod. The caller must remove a returned application, also after an error.
func (r *run) newApplication(ctx context.Context, w workload) (*application, error) {
	o := r.plan.options(w)
	s, err := r.NewSingleton(ctx, "bench", o)
	if s == nil {
		return nil, err
	}
	app := &application{Singleton: s, options: o, condition: find(r.plan.conditions, w.condition)}
	if err != nil {
		return app, err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "db"},
		Spec:       corev1.ServiceSpec{Selector: world.Labels(), Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
	if err := r.Create(ctx, service); err != nil {
		return app, fmt.Errorf("make the Service of %s: %w", s.Namespace, err)
	}
	app.url = "http://" + service.Spec.ClusterIP
	return app, nil
}

// series is a series of handoffs of an application.
type series struct {
	*application
	of  workload
	run *run
	// ctx is the context of the watches. cancel ends it.
	ctx      context.Context
	cancel   context.CancelFunc
	observer *observer.Observer
	holder   *corev1.Pod
}

// handoff is the current handoff.
type handoff struct {
	old *corev1.Pod
	// begun is the time of the cause.
	begun time.Duration
	// service is a client of the Service. direct is a client of the Ready pod in the EndpointSlices.
	service, direct *prober
}

// begin waits until the application's pod is Ready and the Service has it as an endpoint.
func (r *run) begin(ctx context.Context, w workload) (*series, error) {
	if err := r.nodes.steer(ctx, r.nodes.home); err != nil {
		return nil, err
	}
	r.registry.limit(0)
	var err error
	app := r.applications[w]
	if app == nil {
		if app, err = r.newApplication(ctx, w); app != nil {
			r.applications[w] = app
		}
	} else {
		err = app.Scale(ctx, max(app.options.Replicas, 1))
	}
	if err != nil {
		return nil, err
	}
	t := &series{application: app, of: w, run: r}
	t.ctx, t.cancel = context.WithCancel(ctx)
	if t.observer, err = observer.Start(t.ctx, r.World, cache.Options{DefaultNamespaces: map[string]cache.Config{app.Namespace: {}}}); err == nil {
		t.holder, err = t.awaitHolder(t.ctx, "")
	}
	if err != nil {
		t.cancel()
		return nil, err
	}
	r.nodes.home = t.holder.Spec.NodeName
	return t, nil
}

// key names the application for the observer.
func (a *application) key() types.NamespacedName {
	key := a.Key()
	if a.options.Plain {
		key.Name = ""
	}
	return key
}

// awaitHolder waits until another pod than the old one holds, and no handoff is in progress.
func (t *series) awaitHolder(ctx context.Context, old types.UID) (holder *corev1.Pod, err error) {
	err = world.AwaitFor(ctx, patience, "another Ready holder", func(context.Context) error {
		holder, err = t.observer.Settled(t.key(), max(int(t.options.Replicas), 1))
		if err == nil && holder.UID == old {
			err = fmt.Errorf("pod %s still holds", holder.Name)
		}
		return err
	})
	return holder, err
}

// patience is the longest time that a step may take. The longest step is the pull of an image on each node.
const patience = 2 * time.Minute

// end waits until the application, which was scaled to zero, has no pods.
func (t *series) end() error {
	defer t.cancel()
	return world.AwaitFor(t.ctx, patience, "its pod is removed", func(context.Context) error { return t.observer.Empty(t.key()) })
}

// once measures one handoff.
func (t *series) once(c cause) (_ figures.Sample, err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	defer func() { err = errors.Join(err, t.run.nodes.uncordon(context.WithoutCancel(ctx))) }()
	if err := t.prepare(c); err != nil {
		return figures.Sample{}, err
	}
	before, err := t.overlaps()
	if err != nil {
		return figures.Sample{}, err
	}
	pods, err := followEndpoints(ctx, t.application)
	if err != nil {
		return figures.Sample{}, err
	}
	h := &handoff{
		old:     t.holder,
		service: probe(ctx, http.MethodGet, func() string { return t.url }),
		direct:  probe(ctx, http.MethodGet, pods.address),
	}
	if err := answered(ctx, h.service, h.direct); err != nil {
		return figures.Sample{}, err
	}
	pulled := t.run.registry.served()
	h.begun = observer.Now()
	if err := c.begin(t, h); err != nil {
		return figures.Sample{}, fmt.Errorf("begin it: %w", err)
	}
	holder, err := t.awaitHolder(ctx, h.old.UID)
	if err != nil {
		return figures.Sample{}, err
	}
	t.holder, t.run.nodes.home = holder, holder.Spec.NodeName
	if err := answered(ctx, h.service, h.direct); err != nil {
		return figures.Sample{}, err
	}
	cancel()
	if pulled := t.run.registry.served() - pulled; t.condition.pull && pulled < imageSize {
		return figures.Sample{}, fmt.Errorf("only %d bytes of the image were pulled: %s had some of it", pulled, holder.Spec.NodeName)
	}
	after, err := t.overlaps()
	if err != nil {
		return figures.Sample{}, err
	}
	return t.sample(h, c.Name == nodeLost, after-before)
}

// prepare makes the next pod start on the other node, without the image if it must be pulled. The clients reach the
// Service through the first node, so only the second node can be lost.
func (t *series) prepare(c cause) error {
	if c.Name == nodeLost {
		if err := t.prepareLoss(t.run.nodes.names[1]); err != nil {
			return err
		}
	}
	to := t.run.nodes.other(t.holder.Spec.NodeName)
	if err := t.run.nodes.steer(t.ctx, to); err != nil {
		return err
	}
	if !t.condition.pull {
		return nil
	}
	t.run.registry.limit(pullRate)
	return t.run.Cluster(t.ctx, "unload", pulledImage, "--on", to)
}

// overlaps returns how often a process of the application started while another process ran.
func (t *series) overlaps() (int, error) {
	s, err := t.Check(t.ctx)
	if s.Overlaps > 0 {
		err = nil // overlaps are counted, and are no error here
	}
	return s.Overlaps, err
}

// drain does what kubectl drain does, for the application's pod only.
func (t *series) drain(h *handoff) error {
	const again = 5 * time.Second // as kubectl drain does
	node := h.old.Spec.NodeName
	if err := t.run.nodes.cordon(t.ctx, node); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		err := t.EvictPod(t.ctx, h.old)
		_, gone := t.observer.LifeOf(h.old.UID)[figures.Gone]
		if err == nil || apierrors.IsConflict(err) || gone {
			return nil
		}
		if !apierrors.IsTooManyRequests(err) || time.Now().After(deadline) {
			return fmt.Errorf("evict pod %s: %w", h.old.Name, err)
		}
		select {
		case <-t.ctx.Done():
			return t.ctx.Err()
		case <-time.After(again):
		}
	}
}

// prepareLoss makes the holder run on the node, and the leader of the controller and the spare elsewhere.
func (t *series) prepareLoss(node string) error {
	if err := t.run.LeadElsewhere(t.ctx, node); err != nil {
		return err
	}
	if t.holder.Spec.NodeName != node {
		if err := t.placeSpare(node); err != nil { // the spare takes over
			return err
		}
		if err := t.replaceHolder(node); err != nil {
			return err
		}
	}
	return t.placeSpare(t.run.nodes.other(node))
}

// replaceHolder deletes the holder. The next holder must run on the node.
func (t *series) replaceHolder(node string) error {
	if err := t.run.nodes.steer(t.ctx, node); err != nil {
		return err
	}
	old := t.holder
	if err := t.DeletePod(t.ctx, old, nil); err != nil {
		return err
	}
	var err error
	if t.holder, err = t.awaitHolder(t.ctx, old.UID); err == nil && t.holder.Spec.NodeName != node {
		err = fmt.Errorf("pod %s is on %s, want %s", t.holder.Name, t.holder.Spec.NodeName, node)
	}
	return err
}

// placeSpare makes the spare run on the node, if the application has a spare.
func (t *series) placeSpare(node string) error {
	if t.options.Replicas < 2 {
		return nil
	}
	if err := t.run.nodes.steer(t.ctx, node); err != nil {
		return err
	}
	return world.AwaitFor(t.ctx, patience, "a warm spare on "+node, func(ctx context.Context) error {
		if _, err := t.observer.Settled(t.key(), int(t.options.Replicas)); err != nil {
			return err
		}
		pods, err := t.Pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if pod := &pods[i]; pod.UID != t.holder.UID && pod.Spec.NodeName != node {
				return errors.Join(fmt.Errorf("pod %s is on %s", pod.Name, pod.Spec.NodeName), t.DeletePod(ctx, pod, nil))
			}
		}
		return nil
	})
}

// loseNode kills the node of the old pod, and starts it again after another pod is Ready. The old pod is then a standby.
func (t *series) loseNode(h *handoff) error {
	if err := t.run.Cluster(t.ctx, "node", "kill", h.old.Spec.NodeName); err != nil {
		return err
	}
	err := world.AwaitFor(t.ctx, patience, "a Ready holder on the other node", func(context.Context) error {
		holder, err := t.observer.Holder(t.key())
		if err == nil && holder.UID == h.old.UID {
			err = fmt.Errorf("pod %s still holds", holder.Name)
		}
		return err
	})
	if err == nil {
		err = answered(t.ctx, h.service, h.direct)
	}
	return errors.Join(err, t.run.Cluster(context.WithoutCancel(t.ctx), "up"), t.run.AwaitWhole(t.ctx))
}

// sample combines the watches, the journal and the client into a sample.
func (t *series) sample(h *handoff, lost bool, overlaps int) (figures.Sample, error) {
	old, next := t.observer.LifeOf(h.old.UID), t.observer.LifeOf(t.holder.UID)
	entries, err := t.Journal()
	if err == nil {
		err = addJournal(entries, h.begun, lost, old, next)
	}
	if err != nil {
		return figures.Sample{}, err
	}
	return newSample(h, old, next, overlaps), nil
}

// addJournal adds the journal entries of two processes to the events of their pods: the process that ran when the
// handoff began, and the process that started later. A process on a lost node ends with its last entry.
func addJournal(entries []world.Entry, begun time.Duration, lost bool, old, next observer.Life) error {
	var oldRun int64
	var starts []world.Entry
	for _, e := range entries {
		switch {
		case e.Event == "start" && time.Duration(e.Monotonic) < begun:
			oldRun = e.Run
		case e.Event == "start":
			starts = append(starts, e)
		}
	}
	if len(starts) != 1 {
		return fmt.Errorf("the application started %d times", len(starts))
	}
	next.Saw(figures.Start, true, time.Duration(starts[0].Monotonic))
	last := time.Duration(0)
	for _, e := range entries {
		if e.Run == oldRun {
			last = max(last, time.Duration(e.Monotonic))
		}
		old.Saw(figures.Stopping, e.Run == oldRun && e.Event == "stopping", time.Duration(e.Monotonic))
		old.Saw(figures.Exit, e.Run == oldRun && e.Event == "stop", time.Duration(e.Monotonic))
	}
	switch {
	case old[figures.Exit] > 0:
	case !lost:
		return errors.New("the old application wrote down no end")
	default:
		old.Saw(figures.Exit, true, last)
	}
	return nil
}

// nodes are the two nodes between which the pods move.
type nodes struct {
	*world.World
	names [2]string
	// home is the node on which the last pod was Ready. It has pulled the image.
	home string
	// cordoned is the drained node, or "".
	cordoned string
}

func (n *nodes) other(name string) string {
	if name == n.names[0] {
		return n.names[1]
	}
	return n.names[0]
}

// cordon begins a drain of the node.
func (n *nodes) cordon(ctx context.Context, name string) error {
	n.cordoned = name
	return n.Cordon(ctx, name, true)
}

// uncordon ends the drain, if there was one.
func (n *nodes) uncordon(ctx context.Context) error {
	if n.cordoned == "" {
		return nil
	}
	err := n.Cordon(ctx, n.cordoned, false)
	if err != nil {
		return err
	}
	err = world.Await(ctx, n.cordoned+" is open again", func(ctx context.Context) error {
		node := &corev1.Node{}
		err := n.Get(ctx, types.NamespacedName{Name: n.cordoned}, node)
		closed := func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeUnschedulable }
		if err == nil && slices.ContainsFunc(node.Spec.Taints, closed) {
			err = errors.New("it has the taint of a cordoned node")
		}
		return err
	})
	if err == nil {
		n.cordoned = ""
	}
	return err
}

// away is a taint for the node that new pods should avoid.
var away = corev1.Taint{Key: "bench", Value: "away", Effect: corev1.TaintEffectPreferNoSchedule}

// steer makes new pods prefer the node, or no node if it is "". A preference does not affect the measured systems.
func (n *nodes) steer(ctx context.Context, to string) error {
	for _, name := range n.names {
		err := n.setAway(ctx, name, to != "" && name != to)
		if err != nil {
			return fmt.Errorf("steer new pods to %s: %w", to, err)
		}
	}
	return nil
}

func (n *nodes) setAway(ctx context.Context, name string, closed bool) error {
	return world.Await(ctx, "the taint of "+name, func(ctx context.Context) error {
		node := &corev1.Node{}
		if err := n.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
			return err
		}
		taints := []corev1.Taint{}
		for _, taint := range node.Spec.Taints {
			if !taint.MatchTaint(&away) {
				taints = append(taints, taint)
			}
		}
		if closed {
			taints = append(taints, away)
		}
		if len(taints) == len(node.Spec.Taints) {
			return nil // no change
		}
		node.Spec.Taints = taints
		return n.Update(ctx, node)
	})
}
