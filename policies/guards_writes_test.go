package policies_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	uninstallUser = controllerUser + "-uninstall"
	personUser    = "a-person"
	kubeletUser   = "system:node:node-1"

	// A service account with the controller's name in another namespace.
	namesakeUser = "system:serviceaccount:default:demo-statefulsingleton"

	strategic  = types.StrategicMergePatchType
	merge      = types.MergePatchType
	jsonPatch  = types.JSONPatchType
	serverSide = types.ApplyPatchType
)

// TestTypes runs the controller manager, which checks the expressions of all guards against the types of the API. The guards of other
// tests have no bindings, so they have no effect here.
func TestTypes(t *testing.T) {
	environment := controllerAPIServer(t)
	c := newClient(t, environment.Config)
	for _, object := range helmTemplate(t, "--set", withClusters, "crd.yaml", "guards-status.yaml", "guards-clusters.yaml") {
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" {
			continue
		}
		if err := c.Create(t.Context(), object); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	startControllers(t, environment.KubeConfig, "validatingadmissionpolicy-status-controller")
	var list admissionregistrationv1.ValidatingAdmissionPolicyList
	eventually(t, "check the types of the guards", func() error {
		if err := c.List(t.Context(), &list); err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errors.New("there are no guards")
		}
		for _, policy := range list.Items {
			if policy.Status.ObservedGeneration != policy.Generation || policy.Status.TypeChecking == nil {
				return fmt.Errorf("%s is not checked", policy.Name)
			}
		}
		return nil
	})
	for _, policy := range list.Items {
		for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
	}
}

// startControllers runs controllers of Kubernetes until the end of the test.
func startControllers(t *testing.T, kubeconfig []byte, controllers string, flags ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, file, kubeconfig)
	var output bytes.Buffer
	manager := exec.Command("kube-controller-manager", append(flags, "--kubeconfig="+file, "--leader-elect=false", "--secure-port=0",
		"--controllers="+controllers)...)
	manager.Stdout, manager.Stderr = &output, &output
	if err := manager.Start(); err != nil {
		t.Fatalf("kube-controller-manager must be on PATH (`make test` sees to that): %v", err)
	}
	t.Cleanup(func() {
		_ = manager.Process.Kill()
		_ = manager.Wait()
		if t.Failed() {
			t.Logf("kube-controller-manager:\n%s", &output)
		}
	})
}

// testCopied: the guard rejects a pod that was created from the manifest of another pod while Kyverno is down.
func testCopied(t *testing.T, config *rest.Config) {
	c, controller := newClient(t, config), clientAs(t, config, controllerUser)
	s := createSingleton(t, c, "copied", readSingleton(t, "default"))
	other := readSingleton(t, "default")
	other.Namespace, other.Name = s.Namespace, "other"
	other.Spec.Selector = v1.LabelSelector{MatchExpressions: []v1.LabelSelectorRequirement{expression("app", metav1.LabelSelectorOpIn, "other")}}
	create(t, c, other)
	holder := injectedPod(t, "scratch", s)
	s.Status.ActivePod, s.Status.ActivePodUID, s.Status.ActiveBarrier = "db-0", "1234", holder.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name
	record(t, controller, s)

	const (
		copyOfHolder = "this pod is a copy of the pod that holds StatefulSingleton copied/db: container db waits for ConfigMap " +
			"statefulsingleton-11111111-1111-4111-8111-111111111111, which exists already"
		// The guard rejects the pod for each singleton of the namespace. The API server reports one of them.
		copied        = "this pod is a copy of "
		copyOfStandby = "this pod is a copy of a pod that a StatefulSingleton holds, without its labels and annotations: container db waits for"
		notSelected   = "this pod has the label or annotation of StatefulSingleton copied/db, which does not select it"
	)
	type pod = corev1.Pod
	unmarked := func(p *pod) { p.Labels, p.Annotations = nil, nil }
	holderWith := injectedPod(t, "scratch", s)
	waitForRefusal(t, c, holderWith, copyOfHolder)
	uninjectOther(holderWith)
	holderWith.Labels = map[string]string{"app": "other"}
	waitForRefusal(t, c, holderWith, notInjected)
	wantCreations(t, c, func() *pod { return injectedPod(t, "scratch", s) }, map[string]change[*pod]{
		"copy of the holder":             {nil, copyOfHolder},
		"copy of the holder, unlabelled": {unmarked, copied},
		"copy of the holder, as init container": {func(p *pod) {
			unmarked(p)
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, []corev1.Container{{Name: "app", Image: "app"}}
		}, copied},
		"another barrier":                         {anotherBarrier, ""},
		"copy of a standby, unlabelled":           {both(anotherBarrier, unmarked), copyOfStandby},
		"copy of a standby, of another singleton": {func(p *pod) { anotherBarrier(p); p.Labels["app"] = "other" }, notSelected},
		"barrier of the user's own": {func(p *pod) {
			unmarked(p)
			p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = "mine"
		}, ""},
		"the epoch from elsewhere": {func(p *pod) {
			unmarked(p)
			p.Spec.Containers[0].Env[0] = corev1.EnvVar{Name: signal.EpochEnv, Value: "7"}
		}, ""},
		"copied to another namespace": {func(p *pod) { p.Namespace = "default" }, ""},
		"as large as a pod can be":    {enlarge, "this pod is a copy"},
		"mirror of a static pod":      {mirror, ""},
	})
	wantCreations(t, c, func() *pod { return injectedPod(t, "shell", s) }, map[string]change[*pod]{
		"wrapper":                              {},
		"marks":                                {func(p *pod) { p.Labels["app"] = "web" }, notSelected},
		"label":                                {func(p *pod) { p.Annotations, p.Labels = nil, map[string]string{v1.SingletonLabel: "db"} }, notSelected},
		"annotation":                           {func(p *pod) { p.Labels = nil }, notSelected},
		"marks of one and selected by another": {func(p *pod) { p.Labels["app"] = "other" }, notSelected},
		"marks of no singleton": {func(p *pod) {
			p.Annotations[v1.InjectedAnnotation], p.Labels = "copied/none", map[string]string{v1.SingletonLabel: "none"}
		}, ""},
		"no marks": {uninjectOther, ""},
	})
}

