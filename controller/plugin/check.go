package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// oldestKubernetes is the oldest version that is meant to work.
const oldestKubernetes = "1.33"

// guards are the suffixes of the names of the chart's ValidatingAdmissionPolicies.
var guards = []string{
	"attestation", "barrier", "bindings", "controller-budgets", "controller-configmaps", "controller-deletions", "controller-events",
	"controller-leases", "controller-mutating-policies", "controller-pods", "controller-policies", "controller-rolebindings", "controller-roles", "controller-scale",
	"controller-singletons", "copied", "definition", "dry-run", "ephemeral-containers", "exempt-namespaces", "fenced", "finalizer",
	"held", "lease", "marks", "pod-tokens", "readers", "record", "reports", "roles", "roll", "sidecar-image", "unfenced", "unreleased", "writer-attestation",
	"writer-finalizer", "writer-lease",
}

// clusterGuards are the suffixes of the guards that the chart installs with statefulClusters.enabled.
var clusterGuards = []string{
	"cluster-manager", "cluster-manager-spec", "members", "members-attestation", "members-claims", "members-finalizer", "members-marks", "members-record", "members-recorded",
}

// chartLabels are the labels of the chart's objects.
var chartLabels = client.MatchingLabels{"app.kubernetes.io/name": "statefulsingleton"}

// check is a check of `kubectl stfs check`.
type check struct {
	name string
	// run returns the result as text. The error says what failed and what to do next. A Forbidden error means that the
	// user cannot see the object.
	run func(ctx context.Context, in *cluster) (found string, err error)
}

func (c commands) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the cluster, Kyverno, the guards, the controller and your permissions",
		Long: `check checks everything that StatefulSingletons need, and your permissions in the namespace. For each failure, check
says what to do. If you cannot read an object, the result is "unknown", which is not a failure.

The exit code is 1 if a check failed.`,
		Example: `  kubectl stfs check -n prod`,
		Args:    takes(0, 0),
		RunE: c.in(func(ctx context.Context, in *cluster, _ []string) error {
			return c.check(ctx, in)
		}),
	}
}

func (c commands) check(ctx context.Context, in *cluster) error {
	if _, err := in.serverVersion(); unreached(err) || apierrors.IsUnauthorized(err) {
		return err // every check would fail with the same error
	}
	checks := []check{
		{"Kubernetes", checkKubernetes},
		{"definition", checkDefinition},
		{"Kyverno", checkKyverno},
		{"policies", checkPolicies},
		{"guards", checkGuards},
		{"controller", c.checkController},
	}
	for _, p := range permissions {
		checks = append(checks, check{"permissions: " + p.commands, p.check})
	}
	failed := 0
	text := columns(func(row func(cells ...string)) {
		for _, is := range checks {
			found, err := is.run(ctx, in)
			state := "ok"
			switch {
			case apierrors.IsForbidden(err):
				state, found = "unknown", "you do not have permission to read the object: "+err.Error()
			case err != nil:
				failed++
				state, found = "FAILED", err.Error()
			}
			row(state, is.name, found)
		}
	})
	if err := c.print("%s", text); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(checks))
	}
	return nil
}

func checkKubernetes(_ context.Context, in *cluster) (string, error) {
	info, err := in.serverVersion()
	if err != nil {
		return "", fmt.Errorf("the API server does not answer: %w", err)
	}
	is, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return "", fmt.Errorf("cannot parse the version %q: %w. Make sure that it is %s or later", info.GitVersion, err, oldestKubernetes)
	}
	if !is.AtLeast(version.MustParseGeneric(oldestKubernetes)) {
		return "", fmt.Errorf("version %s is not supported: upgrade to %s or later", info.GitVersion, oldestKubernetes)
	}
	return info.GitVersion, nil
}

func checkDefinition(_ context.Context, in *cluster) (string, error) {
	_, err := in.RESTMapper().RESTMapping(schema.GroupKind{Group: v1.GroupVersion.Group, Kind: "StatefulSingleton"}, v1.GroupVersion.Version)
	if meta.IsNoMatchError(err) {
		return "", fmt.Errorf("the API server does not serve %s StatefulSingleton: install the chart", v1.GroupVersion)
	}
	return fmt.Sprintf("the API server serves %s StatefulSingleton", v1.GroupVersion), err
}

