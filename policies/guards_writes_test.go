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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// testTypes runs the controller manager, which checks the expressions of the guards against the types of the API.
func testTypes(t *testing.T, c client.Client, kubeconfig []byte) {
	startControllers(t, kubeconfig, "validatingadmissionpolicy-status-controller")
	var list admissionregistrationv1.ValidatingAdmissionPolicyList
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if err := c.List(ctx, &list); err != nil {
			return false, err
		}
		for _, policy := range list.Items {
			if policy.Status.ObservedGeneration != policy.Generation || policy.Status.TypeChecking == nil {
				return false, nil
			}
		}
		return len(list.Items) > 0, nil
	})
	if err != nil {
		t.Fatalf("wait for the guards' types to be checked: %v", err)
	}
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
	tests := map[string]struct {
		pod         string
		change      func(*corev1.Pod)
		wantRefused string
	}{
		"copy of the holder": {pod: "scratch", wantRefused: copyOfHolder},
		"copy of the holder, unlabelled": {pod: "scratch", wantRefused: copied, change: func(p *corev1.Pod) {
			p.Labels, p.Annotations = nil, nil
		}},
		"copy of the holder, as init container": {pod: "scratch", wantRefused: copied, change: func(p *corev1.Pod) {
			p.Labels, p.Annotations = nil, nil
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, []corev1.Container{{Name: "app", Image: "app"}}
		}},
		"another barrier": {pod: "scratch", change: anotherBarrier},
		"copy of a standby, unlabelled": {pod: "scratch", wantRefused: copyOfStandby, change: func(p *corev1.Pod) {
			anotherBarrier(p)
			p.Labels, p.Annotations = nil, nil
		}},
		"copy of a standby, of another singleton": {pod: "scratch", wantRefused: notSelected, change: func(p *corev1.Pod) {
			anotherBarrier(p)
			p.Labels["app"] = "other"
		}},
		"barrier of the user's own": {pod: "scratch", change: func(p *corev1.Pod) {
			p.Labels, p.Annotations = nil, nil
			p.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = "mine"
		}},
		"wrapper": {pod: "shell"},
		"the epoch from elsewhere": {pod: "scratch", change: func(p *corev1.Pod) {
			p.Labels, p.Annotations = nil, nil
			p.Spec.Containers[0].Env[0] = corev1.EnvVar{Name: signal.EpochEnv, Value: "7"}
		}},
		"copied to another namespace": {pod: "scratch", change: func(p *corev1.Pod) { p.Namespace = "default" }},
		"as large as a pod can be":    {pod: "scratch", wantRefused: "this pod is a copy", change: enlarge},

		"marks": {pod: "shell", wantRefused: notSelected, change: func(p *corev1.Pod) { p.Labels["app"] = "web" }},
		"label": {pod: "shell", wantRefused: notSelected, change: func(p *corev1.Pod) {
			p.Annotations, p.Labels = nil, map[string]string{v1.SingletonLabel: "db"}
		}},
		"annotation": {pod: "shell", wantRefused: notSelected, change: func(p *corev1.Pod) { p.Labels = nil }},
		"marks of one and selected by another": {pod: "shell", wantRefused: notSelected, change: func(p *corev1.Pod) {
			p.Labels["app"] = "other"
		}},
		"marks of no singleton": {pod: "shell", change: func(p *corev1.Pod) {
			p.Annotations[v1.InjectedAnnotation], p.Labels = "copied/none", map[string]string{v1.SingletonLabel: "none"}
		}},
		"no marks": {pod: "shell", change: uninjectOther},
		"mirror of a static pod": {pod: "scratch", change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
			p.Spec.NodeName = "node"
		}},
	}
	probe := injectedPod(t, "scratch", s)
	waitForRefusal(t, c, probe, copyOfHolder)
	uninjectOther(probe)
	probe.Labels = map[string]string{"app": "other"}
	waitForRefusal(t, c, probe, notInjected)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod(t, test.pod, s)
			if test.change != nil {
				test.change(pod)
			}
			wantAnswer(t, c.Create(t.Context(), pod, client.DryRunAll), test.wantRefused)
		})
	}
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
	raw := client.RawPatch(p.kind, []byte(p.body))
	object = object.DeepCopyObject().(client.Object)
	if p.subresource != "" {
		return c.SubResource(p.subresource).Patch(t.Context(), object, raw)
	}
	if p.kind == serverSide {
		return c.Patch(t.Context(), object, raw, client.FieldOwner("me"), client.ForceOwnership)
	}
	return c.Patch(t.Context(), object, raw)
}

