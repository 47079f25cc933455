package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// event has the needed fields of an audit.k8s.io/v1 Event.
type event struct {
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	Completed  time.Time `json:"stageTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
}

// auditLogs returns the audit logs of the local cluster's API server: the current file and the previous one.
func auditLogs() ([]string, error) {
	state := os.Getenv("STATEFULSINGLETON_CLUSTER")
	if state == "" {
		return nil, errors.New("this is not the local cluster: run it by `bin/cluster exec --`")
	}
	return filepath.Glob(filepath.Join(state, "logs/control-audit*.log"))
}

// countRequests counts the controller's requests for the singletons. It includes requests without a namespace, for
// example for nodes, unless they are for another singleton's policy. It adds the time of the requests of all reconciles.
func countRequests(h *figures.Handoffs, all []singleton, begin, end time.Time) error {
	files, err := auditLogs()
	if err != nil {
		return err
	}
	namespaces, clusterPolicies := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		namespaces[s.Namespace] = true
		clusterPolicies[policies.Name(s)], clusterPolicies[policies.NamespaceName(s.Namespace)] = true, true
	}
	h.Requests = map[string]float64{}
	for _, file := range files {
		err := eachEvent(file, func(e *event) {
			if e.Received.Before(begin) || e.Received.After(end) || e.User.Username != world.ControllerUser || e.ObjectRef == nil || e.Verb == "watch" {
				return
			}
			if inReconcile(e) {
				h.RequestMS += float64(e.Completed.Sub(e.Received).Microseconds()) / 1000
			}
			o := e.ObjectRef
			if o.Namespace != "" && !namespaces[o.Namespace] || o.Resource == "clusterpolicies" && !clusterPolicies[o.Name] {
				return
			}
			count(h, e)
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
	share(h, len(all))
	return nil
}

// inReconcile returns true if a reconcile of a singleton waits for the request. The controller of the policies, the leader
// election, the metrics and the recorder of events also make requests.
func inReconcile(e *event) bool {
	switch e.ObjectRef.Resource {
	case "clusterpolicies", "namespacedmutatingpolicies", "leases", "tokenreviews", "subjectaccessreviews", "events":
		return false
	}
	return !strings.Contains(e.RequestURI, "dryRun=All")
}

func eachEvent(file string, do func(*event)) error {
	log, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		do(&e)
	}
	return lines.Err()
}

// share divides the counts by the number of handoffs, and rounds them to hundredths.
func share(h *figures.Handoffs, among int) {
	one := func(all float64) float64 { return math.Round(all/float64(among)*100) / 100 }
	h.Writes, h.DryRuns, h.Reads, h.RequestMS = one(h.Writes), one(h.DryRuns), one(h.Reads), one(h.RequestMS)
	for name, all := range h.Requests {
		h.Requests[name] = one(all)
	}
}

func count(h *figures.Handoffs, e *event) {
	name := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		name += "/" + e.ObjectRef.Subresource
	}
	switch {
	case strings.Contains(e.RequestURI, "dryRun=All"):
		name += " (dry-run)"
		h.DryRuns++
	case e.Verb == "get" || e.Verb == "list":
		h.Reads++
	default:
		h.Writes++
	}
	h.Requests[name]++
}
