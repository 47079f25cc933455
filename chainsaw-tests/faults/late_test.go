//go:build cluster

package faults_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// testFinalizer keeps the object of a pod for a late write.
const testFinalizer = "faults.test/keep"

// The API server delays a signal. Meanwhile the pod of the signal is deleted, and another controller, which also
// considers itself the leader, releases the next pod. Then the signal arrives.
func TestSignalArrivesLate(t *testing.T) {
	alone(t)
	s := singleton(t, world.Options{})
	must(t, s.Scale(t.Context(), 3))
	must(t, world.Await(t.Context(), "two warm standbys", func(ctx context.Context) error {
		pods, err := s.Pods(ctx)
		warm := 0
		for _, pod := range pods {
			if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil {
				warm++
			}
		}
		if err == nil && warm != 3 {
			err = fmt.Errorf("of 3 pods %d run their containers", warm)
		}
		return err
	}))
	late := delaySignal(t, s)
	deployment := &appsv1.Deployment{}
	must(t, w.Get(t.Context(), types.NamespacedName{Namespace: world.ControllerNamespace, Name: "statefulsingleton"}, deployment))
	deletePod(t, holder(t, s), nil)
	select {
	case <-late.arrived:
	case <-time.After(world.Patience):
		t.Fatal("no signal came")
	}
	meant := holder(t, s)
	keep(t, meant, `{"metadata":{"finalizers":["`+testFinalizer+`"]}}`)
	t.Cleanup(func() { keep(t, meant, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["`+testFinalizer+`"]}}`) })
	deletePod(t, meant, nil)
	runController(t, gateImage(t, deployment), clock.RealClock{})
	must(t, s.Await(t.Context(), "the next holder is signalled", func(got *v1.StatefulSingleton) bool { return got.Status.Epoch == 3 && reason(got) != "Released" }))
	wantProof(t, s, v1.ProofNeverSignalled)
	next := holder(t, s)

	if !late.release() {
		t.Fatal("the API server has given the signal up: this machine is too slow for the test")
	}
	must(t, s.AwaitHolder(t.Context(), 3))
	wantStays(t, next, s)
	got := &corev1.Pod{}
	must(t, w.Get(t.Context(), client.ObjectKeyFromObject(meant), got))
	if got.Annotations[signal.Annotation] != "" {
		t.Errorf("pod %s was signalled after its deletion, while %s holds", got.Name, next.Name)
	}
	wantStarts(t, s, 2)
}

func keep(t *testing.T, pod *corev1.Pod, patch string) {
	t.Helper()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	must(t, w.Patch(context.Background(), object, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))
}

// delayed is a webhook of the test that delays the first signal.
type delayed struct {
	// probes counts the calls for the probe. arrived is closed when a signal waits in the webhook.
	probes  atomic.Int32
	arrived chan struct{}
	goOn    chan struct{}
	gone    chan struct{}

	// taken is true after the first signal arrived. Later signals do not wait.
	taken atomic.Bool
}

// release lets the signal continue. It returns false if the request has ended.
func (d *delayed) release() bool {
	select {
	case <-d.gone:
		return false
	default:
		close(d.goOn)
		return true
	}
}

func (d *delayed) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case review.Request.Resource.Resource == "configmaps":
		d.probes.Add(1)
	case d.taken.CompareAndSwap(false, true):
		close(d.arrived)
		select {
		case <-d.goOn:
		case <-request.Context().Done():
			close(d.gone)
		}
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(response).Encode(review) // the client may have disconnected
}

// delaySignal makes the API servers wait with the next signal of the controller.
func delaySignal(t *testing.T, s *world.Singleton) *delayed {
	t.Helper()
	d := &delayed{arrived: make(chan struct{}), goOn: make(chan struct{}), gone: make(chan struct{})}
	server := httptest.NewTLSServer(d)
	t.Cleanup(server.Close)
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-late"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "late.faults.test",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{rule(admissionregistrationv1.Update, "pods/status"), rule(admissionregistrationv1.Create, "configmaps")},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "signal-or-probe",
				Expression: fmt.Sprintf(`request.namespace == '%s' && (request.name == '%s' || request.userInfo.username == '%s' &&
					has(object.metadata.annotations) && '%s' in object.metadata.annotations &&
					!(has(oldObject.metadata.annotations) && '%s' in oldObject.metadata.annotations))`,
					s.Namespace, probe, world.ControllerUser, signal.Annotation, signal.Annotation),
			}},
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          new(int32(30)), // the maximum
			FailurePolicy:           new(admissionregistrationv1.Ignore),
		}},
	}
	t.Cleanup(func() { must(t, w.Delete(context.Background(), webhook)) })
	must(t, w.Create(t.Context(), webhook))
	everywhere(t, "a webhook that the API server calls", func(ctx context.Context, c client.Client) error {
		before := d.probes.Load()
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: probe}}
		err := c.Create(ctx, probe, client.DryRunAll)
		if err == nil && d.probes.Load() == before {
			err = errors.New("it was not asked")
		}
		return err
	})
	return d
}

func rule(operation admissionregistrationv1.OperationType, resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{operation},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}
