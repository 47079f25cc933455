package policies_test

import (
	"fmt"
	"maps"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// TestLockGuards sends requests about StatefulSetLocks to an API server with all guards. Kyverno does not run.
func TestLockGuards(t *testing.T) {
	config := controllerAPIServer(t).Config
	c := newClient(t, config)
	createNamespace(t, c, "locks")
	l := lockOf("locks", "db-lock")
	create(t, c, l)
	createNamespace(t, c, "no-locks")
	// The API server enforces the guards in their order, and a guard with parameters after it has read them.
	attested := lockOf("locks", "attested")
	attested.Annotations = map[string]string{v1.AttestAnnotation: "1"}
	waitForRefusal(t, c, attested, "must be the uid of the writer")
	waitForRefusal(t, c, lockedPod("locks", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), onlyController)
	t.Run("created", func(t *testing.T) { testCreatedWriters(t, c) })
	t.Run("unfenced", func(t *testing.T) { testUnfenced(t, config) })
	t.Run("roles", func(t *testing.T) { testRoles(t, config) })
	t.Run("finalizer", func(t *testing.T) { testWriterFinalizer(t, config, l) })
	t.Run("lease", func(t *testing.T) { testWriterLease(t, config, l) })
	t.Run("fenced lease", func(t *testing.T) { testFencedWriterLease(t, config, l) })
	t.Run("attestation", func(t *testing.T) { testWriterAttestation(t, config, l) })
	t.Run("deletions", func(t *testing.T) { testControllerDeletions(t, config) })
}

const (
	onlyController = "only the StatefulSingleton controller sets label sts-role=writer"
	rolesRefused   = "only the StatefulSingleton controller can change labels sts-role and apps.statefulsingleton.com/lock"
)

// lockedPod returns a pod of lock db-lock, with more labels.
func lockedPod(namespace string, more map[string]string) *corev1.Pod {
	pod := podOf(namespace, map[string]string{v1.LockLabel: "db-lock", v1.StsRoleLabel: v1.StsRoleReader})
	maps.Copy(pod.Labels, more)
	return pod
}

func testCreatedWriters(t *testing.T, c client.Client) {
	writer := map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}
	annotated := func(annotation string) *corev1.Pod {
		pod := lockedPod("locks", nil)
		pod.Annotations = map[string]string{annotation: "7"}
		return pod
	}
	for name, test := range map[string]struct {
		pod         *corev1.Pod
		wantRefused string
	}{
		"a writer":                     {lockedPod("locks", writer), onlyController},
		"a writer without a lock":      {podOf("locks", writer), onlyController},
		"had a tenure":                 {annotated(v1.TenureAnnotation), rolesRefused},
		"had a tenure that ended":      {annotated(v1.TenureEndedAnnotation), rolesRefused},
		"passes: a reader":             {lockedPod("locks", nil), ""},
		"passes: no role":              {podOf("locks", map[string]string{"app": "db"}), ""},
		"passes: a writer of no locks": {podOf("no-locks", writer), ""},
	} {
		t.Run(name, func(t *testing.T) { wantAnswer(t, tryCreate(t, c, test.pod), test.wantRefused) })
	}
}

// Only a pod that Kyverno should have prepared is rejected.
func testUnfenced(t *testing.T, config *rest.Config) {
	c := newClient(t, config)
	createNamespace(t, c, "fenced-locks")
	fenced := lockOf("fenced-locks", "db-lock")
	fenced.Spec.Fencing = v1.LockFencingLease
	refused := fenced.DeepCopy()
	refused.Name, refused.Spec.StatefulSetName = "refused", "refused"
	create(t, c, fenced, refused)
	refused.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "SecondLock", LastTransitionTime: metav1.Now()}}
	if err := clientAs(t, config, controllerUser).Status().Update(t.Context(), refused); err != nil {
		t.Fatal(err)
	}
	pod := func() *corev1.Pod {
		p := podOf("fenced-locks", map[string]string{"app": "db"})
		p.Spec.Containers[0].Command = []string{"db"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: new(true)}}
		return p
	}
	const want = "Kyverno has not prepared this pod for StatefulSetLock fenced-locks/db-lock, which has fencing Lease"
	waitForRefusal(t, c, pod(), want)
	wantCreations(t, c, pod, map[string]change[*corev1.Pod]{
		"not prepared": {nil, want},
		"too large for Kyverno": {func(p *corev1.Pod) {
			p.Spec.InitContainers = podWith(policies.MaxContainers, 0).Spec.Containers
			for i := range p.Spec.InitContainers {
				p.Spec.InitContainers[i].ReadinessProbe = nil
			}
		}, fmt.Sprintf("Kyverno does not get pods of this size: the pod has %d containers", policies.MaxContainers+1)},
		"passes: another StatefulSet":                {func(p *corev1.Pod) { p.OwnerReferences[0].Name = "web" }, ""},
		"passes: a StatefulSet of another API group": {func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps.example.com/v1" }, ""},
		"passes: no controller":                      {func(p *corev1.Pod) { p.OwnerReferences = nil }, ""},
		"passes: without a command":                  {func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil }, ""},
		"passes: shared processes":                   {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, ""},
		"passes: of a refused lock":                  {func(p *corev1.Pod) { p.OwnerReferences[0].Name = "refused" }, ""},
		"passes: of a lock with another fencing":     {func(p *corev1.Pod) { p.Namespace = "locks" }, ""},
		"passes: a namespace without locks":          {func(p *corev1.Pod) { p.Namespace = "no-locks" }, ""},
	})
}

