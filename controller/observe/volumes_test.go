package observe

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// Only a claim whose own volume is attached to the node of the holder counts.
func TestAttachments(t *testing.T) {
	const node = "node-1"
	for name, tc := range map[string]struct {
		change func(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume, attachment *storagev1.VolumeAttachment, standby *corev1.Pod)
		want   []string
	}{
		"attached": {func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, *storagev1.VolumeAttachment, *corev1.Pod) {
		}, []string{"data"}},
		"attaching": {func(_ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, a *storagev1.VolumeAttachment, _ *corev1.Pod) {
			a.Status.Attached = false
		}, nil},
		"by another name": {func(_ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, a *storagev1.VolumeAttachment, _ *corev1.Pod) {
			a.Name = "csi-1"
		}, nil},
		"the volume of another claim": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, _ *corev1.Pod) {
			v.Spec.ClaimRef.UID = "other"
		}, nil},
		"a volume without a driver": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, _ *corev1.Pod) {
			v.Spec.CSI = nil
		}, nil},
		"a volume for several nodes": {func(_ *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, _ *corev1.Pod) {
			v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
		}, nil},
		"a claim without a volume": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, _ *corev1.Pod) {
			c.Spec.VolumeName = ""
		}, nil},
		"for several nodes": {func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, _ *corev1.Pod) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, nil},
		"a standby on the same node": {func(_ *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume, _ *storagev1.VolumeAttachment, p *corev1.Pod) {
			p.Spec.NodeName = node
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "claim"},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			}
			driver := &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "vol-1"}
			volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: driver}, ClaimRef: &corev1.ObjectReference{UID: claim.UID},
				AccessModes: claim.Spec.AccessModes,
			}}
			attachment := &storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: attachmentName(driver, node)},
				Spec:       storagev1.VolumeAttachmentSpec{NodeName: node},
				Status:     storagev1.VolumeAttachmentStatus{Attached: true},
			}
			holder, standby := podWithClaim("db-1", node), podWithClaim("db-2", "node-2")
			tc.change(claim, volume, attachment, &standby)
			s := &handoff.Snapshot{
				Singleton: &v1.StatefulSingleton{Status: v1.StatefulSingletonStatus{ActivePodUID: holder.UID}},
				Pods:      []corev1.Pod{holder, standby},
				Claims:    map[string]*corev1.PersistentVolumeClaim{"data": claim},
			}
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(volume, attachment).Build()
			r := Observer{Client: c, Live: c}.singleton(s.Singleton)
			if err := r.attachments(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if got := slices.Collect(maps.Keys(s.Attached)); !slices.Equal(got, tc.want) {
				t.Errorf("attached: %v, want %v", got, tc.want)
			}
		})
	}
}

func podWithClaim(name, node string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}
}

// When the last pod is gone, its node and the claims of the only pod are read too.
func TestWantsTheVolumesOfTheLastPod(t *testing.T) {
	s := &handoff.Snapshot{
		Singleton: &v1.StatefulSingleton{Status: v1.StatefulSingletonStatus{LastTransition: &v1.Transition{FromNode: "node-1"}}},
		Pods:      []corev1.Pod{podWithClaim("db-2", "node-2")},
	}
	if w := wantedFor(s); !w.claims.Has("data") || !w.cachedNodes.Has("node-1") {
		t.Errorf("claims %v, nodes %v", w.claims, w.cachedNodes)
	}
}
