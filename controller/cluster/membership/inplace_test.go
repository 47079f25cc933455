package membership_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// template returns a template with an image, and the rest of the container.
func template(image, rest string) []byte {
	return fmt.Appendf(nil, `{"spec":{"containers":[{"name":"coder","image":%q%s}]}}`, image, rest)
}

// inPlace makes the pod one whose images can be changed. It serves as its condition says, for one hour.
func (p *PodWrapper) inPlace(serving corev1.ConditionStatus) *PodWrapper {
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1.MemberServing}}
	p.ResourceVersion = "7"
	if serving != "" {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: v1.MemberServing, Status: serving, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))})
	}
	return p
}

// changed sets the IDs of the containers before the last change of the images.
func (p *PodWrapper) changed(before string) *PodWrapper {
	p.Annotations[v1.MemberImagesAnnotation] = before
	return p
}

// sized sets the CPU request of the container, in the spec and in the report of the kubelet.
func (p *PodWrapper) sized(spec, reported string) *PodWrapper {
	p.Spec.Containers[0].Resources = resourcesOf(spec)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "coder", ContainerID: "containerd://1", Resources: new(resourcesOf(reported)), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

func resourcesOf(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// A pod gets new resources, and serves requests meanwhile, unless its container restarts.
func TestDecideResizes(t *testing.T) {
	const sizeOne, sizeTwo = `,"resources":{"requests":{"cpu":"1"}}`, `,"resources":{"requests":{"cpu":"2"}}`
	// of returns a Snapshot of one pod with an old revision. The old and the new template are given.
	of := func(before, after []byte, p *PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) {
			s.UpdateStrategy.Type, s.Template.Raw = v1.ClusterInPlaceIfPossible, after
		})
		s.Revisions = []appsv1.ControllerRevision{
			{ObjectMeta: metav1.ObjectMeta{Name: "coder-old"}, Revision: 1, Data: runtime.RawExtension{Raw: before}},
			{ObjectMeta: metav1.ObjectMeta{Name: membership.RevisionName(s.Cluster)}, Revision: 2, Data: runtime.RawExtension{Raw: after}},
		}
		s.Cluster.Status.CurrentRevision = "coder-old"
		return s.Recorded(p.inPlace(corev1.ConditionTrue))
	}
	grows := func(p *PodWrapper) *SnapshotWrapper { return of(template("a:1", sizeOne), template("a:1", sizeTwo), p) }
	pod := func(spec, reported string) *PodWrapper { return old("coder-0").Node("a").sized(spec, reported) }
	restarted := pod("1", "1")
	restarted.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	// reports adds a condition of the kubelet, which is True since that time.
	reports := func(p *PodWrapper, kind corev1.PodConditionType, reason string, since time.Duration) *PodWrapper {
		p.Generation = 3
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "not enough cpu", ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(now.Add(-since)),
		})
		return p
	}
	pending := func(reason string, since time.Duration) *PodWrapper {
		return reports(pod("2", "1"), corev1.PodResizePending, reason, since)
	}
	fails := func(since time.Duration) *PodWrapper {
		return reports(pod("2", "1"), corev1.PodResizeInProgress, corev1.PodReasonError, since)
	}
	outdated := pending(corev1.PodReasonInfeasible, time.Hour)
	outdated.Generation = 4
	closed := func(s *membership.Snapshot) {
		for i := range s.Pods[0].Status.Conditions {
			if c := &s.Pods[0].Status.Conditions[i]; c.Type == v1.MemberServing {
				c.Status = corev1.ConditionFalse
			}
		}
	}
	restarts := func(s *membership.Snapshot) {
		s.Pods[0].Spec.Containers[0].ResizePolicy = restarted.Spec.Containers[0].ResizePolicy
	}
	silent, crashed := pod("2", "1"), pod("2", "1")
	silent.Status.ContainerStatuses[0].Resources = nil
	crashed.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	two := template("a:1", sizeTwo)
	update := membership.RevisionName(&MakeCluster(1).With(func(s *v1.StatefulClusterSpec) { s.Template.Raw = two }).StatefulCluster)
	resize := func(to corev1.ResourceRequirements) steps {
		return steps{membership.Resize{Pod: ref("coder-0"), Version: "7", Resources: map[string]corev1.ResourceRequirements{"coder": to}}}
	}
	revised := steps{membership.PatchImages{Pod: ref("coder-0"), Version: "7", Revision: update, Images: map[string]string{}, Before: map[string]string{}}}
	deleted := steps{membership.Delete{Pod: ref("coder-0")}}
	leaves := steps{
		membership.Resize{Pod: ref("coder-0"), Version: "7", Resources: map[string]corev1.ResourceRequirements{"coder": resourcesOf("2")}, DryRun: true},
		membership.SetServing{Pod: ref("coder-0"), Version: "7"},
	}
	limited := func(cpu string) []byte { return template("a:1", `,"resources":{"limits":{"cpu":"`+cpu+`"}}`) }
	limits := resourcesOf("2")
	limits.Limits = limits.Requests
	const replace = "run: kubectl delete pod -n prod coder-0"
	for name, test := range map[string]decideTest{
		"first the spec":              {snapshot: grows(pod("1", "1")), wantSteps: resize(resourcesOf("2"))},
		"the kubelet is waited for":   {snapshot: grows(pod("2", "1")), wantMessage: "the kubelet of node a has not reported them yet"},
		"the kubelet says nothing":    {snapshot: grows(silent)},
		"a container that crashes":    {snapshot: grows(crashed), wantSteps: revised},
		"last the revision":           {snapshot: grows(pod("2", "2")), wantSteps: revised},
		"the node is too small":       {snapshot: grows(pending(corev1.PodReasonInfeasible, 0)), wantSteps: deleted},
		"the node was too small":      {snapshot: grows(outdated)},
		"the node is full":            {snapshot: grows(pending(corev1.PodReasonDeferred, time.Minute)), wantMessage: "the kubelet of node a reports Deferred: not enough cpu"},
		"the node stays full":         {snapshot: grows(pending(corev1.PodReasonDeferred, time.Hour)), wantSteps: deleted},
		"full by a clock ahead":       {snapshot: grows(pending(corev1.PodReasonDeferred, 0).Reported(-time.Hour, time.Minute)), wantMessage: "not enough cpu"},
		"always full, a clock ahead":  {snapshot: grows(pending(corev1.PodReasonDeferred, 0).Reported(-time.Hour, 5*time.Minute)), wantSteps: deleted},
		"full, and the pod is closed": {snapshot: grows(pending(corev1.PodReasonDeferred, 0)).With(restarts).With(closed), wantSteps: deleted},
		"the kubelet fails":           {snapshot: grows(fails(time.Minute)), wantMessage: "the kubelet of node a reports Error: not enough cpu. To replace the pod instead, " + replace},
		"the kubelet keeps failing":   {snapshot: grows(fails(time.Hour)), wantOutcome: membership.ResizeFailing, wantMessage: replace},
		"a container that restarts":   {snapshot: grows(restarted), wantSteps: leaves},
		"a new image, too":            {snapshot: of(template("a:1", sizeOne), template("a:2", sizeTwo), pod("1", "1")), wantSteps: leaves},
		"a resource is removed":       {snapshot: of(template("a:1", sizeOne), template("a:1", ""), pod("1", "1")), wantSteps: deleted},
		"a limit is also a request":   {snapshot: of(limited("1"), limited("2"), pod("1", "1")), wantSteps: resize(limits)},
		"a resource that is no text":  {snapshot: of(template("a:1", sizeOne), template("a:1", `,"resources":{"requests":{"cpu":[]}}`), pod("1", "1")), wantSteps: deleted},
	} {
		t.Run(name, func(t *testing.T) {
			test.wantOutcome = cmp.Or(test.wantOutcome, membership.RollingOut)
			test.run(t)
			plan := membership.Decide(test.snapshot.Snapshot, now)
			if waits := len(test.wantSteps) == 0; waits && plan.Requeue < time.Second {
				t.Errorf("decides again after %s, although the kubelet reports when the pod has the resources", plan.Requeue)
			}
			if stalled := meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionStalled); stalled != (test.wantOutcome == membership.ResizeFailing) {
				t.Errorf("outcome %s, and Stalled is %t", test.wantOutcome, stalled)
			}
		})
	}
}

