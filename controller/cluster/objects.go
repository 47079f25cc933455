package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// podTemplate is the part of a template that a pod gets, as from a StatefulSet. It keeps fields of the spec that this program
// does not know.
type podTemplate struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		Finalizers  []string          `json:"finalizers"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

// newPod returns the pod of a member. The template cannot remove or replace what the manager sets, and has no second entry beside
// it: the API server rejects two gates with one name.
func (e *execution) newPod(step membership.CreatePod) (*unstructured.Unstructured, error) {
	var template podTemplate
	if err := utiljson.Unmarshal(e.templateOf(step.Revision), &template); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the template of pod %s: %v", step.Name, err))
	}
	if template.Spec == nil {
		template.Spec = map[string]any{} // the API server says what is missing
	}
	volumes, _ := template.Spec["volumes"].([]any)
	for _, c := range step.Claims { // a claim replaces the volume with its name
		volumes = slices.DeleteFunc(volumes, func(volume any) bool { return fieldOf(volume, "name") == c.Volume })
		volumes = append(volumes, map[string]any{"name": c.Volume, "persistentVolumeClaim": map[string]any{"claimName": c.Name}})
	}
	template.Spec["volumes"] = volumes
	template.Spec["hostname"] = step.Name
	if e.Cluster.Spec.ServiceName != "" {
		template.Spec["subdomain"] = e.Cluster.Spec.ServiceName
	}
	addEntry(template.Spec, "schedulingGates", "name", v1.MemberGate)
	if e.Cluster.Spec.UpdateStrategy.Type == v1.ClusterInPlaceIfPossible {
		addEntry(template.Spec, "readinessGates", "conditionType", v1.MemberServing)
	}

	pod := &unstructured.Unstructured{Object: map[string]any{"spec": template.Spec}}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod.SetNamespace(e.Cluster.Namespace)
	pod.SetName(step.Name)
	pod.SetLabels(membership.PodLabels(e.Cluster, template.Metadata.Labels, step.Revision))
	pod.SetAnnotations(template.Metadata.Annotations)
	pod.SetFinalizers(template.Metadata.Finalizers)
	controllerutil.AddFinalizer(pod, v1.MemberFinalizer)
	pod.SetOwnerReferences(controlledBy(e.Cluster))
	return pod, nil
}

// addEntry appends an entry with one field to a list of the spec, unless the list has such an entry.
func addEntry(spec map[string]any, list, field, value string) {
	entries, _ := spec[list].([]any)
	if !slices.ContainsFunc(entries, func(entry any) bool { return fieldOf(entry, field) == value }) {
		entries = append(entries, map[string]any{field: value})
	}
	spec[list] = entries
}

func fieldOf(entry any, field string) any {
	of, _ := entry.(map[string]any)
	return of[field]
}

// templateOf returns the template of a revision.
func (e *execution) templateOf(revision string) []byte {
	is := e.Revision(revision)
	if is == nil || revision == e.plan.Status.UpdateRevision {
		return e.Cluster.Spec.Template.Raw
	}
	return is.Data.Raw
}

func (e *execution) newRevision(step membership.CreateRevision) *appsv1.ControllerRevision {
	revision := e.revision(step.Name)
	revision.Data, revision.Revision = runtime.RawExtension{Raw: e.Cluster.Spec.Template.Raw}, step.Number
	revision.Labels = map[string]string{v1.ClusterLabel: e.Cluster.Name}
	revision.OwnerReferences = controlledBy(e.Cluster)
	return revision
}

// newClaim returns a claim with the labels that a StatefulSet gives its claims. It has no owner, because the garbage collector
// would delete claims that are retained.
func (e *execution) newClaim(step membership.CreateClaim) (*corev1.PersistentVolumeClaim, error) {
	templates := e.Cluster.Spec.VolumeClaimTemplates
	i := slices.IndexFunc(templates, func(t v1.ClaimTemplate) bool { return t.Metadata.Name == step.Volume })
	if i < 0 {
		return nil, fmt.Errorf("create PersistentVolumeClaim %s: spec.volumeClaimTemplates has no volume %s", step.Name, step.Volume)
	}
	template := &templates[i]
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: e.named(step.Name)}
	claim.Labels = labels.Merge(labels.Merge(template.Metadata.Labels, e.Cluster.Spec.Selector.MatchLabels), labels.Set{v1.ClusterLabel: e.Cluster.Name})
	claim.Annotations = template.Metadata.Annotations
	spec, err := json.Marshal(template.Spec)
	if err == nil {
		err = json.Unmarshal(spec, &claim.Spec)
	}
	if err != nil {
		return nil, fmt.Errorf("read spec.volumeClaimTemplates of volume %s: %w", step.Volume, err)
	}
	return claim, nil
}

// controlledBy returns the owner references of an object that is garbage-collected with the StatefulCluster.
func controlledBy(cluster *v1.StatefulCluster) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: "StatefulCluster", Name: cluster.Name, UID: cluster.UID, Controller: new(true),
	}}
}
