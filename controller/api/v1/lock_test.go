package v1_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

const ofSet = "statefulSetName: db\nleaseName: db-lease\n"

func TestLockDefaults(t *testing.T) {
	got := accepted[v1.StatefulSetLock](t, objectOf(t, "StatefulSetLock", "db", ofSet+"leaseDurationSeconds: 30"))
	want := v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 30, Fencing: v1.LockFencingNone}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestLockRefusals(t *testing.T) {
	const duration = "spec.leaseDurationSeconds is out of range: set seconds from 1 to 3600"
	wantRefusals(t, "StatefulSetLock", map[string]refusal{
		"no spec":              {want: "spec: Required value"},
		"no StatefulSet":       {spec: "leaseName: db\nleaseDurationSeconds: 30", want: "spec.statefulSetName: Required value"},
		"no Lease":             {spec: "statefulSetName: db\nleaseDurationSeconds: 30", want: "spec.leaseName: Required value"},
		"no duration":          {spec: ofSet, want: "spec.leaseDurationSeconds: Required value"},
		"a duration of 0":      {spec: ofSet + "leaseDurationSeconds: 0", want: duration},
		"a duration of 3601":   {spec: ofSet + "leaseDurationSeconds: 3601", want: duration},
		"a bad Lease":          {spec: "statefulSetName: db\nleaseDurationSeconds: 30\nleaseName: My_Lease", want: "spec.leaseName must be the name of a Lease"},
		"Lease of a singleton": {spec: "statefulSetName: db\nleaseDurationSeconds: 30\nleaseName: statefulsingleton-db", want: "spec.leaseName must be the name of a Lease"},
		"another fencing":      {spec: ofSet + "leaseDurationSeconds: 30\nfencing: Kubelet", want: `supported values: "None", "Termination", "Lease"`},
		"a long delay":         {spec: ofSet + "leaseDurationSeconds: 30\nfailoverDelaySeconds: 3601", want: "spec.failoverDelaySeconds is out of range: set seconds from 0 to 3600 (default 0)"},
		"a short fenced Lease": {spec: ofSet + "leaseDurationSeconds: 4\nfencing: Lease", want: "spec.leaseDurationSeconds is too short for spec.fencing Lease: set seconds from 5 to 3600"},
		"hooks without Lease":  {spec: ofSet + "leaseDurationSeconds: 30\nhooks: {promote: [psql]}", want: "spec.hooks needs spec.fencing Lease"},
		"an empty hook":        {spec: ofSet + "leaseDurationSeconds: 30\nfencing: Lease\nhooks: {demote: []}", want: "spec.hooks.demote"},
		"passes: hooks":        {spec: ofSet + "leaseDurationSeconds: 5\nfencing: Lease\nhooks: {promote: [psql], demote: [sh, -c, exit]}"},
		"passes: 1":            {spec: ofSet + "leaseDurationSeconds: 1"},
		"passes: 3600":         {spec: ofSet + "leaseDurationSeconds: 3600"},
		"passes: fenced":       {spec: ofSet + "leaseDurationSeconds: 5\nfencing: Termination"},
	})
}

func TestLockIsImmutable(t *testing.T) {
	o := objectOf(t, "StatefulSetLock", "immutable-lock", ofSet+"leaseDurationSeconds: 30")
	must(t, c.Create(t.Context(), o))
	for field, want := range map[string]string{
		"statefulSetName": "spec.statefulSetName is immutable", "leaseName": "spec.leaseName is immutable",
	} {
		wantAnswer(t, patch(t, o, "spec: {"+field+": other}"), want)
	}
}
