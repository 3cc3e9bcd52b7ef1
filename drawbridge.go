// Package drawbridge gives one run of an agent CLI its own bridge: an MCP
// endpoint on a loopback port, with a token minted for the run, that lists only
// the tools in the run's scope and refuses every other call before anything
// executes.
//
// # Two ways in
//
// [Start] lowers a bridge inside your program. Use it where the tools an agent
// may call are functions of your own that need your program's live state. You
// get a URL and a token, hand them to whatever client you like
// ([Bridge.MCPConfig] is the mcpServers JSON most of them read), and [Bridge.Close]
// it when the work is done.
//
// [Run] does the whole of it: a bridge, an agent CLI started with that one MCP
// server and none of its own tools, its events, and the end of every process it
// started. It needs [Helper] as the first line of main:
//
//	func main() {
//		drawbridge.Helper()
//		// ...
//	}
//
// # What is promised
//
// Nothing a client sends widens the scope or changes the [Binding]: the
// workspace, channel and user are fixed when the run starts and read from no
// request. Every call, from the endpoint and from [Bridge.Call], takes one path:
// scope, arguments, policy, audit record, tool, audit record, answer. The record
// of a call is on its way to disk before the call runs. When Close or Run
// returns, the port refuses connections and no process of the run is alive.
//
// Every call is written to the record with its arguments, where values that look
// like secrets are masked. The record is in the state directory, see
// [Config.StateDir]; package audit reads and verifies it.
package drawbridge

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
	"github.com/drawbridge-mcp/drawbridge/internal/version"
)

// Version of this module, as it stands in records and in `drawbridge version`.
const Version = version.Version

// Helper must be the first line of main, and of TestMain, in a program that
// calls [Run] or allows execute_command. Run starts this same program again as
// the process that supervises an agent, and Helper is where that one turns off:
// it never returns there. Everywhere else it returns at once and changes nothing.
func Helper() {
	proc.Helper()
	agent.ScriptedMain()
}

// Binding says whom a run works for. It is fixed by [Start] and reaches every
// tool unchanged.
type Binding struct {
	Run       string // id of the run, never used before; "" is a fresh one
	Workspace string // whose memory and data; "" is "default"
	Channel   string // where the run was asked for; may be ""
	User      string // who asked; may be ""
	Agent     string // what works: a name of your choice; Run sets it to the CLI's
}

// Effects is what a tool can do to the world.
type Effects string

// The zero value counts as Destructive.
const (
	Read        Effects = "read"        // changes nothing
	Write       Effects = "write"       // changes something that can be changed back
	Destructive Effects = "destructive" // destroys, sends or spends
)

// Tool is one function of yours that a run may be given.
type Tool struct {
	// Name is best of A-Z a-z 0-9 _ -, so that mcp__server__name, which the
	// model sees, fits 64 characters. Any other name of up to 128 bytes (of what
	// can be read, without / and *) is listed by an alias that never changes and
	// that no other tool has; Config.Allow and Bridge.Call take the name itself,
	// or in Allow a pattern where it has other characters than A-Z a-z 0-9 _ - .
	Name        string
	Description string // for the model
	// InputSchema is a JSON Schema object with "type": "object". Empty is an
	// object of anything. A call that breaks it never reaches Run.
	InputSchema json.RawMessage
	Effects     Effects
	// Run does the work. args are the bytes the client sent ("{}" for none),
	// already checked against InputSchema; an identity in them is just data,
	// b is who the run works for. ctx ends with the run. An error and a panic
	// both become a result with IsError; the words of an error reach the
	// model, those of a panic only the log. Run is called concurrently.
	Run func(ctx context.Context, b Binding, args json.RawMessage) (ToolResult, error)
}

// ToolResult is what a tool answered.
type ToolResult struct {
	// Text is the answer. Invalid UTF-8 is replaced, and what is over
	// Limits.Output is cut out of the middle, with a marker that says so.
	Text string
	// Content holds further MCP content blocks (images, resources), verbatim.
	Content []json.RawMessage
	// Structured is MCP structuredContent: a JSON object, or nil.
	Structured json.RawMessage
	// IsError tells the model that it did not work.
	IsError bool
}

