package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/signal"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

// write is a write request of the controller.
type write struct {
	// verb is "create", "update", "patch", "apply" or "delete", followed by "/" and the subresource, if any.
	verb   string
	object client.Object
	// data is the body of a patch.
	data string
}

// of returns true if the write has the verb and is for an object with the name.
func (w write) of(verb, name string) bool { return w.verb == verb && w.object.GetName() == name }

// isOf returns true if the write is for an object of the type, or for a subresource of such an object.
func isOf[T client.Object](sent write) bool {
	_, ok := sent.object.(T)
	return ok
}

// patchOf returns a function that selects patches of the object with the name.
func patchOf(name string) func(write) bool {
	return func(sent write) bool { return sent.of("patch", name) }
}

// ofStatus returns true if the write is for the status of a singleton.
func ofStatus(sent write) bool {
	return isOf[*v1.StatefulSingleton](sent) && strings.HasSuffix(sent.verb, "/status")
}

// ofPod returns true if the write is for a pod, and not for its status.
func ofPod(sent write) bool { return isOf[*corev1.Pod](sent) && sent.verb == "patch" }

// ofProbe returns true if the write is the dry-run of a pod.
func ofProbe(sent write) bool { return isOf[*corev1.Pod](sent) && sent.verb == "create" }

// ofSignal returns true if the write signals a pod.
func ofSignal(sent write) bool {
	return sent.verb == "patch/status" && strings.Contains(sent.data, signal.Annotation)
}

// ofPolicy returns true if the write is for a ClusterPolicy.
func ofPolicy(sent write) bool {
	return sent.object.GetObjectKind().GroupVersionKind() == policies.ClusterPolicy.GVK()
}

// writing returns a client that calls before with each write. If before returns an error, the API server does not receive the write.
func writing(before func(write) error) client.WithWatch {
	patched := func(verb string, o client.Object, patch client.Patch) error {
		data, err := patch.Data(o)
		return errors.Join(err, before(write{verb, o, string(data)}))
	}
	return interceptor.NewClient(controllerClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := before(write{verb: "create", object: o}); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := patched("patch", o, patch); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, options...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			if err := before(write{verb: "apply", object: o.(client.Object)}); err != nil {
				return err
			}
			return c.Apply(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if err := before(write{verb: "delete", object: o}); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, name string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if err := before(write{verb: "update/" + name, object: o}); err != nil {
				return err
			}
			return c.SubResource(name).Update(ctx, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := patched("patch/"+name, o, patch); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, patch, options...)
		},
	})
}

// meanwhile returns a client for the controller. When the controller first sends a request that which selects, do runs
// before the API server receives the request.
func (w *world) meanwhile(which func(write) bool, do func()) client.Client {
	w.t.Helper()
	happened := false
	w.t.Cleanup(func() {
		if !happened {
			w.t.Error("the controller did not send the request that the test waits for")
		}
	})
	return writing(func(sent write) error {
		if !happened && which(sent) {
			happened = true
			do()
		}
		return nil
	})
}

// overtake reconciles with a controller. Before its first request that which selects, do runs.
func (w *world) overtake(which func(write) bool, do func()) ctrl.Result {
	w.t.Helper()
	return w.reconcile(w.controllersWith(w.meanwhile(which, do)))
}

// without is a cache without objects of the type.
type without[T client.Object] struct{ client.Client }

func (r without[T]) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, is := o.(T); is {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return r.Client.Get(ctx, key, o, options...)
}

// notOnMyWatch is the message of the API server for a rejected write.
const notOnMyWatch = "not on my watch"

// refusing returns controllers without permission for the selected writes.
func (w *world) refusing(refused func(write) bool) controllers {
	return w.controllersWith(writing(func(sent write) error {
		if !refused(sent) {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", sent.object)}, sent.object.GetName(), errors.New(notOnMyWatch))
	}))
}
