package policies_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

func containerEnv(name string) corev1.EnvVar {
	return corev1.EnvVar{Name: "STATEFULSINGLETON_CONTAINER", Value: name}
}

// readPod returns a pod in testdata/pods after a change.
func readPod(t *testing.T, name string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := decoded[corev1.Pod](t, readFile(t, filepath.Join("testdata", "pods", name+".yaml")))
	if change != nil {
		change(&pod)
	}
	return &pod
}

func wantFenced(t *testing.T, pod *corev1.Pod, s *v1.StatefulSingleton, wantHeld ...string) {
	t.Helper()
	settings, problem := injected.FencedBy(pod, s)
	if problem != "" {
		t.Fatalf("the pod is not fenced: %s", problem)
	}
	if diff := cmp.Diff(wantHeld, settings.Held); diff != "" {
		t.Errorf("held containers of the sidecar (-want +got):\n%s", diff)
	}
	if want := float64(signal.LeaseSeconds(s.Spec.LeaseDurationSeconds)); settings.Duration.Seconds() != want {
		t.Errorf("the duration is %s, want %g seconds", settings.Duration, want)
	}
	wantEachOnce(t, allContainers(*pod))
}

// wantEachOnce fails if a container has a variable twice.
func wantEachOnce(t *testing.T, containers []corev1.Container) {
	t.Helper()
	for _, c := range containers {
		seen := map[string]bool{}
		for _, e := range c.Env {
			if seen[e.Name] {
				t.Errorf("container %s has variable %s twice", c.Name, e.Name)
			}
			seen[e.Name] = true
		}
	}
}

// notFenceable are changes of pods after which neither the policy of a StatefulSingleton nor that of a lock can fence it.
var notFenceable = map[string]struct {
	pod    string
	change func(*corev1.Pod)
	// want is part of what injected.FencedBy says.
	want string
}{
	"a volume of the user": {"shell", addVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		"volume statefulsingleton-credentials is the pod's own"},
	"a mount without a volume":        {"shell", inApp(mountCredentials), "container db mounts volume statefulsingleton-credentials"},
	"a mount of an init container":    {"fencing", func(p *corev1.Pod) { mountCredentials(&p.Spec.InitContainers[0]) }, "container migrate mounts volume statefulsingleton-credentials"},
	"a mount and the same volume":     {"shell", both(inApp(mountCredentials), addVolume(credentialsSource())), "container db mounts volume statefulsingleton-credentials"},
	"a name that contains a variable": {"shell", rename("db", "{{request.object.metadata.name}}"), "before fencing was turned on"},
	"a name that separates two names": {"shell", rename("db", "a,b,"), "before fencing was turned on"},
}

// A pod that cannot be fenced is injected as without fencing.
func TestNotFenced(t *testing.T) {
	type notFencedCase struct {
		pod       string
		change    func(*corev1.Pod)
		singleton string
		// want is part of what injected.FencedBy says.
		want string
	}
	tests := map[string]notFencedCase{
		"no command":                       {pod: "scratch", want: "needs a command"},
		"no command of another container":  {pod: "several-containers", want: "container metrics needs a command"},
		"no command of an init container":  {pod: "init-containers", singleton: "fencing-init-containers", want: "container agent needs a command"},
		"no command of a named one":        {pod: "init-containers", change: rename("agent", "proxy"), singleton: "fencing-named-containers", want: "container proxy needs a command"},
		"startup probe":                    {pod: "probes", want: "container startup-http has a startupProbe"},
		"post-start hook":                  {pod: "hooks", want: "container post-start has a postStart hook"},
		"shareProcessNamespace":            {pod: "share-process-namespace", want: "the pod has shareProcessNamespace"},
		"hostPID":                          {pod: "host-pid", want: "the pod has hostPID"},
		"a barrier that is not ours":       {pod: "several-containers", change: func(p *corev1.Pod) { bar(&p.Spec.Containers[1]) }, singleton: "fencing-named-containers", want: "container metrics needs a command"},
		"a barrier of an init container":   {pod: "init-containers", change: func(p *corev1.Pod) { bar(&p.Spec.InitContainers[4]) }, singleton: "fencing", want: "container chown needs a command"},
		"a name that ends a JSON string":   {pod: "shell", change: rename("db", `a","b":"`), want: "before fencing was turned on"},
		"nothing but an unnamed container": {pod: "shell", change: rename("db", "web"), singleton: "fencing-named-containers", want: "no policy injected the pod"},
	}
	for name, not := range notFenceable {
		tests[name] = notFencedCase{not.pod, not.change, "", not.want}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.singleton == "" {
				test.singleton = "fencing"
			}
			s := readSingleton(t, test.singleton)
			unfenced := s.DeepCopy()
			unfenced.Spec.Fencing = v1.FencingKubelet
			pod := encode(t, readPod(t, test.pod, test.change))

			k := newKyverno(t, ownPolicy(s, options))
			got := k.mutate(t, pod, firstRequest)

			wantSame(t, "as without fencing", newKyverno(t, ownPolicy(unfenced, options)).mutate(t, pod, firstRequest), got)
			wantSame(t, "after a second pass", got, k.mutate(t, got, secondRequest))
			decodedGot := decoded[corev1.Pod](t, got)
			if _, problem := injected.FencedBy(&decodedGot, s); !strings.Contains(problem, test.want) {
				t.Errorf("the problem is %q, want %q in it", problem, test.want)
			}
		})
	}
}

