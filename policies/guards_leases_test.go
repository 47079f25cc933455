package policies_test

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

var (
	holderPod       = user{podUser, "db-0", db0}
	standbyPod      = user{podUser, "db-1", db1}
	leasePerson     = user{name: personUser}
	leaseController = user{controllerUser, "controller-0", "33333333-3333-4333-8333-333333333333"}
)

// TestLeaseGuards sends writes of Leases as different users, on an API server with all guards.
func TestLeaseGuards(t *testing.T) {
	environment := controllerAPIServer(t)
	config := environment.Config
	createNamespace(t, newClient(t, config), "leases")
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
		user        user
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
		"namesake":                         {user{name: namesakeUser}, func(*coordinationv1.Lease) {}, refused},
		"uninstaller":                      {user{name: uninstallUser}, func(*coordinationv1.Lease) {}, refused},
		"garbage collector":                {user{name: ownerCollector}, func(*coordinationv1.Lease) {}, refused},
		"in an exempt namespace":           {leasePerson, func(l *coordinationv1.Lease) { l.Namespace = metav1.NamespaceSystem }, refused},
		"passes: another name":             {leasePerson, func(l *coordinationv1.Lease) { l.Name = "statefulsingleton" }, ""},
		"passes: in the middle":            {leasePerson, func(l *coordinationv1.Lease) { l.Name = "my-statefulsingleton-db" }, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			lease := leaseOf("leases", "db")
			test.change(lease)
			wantAnswer(t, tryCreate(t, test.user.client(t, config), lease), test.wantRefused)
		})
	}
}

// Writes of a Lease that db-0 holds.
const (
	renewLease   = `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":15}}`
	releaseLease = `{"spec":{"holderIdentity":""}}`
	grantLease   = `{"spec":{"holderIdentity":"db-1_` + db1 + `","leaseTransitions":4,"leaseDurationSeconds":20,"acquireTime":"2026-01-01T00:00:30.000000Z"}}`
	takeLease    = `{"spec":{"holderIdentity":"db-1_` + db1 + `"}}`
	expireLease  = `{"metadata":{"annotations":{"apps.statefulsingleton.com/expired":"` + db0 + `"}},` + `"spec":{"holderIdentity":""}}`
	noOwner      = `{"metadata":{"ownerReferences":null}}`

	eitherRenews = "the pod that this Lease names either renews it"
	higherEpoch  = "has a higher epoch"
)

// renewWith renews the Lease and sets fields of its spec.
func renewWith(fields string) string { return renewLease[:len(renewLease)-2] + "," + fields + "}}" }

// renewFor renews the Lease for another time.
func renewFor(seconds string) string {
	return `{"spec":{"renewTime":"2026-01-01T00:00:20.000000Z","leaseDurationSeconds":` + seconds + `}}`
}

// bothOf adds the fields of two JSON objects, which have no field in common.
func bothOf(a, b string) string { return a[:len(a)-1] + "," + b[1:] }

// fencingRequests are requests about the Lease of a StatefulSingleton or of a StatefulSetLock that both answer in the same way.
func fencingRequests(otherField, notHolder, noHolder, never string) []request {
	holder, standby, controller := []user{holderPod}, []user{standbyPod}, []user{leaseController}
	return []request{
		{"held", as(personUser), "merge", bodies(renewLease), notHolder},
		{"held", holder, "merge", bodies(renewLease, renewFor("3600"), releaseLease), ""},
		{"held", holder, "merge", bodies(takeLease, renewWith(`"holderIdentity":"db-1_`+db1+`"`), renewWith(`"holderIdentity":""`),
			`{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":20}}`, `{"spec":{"holderIdentity":"","leaseDurationSeconds":20}}`,
			renewFor("4"), renewFor("3601"), renewFor("2147483646"), renewFor("null")), eitherRenews},
		{"held", holder, "merge", bodies(renewWith(`"leaseTransitions":4`), renewWith(`"acquireTime":"2026-01-01T00:00:20.000000Z"`),
			bothOf(`{"metadata":{"labels":{"a":"b"}}}`, renewLease), bothOf(noOwner, renewLease)), otherField},

		{"held", standby, "merge", bodies(renewLease, releaseLease), notHolder},
		{"released", standby, "merge", bodies(takeLease), noHolder},
		{"released", holder, "merge", bodies(renewLease), noHolder},
		// A pod of the same name, and tokens of no pod.
		{"held", []user{{podUser, "db-0", db1}, {name: podUser}, {name: kubeletUser}}, "merge", bodies(renewLease, releaseLease), notHolder},
		{"released", as(podUser), "merge", bodies(renewLease), noHolder},
		{"held", as(personUser), "merge", bodies(`{}`), ""},

		{"released held", controller, "merge", bodies(grantLease), ""},
		{"held", controller, "merge", bodies(expireLease), ""},
		{"released", controller, "merge", bodies(takeLease, `{"spec":{"holderIdentity":"db-1_`+db1+`","leaseTransitions":2}}`,
			`{"spec":{"holderIdentity":"db-0_`+db0+`"}}`), higherEpoch},
		{"held", controller, "merge", bodies(takeLease, `{"spec":{"leaseTransitions":2}}`), higherEpoch},
		{"held", controller, "merge", bodies(renewLease, `{"spec":{"renewTime":null}}`), never},
		{"released", controller, "merge", bodies(grantLease[:len(grantLease)-2] + `,"renewTime":"2026-01-01T00:00:30.000000Z"}}`), never},
	}
}

