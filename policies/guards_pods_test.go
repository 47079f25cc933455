package policies_test

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// testInjected: the guards admit each pod that Kyverno injected, with any other fields. A pod that sets the
// epoch itself is the exception.
func testInjected(t *testing.T, c client.Client) {
	singletons := map[string]*v1.StatefulSingleton{}
	for name, injection := range injections {
		file := cmp.Or(injection.singleton, "default")
		if singletons[file] == nil {
			maps.Copy(singletons, createSingletons(t, c, "injected-", file))
		}
		t.Run(name, func(t *testing.T) {
			refused := ""
			if name == "own-epoch" {
				refused = "variable STATEFULSINGLETON_EPOCH is set more than once in container db. Remove it from the manifest"
			}
			wantAnswer(t, tryCreate(t, c, injectedPod(t, name, singletons[file])), refused)
		})
	}
}

// createSingletons creates the singletons of files, each in its own namespace, and waits until the guards protect their pods.
func createSingletons(t *testing.T, c client.Client, prefix string, files ...string) map[string]*v1.StatefulSingleton {
	t.Helper()
	singletons := map[string]*v1.StatefulSingleton{}
	for _, file := range files {
		singletons[file] = createSingleton(t, c, prefix+file, readSingleton(t, file))
		waitForRefusal(t, c, bare(prefix+file, singletons[file]), notInjected)
	}
	return singletons
}

