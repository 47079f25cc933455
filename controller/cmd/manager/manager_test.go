package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cmd/internal/program"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

func execute(ctx context.Context, command *cobra.Command, args ...string) error {
	command.SetArgs(args)
	command.SilenceErrors, command.SilenceUsage = true, true
	return command.ExecuteContext(ctx)
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		command *cobra.Command
		args    []string
		want    string
	}{
		"no image":         {runCommand(), nil, "--gate-image is missing: set the flag to the image of the gate, for example ghcr.io/statefulsingleton/gate:0.1.0"},
		"empty image":      {runCommand(), []string{"--gate-image="}, "--gate-image is missing"},
		"pull policy":      {runCommand(), []string{"--gate-image=gate", "--gate-image-pull-policy=Sometimes"}, `--gate-image-pull-policy is "Sometimes": use Always, IfNotPresent or Never`},
		"pull secret":      {runCommand(), []string{"--gate-image=gate", "--gate-image-pull-secret=mine,yours"}, `--gate-image-pull-secret is "mine,yours", which is not a valid name of a Secret: `},
		"not an amount":    {runCommand(), []string{"--gate-image=gate", "--sidecar-requests=cpu=lots"}, `"cpu=lots" is not a quantity of cpu, memory or ephemeral-storage: use, for example, cpu=10m,memory=32Mi`},
		"negative":         {runCommand(), []string{"--gate-image=gate", "--sidecar-requests=cpu=-1"}, `"cpu=-1" is not a quantity`},
		"other resource":   {runCommand(), []string{"--gate-image=gate", "--sidecar-limits=memory=32Mi,cup=1"}, `"cup=1" is not a quantity`},
		"above the limit":  {runCommand(), []string{"--gate-image=gate", "--sidecar-requests=memory=64Mi"}, "--sidecar-requests has memory=64Mi, more than the 32Mi in --sidecar-limits: the API server would reject every held pod"},
		"policy kind":      {runCommand(), []string{"--gate-image=gate", "--policy-kind=Policy"}, `--policy-kind is "Policy": use ClusterPolicy or NamespacedMutatingPolicy`},
		"policy per":       {runCommand(), []string{"--gate-image=gate", "--policy-per=pod"}, `--policy-per is "pod": use singleton or namespace`},
		"a short lease":    {runCommand(), []string{"--gate-image=gate", "--leader-election-renew-deadline=15s"}, "--leader-election-lease-duration is 15s, --leader-election-renew-deadline 15s and --leader-election-retry-period 2s: the lease duration must be longer than the renew deadline, and the renew deadline longer than 1.2 retry periods"},
		"a short deadline": {runCommand(), []string{"--gate-image=gate", "--leader-election-retry-period=9s"}, "--leader-election-renew-deadline 10s and --leader-election-retry-period 9s: "},
		"no period":        {runCommand(), []string{"--gate-image=gate", "--leader-election-retry-period=0s"}, "--leader-election-retry-period 0s: "},
		"log level":        {runCommand(), []string{"--gate-image=gate", "--log-level=loud"}, `--log-level is "loud": use debug, info or error`},
		"log format":       {runCommand(), []string{"--gate-image=gate", "--log-format=xml"}, `--log-format is "xml": use json or console`},
		"no certificate":   {runCommand(), []string{"--gate-image=gate", "--metrics-cert-dir=/nowhere"}, "load the certificate of the metrics endpoint from --metrics-cert-dir /nowhere: open /nowhere/tls.crt: no such file or directory. Put PEM files tls.crt and tls.key into the directory"},
		"unknown flag":     {runCommand(), []string{"--gate"}, "unknown flag: --gate"},
		"an argument":      {runCommand(), []string{"now"}, `unknown command "now" for "run"`},
		"timeout":          {uninstallCommand(), []string{"--timeout=soon"}, `invalid argument "soon" for "--timeout"`},
		"uninstall a name": {uninstallCommand(), []string{"statefulsingleton"}, `unknown command "statefulsingleton" for "uninstall"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := execute(t.Context(), test.command, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

// Without a kubeconfig, each command fails with an error about the cluster.
func TestNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	for name, command := range map[string]*cobra.Command{"run": runCommand(), "uninstall": uninstallCommand()} {
		t.Run(name, func(t *testing.T) {
			args := map[string][]string{"run": {"--gate-image=gate"}}[name]
			err := execute(t.Context(), command, args...)
			if err == nil || !strings.HasPrefix(err.Error(), "find the cluster: ") {
				t.Errorf("error %v, want an error about the cluster", err)
			}
		})
	}
}

// The manager with the permissions of the chart becomes the leader, reconciles before Kyverno is installed, serves its
// endpoints, and stops when its context ends.
func TestRun(t *testing.T) {
	g := NewWithT(t)
	as(t, release)
	installCRDs(t)
	uninstallCRDs(g, t, envtest.CRDInstallOptions{Paths: crds.Paths[1:]})
	g.Eventually(func() error { return list(t, policyList()) }).Should(MatchError(meta.IsNoMatchError, "no match"))

	health, metrics := freeAddress(t), freeAddress(t)
	certificates, authority := writeCertificate(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		stopped <- execute(ctx, runCommand(), "--gate-image=gate", "--leader-election-namespace="+release, "--leader-election-lease-duration=21s",
			"--health-probe-bind-address="+health, "--metrics-bind-address="+metrics, "--metrics-cert-dir="+certificates)
	}()
	for _, path := range []string{"/healthz", "/readyz"} {
		g.Eventually(func() error { return get(health+path, "ok") }).Should(Succeed())
	}
	lease := &coordinationv1.Lease{}
	g.Eventually(func() error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: release, Name: "statefulsingleton"}, lease)
	}).Should(Succeed(), "the leader's Lease")
	g.Expect(lease.Spec.LeaseDurationSeconds).To(HaveValue(BeEquivalentTo(21)))

	s := createSingleton(t, "run")
	g.Eventually(func() string {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(s), s)).To(Succeed())
		if installed := meta.FindStatusCondition(s.Status.Conditions, v1.ConditionPolicyInstalled); installed != nil {
			return installed.Reason
		}
		return ""
	}).Should(Equal("KyvernoMissing"))
	prometheus := scraper{authority, createReader(t, "prometheus")}
	g.Eventually(func() (string, error) { return prometheus.scrape("https://" + metrics + "/metrics") }).Should(ContainSubstring(`name="` + s.Name + `",namespace="` + s.Namespace + `",node="",phase="Idle"} 1`))
	wantProtected(t, metrics, authority)
	g.Expect(c.Delete(t.Context(), s)).To(Succeed())
	wantDeleted(g, t, s)

	stop()
	g.Eventually(stopped).Should(Receive(BeNil()))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	g.Expect(lease.Spec.HolderIdentity).To(HaveValue(BeEmpty()), "the manager releases the Lease")
}

// A step is repeated after conflicts until the time limit. Any other error ends the command.
func TestConflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "holder", errors.New("changed by another user"))
	failure := errors.New("forbidden")
	tests := map[string]struct {
		answers []error
		want    error
	}{
		"many conflicts":       {append(slices.Repeat([]error{conflict}, 15), nil), nil},
		"error":                {[]error{failure, nil}, failure},
		"conflict, then error": {[]error{conflict, failure, nil}, failure},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answers := tc.answers
			err := retryConflicts(t.Context(), func(context.Context) error {
				answer := answers[0]
				answers = answers[1:]
				return answer
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := retryConflicts(ended, func(context.Context) error { return conflict }); !errors.Is(err, conflict) {
		t.Errorf("error %v after the time limit, want the conflict", err)
	}
}

func TestUninstall(t *testing.T) {
	g := NewWithT(t)
	as(t, release+"-uninstall")
	installCRDs(t)
	deployment := createDeployment(t, "controller")
	controller := createPod(t, "controller", map[string]string{"app": "controller"})
	namesake := create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "controller", Labels: controller.Labels}, Spec: podSpec()})
	holder := createPod(t, "holder", map[string]string{v1.SingletonLabel: "kept"}, v1.HandoffFinalizer, "example.com/theirs")
	standby := createPod(t, "standby", map[string]string{v1.SingletonLabel: "kept"}, v1.HandoffFinalizer)
	stuck := createPod(t, "stuck", map[string]string{v1.SingletonLabel: "kept"}, v1.HandoffFinalizer)
	g.Expect(c.Delete(t.Context(), stuck)).To(Succeed())
	kept, going := createSingleton(t, "kept"), createSingleton(t, "going")
	keptCluster := createCluster(t, "kept", v1.MemberFinalizer)
	goingCluster := createCluster(t, "going", v1.MemberFinalizer)
	g.Expect(c.Delete(t.Context(), goingCluster)).To(Succeed())
	member := createPod(t, "kept-0", map[string]string{v1.ClusterLabel: "kept"}, v1.MemberFinalizer, "example.com/theirs")
	for _, pod := range []*corev1.Pod{holder, standby} {
		pod.Annotations = map[string]string{v1.ChosenByAnnotation: string(kept.UID)}
		g.Expect(c.Update(t.Context(), pod)).To(Succeed())
	}
	kept.Status.ActivePod, kept.Status.ActivePodUID = holder.Name, holder.UID
	g.Expect(c.Status().Update(t.Context(), kept)).To(Succeed())
	g.Expect(c.Delete(t.Context(), going)).To(Succeed())
	ours, theirs := createPolicy(t, "ours", v1.ManagedBy), createPolicy(t, "theirs", "somebody")
	ourMutating, theirMutating := createMutatingPolicy(t, "ours", v1.ManagedBy), createMutatingPolicy(t, "theirs", "somebody")
	blocker := createBudget(t, "blocker", map[string]string{v1.ManagedByLabel: v1.ManagedBy, v1.SingletonLabel: "kept"})
	budget := createBudget(t, "budget", map[string]string{v1.ManagedByLabel: "Helm"})
	copied := createBudget(t, "copied", map[string]string{v1.ManagedByLabel: "Helm", v1.SingletonLabel: "kept"})
	charts := createBudget(t, "charts", map[string]string{v1.ManagedByLabel: v1.ManagedBy})

	done := make(chan error, 1)
	go func() {
		done <- execute(t.Context(), uninstallCommand(), "--namespace="+release, "--deployment="+deployment.Name)
	}()
	// While a pod of the controller exists, no finalizer is removed, because the controller could add it again.
	g.Eventually(func() int32 {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		return *deployment.Spec.Replicas
	}).Should(BeZero())
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(ours), ours)).To(Succeed())
	g.Expect(c.Delete(t.Context(), controller, client.GracePeriodSeconds(0))).To(Succeed())
	g.Eventually(done).Should(Receive(BeNil()))

	for _, gone := range []client.Object{ours, ourMutating, blocker, stuck, going, goingCluster} {
		wantDeleted(g, t, gone)
	}
	for _, left := range []client.Object{theirs, theirMutating, budget, copied, charts, namesake, holder, standby, kept, keptCluster, member} {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(left), left)).To(Succeed())
		g.Expect(left.GetDeletionTimestamp()).To(BeNil())
	}
	g.Expect(holder.Finalizers).To(Equal([]string{"example.com/theirs"}))
	g.Expect(holder.Annotations).To(HaveKey(v1.ChosenByAnnotation), "the record names the holder")
	g.Expect(standby.Finalizers).To(BeEmpty())
	g.Expect(standby.Annotations).To(BeEmpty(), "the barrier of the standby must stay closed")
	g.Expect(kept.Finalizers).To(BeEmpty())
	g.Expect(keptCluster.Finalizers).To(BeEmpty())
	g.Expect(member.Finalizers).To(Equal([]string{"example.com/theirs"}))
	g.Expect(writtenAt(g, kept)).To(BeNumerically("<", writtenAt(g, standby)), "the API server must reject a late record of the standby")

	// The command can run again after a success.
	g.Expect(execute(t.Context(), uninstallCommand(), "--namespace="+release, "--deployment="+deployment.Name)).To(Succeed())
}

// Other clients change or delete objects while the command removes the finalizers. Their changes stay, and all
// finalizers of the controller are removed.
func TestUninstallDuringOtherWrites(t *testing.T) {
	g := NewWithT(t)
	as(t, release+"-uninstall")
	installCRDs(t)
	kept, going := createSingleton(t, "kept"), createSingleton(t, "going")
	standby := createPod(t, "standby", map[string]string{v1.SingletonLabel: "kept"}, v1.HandoffFinalizer)
	lost := createPod(t, "lost", map[string]string{v1.SingletonLabel: "kept"}, v1.HandoffFinalizer)
	standby.Annotations = map[string]string{v1.ChosenByAnnotation: string(kept.UID)}
	g.Expect(c.Update(t.Context(), standby)).To(Succeed())

	restConfig, err := program.RESTConfig()
	g.Expect(err).NotTo(HaveOccurred())
	own, err := client.NewWithWatch(restConfig, client.Options{Scheme: c.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	overtaken := map[string]bool{}
	raced := interceptor.NewClient(own, interceptor.Funcs{
		Patch: func(ctx context.Context, own client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if name := o.GetName(); !overtaken[name] {
				overtaken[name] = true
				finalizers := `["` + v1.HandoffFinalizer + `","` + v1.PolicyFinalizer + `","example.com/theirs"]`
				if name == lost.Name || name == going.Name {
					finalizers = "null"
				}
				written := o.DeepCopyObject().(client.Object)
				g.Expect(c.Patch(ctx, written, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":`+finalizers+`}}`)))).To(Succeed())
				if finalizers == "null" {
					g.Expect(c.Delete(ctx, written, client.GracePeriodSeconds(0))).To(Succeed())
				}
			}
			return own.Patch(ctx, o, patch, options...)
		},
	})
	g.Expect(uninstallWith(t.Context(), raced, release, []string{release})).To(Succeed())

	g.Expect(overtaken).To(Equal(map[string]bool{"kept": true, "going": true, "standby": true, "lost": true}))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(kept), kept)).To(Succeed())
	g.Expect(kept.Finalizers).To(ConsistOf(v1.HandoffFinalizer, "example.com/theirs"))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(standby), standby)).To(Succeed())
	g.Expect(standby.Finalizers).To(ConsistOf(v1.PolicyFinalizer, "example.com/theirs"))
	g.Expect(standby.Annotations).NotTo(HaveKey(v1.ChosenByAnnotation))
	for _, gone := range []client.Object{going, lost} {
		wantDeleted(g, t, gone)
	}
}

