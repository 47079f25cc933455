package policies

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	signalVolume  = "statefulsingleton-signal"
	podinfoVolume = "statefulsingleton-podinfo"
	podinfoFile   = "start-signal"

	// imageGate is the path of the gate in the image of the sidecar.
	imageGate = "/ko-app/gate"

	// barrierPrefix begins the name of a barrier's ConfigMap. The UID of the admission request follows, which no user
	// can know before: no ConfigMap of that name can exist already.
	barrierPrefix = "statefulsingleton-"
	barrierLength = len(barrierPrefix) + 36

	// forever is the failureThreshold of a startup probe without a time limit.
	forever = 1<<31 - 1
	// startedPatience is how long one run of the startup probe waits for the release. The next run follows at once.
	startedPatience = 20 * time.Second
)

// requestUID stands for the UID of the admission request in the operations of a step. It has the length of a UID.
const requestUID = "UID-OF-THE-ADMISSION-REQUEST-00000000"

// forPodsOf returns the rules for the pods that at least one of the singletons selects.
func forPodsOf(singletons []v1.StatefulSingleton, rules ...kyvernov1.Rule) []kyvernov1.Rule {
	var pods kyvernov1.ResourceFilters
	for _, s := range singletons {
		pods = append(pods, newPods(s.Namespace, s.Spec.Selector.Meta()))
	}
	return forPods(pods, rules...)
}

// newPods matches the new pods of the namespace that the selector selects.
func newPods(namespace string, selector *metav1.LabelSelector) kyvernov1.ResourceFilter {
	return kyvernov1.ResourceFilter{ResourceDescription: kyvernov1.ResourceDescription{
		Kinds:      []string{"Pod"},
		Namespaces: []string{namespace},
		Operations: []kyvernov1.AdmissionOperation{kyvernov1.Create},
		Selector:   selector,
	}}
}

// forPods returns the rules for the pods that at least one of the filters matches.
func forPods(pods kyvernov1.ResourceFilters, rules ...kyvernov1.Rule) []kyvernov1.Rule {
	match := kyvernov1.MatchResources{Any: pods}
	for i := range rules {
		rules[i].MatchResources = *match.DeepCopy()
	}
	return rules
}

// commonRules returns the rules that are the same for all singletons with the Variant of s.
func commonRules(s *v1.StatefulSingleton, o Options) []kyvernov1.Rule {
	rules := []kyvernov1.Rule{{
		Name:     "hold-containers",
		Mutation: &kyvernov1.Mutation{ForEachMutation: hold("containers", namedOnly(s.Spec.Containers)...)},
	}}
	if s.Spec.HoldInitContainers || len(s.Spec.Containers) > 0 {
		which := []string{"!(" + isStatusSidecar + ")"}
		if !s.Spec.HoldInitContainers {
			which = append(which, namedOnly(s.Spec.Containers)...)
		}
		rules = append(rules, kyvernov1.Rule{
			Name:     "hold-init-containers",
			Mutation: &kyvernov1.Mutation{ForEachMutation: hold("initContainers", which...)},
		})
	}
	if len(o.SidecarPullSecrets) > 0 {
		rules = append(rules, kyvernov1.Rule{
			Name:     "add-pull-secrets",
			Mutation: &kyvernov1.Mutation{ForEachMutation: []kyvernov1.ForEachMutation{addPullSecrets(o)}},
		})
	}
	readinessGate := add("/spec/readinessGates/-", corev1.PodReadinessGate{ConditionType: v1.ReadyCondition})
	rules = append(rules,
		kyvernov1.Rule{
			Name:                "add-sidecar",
			RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(noSidecar)},
			Mutation:            &kyvernov1.Mutation{PatchesJSON6902: patch(append([]op{readinessGate}, sidecarOps(o)...)...)},
		},
		kyvernov1.Rule{
			Name:     "adapt-sidecar",
			Mutation: &kyvernov1.Mutation{ForEachMutation: []kyvernov1.ForEachMutation{sidecarAsRoot(), limitSidecar(o)}},
		})
	if s.Spec.ReadinessProbes != v1.ReadinessKubelet {
		rules = append(rules, kyvernov1.Rule{
			Name:     "move-readiness-probes",
			Mutation: &kyvernov1.Mutation{ForEachMutation: moveReadinessProbes()},
		})
	}
	if s.Spec.Fencing == v1.FencingLease {
		rules = append(rules, kyvernov1.Rule{
			Name:     "remove-fencing",
			Mutation: &kyvernov1.Mutation{ForEachMutation: removeFencing(s)},
		})
	}
	if queues(s) {
		rules = append(rules, queueRule(s))
	}
	if prefersNode(s) {
		rules = append(rules, preferNodeRule())
	}
	return rules
}

