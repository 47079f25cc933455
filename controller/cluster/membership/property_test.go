package membership_test

import (
	"flag"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster/membership"
)

// drawView returns a random view in which the record is consistent. The pods need not match the record.
func drawView(t *rapid.T) (v view, state v1.ReplacementState) {
	draw := func(name string) bool { return rapid.Bool().Draw(t, name) }
	v.replicas = uint8(rapid.IntRange(0, maxNames).Draw(t, "replicas"))
	v.record.next = uint8(rapid.IntRange(0, maxNames).Draw(t, "next"))
	var claims []uint8 // the names of claims come from the counter, too
	for i := range v.record.next {
		claims = append(claims, i+1)
	}
	claims = rapid.Permutation(claims).Draw(t, "claims")
	for i := len(claims); i < maxNames; i++ {
		claims = append(claims, uint8(i)+1)
	}
	for i := range int(v.record.next) {
		if state := rapid.SampledFrom([]byte{0, 'P', 'A', 'A', 'L', 'X'}).Draw(t, "state"); state != 0 {
			v.record.members[i] = memberState{state: state, claim: claims[i]}
			if state != 'P' {
				v.record.members[i].life = 1
			}
		} else if draw("released") {
			v.record.released |= 1 << (claims[i] - 1)
		}
	}
	v.claims = uint8(rapid.IntRange(0, 1<<maxNames-1).Draw(t, "existing claims"))
	v.ending = v.claims & uint8(rapid.IntRange(0, 1<<maxNames-1).Draw(t, "claims that are being deleted"))
	for i := range v.pods {
		p := podState{life: 1, claim: claims[i], exists: draw("exists"), bound: draw("bound"), deleting: draw("deleting"), finalizer: draw("finalizer")}
		p.gated = !p.bound && draw("gated")
		p.node = uint8(rapid.IntRange(0, maxNodes-1).Draw(t, "node"))
		p.reported = p.bound && draw("reported")
		p.ready = p.bound && !p.deleting && !p.reported && draw("ready")
		if r := v.record.members[i]; r.life == 0 && draw("forged") {
			p.forged, p.finalizer, p.claim = true, false, uint8(rapid.IntRange(1, maxNames).Draw(t, "claim of the forged pod"))
		}
		if p.exists {
			v.pods[i] = p
		}
	}
	for i := range v.nodes {
		v.nodes[i].notReady = draw("unready")
		v.nodes[i].outOfService = v.nodes[i].notReady && draw("out of service")
	}
	return v, rapid.SampledFrom([]v1.ReplacementState{v1.ReplacementCarry, v1.ReplacementFresh}).Draw(t, "state")
}

// In every situation, names and claims belong to one member, a member ends with a proof, and Record comes before its effects.
// The next decision does not change the record again.
func TestDecideProperties(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("2000")
	}
	rapid.Check(t, func(t *rapid.T) {
		v, state := drawView(t)
		m := newModel(setting{state: state})
		s := m.snapshot(v)
		plan := membership.Decide(s, now)
		checkUses(&v, &planState{steps: plan.Steps, status: recordOf(&plan.Status)})
		checkRecord(t, s, plan)
		checkSteps(t, plan)

		again := s
		again.Cluster = s.Cluster.DeepCopy()
		again.Cluster.Status = plan.Status
		if next := membership.Decide(again, now); slices.Contains(next.Steps, membership.Step(membership.Record{})) && !settles(again, next) {
			t.Fatalf("the record changes without end: %s, then %s", describe(plan.Status), describe(next.Status))
		}
	})
}

// settles returns true if one more decision does not change the record. A pod whose UID was just recorded can have ended.
func settles(s membership.Snapshot, plan membership.Plan) bool {
	for range maxNames {
		s.Cluster = s.Cluster.DeepCopy()
		s.Cluster.Status = plan.Status
		if plan = membership.Decide(s, now); !slices.Contains(plan.Steps, membership.Step(membership.Record{})) {
			return true
		}
	}
	return false
}

// checkRecord checks the new record.
func checkRecord(t *rapid.T, s membership.Snapshot, plan membership.Plan) {
	before, after := &s.Cluster.Status, &plan.Status
	if after.Next < before.Next {
		t.Fatalf("the counter goes from %d back to %d", before.Next, after.Next)
	}
	holder := map[string]string{}
	for _, m := range after.Members {
		if int64(number(m.Name)) >= after.Next {
			t.Fatalf("the counter %d will give the name %s again", after.Next, m.Name)
		}
		for _, c := range m.Claims {
			if other := holder[c.Name]; other != "" {
				t.Fatalf("%s and %s have claim %s", other, m.Name, c.Name)
			}
			holder[c.Name] = m.Name
		}
		if i := slices.IndexFunc(before.Members, func(old v1.ClusterMember) bool { return old.Name == m.Name }); i >= 0 {
			if diff := cmp.Diff(before.Members[i].Claims, m.Claims); diff != "" {
				t.Fatalf("the claims of %s change:\n%s", m.Name, diff)
			}
		} else if plan.Outcome != membership.PodsAdopted && int64(number(m.Name)) < before.Next {
			t.Fatalf("%s gets a name below %d", m.Name, before.Next)
		}
	}
	for _, released := range after.Released {
		if m := holder[released.Name]; m != "" && released.Policy == v1.ClaimDelete {
			t.Fatalf("claim %s of %s is deleted", released.Name, m)
		}
	}
	for _, old := range before.Members {
		removed := !slices.ContainsFunc(after.Members, func(m v1.ClusterMember) bool { return m.Name == old.Name })
		if removed && old.State != v1.MemberPending && !hasTerminated(s, old) {
			t.Fatalf("%s is removed without a proof", old.Name)
		}
	}
}

// hasTerminated returns true if the object of the pod or of its node proves that the pod has terminated.
func hasTerminated(s membership.Snapshot, m v1.ClusterMember) bool {
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.UID != m.UID {
			continue
		}
		node := s.Nodes[p.Spec.NodeName]
		return len(p.ManagedFields) > 0 || p.DeletionTimestamp != nil && (node == nil || len(node.Spec.Taints) > 0)
	}
	return false
}

// checkSteps checks that Record comes before its effects.
func checkSteps(t *rapid.T, plan membership.Plan) {
	i := slices.Index(plan.Steps, membership.Step(membership.Record{}))
	for _, step := range plan.Steps[:max(0, i)] {
		switch step.(type) {
		case membership.CreateRevision, membership.RenumberRevision:
		default:
			t.Fatalf("%T comes before Record", step)
		}
	}
}
