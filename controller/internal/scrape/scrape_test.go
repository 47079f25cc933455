package scrape_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cluster"
	"github.com/statefulsingleton/statefulsingleton/controller/lock"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
)

// exported returns the series of the objects in the cache, without their namespace, which is always prod.
func exported(t *testing.T, objects ...client.Object) []string {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	return scraped(t, fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build())
}

func scraped(t *testing.T, reader client.Reader) (series []string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	singleton.NewMetrics(registry, reader)
	lock.RegisterMetrics(registry, reader)
	cluster.NewMetrics(registry, reader)
	for line := range strings.Lines(scrapeOf(t, registry)) {
		if strings.Contains(line, `namespace="prod"`) {
			series = append(series, strings.Replace(strings.TrimSpace(line), `,namespace="prod"`, "", 1))
		}
	}
	return series
}

func scrapeOf(t testing.TB, registry prometheus.Gatherer) string {
	t.Helper()
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if response.Code != http.StatusOK {
		t.Fatalf("status %d: %s", response.Code, response.Body)
	}
	return response.Body.String()
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "prod", Name: name} }

func condition(conditionType string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: status, Reason: reason}
}

func ready(reason string) []metav1.Condition {
	return []metav1.Condition{condition(v1.ConditionReady, metav1.ConditionTrue, reason)}
}

func unready(reason string) []metav1.Condition {
	return []metav1.Condition{condition(v1.ConditionReady, metav1.ConditionFalse, reason)}
}

// at returns a time that many seconds after the epoch of Unix.
func at(seconds float64) *metav1.MicroTime {
	return new(metav1.NewMicroTime(time.UnixMilli(int64(seconds * 1000))))
}

