package policies_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// twoGuards is in the messages of guards "fenced" and "api-server". If both reject a pod, either can answer.
const twoGuards = "this pod claims to be fenced by a Lease, but "

// sidecarSettings are the variables of the sidecar of a fenced pod.
var sidecarSettings = []string{signal.PodNameEnv, signal.LeaseEnv, signal.LeaseDurationEnv, signal.HeldEnv, signal.APIServerEnv, signal.AuthoritiesEnv}

// fence changes an injected pod as a policy does if spec.fencing is Lease.
func fence(p *corev1.Pod) {
	p.Annotations[v1.FencingAnnotation] = string(v1.FencingLease)
	// Otherwise the API server rejects the volume.
	p.Spec.ServiceAccountName = "db"
	var names []string
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		names = append(names, c.Name)
		c.Env = append(c.Env, corev1.EnvVar{Name: signal.ContainerEnv, Value: c.Name})
	}
	sidecar := &p.Spec.InitContainers[0]
	sidecar.Env = append(sidecar.Env,
		corev1.EnvVar{Name: signal.PodNameEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		corev1.EnvVar{Name: signal.LeaseEnv, Value: p.Namespace + "/" + signal.LeaseName(p.Labels[v1.SingletonLabel])},
		corev1.EnvVar{Name: signal.LeaseDurationEnv, Value: "15"},
		corev1.EnvVar{Name: signal.APIServerEnv, Value: options.APIServer.URL},
		corev1.EnvVar{Name: signal.AuthoritiesEnv, Value: strings.Join(options.APIServer.Authorities, ",")},
		corev1.EnvVar{Name: signal.HeldEnv, Value: strings.Join(names, ",")})
	sidecar.VolumeMounts = append(sidecar.VolumeMounts, corev1.VolumeMount{Name: signal.CredentialsVolume, MountPath: signal.CredentialsDir, ReadOnly: true})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: signal.CredentialsVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
		},
	}}})
}

// Changes of one part of a pod.
func inSidecar(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.InitContainers[0]) }
}

func inApp(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
}

func inCredentials(change func(*corev1.Volume)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Volumes[len(p.Spec.Volumes)-1]) }
}

func withoutEnv(name string) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	}
}

func addEnv(name, value string) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) }
}

func setEnv(name, value string) func(*corev1.Container) {
	return func(c *corev1.Container) {
		withoutEnv(name)(c)
		addEnv(name, value)(c)
	}
}

// testFenced: each case changes one field of a pod that is prepared for fencing.
func testFenced(t *testing.T, c client.Client) {
	t.Run("settings", func(t *testing.T) { testFencedSettings(t, c) })
	t.Run("credentials", func(t *testing.T) { testFencedCredentials(t, c) })
	t.Run("selected", func(t *testing.T) { testFencedSelected(t, c) })
	t.Run("lock", func(t *testing.T) { testFencedByLock(t, c) })
	t.Run("api-server", func(t *testing.T) { testAPIServer(t, c) })
}

// publishAPIServer writes what the controller knows of the API server.
func publishAPIServer(t *testing.T, c client.Client, url string, authorities ...string) {
	t.Helper()
	patch := mustJSON(t, map[string]any{"data": map[string]string{"url": url, "ca-sha256": strings.Join(authorities, ",")}})
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: releaseNamespace, Name: "statefulsingleton-api-server"}}
	if err := c.Patch(t.Context(), configMap, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// createAPIServer creates the objects of the chart with which guard "api-server" knows the API server.
func createAPIServer(t *testing.T, c client.Client) {
	t.Helper()
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: releaseNamespace}}}
	for _, object := range helmTemplate(t, "apiserver.yaml") {
		ownedByHelm(object)
		objects = append(objects, object)
	}
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	publishAPIServer(t, c, options.APIServer.URL, options.APIServer.Authorities...)
}