// ownRules returns the rules that differ between singletons. They follow commonRules.
func ownRules(s *v1.StatefulSingleton, o Options) (rules []kyvernov1.Rule) {
	if s.Spec.Fencing == v1.FencingLease {
		rules = append(rules, fenceRule(s, o))
	}
	return append(rules, markRule(s))
}

// answerRule returns the rule that answers a probe pod.
func answerRule(policy Ref) kyvernov1.Rule {
	return kyvernov1.Rule{
		Name:                "answer-probe",
		RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(isProbe)},
		Mutation:            &kyvernov1.Mutation{PatchesJSON6902: patch(add("/metadata/annotations/"+pointer(answer(policy)), "true"))},
	}
}

// Conditions on a pod: it is a probe pod, and it has no sidecar.
var (
	isProbe   = fmt.Sprintf("request.object.metadata.annotations.%q == 'true'", probeAnnotation)
	noSidecar = fmt.Sprintf("length(request.object.spec.initContainers[?name == '%s'] || `[]`) == `0`", v1.SidecarName)
	// If containers share their processes, each can write the signal through /proc/<pid of the sidecar>/root.
	sharesProcesses = "request.object.spec.shareProcessNamespace == `true` || request.object.spec.hostPID == `true`"
)

// Conditions on the container c of indexed. In JMESPath a missing key is an error, except in a comparison or with "||".
var (
	isWrapped       = fmt.Sprintf("(c.command || `[]`)[:%d] == `%s`", len(signal.Wrapper), literal(signal.Wrapper))
	notWrapped      = "!(" + isWrapped + ")"
	isWrappable     = "length(c.command || `[]`) > `0` && c.startupProbe == `null` && c.lifecycle.postStart == `null`"
	hasPodUID       = fmt.Sprintf("(c.env || `[]`)[?name == '%s'].[valueFrom.fieldRef.fieldPath] == `[[\"metadata.uid\"]]`", signal.PodUIDEnv)
	isStatusSidecar = fmt.Sprintf("c.name == '%s'", v1.SidecarName)
)

// namedOnly returns the condition that a container has one of the names.
func namedOnly(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("contains(%s, c.name)", listLiteral(names))}
}

// listLiteral returns a list of strings as a JMESPath literal.
func listLiteral(texts []string) string {
	// A backquote would end the literal and a brace the variable; a dollar sign can begin a reference.
	return "`" + strings.NewReplacer("`", `\u0060`, "{", `\u007b`, "}", `\u007d`, "$", `\u0024`).Replace(string(encode(texts))) + "`"
}

// hold returns the steps that hold the containers of spec.<list> for which isHeld is true. They use the wrapper if
// the image's command is known and no other process can write the signal, and the barrier otherwise.
func hold(list string, isHeld ...string) []kyvernov1.ForEachMutation {
	held := func(conditions ...string) string { return indexed(list, slices.Concat(isHeld, conditions)...) }
	wrap := step(operations(held(notWrapped, isWrappable), prepend(list, "command", signal.Wrapper)...))
	wrap.AnyAllConditions = all("!(" + sharesProcesses + ")")
	noBarrier := fmt.Sprintf("length(c.env[?%s] || `[]`) == `0`", isBarrier(""))
	return []kyvernov1.ForEachMutation{
		wrap,
		step(
			mountSignal(list, isHeld...),
			operations(held(isWrapped, "c.startupProbe == `null`", startupProbeNeeded(list)), addEach(list, "startupProbe", startedProbe())),
			refreshBarriers(list),
			removePodUIDs(list), addPodUID(list),
			// The barrier is the last variable, because the last value of a name wins.
			operations(held(notWrapped, noBarrier), addEach(list, "env/-", barrier())),
		),
	}
}

// mountSignal returns the operations that mount the signal volume in the containers of spec.<list> for which all conditions
// are true.
func mountSignal(list string, conditions ...string) string {
	noMount := fmt.Sprintf("length(c.volumeMounts[?name == '%s'] || `[]`) == `0`", signalVolume)
	return operations(indexed(list, slices.Concat(conditions, []string{noMount})...), addEach(list, "volumeMounts/-", signalMount()))
}

// signalMount returns the volume mount of a held container.
func signalMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: signalVolume, MountPath: signal.Dir, ReadOnly: true}
}

// startupProbeNeeded returns the condition that a wrapped container needs a startup probe. A liveness probe would
// kill a waiting container. Without a readiness probe, nothing else reports the start of the main process. A native
// sidecar always needs the probe, because the containers after it must wait. Other init containers cannot have a
// startup probe.
func startupProbeNeeded(list string) string {
	if list == "initContainers" {
		return "c.restartPolicy == 'Always'"
	}
	return "(c.livenessProbe != `null` || c.readinessProbe == `null`)"
}

