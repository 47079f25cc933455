package policies_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// controllerAPIServer returns an API server with the guards of the controller, of Leases, of locks and of policies.
func controllerAPIServer(t *testing.T) *envtest.Environment {
	t.Helper()
	return sharedAPIServer(t, "controller", func(t *testing.T, environment *envtest.Environment) {
		c := newClient(t, environment.Config)
		createAPIServer(t, c)
		// Install the guards first, because they must not need Kyverno's kinds.
		install(t, c, "crd.yaml", "rbac.yaml", "guards.yaml", "guards-writes.yaml", "guards-controller.yaml", "guards-leases.yaml",
			"guards-locks.yaml", "guards-policies.yaml")
		controller := clientAs(t, environment.Config, controllerUser)
		waitForGuard(t, func() error { return controller.Create(t.Context(), bare("default", nil)) })
		waitForGuard(t, func() error { return tryCreate(t, c, leaseOf("default", "db")) })
		installKyvernoCRDs(t, environment.Config)
	})
}

// TestControllerGuards sends requests as the controller's user on an API server with all guards. RBAC allows every
// request. The tests of package singleton show that the guards reject no write of the controller, because all of them
// run the controller under these guards.
func TestControllerGuards(t *testing.T) {
	config := controllerAPIServer(t).Config
	t.Run("dry-run", func(t *testing.T) { testDryRun(t, config) })
	t.Run("pods", func(t *testing.T) { testControllerPods(t, config) })
	t.Run("configmaps", func(t *testing.T) { testControllerConfigMaps(t, config) })
	t.Run("policies", func(t *testing.T) { testControllerPolicies(t, config) })
	t.Run("mutating policies", func(t *testing.T) { testControllerMutatingPolicies(t, config) })
	t.Run("budgets", func(t *testing.T) { testControllerBudgets(t, config) })
	t.Run("leases", func(t *testing.T) { testControllerLeases(t, config) })
	t.Run("roles", func(t *testing.T) { testControllerRoles(t, config) })
	t.Run("rolebindings", func(t *testing.T) { testControllerRoleBindings(t, config) })
	t.Run("scale", func(t *testing.T) { testControllerScale(t, config) })
	t.Run("roll", func(t *testing.T) { testRoll(t, config) })
	t.Run("singletons", func(t *testing.T) { testControllerSingletons(t, config) })
	t.Run("events", func(t *testing.T) { testControllerEvents(t, config) })
}

// installKyvernoCRDs makes the API server serve both kinds of Kyverno's policies.
func installKyvernoCRDs(t *testing.T, config *rest.Config) {
	t.Helper()
	kyverno, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kyverno/kyverno").Output()
	if err != nil {
		t.Fatalf("find Kyverno's CRDs in the module cache: %v", err)
	}
	crds := filepath.Join(strings.TrimSpace(string(kyverno)), "config/crds")
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths: []string{
			filepath.Join(crds, "kyverno/kyverno.io_clusterpolicies.yaml"),
			filepath.Join(crds, "policies.kyverno.io/policies.kyverno.io_namespacedmutatingpolicies.yaml"),
		},
		ErrorIfPathMissing: true,
		MaxTime:            time.Minute, // the tests may share the machine with others
	})
	if err != nil {
		t.Fatalf("install Kyverno's CRDs: %v", err)
	}
}

func testDryRun(t *testing.T, config *rest.Config) {
	controller := clientAs(t, config, controllerUser)
	wantAnswer(t, controller.Create(t.Context(), bare("default", nil)), "in a server-side dry-run only")
	wantAnswer(t, tryCreate(t, controller, bare("default", nil)), "")
	for _, user := range []string{"system:serviceaccount:the-release:other", namesakeUser} {
		wantAnswer(t, clientAs(t, config, user).Create(t.Context(), bare("default", nil)), "")
	}
}

