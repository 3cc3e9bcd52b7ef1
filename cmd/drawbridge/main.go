// Command drawbridge runs agent CLIs behind a bridge. See README.md.
package main

import (
	"os"

	"github.com/drawbridge-mcp/drawbridge"
	_ "github.com/drawbridge-mcp/drawbridge/cmd/drawbridge/internal/early"
	_ "github.com/drawbridge-mcp/drawbridge/cmd/drawbridge/internal/early/helper"
	"github.com/drawbridge-mcp/drawbridge/internal/cli"
)

func main() {
	drawbridge.Helper()
	os.Exit(cli.Main())
}
