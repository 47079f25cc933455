package membership

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// PodLabels returns the labels of a new pod of a revision: those of the template, and those in spec.selector.matchLabels that the
// template does not have. The name of the StatefulCluster and the revision override both.
func PodLabels(cluster *v1.StatefulCluster, template map[string]string, revision string) map[string]string {
	return labels.Merge(labels.Merge(cluster.Spec.Selector.MatchLabels, template), labels.Set{
		v1.ClusterLabel: cluster.Name, appsv1.StatefulSetRevisionLabel: revision,
	})
}

// templateLabels returns the labels in spec.template. The API server knows a field only by its exact name, and so does utiljson.
func templateLabels(cluster *v1.StatefulCluster) (map[string]string, error) {
	var template struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	err := utiljson.Unmarshal(cluster.Spec.Template.Raw, &template)
	return template.Metadata.Labels, err
}

// RevisionName returns the name of the ControllerRevision of spec.template. Equal templates of a StatefulCluster have equal names.
// The UID is in the name, because revisions of another StatefulCluster with the same name can remain.
func RevisionName(cluster *v1.StatefulCluster) string {
	var template any
	data := cluster.Spec.Template.Raw
	if json.Unmarshal(data, &template) == nil {
		if sorted, err := json.Marshal(template); err == nil {
			data = sorted
		}
	}
	sum := sha256.Sum256(append([]byte(cluster.UID), data...))
	return cluster.Name + "-" + hex.EncodeToString(sum[:])[:10]
}

// revisionOf returns the name of the revision of a pod.
func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.StatefulSetRevisionLabel] }

// revise finds or creates the revision of spec.template, and makes it the newest.
func (d *decision) revise() {
	name, newest := RevisionName(d.Cluster), int64(0)
	for i := range d.Revisions {
		newest = max(newest, d.Revisions[i].Revision)
	}
	is := d.Revision(name)
	switch {
	case is == nil:
		d.do(CreateRevision{name, newest + 1})
	case is.Revision < newest:
		d.do(RenumberRevision{name, newest + 1})
	}
	d.status.UpdateRevision = name
	if d.status.CurrentRevision == "" {
		d.status.CurrentRevision = name
	}
}

// updated returns how many members have the update revision.
func (d *decision) updated() int {
	return countOf(d.counted(), func(m *member) bool { return m.Revision == d.status.UpdateRevision })
}

// nextRevision returns the revision of the next new pod. It is the current revision if enough members have the update revision.
func (d *decision) nextRevision() string {
	onDelete := d.Cluster.Spec.UpdateStrategy.Type == v1.ClusterOnDelete
	if onDelete || d.updated() < d.replicas()-d.partition() || d.Revision(d.status.CurrentRevision) == nil {
		return d.status.UpdateRevision
	}
	return d.status.CurrentRevision
}

// trimRevisions deletes the oldest revisions that no member needs.
func (d *decision) trimRevisions() {
	live := map[string]bool{d.status.UpdateRevision: true, d.status.CurrentRevision: true}
	for _, m := range d.members {
		live[m.Revision] = true
	}
	old := slices.DeleteFunc(slices.Clone(d.Revisions), func(r appsv1.ControllerRevision) bool { return live[r.Name] })
	slices.SortFunc(old, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	for _, r := range old[:max(0, len(old)-int(ptr.Deref(d.Cluster.Spec.RevisionHistoryLimit, 10)))] {
		d.do(DeleteRevision{r.Name, r.ResourceVersion})
	}
}
