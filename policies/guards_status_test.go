package policies_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

const (
	// otherKubelet is listed in the chart's value guards.kubeletUsers.
	otherKubelet     = "system:serviceaccount:edge:kubelet"
	garbageCollector = "system:serviceaccount:kube-system:pod-garbage-collector"

	containersEnded = `{"status":{"initContainerStatuses":[{"name":"status-sidecar","image":"i","imageID":"i","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":0}}}],
		"containerStatuses":[{"name":"db","image":"i","imageID":"i","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":1}}}]}}`
	containersRun = `{"status":{"phase":"Running","containerStatuses":[{"name":"db","image":"i","imageID":"i","ready":true,"restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}`
	startedAnew   = `{"status":{"containerStatuses":[{"name":"db","image":"i","imageID":"i","ready":true,"restartCount":1,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}`
	phaseFailed   = `{"status":{"phase":"Failed"}}`
	failedByGC    = `{"status":{"phase":"Failed","conditions":[{"type":"DisruptionTarget","status":"True","reason":"DeletionByPodGC"}]}}`

	onlyKubeletReports = ", can report the containers of this pod of a StatefulSingleton"
	onlyKubeletEnds    = ", can report the phase of this pod of a StatefulSingleton"
	notInFields        = "adds a writer of the phase or of the containers"
)

// TestReportGuards sends writes of pods and their status as different users, on an API server with all guards.
func TestReportGuards(t *testing.T) {
	config := reportAPIServer(t).Config
	createNamespace(t, newClient(t, config), "reports")
	t.Run("writes", func(t *testing.T) { testReports(t, config) })
	t.Run("forgeries", func(t *testing.T) { testForgeries(t, config) })
}

func testReports(t *testing.T, config *rest.Config) {
	const (
		succeeded = `{"status":{"phase":"Succeeded"}}`
		pending   = `{"status":{"phase":"Pending"}}`
		disrupted = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"Mine"}]}}`
		unready   = `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`
		team      = `{"metadata":{"labels":{"team":"data"}}}`
		none      = `{"status":{"containerStatuses":null}}`
		initReady = `{"status":{"initContainerStatuses":[{"name":"status-sidecar","image":"i","imageID":"i","ready":true,"restartCount":0}]}}`
		// The answer tells how to name the user as a kubelet.
		command = "run: helm upgrade demo <chart> --namespace the-release --reuse-values --set-json 'guards.kubeletUsers=[\"a-person\"]'"
	)
	plain := podOf("reports", map[string]string{"app": "web"})
	plain.Spec.NodeName = "node-1"
	create(t, newClient(t, config), plain)
	person, kubelets, collector := as(personUser), as(kubeletUser, otherKubelet), as(garbageCollector)
	wantAnswers(t, config, map[string]client.Object{
		"running": runningHolder(t, config), "unbound": createHolder(t, config, "reports", "db"), "plain": plain,
	}, []request{
		{"running", person, "status/strategic", bodies(phaseFailed), command},
		{"running", kubelets, "status/strategic", bodies(startedAnew, phaseFailed), ""},
		{"running", as(garbageCollector, "system:kube-controller-manager"), "status/strategic", bodies(failedByGC, phaseFailed), ""},
		{"unbound", collector, "status/strategic", bodies(phaseFailed), ""},
		{"running", person, "status/strategic", bodies(unready, disrupted), ""},
		{"running", person, "strategic apply", bodies(team), ""},
		{"running", as(controllerUser), "status/strategic", bodies(readyPod), ""},
		{"plain", person, "status/strategic", bodies(startedAnew, phaseFailed), ""},

		{"running", person, "status/strategic", bodies(startedAnew), "user system:node:node-1" + onlyKubeletReports},
		{"running", person, "status/merge", bodies(none, initReady), onlyKubeletReports},
		{"running", person, "status/strategic", bodies(succeeded, pending), onlyKubeletEnds},
		{"running", as("system:node:node-2"), "status/strategic", bodies(startedAnew), onlyKubeletReports},
		{"unbound", as("system:node:"), "status/strategic", bodies(startedAnew), "user unknown until the pod has a node" + onlyKubeletReports},
		{"unbound", as(kubeletUser), "status/strategic", bodies(phaseFailed), onlyKubeletEnds},
		{"running", collector, "status/strategic", bodies(succeeded, pending), onlyKubeletEnds},
		{"running", collector, "status/strategic", bodies(startedAnew), onlyKubeletReports},
		// Two guards reject it.
		{"running", as(controllerUser), "status/strategic", bodies(startedAnew), "StatefulSingleton"},
		{"running", as("system:serviceaccount:default:pod-garbage-collector"), "status/strategic", bodies(phaseFailed), onlyKubeletEnds},
	})
	// The records of who manages a field.
	for fields, refused := range map[string]string{
		`"f:containerStatuses":{}`: notInFields, `"f:phase":{}`: notInFields, `"f:conditions":{}`: "", ``: "",
	} {
		t.Run("manages "+fields, func(t *testing.T) {
			pod := runningHolder(t, config)
			wantAnswer(t, patch{personUser, "", jsonPatch, claimFor("me", fields)}.apply(t, config, pod), refused)
			wantChanged(t, config, pod, refused == "")
		})
	}
	t.Run("created with a record of its kubelet", func(t *testing.T) {
		pod := injectedPod(t, "shell", &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "reports", Name: "db"}})
		pod.Spec.NodeName = "node-1"
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Subresource: "status",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:containerStatuses":{}}}`), Time: new(metav1.Now()),
		}}
		wantAnswer(t, tryCreate(t, newClient(t, config), pod), notInFields)
	})
}

