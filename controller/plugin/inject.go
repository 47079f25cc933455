package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/handoff"
)

func (c commands) injectCommand() *cobra.Command {
	var file, output string
	var candidates []candidate
	cmd := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Show how a new pod would be changed, and what would hold each container",
		Long: `inject creates pods in a dry-run of the API server, including Kyverno and the guards, which stores nothing. FILE is a
file, a directory, a URL, or - for standard input, as in kubectl apply. It contains Pods or objects with a pod
template: a Deployment, StatefulSet, ReplicaSet or Job. inject shows what would hold each container. With -o yaml
it prints the changed pod.

The exit code is 1 if the pod would not be held. inject then says why.`,
		Example: `  kubectl stfs inject -f deployment.yaml -n prod

  # All that would be changed
  kubectl stfs inject -f pod.yaml -o yaml

  # Of what runs already
  kubectl get deployment db -o yaml | kubectl stfs inject -f -`,
		Args: takes(0, 0),
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) { // the cluster is not asked before
			if file == "" {
				return fmt.Errorf("no manifests are given: name a file, a directory or a URL with -f, or - for standard input; %s --help has examples", cmd.CommandPath())
			}
			candidates, err = c.candidatesIn(file)
			return err
		},
		RunE: c.in(func(ctx context.Context, in *cluster, _ []string) error {
			return c.inject(ctx, in, candidates, output)
		}),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the manifests: a file, a directory, a URL, or - for standard input (required)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or yaml")
	if err := cmd.MarkFlagRequired("filename"); err != nil {
		panic(err) // it exists
	}
	completeOutput(cmd, "text", "yaml")
	return cmd
}

func (c commands) inject(ctx context.Context, in *cluster, candidates []candidate, output string) error {
	if output != "text" && output != "yaml" {
		return fmt.Errorf("--output is %q: use text or yaml", output)
	}
	var failed []error
	for i, candidate := range candidates {
		if i > 0 {
			fmt.Fprint(c.Out, separator(output))
		}
		if err := c.injectOne(ctx, in, candidate, output); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", candidate.from, err))
		}
	}
	return errors.Join(failed...)
}

// candidate is a pod that could be created.
type candidate struct {
	// from is the object with the pod template, for example "Deployment db".
	from string
	pod  *corev1.Pod
}

// candidatesIn returns the pods that the objects of the file would create.
func (c commands) candidatesIn(file string) (all []candidate, err error) {
	manifests := resource.NewLocalBuilder().Unstructured().Flatten()
	if file == "-" {
		manifests.Stream(c.In, "standard input")
	} else {
		manifests.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{file}})
	}
	err = manifests.Do().Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		pod, from, err := podIn(info.Object.(*unstructured.Unstructured))
		if pod != nil {
			all = append(all, candidate{from, pod})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has neither a Pod nor anything with a pod template, as a Deployment has it", file)
	}
	return all, nil
}

// podIn returns a new pod from a Pod or from an object with a pod template, or nil.
func podIn(object *unstructured.Unstructured) (pod *corev1.Pod, from string, err error) {
	pod = &corev1.Pod{}
	if object.GetKind() == "Pod" {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, pod, true); err != nil {
			return nil, "", err
		}
	} else {
		content, _, _ := unstructured.NestedMap(object.Object, "spec", "template") // nil where there is none
		var template corev1.PodTemplateSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &template); err != nil {
			return nil, "", err
		}
		if len(template.Spec.Containers) == 0 {
			return nil, "", nil
		}
		pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
	}
	name := cmp.Or(object.GetName(), strings.TrimSuffix(object.GetGenerateName(), "-"), "pod")
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: object.GetNamespace(), GenerateName: name + "-", // one of that name may be there
		Labels: pod.Labels, Annotations: pod.Annotations, Finalizers: pod.Finalizers,
	}
	return pod, object.GetKind() + " " + name, nil
}