// mirror makes the pod the mirror of a static pod.
func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	p.Spec.NodeName = "node"
}

func anotherBarrier(p *corev1.Pod) {
	p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = "statefulsingleton-22222222-2222-4222-8222-222222222222"
}

// uninjectOther removes the injection and the labels. No singleton selects the pod afterwards.
func uninjectOther(p *corev1.Pod) {
	uninject(p)
	p.Labels = map[string]string{"app": "web"}
}

// patch is a write of a user.
type patch struct {
	user        string
	subresource string
	kind        types.PatchType
	body        string
}

func (p patch) apply(t *testing.T, config *rest.Config, object client.Object) error {
	t.Helper()
	return p.write(t, clientAs(t, config, p.user), object)
}

// waitForRefusal waits until a guard rejects the patch.
func (p patch) waitForRefusal(t *testing.T, config *rest.Config, object client.Object) {
	t.Helper()
	c := client.NewDryRunClient(clientAs(t, config, p.user))
	waitForGuard(t, func() error { return p.write(t, c, object) })
}

func (p patch) write(t *testing.T, c client.Client, object client.Object) error {
	t.Helper()
	return p.into(t, c, object.DeepCopyObject().(client.Object))
}

// into is write. The object is then as the API server answers.
func (p patch) into(t *testing.T, c client.Client, object client.Object) error {
	t.Helper()
	raw := client.RawPatch(p.kind, []byte(p.body))
	switch {
	case p.subresource != "" && p.kind == serverSide:
		return c.SubResource(p.subresource).Patch(t.Context(), object, raw, client.FieldOwner("me"), client.ForceOwnership)
	case p.subresource != "":
		return c.SubResource(p.subresource).Patch(t.Context(), object, raw)
	case p.kind == serverSide:
		return c.Patch(t.Context(), object, raw, client.FieldOwner("me"), client.ForceOwnership)
	}
	return c.Patch(t.Context(), object, raw)
}

// request is what one or more users send for one or more objects. Every combination gets the same answer.
type request struct {
	// objects are names of objects, separated by spaces.
	objects string
	users   []user
	// ways are kinds of patches, separated by spaces: strategic, merge, or apply, each after its subresource and a slash. The kind
	// of a list is a JSON patch in any case.
	ways        string
	bodies      []string
	wantRefused string
}

func as(names ...string) (users []user) {
	for _, name := range names {
		users = append(users, user{name: name})
	}
	return users
}

func bodies(all ...string) []string { return all }

