package policies_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// TestControllerGuards sends requests as the controller's user on an API server with all guards. RBAC allows every
// request. The tests of package singleton show that the guards reject no write of the controller, because all of them
// run the controller under these guards.
func TestControllerGuards(t *testing.T) {
	environment := startAPIServer(t)
	config := environment.Config
	config.WarningHandler = rest.NoWarnings{}
	c := newClient(t, config)
	createAPIServer(t, c)
	// Install the guards first, because they must not need Kyverno's kinds.
	for _, object := range helmTemplate(t, "templates/crd.yaml", "templates/guards.yaml", "templates/guards-writes.yaml", "templates/guards-controller.yaml",
		"templates/guards-leases.yaml", "templates/guards-locks.yaml", "templates/guards-policies.yaml") {
		create(t, c, object)
	}
	waitForGuard(t, func() error {
		return clientAs(t, config, controllerUser).Create(t.Context(), bare("default", nil))
	})
	installKyvernoCRDs(t, config)
	t.Run("types", func(t *testing.T) { testTypes(t, c, environment.KubeConfig) })
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
	})
	if err != nil {
		t.Fatalf("install Kyverno's CRDs: %v", err)
	}
}

func testDryRun(t *testing.T, config *rest.Config) {
	tests := map[string]struct {
		user        string
		options     []client.CreateOption
		wantRefused string
	}{
		"the controller, dry-run":   {user: controllerUser, options: []client.CreateOption{client.DryRunAll}},
		"the controller, truly":     {user: controllerUser, wantRefused: "in a server-side dry-run only"},
		"another account, truly":    {user: "system:serviceaccount:the-release:other"},
		"its name elsewhere, truly": {user: "system:serviceaccount:default:demo-statefulsingleton"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clientAs(t, config, test.user)
			var answer error
			// The API server enforces a new guard with a delay.
			_ = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
				answer = c.Create(ctx, bare("default", nil), test.options...)
				return (answer != nil) == (test.wantRefused != ""), nil
			})
			wantAnswer(t, answer, test.wantRefused)
		})
	}
}