// lockOf returns a StatefulSetLock for StatefulSet db.
func lockOf(namespace, name string) *v1.StatefulSetLock {
	l := dbLock.DeepCopy()
	l.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name}
	return l
}

func testRoles(t *testing.T, config *rest.Config) {
	const (
		becomeWriter = `{"metadata":{"labels":{"sts-role":"writer"}}}`
		becomeOther  = `{"metadata":{"labels":{"sts-role":"other"}}}`
		team         = `{"metadata":{"labels":{"team":"data"}}}`
		grant        = `{"metadata":{"labels":{"sts-role":"writer","apps.statefulsingleton.com/lock":"db-lock"},"annotations":{"apps.statefulsingleton.com/tenure":"7"}}}`
		// Two guards reject a writer of a lock.
		only = "only the StatefulSingleton controller"
	)
	leave, join, person := label("lock", "null"), label("lock", `"db-lock"`), as(personUser)
	locked, unlocked := lockedPod("locks", nil), podOf("locks", map[string]string{"app": "db"})
	elsewhere := podOf("no-locks", map[string]string{"app": "db"})
	create(t, newClient(t, config), locked, unlocked, elsewhere)
	wantAnswers(t, config, map[string]client.Object{"locked": locked, "unlocked": unlocked, "elsewhere": elsewhere}, []request{
		{"locked", as(personUser, namesakeUser, kubeletUser), "merge status/merge", bodies(becomeWriter), only},
		{"unlocked", person, "merge", bodies(becomeWriter), onlyController},
		{"locked", person, "merge", bodies(becomeOther, leave), rolesRefused},
		{"unlocked", person, "merge", bodies(join), rolesRefused},
		{"locked unlocked", person, "merge", bodies(annotate("tenure", `"7"`), annotate("tenure-ended", `"7"`)), rolesRefused},
		{"locked unlocked", as(controllerUser), "strategic", bodies(grant), ""},
		{"locked", as(controllerUser, uninstallUser), "strategic merge", bodies(leave), ""},
		{"unlocked", person, "merge", bodies(becomeOther), ""},
		{"elsewhere", person, "merge", bodies(becomeWriter), ""},
		{"locked", person, "merge", bodies(team), ""},
	})
}

// protectedPod creates a pod of the lock with the finalizer.
func protectedPod(t *testing.T, config *rest.Config, lock string) *corev1.Pod {
	t.Helper()
	pod := lockedPod("locks", map[string]string{v1.LockLabel: lock})
	create(t, newClient(t, config), pod)
	mustPatch(t, clientAs(t, config, controllerUser), pod, `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"]}}`)
	return pod
}

func testWriterFinalizer(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const (
		refused = "It keeps this pod until its termination is proven, because otherwise there could be two writers"
		letGo   = `{"metadata":{"finalizers":null}}`
	)
	wantAnswers(t, config, map[string]client.Object{"pod": protectedPod(t, config, l.Name), "gone": protectedPod(t, config, "gone")}, []request{
		{"pod", as(personUser, namesakeUser), "merge status/merge", bodies(letGo), refused},
		{"pod", as(controllerUser, uninstallUser), "merge", bodies(letGo), ""},
		{"gone", as(personUser), "merge", bodies(letGo), ""}, // the lock is deleted
	})
}

