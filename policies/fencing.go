package policies

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// fenceRule returns the rule that prepares a pod for fencing by a Lease. It adds everything, or nothing if the pod cannot be
// fenced. An earlier rule removes what an earlier pass or the manifest of another pod has left, because each pass must decide
// anew.
func fenceRule(s *v1.StatefulSingleton, o Options) kyvernov1.Rule {
	names := []string{nameContainers("initContainers"), nameContainers("containers")}
	steps := []kyvernov1.ForEachMutation{step(names...)}
	if queues(s) {
		steps = []kyvernov1.ForEachMutation{sidecarStep(append(names, queueSetting(s))...)}
	}
	steps = append(steps,
		fenceSidecar(s.Namespace+"/"+signal.LeaseName(s.Name), signal.LeaseSeconds(s.Spec.LeaseDurationSeconds), wrappedNames, apiServerEnvs(o)...))
	return kyvernov1.Rule{
		Name:                "fence",
		RawAnyAllConditions: &kyvernov1.ConditionsWrapper{Conditions: *all(fenceable(s)...)},
		Mutation:            &kyvernov1.Mutation{ForEachMutation: steps},
	}
}

// Conditions and names in a list of containers. They have no double quotes, because a patch would escape them.
var (
	hasWrapper = fmt.Sprintf("(command || `[]`)[:%d] == ['%s']", len(signal.Wrapper), strings.Join(signal.Wrapper, "', '"))
	// hasBarrier is also true for some containers without a barrier. Their pods are not fenced.
	hasBarrier = fmt.Sprintf("length(env[?name == '%s' && valueFrom.configMapKeyRef != `null`] || `[]`) > `0`", signal.EpochEnv)
	notSidecar = fmt.Sprintf("name != '%s'", v1.SidecarName)

	wrappedNames = fmt.Sprintf("join(',', [request.object.spec.initContainers[?%s].name, request.object.spec.containers[?%s].name][])", hasWrapper, hasWrapper)
	mountedNames = "[request.object.spec.initContainers[].volumeMounts[].name, request.object.spec.containers[].volumeMounts[].name][]"

	// notMounted is the condition that no container mounts the credentials. The sidecar does not either, after
	// removeFencing.
	notMounted = fmt.Sprintf("!contains(%s || `[]`, '%s')", mountedNames, signal.CredentialsVolume)
)

// fenceable returns the conditions that a pod can be fenced. They must not be weaker than injected.NotFenceableBy.
func fenceable(s *v1.StatefulSingleton) []string {
	regular, init := "`true`", notSidecar
	if names := s.Spec.Containers; len(names) > 0 {
		regular = fmt.Sprintf("(contains(%s, name) || %s)", listLiteral(names), hasBarrier)
	}
	if !s.Spec.HoldInitContainers {
		init += " && " + hasBarrier
		if names := s.Spec.Containers; len(names) > 0 {
			init = notSidecar + " && " + regular
		}
	}
	none := func(list, which string) string {
		return fmt.Sprintf("length(request.object.spec.%s[?!(%s) && %s]) == `0`", list, hasWrapper, which)
	}
	return append(fenceablePod(wrappedNames),
		none("containers", regular),
		none("initContainers", init),
	)
}

// fenceablePod returns the conditions that a pod can be fenced, except for those on its containers. The names of the held
// containers are a JMESPath expression.
func fenceablePod(names string) []string {
	return []string{
		"!(" + sharesProcesses + ")",
		// The API server checks names after this policy. Another name could contain a variable of Kyverno.
		fmt.Sprintf("regex_match('^[-a-z0-9]+(,[-a-z0-9]+)*$', %s)", names),
		fmt.Sprintf("!contains(request.object.spec.volumes[].name || `[]`, '%s')", signal.CredentialsVolume),
		notMounted,
	}
}

var (
	// fencingEnvs are the settings of the sidecar: its environment variables that the rule "fence" adds.
	fencingEnvs = []string{
		signal.LeaseEnv, signal.LeaseDurationEnv, signal.HeldEnv, signal.QueueEnv, signal.LockEnv, signal.PodNameEnv, signal.APIServerEnv, signal.AuthoritiesEnv,
	}
	// containerEnvs are those of wrapped containers.
	containerEnvs = []string{signal.ContainerEnv, signal.PortsEnv}
)

