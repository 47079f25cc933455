package handoff

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// MaxNodeClaims is the maximum number of claims in status.nodeClaims. Of a holder with more claims, the first ones count.
const MaxNodeClaims = 32

// ClaimsOf returns the names of the claims that the pod mounts, in the order of its volumes.
func ClaimsOf(pod *corev1.Pod) (names []string) {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			names = append(names, volume.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// reportNodeClaims reports which claims of the holder only pods of its node can mount. The policy makes new pods prefer that node.
// A claim that was not read stays as it was, and so does everything while there is no holder: the next pod may warm up then.
func (d *decision) reportNodeClaims() {
	active := d.active()
	if active == nil {
		return
	}
	names := ClaimsOf(active.Pod)
	slices.Sort(names)
	was := d.status.NodeClaims
	d.status.NodeClaims = nil
	for _, name := range slices.Compact(names) {
		claim := d.Claims[name]
		if claim == nil && slices.Contains(was, name) || claim != nil && ForOneNode(claim.Spec.AccessModes) {
			d.status.NodeClaims = append(d.status.NodeClaims, name)
		}
	}
	d.status.NodeClaims = d.status.NodeClaims[:min(len(d.status.NodeClaims), MaxNodeClaims)]
}

// ForOneNode returns true if pods of one node, and only they, can mount a volume with the access modes beside each other.
func ForOneNode(modes []corev1.PersistentVolumeAccessMode) bool {
	others := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOncePod}
	return slices.Contains(modes, corev1.ReadWriteOnce) && !slices.ContainsFunc(modes, func(m corev1.PersistentVolumeAccessMode) bool { return slices.Contains(others, m) })
}

// lacksVolumes returns true if the pod is bound to another node, and has not mounted its volumes.
func lacksVolumes(pod *corev1.Pod, node string) bool {
	return pod.Spec.NodeName != "" && pod.Spec.NodeName != node && !proof.IsTrue(pod, corev1.PodReadyToStartContainers)
}

// ClaimsElsewhere returns the claims whose volumes a pod may have to wait for, because they are for one node, and that node: of the holder,
// or of the last one if no pod has taken over yet.
func (s Snapshot) ClaimsElsewhere() (names []string, node string) {
	record := s.Singleton.Status
	switch i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == record.ActivePodUID }); {
	case i >= 0:
		node = s.Pods[i].Spec.NodeName
	case record.ActivePodUID == "" && record.LastTransition != nil && record.LastTransition.To == "":
		node = record.LastTransition.FromNode
	}
	if node == "" {
		return nil, ""
	}
	for i := range s.Pods {
		if pod := &s.Pods[i]; !proof.Going(pod) && lacksVolumes(pod, node) {
			names = append(names, ClaimsOf(pod)...)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		return s.Claims[name] == nil || !ForOneNode(s.Claims[name].Spec.AccessModes)
	}), node
}

// moving says that a volume of the pod is still attached to the node of the last holder, and what to do if that node may be lost. Empty:
// it is not known.
func (d *decision) moving(pod *corev1.Pod) string {
	claims, node := d.ClaimsElsewhere()
	i := slices.IndexFunc(claims, func(name string) bool { return d.Attached[name] && mounts(pod, name) })
	if i < 0 {
		return ""
	}
	text := fmt.Sprintf("; the volume of claim %s is still attached to node %s", claims[i], node)
	if lost := d.CachedNodes[node]; lost == nil || !proof.NodeReady(lost) {
		return fmt.Sprintf("%s, and Kubernetes detaches it only when that node answers. If node %s is off, run: %s", text, node, TaintCommand(node))
	}
	return text + d.attachHelp()
}

// measureAttach records how long the volumes of the next holder took to follow from the node of the old one. The volumes of a lost node
// take much longer, which says nothing about a drain.
func (d *decision) measureAttach(pod *corev1.Pod, t *v1.Transition) {
	mounted := proof.Condition(pod, corev1.PodReadyToStartContainers)
	moved := t.FromNode != "" && t.FromNode != pod.Spec.NodeName && (t.Proof == v1.ProofKubeletReported || t.Proof == v1.ProofLeaseReleased)
	waited := slices.ContainsFunc(ClaimsOf(pod), func(name string) bool { return slices.Contains(d.status.NodeClaims, name) })
	if !moved || !waited || mounted == nil || t.Terminated == nil || !mounted.LastTransitionTime.After(t.Terminated.Time) {
		return
	}
	since := t.Terminated.Time
	if scheduled := proof.Condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.LastTransitionTime.After(since) {
		since = scheduled.LastTransitionTime.Time
	}
	d.status.AttachSeconds = new(int32(mounted.LastTransitionTime.Sub(since).Round(time.Second) / time.Second))
}

// attachHelp says how long the volumes took to follow to another node the last time. Empty: that is not known.
func (d *decision) attachHelp() string {
	if d.status.AttachSeconds == nil {
		return ""
	}
	return fmt.Sprintf(". The last time, its volumes took %d s to follow to another node", *d.status.AttachSeconds)
}
