package plugin

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

func (c commands) historyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "history NAME",
		Short: "List the last ten handoffs",
		Long: `history lists the last ten handoffs of a StatefulSingleton, the newest first: when the next pod was released, the old and
the next pod, the cause, the proof that the old pod had terminated, and the gap between their main processes.`,
		Example: `  kubectl stfs history db -n prod`,
		Args:    takes(1, 1), ValidArgsFunction: c.completeKinds(singletonKind),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			o, err := in.read(ctx, args[0], singletonKind)
			if err != nil {
				return err
			}
			singleton := o.(*v1.StatefulSingleton)
			return c.print("%s", cmp.Or(historyText(&singleton.Status), fmt.Sprintf("StatefulSingleton %s has not had a handoff.\n", fullName(singleton))))
		}),
	}
}

// historyText returns a table of the handoffs. Empty: there was none.
func historyText(status *v1.StatefulSingletonStatus) string {
	handoffs := status.History
	if last := status.LastTransition; last != nil && last.To != "" {
		handoffs = append([]v1.PastHandoff{last.Past()}, handoffs...)
	}
	if len(handoffs) == 0 {
		return ""
	}
	return columns(func(row func(cells ...string)) {
		row("TIME", "FROM", "TO", "CAUSE", "PROOF", "GAP")
		for _, h := range handoffs {
			when, gap := "-", "-"
			if h.Time != nil {
				when = h.Time.UTC().Format(time.RFC3339)
			}
			if h.GapMilliseconds != nil {
				gap = (time.Duration(*h.GapMilliseconds) * time.Millisecond).String()
			}
			row(when, cmp.Or(h.From, "-"), h.To, string(h.Cause), cmp.Or(string(h.Proof), "-"), gap)
		}
	})
}
