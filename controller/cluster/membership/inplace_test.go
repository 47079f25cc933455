package membership_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
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

// updating returns a Snapshot of one pod whose template changes.
func updating(before, after []byte, p *PodWrapper) *SnapshotWrapper {
	s := MakeSnapshot(1).Spec(func(s *v1.StatefulClusterSpec) {
		s.UpdateStrategy.Type, s.Template.Raw = v1.ClusterInPlaceIfPossible, after
	})
	s.Revisions = nil
	s.Revision("coder-old", 1).Revision(membership.RevisionName(s.Cluster), 2)
	s.Revisions[0].Data.Raw, s.Revisions[1].Data.Raw = before, after
	s.Cluster.Status.CurrentRevision = "coder-old"
	if p.Labels[appsv1.StatefulSetRevisionLabel] == latest {
		p.Revision(membership.RevisionName(s.Cluster))
	}
	return s.Recorded(p)
}

// revisionOf returns the name of the revision of a template.
func revisionOf(template []byte) string {
	cluster := makeCluster(1)
	cluster.Spec.Template.Raw = template
	return membership.RevisionName(cluster)
}

// A pod gets new resources, and serves requests meanwhile, unless its container restarts.
func TestDecideResizes(t *testing.T) {
	one, two := template("a:1", `,"resources":{"requests":{"cpu":"1"}}`), template("a:1", `,"resources":{"requests":{"cpu":"2"}}`)
	of := func(before, after []byte, p *PodWrapper) *SnapshotWrapper {
		return updating(before, after, p.inPlace(corev1.ConditionTrue))
	}
	grows := func(p *PodWrapper) *SnapshotWrapper { return of(one, two, p) }
	pod := func(spec, reported string) *PodWrapper { return old("coder-0").Node("a").sized(spec, reported) }
	// reports adds a condition of the kubelet, which is True since that time.
	reports := func(kind corev1.PodConditionType, reason string, since time.Duration) *PodWrapper {
		p := pod("2", "1")
		p.Generation = 3
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "not enough cpu", ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(now.Add(-since)),
		})
		return p
	}
	full := func(since time.Duration) *PodWrapper {
		return reports(corev1.PodResizePending, corev1.PodReasonDeferred, since)
	}
	fails := func(since time.Duration) *PodWrapper {
		return reports(corev1.PodResizeInProgress, corev1.PodReasonError, since)
	}
	tooSmall, outdated := reports(corev1.PodResizePending, corev1.PodReasonInfeasible, 0), reports(corev1.PodResizePending, corev1.PodReasonInfeasible, time.Hour)
	outdated.Generation = 4
	closed := func(s *membership.Snapshot) {
		proof.Condition(&s.Pods[0], v1.MemberServing).Status = corev1.ConditionFalse
	}
	restarts := func(s *membership.Snapshot) {
		s.Pods[0].Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer}}
	}
	silent, crashed := pod("2", "1"), pod("2", "1")
	silent.Status.ContainerStatuses[0].Resources = nil
	crashed.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	limited := func(cpu string) []byte { return template("a:1", `,"resources":{"limits":{"cpu":"`+cpu+`"}}`) }
	const resize, deleted = `Resize coder-0 7 {"coder":{"requests":{"cpu":"2"}}} false`, "Delete coder-0"
	const leaves = `Resize coder-0 7 {"coder":{"requests":{"cpu":"2"}}} true; SetServing coder-0 7 false`
	const replace = "run: kubectl delete pod -n prod coder-0"
	revised := "PatchImages coder-0 7 " + revisionOf(two) + " map[] map[]"
	for name, test := range map[string]struct {
		snapshot       *SnapshotWrapper
		steps, message string
	}{
		"first the spec":              {grows(pod("1", "1")), resize, ""},
		"the kubelet is waited for":   {grows(pod("2", "1")), "", "the kubelet of node a has not reported them yet"},
		"the kubelet says nothing":    {grows(silent), "", ""},
		"a container that crashes":    {grows(crashed), revised, ""},
		"last the revision":           {grows(pod("2", "2")), revised, ""},
		"the node is too small":       {grows(tooSmall), deleted, ""},
		"the node was too small":      {grows(outdated), "", ""},
		"the node is full":            {grows(full(time.Minute)), "", "the kubelet of node a reports Deferred: not enough cpu"},
		"the node stays full":         {grows(full(time.Hour)), deleted, ""},
		"full by a clock ahead":       {grows(full(0).Reported(-time.Hour, time.Minute)), "", "not enough cpu"},
		"always full, a clock ahead":  {grows(full(0).Reported(-time.Hour, 5*time.Minute)), deleted, ""},
		"full, and the pod is closed": {grows(full(0)).With(restarts).With(closed), deleted, ""},
		"the kubelet fails":           {grows(fails(time.Minute)), "", "the kubelet of node a reports Error: not enough cpu. To replace the pod instead, " + replace},
		"the kubelet keeps failing":   {grows(fails(time.Hour)), "", replace},
		"a container that restarts":   {grows(pod("1", "1")).With(restarts), leaves, ""},
		"a new image, too":            {of(one, template("a:2", `,"resources":{"requests":{"cpu":"2"}}`), pod("1", "1")), leaves, ""},
		"a resource is removed":       {of(one, template("a:1", ""), pod("1", "1")), deleted, ""},
		"a limit is also a request": {
			of(limited("1"), limited("2"), pod("1", "1")), `Resize coder-0 7 {"coder":{"limits":{"cpu":"2"},"requests":{"cpu":"2"}}} false`, "",
		},
		"a resource that is no text": {of(one, template("a:1", `,"resources":{"requests":{"cpu":[]}}`), pod("1", "1")), deleted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			isStuck := name == "the kubelet keeps failing"
			want := decideTest{test.snapshot, membership.RollingOut, test.steps, "", test.message}
			if isStuck {
				want.outcome = membership.ResizeFailing
			}
			plan := want.run(t)
			if test.steps == "" && plan.Requeue < time.Second {
				t.Errorf("decides again after %s, although the kubelet reports when the pod has the resources", plan.Requeue)
			}
			if stalled := meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionStalled); stalled != isStuck {
				t.Errorf("outcome %s, and Stalled is %t", plan.Outcome, stalled)
			}
		})
	}
}

