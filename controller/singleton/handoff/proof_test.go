package handoff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// A warm standby is released if, and only if, the recorded holder is proven terminated.
func TestDecideReleasesOnProofOnly(t *testing.T) {
	plain := func() *PodWrapper { return MakePod("db-1").Protected().Ready() }
	two := func() *PodWrapper {
		return MakePod("db-1").Container(corev1.Container{Name: "helper", Command: []string{"/helper"}}).Injected().Holding()
	}
	// chosen returns a pod that is recorded and is not known to be signalled.
	chosen := func() *PodWrapper { return warm("db-1").Protected() }
	standby := warm("db-2").On(node2)
	with := func(db1 *PodWrapper) *SnapshotWrapper { return MakeSnapshot(db1, standby).Holder("db-1") }
	unsignalled := func(db1 *PodWrapper) *SnapshotWrapper { return MakeSnapshot(db1, standby).Chosen("db-1") }

	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// wantProof is empty if nothing proves the termination.
		wantProof v1.Proof
	}{
		"Ready":                   {with(holder()), ""},
		"terminating":             {with(holder().Deleting()), ""},
		"terminating and unready": {with(holder().Deleting().Condition(corev1.PodReady, corev1.ConditionFalse, "", "")), ""},

		// The kubelet reports the termination. TestKubeletReported of package proof has the other reports and their writers.
		"the kubelet ended it after a deletion":   {with(holder().Deleting().Ended()), v1.ProofKubeletReported},
		"the kubelet ended it without a deletion": {with(holder().Ended()), v1.ProofKubeletReported},
		"drained": {
			with(holder().Deleting().Ended().Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "")), v1.ProofKubeletReported,
		},
		"not injected, ended by the kubelet":                   {with(plain().Deleting().Ended()), v1.ProofKubeletReported},
		"ended by the kubelet, and the node was removed later": {with(holder().Deleting().Ended()).NoNode(node1), v1.ProofKubeletReported},

		// A crash does not terminate the pod.
		"a container crashed":                               {with(holder().State("app", terminated(1))), ""},
		"a container crashed, and then the pod was deleted": {with(holder().Deleting().State("app", terminated(1))), ""},
		"crash-looping":                                     {with(holder().State("app", waiting("CrashLoopBackOff", ""))), ""},
		"crash-looping and terminating":                     {with(holder().Deleting().State("app", waiting("CrashLoopBackOff", ""))), ""},

		// A terminal phase alone is no proof of termination.
		"Failed with a running container":           {with(holder().Deleting().Ended().State("app", running())), ""},
		"Failed with one of two containers running": {with(two().Deleting().Ended().State("helper", running())), ""},
		"Failed with both containers terminated":    {with(two().Deleting().Ended()), v1.ProofKubeletReported},
		"Failed with a running held init container": {with(heldInit("db-1").Signalled(7).Running().Deleting().Ended().State("migrate", running())), ""},
		"Failed with a completed init container that the singleton names only now": {
			with(openInit("db-1").Holding().Deleting().Ended()).HoldInit(), v1.ProofKubeletReported,
		},
		"Failed with a running container that is not named": {
			with(two().Deleting().Ended().State("helper", running())).Containers("app"), "", // the container has the wrapper
		},
		"Failed with a running container that is neither held nor named": {
			with(MakePod("db-1").Container(corev1.Container{Name: "helper"}).Protected().Running().Deleting().Ended().State("helper", running())).Containers("app"),
			v1.ProofKubeletReported,
		},
		"Failed with a running native sidecar that is named and not held": {
			with(MakePod("db-1").InitContainer(nativeSidecar("proxy")).Protected().Running().Deleting().Ended().State("proxy", running())).Containers("app", "proxy"), "",
		},
		"a held init container failed, and the other containers were never created": {
			with(heldInit("db-1").Signalled(7).Running().Deleting().Ended().State("app", waiting("PodInitializing", ""))), v1.ProofKubeletReported,
		},
		"Failed with one of two container states missing": {with(unreported(two().Deleting().Ended(), "helper")), ""},

		// The kubelet could not locate the container.
		"a container could not be located, and the runtime knows its ID": {with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), ContainerID: "cri://1"})), ""},
		"a container could not be located, and the pod is attested": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), ContainerID: "cri://1"})).Attest("db-1-uid"), v1.ProofAttested,
		},
		"the singleton names no container of the pod": {with(plain().Deleting().Ended()).Containers("other"), ""},

		// The pod garbage collector does not ask the kubelet.
		"Failed by the pod garbage collector": {with(holder().Deleting().FailedByGC("DeletionByPodGC")).NoNode(node1), ""},
		"Failed by the pod garbage collector after a crash, and then evicted": {
			with(holder().State("app", terminated(1)).Deleting().FailedByGC("EvictionByEvictionAPI")).NoNode(node1), "",
		},

		// The state of the node.
		"the node is not Ready":   {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable), ""},
		"the node does not exist": {with(holder().Deleting()).NoNode(node1), ""},
		"the node is out of service": {
			with(holder().Deleting()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService), v1.ProofNodeOutOfService,
		},
		"another node is out of service": {
			with(holder().Deleting()).Node("node-3", corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "",
		},
		"the node is out of service, and the pod is not terminating": {
			with(holder()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "",
		},

		// A person attests the termination.
		"attested":                              {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-1-uid"), v1.ProofAttested},
		"attested, and the node does not exist": {with(holder().Deleting()).NoNode(node1).Attest("db-1-uid"), v1.ProofAttested},
		"attested, and the node is Ready":       {with(holder().Deleting()).Node(node1, corev1.ConditionTrue).Attest("db-1-uid"), ""},
		"attested, the node is Ready, and the pod failed without a report": {
			with(holder().Deleting().Phase(corev1.PodFailed)).Node(node1, corev1.ConditionTrue).Attest("db-1-uid"), v1.ProofAttested,
		},
		"another UID is attested":                                {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-0-uid"), ""},
		"the name is attested":                                   {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-1"), ""},
		"attested, and the pod is not terminating":               {with(holder()).Attest("db-1-uid"), ""},
		"the report of the kubelet counts before an attestation": {with(holder().Deleting().Ended()).Attest("db-1-uid"), v1.ProofKubeletReported},
		"removed and attested":                                   {MakeSnapshot(standby).Holder("db-1").Attest("db-1-uid"), v1.ProofAttested},
		"removed, and another UID is attested":                   {MakeSnapshot(standby).Holder("db-1").Attest("db-0-uid"), ""},
		"removed after the record, without a known signal":       {MakeSnapshot(standby).Chosen("db-1"), ""},
		"removed despite the finalizer":                          {MakeSnapshot(standby).Holder("db-1"), ""},
		"removed, and another pod has the name":                  {MakeSnapshot(MakePod("db-1").UID("reborn").Injected(), standby).Holder("db-1"), ""},

		// The pod was chosen, and then deleted before its signal.
		"recorded and terminating":                      {unsignalled(chosen().Deleting()), v1.ProofNeverSignalled},
		"recorded":                                      {unsignalled(chosen()), ""},
		"recorded and Failed":                           {unsignalled(rejected(chosen())), v1.ProofNeverSignalled},
		"recorded, signalled and terminating":           {unsignalled(chosen().Signalled(7).Deleting()), ""},
		"recorded, terminating, without the finalizer":  {unsignalled(warm("db-1").Deleting()), v1.ProofNeverSignalled},
		"recorded, terminating, with an invalid signal": {unsignalled(chosen().Annotation(signal.Annotation, "go!").Deleting()), ""},
		"recorded, terminating, not held":               {unsignalled(MakePod("db-1").Running().Deleting()), ""},
		"recorded, terminating, one container not held": {unsignalled(openHelper("db-1").Deleting()), ""},
		"recorded, terminating, with an init container that the singleton names only now": {
			unsignalled(openInit("db-1").Protected().Deleting()).HoldInit(), "",
		},

		"recorded, terminating, past the barrier": {unsignalled(MakePod("db-1").Barrier().Injected().Protected().Running().Deleting()), ""},

		// The controller that recorded the pod may still open the barrier.
		"recorded with a barrier, and terminating":          {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm().Deleting()), ""},
		"recorded with a barrier, and ended by the kubelet": {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm().Deleting().Ended()), v1.ProofKubeletReported},
		"chosen by a deleted singleton, and terminating":    {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm().Deleting()), ""},

		// Removing the signal does not stop a main process that has started.
		"terminating, and only the record is left":          {with(chosen().Deleting()), ""},
		"terminating, and only the role is left":            {unsignalled(chosen().Label(v1.RoleLabel, v1.RoleActive).Deleting()), ""},
		"terminating, and only the readiness gate is left":  {unsignalled(chosen().Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "").Deleting()), ""},
		"terminating, with the readiness gate of a standby": {unsignalled(chosen().OpenGate(v1.ReadyReasonStandby).Deleting()), v1.ProofNeverSignalled},
		"terminating before it was bound to a node":         {with(MakePod("db-1").Protected().Deleting()), v1.ProofNeverSignalled},
		"not bound to a node":                               {with(MakePod("db-1").Protected()), ""},
		"not bound to a node, and Failed":                   {with(MakePod("db-1").Protected().Phase(corev1.PodFailed)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			var wantSteps []handoff.Step
			wantHolder := "db-1"
			if tc.wantProof != "" {
				wantHolder = "db-2"
				wantSteps = []handoff.Step{protectStandby("db-2"), handoff.Record{}, signalOf("db-2", 8)}
				if pod := tc.snapshot.Pods[0]; pod.Name == "db-1" && len(pod.Finalizers) > 0 {
					wantSteps = append(wantSteps, handoff.Unprotect{Pod: ref("db-1")})
				}
				if attested := tc.snapshot.Singleton.Annotations[v1.AttestAnnotation]; attested != "" && tc.wantProof != v1.ProofAttested {
					wantSteps = append(wantSteps, handoff.TakeAttestation{UID: types.UID(attested)})
				}
				if plan.Outcome != handoff.Released || plan.Status.LastTransition.Proof != tc.wantProof {
					t.Errorf("outcome %s with proof %q, want Released with proof %s", plan.Outcome, plan.Status.LastTransition.Proof, tc.wantProof)
				}
				if diff := cmp.Diff(wantSteps, plan.Steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			}
			if got := signalledBy(plan); tc.wantProof == "" && got != "" && got != "db-1" {
				t.Errorf("pod %s is signalled without proof", got)
			}
			if plan.Status.ActivePod != wantHolder || plan.Status.ActivePodUID != uidOf(wantHolder) {
				t.Errorf("holder %s (%s), want %s", plan.Status.ActivePod, plan.Status.ActivePodUID, wantHolder)
			}
		})
	}
}

