package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
	"github.com/statefulsingleton/statefulsingleton/controller/cmd/internal/program"
	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
	"github.com/statefulsingleton/statefulsingleton/controller/owner"
	"github.com/statefulsingleton/statefulsingleton/controller/singleton"
	"github.com/statefulsingleton/statefulsingleton/policies"
)

func uninstallCommand() *cobra.Command {
	var deployments []string
	var namespace string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the controllers and remove their finalizers",
		Long: `Stop the controllers, delete their policies of Kyverno and PodDisruptionBudgets, and remove their finalizers from
pods and StatefulSingletons. Otherwise, drains, and the deletion of these objects, would wait for a controller.
The chart runs this command before it is uninstalled. Running pods keep running, held pods stay held until they
are deleted, and the StatefulSingletons stay. The same applies to StatefulSetLocks and StatefulClusters.`,
		Example: `  manager uninstall --namespace=statefulsingleton --deployment=statefulsingleton`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return uninstall(ctx, namespace, deployments)
		},
	}
	cmd.Flags().StringArrayVar(&deployments, "deployment", []string{"statefulsingleton"}, "name of a controller's Deployment. Repeat the flag for each Deployment. A Deployment that does not exist is ignored")
	cmd.Flags().StringVar(&namespace, "namespace", "statefulsingleton", "namespace of the controllers' Deployments")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "time limit of the command")
	return cmd
}

func uninstall(ctx context.Context, namespace string, deployments []string) error {
	config, err := program.RESTConfig()
	if err != nil {
		return err
	}
	scheme, err := program.NewScheme()
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	return uninstallWith(ctx, c, namespace, deployments)
}

func uninstallWith(ctx context.Context, c client.Client, namespace string, deployments []string) error {
	for _, step := range []struct {
		name string
		do   func(context.Context, client.Client) error
	}{
		{"stop the controllers", func(ctx context.Context, c client.Client) error {
			for _, name := range deployments {
				if err := stopController(ctx, c, types.NamespacedName{Namespace: namespace, Name: name}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"delete the policies of Kyverno", deletePolicies},
		{"delete the PodDisruptionBudgets", deleteBudgets},
		{"remove the finalizers from StatefulSingletons and their pods", removeFinalizers},
		{"remove the finalizers from StatefulSetLocks and their pods", removeLockFinalizers},
		{"remove the finalizers from StatefulClusters and their pods", removeClusterFinalizers},
	} {
		start := time.Now()
		if err := retryConflicts(ctx, func(ctx context.Context) error { return step.do(ctx, c) }); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%s: done in %s\n", step.name, time.Since(start).Round(time.Millisecond))
	}
	return nil
}

// retryConflicts repeats a step after conflicts until ctx is done. The step reads the objects again. The retry of
// client-go is not used, because it returns nil if a step exceeds its time limit.
func retryConflicts(ctx context.Context, do func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = do(ctx)
		return !apierrors.IsConflict(last), nil
	})
	if last != nil {
		return last
	}
	return err
}

// stopController scales the controller to zero and waits until its pods are removed. A running controller would add
// the finalizers again.
func stopController(ctx context.Context, c client.Client, name types.NamespacedName) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := c.Get(ctx, name, deployment); err != nil {
		return client.IgnoreNotFound(err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":0}}`))
	if err := c.Patch(ctx, deployment, patch); err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.List(ctx, &pods, client.InNamespace(name.Namespace), client.MatchingLabelsSelector{Selector: selector})
		return len(pods.Items) == 0, err
	})
	if wait.Interrupted(err) && len(pods.Items) > 0 {
		return fmt.Errorf("pod %[1]s of Deployment %[2]s has not terminated: %[3]w. If its node is off, run: kubectl delete -n %[4]s pod %[1]s --force. Then run this command again",
			pods.Items[0].Name, name, err, name.Namespace)
	}
	return err
}

