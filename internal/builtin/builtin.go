// Package builtin is the tools the product brings: memory, files and commands.
// Each constructor returns plain call.Tools; nothing here runs unless the gate
// calls it.
package builtin

import (
	"github.com/go-json-experiment/json"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// decode reads a tool's arguments. Unlike encoding/json it matches names
// exactly, so that a "Path" beside a "path" can't be what the tool reads while
// the gate judged the other.
func decode(inv call.Invocation, into any) error {
	return json.Unmarshal(inv.Arguments, into)
}
