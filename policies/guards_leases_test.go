package policies_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	ownerCollector  = "system:serviceaccount:kube-system:generic-garbage-collector"
	namespaceWorker = "system:serviceaccount:kube-system:namespace-controller"
	allControllers  = "system:kube-controller-manager"

	// db-0 holds the Lease, and db-1 is a standby. Their ServiceAccount is the same.
	podUser  = "system:serviceaccount:leases:db"
	db0, db1 = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
)

// leaseUser is a user, and the pod of its token.
type leaseUser struct{ name, pod, uid string }

var (
	holderPod       = leaseUser{podUser, "db-0", db0}
	standbyPod      = leaseUser{podUser, "db-1", db1}
	leasePerson     = leaseUser{name: personUser}
	leaseController = leaseUser{controllerUser, "controller-0", "33333333-3333-4333-8333-333333333333"}
)

// client returns a client for the user, with the fields that the API server reads from the token of a pod. RBAC allows
// all requests.
func (u leaseUser) client(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	impersonating := rest.CopyConfig(config)
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: []string{"system:masters"}, Extra: map[string][]string{}}
	if u.pod != "" {
		impersonating.Impersonate.Extra["authentication.kubernetes.io/pod-name"] = []string{u.pod}
	}
	if u.uid != "" {
		impersonating.Impersonate.Extra["authentication.kubernetes.io/pod-uid"] = []string{u.uid}
	}
	return newClient(t, impersonating)
}

// TestLeaseGuards sends writes of Leases as different users, on an API server with all guards.
func TestLeaseGuards(t *testing.T) {
	environment := startAPIServer(t)
	config := environment.Config
	config.WarningHandler = rest.NoWarnings{}
	c := newClient(t, config)
	createAPIServer(t, c)
	createNamespace(t, c, "leases")
	for _, object := range helmTemplate(t, "templates/crd.yaml", "templates/rbac.yaml", "templates/guards.yaml", "templates/guards-writes.yaml",
		"templates/guards-controller.yaml", "templates/guards-leases.yaml") {
		create(t, c, object)
	}
	waitForGuard(t, func() error {
		return leasePerson.client(t, config).Create(t.Context(), leaseOf("leases", "db"), client.DryRunAll)
	})
	t.Run("types", func(t *testing.T) { testTypes(t, c, environment.KubeConfig) })
	t.Run("creations", func(t *testing.T) { testLeaseCreations(t, config) })
	t.Run("writes", func(t *testing.T) { testLeaseWrites(t, config) })
	t.Run("deletions", func(t *testing.T) { testLeaseDeletions(t, config) })
	t.Run("of a node", func(t *testing.T) { testLeaseOfNode(t, config) })
	t.Run("token", func(t *testing.T) { testLeaseToken(t, config) })
	t.Run("requests for tokens", func(t *testing.T) { testTokenRequests(t, config) })
	t.Run("collected", func(t *testing.T) { testLeaseCollected(t, config, environment.KubeConfig) })
}

