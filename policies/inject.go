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

// barrierName is a Kyverno variable with the name of the ConfigMap for the admission request.
const barrierName = barrierPrefix + "{{request.uid}}"

// injectionRules returns the rules for s in a policy, in the order in which Kyverno applies them.
func injectionRules(s *v1.StatefulSingleton, o Options, policy Ref) []kyvernov1.Rule {
	return forPodsOf([]v1.StatefulSingleton{*s}, slices.Concat(commonRules(s, o), ownRules(s), []kyvernov1.Rule{answerRule(policy)})...)
}

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
	if len(pods) == 1 {
		match = kyvernov1.MatchResources{All: pods} // as earlier versions, whose guard may still be installed
	}
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
		which := []string{fmt.Sprintf("element.name != '%s'", v1.SidecarName)}
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
			Mutation: &kyvernov1.Mutation{ForEachMutation: removeFencing()},
		})
	}
	return rules
}

// ownRules returns the rules that differ between singletons. They follow commonRules.
func ownRules(s *v1.StatefulSingleton) (rules []kyvernov1.Rule) {
	if s.Spec.Fencing == v1.FencingLease {
		rules = append(rules, fenceRule(s))
	}
	return append(rules, kyvernov1.Rule{
		Name:     "mark",
		Mutation: &kyvernov1.Mutation{PatchesJSON6902: patch(markOps(s)...)},
	})
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
)

// Conditions on a container, which is the element of a foreach. In JMESPath a missing key is an error, except in a
// comparison or with "||".
var (
	isWrapped   = fmt.Sprintf("(element.command || `[]`)[:%d] == `%s`", len(signal.Wrapper), literal(signal.Wrapper))
	notWrapped  = "!(" + isWrapped + ")"
	isWrappable = "length(element.command || `[]`) > `0` && element.startupProbe == `null` && element.lifecycle.postStart == `null` && !(" + sharesProcesses + ")"
	// If containers share their processes, each can write the signal through /proc/<pid of the sidecar>/root.
	sharesProcesses = "request.object.spec.shareProcessNamespace == `true` || request.object.spec.hostPID == `true`"
	hasPodUID       = fmt.Sprintf("(element.env || `[]`)[?name == '%s'].[valueFrom.fieldRef.fieldPath] == `[[\"metadata.uid\"]]`", signal.PodUIDEnv)
)

// namedOnly returns the condition that a container has one of the names.
func namedOnly(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("contains(%s, element.name)", listLiteral(names))}
}

// listLiteral returns a list of strings as a JMESPath literal.
func listLiteral(texts []string) string {
	// A backquote would end the literal and a brace the variable; a dollar sign can begin a reference.
	return "`" + strings.NewReplacer("`", `\u0060`, "{", `\u007b`, "}", `\u007d`, "$", `\u0024`).Replace(string(encode(texts))) + "`"
}

// hold returns the rules that hold the containers of spec.<list> for which isHeld is true. They use the wrapper if
// the image's command is known and no other process can write the signal, and the barrier otherwise.
func hold(list string, isHeld ...string) []kyvernov1.ForEachMutation {
	path := containerPath(list)
	step := func(ops []op, conditions ...string) kyvernov1.ForEachMutation {
		return change(list, ops, slices.Concat(isHeld, conditions)...)
	}
	noBarrier := fmt.Sprintf("length(element.env[?%s] || `[]`) == `0`", isBarrier(""))
	return []kyvernov1.ForEachMutation{
		mountSignal(list, isHeld...),
		step(prepend(path+"/command", signal.Wrapper), notWrapped, isWrappable),
		step([]op{add(path+"/startupProbe", startedProbe())}, isWrapped, "element.startupProbe == `null`", startupProbeNeeded(list)),
		removePodUIDs(list),
		addPodUID(list),
		refreshBarriers(list),
		// The barrier is the last variable, because the last value of a name wins.
		step([]op{{Op: "add", Path: path + "/env/-", Value: barrier()}}, notWrapped, noBarrier),
	}
}

// change returns the operations for each container of spec.<list> for which all conditions are true.
func change(list string, ops []op, conditions ...string) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{
		List:             listOf(list),
		AnyAllConditions: all(conditions...),
		PatchesJSON6902:  patch(ops...),
	}
}

// mountSignal mounts the signal volume in the containers of spec.<list> for which all conditions are true.
func mountSignal(list string, conditions ...string) kyvernov1.ForEachMutation {
	noMount := fmt.Sprintf("length(element.volumeMounts[?name == '%s'] || `[]`) == `0`", signalVolume)
	return change(list, []op{add(containerPath(list)+"/volumeMounts/-", signalMount())}, slices.Concat(conditions, []string{noMount})...)
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
		return "element.restartPolicy == 'Always'"
	}
	return "element.livenessProbe != `null` || element.readinessProbe == `null`"
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

// removePodUIDs removes the variables named signal.PodUIDEnv from a wrapped container, unless it has exactly the one
// that addPodUID adds. A pod can come with others, for example literal values.
func removePodUIDs(list string) kyvernov1.ForEachMutation {
	return removeFrom(list, fmt.Sprintf("%s && !(%s)", isWrapped, hasPodUID), "env", fmt.Sprintf("element.name == '%s'", signal.PodUIDEnv))
}

