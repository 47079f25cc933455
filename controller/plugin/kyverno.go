package plugin

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// kyvernoVersion is the version of Kyverno for which this version writes policies.
const kyvernoVersion = "1.19"

// withoutClusterPolicies is the first version that rejects new ClusterPolicies.
var withoutClusterPolicies = version.MustParseGeneric("1.20")

// upgradePage describes the upgrade to the version of Kyverno that rejects new ClusterPolicies.
const upgradePage = "https://github.com/statefulsingleton/statefulsingleton/blob/main/docs/upgrading-kyverno.md#upgrade-to-kyverno-120"

// imageVersion matches the tag of an image, with or without a digest.
var imageVersion = regexp.MustCompile(`:v?(\d+\.\d+)(\.\d+)?[^:/@]*(@|$)`)

func checkKyverno(ctx context.Context, in *cluster) (string, error) {
	d, image, err := kyvernoDeployment(ctx, in)
	if err != nil {
		return "", err
	}
	if d == nil {
		return "", fmt.Errorf("the Deployment of the admission controller does not exist, so Kyverno injects no pod: install Kyverno %s", kyvernoVersion)
	}
	is := versionOf(image)
	switch {
	case d.Status.AvailableReplicas == 0:
		return "", fmt.Errorf("Deployment %s has no available pod, so no pod of a StatefulSingleton can be created. To show why, run: %s", fullName(d), in.kubectl("describe -n %s deployment %s", d.Namespace, d.Name))
	case is == nil:
		return "", fmt.Errorf("cannot read the version of Kyverno from image %s: make sure that the version is %s", image, kyvernoVersion)
	case !is.AtLeast(version.MustParseGeneric(kyvernoVersion)):
		return "", fmt.Errorf("image %s is not supported: install Kyverno %s", image, kyvernoVersion)
	}
	found := fmt.Sprintf("image %s, %d available", image, d.Status.AvailableReplicas)
	if is.String() != kyvernoVersion {
		found += fmt.Sprintf(". StatefulSingleton is not tested with this version: see %s", upgradePage)
	}
	return found, nil
}

// kyvernoDeployment reads the Deployment of Kyverno's admission controller, and its image. It returns nil if the Deployment does
// not exist.
func kyvernoDeployment(ctx context.Context, in *cluster) (*appsv1.Deployment, string, error) {
	var deployments appsv1.DeploymentList
	if err := in.List(ctx, &deployments, client.MatchingLabels{"app.kubernetes.io/component": "admission-controller"}); err != nil {
		return nil, "", err
	}
	for i := range deployments.Items {
		for _, container := range deployments.Items[i].Spec.Template.Spec.Containers {
			if container.Name == "kyverno" {
				return &deployments.Items[i], container.Image, nil
			}
		}
	}
	return nil, "", nil
}

// versionOf returns the minor version in the tag of an image, or nil.
func versionOf(image string) *version.Version {
	tag := imageVersion.FindStringSubmatch(image)
	if tag == nil {
		return nil
	}
	return version.MustParseGeneric(tag[1])
}

// policyKinds are the kinds of policies that the controller can write.
var (
	clusterPolicy  = schema.GroupVersionKind{Group: "kyverno.io", Version: "v1", Kind: "ClusterPolicy"}
	mutatingPolicy = schema.GroupVersionKind{Group: "policies.kyverno.io", Version: "v1", Kind: "NamespacedMutatingPolicy"}
	policyKinds    = []schema.GroupVersionKind{clusterPolicy, mutatingPolicy}
)

// ownPolicies are the labels of the policies that the controller has written.
var ownPolicies = client.MatchingLabels{v1.ManagedByLabel: v1.ManagedBy}

// checkPolicies checks whether the policies fit the version of Kyverno, and says what to do before an upgrade.
func checkPolicies(ctx context.Context, in *cluster) (string, error) {
	_, image, err := kyvernoDeployment(ctx, in)
	if err != nil {
		return "", err
	}
	written, err := writtenKind(ctx, in)
	if err != nil {
		return "", err
	}
	counts, err := countPolicies(ctx, in)
	if err != nil {
		return "", err
	}
	found := describe(counts)
	if wrong := misfit(versionOf(image), written, counts); wrong != "" {
		return "", fmt.Errorf("%s. %s. See %s", found, wrong, upgradePage)
	}
	return found + hint(written, counts), nil
}

// describe returns the numbers of policies as text.
func describe(counts map[schema.GroupVersionKind]int) string {
	var found []string
	for _, kind := range policyKinds {
		if n, served := counts[kind]; served {
			found = append(found, fmt.Sprintf("%d of kind %s", n, kind.Kind))
		}
	}
	if len(found) == 0 {
		return "the API server serves no kind of policies that the controller can write"
	}
	return strings.Join(found, ", ")
}

// misfit says why the policies do not work, and what to do. It returns "" if they work. The version of Kyverno can be nil.
func misfit(kyverno *version.Version, written schema.GroupVersionKind, counts map[schema.GroupVersionKind]int) string {
	_, served := counts[written]
	next := kyverno != nil && kyverno.AtLeast(withoutClusterPolicies)
	switch {
	case len(counts) == 0:
		return "Install Kyverno " + kyvernoVersion
	case written == mutatingPolicy && !served:
		return fmt.Sprintf("The controller writes NamespacedMutatingPolicies, which need Kyverno %s: upgrade Kyverno, or set policyKind=ClusterPolicy of the chart", kyvernoVersion)
	case written == clusterPolicy && (next || !served):
		return fmt.Sprintf("The controller writes ClusterPolicies, which Kyverno %s rejects: set policyKind=NamespacedMutatingPolicy of the chart", withoutClusterPolicies)
	case next && counts[clusterPolicy] > 0:
		return fmt.Sprintf("ClusterPolicies are left, which Kyverno %s no longer supports. The controller deletes them after a check of the new policies: see condition PolicyInstalled of StatefulSingletons and StatefulSetLocks", withoutClusterPolicies)
	}
	return ""
}

// hint says what to do before an upgrade to Kyverno 1.20.
func hint(written schema.GroupVersionKind, counts map[schema.GroupVersionKind]int) string {
	switch {
	case written == clusterPolicy:
		return fmt.Sprintf(". Before you upgrade to Kyverno %s, set policyKind=NamespacedMutatingPolicy of the chart: see %s", withoutClusterPolicies, upgradePage)
	case counts[clusterPolicy] > 0:
		return fmt.Sprintf(". Before you upgrade to Kyverno %s, wait until no ClusterPolicy is left: see %s", withoutClusterPolicies, upgradePage)
	}
	return ""
}

// writtenKind returns the kind of policies that the controller writes, by the argument of its Deployment. It is empty if
// the Deployment does not exist.
func writtenKind(ctx context.Context, in *cluster) (schema.GroupVersionKind, error) {
	deployments, err := deploymentsOf(ctx, in, "controller")
	if err != nil || len(deployments) == 0 {
		return schema.GroupVersionKind{}, err
	}
	for i := range deployments {
		if !slices.ContainsFunc(deployments[i].Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.Contains(c.Args, "--policy-kind="+mutatingPolicy.Kind)
		}) {
			return clusterPolicy, nil
		}
	}
	return mutatingPolicy, nil
}

// countPolicies returns the number of policies of each served kind that the controller has written.
func countPolicies(ctx context.Context, in *cluster) (map[schema.GroupVersionKind]int, error) {
	counts := map[schema.GroupVersionKind]int{}
	for _, kind := range policyKinds {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind)
		err := in.List(ctx, &list, ownPolicies)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		counts[kind] = len(list.Items)
	}
	return counts, nil
}
