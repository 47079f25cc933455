package membership

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// decision is a Snapshot with its members classified, and the Plan under construction.
type decision struct {
	Snapshot
	now time.Time

	// members are the members of the new record, in the order of their names' numbers.
	members []*member
	// excess are pods that are lost and not replaced, because too many are lost.
	excess []*member
	// rolled are the members whose pods are deleted or updated for a rollout.
	rolled []*member
	// resizing are the members whose kubelets have not applied their new resources yet.
	resizing []*member
	// deleted is a claim that is being deleted, and for which a pod waits.
	deleted string
	// uses are the uses by other pods for which members wait.
	uses []use

	plan   Plan
	status *v1.StatefulClusterStatus
}

// Decide returns what to do about the StatefulCluster of the Snapshot at the time now.
func Decide(s Snapshot, now time.Time) Plan {
	d := begin(s, now)
	problem, lost := s.templateProblem(), d.lostPods()
	switch {
	case problem != "":
		d.found(InvalidTemplate, problem)
	case len(lost) > 0:
		d.adopt(lost)
	default:
		d.revise()
		d.settleEnded()
		d.followPods()
		d.replaceLost()
		d.scale()
		d.roll()
		d.record()
		d.syncPods()
		d.deleteClaims()
		d.createPods()
		d.takeAttestation()
		d.growClaims()
		d.report()
		d.trimRevisions()
	}
	d.reportConditions()
	d.plan.Status = *d.status
	return d.plan
}

func begin(s Snapshot, now time.Time) *decision {
	d := &decision{Snapshot: s, now: now, status: s.Cluster.Status.DeepCopy()}
	for _, recorded := range d.status.Members {
		d.members = append(d.members, s.classify(recorded))
	}
	d.plan.Requeue = settledPoll
	d.mendCounter()
	return d
}

func (d *decision) do(steps ...Step) { d.plan.Steps = append(d.plan.Steps, steps...) }

// found sets the outcome, and the message that says what the outcome means here.
func (d *decision) found(outcome Outcome, message string) {
	d.plan.Outcome, d.status.Message = outcome, message
}

// requeueIn decides again after the delay, or earlier.
func (d *decision) requeueIn(delay time.Duration) {
	d.plan.Requeue = min(d.plan.Requeue, max(delay, minRequeue))
}

// left returns how much of a duration that began with a change of the pod's condition is left.
func (d *decision) left(of time.Duration, p *corev1.Pod, c *corev1.PodCondition) time.Duration {
	return proof.Left(of, proof.ChangedAt(p, c, d.now), d.now)
}

// lostPods returns the pods of a record that was lost. The counter never gave the numbers in their names.
func (d *decision) lostPods() (lost []*corev1.Pod) {
	for i := range d.Pods {
		p := &d.Pods[i]
		if n := d.ordinalOf(p.Name); d.controls(p) && n >= d.status.Next && n <= maxNumber {
			lost = append(lost, p)
		}
	}
	return lost
}

// adopt records the pods of a record that was lost.
func (d *decision) adopt(pods []*corev1.Pod) {
	for _, p := range pods {
		d.status.Next = max(d.status.Next, d.ordinalOf(p.Name)+1)
		d.members = append(d.members, &member{pod: p, ClusterMember: v1.ClusterMember{
			Name: p.Name, UID: p.UID, State: v1.MemberActive, Revision: revisionOf(p), Claims: d.claimsOf(p),
		}})
	}
	d.separateClaims()
	d.count()
	d.record()
	d.found(PodsAdopted, fmt.Sprintf("%s added to status.members: the StatefulCluster controls pods that the record did not list",
		plural(len(pods), "pod was", "pods were")))
}

// separateClaims leaves each claim to the newest of its members. The pods of the others have terminated, or cannot run yet: such a
// pod is not recorded, so it never runs.
func (d *decision) separateClaims() {
	d.sortMembers()
	held, old := map[string]bool{}, d.members
	d.members = nil
	for _, m := range slices.Backward(old) {
		claims := slices.DeleteFunc(slices.Clone(m.Claims), func(c v1.MemberClaim) bool { return held[c.Name] })
		if len(claims) < len(m.Claims) && m.pod != nil && isGated(m.pod) {
			continue
		}
		m.Claims = claims
		for _, c := range claims {
			held[c.Name] = true
		}
		d.members = append(d.members, m)
	}
}

