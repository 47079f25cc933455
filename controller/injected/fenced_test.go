package injected_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/injected"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// makeSingleton returns a singleton that names the containers.
func makeSingleton(name string, containers ...string) *v1.StatefulSingleton {
	return &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}, Spec: v1.StatefulSingletonSpec{Containers: containers}}
}

// holdInit returns singleton db, which asks for all init containers to be held.
func holdInit() *v1.StatefulSingleton {
	s := makeSingleton("db")
	s.Spec.HoldInitContainers = true
	return s
}

// makePod returns pod db-1 with the containers and the sidecar that the policy of singleton db adds.
func makePod(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db-1", Annotations: map[string]string{v1.InjectedAnnotation: "prod/db"}},
		Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: v1.SidecarName}}, Containers: containers},
	}
}

// withInit adds an init container to the pod.
func withInit(pod *corev1.Pod, c corev1.Container) *corev1.Pod {
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	return pod
}

// wrapped returns a container that the wrapper holds.
func wrapped(name string) corev1.Container {
	return corev1.Container{Name: name, Command: append(slices.Clone(signal.Wrapper), "/bin/"+name)}
}

// barrier returns a container that a barrier holds.
func barrier(name string) corev1.Container {
	return corev1.Container{Name: name, Env: []corev1.EnvVar{{
		Name: signal.EpochEnv,
		ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "statefulsingleton-db-1"}, Key: signal.EpochKey,
		}},
	}}}
}

// fence changes the pod like the policy of singleton db with fencing by a Lease.
func fence(p *corev1.Pod) *corev1.Pod {
	var names []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if c := &list[i]; len(c.Command) > 0 && c.Command[0] == signal.GatePath {
				c.Env = append(c.Env, corev1.EnvVar{Name: signal.ContainerEnv, Value: c.Name})
				names = append(names, c.Name)
			}
		}
	}
	sidecar := &p.Spec.InitContainers[0]
	sidecar.Env = []corev1.EnvVar{
		{Name: signal.LeaseEnv, Value: "prod/statefulsingleton-db"},
		{Name: signal.LeaseDurationEnv, Value: "15"},
		{Name: signal.HeldEnv, Value: strings.Join(names, ",")},
		{Name: signal.PodNameEnv, ValueFrom: fieldRef("metadata.name")},
		{Name: signal.APIServerEnv, Value: "https://10.96.0.1:443"},
		{Name: signal.AuthoritiesEnv, Value: signal.Fingerprint(nil)},
	}
	sidecar.VolumeMounts = append(sidecar.VolumeMounts, credentialsMount())
	p.Spec.Volumes = append(p.Spec.Volumes, credentialsVolume())
	p.Annotations[v1.FencingAnnotation] = "Lease"
	return p
}

func fieldRef(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

func credentialsMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: signal.CredentialsVolume, MountPath: signal.CredentialsDir, ReadOnly: true}
}

// credentialsVolume is as the API server stores it, with the defaults.
func credentialsVolume() corev1.Volume {
	return corev1.Volume{Name: "statefulsingleton-credentials", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
		},
		DefaultMode: new(int32(0o644)),
	}}}
}

func TestFencedBy(t *testing.T) {
	for name, tc := range map[string]struct {
		pod       *corev1.Pod
		singleton *v1.StatefulSingleton
		wantHeld  []string
	}{
		"one container":         {pod: fence(makePod(wrapped("app"))), wantHeld: []string{"app"}},
		"a held init container": {pod: fence(withInit(makePod(wrapped("app")), wrapped("migrate"))), wantHeld: []string{"migrate", "app"}},
		"beside a container that nothing holds": {
			pod: fence(makePod(wrapped("app"), corev1.Container{Name: "web"})), singleton: makeSingleton("db", "app"), wantHeld: []string{"app"},
		},
		"the singleton has no fencing any more": {pod: fence(makePod(wrapped("app"))), wantHeld: []string{"app"}},
		"the last variable counts": {pod: change(func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Env = append([]corev1.EnvVar{{Name: signal.ContainerEnv, Value: "other"}}, c.Env...)
		}), wantHeld: []string{"app"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.singleton == nil {
				tc.singleton = makeSingleton("db")
			}
			got, problem := injected.FencedBy(tc.pod, tc.singleton)
			want := signal.LeaseSettings{
				Namespace: "prod", Lease: "statefulsingleton-db", Duration: 15 * time.Second, Held: tc.wantHeld, Pod: "db-1",
				APIServer: signal.APIServer{URL: "https://10.96.0.1:443", Authorities: []string{signal.Fingerprint(nil)}},
			}
			if diff := cmp.Diff(want, got); diff != "" || problem != "" {
				t.Errorf("problem %q, settings (-want +got):\n%s", problem, diff)
			}
		})
	}
}

