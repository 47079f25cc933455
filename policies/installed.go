package policies

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// variant has everything on which commonRules depend.
type variant struct {
	Containers         []string           `json:"containers,omitempty"`
	HoldInitContainers bool               `json:"holdInitContainers,omitempty"`
	ReadinessProbes    v1.ReadinessProber `json:"readinessProbes,omitempty"`
	Fencing            v1.Fencing         `json:"fencing,omitempty"`
	Connections        v1.Connections     `json:"connections,omitempty"`
	PrefersNode        bool               `json:"prefersNode,omitempty"`
}

func variantOf(s *v1.StatefulSingleton) variant {
	return variant{s.Spec.Containers, s.Spec.HoldInitContainers, s.Spec.ReadinessProbes, s.Spec.Fencing, s.Spec.Connections, prefersNode(s)}
}

// Variant returns a text that is the same for singletons with the same commonRules. It is empty for other objects.
func Variant(s Subject) string {
	if s, ok := s.(*v1.StatefulSingleton); ok {
		return string(encode(variantOf(s)))
	}
	return ""
}

// Installed maps the UID of each singleton in a shared policy to the variant from which its rules were rendered.
type Installed map[types.UID]variant

// installedGroup has the singletons of a variant. InstalledAnnotation is a list of installedGroups.
type installedGroup struct {
	variant
	UIDs []types.UID `json:"uids"`
}

// InstalledIn returns the singletons from which a shared policy was rendered. It returns an error if InstalledAnnotation is
// invalid. A policy without the annotation has no singletons.
func InstalledIn(policy metav1.Object) (Installed, error) {
	text := policy.GetAnnotations()[InstalledAnnotation]
	if text == "" {
		return nil, nil
	}
	var groups []installedGroup
	if err := json.Unmarshal([]byte(text), &groups); err != nil {
		return nil, fmt.Errorf("decode annotation %s of policy %s: %w. Restore it from a backup. If you remove it instead, singletons can lose their rules", InstalledAnnotation, policy.GetName(), err)
	}
	all := Installed{}
	for _, group := range groups {
		for _, uid := range group.UIDs {
			all[uid] = group.variant
		}
	}
	return all, nil
}

// installedIn returns the value of InstalledAnnotation.
func installedIn(groups [][]v1.StatefulSingleton) string {
	var all []installedGroup
	for _, alike := range groups {
		group := installedGroup{variant: variantOf(&alike[0])}
		for _, s := range alike {
			group.UIDs = append(group.UIDs, s.UID)
		}
		all = append(all, group)
	}
	return string(encode(all))
}

// Has returns true if the subject is installed.
func (i Installed) Has(s Subject) bool {
	_, ok := i[s.GetUID()]
	return ok
}

// HasEarlier returns true if the subject is installed with another variant than that of its present spec.
func (i Installed) HasEarlier(s Subject) bool {
	return i.Has(s) && string(encode(i[s.GetUID()])) != Variant(s)
}

// earlier returns the installed singleton if its variant is installed, and otherwise a copy with the installed variant.
func (i Installed) earlier(s Subject) Subject {
	if !i.HasEarlier(s) {
		return s
	}
	has := i[s.GetUID()]
	singleton := s.(*v1.StatefulSingleton).DeepCopy() // only singletons share a policy
	singleton.Spec.Containers, singleton.Spec.HoldInitContainers = has.Containers, has.HoldInitContainers
	singleton.Spec.ReadinessProbes, singleton.Spec.Fencing, singleton.Spec.Connections = has.ReadinessProbes, has.Fencing, has.Connections
	singleton.Spec.Placement = v1.PlacementNone
	if has.PrefersNode {
		singleton.Spec.Placement, singleton.Status.NodeClaims = v1.PlacementAuto, []string{"a claim"} // its name does not matter
	}
	return singleton
}