func testLeaseWrites(t *testing.T, config *rest.Config) {
	const (
		onlyTwo    = "only the StatefulSingleton controller and the pod that this Lease names change it. It names "
		namesDB0   = onlyTwo + "db-0_" + db0 + ", and this request is from "
		noPod      = onlyTwo + "no pod"
		otherField = "the pod that this Lease names changes only annotation"
		others     = "in the metadata of this Lease"
		never      = "It never renews the Lease"
		finalize   = `{"metadata":{"finalizers":["example.com/mine"]}}`
	)
	holder, standby, controller, collector := []user{holderPod}, []user{standbyPod}, []user{leaseController}, as(ownerCollector)
	objects := map[string]client.Object{}
	for _, state := range []string{"held", "released", "unset"} {
		lease := leaseOf("leases", state)
		lease.Spec, lease.Annotations = coordinationv1.LeaseSpec{}, map[string]string{"theirs": "yes"}
		create(t, leaseController.client(t, config), lease)
		if state != "unset" {
			mustPatch(t, leaseController.client(t, config), lease, `{"metadata":{"annotations":{"apps.statefulsingleton.com/retire":"`+db1+`"}},
				"spec":{"holderIdentity":"db-0_`+db0+`","leaseTransitions":3,"acquireTime":"2026-01-01T00:00:00.000000Z"}}`)
			mustPatch(t, holderPod.client(t, config), lease, `{"spec":{"renewTime":"2026-01-01T00:00:10.000000Z","leaseDurationSeconds":15}}`)
		}
		if state == "released" {
			mustPatch(t, holderPod.client(t, config), lease, releaseLease)
		}
		objects[state] = lease
	}
	wantAnswers(t, config, objects, append(fencingRequests(otherField, namesDB0, noPod, never), []request{
		{"held", holder, "merge", bodies(`{"spec":{"renewTime":"2026-01-01T00:00:10.000001Z"}}`, renewFor("2147483647"), `{"spec":{"holderIdentity":null}}`,
			bothOf(annotate("queue", `"{}"`), renewLease), bothOf(annotate("queue", "null"), renewLease)), ""},
		{"held", holder, "merge", bodies(`{}`, `{"spec":{"renewTime":null}}`, annotate("queue", `"{}"`)), eitherRenews},
		{"held", holder, "merge", bodies(bothOf(annotate("queue", `"`+strings.Repeat("1", 4097)+`"`), renewLease)), "more than 4096 characters"},
		{"held", holder, "merge", bodies(renewWith(`"leaseTransitions":null`), bothOf(annotate("retire", `"`+db0+`"`), renewLease),
			bothOf(annotate("next", `"`+db0+`"`), renewLease), bothOf(annotate("shutdown-delay", `"1"`), renewLease),
			bothOf(`{"metadata":{"annotations":null}}`, renewLease), bothOf(finalize, renewLease)), otherField},

		{"held", standby, "merge", bodies(renewLease), namesDB0 + "db-1_" + db1},
		{"held", standby, "merge", bodies(takeLease), namesDB0},
		{"unset", standby, "merge", bodies(takeLease), noPod},
		{"released", holder, "merge", bodies(`{"spec":{"holderIdentity":"db-0_` + db0 + `"}}`), noPod},
		{"held", []user{{podUser, "", db0}, {podUser, "db-0", ""}, {podUser, "db-1", db0}}, "merge", bodies(renewLease), namesDB0},
		{"held", as(podUser), "merge", bodies(renewLease), namesDB0 + "user " + podUser},
		{"held", as(personUser), "merge", bodies(renewLease), namesDB0 + "user a-person"},
		{"held", as(personUser, namesakeUser, uninstallUser), "merge",
			bodies(releaseLease, `{"metadata":{"annotations":{"a":"b"}}}`, annotate("expired", `"`+db0+`"`),
				annotate("next", `"`+db1+`"`), annotate("queue", `"{}"`), noOwner), namesDB0},
		{"released unset", as(personUser), "merge apply", bodies(grantLease), noPod},

		{"held", controller, "merge", bodies(annotate("retire", `"`+db0+`"`), annotate("retire", "null"), `{"spec":{"holderIdentity":null}}`,
			annotate("next", `"`+db1+`"`), annotate("shutdown-delay", `"2000"`),
			`{"spec":{"leaseTransitions":9}}`), ""},
		{"unset", controller, "merge", bodies(grantLease), ""},
		{"released", controller, "merge", bodies(`{"spec":{"leaseTransitions":null}}`), higherEpoch},
		{"released", controller, "merge", bodies(`{"spec":{"holderIdentity":"db-1_`+db1+`","leaseTransitions":4,"leaseDurationSeconds":1}}`,
			`{"spec":{"holderIdentity":"db-1","leaseTransitions":4}}`, `{"spec":{"holderIdentity":"_","leaseTransitions":4}}`), never},
		{"held", controller, "merge", bodies(`{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"annotations":{"theirs":null}}}`, annotate("queue", `"{}"`),
			`{"metadata":{"labels":{"a":"b"}}}`, finalize,
			`{"metadata":{"ownerReferences":[{"apiVersion":"apps.statefulsingleton.com/v1","kind":"StatefulSingleton","name":"held","uid":"`+db0+`","controller":true}]}}`), others},

		{"held", as(ownerCollector, allControllers), "merge", bodies(noOwner), ""},
		{"held", collector, "merge", bodies(`{"metadata":{"finalizers":["example.com/a"]}}`), ""},
		{"held", collector, "merge", bodies(bothOf(noOwner, releaseLease), `{"metadata":{"ownerReferences":null,"annotations":null}}`), namesDB0},
	}...))
	t.Run("passes: another name", func(t *testing.T) {
		lease := leaseOf("leases", "db")
		lease.Name = "db"
		create(t, newClient(t, config), lease)
		wantAnswer(t, patch{personUser, "", merge, grantLease}.apply(t, config, lease), "")
	})
}