// wantAnswers sends the requests in a server-side dry-run, so they share the objects. First it waits until a guard rejects the
// first request.
func wantAnswers(t *testing.T, config *rest.Config, objects map[string]client.Object, requests []request) {
	t.Helper()
	waiting := true
	for _, r := range requests {
		for name := range strings.FieldsSeq(r.objects) {
			for _, from := range r.users {
				c := client.NewDryRunClient(from.client(t, config))
				for way := range strings.FieldsSeq(r.ways) {
					for _, body := range r.bodies {
						p := patchOf(t, c, from.name, way, body, objects[name])
						if waiting {
							waitForGuard(t, func() error { return p.write(t, c, objects[name]) })
							waiting = false
						}
						t.Run(fmt.Sprintf("%s %s%s %s %.100s", name, from.name, from.pod, way, body), func(t *testing.T) {
							answer := objects[name].DeepCopyObject().(client.Object)
							wantAnswer(t, p.into(t, c, answer), r.wantRefused)
							if r.wantRefused == "" && body != `{}` && sameObject(objects[name], answer) {
								t.Error("the request passes, and changes nothing")
							}
						})
					}
				}
			}
		}
	}
}

// patchOf returns the patch of a request.
func patchOf(t *testing.T, c client.Client, user, way, body string, object client.Object) patch {
	t.Helper()
	subresource, kind, found := strings.Cut(way, "/")
	if !found {
		subresource, kind = "", way
	}
	p := patch{user, subresource, map[string]types.PatchType{"strategic": strategic, "merge": merge, "apply": serverSide}[kind], body}
	switch {
	case body[0] == '[':
		p.kind = jsonPatch
	case p.kind == serverSide:
		gvk, err := c.GroupVersionKindFor(object)
		if err != nil {
			t.Fatal(err)
		}
		p.body = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, gvk.GroupVersion(), gvk.Kind, body[1:])
	}
	return p
}