// leaseOfLock returns a Lease that the lock owns.
func leaseOfLock(l *v1.StatefulSetLock, name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: l.Namespace, Name: name, Labels: map[string]string{v1.LockLabel: l.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l, v1.GroupVersion.WithKind("StatefulSetLock"))},
	}}
}

const leaseRefused = "only the StatefulSingleton controller writes and deletes the Lease of a StatefulSetLock"

func testWriterLease(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	stored, orphan := leaseOfLock(l, "db-lease"), leaseOfLock(l, "orphan")
	create(t, controller, stored, orphan)
	mustPatch(t, clientAs(t, config, ownerCollector), orphan, noOwner)
	wantAnswers(t, config, map[string]client.Object{"stored": stored}, []request{
		{"stored", as(personUser), "merge", bodies(`{"spec":{"holderIdentity":"db-1"}}`, `{"metadata":{"labels":null}}`), leaseRefused},
		{"stored", as(controllerUser), "merge", bodies(`{"spec":{"holderIdentity":"db-0"}}`), ""},
	})
	wantAnswer(t, tryCreate(t, admin, leaseOfLock(l, "other")), leaseRefused)
	wantAnswer(t, admin.Delete(t.Context(), stored.DeepCopy(), client.DryRunAll), leaseRefused)
	wantAnswer(t, admin.Delete(t.Context(), orphan, client.DryRunAll), "")
	// A lock of another operator, and no lock.
	theirs := leaseOfLock(l, "theirs")
	theirs.Labels, theirs.OwnerReferences[0].APIVersion = nil, "app.example.com/v1"
	wantAnswer(t, tryCreate(t, admin, theirs), "")
	wantAnswer(t, tryCreate(t, admin, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "locks", Name: "mine"}}), "")
}

// testFencedWriterLease: the pod that the Lease names renews and releases it, and the controller never renews it.
func testFencedWriterLease(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const (
		otherField = "the pod that this Lease names changes only spec.renewTime, spec.leaseDurationSeconds, spec.holderIdentity and annotation"
		never      = "does not renew a Lease that names <pod>_<uid>"
		unfence    = `{"spec":{"holderIdentity":"db-1","leaseTransitions":4,"renewTime":"2026-01-01T00:00:30.000000Z"}}`
		begin      = `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":15}}`
	)
	// writing makes a write also set the epoch with which the pod writes.
	writing := func(epoch, body string) string { return bothOf(annotate("writing", epoch), body) }
	holder, controller := []user{holderPod}, []user{leaseController}
	objects := map[string]client.Object{}
	for _, state := range []string{"held", "writes", "unfenced", "released"} {
		lease := leaseOfLock(l, state)
		create(t, leaseController.client(t, config), lease)
		mustPatch(t, leaseController.client(t, config), lease, `{"metadata":{"annotations":{"apps.statefulsingleton.com/revoked":"2"}},
			"spec":{"holderIdentity":"db-0_`+db0+`","leaseTransitions":3,"acquireTime":"2026-01-01T00:00:00.000000Z"}}`)
		body := begin
		if state == "writes" {
			body = writing(`"3"`, begin)
		}
		mustPatch(t, holderPod.client(t, config), lease, body)
		switch state {
		case "released":
			mustPatch(t, holderPod.client(t, config), lease, releaseLease)
		case "unfenced":
			mustPatch(t, leaseController.client(t, config), lease, `{"spec":{"holderIdentity":"db-0"}}`)
		}
		objects[state] = lease
	}
	wantAnswers(t, config, objects, append(fencingRequests(otherField, leaseRefused, leaseRefused, never), []request{
		{"held writes", holder, "merge", bodies(writing(`"3"`, renewLease)), ""},
		{"writes", holder, "merge", bodies(renewLease, releaseLease), ""},
		{"held", holder, "merge", bodies(renewFor("2147483647")), eitherRenews},
		{"held", holder, "merge", bodies(writing(`"4"`, renewLease), writing(`""`, renewLease), annotate("writing", `"3"`),
			writing(`"3"`, releaseLease)), eitherRenews},
		{"writes", holder, "merge", bodies(writing("null", renewLease)), otherField},
		{"held", holder, "merge", bodies(bothOf(annotate("revoked", "null"), renewLease), bothOf(annotate("writer-uid", `"1"`), renewLease),
			bothOf(`{"metadata":{"labels":null}}`, renewLease)), otherField},
		{"unfenced", holder, "merge", bodies(renewLease), leaseRefused},
		{"unfenced", controller, "merge", bodies(grantLease, renewLease), ""},
		{"released", controller, "merge", bodies(unfence), ""},
		{"held", controller, "merge", bodies(annotate("revoked", `"4"`)), ""},
		{"writes", controller, "merge", bodies(annotate("writing", "null")), ""},
		{"held", controller, "merge", bodies(annotate("writing", `"3"`)), never},
		{"released", controller, "merge", bodies(`{"spec":{"holderIdentity":"db-1_`+db1+`","leaseTransitions":4,"leaseDurationSeconds":1}}`,
			`{"spec":{"holderIdentity":"db-1_1","leaseTransitions":4}}`), higherEpoch},
	}...))
	wantCreations(t, leaseController.client(t, config), func() *coordinationv1.Lease { return leaseOfLock(l, "created") }, map[string]change[*coordinationv1.Lease]{
		"created with a holder": {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("db-0") }, "without a holder and an epoch"},
		"created with an epoch": {func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32(1)) }, "without a holder and an epoch"},
	})
}

