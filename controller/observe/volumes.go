package observe

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// attachments reads which of ClaimsElsewhere have a volume that is attached to that node. Few handoffs need these reads.
func (r *reading) attachments(ctx context.Context, s *handoff.Snapshot) error {
	names, node := s.ClaimsElsewhere()
	volumes := sets.New[string]()
	for _, name := range names {
		volumes.Insert(s.Claims[name].Spec.VolumeName)
	}
	found, err := named[corev1.PersistentVolume](ctx, r, r.Live, "", volumes)
	if err != nil {
		return err
	}
	claims, attachments := map[string]string{}, sets.New[string]()
	for _, name := range names {
		claim := s.Claims[name]
		volume := found[claim.Spec.VolumeName]
		if volume == nil || volume.Spec.CSI == nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID ||
			!handoff.ForOneNode(volume.Spec.AccessModes) { // Kubernetes attaches such a volume to several nodes
			continue
		}
		attachment := attachmentName(volume.Spec.CSI, node)
		claims[attachment] = name
		attachments.Insert(attachment)
	}
	objects, err := named[storagev1.VolumeAttachment](ctx, r, r.Live, "", attachments)
	s.Attached = map[string]bool{}
	for name, attachment := range objects {
		if attachment.Status.Attached && attachment.Spec.NodeName == node {
			s.Attached[claims[name]] = true
		}
	}
	return err
}

// attachmentName returns the name of the VolumeAttachment for a node, as k8s.io/kubernetes/pkg/volume/csi.getAttachmentName does. A driver
// that needs no attachment has none.
func attachmentName(volume *corev1.CSIPersistentVolumeSource, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume.VolumeHandle+volume.Driver+node)))
}
