// Package membership decides which pods a StatefulCluster has, and which claims each pod has. From a Snapshot of the cluster it
// decides what to write next. The package is pure: it has no client, does no I/O and reads no clock. The controller, the
// tests and a search over all interleavings run the same code.
//
// # The guarantee
//
// No name is given to two members. A pod runs with a claim only after every other pod that ran with the claim has provably
// terminated.
//
// # The record
//
// The record is in the status: the counter from which names come, the members with their claims, and the released claims that
// the controller deletes. Each change of the record is one compare-and-swap.
//
// # The order of writes
//
// A controller can stop after any write, and can execute a write late: the next reconcile continues from the record. No order of
// the writes of two controllers breaks the guarantee.
//
//  1. Record adds a member with state Pending. Its name comes from the counter. It has new claims, or the claims of a member
//     that the same Record removes.
//  2. CreateClaim and CreatePod create what the record lists. The pod has a finalizer: its object stays until the end of the
//     member is recorded. The pod also has a scheduling gate: the API server binds the pod to no node. Protect adds the finalizer
//     again after the chart was uninstalled and installed.
//  3. Record adds the UID of the pod. The member is Active.
//  4. Ungate removes the scheduling gate. A pod whose UID is not recorded never runs: it is deleted. That includes a pod whose
//     creation was delayed until its member was removed.
//  5. After the proof that the pod has terminated, Record removes the member. The same Record gives its claims to the successor,
//     or releases them.
//  6. Unprotect removes the finalizer. DeleteClaim deletes released claims. They never belong to a member again.
//
// A member that is removed because spec.replicas was lowered becomes Leaving before its pod is deleted.
//
// A claim that is created late, after its member was removed, is not deleted. It is empty, and status.released lists it.
//
// # Lost pods
//
// An unready pod is not replaced: the kubelet restarts its containers. A pod is lost if it is terminating or has ended
// without a proof while its node is unready, or if its object was removed. The member becomes Lost and keeps its claims until the proof. Its successor gets new
// claims. At most spec.replacement.maxLost members are Lost. More lost pods are not replaced: a person must act.
//
// # Updates in place
//
// SetServing makes the condition MemberServing False, and the pod becomes unready. After the EndpointSlices no longer list the
// pod as serving, or after servingPatience, PatchImages changes its images. After the kubelet has reported new containers,
// SetServing makes the condition True. The pod itself shows which of these steps comes next.
//
// Resize changes the resources of containers before that. The pod keeps serving if no container restarts. PatchImages follows after
// the kubelet has reported the new resources, and then only adds the label of the revision. Before a pod becomes unready, Resize asks
// the API server with a dry-run. The pod is replaced if it can never have the resources on its node, or not for resizePatience. If a
// policy or a quota rejects the resources, the pod stays as it is, and a person must act.
package membership