func testWriterAttestation(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const refused = "annotation apps.statefulsingleton.com/attest-terminated must be the uid of the writer of StatefulSetLock locks/db-lock"
	wantAnswer(t, attest("1").apply(t, config, l.DeepCopy()), refused+", which has no writer")
	recorded := l.DeepCopy()
	uid := types.UID("11111111-2222-3333-4444-555555555555")
	recorded.Status.WriterPod, recorded.Status.WriterPodUID = "db-0", uid
	if err := clientAs(t, config, controllerUser).Status().Update(t.Context(), recorded); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, attest("1").apply(t, config, l.DeepCopy()), refused+fmt.Sprintf(", which is pod db-0 with uid %s", uid))
	wantAnswer(t, attest(string(uid)).apply(t, config, l.DeepCopy()), "")
	const finalizers = `{"metadata":{"finalizers":%s}}`
	protect, release := fmt.Sprintf(finalizers, `["apps.statefulsingleton.com/policy"]`), fmt.Sprintf(finalizers, "null")
	mustPatch(t, clientAs(t, config, controllerUser), l.DeepCopy(), protect)
	wantAnswer(t, patch{personUser, "", merge, release}.apply(t, config, l.DeepCopy()), "only the controller can remove its finalizer from statefulsetlocks locks/db-lock")
	wantAnswer(t, patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}.apply(t, config, l.DeepCopy()), "")
	wantAnswer(t, patch{uninstallUser, "", merge, release}.apply(t, config, l.DeepCopy()), "")
	mustPatch(t, clientAs(t, config, controllerUser), l.DeepCopy(), protect)
	if err := clientAs(t, config, controllerUser).Get(t.Context(), client.ObjectKeyFromObject(l), recorded); err != nil {
		t.Fatal(err)
	}
	recorded.Status.WriterPod, recorded.Status.WriterPodUID = "", ""
	if err := clientAs(t, config, controllerUser).Status().Update(t.Context(), recorded); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, patch{personUser, "", merge, release}.apply(t, config, l.DeepCopy()), "")
	wantAnswer(t, patch{personUser, "status", merge, `{"status":{"writerPod":"me"}}`}.apply(t, config, l.DeepCopy()),
		"only the StatefulSingleton controller can change the status of a StatefulSingleton or a StatefulSetLock")
}

// testControllerDeletions: the controller deletes a pod only to end its tenure as the writer.
func testControllerDeletions(t *testing.T, config *rest.Config) {
	const refused = "deletes only pods of StatefulSetLocks whose tenure as the writer ends"
	const writerEnds = `{"metadata":{"labels":{"sts-role":"writer"},"annotations":{"apps.statefulsingleton.com/tenure-ended":"7"}}}`
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	for name, test := range map[string]struct {
		pod                *corev1.Pod
		marks, wantRefused string
	}{
		"passes: its tenure ends": {lockedPod("locks", nil), annotate("tenure-ended", `"7"`), ""},
		"a writer":                {lockedPod("locks", nil), writerEnds, refused},
		"a reader":                {lockedPod("locks", nil), "", refused},
		"a pod of no lock":        {podOf("locks", map[string]string{"app": "db"}), "", refused},
	} {
		t.Run(name, func(t *testing.T) {
			create(t, admin, test.pod)
			if test.marks != "" {
				mustPatch(t, controller, test.pod, test.marks)
			}
			wantAnswer(t, controller.Delete(t.Context(), test.pod, client.DryRunAll), test.wantRefused)
		})
	}
}
