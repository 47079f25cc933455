package handoff_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/testpod"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

const (
	namespace = "prod"
	node1     = "node-1"
	node2     = "node-2"
)

// now is the time of the decisions in the tests.
var now = time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)

func microTime(t time.Time) *metav1.MicroTime { return new(metav1.NewMicroTime(t)) }

func uidOf(name string) types.UID { return types.UID(name + "-uid") }

func ref(name string) handoff.PodRef { return handoff.PodRef{Name: name, UID: uidOf(name)} }

// version is the resourceVersion of all objects in the tests.
const version = "1"

// protectStandby returns the step that puts the finalizer on the standby.
func protectStandby(name string) handoff.Step {
	return handoff.Protect{Pod: ref(name), Version: version}
}

// choose is like protectStandby, for a standby that waits at a barrier.
func choose(name string) handoff.Step {
	return handoff.Protect{Pod: ref(name), Version: version, ChosenBy: "stfs-uid"}
}

var record handoff.Step = handoff.Record{}

// protect returns the step that puts the finalizer on a pod that may run, and the role if the pod is the holder.
func protect(name string, holder bool) handoff.Step {
	return handoff.Protect{Pod: ref(name), Holder: holder}
}

// unprotect returns the step that removes the finalizer of a pod with a proof of termination, and forgo that of a held pod.
func unprotect(name string) handoff.Step { return handoff.Unprotect{Pod: ref(name)} }

func forgo(name string) handoff.Step { return handoff.Unprotect{Pod: ref(name), Version: version} }

func openBarrier(name string, epoch int64) handoff.Step {
	return handoff.OpenBarrier{Pod: ref(name), ConfigMap: barrierOf(name), Epoch: epoch}
}

func markReady(name string) handoff.Step { return handoff.MarkReady{Pod: ref(name)} }

func nudge(name string, epoch int64) handoff.Step { return handoff.Nudge{Pod: ref(name), Epoch: epoch} }

func demote(name string) handoff.Step { return handoff.Demote{Pod: ref(name), Version: version} }

func retire(replicaSet string) handoff.Step { return handoff.Retire{ReplicaSet: replicaSet} }

// signalOf returns the step that signals the pod.
func signalOf(name string, epoch int64) handoff.Signal {
	return handoff.Signal{Pod: ref(name), Version: version, Signal: signal.Signal{UID: string(uidOf(name)), Epoch: epoch}}
}

// PodWrapper builds a pod.
type PodWrapper struct{ corev1.Pod }

// MakePod returns a new pod with one container, app, which singleton db selects. The pod is neither injected nor bound
// to a node.
func MakePod(name string) *PodWrapper {
	return &PodWrapper{corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         namespace,
			Name:              name,
			UID:               uidOf(name),
			ResourceVersion:   version,
			Labels:            map[string]string{"app": "db"},
			Annotations:       map[string]string{},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Command: []string{"/bin/db"}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}}
}

// warm returns an injected pod that waits only for the signal.
func warm(name string) *PodWrapper { return MakePod(name).Injected().Warm() }

// holder returns pod db-1, which holds with epoch 7.
func holder() *PodWrapper { return MakePod("db-1").Injected().Holding() }

func (p *PodWrapper) Obj() *corev1.Pod { return &p.Pod }

// With changes the pod.
func (p *PodWrapper) With(change func(*corev1.Pod)) *PodWrapper { change(&p.Pod); return p }

// Tolerating sets the only toleration of the pod.
func (p *PodWrapper) Tolerating(toleration corev1.Toleration) *PodWrapper {
	p.Spec.Tolerations = []corev1.Toleration{toleration}
	return p
}

func (p *PodWrapper) UID(uid types.UID) *PodWrapper { p.Pod.UID = uid; return p }

func (p *PodWrapper) Created(t time.Time) *PodWrapper {
	p.CreationTimestamp = metav1.NewTime(t)
	return p
}

func (p *PodWrapper) Label(key, value string) *PodWrapper { p.Labels[key] = value; return p }

func (p *PodWrapper) Annotation(key, value string) *PodWrapper { p.Annotations[key] = value; return p }

func (p *PodWrapper) Container(c corev1.Container) *PodWrapper {
	p.Spec.Containers = append(p.Spec.Containers, c)
	return p
}

