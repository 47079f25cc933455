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
	environment := startAPIServer(t)
	config := environment.Config
	config.WarningHandler = rest.NoWarnings{}
	c := newClient(t, config)
	createAPIServer(t, c)
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

// Only a pod that Kyverno should have prepared is rejected.
func testUnfenced(t *testing.T, config *rest.Config) {
	c := newClient(t, config)
	createNamespace(t, c, "fenced-locks")
	fenced := &v1.StatefulSetLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fenced-locks", Name: "db-lock"},
		Spec:       v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 15, Fencing: v1.LockFencingLease},
	}
	refused := fenced.DeepCopy()
	refused.Name, refused.Spec.StatefulSetName = "refused", "refused"
	for _, l := range []*v1.StatefulSetLock{fenced, refused} {
		create(t, c, l)
	}
	refused.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "SecondLock", LastTransitionTime: metav1.Now()}}
	if err := clientAs(t, config, controllerUser).Status().Update(t.Context(), refused); err != nil {
		t.Fatal(err)
	}
	pod := func(namespace, set string, change func(*corev1.Pod)) *corev1.Pod {
		p := podOf(namespace, map[string]string{"app": "db"})
		p.Spec.Containers[0].Command = []string{"db"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set, UID: "set", Controller: new(true)}}
		if change != nil {
			change(p)
		}
		return p
	}
	const want = "Kyverno has not prepared this pod for StatefulSetLock fenced-locks/db-lock, which has fencing Lease"
	waitForRefusal(t, c, pod("fenced-locks", "db", nil), want)
	for name, test := range map[string]struct {
		pod         *corev1.Pod
		wantRefused string
	}{
		"not prepared": {pod("fenced-locks", "db", nil), want},
		"too large for Kyverno": {pod("fenced-locks", "db", func(p *corev1.Pod) {
			p.Spec.InitContainers = podWith(policies.MaxContainers, 0).Spec.Containers
			for i := range p.Spec.InitContainers {
				p.Spec.InitContainers[i].ReadinessProbe = nil
			}
		}), fmt.Sprintf("Kyverno does not get pods of this size: the pod has %d containers", policies.MaxContainers+1)},
		"passes: another StatefulSet":                {pod: pod("fenced-locks", "web", nil)},
		"passes: a StatefulSet of another API group": {pod: pod("fenced-locks", "db", func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps.example.com/v1" })},
		"passes: no controller":                      {pod: pod("fenced-locks", "db", func(p *corev1.Pod) { p.OwnerReferences = nil })},
		"passes: without a command":                  {pod: pod("fenced-locks", "db", func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil })},
		"passes: shared processes":                   {pod: pod("fenced-locks", "db", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) })},
		"passes: of a refused lock":                  {pod: pod("fenced-locks", "refused", nil)},
		"passes: of a lock with another fencing":     {pod: pod("locks", "db", nil)},
		"passes: a namespace without locks":          {pod: pod("no-locks", "db", nil)},
	} {
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

// leaseOfLock returns a Lease that the lock owns.
func leaseOfLock(l *v1.StatefulSetLock, name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: l.Namespace, Name: name, Labels: map[string]string{v1.LockLabel: l.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l, v1.GroupVersion.WithKind("StatefulSetLock"))},
	}}
}

const leaseRefused = "only the StatefulSingleton controller writes and deletes the Lease of a StatefulSetLock"