// testForged: each case changes one field of a pod that Kyverno injected. Kyverno does not run in this test, so the
// results also apply while Kyverno is down.
func testForged(t *testing.T, c client.Client) {
	singletons := createSingletons(t, c, "forged-", "default", "named-containers", "hold-init-containers")

	const (
		sidecarGone = "the status sidecar or one of its volumes is missing or changed"
		image       = "init container status-sidecar has image"
		lifecycle   = "lifecycle of init container status-sidecar is not as Kyverno adds it"
		probed      = "init container status-sidecar has ports or probes"
		environment = "the environment of init container status-sidecar is not as Kyverno adds it"
		mounts      = "the mounts of init container status-sidecar are not as Kyverno adds them"
		nothing     = "nothing holds its container "
		reaches     = " mounts volume statefulsingleton-signal or statefulsingleton-podinfo and could forge the signal"
		covers      = "container db has another mount, device or terminationMessagePath at or below /var/run/signal"
		epochs      = "variable STATEFULSINGLETON_EPOCH is set more than once in container db"
		signalMount = "statefulsingleton-signal"
		podinfo     = "statefulsingleton-podinfo"
	)
	literal := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	sidecarMount := func(source corev1.VolumeSource, mount corev1.VolumeMount) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			mount.Name, p.Spec.ServiceAccountName = "extra", "db"
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: mount.Name, VolumeSource: source})
			p.Spec.InitContainers[0].VolumeMounts = append(p.Spec.InitContainers[0].VolumeMounts, mount)
		}
	}
	token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "sts.amazonaws.com", Path: "token"},
	}}}}
	files := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "fake"}}}
	// in mounts another ConfigMap in the wrapped container.
	in := func(path string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "fake", VolumeSource: files})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "fake", MountPath: path, SubPath: "gate"})
		}
	}
	mount := func(name, path string, readOnly bool) func(*corev1.Container) {
		return func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: readOnly})
		}
	}
	podinfoFile := func(path, annotation string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			items := &p.Spec.Volumes[1].DownwardAPI.Items
			*items = append(*items, corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: annotation}})
		}
	}
	ownMount := func(change func(*corev1.VolumeMount)) func(*corev1.Pod) {
		return inApp(func(c *corev1.Container) { change(&c.VolumeMounts[len(c.VolumeMounts)-1]) })
	}
	beside := func(init bool, mount corev1.VolumeMount) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: "beside", Image: "debian", Command: []string{"a"}, VolumeMounts: []corev1.VolumeMount{mount}}
			if init {
				p.Spec.InitContainers = append(p.Spec.InitContainers, c)
				return
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	postStart := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/ko-app/gate", "delivered"}}}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/ko-app/gate"}}}}
	type forgery struct {
		// The default of singleton is "default". The default of pod is "shell", which has one container db with the wrapper.
		singleton, pod string
		change         func(*corev1.Pod)
		wantRefused    string
	}
	tests := map[string]forgery{
		"sidecar: another image":         {change: inSidecar(func(c *corev1.Container) { c.Image = "example.com/evil:1.0" }), wantRefused: image + " example.com/evil:1.0 instead of example.com/statefulsingleton/gate:1.0. Remove init container status-sidecar"},
		"sidecar: another tag":           {change: inSidecar(func(c *corev1.Container) { c.Image = "example.com/statefulsingleton/gate:2.0" }), wantRefused: image},
		"sidecar: image begins the same": {change: inSidecar(func(c *corev1.Container) { c.Image += "-evil" }), wantRefused: image},
		"sidecar: more arguments":        {change: inSidecar(func(c *corev1.Container) { c.Args = append(c.Args, "--more") }), wantRefused: sidecarGone},
		"sidecar: other arguments":       {change: inSidecar(func(c *corev1.Container) { c.Args = []string{"wrap"} }), wantRefused: sidecarGone},
		"sidecar: no arguments":          {change: inSidecar(func(c *corev1.Container) { c.Args = nil }), wantRefused: sidecarGone},
		"sidecar: among the containers": {change: func(p *corev1.Pod) {
			p.Spec.Containers, p.Spec.InitContainers = append(p.Spec.Containers, p.Spec.InitContainers[0]), nil
			p.Spec.Containers[1].RestartPolicy = nil
		}, wantRefused: sidecarGone},
		"sidecar: in both lists":     {change: addContainer(v1.SidecarName), wantRefused: `Duplicate value: "status-sidecar"`},
		"sidecar: twice":             {change: func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, p.Spec.InitContainers[0]) }, wantRefused: `Duplicate value: "status-sidecar"`},
		"sidecar: no postStart":      {change: inSidecar(func(c *corev1.Container) { c.Lifecycle = nil }), wantRefused: lifecycle},
		"sidecar: another postStart": {change: inSidecar(func(c *corev1.Container) { c.Lifecycle.PostStart.Exec.Command = []string{"/ko-app/gate"} }), wantRefused: lifecycle},
		"sidecar: postStart that sleeps": {change: inSidecar(func(c *corev1.Container) {
			c.Lifecycle.PostStart = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}
		}), wantRefused: lifecycle},
		"sidecar: preStop":                  {change: inSidecar(func(c *corev1.Container) { c.Lifecycle.PreStop = postStart }), wantRefused: lifecycle},
		"sidecar: only preStop":             {change: inSidecar(func(c *corev1.Container) { c.Lifecycle.PreStop, c.Lifecycle.PostStart = postStart, nil }), wantRefused: lifecycle},
		"sidecar: port":                     {change: inSidecar(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 9909, HostPort: 9909}} }), wantRefused: probed},
		"sidecar: liveness probe":           {change: inSidecar(func(c *corev1.Container) { c.LivenessProbe = probe }), wantRefused: probed},
		"sidecar: readiness probe":          {change: inSidecar(func(c *corev1.Container) { c.ReadinessProbe = probe }), wantRefused: probed},
		"sidecar: startup probe":            {change: inSidecar(func(c *corev1.Container) { c.StartupProbe = probe }), wantRefused: probed},
		"sidecar: envFrom":                  {change: inSidecar(func(c *corev1.Container) { c.EnvFrom = fromConfigMap() }), wantRefused: environment},
		"sidecar: literal POD_UID":          {change: inSidecar(func(c *corev1.Container) { c.Env[0] = literal("POD_UID", "mine") }), wantRefused: environment},
		"sidecar: second POD_UID":           {change: inSidecar(addEnv("POD_UID", "mine")), wantRefused: environment},
		"sidecar: POD_UID of another field": {change: inSidecar(func(c *corev1.Container) { c.Env[0] = field("POD_UID", "metadata.name") }), wantRefused: environment},
		"sidecar: no POD_UID":               {change: inSidecar(func(c *corev1.Container) { c.Env = c.Env[1:] }), wantRefused: environment},
		"sidecar: POD_UID by another name":  {change: inSidecar(func(c *corev1.Container) { c.Env[0].Name = "POD_ID" }), wantRefused: environment},
		"sidecar: literal POD_IP":           {change: inSidecar(func(c *corev1.Container) { c.Env[1] = literal("POD_IP", "127.0.0.1") }), wantRefused: environment},
		"sidecar: POD_IP of another field":  {change: inSidecar(func(c *corev1.Container) { c.Env[1] = field("POD_IP", "status.hostIP") }), wantRefused: environment},
		"sidecar: second POD_IP":            {change: inSidecar(addEnv("POD_IP", "127.0.0.1")), wantRefused: environment},
		"sidecar: another POD_ variable":    {change: inSidecar(addEnv("POD_NAME", "a")), wantRefused: environment},
		"sidecar: variable of the runtime":  {change: inSidecar(addEnv("GODEBUG", "a")), wantRefused: environment},
		"sidecar: no environment":           {change: inSidecar(func(c *corev1.Container) { c.Env = nil }), wantRefused: environment},
		"sidecar: signal read-only":         {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[0].ReadOnly = true }), wantRefused: mounts},
		"sidecar: signal elsewhere":         {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[0].MountPath = "/signal" }), wantRefused: mounts},
		"sidecar: part of the signal":       {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[0].SubPath = "a" }), wantRefused: mounts},
		"sidecar: signal by expression":     {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[0].SubPathExpr = "$(POD_UID)" }), wantRefused: mounts},
		"sidecar: signal twice":             {change: inSidecar(mount(signalMount, "/var/run/secrets/a", false)), wantRefused: mounts},
		"sidecar: no signal":                {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts = c.VolumeMounts[1:] }), wantRefused: mounts},
		"sidecar: no podinfo":               {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts = c.VolumeMounts[:1] }), wantRefused: mounts},
		"sidecar: podinfo elsewhere":        {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[1].MountPath = "/etc" }), wantRefused: mounts},
		"sidecar: podinfo writable":         {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts[1].ReadOnly = false }), wantRefused: mounts},
		"sidecar: podinfo twice":            {change: inSidecar(mount(podinfo, "/var/run/secrets/a", false)), wantRefused: mounts},
		"sidecar: podinfo of another": {change: func(p *corev1.Pod) {
			in("/a")(p)
			p.Spec.InitContainers[0].VolumeMounts[1].Name = "fake"
		}, wantRefused: mounts},
		"sidecar: no mounts":               {change: inSidecar(func(c *corev1.Container) { c.VolumeMounts = nil }), wantRefused: mounts},
		"sidecar: file over the gate":      {change: sidecarMount(files, corev1.VolumeMount{MountPath: "/ko-app/gate", SubPath: "gate"}), wantRefused: mounts},
		"sidecar: another kind of volume":  {change: sidecarMount(files, corev1.VolumeMount{MountPath: "/var/run/secrets/a"}), wantRefused: mounts},
		"sidecar: volume that a claim has": {change: sidecarMount(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}, corev1.VolumeMount{MountPath: "/var/run/secrets/a"}), wantRefused: mounts},
		"sidecar: device":                  {change: sidecarDevice, wantRefused: mounts},
		"podinfo: another file":            {change: func(p *corev1.Pod) { p.Spec.Volumes[1].DownwardAPI.Items[0].Path = "other" }, wantRefused: sidecarGone},
		"podinfo: one more file":           {change: podinfoFile("more", "metadata.labels"), wantRefused: sidecarGone},
		"podinfo: the same file twice":     {change: podinfoFile("start-signal", "metadata.annotations['mine']"), wantRefused: sidecarGone},
		"podinfo: no file":                 {change: func(p *corev1.Pod) { p.Spec.Volumes[1].DownwardAPI.Items = nil }, wantRefused: sidecarGone},
		"podinfo: a ConfigMap":             {change: func(p *corev1.Pod) { p.Spec.Volumes[1].VolumeSource = files }, wantRefused: sidecarGone},

		"wrapped: device over the gate":        {change: appDevice("/var/run/signal/gate"), wantRefused: covers},
		"wrapped: termination message":         {change: inApp(func(c *corev1.Container) { c.TerminationMessagePath = "/var/run/signal/gate" }), wantRefused: covers},
		"wrapped: signal writable":             {change: ownMount(func(m *corev1.VolumeMount) { m.ReadOnly = false }), wantRefused: "container db" + reaches},
		"wrapped: part of the signal":          {change: ownMount(func(m *corev1.VolumeMount) { m.SubPath = "a" }), wantRefused: "container db" + reaches},
		"wrapped: signal by expression":        {change: ownMount(func(m *corev1.VolumeMount) { m.SubPathExpr = "a" }), wantRefused: "container db" + reaches},
		"wrapped: signal elsewhere":            {change: ownMount(func(m *corev1.VolumeMount) { m.MountPath = "/signal" }), wantRefused: nothing + "db"},
		"wrapped: signal, written otherwise":   {change: ownMount(func(m *corev1.VolumeMount) { m.MountPath = "/var/run/signal/" }), wantRefused: nothing + "db"},
		"wrapped: signal also elsewhere":       {change: inApp(mount(signalMount, "/signal", false)), wantRefused: "container db" + reaches},
		"wrapped: signal also elsewhere, ro":   {change: inApp(mount(signalMount, "/signal", true)), wantRefused: "container db" + reaches},
		"wrapped: podinfo":                     {change: inApp(mount(podinfo, "/info", true)), wantRefused: "container db" + reaches},
		"wrapped: another volume in its place": {change: func(p *corev1.Pod) { in("/a")(p); p.Spec.Containers[0].VolumeMounts[0].Name = "fake" }, wantRefused: nothing + "db"},
		"wrapped: another subcommand":          {change: inApp(func(c *corev1.Container) { c.Command[1] = "started" }), wantRefused: nothing + "db"},
		"wrapped: flag of the wrapper":         {change: inApp(func(c *corev1.Container) { c.Command[2] = "-v" }), wantRefused: nothing + "db"},
		"wrapped: another gate":                {change: inApp(func(c *corev1.Container) { c.Command[0] = "/gate" }), wantRefused: nothing + "db"},
		"wrapped: uid of an annotation": {change: inApp(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{field(signal.PodUIDEnv, "metadata.annotations['mine']")}
		}), wantRefused: notOneUID},
		"wrapped: postStart":        {change: inApp(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PostStart: postStart} }), wantRefused: "cannot hold container db, because its postStart hook would run before the signal"},
		"wrapped: and at a barrier": {change: inApp(func(c *corev1.Container) { c.Env = append(c.Env, barrier(firstRequest)) }), wantRefused: "both the wrapper and the barrier hold container db"},
		"wrapped: init container, covered": {singleton: "hold-init-containers", pod: "init-containers-held", change: func(p *corev1.Pod) {
			in("/a")(p)
			m := &p.Spec.InitContainers[1].VolumeMounts
			*m = append(*m, corev1.VolumeMount{Name: "fake", MountPath: "/run/signal/gate", SubPath: "gate"})
		}, wantRefused: "container migrate has another mount"},
		"beside: signal":                    {singleton: "named-containers", change: beside(false, corev1.VolumeMount{Name: signalMount, MountPath: "/s"}), wantRefused: "container beside" + reaches},
		"beside: signal, read-only":         {singleton: "named-containers", change: beside(false, corev1.VolumeMount{Name: signalMount, MountPath: "/var/run/signal", ReadOnly: true}), wantRefused: "container beside" + reaches},
		"beside: podinfo":                   {singleton: "named-containers", change: beside(false, corev1.VolumeMount{Name: podinfo, MountPath: "/s", ReadOnly: true}), wantRefused: "container beside" + reaches},
		"init container: signal":            {change: beside(true, corev1.VolumeMount{Name: signalMount, MountPath: "/s"}), wantRefused: "container beside" + reaches},
		"init container: podinfo":           {change: beside(true, corev1.VolumeMount{Name: podinfo, MountPath: "/s"}), wantRefused: "container beside" + reaches},
		"barrier: signal writable":          {pod: "scratch", change: ownMount(func(m *corev1.VolumeMount) { m.ReadOnly = false }), wantRefused: "container db" + reaches},
		"barrier: a literal epoch after it": {pod: "scratch", change: inApp(addEnv(signal.EpochEnv, "1")), wantRefused: epochs},
		"barrier: a literal epoch before it": {pod: "scratch", change: inApp(func(c *corev1.Container) {
			c.Env = slices.Concat([]corev1.EnvVar{literal(signal.EpochEnv, "1")}, c.Env)
		}), wantRefused: epochs},
		"barrier: twice": {pod: "scratch", change: inApp(func(c *corev1.Container) { c.Env = append(c.Env, barrier(secondRequest)) }), wantRefused: epochs},
		"barrier: a Secret": {pod: "scratch", change: inApp(func(c *corev1.Container) {
			c.Env[0].ValueFrom = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}, Key: "epoch"}}
		}), wantRefused: nothing + "db"},
		"barriers: of two requests": {singleton: "hold-init-containers", pod: "init-containers-held", change: func(p *corev1.Pod) { p.Spec.InitContainers[3].Env[0] = barrier(secondRequest) }, wantRefused: "wait for different ConfigMaps"},
		"passes: token":             {change: sidecarMount(token, corev1.VolumeMount{MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})},
		"passes: cloud identity": {change: func(p *corev1.Pod) {
			sidecarMount(token, corev1.VolumeMount{MountPath: "/var/run/secrets/eks.amazonaws.com/serviceaccount/", ReadOnly: true})(p)
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "extra", MountPath: "/var/run/secrets/eks.amazonaws.com/serviceaccount", ReadOnly: true})
			for _, c := range []*corev1.Container{&p.Spec.InitContainers[0], &p.Spec.Containers[0]} {
				c.Env = append(c.Env, literal("AWS_ROLE_ARN", "arn:aws:iam::1:role/a"), literal("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token"))
			}
		}},
		"passes: volumes of the application": {change: func(p *corev1.Pod) {
			for _, path := range []string{"/run", "/var/run/", "/var/run/signals", "/run/signal-not/gate", "/data//a/./b", "/a..b/"} {
				in(path)(p)
				p.Spec.Volumes = p.Spec.Volumes[:3]
			}
		}},
		"passes: barrier, of the node":     {pod: "scratch", change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		"passes: wrapped, other epoch":     {change: inApp(addEnv(signal.EpochEnv, "1"))},
		"passes: barrier, postStart":       {pod: "scratch", change: inApp(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{PostStart: postStart} })},
		"passes: another label":            {change: func(p *corev1.Pod) { p.Labels, p.Annotations, p.Spec.InitContainers[0].Image = nil, nil, "evil" }},
		"passes: as large as a pod can be": {change: enlargeMounts},
	}
	// Links, dot segments and slashes hide where a mount is.
	for _, path := range []string{
		"/var/run/signal/gate", "/var/run/signal/start-signal", "/run/signal/gate", "/run/signal", "/var/run/signal/",
		"//var/run/signal/gate", "/var//run/signal/gate", "/./var/run/./signal/gate/.", "/var/run/../run/signal",
		"/var/run/signal/gate/..", "../var/run/signal/gate", "var/run/signal/gate", "./run/signal/gate",
	} {
		tests["wrapped: mount at "+path] = forgery{change: in(path), wantRefused: covers}
	}
	for _, mount := range []corev1.VolumeMount{
		{MountPath: "/ko-app"},
		{MountPath: "/var/run/secrets-not"},
		{MountPath: "/var/run/secrets/../../../ko-app"},
		{MountPath: "/var/run/secrets/a/.."},
		{MountPath: "/var/run/secrets/a", SubPath: "token"},
	} {
		tests["sidecar: token at "+mount.MountPath+mount.SubPath] = forgery{change: sidecarMount(token, mount), wantRefused: mounts}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod(t, cmp.Or(test.pod, "shell"), singletons[cmp.Or(test.singleton, "default")])
			test.change(pod)
			wantAnswer(t, tryCreate(t, c, pod), test.wantRefused)
		})
	}
}

