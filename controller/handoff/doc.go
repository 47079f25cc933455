// Package handoff is the protocol: it decides, from a Snapshot of the world, who
// holds a singleton and what has to be written next. It is pure. It imports no
// client, does no I/O and reads no clock, so that the same code serves the
// controller, the tests and a search over every interleaving.
//
// # The law
//
// At no time do two pods of a singleton run a held container's main process.
//
// # Who may run
//
// The record in the singleton's status names the holder and its epoch. A held
// container starts its main process only after its pod was signalled, and a pod
// is signalled only while the record names it. The record moves on to another
// pod only with a Proof that the holder is dead, and dead means: its processes
// have ended, and it can't start one again.
//
// # The order of writes
//
// Whatever write a controller dies after, the next reconcile goes on from the
// record, and no order of two controllers breaks the law:
//
//  1. Record, a compare-and-swap of the status that was read: of two controllers
//     one fails and stops here. It comes first, also when a signal is repeated.
//  2. MarkReady opens the readiness gate. A held container is never ready.
//  3. Signal, one patch of the pod: finalizer, signal and role. From here on the
//     pod can't vanish unseen. It fails if the pod is being deleted.
//  4. OpenBarrier and Nudge, where a barrier waits. They come after the Signal:
//     the ConfigMap alone starts the container, and a pod that may start must
//     bear the finalizer.
//  5. LetGo of the old holder. Last, since with its object its proof is gone.
package handoff