// claimsOf returns the claims of a pod that were created for it. The template can have volumes with other claims.
func (d *decision) claimsOf(p *corev1.Pod) (claims []v1.MemberClaim) {
	for _, volume := range p.Spec.Volumes {
		isOf := func(t v1.ClaimTemplate) bool { return t.Metadata.Name == volume.Name }
		if source := volume.PersistentVolumeClaim; source != nil && slices.ContainsFunc(d.Cluster.Spec.VolumeClaimTemplates, isOf) {
			claims = append(claims, v1.MemberClaim{Volume: volume.Name, Name: source.ClaimName})
		}
	}
	return slices.DeleteFunc(claims, d.isForeign)
}

const (
	// maxNumber is the largest number in the name of a pod. The guards reject longer numbers.
	maxNumber = 9_999_999_999
	// maxCounted is the largest number in the name of an object of another client that moves the counter. A larger number is not
	// from the counter: if it moved the counter, the names after it would be too long.
	maxCounted = math.MaxUint32
	// mendedNext is the counter after it was mended. No counter that began below maxCounted has reached it.
	mendedNext = 5_000_000_000
)

// mendCounter lowers a counter that is above all numbers that a name can have, because no pod could be created any more. Names are
// used only once, so it does nothing while a pod has a number from which the lower counter would count up again.
func (d *decision) mendCounter() {
	ran := func(m *member) bool { return m.UID != "" && d.ordinalOf(m.Name) >= mendedNext }
	exists := func(p corev1.Pod) bool { return d.controls(&p) && d.ordinalOf(p.Name) >= mendedNext }
	if d.status.Next > maxNumber && !slices.ContainsFunc(d.members, ran) && !slices.ContainsFunc(d.Pods, exists) {
		d.status.Next = mendedNext
	}
}

// isTooLong returns true if the guards reject the name of a member that the counter gave before it was mended.
func (d *decision) isTooLong(m *member) bool {
	return d.ordinalOf(m.Name) > maxNumber && d.status.Next <= maxNumber
}

// count moves the counter past all names that are in use. Claims of a StatefulCluster that had the same name can exist.
func (d *decision) count() {
	d.status.Next = max(d.status.Next, int64(d.Cluster.Spec.Ordinals.Start))
	pass := func(n int64) {
		if n <= maxCounted {
			d.status.Next = max(d.status.Next, n+1)
		}
	}
	for i := range d.Pods {
		pass(d.ordinalOf(d.Pods[i].Name))
	}
	for _, template := range d.Cluster.Spec.VolumeClaimTemplates {
		for i := range d.Claims {
			pass(ordinal(d.Claims[i].Name, template.Metadata.Name+"-"+d.Cluster.Name+"-"))
		}
	}
}

// add adds a member with the next name. It gets the given claims, and new claims for all other volumes.
func (d *decision) add(carried []v1.MemberClaim) {
	d.count()
	m := &member{ClusterMember: v1.ClusterMember{Name: d.podName(d.status.Next), State: v1.MemberPending, Revision: d.nextRevision()}}
	d.status.Next++
	for _, template := range d.Cluster.Spec.VolumeClaimTemplates {
		volume := template.Metadata.Name
		claim := v1.MemberClaim{Volume: volume, Name: volume + "-" + m.Name}
		if i := slices.IndexFunc(carried, func(c v1.MemberClaim) bool { return c.Volume == volume }); i >= 0 {
			claim = carried[i]
		}
		m.Claims = append(m.Claims, claim)
	}
	d.members = append(d.members, m)
}

// remove removes a member. No member has its claims any more.
func (d *decision) remove(m *member) {
	d.members = slices.DeleteFunc(d.members, func(other *member) bool { return other == m })
}

// release removes a member and releases its claims.
func (d *decision) release(m *member, policy v1.ClaimRetention) {
	d.remove(m)
	for _, c := range m.Claims {
		d.status.Released = append(d.status.Released, v1.ReleasedClaim{Name: c.Name, Policy: policy})
	}
}

// counted returns the members that count for spec.replicas.
func (d *decision) counted() []*member {
	return slices.DeleteFunc(slices.Clone(d.members), func(m *member) bool { return m.State != v1.MemberPending && m.State != v1.MemberActive })
}

func countOf(members []*member, is func(*member) bool) (n int) {
	for _, m := range members {
		if is(m) {
			n++
		}
	}
	return n
}