func testLeaseCreations(t *testing.T, config *rest.Config) {
	const (
		refused = "only the StatefulSingleton controller creates a Lease with a name that begins with statefulsingleton-"
		filled  = "creates a Lease without a holder, an epoch and times"
	)
	now := metav1.NowMicro()
	tests := map[string]struct {
		user        leaseUser
		change      func(*coordinationv1.Lease)
		wantRefused string
	}{
		"passes: controller":               {leaseController, func(*coordinationv1.Lease) {}, ""},
		"passes: controller, no spec":      {leaseController, func(l *coordinationv1.Lease) { l.Spec = coordinationv1.LeaseSpec{} }, ""},
		"passes: controller, empty values": {leaseController, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Spec.LeaseTransitions = new(""), new(int32(0)) }, ""},
		"with a holder":                    {leaseController, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("db-0_" + db0) }, filled},
		"with an epoch":                    {leaseController, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32(1)) }, filled},
		"with a renewal":                   {leaseController, func(l *coordinationv1.Lease) { l.Spec.RenewTime = &now }, filled},
		"acquired":                         {leaseController, func(l *coordinationv1.Lease) { l.Spec.AcquireTime = &now }, filled},
		"too short":                        {leaseController, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(4)) }, filled},
		"person":                           {leasePerson, func(*coordinationv1.Lease) {}, refused},
		"person, a name from a prefix":     {leasePerson, func(l *coordinationv1.Lease) { l.Name, l.GenerateName = "", "statefulsingleton-" }, refused},
		"pod":                              {holderPod, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("db-0_" + db0) }, refused},
		"namesake":                         {leaseUser{name: namesakeUser}, func(*coordinationv1.Lease) {}, refused},
		"uninstaller":                      {leaseUser{name: uninstallUser}, func(*coordinationv1.Lease) {}, refused},
		"garbage collector":                {leaseUser{name: ownerCollector}, func(*coordinationv1.Lease) {}, refused},
		"in an exempt namespace":           {leasePerson, func(l *coordinationv1.Lease) { l.Namespace = metav1.NamespaceSystem }, refused},
		"passes: another name":             {leasePerson, func(l *coordinationv1.Lease) { l.Name = "statefulsingleton" }, ""},
		"passes: in the middle":            {leasePerson, func(l *coordinationv1.Lease) { l.Name = "my-statefulsingleton-db" }, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("leases", "db")
			test.change(lease)
			wantAnswer(t, test.user.client(t, config).Create(t.Context(), lease, client.DryRunAll), test.wantRefused)
		})
	}
}