func testControllerPods(t *testing.T, config *rest.Config) {
	const (
		notOurs    = "changes only pods of StatefulSingletons and StatefulSetLocks, and never in an exempt namespace"
		spec       = "never changes the spec of a pod"
		only       = "the StatefulSingleton controller changes only "
		labels     = only + "labels apps."
		annotation = only + "annotations"
		finalizer  = only + "finalizer"
		metadata   = only + "labels, annotations and finalizers"
		status     = only + "condition"

		adopt = `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"],"labels":{"apps.statefulsingleton.com/singleton":"db","apps.statefulsingleton.com/role":"active"}}}`
		evil  = `{"spec":{"containers":[{"name":"db","image":"evil"}]}}`
		// What a node and the pod's user have added.
		ofNode = `{"status":{"reason":"theirs","conditions":[{"type":"example.com/mine","status":"True"}]}}`
	)
	// notReady is a patch of pods/status with the state of the readiness gate.
	notReady := func(gate string) string {
		return strings.Replace(strings.Replace(readyPod, "True", gate, 1), "]", `,{"type":"Ready","status":"False"}]`, 1)
	}
	c, controller := newClient(t, config), as(controllerUser)
	createNamespace(t, c, "controller-pods")
	plain, cluster := podOf("controller-pods", map[string]string{"app": "web"}), podOf(metav1.NamespaceSystem, map[string]string{"app": "web"})
	owned := podOf("controller-pods", map[string]string{v1.SingletonLabel: "none"})
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "1"}}
	create(t, c, plain, cluster, owned)
	reported := createStandby(t, config, "controller-pods", "db")
	if err := (patch{"system:node:", "status", strategic, ofNode}).into(t, c, reported); err != nil {
		t.Fatal(err)
	}
	leaving := createHolder(t, config, "controller-pods", "db")
	if err := c.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, config, map[string]client.Object{
		"holder": createHolder(t, config, "controller-pods", "db"), "standby": createStandby(t, config, "controller-pods", "db"),
		"plain": plain, "cluster": cluster, "owned": owned, "reported": reported, "leaving": leaving,
	}, []request{
		{"standby", controller, "strategic status/strategic", bodies(`{"metadata":{"labels":{"team":"data"}}}`), labels},
		{"plain", controller, "strategic", bodies(adopt), ""},
		// One patch of pods/status signals.
		{"standby", controller, "status/strategic", bodies(bothOf(releasePod, readyPod), readyPod, notReady("False")), ""},
		{"holder", controller, "strategic", bodies(annotate("nudged", `"1"`), unprotect, annotate("chosen-by", "null")), ""},
		{"standby", controller, "strategic", bodies(label("singleton", `"other"`)), ""},
		{"standby", as(personUser), "merge", bodies(`{"metadata":{"annotations":{"a":"b"},"labels":{"a":"b"},"finalizers":["example.com/mine"]}}`), ""},
		{"cluster", controller, "strategic", bodies(adopt), notOurs},
		{"plain", controller, "strategic", bodies(annotate("nudged", `"1"`)), notOurs},
		{"plain", controller, "status/strategic", bodies(readyPod), notOurs},
		{"standby", controller, "strategic", bodies(evil, `{"spec":{"activeDeadlineSeconds":1}}`), spec},
		{"plain", controller, "strategic", bodies(bothOf(adopt, evil)), spec},
		{"standby", controller, "strategic", bodies(`{"metadata":{"labels":{"app":"web"}}}`, `{"metadata":{"labels":{"app":null}}}`,
			label("singleton", "null")), labels},
		{"standby", controller, "strategic status/strategic", bodies(`{"metadata":{"annotations":{"a":"b"}}}`), annotation},
		{"standby", controller, "strategic", bodies(annotate("injected", `"controller-pods/other"`), annotate("injected", "null")), annotation},
		{"standby", controller, "strategic", bodies(`{"metadata":{"finalizers":["example.com/mine"]}}`,
			`{"metadata":{"finalizers":["example.com/mine","apps.statefulsingleton.com/handoff"]}}`), finalizer},
		{"standby", controller, "strategic",
			bodies(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"1"}]}}`), metadata},
		{"owned", controller, "merge", bodies(noOwner), metadata},
		{"standby", controller, "status/strategic", bodies(`{"status":{"phase":"Failed"}}`, `{"status":{"reason":"mine"}}`,
			`{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			notReady("True"), strings.Replace(notReady("False"), "]", `,{"type":"ContainersReady","status":"False"}]`, 1),
			strings.Replace(notReady("False"), `"Ready","status":"False"`, `"Ready","status":"True"`, 1),
			`{"status":{"containerStatuses":[{"name":"db","image":"i","imageID":"i","ready":true,"restartCount":0}]}}`,
			`{"status":{"qosClass":null,"hostIP":"10.0.0.1","conditions":[{"type":"apps.statefulsingleton.com/singleton-ready","status":"True"}]}}`), status},
		// The conditions and a field of others are removed.
		{"reported", controller, "status/merge", bodies(readyPod), status},
		{"reported", controller, "status/strategic", bodies(`{"status":{"reason":null}}`), status},
		{"reported", controller, "status/strategic", bodies(readyPod), ""},
		{"leaving", controller, "status/strategic", bodies(strings.Replace(readyPod, "True", "False", 1)), ""},
		{"leaving", controller, "status/strategic", bodies(`{"status":{"phase":"Failed"}}`), status},
		{"leaving", controller, "strategic", bodies(unprotect), ""},
	})
}

func testControllerConfigMaps(t *testing.T, config *rest.Config) {
	const (
		otherName     = "creates only ConfigMaps named statefulsingleton-<uid>"
		otherData     = "contains only an epoch, and is immutable"
		otherMetadata = "has label apps.statefulsingleton.com/singleton, no other label, no annotation and no finalizer"
		otherOwner    = "the owner of a ConfigMap that the StatefulSingleton controller creates is one pod"
	)
	tests := map[string]change[*corev1.ConfigMap]{
		"passes: as the controller writes it": {func(*corev1.ConfigMap) {}, ""},
		"another name":                        {func(m *corev1.ConfigMap) { m.Name = "aws-auth" }, otherName},
		"more than a uid":                     {func(m *corev1.ConfigMap) { m.Name += "-0" }, otherName},
		"another namespace":                   {func(m *corev1.ConfigMap) { m.Namespace = metav1.NamespaceSystem }, "creates no ConfigMap in an exempt namespace"},
		"more data":                           {func(m *corev1.ConfigMap) { m.Data["mapUsers"] = "me" }, otherData},
		"other data":                          {func(m *corev1.ConfigMap) { m.Data = map[string]string{"mapUsers": "me"} }, otherData},
		"no data":                             {func(m *corev1.ConfigMap) { m.Data = nil }, otherData},
		"no epoch":                            {func(m *corev1.ConfigMap) { m.Data["epoch"] = "0" }, otherData},
		"more than an epoch":                  {func(m *corev1.ConfigMap) { m.Data["epoch"] = "1\nevil" }, otherData},
		"binary data":                         {func(m *corev1.ConfigMap) { m.BinaryData = map[string][]byte{"a": {0}} }, otherData},
		"mutable":                             {func(m *corev1.ConfigMap) { m.Immutable = nil }, otherData},
		"no label":                            {func(m *corev1.ConfigMap) { m.Labels = nil }, otherMetadata},
		"another label":                       {func(m *corev1.ConfigMap) { m.Labels["a"] = "b" }, otherMetadata},
		"an annotation":                       {func(m *corev1.ConfigMap) { m.Annotations = map[string]string{"a": "b"} }, otherMetadata},
		"a finalizer":                         {func(m *corev1.ConfigMap) { m.Finalizers = []string{"example.com/mine"} }, otherMetadata},
		"no owner":                            {func(m *corev1.ConfigMap) { m.OwnerReferences = nil }, otherOwner},
		"another owner":                       {func(m *corev1.ConfigMap) { m.OwnerReferences[0].Kind = "Secret" }, otherOwner},
		"two owners":                          {func(m *corev1.ConfigMap) { anotherOwner(m) }, otherOwner},
	}
	configMap := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "statefulsingleton-" + db0, Labels: map[string]string{v1.SingletonLabel: "db"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "db-0", UID: "1"}},
			},
			Immutable: new(true),
			Data:      map[string]string{"epoch": "12"},
		}
	}
	wantCreations(t, clientAs(t, config, controllerUser), configMap, tests)
	for name, test := range tests {
		// Only the name of a barrier is the controller's.
		tests[name] = change[*corev1.ConfigMap]{func(m *corev1.ConfigMap) { test.change(m); m.Name = "mine" }, ""}
	}
	wantCreations(t, clientAs(t, config, personUser), configMap, tests)
}

