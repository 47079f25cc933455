package handoff_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// In a rollout, the holder is asked to stop if, and only if, the standby is warm.
func TestDecideRetiresOnlyForAWarmStandby(t *testing.T) {
	standby := func() *PodWrapper { return MakePod("db-2").Injected() }
	atBarrier := func() *PodWrapper { return MakePod("db-2").Barrier().Injected().Warm() }
	gate := []string{signal.GatePath, "wrap", "--", "/x"}
	helper := corev1.Container{Name: "helper", Image: "helper"}
	seed := corev1.Container{Name: "seed"}
	heldSidecar := corev1.Container{Name: "proxy", Command: gate, RestartPolicy: nativeSidecar("").RestartPolicy}

	for name, tc := range map[string]struct {
		standby *PodWrapper
		// wantWaitsFor is the part of the message about the standby. It is empty if the standby is warm.
		wantWaitsFor string
	}{
		"wrapper waits":                         {standby().Warm(), ""},
		"wrapper with gate probe":               {MakePod("db-2").GateProbe().Injected().Warm(), ""},
		"barrier waits":                         {atBarrier(), ""},
		"bound, nothing reported":               {standby().On(node1), "container status-sidecar has not started"},
		"not bound":                             {standby(), "is not scheduled yet"},
		"can't be scheduled in the zone":        {standby().Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "1 node(s) didn't match PersistentVolume's node affinity."), "can't be scheduled: 1 node(s) didn't match PersistentVolume's node affinity. A volume of the pod exists only in one zone or on one node: uncordon or add a node there"},
		"can't be scheduled":                    {standby().Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/2 nodes are available"), "can't be scheduled: 0/2 nodes are available"},
		"ImagePullBackOff":                      {standby().Warm().State("app", waiting("ImagePullBackOff", "no such image")), "container app waits: ImagePullBackOff: no such image"},
		"ErrImagePull at barrier":               {atBarrier().State("app", waiting("ErrImagePull", "")), "container app waits: ErrImagePull"},
		"ContainerCreating":                     {standby().Warm().State("app", waiting("ContainerCreating", "")), "container app waits: ContainerCreating"},
		"wrapper crashed":                       {standby().Warm().State("app", terminated(127)), "container app ended: Error, exit code 127"},
		"sidecar waits":                         {standby().Warm().State(v1.SidecarName, waiting("ContainerCreating", "")), "init container status-sidecar waits: ContainerCreating"},
		"sidecar not started":                   {standby().Warm().Report(corev1.ContainerStatus{Name: v1.SidecarName, State: running(), Started: new(false)}), "init container status-sidecar is running"},
		"another ConfigMap":                     {atBarrier().State("app", missing("settings")), `container app waits: CreateContainerConfigError: configmap "settings" not found`},
		"another pod's barrier":                 {atBarrier().State("app", missing(barrierOf("db-1"))), "CreateContainerConfigError"},
		"a secret":                              {atBarrier().State("app", waiting("CreateContainerConfigError", `secret "statefulsingleton-db-2" not found`)), "CreateContainerConfigError"},
		"a key of the ConfigMap":                {atBarrier().State("app", waiting("CreateContainerConfigError", `couldn't find key epoch in ConfigMap prod/statefulsingleton-db-2`)), "CreateContainerConfigError"},
		"wrapper lacks ConfigMap":               {standby().Warm().State("app", missing("settings")), "CreateContainerConfigError"},
		"the message belongs to another reason": {atBarrier().State("app", waiting("CreateContainerError", `configmap "statefulsingleton-db-2" not found`)), "CreateContainerError"},
		"init container runs":                   {MakePod("db-2").InitContainer(seed).Injected().Warm().State("seed", running()), "init container seed is running"},
		"init container failed":                 {MakePod("db-2").InitContainer(seed).Injected().Warm().State("seed", terminated(1)), "init container seed ended: Error, exit code 1"},
		"init container done":                   {MakePod("db-2").InitContainer(seed).Injected().Warm(), ""},
		"native sidecar starts":                 {MakePod("db-2").InitContainer(nativeSidecar("proxy")).Injected().Warm().Report(corev1.ContainerStatus{Name: "proxy", State: running(), Started: new(false)}), "init container proxy is running"},
		"native sidecar started":                {MakePod("db-2").InitContainer(nativeSidecar("proxy")).Injected().Warm(), ""},
		"native sidecar waits":                  {MakePod("db-2").InitContainer(nativeSidecar("proxy")).Injected().Warm().State("proxy", waiting("ImagePullBackOff", "")), "init container proxy waits: ImagePullBackOff"},
		"held init container":                   {heldInit("db-2").Warm().State("migrate", running()).State("app", waiting("PodInitializing", "")), ""},
		"held init container pulls": {heldInit("db-2").Warm().State("migrate", waiting("ImagePullBackOff", "")).State("app", waiting("PodInitializing", "")),
			"container migrate waits: ImagePullBackOff"},
		"held init container at barrier": {
			MakePod("db-2").InitContainer(barrier("migrate", barrierOf("db-2"))).Injected().Warm().State("migrate", missing(barrierOf("db-2"))).State("app", waiting("PodInitializing", "")), "",
		},
		"held init container behind a running init container": {
			MakePod("db-2").InitContainer(seed).InitContainer(corev1.Container{Name: "migrate", Command: gate}).Injected().
				Warm().State("seed", running()).State("migrate", waiting("PodInitializing", "")), "init container seed is running",
		},
		"held native sidecar": {
			MakePod("db-2").InitContainer(heldSidecar).Injected().Warm().Report(corev1.ContainerStatus{Name: "proxy", State: running(), Started: new(false)}).
				State("app", waiting("PodInitializing", "")), "",
		},
		"container that is not held runs":    {MakePod("db-2").Injected().Container(helper).Warm(), ""},
		"container that is not held crashed": {MakePod("db-2").Injected().Container(helper).Warm().Report(corev1.ContainerStatus{Name: "helper", ImageID: "sha256:1", State: terminated(1)}), ""},
		"container that is not held pulls":   {MakePod("db-2").Injected().Container(helper).Warm().State("helper", waiting("ImagePullBackOff", "")), "container helper waits: ImagePullBackOff"},
	} {
		t.Run(name, func(t *testing.T) {
			holder := holding()
			s := MakeSnapshot(holder, tc.standby.Revision(2)).Holder("db-1").Containers("app")
			plan := handoff.Decide(s.Snapshot, now)
			wantOutcome, wantMessage := handoff.Retiring, "pod db-2 is warm; next, the ReplicaSet of pod db-1 is scaled to zero"
			chosen := protectStandby("db-2")
			if strings.Contains(name, "barrier") {
				chosen = choose("db-2")
			}
			wantSteps := []handoff.Step{chosen, handoff.Retire{ReplicaSet: "db-v1"}}
			if tc.wantWaitsFor != "" {
				wantOutcome, wantMessage, wantSteps = handoff.StandbyNotWarm, tc.wantWaitsFor, nil
			}
			if plan.Outcome != wantOutcome || !strings.Contains(plan.Status.Message, wantMessage) {
				t.Errorf("outcome %s, message %q, want %s, %q", plan.Outcome, plan.Status.Message, wantOutcome, wantMessage)
			}
			if diff := cmp.Diff(wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}

			// Without a holder, only a warm standby is released.
			plan = handoff.Decide(MakeSnapshot(tc.standby).Containers("app").Snapshot, now)
			if released := signalledBy(plan) == "db-2"; released != (tc.wantWaitsFor == "") {
				t.Errorf("released: %t, outcome %s, message %q", released, plan.Outcome, plan.Status.Message)
			}
		})
	}
}

