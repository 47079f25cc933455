// Command kyverno-mutate mutates pods with a NamespacedMutatingPolicy, as Kyverno's webhook does, without a cluster.
//
// It reads one JSON object after another from its standard input, and writes one result for each. Kyverno's command line
// program cannot replace it, because that program gives each admission request an empty UID.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	policiesv1beta1 "github.com/kyverno/api/api/policies.kyverno.io/v1beta1"
	celengine "github.com/kyverno/kyverno/pkg/cel/engine"
	"github.com/kyverno/kyverno/pkg/cel/libs"
	"github.com/kyverno/kyverno/pkg/cel/matching"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol"
	"github.com/kyverno/kyverno/pkg/cel/policies/mpol/compiler"
	mpolengine "github.com/kyverno/kyverno/pkg/cel/policies/mpol/engine"
	engineapi "github.com/kyverno/kyverno/pkg/engine/api"
	"github.com/kyverno/kyverno/pkg/engine/mutate/patch"
	jsonutils "github.com/kyverno/kyverno/pkg/utils/json"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
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

// mutator keeps the last policy compiled.
type mutator struct {
	policy []byte
	engine mpolengine.Engine
}

func (m *mutator) mutate(r request) ([]byte, error) {
	if err := m.compile(r.Policy); err != nil || len(r.Pod) == 0 {
		return nil, err
	}
	pod := &unstructured.Unstructured{}
	if err := pod.UnmarshalJSON(r.Pod); err != nil {
		return nil, err
	}
	admission := admissionv1.AdmissionRequest{
		UID:       r.UID,
		Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: pod.GetNamespace(),
		Name:      pod.GetName(),
		Operation: admissionv1.Create,
		Object:    runtime.RawExtension{Raw: r.Pod},
	}
	response, err := m.engine.Handle(context.Background(), celengine.RequestFromAdmission(libs.GetLibsCtx(), admission),
		mpolengine.NamespacedPolicy(admission.Namespace))
	if err != nil {
		return nil, err
	}
	for _, policy := range response.Policies {
		for _, rule := range policy.Rules {
			if rule.Status() == engineapi.RuleStatusError {
				err = errors.Join(err, errors.New(rule.Message()))
			}
		}
	}
	if err != nil || response.PatchedResource == nil {
		return r.Pod, err
	}
	return apply(r.Pod, response)
}

// apply returns the pod after the JSON patch of the webhook's response.
func apply(pod []byte, response mpolengine.EngineResponse) ([]byte, error) {
	operations := jsonutils.JoinPatches(patch.ConvertPatches(response.GetPatches()...)...)
	if len(operations) == 0 {
		return pod, nil
	}
	decoded, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, err
	}
	return decoded.Apply(pod)
}

// compile compiles the policy after Kyverno's own webhook has validated it.
func (m *mutator) compile(policy []byte) error {
	if bytes.Equal(policy, m.policy) {
		return nil
	}
	p := &policiesv1beta1.NamespacedMutatingPolicy{}
	decoder := json.NewDecoder(bytes.NewReader(policy))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(p); err != nil {
		return err
	}
	if _, err := mpol.Validate(p); err != nil {
		return err
	}
	provider, err := mpolengine.NewProvider(compiler.NewCompiler(), []policiesv1beta1.MutatingPolicyLike{p}, nil, libs.GetLibsCtx())
	if err != nil {
		return err
	}
	namespaces := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
	}
	m.policy, m.engine = policy, mpolengine.NewEngine(provider, namespaces, matching.NewMatcher(), noTypes{}, libs.GetLibsCtx())
	return nil
}

// noTypes has no types, because JSON patches need none.
type noTypes struct{}

func (noTypes) GetTypeConverter(schema.GroupVersionKind) managedfields.TypeConverter { return nil }