func testControllerPolicies(t *testing.T, config *rest.Config) {
	const (
		otherName      = "writes and deletes only ClusterPolicies that are named stfs-…, ssl-… or stc-… and have label app.kubernetes.io/managed-by=statefulsingleton"
		takesOver      = "does not change a ClusterPolicy without label"
		otherMetadata  = "the controller changes only its own labels and annotations of a ClusterPolicy"
		autogen        = "has annotation pod-policies.kyverno.io/autogen-controllers=none"
		otherSpec      = "has rules and a webhookConfiguration, no other field, and background: false"
		otherRule      = "a rule of the StatefulSingleton controller mutates, has preconditions, and has no other field"
		otherMutation  = "mutates the pod that is created, by JSON patches, and nothing else"
		otherForeach   = "has a list, preconditions and JSON patches, and reads nothing from elsewhere"
		otherMatch     = "matches by kind, namespace, operation and selector, and by nothing else"
		otherKind      = "matches pods that are created, and nothing else"
		noSelector     = "the selector of a rule of the StatefulSingleton controller is not empty"
		otherNamespace = "name the same namespace, which is not exempt"
		otherWebhook   = "is called for its own namespace only"
	)
	s := readSingleton(t, "default")
	patchJSON := `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`
	apiCall := []any{map[string]any{"name": "a", "apiCall": map[string]any{"urlPath": "/api/v1/namespaces/kube-system/secrets"}}}
	rule := func(value any, path ...string) func(*unstructured.Unstructured) {
		return set(t, value, append([]string{"spec", "rules", "1"}, path...)...)
	}
	resources := func(key string, value any) func(*unstructured.Unstructured) {
		return rule(value, "match", "any", "0", "resources", key)
	}
	everywhere := func(namespaces ...any) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			for i := range p.Object["spec"].(map[string]any)["rules"].([]any) {
				set(t, namespaces, "spec", "rules", strconv.Itoa(i), "match", "any", "0", "resources", "namespaces")(p)
			}
		}
	}
	foreach := func(key string, value any) func(*unstructured.Unstructured) {
		return set(t, value, "spec", "rules", "0", "mutate", "foreach", "0", key)
	}
	matchConditions := func(expressions ...string) func(*unstructured.Unstructured) {
		var conditions []any
		for i, expression := range expressions {
			conditions = append(conditions, map[string]any{"name": string(rune('a' + i)), "expression": expression})
		}
		return set(t, conditions, "spec", "webhookConfiguration", "matchConditions")
	}
	anyPod := map[string]any{"resources": map[string]any{"kinds": []any{"Pod"}}}
	tests := map[string]change[*unstructured.Unstructured]{
		"passes: as the controller writes it": {},
		"passes: disabled":                    {func(p *unstructured.Unstructured) { _ = policies.Disable(p) }, ""},
		"another name":                        {set(t, "add-labels", "metadata", "name"), otherName},
		"no label":                            {set(t, nil, "metadata", "labels"), otherName},
		"another manager":                     {set(t, "helm", "metadata", "labels", "app.kubernetes.io/managed-by"), otherName},
		"another label":                       {set(t, "b", "metadata", "labels", "a"), otherMetadata},
		"another annotation":                  {set(t, "b", "metadata", "annotations", "a"), otherMetadata},
		"a finalizer":                         {set(t, []any{"example.com/mine"}, "metadata", "finalizers"), otherMetadata},
		"an owner": {set(t, []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}},
			"metadata", "ownerReferences"), otherMetadata},
		"of Deployments too":                    {set(t, "Deployment", "metadata", "annotations", "pod-policies.kyverno.io/autogen-controllers"), autogen},
		"of what Kyverno chooses":               {set(t, nil, "metadata", "annotations", "pod-policies.kyverno.io/autogen-controllers"), autogen},
		"no rules":                              {set(t, []any{}, "spec", "rules"), otherSpec},
		"in the background":                     {set(t, true, "spec", "background"), otherSpec},
		"of what is there already":              {set(t, true, "spec", "mutateExistingOnPolicyUpdate"), otherSpec},
		"generates what is missing":             {set(t, true, "spec", "generateExisting"), otherSpec},
		"fails open":                            {set(t, "Ignore", "spec", "failurePolicy"), otherSpec},
		"one rule":                              {set(t, "One", "spec", "applyRules"), otherSpec},
		"a rule validates":                      {rule(map[string]any{"message": "no", "deny": map[string]any{}}, "validate"), otherRule},
		"a rule generates":                      {rule(map[string]any{"kind": "Secret", "apiVersion": "v1", "name": "a", "namespace": "b"}, "generate"), otherRule},
		"a rule verifies images":                {rule([]any{map[string]any{"imageReferences": []any{"*"}}}, "verifyImages"), otherRule},
		"a rule does nothing":                   {rule(nil, "mutate"), otherRule},
		"a rule calls the API":                  {rule(apiCall, "context"), otherRule},
		"a rule excludes":                       {rule(map[string]any{"any": []any{map[string]any{"resources": map[string]any{"names": []any{"a"}}}}}, "exclude"), otherRule},
		"mutates other objects":                 {rule([]any{map[string]any{"apiVersion": "v1", "kind": "Secret"}}, "mutate", "targets"), otherMutation},
		"mutates what is there":                 {rule(true, "mutate", "mutateExistingOnPolicyUpdate"), otherMutation},
		"strategic merge":                       {rule(map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}, "mutate", "patchStrategicMerge"), otherMutation},
		"a foreach calls the API":               {foreach("context", apiCall), otherForeach},
		"a foreach merges":                      {foreach("patchStrategicMerge", map[string]any{"metadata": map[string]any{}}), otherForeach},
		"an inner foreach, which no policy has": {foreach("foreach", []any{map[string]any{"list": "a", "patchesJson6902": patchJSON}}), otherForeach},
		"matches any pod":                       {rule(map[string]any{"any": []any{anyPod}}, "match"), otherKind},
		"matches by the old form":               {rule(map[string]any{"kinds": []any{"Pod"}}, "match", "resources"), otherMatch},
		"matches several":                       {rule(anyPod, "match", "any", "1"), otherKind},
		"matches all":                           {rule(map[string]any{"all": []any{anyPod}}, "match"), otherMatch},
		"matches nothing":                       {rule([]any{}, "match", "any"), otherMatch},
		"matches by user":                       {rule([]any{map[string]any{"kind": "User", "name": "a"}}, "match", "any", "0", "subjects"), otherMatch},
		"by name":                               {resources("names", []any{"a"}), otherMatch},
		"by namespace's labels":                 {resources("namespaceSelector", map[string]any{"matchLabels": map[string]any{"a": "b"}}), otherMatch},
		"another kind":                          {resources("kinds", []any{"Secret"}), otherKind},
		"every kind":                            {resources("kinds", []any{"*"}), otherKind},
		"another kind beside":                   {resources("kinds", []any{"Pod", "Secret"}), otherKind},
		"no kind":                               {resources("kinds", nil), otherKind},
		"another operation":                     {resources("operations", []any{"UPDATE"}), otherKind},
		"every operation":                       {resources("operations", nil), otherKind},
		"no selector":                           {resources("selector", nil), noSelector},
		"an empty selector":                     {resources("selector", map[string]any{"matchLabels": map[string]any{}}), noSelector},
		"every namespace":                       {everywhere("*"), otherNamespace},
		"namespaces by wildcard":                {everywhere("sho?"), otherNamespace},
		"two namespaces":                        {everywhere("shop", "other"), otherNamespace},
		"no namespace":                          {everywhere(), otherNamespace},
		"the cluster's own":                     {everywhere("kube-system"), otherNamespace},
		"another one in one rule":               {resources("namespaces", []any{"other"}), otherNamespace},
		"a webhook of everything":               {set(t, nil, "spec", "webhookConfiguration", "matchConditions"), otherWebhook},
		"a webhook elsewhere":                   {matchConditions(`request.namespace == "other"`), otherWebhook},
		"a webhook of more":                     {matchConditions(`request.namespace == "shop" || true`), otherWebhook},
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	wantPolicies(t, config, func() *unstructured.Unstructured { return render(t, s) }, tests)
	for _, file := range []string{"default", "named-containers", "named-init-containers", "hold-init-containers", "match-expressions"} {
		t.Run("passes: "+file, func(t *testing.T) {
			o := options
			o.SidecarPullSecrets = []string{"pull"}
			wantAnswer(t, tryCreate(t, controller, ownPolicy(readSingleton(t, file), o).render(t, policies.ClusterPolicy)), "")
		})
	}
	for name, all := range map[string][]policies.Subject{
		"ordinary": fleet(1000, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}}), "largest": fleet(1000, largestRendered(t)),
	} {
		t.Run("passes: a full namespace, "+name, func(t *testing.T) {
			wantAnswer(t, tryCreate(t, controller, fullPolicy(t, policies.ClusterPolicy, all)), "")
		})
	}
	t.Run("of another version", func(t *testing.T) {
		policy := render(t, s)
		policy.SetAPIVersion("kyverno.io/v2beta1")
		for _, rule := range policy.Object["spec"].(map[string]any)["rules"].([]any) {
			delete(rule.(map[string]any)["match"].(map[string]any), "resources")
		}
		wantAnswer(t, tryCreate(t, controller, policy), "")
		everywhere("*")(policy)
		wantAnswer(t, tryCreate(t, controller, policy), otherNamespace)
	})

	theirs, ours, stray := render(t, s), render(t, s), render(t, s)
	theirs.SetLabels(nil)
	ours.SetName("stfs-shop-other-0123456789abcdef")
	ours.SetAnnotations(map[string]string{"pod-policies.kyverno.io/autogen-controllers": "none", "theirs": "yes"})
	stray.SetName("stray")
	create(t, admin, theirs, ours, stray)
	apply := func(policy *unstructured.Unstructured) error {
		policy = policy.DeepCopy()
		policy.Object["metadata"] = map[string]any{"name": policy.GetName(), "labels": policy.Object["metadata"].(map[string]any)["labels"],
			"annotations": policy.Object["metadata"].(map[string]any)["annotations"]}
		return controller.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(policy), client.FieldOwner("me"), client.ForceOwnership)
	}
	wantAnswer(t, apply(render(t, s)), takesOver) // the policy of another
	for _, policy := range []*unstructured.Unstructured{theirs, stray} {
		wantAnswer(t, controller.Delete(t.Context(), policy.DeepCopy(), client.DryRunAll), otherName)
	}
	wantAnswer(t, patch{controllerUser, "", merge, `{"metadata":{"labels":null}}`}.apply(t, config, ours), otherName)
	wantAnswer(t, patch{controllerUser, "", merge, `{"metadata":{"annotations":{"theirs":"no"}}}`}.apply(t, config, ours), otherMetadata)
	wantAnswer(t, apply(ours), "")
	wantAnswer(t, controller.Delete(t.Context(), ours.DeepCopy(), client.DryRunAll), "")
}

