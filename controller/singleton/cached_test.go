package singleton_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

// The cache holds only the objects and fields that the watches of the controller need.
func TestCacheHoldsLittle(t *testing.T) {
	w := newWorld(t)
	w.createPod("db-1", withCommand)
	w.create(w.bare("bystander"))
	node := w.node()
	node.Labels, node.Annotations = map[string]string{"large": "label"}, map[string]string{"large": "annotation"}
	node.Spec.Unschedulable, node.Spec.PodCIDR = true, "10.0.0.0/24"
	node.Spec.Taints = []corev1.Taint{{Key: "gone", Effect: corev1.TaintEffectNoExecute}}
	w.Expect(c.Update(t.Context(), node)).To(Succeed())
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse})
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	w.Expect(c.Status().Update(t.Context(), node)).To(Succeed())
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: "theirs", Labels: map[string]string{"large": "label"}, Annotations: map[string]string{"large": "annotation"},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: selector},
	}
	w.create(budget)

	for name, labels := range map[string]map[string]string{"statefulsingleton-db": {v1.SingletonLabel: "db"}, "leader": nil} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace, Name: name, Labels: labels, Annotations: map[string]string{"large": strings.Repeat("x", 1000), signal.RetireAnnotation: "1"},
		}}
		w.create(lease)
	}

	options := singleton.CacheOptions()
	options.Scheme = scheme.Scheme
	cached, err := cache.New(controllerConfig, options)
	w.Expect(err).NotTo(HaveOccurred())
	go func() { _ = cached.Start(t.Context()) }()
	w.Expect(cached.WaitForCacheSync(t.Context())).To(BeTrue())

	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	w.Expect(cached.List(t.Context(), pods, client.InNamespace(w.namespace))).To(Succeed())
	w.Expect(pods.Items).To(HaveLen(1))
	w.Expect(pods.Items[0].Name).To(Equal("db-1"))
	w.Expect(pods.Items[0].ManagedFields).To(BeEmpty())
	w.Expect(cached.Get(t.Context(), w.key("bystander"), observe.PodMetadata())).NotTo(Succeed())

	leases := &coordinationv1.LeaseList{}
	w.Expect(cached.List(t.Context(), leases, client.InNamespace(w.namespace))).To(Succeed())
	w.Expect(leases.Items).To(HaveLen(1))
	w.Expect(leases.Items[0].Name).To(Equal("statefulsingleton-db"))
	w.Expect(leases.Items[0].Annotations).To(Equal(map[string]string{signal.RetireAnnotation: "1"}))
	w.Expect(leases.Items[0].ManagedFields).To(BeEmpty())

	kept := &corev1.Node{}
	w.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(node), kept)).To(Succeed())
	w.Expect(kept).To(Equal(&corev1.Node{
		TypeMeta:   kept.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Unschedulable: true, Taints: node.Spec.Taints},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}))

	known := &policyv1.PodDisruptionBudget{}
	w.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(budget), known)).To(Succeed())
	w.Expect(known.Spec).To(Equal(budget.Spec))
	w.Expect([]int{len(known.Labels), len(known.Annotations), len(known.ManagedFields)}).To(HaveEach(0))
}

// The cache keeps at most a few KiB of each object, even if users make the object large.
func TestCacheIsBounded(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	options := singleton.CacheOptions()
	for _, kind := range append(slices.Collect(maps.Keys(options.ByObject)), &v1.StatefulSingleton{}, &v1.StatefulSetLock{}) {
		o := kind.DeepCopyObject().(client.Object)
		o.SetAnnotations(map[string]string{"long": long, v1.HandoverAnnotation: long, "short": "x"})
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: long}})
		transform := options.ByObject[kind].Transform
		if transform == nil {
			transform = options.DefaultTransform
		}
		out, err := transform(o)
		if err != nil {
			t.Fatal(err)
		}
		kept, size := out.(client.Object).GetAnnotations(), 0
		for key, value := range kept {
			size += len(key) + len(value)
		}
		bare := false
		switch o.(type) {
		case *corev1.Node, *policyv1.PodDisruptionBudget:
			bare = true // no decision needs their annotations
		}
		if size > 1000 || len(out.(client.Object).GetManagedFields()) > 0 || !bare && (kept["short"] != "x" || kept[v1.HandoverAnnotation] == "") {
			t.Errorf("of %T, the cache keeps %d annotations of %d bytes, and %d managed fields", out, len(kept), size, len(o.GetManagedFields()))
		}
		if budget, is := o.(*policyv1.PodDisruptionBudget); is {
			for value, wantKept := range map[string]bool{long: false, "db": true} {
				budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
				if out, err := transform(budget); err != nil || (out.(*policyv1.PodDisruptionBudget).Spec.Selector != nil) != wantKept {
					t.Errorf("a selector of %d bytes is kept: %t, error %v", len(value), !wantKept, err)
				}
			}
		}
	}
}
