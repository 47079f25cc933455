package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gotest.tools/v3/golden"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// kyverno injects a pod: the wrapper holds the containers with a command, and a barrier holds the other containers.
func kyverno(pod *corev1.Pod) error {
	pod.Annotations = map[string]string{v1.InjectedAnnotation: "prod/db"}
	sidecar := corev1.Container{Name: v1.SidecarName, RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Command: []string{"/ko-app/gate"}}
	pod.Spec.InitContainers = append([]corev1.Container{sidecar}, pod.Spec.InitContainers...)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if len(c.Command) > 0 {
			c.Command = append([]string{signal.GatePath, "wrap", "--"}, c.Command...)
			continue
		}
		c.Env = append(c.Env, corev1.EnvVar{Name: signal.EpochEnv, ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "statefulsingleton-22222222-0000-4000-8000-000000000002"},
				Key:                  signal.EpochKey,
			},
		}})
	}
	return nil
}

// incomplete is kyverno that does not hold the containers without a command.
func incomplete(pod *corev1.Pod) error {
	unheld := slices.DeleteFunc(slices.Clone(pod.Spec.Containers), func(c corev1.Container) bool { return len(c.Command) > 0 })
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(c corev1.Container) bool { return len(c.Command) == 0 })
	err := kyverno(pod)
	pod.Spec.Containers = append(pod.Spec.Containers, unheld...)
	return err
}

func reject(*corev1.Pod) error { return errors.New("admission webhook denied the request") }