func claim(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
	}})
}

func sidecarDevice(p *corev1.Pod) {
	claim(p)
	p.Spec.InitContainers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}}
}

func appDevice(path string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		claim(p)
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: path}}
	}
}

// enlargeMounts adds as many mounts as a pod can have, whose paths the guard compares.
func enlargeMounts(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	template := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for i := range 50 {
		c := *template.DeepCopy()
		c.Name = fmt.Sprintf("c-%d", i)
		for j := range 50 {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: fmt.Sprintf("/srv/data/of/the/application/%d", j)})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

// testBeingDeleted: while the record of a StatefulSingleton that is being deleted names a pod, the guard rejects pods
// that are not held.
func testBeingDeleted(t *testing.T, config *rest.Config) {
	c, controller := newClient(t, config), clientAs(t, config, controllerUser)
	s := readSingleton(t, "default")
	s.Finalizers = []string{v1.PolicyFinalizer}
	s = createSingleton(t, c, "being-deleted", s)
	s.Status.ActivePod, s.Status.ActivePodUID = "db-0", "1234"
	s.Status.Message = "the StatefulSingleton is removed once pod db-0 has terminated"
	record(t, controller, s)
	if err := c.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	const refused = "StatefulSingleton being-deleted/db selects this pod, but Kyverno has not injected it. The StatefulSingleton is being" +
		" deleted, and nothing proves yet that its last pod has terminated. Until then, only held pods are admitted. The" +
		" deletion waits: the StatefulSingleton is removed once pod db-0 has terminated"
	waitForRefusal(t, c, bare(s.Namespace, s), refused)
	wantAnswer(t, tryCreate(t, c, podOf(s.Namespace, map[string]string{"app": "web"})), "")
	wantAnswer(t, tryCreate(t, c, injectedPod(t, "shell", s)), "")

	if err := c.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
		t.Fatal(err)
	}
	s.Finalizers = nil
	if err := controller.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	waitForAdmission(t, c, bare(s.Namespace, s))
}

