package singleton_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testenv"
)

// If the CRD is from an older release, the API server drops fields of the record. The controller then releases no pod,
// and continues after the CRD is updated. The test cannot run in parallel, because it removes a field of the CRD for
// all tests.
func TestOlderDefinition(t *testing.T) {
	w := newLonelyWorld(t)
	w.createSingleton()
	pod := w.warmPod("db-1")
	r := w.fresh()
	install := func() {
		_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{testenv.Definitions}, ErrorIfPathMissing: true, MaxTime: time.Minute})
		w.Expect(err).NotTo(HaveOccurred())
	}
	t.Cleanup(install)
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("statefulsingletons." + v1.GroupVersion.Group)
	patch := `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/activePodUID"}]`
	w.Expect(c.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte(patch)))).To(Succeed())
	w.Eventually(w.writeActivePodUID).Should(MatchError(apierrors.IsBadRequest, "bad request"))

	_, err := r.Reconcile(t.Context(), w.request())
	w.Expect(err).To(MatchError(And(ContainSubstring(`unknown field "status.activePodUID"`), ContainSubstring("older than the controller"))))
	w.Expect(w.holder()).To(BeEmpty())
	w.Expect(signalled(w.pod("db-1"))).To(BeFalse())
	opened := func() error { return c.Get(t.Context(), w.key(barrierOf(pod)), &corev1.ConfigMap{}) }
	w.Expect(opened()).To(MatchError(apierrors.IsNotFound, "not found"))

	install()
	w.Eventually(w.writeActivePodUID).Should(Succeed())
	w.reconcile(r)
	w.Expect(w.singleton().Status.ActivePodUID).To(Equal(pod.UID))
	w.Expect(signalled(w.pod("db-1"))).To(BeTrue())
	w.Expect(opened()).To(Succeed())
}

// writeActivePodUID writes the field in a dry-run, and returns the error of the API server.
func (w *world) writeActivePodUID() error {
	s := w.singleton()
	s.Status.ActivePodUID = "some"
	return c.Status().Update(context.Background(), s, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
}