// signalledBy returns the name of the pod that the plan signals.
func signalledBy(plan handoff.Plan) string {
	for _, step := range plan.Steps {
		if s, ok := step.(handoff.Signal); ok {
			return s.Pod.Name
		}
	}
	return ""
}

// rejected returns a Failed pod without container states. The kubelet writes this status when it rejects the pod after
// a restart of the kubelet.
func rejected(p *PodWrapper) *PodWrapper {
	p.Phase(corev1.PodFailed)
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = nil, nil
	return p
}

// unreported returns the pod without the state of one container.
func unreported(p *PodWrapper, container string) *PodWrapper {
	p.Status.ContainerStatuses = slices.DeleteFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	return p
}

// heldInit returns an injected pod whose init container migrate is held by the wrapper.
func heldInit(name string) *PodWrapper {
	return MakePod(name).InitContainer(corev1.Container{Name: "migrate", Command: []string{signal.GatePath, "wrap", "--", "/migrate"}}).Injected()
}

// openInit returns a warm, injected pod whose init container seed is not held.
func openInit(name string) *PodWrapper {
	return MakePod(name).InitContainer(corev1.Container{Name: "seed"}).Injected().Warm()
}

// openHelper returns an injected pod with a container that is not held.
func openHelper(name string) *PodWrapper {
	p := MakePod(name).Injected().Container(corev1.Container{Name: "helper"})
	return p.Running()
}