func testControllerPods(t *testing.T, config *rest.Config) {
	const (
		holder, standby, plain, cluster = "holder", "standby", "plain", "kube-system"

		notOurs    = "changes only pods of StatefulSingletons and StatefulSetLocks, and never in an exempt namespace"
		spec       = "never changes the spec of a pod"
		labels     = "the StatefulSingleton controller changes only labels apps."
		annotation = "the StatefulSingleton controller changes only annotations"
		finalizer  = "the StatefulSingleton controller changes only finalizer"
		metadata   = "the StatefulSingleton controller changes only labels, annotations and finalizers"
		status     = "the StatefulSingleton controller changes only condition"

		adopt = `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"],"labels":{"apps.statefulsingleton.com/singleton":"db","apps.statefulsingleton.com/role":"active"}}}`
	)
	// signalled is one patch of pods/status.
	signalled := releasePod[:len(releasePod)-1] + `,` + readyPod[1:]
	controller := func(subresource, body string) patch { return patch{controllerUser, subresource, strategic, body} }
	// notReady is a patch of pods/status with the state of the readiness gate.
	notReady := func(gate string) string {
		return strings.Replace(strings.Replace(readyPod, "True", gate, 1), "]", `,{"type":"Ready","status":"False"}]`, 1)
	}
	tests := map[string]struct {
		pod         string
		patch       patch
		wantRefused string
	}{
		"passes: adopts":                   {pod: plain, patch: controller("", adopt)},
		"passes: signals":                  {pod: standby, patch: controller("status", signalled)},
		"passes: readies":                  {pod: standby, patch: controller("status", readyPod)},
		"passes: nudges":                   {pod: holder, patch: controller("", `{"metadata":{"annotations":{"apps.statefulsingleton.com/nudged":"1"}}}`)},
		"passes: lets go":                  {pod: holder, patch: controller("", unprotect)},
		"passes: takes chosen-by":          {pod: holder, patch: controller("", `{"metadata":{"annotations":{"apps.statefulsingleton.com/chosen-by":null}}}`)},
		"passes: other labels of a user":   {pod: standby, patch: patch{personUser, "", merge, `{"metadata":{"annotations":{"a":"b"},"labels":{"a":"b"},"finalizers":["example.com/mine"]}}`}},
		"a pod of the cluster's own":       {cluster, controller("", adopt), notOurs},
		"a pod of no singleton":            {plain, controller("", `{"metadata":{"annotations":{"apps.statefulsingleton.com/nudged":"1"}}}`), notOurs},
		"a pod of no singleton, as status": {plain, controller("status", readyPod), notOurs},

		"image":                        {standby, controller("", `{"spec":{"containers":[{"name":"db","image":"evil"}]}}`), spec},
		"image of adopted":             {plain, controller("", adopt[:len(adopt)-1]+`,"spec":{"containers":[{"name":"db","image":"evil"}]}}`), spec},
		"deadline":                     {standby, controller("", `{"spec":{"activeDeadlineSeconds":1}}`), spec},
		"label":                        {standby, controller("", `{"metadata":{"labels":{"team":"data"}}}`), labels},
		"label, as status":             {standby, controller("status", `{"metadata":{"labels":{"team":"data"}}}`), labels},
		"label changed":                {standby, controller("", `{"metadata":{"labels":{"app":"web"}}}`), labels},
		"label taken":                  {standby, controller("", `{"metadata":{"labels":{"app":null}}}`), labels},
		"passes: of another singleton": {pod: standby, patch: controller("", `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":"other"}}}`)},
		"no singleton":                 {standby, controller("", `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":null}}}`), labels},

		"annotation":               {standby, controller("", `{"metadata":{"annotations":{"a":"b"}}}`), annotation},
		"annotation, as status":    {standby, controller("status", `{"metadata":{"annotations":{"a":"b"}}}`), annotation},
		"annotation changed":       {standby, controller("", `{"metadata":{"annotations":{"apps.statefulsingleton.com/injected":"controller-pods/other"}}}`), annotation},
		"annotation taken":         {standby, controller("", `{"metadata":{"annotations":{"apps.statefulsingleton.com/injected":null}}}`), annotation},
		"finalizer":                {standby, controller("", `{"metadata":{"finalizers":["example.com/mine"]}}`), finalizer},
		"finalizer beside its own": {standby, controller("", `{"metadata":{"finalizers":["example.com/mine","apps.statefulsingleton.com/handoff"]}}`), finalizer},
		"owner":                    {standby, controller("", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"1"}]}}`), metadata},

		"phase":                               {standby, controller("status", `{"status":{"phase":"Failed"}}`), status},
		"reason":                              {standby, controller("status", `{"status":{"reason":"mine"}}`), status},
		"address":                             {standby, controller("status", `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`), status},
		"another condition":                   {standby, controller("status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), status},
		"passes: not Ready, gate closed":      {pod: standby, patch: controller("status", notReady("False"))},
		"not Ready, gate open":                {standby, controller("status", notReady("True")), status},
		"not Ready, and another condition":    {standby, controller("status", strings.Replace(notReady("False"), "]", `,{"type":"ContainersReady","status":"False"}]`, 1)), status},
		"Ready, gate closed":                  {standby, controller("status", strings.Replace(notReady("False"), `"Ready","status":"False"`, `"Ready","status":"True"`, 1)), status},
		"container statuses":                  {standby, controller("status", `{"status":{"containerStatuses":[{"name":"db","image":"i","imageID":"i","ready":true,"restartCount":0}]}}`), status},
		"no QoS class with its own condition": {standby, controller("status", `{"status":{"qosClass":null,"hostIP":"10.0.0.1","conditions":[{"type":"apps.statefulsingleton.com/singleton-ready","status":"True"}]}}`), status},
	}
	c := newClient(t, config)
	createNamespace(t, c, "controller-pods")
	plainIn := func(namespace string) func(*testing.T) *corev1.Pod {
		return func(t *testing.T) *corev1.Pod {
			pod := podOf(namespace, map[string]string{"app": "web"})
			create(t, c, pod)
			return pod
		}
	}
	pods := map[string]func(*testing.T) *corev1.Pod{
		holder:  func(t *testing.T) *corev1.Pod { return createHolder(t, config, "controller-pods", "db") },
		standby: func(t *testing.T) *corev1.Pod { return createStandby(t, config, "controller-pods", "db") },
		plain:   plainIn("controller-pods"),
		cluster: plainIn(metav1.NamespaceSystem),
	}
	controller("", `{"metadata":{"labels":{"team":"data"}}}`).waitForRefusal(t, config, pods[standby](t))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := pods[test.pod](t)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
	t.Run("passes: readies one that is on its way out", func(t *testing.T) {
		pod := pods[holder](t)
		if err := c.Delete(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		unready := strings.Replace(readyPod, "True", "False", 1)
		wantAnswer(t, controller("status", unready).apply(t, config, pod), "")
		wantAnswer(t, controller("status", `{"status":{"phase":"Failed"}}`).apply(t, config, pod), status)
		wantAnswer(t, controller("", unprotect).apply(t, config, pod), "")
	})
	t.Run("conditions of others taken away", func(t *testing.T) {
		pod := pods[standby](t)
		if err := (patch{"system:node:", "status", strategic, `{"status":{"conditions":[{"type":"example.com/mine","status":"True"}]}}`}).apply(t, config, pod); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, patch{controllerUser, "status", merge, readyPod}.apply(t, config, pod), status)
		wantAnswer(t, controller("status", readyPod).apply(t, config, pod), "")
	})
	t.Run("a field of the status taken away", func(t *testing.T) {
		pod := pods[standby](t)
		if err := (patch{"system:node:", "status", strategic, `{"status":{"reason":"theirs"}}`}).apply(t, config, pod); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, controller("status", `{"status":{"reason":null}}`).apply(t, config, pod), status)
	})
	t.Run("an owner taken away", func(t *testing.T) {
		pod := podOf("controller-pods", map[string]string{v1.SingletonLabel: "none"})
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "none", UID: "1"}}
		create(t, c, pod)
		wantAnswer(t, patch{controllerUser, "", merge, `{"metadata":{"ownerReferences":null}}`}.apply(t, config, pod), metadata)
	})
}

func testControllerConfigMaps(t *testing.T, config *rest.Config) {
	const (
		otherName     = "creates only ConfigMaps named statefulsingleton-<uid>"
		otherData     = "contains only an epoch, and is immutable"
		otherMetadata = "has label apps.statefulsingleton.com/singleton, no other label, no annotation and no finalizer"
		otherOwner    = "the owner of a ConfigMap that the StatefulSingleton controller creates is one pod"
	)
	tests := map[string]struct {
		change      func(*corev1.ConfigMap)
		wantRefused string
	}{
		"passes: as the controller writes it": {change: func(*corev1.ConfigMap) {}},
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
		"two owners": {func(m *corev1.ConfigMap) {
			m.OwnerReferences = append(m.OwnerReferences, m.OwnerReferences[0])
			m.OwnerReferences[1].UID = "2"
		}, otherOwner},
	}
	controller := clientAs(t, config, controllerUser)
	configMap := func(change func(*corev1.ConfigMap)) *corev1.ConfigMap {
		m := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "statefulsingleton-11111111-1111-4111-8111-111111111111",
				Labels:          map[string]string{v1.SingletonLabel: "db"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "db-0", UID: "1"}},
			},
			Immutable: new(true),
			Data:      map[string]string{"epoch": "12"},
		}
		change(m)
		return m
	}
	waitForGuard(t, func() error {
		return controller.Create(t.Context(), configMap(tests["another name"].change), client.DryRunAll)
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := configMap(test.change)
			wantAnswer(t, controller.Create(t.Context(), m, client.DryRunAll), test.wantRefused)
			m = configMap(func(m *corev1.ConfigMap) { test.change(m); m.Name = "mine" })
			wantAnswer(t, clientAs(t, config, personUser).Create(t.Context(), m, client.DryRunAll), "")
		})
	}
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
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) { setIn(t, p.Object, value, path...) }
	}
	rule := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			setIn(t, p.Object["spec"].(map[string]any)["rules"].([]any)[1].(map[string]any), value, path...)
		}
	}
	resources := func(key string, value any) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			match := p.Object["spec"].(map[string]any)["rules"].([]any)[1].(map[string]any)["match"].(map[string]any)["any"].([]any)[0].(map[string]any)
			setIn(t, match, value, "resources", key)
		}
	}
	everywhere := func(namespaces ...any) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			for _, rule := range p.Object["spec"].(map[string]any)["rules"].([]any) {
				pods := rule.(map[string]any)["match"].(map[string]any)["any"].([]any)
				setIn(t, pods[0].(map[string]any), namespaces, "resources", "namespaces")
			}
		}
	}
	foreach := func(nested bool, key string, value any) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			for _, rule := range p.Object["spec"].(map[string]any)["rules"].([]any) {
				all, _ := rule.(map[string]any)["mutate"].(map[string]any)["foreach"].([]any)
				for _, f := range all {
					f := f.(map[string]any)
					inner, hasInner := f["foreach"].([]any)
					switch {
					case !nested && !hasInner:
						f[key] = value
						return
					case nested && hasInner:
						inner[0].(map[string]any)[key] = value
						return
					}
				}
			}
			t.Fatal("there is no such foreach")
		}
	}
	matchConditions := func(expressions ...string) func(*unstructured.Unstructured) {
		var conditions []any
		for i, expression := range expressions {
			conditions = append(conditions, map[string]any{"name": string(rune('a' + i)), "expression": expression})
		}
		return set(conditions, "spec", "webhookConfiguration", "matchConditions")
	}
	tests := map[string]struct {
		change      func(*unstructured.Unstructured)
		wantRefused string
	}{
		"passes: as the controller writes it": {change: func(*unstructured.Unstructured) {}},
		"passes: disabled": {change: func(p *unstructured.Unstructured) {
			if err := policies.Disable(p); err != nil {
				t.Fatal(err)
			}
		}},
		"another name":       {set("add-labels", "metadata", "name"), otherName},
		"no label":           {set(nil, "metadata", "labels"), otherName},
		"another manager":    {set("helm", "metadata", "labels", "app.kubernetes.io/managed-by"), otherName},
		"another label":      {set("b", "metadata", "labels", "a"), otherMetadata},
		"another annotation": {set("b", "metadata", "annotations", "a"), otherMetadata},
		"a finalizer":        {set([]any{"example.com/mine"}, "metadata", "finalizers"), otherMetadata},
		"an owner": {set([]any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}},
			"metadata", "ownerReferences"), otherMetadata},
		"of Deployments too":                    {set("Deployment", "metadata", "annotations", "pod-policies.kyverno.io/autogen-controllers"), autogen},
		"of what Kyverno chooses":               {set(nil, "metadata", "annotations", "pod-policies.kyverno.io/autogen-controllers"), autogen},
		"no rules":                              {set([]any{}, "spec", "rules"), otherSpec},
		"in the background":                     {set(true, "spec", "background"), otherSpec},
		"of what is there already":              {set(true, "spec", "mutateExistingOnPolicyUpdate"), otherSpec},
		"generates what is missing":             {set(true, "spec", "generateExisting"), otherSpec},
		"fails open":                            {set("Ignore", "spec", "failurePolicy"), otherSpec},
		"one rule":                              {set("One", "spec", "applyRules"), otherSpec},
		"a rule validates":                      {rule(map[string]any{"message": "no", "deny": map[string]any{}}, "validate"), otherRule},
		"a rule generates":                      {rule(map[string]any{"kind": "Secret", "apiVersion": "v1", "name": "a", "namespace": "b"}, "generate"), otherRule},
		"a rule verifies images":                {rule([]any{map[string]any{"imageReferences": []any{"*"}}}, "verifyImages"), otherRule},
		"a rule does nothing":                   {rule(nil, "mutate"), otherRule},
		"a rule calls the API":                  {rule(apiCall, "context"), otherRule},
		"a rule excludes":                       {rule(map[string]any{"any": []any{map[string]any{"resources": map[string]any{"names": []any{"a"}}}}}, "exclude"), otherRule},
		"mutates other objects":                 {rule([]any{map[string]any{"apiVersion": "v1", "kind": "Secret"}}, "mutate", "targets"), otherMutation},
		"mutates what is there":                 {rule(true, "mutate", "mutateExistingOnPolicyUpdate"), otherMutation},
		"strategic merge":                       {rule(map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}, "mutate", "patchStrategicMerge"), otherMutation},
		"a foreach calls the API":               {foreach(false, "context", apiCall), otherForeach},
		"a foreach merges":                      {foreach(false, "patchStrategicMerge", map[string]any{"metadata": map[string]any{}}), otherForeach},
		"an inner foreach calls":                {foreach(true, "context", apiCall), otherForeach},
		"an inner foreach has an inner foreach": {foreach(true, "foreach", []any{map[string]any{"list": "a", "context": apiCall, "patchesJson6902": patchJSON}}), otherForeach},
		"matches any pod":                       {rule(map[string]any{"any": []any{map[string]any{"resources": map[string]any{"kinds": []any{"Pod"}}}}}, "match"), otherKind},
		"matches by the old form":               {rule(map[string]any{"kinds": []any{"Pod"}}, "match", "resources"), otherMatch},
		"matches several": {func(p *unstructured.Unstructured) {
			match := p.Object["spec"].(map[string]any)["rules"].([]any)[1].(map[string]any)["match"].(map[string]any)
			match["any"] = append(match["any"].([]any), map[string]any{"resources": map[string]any{"kinds": []any{"Pod"}}})
		}, otherKind},
		"matches all": {func(p *unstructured.Unstructured) {
			match := p.Object["spec"].(map[string]any)["rules"].([]any)[1].(map[string]any)["match"].(map[string]any)
			match["all"] = match["any"]
			delete(match, "any")
		}, otherMatch},
		"matches nothing": {rule([]any{}, "match", "any"), otherMatch},
		"matches by user": {func(p *unstructured.Unstructured) {
			match := p.Object["spec"].(map[string]any)["rules"].([]any)[1].(map[string]any)["match"].(map[string]any)
			setIn(t, match["any"].([]any)[0].(map[string]any), []any{map[string]any{"kind": "User", "name": "a"}}, "subjects")
		}, otherMatch},
		"by name":                 {resources("names", []any{"a"}), otherMatch},
		"by namespace's labels":   {resources("namespaceSelector", map[string]any{"matchLabels": map[string]any{"a": "b"}}), otherMatch},
		"another kind":            {resources("kinds", []any{"Secret"}), otherKind},
		"every kind":              {resources("kinds", []any{"*"}), otherKind},
		"another kind beside":     {resources("kinds", []any{"Pod", "Secret"}), otherKind},
		"no kind":                 {resources("kinds", nil), otherKind},
		"another operation":       {resources("operations", []any{"UPDATE"}), otherKind},
		"every operation":         {resources("operations", nil), otherKind},
		"no selector":             {resources("selector", nil), noSelector},
		"an empty selector":       {resources("selector", map[string]any{"matchLabels": map[string]any{}}), noSelector},
		"every namespace":         {everywhere("*"), otherNamespace},
		"namespaces by wildcard":  {everywhere("sho?"), otherNamespace},
		"two namespaces":          {everywhere("shop", "other"), otherNamespace},
		"no namespace":            {everywhere(), otherNamespace},
		"the cluster's own":       {everywhere("kube-system"), otherNamespace},
		"another one in one rule": {resources("namespaces", []any{"other"}), otherNamespace},
		"a webhook of everything": {set(nil, "spec", "webhookConfiguration", "matchConditions"), otherWebhook},
		"a webhook elsewhere":     {matchConditions(`request.namespace == "other"`), otherWebhook},
		"a webhook of more":       {matchConditions(`request.namespace == "shop" || true`), otherWebhook},
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	waitForGuard(t, func() error {
		policy := render(t, s)
		tests["another name"].change(policy)
		return controller.Create(t.Context(), policy, client.DryRunAll)
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			policy := render(t, s)
			test.change(policy)
			wantAnswer(t, controller.Create(t.Context(), policy.DeepCopy(), client.DryRunAll), test.wantRefused)
			wantAnswer(t, admin.Create(t.Context(), policy, client.DryRunAll), "")
		})
	}
	for _, file := range []string{"default", "named-containers", "named-init-containers", "hold-init-containers", "match-expressions"} {
		t.Run("passes: "+file, func(t *testing.T) {
			o := options
			o.SidecarPullSecrets = []string{"pull"}
			wantAnswer(t, controller.Create(t.Context(), renderWith(t, readSingleton(t, file), o), client.DryRunAll), "")
		})
	}
	for name, all := range map[string][]policies.Subject{
		"ordinary": fleet(1000, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}}), "largest": fleet(1000, largestRendered(t)),
	} {
		t.Run("passes: a full namespace, "+name, func(t *testing.T) {
			wantAnswer(t, controller.Create(t.Context(), fullPolicy(t, policies.ClusterPolicy, all), client.DryRunAll), "")
		})
	}
	t.Run("of another version", func(t *testing.T) {
		policy := render(t, s)
		policy.SetAPIVersion("kyverno.io/v2beta1")
		for _, rule := range policy.Object["spec"].(map[string]any)["rules"].([]any) {
			delete(rule.(map[string]any)["match"].(map[string]any), "resources")
		}
		wantAnswer(t, controller.Create(t.Context(), policy.DeepCopy(), client.DryRunAll), "")
		everywhere("*")(policy)
		wantAnswer(t, controller.Create(t.Context(), policy, client.DryRunAll), otherNamespace)
	})

	theirs, ours, stray := render(t, s), render(t, s), render(t, s)
	theirs.SetLabels(nil)
	ours.SetName("stfs-shop-other-0123456789abcdef")
	ours.SetAnnotations(map[string]string{"pod-policies.kyverno.io/autogen-controllers": "none", "theirs": "yes"})
	stray.SetName("stray")
	for _, policy := range []*unstructured.Unstructured{theirs, ours, stray} {
		create(t, admin, policy)
	}
	apply := func(policy *unstructured.Unstructured) error {
		policy = policy.DeepCopy()
		policy.SetManagedFields(nil)
		policy.SetResourceVersion("")
		policy.SetUID("")
		policy.SetCreationTimestamp(metav1.Time{})
		unstructured.RemoveNestedField(policy.Object, "metadata", "generation")
		return controller.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(policy), client.FieldOwner("me"), client.ForceOwnership)
	}
	writes := map[string]struct {
		write       func() error
		wantRefused string
	}{
		"takes over another's":        {func() error { return apply(render(t, s)) }, takesOver},
		"deletes another's":           {func() error { return controller.Delete(t.Context(), theirs.DeepCopy(), client.DryRunAll) }, otherName},
		"deletes one of another name": {func() error { return controller.Delete(t.Context(), stray.DeepCopy(), client.DryRunAll) }, otherName},
		"gives its own away": {func() error {
			return patch{controllerUser, "", merge, `{"metadata":{"labels":null}}`}.apply(t, config, ours)
		}, otherName},
		"takes another's annotation with it": {func() error {
			return patch{controllerUser, "", merge, `{"metadata":{"annotations":{"theirs":"no"}}}`}.apply(t, config, ours)
		}, otherMetadata},
		"passes: changes its own": {func() error { return apply(ours) }, ""},
		"passes: deletes its own": {func() error { return controller.Delete(t.Context(), ours.DeepCopy(), client.DryRunAll) }, ""},
	}
	for name, test := range writes {
		t.Run(name, func(t *testing.T) { wantAnswer(t, test.write(), test.wantRefused) })
	}
}

// setIn sets a field, or removes the field if value is nil.
func setIn(t *testing.T, object map[string]any, value any, path ...string) {
	t.Helper()
	if value == nil {
		unstructured.RemoveNestedField(object, path...)
		return
	}
	if err := unstructured.SetNestedField(object, value, path...); err != nil {
		t.Fatal(err)
	}
}

func testControllerBudgets(t *testing.T, config *rest.Config) {
	const (
		otherName = "creates and deletes only PodDisruptionBudgets that are named"
		otherSpec = "covers the holder or the writer of its owner, and no other pod"
	)
	s := createSingleton(t, newClient(t, config), "controller-budgets", readSingleton(t, "default"))
	tests := map[string]struct {
		change                   func(*policyv1.PodDisruptionBudget)
		wantCreated, wantDeleted string
	}{
		"passes: as the controller writes it": {change: func(*policyv1.PodDisruptionBudget) {}},
		"another name":                        {func(b *policyv1.PodDisruptionBudget) { b.Name = "statefulsingleton-other" }, otherName, otherName},
		"no owner":                            {func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences = nil }, otherName, otherName},
		"an owner of another kind": {func(b *policyv1.PodDisruptionBudget) {
			b.OwnerReferences[0].Kind, b.Name = "Widget", "widget-"+s.Name
		}, otherName, otherName},
		"passes: of a lock": {change: func(b *policyv1.PodDisruptionBudget) {
			b.OwnerReferences[0].Kind, b.Name = "StatefulSetLock", "statefulsetlock-"+s.Name
			b.Spec.Selector.MatchLabels = map[string]string{v1.LockLabel: s.Name, v1.StsRoleLabel: v1.StsRoleWriter}
		}},
		"an owner of another group":         {func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences[0].APIVersion = "example.com/v1" }, otherName, otherName},
		"an owner that does not control it": {func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences[0].Controller = nil }, otherName, otherName},
		"another owner beside": {func(b *policyv1.PodDisruptionBudget) {
			b.OwnerReferences = append(b.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "1"})
		}, otherSpec, ""},
		"a finalizer":     {func(b *policyv1.PodDisruptionBudget) { b.Finalizers = []string{"example.com/mine"} }, otherSpec, ""},
		"every pod":       {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} }, otherSpec, ""},
		"another pod":     {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = map[string]string{"app": "web"} }, otherSpec, ""},
		"standbys too":    {func(b *policyv1.PodDisruptionBudget) { delete(b.Spec.Selector.MatchLabels, v1.RoleLabel) }, otherSpec, ""},
		"unhealthy, too":  {func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = nil }, otherSpec, ""},
		"another minimum": {func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = new(intstr.FromInt32(0)) }, otherSpec, ""},
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	budget := func(change func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: "statefulsingleton-" + s.Name,
				Labels: map[string]string{v1.SingletonLabel: s.Name, v1.ManagedByLabel: v1.ManagedBy},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: v1.GroupVersion.String(), Kind: "StatefulSingleton", Name: s.Name, UID: s.UID, Controller: new(true),
				}},
			},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable:               new(intstr.FromInt32(1)),
				UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
				Selector:                   &metav1.LabelSelector{MatchLabels: map[string]string{v1.SingletonLabel: s.Name, v1.RoleLabel: v1.RoleActive}},
			},
		}
		change(b)
		return b
	}
	waitForGuard(t, func() error {
		return controller.Create(t.Context(), budget(tests["another name"].change), client.DryRunAll)
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, controller.Create(t.Context(), budget(test.change), client.DryRunAll), test.wantCreated)
			b := budget(test.change)
			create(t, admin, b)
			wantAnswer(t, controller.Delete(t.Context(), b.DeepCopy(), client.DryRunAll), test.wantDeleted)
			if err := admin.Patch(t.Context(), b, client.RawPatch(merge, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				t.Fatal(err)
			}
			if err := admin.Delete(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		})
	}
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
			return controller.Create(t.Context(), lease, client.DryRunAll)
		}
	}
	patched := func(lease *coordinationv1.Lease, body string) func() error {
		return func() error {
			return controller.Patch(t.Context(), lease.DeepCopy(), client.RawPatch(merge, []byte(body)), client.DryRunAll)
		}
	}
	type write struct {
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
	changed := func(change func(client.Object)) client.Object {
		o := object()
		change(o)
		return o
	}
	changes["passes: as the controller writes it"] = func(client.Object) {}
	changes["another owner beside"] = anotherOwner
	changes["a finalizer"] = func(o client.Object) { o.SetFinalizers([]string{"example.com/mine"}) }
	waitForGuard(t, func() error { return controller.Create(t.Context(), changed(anotherOwner), client.DryRunAll) })
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			refused := other
			if strings.HasPrefix(name, "passes: ") {
				refused = ""
			}
			wantAnswer(t, controller.Create(t.Context(), changed(change), client.DryRunAll), refused)
			wantAnswer(t, admin.Create(t.Context(), changed(change), client.DryRunAll), "")
		})
	}
	for name, change := range ownerChanges() {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, controller.Create(t.Context(), changed(change), client.DryRunAll), otherOwner)
			o := changed(change)
			create(t, admin, o)
			for _, body := range []string{`{"metadata":{"labels":{"a":"b"}}}`, ownersOf(t, object())} {
				wantAnswer(t, patch{controllerUser, "", merge, body}.write(t, client.NewDryRunClient(controller), o), otherOwner)
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

func testControllerScale(t *testing.T, config *rest.Config) {
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, admin, "controller-scale")
	scaleIn := func(c client.Client, namespace, replicas string) error {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"}}
		return c.SubResource("scale").Patch(t.Context(), rs, client.RawPatch(merge, []byte(`{"spec":{"replicas":`+replicas+`}}`)),
			client.WithSubResourceBody(&autoscalingv1.Scale{}), client.DryRunAll)
	}
	scale := func(c client.Client, replicas string) error { return scaleIn(c, "controller-scale", replicas) }
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "controller-scale", Name: "db"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}
	clusters := rs.DeepCopy()
	clusters.Namespace = metav1.NamespaceSystem
	create(t, admin, rs)
	create(t, admin, clusters)
	const toZero = "scales a ReplicaSet only to zero"
	waitForGuard(t, func() error { return scale(controller, "3") })
	wantAnswer(t, scale(controller, "0"), "")
	wantAnswer(t, scale(controller, "1"), toZero)
	wantAnswer(t, scale(controller, "3"), toZero)
	wantAnswer(t, scale(admin, "3"), "")
	wantAnswer(t, scaleIn(controller, metav1.NamespaceSystem, "0"), "scales no ReplicaSet in an exempt namespace")
	wantAnswer(t, scaleIn(admin, metav1.NamespaceSystem, "0"), "")
}

func testRoll(t *testing.T, config *rest.Config) {
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, admin, "roll")
	labels := map[string]string{"app": "rolled"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "roll", Name: "rolled"},
		Spec: appsv1.DeploymentSpec{
			Selector:        &metav1.LabelSelector{MatchLabels: labels},
			MinReadySeconds: 1,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"theirs": "yes"}, Finalizers: []string{"example.com/theirs"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
			},
		},
	}
	if err := admin.Create(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	const other = "changes only annotation apps.statefulsingleton.com/replaces in the pod template of a Deployment"
	tests := map[string]struct {
		patch       string
		wantRefused string
	}{
		"rolled":                          {patch: `{"spec":{"template":{"metadata":{"annotations":{"apps.statefulsingleton.com/replaces":"uid"}}}}}`},
		"nothing":                         {patch: `{}`},
		"another image":                   {patch: `{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"evil"}]}}}}`, wantRefused: other},
		"another container":               {patch: `{"spec":{"template":{"spec":{"containers":[{"name":"evil","image":"app"}]}}}}`, wantRefused: other},
		"another account":                 {patch: `{"spec":{"template":{"spec":{"serviceAccountName":"evil"}}}}`, wantRefused: other},
		"more replicas":                   {patch: `{"spec":{"replicas":2}}`, wantRefused: other},
		"paused":                          {patch: `{"spec":{"paused":true}}`, wantRefused: other},
		"another strategy":                {patch: `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`, wantRefused: other},
		"another annotation":              {patch: `{"spec":{"template":{"metadata":{"annotations":{"mine":"yes"}}}}}`, wantRefused: other},
		"an annotation changed":           {patch: `{"spec":{"template":{"metadata":{"annotations":{"theirs":"no"}}}}}`, wantRefused: other},
		"an annotation taken off":         {patch: `{"spec":{"template":{"metadata":{"annotations":{"theirs":null}}}}}`, wantRefused: other},
		"a label":                         {patch: `{"spec":{"template":{"metadata":{"labels":{"mine":"yes"}}}}}`, wantRefused: other},
		"a label of the Deployment":       {patch: `{"metadata":{"labels":{"mine":"yes"}}}`, wantRefused: other},
		"a finalizer":                     {patch: `{"metadata":{"finalizers":["example.com/mine"]}}`, wantRefused: other},
		"an annotation of the Deployment": {patch: `{"metadata":{"annotations":{"mine":"yes"}}}`, wantRefused: other},
		"an owner":                        {patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]}}`, wantRefused: other},
		"a finalizer of the pods":         {patch: `{"spec":{"template":{"metadata":{"finalizers":["example.com/mine"]}}}}`, wantRefused: other},
		"a name of the pods":              {patch: `{"spec":{"template":{"metadata":{"generateName":"mine-"}}}}`, wantRefused: other},
		"a field taken off":               {patch: `{"spec":{"minReadySeconds":null}}`, wantRefused: other},
		"no finalizers of the pods":       {patch: `{"spec":{"template":{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/theirs"]}}}}`, wantRefused: other},
	}
	change := func(c client.Client, patch string) error {
		return c.Patch(t.Context(), deployment.DeepCopy(), client.RawPatch(strategic, []byte(patch)), client.DryRunAll)
	}
	waitForGuard(t, func() error { return change(controller, tests["more replicas"].patch) })
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, change(controller, test.patch), test.wantRefused)
			wantAnswer(t, change(admin, test.patch), "")
		})
	}
	t.Run("in an exempt namespace", func(t *testing.T) {
		clusters := deployment.DeepCopy()
		clusters.ObjectMeta = metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "rolled"}
		create(t, admin, clusters)
		roll := patch{controllerUser, "", strategic, tests["rolled"].patch}
		wantAnswer(t, roll.write(t, client.NewDryRunClient(controller), clusters), "changes no Deployment in an exempt namespace")
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
	tests := map[string]struct {
		patch       string
		wantRefused string
		// wantPersonRefused is the answer to a person. Empty: the patch passes.
		wantPersonRefused string
	}{
		"passes: its finalizer":       {patch: `{"metadata":{"finalizers":["apps.statefulsingleton.com/policy","example.com/theirs"]}}`},
		"passes: takes the finalizer": {patch: `{"metadata":{"finalizers":["example.com/theirs"]}}`, wantPersonRefused: recorded},
		"passes: takes attestation":   {patch: `{"metadata":{"annotations":{"apps.statefulsingleton.com/attest-terminated":null}}}`},
		"a field of the spec":         {`{"spec":{"maxTransitionTime":7}}`, spec, ""},
		"another finalizer":           {`{"metadata":{"finalizers":["apps.statefulsingleton.com/policy","example.com/theirs","example.com/mine"]}}`, metadata, ""},
		"no finalizers":               {`{"metadata":{"finalizers":null}}`, metadata, recorded},
		"a label":                     {`{"metadata":{"labels":{"a":"b"}}}`, metadata, ""},
		"an owner":                    {`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"1"}]}}`, metadata, ""},
		"attests":                     {`{"metadata":{"annotations":{"apps.statefulsingleton.com/attest-terminated":"` + otherUID + `"}}}`, annotation, ""},
		"asks for a handover":         {`{"metadata":{"annotations":{"apps.statefulsingleton.com/handover":"now"}}}`, annotation, ""},
		"takes another's annotation":  {`{"metadata":{"annotations":{"theirs":null}}}`, annotation, ""},
	}
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
	apply := func(user, body string) error {
		return patch{user, "", merge, body}.write(t, client.NewDryRunClient(clientAs(t, config, user)), s)
	}
	waitForGuard(t, func() error { return apply(controllerUser, tests["a label"].patch) })
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wantAnswer(t, apply(controllerUser, test.patch), test.wantRefused)
			wantAnswer(t, apply(personUser, test.patch), test.wantPersonRefused)
		})
	}
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