// sameObject compares what users write.
func sameObject(a, b client.Object) bool {
	same := []client.Object{a.DeepCopyObject().(client.Object), b.DeepCopyObject().(client.Object)}
	for _, object := range same {
		object.SetManagedFields(nil)
		object.SetResourceVersion("")
		object.SetGeneration(0)
		object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return equality.Semantic.DeepEqual(same[0], same[1])
}

// annotate and label return patches of one annotation or label of the project. The value is JSON.
func annotate(name, value string) string { return metadata("annotations", name, value) }

func label(name, value string) string { return metadata("labels", name, value) }

func metadata(field, name, value string) string {
	return fmt.Sprintf(`{"metadata":{%q:{"apps.statefulsingleton.com/%s":%s}}}`, field, name, value)
}

// testMarks sends writes of users and controllers for a holder, for a standby and for a pod of no singleton.
func testMarks(t *testing.T, config *rest.Config) {
	const (
		only             = "only the StatefulSingleton controller can set, change or remove "
		signalRefused    = only + "annotation apps.statefulsingleton.com/start-signal"
		roleRefused      = only + "label apps.statefulsingleton.com/role"
		chosenRefused    = only + "annotation apps.statefulsingleton.com/chosen-by"
		readyRefused     = only + "condition apps.statefulsingleton.com/singleton-ready"
		labelRefused     = "label apps.statefulsingleton.com/singleton cannot be set, changed or removed"
		fencedRefused    = "annotation apps.statefulsingleton.com/fencing cannot be set, changed or removed"
		injectedRefused  = "annotation apps.statefulsingleton.com/injected cannot be set, changed or removed"
		finalizerRefused = "only the StatefulSingleton controller can add finalizer apps.statefulsingleton.com/handoff"

		protect     = `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"]}}`
		noLabels    = `[{"op":"remove","path":"/metadata/labels"}]`
		kubeletSays = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"}],
			"$setElementOrder/conditions":[{"type":"Ready"},{"type":"ContainersReady"}]}}`
		replicaSetController = "system:serviceaccount:kube-system:replicaset-controller"
	)
	conditions := func(fields string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":"apps.statefulsingleton.com/singleton-ready",%s}]}}`, fields)
	}
	setUnready := conditions(`"status":"False"`)
	person, kubelet, controller, uninstaller := as(personUser), as(kubeletUser), as(controllerUser), as(uninstallUser)
	others := as(personUser, namesakeUser, uninstallUser)
	const anyWay = "strategic merge apply status/merge"
	c := newClient(t, config)
	createNamespace(t, c, "marks")
	plain := podOf("marks", map[string]string{"app": "web"})
	create(t, c, plain)
	holder := createHolder(t, config, "marks", "db")
	wantAnswers(t, config, map[string]client.Object{
		"holder": holder, "standby": createStandby(t, config, "marks", "db"), "fenced": createStandby(t, config, "marks", "db", fence), "plain": plain,
	}, []request{
		{"standby plain", others, anyWay, bodies(annotate("start-signal", `"{}"`)), signalRefused},
		{"standby", kubelet, "status/merge", bodies(annotate("start-signal", `"{}"`)), signalRefused},
		// There is no other annotation.
		{"plain", person, "merge", bodies(`[{"op":"add","path":"/metadata/annotations","value":{"apps.statefulsingleton.com/start-signal":""}}]`), signalRefused},
		{"holder", person, "merge status/merge", bodies(annotate("start-signal", `"{}"`), annotate("start-signal", "null")), signalRefused},
		{"holder", person, "merge", bodies(`[{"op":"remove","path":"/metadata/annotations"}]`, `{"metadata":{"annotations":null}}`), signalRefused},
		{"standby plain", person, anyWay, bodies(label("role", `"active"`)), roleRefused},
		{"holder", person, "merge", bodies(label("role", `"standby"`), label("role", "null"), noLabels), roleRefused},
		{"standby", person, "merge", bodies(noLabels, label("singleton", `"other"`)), labelRefused},
		{"standby", person, "merge status/merge", bodies(label("singleton", "null")), labelRefused},
		{"plain", person, "merge", bodies(label("singleton", `"db"`)), labelRefused},
		{"standby", person, "merge", bodies(annotate("injected", `"marks/other"`), annotate("injected", "null")), injectedRefused},
		{"plain", person, "merge", bodies(annotate("injected", `"marks/db"`)), injectedRefused},
		{"standby plain", as(personUser, uninstallUser, kubeletUser), "merge status/merge", bodies(annotate("fencing", `"Lease"`)), fencedRefused},
		{"fenced", person, "merge", bodies(annotate("fencing", "null"), annotate("fencing", `"Kubelet"`)), fencedRefused},
		{"standby plain", person, "strategic merge status/merge", bodies(protect), finalizerRefused},
		{"standby", as(personUser, uninstallUser), "merge", bodies(annotate("chosen-by", `"me"`)), chosenRefused},
		{"holder", person, "merge", bodies(annotate("chosen-by", "null")), chosenRefused},
		{"standby plain", as(personUser, kubeletUser), "status/strategic status/merge", bodies(readyPod), readyRefused},
		{"standby", person, "status/strategic", bodies(setUnready), readyRefused},
		{"holder", person, "status/strategic", bodies(setUnready, conditions(`"reason":"Standby"`)), readyRefused},
		{"holder", person, "status/merge", bodies(`{"status":{"conditions":null}}`, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			`[{"op":"add","path":"/status/conditions/-","value":{"type":"apps.statefulsingleton.com/singleton-ready","status":"False"}}]`,
			`[{"op":"remove","path":"/status"}]`), readyRefused},

		{"standby fenced", controller, "strategic", bodies(releasePod), ""},
		{"plain", controller, "strategic", bodies(protect[:len(protect)-2] + `,"labels":{"apps.statefulsingleton.com/singleton":"db"}}}`), ""},
		{"standby", controller, "status/strategic", bodies(readyPod), ""},
		{"holder", controller, "strategic", bodies(unprotect), ""},
		{"holder", uninstaller, "merge", bodies(annotate("chosen-by", "null")), ""},
		{"holder plain", kubelet, "status/strategic", bodies(kubeletSays), ""},
		{"holder", person, "merge", bodies(`{"metadata":{"labels":{"team":"data","role":"active"}}}`), ""},
		{"standby", person, "merge", bodies(annotate("barrier-opened", `"1"`)), ""},
		{"holder", person, "apply", bodies(`{"metadata":{"labels":{"team":"data"}}}`), ""},
		{"holder", person, "strategic", bodies(`{"metadata":{"finalizers":["example.com/mine"]}}`), ""},
		{"standby", person, "strategic", bodies(`{"spec":{"containers":[{"name":"db","image":"newer"}]}}`), ""},
		{"holder", as(replicaSetController), "strategic",
			bodies(`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"db","uid":"1234","controller":true}]}}`), ""},
		// As much as fits.
		{"plain", kubelet, "status/merge", bodies(`{"status":{"conditions":[` + strings.Repeat(`{"type":"a","status":"True"},`, 20000) + `{"type":"b","status":"True"}]}}`), ""},
		{"plain", person, "merge", bodies(noLabels), ""},
		{"holder", person, "status/strategic", bodies(`{"status":{"conditions":[{"type":"singleton-ready","status":"True"}]}}`), ""},
	})
	t.Run("passes: deleted", func(t *testing.T) {
		c := clientAs(t, config, personUser)
		if err := c.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("marks"), client.MatchingFields{"metadata.name": holder.Name}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(holder), holder); err != nil || holder.DeletionTimestamp == nil {
			t.Errorf("want a terminating pod: deletion timestamp %v, error %v", holder.DeletionTimestamp, err)
		}
	})
}