func testLeaseWrites(t *testing.T, config *rest.Config) {
	const (
		// States of the Lease.
		held, released, unset = "held", "released", "unset"

		onlyTwo    = "only the StatefulSingleton controller and the pod that this Lease names change it. It names "
		namesDB0   = onlyTwo + "db-0_" + db0 + ", and this request is from "
		otherField = "the pod that this Lease names changes only spec.renewTime, spec.leaseDurationSeconds and spec.holderIdentity"
		either     = "the pod that this Lease names either renews it"
		metadata   = "in the metadata of this Lease"
		never      = "It never renews the Lease"
		epoch      = "has a higher epoch"

		renew   = `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":15}}`
		release = `{"spec":{"holderIdentity":""}}`
		grant   = `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":4,"leaseDurationSeconds":20,"acquireTime":"2026-01-01T00:00:30.000000Z"}}`
	)
	with := func(field string) string { return renew[:len(renew)-2] + `,` + field + `}}` }
	tests := map[string]struct {
		state       string
		user        leaseUser
		body        string
		wantRefused string
	}{
		"passes: holder renews":                    {held, holderPod, renew, ""},
		"passes: holder renews with another limit": {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":3600}}`, ""},
		"passes: holder renews by one microsecond": {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:10.000001Z"}}`, ""},
		"passes: holder releases":                  {held, holderPod, release, ""},
		"passes: holder removes the field":         {held, holderPod, `{"spec":{"holderIdentity":null}}`, ""},
		"holder names another":                     {held, holderPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, either},
		"holder renews for another":                {held, holderPod, with(`"holderIdentity":"db-1_` + db1 + `"`), either},
		"holder changes nothing":                   {held, holderPod, `{}`, either},
		"holder renews at the same time":           {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":20}}`, either},
		"holder removes the renewal":               {held, holderPod, `{"spec":{"renewTime":null}}`, either},
		"holder renews and releases":               {held, holderPod, with(`"holderIdentity":""`), either},
		"holder releases with another limit":       {held, holderPod, `{"spec":{"holderIdentity":"","leaseDurationSeconds":20}}`, either},
		"holder renews for too short":              {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":4}}`, either},
		"holder renews for too long":               {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":3601}}`, either},
		"holder renews without a limit":            {held, holderPod, `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":null}}`, either},
		"holder raises the epoch":                  {held, holderPod, with(`"leaseTransitions":4`), otherField},
		"holder removes the epoch":                 {held, holderPod, with(`"leaseTransitions":null`), otherField},
		"holder acquires":                          {held, holderPod, with(`"acquireTime":"2026-01-01T00:00:20.000000Z"`), otherField},
		"holder retires":                           {held, holderPod, `{"metadata":{"annotations":{"apps.statefulsingleton.com/retire":"` + db0 + `"}},` + renew[1:], otherField},
		"holder forgets to retire":                 {held, holderPod, `{"metadata":{"annotations":null},` + renew[1:], otherField},
		"holder labels":                            {held, holderPod, `{"metadata":{"labels":{"a":"b"}},` + renew[1:], otherField},
		"holder owns":                              {held, holderPod, `{"metadata":{"ownerReferences":null},` + renew[1:], otherField},
		"holder finalizes":                         {held, holderPod, `{"metadata":{"finalizers":["example.com/mine"]},` + renew[1:], otherField},

		"standby renews":                 {held, standbyPod, renew, namesDB0 + "db-1_" + db1},
		"standby releases":               {held, standbyPod, release, namesDB0},
		"standby takes":                  {held, standbyPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, namesDB0},
		"standby takes the released":     {released, standbyPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, onlyTwo + "no pod"},
		"standby takes one without spec": {unset, standbyPod, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, onlyTwo + "no pod"},
		"old holder renews":              {released, holderPod, renew, onlyTwo + "no pod"},
		"old holder takes":               {released, holderPod, `{"spec":{"holderIdentity":"db-0_` + db0 + `"}}`, onlyTwo + "no pod"},
		"pod of the same name":           {held, leaseUser{podUser, "db-0", db1}, renew, namesDB0},
		"pod with the uid alone":         {held, leaseUser{podUser, "", db0}, renew, namesDB0},
		"pod with the name alone":        {held, leaseUser{podUser, "db-0", ""}, renew, namesDB0},
		"another pod with the uid":       {held, leaseUser{podUser, "db-1", db0}, renew, namesDB0},
		"token without a pod":            {held, leaseUser{name: podUser}, renew, namesDB0 + "user " + podUser},
		"token without a pod, released":  {released, leaseUser{name: podUser}, renew, onlyTwo + "no pod"},
		"person renews":                  {held, leasePerson, renew, namesDB0 + "user a-person"},
		"person releases":                {held, leasePerson, release, namesDB0},
		"person names":                   {released, leasePerson, grant, onlyTwo + "no pod"},
		"person annotates":               {held, leasePerson, `{"metadata":{"annotations":{"a":"b"}}}`, namesDB0},
		"person expires":                 {held, leasePerson, `{"metadata":{"annotations":{"apps.statefulsingleton.com/expired":"` + db0 + `"}}}`, namesDB0},
		"person disowns":                 {held, leasePerson, `{"metadata":{"ownerReferences":null}}`, namesDB0},
		"namesake releases":              {held, leaseUser{name: namesakeUser}, release, namesDB0},
		"uninstaller releases":           {held, leaseUser{name: uninstallUser}, release, namesDB0},
		"kubelet renews":                 {held, leaseUser{name: kubeletUser}, renew, namesDB0},
		"passes: person changes nothing": {held, leasePerson, `{}`, ""},

		"passes: controller retires":           {held, leaseController, `{"metadata":{"annotations":{"apps.statefulsingleton.com/retire":"` + db0 + `"}}}`, ""},
		"passes: controller retires no longer": {held, leaseController, `{"metadata":{"annotations":{"apps.statefulsingleton.com/retire":null}}}`, ""},
		"passes: controller expires":           {held, leaseController, `{"metadata":{"annotations":{"apps.statefulsingleton.com/expired":"` + db0 + `"}},"spec":{"holderIdentity":""}}`, ""},
		"passes: controller removes":           {held, leaseController, `{"spec":{"holderIdentity":null}}`, ""},
		"passes: controller grants":            {released, leaseController, grant, ""},
		"passes: controller grants at first":   {unset, leaseController, grant, ""},
		"passes: controller grants to another": {held, leaseController, grant, ""},
		"passes: controller raises the epoch":  {held, leaseController, `{"spec":{"leaseTransitions":9}}`, ""},
		"controller grants without an epoch":   {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, epoch},
		"controller grants with an old epoch":  {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":2}}`, epoch},
		"controller grants again":              {released, leaseController, `{"spec":{"holderIdentity":"db-0_` + db0 + `"}}`, epoch},
		"controller switches":                  {held, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`, epoch},
		"controller lowers the epoch":          {held, leaseController, `{"spec":{"leaseTransitions":2}}`, epoch},
		"controller removes the epoch":         {released, leaseController, `{"spec":{"leaseTransitions":null}}`, epoch},
		"controller renews":                    {held, leaseController, renew, never},
		"controller grants and renews":         {released, leaseController, grant[:len(grant)-2] + `,"renewTime":"2026-01-01T00:00:30.000000Z"}}`, never},
		"controller removes the renewal":       {held, leaseController, `{"spec":{"renewTime":null}}`, never},
		"controller grants for too short":      {released, leaseController, `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":4,"leaseDurationSeconds":1}}`, never},
		"controller names no pod":              {released, leaseController, `{"spec":{"holderIdentity":"db-1","leaseTransitions":4}}`, never},
		"controller names less than a pod":     {released, leaseController, `{"spec":{"holderIdentity":"_","leaseTransitions":4}}`, never},
		"controller annotates":                 {held, leaseController, `{"metadata":{"annotations":{"a":"b"}}}`, metadata},
		"controller removes an annotation":     {held, leaseController, `{"metadata":{"annotations":{"theirs":null}}}`, metadata},
		"controller labels":                    {held, leaseController, `{"metadata":{"labels":{"a":"b"}}}`, metadata},
		"controller changes the owner":         {held, leaseController, `{"metadata":{"ownerReferences":[{"apiVersion":"apps.statefulsingleton.com/v1","kind":"StatefulSingleton","name":"db","uid":"` + db0 + `","controller":true}]}}`, metadata},
		"controller finalizes":                 {held, leaseController, `{"metadata":{"finalizers":["example.com/mine"]}}`, metadata},

		"passes: garbage collector disowns":           {held, leaseUser{name: ownerCollector}, `{"metadata":{"ownerReferences":null}}`, ""},
		"passes: garbage collector finalizes":         {held, leaseUser{name: ownerCollector}, `{"metadata":{"finalizers":["example.com/a"]}}`, ""},
		"passes: garbage collector of other clusters": {held, leaseUser{name: allControllers}, `{"metadata":{"ownerReferences":null}}`, ""},
		"garbage collector releases":                  {held, leaseUser{name: ownerCollector}, `{"metadata":{"ownerReferences":null},` + release[1:], namesDB0},
		"garbage collector annotates":                 {held, leaseUser{name: ownerCollector}, `{"metadata":{"ownerReferences":null,"annotations":null}}`, namesDB0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			lease := createLease(t, config, "leases", "db")
			if test.state != unset {
				mustPatch(t, leaseController.client(t, config), lease, `{"metadata":{"annotations":{"apps.statefulsingleton.com/retire":"`+db1+`"}},
					"spec":{"holderIdentity":"db-0_`+db0+`","leaseTransitions":3,"acquireTime":"2026-01-01T00:00:00.000000Z"}}`)
				mustPatch(t, holderPod.client(t, config), lease, `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":15}}`)
			}
			if test.state == released {
				mustPatch(t, holderPod.client(t, config), lease, release)
			}
			err := test.user.client(t, config).Patch(t.Context(), lease.DeepCopy(), client.RawPatch(merge, []byte(test.body)))
			wantAnswer(t, err, test.wantRefused)
			wantChanged(t, config, lease, test.wantRefused == "" && test.body != `{}`)
		})
	}
	t.Run("applied", func(t *testing.T) {
		body := `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",` + grant[1:]
		wantAnswer(t, patch{personUser, "", serverSide, body}.apply(t, config, createLease(t, config, "leases", "db")), onlyTwo)
	})
	t.Run("passes: another name", func(t *testing.T) {
		lease := leaseOf("leases", "db")
		lease.Name = "db"
		create(t, newClient(t, config), lease)
		wantAnswer(t, patch{personUser, "", merge, grant}.apply(t, config, lease), "")
	})
}

func testLeaseDeletions(t *testing.T, config *rest.Config) {
	const refused = "only the StatefulSingleton controller and the garbage collector delete this Lease"
	for name, test := range map[string]struct {
		user        leaseUser
		wantRefused string
	}{
		"passes: controller":                          {leaseController, ""},
		"passes: garbage collector":                   {leaseUser{name: ownerCollector}, ""},
		"passes: namespace controller":                {leaseUser{name: namespaceWorker}, ""},
		"passes: garbage collector of other clusters": {leaseUser{name: allControllers}, ""},
		"person":           {leasePerson, refused},
		"holder":           {holderPod, refused},
		"namesake":         {leaseUser{name: namesakeUser}, refused},
		"uninstaller":      {leaseUser{name: uninstallUser}, refused},
		"pod collector":    {leaseUser{name: garbageCollector}, refused},
		"its name, nearby": {leaseUser{name: "system:serviceaccount:leases:generic-garbage-collector"}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			lease, c := createLease(t, config, "leases", "db"), test.user.client(t, config)
			wantAnswer(t, c.Delete(t.Context(), lease.DeepCopy(), client.DryRunAll), test.wantRefused)
			wantAnswer(t, c.DeleteAllOf(t.Context(), lease.DeepCopy(), client.InNamespace("leases"),
				client.MatchingFields{"metadata.name": lease.Name}, client.DryRunAll), test.wantRefused)
		})
	}
	for name, owners := range map[string]string{
		"passes: person, without an owner":   `null`,
		"passes: person, with another owner": `[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			lease := createLease(t, config, "leases", "db")
			mustPatch(t, leaseUser{name: ownerCollector}.client(t, config), lease, `{"metadata":{"ownerReferences":`+owners+`}}`)
			wantAnswer(t, leasePerson.client(t, config).Delete(t.Context(), lease), "")
		})
	}
}

// testLeaseOfNode: the name of a node can begin with statefulsingleton-.
func testLeaseOfNode(t *testing.T, config *rest.Config) {
	kubelet := leaseUser{name: "system:node:statefulsingleton-1"}.client(t, config)
	lease := leaseOf(corev1.NamespaceNodeLease, "1")
	lease.OwnerReferences, lease.Spec.HolderIdentity = nil, new("statefulsingleton-1")
	create(t, kubelet, lease)
	mustPatch(t, kubelet, lease, `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z"}}`)
	wantAnswer(t, leasePerson.client(t, config).Delete(t.Context(), lease), "")
}

// testLeaseToken: with the Role and RoleBinding that the controller may create, the pods of a ServiceAccount read and watch
// their Lease. With the token of the named pod they renew it.
func testLeaseToken(t *testing.T, config *rest.Config) {
	const namespace = "lease-token"
	admin := newClient(t, config)
	createNamespace(t, admin, namespace)
	create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}})
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"db-0", "db-1"} {
		pod := bare(namespace, nil)
		pod.Name, pod.Spec.ServiceAccountName = name, "db"
		create(t, admin, pod)
		pods[name] = pod
	}
	limited := rest.CopyConfig(config)
	limited.Impersonate = rest.ImpersonationConfig{UserName: controllerUser, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	controller := newClient(t, limited)
	lease := leaseOf(namespace, "db")
	role, binding := roleOf(namespace, "db"), roleBindingOf(namespace, "db")
	create(t, controller, role)
	create(t, controller, binding)
	create(t, controller, lease)
	mustPatch(t, controller, lease, fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseTransitions":1}}`, signal.HolderIdentity("db-0", string(pods["db-0"].UID))))
	const renewed = `{"spec":{"renewTime":"2026-01-01T00:00:%d0.000000Z","leaseDurationSeconds":15}}`
	tests := map[string]struct {
		pod         *corev1.Pod
		wantRefused string
	}{
		"passes: of the holder": {pods["db-0"], ""},
		"of a standby":          {pods["db-1"], "It names db-0_" + string(pods["db-0"].UID) + ", and this request is from db-1_" + string(pods["db-1"].UID)},
		"of no pod":             {nil, "and this request is from user system:serviceaccount:lease-token:db"},
	}
	i := 0
	for name, test := range tests {
		i++
		t.Run(name, func(t *testing.T) {
			c := clientWithToken(t, config, namespace, test.pod)
			// The API server reads the RoleBinding with a delay.
			waitUntil(t, "the pods can read the Lease", func(ctx context.Context) bool {
				return c.Get(ctx, client.ObjectKeyFromObject(lease), &coordinationv1.Lease{}) == nil
			})
			watch, err := c.Watch(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": lease.Name})
			if err != nil {
				t.Fatalf("watch the Lease: %v", err)
			}
			watch.Stop()
			wantAnswer(t, c.Patch(t.Context(), lease.DeepCopy(), client.RawPatch(merge, fmt.Appendf(nil, renewed, i))), test.wantRefused)
			if err := c.Delete(t.Context(), lease.DeepCopy()); !apierrors.IsForbidden(err) {
				t.Errorf("delete the Lease: %v, want Forbidden", err)
			}
			if err := c.List(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
				t.Errorf("list all Leases: %v, want Forbidden", err)
			}
		})
	}
}

// testTokenRequests: a token with the claims of a pod can release the Lease of the pod.
func testTokenRequests(t *testing.T, config *rest.Config) {
	const namespace = "token-requests"
	admin := newClient(t, config)
	createNamespace(t, admin, namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
	create(t, admin, account)
	pod := bare(namespace, nil)
	pod.Spec.ServiceAccountName = account.Name
	create(t, admin, pod)
	const driver = "system:serviceaccount:kube-system:secrets-driver"
	for user, role := range map[string]string{kubeletUser: "system:node", driver: "system:aggregate-to-edit"} {
		create(t, admin, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "token-requests-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})
	}
	create(t, admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "token-requests"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: personUser}},
	})
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	tests := map[string]struct {
		user        string
		bound       *authenticationv1.BoundObjectReference
		wantRefused string
	}{
		"passes: a kubelet":                      {kubeletUser, bound, ""},
		"passes: a driver, in all namespaces":    {driver, bound, ""},
		"passes: a person, of no pod":            {personUser, nil, ""},
		"a person with the ClusterRole edit":     {personUser, bound, "only a kubelet, or a user who can request tokens in all namespaces"},
		"a person, by the name of the pod alone": {personUser, &authenticationv1.BoundObjectReference{Kind: "Pod", Name: pod.Name}, "only a kubelet"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			limited := rest.CopyConfig(config)
			limited.Impersonate = rest.ImpersonationConfig{UserName: test.user, Groups: []string{"system:authenticated"}}
			c := newClient(t, limited)
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: test.bound}}
			// The API server reads the ClusterRoleBinding with a delay.
			waitUntil(t, "RBAC allows the request", func(context.Context) bool {
				unbound := &authenticationv1.TokenRequest{}
				return c.SubResource("token").Create(t.Context(), account.DeepCopy(), unbound) == nil
			})
			wantAnswer(t, c.SubResource("token").Create(t.Context(), account.DeepCopy(), request), test.wantRefused)
		})
	}
}