// The output of each command for a cluster that does not change. An error is the last line, as in main. With --context,
// printed commands have the flag too.
func TestOutput(t *testing.T) {
	nodes := answers{forbidden: []string{"get nodes"}}
	most := slices.DeleteFunc(slices.Clone(guards), func(guard string) bool { return guard == "held" || guard == "roll" })
	tests := map[string]struct {
		world, line string
		answers     answers
	}{
		"status-of-one":             {"running", "status db", answers{}},
		"status-of-one-json":        {"running", "status db -o json", answers{}},
		"status-of-several":         {"several", "status", answers{}},
		"status-of-all":             {"several", "status -A", answers{}},
		"status-of-several-yaml":    {"several", "status -o yaml", answers{}},
		"status-not-warm":           {"rollout", "status db", answers{}},
		"status-deleting":           {"deleting", "status db", answers{}},
		"status-nodes-hidden":       {"deleting", "status db", nodes},
		"explain-ready":             {"running", "explain db", answers{}},
		"explain-not-warm":          {"rollout", "explain db", answers{}},
		"explain-lost-node":         {"lost-node", "explain db", answers{}},
		"explain-holder-gone":       {"several", "explain db", answers{}},
		"explain-no-kyverno":        {"several", "explain cache", answers{}},
		"explain-controller-absent": {"first", "explain db", answers{}},
		"explain-rejected-write":    {"refused", "explain db", answers{}},
		"explain-nodes-hidden":      {"lost-node", "explain db", nodes},
		"explain-crash":             {"troubles", "explain crash", answers{}},
		"explain-no-next-pod":       {"troubles", "explain ended", answers{}},
		"explain-overlapping":       {"troubles", "explain left", answers{}},
		"explain-unreachable-node":  {"troubles", "explain silent --context=staging", answers{}},
		"explain-rolling":           {"troubles", "explain rolled", answers{}},
		"explain-terminating":       {"helps", "explain stopping", answers{}},
		"explain-grace-period-over": {"helps", "explain hanging", answers{}},
		"explain-one-terminating":   {"helps", "explain several", answers{}},
		"explain-warm-in-set":       {"helps", "explain set", answers{}},
		"explain-deleting-shared":   {"helps", "explain shared", answers{}},
		"status-of-lock":            {"locks", "status ssl/postgres", answers{}},
		"status-of-lock-json":       {"locks", "status StatefulSetLock/queue -o json", answers{}},
		"status-of-locks":           {"locks", "status -A", answers{}},
		"history":                   {"running", "history db", answers{}},
		"explain-lock":              {"locks", "explain ssl/postgres", answers{}},
		"explain-lock-lost-node":    {"locks", "explain ssl/queue --context=staging", answers{}},
		"explain-lock-lease-hidden": {"locks", "explain ssl/postgres", answers{forbidden: []string{"get leases"}}},
		"explain-lock-no-set":       {"locks", "explain ssl/none", answers{}},
		"explain-lock-rejected":     {"locks", "explain ssl/rejected", answers{}},
		"explain-lock-deleting":     {"locks", "explain ssl/leaving", answers{}},
		"explain-lock-hidden":       {"locks", "explain ssl/leaving", nodes},
		"status-of-cluster":         {"members", "status stc/db", answers{}},
		"status-of-cluster-json":    {"members", "status statefulcluster.apps.statefulsingleton.com/db -o json", answers{}},
		"status-of-clusters":        {"members", "status", answers{}},
		"explain-cluster":           {"members", "explain stc/db --context=staging", answers{}},
		"explain-cluster-ready":     {"members", "explain stc/calm", answers{}},
		"explain-cluster-deleting":  {"members", "explain stc/leaving", answers{}},
		"explain-cluster-hidden":    {"members", "explain stc/db", nodes},
		"status-of-cluster-hidden":  {"members", "status stc/leaving", nodes},
		"inject":                    {"running", "inject -f testdata/manifests/list.yaml", answers{admit: kyverno}},
		"inject-yaml":               {"running", "inject -f testdata/manifests/deployment.yaml -o yaml", answers{admit: kyverno}},
		"inject-not-held":           {"running", "inject -f testdata/manifests/deployment.yaml", answers{admit: incomplete}},
		"create":                    {"workloads", "create deployment/monitor --yes --context=staging", answers{}},
		"create-fix":                {"workloads", "create deploy/monitor --yes --fix", answers{}},
		"create-volumes":            {"workloads", "create deployment/web --dry-run=server --fix", answers{}},
		"create-helm":               {"workloads", "create deployment/vault --dry-run=client", answers{}},
		"create-argo-cd":            {"workloads", "create deployment/wiki --dry-run=client", answers{}},
		"create-flux":               {"workloads", "create deployment/chat --dry-run=client", answers{}},
		"create-operator":           {"workloads", "create deployment/search --dry-run=client", answers{}},
		"create-forged":             {"workloads", "create deployment/forged --dry-run=client", answers{}},
		"create-set":                {"workloads", "create sts/queue --dry-run=client", answers{}},
		"create-yaml":               {"workloads", "create deployment/web --fencing=Lease --dry-run=client -o yaml", answers{}},
		"create-hidden":             {"workloads", "create deployment/monitor --dry-run=client", answers{forbidden: []string{"list poddisruptionbudgets", "list horizontalpodautoscalers", "get persistentvolumes"}}},
		"rollout-status-timeout":    {"clusters", "rollout status stc/cache --timeout=1ms", answers{}},
		"rollout-history":           {"clusters", "rollout history stc/db", answers{}},
		"check-clusters":            {"clusters", "check", answers{guards: guards}},
		"check":                     {"cluster", "check", answers{guards: guards}},
		"check-broken":              {"broken-cluster", "check --context=staging", answers{kubernetes: "v1.32.4", forbidden: []string{"patch statefulsingletons", "list pods"}, guards: most}},
		"check-bare":                {"running", "check", answers{unserved: []string{"StatefulSingleton", "ClusterPolicy", "NamespacedMutatingPolicy"}}},
		"check-hidden":              {"cluster", "check", answers{forbidden: []string{"list deployments", "list validatingadmissionpolicies"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			golden.Assert(t, output(t, tc.world, tc.line, tc.answers), "golden/"+name+".txt")
		})
	}
}

// The output of commands that print one line.
func TestLine(t *testing.T) {
	tests := map[string]struct {
		world, line string
		answers     answers
		want        string
	}{
		"status of none":           {"cluster", "status", answers{}, "There are no StatefulSingletons, StatefulSetLocks or StatefulClusters in namespace prod. To list all namespaces, use -A."},
		"status all and name":      {"running", "status db -A", answers{}, "error: -A shows the objects of all namespaces, so it cannot be used with a name. Leave out the name, or replace -A with -n and a namespace"},
		"status unknown output":    {"running", "status -o wide", answers{}, `error: --output is "wide": use text, json or yaml`},
		"unknown name":             {"several", "status web", answers{}, "error: StatefulSingleton web does not exist in namespace prod. The namespace has: cache, db"},
		"unknown name of none":     {"cluster", "explain web --context=staging", answers{}, "error: StatefulSingleton web does not exist: namespace prod has no StatefulSingletons. Set another namespace with -n. To list all namespaces, run: kubectl get statefulsingletons -A --context=staging"},
		"not installed":            {"cluster", "status --context=staging", answers{unserved: []string{"StatefulSingleton"}}, `error: the API server does not serve StatefulSingletons: no matches for kind "StatefulSingleton" in version "apps.statefulsingleton.com/v1". Install the chart, or select another cluster with --context. To check all requirements, run: kubectl stfs check -n prod --context=staging`},
		"forbidden":                {"running", "status", answers{forbidden: []string{"list statefulsingletons"}}, "error: statefulsingletons is forbidden: no role allows it. To check your permissions, run: kubectl stfs check -n prod"},
		"unknown flag":             {"running", "status --wach", answers{}, "error: unknown flag: --wach. To list the flags, run: kubectl stfs status --help"},
		"unknown kind":             {"running", "status pod/db", answers{}, `error: "pod/db" is not the name of an object for this command: use NAME or stfs/NAME for a StatefulSingleton, ssl/NAME for a StatefulSetLock, stc/NAME for a StatefulCluster`},
		"unknown group":            {"running", "status ssl.apps/db", answers{}, `error: "ssl.apps/db" is not the name of an object for this command: use NAME or stfs/NAME for a StatefulSingleton, ssl/NAME for a StatefulSetLock, stc/NAME for a StatefulCluster`},
		"no name":                  {"running", "explain stfs/", answers{}, `error: "stfs/" is not the name of an object for this command: use NAME or stfs/NAME for a StatefulSingleton, ssl/NAME for a StatefulSetLock, stc/NAME for a StatefulCluster`},
		"empty name":               {"running", "status ''", answers{}, `error: "" is not the name of an object for this command: use NAME or stfs/NAME for a StatefulSingleton, ssl/NAME for a StatefulSetLock, stc/NAME for a StatefulCluster`},
		"clusters not installed":   {"running", "explain stc/db", answers{unserved: []string{"StatefulCluster"}}, "error: the API server does not serve StatefulClusters. Install the chart with statefulClusters.enabled=true"},
		"handover of a lock":       {"locks", "handover ssl/queue", answers{}, `error: "ssl/queue" is not the name of an object for this command: use NAME or stfs/NAME for a StatefulSingleton`},
		"unknown lock":             {"locks", "status ssl/web", answers{}, "error: StatefulSetLock web does not exist in namespace prod. The namespace has: leaving, none, postgres, queue, rejected"},
		"handover":                 {"running", "handover db --context=staging", answers{}, "StatefulSingleton prod/db: the controller replaces pod db-7d4b-x8v2n when another pod is warm. To follow the handoff, run: kubectl stfs status db -w -n prod --context=staging"},
		"handover refused":         {"bare", "handover db --context=staging", answers{}, "error: annotation apps.statefulsingleton.com/handover=2026-01-02T03:04:05Z is ignored: pod db-5c9f-h2qpb belongs to no Deployment, so no pod can be warm before the holder stops. To replace the holder anyway, run: kubectl delete -n prod pod db-5c9f-h2qpb (add --context=staging to each kubectl command in this message)"},
		"pause":                    {"running", "pause db --context=staging", answers{}, "StatefulSingleton prod/db: no rollout, drain or request begins a handoff. To resume, run: kubectl stfs resume db -n prod --context=staging"},
		"history of none":          {"first", "history db", answers{}, "StatefulSingleton prod/db has not had a handoff."},
		"attest":                   {"lost-node", "attest db aaaaaaaa-0000-4000-8000-000000000001 -y --context=staging", answers{}, "StatefulSingleton prod/db: you attested that pod db-5c9f-h2qpb has terminated. If the controller refuses the attestation, it creates event AttestationRefused. To follow what happens next, run: kubectl stfs status db -w -n prod --context=staging"},
		"inject no file":           {"running", "inject -f testdata/manifests/none.yaml", answers{}, `error: read testdata/manifests/none.yaml: the path "testdata/manifests/none.yaml" does not exist`},
		"inject not selected":      {"running", "inject -f testdata/manifests/pod.yaml", answers{}, "error: Pod other: nothing would hold the new pod: no StatefulSingleton in namespace prod selects the labels app=other. StatefulSingleton db selects app=db. Change the labels of the pod, or set another namespace with -n"},
		"inject no flag":           {"running", "inject", answers{}, "error: no manifests are given. Set -f to a file, a directory, a URL, or - for standard input. To show examples, run: kubectl stfs inject --help"},
		"inject other namespace":   {"running", "inject -f testdata/manifests/elsewhere.yaml", answers{}, "error: Deployment db: nothing would hold the new pod: no StatefulSingleton in namespace other selects the labels app=db. The namespace has no StatefulSingletons. Set another namespace with -n, or create a StatefulSingleton"},
		"inject two namespaces":    {"running", "inject -f testdata/manifests/elsewhere.yaml -n prod", answers{}, "error: Deployment db: the manifest has namespace other, and -n is prod. Leave out -n, or remove the namespace from the manifest"},
		"inject kyverno absent":    {"running", "inject -f testdata/manifests/deployment.yaml --context=staging", answers{}, "error: Deployment db: nothing would hold the new pod, although StatefulSingleton db selects the pod: Kyverno did not change the pod. Condition PolicyInstalled of StatefulSingleton db is True: a dry-run shows that ClusterPolicy stfs-prod-db-0123456789abcdef injects new pods. To check Kyverno and the guards, run: kubectl stfs check -n prod --context=staging"},
		"inject rejected":          {"running", "inject -f testdata/manifests/deployment.yaml", answers{admit: reject}, "error: Deployment db: the API server rejects the new pod: admission webhook denied the request. Condition PolicyInstalled of StatefulSingleton db is True: a dry-run shows that ClusterPolicy stfs-prod-db-0123456789abcdef injects new pods. To check Kyverno and the guards, run: kubectl stfs check -n prod"},
		"inject no pod":            {"running", "inject -f testdata/manifests/service.yaml", answers{}, "error: testdata/manifests/service.yaml contains neither a Pod nor an object with a pod template, for example a Deployment. Set -f to another file"},
		"create other kind":        {"workloads", "create web", answers{}, `error: "web" is not a workload: use deployment/NAME or statefulset/NAME`},
		"create unknown":           {"workloads", "create sts/web", answers{}, "error: StatefulSet web does not exist in namespace prod. The namespace has: queue, ring"},
		"create unknown fencing":   {"workloads", "create deployment/web --fencing=lease", answers{}, `error: --fencing is "lease": use Kubelet or Lease`},
		"create again":             {"workloads", "create deployment/db", answers{}, "error: StatefulSingleton prod/db selects the pods of Deployment db already. To show its state, run: kubectl stfs explain db -n prod"},
		"create of several pods":   {"workloads", "create deployment/many", answers{}, "error: Deployment many has 3 replicas, and all of them run. Scale it to one, and back when the StatefulSingleton exists. Then one pod runs, and the others are spares: kubectl scale -n prod deployment/many --replicas=1"},
		"create of several in set": {"workloads", "create statefulset/ring", answers{}, "error: StatefulSet ring has 3 replicas, and all of them run. For one writer among them, create a StatefulSetLock"},
		"create for two":           {"workloads", "create deployment/wide", answers{}, "error: the selector app=many of Deployment wide also selects the pods of Deployment many, so only one pod of them all would run. Give the pods of each a label of their own"},
		"create not fenceable":     {"workloads", "create deployment/vault --fencing=Lease", answers{}, "error: the Lease can fence no pod of Deployment vault, because container vault has a startupProbe. Change the pod template, or leave out --fencing"},
		"create in a rollout":      {"workloads", "create deployment/rolling", answers{}, "error: a rollout of Deployment rolling is in progress, and two of its pods may run. To wait for its end, run: kubectl rollout status -n prod deployment/rolling"},
		"create beside a CronJob":  {"workloads", "create deployment/billing", answers{}, "error: the selector app=billing of Deployment billing also selects the pods of CronJob report, so only one pod of them all would run. Give the pods of each a label of their own"},
		"create beside a lock":     {"locks", "create statefulset/postgres", answers{}, "error: StatefulSetLock prod/postgres grants one pod of StatefulSet postgres to write, so a StatefulSingleton would hold the others"},
		"create fix of a set":      {"workloads", "create statefulset/queue --fix", answers{}, "error: --fix changes the strategy of a Deployment, and StatefulSet queue deletes its pod before it creates the next one in any case. Leave out --fix"},
		"create fix with Helm":     {"workloads", "create deployment/vault --fix", answers{}, "error: Deployment vault has maxSurge 0, and Helm release prod/secrets would undo a change of it: change the value of chart vault-1.2.3 that sets spec.strategy to {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}} (to find the value, run: helm get values --all secrets -n prod). Then run create without --fix"},
		"create fix of a paused":   {"workloads", "create deployment/chat --fix --context=staging", answers{}, "error: --fix changes the strategy, and Deployment chat is paused. To resume the Deployment, run: kubectl rollout resume -n prod deployment/chat --context=staging"},
		"rollout status":           {"clusters", "rollout status stc/db", answers{}, "StatefulCluster prod/db: all 3 pods are available"},
		"rollout status waits":     {"clusters", "rollout status stc/cache --watch=false", answers{}, "StatefulCluster prod/cache: 1 of 3 pods have revision cache-2"},
		"rollout status unseen":    {"clusters", "rollout status stc/new --watch=false", answers{}, "StatefulCluster prod/new: waits until the controller has seen the change"},
		"rollout status stalled":   {"clusters", "rollout status statefulcluster/lost --context=staging", answers{}, "error: the rollout of StatefulCluster prod/lost waits for a person: pod lost-1 is replaced after its termination is proven: its node node-3 does not report. If the node is off, run: kubectl taint node node-3 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (add --context=staging to each kubectl command in this message)"},
		"rollout status on delete": {"clusters", "rollout status stc/manual", answers{}, "error: StatefulCluster prod/manual has update strategy OnDelete, so no rollout replaces its pods. Delete the pods that must get the new template"},
		"rollout undo unknown":     {"clusters", "rollout undo stc/db --to-revision=7 --context=staging", answers{}, "error: StatefulCluster prod/db has no revision 7. To list the revisions, run: kubectl stfs rollout history stc/db -n prod --context=staging"},
		"rollout undo":             {"clusters", "rollout undo stc/db --context=staging", answers{}, "StatefulCluster prod/db has the template of revision 2. To follow the rollout, run: kubectl stfs rollout status stc/db -n prod --context=staging"},
		"rollout undo same":        {"clusters", "rollout undo stc/db --to-revision=3", answers{}, "StatefulCluster prod/db already has the template of revision 3"},
		"rollout undo first":       {"clusters", "rollout undo stc/cache", answers{}, "error: StatefulCluster prod/cache has no earlier revision. spec.revisionHistoryLimit is the number of old revisions that are kept"},
		"rollout unknown":          {"clusters", "rollout undo stc/web", answers{}, "error: StatefulCluster web does not exist in namespace prod. The namespace has: cache, db, lost, manual, new"},
		"rollout unknown of none":  {"running", "rollout history stc/web", answers{}, "error: StatefulCluster web does not exist: namespace prod has no StatefulClusters. Set another namespace with -n. To list all namespaces, run: kubectl get statefulclusters -A"},
		"rollout other kind":       {"clusters", "rollout status deployment/web", answers{}, `error: "deployment/web" is not the name of an object for this command: use stc/NAME for a StatefulCluster`},
		"rollout not installed":    {"running", "rollout status stc/web", answers{unserved: []string{"StatefulCluster"}}, "error: the API server does not serve StatefulClusters. Install the chart with statefulClusters.enabled=true"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want+"\n", output(t, tc.world, tc.line, tc.answers)); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// output returns what the command prints. An error is the last line, as in main.
func output(t *testing.T, world, line string, a answers) string {
	t.Helper()
	s := newStage(t, world, a)
	if err := s.run(t.Context(), line); err != nil {
		s.out.WriteString("error: " + err.Error() + "\n")
	}
	return s.out.String()
}

// pause sets spec.paused, and resume removes it.
func TestPause(t *testing.T) {
	for line, want := range map[string]bool{"pause db": true, "resume stfs/db": false} {
		s := newStage(t, "running", answers{})
		singleton := s.singleton(t, "db")
		singleton.Spec.Paused = !want
		if err := s.Update(t.Context(), singleton); err != nil {
			t.Fatal(err)
		}
		if err := s.run(t.Context(), line); err != nil {
			t.Fatal(err)
		}
		if got := s.singleton(t, "db").Spec.Paused; got != want {
			t.Errorf("after %s, spec.paused is %t", line, got)
		}
	}
}

// handover and attest write the annotation only if the controller would accept it, and if the user confirms it.
func TestRequests(t *testing.T) {
	const (
		old    = "aaaaaaaa-0000-4000-8000-000000000001"
		holder = "aaaaaaaa-0000-4000-8000-000000000002"
		other  = "aaaaaaaa-0000-4000-8000-00000000000f"
	)
	tests := map[string]struct {
		world, line string
		// typed is the input of the user. Empty: there is no terminal.
		typed string
		// wantValue is the value of the annotation afterwards.
		wantValue, wantErr string
	}{
		"handover":                   {"running", "handover db", "", "2026-01-02T03:04:05Z", ""},
		"handover without a holder":  {"first", "handover db", "", "", "StatefulSingleton prod/db has no holder, so there is no pod to replace. To show what the StatefulSingleton waits for, run: kubectl stfs explain db -n prod"},
		"handover without surge":     {"bare", "handover db", "", "", "annotation apps.statefulsingleton.com/handover=2026-01-02T03:04:05Z is ignored: pod db-5c9f-h2qpb belongs to no Deployment"},
		"handover while deleting":    {"deleting", "handover db", "", "", "StatefulSingleton prod/db is being deleted, so no handoff is possible. To show what the deletion waits for, run: kubectl stfs explain db -n prod"},
		"attest":                     {"lost-node", "attest db " + old + " --yes", "", old, ""},
		"attest, confirmed":          {"lost-node", "attest db " + old, "db-5c9f-h2qpb\n", old, ""},
		"attest without a newline":   {"lost-node", "attest db " + old, "db-5c9f-h2qpb", old, ""},
		"attest a removed pod":       {"several", "attest db " + old + " -y", "", old, ""},
		"attest, not confirmed":      {"lost-node", "attest db " + old, "no\n", "", "the typed name is not db-5c9f-h2qpb, so nothing was changed"},
		"attest without a terminal":  {"lost-node", "attest db " + old, "", "", "attest asks for confirmation, but standard input is not a terminal"},
		"attest the running holder":  {"running", "attest db " + holder + " -y", "", "", "pod db-7d4b-x8v2n is not terminating"},
		"attest the previous holder": {"running", "attest db " + old + " -y", "", "", "the termination of the pod with uid " + old + " is already proven"},
		"attest an unrelated pod":    {"running", "attest db " + other + " -y", "", "", "no pod of this StatefulSingleton has the uid"},
		"attest an empty uid":        {"running", "attest db '' -y", "", "", "the uid is empty. To show the pod that the StatefulSingleton waits for, and its uid, run: kubectl stfs explain db -n prod"},
		"attest without a uid":       {"running", "attest db -y", "", "", "the number of arguments is wrong. Usage: kubectl stfs attest ([stfs/]NAME | ssl/NAME | stc/NAME) POD-UID [flags]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tc.world, answers{})
			s.commands.asks = func() bool { return tc.typed != "" }
			s.in.WriteString(tc.typed)
			err := s.run(t.Context(), tc.line)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			annotations := s.singleton(t, "db").Annotations
			if got := annotations[v1.HandoverAnnotation] + annotations[v1.AttestAnnotation]; got != tc.wantValue {
				t.Errorf("annotation %q, want %q", got, tc.wantValue)
			}
		})
	}
}

// create writes only after a confirmation, and changes the strategy only with --fix.
func TestCreate(t *testing.T) {
	tests := map[string]struct {
		line string
		// typed is the input of the user. Empty: there is no terminal.
		typed                   string
		wantCreated, wantSurges bool
		wantErr                 string
	}{
		"confirmed":          {"create deployment/monitor", "y\n", true, false, ""},
		"not confirmed":      {"create deployment/monitor", "\n", false, false, "you did not confirm, so nothing was changed"},
		"without a terminal": {"create deployment/monitor --fix", "", false, false, "create asks for confirmation, but standard input is not a terminal"},
		"yes":                {"create deployment/monitor --yes", "", true, false, ""},
		"fix":                {"create deployment/monitor --yes --fix", "", true, true, ""},
		"fix, confirmed":     {"create deployment/monitor --fix", "yes\n", true, true, ""},
		"fix, client":        {"create deployment/monitor --dry-run=client --fix", "", false, false, ""},
		"fix, server":        {"create deployment/monitor --dry-run=server --fix", "", false, false, ""},
		"not held":           {"create deployment/monitor --yes --fix", "", true, false, "StatefulSingleton prod/monitor is created, but after 1m0s new pods are not held: Kyverno does not answer. To show what to do, run: kubectl stfs explain monitor -n prod. The strategy of Deployment monitor did not change. To change that without a rollout, run: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, "workloads", answers{uninjected: name == "not held"})
				s.commands.asks = func() bool { return tc.typed != "" }
				s.in.WriteString(tc.typed)
				err := s.run(t.Context(), tc.line)
				if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.wantErr)) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				key := client.ObjectKey{Namespace: "prod", Name: "monitor"}
				singleton, deployment := &v1.StatefulSingleton{}, &appsv1.Deployment{}
				if created := s.Get(t.Context(), key, singleton) == nil; created != tc.wantCreated {
					t.Errorf("created: %t, want %t", created, tc.wantCreated)
				}
				if tc.wantCreated && singleton.Spec.Selector.MatchLabels["app"] != "monitor" {
					t.Errorf("selector %v", singleton.Spec.Selector)
				}
				if err := s.Get(t.Context(), key, deployment); err != nil {
					t.Fatal(err)
				}
				if surges := handoff.CannotSurge(deployment) == ""; surges != tc.wantSurges {
					t.Errorf("strategy %v, want surge: %t", deployment.Spec.Strategy, tc.wantSurges)
				}
			})
		})
	}
}

