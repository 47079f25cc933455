//go:build cluster && disk

package faults_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// A node is lost with a fenced active pod and its disk. The Lease expires, but Kubernetes does not detach the disk from a node that does
// not answer, so the next pod waits on another node until a person states that the machine is off.
func TestNodeKilledWithDisk(t *testing.T) {
	alone(t)
	node, cordon := victim(t)
	must(t, w.LeadElsewhere(t.Context(), node)) // a new leader observes a Lease from the beginning
	s, _ := placed(t, node, fenced())
	mountDisk(t, s)
	lost := time.Now()
	cluster(t, "node", "kill", node)
	cordon() // otherwise the next pod can be bound to the lost node, until Kubernetes notices the loss
	must(t, s.Await(t.Context(), "the Lease has expired", func(got *v1.StatefulSingleton) bool {
		return got.Status.LastTransition != nil && got.Status.LastTransition.Proof == v1.ProofLeaseExpired
	}))
	t.Logf("the Lease expired %s after the loss of the node", time.Since(lost).Round(time.Second))
	awaitNotReady(t, node)
	wantAttached(t, s, node)
	wantStarts(t, s, 2)
	got, err := s.Read(t.Context())
	must(t, err)
	t.Logf("%s after the loss of the node, phase %s: %s", time.Since(lost).Round(time.Second), got.Status.Phase, got.Status.Message)

	tainted := time.Now()
	taint(t, node, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	must(t, s.AwaitHolder(t.Context(), 3))
	t.Logf("the next pod was Ready %s after the taint", time.Since(tainted).Round(time.Second))
	wantAttached(t, s, otherNode(node))
}

// mountDisk adds a disk to the pods, and waits until the next active pod has mounted it.
func mountDisk(t *testing.T, s *world.Singleton) {
	t.Helper()
	must(t, w.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "disk"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("disk"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("512Mi")}},
		},
	}))
	_, err := s.Kubectl(t.Context(), "patch", "-n", s.Namespace, "deployment/db", "--type=json", "-p", `[
		{"op":"add","path":"/spec/template/spec/volumes/-","value":{"name":"disk","persistentVolumeClaim":{"claimName":"disk"}}},
		{"op":"add","path":"/spec/template/spec/containers/0/volumeMounts/-","value":{"name":"disk","mountPath":"/disk"}}]`)
	must(t, err)
	must(t, s.AwaitHolder(t.Context(), 2))
}

// wantAttached checks that the only disk is attached to the node, and to no other node.
func wantAttached(t *testing.T, s *world.Singleton, node string) {
	t.Helper()
	out, err := s.Kubectl(t.Context(), "get", "volumeattachments", "-o", "jsonpath={.items[*].spec.nodeName} {.items[*].status.attached}")
	must(t, err)
	if want := node + " true"; out != want {
		t.Errorf("the disk is attached to %s, want %s", out, want)
	}
}
