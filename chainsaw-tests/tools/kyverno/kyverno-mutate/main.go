// Command kyverno-mutate mutates pods with a ClusterPolicy or a NamespacedMutatingPolicy, as Kyverno's webhooks do, without a
// cluster.
//
// It reads one JSON object after another from its standard input, and writes one result for each. Kyverno's command line
// program takes almost a second to start, and gives each admission request of a NamespacedMutatingPolicy an empty UID.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	policiesv1beta1 "github.com/kyverno/api/api/policies.kyverno.io/v1beta1"
	kyvernov1 "github.com/kyverno/kyverno/api/kyverno/v1"
	celengine "github.com/kyverno/kyverno/pkg/cel/engine"
	"github.com/kyverno/kyverno/pkg/cel/libs"
	"github.com/kyverno/kyverno/pkg/cel/matching"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol/compiler"
	mpolengine "github.com/kyverno/kyverno/pkg/cel/policies/mpol/engine"
	"github.com/kyverno/kyverno/pkg/config"
	"github.com/kyverno/kyverno/pkg/engine"
	engineapi "github.com/kyverno/kyverno/pkg/engine/api"
	"github.com/kyverno/kyverno/pkg/engine/factories"
	"github.com/kyverno/kyverno/pkg/engine/jmespath"
	"github.com/kyverno/kyverno/pkg/engine/mutate/patch"
	imageverifycache "github.com/kyverno/kyverno/pkg/image/verification/cache"
	jsonutils "github.com/kyverno/kyverno/pkg/utils/json"
	policyvalidation "github.com/kyverno/kyverno/pkg/validation/policy"
	webhookutils "github.com/kyverno/kyverno/pkg/webhooks/utils"
	"gomodules.xyz/jsonpatch/v2"
	evanphx "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// request is one object of the input.
type request struct {
	Policy json.RawMessage `json:"policy"`
	// Pod is created by an admission request with the UID. Without a pod, the policy is only validated.
	Pod json.RawMessage `json:"pod,omitempty"`
	UID types.UID       `json:"uid,omitempty"`
}

// result is one object of the output.
type result struct {
	// Pod is the pod after the webhook. It is empty if Error is not.
	Pod   json.RawMessage `json:"pod,omitempty"`
	Error string          `json:"error,omitempty"`
}

func main() {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	var m mutator
	for in.More() {
		var r request
		err := in.Decode(&r)
		if err == nil {
			var answer result
			if answer.Pod, err = m.mutate(r); err != nil {
				answer = result{Error: err.Error()}
			}
			err = out.Encode(answer)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "kyverno-mutate:", err)
			os.Exit(1)
		}
	}
}

// policy mutates the pod of an admission request. It returns the JSON patches of the webhook's response.
type policy func(admissionv1.AdmissionRequest) ([]jsonpatch.JsonPatchOperation, error)

// mutator keeps some policies compiled.
type mutator struct{ compiled map[string]policy }

// maxCompiled is the number of policies that a mutator keeps. Parallel tests take turns.
const maxCompiled = 16

func (m *mutator) mutate(r request) ([]byte, error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(r.Policy, &kind); err != nil {
		return nil, err
	}
	compile := compileMutatingPolicy
	if kind.Kind == "ClusterPolicy" {
		compile = compileClusterPolicy
	}
	p, known := m.compiled[string(r.Policy)]
	if !known {
		var err error
		if p, err = compile(r.Policy); err != nil {
			return nil, err
		}
		if m.compiled == nil || len(m.compiled) == maxCompiled {
			m.compiled = map[string]policy{}
		}
		m.compiled[string(r.Policy)] = p
	}
	if len(r.Pod) == 0 {
		return nil, nil
	}
	pod := &unstructured.Unstructured{}
	if err := pod.UnmarshalJSON(r.Pod); err != nil {
		return nil, err
	}
	patches, err := p(admissionv1.AdmissionRequest{
		UID:       r.UID,
		Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: pod.GetNamespace(),
		Name:      pod.GetName(),
		Operation: admissionv1.Create,
		Object:    runtime.RawExtension{Raw: r.Pod},
	})
	if err != nil {
		return nil, err
	}
	return apply(r.Pod, patches)
}