// settleEnded removes members that have provably terminated. A member stays while another pod can run with one of the claims that its
// successor gets.
func (d *decision) settleEnded() {
	retention := d.Cluster.Spec.PersistentVolumeClaimRetentionPolicy
	for _, m := range slices.Clone(d.members) {
		switch {
		case m.proven == "" || m.State == v1.MemberPending:
		case m.State == v1.MemberLost:
			d.release(m, retention.WhenReplaced)
		case m.State == v1.MemberLeaving, len(d.counted()) > d.replicas():
			d.release(m, retention.WhenScaled)
		case d.Cluster.Spec.Replacement.State == v1.ReplacementFresh:
			d.release(m, retention.WhenReplaced)
			d.add(nil)
		default:
			if use := d.useOf(m); use != nil && !d.isForeign(v1.MemberClaim{Name: use.claim}) {
				d.uses = append(d.uses, *use)
				continue
			}
			d.remove(m)
			d.add(m.Claims)
		}
	}
}

// followPods records the UIDs of new pods, and the revisions of pods. Members without a pod get the revision that new pods have.
func (d *decision) followPods() {
	for _, m := range slices.Clone(d.members) {
		switch {
		case m.State == v1.MemberActive && m.pod != nil: // its images can have changed
			m.Revision = cmp.Or(revisionOf(m.pod), m.Revision)
		case m.State != v1.MemberPending:
		case m.pod != nil:
			m.UID, m.State, m.Revision = m.pod.UID, v1.MemberActive, revisionOf(m.pod)
		case d.taken(m) || d.isTooLong(m):
			d.remove(m)
			d.add(slices.DeleteFunc(slices.Clone(m.Claims), d.isForeign))
		default:
			m.Revision = ""
			m.Revision = d.nextRevision()
		}
	}
}

// replaceLost gives lost members a successor with new claims, as long as not too many are lost.
func (d *decision) replaceLost() {
	lost := countOf(d.members, func(m *member) bool { return m.State == v1.MemberLost })
	for _, m := range slices.Clone(d.members) {
		switch {
		case !m.lost || m.State != v1.MemberActive:
		case len(d.counted()) > d.replicas():
			m.State = v1.MemberLeaving
		case lost < d.maxLost():
			lost++
			m.State = v1.MemberLost
			d.add(nil)
		default:
			d.excess = append(d.excess, m)
		}
	}
}

// scale adds members, or lets members leave.
func (d *decision) scale() {
	counted := d.counted()
	surplus := len(counted) - d.replicas()
	if d.waits() || d.ordered() && surplus < 0 && slices.ContainsFunc(counted, isUnready) {
		return
	}
	for range -surplus {
		d.add(nil)
		if d.ordered() {
			return
		}
	}
	slices.SortFunc(counted, d.compareExpendable)
	for i := range surplus {
		if m := counted[i]; m.State == v1.MemberPending {
			d.release(m, d.Cluster.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled)
		} else {
			m.State = v1.MemberLeaving
		}
		if d.ordered() {
			return
		}
	}
}

// waits returns true if, with policy OrderedReady, another pod is still being created or removed.
func (d *decision) waits() bool {
	return d.ordered() && slices.ContainsFunc(d.members, func(m *member) bool {
		return isChanging(m) || m.State == v1.MemberActive && m.going
	})
}

// isChanging returns true if the pod of the member is being created or removed. A lost pod can stay for a long time.
func isChanging(m *member) bool {
	return m.State == v1.MemberPending || m.State == v1.MemberLeaving && !m.lost
}