// clientWithToken returns a client with a token of ServiceAccount db, which is bound to the pod. RBAC limits its requests.
func clientWithToken(t *testing.T, config *rest.Config, namespace string, pod *corev1.Pod) client.WithWatch {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
	if err := newClient(t, config).SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatalf("request a token: %v", err)
	}
	withToken := rest.AnonymousClientConfig(config)
	withToken.BearerToken = request.Status.Token
	return newClient(t, withToken)
}

// testLeaseCollected runs the garbage collector and the namespace controller of Kubernetes.
func testLeaseCollected(t *testing.T, config *rest.Config, kubeconfig []byte) {
	startControllers(t, kubeconfig, "garbage-collector-controller,namespace-controller", "--use-service-account-credentials")
	admin := newClient(t, config)
	collect := map[string]func(*testing.T, *v1.StatefulSingleton) error{
		"background": func(t *testing.T, s *v1.StatefulSingleton) error {
			return admin.Delete(t.Context(), s, client.PropagationPolicy(metav1.DeletePropagationBackground))
		},
		"foreground": func(t *testing.T, s *v1.StatefulSingleton) error {
			return admin.Delete(t.Context(), s, client.PropagationPolicy(metav1.DeletePropagationForeground))
		},
		"namespace": func(t *testing.T, s *v1.StatefulSingleton) error {
			return admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}})
		},
	}
	for name, remove := range collect {
		t.Run(name, func(t *testing.T) {
			s, lease := createOwned(t, config, "lease-"+name)
			if err := remove(t, s); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, "the Lease is deleted", func(ctx context.Context) bool {
				return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(lease), lease))
			})
		})
	}
	t.Run("orphan", func(t *testing.T) {
		s, lease := createOwned(t, config, "lease-orphan")
		if err := admin.Delete(t.Context(), s, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the StatefulSingleton is deleted", func(ctx context.Context) bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(s), s))
		})
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil || len(lease.OwnerReferences) != 0 {
			t.Errorf("the Lease has owners %v, error %v", lease.OwnerReferences, err)
		}
	})
}

