package plugin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
)

// now is the current time of the commands.
var now = time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)

// answers configures the responses of the fake API server, in addition to its objects.
type answers struct {
	// forbidden are the requests that the user has no permission for, for example "get nodes".
	forbidden []string
	// admit changes or rejects a new pod. Nil: new pods do not change.
	admit func(*corev1.Pod) error
	// uninjected: Kyverno injects no pods.
	uninjected bool
	// kubernetes is the version of Kubernetes. Empty: a supported version.
	kubernetes string
	// unserved are the kinds that the API server does not serve.
	unserved []string
	// guards are installed and bound.
	guards []string
}

func (a answers) allows(verb, resource string) error {
	if slices.Contains(a.forbidden, verb+" "+resource) {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no role allows it"))
	}
	return nil
}

// stage is a cluster and a terminal for the commands.
type stage struct {
	client.Client
	commands commands
	in, out  *bytes.Buffer
}

// newStage returns a stage whose cluster has the objects of a file in testdata/worlds. The namespace of the context is
// prod.
func newStage(t *testing.T, world string, a answers) *stage {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range policyKinds {
		scheme.AddKnownTypeWithName(kind, &metav1.PartialObjectMetadata{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &metav1.PartialObjectMetadataList{})
	}
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	builder := fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithRESTMapper(a.mapper()).WithInterceptorFuncs(a.funcs()).
		WithIndex(&v1.StatefulSetLock{}, observe.StatefulSetNameField, func(o client.Object) []string { return []string{o.(*v1.StatefulSetLock).Spec.StatefulSetName} })
	for _, document := range documents(t, filepath.Join("testdata", "worlds", world+".yaml")) {
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("world %s: %v", world, err)
		}
		builder.WithObjects(object.(client.Object))
	}
	for _, guard := range a.guards {
		named := metav1.ObjectMeta{Name: "statefulsingleton-" + guard, Labels: chartLabels}
		builder.WithObjects(&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: named}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: named,
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: named.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		})
	}
	s := &stage{Client: builder.Build()}
	streams, in, out, _ := genericiooptions.NewTestIOStreams()
	s.in, s.out = in, out
	kubernetes := cmp.Or(a.kubernetes, "v1.36.3")
	s.commands = commands{
		IOStreams: streams,
		version:   "0.1.0",
		flags:     newFlags(),
		clock:     clocktesting.NewFakePassiveClock(now),
		asks:      func() bool { return false },
		connect: func(flags kubectlFlags) (*cluster, error) {
			return &cluster{
				Client:    s.Client,
				namespace: cmp.Or(*flags.Namespace, "prod"), named: *flags.Namespace != "",
				where:         flags.where(),
				serverVersion: func() (*version.Info, error) { return &version.Info{GitVersion: kubernetes}, nil },
				log: func(_ context.Context, namespace, pod string, options *corev1.PodLogOptions) ([]byte, error) {
					return []byte("log of " + namespace + "/" + pod + " " + options.Container + "\n"), a.allows("get", "pods/log")
				},
			}, nil
		},
	}
	return s
}

// run runs a command line without the prefix `kubectl stfs`. Two quotes are an empty argument.
func (s *stage) run(ctx context.Context, line string) error {
	root := s.commands.root()
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "''", "")
	}
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func (s *stage) singleton(t *testing.T, name string) *v1.StatefulSingleton {
	t.Helper()
	singleton := &v1.StatefulSingleton{}
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: name}, singleton); err != nil {
		t.Fatal(err)
	}
	return singleton
}

func documents(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, document)
	}
}

func (a answers) mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []schema.GroupVersionKind{
		v1.GroupVersion.WithKind("StatefulSingleton"),
		v1.GroupVersion.WithKind("StatefulSetLock"),
		v1.GroupVersion.WithKind("StatefulCluster"),
		appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
		clusterPolicy,
		mutatingPolicy,
	} {
		if a.serves(kind.Kind) {
			mapper.Add(kind, meta.RESTScopeNamespace)
		}
	}
	return mapper
}

func (a answers) serves(kind string) bool { return !slices.Contains(a.unserved, kind) }

// funcs returns the functions that implement the answers.
func (a answers) funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			kind, err := c.GroupVersionKindFor(object)
			if err != nil {
				return err
			}
			if err := a.reads("get", kind); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			kind, err := c.GroupVersionKindFor(list)
			if err != nil {
				return err
			}
			kind.Kind = strings.TrimSuffix(kind.Kind, "List")
			if err := a.reads("list", kind); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			switch object := object.(type) {
			case *authorizationv1.SelfSubjectAccessReview:
				request := object.Spec.ResourceAttributes
				object.Status.Allowed = a.allows(request.Verb, request.Resource) == nil
				return nil
			case *v1.StatefulSingleton:
				// As the controller, at once.
				is := metav1.Condition{Type: v1.ConditionPolicyInstalled, Status: metav1.ConditionTrue}
				if a.uninjected {
					is.Status, is.Message = metav1.ConditionFalse, "Kyverno does not answer"
				}
				object.Status.Conditions = append(object.Status.Conditions, is)
			case *corev1.Pod:
				if a.admit != nil {
					if err := a.admit(object); err != nil {
						return err
					}
				}
			}
			return c.Create(ctx, object, options...)
		},
	}
}

// reads returns an error if the kind is not served, or if the user has no permission to read it.
func (a answers) reads(verb string, kind schema.GroupVersionKind) error {
	if !a.serves(kind.Kind) {
		return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	return a.allows(verb, resource.Resource)
}