// testSidecarImage: no user can change the sidecar's image of an existing pod, not even the controller.
func testSidecarImage(t *testing.T, config *rest.Config) {
	const (
		refused = "the image of init container status-sidecar cannot be changed"
		another = `{"spec":{"initContainers":[{"name":"status-sidecar","image":"evil"}]}}`
		marks   = `{"metadata":{"labels":null,"annotations":null}}`
		same    = `{"metadata":{"labels":{"team":"data"}},"spec":{"initContainers":[{"name":"status-sidecar","image":"example.com/statefulsingleton/gate:1.0"}]}}`
		inList  = `[{"op":"replace","path":"/spec/initContainers/0/image","value":"evil"}]`
	)
	c := newClient(t, config)
	createNamespace(t, c, "sidecar-image")
	theirs := bare("sidecar-image", nil)
	theirs.Spec.InitContainers = []corev1.Container{{Name: v1.SidecarName, Image: "theirs", Command: []string{"a"}}}
	// The guards do not check the image of a mirror pod, and the kubelet starts no mirror pod without its static pod.
	s := createSingleton(t, c, "mirror", readSingleton(t, "default"))
	mirrored := bare(s.Namespace, s)
	mirror(mirrored)
	create(t, c, theirs, mirrored)
	wantAnswers(t, config, map[string]client.Object{
		"standby": createStandby(t, config, "sidecar-image", "db"), "theirs": theirs, "mirror": mirrored,
	}, []request{
		{"standby", as(personUser, controllerUser, uninstallUser, kubeletUser), "strategic", bodies(another, inList), refused},
		{"standby", as(controllerUser), "strategic", bodies(bothOf(marks, another)), refused},
		{"standby", as(personUser), "strategic", bodies(bothOf(marks, another)), "cannot be"},
		{"standby", as(personUser), "strategic", bodies(same, `{"spec":{"containers":[{"name":"db","image":"newer"}]}}`), ""},
		{"standby", as(controllerUser), "strategic", bodies(releasePod), ""},
		{"standby", as(kubeletUser), "status/strategic", bodies(`{"status":{"phase":"Running"}}`), ""},
		{"theirs", as(personUser), "strategic", bodies(another), ""},
		{"mirror", as(personUser), "merge", bodies(`{"metadata":{"annotations":null}}`), "may not remove or update mirror pod annotation"},
	})
}