// createOwned creates a StatefulSingleton and its Lease, which names a pod.
func createOwned(t *testing.T, config *rest.Config, namespace string) (*v1.StatefulSingleton, *coordinationv1.Lease) {
	t.Helper()
	s := createSingleton(t, newClient(t, config), namespace, readSingleton(t, "default"))
	lease := leaseOf(namespace, s.Name)
	lease.OwnerReferences[0].UID = s.UID
	controller := leaseController.client(t, config)
	create(t, controller, lease)
	mustPatch(t, controller, lease, `{"spec":{"holderIdentity":"db-0_`+db0+`","leaseTransitions":1}}`)
	return s, lease
}

// leaseOf returns a Lease as the controller creates it.
func leaseOf(namespace, singleton string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: ownedBy(namespace, singleton),
		Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(15))},
	}
}

// roleOf returns the Role with which pods renew the Lease of the singleton.
func roleOf(namespace, singleton string) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: ownedBy(namespace, singleton),
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{signal.LeaseName(singleton)},
			Verbs: []string{"get", "watch", "list", "patch"},
		}},
	}
}

// roleBindingOf binds roleOf to ServiceAccount db.
func roleBindingOf(namespace, singleton string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: ownedBy(namespace, singleton),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: signal.LeaseName(singleton)},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "db"}},
	}
}