func rename(from, to string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				switch list[i].Name {
				case from:
					list[i].Name = to
				case to:
					list[i].Name = from
				}
			}
		}
	}
}

func bar(c *corev1.Container) { c.Env = []corev1.EnvVar{barrier(firstRequest)} }

func both(a, b func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { a(p); b(p) }
}

func addVolume(source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: signal.CredentialsVolume, VolumeSource: source})
	}
}

func credentialsSource() corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: injected.CredentialsSources(), DefaultMode: new(int32(0o644))}}
}

func mountCredentials(c *corev1.Container) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: signal.CredentialsVolume, MountPath: "/credentials"})
}

// A pod can be created from the manifest of a fenced pod, and the API server may call Kyverno twice. Each pass decides
// anew, and leaves nothing of an earlier decision.
func TestFencedAgain(t *testing.T) {
	both := []string{"db", "backup"}
	tests := map[string]againCase{
		"another name":               {func(p *corev1.Pod) { p.Name = "db-1" }, both},
		"no volume":                  {func(p *corev1.Pod) { p.Spec.Volumes = nil }, both},
		"no mount":                   {func(p *corev1.Pod) { p.Spec.InitContainers[0].VolumeMounts = nil }, both},
		"no name":                    {func(p *corev1.Pod) { p.Spec.Containers[1].Env = nil }, both},
		"a container with a barrier": {addContainer("late"), nil},
		"hostPID":                    {func(p *corev1.Pod) { p.Spec.HostPID = true }, nil},
		"another volume": {func(p *corev1.Pod) {
			p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == signal.CredentialsVolume })
			addVolume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})(p)
		}, nil},
	}
	maps.Copy(tests, fencedAgain)
	s := readSingleton(t, "fencing")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := decoded[corev1.Pod](t, readFile(t, "testdata/injected/fencing.yaml"))
			test.change(&pod)

			again := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), secondRequest))

			if test.wantHeld != nil {
				wantFenced(t, &again, s, test.wantHeld...)
				return
			}
			wantNotFenced(t, &again)
			if slices.ContainsFunc(again.Spec.InitContainers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == signal.CredentialsVolume }) {
				t.Error("the sidecar of a pod that is not fenced mounts the credentials")
			}
		})
	}
}

// againCase is a change of a fenced pod before a second pass.
type againCase struct {
	change func(*corev1.Pod)
	// wantHeld are the held containers after the second pass. Empty: the pod is not fenced.
	wantHeld []string
}

// fencedAgain are the cases for the policies of StatefulSingletons and of locks.
var fencedAgain = map[string]againCase{
	"unchanged":                {func(*corev1.Pod) {}, []string{"db", "backup"}},
	"with the API's defaults":  {setDefaults, []string{"db", "backup"}},
	"another duration":         {sidecarEnv("FENCING_DURATION_SECONDS", "3600"), []string{"db", "backup"}},
	"another Lease":            {sidecarEnv("FENCING_LEASE", "shop/mine"), []string{"db", "backup"}},
	"no settings":              {func(p *corev1.Pod) { p.Spec.InitContainers[0].Env = p.Spec.InitContainers[0].Env[:2] }, []string{"db", "backup"}},
	"no annotation":            {func(p *corev1.Pod) { delete(p.Annotations, v1.FencingAnnotation) }, []string{"db", "backup"}},
	"a wrapped container more": {addContainer("late", "a"), []string{"db", "backup", "late"}},
	"a container fewer":        {func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, []string{"db"}},
	"shareProcessNamespace":    {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, nil},
	"a mount in the app":       {inApp(mountCredentials), nil},
}

// wantNotFenced fails if something of an earlier decision to fence the pod is left.
func wantNotFenced(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	text := encode(t, pod)
	for _, left := range []string{"FENCING_", "STATEFULSETLOCK", "STATEFULSINGLETON_CONTAINER", v1.FencingAnnotation} {
		if bytes.Contains(text, []byte(left)) {
			t.Errorf("%s is left in a pod that is not fenced:\n%s", left, text)
		}
	}
}

