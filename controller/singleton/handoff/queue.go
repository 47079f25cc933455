package handoff

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/proof"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// With spec.connections Queue, the Lease tells a standby to accept the connections of clients as soon as it is certain that the
// holder will stop. The standby is Ready from then on, so Services send it new clients, which wait until its main processes run. The
// holder still serves for a moment after it was asked to stop, until Services have moved.
//
// That changes nothing about who may run a main process. But a holder that is Ready may not have started yet, so its own report in
// the Lease says whether it has.

const (
	// defaultShutdownDelay is for kube-proxy, which by default applies changes of endpoints at most once per second.
	defaultShutdownDelay = 1
	// propagation is how much later a Service learns of a change of a pod than the holder does.
	propagation = 200 * time.Millisecond
)

// canQueue returns true if the gates of the pod can accept connections before its main processes run.
func canQueue(p *ClassifiedPod) bool { return p != nil && p.fencing != nil && p.fencing.Queue > 0 }

// queueReport returns what the holder reports about connections. A report that cannot be read is empty.
func (s Snapshot) queueReport() signal.QueueReport {
	lease := s.ownLease()
	if lease == nil {
		return signal.QueueReport{}
	}
	report, _ := signal.ParseQueueReport(lease.Annotations[signal.QueueAnnotation]) // a guard checks it
	return report
}

// startUnreported returns true if the holder can be Ready before its main processes run, and has not reported that they do.
func (d *decision) startUnreported() bool {
	return canQueue(d.holder) && (!d.named(d.holder) || d.queueReport().Epoch != d.status.Epoch)
}

// holderReady returns true if the main processes of the holder run, and its pod is Ready.
func (d *decision) holderReady() bool {
	return proof.IsTrue(d.holder.Pod, corev1.PodReady) && !d.startUnreported()
}

// reception is what the Lease says about the clients of a holder that must stop.
type reception struct {
	// next is the UID of the standby that accepts connections. Empty: none does yet.
	next types.UID
	// delay is how long the holder still serves after it was asked to stop and has read this.
	delay time.Duration
}

// reception returns what the Lease should say while the holder must stop. Next is the standby that starts after it, or nil.
func (d *decision) reception(next *ClassifiedPod) reception {
	is := receptionIn(d.leaseAnnotations())
	receives := canQueue(next) && is.next == next.UID
	switch {
	case !canQueue(d.holder) || d.blocked() || !receives && len(d.queueReport().Ports) == 0:
		return reception{}
	case next == nil && d.shutdownDelay() > 0 && d.awaitsReplacement():
		return reception{delay: d.delayUntilWarm(is)}
	case !canQueue(next):
		return reception{}
	case !receives:
		is.delay = math.MaxInt64 // of no delay of this pod
	}
	return reception{next.UID, d.delayFor(next, is.delay)}
}

// delayFor returns how long the holder serves beside the standby that accepts connections, if the Lease says was: for a while until
// the standby is Ready, and then for the shutdown delay. If it is not Ready any more, it begins again.
func (d *decision) delayFor(next *ClassifiedPod, was time.Duration) time.Duration {
	serves, left := d.shutdownDelay(), d.leftToServe()
	ready, waits := proof.IsTrue(next.Pod, corev1.PodReady), min(serves+readyPatience, left)
	switch {
	case serves == 0:
		return 0
	case ready && was > serves:
		return min(serves, left)
	case !ready && (was == math.MaxInt64 || was <= serves && waits > serves):
		return waits
	}
	return min(was, d.maxShutdownDelay())
}

// shutdownDelay returns how long the holder still serves after the next pod is Ready. 0: it stops at once.
func (d *decision) shutdownDelay() time.Duration {
	seconds := ptr.Deref(d.Singleton.Spec.ShutdownDelaySeconds, defaultShutdownDelay)
	if seconds == 0 {
		return 0
	}
	return time.Duration(seconds)*time.Second + propagation
}

// receiver returns the standby that starts after a holder that stops, or nil. The standby that already accepts connections stays the
// next one unless another is warm and it is not: its sidecar may just restart, and its clients wait.
func (d *decision) receiver() *ClassifiedPod {
	return cmp.Or(d.warm(), d.receiving())
}

// receiving returns the standby that accepts connections, or nil.
func (d *decision) receiving() *ClassifiedPod {
	return find(d.standbys, func(p *ClassifiedPod) bool { return p.UID == d.receives })
}

