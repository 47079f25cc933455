package plugin

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// scope is what belongs to the objects of the project in a namespace.
type scope struct {
	// uids are the objects, their pods, and what controls the pods.
	uids sets.Set[types.UID]
	// names are objects by kind and name, for example StatefulSet/db.
	names sets.Set[string]
	// selectors select pods.
	selectors []labels.Selector
	// pods are the labels of the pods.
	pods []labels.Set
	// claims and barriers are the names of PersistentVolumeClaims and of ConfigMaps that the pods need.
	claims, barriers sets.Set[string]
}

func newScope() *scope {
	return &scope{uids: sets.New[types.UID](), names: sets.New[string](), claims: sets.New[string](), barriers: sets.New[string]()}
}

// addNamesOf adds what an object of the project names.
func (s *scope) addNamesOf(o client.Object) {
	switch o := o.(type) {
	case *v1.StatefulSingleton:
		if selector, err := o.Spec.Selector.Parse(); err == nil {
			s.selectors = append(s.selectors, selector)
		}
	case *v1.StatefulSetLock:
		s.names.Insert("StatefulSet/"+o.Spec.StatefulSetName, "Lease/"+o.Spec.LeaseName)
	case *v1.StatefulCluster:
		for _, m := range o.Status.Members {
			for _, c := range m.Claims {
				s.claims.Insert(c.Name)
			}
		}
		for _, c := range o.Status.Released {
			s.claims.Insert(c.Name)
		}
	}
}

// add adds an object, and what controls it.
func (s *scope) add(o *unstructured.Unstructured) {
	s.uids.Insert(o.GetUID())
	if controller := metav1.GetControllerOf(o); controller != nil {
		s.uids.Insert(controller.UID)
	}
}

// addPod adds a pod, what controls it, and the names of its claims and barriers.
func (s *scope) addPod(o *unstructured.Unstructured) {
	s.add(o)
	s.pods = append(s.pods, o.GetLabels())
	var pod corev1.Pod
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod) != nil {
		return
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			s.claims.Insert(volume.PersistentVolumeClaim.ClaimName)
		}
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, variable := range container.Env {
			from := variable.ValueFrom
			if variable.Name == signal.EpochEnv && from != nil && from.ConfigMapKeyRef != nil && strings.HasPrefix(from.ConfigMapKeyRef.Name, v1.ManagedBy+"-") {
				s.barriers.Insert(from.ConfigMapKeyRef.Name)
			}
		}
	}
}

// has returns true if the object belongs to the objects of the project: it is one of them or has one of the names, an object of the
// scope owns it, or its pod template or its selector fits.
func (s *scope) has(o *unstructured.Unstructured) bool {
	if s.uids.Has(o.GetUID()) || s.names.Has(o.GetKind()+"/"+o.GetName()) {
		return true
	}
	if slices.ContainsFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return s.uids.Has(ref.UID) }) {
		return true
	}
	return s.selectsTemplate(o) || o.GetKind() == "PodDisruptionBudget" && s.isSelected(o)
}

func (s *scope) selectsTemplate(o *unstructured.Unstructured) bool {
	of, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
	return len(of) > 0 && slices.ContainsFunc(s.selectors, func(selector labels.Selector) bool { return selector.Matches(labels.Set(of)) })
}

// isSelected returns true if the selector of the object selects a pod of the scope.
func (s *scope) isSelected(o *unstructured.Unstructured) bool {
	var of metav1.LabelSelector
	fields, found, _ := unstructured.NestedMap(o.Object, "spec", "selector")
	if !found || runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &of) != nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(&of)
	return err == nil && slices.ContainsFunc(s.pods, func(pod labels.Set) bool { return selector.Matches(pod) })
}

// concerns returns true if an event is about an object of the scope.
func (s *scope) concerns(event *unstructured.Unstructured) bool {
	uid, _, _ := unstructured.NestedString(event.Object, "involvedObject", "uid")
	kind, _, _ := unstructured.NestedString(event.Object, "involvedObject", "kind")
	name, _, _ := unstructured.NestedString(event.Object, "involvedObject", "name")
	return s.uids.Has(types.UID(uid)) || s.names.Has(kind+"/"+name) || kind == "PersistentVolumeClaim" && s.claims.Has(name)
}
