package policies_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	clusterManagerUser = controllerUser + "-clusters"
	withClusters       = "statefulClusters.enabled=true"

	onlyManager = "only the manager of StatefulClusters creates a pod with label apps.statefulsingleton.com/cluster"
	notMember   = "a new pod of a StatefulCluster has"
	notPending  = "lists pod db-0 as Active and not as Pending"
	removed     = "does not list pod db-2 in status.members"
	noNumber    = "with a number of at most 10 digits"
)

// reportAPIServer returns an API server with the guards of status and of StatefulClusters.
func reportAPIServer(t *testing.T) *envtest.Environment {
	t.Helper()
	return sharedAPIServer(t, "reports", func(t *testing.T, environment *envtest.Environment) {
		c := newClient(t, environment.Config)
		createAPIServer(t, c)
		install(t, c, "--set", withClusters, "--set-json", `guards.kubeletUsers=["`+otherKubelet+`"]`, "crd.yaml", "guards.yaml", "guards-writes.yaml",
			"guards-controller.yaml", "guards-status.yaml", "guards-clusters.yaml")
		createNamespace(t, c, "clusters")
		cluster := createCluster(t, environment.Config, "db")
		// The API server enforces the guards in their order, and a guard with parameters after it has read them.
		waitForRefusal(t, clientAs(t, environment.Config, clusterManagerUser), newMember(cluster, "db-0"), notPending)
	})
}

// TestClusterGuards sends requests about StatefulClusters to an API server with all guards.
func TestClusterGuards(t *testing.T) {
	config := reportAPIServer(t).Config
	c, cluster := newClient(t, config), &v1.StatefulCluster{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "clusters", Name: "db"}, cluster); err != nil {
		t.Fatal(err)
	}
	t.Run("created", func(t *testing.T) { testCreatedMembers(t, config, cluster) })
	t.Run("marks", func(t *testing.T) { testMemberMarks(t, config, cluster) })
	t.Run("claims", func(t *testing.T) { testClaimLabels(t, config) })
	t.Run("finalizer", func(t *testing.T) { testMemberFinalizer(t, config, cluster) })
	t.Run("record", func(t *testing.T) { testMemberRecord(t, config) })
	t.Run("attestation", func(t *testing.T) { testMemberAttestation(t, config) })
	t.Run("manager", func(t *testing.T) { testClusterManager(t, config, cluster) })
	t.Run("exempt namespace", func(t *testing.T) {
		exempt := dbCluster()
		exempt.Namespace, exempt.UID, exempt.Spec.Template = metav1.NamespaceSystem, "", cluster.Spec.Template
		wantAnswer(t, tryCreate(t, c, exempt), "a StatefulCluster cannot be in namespace kube-system")
	})
	t.Run("definition", func(t *testing.T) {
		wantAnswer(t, c.Delete(t.Context(), definition("statefulclusters."+v1.GroupVersion.Group), client.DryRunAll), "cannot be deleted while the guards are installed")
	})
}

// dbCluster returns StatefulCluster db, without a template.
func dbCluster() *v1.StatefulCluster {
	return &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "cluster"},
		Spec: v1.StatefulClusterSpec{
			Selector:    v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			ServiceName: "db",
		},
	}
}

const memberUID = "11111111-2222-3333-4444-555555555555"

