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
	// installPoll is how often to look again while the injection is not proven, and
	// installingPoll while Kyverno takes its second or two to serve a new policy.
	installPoll    = 2 * time.Second
	installingPoll = 200 * time.Millisecond
	// installPatience is how long Kyverno may take to serve a policy that was just
	// written before that is called a failure.
	installPatience = 15 * time.Second
	// provenPoll is how often to prove an injection again that was proven.
	provenPoll = 5 * time.Minute
	// firstAtOnce is how many that were never proven are at a time, and againAtOnce how
	// many of the others: the API server asks each policy's webhook whether it is meant,
	// and where many are, all workers would wait for that, and handoffs behind them.
	firstAtOnce, againAtOnce = 8, 4
	// againRests is how many times as long as it lasted nobody follows after one of the
	// others, so that they together keep the API server as busy as one that never rests.
	againRests = againAtOnce - 1
	// linePoll is how often those in line look by themselves whether it is their turn, but
	// for a proof that is made again: there it is done as they are looked at anyway.
	linePoll = 15 * time.Second
	// fieldOwner owns what the controller applies.
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

// unprovenHelp is what to do where a dry-run does not show the injection.
const unprovenHelp = "Look whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"

// Injector keeps the ClusterPolicy of each singleton as it should be, and proves
// by a dry-run that it works.
type Injector struct {
	// Client writes, and reads what may lag.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock also says when a turn has rested.
	Clock   clock.WithDelayedExecution
	Options policies.Options
	// Per is what has a policy of its own. Policies of the other form go once these
	// are proven.
	Per policies.Per
	// Watch has the singletons reconciled whose policies are changed or deleted, and
	// returns what it knows of these. It is called once Kyverno's kinds are known to be
	// served.
	Watch func() (Watched, error)
	// Wake has a singleton reconciled whose turn it is. Without it that happens in a
	// while.
	Wake func(types.NamespacedName)

	// first and again have those take turns that were never proven, and the others.
	first, again turns

	mu       sync.Mutex
	watching bool
	watched  Watched
	writing  keymutex.KeyMutex
	written  map[string]written
	retiring map[string]disabled
	proofs   map[types.NamespacedName]proof
}

// Watched is what a watch knows. It lags, and it knows all there was when it began once
// HasSynced says so.
type Watched struct {
	client.Reader
	HasSynced func() bool
}

// proof is when the injection of a singleton's pods was last proven.
type proof struct {
	// content tells what the rules were rendered of that were proven.
	content string
	// at is zero where it was not, the last time.
	at time.Time
	// refuted is whether it was shown not to work, the last time, after Kyverno had had
	// time to serve the policy.
	refuted bool
	// fromCache is what another controller has told in the singleton's status.
	fromCache bool
}

// installation is the state of a singleton's injection.
type installation struct {
	condition metav1.Condition
	// recheck is when to look again.
	recheck time.Duration
}

// Ensure writes the singleton's policy if it is missing or changed, proves the
// injection by the dry-run of a pod, and reports condition PolicyInstalled. While a
// handoff is under way nothing is proven again, for as long again as a proof lasts.
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

// due tells whether the injection has to be proven now.
func (i *Injector) due(last proof, inHandoff bool) bool {
	age := i.Clock.Since(last.at)
	return age >= provenPoll && !(inHandoff && age < 2*provenPoll)
}

// proveInTurn proves the injection if it is the singleton's turn. Until then all is said
// to be as it was.
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
		i.Clock.AfterFunc(min(time.Duration(rests)*i.Clock.Since(begin), provenPoll), done) // whatever the clock did
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

// unproven is how it stands before the first proof, unless it was told already that
// something else is amiss.
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

// saysProven tells whether the singleton, as it is now, reports the injection as proven.
func saysProven(singleton *v1.StatefulSingleton, policy string) bool {
	told := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	want := proven(singleton, policy, 0).condition
	return told != nil && told.Status == want.Status && told.Message == want.Message && told.ObservedGeneration == want.ObservedGeneration
}

// prove asks the API server what a new pod of the singleton would look like.
// Kyverno calls a policy Ready before each of its replicas serves it.
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

// sentence is what an error says, for another one to follow: a guard ends its own.
func sentence(err error) string { return strings.TrimSuffix(oneLine(err.Error()), ".") }

// watch begins to watch the policies, once.
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

// oneLine makes a sentence of a message over several lines, as joined errors and
// Kyverno's refusals are.
func oneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
