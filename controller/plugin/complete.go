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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// completeName completes the names of the singletons in the namespace.
func (c commands) completeName(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.completeFirst(cmd.Context(), args, typed, "", &v1.StatefulSingletonList{})
}

// completeNameOrLock is completeName, and also completes the names of the StatefulSetLocks after lock/.
func (c commands) completeNameOrLock(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const prefix = "lock/"
	if !strings.HasPrefix(typed, prefix) {
		return c.completeName(cmd, args, typed)
	}
	return c.completeFirst(cmd.Context(), args, typed, prefix, &v1.StatefulSetLockList{})
}

// completeCluster completes the names of the StatefulClusters after stc/.
func (c commands) completeCluster(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.completeFirst(cmd.Context(), args, typed, "stc/", &v1.StatefulClusterList{})
}

// completeFirst completes the first argument with the names of the objects of a kind in the namespace, after a prefix.
func (c commands) completeFirst(ctx context.Context, args []string, typed, prefix string, list client.ObjectList) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(ctx, typed, prefix, list, func(in *cluster) string { return in.namespace })
}

// completeNamespace completes the namespaces of the cluster.
func (c commands) completeNamespace(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd.Context(), typed, "", &corev1.NamespaceList{}, func(*cluster) string { return metav1.NamespaceAll })
}

// complete returns the names of the objects of a kind. The time limit is short, because the user waits after a key press.
func (c commands) complete(ctx context.Context, typed, prefix string, list client.ObjectList, namespace func(*cluster) string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const timeLimit = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	in, err := c.connect(c.flags)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := in.names(ctx, list, namespace(in))
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for i := range names {
		names[i] = prefix + names[i]
	}
	return beginningWith(typed, names), cobra.ShellCompDirectiveNoFileComp
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