// startedProbe returns the startup probe that succeeds as soon as the main process has started.
func startedProbe() corev1.Probe {
	return corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{signal.GatePath, "started", startedPatience.String()}}},
		PeriodSeconds:    1,
		TimeoutSeconds:   int32((startedPatience + 10*time.Second).Seconds()),
		FailureThreshold: forever,
	}
}

// removePodUIDs returns the operations that remove the variables named signal.PodUIDEnv from a wrapped container, unless it
// has exactly the one that addPodUID adds. A pod can come with others, for example literal values.
func removePodUIDs(list string) string {
	return removeFrom(list, isWrapped+" && !("+hasPodUID+")", "env", fmt.Sprintf("e.name == '%s'", signal.PodUIDEnv))
}

func addPodUID(list string) string {
	return operations(indexed(list, isWrapped, "!("+hasPodUID+")"), addEach(list, "env/-", fieldEnv(signal.PodUIDEnv, "metadata.uid")))
}

// fieldEnv returns an environment variable with the value of a field of the pod.
func fieldEnv(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

// barrier returns the environment variable that keeps a container from starting.
func barrier() corev1.EnvVar {
	return corev1.EnvVar{Name: signal.EpochEnv, ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: barrierPrefix + requestUID}, Key: signal.EpochKey,
		},
	}}
}

// refreshBarriers returns the operations that change the ConfigMap of existing barriers to that of this request. A barrier
// that was copied from another pod may be open already.
func refreshBarriers(list string) string {
	return fmt.Sprintf("%s[].{op: 'replace', path: join('', [@, '/valueFrom/configMapKeyRef/name']), value: '%s'}",
		pointersOf(list, "`true`", "env", isBarrier("e.")), barrierPrefix+requestUID)
}

// isBarrier is the condition that an environment variable is a barrier. An optional ConfigMap is no barrier, because the
// container starts without the ConfigMap.
func isBarrier(variable string) string {
	ref := variable + "valueFrom.configMapKeyRef"
	configMap := ref + ".name || ''"
	return fmt.Sprintf("%sname == '%s' && starts_with(%s, '%s') && length(%s) == `%d` && %s.key == '%s' && %s.optional != `true`",
		variable, signal.EpochEnv, configMap, barrierPrefix, configMap, barrierLength, ref, signal.EpochKey, ref)
}

// addPullSecrets adds pull secrets to the pod's own. The API server adds the pull secrets of the service account
// before, but only to a pod that names none.
func addPullSecrets(o Options) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{
		List:             listLiteral(o.pullSecrets()),
		AnyAllConditions: all("!contains(request.object.spec.imagePullSecrets[].name || `[]`, element)"),
		PatchesJSON6902:  patch(op{Op: "add", Path: "/spec/imagePullSecrets/-", Value: encode(corev1.LocalObjectReference{Name: "{{element}}"})}),
	}
}

// pullSecrets returns the names of the pull secrets, sorted and each once. The conditions of an element do not see what
// an earlier element added.
func (o Options) pullSecrets() []string {
	return slices.Compact(slices.Sorted(slices.Values(o.SidecarPullSecrets)))
}

// sidecarOps add the sidecar as the first init container, and its volumes. The gate must be in the volume before other
// containers start.
func sidecarOps(o Options) (ops []op) {
	for _, volume := range sidecarVolumes() {
		ops = append(ops, add("/spec/volumes/-", volume))
	}
	return append(ops, add("/spec/initContainers/0", sidecar(o)))
}

// sidecarVolumes returns the volumes of the sidecar.
func sidecarVolumes() []corev1.Volume {
	field := fmt.Sprintf("metadata.annotations['%s']", signal.Annotation)
	return []corev1.Volume{
		{Name: signalVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("32Mi"))},
		}},
		{Name: podinfoVolume, VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
				Path: podinfoFile, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field},
			}}},
		}},
	}
}

// DefaultSidecarResources are the default resources of the sidecar. They have no CPU limit: the work that must be
// quick takes milliseconds, and a limit near the average use would throttle it. See limitSidecar.
func DefaultSidecarResources() corev1.ResourceRequirements {
	memory := resource.MustParse("32Mi")
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: memory},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: memory},
	}
}

func (o Options) sidecarResources() corev1.ResourceRequirements {
	return ptr.Deref(o.SidecarResources, DefaultSidecarResources())
}