// createCluster creates a StatefulCluster whose record has an Active member 0, a Pending member 1, no member 2, and a Pending member
// whose number is too large.
func createCluster(t *testing.T, config *rest.Config, name string) *v1.StatefulCluster {
	t.Helper()
	cluster := dbCluster()
	cluster.Namespace, cluster.Name, cluster.UID = "clusters", name, ""
	if name == "" {
		cluster.GenerateName = "db-"
	}
	cluster.Spec.Template = runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"db","image":"debian"}]}}`)}
	create(t, newClient(t, config), cluster)
	cluster.Status = v1.StatefulClusterStatus{Next: 3, Members: []v1.ClusterMember{
		{Name: cluster.Name + "-0", UID: memberUID, State: v1.MemberActive, Revision: "1"},
		{Name: cluster.Name + "-1", State: v1.MemberPending, Revision: "1"},
		{Name: cluster.Name + "-12345678901", State: v1.MemberPending, Revision: "1"},
	}}
	if err := clientAs(t, config, clusterManagerUser).Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// newMember returns a pod as the manager of StatefulClusters creates it.
func newMember(cluster *v1.StatefulCluster, name string) *corev1.Pod {
	pod := podOf(cluster.Namespace, map[string]string{"app": "db", v1.ClusterLabel: cluster.Name})
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Name, pod.GenerateName = name, ""
	pod.Finalizers = []string{v1.MemberFinalizer}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulCluster", Name: cluster.Name, UID: cluster.UID, Controller: new(true),
	}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1.MemberGate}}
	pod.Spec.Containers[0].Command = []string{"db"}
	return pod
}

func testCreatedMembers(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) {
	unmarked := func(p *corev1.Pod) { p.OwnerReferences, p.Labels, p.Finalizers = nil, nil, nil }
	onlyLabel := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			unmarked(p)
			p.Labels = map[string]string{v1.ClusterLabel: value}
		}
	}
	foreignOwner := func(p *corev1.Pod) {
		owners := p.OwnerReferences
		unmarked(p)
		p.OwnerReferences = owners
		p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "v1", "ConfigMap"
	}
	type pod = corev1.Pod
	gateless := "and the scheduling gate of that name"
	for name, test := range map[string]struct {
		user, name  string
		change      func(*pod)
		wantRefused string
	}{
		"passes: Pending":                        {clusterManagerUser, "db-1", nil, ""},
		"passes: the record can be newer":        {clusterManagerUser, "db-3", nil, ""},
		"Active":                                 {clusterManagerUser, "db-0", nil, notPending},
		"removed":                                {clusterManagerUser, "db-2", nil, removed},
		"another name":                           {clusterManagerUser, "mysql-1", nil, noNumber},
		"no number":                              {clusterManagerUser, "db-x", nil, noNumber},
		"Pending, but the number is too large":   {clusterManagerUser, "db-12345678901", nil, noNumber},
		"a person":                               {personUser, "db-1", nil, onlyManager},
		"a namesake":                             {namesakeUser + "-clusters", "db-1", nil, onlyManager},
		"the uninstaller":                        {uninstallUser, "db-1", nil, onlyManager},
		"no finalizer":                           {clusterManagerUser, "db-1", func(p *pod) { p.Finalizers = nil }, notMember},
		"no scheduling gate":                     {clusterManagerUser, "db-1", func(p *pod) { p.Spec.SchedulingGates = nil }, gateless},
		"another scheduling gate":                {clusterManagerUser, "db-1", func(p *pod) { p.Spec.SchedulingGates[0].Name = "example.com/theirs" }, gateless},
		"no label of the StatefulCluster":        {clusterManagerUser, "db-1", func(p *pod) { delete(p.Labels, v1.ClusterLabel) }, notMember},
		"the label of another StatefulCluster":   {clusterManagerUser, "db-1", func(p *pod) { p.Labels[v1.ClusterLabel] = "other" }, notMember},
		"the controller":                         {controllerUser, "db-1", nil, onlyManager},
		"passes: no mark":                        {personUser, "db-1", unmarked, ""},
		"passes: no mark, owner of another kind": {personUser, "db-1", foreignOwner, ""},
		"a person, only the label":               {personUser, "db-1", onlyLabel("db"), onlyManager},
		"a person, a label without a value":      {personUser, "db-1", onlyLabel(""), onlyManager},
		"a person, a number that is too long":    {personUser, "db-99999999999", onlyLabel("db"), onlyManager},
		"a person, only the finalizer":           {personUser, "db-1", func(p *pod) { unmarked(p); p.Finalizers = []string{v1.MemberFinalizer} }, onlyManager},
		"a person, the UID of the StatefulCluster in an owner of another kind": {personUser, "db-1", func(p *pod) {
			foreignOwner(p)
			p.Labels = map[string]string{v1.ClusterLabel: "db"}
		}, onlyManager},
		"a person, not the controller":     {personUser, "db-1", func(p *pod) { p.OwnerReferences[0].Controller = nil }, onlyManager},
		"a person, owner of another group": {personUser, "db-1", func(p *pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }, onlyManager},
		"passes: the API server does not know the StatefulCluster": {clusterManagerUser, "new-0", func(p *pod) {
			p.OwnerReferences[0].Name, p.Labels[v1.ClusterLabel] = "new", "new"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newMember(cluster, test.name)
			if test.change != nil {
				test.change(pod)
			}
			wantAnswer(t, tryCreate(t, clientAs(t, config, test.user), pod), test.wantRefused)
		})
	}
}

// members counts the names that createMember has used. The record has not reached these names.
var members = 1000

// createMember stores a member of the StatefulCluster.
func createMember(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) *corev1.Pod {
	t.Helper()
	members++
	pod := newMember(cluster, fmt.Sprintf("%s-%d", cluster.Name, members))
	create(t, clientAs(t, config, clusterManagerUser), pod)
	return pod
}

func testMemberMarks(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) {
	const (
		gateRefused = "only the manager of StatefulClusters removes scheduling gate apps.statefulsingleton.com/member"
		markRefused = "only the manager of StatefulClusters makes a StatefulCluster the owner of a pod"

		ungate  = `{"spec":{"schedulingGates":null}}`
		serve   = `{"status":{"conditions":[{"type":"apps.statefulsingleton.com/serving","status":"True"}]}}`
		ready   = `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
		protect = `{"metadata":{"finalizers":["apps.statefulsingleton.com/member"]}}`
		team    = `{"metadata":{"labels":{"team":"data"}}}`
	)
	leave, join, change := label("cluster", "null"), label("cluster", `"db"`), annotate("images-changed", `"{}"`)
	own := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"StatefulCluster","name":"db","uid":%q,"controller":true}]}}`, v1.GroupVersion, cluster.UID)
	plain, forged := podOf("clusters", map[string]string{"app": "web"}), podOf("clusters", map[string]string{"app": "web"})
	// The owner has the UID of the StatefulCluster, and is of another API group.
	forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "StatefulCluster", Name: cluster.Name, UID: cluster.UID, Controller: new(true)}}
	create(t, newClient(t, config), plain, forged)
	person, manager, kubelet := as(personUser), as(clusterManagerUser), as(kubeletUser)
	wantAnswers(t, config, map[string]client.Object{"member": createMember(t, config, cluster), "plain": plain, "forged": forged}, []request{
		{"member", as(personUser, uninstallUser), "merge", bodies(ungate), gateRefused},
		{"member", as(controllerUser), "merge", bodies(ungate), "demo-statefulsingleton-"},
		{"member", person, "merge status/merge", bodies(leave), markRefused},
		{"member", person, "merge", bodies(change), markRefused},
		{"member", as(personUser, kubeletUser), "status/strategic", bodies(serve), markRefused},
		{"plain", person, "merge", bodies(join, own, protect), markRefused},
		{"forged", person, "merge", bodies(own), markRefused},
		{"member", as(personUser, clusterManagerUser), "status/strategic", bodies(phaseFailed), onlyKubeletEnds},
		{"member", manager, "merge", bodies(ungate, change), ""},
		{"member", manager, "status/strategic", bodies(serve), ""},
		{"member", kubelet, "status/strategic", bodies(ready), ""},
		{"member", as(ownerCollector), "merge", bodies(noOwner), ""},
		{"member plain", person, "merge", bodies(team), ""},
	})
}

// claimOf returns a claim with labels.
func claimOf(namespace string, labels map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "data-", Labels: labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// testClaimLabels: with the label of another StatefulCluster, a claim would be given to a second pod, or be deleted while its pod
// runs.
func testClaimLabels(t *testing.T, config *rest.Config) {
	const refused = "label apps.statefulsingleton.com/cluster of a claim that exists cannot be set"
	labelled, plain := claimOf("clusters", map[string]string{v1.ClusterLabel: "db"}), claimOf("clusters", nil)
	create(t, newClient(t, config), labelled, plain)
	wantAnswers(t, config, map[string]client.Object{"labelled": labelled, "plain": plain}, []request{
		{"labelled plain", as(personUser, "admin"), "merge", bodies(label("cluster", `"web"`)), refused},
		{"labelled", as(personUser), "merge", bodies(label("cluster", "null"), `{"metadata":{"labels":{"team":"data"}}}`), ""},
	})
}

func testMemberFinalizer(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) {
	const (
		refused = "It keeps this pod until its end is recorded, because otherwise a second pod could use its claims"
		letGo   = `{"metadata":{"finalizers":null}}`
	)
	gone := cluster.DeepCopy()
	gone.Name = "gone"
	wantAnswers(t, config, map[string]client.Object{"member": createMember(t, config, cluster), "gone": createMember(t, config, gone)}, []request{
		{"member", as(personUser), "merge status/merge", bodies(letGo), refused},
		{"member", as(controllerUser), "merge", bodies(letGo), "demo-statefulsingleton-"},
		{"member", as(clusterManagerUser, uninstallUser), "merge", bodies(letGo), ""},
		{"gone", as(personUser), "merge", bodies(letGo), ""},
		{"member", as(personUser), "merge", bodies(`{"metadata":{"finalizers":["apps.statefulsingleton.com/member","example.com/mine"]}}`), ""},
	})
}

// testMemberRecord: only the manager writes the status.
func testMemberRecord(t *testing.T, config *rest.Config) {
	const (
		notTheirs = "only the manager of StatefulClusters can change the status of a StatefulCluster"
		count     = `{"status":{"next":9}}`
		isReady   = `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Mine","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
		forget    = `{"status":{"members":[],"next":4}}`
	)
	wantAnswers(t, config, map[string]client.Object{"cluster": createCluster(t, config, "")}, []request{
		{"cluster", as(personUser, uninstallUser, controllerUser), "status/merge", bodies(count, isReady), notTheirs},
		{"cluster", as(clusterManagerUser), "status/merge", bodies(count, isReady, forget), ""},
	})
}

