package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// clusterName is the name of the StatefulCluster of most tests.
const clusterName = "coder"

// world is the namespace of a test with five nodes. It acts for the scheduler, the kubelets and the controllers of claims and
// EndpointSlices. It fails the test if two pods run with one claim, or if a name is used twice.
type world struct {
	t          *testing.T
	namespace  string
	name       string // of the StatefulCluster
	nodes      []string
	reconciler *cluster.Reconciler
	recorder   *events.FakeRecorder

	// cut are the nodes whose kubelets are cut off.
	cut map[string]bool
	// slow are pods whose processes do not end. unready are images whose containers are never Ready.
	slow, unready map[string]bool
	// holdImages and holdSlices stop the kubelets from restarting containers with new images, and the updates of EndpointSlices.
	holdImages, holdSlices bool
	// pinned is a claim whose volume no node can use.
	pinned string

	// uids are the UIDs of all pods, by name. claims are the claims of running processes, by the UID of the pod. mounted are the
	// claims of all pods that ran.
	uids    map[string]types.UID
	claims  map[types.UID][]string
	mounted map[string]bool
}

// started returns a world in which all pods of a StatefulCluster are available.
func started(t *testing.T, replicas int32, changes ...func(*v1.StatefulClusterSpec)) *world {
	t.Helper()
	w := newWorld(t)
	w.create(replicas, changes...)
	w.settled()
	return w
}

// another returns the world with another StatefulCluster.
func (w *world) another(t *testing.T, name string) *world {
	other := *w
	other.t, other.name = t, name
	return &other
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cluster-"}}
	w := &world{
		t: t, name: clusterName, recorder: events.NewFakeRecorder(10000),
		cut: map[string]bool{}, slow: map[string]bool{}, unready: map[string]bool{},
		uids: map[string]types.UID{}, claims: map[types.UID][]string{}, mounted: map[string]bool{},
	}
	w.must(c.Create(t.Context(), namespace))
	w.namespace = namespace.Name
	for i := range 5 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", w.namespace, i)}}
		w.must(c.Create(t.Context(), node))
		w.nodes = append(w.nodes, node.Name)
		w.setReady(node.Name, corev1.ConditionTrue)
	}
	w.reconciler = w.newReconciler(cached())
	return w
}

// cached returns a client that writes with the rights of the controller, and reads without them, as from a cache.
func cached() client.WithWatch {
	return interceptor.NewClient(controller, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			return c.Get(ctx, key, o, options...)
		},
	})
}

func (w *world) newReconciler(writes client.Client) *cluster.Reconciler {
	return &cluster.Reconciler{
		Client: writes, Live: controller, Clock: clock.RealClock{}, Recorder: w.recorder, Metrics: cluster.NewMetrics(prometheus.NewRegistry(), nil),
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.namespace, Name: name}
}

// templateOf returns a template with the image.
func templateOf(image string) runtime.RawExtension {
	return runtime.RawExtension{Raw: []byte(`{
		"metadata": {"labels": {"tier": "gold"}, "annotations": {"note": "kept"}},
		"spec": {
			"containers": [{"name": "coder", "image": "` + image + `", "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]}],
			"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
		}
	}`)}
}

// create creates the StatefulCluster with a volume of 1Gi.
func (w *world) create(replicas int32, changes ...func(*v1.StatefulClusterSpec)) {
	w.t.Helper()
	o := &v1.StatefulCluster{ObjectMeta: w.named(w.name), Spec: v1.StatefulClusterSpec{
		Replicas: &replicas, Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "coder"}}, Template: templateOf("coder:1"),
		VolumeClaimTemplates: []v1.ClaimTemplate{{
			Metadata: v1.ClaimMetadata{Name: "data", Labels: map[string]string{"kind": "project"}, Annotations: map[string]string{"backup": "daily"}},
			Spec: v1.ClaimSpec{
				AccessModes: []string{"ReadWriteOnce"}, Resources: v1.ClaimResources{Requests: v1.ClaimSize{Storage: quantity("1Gi")}},
			},
		}},
	}}
	for _, change := range changes {
		change(&o.Spec)
	}
	w.must(c.Create(w.t.Context(), o))
}