// delayUntilWarm returns how long the holder serves while its replacement is not warm yet. If its owner creates none, for example
// because the namespace is being deleted, that is shorter.
func (d *decision) delayUntilWarm(is reception) time.Duration {
	left := d.leftToServe()
	switch {
	case len(d.standbys) == 0:
		return min(replacementPatience, d.maxShutdownDelay())
	case is.next == "" && is.delay >= left: // it was lengthened before
		return is.delay
	}
	return left
}

// leftToServe returns how much is left of the time for which the holder may serve.
func (d *decision) leftToServe() time.Duration {
	longest := d.maxShutdownDelay()
	if asked := askedToStop(d.holder.Pod); asked.After(d.now) { // the clock of the API server is ahead
		longest = d.left(longest, d.now)
	} else if !asked.IsZero() {
		longest = d.left(longest, asked)
	}
	return longest.Truncate(time.Millisecond)
}

// awaitsReplacement returns true if the holder was deleted, its owner replaces it, and the replacement can become warm before the
// holder has ended.
func (d *decision) awaitsReplacement() bool {
	rs := d.replicaSet(d.holder.Pod)
	return d.holder.DeletionTimestamp != nil && !proof.Terminal(d.holder.Pod) && rs != nil && !isZero(rs.Spec.Replicas) && !d.unwanted(d.holder.Pod) &&
		!slices.ContainsFunc(d.standbys, func(p *ClassifiedPod) bool { return d.waitsForHolder(p.Pod) != "" })
}

// maxShutdownDelay is half of the holder's grace period.
func (d *decision) maxShutdownDelay() time.Duration {
	grace := ptr.Deref(d.holder.DeletionGracePeriodSeconds, ptr.Deref(d.holder.Spec.TerminationGracePeriodSeconds, 0))
	return time.Duration(grace) * time.Second / 2
}

// receptionIn returns what the annotations of the Lease say.
func receptionIn(annotations map[string]string) reception {
	milliseconds, _ := time.ParseDuration(cmp.Or(annotations[signal.DelayAnnotation], "0") + "ms")
	return reception{types.UID(annotations[signal.NextAnnotation]), milliseconds}
}

// gateStandbys closes the readiness gate of standbys that are Ready and do not run next, because their clients would wait in vain. It
// opens that of the next one, which can have been closed before. It comes last, because nothing waits for it.
func (d *decision) gateStandbys() {
	if d.status.ActivePodUID == "" {
		return
	}
	for _, p := range d.standbys {
		gate := proof.Condition(p.Pod, v1.ReadyCondition)
		switch {
		case !canQueue(p):
		case p.UID != d.receives && proof.IsTrue(p.Pod, corev1.PodReady):
			d.do(Demote{refOf(p.Pod), Version(p.ResourceVersion)})
		case p.UID == d.receives && gate != nil && gate.Status == corev1.ConditionFalse:
			d.do(MarkReady{refOf(p.Pod)})
		}
	}
}

// Reasons of condition ConnectionsQueued. The others are those of package queue.
const (
	portsKnown   = "PortsKnown"
	portsUnknown = "PortsUnknown"
	notPrepared  = "NotPrepared"
)

// leftToListen returns how long the holder typically still takes until it listens.
func (d *decision) leftToListen(active *ClassifiedPod) time.Duration {
	t := d.status.LastTransition
	if t == nil || t.To != active.Name || t.Signalled == nil {
		return 0
	}
	return d.left(listenPatience, t.Signalled.Time)
}

// reportQueue reports whether the next handoff queues connections. The condition does not change while the holder starts.
func (d *decision) reportQueue() {
	active := d.active()
	report := d.queueReport()
	set := func(value bool, reason, message string) {
		d.setCondition(v1.ConditionConnectionsQueued, value, reason, message)
	}
	switch {
	case active == nil || d.Singleton.Spec.Connections != v1.ConnectionsQueue:
		meta.RemoveStatusCondition(&d.status.Conditions, v1.ConditionConnectionsQueued)
	case !canQueue(active):
		set(false, notPrepared, d.notPreparedMessage(active))
	case !d.named(active) || report.Epoch != d.status.Epoch:
	case report.Message != "":
		set(false, report.Reason, lostClientsMessage(active, report))
	case len(report.Ports) == 0 && d.leftToListen(active) > 0:
		d.requeueIn(d.leftToListen(active))
	case len(report.Ports) == 0:
		set(false, portsUnknown, portsUnknownMessage(active))
	default:
		set(true, portsKnown, portsKnownMessage(report))
	}
}