// claimFor adds an entry to a pod's managedFields.
func claimFor(manager, fields string) string {
	return fmt.Sprintf(`[{"op":"add","path":"/metadata/managedFields/0","value":{"manager":%q,"operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z",
		"fieldsType":"FieldsV1","fieldsV1":{"f:status":{%s}},"subresource":"status"}}]`, manager, fields)
}

// runningHolder creates a released pod whose kubelet has reported a crash of the container. This report is the easiest to
// forge into a proof.
func runningHolder(t *testing.T, config *rest.Config) *corev1.Pod {
	t.Helper()
	pod := injectedPod(t, "shell", &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "reports", Name: "db"}})
	pod.Name, pod.GenerateName, pod.Spec.NodeName = "", "db-", "node-1"
	create(t, newClient(t, config), pod)
	for _, step := range []write{
		{patch{controllerUser, "", strategic, releasePod}, "manager"},
		{patch{kubeletUser, "status", strategic, containersRun}, "kubelet"},
		{patch{kubeletUser, "status", strategic, containersEnded}, "kubelet"},
	} {
		if err := step.apply(t, config, pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := newClient(t, config).Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// write is a patch that names its field manager.
type write struct {
	patch
	manager string
}

func (w write) apply(t *testing.T, config *rest.Config, pod *corev1.Pod) error {
	t.Helper()
	return w.write(t, client.WithFieldOwner(clientAs(t, config, w.user), w.manager), pod)
}

// testForgeries: only writes of the kubelet and of the garbage collector lead to a proof of termination. testReports
// checks which writes are rejected. This test checks the pod after all writes.
func testForgeries(t *testing.T, config *rest.Config) {
	person := func(subresource, body, manager string) write {
		kind := strategic
		if body[0] == '[' {
			kind = jsonPatch
		}
		return write{patch{personUser, subresource, kind, body}, manager}
	}
	applied := func(subresource, body string) write {
		return write{patch{personUser, subresource, serverSide, `{"apiVersion":"v1","kind":"Pod",` + body[1:]}, "me"}
	}
	gc := func(body string) write {
		return write{patch{garbageCollector, "status", strategic, body}, "kube-controller-manager"}
	}
	kubelet := func(body string) write { return write{patch{kubeletUser, "status", strategic, body}, "kubelet"} }
	// asItIs has the real states of the containers, and the phase.
	asItIs := `{"status":{"phase":"Failed",` + containersEnded[len(`{"status":{`):]
	var labels []write
	for i := range 12 {
		manager := fmt.Sprintf("manager-%d", i)
		labels = append(labels, person("", fmt.Sprintf(`{"metadata":{"labels":{%q:"a"}}}`, manager), manager))
	}
	tests := map[string]struct {
		writes     []write
		wantProven bool
	}{
		"the kubelet reports":                      {[]write{kubelet(phaseFailed)}, true},
		"the kubelet reports all at once":          {[]write{kubelet(asItIs)}, true},
		"the garbage collector":                    {writes: []write{gc(failedByGC)}},
		"the garbage collector without a mark":     {writes: []write{gc(phaseFailed)}},
		"all at once, in the kubelet's name":       {writes: []write{person("status", asItIs, "kubelet")}},
		"the phase, in the kubelet's name":         {writes: []write{person("status", phaseFailed, "kubelet")}},
		"in two requests":                          {writes: []write{person("status", containersEnded, "me"), person("status", phaseFailed, "me")}},
		"in two requests, the phase first":         {writes: []write{person("status", phaseFailed, "me"), person("status", containersEnded, "me")}},
		"the garbage collector's phase, unmarked":  {writes: []write{gc(failedByGC), person("status", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"Mine"}]}}`, "kubelet")}},
		"the garbage collector's phase, repeated":  {writes: []write{gc(phaseFailed), person("status", `{"status":{"phase":"Running"}}`, "kubelet"), person("status", phaseFailed, "kubelet")}},
		"the garbage collector's phase, as record": {writes: []write{gc(phaseFailed), person("", claimFor("kubelet-2", `"f:phase":{},"f:containerStatuses":{}`), "me")}},
		"the same in the kubelet's name":           {writes: []write{gc(phaseFailed), person("", claimFor("kubelet", `"f:phase":{},"f:containerStatuses":{}`), "me")}},
		"a record before the garbage collector":    {writes: []write{person("", claimFor("kube-controller-manager", `"f:containerStatuses":{}`), "me"), gc(phaseFailed)}},
		"a record of nonsense before":              {writes: []write{person("", claimFor("me", `"f:containerStatuses":{"f:a":{}},"f:phase":{"f:a":{}}`), "me"), gc(phaseFailed)}},
		"a field that is dropped, before":          {writes: []write{person("status", droppedField, "kube-controller-manager"), gc(phaseFailed)}},
		"the same applied after":                   {writes: []write{gc(phaseFailed), applied("status", asItIs)}},
		"the same as a resize after":               {writes: []write{gc(phaseFailed), person("resize", asItIs, "me")}},
		"no record, then something applied":        {writes: []write{gc(phaseFailed), person("", `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`, "me"), applied("", `{"metadata":{"labels":{"a":"b"}}}`)}},
		"so many writers that records are merged":  {writes: append([]write{gc(phaseFailed)}, labels...)},
		"the mark hidden behind another":           {writes: []write{gc(failedByGC), person("status", `[{"op":"add","path":"/status/conditions/0","value":{"type":"DisruptionTarget","status":"True","reason":"Mine"}}]`, "me")}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := runningHolder(t, config)
			for _, w := range test.writes {
				err := w.apply(t, config, pod)
				if err != nil && w.user != personUser {
					t.Fatal(err)
				}
				t.Logf("%s writes %s: %v", w.user, w.body, err)
			}
			if err := newClient(t, config).Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				t.Fatal(err)
			}
			snapshot := handoff.Snapshot{
				Singleton: &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "reports", Name: "db"}},
				Pods:      []corev1.Pod{*pod},
			}
			if got := len(handoff.Orphans(snapshot)) > 0; got != test.wantProven {
				t.Errorf("the termination of the pod is proven: %t, want %t; the status is %v, written by %v", got, test.wantProven, pod.Status, pod.ManagedFields)
			}
		})
	}
	// If the kubelet and the garbage collector have the same user agent, only the condition distinguishes their writes.
	t.Run("the mark hidden behind another, in one program", func(t *testing.T) {
		pod := runningHolder(t, config)
		if err := (write{patch{garbageCollector, "status", strategic, failedByGC}, "kubelet"}).apply(t, config, pod); err != nil {
			t.Fatal(err)
		}
		for _, body := range []string{
			`[{"op":"add","path":"/status/conditions/0","value":{"type":"DisruptionTarget","status":"True","reason":"Mine"}}]`,
			`[{"op":"replace","path":"/status/conditions","value":[]}]`,
		} {
			if err := person("status", body, "me").apply(t, config, pod); err == nil {
				t.Errorf("admitted: %s", body)
			}
		}
	})
}

// droppedField is a field of a disabled feature. The API server adds the writer to the managed fields, and then drops
// the field.
const droppedField = `[{"op":"add","path":"/status/containerStatuses/0/allocatedResourcesStatus","value":[{"name":"cpu","resources":[{"resourceID":"a","health":"Healthy"}]}]}]`
