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

// lacksVolumes returns true if the pod is bound to another node than the holder, and has not mounted its volumes.
func lacksVolumes(pod, holder *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Spec.NodeName != holder.Spec.NodeName && !proof.IsTrue(pod, corev1.PodReadyToStartContainers)
}

// ClaimsElsewhere returns the claims of the holder for which a pod on another node may wait until the holder has terminated, and the node
// of the holder.
func (s Snapshot) ClaimsElsewhere() (names []string, node string) {
	i := slices.IndexFunc(s.Pods, func(pod corev1.Pod) bool { return pod.UID == s.Singleton.Status.ActivePodUID })
	if i < 0 || proof.Going(&s.Pods[i]) {
		return nil, ""
	}
	holder := &s.Pods[i]
	for _, name := range ClaimsOf(holder) {
		if claim := s.Claims[name]; claim != nil && ForOneNode(claim.Spec.AccessModes) && slices.ContainsFunc(s.Pods, func(pod corev1.Pod) bool {
			return !proof.Going(&pod) && mounts(&pod, name) && lacksVolumes(&pod, holder)
		}) {
			names = append(names, name)
		}
	}
	return names, holder.Spec.NodeName
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
