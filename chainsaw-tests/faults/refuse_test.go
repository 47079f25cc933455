//go:build cluster

package faults_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// writes has a CEL expression for each step, which selects the write of the controller or of the manager of StatefulClusters
// for that step.
var writes = map[string]string{
	"Protect": `variables.pod && !('` + signal.Annotation + `' in variables.annotations) &&
		'` + v1.HandoffFinalizer + `' in variables.finalizers && !('` + v1.HandoffFinalizer + `' in variables.oldFinalizers)`,
	"Record": `request.resource.resource == 'statefulsingletons' && request.subResource == 'status' &&
		object.status.epoch != oldObject.status.epoch`,
	"Signal":      `variables.pod && '` + signal.Annotation + `' in variables.annotations && !('` + signal.Annotation + `' in variables.oldAnnotations)`,
	"OpenBarrier": `request.resource.resource == 'configmaps'`,
	"Unprotect":   `variables.pod && '` + v1.HandoffFinalizer + `' in variables.oldFinalizers && !('` + v1.HandoffFinalizer + `' in variables.finalizers)`,
	"Retire":      `request.resource.resource == 'replicasets' && request.subResource == 'scale'`,
	"CreatePod":   `request.resource.resource == 'pods' && request.operation == 'CREATE'`,
}

// probe is a ConfigMap that the policy rejects for all users. The rejection shows that the API server enforces the
// policy.
const probe = "is-the-policy-there"

// refusal is a policy that rejects one kind of write of the controller in one namespace.
type refusal struct{ namespace, name string }

// refuse makes the API servers reject the step.
func refuse(t *testing.T, a application, step string) refusal {
	t.Helper()
	r := refusal{a.Key().Namespace, a.Key().Namespace + "-" + strings.ToLower(step)}
	rule := func(group, version string, resources ...string) admissionregistrationv1.NamedRuleWithOperations {
		return admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources},
		}}
	}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: new(admissionregistrationv1.Fail),
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
				rule("", "v1", "pods", "pods/status", "configmaps"),
				rule("apps", "v1", "replicasets/scale"),
				rule(v1.GroupVersion.Group, v1.GroupVersion.Version, "statefulsingletons/status"),
			}},
			MatchConditions: []admissionregistrationv1.MatchCondition{
				{Name: "here", Expression: fmt.Sprintf("request.namespace == '%s'", r.namespace)},
				{Name: "controller-or-probe", Expression: fmt.Sprintf("request.userInfo.username in ['%s', '%s'] || request.name == '%s'", world.ControllerUser, world.ClusterManagerUser, probe)},
			},
			Variables: []admissionregistrationv1.Variable{
				{Name: "pod", Expression: "request.resource.resource == 'pods' && request.operation == 'UPDATE'"},
				{Name: "finalizers", Expression: "has(object.metadata.finalizers) ? object.metadata.finalizers : []"},
				{Name: "oldFinalizers", Expression: "oldObject != null && has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : []"},
				{Name: "annotations", Expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"},
				{Name: "oldAnnotations", Expression: "oldObject != null && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("request.name != '%s' && !(%s)", probe, writes[step]),
				Message:    "the test refuses the step " + step,
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: r.name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	t.Cleanup(func() { must(t, r.remove(context.Background())) })
	must(t, w.Create(t.Context(), policy))
	must(t, w.Create(t.Context(), binding))
	everywhere(t, "policy "+r.name, func(ctx context.Context, c client.Client) error {
		err := c.Create(ctx, r.probe(), client.DryRunAll)
		switch {
		case err == nil:
			return errors.New("it refuses nothing yet")
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
			return nil
		}
		return err
	})
	return r
}

func (r refusal) probe() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: probe}}
}

// await waits until the policy has rejected a request besides the probe.
func (r refusal) await(t *testing.T) {
	t.Helper()
	before, err := r.refused(t.Context())
	must(t, err)
	must(t, world.Await(t.Context(), "a write that policy "+r.name+" refuses", func(ctx context.Context) error {
		after, err := r.refused(ctx)
		if err == nil && after == before {
			err = fmt.Errorf("%d so far", after)
		}
		return err
	}))
}

// refused returns the number of requests that the policy has rejected, by the metrics of all API servers.
func (r refusal) refused(ctx context.Context) (count int, err error) {
	for i := range w.Servers {
		n, err := r.refusedBy(ctx, w.ServerURL(i+1))
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}

func (r refusal) refusedBy(ctx context.Context, server string) (count int, err error) {
	config := rest.CopyConfig(w.Config)
	config.Host = server
	c, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return 0, err
	}
	out, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_validating_admission_policy_check_total{") ||
			!strings.Contains(line, `enforcement_action="deny"`) || !strings.Contains(line, `policy="`+r.name+`"`) {
			continue
		}
		n, err := strconv.Atoi(line[strings.LastIndex(line, " ")+1:])
		if err != nil {
			return 0, fmt.Errorf("read %q: %w", line, err)
		}
		count += n
	}
	return count, lines.Err()
}

// lift deletes the policy, and waits until no API server rejects anything because of it.
func (r refusal) lift(t *testing.T) {
	t.Helper()
	must(t, r.remove(t.Context()))
	everywhere(t, "the end of policy "+r.name, func(ctx context.Context, c client.Client) error {
		return c.Create(ctx, r.probe(), client.DryRunAll)
	})
}

func (r refusal) remove(ctx context.Context) error {
	object := metav1.ObjectMeta{Name: r.name}
	return errors.Join(
		client.IgnoreNotFound(w.Delete(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: object})),
		client.IgnoreNotFound(w.Delete(ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: object})),
	)
}
