// Package agent knows the agent CLIs: how each is found, started with exactly
// one MCP server and no tools but that server's, and how its event stream reads.
// Facts of each CLI are in its own file, with the version they were seen in.
package agent

import (
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// OwnTools says which of its own tools a CLI keeps. The zero value is none,
// which makes the run sealed.
type OwnTools struct {
	All  bool
	List []string
}

// None reports whether every own tool is off.
func (o OwnTools) None() bool { return !o.All && len(o.List) == 0 }

// Plan is what a CLI is started with.
type Plan struct {
	Server string   // the name the CLI knows our endpoint by
	URL    string   // of the endpoint
	Token  string   // treated as known to the agent, and still kept out of argv
	Tools  []string // exposed names in scope, for CLIs that want them listed
	Prompt []byte   // given on stdin
	Folder string   // absolute; the working directory
	Dirs   []string // absolute; further folders the CLI may name
	Model  string   // "" is the CLI's own default

	OwnTools OwnTools
	// Budget is what the run may cost, in US dollars; zero is no budget. A CLI
	// that has an option for it is told, and Finished events have the cost. One
	// that can't tell its cost refuses a budget in Command.
	Budget float64
	// Args are the user's extra arguments. Those that would undo what the run
	// enforces are an error.
	Args []string
	// Env are the user's extra variables, NAME=VALUE.
	Env []string
	// Environ is the caller's environment, from which an allowlist is taken.
	Environ []string

	PrivateDir string // 0700, of this run alone, gone after it
	TempDir    string // TMPDIR of the child, short, gone after the run

	// CallTimeout is how long the CLI may wait for one tool call; zero is
	// DefaultCallTimeout.
	CallTimeout time.Duration
}

// DefaultCallTimeout is Plan.CallTimeout where none is given. It is longer than
// the 60 s after which CLIs cut a call by themselves, because a call may wait
// for a person.
const DefaultCallTimeout = 10 * time.Minute

func (p Plan) callTimeout() time.Duration {
	if p.CallTimeout <= 0 {
		return DefaultCallTimeout
	}
	return p.CallTimeout
}

// Installation is an agent CLI found on this machine.
type Installation struct {
	Path    string // absolute
	Version string // "" where it was not asked for
}

// CLI is one agent CLI.
type CLI interface {
	// Name is what --agent calls it.
	Name() string
	// Find looks the CLI up: at path where not empty, else on the PATH in
	// environ. The error is a *fault.Error that says how to install it.
	Find(path string, environ []string) (Installation, error)
	// Command is the process to start. Spec.Marker, Stdout, Stderr and Grace
	// are left to the caller.
	Command(in Installation, p Plan) (proc.Spec, error)
	// Parser reads one run's standard output.
	Parser() Parser
	// ToolName is how the model sees tool of server.
	ToolName(server, tool string) string
}

// Parser turns the lines a CLI prints into events. It never fails: a line that
// is no event is a Log event, an event of an unknown type is nothing.
//
// What it returns is the agent's own account. Time and Run are left zero, and
// whatever concerns a tool that is not the bridge's is marked Observed.
type Parser interface {
	// Line reads one line without its end. cut means the line was longer than
	// the limit and b is only its head.
	Line(b []byte, cut bool) []event.Event
}

// ParserFor is cli.Parser for a run whose endpoint the CLI knows as server. A
// parser that was not told the name takes it from the stream, where the CLI
// names its one MCP server.
func ParserFor(cli CLI, server string) Parser {
	if c, ok := cli.(interface{ parserFor(server string) Parser }); ok {
		return c.parserFor(server)
	}
	return cli.Parser()
}

// Foreign are the announced tools that are not server's, in their order; nil
// where there are none. A sealed run fails on any. It goes by the spelling that
// cli gives server's tools, so it tells two servers apart only while neither
// name continues the other with the separator ("a" and "a__b"): that there is
// just one server is for Command to see to.
func Foreign(cli CLI, server string, announced []string) []string {
	prefix := cli.ToolName(server, "")
	var foreign []string
	for _, name := range announced {
		if len(name) <= len(prefix) || !strings.HasPrefix(name, prefix) {
			foreign = append(foreign, name)
		}
	}
	return foreign
}

var registry = []CLI{claude{}, scripted{}}

// Names are the CLIs that ByName knows, sorted.
func Names() []string {
	names := make([]string, len(registry))
	for i, c := range registry {
		names[i] = c.Name()
	}
	return names
}

// ByName is the CLI that --agent calls name. An unknown one is a *fault.Error
// of kind Usage.
func ByName(name string) (CLI, error) {
	for _, c := range registry {
		if c.Name() == name {
			return c, nil
		}
	}
	return nil, fault.New(fault.Usage, fault.Suggest(name, Names()), "no agent is called %q", clip(name, 64))
}
