package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// The cache has only objects of StatefulClusters. It keeps little of each, even if users make the object large: what watches and metrics
// read.
func TestCacheIsBounded(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	metadata := metav1.ObjectMeta{
		Name: "db", Labels: map[string]string{v1.ClusterLabel: "db"}, Annotations: map[string]string{"long": long, v1.AttestAnnotation: "uid"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: long}},
	}
	options := CacheOptions()
	for kind, by := range options.ByObject {
		var o client.Object
		switch kind.(type) {
		case *v1.StatefulCluster:
			o = &v1.StatefulCluster{
				ObjectMeta: *metadata.DeepCopy(), Spec: v1.StatefulClusterSpec{Template: runtime.RawExtension{Raw: []byte(long)}},
				Status: v1.StatefulClusterStatus{Members: []v1.ClusterMember{{Name: long, Node: "node", State: v1.MemberActive}}},
			}
		case *metav1.PartialObjectMetadata:
			o = &metav1.PartialObjectMetadata{ObjectMeta: *metadata.DeepCopy()}
			if by.Label == nil || by.Label.Matches(labels.Set{}) || !by.Label.Matches(labels.Set(metadata.Labels)) {
				t.Errorf("the cache has the objects %s, want those with the label of a StatefulCluster", by.Label)
			}
		default:
			continue // users do not create nodes
		}
		transform := by.Transform
		if transform == nil {
			transform = options.DefaultTransform
		}
		kept, err := transform(o)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(kept)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 2000 || o.GetAnnotations()[v1.AttestAnnotation] != "uid" {
			t.Errorf("of %T, the cache keeps %d bytes, with the annotations %v", o, len(data), o.GetAnnotations())
		}
		if cluster, ok := kept.(*v1.StatefulCluster); ok && cluster.Status.Members[0].Node != "node" {
			t.Error("the cache does not keep the node of a member, by which watches of nodes find the StatefulCluster")
		}
	}
}