func testLeaseDeletions(t *testing.T, config *rest.Config) {
	const refused = "only the StatefulSingleton controller and the garbage collector delete this Lease"
	lease := leaseOf("leases", "deleted")
	create(t, leaseController.client(t, config), lease)
	for refused, users := range map[string][]user{
		"": append(as(ownerCollector, namespaceWorker, allControllers), leaseController),
		refused: append(as(personUser, namesakeUser, uninstallUser, garbageCollector, "system:serviceaccount:leases:generic-garbage-collector"),
			holderPod),
	} {
		for _, user := range users {
			t.Run(user.name, func(t *testing.T) {
				c := user.client(t, config)
				wantAnswer(t, c.Delete(t.Context(), lease.DeepCopy(), client.DryRunAll), refused)
				wantAnswer(t, c.DeleteAllOf(t.Context(), lease.DeepCopy(), client.InNamespace("leases"),
					client.MatchingFields{"metadata.name": lease.Name}, client.DryRunAll), refused)
			})
		}
	}
	for _, owners := range []string{`[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]`, `null`} {
		t.Run("passes: a person, with the owners "+owners, func(t *testing.T) {
			mustPatch(t, clientAs(t, config, ownerCollector), lease, `{"metadata":{"ownerReferences":`+owners+`}}`)
			wantAnswer(t, clientAs(t, config, personUser).Delete(t.Context(), lease, client.DryRunAll), "")
		})
	}
}

// testLeaseOfNode: the name of a node can begin with statefulsingleton-.
func testLeaseOfNode(t *testing.T, config *rest.Config) {
	kubelet := user{name: "system:node:statefulsingleton-1"}.client(t, config)
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
			eventually(t, "read the Lease", func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(lease), &coordinationv1.Lease{}) })
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
			eventually(t, "request a token of no pod", func() error {
				return c.SubResource("token").Create(t.Context(), account.DeepCopy(), &authenticationv1.TokenRequest{})
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
	waitUntilGone := func(t *testing.T, object client.Object) {
		t.Helper()
		eventually(t, "delete "+object.GetName(), func() error {
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is still there, or unknown: %w", err)
			}
			return nil
		})
	}
	for _, propagation := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		t.Run(string(propagation), func(t *testing.T) {
			s, lease := createOwned(t, config, "lease-"+strings.ToLower(string(propagation)))
			if err := admin.Delete(t.Context(), s, client.PropagationPolicy(propagation)); err != nil {
				t.Fatal(err)
			}
			if propagation != metav1.DeletePropagationOrphan {
				waitUntilGone(t, lease)
				return
			}
			waitUntilGone(t, s)
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil || len(lease.OwnerReferences) != 0 {
				t.Errorf("the Lease has owners %v, error %v", lease.OwnerReferences, err)
			}
		})
	}
	t.Run("namespace", func(t *testing.T) {
		s, lease := createOwned(t, config, "lease-namespace")
		if err := admin.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}); err != nil {
			t.Fatal(err)
		}
		waitUntilGone(t, lease)
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

// mustPatch patches the object, which is then as the API server stores it.
func mustPatch(t *testing.T, c client.Client, object client.Object, body string) {
	t.Helper()
	if err := c.Patch(t.Context(), object, client.RawPatch(merge, []byte(body))); err != nil {
		t.Fatalf("patch %s with %s: %v", client.ObjectKeyFromObject(object), body, err)
	}
}