// change changes the spec.
func (w *world) change(change func(*v1.StatefulClusterSpec)) {
	w.t.Helper()
	for {
		o := w.cluster()
		change(&o.Spec)
		if err := c.Update(w.t.Context(), o); !apierrors.IsConflict(err) {
			w.must(err)
			return
		}
	}
}

func (w *world) setImage(image string) {
	w.t.Helper()
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Template = templateOf(image) })
}

func (w *world) scale(replicas int32) {
	w.t.Helper()
	w.change(func(spec *v1.StatefulClusterSpec) { spec.Replicas = &replicas })
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	w.must(c.Delete(w.t.Context(), w.pod(name)))
}

func quantity(text string) *resource.Quantity { return new(resource.MustParse(text)) }

// podSpec and claimSpec return the specs of objects of another client.
func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "coder", Image: "theirs"}}}
}

func claimSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *quantity("1Gi")}},
	}
}

func (w *world) request() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespace, Name: w.name}}
}

func (w *world) cluster() *v1.StatefulCluster {
	w.t.Helper()
	o := &v1.StatefulCluster{}
	w.must(c.Get(w.t.Context(), w.request().NamespacedName, o))
	return o
}

func (w *world) isRemoved() bool {
	w.t.Helper()
	return apierrors.IsNotFound(c.Get(w.t.Context(), w.request().NamespacedName, &v1.StatefulCluster{}))
}

// exists returns true if the object with the name exists and is not being deleted.
func (w *world) exists(o client.Object, name string) bool {
	w.t.Helper()
	err := c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, o)
	w.must(client.IgnoreNotFound(err))
	return err == nil && o.GetDeletionTimestamp() == nil
}

func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: w.named(name)}
	w.must(c.Get(w.t.Context(), client.ObjectKeyFromObject(pod), pod))
	return pod
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.named(name)}
	w.must(c.Get(w.t.Context(), client.ObjectKeyFromObject(claim), claim))
	return claim
}

func sizeOf(claim *corev1.PersistentVolumeClaim) string {
	return claim.Spec.Resources.Requests.Storage().String()
}

// pods returns all pods in the order of their numbers.
func (w *world) pods() []corev1.Pod {
	w.t.Helper()
	var list corev1.PodList
	w.must(c.List(w.t.Context(), &list, client.InNamespace(w.namespace)))
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return number(a.Name) - number(b.Name) })
	return list.Items
}

func (w *world) podNames() (names []string) {
	w.t.Helper()
	for _, p := range w.pods() {
		names = append(names, p.Name)
	}
	return names
}

// wantPods checks the names of all pods.
func (w *world) wantPods(want ...string) {
	w.t.Helper()
	if got := w.podNames(); !slices.Equal(got, want) {
		w.t.Errorf("pods %v, want %v", got, want)
	}
}

// member returns the recorded member with the name, or nil.
func (w *world) member(name string) *v1.ClusterMember {
	w.t.Helper()
	members := w.cluster().Status.Members
	i := slices.IndexFunc(members, func(m v1.ClusterMember) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &members[i]
}

// wantClaim checks the claim of a pod.
func (w *world) wantClaim(pod, claim string) {
	w.t.Helper()
	if got := claimsOf(w.pod(pod)); !slices.Equal(got, []string{claim}) {
		w.t.Errorf("pod %s has the claims %v, want %s", pod, got, claim)
	}
}

func claimsOf(p *corev1.Pod) (names []string) {
	for _, volume := range p.Spec.Volumes {
		if source := volume.PersistentVolumeClaim; source != nil {
			names = append(names, source.ClaimName)
		}
	}
	return names
}

// number returns the number at the end of a name.
func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	return n
}

