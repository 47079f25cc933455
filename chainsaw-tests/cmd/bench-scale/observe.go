package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// observer knows each singleton and its pods, as watches tell of them, and when what was seen first.
type observer struct {
	mu         sync.Mutex
	singletons map[singleton]*v1.StatefulSingleton
	// pods are those that are there, by their singleton.
	pods map[singleton]map[types.UID]*corev1.Pod
	// moments of a pod are kept when it is gone.
	moments map[types.UID]map[string]time.Time
}

func observe(ctx context.Context, w *world.World) (*observer, error) {
	injected, err := labels.NewRequirement(v1.SingletonLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	watches, err := cache.New(w.Config, cache.Options{
		Scheme: w.Scheme(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.NewSelector().Add(*injected)}},
	})
	if err != nil {
		return nil, err
	}
	o := &observer{
		singletons: map[singleton]*v1.StatefulSingleton{}, pods: map[singleton]map[types.UID]*corev1.Pod{},
		moments: map[types.UID]map[string]time.Time{},
	}
	for _, kind := range []client.Object{&corev1.Pod{}, &v1.StatefulSingleton{}} {
		informer, err := watches.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: o.see, UpdateFunc: func(_, now any) { o.see(now) }, DeleteFunc: o.lose,
		}); err != nil {
			return nil, err
		}
	}
	go func() { _ = watches.Start(ctx) }() // it ends with the context
	if !watches.WaitForCacheSync(ctx) {
		return nil, errors.New("the watches did not begin")
	}
	return o, nil
}

func (o *observer) see(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1.StatefulSingleton:
		o.singletons[client.ObjectKeyFromObject(object)] = object
		if object.Status.ActivePodUID != "" {
			o.saw(object.Status.ActivePodUID, figures.Record)
		}
	case *corev1.Pod:
		of := singleton{Namespace: object.Namespace, Name: object.Labels[v1.SingletonLabel]}
		if o.pods[of] == nil {
			o.pods[of] = map[types.UID]*corev1.Pod{}
		}
		o.pods[of][object.UID] = object
		for moment, when := range map[string]bool{
			figures.Created: true,
			figures.Warm:    world.Warm(object),
			figures.Asked:   object.DeletionTimestamp != nil,
			figures.Status:  object.Status.Phase == corev1.PodSucceeded,
			figures.Signal:  object.Annotations[signal.Annotation] != "",
			figures.Ready:   world.IsTrue(object, corev1.PodReady),
		} {
			if when {
				o.saw(object.UID, moment)
			}
		}
	}
}

func (o *observer) saw(pod types.UID, moment string) {
	if o.moments[pod] == nil {
		o.moments[pod] = map[string]time.Time{}
	}
	if _, known := o.moments[pod][moment]; !known {
		o.moments[pod][moment] = time.Now()
	}
}

func (o *observer) lose(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1.StatefulSingleton:
		delete(o.singletons, client.ObjectKeyFromObject(object))
	case *corev1.Pod:
		delete(o.pods[singleton{Namespace: object.Namespace, Name: object.Labels[v1.SingletonLabel]}], object.UID)
	}
}

// injected tells whether the policy of that name works for the singleton, by its condition.
func (o *observer) injected(s singleton, policy string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	object := o.singletons[s]
	if object == nil {
		return false
	}
	c := meta.FindStatusCondition(object.Status.Conditions, v1.ConditionPolicyInstalled)
	return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, policy)
}

// refusal is why one of them has no policy that works.
func (o *observer) refusal(all []singleton) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range all {
		if object := o.singletons[s]; object != nil {
			c := meta.FindStatusCondition(object.Status.Conditions, v1.ConditionPolicyInstalled)
			if c != nil && c.Status != "True" {
				return c.Reason + ": " + c.Message
			}
		}
	}
	return "they say nothing"
}

// unsettled says what is under way. Empty: nothing.
func (o *observer) unsettled(s singleton) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	object := o.singletons[s]
	if object == nil || !settled(object) {
		return "it has no Ready holder"
	}
	if len(o.pods[s]) != 1 {
		return fmt.Sprintf("it has %d pods", len(o.pods[s]))
	}
	if pod := o.pods[s][object.Status.ActivePodUID]; pod == nil || pod.DeletionTimestamp != nil || !world.IsTrue(pod, corev1.PodReady) {
		return "its pod is not a Ready holder"
	}
	return ""
}

// holder is the uid and the name of the recorded pod.
func (o *observer) holder(s singleton) (types.UID, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.singletons[s].Status.ActivePodUID, o.singletons[s].Status.ActivePod
}

// handedOver tells whether the singleton has another holder, which is Ready.
func (o *observer) handedOver(s singleton, old types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	object := o.singletons[s]
	if object == nil || object.Status.ActivePodUID == old || !settled(object) {
		return false
	}
	pod := o.pods[s][object.Status.ActivePodUID]
	return pod != nil && world.IsTrue(pod, corev1.PodReady)
}

// standby tells whether a pod besides the holder is warm.
func (o *observer) standby(s singleton) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, pod := range o.pods[s] {
		if uid != o.singletons[s].Status.ActivePodUID && pod.DeletionTimestamp == nil && world.Warm(pod) {
			return true
		}
	}
	return false
}

// momentsOf are a handoff's, from the cause on: those of the old pod, and of the new one.
func (o *observer) momentsOf(from, to types.UID, cause time.Time) map[string]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]int64{}
	for _, m := range []struct {
		pod    types.UID
		moment string
	}{
		{to, figures.Created}, {to, figures.Warm}, {from, figures.Asked}, {from, figures.Status},
		{to, figures.Record}, {to, figures.Signal}, {to, figures.Ready},
	} {
		if at, known := o.moments[m.pod][m.moment]; known {
			all[m.moment] = at.Sub(cause).Milliseconds()
		}
	}
	return all
}
