package cluster_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// A template that the API server rejects is reported in the status. The fix needs no manual deletion.
func TestRejectedTemplate(t *testing.T) {
	for name, test := range map[string]struct{ container, want string }{
		"invalid":       {`"name":"Coder!"`, "spec.containers[0].name: Invalid value"},
		"unknown field": {`"name":"coder","imagePulPolicy":"Never"`, `unknown field "spec.containers[0].imagePulPolicy"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(2, func(spec *v1.StatefulClusterSpec) {
				spec.Template = runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"image":"a",` + test.container + `}]}}`)}
			})
			w.until("the status is Stalled", func() bool { return isStalled(w.cluster()) })
			w.wantStalled("WriteRefused", test.want)
			w.wantPods()
			w.setImage("coder:1")
			if got := w.settled(); isStalled(got) || len(w.pods()) != 2 {
				t.Errorf("conditions %+v, pods %v", got.Status.Conditions, w.podNames())
			}
		})
	}
}

// A claim or a pod that the API server rejects is reported in the status, and stops neither the replacement of other pods, nor the steps
// after it. The counts of the other pods stay correct. The rejected successor of a lost pod is created later.
func TestRejectedMember(t *testing.T) {
	for kind, probe := range map[string]client.Object{
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-coder-3"}, Spec: claimSpec()},
		"Pod":                   &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "coder-3"}, Spec: podSpec()},
	} {
		t.Run(kind, func(t *testing.T) {
			w := started(t, 3)
			probe.SetNamespace(w.namespace)
			accept := w.deny(admissionregistrationv1.Create, strings.ToLower(kind)+"s", admissionregistrationv1.Validation{
				Expression: "object.metadata.name != '" + probe.GetName() + "'", Message: "over the quota", Reason: new(metav1.StatusReasonForbidden),
			}, func() error { return c.Create(t.Context(), probe.DeepCopyObject().(client.Object), client.DryRunAll) })
			w.lose("coder-0")
			w.until("the status reports the rejection", func() bool { return strings.Contains(w.cluster().Status.Message, "over the quota") })
			w.deletePod("coder-1")
			w.attest(w.pod("coder-2"))
			w.until("pod coder-1 is replaced, and the attestation is refused", func() bool {
				return slices.Equal(w.podNames(), []string{"coder-0", "coder-2", "coder-4"}) && w.cluster().Annotations[v1.AttestAnnotation] == ""
			})
			w.wantClaim("coder-4", "data-coder-1")
			w.until("the counts are those of the world", func() bool { return w.cluster().Status.ReadyReplicas == 2 })
			failed := "can't create " + kind + " " + w.namespace + "/" + probe.GetName() + ": "
			w.wantStalled("WriteRefused", failed, "over the quota")
			w.wantEvents("Warning WriteRefused " + failed)
			got := w.cluster()
			if message := got.Status.Message; strings.Count(message, "can't create") != 1 || !strings.HasSuffix(message, "over the quota") {
				t.Errorf("message %q", message)
			}
			if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsForbidden(err) || w.cluster().ResourceVersion != got.ResourceVersion {
				t.Errorf("error %v, want the same rejection without a write", err)
			}
			w.unready["coder:1"] = true // no record changes
			w.until("the counts are those of the world", func() bool { return w.cluster().Status.ReadyReplicas == 0 })
			delete(w.unready, "coder:1")
			accept()
			w.settled()
			w.wantPods("coder-0", "coder-2", "coder-3", "coder-4")
		})
	}
}

// A webhook can answer each write with 409. The writes are retried less and less often. After a few conflicts, the status, an event and
// the error report them.
func TestRepeatedConflicts(t *testing.T) {
	w := started(t, 1)
	denies := true
	w.reconciler = w.newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		Create: func(ctx context.Context, writes client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "Pod" && denies {
				return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), errors.New("no pods here"))
			}
			return writes.Create(ctx, o, options...)
		},
	}))
	w.scale(2)
	for i := range 8 {
		if after, want := w.reconcile().RequeueAfter, 10*time.Millisecond<<i; after != want {
			t.Errorf("the next reconcile is after %s, want %s", after, want)
		}
	}
	if isStalled(w.cluster()) {
		t.Errorf("the StatefulCluster is stalled after eight conflicts: %q", w.cluster().Status.Message)
	}
	if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want the conflict", err)
	}
	failed := "can't create Pod " + w.namespace + "/coder-1: "
	w.wantStalled("WriteRefused", failed, "no pods here", "kubectl get ")
	w.wantEvents("Warning WriteRefused "+failed, "no pods here", "kubectl get ")
	denies = false
	if isStalled(w.settled()) {
		t.Error("the StatefulCluster is stalled without conflicts")
	}
}

