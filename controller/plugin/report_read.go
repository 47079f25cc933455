package plugin

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// logLines and logBytes limit the log of a container: its last lines, and of these the first bytes.
	logLines = 2000
	logBytes = 1 << 20
	// maxControllerLogs is the largest number of pods of the chart whose logs are read.
	maxControllerLogs = 20
	// reportPage is the number of objects that one request reads.
	reportPage = 250
)

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// collect reads everything.
func (r *report) collect(ctx context.Context, all bool) {
	namespaces := []string{r.in.namespace}
	if all {
		namespaces = r.namespaces(ctx)
	}
	r.progress("Reading the installation")
	r.addCheck(ctx)
	controllers := r.addController(ctx)
	r.addVersions(ctx, controllers)
	r.addCluster(ctx)
	for _, namespace := range namespaces {
		r.progress("Reading namespace %s", namespace)
		r.addNamespace(ctx, namespace)
	}
}

// namespaces returns the namespaces with objects of the project.
func (r *report) namespaces(ctx context.Context) []string {
	found := sets.New[string]()
	for _, k := range allKinds {
		objects, err := r.in.objects(ctx, k, metav1.NamespaceAll)
		if err != nil {
			r.missed("list "+k.name+"s in all namespaces", err)
		}
		for _, o := range objects {
			found.Insert(o.GetNamespace())
		}
	}
	return sets.List(found)
}

// list lists the objects of a kind for which keep returns true. A nil keep means all objects.
func (r *report) list(ctx context.Context, kind schema.GroupVersionKind, keep func(*unstructured.Unstructured) bool, options ...client.ListOption) (objects []unstructured.Unstructured) {
	for next, first := "", true; first || next != ""; first = false {
		page := &unstructured.UnstructuredList{}
		page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := r.in.List(ctx, page, slices.Concat(options, []client.ListOption{client.Limit(reportPage), client.Continue(next)})...); err != nil {
			if !meta.IsNoMatchError(err) || kind.Kind != clusterKind.name { // StatefulClusters are optional
				r.missed("list "+kind.Kind+"s"+inNamespace(options), err)
			}
			return objects
		}
		for i := range page.Items {
			if keep == nil || keep(&page.Items[i]) {
				objects = append(objects, page.Items[i])
			}
		}
		next = page.GetContinue()
	}
	return objects
}

// inNamespace says which namespace the options select.
func inNamespace(options []client.ListOption) string {
	var of client.ListOptions
	of.ApplyOptions(options)
	if of.Namespace == "" {
		return ""
	}
	return " in namespace " + of.Namespace
}

// named reads the objects of a kind with the names. It leaves out those that do not exist.
func (r *report) named(ctx context.Context, kind schema.GroupVersionKind, namespace string, names sets.Set[string]) (objects []unstructured.Unstructured) {
	for _, name := range sets.List(names) {
		o := unstructured.Unstructured{}
		o.SetGroupVersionKind(kind)
		err := r.in.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &o)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			r.missed(strings.TrimSpace("read "+kind.Kind+" "+path.Join(namespace, name)), err)
		default:
			objects = append(objects, o)
		}
	}
	return objects
}

// addCheck adds the output of `kubectl stfs check`.
func (r *report) addCheck(ctx context.Context) {
	var out bytes.Buffer
	checks := r.c
	checks.Out = &out
	if err := checks.check(ctx, r.in); err != nil {
		fmt.Fprintf(&out, "\nerror: %v\n", err)
	}
	r.addText("check.txt", out.String())
}

// addVersions adds the versions of all parts.
func (r *report) addVersions(ctx context.Context, controllers []unstructured.Unstructured) {
	versions := map[string]any{"plugin": r.c.version}
	if info, err := r.in.serverVersion(); err != nil {
		r.missed("read the version of Kubernetes", err)
	} else {
		versions["kubernetes"] = info.GitVersion
	}
	if _, image, err := kyvernoDeployment(ctx, r.in); err != nil {
		r.missed("read the version of Kyverno", err)
	} else {
		versions["kyverno"] = image
	}
	charts := map[string]string{}
	for i := range controllers {
		labels := controllers[i].GetLabels()
		charts[fullName(&controllers[i])] = strings.TrimSpace(labels["app.kubernetes.io/version"] + " " + labels["helm.sh/chart"])
	}
	versions["controllers"] = charts
	data, err := yaml.Marshal(versions)
	if err != nil {
		r.missed("encode the versions", err)
	}
	r.add("versions.yaml", data)
}