func (p *PodWrapper) InitContainer(c corev1.Container) *PodWrapper {
	p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	return p
}

// Injected changes the pod like the policy of singleton db. It adds the sidecar, and puts the wrapper in front of each
// container without a barrier.
func (p *PodWrapper) Injected() *PodWrapper { return p.InjectedFor("db") }

func (p *PodWrapper) InjectedFor(singleton string) *PodWrapper {
	p.Annotations[v1.InjectedAnnotation] = namespace + "/" + singleton
	p.Labels[v1.SingletonLabel] = singleton
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1.ReadyCondition}}
	p.Spec.InitContainers = append([]corev1.Container{nativeSidecar(v1.SidecarName)}, p.Spec.InitContainers...)
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; len(c.Env) == 0 {
			c.Command = append([]string{signal.GatePath, "wrap", "--"}, c.Command...)
		}
	}
	return p
}

// Fenced changes an injected pod like the policy of singleton db with fencing by a Lease.
func (p *PodWrapper) Fenced() *PodWrapper {
	testpod.Fence(&p.Pod, signal.LeaseName("db"))
	return p
}

// NeverExpires gives a fenced pod a Lease that never expires.
func (p *PodWrapper) NeverExpires() *PodWrapper {
	sidecar := &p.Spec.InitContainers[0]
	sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: signal.LeaseDurationEnv, Value: strconv.Itoa(signal.NeverExpires)})
	return p
}

// Queues has the gates of a fenced pod accept clients before its main process runs.
func (p *PodWrapper) Queues() *PodWrapper {
	sidecar := &p.Spec.InitContainers[0]
	sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: signal.QueueEnv, Value: "300"})
	return p
}

// Barrier holds the container app by a barrier. Call Barrier before Injected.
func (p *PodWrapper) Barrier() *PodWrapper {
	p.Spec.Containers[0] = barrier("app", barrierOf(p.Name))
	return p
}

// CopiedFrom is like Barrier, with the ConfigMap of another pod.
func (p *PodWrapper) CopiedFrom(other string) *PodWrapper {
	p.Spec.Containers[0] = barrier("app", barrierOf(other))
	return p
}

// Readiness adds a readiness probe to app.
func (p *PodWrapper) Readiness(periodSeconds int32) *PodWrapper {
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: periodSeconds}
	return p
}

// Probed has the status sidecar run the readiness probe of app. Call Probed after Injected.
func (p *PodWrapper) Probed() *PodWrapper {
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: signal.ProbePathPrefix + "app", Port: intstr.FromInt32(signal.ProbePort), Scheme: corev1.URISchemeHTTP},
	}}
	return p
}

// OpenGate opens the readiness gate.
func (p *PodWrapper) OpenGate(reason string) *PodWrapper {
	return p.Condition(v1.ReadyCondition, corev1.ConditionTrue, reason, "")
}

// GateProbe adds a startup probe to app that asks the gate whether the main process has started.
func (p *PodWrapper) GateProbe() *PodWrapper {
	p.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{signal.GatePath, "started", "20s"}},
	}}
	return p
}

func nativeSidecar(name string) corev1.Container {
	return corev1.Container{Name: name, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
}

func barrierOf(pod string) string { return "statefulsingleton-" + pod }

// barrier returns a container that waits for the ConfigMap.
func barrier(name, configMap string) corev1.Container {
	return corev1.Container{Name: name, Env: []corev1.EnvVar{{
		Name: signal.EpochEnv,
		ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Key: signal.EpochKey,
		}},
	}}}
}

func (p *PodWrapper) Claim(name string) *PodWrapper {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}})
	return p
}

// OwnedBy makes the object of that kind the controller of the pod.
func (p *PodWrapper) OwnedBy(kind, name string) *PodWrapper {
	p.OwnerReferences = controlledBy(kind, name)
	return p
}

// Revision puts the pod into ReplicaSet db-v<revision>.
func (p *PodWrapper) Revision(revision int) *PodWrapper {
	return p.OwnedBy("ReplicaSet", fmt.Sprintf("db-v%d", revision))
}

