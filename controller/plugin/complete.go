package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeName offers the names of the namespace's singletons.
func (c commands) completeName(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd.Context(), func(ctx context.Context, in *cluster) (offers []cobra.Completion, err error) {
		singletons, err := in.list(ctx, in.namespace)
		for i := range singletons {
			s := &singletons[i]
			if strings.HasPrefix(s.Name, typed) {
				offers = append(offers, cobra.CompletionWithDesc(s.Name, string(s.Status.Phase)))
			}
		}
		return offers, err
	})
}

// completeNameAndUID is completeName, and then the uid of the recorded holder.
func (c commands) completeNameAndUID(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return c.completeName(cmd, args, typed)
	}
	return c.complete(cmd.Context(), func(ctx context.Context, in *cluster) ([]cobra.Completion, error) {
		s, err := in.find(ctx, args[0])
		if err != nil || s.Status.ActivePodUID == "" {
			return nil, err
		}
		return []cobra.Completion{cobra.CompletionWithDesc(string(s.Status.ActivePodUID), "pod "+s.Status.ActivePod)}, nil
	})
}

// complete asks the cluster what to offer, for as long as somebody waits who has pressed a key.
func (c commands) complete(ctx context.Context, offer func(context.Context, *cluster) ([]cobra.Completion, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
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

// completeOutput offers the values of --output.
func completeOutput(cmd *cobra.Command, values ...cobra.Completion) {
	err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(fmt.Sprintf("flag --output of %s: %v", cmd.Name(), err)) // it exists
	}
}