// A pod keeps its name, and serves no request while its image changes.
func TestDecideUpdatesInPlace(t *testing.T) {
	// of returns a Snapshot of one pod. The old template had image a:1. The new template is given.
	of := func(after []byte, p *PodWrapper) *SnapshotWrapper {
		s := MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) {
			s.UpdateStrategy.Type, s.Template.Raw = v1.ClusterInPlaceIfPossible, after
		})
		name := membership.RevisionName(s.Cluster)
		s.Revisions = []appsv1.ControllerRevision{
			{ObjectMeta: metav1.ObjectMeta{Name: "coder-old"}, Revision: 1, Data: runtime.RawExtension{Raw: template("a:1", "")}},
			{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: 2, Data: runtime.RawExtension{Raw: after}},
		}
		s.Cluster.Status.CurrentRevision = "coder-old"
		if p.Labels[appsv1.StatefulSetRevisionLabel] != "coder-old" {
			p.Revision(name)
		}
		return s.Recorded(p)
	}
	serving := func(s *membership.Snapshot) { s.Serving = map[types.UID]bool{"coder-0": true} }
	closedNow := func(s *membership.Snapshot) {
		for i := range s.Pods[0].Status.Conditions {
			s.Pods[0].Status.Conditions[i].LastTransitionTime = metav1.NewTime(now)
		}
	}
	next := template("a:2", "")
	update := membership.RevisionName(&MakeCluster(1).With(func(s *v1.StatefulClusterSpec) { s.Template.Raw = next }).StatefulCluster)
	set := func(serving bool) steps {
		return steps{membership.SetServing{Pod: ref("coder-0"), Version: "7", Serving: serving}}
	}
	patched := steps{membership.PatchImages{
		Pod: ref("coder-0"), Version: "7", Revision: update, Images: map[string]string{"coder": "a:2"}, Before: map[string]string{"coder": "containerd://1"},
	}}
	runAll(t, map[string]decideTest{
		"first it leaves the Services": {snapshot: of(next, old("coder-0").inPlace(corev1.ConditionTrue)), wantOutcome: membership.RollingOut, wantSteps: set(false)},
		"endpoints are waited for":     {snapshot: of(next, unready("coder-0").Revision("coder-old").inPlace(corev1.ConditionFalse)).With(serving).With(closedNow), wantOutcome: membership.RollingOut},
		"not for ever":                 {snapshot: of(next, unready("coder-0").Revision("coder-old").inPlace(corev1.ConditionFalse)).With(serving), wantOutcome: membership.RollingOut, wantSteps: patched},
		"the image changes":            {snapshot: of(next, unready("coder-0").Revision("coder-old").inPlace(corev1.ConditionFalse)).With(closedNow), wantOutcome: membership.RollingOut, wantSteps: patched},
		"the new revision is recorded": {
			snapshot: of(next, unready("coder-0").inPlace(corev1.ConditionFalse).changed(`{"coder":"containerd://1"}`)).With(func(s *membership.Snapshot) {
				s.Cluster.Status.Members[0].Revision = "coder-old"
			}), wantOutcome: membership.PodsUnavailable, wantMembers: "0 Active data-coder-0", wantSteps: steps{membership.Record{}},
		},
		"the old container runs":        {snapshot: of(next, unready("coder-0").inPlace(corev1.ConditionFalse).changed(`{"coder":"containerd://1"}`)), wantOutcome: membership.PodsUnavailable},
		"the new container runs":        {snapshot: of(next, unready("coder-0").inPlace(corev1.ConditionFalse).changed(`{"coder":"containerd://0"}`)), wantOutcome: membership.PodsUnavailable, wantSteps: set(true)},
		"a new pod serves":              {snapshot: of(next, unready("coder-0").inPlace("")), wantOutcome: membership.PodsUnavailable, wantSteps: set(true)},
		"it serves":                     {snapshot: of(next, ready("coder-0").inPlace(corev1.ConditionTrue)), wantOutcome: membership.AllAvailable},
		"a pod without the gate":        {snapshot: of(next, old("coder-0")), wantOutcome: membership.RollingOut, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}}},
		"another change of the pod":     {snapshot: of(template("a:2", `,"args":["-v"]`), old("coder-0").inPlace(corev1.ConditionTrue)), wantOutcome: membership.RollingOut, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}}},
		"an old revision that was lost": {snapshot: of(next, old("coder-0").inPlace(corev1.ConditionTrue)).With(func(s *membership.Snapshot) { s.Revisions = s.Revisions[1:] }), wantOutcome: membership.RollingOut, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}}},
		"another strategy": {
			snapshot:    of(next, old("coder-0").inPlace(corev1.ConditionTrue)).Spec(func(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterRollingUpdate }),
			wantOutcome: membership.RollingOut, wantSteps: steps{membership.Delete{Pod: ref("coder-0")}},
		},
		"a deleted pod is replaced": {
			snapshot: of(next, old("coder-0").inPlace(corev1.ConditionTrue).Terminating().Node("a").Terminated()), wantOutcome: membership.Scaling, wantMembers: "1 Pending data-coder-0",
			wantSteps: steps{membership.Record{}, membership.Unprotect{Pod: ref("coder-0")}, membership.CreatePod{Name: "coder-1", Revision: update, Claims: []v1.MemberClaim{{Volume: "data", Name: "data-coder-0"}}}},
		},
	})
}
