package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/lock/tenure"
	"github.com/statefulsingleton/statefulsingleton/controller/observe"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// Roles of pods of a StatefulSetLock in the output.
const (
	writer = "Writer"
	reader = "Reader"
)

// LockStatus is the output of `kubectl stfs status lock/NAME -o json` for one StatefulSetLock. Fields can be added, but are
// never renamed or removed.
type LockStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// StatefulSet is spec.statefulSetName.
	StatefulSet string `json:"statefulSet"`
	// Fencing is spec.fencing.
	Fencing v1.LockFencing `json:"fencing"`
	// Epoch is the epoch of the writer, or of the last writer.
	Epoch int64 `json:"epoch"`
	// Message describes the state. If nothing continues without a person, the message says what to do.
	Message string `json:"message"`
	// Deleting: the StatefulSetLock is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Pods are the pods of the StatefulSet, in the order of their ordinals.
	Pods []LockPod `json:"pods"`
	// LastTransition is status.lastTransition.
	LastTransition *v1.TenureTransition `json:"lastTransition,omitempty"`
	// Conditions are status.conditions.
	Conditions []metav1.Condition `json:"conditions"`
}

// LockPod is a pod of a StatefulSetLock.
type LockPod struct {
	Name string `json:"name"`
	// Role is Writer for the recorded writer, and Reader for other pods.
	Role string `json:"role"`
	Node string `json:"node,omitempty"`
	// Ready is the condition Ready.
	Ready bool `json:"ready"`
	// Stopping: the pod is terminating.
	Stopping bool `json:"stopping,omitempty"`
	// Gone: the record names the pod, but the pod does not exist.
	Gone bool `json:"gone,omitempty"`
}

// lockName returns the name of a StatefulSetLock in an argument such as lock/db or ssl/db.
func lockName(arg string) (name string, ok bool) {
	kind, name, ok := strings.Cut(arg, "/")
	return name, ok && (kind == "lock" || kind == "ssl")
}

// lockView is a StatefulSetLock with its Snapshot, as the controller reads it.
type lockView struct {
	tenure.Snapshot
	place
}

// locks reads the StatefulSetLocks of a namespace, or of all namespaces.
func (c *cluster) locks(ctx context.Context, namespace string) ([]v1.StatefulSetLock, error) {
	var locks v1.StatefulSetLockList
	err := c.List(ctx, &locks, client.InNamespace(namespace))
	return locks.Items, err
}

// findLock is find for a StatefulSetLock.
func (c *cluster) findLock(ctx context.Context, name string) (*v1.StatefulSetLock, error) {
	lock := &v1.StatefulSetLock{}
	return lock, c.find(ctx, name, lock, &v1.StatefulSetLockList{})
}

func (c *cluster) lookAtLock(ctx context.Context, lock *v1.StatefulSetLock) (lockView, error) {
	reader := &hiding{Reader: c}
	snapshot, err := observe.Observer{Client: reader, Live: reader}.ObserveLock(ctx, lock)
	return lockView{snapshot, place{c, lock.Namespace, reader.hidden()}}, err
}

func (s lockView) status() LockStatus {
	lock := s.Lock
	status := LockStatus{
		Namespace: lock.Namespace, Name: lock.Name, StatefulSet: lock.Spec.StatefulSetName, Fencing: lock.Spec.Fencing,
		Epoch: lock.Status.Epoch, Message: lock.Status.Message, Deleting: !lock.DeletionTimestamp.IsZero(),
		Pods: []LockPod{}, LastTransition: lock.Status.LastTransition,
		Conditions: append([]metav1.Condition{}, lock.Status.Conditions...),
	}
	uid, known := lock.Status.WriterPodUID, false
	for _, pod := range tenure.InOrder(s.Snapshot) {
		role := reader
		if pod.UID == uid {
			role, known = writer, true
		}
		status.Pods = append(status.Pods, LockPod{
			Name: pod.Name, Role: role, Node: pod.Spec.NodeName, Ready: proof.IsTrue(pod, corev1.PodReady), Stopping: pod.DeletionTimestamp != nil,
		})
	}
	if uid != "" && !known {
		status.Pods = append(status.Pods, LockPod{Name: lock.Status.WriterPod, Role: writer, Node: lock.Status.WriterNode, Gone: true})
	}
	return status
}

// text returns the status of the lock as text.
func (s *LockStatus) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "StatefulSetLock %s/%s: StatefulSet %s, fencing %s, epoch %d\n", s.Namespace, s.Name, s.StatefulSet, s.Fencing, s.Epoch)
	b.WriteString(messageText("StatefulSetLock", s.Deleting, s.Message))
	b.WriteString(podsText(s.Pods, func(p LockPod) []string { return []string{p.Name, p.Role, p.Node, p.state()} }))
	b.WriteString(conditionsText(s.Conditions, []string{v1.ConditionReady, v1.ConditionFenced, v1.ConditionPolicyInstalled}, s.Message))
	if t := s.LastTransition; t != nil {
		fmt.Fprintf(&b, "\nLast change of the writer: %s\n", inWords(string(t.Cause), t.From, t.To, "writer", t.Proof))
	}
	return b.String()
}