// testMarks sends writes of users and controllers for a holder, for a standby and for a pod of no singleton.
func testMarks(t *testing.T, config *rest.Config) {
	const (
		holder, standby, fenced, plain = "holder", "standby", "fenced", "plain"

		signalRefused    = "only the StatefulSingleton controller can set, change or remove annotation apps.statefulsingleton.com/start-signal"
		roleRefused      = "only the StatefulSingleton controller can set, change or remove label apps.statefulsingleton.com/role"
		labelRefused     = "label apps.statefulsingleton.com/singleton cannot be set, changed or removed"
		fencedRefused    = "annotation apps.statefulsingleton.com/fencing cannot be set, changed or removed"
		injectedRefused  = "annotation apps.statefulsingleton.com/injected cannot be set, changed or removed"
		finalizerRefused = "only the StatefulSingleton controller can add finalizer apps.statefulsingleton.com/handoff"
		readyRefused     = "only the StatefulSingleton controller can set, change or remove condition apps.statefulsingleton.com/singleton-ready"

		chosenRefused = "only the StatefulSingleton controller can set, change or remove annotation apps.statefulsingleton.com/chosen-by"

		setChosen   = `{"metadata":{"annotations":{"apps.statefulsingleton.com/chosen-by":"me"}}}`
		setUnchosen = `{"metadata":{"annotations":{"apps.statefulsingleton.com/chosen-by":null}}}`
		setSignal   = `{"metadata":{"annotations":{"apps.statefulsingleton.com/start-signal":"{}"}}}`
		setFenced   = `{"metadata":{"annotations":{"apps.statefulsingleton.com/fencing":"Lease"}}}`
		setRole     = `{"metadata":{"labels":{"apps.statefulsingleton.com/role":"active"}}}`
		setUnready  = `{"status":{"conditions":[{"type":"apps.statefulsingleton.com/singleton-ready","status":"False"}]}}`
		kubeletSays = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"}],
			"$setElementOrder/conditions":[{"type":"Ready"},{"type":"ContainersReady"}]}}`
	)
	apply := func(rest string) string { return `{"apiVersion":"v1","kind":"Pod",` + rest[1:] }
	tests := map[string]struct {
		pod         string
		patch       patch
		wantRefused string
	}{
		"signal":                                  {standby, patch{personUser, "", strategic, setSignal}, signalRefused},
		"signal, merge patch":                     {standby, patch{personUser, "", merge, setSignal}, signalRefused},
		"signal, applied":                         {standby, patch{personUser, "", serverSide, apply(setSignal)}, signalRefused},
		"signal, as status":                       {standby, patch{personUser, "status", merge, setSignal}, signalRefused},
		"signal on any pod":                       {plain, patch{personUser, "", merge, setSignal}, signalRefused},
		"signal where nothing else is":            {plain, patch{personUser, "", jsonPatch, `[{"op":"add","path":"/metadata/annotations","value":{"apps.statefulsingleton.com/start-signal":""}}]`}, signalRefused},
		"signal, by the kubelet":                  {standby, patch{kubeletUser, "status", merge, setSignal}, signalRefused},
		"signal, by a namesake":                   {standby, patch{namesakeUser, "", merge, setSignal}, signalRefused},
		"signal, by the uninstaller":              {standby, patch{uninstallUser, "", merge, setSignal}, signalRefused},
		"another signal":                          {holder, patch{personUser, "", merge, setSignal}, signalRefused},
		"no signal":                               {holder, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/start-signal":null}}}`}, signalRefused},
		"no signal, as status":                    {holder, patch{personUser, "status", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/start-signal":null}}}`}, signalRefused},
		"no annotations":                          {holder, patch{personUser, "", jsonPatch, `[{"op":"remove","path":"/metadata/annotations"}]`}, signalRefused},
		"no annotations, merge patch":             {holder, patch{personUser, "", merge, `{"metadata":{"annotations":null}}`}, signalRefused},
		"role":                                    {standby, patch{personUser, "", strategic, setRole}, roleRefused},
		"role, applied":                           {standby, patch{personUser, "", serverSide, apply(setRole)}, roleRefused},
		"role, as status":                         {standby, patch{personUser, "status", merge, setRole}, roleRefused},
		"role on any pod":                         {plain, patch{personUser, "", merge, setRole}, roleRefused},
		"another role":                            {holder, patch{personUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/role":"standby"}}}`}, roleRefused},
		"no role":                                 {holder, patch{personUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/role":null}}}`}, roleRefused},
		"no labels":                               {holder, patch{personUser, "", jsonPatch, `[{"op":"remove","path":"/metadata/labels"}]`}, roleRefused},
		"no labels on a standby":                  {standby, patch{personUser, "", jsonPatch, `[{"op":"remove","path":"/metadata/labels"}]`}, labelRefused},
		"another singleton":                       {standby, patch{personUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":"other"}}}`}, labelRefused},
		"no singleton":                            {standby, patch{personUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":null}}}`}, labelRefused},
		"no singleton, as status":                 {standby, patch{personUser, "status", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":null}}}`}, labelRefused},
		"singleton on any pod":                    {plain, patch{personUser, "", merge, `{"metadata":{"labels":{"apps.statefulsingleton.com/singleton":"db"}}}`}, labelRefused},
		"injected for another":                    {standby, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/injected":"marks/other"}}}`}, injectedRefused},
		"not injected":                            {standby, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/injected":null}}}`}, injectedRefused},
		"injected on any pod":                     {plain, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/injected":"marks/db"}}}`}, injectedRefused},
		"fenced":                                  {standby, patch{personUser, "", merge, setFenced}, fencedRefused},
		"fenced, as status":                       {standby, patch{kubeletUser, "status", merge, setFenced}, fencedRefused},
		"fenced, by the uninstaller":              {standby, patch{uninstallUser, "", merge, setFenced}, fencedRefused},
		"fenced on any pod":                       {plain, patch{personUser, "", merge, setFenced}, fencedRefused},
		"not fenced":                              {fenced, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/fencing":null}}}`}, fencedRefused},
		"fenced otherwise":                        {fenced, patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/fencing":"Kubelet"}}}`}, fencedRefused},
		"passes: the controller signals a fenced": {pod: fenced, patch: patch{controllerUser, "", strategic, releasePod}},
		"finalizer":                               {standby, patch{personUser, "", strategic, `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"]}}`}, finalizerRefused},
		"who chose it":                            {standby, patch{personUser, "", merge, setChosen}, chosenRefused},
		"no chosen-by":                            {holder, patch{personUser, "", merge, setUnchosen}, chosenRefused},
		"who chose it, by the uninstaller":        {standby, patch{uninstallUser, "", merge, setChosen}, chosenRefused},
		"finalizer on any pod":                    {plain, patch{personUser, "", merge, `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"]}}`}, finalizerRefused},
		"finalizer, as status":                    {standby, patch{personUser, "status", merge, `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"]}}`}, finalizerRefused},
		"condition":                               {standby, patch{personUser, "status", strategic, readyPod}, readyRefused},
		"condition, False":                        {standby, patch{personUser, "status", strategic, setUnready}, readyRefused},
		"condition, by the kubelet":               {standby, patch{kubeletUser, "status", strategic, readyPod}, readyRefused},
		"condition on any pod":                    {plain, patch{personUser, "status", merge, readyPod}, readyRefused},
		"condition with another reason":           {holder, patch{personUser, "status", strategic, `{"status":{"conditions":[{"type":"apps.statefulsingleton.com/singleton-ready","reason":"Standby"}]}}`}, readyRefused},
		"condition turned":                        {holder, patch{personUser, "status", strategic, setUnready}, readyRefused},
		"no conditions":                           {holder, patch{personUser, "status", merge, `{"status":{"conditions":null}}`}, readyRefused},
		"other conditions":                        {holder, patch{personUser, "status", merge, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`}, readyRefused},
		"condition twice":                         {holder, patch{personUser, "status", jsonPatch, `[{"op":"add","path":"/status/conditions/-","value":{"type":"apps.statefulsingleton.com/singleton-ready","status":"False"}}]`}, readyRefused},
		"no status":                               {holder, patch{personUser, "status", jsonPatch, `[{"op":"remove","path":"/status"}]`}, readyRefused},
		"passes: the controller signals":          {pod: standby, patch: patch{controllerUser, "", strategic, releasePod}},
		"passes: the controller marks":            {pod: plain, patch: patch{controllerUser, "", strategic, `{"metadata":{"finalizers":["apps.statefulsingleton.com/handoff"],"labels":{"apps.statefulsingleton.com/singleton":"db"}}}`}},
		"passes: the controller readies":          {pod: standby, patch: patch{controllerUser, "status", strategic, readyPod}},
		"passes: the controller lets go":          {pod: holder, patch: patch{controllerUser, "", strategic, unprotect}},
		"passes: the uninstaller lets go":         {pod: holder, patch: patch{uninstallUser, "", merge, setUnchosen}},
		"passes: the kubelet reports":             {pod: holder, patch: patch{kubeletUser, "status", strategic, kubeletSays}},
		"passes: the kubelet reports of any pod":  {pod: plain, patch: patch{kubeletUser, "status", strategic, kubeletSays}},
		"passes: a label":                         {pod: holder, patch: patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data","role":"active"}}}`}},
		"passes: an annotation":                   {pod: standby, patch: patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/barrier-opened":"1"}}}`}},
		"passes: a label applied":                 {pod: holder, patch: patch{personUser, "", serverSide, apply(`{"metadata":{"labels":{"team":"data"}}}`)}},
		"passes: another finalizer":               {pod: holder, patch: patch{personUser, "", strategic, `{"metadata":{"finalizers":["example.com/mine"]}}`}},
		"passes: the image":                       {pod: standby, patch: patch{personUser, "", strategic, `{"spec":{"containers":[{"name":"db","image":"newer"}]}}`}},
		"passes: adopted by another owner": {pod: holder, patch: patch{"system:serviceaccount:kube-system:replicaset-controller", "", strategic,
			`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"db","uid":"1234","controller":true}]}}`}},
		"passes: as much as fits":      {pod: plain, patch: patch{kubeletUser, "status", merge, `{"status":{"conditions":[` + strings.Repeat(`{"type":"a","status":"True"},`, 20000) + `{"type":"b","status":"True"}]}}`}},
		"passes: no labels of any pod": {pod: plain, patch: patch{personUser, "", jsonPatch, `[{"op":"remove","path":"/metadata/labels"}]`}},
		"passes: condition of another": {pod: holder, patch: patch{personUser, "status", strategic, `{"status":{"conditions":[{"type":"singleton-ready","status":"True"}]}}`}},
	}
	createNamespace(t, newClient(t, config), "marks")
	pods := map[string]func(*testing.T) *corev1.Pod{
		holder:  func(t *testing.T) *corev1.Pod { return createHolder(t, config, "marks", "db") },
		standby: func(t *testing.T) *corev1.Pod { return createStandby(t, config, "marks", "db") },
		fenced:  func(t *testing.T) *corev1.Pod { return createFenced(t, config, "marks") },
		plain: func(t *testing.T) *corev1.Pod {
			pod := bare("marks", nil)
			pod.Labels = map[string]string{"app": "web"}
			create(t, newClient(t, config), pod)
			return pod
		},
	}
	patch{personUser, "", merge, setRole}.waitForRefusal(t, config, pods[plain](t))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := pods[test.pod](t)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
	t.Run("passes: deleted", func(t *testing.T) {
		pod, c := pods[holder](t), clientAs(t, config, personUser)
		if err := c.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("marks"), client.MatchingFields{"metadata.name": pod.Name}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp == nil {
			t.Errorf("want a terminating pod: deletion timestamp %v, error %v", pod.DeletionTimestamp, err)
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
			var now corev1.Pod
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), &now); err != nil {
				t.Fatal(err)
			}
			// The managed fields change although no other field changes.
			now.ResourceVersion, now.ManagedFields = pod.ResourceVersion, pod.ManagedFields
			if diff := cmp.Diff(pod, &now); diff != "" {
				t.Errorf("the pod changed (-before +now):\n%s", diff)
			}
		})
	}
}

func testBindings(t *testing.T, config *rest.Config) {
	tests := map[string]struct {
		annotations, labels map[string]string
		wantRefused         string
	}{
		"plain":     {},
		"others":    {annotations: map[string]string{"a": "b"}, labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
		"signal":    {annotations: map[string]string{signal.Annotation: "{}"}, wantRefused: "a binding cannot add an annotation"},
		"chosen":    {annotations: map[string]string{v1.ChosenByAnnotation: "uid"}, wantRefused: "a binding cannot add an annotation"},
		"injected":  {annotations: map[string]string{v1.InjectedAnnotation: "shop/db"}, wantRefused: "a binding cannot add an annotation"},
		"fenced":    {annotations: map[string]string{v1.FencingAnnotation: "Lease"}, wantRefused: "a binding cannot add an annotation"},
		"role":      {labels: map[string]string{v1.RoleLabel: v1.RoleActive}, wantRefused: "a binding cannot add label"},
		"singleton": {labels: map[string]string{v1.SingletonLabel: "db"}, wantRefused: "a binding cannot add label"},
		"a writer":  {labels: map[string]string{v1.StsRoleLabel: v1.StsRoleWriter}, wantRefused: "a binding cannot add label"},
		"a lock":    {labels: map[string]string{v1.LockLabel: "db"}, wantRefused: "a binding cannot add label"},
		"tenure":    {annotations: map[string]string{v1.TenureAnnotation: "7"}, wantRefused: "a binding cannot add an annotation"},
		"its end":   {annotations: map[string]string{v1.TenureEndedAnnotation: "7"}, wantRefused: "a binding cannot add an annotation"},
	}
	c := newClient(t, config)
	createNamespace(t, c, "bindings")
	bindingOf := func(pod *corev1.Pod, annotations, labels map[string]string) *corev1.Binding {
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
	unbound := createStandby(t, config, "bindings", "db")
	waitForGuard(t, func() error {
		return c.Create(t.Context(), bindingOf(unbound, nil, tests["role"].labels), client.DryRunAll)
	})
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
	tests := map[string]struct {
		namespace, singleton string
		patch                patch
		wantRefused          string
	}{
		"person":                       {"finalizer", "db", patch{personUser, "", strategic, remove}, refused},
		"person, merge patch":          {"finalizer", "db", patch{personUser, "", merge, `{"metadata":{"finalizers":null}}`}, refused},
		"person, json patch":           {"finalizer", "db", patch{personUser, "", jsonPatch, `[{"op":"remove","path":"/metadata/finalizers/0"}]`}, refused},
		"person, another instead":      {"finalizer", "db", patch{personUser, "", merge, `{"metadata":{"finalizers":["example.com/mine"]}}`}, refused},
		"person, as status":            {"finalizer", "db", patch{personUser, "status", merge, `{"metadata":{"finalizers":null}}`}, refused},
		"person, with the label":       {"finalizer", "db", patch{personUser, "", merge, `{"metadata":{"finalizers":null,"labels":null}}`}, "only the StatefulSingleton controller can"},
		"namesake":                     {"finalizer", "db", patch{namesakeUser, "", strategic, remove}, refused},
		"kubelet":                      {"finalizer", "db", patch{kubeletUser, "status", strategic, remove}, refused},
		"passes: controller":           {namespace: "finalizer", singleton: "db", patch: patch{controllerUser, "", strategic, unprotect}},
		"passes: uninstall":            {namespace: "finalizer", singleton: "db", patch: patch{uninstallUser, "", merge, `{"metadata":{"finalizers":null}}`}},
		"passes: singleton is deleted": {namespace: "finalizer", singleton: "gone", patch: patch{personUser, "", strategic, remove}},
		"passes: none in namespace":    {namespace: "finalizer-none", singleton: "db", patch: patch{personUser, "", strategic, remove}},
		"passes: another finalizer":    {namespace: "finalizer", singleton: "db", patch: patch{personUser, "", strategic, `{"metadata":{"finalizers":["example.com/mine"]}}`}},
		"passes: labels of the user":   {namespace: "finalizer", singleton: "db", patch: patch{personUser, "", merge, `{"metadata":{"labels":{"team":"data"}}}`}},
	}
	c := newClient(t, config)
	for _, name := range []string{"db", "attested"} {
		s := readSingleton(t, "default")
		s.Name, s.Namespace = name, "finalizer"
		s.Spec.Selector = v1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		if name == "db" {
			createSingleton(t, c, "finalizer", s)
			continue
		}
		create(t, c, s)
	}
	createNamespace(t, c, "finalizer-none")
	patch{personUser, "", strategic, remove}.waitForRefusal(t, config, createHolder(t, config, "finalizer", "attested"))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := createHolder(t, config, test.namespace, test.singleton)
			wantAnswer(t, test.patch.apply(t, config, pod), test.wantRefused)
			wantChanged(t, config, pod, test.wantRefused == "")
		})
	}
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
		// The API server reads the attestation with a delay.
		var last error
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
			last = take.apply(t, config, pod)
			return last == nil, nil
		})
		if err != nil {
			t.Errorf("the pod is attested, but its finalizer stays: %v", last)
		}
		other := createHolder(t, config, "finalizer", "attested")
		wantAnswer(t, take.apply(t, config, other), refused)
	})
}

func testBarrier(t *testing.T, config *rest.Config) {
	const (
		refused = "only the StatefulSingleton controller creates a ConfigMap of this name"
		name    = "statefulsingleton-11111111-1111-4111-8111-111111111111"
	)
	tests := map[string]struct {
		user, name, generateName string
		wantRefused              string
	}{
		"person":                       {user: personUser, name: name, wantRefused: refused},
		"namesake":                     {user: namesakeUser, name: name, wantRefused: refused},
		"uninstall":                    {user: uninstallUser, name: name, wantRefused: refused},
		"passes: controller":           {user: controllerUser, name: name},
		"passes: another name":         {user: personUser, name: "statefulsingleton-mine"},
		"passes: uid of another":       {user: personUser, name: "other-11111111-1111-4111-8111-111111111111"},
		"passes: more than a uid":      {user: personUser, name: name + "-0"},
		"passes: a name from a prefix": {user: personUser, generateName: "statefulsingleton-"},
	}
	configMap := func(name, generateName string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, GenerateName: generateName}}
	}
	waitForGuard(t, func() error {
		return clientAs(t, config, personUser).Create(t.Context(), configMap(name, ""), client.DryRunAll)
	})
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			err := clientAs(t, config, test.user).Create(t.Context(), configMap(test.name, test.generateName), client.DryRunAll)
			wantAnswer(t, err, test.wantRefused)
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

		namesHolder = "attestation/db, which is pod db-0 with uid 11111111-1111-4111-8111-111111111111. With the annotation you attest that the pod's processes have ended"
		nobody      = "but StatefulSingleton attestation/db has no holder"
		several     = "must be the uid of one of the running pods of StatefulSingleton attestation/db, which status.message names"
	)
	holds := v1.StatefulSingletonStatus{ActivePod: "db-0", ActivePodUID: holderUID}
	stalled := func(status metav1.ConditionStatus, reason string) v1.StatefulSingletonStatus {
		s := *holds.DeepCopy()
		s.Conditions = []metav1.Condition{{Type: v1.ConditionStalled, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
		return s
	}
	tests := map[string]struct {
		status      v1.StatefulSingletonStatus
		attested    string
		patch       patch
		wantRefused string
	}{
		"the holder":                          {status: holds, patch: attest(holderUID)},
		"the holder, applied":                 {status: holds, patch: patch{personUser, "", serverSide, `{"apiVersion":"apps.statefulsingleton.com/v1","kind":"StatefulSingleton",` + attest(holderUID).body[1:]}},
		"another pod":                         {status: holds, patch: attest(otherUID), wantRefused: namesHolder},
		"a name":                              {status: holds, patch: attest("db-0"), wantRefused: namesHolder},
		"nothing":                             {status: holds, patch: attest(""), wantRefused: namesHolder},
		"more than a line":                    {status: holds, patch: attest(`a\nb`), wantRefused: namesHolder},
		"no holder":                           {patch: attest(holderUID), wantRefused: nobody},
		"empty, no holder":                    {patch: attest(""), wantRefused: nobody},
		"with the status":                     {patch: patch{personUser, "", merge, `{"status":{"activePodUID":"` + otherUID + `"},` + attest(otherUID).body[1:]}, wantRefused: nobody},
		"several run":                         {status: stalled("True", "SeveralRun"), patch: attest(otherUID)},
		"several run, no uid":                 {status: stalled("True", "SeveralRun"), patch: attest("db-1"), wantRefused: several},
		"several run, a terminating pod":      {status: stalled("False", "SeveralRun"), patch: attest(otherUID)},
		"several ran":                         {status: stalled("False", "HolderReady"), patch: attest(otherUID), wantRefused: namesHolder},
		"stalled for another reason":          {status: stalled("True", "HolderLost"), patch: attest(otherUID), wantRefused: namesHolder},
		"attested another holder":             {status: holds, attested: otherUID, patch: attest(holderUID)},
		"attested before, and now for a name": {status: holds, attested: otherUID, patch: attest("db-0"), wantRefused: namesHolder},
		"taken back":                          {status: holds, attested: otherUID, patch: patch{personUser, "", merge, `{"metadata":{"annotations":null}}`}},
		"as it was":                           {status: holds, attested: otherUID, patch: patch{personUser, "", merge, `{"spec":{"maxTransitionTime":7}}`}},
		"another annotation":                  {status: holds, patch: patch{personUser, "", merge, `{"metadata":{"annotations":{"a":"b"}}}`}},
	}
	c, controller := newClient(t, config), clientAs(t, config, controllerUser)
	attest("db-0").waitForRefusal(t, config, createSingleton(t, c, "attestation-probe", readSingleton(t, "default")))
	createNamespace(t, c, "attestation")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := readSingleton(t, "default")
			s.Namespace = "attestation"
			create(t, c, s)
			t.Cleanup(func() {
				if err := c.Delete(context.Background(), s); err != nil {
					t.Error(err)
				}
			})
			if test.attested != "" {
				s.Status = v1.StatefulSingletonStatus{ActivePodUID: types.UID(test.attested)}
				record(t, controller, s)
				if err := attest(test.attested).apply(t, config, s); err != nil {
					t.Fatal(err)
				}
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
					t.Fatal(err)
				}
			}
			s.Status = test.status
			record(t, controller, s)
			wantAnswer(t, test.patch.apply(t, config, s), test.wantRefused)
			wantChanged(t, config, s, test.wantRefused == "")
		})
	}
	t.Run("from the start", func(t *testing.T) {
		s := readSingleton(t, "default")
		s.Namespace, s.Annotations = "attestation", map[string]string{v1.AttestAnnotation: holderUID}
		s.Status = holds
		wantAnswer(t, c.Create(t.Context(), s), nobody)
	})
}

// attest attests the termination of the pod with that uid.
func attest(uid string) patch {
	return patch{personUser, "", merge, `{"metadata":{"annotations":{"apps.statefulsingleton.com/attest-terminated":"` + uid + `"}}}`}
}

func testRecord(t *testing.T, config *rest.Config) {
	const refused = "only the StatefulSingleton controller can change the status of a StatefulSingleton"
	tests := map[string]struct {
		user, subresource string
		wantRefused       string
	}{
		"person":               {user: personUser, subresource: "status", wantRefused: refused},
		"namesake":             {user: namesakeUser, subresource: "status", wantRefused: refused},
		"uninstall":            {user: uninstallUser, subresource: "status", wantRefused: refused},
		"passes: controller":   {user: controllerUser, subresource: "status"},
		"passes: not a status": {user: personUser},
	}
	s := createSingleton(t, newClient(t, config), "record", readSingleton(t, "default"))
	patch{personUser, "status", merge, `{"status":{"activePod":"me"}}`}.waitForRefusal(t, config, s)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := newClient(t, config).Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
				t.Fatal(err)
			}
			// A write of the status changes only the status, and a write of the object changes everything else.
			body := fmt.Sprintf(`{"metadata":{"annotations":{"by":%q}},"status":{"activePod":%[1]q}}`, test.user+test.subresource)
			wantAnswer(t, patch{test.user, test.subresource, merge, body}.apply(t, config, s), test.wantRefused)
			wantChanged(t, config, s, test.wantRefused == "")
		})
	}
}

