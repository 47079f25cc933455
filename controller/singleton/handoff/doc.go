// Package handoff implements the protocol. From a Snapshot of the cluster it decides which pod is the
// holder and what to write next. The package is pure: it has no client, does no I/O and reads no clock.
// The controller, the tests and a search over all interleavings run the same code.
//
// # The guarantee
//
// Two pods of a singleton never run a held container's main process at the same time.
//
// # Who may run
//
// The record in the singleton's status names the holder and its epoch. A held container starts its main
// process only after its pod was signalled, and a pod is signalled only while the record names it. The
// record moves to another pod only with a proof of termination: the processes of the holder have ended, and
// the holder cannot start another one.
//
// # The order of writes
//
// A controller can stop after any write: the next reconcile continues from the record. No order of the
// writes of two controllers breaks the guarantee.
//
//  1. Protect adds the finalizer to the chosen standby. From now on the object of the pod stays until the
//     controller removes the finalizer, and a missing object proves nothing. While there is a holder, Protect
//     happens as soon as the standby is warm, before it is urgent. If the pod waits at a barrier or is fenced, Protect
//     also annotates the pod with the singleton that may start it.
//  2. Record is a compare-and-swap of the status. Of two controllers one fails and stops here. Record is
//     repeated when a signal is repeated. It also fails if the API server would drop a field.
//  3. OpenBarrier creates the ConfigMap of a barrier. The ConfigMap alone starts the container, and a late
//     controller creates it without any precondition on the pod. A pod that is recorded, and that has
//     the annotation chosen-by, may therefore run until the kubelet reports otherwise. The same is true of
//     a pod whose annotation names another singleton, because this controller does not know that record.
//     WriteLease comes at the same point, and names the pod in the Lease of the singleton. A fenced pod may run from now
//     on. WriteLease fails if any client wrote the Lease since the Snapshot.
//  4. Signal is one patch of the pod: signal, role and readiness gate. It is one patch because the kubelet
//     reconciles a pod once per second, and a second patch would wait for the next reconcile. Like Protect, Signal
//     fails if any client wrote the pod since the Snapshot. A late controller therefore signals no
//     pod that another controller has given up. A controller gives up a pod only when the pod is
//     terminating, or, without a record, after it removed the finalizer with Unprotect.
//  5. Unprotect removes the finalizer of the old holder. It comes after Record, because the object of the old
//     holder has the proof and the last epoch.
//  6. TakeAttestation comes last. Until then, an attestation is a proof on which the steps before may have
//     to be repeated.
//
// # Where to read
//
// The files follow one decision:
//
//   - snapshot.go has the input.
//   - classify.go, held.go and package injected find out what each pod is, and proof.go which pods have terminated.
//   - decide.go decides who may run, and in which order.
//   - rollout.go and drain.go decide when to replace the holder.
//   - lease.go has how the Lease follows the record, and queue.go which pod receives clients meanwhile.
//   - pace.go has the waits, message.go the longer messages, report.go the status, and plan.go the output.
//   - finalize.go handles the deletion of the singleton.
package handoff