func controlledBy(kind, name string) []metav1.OwnerReference {
	version := appsv1.SchemeGroupVersion
	if kind == "Job" {
		version = batchv1.SchemeGroupVersion
	}
	return []metav1.OwnerReference{{APIVersion: version.String(), Kind: kind, Name: name, UID: uidOf(name), Controller: new(true)}}
}

// On binds the pod to a node.
func (p *PodWrapper) On(node string) *PodWrapper {
	p.Spec.NodeName = node
	return p.Condition(corev1.PodScheduled, corev1.ConditionTrue, "", "")
}

func (p *PodWrapper) Condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) *PodWrapper {
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute)),
	})
	return p
}

func (p *PodWrapper) Phase(phase corev1.PodPhase) *PodWrapper { p.Status.Phase = phase; return p }

// State sets the container state that the kubelet last reported.
func (p *PodWrapper) State(container string, state corev1.ContainerState) *PodWrapper {
	return p.Report(corev1.ContainerStatus{
		Name: container, State: state, Started: new(state.Running != nil), Ready: state.Running != nil,
	})
}

func (p *PodWrapper) Report(status corev1.ContainerStatus) *PodWrapper {
	statuses := &p.Status.ContainerStatuses
	if slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == status.Name }) {
		statuses = &p.Status.InitContainerStatuses
	}
	*statuses = slices.DeleteFunc(*statuses, func(s corev1.ContainerStatus) bool { return s.Name == status.Name })
	*statuses = append(*statuses, status)
	return p
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func terminated(exitCode int32) corev1.ContainerState {
	reason := "Completed"
	if exitCode != 0 {
		reason = "Error"
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: exitCode}}
}

// unknown returns the reported state of a container that the kubelet could not locate.
func unknown() corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}}
}

// missing returns the reported state of a container whose ConfigMap does not exist.
func missing(configMap string) corev1.ContainerState {
	return waiting("CreateContainerConfigError", fmt.Sprintf("configmap %q not found", configMap))
}

// Warm sets the status of a pod on node-1 that waits only for the signal. Init containers are complete, wrappers run,
// and barriers wait for their ConfigMap.
func (p *PodWrapper) Warm() *PodWrapper {
	p.On(node1).Condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, "", "").WrittenByKubelet()
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil {
			p.State(c.Name, running())
		} else {
			p.State(c.Name, terminated(0))
		}
	}
	for _, c := range p.Spec.Containers {
		if len(c.Env) > 0 && c.Env[0].ValueFrom != nil {
			p.State(c.Name, missing(c.Env[0].ValueFrom.ConfigMapKeyRef.Name))
		} else {
			p.Report(corev1.ContainerStatus{Name: c.Name, State: running(), Started: new(c.StartupProbe == nil)})
		}
	}
	return p
}

// Signalled changes the pod like the step Signal.
func (p *PodWrapper) Signalled(epoch int64) *PodWrapper {
	return p.SignalledAt(epoch, now.Add(-time.Minute))
}

func (p *PodWrapper) SignalledAt(epoch int64, at time.Time) *PodWrapper {
	text := signal.Signal{UID: string(p.Pod.UID), Epoch: epoch, Time: at}.String()
	return p.Annotation(signal.Annotation, text).Label(v1.RoleLabel, v1.RoleActive).Protected()
}

// ChosenBy changes the pod like the step Protect for a pod at a barrier.
func (p *PodWrapper) ChosenBy(singleton types.UID) *PodWrapper {
	return p.Annotation(v1.ChosenByAnnotation, string(singleton)).Protected()
}

// Protected puts the finalizer on the pod.
func (p *PodWrapper) Protected() *PodWrapper {
	p.Finalizers = append(p.Finalizers, v1.HandoffFinalizer)
	return p
}

// Running sets the status of a pod whose main processes have all started.
func (p *PodWrapper) Running() *PodWrapper {
	p.Warm().Phase(corev1.PodRunning)
	for _, c := range p.Spec.Containers {
		p.State(c.Name, running())
	}
	return p
}

// Ready is like Running, with the readiness gate and the Ready condition True.
func (p *PodWrapper) Ready() *PodWrapper {
	return p.Running().Condition(v1.ReadyCondition, corev1.ConditionTrue, "", "").Condition(corev1.PodReady, corev1.ConditionTrue, "", "")
}

