// Package injection installs the Kyverno policies that inject the pods of StatefulSingletons and make the pods of
// StatefulSetLocks readers. It checks with dry-runs that they work, and deletes them together with these objects. It has a
// controller and a queue of its own, therefore slow dry-runs do not delay handoffs. It writes no status: Condition returns
// condition PolicyInstalled to the controller that reports it. Thus an installation of a StatefulSingleton or a
// StatefulSetLock cannot cause a conflict in a write of the record.
package injection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

const (
	// minRetryDelay is the requeue delay after the first failure. The delay doubles with each further failure, up to
	// maxRetryDelay.
	minRetryDelay = time.Second
	maxRetryDelay = time.Minute
	// conflictDelay is the requeue delay after a conflict with a write of another client.
	conflictDelay = 200 * time.Millisecond
	// minInstallingDelay and maxInstallingDelay limit the requeue delay while Kyverno does not serve a new policy yet,
	// which takes a second or two.
	minInstallingDelay = 200 * time.Millisecond
	maxInstallingDelay = time.Second
	// replaceDelay is the requeue delay while an old policy is removed. It is long because an old policy does no harm, and
	// each step can need a dry-run.
	replaceDelay = 2 * time.Second
	// installTimeout is the time that Kyverno may take to serve a new policy. After this time, a failed check of the policy
	// counts as a failure.
	installTimeout = 15 * time.Second
	// checkPeriod is the mean time between two checks of a policy that works. The time is random and differs from the
	// mean by up to a fifth. Otherwise, the checks of objects that are created together would stay together, and new
	// pods would wait for the API server during each burst.
	checkPeriod = 5 * time.Minute
	// subjectsPerPage is the number of objects that one request reads for the policy of a namespace.
	subjectsPerPage = 250
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
	reasonInvalidSpec      = "InvalidSpec"
	reasonSelectorTooLarge = "SelectorTooLarge"
	reasonNamespaceFull    = "NamespaceFull"
)

// Reasons of the condition of an object that is being deleted. They are not written into the status.
const (
	// Removed: the policy no longer injects pods of the object.
	Removed = "Removed"
	// NotRemoved: the policy could not be changed or deleted. The message says why.
	NotRemoved = "NotRemoved"
)

// kyvernoHelp says what to do if a dry-run does not show the injection.
const kyvernoHelp = "Check whether Kyverno runs: kubectl get pods -A -l app.kubernetes.io/component=admission-controller"

// Reconciler writes the policy of each StatefulSingleton, and checks with a dry-run that new pods are injected.
type Reconciler struct {
	// Client writes, and reads from the cache, which may lag.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock returns the time.
	Clock   clock.PassiveClock
	Options policies.Options
	// Kind is the kind of the objects whose pods are injected.
	Kind Kind
	// Per says whether each object or each namespace has its own policy. Policies for the other value of Per, or of another
	// kind than Options.Kind, are old policies. They are deleted after a check of the new policies.
	Per policies.Per
	// Budget is the room of each namespace for policies.
	Budget policies.Budget
	// APIServer says which API server the sidecars of fenced pods use. nil: Options.APIServer.
	APIServer *APIServer
	// Watch starts a watch that reconciles the objects whose policies change or are deleted. It returns a reader of
	// the watched policies. It is called after the cluster serves Kyverno's kinds. SetupWithManager sets it.
	Watch func() (Watched, error)

	onChange atomic.Pointer[func(types.NamespacedName)]

	// starting starts the watch once, without mu, because the start waits for the API server.
	starting singleflight.Group

	// watched is nil before the watch has started.
	watched atomic.Pointer[Watched]

	once    sync.Once
	writing keymutex.KeyMutex
	retries workqueue.TypedRateLimiter[types.NamespacedName]

	conditions table[types.NamespacedName, reported]
	written    table[policies.Ref, written]
	replacing  table[policies.Ref, disabled]
	checks     table[types.NamespacedName, check]
}

