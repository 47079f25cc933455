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
	resourceRule := func(key string, value any) func(*unstructured.Unstructured) {
		return set(t, value, "spec", "matchConstraints", "resourceRules", "0", key)
	}
	mutations := func(expression string) func(*unstructured.Unstructured) {
		return set(t, []any{map[string]any{"patchType": "JSONPatch", "jsonPatch": map[string]any{"expression": expression}}}, "spec", "mutations")
	}
	owner := func(apiVersion, kind string, blocks bool) func(*unstructured.Unstructured) {
		return set(t, []any{map[string]any{"apiVersion": apiVersion, "kind": kind, "name": "db", "uid": "1", "blockOwnerDeletion": blocks}}, "metadata", "ownerReferences")
	}
	secrets := `resource.Get("v1", "secrets", "shop", "db").data`
	tests := map[string]change[*unstructured.Unstructured]{
		"passes: as the controller writes it":    {},
		"passes: disabled":                       {func(p *unstructured.Unstructured) { _ = policies.Disable(p) }, ""},
		"passes: of a StatefulSingleton":         {owner(v1.GroupVersion.String(), "StatefulSingleton", false), ""},
		"passes: text that looks like a library": {change: mutations(`[JSONPatch{op: "add", path: "/metadata/labels/a", value: "http.Get // \" resource.Get ' r\""}]`)},
		"another name":                           {set(t, "add-labels", "metadata", "name"), otherName},
		"no label":                               {set(t, nil, "metadata", "labels"), otherName},
		"another label":                          {set(t, "b", "metadata", "labels", "a"), otherMetadata},
		"another annotation":                     {set(t, "b", "metadata", "annotations", "a"), otherMetadata},
		"a finalizer":                            {set(t, []any{"example.com/mine"}, "metadata", "finalizers"), otherMetadata},
		"another owner":                          {owner("v1", "ConfigMap", false), otherOwner},
		"an owner that waits":                    {owner(v1.GroupVersion.String(), "StatefulSingleton", true), otherOwner},
		"an exempt namespace":                    {set(t, "kube-system", "metadata", "namespace"), otherNamespace},
		"of what is there already":               {set(t, map[string]any{"mutateExisting": map[string]any{"enabled": true}}, "spec", "evaluation"), otherSpec},
		"of other objects":                       {set(t, map[string]any{"expression": "{}"}, "spec", "targetMatchConstraints"), otherSpec},
		"generates a policy":                     {set(t, map[string]any{"enabled": true}, "spec", "autogen", "mutatingAdmissionPolicy"), hasAutogen},
		"of Deployments too":                     {set(t, []any{"deployments"}, "spec", "autogen", "podControllers", "controllers"), hasAutogen},
		"of what Kyverno chooses":                {set(t, nil, "spec", "autogen"), hasAutogen},
		"another resource":                       {resourceRule("resources", []any{"secrets"}), otherMatch},
		"every resource":                         {resourceRule("resources", []any{"*"}), otherMatch},
		"another operation":                      {resourceRule("operations", []any{"UPDATE"}), otherMatch},
		"two rules":                              {set(t, []any{}, "spec", "matchConstraints", "resourceRules"), otherMatch},
		"an exclusion":                           {set(t, []any{}, "spec", "matchConstraints", "excludeResourceRules"), otherMatch},
		"no selector":                            {set(t, nil, "spec", "matchConstraints", "objectSelector"), noSelector},
		"an empty selector":                      {set(t, map[string]any{}, "spec", "matchConstraints", "objectSelector"), noSelector},
		"a merge": {set(t, []any{map[string]any{"patchType": "ApplyConfiguration", "applyConfiguration": map[string]any{"expression": "Object{}"}}},
			"spec", "mutations"), merges},
		"a mutation reads Secrets":        {mutations(secrets), reads},
		"behind a long string":            {mutations(`""" " """ + ` + secrets + ` + """ " """`), reads},
		"behind a raw string":             {mutations(`r"\" + ` + secrets + ` + "\"`), reads},
		"behind bytes":                    {mutations(`b"\x41" + ` + secrets), reads},
		"behind another quote":            {mutations(`'"' + ` + secrets + ` + '"'`), reads},
		"behind a comment":                {mutations("// \"\n" + secrets + " // \""), reads},
		"as a value":                      {mutations("dyn(resource)"), reads},
		"calls a server":                  {mutations(`http.Get("http://example.com")`), reads},
		"a variable reads Secrets":        {set(t, []any{map[string]any{"name": "a", "expression": secrets}}, "spec", "variables"), reads},
		"a match condition reads Secrets": {set(t, []any{map[string]any{"name": "a", "expression": secrets + " != {}"}}, "spec", "matchConditions"), reads},
	}
	admin, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, admin, "shop")
	fresh := func() *unstructured.Unstructured {
		return ownPolicy(readSingleton(t, "default"), options).render(t, policies.NamespacedMutatingPolicy)
	}
	wantPolicies(t, config, fresh, tests)
	pull := options
	pull.SidecarPullSecrets = []string{"pull"}
	for name, policy := range map[string]rendering{
		"a singleton": ownPolicy(readSingleton(t, "fencing-init-containers"), pull), "hostile names": ownPolicy(hostileSingleton(), pull),
		"a namespace": sharedPolicy(named(t, "fencing", "db"), named(t, "default", "queue")),
		"a lock":      ownPolicy(dbLock, options), "a fenced lock": ownPolicy(fencedLock(&v1.LockHooks{Promote: hostileNames}), options),
	} {
		t.Run("passes: "+name, func(t *testing.T) {
			wantAnswer(t, tryCreate(t, controller, policy.render(t, policies.NamespacedMutatingPolicy)), "")
		})
	}
	t.Run("passes: a full namespace", func(t *testing.T) {
		all := fleet(1000, v1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "db"}})
		wantAnswer(t, tryCreate(t, controller, fullPolicy(t, policies.NamespacedMutatingPolicy, all)), "")
	})
	theirs := fresh()
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
