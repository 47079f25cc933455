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

// TestClusterGuards sends requests about StatefulClusters to an API server with all guards.
func TestClusterGuards(t *testing.T) {
	environment := startAPIServer(t)
	config := environment.Config
	config.WarningHandler = rest.NoWarnings{}
	c := newClient(t, config)
	createAPIServer(t, c)
	for _, object := range helmTemplateFlags(t, []string{"--set", withClusters}, "templates/crd.yaml", "templates/guards.yaml", "templates/guards-writes.yaml",
		"templates/guards-controller.yaml", "templates/guards-status.yaml", "templates/guards-clusters.yaml") {
		create(t, c, object)
	}
	createNamespace(t, c, "clusters")
	cluster := createCluster(t, config, "db")
	manager := clientAs(t, config, clusterManagerUser)
	// The API server enforces the guards in their order, and a guard with parameters after it has read them.
	waitForRefusal(t, manager, newMember(cluster, "db-0"), notPending)
	waitForGuard(t, func() error {
		return (patch{clusterManagerUser, "", merge, `{"spec":{"replicas":2}}`}).write(t, client.NewDryRunClient(manager), cluster)
	})
	t.Run("types", func(t *testing.T) { testTypes(t, c, environment.KubeConfig) })
	t.Run("created", func(t *testing.T) { testCreatedMembers(t, config, cluster) })
	t.Run("marks", func(t *testing.T) { testMemberMarks(t, config, cluster) })
	t.Run("claims", func(t *testing.T) { testClaimLabels(t, config) })
	t.Run("finalizer", func(t *testing.T) { testMemberFinalizer(t, config, cluster) })
	t.Run("record", func(t *testing.T) { testMemberRecord(t, config) })
	t.Run("attestation", func(t *testing.T) { testMemberAttestation(t, config) })
	t.Run("manager", func(t *testing.T) { testClusterManager(t, config, cluster) })
	t.Run("exempt namespace", func(t *testing.T) {
		exempt := dbCluster()
		exempt.Namespace, exempt.UID = metav1.NamespaceSystem, ""
		exempt.Spec.Template = cluster.Spec.Template
		wantAnswer(t, c.Create(t.Context(), exempt, client.DryRunAll), "a StatefulCluster cannot be in namespace kube-system")
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
	tests := map[string]struct {
		user        string
		name        string
		change      func(*corev1.Pod)
		wantRefused string
	}{
		"passes: Pending":                        {name: "db-1"},
		"passes: the record can be newer":        {name: "db-3"},
		"Active":                                 {name: "db-0", wantRefused: notPending},
		"removed":                                {name: "db-2", wantRefused: removed},
		"another name":                           {name: "mysql-1", wantRefused: noNumber},
		"no number":                              {name: "db-x", wantRefused: noNumber},
		"Pending, but the number is too large":   {name: "db-12345678901", wantRefused: noNumber},
		"a person":                               {user: personUser, name: "db-1", wantRefused: onlyManager},
		"a namesake":                             {user: "system:serviceaccount:default:demo-statefulsingleton-clusters", name: "db-1", wantRefused: onlyManager},
		"the uninstaller":                        {user: uninstallUser, name: "db-1", wantRefused: onlyManager},
		"no finalizer":                           {name: "db-1", change: func(p *corev1.Pod) { p.Finalizers = nil }, wantRefused: notMember},
		"no scheduling gate":                     {name: "db-1", change: func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }, wantRefused: "and the scheduling gate of that name"},
		"another scheduling gate":                {name: "db-1", change: func(p *corev1.Pod) { p.Spec.SchedulingGates[0].Name = "example.com/theirs" }, wantRefused: "and the scheduling gate of that name"},
		"no label of the StatefulCluster":        {name: "db-1", change: func(p *corev1.Pod) { delete(p.Labels, v1.ClusterLabel) }, wantRefused: notMember},
		"the label of another StatefulCluster":   {name: "db-1", change: func(p *corev1.Pod) { p.Labels[v1.ClusterLabel] = "other" }, wantRefused: notMember},
		"the controller":                         {user: controllerUser, name: "db-1", wantRefused: onlyManager},
		"passes: no mark":                        {user: personUser, name: "db-1", change: unmarked},
		"passes: no mark, owner of another kind": {user: personUser, name: "db-1", change: foreignOwner},
		"a person, only the label":               {user: personUser, name: "db-1", change: onlyLabel("db"), wantRefused: onlyManager},
		"a person, a label without a value":      {user: personUser, name: "db-1", change: onlyLabel(""), wantRefused: onlyManager},
		"a person, a number that is too long":    {user: personUser, name: "db-99999999999", change: onlyLabel("db"), wantRefused: onlyManager},
		"a person, only the finalizer": {user: personUser, name: "db-1", wantRefused: onlyManager, change: func(p *corev1.Pod) {
			unmarked(p)
			p.Finalizers = []string{v1.MemberFinalizer}
		}},
		"a person, the UID of the StatefulCluster in an owner of another kind": {user: personUser, name: "db-1", wantRefused: onlyManager, change: func(p *corev1.Pod) {
			foreignOwner(p)
			p.Labels = map[string]string{v1.ClusterLabel: "db"}
		}},
		"a person, not the controller":     {user: personUser, name: "db-1", change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, wantRefused: onlyManager},
		"a person, owner of another group": {user: personUser, name: "db-1", change: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }, wantRefused: onlyManager},
		"passes: the API server does not know the StatefulCluster": {name: "new-0", change: func(p *corev1.Pod) {
			p.OwnerReferences[0].Name, p.Labels[v1.ClusterLabel] = "new", "new"
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newMember(cluster, test.name)
			if test.change != nil {
				test.change(pod)
			}
			user := clusterManagerUser
			if test.user != "" {
				user = test.user
			}
			wantAnswer(t, clientAs(t, config, user).Create(t.Context(), pod, client.DryRunAll), test.wantRefused)
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
		member, plain = "member", "plain"
		forged        = "forged" // has an owner with the UID of the StatefulCluster, but of another API group

		gateRefused = "only the manager of StatefulClusters removes scheduling gate apps.statefulsingleton.com/member"
		markRefused = "only the manager of StatefulClusters makes a StatefulCluster the owner of a pod"

		ungate  = `{"spec":{"schedulingGates":null}}`
		leave   = `{"metadata":{"labels":{"apps.statefulsingleton.com/cluster":null}}}`
		join    = `{"metadata":{"labels":{"apps.statefulsingleton.com/cluster":"db"}}}`
		change  = `{"metadata":{"annotations":{"apps.statefulsingleton.com/images-changed":"{}"}}}`
		serve   = `{"status":{"conditions":[{"type":"apps.statefulsingleton.com/serving","status":"True"}]}}`
		ready   = `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
		protect = `{"metadata":{"finalizers":["apps.statefulsingleton.com/member"]}}`
		orphan  = `{"metadata":{"ownerReferences":null}}`
	)
	own := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"StatefulCluster","name":"db","uid":%q,"controller":true}]}}`, v1.GroupVersion, cluster.UID)
	tests := map[string]struct {
		pod         string
		patch       patch
		wantRefused string
	}{
		"a person removes the gate":             {member, patch{personUser, "", merge, ungate}, gateRefused},
		"the controller removes the gate":       {member, patch{controllerUser, "", merge, ungate}, "demo-statefulsingleton-"},
		"the uninstaller removes the gate":      {member, patch{uninstallUser, "", merge, ungate}, gateRefused},
		"a person takes the label":              {member, patch{personUser, "", merge, leave}, markRefused},
		"a person takes the label, as status":   {member, patch{personUser, "status", merge, leave}, markRefused},
		"a person adds the label":               {plain, patch{personUser, "", merge, join}, markRefused},
		"a person changes images' containers":   {member, patch{personUser, "", merge, change}, markRefused},
		"a person lets the pod serve":           {member, patch{personUser, "status", strategic, serve}, markRefused},
		"the kubelet lets the pod serve":        {member, patch{kubeletUser, "status", strategic, serve}, markRefused},
		"a person makes a pod a member":         {plain, patch{personUser, "", merge, own}, markRefused},
		"a person corrects the owner's group":   {forged, patch{personUser, "", merge, own}, markRefused},
		"a person adds the finalizer":           {plain, patch{personUser, "", merge, protect}, markRefused},
		"a person reports a phase":              {member, patch{personUser, "status", strategic, phaseFailed}, onlyKubeletEnds},
		"the manager reports a phase":           {member, patch{clusterManagerUser, "status", strategic, phaseFailed}, onlyKubeletEnds},
		"passes: the manager removes the gate":  {pod: member, patch: patch{clusterManagerUser, "", merge, ungate}},
		"passes: the manager changes images":    {pod: member, patch: patch{clusterManagerUser, "", strategic, change}},
		"passes: the manager lets it serve":     {pod: member, patch: patch{clusterManagerUser, "status", strategic, serve}},
		"passes: the kubelet reports":           {pod: member, patch: patch{kubeletUser, "status", strategic, ready}},
		"passes: the garbage collector orphans": {pod: member, patch: patch{ownerCollector, "", merge, orphan}},
		"passes: a person labels":               {pod: member, patch: patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}},
		"passes: a person labels another pod":   {pod: plain, patch: patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOf("clusters", map[string]string{"app": "web"})
			switch test.pod {
			case member:
				pod = createMember(t, config, cluster)
			case forged:
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "StatefulCluster", Name: cluster.Name, UID: cluster.UID, Controller: new(true)}}
				create(t, newClient(t, config), pod)
			default:
				create(t, newClient(t, config), pod)
			}
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
}

// testClaimLabels: with the label of another StatefulCluster, a claim would be given to a second pod, or be deleted while its pod
// runs.
func testClaimLabels(t *testing.T, config *rest.Config) {
	const refused = "label apps.statefulsingleton.com/cluster of a claim that exists cannot be set"
	label := func(value string) string {
		return fmt.Sprintf(`{"metadata":{"labels":{"apps.statefulsingleton.com/cluster":%s}}}`, value)
	}
	tests := map[string]struct {
		user, before, patch string
		wantRefused         string
	}{
		"a person gives it to another cluster": {personUser, "db", label(`"web"`), refused},
		"a person gives a plain claim":         {personUser, "", label(`"web"`), refused},
		"an administrator gives it":            {"admin", "db", label(`"web"`), refused},
		"passes: a person keeps it":            {personUser, "db", label("null"), ""},
		"passes: a person adds another label":  {personUser, "db", `{"metadata":{"labels":{"team":"data"}}}`, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", GenerateName: "data-", Labels: map[string]string{}},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}
			if test.before != "" {
				claim.Labels[v1.ClusterLabel] = test.before
			}
			create(t, newClient(t, config), claim)
			wantAnswer(t, clientAs(t, config, test.user).Patch(t.Context(), claim, client.RawPatch(merge, []byte(test.patch))), test.wantRefused)
		})
	}
}