// Kind is a kind of objects whose pods a policy injects.
type Kind struct {
	// Name is the kind, and Controller the name of the controller of its policies.
	Name, Controller string
	// LogKey is the key of an object in the log.
	LogKey string
	// Annotation is the annotation of a policy with its object, as <namespace>/<name>.
	Annotation string
	// Shared is true if the objects of a namespace can share a policy.
	Shared bool
	// NotInjected says what new pods are without the policy, and WithoutKyverno what happens to them without Kyverno.
	NotInjected, WithoutKyverno string
	// New returns an empty object, and NewList an empty list.
	New     func() policies.Subject
	NewList func() client.ObjectList
}

// Singletons are the StatefulSingletons.
var Singletons = Kind{
	Name: "StatefulSingleton", Controller: "injection", LogKey: "singleton", Annotation: policies.SingletonAnnotation, Shared: true,
	NotInjected: "new pods are not held", WithoutKyverno: "pods cannot be injected, and the guards reject them",
	New:     func() policies.Subject { return &v1.StatefulSingleton{} },
	NewList: func() client.ObjectList { return &v1.StatefulSingletonList{} },
}

// Locks are the StatefulSetLocks. Each has a policy of its own.
var Locks = Kind{
	Name: "StatefulSetLock", Controller: "lock-injection", LogKey: "lock", Annotation: policies.LockAnnotation,
	NotInjected: "new pods do not become readers", WithoutKyverno: "the controller makes new pods readers after their creation",
	New:     func() policies.Subject { return &v1.StatefulSetLock{} },
	NewList: func() client.ObjectList { return &v1.StatefulSetLockList{} },
}

// Watched reads the policies that the watch knows. The reader may lag. It has all policies that existed at the start of
// the watch after HasSynced returns true.
type Watched struct {
	client.Reader
	HasSynced func() bool
}

// check is the last check of an object's policy: a dry-run of a pod, which the policy must inject.
type check struct {
	// content identifies the input from which the checked rules were rendered.
	content string
	// at is the time of the check. It is zero if the check failed, or if there was no check.
	at time.Time
	// next is the time of the next check.
	next time.Time
	// inherited is true if another controller did the check, and wrote the result into the status.
	inherited bool
}

// installation is the state of an object's injection.
type installation struct {
	condition metav1.Condition
	// recheck is the requeue delay. It is zero if no recheck is needed.
	recheck time.Duration
	// failed is true if the reconcile must be retried, with a delay that grows with each failure. recheck is then zero.
	failed bool
}

// Reconcile installs and checks, or removes, the policy of one object. It does nothing before the object has the
// finalizer, because only the finalizer ensures that the policy will be deleted.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	subject := r.Kind.New()
	if err := r.Live.Get(ctx, request.NamespacedName, subject); apierrors.IsNotFound(err) {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !controllerutil.ContainsFinalizer(subject, v1.PolicyFinalizer) {
		return ctrl.Result{}, nil
	}
	reconcile := r.install
	if subject.GetDeletionTimestamp() != nil {
		reconcile = r.uninstall
	}
	state := reconcile(ctx, subject)
	if ctx.Err() != nil {
		return ctrl.Result{}, nil // the controller stops
	}
	r.report(subject, state.condition)
	result := ctrl.Result{RequeueAfter: r.requeueDelay(request.NamespacedName, state), Priority: new(0)}
	if state.condition.Reason != ReasonInstalling {
		result.Priority = new(handler.LowPriority) // new objects come before repeated checks and retries
	}
	return result, nil
}

// requeueDelay returns the delay of the next reconcile. An expected failure is not returned as an error, because the
// queue would log the error and its stack trace with each retry.
func (r *Reconciler) requeueDelay(subject types.NamespacedName, state installation) time.Duration {
	r.init()
	if state.failed {
		return r.retries.When(subject)
	}
	r.retries.Forget(subject)
	return state.recheck
}

// init creates what has no useful zero value. The rate limiter is not that of the queue, which forgets the failures of a request
// that is requeued with a delay.
func (r *Reconciler) init() {
	r.once.Do(func() {
		r.writing = keymutex.NewHashed(256)
		r.retries = workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](minRetryDelay, maxRetryDelay)
	})
}

