package membership

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// changes are the fields of regular containers that can change without a new pod: the new images and resources, by container.
type changes struct {
	images    map[string]string
	resources map[string]corev1.ResourceRequirements
}

func newChanges() changes {
	return changes{map[string]string{}, map[string]corev1.ResourceRequirements{}}
}

func (c changes) none() bool { return len(c.images) == 0 && len(c.resources) == 0 }

// changesInPlace returns what changes in the pod without a new pod. It is empty if the pod must be replaced.
func (d *decision) changesInPlace(m *member) changes {
	is := d.Revision(m.Revision)
	if d.Cluster.Spec.UpdateStrategy.Type != v1.ClusterInPlaceIfPossible || d.Cluster.DeletionTimestamp != nil || m.pod == nil || !hasServingGate(m.pod) || is == nil {
		return changes{}
	}
	c := changesOf(is.Data.Raw, d.Cluster.Spec.Template.Raw)
	if len(c.resources) > 0 && c.isResized(m.pod) && d.outgrows(m.pod) {
		return changes{}
	}
	return c
}

// outgrows returns true if the pod can get its resources only on another node: its node never has them (Infeasible), or other pods
// use them (Deferred). A pod that serves waits for these for resizePatience.
func (d *decision) outgrows(p *corev1.Pod) bool {
	c := resizeCondition(p, corev1.PodResizePending)
	return c != nil && (c.Reason != corev1.PodReasonDeferred || isClosed(p) || d.left(resizePatience, p, c) == 0)
}

// resizeCondition returns the condition of the kubelet about the latest resize of the pod, or nil if it is not True.
func resizeCondition(p *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	c := proof.Condition(p, conditionType)
	if c == nil || c.Status != corev1.ConditionTrue || c.ObservedGeneration != 0 && c.ObservedGeneration < p.Generation {
		return nil
	}
	return c
}

func hasServingGate(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1.MemberServing })
}

// changesOf returns the changes between two templates. They are empty if the templates also differ in something else, or if a
// container loses a resource.
func changesOf(before, after []byte) changes {
	old, was := splitTemplate(before)
	is, all := splitTemplate(after)
	if old == nil || !equality.Semantic.DeepEqual(old, is) {
		return changes{}
	}
	changed := newChanges()
	for container, image := range all.images {
		if was.images[container] != image {
			changed.images[container] = image
		}
		resources := all.resources[container]
		if equality.Semantic.DeepEqual(was.resources[container], resources) {
			continue
		}
		if !has(resources, was.resources[container], false) {
			return changes{}
		}
		changed.resources[container] = resources
	}
	return changed
}

// has returns true if the requests and limits of others also have amounts here. With same, the amounts must be equal.
func has(r, others corev1.ResourceRequirements, same bool) bool {
	hasAll := func(list, others corev1.ResourceList) bool {
		for name, amount := range others {
			if got, ok := list[name]; !ok || same && got.Cmp(amount) != 0 {
				return false
			}
		}
		return true
	}
	return hasAll(r.Requests, others.Requests) && hasAll(r.Limits, others.Limits)
}

// splitTemplate returns a template without the images and resources of its regular containers, and these fields.
func splitTemplate(data []byte) (template map[string]any, split changes) {
	split = newChanges()
	var typed struct {
		Spec struct {
			Containers []struct {
				Name, Image string
				Resources   corev1.ResourceRequirements
			}
		}
	}
	if json.Unmarshal(data, &template) != nil || json.Unmarshal(data, &typed) != nil {
		return nil, split
	}
	for _, c := range typed.Spec.Containers {
		split.images[c.Name], split.resources[c.Name] = c.Image, withRequests(c.Resources)
	}
	spec, _ := template["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		if container, ok := c.(map[string]any); ok {
			delete(container, "image")
			delete(container, "resources")
		}
	}
	return template, split
}

// withRequests adds a request for each limit, as the API server does.
func withRequests(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit
	}
	return r
}

// isResized returns true if the spec of the pod has the resources.
func (c changes) isResized(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Spec.Containers, func(is corev1.Container) bool { return !has(is.Resources, c.resources[is.Name], true) })
}

// runsResized returns true if the kubelet reports that the running containers have the resources. Other containers get them when
// they start.
func (c changes) runsResized(p *corev1.Pod) bool {
	return !slices.ContainsFunc(p.Status.ContainerStatuses, func(is corev1.ContainerStatus) bool {
		return is.State.Running != nil && !has(ptr.Deref(is.Resources, corev1.ResourceRequirements{}), c.resources[is.Name], true)
	})
}

// restarts returns true if a container stops for the changes.
func (c changes) restarts(p *corev1.Pod) bool {
	return len(c.images) > 0 || slices.ContainsFunc(p.Spec.Containers, func(is corev1.Container) bool {
		_, changed := c.resources[is.Name]
		return changed && slices.ContainsFunc(is.ResizePolicy, func(r corev1.ContainerResizePolicy) bool { return r.RestartPolicy == corev1.RestartContainer })
	})
}

// updateInPlace continues the update of a pod up to the change of its images. The pod gets the label of the revision last.
func (d *decision) updateInPlace(m *member, c changes) {
	resize := Resize{Pod: refOf(m.pod), Version: m.pod.ResourceVersion, Resources: c.resources}
	if c.restarts(m.pod) && !isClosed(m.pod) && !c.isResized(m.pod) {
		resize.DryRun = true
		d.do(resize) // a pod that cannot be resized keeps serving
	}
	switch {
	case c.restarts(m.pod) && !isClosed(m.pod):
		d.do(SetServing{Pod: refOf(m.pod), Version: m.pod.ResourceVersion})
		d.requeueIn(servingPoll)
	case c.restarts(m.pod) && d.stillServes(m):
		d.requeueIn(servingPoll)
	case !c.isResized(m.pod):
		d.do(resize)
	case !c.runsResized(m.pod):
		d.resizing = append(d.resizing, m)
	default:
		d.patchImages(m, c)
	}
}

// patchImages changes the images of a pod, and the label with its revision.
func (d *decision) patchImages(m *member, c changes) {
	before := map[string]string{}
	for container := range c.images {
		if s := proof.StatusOf(m.pod.Status.ContainerStatuses, container); s != nil {
			before[container] = s.ContainerID
		}
	}
	d.do(PatchImages{Pod: refOf(m.pod), Version: m.pod.ResourceVersion, Revision: d.status.UpdateRevision, Images: c.images, Before: before})
}

// stillServes returns true if a Service may send requests to the pod, although the pod must not serve.
func (d *decision) stillServes(m *member) bool {
	return d.Serving.Has(m.UID) && d.left(servingPatience, m.pod, proof.Condition(m.pod, v1.MemberServing)) > 0
}

// isClosed returns true if the pod must not serve.
func isClosed(p *corev1.Pod) bool {
	serving := proof.Condition(p, v1.MemberServing)
	return serving != nil && serving.Status == corev1.ConditionFalse
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