func conditionOf(o *v1.StatefulCluster, conditionType string) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(o.Status.Conditions, conditionType), metav1.Condition{})
}

func isStalled(o *v1.StatefulCluster) bool {
	return meta.IsStatusConditionTrue(o.Status.Conditions, v1.ConditionStalled)
}

// wantStalled checks that a person must act, and that the message has the parts.
func (w *world) wantStalled(reason string, parts ...string) {
	w.t.Helper()
	got := w.cluster()
	if conditionOf(got, v1.ConditionStalled).Reason != reason || !isStalled(got) || conditionOf(got, v1.ConditionReady).Status != metav1.ConditionFalse {
		w.t.Errorf("conditions %+v, want Stalled with reason %s", got.Status.Conditions, reason)
	}
	for _, part := range parts {
		if !strings.Contains(got.Status.Message, part) {
			w.t.Errorf("message %q, want %q", got.Status.Message, part)
		}
	}
}

// reconcile lets the controller act once.
func (w *world) reconcile() ctrl.Result {
	w.t.Helper()
	result, err := w.reconciler.Reconcile(w.t.Context(), w.request())
	w.must(err)
	return result
}

// settled is settle until all pods are available.
func (w *world) settled() *v1.StatefulCluster {
	w.t.Helper()
	return w.settle(membership.AllAvailable)
}

// settle lets the controller and the world act until the outcome, and until nothing else is to be done.
func (w *world) settle(want membership.Outcome) *v1.StatefulCluster {
	w.t.Helper()
	var got *v1.StatefulCluster
	for range 100 {
		result := w.reconcile()
		acted := w.play()
		got = w.cluster()
		if !acted && result.RequeueAfter >= time.Second && w.has(got, want) {
			return got
		}
	}
	w.t.Fatalf("outcome %s (%s), want %s", conditionOf(got, v1.ConditionReady).Reason, got.Status.Message, want)
	return nil
}

// has returns true if the status reports the outcome of the current spec.
func (w *world) has(o *v1.StatefulCluster, outcome membership.Outcome) bool {
	return conditionOf(o, v1.ConditionReady).Reason == string(outcome) && o.Status.ObservedGeneration == o.Generation
}

// until lets the controller and the world act until the condition. It ignores errors of the controller.
func (w *world) until(what string, condition func() bool) {
	w.t.Helper()
	for range 200 {
		_, _ = w.reconciler.Reconcile(w.t.Context(), w.request())
		w.play()
		if condition() {
			return
		}
	}
	w.t.Fatalf("not so in time: %s", what)
}

// play does what the scheduler, the kubelets, and the controllers of claims and EndpointSlices do. It returns false if there was nothing
// to do.
func (w *world) play() (acted bool) {
	w.t.Helper()
	pods := w.pods()
	for i := range pods {
		p := &pods[i]
		if uid, known := w.uids[p.Name]; known && uid != p.UID {
			w.t.Errorf("two pods have the name %s", p.Name)
		}
		w.uids[p.Name] = p.UID
		switch {
		case p.Spec.NodeName == "":
			acted = w.schedule(p) || acted
		case w.cut[p.Spec.NodeName]:
		case p.DeletionTimestamp != nil:
			acted = w.terminate(p) || acted
		default:
			acted = w.run(p) || acted
		}
	}
	return w.serveClaims() || w.serveSlice(pods) || acted
}

// done returns true after a write. Another client can have written or removed the object before.
func (w *world) done(err error) bool {
	w.t.Helper()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		w.must(err)
	}
	return true
}

