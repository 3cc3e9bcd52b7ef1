// Command embed is an app whose tools read and change its own live state while
// an agent works: the reason a bridge lives inside the process it serves.
//
// The app is a thermostat. Its state is a struct in memory, so no tool of
// another process could reach it. The agent here is the scripted one, which
// needs nothing installed; put "claude" and a prompt in its place.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/drawbridge-mcp/drawbridge"
)

// thermostat is the live state.
type thermostat struct {
	mu     sync.Mutex
	room   float64 // degrees Celsius
	target float64
	asked  string // who set the target last
}

func (t *thermostat) tools() []drawbridge.Tool {
	return []drawbridge.Tool{
		{
			Name:        "read_temperature",
			Description: "Read the temperature of the room and the target.",
			Effects:     drawbridge.Read,
			Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
				t.mu.Lock()
				defer t.mu.Unlock()
				return drawbridge.ToolResult{Text: fmt.Sprintf("room %.1f, target %.1f", t.room, t.target)}, nil
			},
		},
		{
			Name:        "set_target",
			Description: "Set the target temperature, 5 to 25 degrees Celsius.",
			InputSchema: json.RawMessage(`{"type":"object","properties":{"celsius":{"type":"number","minimum":5,"maximum":25}},"required":["celsius"]}`),
			Effects:     drawbridge.Write,
			Run: func(_ context.Context, b drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
				var in struct {
					Celsius float64 `json:"celsius"`
				}
				if err := json.Unmarshal(args, &in); err != nil {
					return drawbridge.ToolResult{}, err
				}
				t.mu.Lock()
				defer t.mu.Unlock()
				t.target, t.asked = in.Celsius, b.User
				return drawbridge.ToolResult{Text: fmt.Sprintf("target is %.1f now", in.Celsius)}, nil
			},
		},
		{
			Name:        "open_valve",
			Description: "Open the heating valve by hand.",
			Effects:     drawbridge.Destructive,
			Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
				return drawbridge.ToolResult{}, fmt.Errorf("nobody may do this unattended")
			},
		},
	}
}

func main() {
	drawbridge.Helper() // the same binary also supervises the agent
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	// A real app keeps both: records are worth something afterwards.
	dir, err := os.MkdirTemp("", "embed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	folder := filepath.Join(dir, "work")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}

	home := &thermostat{room: 17.5, target: 18}
	res, err := drawbridge.Run(context.Background(), drawbridge.RunConfig{
		Config: drawbridge.Config{
			Binding:  drawbridge.Binding{Workspace: "home", User: "ada"},
			Server:   "thermostat",
			Tools:    home.tools(),
			Allow:    []string{"read_temperature", "set_target"},
			Folder:   folder,
			StateDir: filepath.Join(dir, "state"), // never inside the folder
			Events: func(e drawbridge.Event) {
				if e.Kind == "call" {
					fmt.Printf("%s(%s): %s\n", e.Tool, e.Arguments, e.Outcome)
				}
			},
		},
		Agent: "scripted",
		Prompt: `call read_temperature
call set_target {"celsius": 21, "user": "mallory"}
call set_target {"celsius": 40}
call open_valve
say it is warm now
`,
	})
	if err != nil {
		return err
	}
	fmt.Printf("agent: %s\n", res.Text)
	fmt.Printf("target %.1f, set for %s; %d calls ran, %d were refused\n", home.target, home.asked, res.Calls, res.Refused)
	return nil
}
