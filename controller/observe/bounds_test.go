package observe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// largeServer starts a server that returns 2 MiB for /large, and a few bytes for other paths.
func largeServer(t *testing.T) (get func(ctx context.Context, path string) error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := 100
		if r.URL.Path == "/large" {
			size = 2 << 20
		}
		_, _ = io.WriteString(w, strings.Repeat("x", size))
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	LimitLargeResponses(config)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, path string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		if err != nil {
			return err
		}
		response, err := httpClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
}

// While a large response is in memory, another large response waits until its context ends. Small responses do not wait.
func TestOneLargeResponseAtATime(t *testing.T) {
	get := largeServer(t)
	read := func(timeout time.Duration, path string) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return oneAtATime(ctx, listAtOnce, 0, func(ctx context.Context) error { return get(ctx, path) })
	}
	err := oneAtATime(t.Context(), listAtOnce, 0, func(ctx context.Context) error {
		if err := get(ctx, "/large"); err != nil {
			return err
		}
		if err := read(10*time.Second, "/small"); err != nil {
			return err
		}
		if err := read(100*time.Millisecond, "/large"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second large response returns %v while the first response is in memory, want that it waits", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := read(10*time.Second, "/large"); err != nil {
		t.Errorf("a large response after the first one: %v", err)
	}
}

// A page above the largest size is read again with fewer objects, and no object is left out or used twice.
func TestLargePagesAreReadInParts(t *testing.T) {
	const total = 40
	var limits []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limits = append(limits, r.URL.Query().Get("limit"))
		first, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		list := &corev1.PersistentVolumeClaimList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaimList"}}
		for i := first; i < min(first+limit, total); i++ {
			list.Items = append(list.Items, corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i), Annotations: map[string]string{"long": strings.Repeat("x", 500<<10)}},
			})
		}
		if first+limit < total {
			list.Continue = strconv.Itoa(first + limit)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	LimitLargeResponses(config)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), meta.RESTScopeNamespace)
	c, err := client.New(config, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	var names, want []string
	for i := range total {
		want = append(want, strconv.Itoa(i))
	}
	size := 0
	err = Pages(t.Context(), c, &corev1.PersistentVolumeClaimList{}, 16, func(o client.Object) error {
		names = append(names, o.GetName())
		size += o.(*corev1.PersistentVolumeClaim).Size()
		return nil
	}, client.InNamespace("shop"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if size > total*100 {
		t.Errorf("the objects have %d bytes after they were trimmed", size)
	}
	if wantLimits := append([]string{"16"}, slices.Repeat([]string{"4"}, total/4)...); !slices.Equal(limits, wantLimits) {
		t.Errorf("limits of the pages: %v, want %v", limits, wantLimits)
	}
}

// Trimming changes no decision, and shortens all fields that users can make large.
func TestTrim(t *testing.T) {
	now := time.Now()
	long := strings.Repeat("x", 100_000)
	singleton := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", UID: "singleton"},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, MaxTransitionTime: 300},
		Status:     v1.StatefulSingletonStatus{ActivePod: "db-1", ActivePodUID: "db-1", Epoch: 1, LastTransition: &v1.Transition{To: "db-1", Signalled: new(metav1.NowMicro())}},
	}
	pod := func(name string, state corev1.ContainerState) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: singleton.Status.ActivePodUID, Labels: map[string]string{"app": "db", v1.SingletonLabel: "db"},
				Annotations: map[string]string{v1.InjectedAnnotation: "shop/db", "long": long, "short": "x"},
				Finalizers:  []string{v1.HandoffFinalizer}, CreationTimestamp: metav1.NewTime(now),
				ManagedFields: []metav1.ManagedFieldsEntry{
					{Manager: "user", Time: new(metav1.NewTime(now)), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + long + `":{}}}`)},
					{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(now)), Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:phase":{},"f:containerStatuses":{}}}`)},
				},
			},
			Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
				Name: "db", Command: []string{signal.GatePath, "wrap", "--", "serve", long}, Args: []string{long},
				Env: []corev1.EnvVar{{Name: "LONG", Value: long}, {Name: signal.EpochEnv, Value: "x"}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "db", State: state, ImageID: "db"}}},
		}
	}
	holder := pod("db-1", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	holder.DeletionTimestamp, holder.Status.Phase = new(metav1.NewTime(now)), corev1.PodSucceeded
	holder.Annotations[signal.Annotation] = signal.Signal{UID: "db-1", Epoch: 1, Time: now}.String()
	standby := pod("db-2", corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	standby.UID = "db-2"
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	snapshot := handoff.Snapshot{Singleton: singleton, Pods: []corev1.Pod{holder, standby}, CachedNodes: map[string]*corev1.Node{"node": node}}
	want := handoff.Decide(snapshot, now)
	if want.Outcome != handoff.Released {
		t.Fatalf("before the pods are trimmed, the outcome is %s: %s", want.Outcome, want.Status.Message)
	}

	for i := range snapshot.Pods {
		trim(&snapshot.Pods[i])
		if size := snapshot.Pods[i].Size(); size > 4000 {
			t.Errorf("pod %s has %d bytes after it was trimmed", snapshot.Pods[i].Name, size)
		}
	}
	if diff := cmp.Diff(want, handoff.Decide(snapshot, now)); diff != "" {
		t.Errorf("trimming changes the decision (-before +after):\n%s", diff)
	}
	if got := snapshot.Pods[0].Annotations["short"]; got != "x" {
		t.Errorf("a short annotation is %q after the pod was trimmed", got)
	}

	deployment := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: standby.Spec}}}
	deployment.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": long}
	deployment.Spec.Template.Spec.Containers[0].Args = []string{long}
	trim(deployment)
	if size := deployment.Size(); size > 4000 {
		t.Errorf("a Deployment has %d bytes after it was trimmed", size)
	}
}