// If a claim of the holder keeps the standby from becoming warm, the holder is stopped first.
func TestDecideGoesCold(t *testing.T) {
	const denied = "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod."
	standby := func() *PodWrapper { return MakePod("db-2").Injected().Claim("data") }
	unschedulable := func(message string) *PodWrapper {
		return standby().Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", message)
	}
	attaching := func(node string, since time.Duration) *PodWrapper {
		p := standby().On(node).State("app", waiting("ContainerCreating", ""))
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-since))
		return p
	}
	received := func(p *PodWrapper, before time.Duration) *PodWrapper {
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Subresource: "status", Time: new(metav1.NewTime(now.Add(-before)))}}
		return p
	}
	for name, tc := range map[string]struct {
		standby *PodWrapper
		mode    corev1.PersistentVolumeAccessMode
		// wantWhy is the reason why db-1 is asked to stop. It is empty if db-1 is not asked to stop.
		wantWhy string
	}{
		"ReadWriteOncePod":                                     {unschedulable(denied), corev1.ReadWriteOncePod, "claim data is ReadWriteOncePod"},
		"ReadWriteOncePod, no node large enough":               {unschedulable("0/2 nodes are available: 2 Insufficient memory."), corev1.ReadWriteOncePod, ""},
		"ReadWriteOncePod, not scheduled yet":                  {standby(), corev1.ReadWriteOncePod, ""},
		"ReadWriteOncePod of a claim not shared":               {MakePod("db-2").Injected().Claim("other").Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", denied), corev1.ReadWriteOncePod, ""},
		"ReadWriteOnce on another node":                        {attaching(node2, 20*time.Second), corev1.ReadWriteOnce, "claim data is ReadWriteOnce and attached to node node-1"},
		"ReadWriteOnce on another node, not yet":               {attaching(node2, 19*time.Second), corev1.ReadWriteOnce, ""},
		"ReadWriteOnce on another node, by a clock ahead":      {received(attaching(node2, -10*time.Minute), 20*time.Second), corev1.ReadWriteOnce, "claim data is ReadWriteOnce and attached to node node-1"},
		"ReadWriteOnce on another node, not yet, by such one":  {received(attaching(node2, -10*time.Minute), 19*time.Second), corev1.ReadWriteOnce, ""},
		"ReadWriteOnce on another node, mounted":               {attaching(node2, time.Minute).Condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, "", ""), corev1.ReadWriteOnce, ""},
		"ReadWriteOnce on the same node":                       {attaching(node1, time.Minute), corev1.ReadWriteOnce, ""},
		"ReadWriteMany on another node":                        {attaching(node2, time.Minute), corev1.ReadWriteMany, ""},
		"ReadOnlyMany on another node":                         {attaching(node2, time.Minute), corev1.ReadOnlyMany, ""},
		"a claim that does not exist":                          {attaching(node2, time.Minute), "", ""},
		"a warm standby with a claim of the holder":            {standby().Warm(), corev1.ReadWriteOncePod, "warm"},
		"ReadWriteOnce, and the scheduler rejects the standby": {unschedulable(denied), corev1.ReadWriteOnce, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(MakePod("db-1").Injected().Claim("data").Holding().Revision(1), tc.standby.Revision(2)).Holder("db-1")
			if tc.mode != "" {
				s.Claim("data", tc.mode)
			}
			plan := handoff.Decide(s.Snapshot, now)
			wantOutcome, wantSteps := handoff.RetiringCold, []handoff.Step{handoff.Retire{ReplicaSet: "db-v1"}}
			switch tc.wantWhy {
			case "":
				wantOutcome, wantSteps = handoff.StandbyNotWarm, nil
			case "warm":
				wantOutcome, wantSteps = handoff.Retiring, slices.Insert(wantSteps, 0, protectStandby("db-2"))
			}
			if plan.Outcome != wantOutcome || !strings.Contains(plan.Status.Message, tc.wantWhy) {
				t.Errorf("outcome %s, message %q, want %s, %q", plan.Outcome, plan.Status.Message, wantOutcome, tc.wantWhy)
			}
			if diff := cmp.Diff(wantSteps, plan.Steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// If the volume is attached to the node of the holder, waiting cannot help a standby on another node.
func TestDecideGoesColdAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		attached string
		want     handoff.Outcome
	}{
		"attached to the node of the holder": {"data", handoff.RetiringCold},
		"not known":                          {"", handoff.StandbyNotWarm},
		"another claim is":                   {"other", handoff.StandbyNotWarm},
	} {
		t.Run(name, func(t *testing.T) {
			standby := MakePod("db-2").Injected().Claim("data").On(node2).State("app", waiting("ContainerCreating", "")).Revision(2)
			standby.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now) // it is scheduled now
			s := MakeSnapshot(MakePod("db-1").Injected().Claim("data").Holding().Revision(1), standby).Holder("db-1").Claim("data", corev1.ReadWriteOnce)
			if claims, node := s.ClaimsElsewhere(); !slices.Equal(claims, []string{"data"}) || node != node1 {
				t.Errorf("claims %v of node %s", claims, node)
			}
			s.Attached = map[string]bool{tc.attached: true}
			if plan := handoff.Decide(s.Snapshot, now); plan.Outcome != tc.want {
				t.Errorf("outcome %s, message %q, want %s", plan.Outcome, plan.Status.Message, tc.want)
			}
		})
	}
}

