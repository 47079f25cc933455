package handoff

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
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
