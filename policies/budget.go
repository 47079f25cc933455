package policies

import (
	"cmp"
	"slices"
	"strings"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const (
	// WebhooksLimit is the maximum size in bytes of Kyverno's webhooks. Kyverno keeps the webhooks of all policies in one
	// object, and etcd accepts no larger request by default.
	WebhooksLimit = 3 << 19
	// NamespaceBudget is the size in bytes that the webhooks for the objects of one kind in one namespace may have
	// together: a tenth of WebhooksLimit.
	NamespaceBudget = WebhooksLimit / 10
	// policyBudget is the size in bytes that the estimates of all singletons in a shared policy may have together. The policy
	// itself is smaller. With more, the time that Kyverno needs for each selected pod becomes noticeable.
	policyBudget = WebhooksLimit / 3
	// webhookBytes is an upper estimate of the size in bytes of a webhook without the selector. Most of it is the
	// certificate of Kyverno's CA.
	webhookBytes = 2000
)

// WithinBudget returns the objects of one kind in one namespace that get a policy, from the oldest to the newest. An object
// has room in NamespaceBudget if its webhook and the webhooks of all older objects fit. A shared policy has a budget of its
// own. Thus a new object never takes the room of an older object, and a deletion takes no room from any object. For objects
// of the same second, the UID decides, because users cannot choose it. Objects that ValidateOf rejects get no policy and take
// no room.
func WithinBudget(subjects []Subject, per Per) (installable []Subject) {
	webhooks, policy := 0, 0
	if per == PerNamespace {
		webhooks = webhookBytes
	}
	variants := map[string]bool{}
	for _, s := range slices.SortedFunc(slices.Values(subjects), byAge) {
		if ValidateOf(s) != nil {
			continue
		}
		webhooks += selectorBytes(s)
		if singleton, ok := s.(*v1.StatefulSingleton); ok && per == PerNamespace {
			policy += policyBytes(singleton, variants)
		} else {
			webhooks += webhookBytes
		}
		if webhooks > NamespaceBudget || policy > policyBudget {
			break
		}
		installable = append(installable, s)
	}
	return installable
}

// policyBytes returns an upper estimate of the size in bytes that a valid singleton adds to a shared policy of each Kind. It
// adds the variant of the singleton to the variants that the policy already has.
func policyBytes(s *v1.StatefulSingleton, variants map[string]bool) int {
	const rule, mark, fence, hold = 200, 500, 5000, 24_000
	names, rules := len(listLiteral(s.Spec.Containers)), 8
	own := mark
	if s.Spec.Fencing == v1.FencingLease {
		own += fence + 4*names
		rules += 2
	}
	if variant := variantOf(s); !variants[variant] {
		variants[variant] = true
		own += hold + 24*names
	}
	return own + rules*(rule+len(encode(s.Spec.Selector)))
}

func byAge(a, b Subject) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(string(a.GetUID()), string(b.GetUID())))
}

// selectorBytes returns the size in bytes that a valid object adds to the conditions of a webhook.
func selectorBytes(s Subject) int {
	switch s := s.(type) {
	case *v1.StatefulSingleton:
		selected, _ := selectorCEL(&s.Spec.Selector) // no error, because the object is valid
		return len(selected) + len("() || ")
	case *v1.StatefulSetLock:
		return len(ownedCEL(s))
	case *v1.StatefulCluster:
		return len(memberCEL(s))
	}
	return 0
}