// change returns a fenced pod with a change.
func change(do func(*corev1.Pod)) *corev1.Pod {
	p := fence(makePod(wrapped("app")))
	do(p)
	return p
}

func TestNotFencedBy(t *testing.T) {
	app := func(do func(*corev1.Container)) *corev1.Pod {
		return change(func(p *corev1.Pod) { do(&p.Spec.Containers[0]) })
	}
	sidecar := func(do func(*corev1.Container)) *corev1.Pod {
		return change(func(p *corev1.Pod) { do(&p.Spec.InitContainers[0]) })
	}
	env := func(name string, e corev1.EnvVar) *corev1.Pod {
		return sidecar(func(c *corev1.Container) {
			e.Name = name
			c.Env = append(c.Env, e)
		})
	}
	volume := func(do func(*corev1.Volume)) *corev1.Pod {
		return change(func(p *corev1.Pod) { do(&p.Spec.Volumes[len(p.Spec.Volumes)-1]) })
	}
	mount := func(do func(*corev1.VolumeMount)) *corev1.Pod {
		return sidecar(func(c *corev1.Container) { do(&c.VolumeMounts[len(c.VolumeMounts)-1]) })
	}
	const (
		own     = "volume statefulsingleton-credentials is the pod's own"
		noMount = "container status-sidecar has no volume statefulsingleton-credentials at /var/run/secrets/statefulsingleton"
		lease   = "FENCING_LEASE of container status-sidecar is not prod/statefulsingleton-db"
		held    = "FENCING_CONTAINERS of container status-sidecar are not the held containers"
		misname = "STATEFULSINGLETON_CONTAINER of container app is not the name of the container"
	)
	for name, tc := range map[string]struct {
		pod       *corev1.Pod
		singleton *v1.StatefulSingleton
		want      string
	}{
		// No policy can prepare these pods.
		"shareProcessNamespace": {pod: change(func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }), want: "the pod has shareProcessNamespace"},
		"hostPID":               {pod: change(func(p *corev1.Pod) { p.Spec.HostPID = true }), want: "the pod has hostPID"},
		"a barrier":             {pod: makePod(barrier("app")), want: "container app needs a command"},
		"a barrier beside the wrapper": {
			pod: fence(makePod(wrapped("app"), barrier("web"))), want: "container web needs a command",
		},
		"a barrier that the singleton does not name": {
			pod:       fence(makePod(wrapped("app"), barrier("web"))),
			singleton: makeSingleton("db", "app"), want: "container web needs a command",
		},
		"a barrier for a startup probe": {pod: app(func(c *corev1.Container) {
			*c = barrier("app")
			c.Command, c.StartupProbe = []string{"/app"}, &corev1.Probe{}
		}), want: "container app has a startupProbe"},
		"a barrier for a hook": {pod: app(func(c *corev1.Container) {
			*c = barrier("app")
			c.Command, c.Lifecycle = []string{"/app"}, &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}
		}), want: "container app has a postStart hook"},
		"another barrier": {pod: app(func(c *corev1.Container) {
			*c = barrier("app")
			c.Command = []string{"/app"}
		}), want: "container app is held by a barrier"},
		"nothing holds a container":      {pod: fence(makePod(wrapped("app"), corev1.Container{Name: "web"})), want: "nothing holds container web"},
		"nothing holds a named one":      {pod: fence(makePod(wrapped("app"), corev1.Container{Name: "web"})), singleton: makeSingleton("db", "app", "web"), want: "nothing holds container web"},
		"nothing holds an init one":      {pod: fence(withInit(makePod(wrapped("app")), corev1.Container{Name: "seed"})), singleton: holdInit(), want: "nothing holds container seed"},
		"no injection":                   {pod: makePod(corev1.Container{Name: "app", Command: []string{"/bin/app"}}), want: "nothing holds container app"},
		"another volume":                 {pod: volume(func(v *corev1.Volume) { v.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}} }), want: own},
		"a token for others":             {pod: volume(func(v *corev1.Volume) { v.Projected.Sources[0].ServiceAccountToken.Audience = "vault" }), want: own},
		"a third source":                 {pod: volume(func(v *corev1.Volume) { v.Projected.Sources = append(v.Projected.Sources, v.Projected.Sources[1]) }), want: own},
		"another certificate authority":  {pod: volume(func(v *corev1.Volume) { v.Projected.Sources[1].ConfigMap.Name = "mine" }), want: own},
		"the app mounts the credentials": {pod: app(func(c *corev1.Container) { c.VolumeMounts = append(c.VolumeMounts, credentialsMount()) }), want: "container app mounts volume statefulsingleton-credentials"},

		// A policy has not prepared these pods.
		"before fencing was turned on": {pod: makePod(wrapped("app")), want: "the pod was injected before fencing was turned on"},
		"no annotation":                {pod: change(func(p *corev1.Pod) { delete(p.Annotations, v1.FencingAnnotation) }), want: "the pod was injected before fencing was turned on"},
		"not by a policy":              {pod: change(func(p *corev1.Pod) { delete(p.Annotations, v1.InjectedAnnotation) }), want: "no policy injected the pod"},
		"no held container":            {pod: change(func(p *corev1.Pod) { p.Spec.Containers = nil }), want: "no policy injected the pod"},

		"no name":      {pod: app(func(c *corev1.Container) { c.Env = nil }), want: misname},
		"another name": {pod: app(func(c *corev1.Container) { c.Env[0].Value = "web" }), want: misname},
		"another name at the end": {pod: app(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: signal.ContainerEnv, Value: "web"})
		}), want: misname},
		"a name that is no literal": {pod: app(func(c *corev1.Container) { c.Env[0].ValueFrom = fieldRef("metadata.name") }), want: misname},
		"an init container without name": {pod: func() *corev1.Pod {
			p := fence(withInit(makePod(wrapped("app")), wrapped("migrate")))
			p.Spec.InitContainers[1].Env = nil
			return p
		}(), want: "STATEFULSINGLETON_CONTAINER of container migrate is not the name of the container"},

		"no sidecar":                {pod: sidecar(func(c *corev1.Container) { c.Name = "other" }), want: "container other mounts volume statefulsingleton-credentials"},
		"no sidecar, no mount":      {pod: change(func(p *corev1.Pod) { p.Spec.InitContainers = nil }), want: noMount},
		"no mount":                  {pod: sidecar(func(c *corev1.Container) { c.VolumeMounts = nil }), want: noMount},
		"no volume":                 {pod: change(func(p *corev1.Pod) { p.Spec.Volumes = nil }), want: noMount},
		"a mount elsewhere":         {pod: mount(func(m *corev1.VolumeMount) { m.MountPath = "/credentials" }), want: noMount},
		"a mount that is writable":  {pod: mount(func(m *corev1.VolumeMount) { m.ReadOnly = false }), want: noMount},
		"a mount of a part":         {pod: mount(func(m *corev1.VolumeMount) { m.SubPath = "token" }), want: noMount},
		"a mount of a part by name": {pod: mount(func(m *corev1.VolumeMount) { m.SubPathExpr = "token" }), want: noMount},

		"no settings":                {pod: sidecar(func(c *corev1.Container) { c.Env = nil }), want: lease},
		"another Lease":              {pod: env(signal.LeaseEnv, corev1.EnvVar{Value: "prod/statefulsingleton-web"}), want: lease},
		"another namespace":          {pod: env(signal.LeaseEnv, corev1.EnvVar{Value: "dev/statefulsingleton-db"}), want: lease},
		"more than the Lease":        {pod: env(signal.LeaseEnv, corev1.EnvVar{Value: "prod/statefulsingleton-db/x"}), want: lease},
		"a Lease that is no literal": {pod: env(signal.LeaseEnv, corev1.EnvVar{ValueFrom: fieldRef("metadata.annotations['lease']")}), want: lease},
		"no duration":                {pod: env(signal.LeaseDurationEnv, corev1.EnvVar{}), want: `container status-sidecar: FENCING_DURATION_SECONDS is "": it must be a number from 5 to 3600`},
		"a long duration":            {pod: env(signal.LeaseDurationEnv, corev1.EnvVar{Value: "3601"}), want: `container status-sidecar: FENCING_DURATION_SECONDS is "3601": it must be a number from 5 to 3600`},
		"a duration of a variable":   {pod: env(signal.LeaseDurationEnv, corev1.EnvVar{Value: "$(SECONDS)"}), want: `container status-sidecar: FENCING_DURATION_SECONDS is "$(SECONDS)": it must be a number from 5 to 3600`},
		"a duration of a field":      {pod: env(signal.LeaseDurationEnv, corev1.EnvVar{ValueFrom: fieldRef("metadata.name")}), want: `container status-sidecar: FENCING_DURATION_SECONDS is "": it must be a number from 5 to 3600`},
		"no held containers":         {pod: env(signal.HeldEnv, corev1.EnvVar{}), want: `container status-sidecar: FENCING_CONTAINERS is "": it must have names of containers, separated by commas`},
		"no API server":              {pod: env(signal.APIServerEnv, corev1.EnvVar{}), want: `container status-sidecar: FENCING_API_SERVER is "": it must be the https URL of the API server. Restart the pod: the policies of the controller set the variable in new pods`},
		"other held containers":      {pod: env(signal.HeldEnv, corev1.EnvVar{Value: "web"}), want: held},
		"more held containers":       {pod: env(signal.HeldEnv, corev1.EnvVar{Value: "app,web"}), want: held},
		"fewer held containers": {pod: func() *corev1.Pod {
			p := fence(withInit(makePod(wrapped("app")), wrapped("migrate")))
			p.Spec.InitContainers[0].Env[2].Value = "app"
			return p
		}(), want: held},
		"another field for the pod":      {pod: env(signal.PodNameEnv, corev1.EnvVar{ValueFrom: fieldRef("metadata.uid")}), want: "container status-sidecar: POD_NAME is empty"},
		"the name of another pod":        {pod: env(signal.PodNameEnv, corev1.EnvVar{Value: "db-2"}), want: "POD_NAME of container status-sidecar is not the name of the pod"},
		"the Lease of another singleton": {pod: fence(makePod(wrapped("app"))), singleton: makeSingleton("web"), want: "FENCING_LEASE of container status-sidecar is not prod/statefulsingleton-web"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.singleton == nil {
				tc.singleton = makeSingleton("db")
			}
			got, problem := injected.FencedBy(tc.pod, tc.singleton)
			if problem != tc.want {
				t.Errorf("problem is %q, want %q", problem, tc.want)
			}
			if diff := cmp.Diff(signal.LeaseSettings{}, got); diff != "" {
				t.Errorf("settings of a pod that is not fenced (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNotQueueableBy(t *testing.T) {
	port := func(c corev1.Container, protocol corev1.Protocol) corev1.Container {
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: 5432, Protocol: protocol})
		c.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: new(false)}
		return c
	}
	privileged := port(wrapped("web"), corev1.ProtocolTCP)
	privileged.SecurityContext = nil
	grpc := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}}
	live, ready := wrapped("web"), wrapped("web")
	live.LivenessProbe, ready.ReadinessProbe = grpc, grpc
	app := port(wrapped("app"), corev1.ProtocolTCP)
	const noPort = "no held container has a TCP port in ports"
	for name, tc := range map[string]struct {
		pod       *corev1.Pod
		singleton *v1.StatefulSingleton
		want      string
	}{
		"a port":                          {pod: fence(makePod(app))},
		"a port without protocol":         {pod: fence(makePod(port(wrapped("app"), "")))},
		"a port of another container":     {pod: fence(makePod(wrapped("web"), app))},
		"a port beside ports without TCP": {pod: fence(makePod(port(port(wrapped("app"), corev1.ProtocolUDP), corev1.ProtocolTCP)))},
		"gRPC of a container that nothing holds": {
			pod: fence(makePod(app, corev1.Container{Name: "web", LivenessProbe: grpc})), singleton: makeSingleton("db", "app"),
		},
		"an init container that nothing holds": {pod: fence(withInit(makePod(app), corev1.Container{Name: "proxy", LivenessProbe: grpc}))},

		"no port": {pod: fence(makePod(wrapped("app"))), want: noPort},
		"UDP":     {pod: fence(makePod(port(wrapped("app"), corev1.ProtocolUDP))), want: noPort},
		"SCTP":    {pod: fence(makePod(port(wrapped("app"), corev1.ProtocolSCTP))), want: noPort},
		"a port of an init container": {
			pod: fence(withInit(makePod(wrapped("app")), port(corev1.Container{Name: "proxy"}, corev1.ProtocolTCP))), want: noPort,
		},
		"a held init container":                 {pod: fence(withInit(makePod(app), wrapped("proxy"))), singleton: holdInit(), want: "init container proxy is held"},
		"an init container that comes held":     {pod: fence(withInit(makePod(app), wrapped("proxy"))), want: "init container proxy is held"},
		"a port of one that nothing holds":      {pod: fence(makePod(wrapped("app"), port(corev1.Container{Name: "web"}, ""))), singleton: makeSingleton("db", "app"), want: noPort},
		"may gain privileges":                   {pod: fence(makePod(app, privileged)), want: "container web needs securityContext.allowPrivilegeEscalation: false"},
		"gRPC liveness":                         {pod: fence(makePod(app, live)), want: "container web has a gRPC probe"},
		"gRPC readiness":                        {pod: fence(makePod(app, ready)), want: "container web has a gRPC probe"},
		"not fenceable":                         {pod: fence(makePod(app, barrier("web"))), want: "container web needs a command"},
		"not fenceable, by a field of the pod":  {pod: change(func(p *corev1.Pod) { p.Spec.HostPID = true }), want: "the pod has hostPID"},
		"nothing holds a container with a port": {pod: fence(makePod(port(corev1.Container{Name: "app"}, ""))), want: "nothing holds container app"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.singleton == nil {
				tc.singleton = makeSingleton("db")
			}
			if got := injected.NotQueueableBy(tc.pod, tc.singleton); got != tc.want {
				t.Errorf("problem is %q, want %q", got, tc.want)
			}
		})
	}
}