// wantPolicies creates a policy of Kyverno after each change, as the controller. An administrator may create what the controller may not.
func wantPolicies(t *testing.T, config *rest.Config, fresh func() *unstructured.Unstructured, tests map[string]change[*unstructured.Unstructured]) {
	t.Helper()
	controller := clientAs(t, config, controllerUser)
	waitForGuard(t, func() error {
		policy := fresh()
		tests["another name"].change(policy)
		return tryCreate(t, controller, policy)
	})
	wantCreations(t, controller, fresh, tests)
	wantCreations(t, newClient(t, config), fresh, map[string]change[*unstructured.Unstructured]{
		"administrator": {tests["another name"].change, ""},
	})
}

// set sets a field, or removes the field if value is nil. A number in the path is an index of a list, or the length of the list.
func set(t *testing.T, value any, path ...string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		t.Helper()
		object.Object = setIn(t, object.Object, value, path).(map[string]any)
	}
}

func setIn(t *testing.T, in, value any, path []string) any {
	t.Helper()
	if len(path) == 0 {
		return value
	}
	switch in := in.(type) {
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil {
			t.Fatal(err)
		}
		if i == len(in) {
			return append(in, value)
		}
		in[i] = setIn(t, in[i], value, path[1:])
		return in
	case map[string]any:
		if value == nil && len(path) == 1 {
			delete(in, path[0])
			return in
		}
		if in[path[0]] == nil {
			in[path[0]] = map[string]any{}
		}
		in[path[0]] = setIn(t, in[path[0]], value, path[1:])
		return in
	}
	t.Fatalf("there is no %s in %v", path, in)
	return nil
}