// testExemptNamespace: a StatefulSingleton cannot be created in an exempt namespace. Other tests create
// StatefulSingletons in other namespaces.
func testExemptNamespace(t *testing.T, c client.Client) {
	s := readSingleton(t, "default")
	s.Namespace = metav1.NamespaceSystem
	refused := func() error { return c.Create(t.Context(), s.DeepCopy(), client.DryRunAll) }
	waitForGuard(t, refused)
	wantAnswer(t, refused(), "a StatefulSingleton cannot be in namespace kube-system")
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
	tests := map[string]struct {
		write       func() error
		wantRefused string
	}{
		"deleted":          {write: func() error { return c.Delete(t.Context(), own, client.DryRunAll) }, wantRefused: refused},
		"deleted with all": {write: func() error { return c.DeleteAllOf(t.Context(), definition(""), client.DryRunAll) }, wantRefused: refused},
		"passes: another":  {write: func() error { return c.Delete(t.Context(), other, client.DryRunAll) }},
		"passes: is changed": {write: func() error {
			return c.Patch(t.Context(), own, client.RawPatch(merge, []byte(`{"metadata":{"annotations":{"by":"helm"}}}`)), client.DryRunAll)
		}},
	}
	waitForGuard(t, tests["deleted"].write)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { wantAnswer(t, test.write(), test.wantRefused) })
	}
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
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
			wantAnswer(t, c.Create(ctx, bare(known.Namespace, known), client.DryRunAll), notInjected)
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
		return c.Create(t.Context(), bare(fresh.Namespace, fresh), client.DryRunAll) != nil
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

// waitForGuard waits until a write is rejected, because the API server enforces new guards with a delay.
func waitForGuard(t *testing.T, write func() error) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return apierrors.IsForbidden(write()), nil
	})
	if err != nil {
		t.Fatalf("waited for a guard to reject the write, got: %v", write())
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
