package observe

import (
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// longString is the size in bytes above which a string is cut or removed. It is longer than every string of a user that a
// decision compares.
const longString = 256

// trim removes large fields from an object that no decision reads.
func trim(o client.Object) {
	annotations := o.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, value string) bool { return len(value) > longString && !isOwn(key) })
	if pod, ok := o.(*corev1.Pod); ok {
		trimPod(pod)
		return
	}
	o.SetManagedFields(nil)
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		trimSpec(&o.Spec.Template.Spec)
	case *appsv1.Deployment:
		trimSpec(&o.Spec.Template.Spec)
	case *appsv1.StatefulSet:
		trimSpec(&o.Spec.Template.Spec)
	case *corev1.Node:
		o.Status = corev1.NodeStatus{Conditions: o.Status.Conditions}
	case *corev1.PersistentVolumeClaim, *discoveryv1.EndpointSlice:
		maps.DeleteFunc(annotations, func(key, _ string) bool { return !isOwn(key) })
	}
}

// trimPod keeps what proofs read of the managed fields: those of the status, and the times of all entries.
func trimPod(pod *corev1.Pod) {
	trimSpec(&pod.Spec)
	for i := range pod.ManagedFields {
		if f := pod.ManagedFields[i].FieldsV1; f != nil && !strings.Contains(f.GetRawString(), `"f:status"`) {
			pod.ManagedFields[i].FieldsV1 = nil
		}
	}
}

// trimSpec keeps the variables of the sidecar, which can have long settings of its Lease.
func trimSpec(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			cut(c.Command)
			cut(c.Args)
			for j := range c.Env {
				if c.Name != v1.SidecarName {
					c.Env[j].Value = shortened(c.Env[j].Value)
				}
			}
		}
	}
}

func cut(texts []string) {
	for i := range texts {
		texts[i] = shortened(texts[i])
	}
}

// shortened copies the beginning of a string, because a substring keeps the whole string in memory.
func shortened(text string) string {
	if len(text) > longString {
		return strings.Clone(text[:longString])
	}
	return text
}

// isOwn returns true for the annotations of this project.
func isOwn(annotation string) bool { return strings.HasPrefix(annotation, v1.GroupVersion.Group+"/") }

// TrimMetadata is the transform of all kinds in a cache. It removes managed fields and long annotations. Of the project's own
// annotations it keeps the beginning, because the cache must show that they exist. Objects from a cache must be written by
// patches, because an update would remove what the cache does not have.
func TrimMetadata(o any) (any, error) {
	object, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone of a deleted object
	}
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	for key, value := range annotations {
		if len(value) > longString && isOwn(key) {
			annotations[key] = shortened(value)
		} else if len(value) > longString {
			delete(annotations, key)
		}
	}
	return o, nil
}

// TrimNode is the transform of nodes in a cache. It keeps the fields of a node that show a drain, and whether the node is Ready.
func TrimNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil // a tombstone of a deleted object
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return kept, nil
}