// testAPIServer: the sidecar of a fenced pod uses the API server of the controller, and trusts only its authorities.
func testAPIServer(t *testing.T, c client.Client) {
	createNamespace(t, c, "api-server")
	const (
		server    = "variable FENCING_API_SERVER of init container status-sidecar is not 'https://10.96.0.1:443'"
		authority = "variable FENCING_CA_SHA256 of init container status-sidecar does not consist of one or more of these"
	)
	url, old, renewed, foreign := options.APIServer.URL, options.APIServer.Authorities[0], options.APIServer.Authorities[1], signal.Fingerprint([]byte("foreign"))
	// ofSingleton returns a fenced pod, with authorities if they are not empty.
	ofSingleton := func(authorities string) *corev1.Pod {
		pod := injectedPod(t, "shell", &v1.StatefulSingleton{ObjectMeta: metav1.ObjectMeta{Namespace: "api-server", Name: "db"}})
		fence(pod)
		if authorities != "" {
			inSidecar(setEnv(signal.AuthoritiesEnv, authorities))(pod)
		}
		return pod
	}
	pods := map[string]func() *corev1.Pod{
		"singleton": func() *corev1.Pod { return ofSingleton("") },
		"lock":      func() *corev1.Pod { return readerPod(t, "testdata/readers/startup-probe.yaml") },
	}
	for name, test := range map[string]struct {
		// known are the authorities of the controller.
		known       []string
		change      func(*corev1.Pod)
		wantRefused string
	}{
		"passes: all authorities":     {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, old+","+renewed)), ""},
		"passes: before a rotation":   {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, old)), ""},
		"passes: after a rotation":    {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, renewed)), ""},
		"the policy is newer":         {[]string{old}, inSidecar(setEnv(signal.AuthoritiesEnv, old+","+renewed)), authority},
		"the old authority is gone":   {[]string{renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, old)), authority},
		"a foreign authority":         {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, foreign)), authority},
		"a foreign authority as well": {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, old+","+foreign)), authority},
		"an empty authority":          {[]string{old, renewed}, inSidecar(setEnv(signal.AuthoritiesEnv, "")), authority},
		"nothing is known":            {[]string{""}, inSidecar(setEnv(signal.AuthoritiesEnv, "")), authority},
		"another variable":            {[]string{old, renewed}, inSidecar(addEnv(signal.AuthoritiesEnv, foreign)), twoGuards},
		"another server":              {[]string{old, renewed}, inSidecar(setEnv(signal.APIServerEnv, "https://10.96.0.2:443")), server},
		"another port":                {[]string{old, renewed}, inSidecar(setEnv(signal.APIServerEnv, "https://10.96.0.1:8443")), server},
		"a server without TLS":        {[]string{old, renewed}, inSidecar(setEnv(signal.APIServerEnv, "http://10.96.0.1:443")), server},
		"passes: another Service":     {[]string{old, renewed}, inSidecar(addEnv("KUBERNETES_SERVICE_HOST", "10.0.0.1")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			publishAPIServer(t, c, url, test.known...)
			// The API server learns of the ConfigMap with a delay.
			for _, known := range []string{old, renewed} {
				refused := authority
				if slices.Contains(test.known, known) {
					refused = ""
				}
				waitForRefusal(t, c, ofSingleton(known), refused)
			}
			for of, pod := range pods {
				t.Run(of, func(t *testing.T) {
					p := pod()
					test.change(p)
					wantAnswer(t, tryCreate(t, c, p), test.wantRefused)
				})
			}
		})
	}
	publishAPIServer(t, c, url, old, renewed)
	waitForAdmission(t, c, ofSingleton(""))
}

type fencedCase = change[*corev1.Pod]

// checkFenced creates the pods in a namespace without a StatefulSingleton.
func checkFenced(t *testing.T, c client.Client, namespace string, tests map[string]fencedCase) {
	t.Helper()
	createNamespace(t, c, namespace)
	other := readSingleton(t, "default")
	other.Namespace = namespace
	wantCreations(t, c, func() *corev1.Pod {
		pod := injectedPod(t, "shell", other)
		fence(pod)
		return pod
	}, tests)
}