func testControllerBudgets(t *testing.T, config *rest.Config) {
	const other = "covers the holder or the writer of its owner, and no other pod"
	budget := func() client.Object {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: ownedBy("default", "db"),
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable:               new(intstr.FromInt32(1)),
				UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
				Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{v1.SingletonLabel: "db", v1.RoleLabel: v1.RoleActive}},
			},
		}
	}
	change := func(change func(*policyv1.PodDisruptionBudgetSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*policyv1.PodDisruptionBudget).Spec) }
	}
	testOwned(t, config, budget, "creates and deletes only PodDisruptionBudgets that are named", other, map[string]func(client.Object){
		"passes: of a lock": ofLock(),
		"every pod":         change(func(b *policyv1.PodDisruptionBudgetSpec) { b.Selector = &metav1.LabelSelector{} }),
		"another pod":       change(func(b *policyv1.PodDisruptionBudgetSpec) { b.Selector.MatchLabels = map[string]string{"app": "web"} }),
		"standbys too":      change(func(b *policyv1.PodDisruptionBudgetSpec) { delete(b.Selector.MatchLabels, v1.RoleLabel) }),
		"unhealthy, too":    change(func(b *policyv1.PodDisruptionBudgetSpec) { b.UnhealthyPodEvictionPolicy = nil }),
		"another minimum":   change(func(b *policyv1.PodDisruptionBudgetSpec) { b.MinAvailable = new(intstr.FromInt32(0)) }),
	})
}

// testControllerLeases: guard "lease" limits what the controller writes into a Lease.
func testControllerLeases(t *testing.T, config *rest.Config) {
	const (
		otherOwner    = "writes and deletes only Leases that are named statefulsingleton-<name> and whose controller is StatefulSingleton <name>"
		otherMetadata = "has one owner and no finalizer"
		renew         = `{"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}`
	)
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	foreign := func(namespace, name string) *coordinationv1.Lease {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		create(t, admin, lease)
		return lease
	}
	elected := foreign(releaseNamespace, "statefulsingleton")
	scheduler := foreign(metav1.NamespaceSystem, "kube-scheduler")
	node := foreign(corev1.NamespaceNodeLease, "statefulsingleton-db")
	created := func(change func(client.Object)) func() error {
		return func() error {
			lease := leaseOf("default", "db")
			change(lease)
			return tryCreate(t, controller, lease)
		}
	}
	patched := func(lease *coordinationv1.Lease, body string) func() error {
		return func() error {
			return controller.Patch(t.Context(), lease.DeepCopy(), client.RawPatch(merge, []byte(body)), client.DryRunAll)
		}
	}
	type write = struct {
		write       func() error
		wantRefused string
	}
	tests := map[string]write{
		"passes: creates":             {created(func(client.Object) {}), ""},
		"a finalizer":                 {created(func(o client.Object) { o.SetFinalizers([]string{"example.com/mine"}) }), otherMetadata},
		"another owner beside":        {created(anotherOwner), otherMetadata},
		"passes: is elected":          {patched(elected, renew), ""},
		"is elected elsewhere":        {created(func(o client.Object) { o.SetName("statefulsingleton"); o.SetOwnerReferences(nil) }), otherOwner},
		"renews another's":            {patched(scheduler, renew), otherOwner},
		"renews a node's":             {patched(node, renew), otherOwner},
		"owns a node's":               {patched(node, ownersOf(t, leaseOf("default", "db"))), otherOwner},
		"deletes another's":           {func() error { return controller.Delete(t.Context(), scheduler, client.DryRunAll) }, otherOwner},
		"passes: a person's election": {func() error { return patch{personUser, "", merge, renew}.apply(t, config, scheduler) }, ""},
	}
	for name, change := range ownerChanges() {
		tests[name] = write{created(change), otherOwner}
	}
	waitForGuard(t, tests["the name alone"].write)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, test.write(), test.wantRefused) })
	}
}

