// Package early answers `drawbridge version`, which scripts ask often, before the
// program's libraries are initialised. That takes most of a start.
//
// Packages are initialised in the order of their import paths, each as soon as
// what it imports is (https://go.dev/ref/spec#Program_initialization). This one
// imports next to nothing, so its turn comes first. If that ever changed, it would
// be slower and nothing else.
package early

import (
	"os"

	"github.com/drawbridge-mcp/drawbridge/internal/version"
)

func init() {
	if len(os.Args) != 2 || os.Args[1] != "version" {
		return
	}
	if _, err := os.Stdout.WriteString(version.Line() + "\n"); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}
