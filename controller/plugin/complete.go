package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// completeName completes the names of the singletons in the namespace.
func (c commands) completeName(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.completeFirst(cmd, args, typed, "", &v1.StatefulSingletonList{}, func(o runtime.Object) string {
		return string(o.(*v1.StatefulSingleton).Status.Phase)
	})
}

// completeNameOrLock is completeName, and also completes the names of the StatefulSetLocks after lock/.
func (c commands) completeNameOrLock(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const prefix = "lock/"
	if !strings.HasPrefix(typed, prefix) {
		return c.completeName(cmd, args, typed)
	}
	return c.completeFirst(cmd, args, typed, prefix, &v1.StatefulSetLockList{}, func(o runtime.Object) string {
		return o.(*v1.StatefulSetLock).Status.WriterPod
	})
}

// completeCluster completes the names of the StatefulClusters after stc/.
func (c commands) completeCluster(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.completeFirst(cmd, args, typed, "stc/", &v1.StatefulClusterList{}, func(o runtime.Object) string {
		return o.(*v1.StatefulCluster).Status.UpdateRevision
	})
}

// completeFirst completes the first argument with the names of the objects of a kind, after a prefix.
func (c commands) completeFirst(cmd *cobra.Command, args []string, typed, prefix string, list client.ObjectList, describe func(runtime.Object) string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd.Context(), func(ctx context.Context, in *cluster) (offers []cobra.Completion, err error) {
		if err := in.List(ctx, list, client.InNamespace(in.namespace)); err != nil {
			return nil, err
		}
		err = meta.EachListItem(list, func(o runtime.Object) error {
			offers = append(offers, cobra.CompletionWithDesc(prefix+o.(client.Object).GetName(), describe(o)))
			return nil
		})
		return beginningWith(typed, offers), err
	})
}

// completeNameAndUID is completeName, and then completes the UID of the recorded holder.
func (c commands) completeNameAndUID(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return c.completeName(cmd, args, typed)
	}
	return c.complete(cmd.Context(), func(ctx context.Context, in *cluster) ([]cobra.Completion, error) {
		s, err := in.findSingleton(ctx, args[0])
		if err != nil || s.Status.ActivePodUID == "" {
			return nil, err
		}
		return []cobra.Completion{cobra.CompletionWithDesc(string(s.Status.ActivePodUID), "pod "+s.Status.ActivePod)}, nil
	})
}

// complete reads completions from the cluster. The time limit is short, because the user waits after a key press.
func (c commands) complete(ctx context.Context, offer func(context.Context, *cluster) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	const timeLimit = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	in, err := c.connect(c.flags)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	offers, err := offer(ctx, in)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

// completeNamespace completes the namespaces of the cluster.
func (c commands) completeNamespace(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd.Context(), func(ctx context.Context, in *cluster) ([]cobra.Completion, error) {
		var namespaces corev1.NamespaceList
		err := in.List(ctx, &namespaces)
		names := make([]string, len(namespaces.Items))
		for i := range namespaces.Items {
			names[i] = namespaces.Items[i].Name
		}
		return beginningWith(typed, names), err
	})
}

// completeContext completes the contexts of the kubeconfig.
func (c commands) completeContext(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return beginningWith(typed, slices.Sorted(maps.Keys(config.Contexts))), cobra.ShellCompDirectiveNoFileComp
}

func beginningWith(typed string, names []string) []cobra.Completion {
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) })
}

// completeOutput completes the values of --output.
func completeOutput(cmd *cobra.Command, values ...cobra.Completion) {
	completeFlag(cmd, "output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completeFlag(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(fmt.Sprintf("flag --%s of %s: %v", flag, cmd.Name(), err)) // the flag exists
	}
}