func testControllerRoles(t *testing.T, config *rest.Config) {
	const other = "a Role that the StatefulSingleton controller writes has one owner, no new finalizer, and one rule"
	role := func() client.Object { return roleOf("default", "db") }
	rule := func(change func(*rbacv1.PolicyRule)) func(client.Object) {
		return func(o client.Object) { change(&o.(*rbacv1.Role).Rules[0]) }
	}
	testOwned(t, config, role, "writes and deletes only Roles that are named statefulsingleton-<name>", other, map[string]func(client.Object){
		"two rules":         func(o client.Object) { r := o.(*rbacv1.Role); r.Rules = append(r.Rules, r.Rules[0]) },
		"another verb":      rule(func(r *rbacv1.PolicyRule) { r.Verbs[3] = "update" }),
		"one more verb":     rule(func(r *rbacv1.PolicyRule) { r.Verbs = append(r.Verbs, "delete") }),
		"a verb less":       rule(func(r *rbacv1.PolicyRule) { r.Verbs = r.Verbs[:3] }),
		"all verbs":         rule(func(r *rbacv1.PolicyRule) { r.Verbs = []string{"*"} }),
		"another resource":  rule(func(r *rbacv1.PolicyRule) { r.Resources = []string{"leasecandidates"} }),
		"one more resource": rule(func(r *rbacv1.PolicyRule) { r.Resources = append(r.Resources, "secrets") }),
		"another group":     rule(func(r *rbacv1.PolicyRule) { r.APIGroups = []string{""} }),
		"every Lease":       rule(func(r *rbacv1.PolicyRule) { r.ResourceNames = nil }),
		"another Lease":     rule(func(r *rbacv1.PolicyRule) { r.ResourceNames = []string{"statefulsingleton-web"} }),
		"one more Lease":    rule(func(r *rbacv1.PolicyRule) { r.ResourceNames = append(r.ResourceNames, "statefulsingleton-web") }),

		"passes: of a lock":                ofLock("db-lease"),
		"of a lock, every Lease":           ofLock(),
		"of a lock, two Leases":            ofLock("db-lease", "web-lease"),
		"of a lock, Lease of a singleton":  ofLock("statefulsingleton-db"),
		"passes: of a lock, the same name": ofLock("statefulsetlock-db"),
	})
}

// ofLock makes an object of StatefulSingleton db an object of StatefulSetLock db. A Role is for the Leases.
func ofLock(leases ...string) func(client.Object) {
	return func(o client.Object) {
		owners := o.GetOwnerReferences()
		owners[0].Kind = "StatefulSetLock"
		o.SetName("statefulsetlock-db")
		o.SetOwnerReferences(owners)
		switch o := o.(type) {
		case *rbacv1.Role:
			o.Rules[0].ResourceNames = leases
		case *rbacv1.RoleBinding:
			o.RoleRef.Name = o.Name
		case *policyv1.PodDisruptionBudget:
			o.Spec.Selector.MatchLabels = map[string]string{v1.LockLabel: "db", v1.StsRoleLabel: v1.StsRoleWriter}
		}
	}
}

func testControllerRoleBindings(t *testing.T, config *rest.Config) {
	const other = "a RoleBinding that the StatefulSingleton controller writes has one owner, no new finalizer, the Role of the same name"
	binding := func() client.Object { return roleBindingOf("default", "db") }
	change := func(change func(*rbacv1.RoleBinding)) func(client.Object) {
		return func(o client.Object) { change(o.(*rbacv1.RoleBinding)) }
	}
	testOwned(t, config, binding, "writes and deletes only RoleBindings that are named statefulsingleton-<name>", other, map[string]func(client.Object){
		"passes: no subject": change(func(b *rbacv1.RoleBinding) { b.Subjects = nil }),
		"passes: two subjects": change(func(b *rbacv1.RoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "web"})
		}),
		"passes: of a lock": ofLock(),
		"another Role":      change(func(b *rbacv1.RoleBinding) { b.RoleRef.Name = "statefulsingleton-web" }),
		"a ClusterRole":     change(func(b *rbacv1.RoleBinding) { b.RoleRef.Kind = "ClusterRole" }),
		"another namespace": change(func(b *rbacv1.RoleBinding) { b.Subjects[0].Namespace = "kube-system" }),
		"a user": change(func(b *rbacv1.RoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Namespace: "default", Name: personUser})
		}),
		"a group": change(func(b *rbacv1.RoleBinding) {
			b.Subjects[0] = rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts"}
		}),
	})
}