func TestSingletons(t *testing.T) {
	completed := &v1.Transition{To: "db-1", GapMilliseconds: new(int64(250)), Ready: at(1000.5)}
	type status = v1.StatefulSingletonStatus
	for name, test := range map[string]struct {
		status status
		want   []string
	}{
		"new": {status{}, []string{
			`statefulsingleton_active{name="db"} 0`,
			`statefulsingleton_info{active_pod="",fencing="Lease",name="db",node="",phase="Idle"} 1`,
		}},
		"scaled to zero": {status{Conditions: ready("NoPods")}, []string{
			`statefulsingleton_active{name="db"} 0`,
			`statefulsingleton_condition{name="db",reason="NoPods",status="True",type="Ready"} 1`,
			`statefulsingleton_info{active_pod="",fencing="Lease",name="db",node="",phase="Idle"} 1`,
		}},
		"starting": {status{Phase: v1.PhaseTransitioning, ActivePod: "db-1", Conditions: unready("Starting"), LastTransition: &v1.Transition{To: "db-1"}}, []string{
			`statefulsingleton_active{name="db"} 0`,
			`statefulsingleton_condition{name="db",reason="Starting",status="False",type="Ready"} 1`,
			`statefulsingleton_info{active_pod="db-1",fencing="Lease",name="db",node="",phase="Transitioning"} 1`,
		}},
		"running": {status{Phase: v1.PhaseRunning, ActivePod: "db-1", ActiveNode: "node1", Conditions: ready("HolderReady"), LastTransition: completed}, []string{
			`statefulsingleton_active{name="db"} 1`,
			`statefulsingleton_condition{name="db",reason="HolderReady",status="True",type="Ready"} 1`,
			`statefulsingleton_info{active_pod="db-1",fencing="Lease",name="db",node="node1",phase="Running"} 1`,
			`statefulsingleton_last_gap_seconds{name="db"} 0.25`,
			`statefulsingleton_last_handoff_timestamp_seconds{name="db"} 1000.5`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1.StatefulSingleton{ObjectMeta: named("db"), Spec: v1.StatefulSingletonSpec{Fencing: v1.FencingLease}, Status: test.status}
			if diff := cmp.Diff(test.want, exported(t, s)); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod that a rollout does not stop yet is active, but not a pod that is unready, stops, or was never Ready.
func TestActiveSingletons(t *testing.T) {
	for _, test := range []struct {
		conditions []metav1.Condition
		since      *metav1.MicroTime
		want       string
	}{
		{unready("StandbyNotWarm"), at(1), "1"},
		{unready("StandbyNotWarm"), nil, "0"},
		{unready("Rolling"), at(1), "1"},
		{unready("Retiring"), at(1), "1"},
		{unready("RetiringCold"), at(1), "0"},
		{unready("HolderStopping"), at(1), "0"},
		{unready("HolderNotReady"), at(1), "0"},
		{unready("SeveralRun"), at(1), "0"},
		{unready("AwaitingHandover"), at(1), "0"},
		{ready("AwaitingHandover"), at(1), "1"},
	} {
		s := &v1.StatefulSingleton{ObjectMeta: named("db"), Status: v1.StatefulSingletonStatus{
			ActivePod: "db-1", Conditions: test.conditions, LastTransition: &v1.Transition{To: "db-1", Ready: test.since},
		}}
		if got := exported(t, s)[0]; got != `statefulsingleton_active{name="db"} `+test.want {
			t.Errorf("%s while Ready is %s with reason %s", got, test.conditions[0].Status, test.conditions[0].Reason)
		}
	}
}

func TestLocks(t *testing.T) {
	type status = v1.StatefulSetLockStatus
	for name, test := range map[string]struct {
		status status
		want   []string
	}{
		"no pod": {status{Conditions: unready("NoReadyPod")}, []string{
			`statefulsetlock_active{name="db"} 0`,
			`statefulsetlock_condition{name="db",reason="NoReadyPod",status="False",type="Ready"} 1`,
			`statefulsetlock_info{fencing="None",name="db",node="",statefulset="db-set",writer_pod=""} 1`,
		}},
		"the first writer": {status{WriterPod: "db-0", WriterNode: "node1", Conditions: ready("WriterReady"),
			LastTransition: &v1.TenureTransition{To: "db-0", Started: at(90), Labelled: at(100.5)}}, []string{
			`statefulsetlock_active{name="db"} 1`,
			`statefulsetlock_condition{name="db",reason="WriterReady",status="True",type="Ready"} 1`,
			`statefulsetlock_info{fencing="None",name="db",node="node1",statefulset="db-set",writer_pod="db-0"} 1`,
			`statefulsetlock_last_handoff_timestamp_seconds{name="db"} 100.5`,
		}},
		"another writer": {status{LastTransition: &v1.TenureTransition{From: "db-0", To: "db-1", Started: at(99), Labelled: at(100.5)}}, []string{
			`statefulsetlock_active{name="db"} 0`,
			`statefulsetlock_info{fencing="None",name="db",node="",statefulset="db-set",writer_pod=""} 1`,
			`statefulsetlock_last_gap_seconds{name="db"} 1.5`,
			`statefulsetlock_last_handoff_timestamp_seconds{name="db"} 100.5`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &v1.StatefulSetLock{ObjectMeta: named("db"), Spec: v1.StatefulSetLockSpec{StatefulSetName: "db-set", Fencing: v1.LockFencingNone}, Status: test.status}
			if diff := cmp.Diff(test.want, exported(t, l)); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClusters(t *testing.T) {
	c := &v1.StatefulCluster{ObjectMeta: named("cache"), Spec: v1.StatefulClusterSpec{Replicas: new(int32(3))}}
	c.Status = v1.StatefulClusterStatus{AvailableReplicas: 2, UpdatedReplicas: 1, Conditions: []metav1.Condition{condition(v1.ConditionStalled, metav1.ConditionTrue, "TooManyLost")}}
	for name, state := range map[string]v1.MemberState{"cache-0": v1.MemberActive, "cache-1": v1.MemberLost, "cache-2": v1.MemberLeaving} {
		c.Status.Members = append(c.Status.Members, v1.ClusterMember{Name: name, State: state})
	}
	want := []string{
		`statefulcluster_available_replicas{name="cache"} 2`,
		`statefulcluster_condition{name="cache",reason="TooManyLost",status="True",type="Stalled"} 1`,
		`statefulcluster_lost_members{name="cache"} 1`,
		`statefulcluster_replicas{name="cache"} 3`,
		`statefulcluster_updated_replicas{name="cache"} 1`,
	}
	if diff := cmp.Diff(want, exported(t, c)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// The series of a condition are replaced when its status or its reason changes, and vanish with the object. Those of
// other objects stay.
func TestSeriesFollowTheObjects(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	db := &v1.StatefulSetLock{ObjectMeta: named("db"), Status: v1.StatefulSetLockStatus{Conditions: unready("NoReadyPod")}}
	queue := &v1.StatefulSetLock{ObjectMeta: named("queue"), Status: v1.StatefulSetLockStatus{Conditions: ready("WriterReady")}}
	cache := fake.NewClientBuilder().WithScheme(scheme).WithObjects(db, queue).WithStatusSubresource(db).Build()
	conditions := func() (found []string) {
		for _, series := range scraped(t, cache) {
			if strings.HasPrefix(series, "statefulsetlock_condition") {
				found = append(found, series)
			}
		}
		return found
	}
	const (
		of  = `statefulsetlock_condition{name="db",`
		its = `statefulsetlock_condition{name="queue",reason="WriterReady",status="True",type="Ready"} 1`
	)
	if diff := cmp.Diff([]string{of + `reason="NoReadyPod",status="False",type="Ready"} 1`, its}, conditions()); diff != "" {
		t.Errorf("series without a writer (-want +got):\n%s", diff)
	}
	if err := cache.Get(t.Context(), client.ObjectKeyFromObject(db), db); err != nil {
		t.Fatal(err)
	}
	db.Status.Conditions = ready("WriterReady")
	if err := cache.Status().Update(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{of + `reason="WriterReady",status="True",type="Ready"} 1`, its}, conditions()); diff != "" {
		t.Errorf("series with a writer (-want +got):\n%s", diff)
	}
	if err := cache.Delete(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{its}, conditions()); diff != "" {
		t.Errorf("series after the deletion (-want +got):\n%s", diff)
	}
}

// singletons is a cache that has only StatefulSingletons, and returns them without copies.
type singletons struct {
	client.Reader
	items []v1.StatefulSingleton
}

func (c singletons) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1.StatefulSingletonList).Items = c.items
	return nil
}

// BenchmarkScrape measures the time and the size of one scrape without compression, with 1,000 singletons that run.
func BenchmarkScrape(b *testing.B) {
	var cache singletons
	for n := range 1000 {
		s := v1.StatefulSingleton{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", n%50), Name: fmt.Sprintf("application-%d", n)},
			Spec:       v1.StatefulSingletonSpec{Fencing: v1.FencingLease},
			Status: v1.StatefulSingletonStatus{
				Phase: v1.PhaseRunning, ActivePod: fmt.Sprintf("application-%d-6d5f7c9b8d-x2x9z", n), ActiveNode: "node-1",
				LastTransition: &v1.Transition{GapMilliseconds: new(int64(250)), Ready: at(1e9)},
				Conditions: []metav1.Condition{
					condition(v1.ConditionReady, metav1.ConditionTrue, "HolderReady"), condition(v1.ConditionReconciling, metav1.ConditionFalse, "HolderReady"),
					condition(v1.ConditionStalled, metav1.ConditionFalse, "HolderReady"), condition(v1.ConditionPolicyInstalled, metav1.ConditionTrue, "Injected"),
					condition(v1.ConditionWarm, metav1.ConditionTrue, "OwnerSurges"), condition(v1.ConditionEvictionBlocked, metav1.ConditionTrue, "BudgetInPlace"),
					condition(v1.ConditionFenced, metav1.ConditionTrue, "LeaseRenewed"),
				},
			},
		}
		cache.items = append(cache.items, s)
	}
	registry := prometheus.NewRegistry()
	singleton.NewMetrics(registry, cache)
	size := 0
	for b.Loop() {
		size = len(scrapeOf(b, registry))
	}
	b.ReportMetric(float64(size), "B/scrape")
}