// Holding makes the pod a Ready holder that was signalled with epoch 7.
func (p *PodWrapper) Holding() *PodWrapper { return p.Signalled(7).Ready() }

// Deleting makes the pod terminating, with ten seconds left.
func (p *PodWrapper) Deleting() *PodWrapper {
	p.DeletionTimestamp = new(metav1.NewTime(now.Add(10 * time.Second)))
	return p
}

// Ended sets the kubelet's last report of a terminated pod.
func (p *PodWrapper) Ended() *PodWrapper {
	p.Phase(corev1.PodFailed).Condition(corev1.PodReady, corev1.ConditionFalse, "PodFailed", "").
		Condition(corev1.ContainersReady, corev1.ConditionFalse, "PodFailed", "").WrittenByKubelet()
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		p.State(c.Name, terminated(143))
	}
	return p
}

// FailedByGC sets the status that the pod garbage collector writes. reason is the reason of condition DisruptionTarget.
func (p *PodWrapper) FailedByGC(reason string) *PodWrapper {
	return p.Phase(corev1.PodFailed).Condition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, "").
		WrittenBy(map[string]string{"kubelet": `"f:containerStatuses":{}`, "kube-controller-manager": `"f:phase":{}`})
}

// WrittenByKubelet makes the kubelet the writer of the phase and the container states. The kubelet writes them from its
// first report on.
func (p *PodWrapper) WrittenByKubelet() *PodWrapper {
	return p.WrittenBy(map[string]string{"kubelet": `"f:phase":{},"f:containerStatuses":{},"f:initContainerStatuses":{}`})
}

// WrittenBy sets the last writer of each field of the status.
func (p *PodWrapper) WrittenBy(fields map[string]string) *PodWrapper {
	p.ManagedFields = nil
	for _, writer := range slices.Sorted(maps.Keys(fields)) {
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: writer, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + fields[writer] + `}}`),
		})
	}
	return p
}

// SnapshotWrapper builds a Snapshot.
type SnapshotWrapper struct{ handoff.Snapshot }

// MakeSnapshot returns a snapshot of singleton db with the pods and no record. It has a Deployment, a ReplicaSet for
// each revision of the pods, and Ready nodes.
func MakeSnapshot(pods ...*PodWrapper) *SnapshotWrapper {
	s := &SnapshotWrapper{handoff.Snapshot{
		Singleton: &v1.StatefulSingleton{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db", UID: "stfs-uid", ResourceVersion: version, Generation: 3, Annotations: map[string]string{}},
			Spec: v1.StatefulSingletonSpec{
				Selector:          v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				MaxTransitionTime: 300,
			},
		},
		ReplicaSets:  map[types.UID]*appsv1.ReplicaSet{},
		Deployments:  map[types.UID]*appsv1.Deployment{},
		StatefulSets: map[types.UID]*appsv1.StatefulSet{},
		Nodes:        map[string]*corev1.Node{},
		CachedNodes:  map[string]*corev1.Node{},
		Claims:       map[string]*corev1.PersistentVolumeClaim{},
	}}
	for _, pod := range pods {
		s.Pods = append(s.Pods, *pod.Obj())
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" {
			s.ReplicaSet(owner.Name, 1).Deployment(1)
		}
	}
	return s.Node(node1, corev1.ConditionTrue).Node(node2, corev1.ConditionTrue)
}

// Holder records the pod as the holder that was released with epoch 7.
func (s *SnapshotWrapper) Holder(pod string) *SnapshotWrapper {
	ago := func(d time.Duration) *metav1.MicroTime { return microTime(now.Add(-d)) }
	s.Singleton.Status = v1.StatefulSingletonStatus{
		ActivePod: pod, ActivePodUID: uidOf(pod), Epoch: 7, Phase: v1.PhaseRunning, TransitionTimestamp: ago(time.Hour),
		LastTransition: &v1.Transition{
			From: "db-0", To: pod, Cause: v1.CauseRollout, Proof: v1.ProofKubeletReported,
			Started: ago(time.Hour), Terminated: ago(59 * time.Minute), Signalled: ago(59 * time.Minute), Ready: ago(58 * time.Minute),
			GapMilliseconds: new(int64(250)),
		},
	}
	return s
}