// The patches of the controller for a pod that it releases, and for a pod whose termination is proven.
const (
	releasePod = `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"],
		"labels":{"apps.statefulsingleton.com/role":"active"},"annotations":{
		"apps.statefulsingleton.com/chosen-by":"2f1c4f5e-0000-4000-8000-000000000001","apps.statefulsingleton.com/start-signal":"{\"epoch\":1}"}}}`
	readyPod  = `{"status":{"conditions":[{"type":"apps.statefulsingleton.com/singleton-ready","status":"True"}]}}`
	unprotect = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["apps.statefulsingleton.com/handoff"],
		"labels":{"apps.statefulsingleton.com/role":null},"annotations":{"apps.statefulsingleton.com/start-signal":null}}}`
)

// testSubresources: writes of the subresources that the guards do not check cannot change labels, annotations or
// finalizers.
func testSubresources(t *testing.T, config *rest.Config) {
	c := newClient(t, config)
	createNamespace(t, c, "subresources")
	for _, subresource := range []string{"ephemeralcontainers", "resize"} {
		t.Run(subresource, func(t *testing.T) {
			pod := createStandby(t, config, "subresources", "db")
			for _, body := range []string{releasePod, readyPod} {
				if err := (patch{personUser, subresource, strategic, body}).apply(t, config, pod); err != nil {
					t.Fatal(err)
				}
			}
			now := &corev1.Pod{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
				t.Fatal(err)
			}
			if !sameObject(pod, now) {
				t.Errorf("the pod changed (-before +now):\n%s", cmp.Diff(pod, now))
			}
		})
	}
}

func testBindings(t *testing.T, config *rest.Config) {
	type names = map[string]string
	const annotation, label = "a binding cannot add an annotation", "a binding cannot add label"
	tests := map[string]struct {
		annotations, labels names
		wantRefused         string
	}{
		"plain":     {},
		"others":    {annotations: names{"a": "b"}, labels: names{"topology.kubernetes.io/zone": "a"}},
		"signal":    {names{signal.Annotation: "{}"}, nil, annotation},
		"chosen":    {names{v1.ChosenByAnnotation: "uid"}, nil, annotation},
		"injected":  {names{v1.InjectedAnnotation: "shop/db"}, nil, annotation},
		"fenced":    {names{v1.FencingAnnotation: "Lease"}, nil, annotation},
		"tenure":    {names{v1.TenureAnnotation: "7"}, nil, annotation},
		"its end":   {names{v1.TenureEndedAnnotation: "7"}, nil, annotation},
		"role":      {nil, names{v1.RoleLabel: v1.RoleActive}, label},
		"singleton": {nil, names{v1.SingletonLabel: "db"}, label},
		"a writer":  {nil, names{v1.StsRoleLabel: v1.StsRoleWriter}, label},
		"a lock":    {nil, names{v1.LockLabel: "db"}, label},
	}
	c := newClient(t, config)
	createNamespace(t, c, "bindings")
	bindingOf := func(pod *corev1.Pod, annotations, labels names) *corev1.Binding {
		return &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: annotations, Labels: labels},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node-1"},
		}
	}
	// Binding is also a kind that can be created without a subresource.
	ways := map[string]func(*corev1.Pod, *corev1.Binding) error{
		"of a pod": func(pod *corev1.Pod, binding *corev1.Binding) error {
			return c.SubResource("binding").Create(t.Context(), pod, binding)
		},
		"by itself": func(_ *corev1.Pod, binding *corev1.Binding) error { return c.Create(t.Context(), binding) },
	}
	waitForRefusal(t, c, bindingOf(createStandby(t, config, "bindings", "db"), nil, tests["role"].labels), label)
	for name, test := range tests {
		for way, bind := range ways {
			t.Run(name+", "+way, func(t *testing.T) {
				pod := createStandby(t, config, "bindings", "db")
				wantAnswer(t, bind(pod, bindingOf(pod, test.annotations, test.labels)), test.wantRefused)
				wantChanged(t, config, pod, test.wantRefused == "")
			})
		}
	}
}

func testFinalizer(t *testing.T, config *rest.Config) {
	const (
		refused = "only the StatefulSingleton controller can remove finalizer apps.statefulsingleton.com/handoff"
		remove  = `{"metadata":{"$deleteFromPrimitiveList/finalizers":["apps.statefulsingleton.com/handoff"]}}`
	)
	c := newClient(t, config)
	createNamespace(t, c, "finalizer")
	for _, name := range []string{"db", "attested"} {
		s := readSingleton(t, "default")
		s.Name, s.Namespace = name, "finalizer"
		s.Spec.Selector = v1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		create(t, c, s)
	}
	createNamespace(t, c, "finalizer-none")
	patch{personUser, "", strategic, remove}.waitForRefusal(t, config, createHolder(t, config, "finalizer", "attested"))
	wantAnswers(t, config, map[string]client.Object{
		"db": createHolder(t, config, "finalizer", "db"), "gone": createHolder(t, config, "finalizer", "gone"),
		"none": createHolder(t, config, "finalizer-none", "db"),
	}, []request{
		{"db", as(personUser, namesakeUser, kubeletUser), "strategic status/strategic", bodies(remove), refused},
		{"db", as(personUser), "merge status/merge", bodies(`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":["example.com/mine"]}}`,
			`[{"op":"remove","path":"/metadata/finalizers/0"}]`), refused},
		{"db", as(personUser), "merge", bodies(`{"metadata":{"finalizers":null,"labels":null}}`), "only the StatefulSingleton controller can"},
		{"db", as(controllerUser), "strategic", bodies(unprotect), ""},
		{"db", as(uninstallUser), "merge", bodies(`{"metadata":{"finalizers":null}}`), ""},
		// No StatefulSingleton has the pod.
		{"gone none", as(personUser), "strategic", bodies(remove), ""},
		{"db", as(personUser), "strategic", bodies(`{"metadata":{"finalizers":["example.com/mine"]}}`), ""},
		{"db", as(personUser), "merge", bodies(`{"metadata":{"labels":{"team":"data"}}}`), ""},
	})
	t.Run("attested", func(t *testing.T) {
		pod := createHolder(t, config, "finalizer", "attested")
		s := &v1.StatefulSingleton{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "finalizer", Name: "attested"}, s); err != nil {
			t.Fatal(err)
		}
		s.Status.ActivePod, s.Status.ActivePodUID = pod.Name, pod.UID
		record(t, clientAs(t, config, controllerUser), s)
		take := patch{personUser, "", strategic, remove}
		wantAnswer(t, take.apply(t, config, pod), fmt.Sprintf(
			"run: kubectl annotate -n finalizer statefulsingleton attested apps.statefulsingleton.com/attest-terminated=%s --overwrite", pod.UID))
		if err := attest(string(pod.UID)).apply(t, config, s); err != nil {
			t.Fatal(err)
		}
		eventually(t, "remove the finalizer of an attested pod", func() error { return take.apply(t, config, pod) })
		other := createHolder(t, config, "finalizer", "attested")
		wantAnswer(t, take.apply(t, config, other), refused)
	})
}

