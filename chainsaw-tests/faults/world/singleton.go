package world

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	name = "db"
	// data is below a directory that all nodes of the local cluster share.
	data = "/tmp/statefulsingleton-faults"
)

// Options are how a singleton and its application shall be. The zero value is a
// Deployment of one with the wrapper, whose application stops in a second.
type Options struct {
	// Barrier has the container held by the barrier, not by the wrapper.
	Barrier bool
	// Drain is what becomes of the holder when its node is cordoned; by default another
	// pod takes over.
	Drain v1.DrainPolicy
	// StatefulSet instead of a Deployment.
	StatefulSet bool
	// Recreate is the Deployment's strategy, instead of a rolling update.
	Recreate bool
	// Plain leaves the application to Kubernetes alone: no singleton picks its pods.
	Plain bool
	// Replicas is how many pods there are, on different nodes where those take pods. 0: one.
	Replicas int32
	// Image is the application's. Empty: $APP_IMAGE.
	Image string
	// InitTime is what an init container takes. 0: there is none.
	InitTime time.Duration
	// Node is where the pods rather go, where they can.
	Node string
	// Env is the application's environment besides what every one has.
	Env map[string]string
	// Memory is the container's limit. Empty: none.
	Memory string
	// MaxTransitionTime is the singleton's, in seconds. 0: its default.
	MaxTransitionTime int32
	// Pod changes what the pods are made from. Nil: nothing does.
	Pod func(*corev1.PodSpec)
}

// Singleton is one StatefulSingleton with its application, in a namespace of its own.
type Singleton struct {
	*World
	Namespace string
	// Dir holds the journal.
	Dir     string
	options Options
}

// NewSingleton makes a singleton in a new namespace whose name begins so, and waits
// until its first holder is Ready. It waits for no pod of an application that is plain.
func (w *World) NewSingleton(ctx context.Context, prefix string, o Options) (*Singleton, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	if err := w.Create(ctx, ns); err != nil {
		return nil, fmt.Errorf("make a namespace: %w", err)
	}
	s := &Singleton{World: w, Namespace: ns.Name, Dir: filepath.Join(data, ns.Name), options: o}
	if o.Plain {
		return s, w.Create(ctx, s.workload())
	}
	object := &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: labels}, MaxTransitionTime: o.MaxTransitionTime, Drain: o.Drain},
	}
	if err := w.Create(ctx, object); err != nil {
		return s, err
	}
	err := s.Await(ctx, "the policy is installed", func(got *v1.StatefulSingleton) bool {
		return meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionPolicyInstalled)
	})
	if err != nil {
		return s, err
	}
	if err := w.Create(ctx, s.workload()); err != nil {
		return s, err
	}
	return s, s.AwaitHolder(ctx, 1)
}

// Labels are those of the application's pods.
func Labels() map[string]string { return maps.Clone(labels) }

var labels = map[string]string{"app": name}

func (s *Singleton) workload() client.Object {
	object := metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := s.template()
	replicas := new(max(s.options.Replicas, 1))
	if s.options.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: object, Spec: appsv1.StatefulSetSpec{
			Replicas: replicas, Selector: selector, Template: template, ServiceName: name,
		}}
	}
	strategy := appsv1.DeploymentStrategy{}
	if s.options.Recreate {
		strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	return &appsv1.Deployment{ObjectMeta: object, Spec: appsv1.DeploymentSpec{
		Replicas: replicas, Selector: selector, Template: template, Strategy: strategy,
	}}
}

func (s *Singleton) template() corev1.PodTemplateSpec {
	fromField := func(variable, field string) corev1.EnvVar {
		return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
	}
	env := []corev1.EnvVar{fromField("POD_NAME", "metadata.name"), fromField("POD_UID", "metadata.uid")}
	values := map[string]string{"DATA": "/data", "STOP_SECONDS": "1", "ALIVE_SECONDS": "0.2"}
	maps.Copy(values, s.options.Env)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		env = append(env, corev1.EnvVar{Name: key, Value: values[key]})
	}
	container := corev1.Container{
		Name: "app", Image: cmp.Or(s.options.Image, os.Getenv("APP_IMAGE"), "ghcr.io/statefulsingleton/app:0.1.0"), Env: env,
		// The directory of a hostPath belongs to root.
		SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)},
		}},
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
	}
	if !s.options.Barrier {
		container.Command = []string{"/app"}
	}
	if s.options.Memory != "" {
		container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(s.options.Memory)}
	}
	spec := corev1.PodSpec{
		Containers: []corev1.Container{container},
		// A process that takes this long has not obeyed SIGTERM.
		TerminationGracePeriodSeconds: new(int64(60)),
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: s.Dir, Type: new(corev1.HostPathDirectoryOrCreate)},
		}}},
	}
	if s.options.InitTime > 0 {
		spec.InitContainers = []corev1.Container{{
			Name: "init", Image: container.Image, Command: []string{"/app", "wait", s.options.InitTime.String()},
		}}
	}
	if s.options.Replicas > 1 {
		honor := corev1.NodeInclusionPolicyHonor
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &honor,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
		}}
	}
	if s.options.Node != "" {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{s.options.Node},
				}}},
			}},
		}}
	}
	if s.options.Pod != nil {
		s.options.Pod(&spec)
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
}