// parse accepts what kubectl accepts for each kind.
func TestParse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ args, wantKind string }{
		"singleton": {"db stfs/db StatefulSingleton/db statefulsingletons/db stfs.apps.statefulsingleton.com/db", "StatefulSingleton"},
		"lock":      {"ssl/db statefulsetlock/db StatefulSetLocks/db statefulsetlocks.v1.apps.statefulsingleton.com/db", "StatefulSetLock"},
		"cluster":   {"stc/db statefulcluster/db statefulclusters/db statefulcluster.apps.statefulsingleton.com/db", "StatefulCluster"},
	}
	for name, tc := range tests {
		for arg := range strings.FieldsSeq(tc.args) {
			t.Run(name+" "+arg, func(t *testing.T) {
				k, object, err := parse(arg, allKinds)
				if err != nil || k.name != tc.wantKind || object != "db" {
					t.Errorf("kind %s, name %q, error %v, want %s db", k.name, object, err, tc.wantKind)
				}
			})
		}
	}
}

// attest writes the annotation of locks and clusters only if the controller would accept it.
func TestAttestOtherKinds(t *testing.T) {
	const uid = "aaaaaaaa-0000-4000-8000-00000000000"
	tests := map[string]struct {
		world, arg, uid string
		object          client.Object
		wantErr         string
	}{
		"removed member":     {"members", "stc/db", uid + "6", &v1.StatefulCluster{}, ""},
		"node gone":          {"members", "stc/leaving", uid + "9", &v1.StatefulCluster{}, ""},
		"running member":     {"members", "stc/db", uid + "4", &v1.StatefulCluster{}, "pod db-4 is not terminating"},
		"member unknown":     {"members", "stc/db", uid + "f", &v1.StatefulCluster{}, "no member has a pod with this uid"},
		"writer of the lost": {"locks", "ssl/queue", uid + "3", &v1.StatefulSetLock{}, ""},
		"running writer":     {"locks", "ssl/postgres", uid + "2", &v1.StatefulSetLock{}, "pod postgres-1 is not terminating"},
		"reader":             {"locks", "ssl/postgres", uid + "1", &v1.StatefulSetLock{}, "the lock waits for no pod with this uid"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tc.world, answers{})
			err := s.run(t.Context(), "attest "+tc.arg+" "+tc.uid+" -y")
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			want := tc.uid
			if tc.wantErr != "" {
				want = ""
			}
			_, object, _ := strings.Cut(tc.arg, "/")
			if err := s.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: object}, tc.object); err != nil {
				t.Fatal(err)
			}
			if got := tc.object.GetAnnotations()[v1.AttestAnnotation]; got != want {
				t.Errorf("annotation %q, want %q", got, want)
			}
		})
	}
}

