package membership

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Member is a member of the record, as the Snapshot has it.
type Member struct {
	v1.ClusterMember
	// Pod is nil if it does not exist.
	Pod *corev1.Pod
	// WaitsFor says what the member waits for. Empty: for nothing, or only for its containers.
	WaitsFor string
}

// Members returns the members of the record, in the order of the record.
func Members(s Snapshot, now time.Time) []Member {
	d := begin(s, now)
	members := make([]Member, len(d.members))
	for i, m := range d.members {
		members[i] = Member{ClusterMember: m.ClusterMember, Pod: m.pod, WaitsFor: d.waitsForOf(m)}
	}
	return members
}

func (d *decision) waitsForOf(m *member) string {
	if m.going && m.proven == "" {
		return d.proveMessage(m)
	}
	if c := m.unschedulable(); c != nil {
		return "can't be scheduled: " + oneLine(c.Message)
	}
	if needsClaims(m) {
		if u := d.useOf(m); u != nil {
			return fmt.Sprintf("waits for claim %s, with which pod %s can run", u.claim, u.pod.Name)
		}
	}
	return ""
}
