package plugin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// kubectlFlags are kubectl's flags that select the cluster.
type kubectlFlags struct {
	*genericclioptions.ConfigFlags
	set *pflag.FlagSet
}

func newFlags() kubectlFlags {
	flags := kubectlFlags{genericclioptions.NewConfigFlags(true), pflag.NewFlagSet("kubectl", pflag.ContinueOnError)}
	flags.CacheDir = nil // nothing is cached
	flags.AddFlags(flags.set)
	return flags
}

// notRepeated are flags that do not select the cluster or the user, and secrets.
var notRepeated = []string{"disable-compression", "namespace", "request-timeout", "token"}

// where returns the given flags for printed commands. Without them, the commands would use another cluster or user.
func (f kubectlFlags) where() string {
	var b strings.Builder
	f.set.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed || slices.Contains(notRepeated, flag.Name) {
			return
		}
		values := []string{flag.Value.String()}
		if several, ok := flag.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		for _, value := range values {
			fmt.Fprintf(&b, " --%s=%s", flag.Name, quoted(value))
		}
	})
	return b.String()
}

// plain matches words that need no quotes in a shell.
var plain = regexp.MustCompile(`^[\w%+,./:=@-]*$`)

// quoted returns a word, quoted for a shell.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