// If a pod of the controller does not terminate, the command fails and changes nothing else.
func TestUninstallTimesOut(t *testing.T) {
	g := NewWithT(t)
	as(t, release+"-uninstall")
	installCRDs(t)
	// The chart grants the permission to scale only a Deployment of this name.
	deployment := createDeployment(t, "hanging")
	createPod(t, "hanging-1", map[string]string{"app": "hanging"})
	kept := createSingleton(t, "kept")

	err := execute(t.Context(), uninstallCommand(), "--namespace="+release, "--deployment="+deployment.Name, "--timeout=5s") // a busy API server takes its time
	g.Expect(err).To(MatchError(MatchRegexp("^stop the controllers: pod hanging-1 of Deployment statefulsingleton/statefulsingleton has not terminated: .*" +
		"If its node is off, run: kubectl delete -n statefulsingleton pod hanging-1 --force. Then run this command again$")))
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(kept), kept)).To(Succeed())
	g.Expect(kept.Finalizers).To(ContainElement(v1.PolicyFinalizer))
}

// The chart can be uninstalled even if objects were deleted before.
func TestUninstallNothing(t *testing.T) {
	g := NewWithT(t)
	as(t, release+"-uninstall")
	uninstallCRDs(g, t, crds)
	for _, objects := range []client.ObjectList{policyList(), &v1.StatefulSingletonList{}, &v1.StatefulClusterList{}} {
		g.Eventually(func() error { return list(t, objects) }).Should(MatchError(meta.IsNoMatchError, "no match"))
	}
	g.Expect(execute(t.Context(), uninstallCommand(), "--namespace="+release)).To(Succeed())
}

