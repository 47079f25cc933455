package singleton

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// podNodes has, for each singleton, the nodes of its pods at the last reconcile, except for terminating and ended pods.
// The cache has only the metadata of pods, and the status has only the node of the holder.
type podNodes struct{ nodes sync.Map }

func (p *podNodes) note(key types.NamespacedName, s handoff.Snapshot) {
	nodes := sets.New[string]()
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.Spec.NodeName != "" && !proof.Going(pod) {
			nodes.Insert(pod.Spec.NodeName)
		}
	}
	p.nodes.Store(key, nodes)
}

func (p *podNodes) forget(key types.NamespacedName) { p.nodes.Delete(key) }

// on returns the singletons that have a pod on the node.
func (p *podNodes) on(node string) (keys []types.NamespacedName) {
	p.nodes.Range(func(key, nodes any) bool {
		if nodes.(sets.Set[string]).Has(node) {
			keys = append(keys, key.(types.NamespacedName))
		}
		return true
	})
	return keys
}