func testFencedSettings(t *testing.T, c client.Client) {
	const (
		notFenced   = "this pod claims to be fenced by a Lease, but Kyverno has not injected it"
		environment = "POD_NAME, STATEFULSETLOCK or a variable of init container status-sidecar that begins with FENCING_ is not as Kyverno adds it"
		misnamed    = "container db does not have variable STATEFULSINGLETON_CONTAINER exactly once, with its own name"
		settings    = "container db has variable FENCING_LEASE, FENCING_DURATION_SECONDS or FENCING_CONTAINERS"
		roles       = "variable STATEFULSETLOCK_HOOKS of container db is not as Kyverno adds it"
	)
	checkFenced(t, c, "fenced-settings", map[string]fencedCase{
		"passes: as the policy prepares it": {},
		"passes: another duration":          {change: inSidecar(setEnv(signal.LeaseDurationEnv, "3600"))},
		"passes: never expires":             {change: inSidecar(setEnv(signal.LeaseDurationEnv, "2147483647"))},
		"passes: a queue":                   {change: inSidecar(addEnv(signal.QueueEnv, "1"))},
		"passes: the longest queue":         {change: inSidecar(addEnv(signal.QueueEnv, "3600"))},
		"passes: ports of the queue":        {change: inApp(addEnv(signal.PortsEnv, "5432"))},
		"passes: two containers": {change: func(p *corev1.Pod) {
			second := *p.Spec.Containers[0].DeepCopy()
			second.Name = "web"
			setEnv(signal.ContainerEnv, "web")(&second)
			p.Spec.Containers = append(p.Spec.Containers, second)
			inSidecar(setEnv(signal.HeldEnv, "web,db"))(p)
		}},
		"passes: not fenced": {change: func(p *corev1.Pod) {
			delete(p.Annotations, v1.FencingAnnotation)
			for _, name := range sidecarSettings {
				inSidecar(withoutEnv(name))(p)
			}
		}},
		"annotation alone": {func(p *corev1.Pod) {
			uninject(p)
			p.Annotations, p.Labels = map[string]string{v1.FencingAnnotation: "Lease"}, nil
		}, notFenced},
		"no annotation":              {func(p *corev1.Pod) { delete(p.Annotations, v1.FencingAnnotation) }, notFenced},
		"another annotation":         {func(p *corev1.Pod) { p.Annotations[v1.FencingAnnotation] = "Kubelet" }, notFenced},
		"no sidecar":                 {func(p *corev1.Pod) { p.Spec.InitContainers = nil }, notFenced},
		"injected for another":       {func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = p.Namespace + "/web" }, notFenced},
		"no singleton":               {func(p *corev1.Pod) { delete(p.Labels, v1.SingletonLabel) }, notFenced},
		"another Lease":              {inSidecar(setEnv(signal.LeaseEnv, "fenced-settings/mine")), environment},
		"Lease of another":           {inSidecar(setEnv(signal.LeaseEnv, "fenced-settings/statefulsingleton-web")), environment},
		"in another namespace":       {inSidecar(setEnv(signal.LeaseEnv, "default/statefulsingleton-db")), environment},
		"a reference to a Lease":     {inSidecar(setEnv(signal.LeaseEnv, "$(MINE)")), environment},
		"no Lease":                   {inSidecar(withoutEnv(signal.LeaseEnv)), environment},
		"two Leases":                 {inSidecar(addEnv(signal.LeaseEnv, "fenced-settings/mine")), environment},
		"too short":                  {inSidecar(setEnv(signal.LeaseDurationEnv, "4")), environment},
		"too long":                   {inSidecar(setEnv(signal.LeaseDurationEnv, "3601")), environment},
		"no number":                  {inSidecar(setEnv(signal.LeaseDurationEnv, "15s")), environment},
		"a longer queue":             {inSidecar(addEnv(signal.QueueEnv, "3601")), environment},
		"no time in the queue":       {inSidecar(addEnv(signal.QueueEnv, "0")), environment},
		"an empty queue":             {inSidecar(addEnv(signal.QueueEnv, "")), environment},
		"a queue without a number":   {inSidecar(addEnv(signal.QueueEnv, "5m")), environment},
		"a reference to a queue":     {inSidecar(addEnv(signal.QueueEnv, "$(MINE)")), environment},
		"two queues":                 {both(inSidecar(addEnv(signal.QueueEnv, "300")), inSidecar(addEnv(signal.QueueEnv, "300"))), environment},
		"two queues, one invalid":    {both(inSidecar(addEnv(signal.QueueEnv, "300")), inSidecar(addEnv(signal.QueueEnv, "0"))), environment},
		"a queue for the Lease":      {both(inSidecar(withoutEnv(signal.LeaseEnv)), inSidecar(addEnv(signal.QueueEnv, "300"))), environment},
		"a container too many":       {inSidecar(setEnv(signal.HeldEnv, "db,web")), environment},
		"another container":          {inSidecar(setEnv(signal.HeldEnv, "web")), environment},
		"no container":               {inSidecar(setEnv(signal.HeldEnv, "")), environment},
		"one more setting":           {inSidecar(addEnv("FENCING_MORE", "a")), environment},
		"a lock":                     {inSidecar(addEnv(signal.LockEnv, "db-lock")), environment},
		"a role":                     {inApp(addEnv(signal.HooksEnv, "{}")), roles},
		"two roles":                  {func(p *corev1.Pod) { inApp(addEnv(signal.HooksEnv, "{}"))(p); inApp(addEnv(signal.HooksEnv, ""))(p) }, roles},
		"literal name":               {inSidecar(setEnv(signal.PodNameEnv, "db-9")), environment},
		"no name":                    {inSidecar(withoutEnv(signal.PodNameEnv)), environment},
		"no API server":              {inSidecar(withoutEnv(signal.APIServerEnv)), twoGuards},
		"no authority":               {inSidecar(withoutEnv(signal.AuthoritiesEnv)), twoGuards},
		"container without a name":   {inApp(withoutEnv(signal.ContainerEnv)), misnamed},
		"container of another name":  {inApp(setEnv(signal.ContainerEnv, "web")), misnamed},
		"container with two names":   {inApp(addEnv(signal.ContainerEnv, "web")), misnamed},
		"settings in another place":  {inApp(addEnv(signal.LeaseEnv, "default/mine")), settings},
		"passes: its own setting":    {change: inApp(addEnv("FENCING_MINE", "yes"))},
		"passes: its own API server": {change: inApp(addEnv("KUBERNETES_SERVICE_HOST", "10.0.0.1"))},
		"as large as a pod can be":   {enlarge, environment},
	})
}

