package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

func (c commands) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain " + anyName,
		Short: "Explain why an object is not Ready, and which commands help",
		Long: `explain says why a StatefulSingleton (stfs/NAME, or only NAME), a StatefulSetLock (ssl/NAME) or a StatefulCluster
(stc/NAME) is not Ready, or why the next pod would not be held. It also prints commands that help. explain reads the
cluster itself, so it works while the controller is down.`,
		Example: `  kubectl stfs explain db -n prod

  kubectl stfs explain ssl/postgres -n prod

  kubectl stfs explain stc/cassandra -n prod`,
		Args: takes(1, 1), ValidArgsFunction: c.completeKinds(allKinds...),
		RunE: c.in(func(ctx context.Context, in *cluster, args []string) error {
			o, err := in.lookAt(ctx, args[0])
			if err != nil {
				return err
			}
			return c.print("%s", o.explanation(c.clock.Now()).text())
		}),
	}
}

// help is a command for the user, with its purpose.
type help struct{ to, command string }

// explanation is the state of an object, with commands that help.
type explanation struct {
	place
	headline string
	texts    []string
	helps    []help
}

// text returns the explanation as text.
func (e explanation) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", e.place, e.headline)
	for _, text := range e.texts {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	if len(e.helps) > 0 {
		b.WriteString("\nCommands that help:\n")
	}
	for _, h := range slices.Compact(e.helps) {
		fmt.Fprintf(&b, "  to %s:\n      %s\n", h.to, h.command)
	}
	return b.String()
}

// check is the command that checks the installation.
func (p place) check() help { return help{"check the installation", p.kubectl("stfs check")} }

// explainDeletion says what the deletion waits for: the message. Empty: it waits for nothing.
func (p place) explainDeletion(message string) explanation {
	e := explanation{place: p, headline: "is being deleted"}
	switch {
	case p.hidden != "":
		e.texts = []string{"You do not have permission to read " + p.hidden + ", so this command cannot show what the deletion waits for. The events of the " + p.name + " show it."}
		e.helps = []help{{"show the events", p.kubectl("describe %s %s", p.shortName, p.object.GetName())}}
	case message == "":
		e.texts = []string{fmt.Sprintf("Nothing blocks the deletion, and the controller removes the %[1]s within seconds. If the %[1]s stays longer, the controller does not run.", p.name)}
		e.helps = []help{p.check()}
	default:
		e.texts = []string{p.in.amended(message)}
	}
	return e
}

// addCaveats says that the status is stale, or that the explanation is only the status, because the user cannot read all that the
// controller reads. If condition PolicyInstalled is not True, it says why it is not known what happens to new pods.
func (e *explanation) addCaveats(stale bool, conditions []metav1.Condition, newPods string) {
	if stale {
		e.texts = append(e.texts, "The status of the "+e.name+" does not report this yet. "+
			"If the status does not change within a few seconds, the controller does not run.")
		e.helps = append(e.helps, e.check())
	}
	if e.hidden != "" {
		e.texts = append(e.texts, "You do not have permission to read "+e.hidden+", so this is what the status of the "+e.name+" says.")
	}
	if newPods == "" || meta.IsStatusConditionTrue(conditions, v1.ConditionPolicyInstalled) {
		return
	}
	message := "the controller has not set condition PolicyInstalled yet"
	if installed := meta.FindStatusCondition(conditions, v1.ConditionPolicyInstalled); installed != nil {
		message = installed.Message
	}
	e.texts = append(e.texts, fmt.Sprintf("No dry-run has shown that new pods %s: %s", newPods, e.in.amended(message)))
	e.helps = append(e.helps, e.check())
}
