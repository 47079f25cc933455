// Package injection installs the Kyverno policies that inject the pods of StatefulSingletons. It proves with dry-runs
// that they work, and deletes them together with the StatefulSingletons. It has a controller and a queue of its own,
// therefore slow dry-runs do not delay handoffs. It writes no status: Condition returns condition PolicyInstalled to the
// controller of package singleton, which is the only writer of the status. Thus an installation cannot cause a conflict
// in a write of the record.
package injection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

const (
	// retryDelay is the requeue delay after a failure. installingDelay is the requeue delay after a policy was written,
	// because Kyverno needs a second or two to serve a new policy.
	retryDelay      = 2 * time.Second
	installingDelay = 200 * time.Millisecond
	// replaceDelay is the requeue delay while an old policy is removed. It is long because an old policy does no harm, and
	// each step can need a dry-run.
	replaceDelay = 2 * time.Second
	// installTimeout is the time that Kyverno may take to serve a new policy. After this time, an unproven injection
	// counts as a failure.
	installTimeout = 15 * time.Second
	// proofPeriod is the longest time after which a proven injection is proven again. A proof is repeated after a random
	// time between half of the period and the whole. Otherwise, the proofs of singletons that are created together would
	// stay together, and new pods would wait for the API server during each burst.
	proofPeriod = 5 * time.Minute
	// fieldOwner owns the fields that the controller applies.
	fieldOwner = client.FieldOwner("statefulsingleton")
)

// Reasons of condition PolicyInstalled.
const (
	// ReasonInstalling: Kyverno does not serve the policy yet.
	ReasonInstalling = "Installing"

	reasonInjected         = "Injected"
	reasonKyvernoMissing   = "KyvernoMissing"
	reasonPolicyRefused    = "PolicyRefused"
	reasonNotInjected      = "NotInjected"
	reasonProbeRefused     = "ProbeRefused"
	reasonInvalidSingleton = "InvalidSingleton"
	reasonSelectorTooLarge = "SelectorTooLarge"
)

// Reasons of the condition of a StatefulSingleton that is being deleted. They are not written into the status.
const (
	// Removed: the policy no longer injects pods of the StatefulSingleton.
	Removed = "Removed"
	// NotRemoved: the policy could not be changed or deleted. The message says why.
	NotRemoved = "NotRemoved"
)

// unprovenHelp says what to do if a dry-run does not show the injection.
const unprovenHelp = "Check whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"

// Reconciler writes the ClusterPolicy of each StatefulSingleton, and proves with a dry-run that new pods are injected.
type Reconciler struct {
	// Client writes, and reads from the cache, which may lag.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock returns the time.
	Clock   clock.PassiveClock
	Options policies.Options
	// Per says whether each singleton or each namespace has its own policy. Policies for the other value of Per are old
	// policies. They are deleted after the new policies are proven.
	Per policies.Per
	// Watch starts a watch that reconciles the singletons whose policies change or are deleted. It returns a reader of
	// the watched policies. It is called after the cluster serves Kyverno's kinds. SetupWithManager sets it.
	Watch func() (Watched, error)

	conditions conditions

	mu        sync.Mutex
	watching  bool
	watched   Watched
	writing   keymutex.KeyMutex
	written   map[string]written
	replacing map[string]disabled
	proofs    map[types.NamespacedName]proof
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
	// next is when the injection is proven again.
	next time.Time
	// inherited is true if another controller proved the injection, and wrote that into the status.
	inherited bool
}

// installation is the state of a singleton's injection.
type installation struct {
	condition metav1.Condition
	// recheck is the requeue delay. It is zero if no recheck is needed.
	recheck time.Duration
}

// Reconcile installs and proves, or removes, the policy of one singleton. It does nothing before the singleton has the
// finalizer, because only the finalizer ensures that the policy will be deleted.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	singleton := &v1.StatefulSingleton{}
	if err := r.Live.Get(ctx, request.NamespacedName, singleton); apierrors.IsNotFound(err) {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !controllerutil.ContainsFinalizer(singleton, v1.PolicyFinalizer) {
		return ctrl.Result{}, nil
	}
	reconcile := r.install
	if !singleton.DeletionTimestamp.IsZero() {
		reconcile = r.uninstall
	}
	state := reconcile(ctx, singleton)
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the controller stops
	}
	r.conditions.report(singleton, state.condition)
	result := ctrl.Result{RequeueAfter: state.recheck, Priority: new(0)}
	if state.condition.Reason != ReasonInstalling {
		result.Priority = new(handler.LowPriority) // new singletons come before repeated proofs and retries
	}
	return result, nil
}

// install writes the singleton's policy if the policy is missing or changed. It then proves the injection with a dry-run
// of a pod.
func (r *Reconciler) install(ctx context.Context, singleton *v1.StatefulSingleton) installation {
	if err := policies.Validate(singleton); errors.Is(err, policies.ErrSelectorTooLarge) {
		return notInstalled(singleton, reasonSelectorTooLarge, err.Error())
	} else if err != nil {
		return notInstalled(singleton, reasonInvalidSingleton, err.Error())
	}
	policy, content := r.policyOf(singleton), contentOf(*singleton)
	last, known := r.lastProof(singleton)
	if last.content != content {
		last = proof{content: content}
	}
	now, err := r.ensurePolicy(ctx, singleton, !r.due(last))
	if err == nil {
		err = r.watch()
	}
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return notInstalled(singleton, reasonKyvernoMissing,
			"the cluster serves no kyverno.io/v1 ClusterPolicy: pods cannot be injected, and the guards reject them. Install Kyverno 1.18 or 1.19")
	case err != nil:
		return notInstalled(singleton, reasonPolicyRefused, fmt.Sprintf("ClusterPolicy %s cannot be written, and is tried again every %s: %v", policy, retryDelay, err))
	}
	if !known && now.whole.IsZero() && saysProven(singleton, policy) {
		// After a restart, the proofs of all singletons are spread over the period.
		last = proof{content: content, at: r.Clock.Now(), next: r.Clock.Now().Add(rand.N(proofPeriod)), inherited: true}
		r.remember(singleton, last)
	}
	if last.at.Before(now.whole) {
		last = proof{content: content}
	}
	old := r.oldPolicy(ctx, singleton)
	if r.due(last) || last.inherited && old != "" {
		return r.prove(ctx, singleton, policy, content, now.at)
	}
	state := proven(singleton, policy, max(time.Second, last.next.Sub(r.Clock.Now())))
	if old != "" {
		state.recheck = r.replaceOld(ctx, singleton, old)
	}
	return state
}

