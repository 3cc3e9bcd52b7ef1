// Package policyfile reads the policy file: YAML, strictly, into the layers of
// package policy. Whatever it does not know, and whatever has two readings, is
// an error that names file, line, column and the offending piece.
package policyfile

import (
	"fmt"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// File is a policy file as it is written. The field tags are the language: the
// decoder follows them, and the JSON Schema for editors is made from them.
type File struct {
	Version    int64                `json:"version" jsonschema:"version of this language: 1"`
	Server     Text                 `json:"server,omitzero" jsonschema:"the middle of the tool name a model sees, mcp__SERVER__tool; default drawbridge"`
	Upstreams  map[string]Upstream  `json:"upstreams,omitempty" jsonschema:"other MCP servers, in the shape of an mcpServers entry; read and checked, not used in this version"`
	Agents     map[string]Agent     `json:"agents,omitempty" jsonschema:"what --agent can name; an agent grants, everything else only takes away"`
	Workspaces map[string]Workspace `json:"workspaces,omitempty" jsonschema:"what --workspace can name; * is every other name"`
	Approvals  *Approvals           `json:"approvals,omitempty" jsonschema:"how a person is asked where a rule says ask, and about plans"`

	path string
	base string // of path: what decisions name
}

// Section is what agents, workspaces and channels have in common.
type Section struct {
	At     Pos     `json:"-"` // of the key
	Tools  *Tools  `json:"tools,omitempty" jsonschema:"which tools"`
	Rules  []Rule  `json:"rules,omitempty" jsonschema:"rules that make some calls stricter"`
	Limits *Limits `json:"limits,omitempty" jsonschema:"limits of a run; the strictest of all layers holds"`
	Mode   Text    `json:"mode,omitzero" jsonschema:"plan: until a person has approved a plan only tools that read run; act is the default, and can not undo plan of another layer"`
}

// Agent is one entry of agents: the layer that grants.
type Agent struct {
	Section
	CLI     Text     `json:"cli,omitzero" jsonschema:"the agent CLI that drawbridge run starts"`
	Sandbox *Sandbox `json:"sandbox,omitempty" jsonschema:"what confines commands; not built yet, so a run needs --sandbox=off"`
}

// Workspace is one entry of workspaces.
type Workspace struct {
	Section
	Folder   Text               `json:"folder,omitzero" jsonschema:"default of --folder with a policy agent: an absolute path, or one that begins with ~/"`
	Channels map[string]Channel `json:"channels,omitempty" jsonschema:"what --channel can name; * is every other name"`
}

// Channel is one entry of channels.
type Channel struct{ Section }

// Tools are the two lists of a layer. In an agent, Allow grants, and without it
// nothing is granted. In a later layer Allow takes away what it does not name,
// and without it nothing is taken away.
type Tools struct {
	At    Pos       `json:"-"`
	Allow *Patterns `json:"allow,omitempty" jsonschema:"names and patterns with *; [] is nothing"`
	Deny  *Patterns `json:"deny,omitempty" jsonschema:"names and patterns with *; beats allow of every layer"`
}

// Rule is one entry of rules.
type Rule struct {
	At     Pos       `json:"-"`
	Tools  *Patterns `json:"tools,omitempty" jsonschema:"the tools it concerns; without it, every tool"`
	When   Text      `json:"when,omitzero" jsonschema:"a CEL expression over tool, args, binding and mode; without it, always"`
	Then   Text      `json:"then" jsonschema:"ask or deny"`
	Reason Text      `json:"reason,omitzero" jsonschema:"what the model is told"`

	compiled policy.Condition
}

// Limits are the limits of a layer. Each field is absent for no limit.
type Limits struct {
	At Pos `json:"-"`
	ToolLimits
	Wall   Duration              `json:"wall,omitzero" jsonschema:"time of the whole run, like 30m"`
	Budget Dollars               `json:"budget,omitzero" jsonschema:"US dollars the whole run may cost, like 2.50, by what the agent CLI reports"`
	Tools  map[string]ToolLimits `json:"tools,omitempty" jsonschema:"limits of single tools, by name or pattern; each tool has them for itself"`
}

// ToolLimits are the limits a run and a single tool can have.
type ToolLimits struct {
	At         Pos      `json:"-"`
	Calls      Count    `json:"calls,omitzero" jsonschema:"executed calls"`
	Concurrent Count    `json:"concurrent,omitzero" jsonschema:"calls under way at once"`
	Output     Size     `json:"output,omitzero" jsonschema:"bytes of one result, like 64KiB; the middle of a longer one is left out"`
	Total      Size     `json:"total,omitzero" jsonschema:"bytes of all results together; when they are used up, further calls are refused"`
	Call       Duration `json:"call,omitzero" jsonschema:"time one call may take, like 30s"`
}

// Approvals say how the questions of runs reach a person.
type Approvals struct {
	At     Pos      `json:"-"`
	Expiry Duration `json:"expiry,omitzero" jsonschema:"how long an answer counts, like 10m, which is the default; no answer in that time is a no"`
	Notify []Text   `json:"notify,omitempty" jsonschema:"program and arguments that get each question as a JSON object on standard input; they tell a person and can not answer"`
	// SameUser is for runs whose code could answer in a person's place.
	SameUser bool `json:"same_user_can_answer,omitempty" jsonschema:"accept questions in runs whose own code could answer them; the record says so"`
}

// Sandbox is what an agent's commands may reach.
type Sandbox struct {
	At      Pos    `json:"-"`
	Write   []Text `json:"write,omitempty" jsonschema:"folders that can be written"`
	Network []Text `json:"network,omitempty" jsonschema:"hosts that can be reached; [] is none"`
}

// Upstream is one MCP server: a command or a URL.
type Upstream struct {
	At       Pos               `json:"-"`
	Type     Text              `json:"type,omitzero" jsonschema:"stdio or http; told from command or url otherwise"`
	Command  Text              `json:"command,omitzero" jsonschema:"program of a stdio server"`
	Args     []Text            `json:"args,omitempty" jsonschema:"its arguments"`
	Env      map[string]Secret `json:"env,omitempty" jsonschema:"its variables; ${NAME} is taken from the environment"`
	Cwd      Text              `json:"cwd,omitzero" jsonschema:"its working directory"`
	URL      Text              `json:"url,omitzero" jsonschema:"address of an HTTP server"`
	Headers  map[string]Secret `json:"headers,omitempty" jsonschema:"headers of its requests; ${NAME} is taken from the environment"`
	Required bool              `json:"required,omitempty" jsonschema:"a run fails where it does not come up"`
	Sandbox  Text              `json:"sandbox,omitzero" jsonschema:"off runs it unconfined"`
	Effects  map[string]Text   `json:"effects,omitempty" jsonschema:"read, write or destructive, by tool name or pattern; destructive otherwise"`
}

// Pos is a place in the file. The zero value is none.
type Pos struct{ Line, Column int }

// Text is a string and its place. The zero value was not written.
type Text struct {
	Value string
	At    Pos
}

// IsZero is for omitzero.
func (t Text) IsZero() bool { return t.At == Pos{} }

// Secret is a Text in which ${NAME} stands for a variable of the environment.
type Secret struct{ Text }

// Count is a whole number from 1.
type Count struct {
	Value int64
	At    Pos
}

// Size is a number of bytes from 1, written as a number or with KiB, MiB, GiB
// (KB and MB are refused: people mean different things by them).
type Size struct {
	Value int64
	At    Pos
}

// Duration is a time span, written like 90s, 30m or 1h30m.
type Duration struct {
	Value time.Duration
	At    Pos
}

// Dollars is an amount of US dollars above 0, with at most six digits before and
// after the point.
type Dollars struct {
	Value float64
	At    Pos
}

// Patterns is a list of tool patterns. One that was written is not nil.
type Patterns struct {
	At   Pos
	List []policy.Pattern
	at   []Pos
}

// place is how a decision names a place.
func (f *File) place(p Pos) string { return fmt.Sprintf("%s:%d", f.base, p.Line) }