// Remove deletes the namespace with all that is in it, and the journal. What is
// being stopped may take its time.
func (s *Singleton) Remove(ctx context.Context) error {
	err := s.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}})
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// Read reads the StatefulSingleton.
func (s *Singleton) Read(ctx context.Context) (*v1.StatefulSingleton, error) {
	got := &v1.StatefulSingleton{}
	return got, s.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, got)
}

// Await waits until the StatefulSingleton is so.
func (s *Singleton) Await(ctx context.Context, what string, so func(*v1.StatefulSingleton) bool) error {
	return Await(ctx, s.Namespace+": "+what, func(ctx context.Context) error {
		got, err := s.Read(ctx)
		if err == nil && !so(got) {
			err = fmt.Errorf("epoch %d, phase %q, holder %q: %s", got.Status.Epoch, got.Status.Phase, got.Status.ActivePod, got.Status.Message)
		}
		return err
	})
}

// AwaitHolder waits until a holder of that epoch at least is Ready, and its
// application has written its start down.
func (s *Singleton) AwaitHolder(ctx context.Context, epoch int64) error {
	err := s.Await(ctx, fmt.Sprintf("a Ready holder of epoch %d", epoch), func(got *v1.StatefulSingleton) bool {
		return got.Status.Epoch >= epoch && got.Status.Phase == v1.PhaseRunning &&
			meta.IsStatusConditionTrue(got.Status.Conditions, v1.ConditionReady)
	})
	if err != nil {
		return err
	}
	// What the status says may be older than what was done last.
	return Await(ctx, s.Namespace+": the holder's pod", func(ctx context.Context) error {
		pod, err := s.Holder(ctx)
		if err == nil && (pod.DeletionTimestamp != nil || !IsTrue(pod, corev1.PodReady)) {
			err = fmt.Errorf("pod %s is not Ready", pod.Name)
		}
		return err
	})
}

// IsTrue tells whether the pod has the condition.
func IsTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// Holder is the pod that the record names.
func (s *Singleton) Holder(ctx context.Context) (*corev1.Pod, error) {
	got, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	if got.Status.ActivePod == "" {
		return nil, fmt.Errorf("%s has no holder: %s", s.Namespace, got.Status.Message)
	}
	pod := &corev1.Pod{}
	if err := s.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: got.Status.ActivePod}, pod); err != nil {
		return nil, err
	}
	if pod.UID != got.Status.ActivePodUID {
		return nil, fmt.Errorf("%s: pod %s is another one than the holder", s.Namespace, pod.Name)
	}
	return pod, nil
}

// Pods are the singleton's, by its selector.
func (s *Singleton) Pods(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := s.List(ctx, &pods, client.InNamespace(s.Namespace), client.MatchingLabels(labels))
	return pods.Items, err
}

// AwaitStandby waits until there is a standby that is warm, and returns it.
func (s *Singleton) AwaitStandby(ctx context.Context) (standby *corev1.Pod, err error) {
	err = Await(ctx, s.Namespace+": a warm standby", func(ctx context.Context) error {
		pods, err := s.Pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if pods[i].DeletionTimestamp == nil && pods[i].Annotations[signal.Annotation] == "" && Warm(&pods[i]) {
				standby = &pods[i]
				return nil
			}
		}
		return fmt.Errorf("none among %d pods", len(pods))
	})
	return standby, err
}

// Warm tells whether a held pod has nothing left to wait for but the signal.
func Warm(pod *corev1.Pod) bool {
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	state := pod.Status.ContainerStatuses[0].State
	return state.Running != nil || state.Waiting != nil && state.Waiting.Reason == "CreateContainerConfigError"
}

// Roll has the workload roll out its template anew.
func (s *Singleton) Roll(ctx context.Context) error {
	workload := s.workload()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"rolled":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	return s.Patch(ctx, workload, client.RawPatch(types.MergePatchType, patch))
}

// Scale sets the workload's replicas.
func (s *Singleton) Scale(ctx context.Context, replicas int32) error {
	return s.Patch(ctx, s.workload(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)))
}

