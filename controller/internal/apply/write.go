package apply

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// Object is a JSON object of a patch.
type Object map[string]any

// StrategicPatch returns a patch that adds to lists such as finalizers and conditions, and does not replace them.
func StrategicPatch(o Object) client.Patch { return patch(types.StrategicMergePatchType, o) }

// MergePatch returns a patch that replaces lists.
func MergePatch(o Object) client.Patch { return patch(types.MergePatchType, o) }

func patch(kind types.PatchType, o Object) client.Patch {
	data, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("encode patch: %v", err)) // strings, numbers, times, lists and maps only
	}
	return client.RawPatch(kind, data)
}

// IsOvertaken returns true if another client wrote an object since it was read. The next decision sees that write.
func IsOvertaken(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// AddFinalizer adds the finalizer to an object of the kind, unless the object has it.
func AddFinalizer(ctx context.Context, c client.Client, kind string, o client.Object, finalizer string) error {
	return swap(ctx, c, o, fmt.Sprintf("add the finalizer to %s", kind), func() bool { return controllerutil.AddFinalizer(o, finalizer) })
}

// RemoveFinalizer removes the finalizer and the annotations from an object of the kind, and writes nothing if the object has none of
// them. Without its last finalizer, an object that is being deleted no longer exists.
func RemoveFinalizer(ctx context.Context, c client.Client, kind string, o client.Object, finalizer string, annotations ...string) error {
	return swap(ctx, c, o, fmt.Sprintf("remove finalizer %s from %s", finalizer, kind), func() bool {
		changed := controllerutil.RemoveFinalizer(o, finalizer)
		for _, annotation := range annotations {
			_, has := o.GetAnnotations()[annotation]
			delete(o.GetAnnotations(), annotation)
			changed = changed || has
		}
		return changed
	})
}

// RemoveAttestation removes the attestation from an object of the kind.
func RemoveAttestation(ctx context.Context, c client.Client, kind string, o client.Object) error {
	return swap(ctx, c, o, fmt.Sprintf("remove annotation %s from %s", v1.AttestAnnotation, kind), func() bool {
		delete(o.GetAnnotations(), v1.AttestAnnotation)
		return true
	})
}

// UpdateStatus writes the status of an object of the kind. The write is a compare-and-swap on the resourceVersion of the object that was
// read. The object keeps the status as it was sent, because the stored times are rounded.
func UpdateStatus(ctx context.Context, c client.Client, kind string, o client.Object, options ...client.SubResourceUpdateOption) error {
	sent := o.DeepCopyObject().(client.Object)
	if err := c.Status().Update(ctx, sent, options...); err != nil {
		return fmt.Errorf("write the status of %s %s: %w", kind, client.ObjectKeyFromObject(o), err)
	}
	o.SetResourceVersion(sent.GetResourceVersion())
	return nil
}

// SetConditions sets conditions that have the same reason and the same message.
func SetConditions(conditions *[]metav1.Condition, values map[string]metav1.ConditionStatus, reason, message string, generation int64) {
	for conditionType, status := range values {
		meta.SetStatusCondition(conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
		})
	}
}

// OrNull returns the value as text, or null for the zero value, which removes a field in a patch.
func OrNull[T comparable](value T) any {
	if value == *new(T) {
		return nil
	}
	return fmt.Sprint(value)
}

// swap changes the metadata of an object, unless change returns false. It fails if the object does not exist, or was written since it
// was read.
func swap(ctx context.Context, c client.Client, o client.Object, what string, change func() bool) error {
	before := o.DeepCopyObject().(client.Object)
	if !change() {
		return nil
	}
	if err := c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("%s %s: %w", what, client.ObjectKeyFromObject(o), err)
	}
	return nil
}