func setDefaults(p *corev1.Pod) {
	for _, v := range p.Spec.Volumes {
		if v.Projected != nil {
			v.Projected.DefaultMode = new(int32(0o644))
		}
	}
	for _, c := range allContainers(*p) {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				e.ValueFrom.FieldRef.APIVersion = "v1"
			}
		}
	}
}

func sidecarEnv(name, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		env := p.Spec.InitContainers[0].Env
		i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == name })
		env[i].Value = value
	}
}

func addContainer(name string, command ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "debian", Command: command})
	}
}

// A manifest can contain variables with the name of the policy's own. The policy's value wins.
func TestFencedContainerHasItsName(t *testing.T) {
	a, b := corev1.EnvVar{Name: "A", Value: "a"}, corev1.EnvVar{Name: "B", Value: "$(STATEFULSINGLETON_CONTAINER)"}
	field := corev1.EnvVar{Name: "STATEFULSINGLETON_CONTAINER", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	tests := map[string][]corev1.EnvVar{
		"none":          {a, b},
		"another name":  {containerEnv("other"), a, b},
		"a field":       {a, field, b},
		"an empty one":  {a, containerEnv(""), b},
		"several":       {containerEnv("other"), field, a, containerEnv("other"), b, field},
		"ours, another": {a, containerEnv("x"), b, containerEnv("other")},
	}
	pod := readPod(t, "fencing", nil)
	pod.Spec.Containers, pod.Spec.InitContainers = nil, nil
	names := slices.Sorted(maps.Keys(tests))
	for i, name := range names {
		c := corev1.Container{Name: fmt.Sprint("c", i), Image: "debian", Command: []string{"a"}, Env: tests[name]}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		c.Name = fmt.Sprint("i", i)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	s := readSingleton(t, "fencing-init-containers")

	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), firstRequest))

	for _, c := range allContainers(got)[1:] {
		if diff := cmp.Diff([]corev1.EnvVar{a, b, podUID(), containerEnv(c.Name)}, c.Env); diff != "" {
			t.Errorf("container %s, with %v (-want +got):\n%s", c.Name, c.Name, diff)
		}
	}
	if _, problem := injected.FencedBy(&got, s); problem != "" {
		t.Errorf("the pod is not fenced: %s", problem)
	}
}

// The value of a container that the policy does not hold is the user's.
func TestUnheldContainerKeepsItsVariables(t *testing.T) {
	own := containerEnv("mine")
	pod := readPod(t, "several-containers", func(p *corev1.Pod) { p.Spec.Containers[1].Env = []corev1.EnvVar{own} })
	s := readSingleton(t, "fencing-named-containers")

	got := decoded[corev1.Pod](t, newKyverno(t, ownPolicy(s, options)).mutate(t, encode(t, pod), firstRequest))

	if diff := cmp.Diff([]corev1.EnvVar{own}, got.Spec.Containers[1].Env); diff != "" {
		t.Errorf("variables of a container that is not held (-want +got):\n%s", diff)
	}
	wantFenced(t, &got, s, "db")
}

// The probe of a singleton with fencing must be fenced, unless no pod with its containers can be.
func TestCheckProbeOfFencing(t *testing.T) {
	s := readSingleton(t, "fencing")
	tests := map[string]struct {
		// pod is a file in testdata/injected.
		pod    string
		change func(*corev1.Pod)
		want   string
	}{
		"fenced":     {pod: "fencing"},
		"not fenced": {pod: "shell", want: "pod is not fenced: the pod was injected before fencing was turned on"},
		"in part":    {pod: "fencing", change: func(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[:len(p.Spec.Volumes)-1] }, want: "pod is not fenced: container status-sidecar has no volume"},
		"a webhook added a container that cannot be fenced": {pod: "shell", change: func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "mesh", Env: []corev1.EnvVar{barrier(firstRequest)}})
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := decoded[corev1.Pod](t, readFile(t, filepath.Join("testdata", "injected", test.pod+".yaml")))
			ref := policies.ClusterPolicy.Of(s)
			pod.Annotations["policy.statefulsingleton.com/"+ref.Name] = "true"
			if test.change != nil {
				test.change(&pod)
			}
			err := policies.CheckProbe(&pod, s, ref)
			if (err != nil) != (test.want != "") || err != nil && (!strings.Contains(err.Error(), test.want) || !errors.Is(err, policies.ErrNotFenced)) {
				t.Errorf("CheckProbe returns %v, want %q", err, test.want)
			}
			unfenced := s.DeepCopy()
			unfenced.Spec.Fencing = v1.FencingKubelet
			if err := policies.CheckProbe(&pod, unfenced, ref); err != nil {
				t.Errorf("CheckProbe without fencing: %v", err)
			}
		})
	}
}