// Limits bound a run. A limit refuses calls, in words the model can read, and
// ends nothing. A negative one is an error.
type Limits struct {
	Calls      int64 // executed calls; 0 is no limit
	Concurrent int   // calls at once; 0 is 32
	Output     int   // bytes of one result; 0 is 64 KiB
	// Total is how many bytes all results may have together; 0 is no limit. The
	// result that crosses it is delivered, and further calls are refused.
	Total int64
	Call  time.Duration // time one call may take; 0 is 10 minutes
	// Grace is how long a cancelled tool may take to return. After it the call
	// is recorded as abandoned and nothing it returns is delivered. 0 is 5 s.
	Grace time.Duration
}

// Config is what a bridge is started with. The zero value starts one that lists
// no tools and refuses every call.
type Config struct {
	Binding Binding
	// Server is the middle of the name a model sees, mcp__server__tool.
	// "" is "drawbridge".
	Server string
	// Tools are your own.
	Tools []Tool
	// Builtins names built-in tools to add: memory_search, memory_add,
	// memory_delete, read_file, list_files, search_files, write_file,
	// edit_file, delete_file, execute_command. nil adds none.
	Builtins []string
	// Allow is the scope: names of Tools and Builtins, where * stands for any
	// characters. nil and empty allow nothing. A name that is no tool's is an
	// error.
	Allow []string
	// Ask names those of the allowed tools, as Allow does, that a person is asked
	// about before each call. nil asks about none.
	Ask []string
	// Plan begins the run in plan mode: only tools with effects [Read] run, until
	// a person has approved the plan that the agent hands in with submit_plan.
	Plan bool
	// Approve answers the questions of Ask and Plan: show q.Text, or the fields
	// you like, to a person. It is called on a goroutine of its own for each
	// question; ctx is done when the question is settled without it, because it
	// expired, the client gave up or the run is over. nil: the sealed run of [Run]
	// is answered with `drawbridge approve` from another terminal, and every
	// other one that could ask fails to start, as its own code could answer.
	Approve func(ctx context.Context, q Question) Answer
	// AskExpiry is how long a question waits; then the call is refused. 0 is 10
	// minutes.
	AskExpiry time.Duration
	// Folder is where the file tools and commands work. "" is none, and then
	// allowing one of them is an error.
	Folder string
	Limits Limits
	// SandboxOff accepts that execute_command runs unconfined, with all you
	// can do yourself. Without it, allowing execute_command is an error.
	SandboxOff bool
	// StateDir keeps records and memory. "" is $XDG_STATE_HOME/drawbridge, or
	// ~/.local/state/drawbridge. It is made with mode 0700; one that others can
	// read is refused.
	StateDir string
	// Secrets are values (8 bytes or more) to mask in records, results and
	// logs. The run's token is always masked.
	Secrets []string
	// Instructions are given to the client when it connects. "" is none.
	Instructions string
	// ConnectionClose answers every request with Connection: close. At least
	// one CLI loses its tools that way; leave it off unless a client needs it.
	ConnectionClose bool
	// Events, if set, is called for what happens in the run, one event at a
	// time and in order; the last one is of kind "ended". It may call back into
	// the Bridge, but not Close it: Close waits for it. (Ending the context
	// that the bridge was started with is the way to close it from there.)
	// While it is slow, an agent that talks much has to wait for it.
	Events func(Event)
	Logger *slog.Logger     // nil discards
	Now    func() time.Time // nil is time.Now
}

// Question is a call that a person is asked about. All text in it is safe to
// print: secrets are masked, and what a person can't see is made visible.
type Question = approve.Question

// Answer is what the person says. The zero value is a no.
type Answer struct {
	Yes      bool
	Reason   string // for the model and the record; at most 1,000 bytes are kept
	Remember bool   // with Yes: also for the same tool with the same arguments, in this run
}

// Bridge is the endpoint, the gate and the tools of one run. Its methods may be
// called concurrently.
type Bridge struct{ s *session.Session }

// Start lowers a bridge. It listens before Start returns. The bridge closes
// when ctx ends, and with [Bridge.Close], which the caller owes it.
//
// Errors are of type [*Error] and say what to change; nothing is left behind.
func Start(ctx context.Context, cfg Config) (*Bridge, error) {
	s, err := session.New(ctx, cfg.session())
	if err != nil {
		return nil, err
	}
	return &Bridge{s}, nil
}

// ID is the run's id. Its record is in the state directory under this name.
func (b *Bridge) ID() string { return b.s.ID() }

// URL is the endpoint's address, http://127.0.0.1:PORT/mcp.
func (b *Bridge) URL() string { return b.s.URL() }

// Token is what a client sends as "Authorization: Bearer TOKEN". Keep it out of
// command lines and logs. Whoever has it can do what is in the run's scope and
// no more.
func (b *Bridge) Token() string { return b.s.Token() }

