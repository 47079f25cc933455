package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	var reads, writes float64
	count := func(e *event) {
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
	}
	for _, file := range files {
		if err := eachEvent(file, count); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	}
	h.Reads, h.Writes = reads/float64(len(all)), writes/float64(len(all))
	return nil
}

func eachEvent(file string, do func(*event)) error {
	log, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	for events := json.NewDecoder(log); ; {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		do(&e)
	}
}
