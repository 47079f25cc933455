package tenure

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// notFenced returns why the pod is a writer also without the Lease. Empty: it is a writer only while it holds the Lease.
func notFenced(p *corev1.Pod, lock *v1.StatefulSetLock) string {
	return "the pod was injected before fencing was turned on" // until the gate knows roles
}

// cannotWrite returns why the pod cannot become the writer. Empty: it can.
func (d *decision) cannotWrite(p *pod) string {
	switch {
	case !p.member:
		return fmt.Sprintf("StatefulSet %s does not control it", d.Lock.Spec.StatefulSetName)
	case p.Labels[v1.SingletonLabel] != "":
		return fmt.Sprintf("it belongs to StatefulSingleton %s", p.Labels[v1.SingletonLabel])
	case d.Lock.Spec.Fencing == v1.LockFencingLease && !p.fenced:
		return p.notFenced
	case !p.ready():
		return "it is not Ready"
	}
	return ""
}