// writtenAt returns the resource version, which grows with each write.
func writtenAt(g *WithT, o client.Object) uint64 {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	g.Expect(err).NotTo(HaveOccurred())
	return v
}

func installCRDs(t testing.TB) {
	t.Helper()
	if _, err := envtest.InstallCRDs(config, crds); err != nil {
		t.Fatalf("install the CRDs: %v", err)
	}
}

// uninstallCRDs waits until the definitions are deleted, because envtest updates a definition that is being deleted
// instead of creating it again. It lists the objects first: kube-apiserver can fail to delete a definition for minutes
// ("storage is (re)initializing") if the deletion is the first reader of the objects.
func uninstallCRDs(g *WithT, t *testing.T, options envtest.CRDInstallOptions) {
	t.Helper()
	g.Expect(envtest.ReadCRDFiles(&options)).To(Succeed())
	options.Paths = nil
	for _, definition := range options.CRDs {
		objects := &metav1.PartialObjectMetadataList{}
		objects.SetGroupVersionKind(schema.GroupVersionKind{Group: definition.Spec.Group, Version: definition.Spec.Versions[0].Name, Kind: definition.Spec.Names.ListKind})
		g.Eventually(func() error { return c.List(t.Context(), objects) }).Should(Succeed())
	}
	g.Expect(envtest.UninstallCRDs(config, options)).To(Succeed())
	for _, definition := range options.CRDs {
		g.Eventually(func() error {
			return c.Get(t.Context(), client.ObjectKeyFromObject(definition), definition)
		}).Should(MatchError(apierrors.IsNotFound, "not found"), func() string { return fmt.Sprintf("%s: %+v", definition.Name, definition.Status.Conditions) })
	}
}

