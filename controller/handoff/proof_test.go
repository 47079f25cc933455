package handoff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// A warm standby is released if, and only if, the recorded holder is proven terminated.
func TestDecideReleasesOnProofOnly(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	plain := func() *PodWrapper { return MakePod("db-1").Protected().Ready() }
	two := func() *PodWrapper {
		return MakePod("db-1").Container(corev1.Container{Name: "helper", Command: []string{"/helper"}}).Injected().Holding()
	}
	// chosen returns a pod that is recorded and is not known to be signalled.
	chosen := func() *PodWrapper { return MakePod("db-1").Injected().Warm().Protected() }
	standby := MakePod("db-2").Injected().Warm().On(node2)
	with := func(db1 *PodWrapper) *SnapshotWrapper { return MakeSnapshot(db1, standby).Holder("db-1") }
	unsignalled := func(db1 *PodWrapper) *SnapshotWrapper { return MakeSnapshot(db1, standby).Chosen("db-1") }

	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		// wantProof is empty if nothing proves the termination.
		wantProof v1.Proof
	}{
		"serving":                       {with(holder()), ""},
		"deletion asked for":            {with(holder().Deleting()), ""},
		"deletion asked for, not Ready": {with(holder().Deleting().Condition(corev1.PodReady, corev1.ConditionFalse, "", "")), ""},

		// The kubelet reports the termination.
		"kubelet ended it after deletion": {with(holder().Deleting().Ended()), v1.ProofKubeletReported},
		"kubelet ended it by itself":      {with(holder().Ended()), v1.ProofKubeletReported},
		"completed":                       {with(holder().Ended().Phase(corev1.PodSucceeded)), v1.ProofKubeletReported},
		"evicted by the kubelet": {
			with(holder().Ended().Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "TerminationByKubelet", "")), v1.ProofKubeletReported,
		},
		"drained": {
			with(holder().Deleting().Ended().Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "")), v1.ProofKubeletReported,
		},
		"un-injected, ended by the kubelet": {with(plain().Deleting().Ended()), v1.ProofKubeletReported},
		"the node is gone since":            {with(holder().Deleting().Ended()).NoNode(node1), v1.ProofKubeletReported},

		// A crash does not terminate the pod.
		"crashed, container terminated":     {with(holder().State("app", terminated(1))), ""},
		"crashed, then deletion asked for":  {with(holder().Deleting().State("app", terminated(1))), ""},
		"crash-looping":                     {with(holder().State("app", waiting("CrashLoopBackOff", ""))), ""},
		"crash-looping, deletion asked for": {with(holder().Deleting().State("app", waiting("CrashLoopBackOff", ""))), ""},

		// A terminal phase alone is no proof of termination.
		"Failed with a container still running":  {with(holder().Deleting().Ended().State("app", running())), ""},
		"Failed with one of two running":         {with(two().Deleting().Ended().State("helper", running())), ""},
		"Failed with both ended":                 {with(two().Deleting().Ended()), v1.ProofKubeletReported},
		"Failed with a container unreported":     {with(rejected(holder().Deleting())), ""},
		"Failed with a held init container left": {with(heldInit("db-1").Signalled(7).Running().Deleting().Ended().State("migrate", running())), ""},
		"Failed with an init container done that was to be held since": {
			with(openInit("db-1").Holding().Deleting().Ended()).HoldInit(), v1.ProofKubeletReported,
		},
		"Failed with a container left that is not held": {
			with(two().Deleting().Ended().State("helper", running())).Containers("app"), "", // the container has the wrapper
		},
		"Failed with an un-injected container left that is not named": {
			with(MakePod("db-1").Container(corev1.Container{Name: "helper"}).Protected().Running().Deleting().Ended().State("helper", running())).Containers("app"),
			v1.ProofKubeletReported,
		},
		"Failed with an un-injected native sidecar left that is named": {
			with(MakePod("db-1").InitContainer(nativeSidecar("proxy")).Protected().Running().Deleting().Ended().State("proxy", running())).Containers("app", "proxy"), "",
		},
		"Failed in a held init container, the others never created": {
			with(heldInit("db-1").Signalled(7).Running().Deleting().Ended().State("app", waiting("PodInitializing", ""))), v1.ProofKubeletReported,
		},
		"Failed in a held init container, another was created before": {
			with(heldInit("db-1").Signalled(7).Running().Deleting().Ended().Report(corev1.ContainerStatus{
				Name: "app", State: waiting("PodInitializing", ""), LastTerminationState: terminated(1),
			})), "",
		},
		"Failed before anything was created": {
			with(holder().Deleting().Ended().State("app", waiting("PodInitializing", ""))), v1.ProofKubeletReported,
		},
		"Failed, a container that was created waits again": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: waiting("CrashLoopBackOff", ""), ContainerID: "cri://1"})), "",
		},
		"Failed, one of two containers unreported": {with(unreported(two().Deleting().Ended(), "helper")), ""},

		// The kubelet could not locate the container.
		"could not be located, its runtime knows its id": {with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), ContainerID: "cri://1"})), ""},
		"could not be located, its cgroup not removed yet": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: waiting("ContainerCreating", ""), LastTerminationState: unknown()})), "",
		},
		"could not be located, its cgroup removed": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), LastTerminationState: unknown()})), v1.ProofKubeletReported,
		},
		"could not be located after a crash, its cgroup removed": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), LastTerminationState: terminated(1)})), v1.ProofKubeletReported,
		},
		"could not be located, its cgroup removed, the phase not terminal": {
			with(holder().Deleting().Ended().Phase(corev1.PodRunning).Report(corev1.ContainerStatus{Name: "app", State: unknown(), LastTerminationState: unknown()})), "",
		},
		"could not be located once, and the next one ended": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: terminated(143), LastTerminationState: unknown(), ContainerID: "cri://2"})), "",
		},
		"could not be located, attested": {
			with(holder().Deleting().Ended().Report(corev1.ContainerStatus{Name: "app", State: unknown(), ContainerID: "cri://1"})).Attest("db-1-uid"), v1.ProofAttested,
		},
		"never created, and reported so at the end of the pod": {with(holder().Deleting().Ended().State("app", unknown())), v1.ProofKubeletReported},
		"no container is named":                                {with(plain().Deleting().Ended()).Containers("other"), ""},

		"Failed, by nobody knows whom":                 {with(holder().Deleting().Ended().WrittenBy(nil)), ""},
		"Failed by one who does not report containers": {with(holder().Deleting().Ended().WrittenBy(map[string]string{"kubelet": `"f:containerStatuses":{}`, "somebody": `"f:phase":{}`})), ""},

		"Failed by one whose fields are those of an apply": {
			with(holder().Deleting().Ended().Recorded(func(e *metav1.ManagedFieldsEntry) { e.Operation = metav1.ManagedFieldsOperationApply })), "",
		},
		"Failed by one whose fields are not those of the status": {
			with(holder().Deleting().Ended().Recorded(func(e *metav1.ManagedFieldsEntry) { e.Subresource = "" })), "",
		},

		// The pod garbage collector does not ask the kubelet.
		"Failed by the pod garbage collector": {
			with(holder().Deleting().FailedByGC("DeletionByPodGC")).NoNode(node1), "",
		},
		"Failed by the pod garbage collector after a crash, evicted since": {
			with(crashed(holder()).Deleting().FailedByGC("EvictionByEvictionAPI")).NoNode(node1), "",
		},
		"Failed by the pod garbage collector after a crash": {
			with(holder().Deleting().Ended().Condition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC", "")).NoNode(node1), "",
		},

		// The state of the node.
		"the node is not Ready":     {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable), ""},
		"the node's object is gone": {with(holder().Deleting()).NoNode(node1), ""},
		"the node is out of service": {
			with(holder().Deleting()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService), v1.ProofNodeOutOfService,
		},
		"another node is out of service": {
			with(holder().Deleting()).Node("node-3", corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "",
		},
		"the node is out of service, but answers": {
			with(holder().Deleting()).Node(node1, corev1.ConditionTrue, corev1.TaintNodeOutOfService), "",
		},
		"the node is out of service, but nobody deleted the pod": {
			with(holder()).Node(node1, corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "",
		},

		// A person attests the termination.
		"attested":                            {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-1-uid"), v1.ProofAttested},
		"attested, the node's object is gone": {with(holder().Deleting()).NoNode(node1).Attest("db-1-uid"), v1.ProofAttested},
		"attested, but the node answers":      {with(holder().Deleting()).Node(node1, corev1.ConditionTrue).Attest("db-1-uid"), ""},
		"attested, the node answers, but the pod failed without a report": {
			with(holder().Deleting().Phase(corev1.PodFailed)).Node(node1, corev1.ConditionTrue).Attest("db-1-uid"), v1.ProofAttested,
		},
		"attested another uid":               {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-0-uid"), ""},
		"attested the name":                  {with(holder().Deleting()).Node(node1, corev1.ConditionUnknown).Attest("db-1"), ""},
		"attested, but nobody deleted it":    {with(holder()).Attest("db-1-uid"), ""},
		"kubelet's word before a person's":   {with(holder().Deleting().Ended()).Attest("db-1-uid"), v1.ProofKubeletReported},
		"gone, attested":                     {MakeSnapshot(standby).Holder("db-1").Attest("db-1-uid"), v1.ProofAttested},
		"gone, attested another uid":         {MakeSnapshot(standby).Holder("db-1").Attest("db-0-uid"), ""},
		"gone, chosen, no signal known":      {MakeSnapshot(standby).Chosen("db-1"), ""},
		"gone, though it bore the finalizer": {MakeSnapshot(standby).Holder("db-1"), ""},
		"gone, another pod has its name": {
			MakeSnapshot(MakePod("db-1").UID("reborn").Injected(), standby).Holder("db-1"), "",
		},

		// The pod was chosen, and then deleted before its signal.
		"chosen and deleted":                      {unsignalled(chosen().Deleting()), v1.ProofNeverSignalled},
		"chosen, not deleted":                     {unsignalled(chosen()), ""},
		"chosen, Failed, not deleted":             {unsignalled(rejected(chosen())), v1.ProofNeverSignalled},
		"chosen, signalled and deleted":           {unsignalled(chosen().Signalled(7).Deleting()), ""},
		"chosen, deleted, finalizer taken off":    {unsignalled(MakePod("db-1").Injected().Warm().Deleting()), v1.ProofNeverSignalled},
		"chosen, deleted, with a strange signal":  {unsignalled(chosen().Annotation(signal.Annotation, "go!").Deleting()), ""},
		"chosen, deleted, not held":               {unsignalled(MakePod("db-1").Running().Deleting()), ""},
		"chosen, deleted, one container not held": {unsignalled(openHelper("db-1").Deleting()), ""},
		"chosen, deleted, its init container was to be held since": {
			unsignalled(openInit("db-1").Protected().Deleting()).HoldInit(), "",
		},

		"chosen, deleted, past its barrier": {unsignalled(MakePod("db-1").Barrier().Injected().Protected().Running().Deleting()), ""},

		// The controller that recorded the pod may still open the barrier.
		"chosen with a barrier, and deleted":                 {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm().Deleting()), ""},
		"chosen with a barrier, deleted, the kubelet's word": {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("stfs-uid").Warm().Deleting().Ended()), v1.ProofKubeletReported},
		"chosen by a singleton that is gone, and deleted":    {unsignalled(MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm().Deleting()), ""},

		// Removing the signal does not stop a main process that has started.
		"deleted, all but the record taken off":    {with(chosen().Deleting()), ""},
		"deleted, all but the role taken off":      {unsignalled(chosen().Label(v1.RoleLabel, v1.RoleActive).Deleting()), ""},
		"deleted, all but the gate taken off":      {unsignalled(chosen().Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "").Deleting()), ""},
		"deleted before it was bound to a node":    {with(MakePod("db-1").Protected().Deleting()), v1.ProofNeverSignalled},
		"not bound to a node, not deleted":         {with(MakePod("db-1").Protected()), ""},
		"not bound to a node, Failed, not deleted": {with(MakePod("db-1").Protected().Phase(corev1.PodFailed)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Snapshot, now)
			var wantSteps []handoff.Step
			wantHolder := "db-1"
			if tc.wantProof != "" {
				wantHolder = "db-2"
				wantSteps = []handoff.Step{arm("db-2"), handoff.Record{}, signalOf("db-2", 8)}
				if pod := tc.snapshot.Pods[0]; pod.Name == "db-1" && len(pod.Finalizers) > 0 {
					wantSteps = append(wantSteps, handoff.Unprotect{Pod: ref("db-1")})
				}
				if word := tc.snapshot.Singleton.Annotations[v1.AttestAnnotation]; word != "" && tc.wantProof != v1.ProofAttested {
					wantSteps = append(wantSteps, handoff.TakeAttestation{UID: types.UID(word)})
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

// crashed returns a pod whose main process has ended and may have been restarted.
func crashed(p *PodWrapper) *PodWrapper { return p.State("app", terminated(1)) }

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
func TestDecideLeavesWhatIsNotProvenDead(t *testing.T) {
	holder := MakePod("db-2").Injected().Signalled(8).Ready()
	for name, tc := range map[string]struct {
		old       *PodWrapper
		wantLetGo bool
		// wantSeveral is true if the pod counts as a pod that may run.
		wantSeveral bool
	}{
		"deletion asked for":                            {MakePod("db-1").Injected().Holding().Deleting(), false, true},
		"ended by the kubelet":                          {MakePod("db-1").Injected().Holding().Deleting().Ended(), true, false},
		"ended, not deleted":                            {MakePod("db-1").Injected().Holding().Ended(), true, false},
		"ended and let go already":                      {MakePod("db-1").Injected().Running().Deleting().Ended(), false, false},
		"signal taken off by hand":                      {MakePod("db-1").Injected().Protected().Label(v1.RoleLabel, v1.RoleActive).Running(), false, true},
		"signal and role taken off":                     {MakePod("db-1").Injected().Protected().Ready(), false, true},
		"past its barrier, unsigned":                    {MakePod("db-1").Barrier().Injected().Running(), false, true},
		"a standby with a finalizer":                    {MakePod("db-1").Injected().Protected().Warm(), false, false},
		"a standby that is to go":                       {MakePod("db-1").Injected().Protected().Warm().Deleting(), true, false},
		"finalizer taken off":                           {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-1-uid","epoch":7}`).Running().Deleting(), false, true},
		"un-injected, ended":                            {MakePod("db-1").Protected().Running().Deleting().Ended(), true, false},
		"chosen by a singleton that is gone, and to go": {MakePod("db-1").Barrier().Injected().ChosenBy("gone").Warm().Deleting(), false, true},
		"a standby that is deleted":                     {MakePod("db-1").Injected().Warm().Deleting(), false, false},
		"a signal of another pod":                       {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-0-uid","epoch":7}`).Warm(), false, false},
		"a signal that says nothing":                    {MakePod("db-1").Injected().Annotation(signal.Annotation, `{"uid":"db-1-uid"}`).Warm(), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(MakeSnapshot(holder, tc.old).Holder("db-2").Snapshot, now)
			unprotect := false
			for _, step := range plan.Steps {
				unprotect = unprotect || step == handoff.Unprotect{Pod: ref("db-1")}
			}
			if unprotect != tc.wantLetGo {
				t.Errorf("let go: %t, want %t", unprotect, tc.wantLetGo)
			}
			if several := plan.Outcome == handoff.SeveralRun; several != tc.wantSeveral {
				t.Errorf("outcome %s, want SeveralRun: %t", plan.Outcome, tc.wantSeveral)
			}
		})
	}
}

// An attestation is accepted, kept while it is needed, or removed at once.
func TestDecideTakesTheAttestation(t *testing.T) {
	holder := func() *PodWrapper { return MakePod("db-1").Injected().Holding() }
	stopping := func() *PodWrapper { return holder().Deleting() }
	lost := func(s *SnapshotWrapper) *SnapshotWrapper { return s.Node(node1, corev1.ConditionUnknown) }
	attested := func(s *SnapshotWrapper) *SnapshotWrapper {
		t := s.Singleton.Status.LastTransition
		t.Proof, t.FromUID = v1.ProofAttested, uidOf(t.From)
		return s
	}
	for name, tc := range map[string]struct {
		snapshot *SnapshotWrapper
		word     string
		wantKept bool
		// wantRefused is a part of the reason.
		wantRefused string
	}{
		"believed":                       {snapshot: lost(MakeSnapshot(stopping()).Holder("db-1")), word: "db-1-uid", wantKept: true},
		"believed, the pod is gone":      {snapshot: MakeSnapshot().Holder("db-1"), word: "db-1-uid", wantKept: true},
		"believed, the pod is left over": {snapshot: lost(MakeSnapshot(stopping()).Ended(v1.CauseDeletion)), word: "db-1-uid", wantKept: true},
		"spent":                          {snapshot: attested(MakeSnapshot().Ended(v1.CauseDeletion)), word: "db-1-uid"},
		"not needed":                     {snapshot: MakeSnapshot(stopping().Ended()).Holder("db-1"), word: "db-1-uid"},
		"nobody asked for the deletion": {
			snapshot: lost(MakeSnapshot(holder()).Holder("db-1")), word: "db-1-uid",
			wantRefused: "pod db-1 is not terminating, and the kubelet may restart its containers. Delete the pod, and then attest again. Run: kubectl delete -n prod pod db-1 --wait=false",
		},
		"the node answers": {
			snapshot: MakeSnapshot(stopping()).Holder("db-1"), word: "db-1-uid",
			wantRefused: "node node-1 of pod db-1 is Ready",
		},
		"another pod's uid": {
			snapshot: lost(MakeSnapshot(stopping(), MakePod("db-2").Injected().Warm()).Holder("db-1")), word: "db-2-uid",
			wantRefused: "pod db-2 is not terminating",
		},
		"a name": {
			snapshot: lost(MakeSnapshot(stopping()).Holder("db-1")), word: "db-1",
			wantRefused: `no pod of this StatefulSingleton has the uid "db-1"; the holder is pod db-1 with uid db-1-uid`,
		},
		"another uid, after an attestation": {
			snapshot: attested(MakeSnapshot().Ended(v1.CauseDeletion)), word: "db-9-uid",
			wantRefused: `no pod of this StatefulSingleton has the uid "db-9-uid"`,
		},
		"nobody holds": {snapshot: MakeSnapshot(), word: "db-1-uid", wantRefused: "the holder is none"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := handoff.Decide(tc.snapshot.Attest(tc.word).Snapshot, now)
			var words []handoff.TakeAttestation
			for i, step := range plan.Steps {
				if word, ok := step.(handoff.TakeAttestation); ok {
					words = append(words, word)
					if i != len(plan.Steps)-1 {
						t.Errorf("the word is taken before %T", plan.Steps[i+1])
					}
				}
			}
			switch {
			case tc.wantKept && len(words) > 0:
				t.Errorf("the word is taken: %+v", words)
			case !tc.wantKept && (len(words) != 1 || string(words[0].UID) != tc.word):
				t.Errorf("taken: %+v, want %s", words, tc.word)
			case !tc.wantKept && (!strings.Contains(words[0].Refused, tc.wantRefused) || tc.wantRefused == "" && words[0].Refused != ""):
				t.Errorf("refused: %q, want %q", words[0].Refused, tc.wantRefused)
			}
		})
	}
}