// openSidecar returns an injected pod with a native sidecar that is not held.
func openSidecar(name string) *PodWrapper {
	return MakePod(name).InitContainer(nativeSidecar("proxy")).Injected().Running()
}

// A pod other than the holder, which may run, blocks releases and keeps its finalizer until the pod is proven
// terminated.
func TestDecideProtectsPodsWithoutProof(t *testing.T) {
	next := MakePod("db-2").Injected().Signalled(8).Ready()
	for name, tc := range map[string]struct {
		old       *PodWrapper
		wantLetGo bool
		// wantSeveral is true if the pod counts as a pod that may run.
		wantSeveral bool
	}{
		"terminating":                                    {holder().Deleting(), false, true},
		"ended by the kubelet":                           {holder().Deleting().Ended(), true, false},
		"ended without a deletion":                       {holder().Ended(), true, false},
		"ended, without the finalizer":                   {MakePod("db-1").Injected().Running().Deleting().Ended(), false, false},
		"somebody removed the signal":                    {MakePod("db-1").Injected().Protected().Label(v1.RoleLabel, v1.RoleActive).Running(), false, true},
		"somebody removed the signal and the role":       {MakePod("db-1").Injected().Protected().Ready(), false, true},
		"past the barrier, without a signal":             {MakePod("db-1").Barrier().Injected().Running(), false, true},
		"a standby with a finalizer":                     {MakePod("db-1").Injected().Protected().Warm(), false, false},
		"a terminating standby with the finalizer":       {MakePod("db-1").Injected().Protected().Warm().Deleting(), true, false},
		"somebody removed the finalizer":                 {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-1-uid","epoch":7}`).Running().Deleting(), false, true},
		"not injected, and ended":                        {MakePod("db-1").Protected().Running().Deleting().Ended(), true, false},
		"chosen by a deleted singleton, and terminating": {MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm().Deleting(), false, true},
		"a terminating standby":                          {warm("db-1").Deleting(), false, false},
		"a signal for another pod":                       {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-0-uid","epoch":7}`).Warm(), false, false},
		"an invalid signal":                              {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-1-uid"}`).Warm(), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(MakeSnapshot(next, tc.old).Holder("db-2").Snapshot, now)
			if letGo := slices.Contains(plan.Steps, unprotect("db-1")); letGo != tc.wantLetGo {
				t.Errorf("let go: %t, want %t", letGo, tc.wantLetGo)
			}
			if several := plan.Outcome == handoff.SeveralRun; several != tc.wantSeveral {
				t.Errorf("outcome %s, want SeveralRun: %t", plan.Outcome, tc.wantSeveral)
			}
		})
	}
}

// An attestation is accepted, kept while it is needed, or removed at once.
func TestDecideTakesTheAttestation(t *testing.T) {
	stopping := func() *PodWrapper { return holder().Deleting() }
	lost := func(s *SnapshotWrapper) *SnapshotWrapper { return s.Node(node1, corev1.ConditionUnknown) }
	attested := func(s *SnapshotWrapper) *SnapshotWrapper {
		t := s.Singleton.Status.LastTransition
		t.Proof, t.FromUID = v1.ProofAttested, uidOf(t.From)
		return s
	}
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		attested string
		wantKept bool
		// wantRefused is a part of the reason.
		wantRefused string
	}{
		"accepted":                           {snapshot: lost(MakeSnapshot(stopping()).Holder("db-1")), attested: "db-1-uid", wantKept: true},
		"accepted, and the pod is removed":   {snapshot: MakeSnapshot().Holder("db-1"), attested: "db-1-uid", wantKept: true},
		"accepted, and the pod still exists": {snapshot: lost(MakeSnapshot(stopping()).Ended(v1.CauseDeletion)), attested: "db-1-uid", wantKept: true},
		"used":                               {snapshot: attested(MakeSnapshot().Ended(v1.CauseDeletion)), attested: "db-1-uid"},
		"not needed":                         {snapshot: MakeSnapshot(stopping().Ended()).Holder("db-1"), attested: "db-1-uid"},
		"the pod is not terminating": {
			snapshot: lost(MakeSnapshot(holder()).Holder("db-1")), attested: "db-1-uid",
			wantRefused: "pod db-1 is not terminating, and the kubelet may restart its containers. Delete the pod, and then attest again. Run: kubectl delete -n prod pod db-1 --wait=false",
		},
		"the node is Ready": {
			snapshot: MakeSnapshot(stopping()).Holder("db-1"), attested: "db-1-uid",
			wantRefused: "node node-1 of pod db-1 is Ready",
		},
		"the UID of another pod": {
			snapshot: lost(MakeSnapshot(stopping(), warm("db-2")).Holder("db-1")), attested: "db-2-uid",
			wantRefused: "pod db-2 is not terminating",
		},
		"the name of the pod": {
			snapshot: lost(MakeSnapshot(stopping()).Holder("db-1")), attested: "db-1",
			wantRefused: `no pod of this StatefulSingleton has the uid "db-1"; the holder is pod db-1 with uid db-1-uid`,
		},
		"another UID, after an attestation": {
			snapshot: attested(MakeSnapshot().Ended(v1.CauseDeletion)), attested: "db-9-uid",
			wantRefused: `no pod of this StatefulSingleton has the uid "db-9-uid"`,
		},
		"there is no holder": {snapshot: MakeSnapshot(), attested: "db-1-uid", wantRefused: "the holder is none"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Attest(tc.attested).Snapshot, now)
			var taken []handoff.TakeAttestation
			for i, step := range plan.Steps {
				if step, ok := step.(handoff.TakeAttestation); ok {
					taken = append(taken, step)
					if i != len(plan.Steps)-1 {
						t.Errorf("the attestation is taken before %T", plan.Steps[i+1])
					}
				}
			}
			switch {
			case tc.wantKept && len(taken) > 0:
				t.Errorf("the attestation is taken: %+v", taken)
			case !tc.wantKept && (len(taken) != 1 || string(taken[0].UID) != tc.attested):
				t.Errorf("taken: %+v, want %s", taken, tc.attested)
			case !tc.wantKept && (!strings.Contains(taken[0].Refused, tc.wantRefused) || tc.wantRefused == "" && taken[0].Refused != ""):
				t.Errorf("refused: %q, want %q", taken[0].Refused, tc.wantRefused)
			}
		})
	}
}