// due returns true if the injection must be proven now.
func (r *Reconciler) due(last proof) bool { return !r.Clock.Now().Before(last.next) }

// prove proves the injection, and returns the new state.
func (r *Reconciler) prove(ctx context.Context, singleton *v1.StatefulSingleton, policy, content string, written time.Time) installation {
	reason, err := r.probe(ctx, singleton, policy)
	if err != nil {
		r.remember(singleton, proof{content: content})
		if r.Clock.Since(written) < installTimeout {
			return unproven(singleton, policy)
		}
		return notInstalled(singleton, reason, err.Error())
	}
	recheck := proofPeriod/2 + rand.N(proofPeriod/2)
	r.remember(singleton, proof{content: content, at: r.Clock.Now(), next: r.Clock.Now().Add(recheck)})
	if r.oldPolicy(ctx, singleton) != "" {
		recheck = replaceDelay
	}
	return proven(singleton, policy, recheck)
}

func proven(singleton *v1.StatefulSingleton, policy string, recheck time.Duration) installation {
	return installation{
		condition: newCondition(singleton, metav1.ConditionTrue, reasonInjected,
			fmt.Sprintf("a dry-run shows that ClusterPolicy %s injects new pods", policy)),
		recheck: recheck,
	}
}

// unproven returns the state before the first proof. It keeps a failure that the status already reports.
func unproven(singleton *v1.StatefulSingleton, policy string) installation {
	reported := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	if reported != nil && reported.ObservedGeneration == singleton.Generation && (reported.Reason == reasonNotInjected || reported.Reason == reasonProbeRefused) {
		return installation{condition: *reported, recheck: installingDelay}
	}
	return installation{condition: installing(singleton, policy), recheck: installingDelay}
}

func installing(singleton *v1.StatefulSingleton, policy string) metav1.Condition {
	return newCondition(singleton, metav1.ConditionFalse, ReasonInstalling,
		fmt.Sprintf("no dry-run has shown yet that ClusterPolicy %s injects new pods", policy))
}

// saysProven returns true if the status reports the injection of this generation as proven.
func saysProven(singleton *v1.StatefulSingleton, policy string) bool {
	reported := meta.FindStatusCondition(singleton.Status.Conditions, v1.ConditionPolicyInstalled)
	want := proven(singleton, policy, 0).condition
	return reported != nil && reported.Status == want.Status && reported.Message == want.Message && reported.ObservedGeneration == want.ObservedGeneration
}

// probe creates a pod of the singleton in a dry-run and checks the injected pod. The Ready condition of a policy is not
// enough: Kyverno sets it before all replicas serve the policy.
func (r *Reconciler) probe(ctx context.Context, singleton *v1.StatefulSingleton, policy string) (reason string, err error) {
	pod, err := policies.ProbePod(singleton, r.Options)
	if err != nil {
		return reasonInvalidSingleton, err
	}
	if err := r.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return reasonProbeRefused, fmt.Errorf("new pods are rejected, as a dry-run shows: %s. %s", sentence(err), unprovenHelp)
	}
	if err := policies.CheckProbe(pod, singleton, policy); err != nil {
		return reasonNotInjected, fmt.Errorf("new pods are not held, as a dry-run shows: %s. %s", sentence(err), unprovenHelp)
	}
	return "", nil
}

// sentence returns the message of an error without the final period. The messages of guards end with a period.
func sentence(err error) string { return strings.TrimSuffix(handoff.OneLine(err.Error()), ".") }

// watch starts the watch of the policies once.
func (r *Reconciler) watch() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watching {
		return nil
	}
	if r.watched, err = r.Watch(); err != nil {
		return fmt.Errorf("watch ClusterPolicies: %w", err)
	}
	r.watching = true
	return nil
}

func (r *Reconciler) lastProof(singleton *v1.StatefulSingleton) (last proof, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known = r.proofs[client.ObjectKeyFromObject(singleton)]
	return last, known
}

func (r *Reconciler) remember(singleton *v1.StatefulSingleton, p proof) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proofs == nil {
		r.proofs = map[types.NamespacedName]proof{}
	}
	r.proofs[client.ObjectKeyFromObject(singleton)] = p
}

func (r *Reconciler) forget(singleton types.NamespacedName) {
	r.conditions.forget(singleton)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.proofs, singleton)
}

func notInstalled(singleton *v1.StatefulSingleton, reason, message string) installation {
	return installation{condition: newCondition(singleton, metav1.ConditionFalse, reason, message), recheck: retryDelay}
}

func newCondition(singleton *v1.StatefulSingleton, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: v1.ConditionPolicyInstalled, Status: status, Reason: reason, Message: handoff.OneLine(message),
		ObservedGeneration: singleton.Generation,
	}
}