// apply returns the pod after the JSON patches.
func apply(pod []byte, patches []jsonpatch.JsonPatchOperation) ([]byte, error) {
	operations := jsonutils.JoinPatches(patch.ConvertPatches(patches...)...)
	if len(operations) == 0 {
		return pod, nil
	}
	decoded, err := evanphx.DecodePatch(operations)
	if err != nil {
		return nil, err
	}
	return decoded.Apply(pod)
}

// decode decodes a policy, and rejects unknown fields.
func decode(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// failures returns an error for each rule that failed.
func failures(rules []engineapi.RuleResponse) (err error) {
	for _, rule := range rules {
		if rule.HasStatus(engineapi.RuleStatusError, engineapi.RuleStatusFail) {
			err = errors.Join(err, fmt.Errorf("rule %s: %s", rule.Name(), rule.Message()))
		}
	}
	return err
}

// compileClusterPolicy returns a ClusterPolicy after Kyverno's own webhook has validated it.
func compileClusterPolicy(data []byte) (policy, error) {
	p := &kyvernov1.ClusterPolicy{}
	if err := decode(data, p); err != nil {
		return nil, err
	}
	if _, err := policyvalidation.Validate(p, nil, nil, true, "", ""); err != nil {
		return nil, err
	}
	configuration := config.NewDefaultConfiguration(false)
	jp := jmespath.New(configuration)
	contexts := webhookutils.NewPolicyContextBuilder(configuration, jp)
	e := engine.NewEngine(configuration, jp, nil, nil, imageverifycache.DisabledImageVerifyCache(),
		factories.DefaultContextLoaderFactory(nil), nil, new(bool))
	return func(r admissionv1.AdmissionRequest) ([]jsonpatch.JsonPatchOperation, error) {
		c, err := contexts.Build(r, nil, nil, schema.GroupVersionKind(r.Kind))
		if err != nil {
			return nil, err
		}
		response := e.Mutate(context.Background(), c.WithPolicy(p).WithNamespaceLabels(labelsOf(r.Namespace)))
		return response.GetPatches(), failures(response.PolicyResponse.Rules)
	}, nil
}

// compileMutatingPolicy returns a NamespacedMutatingPolicy after Kyverno's own webhook has validated it.
func compileMutatingPolicy(data []byte) (policy, error) {
	p := &policiesv1beta1.NamespacedMutatingPolicy{}
	if err := decode(data, p); err != nil {
		return nil, err
	}
	if _, err := mpol.Validate(p); err != nil {
		return nil, err
	}
	namespaces := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelsOf(name)}}
	}
	compiled := sync.OnceValues(func() (mpolengine.Engine, error) {
		provider, err := mpolengine.NewProvider(compiler.NewCompiler(), []policiesv1beta1.MutatingPolicyLike{p}, nil, libs.GetLibsCtx())
		if err != nil {
			return nil, err
		}
		return mpolengine.NewEngine(provider, namespaces, matching.NewMatcher(), noTypes{}, libs.GetLibsCtx()), nil
	})
	return func(r admissionv1.AdmissionRequest) ([]jsonpatch.JsonPatchOperation, error) {
		e, err := compiled()
		if err != nil {
			return nil, err
		}
		response, err := e.Handle(context.Background(), celengine.RequestFromAdmission(libs.GetLibsCtx(), r), mpolengine.NamespacedPolicy(r.Namespace))
		if err != nil {
			return nil, err
		}
		for _, policy := range response.Policies {
			err = errors.Join(err, failures(policy.Rules))
		}
		if err != nil || response.PatchedResource == nil {
			return nil, err
		}
		return response.GetPatches(), nil
	}, nil
}

// labelsOf returns the labels of a namespace.
func labelsOf(namespace string) map[string]string {
	return map[string]string{corev1.LabelMetadataName: namespace}
}

// noTypes has no types, because JSON patches need none.
type noTypes struct{}

func (noTypes) GetTypeConverter(schema.GroupVersionKind) managedfields.TypeConverter { return nil }