func testFencedCredentials(t *testing.T, c client.Client) {
	const (
		volume  = "volume statefulsingleton-credentials is missing or changed"
		mount   = "does not mount volume statefulsingleton-credentials as Kyverno adds it"
		reaches = "container db mounts volume statefulsingleton-credentials and could renew the Lease"
	)
	token := func(change func(*corev1.ServiceAccountTokenProjection)) func(*corev1.Pod) {
		return inCredentials(func(v *corev1.Volume) { change(v.Projected.Sources[0].ServiceAccountToken) })
	}
	authority := func(change func(*corev1.ConfigMapProjection)) func(*corev1.Pod) {
		return inCredentials(func(v *corev1.Volume) { change(v.Projected.Sources[1].ConfigMap) })
	}
	own := func(change func(*corev1.VolumeMount)) func(*corev1.Pod) {
		return inSidecar(func(c *corev1.Container) { change(&c.VolumeMounts[len(c.VolumeMounts)-1]) })
	}
	fake := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "fake"}}}
	// beside mounts another projected volume.
	beside := func(path string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "fake", VolumeSource: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{fake}},
			}})
			inSidecar(func(c *corev1.Container) {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "fake", MountPath: path})
			})(p)
		}
	}
	checkFenced(t, c, "fenced-credentials", map[string]fencedCase{
		"an empty volume": {inCredentials(func(v *corev1.Volume) {
			v.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}), volume},
		"another authority":           {authority(func(m *corev1.ConfigMapProjection) { m.Name = "mine" }), volume},
		"another key":                 {authority(func(m *corev1.ConfigMapProjection) { m.Items[0].Key = "mine" }), volume},
		"every key":                   {authority(func(m *corev1.ConfigMapProjection) { m.Items = nil }), volume},
		"another audience":            {token(func(s *corev1.ServiceAccountTokenProjection) { s.Audience = "mine" }), volume},
		"another file":                {token(func(s *corev1.ServiceAccountTokenProjection) { s.Path = "mine" }), volume},
		"passes: another life":        {token(func(s *corev1.ServiceAccountTokenProjection) { s.ExpirationSeconds = new(int64(7200)) }), ""},
		"no authority":                {inCredentials(func(v *corev1.Volume) { v.Projected.Sources = v.Projected.Sources[:1] }), volume},
		"one more source":             {inCredentials(func(v *corev1.Volume) { v.Projected.Sources = append(v.Projected.Sources, fake) }), volume},
		"not mounted":                 {inSidecar(func(c *corev1.Container) { c.VolumeMounts = c.VolumeMounts[:2] }), mount},
		"mounted elsewhere":           {own(func(m *corev1.VolumeMount) { m.MountPath = "/var/run/secrets/other" }), mount},
		"writable":                    {own(func(m *corev1.VolumeMount) { m.ReadOnly = false }), mount},
		"a part":                      {own(func(m *corev1.VolumeMount) { m.SubPath = "token" }), mount},
		"a part by expression":        {own(func(m *corev1.VolumeMount) { m.SubPathExpr = "token" }), mount},
		"covered":                     {beside("/var/run/secrets/statefulsingleton/"), mount},
		"covered below":               {beside("/var/run/secrets//./statefulsingleton/ca.crt"), mount},
		"passes: a token beside it":   {beside("/var/run/secrets/statefulsingleton-not"), ""},
		"mounted in a held container": {inApp(mountCredentials), reaches},
		"mounted in an init container": {func(p *corev1.Pod) {
			beside := corev1.Container{Name: "beside", Image: "debian"}
			mountCredentials(&beside)
			p.Spec.InitContainers = append(p.Spec.InitContainers, beside)
		}, "container beside mounts volume statefulsingleton-credentials"},
		"passes: the application's volume": {func(p *corev1.Pod) {
			delete(p.Annotations, v1.FencingAnnotation)
			for _, name := range sidecarSettings {
				inSidecar(withoutEnv(name))(p)
			}
			inApp(mountCredentials)(p)
		}, ""},
	})
}

