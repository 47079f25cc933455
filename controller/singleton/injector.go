package singleton

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

const (
	// installPoll is the requeue delay while the injection is not proven. installingPoll is the requeue delay after a
	// policy was written, because Kyverno needs a second or two to serve a new policy.
	installPoll    = 2 * time.Second
	installingPoll = 200 * time.Millisecond
	// installPatience is the time that Kyverno may take to serve a new policy. After this time, an unproven injection
	// counts as a failure.
	installPatience = 15 * time.Second
	// provenPoll is the time after which a proven injection is proven again.
	provenPoll = 5 * time.Minute
	// firstAtOnce limits concurrent first proofs, and againAtOnce limits concurrent repeated proofs. For each proof,
	// the API server evaluates the webhooks of all policies. With many policies and without the limits, proofs could
	// occupy all workers and delay handoffs.
	firstAtOnce, againAtOnce = 8, 4
	// After each repeated proof, the slot stays idle for againRests times the duration of the proof. All slots together
	// then load the API server like one slot that is never idle.
	againRests = againAtOnce - 1
	// linePoll is the requeue delay of a singleton that waits for a slot. For repeated proofs the delay is provenPoll.
	linePoll = 15 * time.Second
	// fieldOwner owns the fields that the controller applies.
	fieldOwner = client.FieldOwner("statefulsingleton")
)

// Reasons of condition PolicyInstalled.
const (
	reasonInjected         = "Injected"
	reasonInstalling       = "Installing"
	reasonKyvernoMissing   = "KyvernoMissing"
	reasonPolicyRefused    = "PolicyRefused"
	reasonNotInjected      = "NotInjected"
	reasonProbeRefused     = "ProbeRefused"
	reasonInvalidSingleton = "InvalidSingleton"
	reasonSelectorTooLarge = "SelectorTooLarge"
)

// unprovenHelp says what to do if a dry-run does not show the injection.
const unprovenHelp = "Look whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"

// Injector writes the ClusterPolicy of each singleton, and proves with a dry-run that new pods are injected.
type Injector struct {
	// Client writes, and reads from the cache, which may lag.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock also ends the idle time of slots.
	Clock   clock.WithDelayedExecution
	Options policies.Options
	// Per says whether each singleton or each namespace has its own policy. Policies for the other value of Per are old
	// policies. They are deleted after the new policies are proven.
	Per policies.Per
	// Watch starts a watch that reconciles the singletons whose policies change or are deleted. It returns a reader of
	// the watched policies. It is called after the cluster serves Kyverno's kinds.
	Watch func() (Watched, error)
	// Wake reconciles a singleton for which a slot is free. Without Wake, the singleton waits for its requeue.
	Wake func(types.NamespacedName)

	// first has the slots for first proofs, and again has the slots for repeated proofs.
	first, again turns

	mu       sync.Mutex
	watching bool
	watched  Watched
	writing  keymutex.KeyMutex
	written  map[string]written
	retiring map[string]disabled
	proofs   map[types.NamespacedName]proof
}

// Watched reads the policies that the watch knows. The reader may lag. It has all policies that existed at the start of
// the watch after HasSynced returns true.
type Watched struct {
	client.Reader
	HasSynced func() bool
}

// proof is the last proof of the injection of a singleton's pods.
type proof struct {
	// content identifies the input from which the proven rules were rendered.
	content string
	// at is the time of the proof. It is zero if the injection is not proven.
	at time.Time
	// refuted is true if the last attempt failed after Kyverno had time to serve the policy.
	refuted bool
	// fromCache is true if the proof comes from the status that another controller wrote.
	fromCache bool
}

// installation is the state of a singleton's injection.
type installation struct {
	condition metav1.Condition
	// recheck is the requeue delay.
	recheck time.Duration
}

// Ensure writes the singleton's policy if the policy is missing or changed. It then proves the injection with a dry-run
// of a pod, and returns condition PolicyInstalled. During a handoff, an earlier proof stays valid for twice the normal
// time.
func (i *Injector) Ensure(ctx context.Context, singleton *v1.StatefulSingleton, inHandoff bool) installation {
	if err := policies.Validate(singleton); errors.Is(err, policies.ErrSelectorTooLarge) {
		return notInstalled(singleton, reasonSelectorTooLarge, err.Error())
	} else if err != nil {
		return notInstalled(singleton, reasonInvalidSingleton, err.Error())
	}
	policy, content := i.policyOf(singleton), contentOf(*singleton)
	last, known := i.lastProof(singleton)
	if last.content != content {
		last = proof{content: content}
	}
	now, err := i.install(ctx, singleton, !i.due(last, inHandoff))
	if err == nil {
		err = i.watch()
	}
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return notInstalled(singleton, reasonKyvernoMissing,
			"the cluster serves no kyverno.io/v1 ClusterPolicy: pods can't be injected, and the guard refuses them. Install Kyverno 1.18 or 1.19")
	case err != nil:
		return notInstalled(singleton, reasonPolicyRefused, fmt.Sprintf("ClusterPolicy %s can't be written, and is tried again every %s: %v", policy, installPoll, err))
	}
	if !known && now.whole.IsZero() && saysProven(singleton, policy) {
		last.at, last.fromCache = i.Clock.Now().Add(-provenPoll), true
		i.remember(singleton, last)
	}
	if last.at.Before(now.whole) {
		last.at = time.Time{}
	}
	if i.due(last, inHandoff) {
		return i.proveInTurn(ctx, singleton, policy, last, now.at)
	}
	state := proven(singleton, policy, max(time.Second, provenPoll-i.Clock.Since(last.at)%provenPoll))
	if old := i.otherForm(ctx, singleton); old != "" && !inHandoff {
		state.recheck = i.retireInTurn(ctx, singleton, old)
	}
	return state
}