// addController adds the Deployments and pods of the chart, their leader election, events and logs. It returns the Deployments.
func (r *report) addController(ctx context.Context) []unstructured.Unstructured {
	deployments := r.list(ctx, appsv1.SchemeGroupVersion.WithKind("Deployment"), nil, chartLabels)
	pods := r.list(ctx, corev1.SchemeGroupVersion.WithKind("Pod"), nil, chartLabels)
	s := newScope()
	namespaces := sets.New[string]()
	for _, o := range slices.Concat(deployments, pods) {
		s.add(&o)
		namespaces.Insert(o.GetNamespace())
	}
	r.addObjects("controller/deployments.yaml", true, slices.Clone(deployments))
	r.addObjects("controller/pods.yaml", true, pods)
	for _, namespace := range sets.List(namespaces) {
		of := client.InNamespace(namespace)
		leads := func(o *unstructured.Unstructured) bool { return strings.HasPrefix(o.GetName(), "statefulsingleton") }
		r.addObjects("controller/"+namespace+"/leases.yaml", true, r.list(ctx, coordinationv1.SchemeGroupVersion.WithKind("Lease"), leads, of))
		r.addObjects("controller/"+namespace+"/events.yaml", true, r.list(ctx, corev1.SchemeGroupVersion.WithKind("Event"), s.concerns, of))
	}
	for i := range pods[:min(len(pods), maxControllerLogs)] { // anybody can label pods
		r.addLogs(ctx, "controller/"+pods[i].GetNamespace()+"/logs/", &pods[i], func(container string) bool {
			return container == "manager" || container == "uninstall"
		})
	}
	return deployments
}

// addCluster adds the objects without a namespace that decide what happens to the pods.
func (r *report) addCluster(ctx context.Context) {
	nodes := r.list(ctx, corev1.SchemeGroupVersion.WithKind("Node"), nil)
	for i := range nodes {
		unstructured.RemoveNestedField(nodes[i].Object, "status", "images")
	}
	r.addObjects("cluster/nodes.yaml", false, nodes)
	definitions := r.list(ctx, crdKind, func(o *unstructured.Unstructured) bool {
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		return group == v1.GroupVersion.Group || strings.HasSuffix(group, "kyverno.io")
	})
	for i := range definitions {
		withoutSchemas(&definitions[i])
	}
	r.addObjects("cluster/customresourcedefinitions.yaml", true, definitions)
	for _, kind := range policyKinds {
		r.addObjects("cluster/"+fileOf(kind), true, r.list(ctx, kind, nil, ownPolicies))
	}
	group := admissionregistrationv1.SchemeGroupVersion
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		r.addObjects("cluster/"+fileOf(group.WithKind(kind)), true, r.list(ctx, group.WithKind(kind), nil, chartLabels))
	}
	for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
		r.addObjects("cluster/"+fileOf(group.WithKind(kind)), false, r.list(ctx, group.WithKind(kind), nil))
	}
}

// withoutSchemas keeps which versions of a CustomResourceDefinition are served and stored.
func withoutSchemas(definition *unstructured.Unstructured) {
	keepFields(definition, "spec", "group", "scope", "versions")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		if fields, ok := version.(map[string]any); ok {
			maps.DeleteFunc(fields, func(key string, _ any) bool { return key != "name" && key != "served" && key != "storage" })
		}
	}
	_ = unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions") // spec is a map, as keepFields left it
}

// fileOf returns the name of the file with the objects of a kind.
func fileOf(kind schema.GroupVersionKind) string {
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return plural.Resource + ".yaml"
}

// addNamespace adds the objects of the project in a namespace, and the objects that belong to them.
func (r *report) addNamespace(ctx context.Context, namespace string) {
	dir, of := "namespaces/"+namespace+"/", client.InNamespace(namespace)
	s := newScope()
	for _, k := range allKinds {
		kind := v1.GroupVersion.WithKind(k.name)
		r.addObjects(dir+fileOf(kind), false, r.list(ctx, kind, nil, of)) // a StatefulCluster has the template of a user
		r.explainAll(ctx, k, namespace, s)
	}
	pods := r.list(ctx, corev1.SchemeGroupVersion.WithKind("Pod"), s.has, of)
	for i := range pods {
		s.addPod(&pods[i])
	}
	for _, kind := range []string{"ReplicaSet", "Deployment", "StatefulSet"} { // owners after what they own
		kind := appsv1.SchemeGroupVersion.WithKind(kind)
		objects := r.list(ctx, kind, s.has, of)
		for i := range objects {
			s.add(&objects[i])
		}
		r.addObjects(dir+fileOf(kind), false, objects)
	}
	r.addObjects(dir+"pods.yaml", false, pods)
	for _, kind := range []schema.GroupVersionKind{coordinationv1.SchemeGroupVersion.WithKind("Lease"), policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")} {
		r.addObjects(dir+fileOf(kind), false, r.list(ctx, kind, s.has, of))
	}
	r.addVolumes(ctx, dir, namespace, s)
	r.addBarriers(ctx, dir, namespace, s)
	r.addObjects(dir+"events.yaml", false, r.list(ctx, corev1.SchemeGroupVersion.WithKind("Event"), s.concerns, of))
	for i := range pods {
		r.addLogs(ctx, dir+"logs/", &pods[i], func(container string) bool { return container == v1.SidecarName })
	}
}

