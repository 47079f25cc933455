package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// workload is a Deployment or a StatefulSet.
type workload struct {
	client.Object
	kind     string
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
	replicas int32
	// deployment is nil for a StatefulSet, and claims are the volumeClaimTemplates of a StatefulSet.
	deployment *appsv1.Deployment
	claims     []corev1.PersistentVolumeClaim
}

// Kinds of workloads in arguments, as in kubectl.
var (
	deploymentPrefixes  = []string{"deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"}
	statefulSetPrefixes = []string{"statefulset", "statefulsets", "sts", "statefulset.apps", "statefulsets.apps"}
)

// findWorkload reads the workload of an argument such as deployment/db.
func (c *cluster) findWorkload(ctx context.Context, arg string) (*workload, error) {
	kind, name, _ := strings.Cut(arg, "/")
	switch {
	case name == "" || !slices.Contains(slices.Concat(deploymentPrefixes, statefulSetPrefixes), kind):
		return nil, fmt.Errorf("%q is not a workload: use deployment/NAME or statefulset/NAME", arg)
	case slices.Contains(deploymentPrefixes, kind):
		d := &appsv1.Deployment{}
		if err := c.find(ctx, name, d, &appsv1.DeploymentList{}); err != nil {
			return nil, err
		}
		w := &workload{Object: d, kind: "Deployment", selector: d.Spec.Selector, template: d.Spec.Template, replicas: ptr.Deref(d.Spec.Replicas, 1), deployment: d}
		d.Spec.Replicas = new(max(w.replicas, 1)) // the report is about the time when it has a pod
		return w, nil
	}
	s := &appsv1.StatefulSet{}
	if err := c.find(ctx, name, s, &appsv1.StatefulSetList{}); err != nil {
		return nil, err
	}
	return &workload{Object: s, kind: "StatefulSet", selector: s.Spec.Selector, template: s.Spec.Template, replicas: ptr.Deref(s.Spec.Replicas, 1), claims: s.Spec.VolumeClaimTemplates}, nil
}

// completeWorkload completes the names of the Deployments and StatefulSets in the namespace.
func (c commands) completeWorkload(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	prefix, list := "deployment/", client.ObjectList(&appsv1.DeploymentList{})
	if strings.HasPrefix(typed, "s") {
		prefix, list = "statefulset/", &appsv1.StatefulSetList{}
	}
	return c.complete(cmd.Context(), typed, func(ctx context.Context, in *cluster) ([]string, error) {
		names, err := in.names(ctx, list, in.namespace)
		for i := range names {
			names[i] = prefix + names[i]
		}
		return names, err
	})
}

func (w *workload) String() string { return w.kind + " " + w.GetName() }

// pod returns a pod with the labels and the spec of the workload's pods.
func (w *workload) pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.GetNamespace(), Labels: w.template.Labels}, Spec: w.template.Spec}
}

// singleton returns a StatefulSingleton that selects the pods of the workload.
func (w *workload) singleton(fencing v1.Fencing) (*v1.StatefulSingleton, error) {
	singleton := &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: w.GetNamespace(), Name: w.GetName()}}
	// Both selectors have the same fields in JSON.
	data, err := json.Marshal(w.selector)
	if err != nil {
		return nil, err
	}
	if fencing != v1.FencingKubelet {
		singleton.Spec.Fencing = fencing
	}
	singleton.Spec.HoldInitContainers = slices.ContainsFunc(w.template.Spec.InitContainers, w.sharesData)
	return singleton, json.Unmarshal(data, &singleton.Spec.Selector)
}

// sharesData returns true if the init container mounts a claim. In a standby, it would run while the active pod writes.
func (w *workload) sharesData(c corev1.Container) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return slices.ContainsFunc(w.claims, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == m.Name }) ||
			slices.ContainsFunc(w.template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.PersistentVolumeClaim != nil })
	})
}

// held returns the containers that the singleton holds.
func (w *workload) held(singleton *v1.StatefulSingleton) []corev1.Container {
	if singleton.Spec.HoldInitContainers {
		return slices.Concat(w.template.Spec.InitContainers, w.template.Spec.Containers)
	}
	return w.template.Spec.Containers
}

// otherWorkloads returns the other workloads with pods that the singleton selects.
func (c *cluster) otherWorkloads(ctx context.Context, w *workload, singleton *v1.StatefulSingleton) (others []string, err error) {
	for _, kind := range []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("DaemonSet"), appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		appsv1.SchemeGroupVersion.WithKind("StatefulSet"), batchv1.SchemeGroupVersion.WithKind("CronJob"), batchv1.SchemeGroupVersion.WithKind("Job"),
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := c.List(ctx, list, client.InNamespace(w.GetNamespace())); err != nil {
			return nil, err
		}
		for i := range list.Items {
			o := &list.Items[i]
			pod, from, err := podIn(o)
			if err != nil {
				return nil, err
			}
			owned := metav1.GetControllerOf(o) != nil && (kind.Kind == "ReplicaSet" || kind.Kind == "Job")
			_, ended, _ := unstructured.NestedString(o.Object, "status", "completionTime")
			if o.GetUID() != w.GetUID() && !owned && !ended && pod != nil && selects(singleton, pod) {
				others = append(others, from)
			}
		}
	}
	return others, nil
}