// compareExpendable returns a negative number if the member a is removed before the member b.
func (d *decision) compareExpendable(a, b *member) int {
	return cmp.Or(
		cmp.Compare(a.cost, b.cost),
		trueFirst(a.lost, b.lost),
		trueFirst(!a.ready, !b.ready),
		trueFirst(a.drained, b.drained),
		trueFirst(a.Revision != d.status.UpdateRevision, b.Revision != d.status.UpdateRevision),
		cmp.Compare(d.ordinalOf(b.Name), d.ordinalOf(a.Name)))
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// available returns true if the member was Ready for spec.minReadySeconds. Otherwise it decides again when that is the case.
func (d *decision) available(m *member) bool {
	if !m.ready {
		return false
	}
	left := d.left(minReady(d.Cluster), m.pod, proof.Condition(m.pod, corev1.PodReady))
	if left > 0 {
		d.requeueIn(left)
	}
	return left <= 0
}

// roll chooses pods of old revisions to replace or to update in place. Unready pods do not wait for other pods.
func (d *decision) roll() {
	counted := d.counted()
	left := d.replicas() - d.partition() - d.updated()
	budget := d.maxUnavailable() - d.replicas()
	var outdated []*member
	for _, m := range counted {
		if d.available(m) {
			budget++
		}
		if m.Revision != d.status.UpdateRevision && m.State == v1.MemberActive && !m.going {
			outdated = append(outdated, m)
		}
	}
	if d.Cluster.Spec.UpdateStrategy.Type == v1.ClusterOnDelete || d.waits() {
		return
	}
	slices.SortFunc(outdated, func(a, b *member) int { return cmp.Or(trueFirst(!a.ready, !b.ready), d.compareExpendable(a, b)) })
	for _, m := range outdated {
		if left <= 0 || m.ready && budget <= 0 {
			return
		}
		if m.ready {
			budget--
		}
		left--
		d.rolled = append(d.rolled, m)
		if d.ordered() {
			return
		}
	}
}

func isUnready(m *member) bool { return !m.ready }

// partition returns how many members keep the current revision.
func (d *decision) partition() int {
	return min(int(d.rollout().Partition), d.replicas())
}

func (d *decision) rollout() v1.ClusterRollout {
	return ptr.Deref(d.Cluster.Spec.UpdateStrategy.RollingUpdate, v1.ClusterRollout{})
}

// maxUnavailable returns how many members can be unavailable in a rollout.
func (d *decision) maxUnavailable() int {
	value := intstr.ValueOrDefault(d.rollout().MaxUnavailable, intstr.FromInt32(1))
	n, err := intstr.GetScaledValueFromIntOrPercent(value, d.replicas(), true)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// record adds the step Record if the record has changed. All steps that depend on the record come later.
func (d *decision) record() {
	d.sortMembers()
	d.status.Members = nil
	for _, m := range d.members {
		d.status.Members = append(d.status.Members, m.ClusterMember)
	}
	old, is := &d.Cluster.Status, d.status
	is.Released = slices.DeleteFunc(toDelete(is.Released), func(c v1.ReleasedClaim) bool {
		claim := d.claim(c.Name)
		return claim == nil || !d.isOurs(claim) // a person can keep a claim by removing its label
	})
	if is.Next != old.Next || !slices.EqualFunc(is.Members, old.Members, sameMember) || !equality.Semantic.DeepEqual(is.Released, toDelete(old.Released)) {
		d.do(Record{})
		d.requeueIn(0)
	}
}

func (d *decision) sortMembers() {
	slices.SortFunc(d.members, func(a, b *member) int { return cmp.Compare(d.ordinalOf(a.Name), d.ordinalOf(b.Name)) })
}

// sameMember compares all but the node, which is not part of the record.
func sameMember(a, b v1.ClusterMember) bool {
	a.Node = b.Node
	return equality.Semantic.DeepEqual(a, b)
}

// toDelete returns the released claims with policy Delete. The others are not part of the record.
func toDelete(released []v1.ReleasedClaim) []v1.ReleasedClaim {
	return slices.DeleteFunc(slices.Clone(released), func(c v1.ReleasedClaim) bool { return c.Policy != v1.ClaimDelete })
}

// syncPods lets recorded pods run or updates them, deletes pods that must terminate, and removes pods that the record does not list. The
// uninstallation of the chart removes the finalizers of pods that run.
func (d *decision) syncPods() {
	recorded := map[types.UID]bool{}
	for _, m := range d.members {
		recorded[m.UID] = true
		rolled := slices.Contains(d.rolled, m)
		inPlace := d.changesInPlace(m)
		if m.pod != nil && !m.going && !isProtected(m.pod) {
			d.do(Protect{refOf(m.pod)})
		}
		ending := m.State == v1.MemberLeaving || m.going || rolled && inPlace.none()
		switch {
		case m.pod == nil:
		case ending && m.pod.DeletionTimestamp == nil:
			d.do(Delete{refOf(m.pod)})
		case ending:
		case isGated(m.pod):
			if d.useOf(m) == nil {
				d.do(Ungate{refOf(m.pod)})
			}
		case rolled:
			d.updateInPlace(m, inPlace)
		default:
			d.serve(m)
		}
	}
	for i := range d.Pods {
		if p := &d.Pods[i]; !recorded[p.UID] {
			d.letGo(p)
		}
	}
}

// letGo removes a pod that the record does not list. A pod that the StatefulCluster does not control is orphaned, or belongs to a
// StatefulCluster that had the same name. It loses the finalizer, and is deleted only if it cannot run.
func (d *decision) letGo(p *corev1.Pod) {
	controlled := d.controls(p)
	protected := isProtected(p) && (controlled || p.Labels[v1.ClusterLabel] == d.Cluster.Name)
	if p.DeletionTimestamp == nil && (controlled && !d.orphansAll() || protected && isGated(p)) {
		d.do(Delete{refOf(p)})
	}
	if protected {
		d.do(Unprotect{refOf(p)})
	}
}

func isProtected(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, v1.MemberFinalizer) }

func isGated(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1.MemberGate })
}