// testOwned: the controller writes and deletes only objects that StatefulSingletons own. It writes no object with one of
// the changes, unless the name of the change begins with "passes: ".
func testOwned(t *testing.T, config *rest.Config, object func() client.Object, otherOwner, other string, changes map[string]func(client.Object)) {
	t.Helper()
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	// The controller cannot update PodDisruptionBudgets.
	_, isBudget := object().(*policyv1.PodDisruptionBudget)
	guardsUpdates := !isBudget
	changed := func(change func(client.Object)) client.Object {
		o := object()
		change(o)
		return o
	}
	changes["passes: as the controller writes it"] = func(client.Object) {}
	changes["another owner beside"] = anotherOwner
	changes["a finalizer"] = func(o client.Object) { o.SetFinalizers([]string{"example.com/mine"}) }
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			refused := other
			if strings.HasPrefix(name, "passes: ") {
				refused = ""
			}
			wantAnswer(t, tryCreate(t, controller, changed(change)), refused)
			o := changed(change)
			create(t, admin, o)
			wantAnswer(t, controller.Delete(t.Context(), o, client.DryRunAll), "")
			mustPatch(t, admin, o, `{"metadata":{"finalizers":null}}`)
			if err := admin.Delete(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
	ownerChanges := ownerChanges()
	if isBudget {
		delete(ownerChanges, "in an exempt namespace")
	}
	for name, change := range ownerChanges {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, tryCreate(t, controller, changed(change)), otherOwner)
			o := changed(change)
			create(t, admin, o)
			for _, body := range []string{`{"metadata":{"labels":{"a":"b"}}}`, ownersOf(t, object())} {
				if guardsUpdates {
					wantAnswer(t, patch{controllerUser, "", merge, body}.write(t, client.NewDryRunClient(controller), o), otherOwner)
				}
			}
			wantAnswer(t, controller.Delete(t.Context(), o, client.DryRunAll), otherOwner)
			if err := admin.Delete(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("passes: changes and deletes its own", func(t *testing.T) {
		o := object()
		create(t, controller, o)
		if !guardsUpdates {
			wantAnswer(t, controller.Delete(t.Context(), o), "")
			return
		}
		mustPatch(t, admin, o, `{"metadata":{"finalizers":["example.com/theirs"]}}`)
		mustPatch(t, controller, o, `{"metadata":{"labels":{"a":"b"}}}`)
		wantAnswer(t, patch{controllerUser, "", merge, `{"metadata":{"finalizers":["example.com/mine"]}}`}.apply(t, config, o), other)
		mustPatch(t, admin, o, `{"metadata":{"finalizers":null}}`)
		wantAnswer(t, controller.Delete(t.Context(), o), "")
	})
}

// ownerChanges change an object that StatefulSingleton db owns into an object that the controller does not write.
func ownerChanges() map[string]func(client.Object) {
	owner := func(change func(*metav1.OwnerReference)) func(client.Object) {
		return func(o client.Object) {
			owners := o.GetOwnerReferences()
			change(&owners[0])
			o.SetOwnerReferences(owners)
		}
	}
	return map[string]func(client.Object){
		"another name":                      func(o client.Object) { o.SetName("statefulsingleton-other") },
		"the name alone":                    func(o client.Object) { o.SetName("db") },
		"no owner":                          func(o client.Object) { o.SetOwnerReferences(nil) },
		"an owner of another kind":          owner(func(r *metav1.OwnerReference) { r.Kind = "Widget" }),
		"an owner of another group":         owner(func(r *metav1.OwnerReference) { r.APIVersion = "example.com/v1" }),
		"an owner that does not control it": owner(func(r *metav1.OwnerReference) { r.Controller = nil }),
		"in an exempt namespace":            func(o client.Object) { o.SetNamespace(metav1.NamespaceSystem) },
	}
}

func anotherOwner(o client.Object) {
	o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "1"}))
}

// ownersOf returns a merge patch that gives an object the owners of o.
func ownersOf(t *testing.T, o client.Object) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": o.GetOwnerReferences()}})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// podTemplate returns a template of pods with label app=web.
func podTemplate() corev1.PodTemplateSpec {
	pod := podOf("", map[string]string{"app": "web"})
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}
}

func testControllerScale(t *testing.T, config *rest.Config) {
	const toZero = "scales a ReplicaSet only to zero"
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, admin, "controller-scale")
	scale := func(c client.Client, namespace, replicas string) error {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
		return c.SubResource("scale").Patch(t.Context(), rs, client.RawPatch(merge, []byte(`{"spec":{"replicas":`+replicas+`}}`)),
			client.WithSubResourceBody(&autoscalingv1.Scale{}), client.DryRunAll)
	}
	for _, namespace := range []string{"controller-scale", metav1.NamespaceSystem} {
		template := podTemplate()
		create(t, admin, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Template: template, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}},
		})
	}
	wantAnswer(t, scale(controller, "controller-scale", "0"), "")
	wantAnswer(t, scale(controller, "controller-scale", "1"), toZero)
	wantAnswer(t, scale(controller, "controller-scale", "3"), toZero)
	wantAnswer(t, scale(admin, "controller-scale", "3"), "")
	wantAnswer(t, scale(controller, metav1.NamespaceSystem, "0"), "scales no ReplicaSet in an exempt namespace")
	wantAnswer(t, scale(admin, metav1.NamespaceSystem, "0"), "")
}