// removeFrom removes the elements of a field for which the condition is true, from the containers of spec.<list> for which
// isContainer is true.
func removeFrom(list, isContainer, field, condition string) kyvernov1.ForEachMutation {
	return kyvernov1.ForEachMutation{
		List: listOf(list),
		ForEachMutation: &kyvernov1.ForEachMutationWrapper{Items: []kyvernov1.ForEachMutation{{
			// Kyverno does not allow conditions beside a nested foreach.
			List: fmt.Sprintf("%s && element.%s || `[]`", isContainer, field),
			// Remove the last first, because a removal moves the elements after it.
			Order:            new(kyvernov1.Descending),
			AnyAllConditions: all(condition),
			PatchesJSON6902:  patch(op{Op: "remove", Path: fmt.Sprintf("/spec/%s/{{elementIndex0}}/%s/{{elementIndex1}}", list, field)}),
		}}},
	}
}

// addPodUID adds the UID of the pod to the environment of a wrapped container.
func addPodUID(list string) kyvernov1.ForEachMutation {
	return change(list, []op{add(containerPath(list)+"/env/-", fieldEnv(signal.PodUIDEnv, "metadata.uid"))}, isWrapped, "!("+hasPodUID+")")
}

// fieldEnv returns an environment variable with the value of a field of the pod.
func fieldEnv(name, field string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}}
}

// barrier returns the environment variable that keeps a container from starting. Its name contains a Kyverno
// variable, which must not be escaped.
func barrier() json.RawMessage {
	return encode(corev1.EnvVar{Name: signal.EpochEnv, ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: barrierName}, Key: signal.EpochKey,
		},
	}})
}

// refreshBarriers changes the ConfigMap of existing barriers to that of this request. A barrier that was copied from
// another pod may be open already.
func refreshBarriers(list string) kyvernov1.ForEachMutation {
	path := fmt.Sprintf("/spec/%s/{{elementIndex0}}/env/{{elementIndex1}}/valueFrom/configMapKeyRef/name", list)
	return kyvernov1.ForEachMutation{
		List: listOf(list),
		ForEachMutation: &kyvernov1.ForEachMutationWrapper{Items: []kyvernov1.ForEachMutation{{
			List:             "element.env || `[]`",
			AnyAllConditions: all(isBarrier("element.")),
			PatchesJSON6902:  patch(op{Op: "replace", Path: path, Value: encode(barrierName)}),
		}}},
	}
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
	return kyvernov1.ForEachMutation{
		List: listOf("initContainers"),
		AnyAllConditions: all(
			fmt.Sprintf("element.name == '%s'", v1.SidecarName),
			"element.securityContext.runAsNonRoot == `true`",
			// Compare strings: numbers of the engine's two types are never equal.
			"to_string(request.object.spec.securityContext.runAsUser || '') == '0'"),
		PatchesJSON6902: patch(op{Op: "remove", Path: containerPath("initContainers") + "/securityContext/runAsNonRoot"}),
	}
}

// limitSidecar adds a CPU limit to the sidecar if all other containers have one: a Guaranteed pod stays Guaranteed,
// and a quota of limits accepts the pod. The limit is never below the sidecar's request.
func limitSidecar(o Options) kyvernov1.ForEachMutation {
	limits := containerPath("initContainers") + "/resources"
	amount := o.sidecarCPULimit()
	return kyvernov1.ForEachMutation{
		List: listOf("initContainers"),
		AnyAllConditions: all(
			fmt.Sprintf("element.name == '%s'", v1.SidecarName),
			"element.resources.limits.cpu == `null`",
			"length(request.object.spec.containers[?resources.limits.cpu == `null`]) == `0`",
			fmt.Sprintf("length(request.object.spec.initContainers[?name != '%s' && resources.limits.cpu == `null`]) == `0`", v1.SidecarName)),
		PatchesJSON6902: patch(add(limits+"/requests/cpu", amount), add(limits+"/limits/cpu", amount)),
	}
}

// sidecarCPULimit returns the CPU limit of limitSidecar.
func (o Options) sidecarCPULimit() resource.Quantity {
	limit := resource.MustParse("100m")
	if asked := o.sidecarResources().Requests[corev1.ResourceCPU]; asked.Cmp(limit) > 0 {
		limit = asked
	}
	return limit
}

// markOps set the label and the annotation that name the singleton. They do not change a pod that has both.
func markOps(s *v1.StatefulSingleton) []op {
	ops := []op{
		add("/metadata/annotations/"+pointer(v1.InjectedAnnotation), s.Namespace+"/"+s.Name),
		add("/metadata/labels/"+pointer(v1.SingletonLabel), s.Name),
	}
	if seconds := gracePeriod(s); seconds != nil {
		ops = append(ops, add("/spec/terminationGracePeriodSeconds", *seconds))
	}
	return ops
}

// gracePeriod returns the grace period that replaces that of the pod, or nil.
func gracePeriod(s *v1.StatefulSingleton) *int32 {
	if ptr.Deref(s.Spec.RespectPodGracePeriod, true) {
		return nil
	}
	return new(ptr.Deref(s.Spec.TerminationGracePeriod, 30)) // 30 is the API server's default
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

// prepend adds values before the first element of the list at path.
func prepend(path string, values []string) []op {
	var ops []op
	for _, value := range slices.Backward(values) {
		ops = append(ops, add(path+"/0", value))
	}
	return ops
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

func listOf(list string) string {
	return fmt.Sprintf("request.object.spec.%s || `[]`", list)
}

func containerPath(list string) string {
	return fmt.Sprintf("/spec/%s/{{elementIndex}}", list)
}

// pointer escapes a key for a JSON pointer.
func pointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