// The prompt for an attestation of a pod that is not the holder names that pod.
func TestAttestNamesThePod(t *testing.T) {
	s := newStage(t, "helps", answers{})
	s.commands.asks = func() bool { return true }
	s.in.WriteString("several-1\n")
	const uid = "aaaaaaaa-0000-4000-8000-000000000033"
	if err := s.run(t.Context(), "attest several "+uid); err != nil {
		t.Fatal(err)
	}
	if got := s.singleton(t, "several").Annotations[v1.AttestAnnotation]; got != uid {
		t.Errorf("annotation %q, want %q", got, uid)
	}
}

// undo writes the template of the revision, and no other field.
func TestUndo(t *testing.T) {
	for line, want := range map[string]string{"rollout undo stc/db": "db:2", "rollout undo stc/db --to-revision=1": "db:1"} {
		t.Run(line, func(t *testing.T) {
			s := newStage(t, "clusters", answers{})
			if err := s.run(t.Context(), line); err != nil {
				t.Fatal(err)
			}
			got := &v1.StatefulCluster{}
			if err := s.Get(t.Context(), client.ObjectKey{Namespace: "prod", Name: "db"}, got); err != nil {
				t.Fatal(err)
			}
			if image := imagesOf(got.Spec.Template.Raw); image != want || *got.Spec.Replicas != 3 || strings.Contains(string(got.Spec.Template.Raw), "tier") {
				t.Errorf("template %s and %d replicas, want image %s", got.Spec.Template.Raw, *got.Spec.Replicas, want)
			}
		})
	}
}