func refOf(o metav1.Object) Ref { return Ref{Name: o.GetName(), UID: o.GetUID()} }

// deleteClaims deletes released claims with which no pod can run.
func (d *decision) deleteClaims() {
	for _, released := range d.status.Released {
		if c := d.claim(released.Name); c != nil && c.DeletionTimestamp == nil && d.userOf(c.Name, "") == nil {
			d.do(DeleteClaim{refOf(c)})
		}
	}
}

// createPods creates the claims and the pods of Pending members. A pod waits while one of its claims is being deleted, because it
// could not run, and while another pod can run with one of its claims. Until a pod is scheduled, nothing keeps its claims: a deleted
// claim is created again.
func (d *decision) createPods() {
	for _, m := range d.members {
		if !needsClaims(m) {
			continue
		}
		if use := d.useOf(m); use != nil {
			d.uses = append(d.uses, *use)
			continue
		}
		usable := true
		for _, c := range m.Claims {
			is := d.claim(c.Name)
			switch {
			case is == nil:
				d.do(CreateClaim{Name: c.Name, Volume: c.Volume})
			case is.DeletionTimestamp != nil:
				usable, d.deleted = false, c.Name
			}
		}
		if m.State == v1.MemberPending && usable {
			d.do(CreatePod{Name: m.Name, Revision: m.Revision, Claims: m.Claims})
		}
	}
}

// needsClaims returns true if the pod of the member does not exist yet, or is not bound to a node.
func needsClaims(m *member) bool {
	return m.State == v1.MemberPending || m.State == v1.MemberActive && !m.going && m.Node == ""
}

// takeAttestation removes an attestation that is used, or that is refused. A member whose claims another pod uses still needs it.
func (d *decision) takeAttestation() {
	uid := types.UID(d.Cluster.Annotations[v1.AttestAnnotation])
	if uid == "" {
		return
	}
	refused := "no member has a pod with this uid"
	for _, recorded := range d.Cluster.Status.Members {
		if recorded.UID != uid {
			continue
		}
		refused = fmt.Sprintf("pod %s is not terminating, or its kubelet can still report that the pod has terminated. Delete the pod: kubectl delete pod -n %s %[1]s",
			recorded.Name, d.Cluster.Namespace)
		if d.classify(recorded).proven != "" {
			refused = ""
		}
	}
	switch {
	case refused != "":
		d.do(TakeAttestation{uid, fmt.Sprintf("annotation %s=%s is ignored: %s", v1.AttestAnnotation, uid, refused)})
	case !slices.ContainsFunc(d.members, func(m *member) bool { return m.UID == uid }):
		d.do(TakeAttestation{UID: uid})
	}
}

// growClaims raises the requests of bound claims to those of the templates.
func (d *decision) growClaims() {
	grows := false
	wanted := map[string]*resource.Quantity{}
	for _, template := range d.Cluster.Spec.VolumeClaimTemplates {
		wanted[template.Metadata.Name] = template.Spec.Resources.Requests.Storage
	}
	for _, m := range d.counted() {
		for _, c := range m.Claims {
			is, storage := d.claim(c.Name), wanted[c.Volume]
			if is != nil && storage != nil && is.Status.Phase == corev1.ClaimBound && is.Spec.Resources.Requests.Storage().Cmp(*storage) < 0 {
				d.do(GrowClaim{refOf(is), *storage})
				grows = true
			}
		}
	}
	if !grows {
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionExpansionRefused)
	}
}