func ownedBy(namespace, singleton string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: signal.LeaseName(singleton),
		Labels: map[string]string{v1.SingletonLabel: singleton},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: singleton, UID: types.UID(db1), Controller: new(true),
		}},
	}
}

// createLease creates the Lease as the controller, and deletes it at the end.
func createLease(t *testing.T, config *rest.Config, namespace, singleton string) *coordinationv1.Lease {
	t.Helper()
	lease := leaseOf(namespace, singleton)
	lease.Spec, lease.Annotations = coordinationv1.LeaseSpec{}, map[string]string{"theirs": "yes"}
	create(t, leaseController.client(t, config), lease)
	t.Cleanup(func() {
		collector := leaseUser{name: ownerCollector}.client(t, config)
		gone := lease.DeepCopy()
		err := collector.Patch(context.Background(), gone, client.RawPatch(merge, []byte(`{"metadata":{"finalizers":null}}`)))
		if err == nil {
			err = collector.Delete(context.Background(), gone)
		}
		if client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return lease
}

// mustPatch patches the object, which is then as the API server stores it.
func mustPatch(t *testing.T, c client.Client, object client.Object, body string) {
	t.Helper()
	if err := c.Patch(t.Context(), object, client.RawPatch(merge, []byte(body))); err != nil {
		t.Fatalf("patch %s with %s: %v", client.ObjectKeyFromObject(object), body, err)
	}
}

func waitUntil(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	})
	if err != nil {
		t.Fatalf("waited until %s: %v", what, err)
	}
}