// apiServerEnvs returns the environment variables that tell the sidecar where the API server is, and how to recognize it.
func apiServerEnvs(o Options) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: signal.APIServerEnv, Value: o.APIServer.URL},
		{Name: signal.AuthoritiesEnv, Value: strings.Join(o.APIServer.Authorities, ",")},
	}
}

// removeFencing returns the steps that remove what the rule "fence" adds. They leave a volume of the user's own, and moved
// probes.
func removeFencing(s *v1.StatefulSingleton) []kyvernov1.ForEachMutation {
	containerEnv := fmt.Sprintf("contains(%s, e.name)", listLiteral(containerEnvs))
	lists := []string{
		removeFrom("initContainers", isWrapped, "env", containerEnv),
		removeFrom("containers", isWrapped, "env", containerEnv),
	}
	if queues(s) {
		lists = append(lists, removeQueue()...)
	}
	return removeFromSidecar(lists...)
}

// removeFromSidecar returns the steps that remove the settings and the credentials from the sidecar, and unmark the pod. The
// first also applies the operations of more lists.
func removeFromSidecar(more ...string) []kyvernov1.ForEachMutation {
	sidecarEnv := fmt.Sprintf("contains(%s, e.name)", listLiteral(fencingEnvs))
	unmark := fmt.Sprintf("request.object.metadata.annotations.%q != `null` && [{op: 'remove', path: '/metadata/annotations/%s'}] || `[]`",
		v1.FencingAnnotation, pointer(v1.FencingAnnotation))
	isCredentials := fmt.Sprintf("c.name == '%s' && to_string(c.projected.sources || '') == %s",
		signal.CredentialsVolume, stringLiteral(string(sorted(injected.CredentialsSources()))))
	removeVolumes := step(fmt.Sprintf("reverse(%s.join('', ['/spec/volumes/', to_string(i)]))[].{op: 'remove', path: @}", indexed("volumes", isCredentials)))
	removeVolumes.AnyAllConditions = all(notMounted)
	return []kyvernov1.ForEachMutation{
		step(append(more,
			removeFrom("initContainers", isStatusSidecar, "env", sidecarEnv),
			removeFrom("initContainers", isStatusSidecar, "volumeMounts", fmt.Sprintf("e.name == '%s'", signal.CredentialsVolume)),
			fmt.Sprintf("length(%s) > `0` && %s || `[]`", indexed("initContainers", isStatusSidecar), unmark))...),
		removeVolumes,
	}
}

// sorted returns the value as JSON with sorted keys, as to_string does.
func sorted(value any) []byte {
	var object any
	if err := json.Unmarshal(encode(value), &object); err != nil {
		panic(fmt.Sprintf("decode %T: %v", value, err)) // it was just encoded
	}
	return encode(object)
}

// nameContainers returns the operations that add its name to the environment of each wrapped container. See
// signal.ContainerEnv.
func nameContainers(list string) string {
	return operations(indexed(list, isWrapped), addExpression(list, "env/-", fmt.Sprintf("{name: '%s', value: c.name}", signal.ContainerEnv)))
}

// fenceSidecar gives the sidecar the settings and the credentials, and marks the pod. The lease is <namespace>/<name>, and
// the names of the held containers are a JMESPath expression.
func fenceSidecar(lease string, seconds int32, names string, more ...corev1.EnvVar) kyvernov1.ForEachMutation {
	env := sidecarPath + "/env/-"
	ops := []op{
		add(env, corev1.EnvVar{Name: signal.LeaseEnv, Value: lease}),
		add(env, corev1.EnvVar{Name: signal.LeaseDurationEnv, Value: strconv.Itoa(int(seconds))}),
		{Op: "add", Path: env, Value: encode(corev1.EnvVar{Name: signal.HeldEnv, Value: "{{ " + names + " }}"})},
		add(env, fieldEnv(signal.PodNameEnv, "metadata.name")),
		add(sidecarPath+"/volumeMounts/-", credentialsMount()),
		add("/spec/volumes/-", credentialsVolume()),
		add("/metadata/annotations/"+pointer(v1.FencingAnnotation), string(v1.FencingLease)),
	}
	for _, variable := range more {
		ops = append(ops, add(env, variable))
	}
	return changeSidecar(ops)
}

func credentialsMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: signal.CredentialsVolume, MountPath: signal.CredentialsDir, ReadOnly: true}
}

func credentialsVolume() corev1.Volume {
	return corev1.Volume{Name: signal.CredentialsVolume, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: injected.CredentialsSources()},
	}}
}
