// Package event is what happens in a run, in one normal form for every agent
// CLI. One event is one JSON line of `drawbridge run --json`. It is a leaf.
package event

import (
	"encoding/json"
	"time"
)

// Kind names what happened.
type Kind string

const (
	// Started: the CLI said it is up. Tools holds what it announces to the
	// model, in its own spelling; Status the state it sees its MCP server in.
	Started Kind = "started"
	// ToolsListed: the endpoint served tools/list; Tools holds the names.
	ToolsListed Kind = "tools_listed"
	// Text: the model wrote something.
	Text Kind = "text"
	// ToolCall and ToolResult are what the CLI's stream says of a call.
	ToolCall   Kind = "tool_call"
	ToolResult Kind = "tool_result"
	// Call is what the gate recorded of a call: refused, or executed.
	Call Kind = "call"
	// Asked is a question about a call that a person has to answer, Answered what
	// came of it.
	Asked    Kind = "asked"
	Answered Kind = "answered"
	// Notice: something a person should know. Log: a line that is no event.
	Notice Kind = "notice"
	Log    Kind = "log"
	// Finished: the CLI reported its own end.
	Finished Kind = "finished"
	// Ended is the last event of a run, after everything is dead.
	Ended Kind = "ended"
)

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"`
	Run  string    `json:"run,omitempty"`

	Level     string `json:"level,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Channel   string `json:"channel,omitempty"`
	User      string `json:"user,omitempty"`
	Agent     string `json:"agent,omitempty"`
	Model     string `json:"model,omitempty"`
	Version   string `json:"version,omitempty"` // of the agent CLI

	Tools  []string `json:"tools,omitempty"`
	Status string   `json:"status,omitempty"`

	Text string `json:"text,omitempty"`

	// Tool is the name as the source of the event spells it.
	Tool      string          `json:"tool,omitempty"`
	CallID    string          `json:"call_id,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    string          `json:"result,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`

	Decision string `json:"decision,omitempty"` // allow, ask, deny
	Layer    string `json:"layer,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	// Approval is the ID of a question, By who answered it.
	Approval string     `json:"approval,omitempty"`
	By       string     `json:"by,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
	Millis   float64    `json:"ms,omitempty"`

	// Observed marks what is known only from the CLI's own stream: nothing on
	// our side saw it happen.
	Observed bool `json:"observed,omitempty"`

	OK      *bool    `json:"ok,omitempty"`
	Usage   *Usage   `json:"usage,omitempty"`
	CostUSD *float64 `json:"cost_usd,omitempty"`
	Turns   int      `json:"turns,omitempty"`

	ExitCode *int   `json:"exit_code,omitempty"`
	Head     string `json:"audit_head,omitempty"`
}

// OverBudget is the Status of a Finished event of a CLI that ended because what
// it may spend is spent.
const OverBudget = "over budget"

// Usage counts model tokens.
type Usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cache_read,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
}
