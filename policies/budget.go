package policies

import (
	"cmp"
	"slices"
	"strings"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// WebhooksLimit is the maximum size in bytes of Kyverno's webhooks. Kyverno keeps the webhooks of all policies in one object, and
// etcd accepts no larger request by default.
const WebhooksLimit = 3 << 19

// webhookBytes is an upper estimate of the size in bytes of a webhook without the selector, also with the longest names.
// Most of it is the certificate of Kyverno's CA.
const webhookBytes = 2100

// Budget is the room of one namespace for the objects of one kind, in bytes.
type Budget struct {
	// Webhooks is the size that all their webhooks may have together.
	Webhooks int
	// Policy is the size that the estimates of all singletons in a shared policy may have together. The policy itself is smaller.
	Policy int
	// Expression is the size that the selectors in a shared policy may have together, because they are one expression.
	Expression int
}

// DefaultBudget gives a namespace a tenth of WebhooksLimit. With a larger shared policy, the time that Kyverno needs for each
// selected pod becomes noticeable. The API server compiles no longer expression than 100,000 code points, and Kyverno adds some
// conditions.
var DefaultBudget = Budget{Webhooks: WebhooksLimit / 10, Policy: WebhooksLimit / 3, Expression: 99_000}

// Within returns the objects of one kind in one namespace that get a policy. It first returns the installed singletons,
// because their new pods depend on the shared policy. Thus rules that become longer can exceed the budgets. If the present
// spec of an installed singleton has no room, Within returns a copy of the singleton with the installed variant.
//
// Another object has room if its webhook fits into Webhooks beside the webhooks of the installed singletons and of all
// older objects. In a shared policy, it also needs room in Policy and Expression. Thus a deletion takes no room from any object. For objects of the
// same second, the UID decides, because users cannot choose it. Objects that Validate rejects get no policy and take no room.
func (b Budget) Within(subjects []Subject, per Per, installed Installed) (installable []Subject) {
	var waiting []Subject
	for _, s := range slices.SortedFunc(slices.Values(subjects), byAge) {
		switch {
		case Validate(s) != nil:
		case installed.Has(s):
			installable = append(installable, s)
		default:
			waiting = append(waiting, s)
		}
	}
	installable = b.limit(installed, installable)
	taken := usageOf(per, installable)
	for _, s := range waiting {
		taken.count(s, 1)
		if taken.webhooks > b.Webhooks || taken.policy > b.Policy || taken.expression > b.Expression {
			break
		}
		installable = append(installable, s)
	}
	return installable
}

// limit returns the installed singletons, which are sorted by age. If the present spec of a singleton has no room in Policy,
// the result has a copy with the installed variant. The oldest singletons get the room.
func (b Budget) limit(installed Installed, all []Subject) []Subject {
	var limited []Subject
	for _, s := range all {
		limited = append(limited, installed.earlier(s))
	}
	if slices.Equal(limited, all) {
		return all
	}
	taken := usageOf(PerNamespace, limited)
	if usageOf(PerNamespace, all).policy <= max(taken.policy, b.Policy) {
		return all
	}
	for n, s := range all {
		before, old := taken.policy, limited[n]
		taken.count(old, -1)
		taken.count(s, 1)
		if taken.policy <= max(before, b.Policy) {
			limited[n] = s
			continue
		}
		taken.count(s, -1)
		taken.count(old, 1)
	}
	return limited
}

// usage is an upper estimate of the sizes in bytes of the webhooks of a namespace, of its shared policy of each Kind, and of the
// expression with the selectors in that policy.
type usage struct {
	per                          Per
	webhooks, policy, expression int
	// variants has the number of singletons of each Variant.
	variants map[string]int
}

func usageOf(per Per, subjects []Subject) *usage {
	u := &usage{per: per, variants: map[string]int{}}
	if per == PerNamespace {
		u.webhooks = webhookBytes
	}
	for _, s := range subjects {
		u.count(s, 1)
	}
	return u
}

// count adds a valid object if n is 1, and removes the object if n is -1.
func (u *usage) count(s Subject, n int) {
	u.webhooks += n * selectorBytes(s)
	singleton, ok := s.(*v1.StatefulSingleton)
	if !ok || u.per != PerNamespace {
		u.webhooks += n * webhookBytes
		return
	}
	u.expression += n * selectorBytes(s)
	own, shared := policyBytes(singleton)
	u.policy += n * own
	variant := Variant(s)
	had := u.variants[variant] > 0
	u.variants[variant] += n
	if had != (u.variants[variant] > 0) {
		u.policy += n * shared
	}
}

// policyBytes returns upper estimates of sizes in bytes in a shared policy of each Kind. A valid singleton has rules of its own,
// and shared rules, which are the same for all singletons of its Variant.
func policyBytes(s *v1.StatefulSingleton) (own, shared int) {
	const rule, mark, fence, queueing, hold, queue, node = 200, 500, 5000, 1000, 24_000, 10_000, 3000
	names, rules := len(listLiteral(s.Spec.Containers)), 8
	own = mark
	if s.Spec.Fencing == v1.FencingLease {
		own += fence + 4*names
		rules += 2
	}
	shared = hold + 24*names
	if queues(s) {
		own += queueing
		shared += queue + 4*names
		rules++
	}
	if prefersNode(s) {
		shared += node
		rules++
	}
	return own + rules*(rule+len(encode(s.Spec.Selector))), shared
}

func byAge(a, b Subject) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(string(a.GetUID()), string(b.GetUID())))
}

// selectorBytes returns the size in bytes that a valid object adds to the conditions of a webhook.
func selectorBytes(s Subject) int {
	if l, isLock := s.(*v1.StatefulSetLock); isLock {
		return len(ownedCEL(l))
	}
	selected, _ := selectorCEL(&s.(*v1.StatefulSingleton).Spec.Selector) // no error, because the object is valid
	return len(selected) + len("() || ")
}