// With -w, status prints a change of the output, and prints nothing for other changes.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := newStage(t, "running", answers{})
		ended := make(chan error)
		go func() { ended <- s.run(ctx, "status db -w") }()
		change := func(change func(*v1.StatefulSingleton)) string {
			t.Helper()
			synctest.Wait()
			s.out.Reset()
			singleton := s.singleton(t, "db")
			change(singleton)
			if err := s.Update(ctx, singleton); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * pollInterval)
			synctest.Wait()
			return s.out.String()
		}
		if got := change(func(s *v1.StatefulSingleton) { s.Labels = map[string]string{"a": "b"} }); got != "" {
			t.Errorf("output for a change that is not shown:\n%s", got)
		}
		got := change(func(s *v1.StatefulSingleton) { s.Status.Message = "something else" })
		if want := "\nStatefulSingleton prod/db: Running, epoch 2\n  something else\n"; !strings.HasPrefix(got, want) {
			t.Errorf("output, want it to begin with %q:\n%s", want, got)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("after the interrupt: error %v", err)
		}
	})
}

func TestComplete(t *testing.T) {
	t.Setenv("KUBECONFIG", file(t, "config", kubeconfig))
	tests := map[string]struct {
		world, line string
		want        string
	}{
		"names":          {"several", "status ", "cache\ndb\n:4\n"},
		"one name":       {"several", "explain d", "db\n:4\n"},
		"locks":          {"locks", "status ssl/q", "ssl/queue\n:4\n"},
		"all kinds":      {"locks", "attest ", "ssl/leaving\nssl/none\nssl/postgres\nssl/queue\nssl/rejected\n:4\n"},
		"full kind":      {"clusters", "explain statefulclusters/l", "statefulclusters/lost\n:4\n"},
		"no such kind":   {"clusters", "explain pod/l", ":4\n"},
		"clusters":       {"clusters", "rollout status ", "stc/cache\nstc/db\nstc/lost\nstc/manual\nstc/new\n:4\n"},
		"one cluster":    {"clusters", "rollout undo stc/d", "stc/db\n:4\n"},
		"no second name": {"several", "explain db ", ":4\n"},
		"no names there": {"several", "status -n shop ", ":4\n"},
		"output":         {"several", "status -o ", "text\njson\nyaml\n:4\n"},
		"namespaces":     {"several", "status -n ", "prod\nshop\n:4\n"},
		"one namespace":  {"several", "explain db --namespace=s", "shop\n:4\n"},
		"workloads":      {"workloads", "create deployment/w", "deployment/web\ndeployment/wide\ndeployment/wiki\n:4\n"},
		"sets":           {"workloads", "create s", "statefulset/queue\nstatefulset/ring\n:4\n"},
		"contexts":       {"several", "status --context ", "plain\nproduction\nstaging\n:4\n"},
		"two contexts":   {"several", "explain db --context=p", "plain\nproduction\n:4\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tc.world, answers{})
			root := s.commands.root()
			root.SetArgs(append([]string{"__complete"}, strings.Split(tc.line, " ")...))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, s.out.String()); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
		})
	}
}