// Chosen records the pod as the next holder, with epoch 7. The record does not say that the pod was signalled.
func (s *SnapshotWrapper) Chosen(pod string) *SnapshotWrapper {
	s.Holder(pod)
	t := s.Singleton.Status.LastTransition
	t.Signalled, t.Ready, t.GapMilliseconds = nil, nil, nil
	return s
}

// Ended records that db-1, the holder of epoch 7, has terminated and that no pod has taken over.
func (s *SnapshotWrapper) Ended(cause v1.Cause) *SnapshotWrapper {
	s.Singleton.Status = v1.StatefulSingletonStatus{
		Epoch: 7,
		LastTransition: &v1.Transition{
			From: "db-1", Cause: cause, Proof: v1.ProofKubeletReported,
			Started: microTime(now.Add(-9 * time.Second)), Terminated: microTime(now.Add(-5 * time.Second)),
		},
	}
	return s.Since(v1.PhaseTransitioning, 9*time.Second)
}

// Since sets the reported phase and its age.
func (s *SnapshotWrapper) Since(phase v1.Phase, d time.Duration) *SnapshotWrapper {
	s.Singleton.Status.Phase, s.Singleton.Status.TransitionTimestamp = phase, microTime(now.Add(-d))
	return s
}

func (s *SnapshotWrapper) Attest(uid string) *SnapshotWrapper {
	s.Singleton.Annotations[v1.AttestAnnotation] = uid
	return s
}

// Containers sets the names of the containers to hold.
func (s *SnapshotWrapper) Containers(names ...string) *SnapshotWrapper {
	s.Singleton.Spec.Containers = names
	return s
}

// HoldInit also holds init containers.
func (s *SnapshotWrapper) HoldInit() *SnapshotWrapper {
	s.Singleton.Spec.HoldInitContainers = true
	return s
}

// Other adds another singleton of the namespace, which selects pods with app=<app>.
func (s *SnapshotWrapper) Other(name, app string) *SnapshotWrapper {
	return s.OtherSelecting(name, "app", app)
}

// OtherSelecting adds another singleton of the namespace, which selects pods by the label.
func (s *SnapshotWrapper) OtherSelecting(name, label, value string) *SnapshotWrapper {
	s.Others = append(s.Others, v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{label: value}}},
	})
	return s
}

// ReplicaSet adds a ReplicaSet of the Deployment db. Its name ends in the revision.
func (s *SnapshotWrapper) ReplicaSet(name string, replicas int32) *SnapshotWrapper {
	s.ReplicaSets[uidOf(name)] = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uidOf(name), OwnerReferences: controlledBy("Deployment", "db"),
			Annotations: map[string]string{"deployment.kubernetes.io/revision": strings.TrimPrefix(name, "db-v")},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas},
	}
	return s
}

// OtherDeployment adds a second Deployment, which owns the ReplicaSet.
func (s *SnapshotWrapper) OtherDeployment(name, replicaSet, revision string) *SnapshotWrapper {
	s.ReplicaSet(replicaSet, 1)
	rs := s.ReplicaSets[uidOf(replicaSet)]
	rs.OwnerReferences, rs.Annotations["deployment.kubernetes.io/revision"] = controlledBy("Deployment", name), revision
	s.Deployments[uidOf(name)] = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uidOf(name), ResourceVersion: version},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1))},
	}
	return s
}

// BareReplicaSet adds a ReplicaSet that no Deployment owns, with the owners or without.
func (s *SnapshotWrapper) BareReplicaSet(name string, replicas int32, owners ...metav1.OwnerReference) *SnapshotWrapper {
	s.ReplicaSet(name, replicas)
	s.ReplicaSets[uidOf(name)].OwnerReferences = owners
	return s
}

// Deployment sets the replicas of the Deployment that owns the ReplicaSets.
func (s *SnapshotWrapper) Deployment(replicas int32) *SnapshotWrapper {
	s.Deployments[uidOf("db")] = &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db", UID: uidOf("db"), ResourceVersion: version},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
	}
	return s
}