// Tools are the names in the run's scope, sorted.
func (b *Bridge) Tools() []string { return b.s.Tools() }

// MCPConfig is the mcpServers JSON that MCP clients are configured with. It
// holds the token.
func (b *Bridge) MCPConfig() []byte { return b.s.MCPConfig() }

// AuditHead is the hash of the last line of the run's record; it is final once
// Close has returned. Keep it elsewhere to prove the record later.
func (b *Bridge) AuditHead() string { return b.s.Head() }

// Call makes a tool call from inside your own process, through the very same
// gate. args is a JSON object; nil is none. A name outside the scope is
// [ErrNotAvailable]; every other refusal is a result with IsError, as a client
// would see it.
func (b *Bridge) Call(ctx context.Context, tool string, args json.RawMessage) (ToolResult, error) {
	res, err := b.s.Call(ctx, tool, args)
	if err != nil {
		return ToolResult{}, publicError(err)
	}
	return toolResult(res), nil
}

// Ready waits until a client has listed the tools. A run whose client never did
// had no tools, whatever its exit code says. The error is ctx's, or an [*Error]
// of kind [NotReady] where the bridge closed first.
func (b *Bridge) Ready(ctx context.Context) error { return b.s.Ready(ctx) }

// Close raises the bridge: the port is closed at once, calls under way are
// cancelled, and the record is closed. It returns when all of that is done and
// may be called again: after at most Limits.Grace, and where an execute_command
// is under way after its processes are dead too. The error is of kind
// [RecordIncomplete] where a line of the record is missing.
func (b *Bridge) Close() error { return b.s.Close() }

func (cfg Config) session() session.Config {
	c := session.Config{
		Binding: call.Binding(cfg.Binding), Server: cfg.Server, Builtins: cfg.Builtins, Allow: cfg.Allow,
		Folder: cfg.Folder, StateDir: cfg.StateDir, Limits: session.Limits(cfg.Limits), SandboxOff: cfg.SandboxOff,
		ConnectionClose: cfg.ConnectionClose, Instructions: cfg.Instructions, Secrets: cfg.Secrets,
		Ask: cfg.Ask, Plan: cfg.Plan, Approvals: session.Approvals{Expiry: cfg.AskExpiry}, Follow: cfg.Events, Logger: cfg.Logger, Now: cfg.Now, Version: "drawbridge " + Version,
	}
	if ask := cfg.Approve; ask != nil {
		c.Approvals.Inside = func(ctx context.Context, q approve.Question) approve.Answer {
			a := ask(ctx, q)
			return approve.Answer{Yes: a.Yes, Note: a.Reason, Remember: a.Remember}
		}
	}
	for _, t := range cfg.Tools {
		c.Tools = append(c.Tools, t.internal())
	}
	return c
}

func (t Tool) internal() call.Tool {
	in := call.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema, Effects: call.Effects(t.Effects)}
	if t.Run != nil {
		in.Run = func(ctx context.Context, inv call.Invocation) (call.Result, error) {
			res, err := t.Run(ctx, Binding(inv.Binding), inv.Arguments)
			if err != nil {
				return call.Result{}, err
			}
			return res.internal()
		}
	}
	return in
}

func (r ToolResult) internal() (call.Result, error) {
	out := call.Result{IsError: r.IsError}
	if r.Text != "" || len(r.Content) == 0 {
		out.Content = append(out.Content, call.Block{Text: r.Text})
	}
	for _, c := range r.Content {
		if err := call.CheckJSON(c); err != nil {
			return call.Result{}, fault.Wrap(err, fault.Agent, "", "a content block of the tool's result")
		}
		out.Content = append(out.Content, call.Block{JSON: c})
	}
	if r.Structured != nil {
		if _, err := call.DecodeObject(r.Structured); err != nil {
			return call.Result{}, fault.Wrap(err, fault.Agent, "", "the structured content of the tool's result")
		}
		out.Structured = r.Structured
	}
	return out, nil
}

func toolResult(r call.Result) ToolResult {
	content, structured := r.Parts()
	out := ToolResult{IsError: r.IsError, Structured: structured}
	for _, b := range content {
		switch {
		case b.JSON != nil:
			out.Content = append(out.Content, b.JSON)
		case out.Text == "":
			out.Text = b.Text
		default:
			out.Text += "\n" + b.Text
		}
	}
	return out
}