// Every command has a description and an example.
func TestHelp(t *testing.T) {
	root := NewCommand("0.1.0", genericiooptions.NewTestIOStreamsDiscard())
	if len(root.Commands()) == 0 {
		t.Fatal("no commands")
	}
	for _, cmd := range root.Commands() {
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, "kubectl stfs "+cmd.Name()) {
			t.Errorf("%s has no Short, no Long, or no Example with the command", cmd.CommandPath())
		}
	}
	for _, flag := range []string{"context", "namespace", "kubeconfig", "as", "server"} {
		if root.PersistentFlags().Lookup(flag) == nil {
			t.Errorf("no flag --%s, which kubectl has", flag)
		}
	}
}

// supportedKyverno matches the supported version of Kyverno.
var supportedKyverno = regexp.MustCompile(`(?m)^\| Kyverno \| (\d\S*) `)

var boundGuard = regexp.MustCompile(`guardBinding" \(dict "root" \$ "guard" "([a-z-]+)"`)

// The constants of check equal the guards and the versions in the chart and the pages.
func TestCheckMatchesTheChart(t *testing.T) {
	var named []string
	files, err := filepath.Glob("../../charts/statefulsingleton/templates/guards*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text := read(t, file)
		for _, match := range boundGuard.FindAllStringSubmatch(text, -1) {
			named = append(named, match[1])
		}
	}
	slices.Sort(named)
	if diff := cmp.Diff(named, slices.Sorted(slices.Values(slices.Concat(guards, clusterGuards)))); diff != "" {
		t.Errorf("guards (-chart +check):\n%s", diff)
	}
	if text := read(t, "../../charts/statefulsingleton/Chart.yaml"); !strings.Contains(text, `kubeVersion: ">=`+oldestKubernetes+`.0-0"`) {
		t.Errorf("Chart.yaml does not require Kubernetes %s", oldestKubernetes)
	}
	row := supportedKyverno.FindStringSubmatch(read(t, "../../docs/support.md"))
	if row == nil {
		t.Fatal("docs/support.md has no row with the versions of Kyverno")
	}
	if diff := cmp.Diff(row[1], kyvernoVersion); diff != "" {
		t.Errorf("Kyverno (-page +check):\n%s", diff)
	}
}