// deny lets an admission policy validate an operation on resources, and waits until the API server rejects the probe. accept ends
// that.
func (w *world) deny(operation admissionregistrationv1.OperationType, resources string, validation admissionregistrationv1.Validation, probe func() error) (accept func()) {
	w.t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{operation},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resources}},
				}}},
			},
			Validations: []admissionregistrationv1.Validation{validation},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: w.namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	w.must(c.Create(w.t.Context(), policy))
	w.must(c.Create(w.t.Context(), binding))
	w.t.Cleanup(func() { _, _ = c.Delete(context.Background(), policy), c.Delete(context.Background(), binding) })
	return w.whileRejected(policy, probe)
}

// whileRejected waits until the API server rejects the probe. accept deletes the object for which it does.
func (w *world) whileRejected(by client.Object, probe func() error) (accept func()) {
	w.t.Helper()
	g := gomega.NewWithT(w.t)
	g.Eventually(probe).ShouldNot(gomega.Succeed())
	return func() {
		w.t.Helper()
		w.must(c.Delete(w.t.Context(), by))
		g.Eventually(probe).Should(gomega.Succeed())
	}
}

// While the namespace is being deleted, new pods are rejected. That is no error.
func TestNamespaceIsDeleted(t *testing.T) {
	w := started(t, 1)
	w.must(c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})) // no controller empties the namespace
	w.deletePod("coder-0")
	for range 5 {
		w.reconcile()
		w.play()
	}
	w.wantPods()
	if events := w.emitted(); isStalled(w.cluster()) || strings.Contains(events, "WriteRefused") {
		t.Errorf("conditions %+v, events:\n%s", w.cluster().Status.Conditions, events)
	}
	w.must(c.Delete(t.Context(), w.cluster()))
	w.until("the StatefulCluster is removed", w.isRemoved)
}

// A record that the API server rejects has no effect, and is reported even if the reason is too long for a message.
func TestRecordRejected(t *testing.T) {
	w := newWorld(t)
	w.create(2)
	rejected := false
	w.reconciler = w.newReconciler(interceptor.NewClient(cached(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, writes client.Client, resource string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if rejected {
				return writes.SubResource(resource).Update(ctx, o, options...)
			}
			rejected = true
			why := errors.New("not now" + strings.Repeat(", and not later", 10_000))
			return apierrors.NewForbidden(v1.GroupVersion.WithResource("statefulclusters").GroupResource(), o.GetName(), why)
		},
	}))
	if _, err := w.reconciler.Reconcile(t.Context(), w.request()); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want the rejection", err)
	}
	w.wantStalled("WriteRefused", "not now")
	if got := w.cluster().Status; len(got.Members) > 0 || got.Next != 0 {
		t.Errorf("members %v, next number %d", got.Members, got.Next)
	}
	w.wantPods()
	w.wantClaims()
	w.settled()
	w.wantPods("coder-0", "coder-1")
}

// Claims that cannot grow leave the StatefulCluster Ready, and are not tried again until something changes. A condition says which
// claims cannot grow, why, and what to do. They grow when their class allows it. New claims have the new size.
func TestClaimsGrow(t *testing.T) {
	w := newWorld(t)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Provisioner: "example.com/none"}
	w.must(c.Create(t.Context(), class))
	w.create(2, func(spec *v1.StatefulClusterSpec) { spec.VolumeClaimTemplates[0].Spec.StorageClassName = &class.Name })
	w.settled()
	w.change(func(spec *v1.StatefulClusterSpec) {
		spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage = quantity("2Gi")
	})
	got := w.settled()
	refused := conditionOf(got, v1.ConditionExpansionRefused)
	if refused.Status != metav1.ConditionTrue || conditionOf(got, v1.ConditionReady).Status != metav1.ConditionTrue || isStalled(got) {
		t.Fatalf("conditions %+v", got.Status.Conditions)
	}
	for _, want := range []string{
		"claim data-coder-0 of storage class " + class.Name + " and 1 other claim from 1Gi to 2Gi", "must support resize", "kubectl patch storageclass " + class.Name + " ",
	} {
		if !strings.Contains(refused.Message, want) || !strings.Contains(got.Status.Message, want) {
			t.Errorf("condition %q and message %q, want %q", refused.Message, got.Status.Message, want)
		}
	}
	w.wantEvents("Warning ExpansionRefused ")
	if after := w.reconcile().RequeueAfter; after < time.Minute || w.cluster().ResourceVersion != got.ResourceVersion {
		t.Errorf("a retry after %s, or a write", after)
	}
	class.AllowVolumeExpansion = new(true)
	w.must(c.Update(t.Context(), class))
	w.scale(3)
	w.until("the condition is removed", func() bool { return conditionOf(w.cluster(), v1.ConditionExpansionRefused).Status == "" })
	w.settled()
	for _, name := range []string{"data-coder-0", "data-coder-1", "data-coder-2"} {
		if size := sizeOf(w.claim(name)); size != "2Gi" {
			t.Errorf("claim %s has %s", name, size)
		}
	}
}
