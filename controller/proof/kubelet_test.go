package proof_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

func terminated(reason string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason}}
}

const unknown = "ContainerStatusUnknown"

var waiting = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}

// Only the kubelet's report of a terminal phase, and of the end of each container, proves that a pod has terminated.
func TestKubeletReported(t *testing.T) {
	kubelet := metav1.ManagedFieldsEntry{Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"}
	const reports = `{"f:status":{"f:phase":{},"f:containerStatuses":{}}}`
	by := func(change func(*metav1.ManagedFieldsEntry), fields string) *metav1.ManagedFieldsEntry {
		entry := kubelet
		entry.FieldsV1 = metav1.NewFieldsV1(fields)
		change(&entry)
		return &entry
	}
	writes := func(fields string) *metav1.ManagedFieldsEntry { return by(func(*metav1.ManagedFieldsEntry) {}, fields) }
	ended := corev1.ContainerStatus{ContainerID: "id", State: terminated("Completed")}
	for name, test := range map[string]struct {
		phase      corev1.PodPhase
		disruption string
		writer     *metav1.ManagedFieldsEntry
		states     []corev1.ContainerStatus
		want       bool
	}{
		"Failed":                       {phase: corev1.PodFailed, want: true},
		"Succeeded":                    {phase: corev1.PodSucceeded, want: true},
		"evicted":                      {phase: corev1.PodFailed, disruption: "TerminationByKubelet", want: true},
		"init containers only":         {phase: corev1.PodFailed, writer: writes(`{"f:status":{"f:phase":{},"f:initContainerStatuses":{}}}`), want: true},
		"Running":                      {phase: corev1.PodRunning},
		"Pending":                      {phase: corev1.PodPending},
		"by the pod garbage collector": {phase: corev1.PodFailed, disruption: "DeletionByPodGC"},
		"by nobody":                    {phase: corev1.PodFailed, writer: &kubelet},
		"by an apply":                  {phase: corev1.PodFailed, writer: by(func(e *metav1.ManagedFieldsEntry) { e.Operation = "Apply" }, reports)},
		"by an update of the pod":      {phase: corev1.PodFailed, writer: by(func(e *metav1.ManagedFieldsEntry) { e.Subresource = "" }, reports)},
		"the phase by another":         {phase: corev1.PodFailed, writer: writes(`{"f:status":{"f:containerStatuses":{}}}`)},
		"the containers by another":    {phase: corev1.PodFailed, writer: writes(`{"f:status":{"f:phase":{}}}`)},
		"unreadable fields":            {phase: corev1.PodFailed, writer: writes(`{`)},
		"no container":                 {phase: corev1.PodFailed, states: []corev1.ContainerStatus{}},
		"a running container":          {phase: corev1.PodFailed, states: []corev1.ContainerStatus{ended, {State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
		"never created":                {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: waiting}}, want: true},
		"waits after a crash":          {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: waiting, LastTerminationState: terminated("Error")}}},
		"waits with a container":       {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: waiting, ContainerID: "id"}}},
		"unknown, in the last report":  {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: terminated(unknown)}}, want: true},
		"unknown twice, in the last":   {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: terminated(unknown), LastTerminationState: terminated(unknown)}}, want: true},
		"unknown after a crash":        {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: terminated(unknown), LastTerminationState: terminated("Error")}}, want: true},
		"waits, and unknown before":    {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: waiting, LastTerminationState: terminated(unknown)}}},
		"unknown, and still Running":   {phase: corev1.PodRunning, states: []corev1.ContainerStatus{{State: terminated(unknown), LastTerminationState: terminated(unknown)}}},
		"unknown to the runtime":       {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: terminated(unknown), ContainerID: "id"}}},
		"unknown before":               {phase: corev1.PodFailed, states: []corev1.ContainerStatus{{State: terminated("Error"), LastTerminationState: terminated(unknown), ContainerID: "id"}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: test.phase}}
			if test.disruption != "" {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Reason: test.disruption}}
			}
			if test.writer == nil {
				test.writer = writes(reports)
			}
			pod.ManagedFields = []metav1.ManagedFieldsEntry{*test.writer}
			if test.states == nil {
				test.states = []corev1.ContainerStatus{ended}
			}
			var states []*corev1.ContainerStatus
			for i := range test.states {
				states = append(states, &test.states[i])
			}
			if got := proof.KubeletReported(pod, states...); got != test.want {
				t.Errorf("KubeletReported: %t, want %t", got, test.want)
			}
		})
	}
	if proof.Terminated(nil) || proof.NeverCreated(nil) {
		t.Error("a container without a status has terminated")
	}
}

// The taint and an attestation count only while the kubelet of the node cannot report anything.
func TestNodes(t *testing.T) {
	node := func(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: "True"}, {Type: corev1.NodeReady, Status: ready}}}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
		}
		return n
	}
	const taint = corev1.TaintNodeOutOfService
	for name, test := range map[string]struct {
		node                         *corev1.Node
		wantOutOfService, attestable bool
	}{
		"no node":                       {nil, false, true},
		"Ready":                         {node("True"), false, false},
		"Ready, with a forgotten taint": {node("True", taint), false, false},
		"not Ready":                     {node("False"), false, true},
		"not Ready, with another taint": {node("Unknown", corev1.TaintNodeUnreachable), false, true},
		"not Ready, with the taint":     {node("Unknown", corev1.TaintNodeUnreachable, taint), true, true},
		"without conditions":            {&corev1.Node{}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := proof.OutOfService(test.node); got != test.wantOutOfService {
				t.Errorf("OutOfService: %t, want %t", got, test.wantOutOfService)
			}
			if got := proof.Attestable(&corev1.Pod{}, test.node); got != test.attestable {
				t.Errorf("Attestable: %t, want %t", got, test.attestable)
			}
			if !proof.Attestable(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, test.node) {
				t.Error("the termination of a failed pod cannot be attested")
			}
		})
	}
}

// The statuses of all containers are found by name, whatever their order.
func TestContainers(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "app"}, {Name: "new"}}}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "other"}, {Name: "app"}}
	got := proof.Containers(pod)
	if len(got) != 3 || got[0] == nil || got[0].Name != "init" || got[1] == nil || got[1].Name != "app" || got[2] != nil {
		t.Errorf("statuses: %v", got)
	}
}

// A pod is going as soon as it terminates, or has a terminal phase.
func TestGoing(t *testing.T) {
	deleted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(now))}}
	failed := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	if !proof.Going(deleted) || !proof.Going(failed) || proof.Going(&corev1.Pod{}) {
		t.Errorf("deleted %t, failed %t, neither %t", proof.Going(deleted), proof.Going(failed), proof.Going(&corev1.Pod{}))
	}
	ready := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: "False"}, {Type: corev1.PodReady, Status: "True"}}}}
	if !proof.IsTrue(ready, corev1.PodReady) || proof.IsTrue(ready, corev1.PodInitialized) || proof.IsTrue(ready, corev1.PodScheduled) {
		t.Error("the conditions of the pod are not those of its status")
	}
}