// report describes the handoffs of the workload. If fixed is true, its rollouts will create the next pod first.
func (c *cluster) report(ctx context.Context, w *workload, singleton *v1.StatefulSingleton, fixed bool) (string, error) {
	volumes, err := c.volumesInWords(ctx, w)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("StatefulSingleton %s holds the pods of %s, which have the labels %s.\n\n%s", fullName(singleton), w, metav1.FormatLabelSelector(w.selector), heldInWords(w.pod(), singleton.Spec.HoldInitContainers))
	if volumes != "" {
		text += "\n" + volumes
	}
	notes := []string{c.rolloutNote(w, fixed)}
	if singleton.Spec.HoldInitContainers {
		notes = append(notes, "An init container mounts a claim, so spec.holdInitContainers is true: all init containers run after the old pod has terminated, and handoffs include their time. If they may run beside the active pod, remove the field.")
	}
	notes = append(notes, w.probeNotes()...)
	others, err := c.otherNotes(ctx, w)
	if err != nil {
		return "", err
	}
	text += "\n"
	for _, note := range append(notes, others...) {
		text += "- " + note + "\n"
	}
	return text, nil
}

// heldInWords describes how each container of a new pod will be held, and why so.
func heldInWords(pod *corev1.Pod, holdsInit bool) string {
	return columns(func(row func(cells ...string)) {
		row("CONTAINER", "KIND", "HELD BY", "BECAUSE")
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			kind := "init"
			if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
				kind = "sidecar"
			}
			if !holdsInit {
				row(c.Name, kind, "-", "it mounts no claim, so it also runs in a standby")
				continue
			}
			by, why := heldBy(pod, c)
			row(c.Name, kind, by, why)
		}
		for i := range pod.Spec.Containers {
			by, why := heldBy(pod, &pod.Spec.Containers[i])
			row(pod.Spec.Containers[i].Name, "regular", by, why)
		}
	})
}

// heldBy returns what will hold the container, and why.
func heldBy(pod *corev1.Pod, c *corev1.Container) (by, why string) {
	switch why := injected.NotWrappable(c); {
	case why != "":
		return "barrier", "the container " + why
	case sharesProcesses(pod):
		return "barrier", injected.NotFenceable(pod)
	}
	return "wrapper", "the container has a command"
}

func sharesProcesses(pod *corev1.Pod) bool {
	return pod.Spec.HostPID || ptr.Deref(pod.Spec.ShareProcessNamespace, false)
}

// rolloutNote says whether the rollouts are warm, and how they become so.
func (c *cluster) rolloutNote(w *workload, fixed bool) string {
	if w.deployment == nil {
		return fmt.Sprintf("Handoffs are cold: %s deletes its pod before it creates the next one. Only a Deployment can create the next pod first.", w)
	}
	why := handoff.CannotSurge(w.deployment)
	switch {
	case why == "":
		return fmt.Sprintf("Rollouts of %s create the next pod before they stop the old one. It is warm if its volumes are.", w)
	case fixed:
		return fmt.Sprintf("%s. --fix changes that: rollouts then create the next pod before they stop the old one.", why)
	}
	note := fmt.Sprintf("Handoffs are cold: %s, so the old pod stops before the next one is created.", why)
	manager := managerOf(w.deployment)
	switch {
	case w.deployment.Spec.Paused:
		return fmt.Sprintf("%s %s", note, w.surgeHelp(c))
	case manager.reverts:
		return fmt.Sprintf("%s %s sets the strategy, so %s.", note, manager.name, manager.change)
	case manager.name != "":
		note += fmt.Sprintf(" %s sets the strategy, so also %s.", manager.name, manager.change)
	}
	_, command := handoff.SurgeCommand(w.deployment)
	return fmt.Sprintf("%s With --fix, create changes that without a rollout. Or run: %s", note, command+c.where)
}

// surgeHelp says how the rollouts of the Deployment create the next pod first.
func (w *workload) surgeHelp(in *cluster) string {
	to, command := handoff.SurgeCommand(w.deployment)
	return fmt.Sprintf("To %s, run: %s", to, command+in.where)
}