// list lists objects with a new client, which discovers the served kinds again.
func list(t *testing.T, objects client.ObjectList) error {
	fresh, err := client.New(config, client.Options{Scheme: c.Scheme()})
	if err != nil {
		return err
	}
	return fresh.List(t.Context(), objects)
}

func policyList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	return list
}

// create stores an object until the end of the test, even if it has finalizers.
func create[T client.Object](t *testing.T, o T) T {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatalf("create %T %s: %v", o, client.ObjectKeyFromObject(o), err)
	}
	t.Cleanup(func() {
		free := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		for _, err := range []error{
			c.Patch(context.Background(), o, free),
			c.Delete(context.Background(), o, client.GracePeriodSeconds(0)),
		} {
			if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
				t.Errorf("remove %T %s: %v", o, client.ObjectKeyFromObject(o), err)
			}
		}
	})
	return o
}

func createSingleton(t *testing.T, name string) *v1.StatefulSingleton {
	t.Helper()
	return create(t, &v1.StatefulSingleton{
		ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: name, Finalizers: []string{v1.PolicyFinalizer}},
		Spec:       v1.StatefulSingletonSpec{Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	})
}

func createCluster(t *testing.T, name string, finalizers ...string) *v1.StatefulCluster {
	t.Helper()
	return create(t, &v1.StatefulCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: name, Finalizers: finalizers},
		Spec: v1.StatefulClusterSpec{
			Selector: v1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"db","image":"db"}]}}`)},
		},
	})
}

func createDeployment(t *testing.T, app string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": app}
	return create(t, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: release},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	})
}

func createPod(t *testing.T, name string, labels map[string]string, finalizers ...string) *corev1.Pod {
	t.Helper()
	return create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: release, Name: name, Labels: labels, Finalizers: finalizers},
		Spec:       podSpec(),
	})
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}}
}

func createPolicy(t *testing.T, name, managedBy string) *unstructured.Unstructured {
	t.Helper()
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"rules": []any{map[string]any{
		"name":     "rule",
		"match":    map[string]any{"any": []any{map[string]any{"resources": map[string]any{"kinds": []any{"Pod"}}}}},
		"validate": map[string]any{"message": "no", "deny": map[string]any{}},
	}}}}}
	policy.SetGroupVersionKind(policies.ClusterPolicy.GVK())
	policy.SetName(name)
	policy.SetLabels(map[string]string{v1.ManagedByLabel: managedBy})
	return create(t, policy)
}

func createMutatingPolicy(t *testing.T, name, managedBy string) *unstructured.Unstructured {
	t.Helper()
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	policy.SetGroupVersionKind(policies.NamespacedMutatingPolicy.GVK())
	policy.SetNamespace(metav1.NamespaceDefault)
	policy.SetName(name)
	policy.SetLabels(map[string]string{v1.ManagedByLabel: managedBy})
	return create(t, policy)
}

func createBudget(t *testing.T, name string, labels map[string]string) *policyv1.PodDisruptionBudget {
	t.Helper()
	return create(t, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: labels},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0))},
	})
}

func wantDeleted(g *WithT, t *testing.T, o client.Object) {
	t.Helper()
	g.Eventually(func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	}).Should(BeTrue(), "%T %s is deleted", o, o.GetName())
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// get returns an error unless the status is 200 and the body contains want.
func get(address, want string) error {
	response, err := http.Get("http://" + address)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
		return fmt.Errorf("%s: status %s: %s", address, response.Status, body)
	}
	return nil
}
