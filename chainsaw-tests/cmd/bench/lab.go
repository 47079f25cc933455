package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// patience is the longest time that a step may take. The longest step is the pull of an image on each node.
const patience = 2 * time.Minute

// lab is the cluster of a run, with the two nodes between which the pods move. Clients reach the Services through the first
// node, so only the second node can be lost.
type lab struct {
	*world.World
	names [2]string
	// cordoned is the drained node, or "".
	cordoned string
	// registry serves the pulled image. It is nil until a series needs it.
	registry *registry
}

func connect(ctx context.Context) (*lab, error) {
	w, err := world.Connect(ctx)
	if err != nil {
		return nil, err
	}
	var list corev1.NodeList
	if err := w.List(ctx, &list); err != nil {
		return nil, err
	}
	if len(list.Items) != 2 {
		return nil, fmt.Errorf("the cluster has %d nodes, want the two that `cluster up` starts with", len(list.Items))
	}
	l := &lab{World: w, names: [2]string{list.Items[0].Name, list.Items[1].Name}}
	for _, name := range l.names {
		if err := w.Cordon(ctx, name, false); err != nil { // a killed run may have cordoned it
			return nil, err
		}
	}
	// New pods need Kyverno, also while the second node is lost.
	return l, w.KyvernoElsewhere(ctx, l.names[1])
}

func (l *lab) close(ctx context.Context) error {
	if l.registry != nil {
		l.registry.close()
	}
	return errors.Join(l.uncordon(ctx), l.steer(ctx, ""))
}

func (l *lab) other(name string) string {
	if name == l.names[0] {
		return l.names[1]
	}
	return l.names[0]
}

// cordon begins a drain of the node.
func (l *lab) cordon(ctx context.Context, name string) error {
	l.cordoned = name
	return l.Cordon(ctx, name, true)
}

// uncordon ends the drain, if there was one.
func (l *lab) uncordon(ctx context.Context) error {
	if l.cordoned == "" {
		return nil
	}
	if err := l.Cordon(ctx, l.cordoned, false); err != nil {
		return err
	}
	err := world.Await(ctx, l.cordoned+" is open again", func(ctx context.Context) error {
		node := &corev1.Node{}
		err := l.Get(ctx, types.NamespacedName{Name: l.cordoned}, node)
		closed := func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeUnschedulable }
		if err == nil && slices.ContainsFunc(node.Spec.Taints, closed) {
			err = errors.New("it has the taint of a cordoned node")
		}
		return err
	})
	if err == nil {
		l.cordoned = ""
	}
	return err
}

// away is a taint for the node that new pods should avoid.
var away = corev1.Taint{Key: "bench", Value: "away", Effect: corev1.TaintEffectPreferNoSchedule}

// steer makes new pods prefer the node, or no node if it is "". A preference does not affect the measured systems.
func (l *lab) steer(ctx context.Context, to string) error {
	for _, name := range l.names {
		err := world.Await(ctx, "the taint of "+name, func(ctx context.Context) error {
			node := &corev1.Node{}
			if err := l.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
				return err
			}
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.MatchTaint(&away) })
			if to != "" && name != to {
				node.Spec.Taints = append(node.Spec.Taints, away)
			}
			return l.Update(ctx, node)
		})
		if err != nil {
			return fmt.Errorf("steer new pods to %s: %w", to, err)
		}
	}
	return nil
}

// loseNode kills the node, as in a power failure.
func (l *lab) loseNode(ctx context.Context, name string) error {
	return l.Cluster(ctx, "node", "kill", name)
}

// healNode starts the lost node again.
func (l *lab) healNode(ctx context.Context) error {
	return errors.Join(l.Cluster(ctx, "up"), l.AwaitWhole(ctx))
}

// remove removes the workload with its namespace, and waits until its pods have ended. The namespace controller takes longer to
// delete the rest: half of the pods' grace period.
func (l *lab) remove(ctx context.Context, workload interface {
	Key() types.NamespacedName
	Remove(context.Context) error
}) error {
	_, err := l.Kubectl(ctx, "delete", "deployments,statefulsets", "--all", "--namespace", workload.Key().Namespace, "--cascade=foreground", "--timeout", patience.String())
	return errors.Join(err, workload.Remove(ctx))
}
