package cluster_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

func inPlace(spec *v1.StatefulClusterSpec) { spec.UpdateStrategy.Type = v1.ClusterInPlaceIfPossible }

// Images change without a new pod: after the EndpointSlices no longer list the pod as serving. The pod serves after the kubelet has
// reported the new container, also if the new image has the digest of the old one. Other changes replace the pods.
func TestInPlace(t *testing.T) {
	w := newWorld(t)
	w.create(2, inPlace)
	w.must(c.Create(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: w.named(clusterName), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}))
	w.settled()
	before := w.pods()
	images := func() string {
		var all []string
		for _, p := range w.pods() {
			all = append(all, p.Spec.Containers[0].Image)
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	isClosed := func(p corev1.Pod) bool {
		serving := proof.Condition(&p, v1.MemberServing)
		return serving != nil && serving.Status == corev1.ConditionFalse
	}

	w.holdImages, w.holdSlices = true, true
	w.setImage("coder:2")
	w.until("a pod must not serve", func() bool { return slices.ContainsFunc(w.pods(), isClosed) })
	w.reconciler.Clock = clocktesting.NewFakePassiveClock(time.Now()) // so the controller does not lose its patience
	for range 5 {
		w.reconcile()
		w.play()
	}
	if got := images(); got != "coder:1 coder:1" {
		t.Errorf("images %s while the EndpointSlice lists the pod", got)
	}
	w.reconciler.Clock, w.holdSlices = clock.RealClock{}, false
	w.until("one image changes", func() bool { return images() == "coder:1 coder:2" })
	w.settle(membership.RollingOut)
	if got := images(); got != "coder:1 coder:2" || !slices.ContainsFunc(w.pods(), isClosed) {
		t.Errorf("images %s while the kubelet has not started the new container", got)
	}
	w.holdImages = false
	got := w.settled()
	for i, p := range w.pods() {
		if p.UID != before[i].UID || p.Labels[appsv1.StatefulSetRevisionLabel] != got.Status.UpdateRevision || !proof.IsTrue(&p, v1.MemberServing) {
			t.Errorf("pod %s: labels %v, conditions %+v", p.Name, p.Labels, p.Status.Conditions)
		}
	}
	if got := images(); got != "coder:2 coder:2" {
		t.Errorf("images %s", got)
	}
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.Template.Raw = []byte(strings.ReplaceAll(string(spec.Template.Raw), "gold", "silver"))
	})
	w.settled()
	w.wantPods("coder-2", "coder-3")
	w.wantClaims("data-coder-0", "data-coder-1")
}

// Resources change without a new pod, and without a restart. If the API server rejects the resources, the pod is replaced.
func TestResize(t *testing.T) {
	w := started(t, 2, inPlace, sized(`{"requests": {"cpu": "100m"}}`))
	before := w.pods()
	w.change(sized(`{"requests": {"cpu": "200m"}}`))
	got := w.settled()
	for i, p := range w.pods() {
		if p.UID != before[i].UID || cpuOf(p) != "200m" || p.Labels[appsv1.StatefulSetRevisionLabel] != got.Status.UpdateRevision {
			t.Errorf("pod %s: labels %v, resources %+v", p.Name, p.Labels, p.Spec.Containers[0].Resources)
		}
		if was, is := proof.Condition(&before[i], corev1.PodReady), proof.Condition(&p, corev1.PodReady); !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
			t.Errorf("pod %s was not Ready at %s", p.Name, is.LastTransitionTime)
		}
	}
	w.change(sized(`{"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "200m", "memory": "1Gi"}}`)) // another QoS class
	w.settled()
	w.wantPods("coder-2", "coder-3")
	w.change(sized(`{"requests": {"cpu": "100", "memory": "1Gi"}, "limits": {"cpu": "100", "memory": "1Gi"}}`)) // more than a node has
	w.settled()
	w.wantPods("coder-4", "coder-5")
	w.wantClaims("data-coder-0", "data-coder-1")
}

// sized sets the resources of the container, and further fields.
func sized(resources string) func(*v1.StatefulClusterSpec) {
	return func(spec *v1.StatefulClusterSpec) {
		spec.Template = runtime.RawExtension{Raw: []byte(strings.Replace(string(templateOf("coder:1").Raw), `"name": "coder",`, `"name": "coder", "resources": `+resources+`,`, 1))}
	}
}

func cpuOf(p corev1.Pod) string { return p.Spec.Containers[0].Resources.Requests.Cpu().String() }

// New resources that a quota or a policy rejects cost no pod, and no pod stops serving for them. The status says what rejects them.
func TestResizeRejected(t *testing.T) {
	const restarts = `, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]`
	for name, test := range map[string]struct {
		policy string
		reject func(*world) (accept func())
	}{
		"by a quota":                          {"", (*world).fillQuota},
		"by a policy":                         {"", (*world).denyResizes},
		"by a quota, and containers restart":  {restarts, (*world).fillQuota},
		"by a policy, and containers restart": {restarts, (*world).denyResizes},
	} {
		t.Run(name, func(t *testing.T) {
			w := started(t, 2, inPlace, sized(`{"requests": {"cpu": "100m"}}`+test.policy))
			before := w.pods()
			accept := test.reject(w)
			w.change(sized(`{"requests": {"cpu": "200m"}}` + test.policy))
			for range 20 { // the rejection is an error
				_, _ = w.reconciler.Reconcile(t.Context(), w.request())
				w.play()
			}
			same := func(is, was corev1.Pod) bool {
				return is.UID == was.UID && is.DeletionTimestamp == nil && proof.IsTrue(&is, corev1.PodReady)
			}
			if !slices.EqualFunc(w.pods(), before, same) {
				t.Fatalf("pods %v, want the pods from before, and all Ready", w.podNames())
			}
			w.wantStalled("WriteRefused", "too-much-cpu")
			remedy := regexp.MustCompile(`kubectl delete pod -n ` + w.namespace + ` coder-[01]$`)
			if message := w.cluster().Status.Message; !remedy.MatchString(message) {
				t.Errorf("message %q", message)
			}
			accept()
			w.settled()
			w.wantPods("coder-0", "coder-1")
			for _, p := range w.pods() {
				if cpuOf(p) != "200m" {
					t.Errorf("pod %s requests %s CPU", p.Name, cpuOf(p))
				}
			}
		})
	}
}

// fillQuota creates a quota that is used up. No controller updates it.
func (w *world) fillQuota() (accept func()) {
	w.t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: w.named("too-much-cpu")}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourceRequestsCPU: *quantity("200m")}
	w.must(c.Create(w.t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	w.must(c.Status().Update(w.t.Context(), quota))
	return w.whileRejected(quota, w.tryResize)
}

// tryResize asks whether pod coder-0 can have more CPU.
func (w *world) tryResize() error {
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"containers":[{"name":"coder","resources":{"requests":{"cpu":"150m"}}}]}}`))
	return c.SubResource("resize").Patch(w.t.Context(), &corev1.Pod{ObjectMeta: w.named("coder-0")}, patch, client.DryRunAll)
}

// denyResizes lets an admission policy without a reason reject all resizes. Its rejections have HTTP status 422, as those of invalid
// pods.
func (w *world) denyResizes() (accept func()) {
	w.t.Helper()
	return w.deny(admissionregistrationv1.Update, "pods/resize", admissionregistrationv1.Validation{Expression: "false", Message: "too-much-cpu"}, w.tryResize)
}