func testRoll(t *testing.T, config *rest.Config) {
	const other = "changes only annotation apps.statefulsingleton.com/replaces in the pod template of a Deployment"
	admin := newClient(t, config)
	createNamespace(t, admin, "roll")
	deployments := map[string]client.Object{}
	for name, namespace := range map[string]string{"ours": "roll", "cluster": metav1.NamespaceSystem} {
		template := podTemplate()
		template.Annotations, template.Finalizers = map[string]string{"theirs": "yes"}, []string{"example.com/theirs"}
		deployments[name] = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rolled"},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, MinReadySeconds: 1, Template: template},
		}
		create(t, admin, deployments[name])
	}
	template := func(fields string) string { return `{"spec":{"template":` + fields + `}}` }
	roll := template(annotate("replaces", `"uid"`))
	others := bodies(`{"spec":{"replicas":2}}`, `{"spec":{"paused":true}}`, `{"spec":{"minReadySeconds":null}}`,
		`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`,
		`{"metadata":{"labels":{"mine":"yes"}}}`, `{"metadata":{"annotations":{"mine":"yes"}}}`, `{"metadata":{"finalizers":["example.com/mine"]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]}}`,
		template(`{"spec":{"containers":[{"name":"db","image":"evil"}]}}`), template(`{"spec":{"containers":[{"name":"evil","image":"app"}]}}`),
		template(`{"spec":{"serviceAccountName":"evil"}}`), template(`{"metadata":{"labels":{"mine":"yes"}}}`),
		template(`{"metadata":{"annotations":{"mine":"yes"}}}`), template(`{"metadata":{"annotations":{"theirs":"no"}}}`),
		template(`{"metadata":{"annotations":{"theirs":null}}}`), template(`{"metadata":{"finalizers":["example.com/mine"]}}`),
		template(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/theirs"]}}`), template(`{"metadata":{"generateName":"mine-"}}`))
	wantAnswers(t, config, deployments, []request{
		{"ours", as(controllerUser), "strategic", others, other},
		{"ours", as(controllerUser), "strategic", bodies(roll, `{}`), ""},
		{"ours", as(personUser), "strategic", append(others, roll), ""},
		{"cluster", as(controllerUser), "strategic", bodies(roll), "changes no Deployment in an exempt namespace"},
	})
}

func testControllerSingletons(t *testing.T, config *rest.Config) {
	const (
		spec       = "never changes the spec of a StatefulSingleton"
		metadata   = "the controller changes only annotations and finalizer apps.statefulsingleton.com/policy"
		annotation = "sets an annotation: only a person attests"
		uid        = "11111111-1111-4111-8111-111111111111"
		otherUID   = "22222222-2222-4222-8222-222222222222"
		recorded   = "because status records a pod"
	)
	admin := newClient(t, config)
	s := readSingleton(t, "default")
	s.Finalizers, s.Annotations = []string{v1.PolicyFinalizer, "example.com/theirs"}, map[string]string{"theirs": "yes"}
	s = createSingleton(t, admin, "controller-singletons", s)
	// The guard "attestation" checks which pod is attested.
	s.Status.ActivePod, s.Status.ActivePodUID = "db-0", uid
	record(t, clientAs(t, config, controllerUser), s)
	if err := (patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/attest-terminated":"` + uid + `"}}}`}).apply(t, config, s); err != nil {
		t.Fatal(err)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
		t.Fatal(err)
	}
	s.Status.ActivePodUID = otherUID
	record(t, clientAs(t, config, controllerUser), s)
	const (
		more     = `{"metadata":{"finalizers":["apps.statefulsingleton.com/policy","example.com/theirs","example.com/mine"]}}`
		less     = `{"metadata":{"finalizers":["example.com/theirs"]}}`
		none     = `{"metadata":{"finalizers":null}}`
		maxTime  = `{"spec":{"maxTransitionTime":7}}`
		labelled = `{"metadata":{"labels":{"a":"b"}}}`
		owned    = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]}}`
		theirs   = `{"metadata":{"annotations":{"theirs":null}}}`
	)
	attested, unattested := annotate("attest-terminated", `"`+otherUID+`"`), annotate("attest-terminated", "null")
	controller, person := as(controllerUser), as(personUser)
	wantAnswers(t, config, map[string]client.Object{"s": s}, []request{
		{"s", controller, "merge", bodies(labelled, more, none, owned), metadata},
		{"s", controller, "merge", bodies(less, unattested), ""},
		{"s", controller, "merge", bodies(maxTime), spec},
		{"s", controller, "merge", bodies(attested, annotate("handover", `"now"`), theirs), annotation},
		{"s", person, "merge", bodies(labelled, more, owned, unattested, maxTime, attested, annotate("handover", `"now"`), theirs), ""},
		{"s", person, "merge", bodies(less, none), recorded},
	})
}

func testControllerEvents(t *testing.T, config *rest.Config) {
	const refused = "writes only its own events about StatefulSingletons"
	event := func(name, kind, reporter string) *eventsv1.Event {
		return &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, EventTime: metav1.NowMicro(),
			ReportingController: reporter, ReportingInstance: "one", Action: "Signal", Reason: "Signalled", Type: corev1.EventTypeNormal,
			Regarding: corev1.ObjectReference{APIVersion: v1.GroupVersion.String(), Kind: kind, Namespace: "default", Name: "db"},
		}
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	about := func(kind, reporter string) func() error {
		return func() error { return controller.Create(t.Context(), event("event", kind, reporter), client.DryRunAll) }
	}
	theirs, ours := event("theirs", "Pod", "kubelet"), event("ours", "StatefulSingleton", "statefulsingleton")
	create(t, admin, theirs)
	create(t, admin, ours)
	note := func(e *eventsv1.Event, body string) func() error {
		return func() error { return patch{controllerUser, "", merge, body}.apply(t, config, e) }
	}
	tests := map[string]struct {
		write       func() error
		wantRefused string
	}{
		"passes: of a StatefulSingleton": {about("StatefulSingleton", "statefulsingleton"), ""},
		"of another kind":                {about("Pod", "statefulsingleton"), refused},
		"of another reporter":            {about("StatefulSingleton", "kubelet"), refused},
		"passes: one more":               {note(ours, `{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`), ""},
		"another's":                      {note(theirs, `{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`), refused},
		"passes: leader election": {func() error {
			e := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "leader"},
				InvolvedObject: corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: "default", Name: "statefulsingleton"},
			}
			return controller.Create(t.Context(), e, client.DryRunAll)
		}, ""},
	}
	waitForGuard(t, tests["of another kind"].write)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, test.write(), test.wantRefused) })
	}
}
