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
)

// TestLockGuards sends requests about StatefulSetLocks to an API server with all guards. Kyverno does not run.
func TestLockGuards(t *testing.T) {
	environment := startAPIServer(t)
	config := environment.Config
	config.WarningHandler = rest.NoWarnings{}
	c := newClient(t, config)
	for _, object := range helmTemplate(t, "templates/crd.yaml", "templates/guards.yaml", "templates/guards-writes.yaml", "templates/guards-controller.yaml",
		"templates/guards-leases.yaml", "templates/guards-locks.yaml") {
		create(t, c, object)
	}
	createNamespace(t, c, "locks")
	l := &v1.StatefulSetLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: "locks", Name: "db-lock"},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 15},
	}
	create(t, c, l)
	createNamespace(t, c, "no-locks")
	// The API server enforces the guards in their order, and a guard with parameters after it has read them.
	attested := l.DeepCopy()
	attested.ObjectMeta = metav1.ObjectMeta{Namespace: "locks", Name: "attested", Annotations: map[string]string{v1.AttestAnnotation: "1"}}
	waitForRefusal(t, c, attested, "must be the uid of the writer")
	waitForRefusal(t, c, lockedPod("locks", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), onlyController)
	t.Run("types", func(t *testing.T) { testTypes(t, c, environment.KubeConfig) })
	t.Run("created", func(t *testing.T) { testCreatedWriters(t, c) })
	t.Run("roles", func(t *testing.T) { testRoles(t, config) })
	t.Run("finalizer", func(t *testing.T) { testWriterFinalizer(t, config, l) })
	t.Run("lease", func(t *testing.T) { testWriterLease(t, config, l) })
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
	annotated := func(annotation string) *corev1.Pod {
		pod := lockedPod("locks", nil)
		pod.Annotations = map[string]string{annotation: "7"}
		return pod
	}
	tests := map[string]struct {
		pod         *corev1.Pod
		wantRefused string
	}{
		"a writer":                     {lockedPod("locks", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), onlyController},
		"a writer without a lock":      {podOf("locks", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}), onlyController},
		"had a tenure":                 {annotated(v1.TenureAnnotation), rolesRefused},
		"had a tenure that ended":      {annotated(v1.TenureEndedAnnotation), rolesRefused},
		"passes: a reader":             {pod: lockedPod("locks", nil)},
		"passes: no role":              {pod: podOf("locks", map[string]string{"app": "db"})},
		"passes: a writer of no locks": {pod: podOf("no-locks", map[string]string{v1.StsRoleLabel: v1.StsRoleWriter})},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, c.Create(t.Context(), test.pod, client.DryRunAll), test.wantRefused) })
	}
}