// explainAll adds what explain says about each object of the kind, and records in the scope what belongs to the object.
func (r *report) explainAll(ctx context.Context, k kind, namespace string, s *scope) {
	objects, err := r.in.objects(ctx, k, namespace)
	if err != nil {
		return // the list before failed too
	}
	for _, o := range objects {
		s.uids.Insert(o.GetUID())
		s.addNamesOf(o)
		what := k.name + " " + fullName(o)
		is, err := r.in.look(ctx, o)
		if err != nil {
			r.missed("explain "+what, err)
			continue
		}
		now := r.c.clock.Now()
		for _, pod := range is.status(now).Pods {
			s.names.Insert("Pod/" + pod.Name)
		}
		r.addText("namespaces/"+namespace+"/explain/"+k.shortName+"-"+o.GetName()+".txt", is.explanation(now).text())
	}
}

// addVolumes adds the claims and their volumes. Of the source of a volume, only the driver is kept.
func (r *report) addVolumes(ctx context.Context, dir, namespace string, s *scope) {
	claims := r.named(ctx, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), namespace, s.claims)
	volumes := sets.New[string]()
	for i := range claims {
		if volume, _, _ := unstructured.NestedString(claims[i].Object, "spec", "volumeName"); volume != "" {
			volumes.Insert(volume)
		}
	}
	r.addObjects(dir+"persistentvolumeclaims.yaml", false, claims)
	bound := r.named(ctx, corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "", volumes)
	for i := range bound {
		driver, _, _ := unstructured.NestedString(bound[i].Object, "spec", "csi", "driver")
		keepFields(&bound[i], "spec", "accessModes", "capacity", "claimRef", "nodeAffinity", "persistentVolumeReclaimPolicy", "storageClassName", "volumeMode")
		if driver != "" {
			_ = unstructured.SetNestedField(bound[i].Object, driver, "spec", "csi", "driver") // spec is a map
		}
	}
	r.addObjects(dir+"persistentvolumes.yaml", false, bound)
}

// addBarriers adds the ConfigMaps that open barriers. Of their data, only the epoch is kept: a user can let a pod name any ConfigMap.
func (r *report) addBarriers(ctx context.Context, dir, namespace string, s *scope) {
	barriers := r.named(ctx, corev1.SchemeGroupVersion.WithKind("ConfigMap"), namespace, s.barriers)
	for i := range barriers {
		keepFields(&barriers[i], "data", signal.EpochKey)
		delete(barriers[i].Object, "binaryData")
	}
	r.addObjects(dir+"configmaps.yaml", true, barriers)
}

// addLogs adds the logs of the containers of a pod for which which returns true, and the logs of their instances before.
func (r *report) addLogs(ctx context.Context, dir string, of *unstructured.Unstructured, which func(container string) bool) {
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		statuses, _, _ := unstructured.NestedSlice(of.Object, "status", list)
		for _, status := range statuses {
			fields, _ := status.(map[string]any)
			container, _, _ := unstructured.NestedString(fields, "name")
			if !which(container) {
				continue
			}
			r.addLog(ctx, dir, of, container, false)
			if restarts, _, _ := unstructured.NestedInt64(fields, "restartCount"); restarts > 0 {
				r.addLog(ctx, dir, of, container, true)
			}
		}
	}
}

func (r *report) addLog(ctx context.Context, dir string, of *unstructured.Unstructured, container string, previous bool) {
	log, err := r.in.log(ctx, of.GetNamespace(), of.GetName(), &corev1.PodLogOptions{
		Container: container, Previous: previous, Timestamps: true, TailLines: ptr.To[int64](logLines), LimitBytes: ptr.To[int64](logBytes),
	})
	name := of.GetName() + "-" + container
	if previous {
		name += "-previous"
	}
	if err != nil {
		r.missed("read the log "+of.GetNamespace()+"/"+name, err)
		return
	}
	r.addText(dir+name+".log", string(log))
}