func testMemberFinalizer(t *testing.T, config *rest.Config, cluster *v1.StatefulCluster) {
	const refused = "It keeps this pod until its end is recorded, because otherwise a second pod could use its claims"
	letGo := func(user, subresource string) patch {
		return patch{user, subresource, merge, `{"metadata":{"finalizers":null}}`}
	}
	gone := cluster.DeepCopy()
	gone.Name = "gone"
	tests := map[string]struct {
		cluster     *v1.StatefulCluster
		patch       patch
		wantRefused string
	}{
		"a person":                          {cluster, letGo(personUser, ""), refused},
		"a person, as status":               {cluster, letGo(personUser, "status"), refused},
		"the controller":                    {cluster, letGo(controllerUser, ""), "demo-statefulsingleton-"},
		"passes: the manager":               {cluster: cluster, patch: letGo(clusterManagerUser, "")},
		"passes: the uninstaller":           {cluster: cluster, patch: letGo(uninstallUser, "")},
		"passes: without a StatefulCluster": {cluster: gone, patch: letGo(personUser, "")},
		"passes: a person, another finalizer": {cluster: cluster, patch: patch{personUser, "", merge,
			`{"metadata":{"finalizers":["apps.statefulsingleton.com/member","example.com/mine"]}}`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := createMember(t, config, test.cluster)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
}

// testMemberRecord: only the manager writes the status.
func testMemberRecord(t *testing.T, config *rest.Config) {
	const (
		notTheirs = "only the manager of StatefulClusters can change the status of a StatefulCluster"
		count     = `{"status":{"next":9}}`
	)
	condition := func(conditionType string) string {
		return `{"status":{"conditions":[{"type":"` + conditionType + `","status":"True","reason":"Mine","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	}
	tests := map[string]struct {
		user, body  string
		wantRefused string
	}{
		"a person counts":                          {personUser, count, notTheirs},
		"a person sets a condition":                {personUser, condition(v1.ConditionReady), notTheirs},
		"the uninstaller counts":                   {uninstallUser, count, notTheirs},
		"the controller counts":                    {controllerUser, count, notTheirs},
		"the controller is Ready":                  {controllerUser, condition(v1.ConditionReady), notTheirs},
		"passes: the manager counts":               {user: clusterManagerUser, body: count},
		"passes: the manager is Ready":             {user: clusterManagerUser, body: condition(v1.ConditionReady)},
		"passes: the manager counts from the list": {user: clusterManagerUser, body: `{"status":{"members":[],"next":3}}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := createCluster(t, config, "")
			wantAnswer(t, patch{test.user, "status", merge, test.body}.apply(t, config, cluster), test.wantRefused)
			wantChanged(t, config, cluster, test.wantRefused == "")
		})
	}
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
	claim := func(labels map[string]string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, GenerateName: "data-", Labels: labels},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
	}
	revision := func(owners []metav1.OwnerReference) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, GenerateName: "db-", OwnerReferences: owners},
			Data:       runtime.RawExtension{Raw: []byte(`{}`)},
		}
	}
	ours := newMember(cluster, "db-1").OwnerReferences
	theirs := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set", Controller: new(true)}}
	exempt := claim(labelled)
	exempt.Namespace = metav1.NamespaceSystem
	for name, test := range map[string]struct {
		object      client.Object
		wantRefused string
	}{
		"passes: a claim":              {object: claim(labelled)},
		"passes: a ControllerRevision": {object: revision(ours)},
		"another claim":                {claim(map[string]string{"app": "db"}), notTheirs},
		"another ControllerRevision":   {revision(theirs), notTheirs},
		"an orphan":                    {revision(nil), notTheirs},
	} {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, manager.Create(t.Context(), test.object.DeepCopyObject().(client.Object), client.DryRunAll), test.wantRefused)
			create(t, admin, test.object)
			wantAnswer(t, patch{clusterManagerUser, "", merge, `{"metadata":{"annotations":{"a":"b"}}}`}.apply(t, config, test.object), test.wantRefused)
			wantAnswer(t, manager.Delete(t.Context(), test.object, client.DryRunAll), test.wantRefused)
		})
	}
	t.Run("an exempt namespace", func(t *testing.T) {
		wantAnswer(t, manager.Create(t.Context(), exempt, client.DryRunAll), notTheirs)
	})
	t.Run("another pod", func(t *testing.T) {
		pod := podOf(cluster.Namespace, map[string]string{"app": "web"})
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		wantAnswer(t, manager.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), notTheirs)
		create(t, admin, pod)
		wantAnswer(t, patch{clusterManagerUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/cluster":"db"}}}`}.apply(t, config, pod), notTheirs)
		wantAnswer(t, patch{clusterManagerUser, "resize", strategic, `{"spec":{"containers":[{"name":"db","resources":{"requests":{"cpu":"2"}}}]}}`}.apply(t, config, pod), notTheirs)
		wantAnswer(t, manager.Delete(t.Context(), pod, client.DryRunAll), notTheirs)
	})
	t.Run("a pod without an owner", func(t *testing.T) {
		pod := podOf(cluster.Namespace, labelled)
		wantAnswer(t, manager.Create(t.Context(), pod, client.DryRunAll), notTheirs)
	})
	t.Run("passes: deletes a member", func(t *testing.T) {
		wantAnswer(t, manager.Delete(t.Context(), createMember(t, config, cluster), client.DryRunAll), "")
	})
	t.Run("spec", func(t *testing.T) {
		fresh := createCluster(t, config, "")
		wantAnswer(t, patch{clusterManagerUser, "", merge, `{"spec":{"replicas":2}}`}.apply(t, config, fresh), spec)
		wantAnswer(t, patch{clusterManagerUser, "", merge, `{"metadata":{"finalizers":["` + v1.MemberFinalizer + `"]}}`}.apply(t, config, fresh), "")
	})
}
