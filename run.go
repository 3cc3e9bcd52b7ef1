package drawbridge

import (
	"context"
	"path/filepath"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

// Event is one thing that happened in a run: a call the gate decided, a word of
// the agent, the end. Its kinds and its JSON form are described in
// docs/events.md.
type Event = event.Event

// TokenUsage counts model tokens.
type TokenUsage = event.Usage

// OwnTools says which of its own tools an agent CLI keeps. The zero value is
// none: the run is sealed, and every effect passes the gate. With any, the run's
// level is open: the scope then guards the bridge's tools only, and the agent
// can do whatever you can.
type OwnTools struct {
	All  bool
	List []string // names as the CLI spells them
}

// RunConfig is what [Run] needs besides a bridge.
type RunConfig struct {
	// Config of the bridge. Folder is the agent's working directory and must
	// be set. Binding.Agent is set to Agent.
	Config

	// Agent is the CLI: "claude", or "scripted", which needs nothing installed
	// and does what its prompt says line by line (see docs/scripted.md).
	Agent string
	// AgentPath is where the CLI is; "" looks on the PATH.
	AgentPath string
	// AgentArgs are extra arguments for the CLI. Those that would undo what
	// the run enforces are an error.
	AgentArgs []string
	// AgentEnv are extra variables for it, NAME=VALUE. It gets a minimal
	// environment otherwise.
	AgentEnv []string
	// Environ is the environment the CLI's own credentials and the PATH are
	// taken from; nil is os.Environ().
	Environ []string
	// Prompt is given to the CLI on its standard input; 1 byte to 16 MiB.
	Prompt string
	Model  string   // "" is the CLI's default
	Dirs   []string // further folders the CLI may name; relative ones are of this process

	OwnTools OwnTools

	// Timeout ends the run; 0 is 30 minutes. A negative time, here and below,
	// is an error.
	Timeout time.Duration
	// Budget is what the run may cost, in US dollars; 0 is none, a negative one an
	// error. It goes by what the CLI reports: one that has an option for it ends by
	// itself, and a run that cost more by its last word is an error of kind [OverBudget].
	Budget float64
	// ReadyTimeout ends a run whose agent has not listed its tools; 0 is 60 s.
	ReadyTimeout time.Duration
	// IdleTimeout ends a run whose agent prints nothing while no tool runs;
	// 0 is 15 minutes.
	IdleTimeout time.Duration
}

// Result is what came of a run.
type Result struct {
	Run       string
	Level     string // sealed or open
	OK        bool
	Text      string      // the agent's last answer
	Usage     *TokenUsage // nil where the CLI does not tell
	CostUSD   *float64
	Turns     int
	AgentExit int      // exit code of the CLI, 128+N after signal N; -1 where it never started
	Tools     []string // the scope
	URL       string   // where the endpoint was; connecting is refused by now
	Calls     int64    // executed
	Refused   int64
	Leftovers []string // processes it left behind, by name, which were ended
	Notes     []string // what a person should know
	Duration  time.Duration
	// AuditHead is the hash of the record's last line; AuditFile the record.
	AuditHead string
	AuditFile string
}

// Run starts a bridge and an agent CLI, waits until the CLI and every process
// it started is dead, and closes the bridge. Ending ctx ends the run.
//
// The error is nil only where the agent listed its tools, reported success and
// left a whole record; else it is an [*Error] whose kind tells the cases apart.
// The Result is nil where the run could not start.
func Run(ctx context.Context, cfg RunConfig) (*Result, error) {
	cli, err := agent.ByName(cfg.Agent)
	if err != nil {
		return nil, err
	}
	cfg.Binding.Agent = cli.Name()
	c := cfg.session()
	c.Environ = cfg.Environ
	c.Agent = &session.Agent{
		CLI: cli, Path: cfg.AgentPath, Prompt: []byte(cfg.Prompt), Model: cfg.Model, Dirs: cfg.Dirs,
		OwnTools: agent.OwnTools(cfg.OwnTools), Args: cfg.AgentArgs, Env: cfg.AgentEnv,
		Wall: cfg.Timeout, Budget: cfg.Budget, Ready: cfg.ReadyTimeout, Idle: cfg.IdleTimeout,
	}
	// The session outlives ctx by the time it takes to end the agent.
	s, err := session.New(context.WithoutCancel(ctx), c)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rep, err := s.RunAgent(ctx)
	return &Result{
		Run: s.ID(), Level: s.Level(), OK: rep.OK, Text: rep.Text, Usage: rep.Usage, CostUSD: rep.CostUSD,
		Turns: rep.Turns, AgentExit: rep.AgentCode, Tools: s.Tools(), URL: s.URL(), Calls: rep.Calls, Refused: rep.Refused,
		Leftovers: rep.Leftovers, Notes: rep.Notes, Duration: rep.Duration,
		AuditHead: s.Head(), AuditFile: filepath.Join(s.Folder(), "audit.jsonl"),
	}, err
}
