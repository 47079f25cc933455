package singleton

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
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
	firstAtOnce, againAtOnce = workers / 2, workers / 4
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
)

// unprovenHelp is what to do where a dry-run does not show the injection.
const unprovenHelp = "Look whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"

// Injector keeps the ClusterPolicy of each singleton as it should be, and proves
// by a dry-run that it works.
type Injector struct {
	Client client.Client
	// Live reads from the API server.
	Live    client.Reader
	Clock   clock.PassiveClock
	Options policies.Options
	// Watch has the singletons reconciled whose policies are changed or deleted, and
	// returns what it knows of these. It is called once Kyverno's kinds are known to be
	// served.
	Watch func() (Watched, error)

	// first and again have those take turns that were never proven, and the others.
	first, again turns

	mu       sync.Mutex
	watching bool
	watched  Watched
	applied  map[types.NamespacedName]applied
}

// Watched is what a watch knows. It lags, and it knows all there was when it began once
// HasSynced says so.
type Watched struct {
	client.Reader
	HasSynced func() bool
}

// applied is what was last written and proven for a singleton.
type applied struct {
	hash    string
	version version
	written time.Time
	proven  time.Time
}

// version tells the specs apart that a policy has had.
type version struct {
	uid        types.UID
	generation int64
}

func versionOf(policy client.Object) version {
	return version{policy.GetUID(), policy.GetGeneration()}
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
func (i *Injector) Ensure(ctx context.Context, singleton *v1.StatefulSingleton, handingOver bool) installation {
	policy, err := policies.Render(singleton, i.Options)
	if err != nil {
		return notInstalled(singleton, reasonInvalidSingleton, err.Error())
	}
	last, err := i.write(ctx, singleton, policy, handingOver)
	if err == nil {
		err = i.watch()
	}
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return notInstalled(singleton, reasonKyvernoMissing,
			"the cluster serves no kyverno.io/v1 ClusterPolicy: pods can't be injected, and the guard refuses them. Install Kyverno 1.18 or 1.19")
	case err != nil:
		return notInstalled(singleton, reasonPolicyRefused, fmt.Sprintf("ClusterPolicy %s can't be written, and is tried again every %s: %v", policy.GetName(), installPoll, err))
	case !i.due(last, handingOver):
		return proven(singleton, policy.GetName(), max(time.Second, provenPoll-i.Clock.Since(last.proven)))
	}
	return i.proveInTurn(ctx, singleton, policy.GetName(), last)
}

// due tells whether the injection has to be proven now.
func (i *Injector) due(last applied, handingOver bool) bool {
	age := i.Clock.Since(last.proven)
	return age >= provenPoll && !(handingOver && age < 2*provenPoll)
}

// write writes the policy unless it is as it was last written.
func (i *Injector) write(ctx context.Context, singleton *v1.StatefulSingleton, policy *unstructured.Unstructured, handingOver bool) (applied, error) {
	key := client.ObjectKeyFromObject(singleton)
	last := i.last(key)
	if current, err := i.isCurrent(ctx, policy, last, !i.due(last, handingOver)); current || err != nil {
		return last, err
	}
	before := policyMetadata(policy.GetName())
	if err := i.Live.Get(ctx, client.ObjectKeyFromObject(before), before); client.IgnoreNotFound(err) != nil {
		return last, err
	}
	now := applied{hash: policy.GetAnnotations()[policies.SpecHashAnnotation], written: i.Clock.Now()}
	if err := i.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(policy), fieldOwner, client.ForceOwnership); err != nil {
		return now, err
	}
	now.version = versionOf(policy)
	if last.hash == "" && now.version == versionOf(before) && saysProven(singleton, policy.GetName()) {
		// Another controller, which ran before, has proven it, and nothing changed since.
		now.proven = i.Clock.Now().Add(-provenPoll)
	}
	i.remember(key, now)
	return now, nil
}

// proveInTurn proves the injection if it is the singleton's turn. Until then all is said
// to be as it was.
func (i *Injector) proveInTurn(ctx context.Context, singleton *v1.StatefulSingleton, policy string, last applied) installation {
	key := client.ObjectKeyFromObject(singleton)
	line, atOnce := &i.again, againAtOnce
	if last.proven.IsZero() {
		line, atOnce = &i.first, firstAtOnce
	}
	wait, done := line.take(key, atOnce)
	switch {
	case done == nil && !last.proven.IsZero():
		return proven(singleton, policy, wait)
	case done == nil:
		return unproven(singleton, policy, wait)
	}
	defer done()
	if reason, err := i.prove(ctx, singleton); err != nil {
		last.proven = time.Time{}
		i.remember(key, last)
		if i.Clock.Since(last.written) < installPatience {
			return unproven(singleton, policy, installingPoll)
		}
		return notInstalled(singleton, reason, err.Error())
	}
	last.proven = i.Clock.Now()
	i.remember(key, last)
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

// isCurrent tells whether the policy is as it was last written. Its spec can't be
// compared, since Kyverno's CRD fills in defaults; its version can. The word of the
// watch will do if it is said to, and if that knows of nothing else.
func (i *Injector) isCurrent(ctx context.Context, policy *unstructured.Unstructured, last applied, watchWillDo bool) (bool, error) {
	if last.hash != policy.GetAnnotations()[policies.SpecHashAnnotation] {
		return false, nil
	}
	found := policyMetadata(policy.GetName())
	if watched := i.known(); watchWillDo && watched.Reader != nil {
		err := watched.Get(ctx, client.ObjectKeyFromObject(found), found)
		if err == nil && versionOf(found) == last.version {
			return true, nil
		}
	}
	err := i.Live.Get(ctx, client.ObjectKeyFromObject(found), found)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && versionOf(found) == last.version, err
}

// policyMetadata is the metadata of a policy, to be read.
func policyMetadata(name string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.SetGroupVersionKind(policies.GVK)
	return m
}

// prove asks the API server what a new pod of the singleton would look like.
// Kyverno calls a policy Ready before each of its replicas serves it.
func (i *Injector) prove(ctx context.Context, singleton *v1.StatefulSingleton) (reason string, err error) {
	pod, err := policies.ProbePod(singleton)
	if err != nil {
		return reasonInvalidSingleton, err
	}
	if err := i.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return reasonProbeRefused, fmt.Errorf("pods created now are refused, as the dry-run of one shows: %s. %s", oneLine(err.Error()), unprovenHelp)
	}
	if err := policies.CheckInjected(pod, singleton); err != nil {
		return reasonNotInjected, fmt.Errorf("pods created now are not held, as the dry-run of one shows: %s. %s", oneLine(err.Error()), unprovenHelp)
	}
	return "", nil
}

// Remove deletes the singleton's policy.
func (i *Injector) Remove(ctx context.Context, singleton *v1.StatefulSingleton) error {
	key := client.ObjectKeyFromObject(singleton)
	err := i.Client.Delete(ctx, policyMetadata(policies.Name(key)))
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return fmt.Errorf("delete the ClusterPolicy of StatefulSingleton %s: %w", key, err)
	}
	i.first.forget(key)
	i.again.forget(key)
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.applied, key)
	return nil
}

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

// known is what the watch knows, or nothing while that is not all there is.
func (i *Injector) known() Watched {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.watched.Reader == nil || !i.watched.HasSynced() {
		return Watched{}
	}
	return i.watched
}

func (i *Injector) last(key types.NamespacedName) applied {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.applied[key]
}

func (i *Injector) remember(key types.NamespacedName, a applied) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.applied == nil {
		i.applied = map[types.NamespacedName]applied{}
	}
	i.applied[key] = a
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