// While the volume is still attached to the node of the last holder, the message names both, and says what to do if that node may be lost.
func TestDecideNamesTheAttachedVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		ready    corev1.ConditionStatus
		attached bool
		want     string
	}{
		"the node is lost":       {corev1.ConditionUnknown, true, "; the volume of claim data is still attached to node node-1, and Kubernetes detaches it only when that node answers. If node node-1 is off, run: kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"},
		"the node is Ready":      {corev1.ConditionTrue, true, "; the volume of claim data is still attached to node node-1. The last time, its volumes took 7 s to follow to another node"},
		"it is detached already": {corev1.ConditionTrue, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := MakeSnapshot(MakePod("db-2").Injected().Claim("data").On(node2).State("app", waiting("ContainerCreating", ""))).Claim("data", corev1.ReadWriteOnce)
			s.Singleton.Status.AttachSeconds = new(int32(7))
			s.Singleton.Status.LastTransition = &v1.Transition{From: "db-1", FromNode: node1, Cause: v1.CauseRollout, Proof: v1.ProofLeaseExpired, Terminated: microTime(now)}
			s.Node(node1, tc.ready)
			s.Attached = map[string]bool{"data": tc.attached}
			plan := handoff.Decide(s.Snapshot, now)
			if want := "pod db-2 init container status-sidecar has not started" + tc.want; plan.Outcome != handoff.WarmingUp || plan.Status.Message != want {
				t.Errorf("outcome %s, message\n%s, want\n%s", plan.Outcome, plan.Status.Message, want)
			}
		})
	}
}