// schedule binds a pod without scheduling gates to a node. The processes of the pod start.
func (w *world) schedule(p *corev1.Pod) bool {
	w.t.Helper()
	isMissing := func(claim string) bool { return !w.exists(&corev1.PersistentVolumeClaim{}, claim) }
	if len(p.Spec.SchedulingGates) > 0 || p.DeletionTimestamp != nil || slices.ContainsFunc(claimsOf(p), isMissing) {
		return false
	}
	if slices.Contains(claimsOf(p), w.pinned) {
		return w.reportUnschedulable(p)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node"}}
	for i := range w.nodes { // another node for each pod, if possible
		name := w.nodes[(number(p.Name)+i)%len(w.nodes)]
		if !w.cut[name] && !w.node(name).Spec.Unschedulable {
			binding.Target.Name = name
			break
		}
	}
	if binding.Target.Name == "" {
		return false
	}
	if err := c.SubResource("binding").Create(w.t.Context(), p, binding); err != nil {
		return w.done(err)
	}
	for uid, others := range w.claims {
		for _, claim := range claimsOf(p) {
			if slices.Contains(others, claim) {
				w.t.Errorf("pod %s runs with claim %s, and so does the pod with UID %s", p.Name, claim, uid)
			}
		}
	}
	w.claims[p.UID] = claimsOf(p)
	for _, claim := range claimsOf(p) {
		w.mounted[claim] = true
	}
	return true
}

// reportUnschedulable reports that the scheduler has found no node for a pod for an hour.
func (w *world) reportUnschedulable(p *corev1.Pod) bool {
	w.t.Helper()
	if is := proof.Condition(p, corev1.PodScheduled); is != nil && is.Reason == corev1.PodReasonUnschedulable {
		return false
	}
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		Message: "0/5 nodes are available: 5 node(s) didn't match PersistentVolume's node affinity.",
	}}
	return w.done(c.Status().Update(w.t.Context(), p))
}

// run reports that the container of a pod runs, and whether the pod is Ready.
func (w *world) run(p *corev1.Pod) bool {
	w.t.Helper()
	before := p.Status.DeepCopy()
	p.Status.Phase = corev1.PodRunning
	image := p.Spec.Containers[0].Image
	if was := p.Status.ContainerStatuses; w.holdImages && len(was) > 0 {
		image = was[0].Image
	}
	isReady := !w.unready[image]
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "coder", Image: image, ImageID: "sha256:same", ContainerID: "containerd://" + string(p.UID) + "-" + image, Ready: isReady,
		Resources: &p.Spec.Containers[0].Resources,
		State:     corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(1, 0)}},
	}}
	for _, gate := range p.Spec.ReadinessGates {
		isReady = isReady && proof.IsTrue(p, gate.ConditionType)
	}
	setReady(p, isReady)
	if equality.Semantic.DeepEqual(before, &p.Status) {
		return false
	}
	return w.done(kubelet.Status().Update(w.t.Context(), p))
}

// setReady sets the condition Ready of a pod.
func setReady(p *corev1.Pod, isReady bool) {
	status := corev1.ConditionFalse
	if isReady {
		status = corev1.ConditionTrue
	}
	if is := proof.Condition(p, corev1.PodReady); is == nil {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()})
	} else if is.Status != status {
		is.Status, is.LastTransitionTime = status, metav1.Now()
	}
}

// terminate ends the processes of a terminating pod, reports that, and removes the pod as the kubelet does.
func (w *world) terminate(p *corev1.Pod) bool {
	w.t.Helper()
	if w.slow[p.Name] || proof.Terminal(p) && *p.DeletionGracePeriodSeconds == 0 {
		return false
	}
	delete(w.claims, p.UID)
	id := "containerd://" + string(p.UID)
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "coder", Image: "coder", ContainerID: id, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id}},
	}}
	setReady(p, false)
	if err := kubelet.Status().Update(w.t.Context(), p); err != nil {
		return w.done(err)
	}
	return w.done(c.Delete(w.t.Context(), p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID}))
}