func TestImageVersion(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ image, want string }{
		"tag":           {"reg.kyverno.io/kyverno/kyverno:v1.19.1", "1.19"},
		"digest":        {"ghcr.io/kyverno/kyverno:v1.18.0-rc.1@sha256:abc", "1.18"},
		"port":          {"registry.example:5000/kyverno:1.19", "1.19"},
		"no tag":        {"registry.example:5000/kyverno", ""},
		"digest alone":  {"ghcr.io/kyverno/kyverno@sha256:abc", ""},
		"not a version": {"ghcr.io/kyverno/kyverno:latest", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if match := imageVersion.FindStringSubmatch(tc.image); match != nil {
				got = match[1]
			}
			if got != tc.want {
				t.Errorf("version %q, want %q", got, tc.want)
			}
		})
	}
}

// The output of -o json can be decoded into StatusList.
func TestStatusRoundTrip(t *testing.T) {
	s := newStage(t, "rollout", answers{})
	if err := s.run(t.Context(), "status -o json"); err != nil {
		t.Fatal(err)
	}
	var list StatusList
	decoder := json.NewDecoder(bytes.NewReader(s.out.Bytes()))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || len(list.Items[0].Pods) != 2 {
		t.Errorf("%d singletons, want 1 with two pods: %+v", len(list.Items), list)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