// probeNotes says which containers lack a readiness probe.
func (w *workload) probeNotes() (notes []string) {
	for i := range w.template.Spec.Containers {
		if c := &w.template.Spec.Containers[i]; c.ReadinessProbe == nil {
			notes = append(notes, fmt.Sprintf("Container %s has no readinessProbe: a handoff is complete when the process has started, and clients can come before it listens.", c.Name))
		}
	}
	return notes
}

// notFenceable returns why a Lease cannot fence the pods of the workload. Empty: it can.
func (w *workload) notFenceable(singleton *v1.StatefulSingleton) string {
	for _, c := range w.held(singleton) {
		if why := injected.NotWrappable(&c); why != "" {
			return fmt.Sprintf("container %s %s", c.Name, why)
		}
	}
	return injected.NotFenceable(w.pod())
}

// otherNotes says what other objects mean for handoffs.
func (c *cluster) otherNotes(ctx context.Context, w *workload) (notes []string, err error) {
	var budgets policyv1.PodDisruptionBudgetList
	if err := c.List(ctx, &budgets, client.InNamespace(w.GetNamespace())); apierrors.IsForbidden(err) {
		notes = append(notes, "You do not have permission to list PodDisruptionBudgets. If one covers these pods, a drain is not blocked until the next pod is warm.")
	} else if err != nil {
		return nil, err
	}
	for i := range budgets.Items {
		selector, err := metav1.LabelSelectorAsSelector(budgets.Items[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(w.template.Labels)) {
			notes = append(notes, fmt.Sprintf("PodDisruptionBudget %s covers these pods. The controller then creates none of its own, with which a drain waits until the next pod is warm: delete it.", budgets.Items[i].Name))
		}
	}
	var scalers autoscalingv2.HorizontalPodAutoscalerList
	if err := c.List(ctx, &scalers, client.InNamespace(w.GetNamespace())); apierrors.IsForbidden(err) {
		return append(notes, "You do not have permission to list HorizontalPodAutoscalers. One that scales this workload adds pods that only wait."), nil
	} else if err != nil {
		return nil, err
	}
	for i := range scalers.Items {
		if h := &scalers.Items[i]; h.Spec.ScaleTargetRef.Kind == w.kind && h.Spec.ScaleTargetRef.Name == w.GetName() {
			notes = append(notes, fmt.Sprintf("HorizontalPodAutoscaler %s can add up to %d pods. Only one pod runs its application, and the others wait: delete it.", h.Name, h.Spec.MaxReplicas-1))
		}
	}
	return notes, nil
}

// manager is who sets the strategy of a Deployment.
type manager struct {
	// name is empty if nobody sets it, or a person.
	name string
	// change says what to change instead of the Deployment.
	change string
	// reverts: the manager undoes changes of the Deployment.
	reverts bool
}

// strategyYAML is the strategy with which a rollout creates the next pod first.
const strategyYAML = "{type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}"

// managerOf returns who sets the strategy, by the marks of the tools and by the managed fields.
func managerOf(d *appsv1.Deployment) manager {
	a, l := d.Annotations, d.Labels
	const flux, kustomize = "helm.toolkit.fluxcd.io/", "kustomize.toolkit.fluxcd.io/"
	inSource := "set spec.strategy of the Deployment to " + strategyYAML + " in "
	inValues := fmt.Sprintf("change the value of chart %s that sets spec.strategy to %s", cmp.Or(l["helm.sh/chart"], "(see the label helm.sh/chart)"), strategyYAML)
	setter := strategySetter(d)
	application, _, tracked := strings.Cut(a["argocd.argoproj.io/tracking-id"], ":")
	owner := metav1.GetControllerOf(d)
	switch {
	case owner != nil:
		return manager{named(strings.ToLower(owner.Kind)) + "/" + named(owner.Name), inSource + "that object, if it has such a field", true}
	case tracked || strings.HasPrefix(setter, "argocd"):
		return manager{"Argo CD", inSource + "the source of Application " + named(cmp.Or(application, l["app.kubernetes.io/instance"])), true}
	case l[flux+"name"] != "":
		return manager{fmt.Sprintf("HelmRelease %s/%s of Flux", l[flux+"namespace"], l[flux+"name"]), inValues + " in the HelmRelease", true}
	case l[kustomize+"name"] != "":
		return manager{fmt.Sprintf("Kustomization %s/%s of Flux", l[kustomize+"namespace"], l[kustomize+"name"]), inSource + "its source", true}
	case a["meta.helm.sh/release-name"] != "":
		name, namespace := named(a["meta.helm.sh/release-name"]), named(a["meta.helm.sh/release-namespace"])
		return manager{fmt.Sprintf("Helm release %s/%s", namespace, name), fmt.Sprintf("%s (to find the value, run: helm get values --all %s -n %s)", inValues, name, namespace), true}
	case setter == "" || setter == "kubectl-edit" || setter == "kubectl-patch" || setter == "kubectl-create":
		return manager{}
	case strings.HasPrefix(setter, "kubectl"):
		return manager{"A manifest that was applied with kubectl", inSource + "that manifest", false}
	}
	return manager{fmt.Sprintf("Field manager %s", setter), inSource + "what it applies", false}
}

// named returns the text if it is a name, and otherwise the word NAME. Annotations and owner references can have any text, which must not
// become part of a printed command.
func named(text string) string {
	if len(validation.IsDNS1123Subdomain(text)) > 0 {
		return "NAME"
	}
	return text
}

// strategySetter returns the field manager that wrote the type of the strategy last. Empty: nobody is known.
func strategySetter(d *appsv1.Deployment) (name string) {
	var latest metav1.Time
	for _, entry := range d.ManagedFields {
		var fields struct {
			Spec struct {
				Strategy map[string]any `json:"f:strategy"`
			} `json:"f:spec"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil || fields.Spec.Strategy["f:type"] == nil {
			continue
		}
		if at := ptr.Deref(entry.Time, metav1.Time{}); name == "" || latest.Before(&at) {
			name, latest = entry.Manager, at
		}
	}
	return name
}

// volumesInWords says whether the next pod can warm up while the old one has its volumes. Empty: the pod has none that matter.
func (c *cluster) volumesInWords(ctx context.Context, w *workload) (string, error) {
	var rows [][]string
	for i := range w.template.Spec.Volumes {
		v := &w.template.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			row, err := c.claimRow(ctx, w.GetNamespace(), v)
			if err != nil {
				return "", err
			}
			rows = append(rows, row)
		case v.HostPath != nil:
			rows = append(rows, []string{v.Name, "hostPath", "warm", "warm, but the data stays on the old node"})
		case v.EmptyDir != nil || v.Ephemeral != nil:
			rows = append(rows, []string{v.Name, "each pod has its own", "warm", "warm"})
		case v.NFS != nil:
			rows = append(rows, []string{v.Name, "NFS", "warm", "warm"})
		}
	}
	if w.deployment == nil {
		for i := range rows {
			rows[i][2], rows[i][3] = "cold", "cold"
		}
	}
	for i := range w.claims {
		rows = append(rows, []string{w.claims[i].Name, "claim of the StatefulSet", "cold", "cold"})
	}
	if len(rows) == 0 {
		return "", nil
	}
	return columns(func(row func(cells ...string)) {
		row("VOLUME", "KIND", "ROLLOUT", "DRAIN")
		for _, cells := range rows {
			row(cells...)
		}
	}), nil
}

// claimRow is a row of volumesInWords.
func (c *cluster) claimRow(ctx context.Context, namespace string, v *corev1.Volume) ([]string, error) {
	name := v.PersistentVolumeClaim.ClaimName
	claim := &corev1.PersistentVolumeClaim{}
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return []string{v.Name, "claim " + name, "the claim does not exist", "-"}, nil
	case apierrors.IsForbidden(err):
		return []string{v.Name, "claim " + name, "unknown: you do not have permission to read claims", "-"}, nil
	case err != nil:
		return nil, err
	}
	var modes []string
	for _, mode := range claim.Spec.AccessModes {
		modes = append(modes, string(mode))
	}
	is := []string{v.Name, fmt.Sprintf("claim %s, %s", name, strings.Join(modes, ", "))}
	if !handoff.ForOneNode(claim.Spec.AccessModes) {
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			return append(is, "cold", "cold"), nil
		}
		return append(is, "warm", "warm"), nil
	}
	elsewhere, err := c.elsewhere(ctx, claim)
	return append(is, "warm, on the same node", elsewhere), err
}

// elsewhere says whether a pod on another node can warm up beside the holder, which has the ReadWriteOnce claim.
func (c *cluster) elsewhere(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	const unknown = "cold, unless the volume needs no attachment"
	volume, driver := &corev1.PersistentVolume{}, &storagev1.CSIDriver{}
	if claim.Spec.VolumeName == "" {
		return unknown, nil
	}
	err := c.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume)
	switch {
	case err != nil:
	case volume.Spec.Local != nil || volume.Spec.HostPath != nil:
		return "not possible: the data is on one node", nil
	case volume.Spec.NFS != nil:
		return "warm", nil
	case volume.Spec.CSI == nil:
		return unknown, nil
	default:
		err = c.Get(ctx, client.ObjectKey{Name: volume.Spec.CSI.Driver}, driver)
	}
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return unknown, nil
	case err != nil:
		return "", err
	case ptr.Deref(driver.Spec.AttachRequired, true):
		return "cold", nil
	case volume.Spec.NodeAffinity != nil:
		return "warm, if another node can reach the volume", nil
	}
	return "warm", nil
}
