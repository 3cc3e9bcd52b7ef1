//go:build linux

package drawbridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drawbridge-mcp/drawbridge"
)

// A run of the built-in scripted agent, which needs no model; "claude" and a
// prompt in its place make a real one. The first line of this program's main is
// drawbridge.Helper().
func ExampleRun() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	res, err := drawbridge.Run(context.Background(), drawbridge.RunConfig{
		Config: drawbridge.Config{
			Binding:  drawbridge.Binding{Workspace: "team"},
			Builtins: []string{"memory_add", "memory_search", "memory_delete"},
			Allow:    []string{"memory_add", "memory_search"},
			Folder:   dir,
			StateDir: filepath.Join(dir, "state"),
			Events: func(e drawbridge.Event) {
				if e.Kind == "call" {
					fmt.Println(e.Tool, e.Outcome)
				}
			},
		},
		Agent: "scripted",
		Prompt: `call memory_add {"text": "the budget review is on Thursday"}
call memory_search {"query": "budget"}
call memory_delete {"id": "x"}
say noted`,
	})
	if err != nil {
		fmt.Println(drawbridge.KindOf(err), err)
		return
	}
	fmt.Println(res.Text, res.Level, res.Calls, res.Refused)
	// Output:
	// memory_add ok
	// memory_search ok
	// memory_delete refused
	// noted sealed 2 1
}