func testMemberAttestation(t *testing.T, config *rest.Config) {
	const refused = "annotation apps.statefulsingleton.com/attest-terminated must be the uid of a pod in status.members of StatefulCluster clusters/db-"
	cluster := createCluster(t, config, "")
	wantAnswer(t, attest("1").apply(t, config, cluster), refused)
	wantAnswer(t, attest("").apply(t, config, cluster), refused)
	wantAnswer(t, attest(memberUID).apply(t, config, cluster), "")
	// The annotation stays, also after the member is removed.
	forget := patch{clusterManagerUser, "status", merge, `{"status":{"members":null}}`}
	wantAnswer(t, forget.apply(t, config, cluster), "")
	wantAnswer(t, patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}.apply(t, config, cluster), "")
}

// testClusterManager: the manager writes only objects of StatefulClusters.
func testClusterManager(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) {
	const (
		notTheirs = "the manager of StatefulClusters writes and deletes only pods and claims with label apps.statefulsingleton.com/cluster"
		spec      = "the manager of StatefulClusters never changes the spec"
	)
	admin, manager := newClient(t, config), clientAs(t, config, clusterManagerUser)
	labelled := map[string]string{v1.ClusterLabel: cluster.Name}
	revision := func(owners []metav1.OwnerReference) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, GenerateName: "db-", OwnerReferences: owners},
			Data:       runtime.RawExtension{Raw: []byte(`{}`)},
		}
	}
	ours := newMember(cluster, "db-1").OwnerReferences
	theirs := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: new(true)}}
	for name, test := range map[string]struct {
		object      client.Object
		wantRefused string
	}{
		"passes: a claim":              {claimOf(cluster.Namespace, labelled), ""},
		"passes: a ControllerRevision": {revision(ours), ""},
		"another claim":                {claimOf(cluster.Namespace, map[string]string{"app": "db"}), notTheirs},
		"another ControllerRevision":   {revision(theirs), notTheirs},
		"an orphan":                    {revision(nil), notTheirs},
	} {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, tryCreate(t, manager, test.object), test.wantRefused)
			create(t, admin, test.object)
			wantAnswer(t, patch{clusterManagerUser, "", merge, `{"metadata":{"annotations":{"a":"b"}}}`}.apply(t, config, test.object), test.wantRefused)
			wantAnswer(t, manager.Delete(t.Context(), test.object, client.DryRunAll), test.wantRefused)
		})
	}
	t.Run("another pod", func(t *testing.T) {
		pod := podOf(cluster.Namespace, map[string]string{"app": "web"})
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		wantAnswer(t, tryCreate(t, manager, pod), notTheirs)
		create(t, admin, pod)
		wantAnswers(t, config, map[string]client.Object{"pod": pod}, []request{
			{"pod", as(clusterManagerUser), "merge", bodies(label("cluster", `"db"`)), notTheirs},
			{"pod", as(clusterManagerUser), "resize/strategic", bodies(`{"spec":{"containers":[{"name":"db","resources":{"requests":{"cpu":"2"}}}]}}`), notTheirs},
		})
		wantAnswer(t, manager.Delete(t.Context(), pod, client.DryRunAll), notTheirs)
	})
	wantAnswer(t, tryCreate(t, manager, claimOf(metav1.NamespaceSystem, labelled)), notTheirs)
	wantAnswer(t, tryCreate(t, manager, podOf(cluster.Namespace, labelled)), notTheirs) // without an owner
	wantAnswer(t, manager.Delete(t.Context(), createMember(t, config, cluster), client.DryRunAll), "")
	t.Run("spec", func(t *testing.T) {
		fresh := createCluster(t, config, "")
		wantAnswer(t, patch{clusterManagerUser, "", merge, `{"spec":{"replicas":2}}`}.apply(t, config, fresh), spec)
		wantAnswer(t, patch{clusterManagerUser, "", merge, `{"metadata":{"finalizers":["` + v1.MemberFinalizer + `"]}}`}.apply(t, config, fresh), "")
	})
}