func checkGuards(ctx context.Context, in *cluster) (string, error) {
	var policies admissionregistrationv1.ValidatingAdmissionPolicyList
	if err := in.List(ctx, &policies, chartLabels); err != nil {
		return "", err
	}
	var bindings admissionregistrationv1.ValidatingAdmissionPolicyBindingList
	if err := in.List(ctx, &bindings, chartLabels); err != nil {
		return "", err
	}
	managers, err := deploymentsOf(ctx, in, "cluster-manager")
	if err != nil {
		return "", err
	}
	wanted := guards
	if len(managers) > 0 {
		wanted = slices.Concat(guards, clusterGuards)
	}
	var missing []string
	for _, guard := range wanted {
		i := slices.IndexFunc(policies.Items, func(p admissionregistrationv1.ValidatingAdmissionPolicy) bool {
			return strings.HasSuffix(p.Name, "-"+guard)
		})
		if i < 0 || !denies(bindings.Items, policies.Items[i].Name) {
			missing = append(missing, guard)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("not installed, or not bound: %s. Upgrade the chart with guards.enabled=true: without the guards, nothing rejects a pod that Kyverno does not inject", strings.Join(missing, ", "))
	}
	return fmt.Sprintf("all %d guards are bound", len(wanted)), nil
}

// denies returns true if the policy has a binding that denies requests.
func denies(bindings []admissionregistrationv1.ValidatingAdmissionPolicyBinding, policy string) bool {
	return slices.ContainsFunc(bindings, func(b admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
		return b.Spec.PolicyName == policy && slices.Contains(b.Spec.ValidationActions, admissionregistrationv1.Deny)
	})
}

func (c commands) checkController(ctx context.Context, in *cluster) (string, error) {
	deployments, err := deploymentsOf(ctx, in, "controller")
	if err != nil {
		return "", err
	}
	if len(deployments) == 0 {
		return "", errors.New("the Deployment of the controller does not exist: install the chart")
	}
	managers, err := deploymentsOf(ctx, in, "cluster-manager")
	if err != nil {
		return "", err
	}
	deployments = append(deployments, managers...)
	var found []string
	for i := range deployments {
		d := &deployments[i]
		if d.Status.AvailableReplicas == 0 {
			return "", fmt.Errorf("Deployment %s has no available pod, so %s. To show why, run: %s", fullName(d), stops[d.Labels["app.kubernetes.io/component"]], in.kubectl("describe -n %s deployment %s", d.Namespace, d.Name))
		}
		found = append(found, fmt.Sprintf("Deployment %s, version %s, %d available", fullName(d), d.Labels["app.kubernetes.io/version"], d.Status.AvailableReplicas))
	}
	return fmt.Sprintf("%s; this plugin has version %s", strings.Join(found, "; "), c.version), nil
}

// stops says what stops without a component of the chart.
var stops = map[string]string{"controller": "no handoff continues", "cluster-manager": "no pod of a StatefulCluster is created or replaced"}

// deploymentsOf reads the Deployments of a component of the chart.
func deploymentsOf(ctx context.Context, in *cluster, component string) ([]appsv1.Deployment, error) {
	var deployments appsv1.DeploymentList
	err := in.List(ctx, &deployments, chartLabels, client.MatchingLabels{"app.kubernetes.io/component": component})
	return deployments.Items, err
}

// permission is a permission that commands need.
type permission struct {
	group, resource string
	verbs           []string
}

// permissions are the permissions that commands need.
var permissions = []commandPermissions{
	{"status, explain", []permission{
		{v1.GroupVersion.Group, "statefulsingletons", []string{"get", "list"}},
		{v1.GroupVersion.Group, "statefulsetlocks", []string{"get", "list"}},
		{"", "pods", []string{"get", "list"}},
		{"", "persistentvolumeclaims", []string{"get"}},
		{"apps", "deployments", []string{"get"}},
		{"apps", "replicasets", []string{"get"}},
		{"apps", "statefulsets", []string{"get"}},
		{"policy", "poddisruptionbudgets", []string{"list"}},
	}},
	{"create", []permission{
		{v1.GroupVersion.Group, "statefulsingletons", []string{"create", "get", "list"}},
		{"apps", "deployments", []string{"get", "list", "patch"}},
		{"apps", "statefulsets", []string{"get", "list"}},
		{"apps", "daemonsets", []string{"list"}},
		{"apps", "replicasets", []string{"list"}},
		{"batch", "cronjobs", []string{"list"}},
		{"batch", "jobs", []string{"list"}},
	}},
	{"inject", []permission{{"", "pods", []string{"create"}}}},
	{"rollout", []permission{
		{v1.GroupVersion.Group, "statefulclusters", []string{"get", "list", "patch"}},
		{"apps", "controllerrevisions", []string{"list"}},
	}},
	{"handover, attest", []permission{{v1.GroupVersion.Group, "statefulsingletons", []string{"patch"}}}},
}

type commandPermissions struct {
	commands string
	needs    []permission
}

// check asks the API server for each permission.
func (p commandPermissions) check(ctx context.Context, in *cluster) (string, error) {
	var missing []string
	for _, need := range p.needs {
		for _, verb := range need.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: in.namespace, Group: need.group, Resource: need.resource, Verb: verb,
				},
			}}
			if err := in.Create(ctx, review); err != nil {
				return "", fmt.Errorf("check your permission to %s %s: %w", verb, need.resource, err)
			}
			if !review.Status.Allowed {
				missing = append(missing, verb+" "+need.resource)
			}
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("you do not have all permissions for namespace %s. Ask an administrator for permission to %s", in.namespace, strings.Join(missing, ", "))
	}
	return "granted in namespace " + in.namespace, nil
}
