// Package docs checks that the pages, the chart and the code agree.
package docs

import (
	"fmt"
	"os"
	"testing"
)

// The tests read files relative to the directory of the pages.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../docs"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