// testEphemeralContainers adds ephemeral containers to a held pod, as kubectl debug does.
func testEphemeralContainers(t *testing.T, config *rest.Config) {
	const (
		mounts  = "ephemeral container debug cannot mount volume statefulsingleton-signal, statefulsingleton-podinfo or statefulsingleton-credentials"
		targets = "ephemeral container debug cannot target container status-sidecar"
	)
	debug := func(fields string) string {
		return `{"spec":{"ephemeralContainers":[{"name":"debug","image":"debian","terminationMessagePolicy":"File"` + fields + `}]}}`
	}
	mount := func(volume, fields string) string {
		return debug(`,"volumeMounts":[{"name":"statefulsingleton-` + volume + `","mountPath":"/s"` + fields + `}]`)
	}
	target := func(container string) string { return debug(`,"targetContainerName":"` + container + `"`) }
	c := newClient(t, config)
	createNamespace(t, c, "ephemeral")
	theirs := bare("ephemeral", nil)
	theirs.Spec.Volumes = []corev1.Volume{{Name: "statefulsingleton-signal"}}
	create(t, c, theirs)
	const way = "ephemeralcontainers/strategic"
	wantAnswers(t, config, map[string]client.Object{
		"held": createStandby(t, config, "ephemeral", "db"), "fenced": createStandby(t, config, "ephemeral", "db", fence), "theirs": theirs,
	}, []request{
		{"held fenced", as(personUser, controllerUser, kubeletUser), way, bodies(mount("signal", ""), mount("signal", `,"readOnly":true`), mount("podinfo", "")), mounts},
		{"fenced", as(personUser), way, bodies(mount("credentials", `,"readOnly":true`)), mounts},
		{"held fenced", as(personUser), way, bodies(target("status-sidecar")), targets},
		{"held fenced", as(personUser), way, bodies(debug(""), target("db")), ""},
		{"theirs", as(personUser), way, bodies(mount("signal", "")), ""},
	})
}

