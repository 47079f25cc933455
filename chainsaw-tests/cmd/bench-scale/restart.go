package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
)

const (
	// observed is the number of singletons for which pods are created while Kyverno restarts.
	observed = 50
	// creationPause is the time between two pods of all observed singletons. More pods would slow Kyverno down.
	creationPause = 20 * time.Millisecond
)

// measureKyvernoRestart kills Kyverno, and creates pods of several singletons until each of them is injected again. It
// returns an error if a pod is admitted that is not held.
func (r *run) measureKyvernoRestart(ctx context.Context, step *figures.Step) error {
	all := spread(r.enforced(step), observed)
	if err := r.KillKyverno(ctx); err != nil {
		return err
	}
	c := newRecovery(all)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	group, groupContext := errgroup.WithContext(ctx)
	for _, s := range all {
		group.Go(func() error { return r.createUntilRecovered(groupContext, c, s) })
	}
	err := group.Wait()
	step.Restart = &c.Restart
	if err = errors.Join(err, c.admitted, r.AwaitWhole(ctx)); err != nil {
		return err
	}
	pod, err := r.kyvernoPod(ctx)
	if err != nil {
		return err
	}
	step.Restart.MiB, err = kyvernoMiB(ctx, pod)
	return err
}

// createUntilRecovered creates and deletes pods of the singleton until the last pod of each observed singleton was held.
func (r *run) createUntilRecovered(ctx context.Context, c *recovery, s singleton) error {
	for !c.recovered() {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, GenerateName: "restart-", Labels: labelsOf(s)}, Spec: podSpec()}
		refused := r.Create(ctx, pod)
		if err := c.count(s, pod, refused); err != nil {
			return err
		}
		if refused == nil {
			if err := r.DeletePod(ctx, pod, new(int64(0))); err != nil {
				return err
			}
		}
		if err := pause(ctx, creationPause*time.Duration(len(c.last))); err != nil {
			return fmt.Errorf("%w before a pod of StatefulSingleton %s was held", err, s)
		}
	}
	return nil
}

// recovery counts the answers of the API server to the creation of pods since a restart of Kyverno.
type recovery struct {
	mu sync.Mutex
	figures.Restart
	begin time.Time
	// last is true for each singleton whose last pod was held.
	last map[singleton]bool
	// admitted is the error for the first pod that was admitted and is not held.
	admitted error
}

func newRecovery(all []singleton) *recovery {
	c := &recovery{begin: time.Now(), Restart: figures.Restart{Singletons: len(all)}, last: map[singleton]bool{}}
	for _, s := range all {
		c.last[s] = false
	}
	return c
}

// recovered returns true after the last pod of each singleton was held.
func (c *recovery) recovered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.LastSeconds > 0
}

// count counts the answer for a pod of the singleton. It returns an answer that it does not know.
func (c *recovery) count(s singleton, pod *corev1.Pod, refused error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[s] = false
	switch {
	case refused == nil:
		missing := policies.CheckInjected(pod, statefulSingleton(s))
		if missing != nil {
			c.admit(pod, missing)
			return nil
		}
		c.Held++
		c.last[s] = true
	case strings.Contains(refused.Error(), "ValidatingAdmissionPolicy"):
		c.RefusedByGuards++
	case strings.Contains(refused.Error(), "failed calling webhook"):
		c.RefusedByWebhook++
	default:
		return fmt.Errorf("create a pod of StatefulSingleton %s after the restart: %w", s, refused)
	}
	c.time()
	return nil
}

func (c *recovery) admit(pod *corev1.Pod, missing error) {
	c.Unheld++
	if c.admitted == nil {
		c.admitted = fmt.Errorf("pod %s/%s was admitted after the restart: %w", pod.Namespace, pod.Name, missing)
	}
}

// time records when the first pod was held, and when the last pod of each singleton was held.
func (c *recovery) time() {
	seconds, held := time.Since(c.begin).Seconds(), 0
	for _, is := range c.last {
		if is {
			held++
		}
	}
	if held > 0 && c.FirstSeconds == 0 {
		c.FirstSeconds = seconds
	}
	if held == len(c.last) && c.LastSeconds == 0 {
		c.LastSeconds = seconds
	}
}

// spread returns at most n of the singletons at equal distances, with the first and the last.
func spread(all []singleton, n int) []singleton {
	if len(all) <= n {
		return all
	}
	var some []singleton
	for i := range n {
		some = append(some, all[i*(len(all)-1)/(n-1)])
	}
	return some
}
