package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// cluster is the cluster of the commands, with the permissions of the user.
type cluster struct {
	client.Client
	// namespace is the value of --namespace, or the namespace of the context.
	namespace string
	// named: the user set --namespace.
	named bool
	// where has the flags that select the cluster, for printed commands.
	where string
	// serverVersion returns the version of Kubernetes.
	serverVersion func() (*version.Info, error)
	// log reads the log of a container.
	log func(ctx context.Context, namespace, pod string, options *corev1.PodLogOptions) ([]byte, error)
}

func connect(flags kubectlFlags, warnings io.Writer) (*cluster, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	namespace, named, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w", err)
	}
	config.QPS = -1 // API Priority and Fairness limits the requests
	config.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{Deduplicate: true})
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	log := func(ctx context.Context, namespace, pod string, options *corev1.PodLogOptions) ([]byte, error) {
		return core.Pods(namespace).GetLogs(pod, options).DoRaw(ctx)
	}
	return &cluster{Client: c, namespace: namespace, named: named, where: flags.where(), serverVersion: served.ServerVersion, log: log}, nil
}

// newScheme returns a scheme with the kinds that the commands read and write.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("create the scheme: %w", err)
	}
	return scheme, nil
}

// kubectl returns a kubectl command for the cluster.
func (c *cluster) kubectl(format string, args ...any) string {
	return fmt.Sprintf("kubectl "+format, args...) + c.where
}

// amended adds the flags of the cluster to a message of the controller. The commands in the message lack the flags,
// because the controller also writes the message into the status.
func (c *cluster) amended(message string) string {
	if c.where == "" || !strings.Contains(message, "kubectl ") {
		return message
	}
	return fmt.Sprintf("%s (add%s to each kubectl command in this message)", message, c.where)
}

// helpful adds the next step to an error of the API server.
func (c *cluster) helpful(err error) error {
	switch {
	case unreached(err):
		return fmt.Errorf("cannot reach the API server: %w. Check the connection with `%s`, or select another cluster with --context", err, c.kubectl("version"))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server rejected your credentials: %w. Renew the credentials in your kubeconfig, or select another cluster with --context", err)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the API server does not serve StatefulSingletons: %w. Install the chart, or select another cluster with --context. To check all requirements, run: %s", err, c.check())
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w. To check your permissions, run: %s", err, c.check())
	}
	return err
}

// check returns the command that checks the installation and the permissions of the user.
func (c *cluster) check() string { return c.kubectl("stfs check -n %s", c.namespace) }

// unreached returns true if the API server did not answer. An interrupt of the user does not count.
func unreached(err error) bool {
	_, is := errors.AsType[*url.Error](err)
	return is && !errors.Is(err, context.Canceled)
}

// find reads an object of the namespace. If it does not exist, the error names the existing objects of its kind.
func (c *cluster) find(ctx context.Context, name string, o client.Object, existing client.ObjectList) error {
	err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, o)
	if !apierrors.IsNotFound(err) {
		return err
	}
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return err
	}
	names, err := c.names(ctx, existing, c.namespace)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("%[1]s %[2]s does not exist: namespace %[3]s has no %[1]ss. Set another namespace with -n. To list all namespaces, run: %[4]s", gvk.Kind, name, c.namespace, c.kubectl("get %ss -A", strings.ToLower(gvk.Kind)))
	}
	return fmt.Errorf("%s %s does not exist in namespace %s. The namespace has: %s", gvk.Kind, name, c.namespace, strings.Join(names, ", "))
}

// names returns the names of the objects of a kind in a namespace.
func (c *cluster) names(ctx context.Context, list client.ObjectList, namespace string) (names []string, err error) {
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, o.(client.Object).GetName())
		return nil
	})
	return names, err
}

// observed is an object with its Snapshot, as the controller reads it.
type observed interface {
	at() place
	status(now time.Time) Status
	explanation(now time.Time) explanation
	// attested returns the object with an attestation of the pod with the UID, and what the controller would do with it.
	attested(uid types.UID, now time.Time) (client.Object, verdict)
	// podName returns the name of the pod with the UID, which exists or is recorded.
	podName(uid types.UID) string
}

// place names an object and says where it was read, for the texts and the commands that are printed.
type place struct {
	in *cluster
	kind
	object client.Object
	// hidden is what the user cannot read. A decision or a message that depends on it can differ from the controller's.
	hidden string
}