// ownedByHelm adds the labels and annotations of an installed release, because Helm does not upgrade other objects.
func ownedByHelm(object client.Object) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"] = "demo", releaseNamespace
	object.SetAnnotations(annotations)
}

// TestGuardValues installs the guards with other values, and upgrades them.
func TestGuardValues(t *testing.T) {
	environment := startAPIServer(t)
	stopAtEnd(t, environment)
	c := newClient(t, environment.Config)
	createAPIServer(t, c)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, kubeconfig, environment.KubeConfig)
	render := func(args ...string) error {
		objects, err := helmTemplateWith(t, append(args, "--kubeconfig", kubeconfig, "--dry-run=server",
			"--show-only", "templates/guards.yaml", "--show-only", "templates/guards-writes.yaml")...)
		for _, object := range objects {
			ownedByHelm(object)
			if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("helm"), client.ForceOwnership); err != nil {
				t.Fatalf("apply %s: %v", object.GetName(), err)
			}
		}
		return err
	}
	install := func(t *testing.T, args ...string) {
		t.Helper()
		if err := render(args...); err != nil {
			t.Fatal(err)
		}
	}
	createNamespace(t, c, "network")

	// If the API server cannot read StatefulSingletons, the guards reject each pod that a StatefulSingleton may select, and
	// admit pods of exempt namespaces.
	const cannotAsk = "failed to find resource referenced by paramKind"
	t.Run("kube-system is exempt", func(t *testing.T) {
		install(t)
		waitForRefusal(t, c, podOf("default", nil), cannotAsk)
		waitForRefusal(t, c, podOf("network", nil), cannotAsk)
		waitForRefusal(t, c, podOf(metav1.NamespaceSystem, map[string]string{v1.RoleLabel: v1.RoleActive}), "role cannot be set when a pod is created")
		for name, set := range map[string]map[string]string{"of the cluster's own": nil, "with the mark of a singleton": {v1.SingletonLabel: "db"}} {
			t.Run("passes: "+name, func(t *testing.T) {
				wantAnswer(t, tryCreate(t, c, podOf(metav1.NamespaceSystem, set)), "")
			})
		}
	})
	t.Run("no namespace is exempt", func(t *testing.T) {
		install(t, "--set-json", `guards.exemptNamespaces=[]`)
		for _, namespace := range []string{metav1.NamespaceSystem, "network"} {
			waitForRefusal(t, c, podOf(namespace, nil), cannotAsk)
		}
	})
	t.Run("another namespace is exempt", func(t *testing.T) {
		install(t, "--set-json", `guards.exemptNamespaces=["kube-system","network"]`)
		for _, namespace := range []string{metav1.NamespaceSystem, "network"} {
			waitForAdmission(t, c, podOf(namespace, nil))
		}
		wantAnswer(t, tryCreate(t, c, podOf("default", nil)), cannotAsk)
	})
	t.Run("the label of a namespace can't be forged", func(t *testing.T) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "forged", Labels: map[string]string{corev1.LabelMetadataName: "network"}}}
		create(t, c, namespace)
		for _, body := range []string{`{"metadata":{"labels":{"kubernetes.io/metadata.name":"network"}}}`, `{"metadata":{"labels":null}}`} {
			wantAnswer(t, c.Patch(t.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(body))), "")
			if got := namespace.Labels[corev1.LabelMetadataName]; got != "forged" {
				t.Errorf("after %s the label with the name of the namespace is %q", body, got)
			}
		}
		wantAnswer(t, tryCreate(t, c, podOf("forged", nil)), cannotAsk)
	})
	for _, object := range helmTemplate(t, "crd.yaml") {
		ownedByHelm(object)
		create(t, c, object)
	}
	waitForAdmission(t, c, podOf("default", nil))
	s := createSingleton(t, c, "values", readSingleton(t, "default"))
	t.Run("singletons in an exempt namespace", func(t *testing.T) {
		for namespace, refused := range map[string]string{
			metav1.NamespaceSystem: "a StatefulSingleton cannot be in namespace kube-system",
			"network":              "a StatefulSingleton cannot be in namespace network: the chart's value guards.exemptNamespaces names it",
			"default":              "",
		} {
			other := readSingleton(t, "default")
			other.Namespace = namespace
			wantAnswer(t, tryCreate(t, c, other), refused)
		}
		wantAnswer(t, render("--set-json", `guards.exemptNamespaces=["values"]`),
			"guards.exemptNamespaces names namespace values, which has StatefulSingleton db: the guards would not protect its pods")
		createNamespace(t, c, "locked")
		create(t, c, lockOf("locked", "db"))
		wantAnswer(t, render("--set-json", `guards.exemptNamespaces=["locked"]`),
			"guards.exemptNamespaces names namespace locked, which has StatefulSetLock db: the guards would not protect its pods")
		install(t, "--set-json", `guards.exemptNamespaces=[]`)
		other := readSingleton(t, "default")
		other.Namespace = metav1.NamespaceSystem
		waitForAdmission(t, c, other)
	})

	t.Run("StatefulClusters without their manager", func(t *testing.T) {
		for _, object := range helmTemplate(t, "--set", withClusters, "crd.yaml") {
			if object.GetName() == "statefulclusters."+v1.GroupVersion.Group {
				ownedByHelm(object)
				create(t, c, object)
			}
		}
		cluster := dbCluster()
		cluster.Namespace, cluster.UID = "values", ""
		cluster.Spec.Template.Raw = []byte(`{"spec":{"containers":[{"name":"db","image":"debian"}]}}`)
		eventually(t, "create a StatefulCluster", func() error { return c.Create(t.Context(), cluster) })
		wantAnswer(t, render(), "statefulClusters.enabled is false, and namespace values has StatefulCluster db: nothing would reconcile or delete it")
		install(t, "--set", withClusters)
		if err := c.Delete(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		install(t)
	})

	withImage := func(tag string) *corev1.Pod {
		pod := injectedPod(t, "shell", s)
		pod.Spec.InitContainers[0].Image = "localhost:5000/gate:" + tag
		return pod
	}
	for i, step := range []struct {
		name, tag string
		admitted  map[string]bool
	}{
		{"first release", "v1", map[string]bool{"v1": true, "v2": false}},
		{"upgrade", "v2", map[string]bool{"v1": true, "v2": true, "v3": false}},
		{"upgrade with the same image", "v2", map[string]bool{"v1": true, "v2": true, "v3": false}},
		{"next upgrade", "v3", map[string]bool{"v3": true, "v2": true, "v1": false}},
	} {
		t.Run(step.name, func(t *testing.T) {
			// When the image of the mirror is admitted, the API server enforces the new values.
			mirror := fmt.Sprintf("mirror-%d", i)
			install(t, "--set", "image.gate.repository=localhost:5000/gate,image.gate.tag="+step.tag+",guards.gateImages={localhost:5000/gate:"+mirror+"}")
			waitForAdmission(t, c, withImage(mirror))
			for tag, admitted := range step.admitted {
				refused := ""
				if !admitted {
					refused = "init container status-sidecar has image localhost:5000/gate:" + tag + " instead of localhost:5000/gate:" + step.tag
				}
				wantAnswer(t, tryCreate(t, c, withImage(tag)), refused)
			}
		})
	}
}
