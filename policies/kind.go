package policies

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind of Kyverno's policies. Policies of both kinds mutate a pod in the same way.
type Kind string

const (
	// ClusterPolicy is the default. Kyverno 1.20 rejects new ones.
	ClusterPolicy Kind = "ClusterPolicy"
	// NamespacedMutatingPolicy needs Kyverno 1.19 or later. After a restart, Kyverno admits pods unmutated for a while.
	NamespacedMutatingPolicy Kind = "NamespacedMutatingPolicy"
)

// Kinds are all kinds.
var Kinds = []Kind{ClusterPolicy, NamespacedMutatingPolicy}

// GVK returns the group, version and kind.
func (k Kind) GVK() schema.GroupVersionKind {
	if k == NamespacedMutatingPolicy {
		return schema.GroupVersionKind{Group: "policies.kyverno.io", Version: "v1", Kind: string(k)}
	}
	return schema.GroupVersionKind{Group: "kyverno.io", Version: "v1", Kind: string(ClusterPolicy)}
}

// Of returns the object's own policy of this kind.
func (k Kind) Of(s Subject) Ref { return k.ref(s.GetNamespace(), NameOf(s)) }

// OfNamespace returns the policy of this kind that the singletons of a namespace share.
func (k Kind) OfNamespace(namespace string) Ref { return k.ref(namespace, NamespaceName(namespace)) }

func (k Kind) ref(namespace, name string) Ref {
	if k == NamespacedMutatingPolicy {
		return Ref{Kind: k, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
	}
	return Ref{Kind: ClusterPolicy, NamespacedName: types.NamespacedName{Name: name}}
}

// Ref identifies a policy.
type Ref struct {
	Kind Kind
	types.NamespacedName
}

// String returns kind and name, for messages.
func (r Ref) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }

// Key returns a text that no other policy has.
func (r Ref) Key() string { return fmt.Sprintf("%s %s", r.Kind, r.NamespacedName) }