// due returns true if the injection must be proven now.
func (i *Injector) due(last proof, inHandoff bool) bool {
	age := i.Clock.Since(last.at)
	return age >= provenPoll && !(inHandoff && age < 2*provenPoll)
}

// proveInTurn proves the injection if a slot is free. Otherwise it returns the last known state.
func (i *Injector) proveInTurn(ctx context.Context, singleton *v1.StatefulSingleton, policy string, last proof, written time.Time) installation {
	line, atOnce, rests, poll := &i.again, againAtOnce, againRests, provenPoll
	if last.at.IsZero() && !last.refuted {
		line, atOnce, rests, poll = &i.first, firstAtOnce, 0, linePoll
	}
	done := line.take(client.ObjectKeyFromObject(singleton), atOnce, i.Wake)
	switch {
	case done == nil && !last.at.IsZero():
		return proven(singleton, policy, poll)
	case done == nil:
		return unproven(singleton, policy, poll)
	}
	begin := i.Clock.Now()
	defer func() {
		if rests == 0 {
			done()
			return
		}
		i.Clock.AfterFunc(min(time.Duration(rests)*i.Clock.Since(begin), provenPoll), done) // the limit applies even if the clock changed
	}()
	reason, err := i.prove(ctx, singleton, policy)
	switch {
	case err != nil && i.Clock.Since(written) < installPatience:
		i.remember(singleton, proof{content: last.content})
		return unproven(singleton, policy, installingPoll)
	case err != nil:
		i.remember(singleton, proof{content: last.content, refuted: true})
		return notInstalled(singleton, reason, err.Error())
	}
	i.remember(singleton, proof{content: last.content, at: i.Clock.Now()})
	if i.otherForm(ctx, singleton) != "" {
		return proven(singleton, policy, installingPoll)
	}
	return proven(singleton, policy, provenPoll)
}

func proven(singleton *v1.StatefulSingleton, policy string, recheck time.Duration) installation {
	return installation{
		condition: installedCondition(singleton, metav1.ConditionTrue, reasonInjected,
			fmt.Sprintf("a dry-run shows that ClusterPolicy %s injects new pods", policy)),
		recheck: recheck,
	}
}

// unproven returns the state before the first proof. It keeps a failure that the status already reports.
func unproven(singleton *v1.StatefulSingleton, policy string, recheck time.Duration) installation {
	told := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	if told != nil && told.ObservedGeneration == singleton.Generation && (told.Reason == reasonNotInjected || told.Reason == reasonProbeRefused) {
		return installation{condition: *told, recheck: recheck}
	}
	return installation{
		condition: installedCondition(singleton, metav1.ConditionFalse, reasonInstalling,
			fmt.Sprintf("ClusterPolicy %s was written, and Kyverno does not serve it yet", policy)),
		recheck: recheck,
	}
}

// saysProven returns true if the status reports the injection of this generation as proven.
func saysProven(singleton *v1.StatefulSingleton, policy string) bool {
	told := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	want := proven(singleton, policy, 0).condition
	return told != nil && told.Status == want.Status && told.Message == want.Message && told.ObservedGeneration == want.ObservedGeneration
}

// prove creates a pod of the singleton in a dry-run and checks the injected pod. The Ready condition of a policy is not
// enough: Kyverno sets it before all replicas serve the policy.
func (i *Injector) prove(ctx context.Context, singleton *v1.StatefulSingleton, policy string) (reason string, err error) {
	pod, err := policies.ProbePod(singleton, i.Options)
	if err != nil {
		return reasonInvalidSingleton, err
	}
	if err := i.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return reasonProbeRefused, fmt.Errorf("pods created now are refused, as the dry-run of one shows: %s. %s", sentence(err), unprovenHelp)
	}
	if err := policies.CheckProbe(pod, singleton, policy); err != nil {
		return reasonNotInjected, fmt.Errorf("pods created now are not held, as the dry-run of one shows: %s. %s", sentence(err), unprovenHelp)
	}
	return "", nil
}

// sentence returns the message of an error without the final period. The messages of guards end with a period.
func sentence(err error) string { return strings.TrimSuffix(oneLine(err.Error()), ".") }

// watch starts the watch of the policies once.
func (i *Injector) watch() (err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.watching {
		return nil
	}
	if i.watched, err = i.Watch(); err != nil {
		return fmt.Errorf("watch ClusterPolicies: %w", err)
	}
	i.watching = true
	return nil
}

func (i *Injector) lastProof(singleton *v1.StatefulSingleton) (last proof, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	last, known = i.proofs[client.ObjectKeyFromObject(singleton)]
	return last, known
}

func (i *Injector) remember(singleton *v1.StatefulSingleton, p proof) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.proofs == nil {
		i.proofs = map[types.NamespacedName]proof{}
	}
	i.proofs[client.ObjectKeyFromObject(singleton)] = p
}

func (i *Injector) forget(singleton types.NamespacedName) {
	i.first.forget(singleton)
	i.again.forget(singleton)
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.proofs, singleton)
}

func notInstalled(singleton *v1.StatefulSingleton, reason, message string) installation {
	return installation{condition: installedCondition(singleton, metav1.ConditionFalse, reason, message), recheck: installPoll}
}

func installedCondition(singleton *v1.StatefulSingleton, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: v1.ConditionPolicyInstalled, Status: status, Reason: reason, Message: oneLine(message),
		ObservedGeneration: singleton.Generation,
	}
}

// oneLine joins the lines of a message, for example of joined errors or of Kyverno's rejections.
func oneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
