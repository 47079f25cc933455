package policies_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// A pod prefers the node of the holder if it mounts a claim, unless it has a term about pods of the same node.
func TestPlacement(t *testing.T) {
	t.Parallel()
	term := func(topology string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}
	}
	weighted := func(topology string) []corev1.WeightedPodAffinityTerm {
		return []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term(topology)}}
	}
	const node, zone = corev1.LabelHostname, corev1.LabelTopologyZone
	beside := corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
		TopologyKey:    node,
		LabelSelector:  &metav1.LabelSelector{MatchLabels: map[string]string{"apps.statefulsingleton.com/role": "active"}},
		MatchLabelKeys: []string{"apps.statefulsingleton.com/singleton"},
	}}
	preferring := func(terms ...corev1.WeightedPodAffinityTerm) *corev1.Affinity {
		return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
	}
	inZone := weighted(zone)[0]
	onNode := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	onNodeBeside := preferring(beside)
	onNodeBeside.NodeAffinity = onNode.NodeAffinity
	s := readSingleton(t, "node-claims")
	none := s.DeepCopy()
	none.Spec.Placement = v1.PlacementNone
	for name, tc := range map[string]struct {
		singleton *v1.StatefulSingleton
		has, want *corev1.Affinity
		noClaim   bool
	}{
		"no affinity":              {want: preferring(beside)},
		"a node affinity":          {has: onNode, want: onNodeBeside},
		"a term for the zone":      {has: preferring(inZone), want: preferring(inZone, beside)},
		"a preferred term":         {has: preferring(weighted(node)...), want: preferring(weighted(node)...)},
		"a required term":          {has: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(node)}}}},
		"a preferred anti-term":    {has: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: weighted(node)}}},
		"a required anti-term":     {has: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(node)}}}},
		"no claim":                 {noClaim: true},
		"spec.placement is None":   {singleton: none},
		"the holder has no claims": {singleton: readSingleton(t, "default")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.singleton == nil {
				tc.singleton = s
			}
			if tc.has != nil && tc.want == nil {
				tc.want = tc.has
			}
			pod := decoded[corev1.Pod](t, readFile(t, "testdata/pods/placement.yaml"))
			pod.Spec.Affinity = tc.has
			if tc.noClaim {
				pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
			}
			for _, policy := range []rendering{ownPolicy(tc.singleton, options), sharedPolicy(*tc.singleton)} {
				got := decoded[corev1.Pod](t, newKyverno(t, policy).mutate(t, encode(t, pod), firstRequest))
				if diff := gocmp.Diff(tc.want, got.Spec.Affinity); diff != "" {
					t.Errorf("affinity (-want +got):\n%s", diff)
				}
			}
		})
	}
}
