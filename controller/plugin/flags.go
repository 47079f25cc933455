package plugin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// kubectlFlags are the flags that kubectl itself has, by which it finds the cluster.
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

// notRepeated are flags that say nothing of which cluster is meant, or who asks it; and a
// secret, which is shown to nobody.
var notRepeated = []string{"disable-compression", "namespace", "request-timeout", "token"}

// where repeats the flags that were given, for the commands that are told: without them
// these would be about another cluster, or be another user's.
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

// plain is what a shell reads as it stands.
var plain = regexp.MustCompile(`^[\w%+,./:=@-]*$`)

// quoted is a word for a shell.
func quoted(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