// install writes the object's policy if the policy is missing or changed. It then checks the policy if a check is due.
func (r *Reconciler) install(ctx context.Context, subject policies.Subject) installation {
	if err := policies.Validate(subject); errors.Is(err, policies.ErrSelectorTooLarge) {
		return notInstalled(subject, reasonSelectorTooLarge, err.Error())
	} else if err != nil {
		return notInstalled(subject, reasonInvalidSpec, err.Error())
	}
	policy, content := r.policyOf(subject), r.contentOf(subject)
	beside, err := r.installable(ctx, subject)
	if err != nil {
		return unreadable(subject, err)
	}
	if !slices.Contains(beside, subject) {
		if has, err := r.hasPolicy(ctx, subject, beside); err != nil {
			return unreadable(subject, err)
		} else if !has {
			return r.namespaceFull(subject)
		}
	}
	last, known := r.checks.get(client.ObjectKeyFromObject(subject))
	if last.content != content {
		last = check{content: content}
	}
	now, err := r.ensurePolicy(ctx, subject, beside, !r.due(last))
	if err == nil {
		err = r.watch()
	}
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		return notInstalled(subject, reasonKyvernoMissing,
			fmt.Sprintf("the cluster serves no %s: %s. Install Kyverno 1.19", apiOf(policy.Kind), r.Kind.WithoutKyverno))
	case err != nil:
		return notInstalled(subject, reasonPolicyRefused, fmt.Sprintf("%s cannot be written, and is tried again within %s: %v", policy, maxRetryDelay, err))
	// The cache may lag and show more room than there is. The written policy decides.
	case r.Per == policies.PerNamespace && !now.installed.Has(subject):
		return r.namespaceFull(subject)
	case now.installed.HasEarlier(subject):
		return r.outgrown(subject)
	}
	if !known && now.recreatedAt.IsZero() && reportsInjected(subject, policy) {
		// After a restart, the checks of all objects are spread over the period.
		last = check{content: content, at: r.Clock.Now(), next: r.Clock.Now().Add(rand.N(checkPeriod)), inherited: true}
		r.checks.set(client.ObjectKeyFromObject(subject), last)
	}
	if last.at.Before(now.recreatedAt) {
		last = check{content: content}
	}
	old, hasOld := r.oldPolicy(ctx, subject)
	if r.due(last) || last.inherited && hasOld {
		return r.checkPolicy(ctx, subject, policy, content, now.at)
	}
	state := injected(subject, policy, max(time.Second, last.next.Sub(r.Clock.Now())))
	if hasOld {
		state.recheck, state.failed = r.replaceOld(ctx, subject, old)
	}
	return state
}

// apiOf returns the API version and the kind of policies.
func apiOf(kind policies.Kind) string {
	gvk := kind.GVK()
	return gvk.GroupVersion().String() + " " + gvk.Kind
}

// due returns true if the policy must be checked now.
func (r *Reconciler) due(last check) bool { return !r.Clock.Now().Before(last.next) }

// nextCheck returns the time until the next check of an object.
func nextCheck() time.Duration { return checkPeriod*4/5 + rand.N(checkPeriod*2/5) }

// checkPolicy checks the policy with a dry-run, and returns the new state.
func (r *Reconciler) checkPolicy(ctx context.Context, subject policies.Subject, policy policies.Ref, content string, written time.Time) installation {
	reason, err := r.probe(ctx, subject, policy)
	if err != nil {
		r.checks.set(client.ObjectKeyFromObject(subject), check{content: content})
		if age := r.Clock.Since(written); age < installTimeout {
			return notYetInjected(subject, policy, age)
		}
		return notInstalled(subject, reason, err.Error())
	}
	recheck := nextCheck()
	r.checks.set(client.ObjectKeyFromObject(subject), check{content: content, at: r.Clock.Now(), next: r.Clock.Now().Add(recheck)})
	if _, hasOld := r.oldPolicy(ctx, subject); hasOld {
		recheck = replaceDelay
	}
	return injected(subject, policy, recheck)
}

