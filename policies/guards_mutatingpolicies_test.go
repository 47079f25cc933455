package policies_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// The controller writes only its own NamespacedMutatingPolicies.
func testControllerMutatingPolicies(t *testing.T, config *rest.Config) {
	const (
		otherName      = "writes and deletes only NamespacedMutatingPolicies that are named stfs-…, ssl-… or stc-… and have label app.kubernetes.io/managed-by=statefulsingleton"
		otherMetadata  = "the controller changes only its own labels and annotations of a NamespacedMutatingPolicy"
		otherOwner     = "is a StatefulSingleton or a StatefulSetLock, whose deletion does not wait"
		otherNamespace = "is in no exempt namespace"
		otherSpec      = "mutates pods that are created, and nothing else"
		hasAutogen     = "has no autogen"
		otherMatch     = "matches pods that are created, and nothing else"
		noSelector     = "of the StatefulSingleton controller selects pods"
		merges         = "a mutation of the StatefulSingleton controller is a JSON patch"
		reads          = "reads nothing from elsewhere"
	)
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) { setIn(t, p.Object, value, path...) }
	}
	resourceRule := func(key string, value any) func(*unstructured.Unstructured) {
		return func(p *unstructured.Unstructured) {
			rules := p.Object["spec"].(map[string]any)["matchConstraints"].(map[string]any)["resourceRules"].([]any)
			rules[0].(map[string]any)[key] = value
		}
	}
	mutations := func(expression string) func(*unstructured.Unstructured) {
		return set([]any{map[string]any{"patchType": "JSONPatch", "jsonPatch": map[string]any{"expression": expression}}}, "spec", "mutations")
	}
	owner := func(apiVersion, kind string, blocks bool) func(*unstructured.Unstructured) {
		return set([]any{map[string]any{"apiVersion": apiVersion, "kind": kind, "name": "db", "uid": "1", "blockOwnerDeletion": blocks}}, "metadata", "ownerReferences")
	}
	secrets := `resource.Get("v1", "secrets", "shop", "db").data`
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
		"passes: of a StatefulSingleton":         {change: owner(v1.GroupVersion.String(), "StatefulSingleton", false)},
		"passes: text that looks like a library": {change: mutations(`[JSONPatch{op: "add", path: "/metadata/labels/a", value: "http.Get // \" resource.Get ' r\""}]`)},
		"another name":                           {set("add-labels", "metadata", "name"), otherName},
		"no label":                               {set(nil, "metadata", "labels"), otherName},
		"another label":                          {set("b", "metadata", "labels", "a"), otherMetadata},
		"another annotation":                     {set("b", "metadata", "annotations", "a"), otherMetadata},
		"a finalizer":                            {set([]any{"example.com/mine"}, "metadata", "finalizers"), otherMetadata},
		"another owner":                          {owner("v1", "ConfigMap", false), otherOwner},
		"an owner that waits":                    {owner(v1.GroupVersion.String(), "StatefulSingleton", true), otherOwner},
		"an exempt namespace":                    {set("kube-system", "metadata", "namespace"), otherNamespace},
		"of what is there already":               {set(map[string]any{"mutateExisting": map[string]any{"enabled": true}}, "spec", "evaluation"), otherSpec},
		"of other objects":                       {set(map[string]any{"expression": "{}"}, "spec", "targetMatchConstraints"), otherSpec},
		"generates a policy":                     {set(map[string]any{"enabled": true}, "spec", "autogen", "mutatingAdmissionPolicy"), hasAutogen},
		"of Deployments too":                     {set([]any{"deployments"}, "spec", "autogen", "podControllers", "controllers"), hasAutogen},
		"of what Kyverno chooses":                {set(nil, "spec", "autogen"), hasAutogen},
		"another resource":                       {resourceRule("resources", []any{"secrets"}), otherMatch},
		"every resource":                         {resourceRule("resources", []any{"*"}), otherMatch},
		"another operation":                      {resourceRule("operations", []any{"UPDATE"}), otherMatch},
		"two rules":                              {set([]any{}, "spec", "matchConstraints", "resourceRules"), otherMatch},
		"an exclusion":                           {set([]any{}, "spec", "matchConstraints", "excludeResourceRules"), otherMatch},
		"no selector":                            {set(nil, "spec", "matchConstraints", "objectSelector"), noSelector},
		"an empty selector":                      {set(map[string]any{}, "spec", "matchConstraints", "objectSelector"), noSelector},
		"a merge": {set([]any{map[string]any{"patchType": "ApplyConfiguration", "applyConfiguration": map[string]any{"expression": "Object{}"}}},
			"spec", "mutations"), merges},
		"a mutation reads Secrets":        {mutations(secrets), reads},
		"behind a long string":            {mutations(`""" " """ + ` + secrets + ` + """ " """`), reads},
		"behind a raw string":             {mutations(`r"\" + ` + secrets + ` + "\"`), reads},
		"behind bytes":                    {mutations(`b"\x41" + ` + secrets), reads},
		"behind another quote":            {mutations(`'"' + ` + secrets + ` + '"'`), reads},
		"behind a comment":                {mutations("// \"\n" + secrets + " // \""), reads},
		"as a value":                      {mutations("dyn(resource)"), reads},
		"calls a server":                  {mutations(`http.Get("http://example.com")`), reads},
		"a variable reads Secrets":        {set([]any{map[string]any{"name": "a", "expression": secrets}}, "spec", "variables"), reads},
		"a match condition reads Secrets": {set([]any{map[string]any{"name": "a", "expression": secrets + " != {}"}}, "spec", "matchConditions"), reads},
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, admin, "shop")
	waitForGuard(t, func() error {
		policy := ownPolicy(readSingleton(t, "default"), options).render(t, policies.NamespacedMutatingPolicy)
		tests["another name"].change(policy)
		return controller.Create(t.Context(), policy, client.DryRunAll)
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			policy := ownPolicy(readSingleton(t, "default"), options).render(t, policies.NamespacedMutatingPolicy)
			test.change(policy)
			wantAnswer(t, controller.Create(t.Context(), policy.DeepCopy(), client.DryRunAll), test.wantRefused)
			wantAnswer(t, admin.Create(t.Context(), policy, client.DryRunAll), "")
		})
	}
	pull := options
	pull.SidecarPullSecrets = []string{"pull"}
	for name, policy := range map[string]rendering{
		"a singleton": ownPolicy(readSingleton(t, "fencing-init-containers"), pull), "hostile names": ownPolicy(hostileSingleton(), pull),
		"a namespace": sharedPolicy(named(t, "fencing", "db"), named(t, "default", "queue")),
		"a lock":      ownPolicy(dbLock, options), "a fenced lock": ownPolicy(fencedLock(&v1.LockHooks{Promote: hostileNames}), options),
	} {
		t.Run("passes: "+name, func(t *testing.T) {
			wantAnswer(t, controller.Create(t.Context(), policy.render(t, policies.NamespacedMutatingPolicy), client.DryRunAll), "")
		})
	}
	t.Run("passes: a full namespace", func(t *testing.T) {
		all := fleet(1000, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}})
		wantAnswer(t, controller.Create(t.Context(), fullPolicy(t, policies.NamespacedMutatingPolicy, all), client.DryRunAll), "")
	})
	theirs := ownPolicy(readSingleton(t, "default"), options).render(t, policies.NamespacedMutatingPolicy)
	theirs.SetLabels(nil)
	create(t, admin, theirs)
	wantAnswer(t, controller.Delete(t.Context(), theirs.DeepCopy(), client.DryRunAll), otherName)
}

// hostileSingleton returns a singleton that names containers with hostileNames and hostileCEL.
func hostileSingleton() *v1.StatefulSingleton {
	s := singletonOf(v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}})
	s.Spec.Containers = append(append([]string{"db"}, hostileNames...), hostileCEL...)
	return s
}