// TryAgain has the owners of the pods look at once whether one is missing. One that was
// refused a pod, as while Kyverno is down, would try again after ever longer pauses, up
// to a quarter of an hour.
func (s *Singleton) TryAgain(ctx context.Context) error {
	_, err := run(ctx, "kubectl", "annotate", "replicasets,statefulsets", "--all", "--namespace", s.Namespace, "--overwrite",
		"try-again="+time.Now().UTC().Format(time.RFC3339Nano))
	return err
}

// Undo takes the Deployment back to its last template.
func (s *Singleton) Undo(ctx context.Context) error {
	_, err := run(ctx, "kubectl", "rollout", "undo", "-n", s.Namespace, "deployment/"+name)
	return err
}

// SetEnv changes the application's environment, which rolls it over.
func (s *Singleton) SetEnv(ctx context.Context, variable, value string) error {
	_, err := run(ctx, "kubectl", "set", "env", "-n", s.Namespace, "deployment/"+name, variable+"="+value)
	return err
}

// Attest attests that the pod has terminated.
func (s *Singleton) Attest(ctx context.Context, pod types.UID) error {
	return s.annotate(ctx, v1.AttestAnnotation, string(pod))
}

// HandOver asks for another holder, as a person does.
func (s *Singleton) HandOver(ctx context.Context) error {
	return s.annotate(ctx, v1.HandoverAnnotation, time.Now().Format(time.RFC3339Nano))
}

func (s *Singleton) annotate(ctx context.Context, key, value string) error {
	object := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	return s.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)))
}

// Entry is what the application wrote down of one process.
type Entry struct {
	Event string `json:"event"`
	Pod   string `json:"pod"`
	// Run tells the processes of one pod apart.
	Run   int64     `json:"run"`
	Epoch int64     `json:"epoch"`
	Time  time.Time `json:"time"`
	// Monotonic is the machine's time since it was booted, in nanoseconds.
	Monotonic int64 `json:"monotonic"`
}

// Journal is all that the application wrote down so far.
func (s *Singleton) Journal() ([]Entry, error) {
	file, err := os.Open(filepath.Join(s.Dir, "events.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var entries []Entry
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("the journal of %s: %w", s.Namespace, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}

// Starts are the beginnings of all processes so far.
func (s *Singleton) Starts() ([]Entry, error) {
	entries, err := s.Journal()
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Event != "start" }), err
}

// Ended tells whether the last process has written its end down.
func (s *Singleton) Ended() (bool, error) {
	entries, err := s.Journal()
	return len(entries) > 0 && entries[len(entries)-1].Event == "stop", err
}

// Summary is what the application's records tell.
type Summary struct {
	Handoffs []struct {
		GapMilliseconds *int64 `json:"gapMilliseconds"`
	} `json:"handoffs"`
	Overlaps int `json:"overlaps"`
	Stale    int `json:"stale"`
}

// Check judges the journal, by the application's own check.
func (s *Singleton) Check(ctx context.Context) (Summary, error) {
	var summary Summary
	out, err := exec.CommandContext(ctx, s.App, "check", s.Dir, "--output", "json").Output()
	if bad := json.Unmarshal(out, &summary); bad != nil {
		return summary, fmt.Errorf("check the journal %s: %w", s.Dir, errors.Join(err, bad))
	}
	if err != nil {
		err = fmt.Errorf("the journal %s: %d overlaps, %d stale", s.Dir, summary.Overlaps, summary.Stale)
	}
	return summary, err
}

// DeletePod deletes the pod, with that grace period in seconds where it is not nil.
func (w *World) DeletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	err := w.Delete(ctx, pod, &client.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	return client.IgnoreNotFound(err)
}

// Evict asks for the eviction of the holder, as a drain does.
func (s *Singleton) Evict(ctx context.Context) error {
	pod, err := s.Holder(ctx)
	if err != nil {
		return err
	}
	return s.EvictPod(ctx, pod)
}

// EvictPod asks for the eviction of the pod.
func (w *World) EvictPod(ctx context.Context, pod *corev1.Pod) error {
	return client.IgnoreNotFound(w.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}))
}

// KillApp kills the application as kill -9 does, in the holder.
func (s *Singleton) KillApp(ctx context.Context) error {
	pod, err := s.Holder(ctx)
	if err != nil {
		return err
	}
	pid, err := Process(pod, "/app")
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Process is the id of the process of the pod that runs this command, which must have
// the pod's uid in its environment variable POD_UID.
func Process(pod *corev1.Pod, command ...string) (int, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		line, _ := p.CmdLine() // it may have ended
		environment, _ := p.Environ()
		if slices.Equal(line, command) && slices.Contains(environment, "POD_UID="+string(pod.UID)) {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("pod %s/%s runs no %v on this machine", pod.Namespace, pod.Name, command)
}