// testFencedSelected: the guard "held" accepts fenced pods, and checks what it checks of other pods.
func testFencedSelected(t *testing.T, c client.Client) {
	s := createSingleton(t, c, "fenced-selected", readSingleton(t, "default"))
	waitForRefusal(t, c, bare(s.Namespace, s), notInjected)
	for name, test := range map[string]struct {
		pod         string
		change      func(*corev1.Pod)
		wantRefused string
	}{
		"passes": {"shell", func(*corev1.Pod) {}, ""},
		"a barrier beside": {"scratch", func(p *corev1.Pod) {
			web := injectedPod(t, "shell", s).Spec.Containers[0]
			web.Name = "web"
			addEnv(signal.ContainerEnv, "web")(&web)
			p.Spec.Containers = append(p.Spec.Containers, web)
			inSidecar(setEnv(signal.HeldEnv, "web"))(p)
		}, "its container db would not stop before the Lease expires, because a barrier holds it"},
		"processes shared": {"shell", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, "in a pod with shareProcessNamespace or hostPID"},
		"another variable": {"shell", inSidecar(addEnv("POD_NAMESPACE", "a")), "the environment of init container status-sidecar is not as Kyverno adds it"},
		"another image":    {"shell", inSidecar(func(c *corev1.Container) { c.Image = "evil" }), "init container status-sidecar has image evil"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod(t, test.pod, s)
			fence(pod)
			test.change(pod)
			wantAnswer(t, tryCreate(t, c, pod), test.wantRefused)
		})
	}
}

