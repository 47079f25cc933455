package v1_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// lockOf returns the StatefulSetLock with the spec in YAML, which may be invalid.
func lockOf(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := singletonOf(t, name, spec)
	o.SetKind("StatefulSetLock")
	return o
}

const ofSet = "statefulSetName: db\nleaseName: db-lease\n"

func TestLockDefaults(t *testing.T) {
	o := lockOf(t, "db", ofSet+"leaseDurationSeconds: 30")
	if err := c.Create(t.Context(), o, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	var got v1.StatefulSetLock
	if err := scheme.Scheme.Convert(o, &got, nil); err != nil {
		t.Fatal(err)
	}
	want := v1.StatefulSetLockSpec{StatefulSetName: "db", LeaseName: "db-lease", LeaseDurationSeconds: 30, Fencing: v1.LockFencingNone}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestLockRefusals(t *testing.T) {
	const duration = "spec.leaseDurationSeconds is out of range: set seconds from 1 to 3600"
	tests := map[string]struct{ name, spec, want string }{
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
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := c.Create(t.Context(), lockOf(t, "db", test.spec), client.DryRunAll)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantRefused(t, err, test.want)
		})
	}
}

func TestLockIsImmutable(t *testing.T) {
	o := lockOf(t, "immutable-lock", ofSet+"leaseDurationSeconds: 30")
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for patch, want := range map[string]string{
		`{"spec":{"statefulSetName":"other"}}`: "spec.statefulSetName is immutable",
		`{"spec":{"leaseName":"other"}}`:       "spec.leaseName is immutable",
	} {
		wantRefused(t, c.Patch(t.Context(), o.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))), want)
	}
}

// An operator sees the writer and its epoch.
func TestLockColumns(t *testing.T) {
	wantColumns(t, "statefulsetlocks", map[int][]string{0: {"Writer", "Epoch", "Fencing", "Ready", "Age"}, 1: {"Lease", "Last Failover", "Message"}})
}

// wantColumns compares the columns of kubectl get, by priority.
func wantColumns(t *testing.T, resource string, want map[int][]string) {
	t.Helper()
	var definition struct {
		Spec struct {
			Versions []struct {
				AdditionalPrinterColumns []struct {
					Name     string `json:"name"`
					Priority int    `json:"priority"`
				} `json:"additionalPrinterColumns"`
			} `json:"versions"`
		} `json:"spec"`
	}
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("apiextensions.k8s.io/v1")
	o.SetKind("CustomResourceDefinition")
	if err := c.Get(t.Context(), client.ObjectKey{Name: resource + "." + v1.GroupVersion.Group}, o); err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &definition); err != nil {
		t.Fatal(err)
	}
	got := map[int][]string{}
	for _, column := range definition.Spec.Versions[0].AdditionalPrinterColumns {
		got[column.Priority] = append(got[column.Priority], column.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}
