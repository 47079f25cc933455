// Package tenure decides which pod of a StatefulSet is the writer of a StatefulSetLock. From a Snapshot of the cluster it
// decides what to write next. The package is pure: it has no client, does no I/O and reads no clock. The controller, the
// tests and a search over all interleavings run the same code.
//
// # The guarantee
//
// A pod gets a tenure only after the tenure before it has ended. Of all pods, at most one has the label of a writer at
// any time.
//
// # When a tenure ends
//
// The tenure of a pod without fencing by a Lease ends when its label is removed (spec.fencing None), or with a proof that
// the pod has terminated. The tenure of a fenced pod ends with a proof of the Lease, or with a proof that the pod has
// terminated. The Lease names each writer with its UID if the writer is fenced, and without its UID otherwise. No pod
// takes a name without its UID for its own.
//
// # The order of writes
//
// A controller can stop after any write: the next reconcile continues from the record in the status of the lock. No order
// of the writes of two controllers breaks the guarantee.
//
//  1. LabelReader removes the label of the writer, and writes which tenure ends. This write is repeated until it
//     succeeds, also if the pod has not received its label yet. It makes the LabelWriter of a late controller fail,
//     because LabelWriter fails if any client wrote the pod since the Snapshot, and because no controller labels a pod
//     for a tenure that ends.
//  2. After the pod has left the EndpointSlices of Services for writers, or after servingPatience, the tenure is revoked:
//     Delete deletes the pod, or WriteLease tells a fenced pod to end its tenure.
//  3. Record is a compare-and-swap of the status, after the tenure has ended. Of two controllers one fails and stops
//     here.
//  4. Protect adds the finalizer to the next writer before Record, unless spec.fencing is None. From now on the object of
//     the pod stays until the controller removes the finalizer, and a missing object proves nothing.
//  5. WriteLease names the next writer. It fails if any client wrote the Lease since the Snapshot.
//  6. LabelWriter labels the next writer. A fenced pod must have renewed the Lease before.
//  7. Unprotect removes the finalizer of the old writer. It comes after Record.
package tenure