func sidecar(o Options) corev1.Container {
	return corev1.Container{
		Name:            v1.SidecarName,
		Image:           o.SidecarImage,
		ImagePullPolicy: o.SidecarPullPolicy,
		Command:         []string{imageGate},
		Args:            []string{"sidecar"},
		RestartPolicy:   new(corev1.ContainerRestartPolicyAlways),
		Env: []corev1.EnvVar{
			fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("POD_IP", "status.podIP"),
		},
		Resources: o.sidecarResources(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: signalVolume, MountPath: signal.Dir},
			{Name: podinfoVolume, MountPath: signal.PodinfoDir, ReadOnly: true},
		},
		// The containers after the sidecar start when the hook returns. Then the gate is in the signal volume.
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{imageGate, "delivered"}},
		}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			ReadOnlyRootFilesystem:   new(true),
			RunAsNonRoot:             new(true),
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// sidecarAsRoot removes the sidecar's runAsNonRoot if the pod runs all containers as root. Otherwise the kubelet
// would not start the sidecar.
func sidecarAsRoot() kyvernov1.ForEachMutation {
	return changeSidecar([]op{{Op: "remove", Path: sidecarPath + "/securityContext/runAsNonRoot"}},
		"element.c.securityContext.runAsNonRoot == `true`",
		// Compare strings: numbers of the engine's two types are never equal.
		"to_string(request.object.spec.securityContext.runAsUser || '') == '0'")
}

// limitSidecar adds a CPU limit to the sidecar if all other containers have one: a Guaranteed pod stays Guaranteed,
// and a quota of limits accepts the pod. The limit is never below the sidecar's request.
func limitSidecar(o Options) kyvernov1.ForEachMutation {
	limits := sidecarPath + "/resources"
	amount := o.sidecarCPULimit()
	return changeSidecar([]op{add(limits+"/requests/cpu", amount), add(limits+"/limits/cpu", amount)},
		"element.c.resources.limits.cpu == `null`",
		"length(request.object.spec.containers[?resources.limits.cpu == `null`]) == `0`",
		fmt.Sprintf("length(request.object.spec.initContainers[?name != '%s' && resources.limits.cpu == `null`]) == `0`", v1.SidecarName))
}

// sidecarCPULimit returns the CPU limit of limitSidecar.
func (o Options) sidecarCPULimit() resource.Quantity {
	limit := resource.MustParse("100m")
	if asked := o.sidecarResources().Requests[corev1.ResourceCPU]; asked.Cmp(limit) > 0 {
		limit = asked
	}
	return limit
}

// defaultGracePeriod is the API server's default of terminationGracePeriodSeconds.
const defaultGracePeriod = 30

// gracePeriod returns the time in seconds that a pod of s has at least to stop.
func gracePeriod(s *v1.StatefulSingleton) int32 {
	return ptr.Deref(s.Spec.TerminationGracePeriod, defaultGracePeriod)
}

// markRule returns the rule that sets the label and the annotation that name the singleton, and gives the pod at least the grace
// period of s. It is one rule, because each rule repeats the selector.
func markRule(s *v1.StatefulSingleton) kyvernov1.Rule {
	once := listLiteral([]string{s.Name})
	// The conversions give numbers of the engine's two types the same type.
	isShorter := fmt.Sprintf("to_number(to_string(request.object.spec.terminationGracePeriodSeconds || `%d`)) < `%d`", defaultGracePeriod, gracePeriod(s))
	return kyvernov1.Rule{Name: "mark", Mutation: &kyvernov1.Mutation{ForEachMutation: []kyvernov1.ForEachMutation{
		{List: once, PatchesJSON6902: patch(
			add("/metadata/annotations/"+pointer(v1.InjectedAnnotation), s.Namespace+"/"+s.Name),
			add("/metadata/labels/"+pointer(v1.SingletonLabel), s.Name))},
		{List: fmt.Sprintf("%s && %s || `[]`", isShorter, once), PatchesJSON6902: patch(add("/spec/terminationGracePeriodSeconds", gracePeriod(s)))},
	}}}
}

// op is an operation of a JSON patch.
type op struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

func add(path string, value any) op {
	return op{Op: "add", Path: path, Value: literal(value)}
}

func patch(ops ...op) string {
	return string(encode(ops))
}

// literal returns value as JSON, escaped to contain no Kyverno variable or reference.
func literal(value any) json.RawMessage {
	return json.RawMessage(strings.NewReplacer("{{", `\u007b\u007b`, "$(", `\u0024(`).Replace(string(encode(value))))
}

func encode(value any) json.RawMessage {
	data, err := json.Marshal(value)
	if err != nil {
		// Strings, numbers and Kubernetes types can always be encoded.
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return data
}

// all returns the condition that every JMESPath expression is true.
func all(expressions ...string) *kyvernov1.AnyAllConditions {
	conditions := &kyvernov1.AnyAllConditions{}
	for _, expression := range expressions {
		c := kyvernov1.Condition{Operator: kyvernov1.ConditionOperators["Equals"]}
		c.SetKey("{{ " + expression + " }}")
		c.SetValue(true)
		conditions.AllConditions = append(conditions.AllConditions, c)
	}
	return conditions
}

// pointer escapes a key for a JSON pointer.
func pointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