func testBarrier(t *testing.T, config *rest.Config) {
	const (
		refused = "only the StatefulSingleton controller creates a ConfigMap of this name"
		name    = "statefulsingleton-11111111-1111-4111-8111-111111111111"
	)
	configMap := func(name, generateName string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, GenerateName: generateName}}
	}
	waitForRefusal(t, clientAs(t, config, personUser), configMap(name, ""), refused)
	for _, test := range []struct{ user, name, generateName, wantRefused string }{
		{personUser, name, "", refused},
		{namesakeUser, name, "", refused},
		{uninstallUser, name, "", refused},
		{controllerUser, name, "", ""},
		{personUser, "statefulsingleton-mine", "", ""},
		{personUser, "other-11111111-1111-4111-8111-111111111111", "", ""},
		{personUser, name + "-0", "", ""},
		{personUser, "", "statefulsingleton-", ""},
	} {
		t.Run(test.user+" "+test.name, func(t *testing.T) {
			wantAnswer(t, tryCreate(t, clientAs(t, config, test.user), configMap(test.name, test.generateName)), test.wantRefused)
		})
	}
	t.Run("applied", func(t *testing.T) {
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"epoch":"1"}}`
		wantAnswer(t, patch{personUser, "", serverSide, body}.apply(t, config, configMap(name, "")), refused)
	})
}

func testAttestation(t *testing.T, config *rest.Config) {
	const (
		holderUID = "11111111-1111-4111-8111-111111111111"
		otherUID  = "22222222-2222-4222-8222-222222222222"

		namesHolder = "which is pod db-0 with uid 11111111-1111-4111-8111-111111111111. With the annotation you attest that the pod's processes have ended"
	)
	holds := v1.StatefulSingletonStatus{ActivePod: "db-0", ActivePodUID: holderUID}
	stalled := func(status metav1.ConditionStatus, reason string) v1.StatefulSingletonStatus {
		s := holds
		s.Conditions = []metav1.Condition{{Type: v1.ConditionStalled, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
		return s
	}
	c, controller := newClient(t, config), clientAs(t, config, controllerUser)
	createNamespace(t, c, "attestation")
	// stored returns a StatefulSingleton with the status. If a UID is attested, the pod with the UID was active before.
	stored := func(name, attested string, status v1.StatefulSingletonStatus) *v1.StatefulSingleton {
		s := readSingleton(t, "default")
		s.Namespace, s.Name = "attestation", name
		create(t, c, s)
		if attested != "" {
			s.Status = v1.StatefulSingletonStatus{ActivePodUID: types.UID(attested)}
			record(t, controller, s)
			mustPatch(t, c, s, attest(attested).body)
		}
		s.Status = status
		record(t, controller, s)
		return s
	}
	uids := func(all ...string) (attestations []string) {
		for _, uid := range all {
			attestations = append(attestations, attest(uid).body)
		}
		return attestations
	}
	objects, requests := map[string]client.Object{}, []request{}
	for _, test := range []struct {
		name, attested string
		status         v1.StatefulSingletonStatus
		ways           string
		bodies         []string
		wantRefused    string
	}{
		{"no-holder", "", v1.StatefulSingletonStatus{}, "merge", uids(holderUID, ""), "but StatefulSingleton attestation/no-holder has no holder"},
		{"no-holder-forged", "", v1.StatefulSingletonStatus{}, "merge", bodies(bothOf(`{"status":{"activePodUID":"`+otherUID+`"}}`, attest(otherUID).body)),
			"but StatefulSingleton attestation/no-holder-forged has no holder"},
		{"held", "", holds, "merge apply", uids(holderUID), ""},
		{"held", "", holds, "merge", uids(otherUID, "db-0", "", `a\nb`), "attestation/held, " + namesHolder},
		{"held", "", holds, "merge", bodies(`{"metadata":{"annotations":{"a":"b"}}}`), ""},
		{"several", "", stalled("True", "SeveralRun"), "merge", uids(otherUID), ""},
		{"several", "", stalled("True", "SeveralRun"), "merge", uids("db-1"),
			"must be the uid of one of the running pods of StatefulSingleton attestation/several, which status.message names"},
		{"several-terminate", "", stalled("False", "SeveralRun"), "merge", uids(otherUID), ""},
		{"several-ran", "", stalled("False", "HolderReady"), "merge", uids(otherUID), "attestation/several-ran, " + namesHolder},
		{"lost", "", stalled("True", "HolderLost"), "merge", uids(otherUID), "attestation/lost, " + namesHolder},
		{"attested", otherUID, holds, "merge", uids(holderUID), ""},
		{"attested", otherUID, holds, "merge", uids("db-0"), "attestation/attested, " + namesHolder},
		{"attested", otherUID, holds, "merge", bodies(`{"metadata":{"annotations":null}}`, `{"spec":{"maxTransitionTime":7}}`), ""},
	} {
		if objects[test.name] == nil {
			objects[test.name] = stored(test.name, test.attested, test.status)
		}
		requests = append(requests, request{test.name, as(personUser), test.ways, test.bodies, test.wantRefused})
	}
	wantAnswers(t, config, objects, requests)
	t.Run("from the start", func(t *testing.T) {
		s := readSingleton(t, "default")
		s.Namespace, s.Annotations, s.Status = "attestation", map[string]string{v1.AttestAnnotation: holderUID}, holds
		wantAnswer(t, tryCreate(t, c, s), "but StatefulSingleton attestation/db has no holder")
	})
}

// attest attests the termination of the pod with that uid.
func attest(uid string) patch {
	return patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/attest-terminated":"` + uid + `"}}}`}
}

