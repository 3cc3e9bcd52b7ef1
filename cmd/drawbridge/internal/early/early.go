// Package early is what the command does before its libraries are initialised,
// which takes most of its start: a helper is started for every run and every
// command of an agent, and `drawbridge version` is asked by scripts.
//
// Packages are initialised in the order of their import paths, each as soon as
// what it imports is (https://go.dev/ref/spec#Program_initialization). This one
// imports next to nothing, so its turn comes before that of anything large. If
// that ever changed, it would be slower and nothing else.
package early

import (
	"os"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/version"
)

func init() {
	proc.Helper()
	if len(os.Args) == 2 && os.Args[1] == "version" {
		if _, err := os.Stdout.WriteString(version.Line() + "\n"); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
}
