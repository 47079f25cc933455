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
)

// completeKinds completes the first argument with the objects of the kinds in the namespace: the objects of all kinds, or those of the
// kind that the user has typed.
func (c commands) completeKinds(accepted ...kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.complete(cmd.Context(), typed, func(ctx context.Context, in *cluster) (all []string, err error) {
			word, _, hasKind := strings.Cut(typed, "/")
			for _, k := range accepted {
				if hasKind && !k.is(word) {
					continue
				}
				objects, err := in.objects(ctx, k, in.namespace)
				if err != nil {
					return nil, err
				}
				for _, o := range objects {
					argument := k.argument(o.GetName())
					if hasKind {
						argument = word + "/" + o.GetName()
					}
					all = append(all, argument)
				}
			}
			return all, nil
		})
	}
}

// completeNamespace completes the namespaces of the cluster.
func (c commands) completeNamespace(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.complete(cmd.Context(), typed, func(ctx context.Context, in *cluster) ([]string, error) {
		return in.names(ctx, &corev1.NamespaceList{}, metav1.NamespaceAll)
	})
}

// complete returns the words of the cluster that begin with what the user typed. The time limit is short, because the user waits after
// a key press.
func (c commands) complete(ctx context.Context, typed string, words func(context.Context, *cluster) ([]string, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	const timeLimit = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	in, err := c.connect(c.flags)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all, err := words(ctx, in)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return beginningWith(typed, all), cobra.ShellCompDirectiveNoFileComp
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
