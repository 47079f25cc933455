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
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
)

func (c commands) injectCommand() *cobra.Command {
	var file, output string
	var candidates []candidate
	cmd := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Show how Kyverno would change a new pod, and what would hold each container",
		Long: `inject creates pods in a dry-run of the API server. The dry-run includes Kyverno and the guards, and stores nothing.
FILE is a file, a directory, a URL, or - for standard input, as in kubectl apply. FILE contains Pods, or objects with
a pod template: a Deployment, StatefulSet, ReplicaSet, Job or CronJob. inject shows what would hold each container. With
-o yaml, it prints the changed pod.

If a pod would not be held, inject prints the reason, and the exit code is 1.`,
		Example: `  kubectl stfs inject -f deployment.yaml -n prod

  # Print the changed pod
  kubectl stfs inject -f pod.yaml -o yaml

  # Check the pod template of a Deployment in the cluster
  kubectl get deployment db -o yaml | kubectl stfs inject -f -`,
		Args: takes(0, 0),
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) { // before the connection to the cluster
			if file == "" {
				return fmt.Errorf("no manifests are given. Set -f to a file, a directory, a URL, or - for standard input. To show examples, run: %s --help", cmd.CommandPath())
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
		panic(err) // the flag exists
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
		return nil, fmt.Errorf("%s contains neither a Pod nor an object with a pod template, for example a Deployment. Set -f to another file", file)
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
		fields := []string{"spec", "template"}
		if object.GetKind() == "CronJob" {
			fields = []string{"spec", "jobTemplate", "spec", "template"}
		}
		content, _, _ := unstructured.NestedMap(object.Object, fields...) // nil if the object has no pod template
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
		Namespace: object.GetNamespace(), GenerateName: name + "-", // a pod with the name of the object may exist
		Labels: pod.Labels, Annotations: pod.Annotations, Finalizers: pod.Finalizers,
	}
	return pod, object.GetKind() + " " + name, nil
}

func (c commands) injectOne(ctx context.Context, in *cluster, is candidate, output string) error {
	if in.named && is.pod.Namespace != "" && is.pod.Namespace != in.namespace {
		return fmt.Errorf("the manifest has namespace %s, and -n is %s. Leave out -n, or remove the namespace from the manifest", is.pod.Namespace, in.namespace)
	}
	is.pod.Namespace = cmp.Or(is.pod.Namespace, in.namespace)
	var existing v1.StatefulSingletonList
	if err := in.List(ctx, &existing, client.InNamespace(is.pod.Namespace)); err != nil {
		return err
	}
	singletons := existing.Items
	selecting := slices.DeleteFunc(slices.Clone(singletons), func(s v1.StatefulSingleton) bool { return !selects(&s, is.pod) })
	if err := in.Create(ctx, is.pod, client.DryRunAll); err != nil {
		return fmt.Errorf("the API server rejects the new pod: %w.%s", err, in.policyHint(selecting))
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
		return in.notInjected(is.pod, singletons, selecting)
	}
	held := injected.Containers(is.pod, &singletons[i])
	if output == "text" {
		if err := c.print("A pod of %s in namespace %s would be injected for StatefulSingleton %s:\n\n%s",
			is.from, is.pod.Namespace, singletons[i].Name, containersInWords(is.pod, held)); err != nil {
			return err
		}
		if text := probesInWords(is.pod); text != "" {
			if err := c.print("\n%s", text); err != nil {
				return err
			}
		}
	}
	if len(selecting) > 1 {
		return fmt.Errorf("several StatefulSingletons select the new pod, so none of them would release the pod: %s. Delete all but one of them, or change the labels of the pod", namesOf(selecting))
	}
	if names := notHeld(held); len(names) > 0 {
		return fmt.Errorf("these containers would start before the signal, because nothing holds them: %s. To check Kyverno and the guards, run: %s", strings.Join(names, ", "), in.check())
	}
	return nil
}

// notHeld returns the containers that must be held, and that nothing holds.
func notHeld(held []injected.Container) (names []string) {
	for _, h := range held {
		if h.Unheld {
			names = append(names, h.Name)
		}
	}
	return names
}

func selects(singleton *v1.StatefulSingleton, pod *corev1.Pod) bool {
	selector, err := singleton.Spec.Selector.Parse()
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}

// notInjected returns why Kyverno did not inject the pod. selecting are the singletons that select the pod.
func (c *cluster) notInjected(pod *corev1.Pod, singletons, selecting []v1.StatefulSingleton) error {
	if len(selecting) > 0 {
		return fmt.Errorf("nothing would hold the new pod, although StatefulSingleton %s selects the pod: Kyverno did not change the pod.%s", namesOf(selecting), c.policyHint(selecting))
	}
	text := fmt.Sprintf("nothing would hold the new pod: no StatefulSingleton in namespace %s selects the labels %s", pod.Namespace, labels.FormatLabels(pod.Labels))
	if len(singletons) == 0 {
		return errors.New(text + ". The namespace has no StatefulSingletons. Set another namespace with -n, or create a StatefulSingleton")
	}
	var selectors []string
	for i := range singletons {
		selectors = append(selectors, fmt.Sprintf("%s selects %s", singletons[i].Name, metav1.FormatLabelSelector(singletons[i].Spec.Selector.Meta())))
	}
	return fmt.Errorf("%s. StatefulSingleton %s. Change the labels of the pod, or set another namespace with -n", text, strings.Join(selectors, ", "))
}

// policyHint returns the condition PolicyInstalled of each StatefulSingleton that selects the pod, and the next step.
func (c *cluster) policyHint(selecting []v1.StatefulSingleton) (hint string) {
	for i := range selecting {
		if is := meta.FindStatusCondition(selecting[i].Status.Conditions, v1.ConditionPolicyInstalled); is != nil {
			hint += fmt.Sprintf(" Condition %s of StatefulSingleton %s is %s: %s.", is.Type, selecting[i].Name, is.Status, c.amended(is.Message))
		}
	}
	if len(selecting) > 0 {
		hint += fmt.Sprintf(" To check Kyverno and the guards, run: %s", c.check())
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

// containersInWords describes how each container is held, and when it starts.
func containersInWords(pod *corev1.Pod, held []injected.Container) string {
	return columns(func(row func(cells ...string)) {
		row("CONTAINER", "KIND", "HELD BY", "STARTS")
		for i := range pod.Spec.InitContainers {
			container := &pod.Spec.InitContainers[i]
			kind := "init"
			if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				kind = "sidecar"
			}
			by, starts := holdInWords(container.Name, true, held)
			row(container.Name, kind, by, starts)
		}
		for i := range pod.Spec.Containers {
			by, starts := holdInWords(pod.Spec.Containers[i].Name, false, held)
			row(pod.Spec.Containers[i].Name, "regular", by, starts)
		}
	})
}

func holdInWords(container string, isInit bool, held []injected.Container) (by, starts string) {
	i := slices.IndexFunc(held, func(h injected.Container) bool { return h.Name == container && h.Init == isInit })
	switch {
	case container == v1.SidecarName && isInit:
		return "-", "at once, to deliver the signal"
	case i < 0:
		return "-", "at once, also in a standby"
	case held[i].Unheld:
		return "NOTHING", "at once, although the container must be held"
	case held[i].ConfigMap != "":
		return "barrier", "after ConfigMap " + held[i].ConfigMap + " exists. Each pod has its own ConfigMap"
	}
	return "wrapper", "after the signal"
}