func testRoles(t *testing.T, config *rest.Config) {
	const (
		locked, unlocked, elsewhere = "locked", "unlocked", "elsewhere"

		becomeWriter = `{"metadata":{"labels":{"sts-role":"writer"}}}`
		becomeOther  = `{"metadata":{"labels":{"sts-role":"other"}}}`
		leave        = `{"metadata":{"labels":{"apps.statefulsingleton.com/lock":null}}}`
		join         = `{"metadata":{"labels":{"apps.statefulsingleton.com/lock":"db-lock"}}}`
		tenure       = `{"metadata":{"annotations":{"apps.statefulsingleton.com/tenure":"7"}}}`
		ended        = `{"metadata":{"annotations":{"apps.statefulsingleton.com/tenure-ended":"7"}}}`
		grant        = `{"metadata":{"labels":{"sts-role":"writer","apps.statefulsingleton.com/lock":"db-lock"},"annotations":{"apps.statefulsingleton.com/tenure":"7"}}}`
	)
	tests := map[string]struct {
		pod         string
		patch       patch
		wantRefused string
	}{
		"person: a writer":                      {locked, patch{personUser, "", merge, becomeWriter}, "only the StatefulSingleton controller"},
		"person: a writer, as status":           {locked, patch{personUser, "status", merge, becomeWriter}, "only the StatefulSingleton controller"},
		"person: another role":                  {locked, patch{personUser, "", merge, becomeOther}, rolesRefused},
		"person: leaves":                        {locked, patch{personUser, "", merge, leave}, rolesRefused},
		"person: joins":                         {unlocked, patch{personUser, "", merge, join}, rolesRefused},
		"person: a tenure":                      {locked, patch{personUser, "", merge, tenure}, rolesRefused},
		"person: a tenure that ended":           {unlocked, patch{personUser, "", merge, ended}, rolesRefused},
		"person: a writer without a lock":       {unlocked, patch{personUser, "", merge, becomeWriter}, onlyController},
		"namesake: a writer":                    {locked, patch{namesakeUser, "", merge, becomeWriter}, "only the StatefulSingleton controller"},
		"kubelet: a writer":                     {locked, patch{kubeletUser, "status", merge, becomeWriter}, "only the StatefulSingleton controller"},
		"passes: controller: a writer":          {pod: locked, patch: patch{controllerUser, "", strategic, grant}},
		"passes: controller: joins":             {pod: unlocked, patch: patch{controllerUser, "", strategic, grant}},
		"passes: controller: leaves":            {pod: locked, patch: patch{controllerUser, "", strategic, leave}},
		"passes: uninstall: leaves":             {pod: locked, patch: patch{uninstallUser, "", merge, leave}},
		"passes: person: another role, no lock": {pod: unlocked, patch: patch{personUser, "", merge, becomeOther}},
		"passes: person: a writer of no locks":  {pod: elsewhere, patch: patch{personUser, "", merge, becomeWriter}},
		"passes: person: another label":         {pod: locked, patch: patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}},
	}
	c := newClient(t, config)
	pods := map[string]func() *corev1.Pod{
		locked:    func() *corev1.Pod { return lockedPod("locks", nil) },
		unlocked:  func() *corev1.Pod { return podOf("locks", map[string]string{"app": "db"}) },
		elsewhere: func() *corev1.Pod { return podOf("no-locks", map[string]string{"app": "db"}) },
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := pods[test.pod]()
			create(t, c, pod)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
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
	const refused = "It keeps this pod until its termination is proven, because otherwise there could be two writers"
	letGo := func(user string) patch { return patch{user, "", merge, `{"metadata":{"finalizers":null}}`} }
	tests := map[string]struct {
		lock        string
		patch       patch
		wantRefused string
	}{
		"person":                  {l.Name, letGo(personUser), refused},
		"person, as status":       {l.Name, patch{personUser, "status", merge, `{"metadata":{"finalizers":null}}`}, refused},
		"namesake":                {l.Name, letGo(namesakeUser), refused},
		"passes: controller":      {lock: l.Name, patch: letGo(controllerUser)},
		"passes: uninstall":       {lock: l.Name, patch: letGo(uninstallUser)},
		"passes: lock is deleted": {lock: "gone", patch: letGo(personUser)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := protectedPod(t, config, test.lock)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
}

func testWriterLease(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const refused = "only the StatefulSingleton controller writes and deletes the Lease of a StatefulSetLock"
	admin := newClient(t, config)
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "locks", Name: name, Labels: map[string]string{v1.LockLabel: l.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l, v1.GroupVersion.WithKind("StatefulSetLock"))},
		}}
	}
	stored := lease("db-lease")
	create(t, clientAs(t, config, controllerUser), stored)
	const hold, take = `{"spec":{"holderIdentity":"db-0"}}`, `{"spec":{"holderIdentity":"db-1"}}`
	tests := map[string]struct {
		write       func() error
		wantRefused string
	}{
		"person creates":        {func() error { return admin.Create(t.Context(), lease("other"), client.DryRunAll) }, refused},
		"person names a writer": {func() error { return patch{personUser, "", merge, take}.apply(t, config, stored.DeepCopy()) }, refused},
		"person takes the label": {func() error {
			return patch{personUser, "", merge, `{"metadata":{"labels":null}}`}.apply(t, config, stored.DeepCopy())
		}, refused},
		"passes: person deletes an orphan": {func() error {
			orphan := lease("orphan")
			create(t, clientAs(t, config, controllerUser), orphan)
			mustPatch(t, clientAs(t, config, ownerCollector), orphan, `{"metadata":{"ownerReferences":null}}`)
			return admin.Delete(t.Context(), orphan, client.DryRunAll)
		}, ""},
		"passes: of another operator": {func() error {
			o := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "locks", Name: "theirs", OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "app.example.com/v1", Kind: "StatefulSetLock", Name: l.Name, UID: l.UID, Controller: new(true),
			}}}}
			return admin.Create(t.Context(), o)
		}, ""},
		"person deletes":           {func() error { return admin.Delete(t.Context(), stored.DeepCopy(), client.DryRunAll) }, refused},
		"passes: controller names": {func() error { return patch{controllerUser, "", merge, hold}.apply(t, config, stored.DeepCopy()) }, ""},
		"passes: person, another one": {func() error {
			o := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "locks", Name: "mine"}}
			return admin.Create(t.Context(), o)
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, test.write(), test.wantRefused) })
	}
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
	wantAnswer(t, patch{personUser, "status", merge, `{"status":{"writerPod":"me"}}`}.apply(t, config, l.DeepCopy()),
		"only the StatefulSingleton controller can change the status of a StatefulSingleton or a StatefulSetLock")
}

// testControllerDeletions: the controller deletes a pod only to end its tenure as the writer.
func testControllerDeletions(t *testing.T, config *rest.Config) {
	const refused = "deletes only pods of StatefulSetLocks whose tenure as the writer ends"
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	tests := map[string]struct {
		pod         *corev1.Pod
		marks       string
		wantRefused string
	}{
		"passes: its tenure ends": {lockedPod("locks", nil), `{"metadata":{"annotations":{"apps.statefulsingleton.com/tenure-ended":"7"}}}`, ""},
		"a writer":                {lockedPod("locks", nil), `{"metadata":{"labels":{"sts-role":"writer"},"annotations":{"apps.statefulsingleton.com/tenure-ended":"7"}}}`, refused},
		"a reader":                {lockedPod("locks", nil), "", refused},
		"a pod of no lock":        {podOf("locks", map[string]string{"app": "db"}), "", refused},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			create(t, admin, test.pod)
			if test.marks != "" {
				mustPatch(t, controller, test.pod, test.marks)
			}
			wantAnswer(t, controller.Delete(t.Context(), test.pod, client.DryRunAll), test.wantRefused)
		})
	}
}