func testRecord(t *testing.T, config *rest.Config) {
	const refused = "only the StatefulSingleton controller can change the status of a StatefulSingleton"
	s := createSingleton(t, newClient(t, config), "record", readSingleton(t, "default"))
	const body = `{"metadata":{"annotations":{"by":"me"}},"status":{"activePod":"me"}}`
	wantAnswers(t, config, map[string]client.Object{"s": s}, []request{
		{"s", as(personUser, namesakeUser, uninstallUser), "status/merge", bodies(body), refused},
		{"s", as(controllerUser), "status/merge", bodies(body), ""},
		{"s", as(personUser), "merge", bodies(body), ""},
	})
	// A write of the object does not change its status.
	wantAnswer(t, patch{personUser, "", merge, body}.into(t, clientAs(t, config, personUser), s), "")
	if s.Status.ActivePod != "" {
		t.Errorf("the record names %q", s.Status.ActivePod)
	}
}

// testExemptNamespace: a StatefulSingleton cannot be created in an exempt namespace. Other tests create
// StatefulSingletons in other namespaces.
func testExemptNamespace(t *testing.T, c client.Client) {
	s := readSingleton(t, "default")
	s.Namespace = metav1.NamespaceSystem
	waitForRefusal(t, c, s, "a StatefulSingleton cannot be in namespace kube-system")
}

