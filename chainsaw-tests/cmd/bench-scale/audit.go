package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/statefulsingleton/statefulsingleton/policies"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/world"
)

// event has the needed fields of an audit.k8s.io/v1 Event.
type event struct {
	Verb       string    `json:"verb"`
	RequestURI string    `json:"requestURI"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource  string `json:"resource"`
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"objectRef"`
}

// countRequests counts the controller's requests for the singletons in the audit log of the local cluster, without dry-runs.
// It includes requests without a namespace, for example for nodes, unless they are for another singleton's policy.
func countRequests(h *handoffs, all []singleton, begin, end time.Time) error {
	state := os.Getenv("STATEFULSINGLETON_CLUSTER")
	if state == "" {
		return errors.New("this is not the local cluster: run it by `bin/cluster exec --`")
	}
	files, err := filepath.Glob(filepath.Join(state, "logs/control-audit*.log")) // the current file and the previous one
	if err != nil {
		return err
	}
	namespaces, clusterPolicies := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		namespaces[s.Namespace] = true
		clusterPolicies[policies.Name(s)], clusterPolicies[policies.NamespaceName(s.Namespace)] = true, true
	}
	var reads, writes int
	for _, file := range files {
		err := eachEvent(file, func(e *event) {
			o := e.ObjectRef
			if e.Received.Before(begin) || e.Received.After(end) || e.User.Username != world.ControllerUser || o == nil ||
				o.Namespace != "" && !namespaces[o.Namespace] || o.Resource == "clusterpolicies" && !clusterPolicies[o.Name] {
				return
			}
			switch {
			case e.Verb == "watch" || strings.Contains(e.RequestURI, "dryRun=All"):
			case e.Verb == "get" || e.Verb == "list":
				reads++
			default:
				writes++
			}
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
	h.Reads, h.Writes = float64(reads)/float64(len(all)), float64(writes)/float64(len(all))
	return nil
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
