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
	// webhookBytes is an upper estimate of the size in bytes of a webhook without the selector. Most of it is the
	// certificate of Kyverno's CA.
	webhookBytes = 2000
)

// WithinBudget returns the objects of one kind in one namespace that get a policy, from the oldest to the newest. An object
// has room in NamespaceBudget if its webhook and the webhooks of all older objects fit. Thus a new object never takes the
// room of an older object, and a deletion takes no room from any object. No object grows, because its selector is
// immutable. For objects of the same second, the UID decides, because users cannot choose it. Objects that ValidateOf
// rejects get no policy and take no room.
func WithinBudget(subjects []Subject, per Per) (installable []Subject) {
	used := 0
	if per == PerNamespace {
		used = webhookBytes
	}
	for _, s := range slices.SortedFunc(slices.Values(subjects), byAge) {
		if ValidateOf(s) != nil {
			continue
		}
		used += selectorBytes(s)
		if per != PerNamespace {
			used += webhookBytes
		}
		if used > NamespaceBudget {
			break
		}
		installable = append(installable, s)
	}
	return installable
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
	}
	return 0
}
