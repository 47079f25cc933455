// Package tenure decides which pod of a StatefulSet is the writer of a StatefulSetLock. From a Snapshot of the cluster it
// decides what to write next. The package is pure: it has no client, does no I/O and reads no clock. The controller, the
// tests and a search over all interleavings run the same code.
//
// # The guarantee
//
// A pod gets a tenure only after the tenure before it has ended. Of the pods of a lock, at most one has the label of a
// writer at any time.
//
// # When a tenure ends
//
// With spec.fencing None, the tenure of a pod ends when its label is removed. With Termination, it ends with a proof that the
// pod has terminated.
//
// # The order of writes
//
// A controller can stop after any write: the next reconcile continues from the record in the status of the lock. No order
// of the writes of two controllers breaks the guarantee.
//
//  1. LabelReader removes the label of the writer, and writes which tenure ends. This write is repeated until it
//     succeeds, also if the pod has not received its label yet. After it, a late controller cannot label the pod. LabelWriter
//     fails if any client wrote the pod since the Snapshot, and no controller labels a pod for a tenure that ends.
//  2. After the pod has left the EndpointSlices of Services for writers, or after servingPatience, Delete deletes the pod,
//     unless spec.fencing is None.
//  3. Protect adds the finalizer to the next writer, unless spec.fencing is None. From now on the object of the pod stays
//     until the controller removes the finalizer, and a missing object proves nothing.
//  4. Record is a compare-and-swap of the status, after the tenure has ended. Of two controllers one fails and stops
//     here.
//  5. MarkTenure writes the epoch on a fenced pod. So the next lock of the StatefulSet learns of the tenure also if lock and
//     Lease are lost while the pod becomes the writer, and uses the epoch for no other pod.
//  6. WriteLease names the next writer, for tools and for people, and makes a fenced pod the writer. It fails if any client wrote
//     the Lease since the Snapshot.
//  7. LabelWriter labels the next writer.
//  8. Unprotect removes the finalizer of the old writer. It comes after Record.
package tenure
