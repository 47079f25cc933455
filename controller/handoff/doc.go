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
//  1. Protect puts the finalizer on the standby that is chosen. From here on it
//     can't vanish unseen, so that an object which is gone proves nothing, ever.
//     Where there is a holder, it comes as soon as the standby is warm, while nobody waits.
//     A pod with a barrier is told who may open it, too.
//  2. Record, a compare-and-swap of the status that was read: of two controllers
//     one fails and stops here. It is repeated where a signal is repeated. It fails, too,
//     where the API server would store a part of it only.
//  3. OpenBarrier, where a barrier waits. The ConfigMap alone starts the container, and
//     no version of the pod stops a controller that comes late with it. So a pod that is
//     recorded and told who may open its barrier may run, whether signalled or not, until
//     the kubelet says otherwise; and so may one that was told of a singleton that is not
//     this one, whose record nobody knows.
//  4. Signal, one patch of the pod: signal, role and readiness gate. One,
//     since the kubelet looks at a pod once in each second: what came after it would wait
//     for the next look. Like the Protect before it, it fails if anybody wrote the pod
//     since the Snapshot. So a controller that comes late signals no pod that others
//     have written off: whoever does so first sees that its deletion was asked for, or,
//     having no record to go by, takes the finalizer off it. That LetGo comes before
//     all else.
//  5. LetGo of the old holder. After the Record, since with its object its proof
//     is gone, and the epoch that it bears.
//  6. TakeAttestation, last: until then it is a proof that the steps before may have
//     to be repeated on.
package handoff