func testDefinition(t *testing.T, c client.Client) {
	const refused = "cannot be deleted while the guards are installed: all its objects would be deleted too"
	own, other := definition("statefulsingletons."+v1.GroupVersion.Group), definition("widgets.example.com")
	other.Object["spec"] = map[string]any{
		"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "kind": "Widget"},
		"versions": []any{map[string]any{
			"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
		}},
	}
	create(t, c, other)
	waitForGuard(t, func() error { return c.Delete(t.Context(), own, client.DryRunAll) })
	wantAnswer(t, c.Delete(t.Context(), own, client.DryRunAll), refused)
	wantAnswer(t, c.DeleteAllOf(t.Context(), definition(""), client.DryRunAll), refused)
	wantAnswer(t, c.Delete(t.Context(), other, client.DryRunAll), "")
	wantAnswer(t, patch{"", "", merge, `{"metadata":{"annotations":{"by":"helm"}}}`}.write(t, client.NewDryRunClient(c), own), "")
}

// testDefinitionChanges: a change of the definition ends all watches of StatefulSingletons, also those of the guards.
// Until the next watch starts, the guards do not apply to new StatefulSingletons. They always apply to the others.
func testDefinitionChanges(t *testing.T, c client.WithWatch, known *v1.StatefulSingleton) {
	watch, err := c.Watch(t.Context(), &v1.StatefulSingletonList{}, client.InNamespace(known.Namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	change := patch{kind: jsonPatch, body: `[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]`}
	if err := change.write(t, c, definition("statefulsingletons."+v1.GroupVersion.Group)); err != nil {
		t.Fatal(err)
	}

	guardedUntil := func(what string, done func() bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			wantAnswer(t, tryCreate(t, c, bare(known.Namespace, known)), notInjected)
			return done(), nil
		})
		if err != nil {
			t.Fatalf("waited until %s: %v", what, err)
		}
	}
	guardedUntil("the watches end", func() bool {
		select {
		case _, more := <-watch.ResultChan():
			return !more
		default:
			return false
		}
	})
	fresh := createSingleton(t, c, "changes", readSingleton(t, "default"))
	guardedUntil("the guards hear of a new StatefulSingleton", func() bool {
		return tryCreate(t, c, bare(fresh.Namespace, fresh)) != nil
	})
}

// definition returns the CustomResourceDefinition with the name, without its spec.
func definition(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apiextensions.k8s.io/v1")
	object.SetKind("CustomResourceDefinition")
	object.SetName(name)
	return object
}

// createStandby creates a pod with the label and the annotation of an injected pod.
func createStandby(t *testing.T, config *rest.Config, namespace, singleton string, changes ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := injectedPod(t, "shell", &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: singleton}})
	pod.Name, pod.GenerateName = "", "db-"
	pod.Labels["app"], pod.Labels[v1.SingletonLabel] = singleton, singleton
	for _, change := range changes {
		change(pod)
	}
	create(t, newClient(t, config), pod)
	return pod
}

// createHolder creates a pod with everything that the controller writes on a holder.
func createHolder(t *testing.T, config *rest.Config, namespace, singleton string) *corev1.Pod {
	t.Helper()
	pod := createStandby(t, config, namespace, singleton)
	err := errors.Join(
		patch{controllerUser, "", strategic, releasePod}.apply(t, config, pod),
		patch{controllerUser, "status", strategic, readyPod}.apply(t, config, pod),
		newClient(t, config).Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// record writes the status of s.
func record(t *testing.T, c client.Client, s *v1.StatefulSingleton) {
	t.Helper()
	if err := c.Status().Update(t.Context(), s); err != nil {
		t.Fatalf("write the status of StatefulSingleton %s/%s: %v", s.Namespace, s.Name, err)
	}
}

// wantChanged checks whether the stored object differs from the object that was read.
func wantChanged(t *testing.T, config *rest.Config, object client.Object, want bool) {
	t.Helper()
	now := object.DeepCopyObject().(client.Object)
	if err := newClient(t, config).Get(t.Context(), client.ObjectKeyFromObject(object), now); err != nil {
		t.Fatal(err)
	}
	if got := now.GetResourceVersion() != object.GetResourceVersion(); got != want {
		t.Errorf("the object is changed: %t, want %t (-before +now):\n%s", got, want, cmp.Diff(object, now))
	}
}
