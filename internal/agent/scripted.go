package agent

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// scripted is a headless agent without a model, built into this binary: it
// plays the script that its prompt is. ScriptedMain is its other half and has
// the script's language.
type scripted struct{}

// scriptedName is what the binary is started as to be the scripted agent.
const scriptedName = "drawbridge-scripted-agent"

// scriptedExec is the one own tool of the scripted agent.
const scriptedExec = "exec"

func (scripted) Name() string { return "scripted" }

func (scripted) ToolName(server, tool string) string { return claude{}.ToolName(server, tool) }

func (scripted) Find(path string, _ []string) (Installation, error) {
	if path != "" {
		return Installation{}, fault.New(fault.Usage, "leave --agent-path out", "the scripted agent is built in and has no path")
	}
	// The link stays right when the file it was started from has been replaced.
	if runtime.GOOS == "linux" {
		return Installation{Path: "/proc/self/exe", Version: "built in"}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return Installation{}, fault.Wrap(err, fault.Usage, "start drawbridge by its full path", "finding this program's own file")
	}
	return Installation{Path: self, Version: "built in"}, nil
}

func (scripted) Command(in Installation, p Plan) (proc.Spec, error) {
	if err := checkPlan(p); err != nil {
		return proc.Spec{}, err
	}
	if len(p.Args) > 0 {
		return proc.Spec{}, fault.New(fault.Usage, "leave --agent-arg out", "the scripted agent takes no argument %q", clip(p.Args[0], 64))
	}
	args := []string{scriptedName, "--mcp-config", "/dev/fd/3"}
	for _, name := range p.OwnTools.List {
		if name != scriptedExec {
			return proc.Spec{}, fault.New(fault.Usage, "its only own tool is "+scriptedExec, "own tool %q is not one of the scripted agent", clip(name, 64))
		}
	}
	if !p.OwnTools.None() {
		args = append(args, "--own-tools")
	}
	config, err := mcpConfig(p)
	if err != nil {
		return proc.Spec{}, err
	}
	var env environment
	env.take(p.Environ, base)
	if err := env.add(p.Env, []string{"TMPDIR"}); err != nil {
		return proc.Spec{}, err
	}
	env.set("TMPDIR", p.TempDir)
	return proc.Spec{
		Path: in.Path, Args: args, Env: env, Dir: p.Folder,
		Stdin: bytes.NewReader(p.Prompt), Files: [][]byte{config},
	}, nil
}

func (scripted) Parser() Parser                 { return &scriptedStream{} }
func (scripted) parserFor(server string) Parser { return &scriptedStream{server: server} }

// scriptedLine is one line of the scripted agent's stream.
type scriptedLine struct {
	event.Event
	Server string `json:"server,omitempty"` // on started
}

// scriptedStream reads it. The agent is trusted with nothing that is known on
// our side: of each kind only the members an agent can know of are taken.
type scriptedStream struct{ server string }

func (s *scriptedStream) Line(b []byte, cut bool) []event.Event {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil
	}
	var in scriptedLine
	// A line of another program may be JSON and still not an event.
	if cut || b[0] != '{' || json.Unmarshal(b, &in) != nil {
		return logged(b)
	}
	out := event.Event{Kind: in.Kind}
	switch in.Kind {
	case event.Started:
		if s.server == "" {
			s.server = in.Server
		}
		out.Tools, out.Status, out.Text, out.Version = in.Tools, in.Status, in.Text, in.Version
	case event.Text:
		out.Text = in.Text
	case event.ToolCall:
		out.Tool, out.CallID, out.Arguments, out.Observed = in.Tool, in.CallID, compact(in.Arguments), !s.ours(in.Tool)
	case event.ToolResult:
		out.Tool, out.CallID, out.Result, out.IsError, out.Observed = in.Tool, in.CallID, clean(in.Result), in.IsError, !s.ours(in.Tool)
	case event.Finished:
		out.OK, out.Text, out.Status, out.Usage, out.CostUSD, out.Turns = in.OK, in.Text, in.Status, in.Usage, in.CostUSD, max(0, in.Turns)
	default:
		return nil
	}
	return []event.Event{out}
}

func (s *scriptedStream) ours(tool string) bool {
	return s.server != "" && len(call.Clip(tool)) == len(tool) && len(Foreign(scripted{}, s.server, []string{tool})) == 0
}