func injected(subject policies.Subject, policy policies.Ref, recheck time.Duration) installation {
	message := fmt.Sprintf("a dry-run shows that %s injects new pods", policy)
	return installation{condition: newCondition(subject, metav1.ConditionTrue, reasonInjected, message), recheck: recheck}
}

// notYetInjected returns the state before the first check that succeeds. It keeps a failure that the status already
// reports. Checks get rarer with the age of the policy, because each check makes the API server evaluate all webhooks.
func notYetInjected(subject policies.Subject, policy policies.Ref, age time.Duration) installation {
	recheck := min(max(minInstallingDelay, age/4), maxInstallingDelay)
	reported := meta.FindStatusCondition(subject.GetConditions(), v1.ConditionPolicyInstalled)
	if reported != nil && reported.ObservedGeneration == subject.GetGeneration() && (reported.Reason == reasonNotInjected || reported.Reason == reasonProbeRefused) {
		return installation{condition: *reported, recheck: recheck}
	}
	return installation{condition: installing(subject, policy), recheck: recheck}
}

func installing(subject policies.Subject, policy policies.Ref) metav1.Condition {
	return newCondition(subject, metav1.ConditionFalse, ReasonInstalling,
		fmt.Sprintf("no dry-run has shown yet that %s injects new pods", policy))
}

// reportsInjected returns true if the status reports that a check of this generation succeeded.
func reportsInjected(subject policies.Subject, policy policies.Ref) bool {
	reported := meta.FindStatusCondition(subject.GetConditions(), v1.ConditionPolicyInstalled)
	want := injected(subject, policy, 0).condition
	return reported != nil && reported.Status == want.Status && reported.ObservedGeneration == want.ObservedGeneration &&
		reported.Message == want.Message
}

// probe creates a pod of the object in a dry-run and checks the injected pod. The Ready condition of a policy is not
// enough: Kyverno sets it before all replicas serve the policy.
func (r *Reconciler) probe(ctx context.Context, subject policies.Subject, policy policies.Ref) (reason string, err error) {
	pod, err := policies.ProbePod(subject, r.Options)
	if err != nil {
		return reasonInvalidSpec, err
	}
	if err := r.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		problem := fmt.Errorf("new pods are rejected, as a dry-run shows: %s", sentence(err))
		if apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "yverno") { // for example by a quota
			return reasonProbeRefused, problem
		}
		return reasonProbeRefused, fmt.Errorf("%w. %s", problem, kyvernoHelp)
	}
	if err := policies.CheckProbe(pod, subject, policy); err != nil {
		problem := r.Kind.NotInjected
		switch {
		case errors.Is(err, policies.ErrNotFenced):
			problem = "new pods are not fenced"
		case errors.Is(err, policies.ErrNotQueued):
			problem = "new pods do not queue connections"
		}
		return reasonNotInjected, fmt.Errorf("%s, as a dry-run shows: %s. %s", problem, sentence(err), kyvernoHelp)
	}
	return "", nil
}

// sentence returns the message of an error without the final period. The messages of guards end with a period.
func sentence(err error) string { return strings.TrimSuffix(apply.OneLine(err.Error()), ".") }

// watch starts the watch of the policies once. Concurrent callers wait for the same start.
func (r *Reconciler) watch() error {
	_, err, _ := r.starting.Do("", func() (any, error) {
		if r.watched.Load() != nil {
			return nil, nil
		}
		watched, err := r.Watch()
		if err != nil {
			return nil, fmt.Errorf("watch the policies: %w", err)
		}
		r.watched.Store(&watched)
		return nil, nil
	})
	return err
}

func (r *Reconciler) forget(subject types.NamespacedName) {
	r.conditions.delete(subject)
	r.init()
	r.retries.Forget(subject)
	r.checks.delete(subject)
}

func notInstalled(subject policies.Subject, reason, message string) installation {
	return installation{condition: newCondition(subject, metav1.ConditionFalse, reason, message), failed: true}
}

func newCondition(subject policies.Subject, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: v1.ConditionPolicyInstalled, Status: status, Reason: reason, Message: apply.OneLine(message),
		ObservedGeneration: subject.GetGeneration(),
	}
}