func (p LockPod) state() string {
	switch {
	case p.Gone:
		return "gone"
	case p.Stopping:
		return "terminating"
	case p.Ready:
		return "Ready"
	}
	return "not Ready"
}

// lockTable returns one line for each lock, with a column of namespaces if needed.
func lockTable(locks []LockStatus, namespace string) string {
	return columnsIn(namespace, func(row func(cells ...string)) {
		row("NAMESPACE", "LOCK", "STATEFULSET", "WRITER", "EPOCH", "FENCING", "LAST CHANGE", "MESSAGE")
		for i := range locks {
			s := &locks[i]
			row(s.Namespace, s.Name, s.StatefulSet, s.writer(), fmt.Sprint(s.Epoch), string(s.Fencing), s.lastChange(), s.Message)
		}
	})
}

func (s *LockStatus) writer() string {
	for _, pod := range s.Pods {
		if pod.Role == writer {
			return nameAndState(pod.Name, pod.state())
		}
	}
	return "-"
}

func (s *LockStatus) lastChange() string {
	if s.LastTransition == nil {
		return "-"
	}
	return string(s.LastTransition.Cause)
}

// explainLock explains the state of the lock at the time now.
func explainLock(s lockView, now time.Time) string {
	e := s.explanation(now)
	if !e.refused && s.Lock.DeletionTimestamp.IsZero() {
		e.addPolicy(s.place, s.Lock.Status.Conditions, "become readers")
	}
	return e.text("StatefulSetLock " + fullName(s.Lock))
}

func (s lockView) explanation(now time.Time) explanation {
	if !s.Lock.DeletionTimestamp.IsZero() {
		return s.deleting()
	}
	reported := meta.FindStatusCondition(s.Lock.Status.Conditions, v1.ConditionReady)
	status, stale := s.Lock.Status, reported == nil
	refused := reported != nil && reported.Reason == string(tenure.WriteRefused)
	if s.hidden == "" && !refused { // only the status has the error of a write
		plan := tenure.Decide(s.Snapshot, now)
		status = plan.Status
		stale = reported == nil || reported.Reason != string(plan.Outcome)
	}
	e := explanation{headline: "is not Ready"}
	if is := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); is != nil {
		if is.Status == metav1.ConditionTrue {
			e.headline = "is Ready"
		}
		e.headline += ": " + is.Reason
		e.texts = append(e.texts, s.in.amended(status.Message))
		e.helps = s.helps(tenure.Outcome(is.Reason))
		e.refused = tenure.Outcome(is.Reason).Refused()
	}
	if fenced := meta.FindStatusCondition(status.Conditions, v1.ConditionFenced); fenced != nil && fenced.Status != metav1.ConditionTrue {
		e.texts = append(e.texts, "Fencing: "+fenced.Message)
	}
	e.addCaveats(s.place, "StatefulSetLock", stale)
	return e
}

func (s lockView) deleting() explanation {
	e := explanation{headline: "is being deleted"}
	if s.hidden != "" {
		e.texts = []string{hiddenMessage("StatefulSetLock", s.hidden)}
		e.helps = []help{{"show the status", s.kubectl("describe ssl %s", s.Lock.Name)}}
		return e
	}
	_, message := tenure.Finalize(s.Snapshot)
	if message == "" {
		e.texts = []string{deletedSoonMessage("StatefulSetLock")}
		e.helps = []help{s.check()}
		return e
	}
	e.texts = []string{s.in.amended(message)}
	return e
}

// helps returns the commands that help with an outcome.
func (s lockView) helps(outcome tenure.Outcome) []help {
	spec, pod := s.Lock.Spec, s.Lock.Status.WriterPod
	switch outcome {
	case tenure.NoStatefulSet, tenure.NoReadyPod:
		return []help{{"show the StatefulSet and its events", s.kubectl("describe statefulset %s", spec.StatefulSetName)}}
	case tenure.WriterNotReady:
		return []help{
			{"show the logs of the writer", s.kubectl("logs %s --all-containers --tail=50", pod)},
			{"show what the kubelet reports", s.kubectl("describe pod %s", pod)},
		}
	case tenure.Granted:
		if spec.Fencing != v1.LockFencingLease {
			return nil
		}
		return []help{
			{"show the logs of the pod", s.kubectl("logs %s --all-containers --tail=50", pod)},
			{"show the Lease", s.kubectl("get lease %s -o yaml", spec.LeaseName)},
		}
	case tenure.WriterStopping:
		return []help{{"show what the kubelet reports", s.kubectl("describe pod %s", pod)}}
	case tenure.SecondLock:
		return []help{{"show the locks of the namespace", s.kubectl("get ssl -o custom-columns=NAME:.metadata.name,STATEFULSET:.spec.statefulSetName")}}
	case tenure.ForeignLease, tenure.TenureRevoked, tenure.LeaseHeld:
		return []help{{"show the Lease", s.kubectl("get lease %s -o yaml", spec.LeaseName)}}
	default: // the message of the lock has the command, or none is needed
		return nil
	}
}