func (c commands) injectOne(ctx context.Context, in *cluster, is candidate, output string) error {
	if in.named && is.pod.Namespace != "" && is.pod.Namespace != in.namespace {
		return fmt.Errorf("it is in namespace %s, and -n names %s: leave one of them out", is.pod.Namespace, in.namespace)
	}
	is.pod.Namespace = cmp.Or(is.pod.Namespace, in.namespace)
	singletons, err := in.list(ctx, is.pod.Namespace)
	if err != nil {
		return err
	}
	picking := slices.DeleteFunc(slices.Clone(singletons), func(s v1.StatefulSingleton) bool { return !picks(&s, is.pod) })
	if err := in.Create(ctx, is.pod, client.DryRunAll); err != nil {
		return fmt.Errorf("a pod of it would be refused: %w.%s", err, in.policyHint(picking))
	}
	if output == "yaml" {
		is.pod.ManagedFields = nil
		is.pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		data, err := yaml.Marshal(is.pod)
		if err != nil {
			return err
		}
		if err := c.print("%s", data); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(singletons, func(s v1.StatefulSingleton) bool {
		return is.pod.Annotations[v1.InjectedAnnotation] == fullName(&s)
	})
	if i < 0 {
		return in.notInjected(is.pod, singletons, picking)
	}
	holds := handoff.Holds(is.pod, &singletons[i])
	if output == "text" {
		if err := c.print("A pod of %s in namespace %s would be injected for StatefulSingleton %s:\n\n%s",
			is.from, is.pod.Namespace, singletons[i].Name, containersInWords(is.pod, holds)); err != nil {
			return err
		}
	}
	if len(picking) > 1 {
		return fmt.Errorf("it is picked by several StatefulSingletons, of which none releases it: %s", namesOf(picking))
	}
	if slices.ContainsFunc(holds, func(h handoff.Hold) bool { return h.By == handoff.ByNothing }) {
		return errors.New("not every container of it would be held that is to be")
	}
	return nil
}

func picks(singleton *v1.StatefulSingleton, pod *corev1.Pod) bool {
	selector, err := singleton.Spec.Selector.Parse()
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// notInjected says why a pod may not be injected.
func (c *cluster) notInjected(pod *corev1.Pod, singletons, picking []v1.StatefulSingleton) error {
	if len(picking) > 0 {
		return fmt.Errorf("nothing would hold a pod of it, though StatefulSingleton %s picks it: Kyverno did not change it.%s", namesOf(picking), c.policyHint(picking))
	}
	text := fmt.Sprintf("nothing would hold a pod of it: no StatefulSingleton of namespace %s picks the labels %s", pod.Namespace, labels.FormatLabels(pod.Labels))
	if len(singletons) == 0 {
		return errors.New(text + "; the namespace has none")
	}
	var selectors []string
	for i := range singletons {
		selectors = append(selectors, fmt.Sprintf("%s picks %s", singletons[i].Name, metav1.FormatLabelSelector(singletons[i].Spec.Selector.Meta())))
	}
	return errors.New(text + ": " + strings.Join(selectors, "; "))
}

// policyHint returns what the controller reports about the policies.
func (c *cluster) policyHint(picking []v1.StatefulSingleton) (hint string) {
	for i := range picking {
		if is := meta.FindStatusCondition(picking[i].Status.Conditions, v1.ConditionPolicyInstalled); is != nil {
			hint += fmt.Sprintf(" Condition %s of %s is %s: %s.", is.Type, picking[i].Name, is.Status, c.amended(is.Message))
		}
	}
	if len(picking) > 0 {
		hint += fmt.Sprintf(" `%s` says whether Kyverno and the guards are there", c.check())
	}
	return hint
}

func namesOf(singletons []v1.StatefulSingleton) string {
	names := make([]string, len(singletons))
	for i := range singletons {
		names[i] = singletons[i].Name
	}
	return strings.Join(names, ", ")
}

// containersInWords describes what holds each container.
func containersInWords(pod *corev1.Pod, holds []handoff.Hold) string {
	return columns(func(row func(cells ...string)) {
		row("CONTAINER", "KIND", "HELD BY", "STARTS")
		for i := range pod.Spec.InitContainers {
			container := &pod.Spec.InitContainers[i]
			kind := "init"
			if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				kind = "sidecar"
			}
			by, starts := holdInWords(container.Name, true, holds)
			row(container.Name, kind, by, starts)
		}
		for i := range pod.Spec.Containers {
			by, starts := holdInWords(pod.Spec.Containers[i].Name, false, holds)
			row(pod.Spec.Containers[i].Name, "regular", by, starts)
		}
	})
}

func holdInWords(container string, isInit bool, holds []handoff.Hold) (by, starts string) {
	i := slices.IndexFunc(holds, func(h handoff.Hold) bool { return h.Container == container && h.Init == isInit })
	switch {
	case container == v1.SidecarName && isInit:
		return "-", "at once: it is the gate, which brings the signal"
	case i < 0:
		return "-", "at once, in a standby too"
	case holds[i].By == handoff.ByWrapper:
		return "wrapper", "once the pod is signalled"
	case holds[i].By == handoff.ByBarrier:
		return "barrier", "once ConfigMap " + holds[i].ConfigMap + " exists, as named anew for each pod"
	}
	return "NOTHING", "at once, though it is to be held"
}
