package membership

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// imagesInPlace returns the new images that the pod gets in place, by container. It is empty if the pod must be replaced.
func (d *decision) imagesInPlace(m *member) map[string]string {
	i := slices.IndexFunc(d.Revisions, named(m.Revision))
	if d.Cluster.Spec.UpdateStrategy.Type != v1.ClusterInPlaceIfPossible || d.Cluster.DeletionTimestamp != nil || m.pod == nil || !hasServingGate(m.pod) || i < 0 {
		return nil
	}
	return changedImages(d.Revisions[i].Data.Raw, d.Cluster.Spec.Template.Raw)
}

func hasServingGate(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1.MemberServing })
}

// changedImages returns the images of regular containers that the new template changes, by container. It is empty if the
// templates also differ in something else.
func changedImages(before, after []byte) map[string]string {
	old, oldImages := splitImages(before)
	is, images := splitImages(after)
	if old == nil || !equality.Semantic.DeepEqual(old, is) {
		return nil
	}
	changed := map[string]string{}
	for container, image := range images {
		if oldImages[container] != image {
			changed[container] = image
		}
	}
	return changed
}

// splitImages returns a template without the images of its regular containers, and the images by container.
func splitImages(data []byte) (template map[string]any, images map[string]string) {
	images = map[string]string{}
	if json.Unmarshal(data, &template) != nil {
		return nil, nil
	}
	spec, _ := template["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok {
			name, _ := container["name"].(string)
			images[name], _ = container["image"].(string)
			delete(container, "image")
		}
	}
	return template, images
}

// updateInPlace continues the update of a pod up to the change of its images.
func (d *decision) updateInPlace(m *member, images map[string]string) {
	serving := proof.Condition(m.pod, v1.MemberServing)
	if serving == nil || serving.Status != corev1.ConditionFalse {
		d.do(SetServing{Pod: refOf(m.pod), Version: m.pod.ResourceVersion})
		d.requeueIn(servingPoll)
		return
	}
	if left := servingPatience - d.now.Sub(serving.LastTransitionTime.Time); d.Serving[m.UID] && left > 0 {
		d.requeueIn(servingPoll)
		return
	}
	before := map[string]string{}
	for container := range images {
		if s := proof.StatusOf(m.pod.Status.ContainerStatuses, container); s != nil {
			before[container] = s.ContainerID
		}
	}
	d.do(PatchImages{Pod: refOf(m.pod), Version: m.pod.ResourceVersion, Revision: d.status.UpdateRevision, Images: images, Before: before})
}

// serve lets a pod serve after the kubelet has reported all containers with new images. An orphan cannot wait for that.
func (d *decision) serve(m *member) {
	if hasServingGate(m.pod) && !proof.IsTrue(m.pod, v1.MemberServing) && (hasNewContainers(m.pod) || d.Cluster.DeletionTimestamp != nil) {
		d.do(SetServing{Pod: refOf(m.pod), Version: m.pod.ResourceVersion, Serving: true})
	}
}

// hasNewContainers returns true if the kubelet reports that no container from before the last change of the images runs. A new
// image with the digest of the old one also has a new container.
func hasNewContainers(p *corev1.Pod) bool {
	var before map[string]string
	if text := p.Annotations[v1.MemberImagesAnnotation]; text == "" || json.Unmarshal([]byte(text), &before) != nil {
		return true
	}
	for container, id := range before {
		if s := proof.StatusOf(p.Status.ContainerStatuses, container); s == nil || s.State.Running == nil || s.ContainerID == id {
			return false
		}
	}
	return true
}