func testWriterLease(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const refused = leaseRefused
	admin := newClient(t, config)
	lease := func(name string) *coordinationv1.Lease { return leaseOfLock(l, name) }
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

// testFencedWriterLease: the pod that the Lease names renews and releases it, and the controller never renews it.
func testFencedWriterLease(t *testing.T, config *rest.Config, l *v1.StatefulSetLock) {
	const (
		// States of the Lease.
		held, writes, unfenced, released = "held", "writes", "unfenced", "released"

		otherField = "the pod that this Lease names changes only spec.renewTime, spec.leaseDurationSeconds, spec.holderIdentity and annotation"
		either     = "the pod that this Lease names either renews it"
		never      = "does not renew a Lease that names <pod>_<uid>"
		epoch      = "has a higher epoch"

		renew    = `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":15}}`
		release  = `{"spec":{"holderIdentity":""}}`
		grant    = `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":4,"leaseDurationSeconds":20,"acquireTime":"2026-01-01T00:00:30.000000Z"}}`
		unfence  = `{"spec":{"holderIdentity":"db-1","leaseTransitions":4,"renewTime":"2026-01-01T00:00:30.000000Z"}}`
		uncommon = `{"spec":{"holderIdentity":"db-1_1","leaseTransitions":4}}`
	)
	with := func(field string) string { return renew[:len(renew)-2] + `,` + field + `}}` }
	writing := func(epoch, body string) string {
		return `{"metadata":{"annotations":{"apps.statefulsingleton.com/writing":` + epoch + `}},` + body[1:]
	}
	annotate := func(name, value string) string {
		return `{"metadata":{"annotations":{"apps.statefulsingleton.com/` + name + `":` + value + `}}}`
	}
	tests := map[string]struct {
		state       string
		user        leaseUser
		body        string
		wantRefused string
	}{
		"passes: holder renews":                    {held, holderPod, renew, ""},
		"passes: holder renews with another limit": {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":3600}}`, ""},
		"passes: holder begins to write":           {held, holderPod, writing(`"3"`, renew), ""},
		"passes: holder renews and writes":         {writes, holderPod, renew, ""},
		"passes: holder still writes":              {writes, holderPod, writing(`"3"`, renew), ""},
		"passes: holder releases":                  {held, holderPod, release, ""},
		"passes: holder releases after writing":    {writes, holderPod, release, ""},
		"holder writes with another epoch":         {held, holderPod, writing(`"4"`, renew), either},
		"holder writes with no epoch":              {held, holderPod, writing(`""`, renew), either},
		"holder stops to write":                    {writes, holderPod, writing(`null`, renew), otherField},
		"holder writes without a renewal":          {held, holderPod, annotate("writing", `"3"`), either},
		"holder releases and writes":               {held, holderPod, writing(`"3"`, release), either},
		"holder names another":                     {held, holderPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, either},
		"holder renews for another":                {held, holderPod, with(`"holderIdentity":"db-1_` + db1 + `"`), either},
		"holder renews at the same time":           {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":20}}`, either},
		"holder renews and releases":               {held, holderPod, with(`"holderIdentity":""`), either},
		"holder releases with another limit":       {held, holderPod, `{"spec":{"holderIdentity":"","leaseDurationSeconds":20}}`, either},
		"holder renews for too short":              {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":4}}`, either},
		"holder renews for too long":               {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":3601}}`, either},
		"holder renews without a limit":            {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":null}}`, either},
		"holder raises the epoch":                  {held, holderPod, with(`"leaseTransitions":4`), otherField},
		"holder acquires":                          {held, holderPod, with(`"acquireTime":"2026-01-01T00:00:20.000000Z"`), otherField},
		"holder is no longer revoked":              {held, holderPod, `{"metadata":{"annotations":{"apps.statefulsingleton.com/revoked":null}},` + renew[1:], otherField},
		"holder changes the writer":                {held, holderPod, `{"metadata":{"annotations":{"apps.statefulsingleton.com/writer-uid":"1"}},` + renew[1:], otherField},
		"holder labels":                            {held, holderPod, `{"metadata":{"labels":{"a":"b"}},` + renew[1:], otherField},
		"holder takes the label":                   {held, holderPod, `{"metadata":{"labels":null},` + renew[1:], otherField},
		"holder owns":                              {held, holderPod, `{"metadata":{"ownerReferences":null},` + renew[1:], otherField},

		"reader renews":             {held, standbyPod, renew, leaseRefused},
		"reader releases":           {held, standbyPod, release, leaseRefused},
		"reader takes":              {released, standbyPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, leaseRefused},
		"old holder renews":         {released, holderPod, renew, leaseRefused},
		"pod of the same name":      {held, leaseUser{podUser, "db-0", db1}, renew, leaseRefused},
		"token without a pod":       {held, leaseUser{name: podUser}, renew, leaseRefused},
		"without a holder":          {released, leaseUser{name: podUser}, renew, leaseRefused},
		"person renews":             {held, leasePerson, renew, leaseRefused},
		"unfenced holder renews":    {unfenced, holderPod, renew, leaseRefused},
		"kubelet releases":          {held, leaseUser{name: kubeletUser}, release, leaseRefused},
		"passes: person, no change": {held, leasePerson, `{}`, ""},

		"passes: controller grants":             {released, leaseController, grant, ""},
		"passes: controller grants to another":  {held, leaseController, grant, ""},
		"passes: controller fences":             {unfenced, leaseController, grant, ""},
		"passes: controller unfences":           {released, leaseController, unfence, ""},
		"passes: controller renews unfenced":    {unfenced, leaseController, renew, ""},
		"passes: controller expires":            {held, leaseController, `{"metadata":{"annotations":{"apps.statefulsingleton.com/expired":"` + db0 + `"}},"spec":{"holderIdentity":""}}`, ""},
		"passes: controller revokes":            {held, leaseController, annotate("revoked", `"4"`), ""},
		"passes: controller forgets who writes": {writes, leaseController, annotate("writing", "null"), ""},
		"controller renews":                     {held, leaseController, renew, never},
		"controller removes the renewal":        {held, leaseController, `{"spec":{"renewTime":null}}`, never},
		"controller grants and renews":          {released, leaseController, grant[:len(grant)-2] + `,"renewTime":"2026-01-01T00:00:30.000000Z"}}`, never},
		"controller writes":                     {held, leaseController, annotate("writing", `"3"`), never},
		"controller grants without an epoch":    {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, epoch},
		"controller grants with an old epoch":   {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":2}}`, epoch},
		"controller grants again":               {released, leaseController, `{"spec":{"holderIdentity":"db-0_` + db0 + `"}}`, epoch},
		"controller switches":                   {held, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, epoch},
		"controller lowers the epoch":           {held, leaseController, `{"spec":{"leaseTransitions":2}}`, epoch},
		"controller grants for too short":       {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":4,"leaseDurationSeconds":1}}`, epoch},
		"controller names less than a pod":      {released, leaseController, uncommon, epoch},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			lease := leaseOfLock(l, "")
			lease.GenerateName = "db-lease-"
			create(t, leaseController.client(t, config), lease)
			mustPatch(t, leaseController.client(t, config), lease, `{"metadata":{"annotations":{"apps.statefulsingleton.com/revoked":"2"}},
				"spec":{"holderIdentity":"db-0_`+db0+`","leaseTransitions":3,"acquireTime":"2026-01-01T00:00:00.000000Z"}}`)
			begin := `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":15}}`
			if test.state == writes {
				begin = writing(`"3"`, begin)
			}
			mustPatch(t, holderPod.client(t, config), lease, begin)
			switch test.state {
			case released:
				mustPatch(t, holderPod.client(t, config), lease, release)
			case unfenced:
				mustPatch(t, leaseController.client(t, config), lease, `{"spec":{"holderIdentity":"db-0"}}`)
			}
			err := test.user.client(t, config).Patch(t.Context(), lease.DeepCopy(), client.RawPatch(merge, []byte(test.body)))
			wantAnswer(t, err, test.wantRefused)
			wantChanged(t, config, lease, test.wantRefused == "" && test.body != `{}`)
		})
	}
	t.Run("created with a holder", func(t *testing.T) {
		lease := leaseOfLock(l, "created")
		lease.Spec.HolderIdentity = new("db-0")
		wantAnswer(t, leaseController.client(t, config).Create(t.Context(), lease, client.DryRunAll), "without a holder and an epoch")
	})
	t.Run("created with an epoch", func(t *testing.T) {
		lease := leaseOfLock(l, "created")
		lease.Spec.LeaseTransitions = new(int32(1))
		wantAnswer(t, leaseController.client(t, config).Create(t.Context(), lease, client.DryRunAll), "without a holder and an epoch")
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
