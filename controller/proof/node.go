package proof

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NodeReady returns true if the condition Ready of the node is True.
func NodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// OutOfService returns true if the node has the taint out-of-service, with which a person states that the node is off
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-out-of-service). The taint of a Ready
// node does not count: somebody forgot to remove it. A nil node does not exist.
func OutOfService(node *corev1.Node) bool {
	return node != nil && !NodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// Attestable returns true if a person can attest the termination of the pod on the node, because the kubelet cannot report
// it. The kubelet of a Ready node may have restarted a container after the person looked. A nil node does not exist.
func Attestable(pod *corev1.Pod, node *corev1.Node) bool {
	return node == nil || !NodeReady(node) || Terminal(pod)
}