func (p place) at() place { return p }

// arg returns the argument that names the object.
func (p place) arg() string { return p.argument(p.object.GetName()) }

// String returns kind, namespace and name.
func (p place) String() string { return p.name + " " + fullName(p.object) }

// kubectl returns a kubectl command for the cluster and the namespace.
func (p place) kubectl(format string, args ...any) string {
	return p.in.kubectl("%s -n %s", fmt.Sprintf(format, args...), p.object.GetNamespace())
}

// lookAt reads the object of an argument such as db or ssl/db, and its Snapshot.
func (c *cluster) lookAt(ctx context.Context, arg string) (observed, error) {
	o, err := c.read(ctx, arg, allKinds...)
	if err != nil {
		return nil, err
	}
	return c.look(ctx, o)
}

// look reads the Snapshot of an object.
func (c *cluster) look(ctx context.Context, o client.Object) (observed, error) {
	switch o := o.(type) {
	case *v1.StatefulSetLock:
		return c.lookAtLock(ctx, o)
	case *v1.StatefulCluster:
		return c.lookAtCluster(ctx, o)
	case *v1.StatefulSingleton:
		return c.lookAtSingleton(ctx, o)
	}
	return nil, fmt.Errorf("%T is no kind of this project", o)
}

func (c *cluster) lookAtLock(ctx context.Context, lock *v1.StatefulSetLock) (lockView, error) {
	reader := &hiding{Reader: c}
	snapshot, err := observe.Observer{Client: reader, Live: reader}.ObserveLock(ctx, lock)
	return lockView{snapshot, place{c, lockKind, lock, reader.hidden()}}, err
}

func (c *cluster) lookAtCluster(ctx context.Context, of *v1.StatefulCluster) (clusterView, error) {
	reader := &hiding{Reader: c}
	snapshot, err := observe.Observer{Client: reader, Live: reader}.ObserveCluster(ctx, of)
	return clusterView{snapshot, place{c, clusterKind, of, reader.hidden()}}, err
}

// lookAtSingleton assumes that nodes are Ready if the user cannot read nodes.
func (c *cluster) lookAtSingleton(ctx context.Context, singleton *v1.StatefulSingleton) (view, error) {
	reader := &hiding{Reader: c}
	snapshot, err := observe.Observer{Client: reader, Live: reader}.Observe(ctx, singleton)
	if reader.nodes.Load() {
		assumeReady(&snapshot)
	}
	return view{snapshot, place{c, singletonKind, singleton, reader.hidden()}}, err
}

// assumeReady adds a Ready node for each pod that is not terminating, if the user cannot read nodes. Otherwise, the
// output would say that the nodes do not exist.
func assumeReady(s *handoff.Snapshot) {
	for i := range s.Pods {
		if name := s.Pods[i].Spec.NodeName; !proof.Going(&s.Pods[i]) {
			s.CachedNodes[name] = &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			}
		}
	}
}

// hiding reports a node, a volume or a Lease as not found if the user cannot read such objects. Many users have access to one namespace
// only, and ClusterRole view does not include Leases.
type hiding struct {
	client.Reader
	nodes, volumes, leases atomic.Bool
}

func (r *hiding) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, object, options...)
	if !apierrors.IsForbidden(err) {
		return err
	}
	switch object.(type) {
	case *corev1.Node:
		r.nodes.Store(true)
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	case *corev1.PersistentVolume, *storagev1.VolumeAttachment:
		r.volumes.Store(true)
		return apierrors.NewNotFound(corev1.Resource("persistentvolumes"), key.Name)
	case *coordinationv1.Lease:
		r.leases.Store(true)
		return apierrors.NewNotFound(coordinationv1.Resource("leases"), key.Name)
	}
	return err
}

// hidden returns what the user could not read. Empty: nothing.
func (r *hiding) hidden() string {
	var all []string
	if r.nodes.Load() {
		all = append(all, "nodes")
	}
	if r.volumes.Load() {
		all = append(all, "PersistentVolumes")
	}
	if r.leases.Load() {
		all = append(all, "Leases")
	}
	return strings.Join(all, " and ")
}

// fullName returns namespace and name of an object.
func fullName(object metav1.Object) string { return object.GetNamespace() + "/" + object.GetName() }