// deletePolicies deletes the policies of each kind that the API server serves.
func deletePolicies(ctx context.Context, c client.Client) error {
	for _, kind := range policies.Kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GVK())
		if err := each(ctx, c, list, deleteObject(ctx, c), client.MatchingLabels{v1.ManagedByLabel: v1.ManagedBy}); err != nil {
			return err
		}
	}
	return nil
}

// deleteBudgets deletes the PodDisruptionBudgets, which would block drains without a controller.
func deleteBudgets(ctx context.Context, c client.Client) error {
	for _, of := range []string{v1.SingletonLabel, v1.LockLabel} {
		err := each(ctx, c, &policyv1.PodDisruptionBudgetList{}, deleteObject(ctx, c), client.MatchingLabels{v1.ManagedByLabel: v1.ManagedBy}, client.HasLabels{of})
		if err != nil {
			return err
		}
	}
	return nil
}

func deleteObject(ctx context.Context, c client.Client) func(client.Object) error {
	return func(o client.Object) error { return c.Delete(ctx, o) }
}

// each lists objects, and calls do with each. A kind that the API server does not serve has no objects, and do may find that
// an object is gone.
func each(ctx context.Context, c client.Client, list client.ObjectList, do func(client.Object) error, options ...client.ListOption) error {
	if err := c.List(ctx, list, options...); meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return err
	}
	return meta.EachListItem(list, func(o runtime.Object) error { return client.IgnoreNotFound(do(o.(client.Object))) })
}

// removeFinalizers removes the finalizers from StatefulSingletons and then from pods. After the write to a
// StatefulSingleton, the API server rejects late writes of a controller that lost its connection.
func removeFinalizers(ctx context.Context, c client.Client) error {
	byName := map[types.NamespacedName]*v1.StatefulSingleton{}
	err := each(ctx, c, &v1.StatefulSingletonList{}, func(o client.Object) error {
		byName[client.ObjectKeyFromObject(o)] = o.(*v1.StatefulSingleton)
		return apply.RemoveFinalizer(ctx, c, owner.StatefulSingleton.Kind, o, v1.PolicyFinalizer)
	})
	if err != nil {
		return err
	}
	return each(ctx, c, &corev1.PodList{}, func(pod client.Object) error {
		its := cmp.Or(byName[types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[v1.SingletonLabel]}], &v1.StatefulSingleton{})
		return singleton.RemovePodFinalizer(ctx, c, its, pod.(*corev1.Pod))
	}, client.HasLabels{v1.SingletonLabel})
}

// removeLockFinalizers removes the finalizers from StatefulSetLocks and then from their pods. The labels stay, so Services
// still find the last writer.
func removeLockFinalizers(ctx context.Context, c client.Client) error {
	if err := each(ctx, c, &v1.StatefulSetLockList{}, removeFinalizer(ctx, c, owner.StatefulSetLock.Kind, v1.PolicyFinalizer)); err != nil {
		return err
	}
	return each(ctx, c, &corev1.PodList{}, removeFinalizer(ctx, c, "Pod", v1.HandoffFinalizer), client.HasLabels{v1.LockLabel})
}

// removeClusterFinalizers removes the finalizers from StatefulClusters and then from their pods.
func removeClusterFinalizers(ctx context.Context, c client.Client) error {
	if err := each(ctx, c, &v1.StatefulClusterList{}, removeFinalizer(ctx, c, owner.StatefulCluster.Kind, v1.MemberFinalizer)); err != nil {
		return err
	}
	return each(ctx, c, &corev1.PodList{}, removeFinalizer(ctx, c, "Pod", v1.MemberFinalizer), client.HasLabels{v1.ClusterLabel})
}

func removeFinalizer(ctx context.Context, c client.Client, kind, finalizer string) func(client.Object) error {
	return func(o client.Object) error { return apply.RemoveFinalizer(ctx, c, kind, o, finalizer) }
}