// A pod keeps its name, and serves no request while its image changes.
func TestDecideUpdatesInPlace(t *testing.T) {
	first, next := template("a:1", ""), template("a:2", "")
	of := func(p *PodWrapper) *SnapshotWrapper { return updating(first, next, p) }
	// outdated returns a Snapshot of a pod with the old image that serves, and closed of one that must not serve for that time.
	outdated := func() *SnapshotWrapper { return of(old("coder-0").inPlace(corev1.ConditionTrue)) }
	closed := func(since time.Duration) *SnapshotWrapper {
		p := unready("coder-0").Revision("coder-old").inPlace(corev1.ConditionFalse)
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-since))
		return of(p)
	}
	// updated returns a Snapshot of a pod with the new image. Before the change, its container had the ID.
	updated := func(before string) *SnapshotWrapper {
		return of(unready("coder-0").inPlace(corev1.ConditionFalse).changed(`{"coder":"` + before + `"}`))
	}
	serving := func(s *membership.Snapshot) { s.Serving = sets.New[types.UID]("coder-0") }
	patched := "PatchImages coder-0 7 " + revisionOf(next) + " map[coder:a:2] map[coder:containerd://1]"
	runAll(t, map[string]decideTest{
		"first it leaves the Services": {outdated(), "RollingOut", "SetServing coder-0 7 false", "", ""},
		"endpoints are waited for":     {closed(0).With(serving), "RollingOut", "", "", ""},
		"not for ever":                 {closed(time.Hour).With(serving), "RollingOut", patched, "", ""},
		"the image changes":            {closed(0), "RollingOut", patched, "", ""},
		"the new revision is recorded": {
			updated("containerd://1").With(func(s *membership.Snapshot) { s.Cluster.Status.Members[0].Revision = "coder-old" }),
			"PodsUnavailable", "Record", "", "",
		},
		"the old container runs": {updated("containerd://1"), "PodsUnavailable", "", "", ""},
		"the new container runs": {updated("containerd://0"), "PodsUnavailable", "SetServing coder-0 7 true", "", ""},
		"a new pod serves":       {of(unready("coder-0").inPlace("")), "PodsUnavailable", "SetServing coder-0 7 true", "", ""},
		"it serves":              {of(ready("coder-0").inPlace(corev1.ConditionTrue)), "AllAvailable", "", "", ""},
		"a pod without the gate": {of(old("coder-0")), "RollingOut", "Delete coder-0", "", ""},
		"another change of the pod": {
			updating(first, template("a:2", `,"args":["-v"]`), old("coder-0").inPlace(corev1.ConditionTrue)), "RollingOut", "Delete coder-0", "", "",
		},
		"an old revision that was lost": {
			outdated().With(func(s *membership.Snapshot) { s.Revisions = s.Revisions[1:] }), "RollingOut", "Delete coder-0", "", "",
		},
		"another strategy": {
			outdated().Spec(func(s *v1.StatefulClusterSpec) { s.UpdateStrategy.Type = v1.ClusterRollingUpdate }), "RollingOut", "Delete coder-0", "", "",
		},
		"a deleted pod is replaced": {
			of(ended("coder-0").Revision("coder-old").inPlace(corev1.ConditionTrue)), "Scaling",
			"Record; Unprotect coder-0; CreatePod coder-1 " + revisionOf(next) + " [{data data-coder-0}]", "1 Pending data-coder-0, next 2", "",
		},
	})
}