// serveClaims binds claims, and removes deleted claims that no scheduled pod has.
func (w *world) serveClaims() (acted bool) {
	w.t.Helper()
	pods, claims := w.pods(), w.allClaims()
	for i := range claims {
		claim := &claims[i]
		hasClaim := func(p corev1.Pod) bool { return p.Spec.NodeName != "" && slices.Contains(claimsOf(&p), claim.Name) }
		switch {
		case claim.DeletionTimestamp != nil && slices.ContainsFunc(pods, hasClaim):
		case claim.DeletionTimestamp != nil:
			claim.Finalizers = nil
			acted = w.done(c.Update(w.t.Context(), claim))
		case claim.Status.Phase != corev1.ClaimBound:
			claim.Status.Phase = corev1.ClaimBound
			acted = w.done(c.Status().Update(w.t.Context(), claim))
		}
	}
	return acted
}

// serveSlice updates the EndpointSlice of a Service, if there is one.
func (w *world) serveSlice(pods []corev1.Pod) bool {
	w.t.Helper()
	slice := &discoveryv1.EndpointSlice{}
	if w.holdSlices || !w.exists(slice, clusterName) {
		return false
	}
	var endpoints []discoveryv1.Endpoint
	for i := range pods {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.0.0.%d", number(pods[i].Name)+1)},
			Conditions: discoveryv1.EndpointConditions{Serving: new(proof.IsTrue(&pods[i], corev1.PodReady))},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: pods[i].Name, UID: pods[i].UID},
		})
	}
	if equality.Semantic.DeepEqual(endpoints, slice.Endpoints) {
		return false
	}
	slice.Endpoints = endpoints
	return w.done(c.Update(w.t.Context(), slice))
}

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{}
	w.must(c.Get(w.t.Context(), client.ObjectKey{Name: name}, node))
	return node
}

func (w *world) setReady(node string, status corev1.ConditionStatus) {
	w.t.Helper()
	o := w.node(node)
	o.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	o.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: *quantity("4"), corev1.ResourceMemory: *quantity("8Gi")}
	w.must(c.Status().Update(w.t.Context(), o))
}

// lose cuts off the node of a pod. The node controller makes the node and its pods unready, and evicts the pod.
func (w *world) lose(pod string) (node string) {
	w.t.Helper()
	p := w.pod(pod)
	w.cut[p.Spec.NodeName] = true
	w.setReady(p.Spec.NodeName, corev1.ConditionUnknown)
	for _, other := range w.pods() {
		if other.Spec.NodeName == p.Spec.NodeName {
			setReady(&other, false)
			w.must(c.Status().Update(w.t.Context(), &other))
		}
	}
	w.must(c.Delete(w.t.Context(), p))
	return p.Spec.NodeName
}

// heal lets a node return.
func (w *world) heal(node string) {
	w.t.Helper()
	delete(w.cut, node)
	w.setReady(node, corev1.ConditionTrue)
}

// emitted returns the events so far.
func (w *world) emitted() string {
	var all []string
	for {
		select {
		case event := <-w.recorder.Events:
			all = append(all, event)
		default:
			return strings.Join(all, "\n")
		}
	}
}

// wantEvents checks that each part is in the events since the last check.
func (w *world) wantEvents(parts ...string) {
	w.t.Helper()
	events := w.emitted()
	for _, part := range parts {
		if !strings.Contains(events, part) {
			w.t.Errorf("events:\n%s\nwant %q", events, part)
		}
	}
}

// wantClaims checks the names of all claims.
func (w *world) wantClaims(want ...string) {
	w.t.Helper()
	var got []string
	for _, claim := range w.allClaims() {
		got = append(got, claim.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("claims %v, want %v", got, want)
	}
}

func (w *world) allClaims() []corev1.PersistentVolumeClaim {
	w.t.Helper()
	var list corev1.PersistentVolumeClaimList
	w.must(c.List(w.t.Context(), &list, client.InNamespace(w.namespace)))
	return list.Items
}
