//go:build cluster && disk

package faults_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

func TestNodeKilledWithDisk(t *testing.T) {
	alone(t)
	node, _ := victim(t)
	must(t, w.LeadElsewhere(t.Context(), node))
	s, _ := placed(t, node, fenced())
	mountDisk(t, s)
	lost := time.Now()
	cluster(t, "node", "kill", node)
	for range 24 {
		time.Sleep(5 * time.Second)
		got, err := s.Read(t.Context())
		must(t, err)
		t.Logf("%s: phase %s, epoch %d: %s", time.Since(lost).Round(time.Second), got.Status.Phase, got.Status.Epoch, got.Status.Message)
		for _, c := range got.Status.Conditions {
			t.Logf("   %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
		out, err := s.Kubectl(t.Context(), "get", "volumeattachments,pods", "-A", "-o", "wide")
		t.Log(out, err)
	}
	taint(t, node, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	tainted := time.Now()
	must(t, s.AwaitHolder(t.Context(), 3))
	t.Logf("holder %s after the taint", time.Since(tainted).Round(time.Millisecond))
	out, err := s.Kubectl(t.Context(), "get", "events", "-n", s.Namespace)
	t.Log(out, err)
	got, err := s.Read(t.Context())
	t.Logf("%+v %v", got.Status.LastTransition, err)
}

// mountDisk adds a disk to the pods, and waits until the next holder has it.
func mountDisk(t *testing.T, s *world.Singleton) {
	t.Helper()
	class := "disk"
	must(t, w.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "disk"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
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
