package handoff_test

import (
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton/handoff"
)

// Each bit of a shape is a fact about pod db-1, whose main process runs.
const (
	recorded  = 1 << iota // the pod is the recorded holder
	held                  // the wrapper or a barrier held the pod
	deleting              // the pod is terminating
	nodeLost              // the node does not answer
	removed               // the object is gone, if the pod is recorded
	barriers              // a barrier holds the pod, not the wrapper
	unseen                // the record does not say yet that the pod was signalled
	allShapes = 1<<iota - 1
)

// While db-1 runs, no plan releases the warm standby db-2, for all values of annotations, variables and names. The
// exception is an attestation where only a person can know that db-1 has terminated. Each planned status can be stored.
func FuzzDecide(f *testing.F) {
	uid, own := string(uidOf("db-1")), signalOf("db-1", 7).Signal.String()
	foreign, late := signalOf("db-2", 8).Signal.String(), `{"uid":"`+uid+`","epoch":7,"time":"0000-01-01T00:00:00+23:59"}`
	highest := signal.Signal{UID: uid, Epoch: math.MaxInt64}.String()
	for shape := range uint8(allShapes + 1) {
		f.Add(shape, "", "", "prod/db", "", "prod/db", "7", "statefulsingleton-db-1")
		f.Add(shape, "", own, "prod/db", "", "prod/db", "7", "statefulsingleton-db-1")
	}
	for _, text := range []string{uid, uid + "\n", " " + uid, "DB-1-UID", string(uidOf("db-2")), "null", "true", "\xff", "{{x}}", own, foreign, late, highest} {
		f.Add(uint8(recorded|held|deleting|nodeLost), text, text, text, text, text, text, text)
		f.Add(uint8(recorded|removed), text, own, "prod/db", text, "prod/db", text, text)
		f.Add(uint8(recorded|held|unseen), text, text, "prod/db", text, "prod/db", text, text)
		f.Add(uint8(0), text, text, "", "", "prod/db", text, text)
	}
	f.Fuzz(func(t *testing.T, shape uint8, attested, signal1, injected1, signal2, injected2, env, configMap string) {
		if !utf8.ValidString(attested + signal1 + injected1 + signal2 + injected2 + env + configMap) {
			return // the API server rejects invalid UTF-8
		}
		is := func(bit uint8) bool { return shape&bit != 0 }
		podOf := func(name, itsSignal, itsInjection string, held bool) *PodWrapper {
			pod := MakePod(name)
			if held && is(barriers) {
				pod.Spec.Containers = []corev1.Container{barrier("app", configMap+name)}
			}
			if held {
				pod.Injected()
			}
			pod.Annotation(v1.InjectedAnnotation, itsInjection).Annotation(signal.Annotation, itsSignal)
			return pod.Warm()
		}
		unrecorded := podOf("db-1", signal1, injected1, is(held)).Running()
		if !is(held) {
			unrecorded.Spec.Containers[0].Env = []corev1.EnvVar{{Name: signal.EpochEnv, Value: env}}
		}
		if is(recorded) {
			unrecorded.Label(v1.RoleLabel, v1.RoleActive).Protected()
		} else if given, err := signal.Parse([]byte(signal1)); is(held) && !is(barriers) && (err != nil || given.UID != uid) {
			return // a pod that the wrapper holds and that has no valid signal does not run
		}
		if is(deleting) {
			unrecorded.Deleting()
		}
		pods := []*PodWrapper{unrecorded, podOf("db-2", signal2, injected2, true)}
		if is(removed) && is(recorded) {
			pods = pods[1:]
		}
		s := MakeSnapshot(pods...).Attest(attested)
		if is(recorded) {
			s.Holder("db-1")
			if is(unseen) {
				s.Chosen("db-1")
			}
		}
		if is(nodeLost) {
			s.Node(node1, corev1.ConditionUnknown)
		}

		plan := handoff.Decide(s.Snapshot, now)
		wantStorable(t, plan.Status)
		if s.HolderStays() {
			wantNoRelease(t, s.Snapshot, plan)
		}
		if believed := attested == uid && (is(removed) && is(recorded) || is(deleting) && is(nodeLost)); !believed {
			wantNothingFor(t, plan, "db-2")
		}
	})
}

// wantNothingFor checks that the plan neither records nor releases the pod.
func wantNothingFor(t *testing.T, plan handoff.Plan, pod string) {
	t.Helper()
	if plan.Status.ActivePodUID == uidOf(pod) {
		t.Errorf("%s: pod %s is recorded", plan.Outcome, pod)
	}
	for _, step := range plan.Steps {
		var uid types.UID
		switch step := step.(type) {
		case handoff.Signal:
			uid = step.Pod.UID
		case handoff.OpenBarrier:
			uid = step.Pod.UID
		case handoff.Nudge:
			uid = step.Pod.UID
		case handoff.MarkReady:
			uid = step.Pod.UID
		}
		if uid == uidOf(pod) {
			t.Errorf("%s: step %#v", plan.Outcome, step)
		}
	}
}

// wantStorable checks that the status does not change when it is written and read.
func wantStorable(t *testing.T, status v1.StatefulSingletonStatus) {
	t.Helper()
	data, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	var again v1.StatefulSingletonStatus
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if twice, err := json.Marshal(again); err != nil || string(twice) != string(data) {
		t.Errorf("error %v; status (-written +read):\n%s", err, cmp.Diff(string(data), string(twice)))
	}
}