// Strategy sets the rollout strategy of the Deployment.
func (s *SnapshotWrapper) Strategy(kind appsv1.DeploymentStrategyType, maxSurge, maxUnavailable string) *SnapshotWrapper {
	surge, unavailable := intstr.Parse(maxSurge), intstr.Parse(maxUnavailable)
	s.Deployments[uidOf("db")].Spec.Strategy = appsv1.DeploymentStrategy{
		Type: kind, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
	}
	return s
}

// Rolled marks the Deployment as rolled to replace the pod.
func (s *SnapshotWrapper) Rolled(replaces string) *SnapshotWrapper {
	s.Deployments[uidOf("db")].Spec.Template.Annotations = map[string]string{v1.ReplacesAnnotation: string(uidOf(replaces))}
	return s
}

// RevisionOfDeployment sets the current revision of the Deployment.
func (s *SnapshotWrapper) RevisionOfDeployment(revision string) *SnapshotWrapper {
	s.Deployments[uidOf("db")].Annotations = map[string]string{"deployment.kubernetes.io/revision": revision}
	return s
}

func (s *SnapshotWrapper) Paused() *SnapshotWrapper {
	s.Deployments[uidOf("db")].Spec.Paused = true
	return s
}

// Cordon makes the node unschedulable.
func (s *SnapshotWrapper) Cordon(node string) *SnapshotWrapper {
	s.CachedNodes[node].Spec.Unschedulable = true
	return s.Taint(node, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

func (s *SnapshotWrapper) Taint(node string, taint corev1.Taint) *SnapshotWrapper {
	s.CachedNodes[node].Spec.Taints = append(s.CachedNodes[node].Spec.Taints, taint)
	return s
}

// DrainedFor sets condition Draining with the given age.
func (s *SnapshotWrapper) DrainedFor(d time.Duration) *SnapshotWrapper {
	s.Singleton.Status.Conditions = append(s.Singleton.Status.Conditions, metav1.Condition{
		Type: v1.ConditionDraining, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-d)),
	})
	return s
}

func (s *SnapshotWrapper) DrainPolicy(policy v1.DrainPolicy) *SnapshotWrapper {
	s.Singleton.Spec.Drain = policy
	return s
}

// Manual sets handoff Manual.
func (s *SnapshotWrapper) Manual() *SnapshotWrapper {
	s.Singleton.Spec.Handoff = v1.HandoffManual
	return s
}

// Handover sets the annotation that requests a handoff.
func (s *SnapshotWrapper) Handover(value string) *SnapshotWrapper {
	s.Singleton.Annotations[v1.HandoverAnnotation] = value
	return s
}

// HandedOver records the last handled value of the annotation.
func (s *SnapshotWrapper) HandedOver(value string) *SnapshotWrapper {
	s.Singleton.Status.Handover = &v1.Handover{Value: value}
	return s
}

// Budgeted adds the PodDisruptionBudget of the singleton.
func (s *SnapshotWrapper) Budgeted() *SnapshotWrapper {
	return s.Budget("statefulsingleton-db", *metav1.NewControllerRef(s.Singleton, v1.GroupVersion.WithKind("StatefulSingleton")))
}

// Budget adds a PodDisruptionBudget for the pods with app=db.
func (s *SnapshotWrapper) Budget(name string, owners ...metav1.OwnerReference) *SnapshotWrapper {
	s.Budgets = append(s.Budgets, policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: owners},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	})
	return s
}

func (s *SnapshotWrapper) StatefulSet(name string, replicas int32, updateRevision string) *SnapshotWrapper {
	s.StatefulSets[uidOf(name)] = &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uidOf(name)},
		Spec:       appsv1.StatefulSetSpec{Replicas: &replicas},
		Status:     appsv1.StatefulSetStatus{UpdateRevision: updateRevision},
	}
	return s
}

func (s *SnapshotWrapper) Node(name string, ready corev1.ConditionStatus, taints ...string) *SnapshotWrapper {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	}
	s.Nodes[name], s.CachedNodes[name] = node, node
	return s
}

// NoNode deletes the node.
func (s *SnapshotWrapper) NoNode(name string) *SnapshotWrapper {
	delete(s.Nodes, name)
	delete(s.CachedNodes, name)
	return s
}

func (s *SnapshotWrapper) Claim(name string, modes ...corev1.PersistentVolumeAccessMode) *SnapshotWrapper {
	s.Claims[name] = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: modes},
	}
	return s
}