// testFencedByLock: each case changes one field of a pod that the policy of a StatefulSetLock has prepared.
func testFencedByLock(t *testing.T, c client.Client) {
	createNamespace(t, c, "locked")
	const (
		notFenced   = "this pod claims to be fenced by a Lease, but Kyverno has not injected it"
		environment = "POD_NAME, STATEFULSETLOCK or a variable of init container status-sidecar that begins with FENCING_ is not as Kyverno adds it"
		gate        = "init container status-sidecar does not run the gate, or a container starts without the gate"
		pod         = "POD_UID, POD_IP and POD_NAME once each"
		roles       = "variable STATEFULSETLOCK_HOOKS of container db is not as Kyverno adds it"
		misnamed    = "container db does not have variable STATEFULSINGLETON_CONTAINER exactly once, with its own name"
	)
	wantCreations(t, c, func() *corev1.Pod { return readerPod(t, "testdata/readers/startup-probe.yaml") }, map[string]fencedCase{
		"passes: as the policy prepares it": {},
		"passes: hooks":                     {change: inApp(setEnv(signal.HooksEnv, `{"promote":["promote"]}`))},
		"passes: a native sidecar": {change: func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "proxy", Image: "envoy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)})
		}},
		"no lock":                        {func(p *corev1.Pod) { delete(p.Labels, v1.LockLabel) }, notFenced},
		"a singleton":                    {func(p *corev1.Pod) { p.Labels[v1.SingletonLabel] = "db" }, notFenced},
		"injected":                       {func(p *corev1.Pod) { p.Annotations[v1.InjectedAnnotation] = "locked/db" }, notFenced},
		"no annotation":                  {func(p *corev1.Pod) { delete(p.Annotations, v1.FencingAnnotation) }, notFenced},
		"no sidecar":                     {func(p *corev1.Pod) { p.Spec.InitContainers = nil }, notFenced},
		"Lease of a singleton":           {inSidecar(setEnv(signal.LeaseEnv, "locked/statefulsingleton-db")), environment},
		"in another namespace":           {inSidecar(setEnv(signal.LeaseEnv, "default/db-lease")), environment},
		"another lock":                   {inSidecar(setEnv(signal.LockEnv, "web")), environment},
		"no lock in the sidecar":         {inSidecar(withoutEnv(signal.LockEnv)), environment},
		"another duration":               {inSidecar(setEnv(signal.LeaseDurationEnv, "4")), environment},
		"never expires":                  {inSidecar(setEnv(signal.LeaseDurationEnv, "2147483647")), environment},
		"a queue":                        {inSidecar(addEnv(signal.QueueEnv, "300")), environment},
		"a queue for the name":           {both(inSidecar(withoutEnv(signal.PodNameEnv)), inSidecar(addEnv(signal.QueueEnv, "300"))), environment},
		"another container":              {inSidecar(setEnv(signal.HeldEnv, "web")), environment},
		"another image":                  {inSidecar(func(c *corev1.Container) { c.Image = "evil" }), gate},
		"another program":                {inSidecar(func(c *corev1.Container) { c.Command = []string{"evil"} }), gate},
		"another command":                {inSidecar(func(c *corev1.Container) { c.Args = []string{"version"} }), gate},
		"an init container":              {inSidecar(func(c *corev1.Container) { c.RestartPolicy, c.Lifecycle = nil, nil }), gate},
		"variables of a ConfigMap":       {inSidecar(func(c *corev1.Container) { c.EnvFrom = fromConfigMap() }), gate},
		"UID of another pod":             {inSidecar(setEnv("POD_UID", "mine")), pod},
		"another address":                {inSidecar(setEnv("POD_IP", "127.0.0.1")), pod},
		"a variable of the runtime":      {inSidecar(addEnv("GODEBUG", "a")), pod},
		"a container without the gate":   {addContainer("web", "web"), gate},
		"processes shared":               {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, gate},
		"processes of the node":          {func(p *corev1.Pod) { p.Spec.HostPID = true }, gate},
		"container without a name":       {inApp(withoutEnv(signal.ContainerEnv)), misnamed},
		"container without a role":       {inApp(withoutEnv(signal.HooksEnv)), roles},
		"container with an empty role":   {inApp(setEnv(signal.HooksEnv, "")), roles},
		"container with a role too many": {inApp(addEnv(signal.HooksEnv, "{}")), roles},
	})
	files, err := filepath.Glob("testdata/readers/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no pods", err)
	}
	for _, file := range files {
		t.Run("passes: "+file, func(t *testing.T) { wantAnswer(t, tryCreate(t, c, readerPod(t, file)), "") })
	}
}

// readerPod reads a pod that the policy of a lock has prepared.
func readerPod(t *testing.T, file string) *corev1.Pod {
	t.Helper()
	pod := decoded[corev1.Pod](t, readFile(t, file))
	pod.Namespace = "locked"
	pod.Spec.ServiceAccountName = "default" // the admission plugin does not run here
	inSidecar(setEnv(signal.LeaseEnv, "locked/db-lease"))(&pod)
	return &pod
}

func fromConfigMap() []corev1.EnvFromSource {
	return []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "mine"}}}}
}
