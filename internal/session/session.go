// Package session is the life of one run: starting, ready, ending, dead. It
// holds what a run is made of (catalogue, policy, gate, record, endpoint) and
// takes it down again in the one right order.
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/endpoint"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/gate"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/redact"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// Levels of a run (docs/DESIGN.md section 9), and Embedded where there is no
// agent CLI of ours.
const (
	Sealed   = "sealed"
	Open     = "open"
	Embedded = "embedded"
)

// Limits bound a run, see gate.Limits.
type Limits = gate.Limits

// Config is what one run is made from.
type Config struct {
	Binding  call.Binding // Run "" is a fresh id, Workspace "" is "default"
	Server   string       // "" is "drawbridge"
	Tools    []call.Tool  // the embedder's own
	Builtins []string     // built-in tools in the catalogue
	Allow    []string     // the agent layer: names and patterns
	// Policy decides instead of Allow where it is not nil.
	Policy *policy.Policy
	// Plan makes the run begin in plan mode, and Ask names tools (as Allow does)
	// that a person is asked about before each call. Both are for a run without
	// Policy.
	Plan      bool
	Ask       []string
	Approvals Approvals
	// Protected are further absolute paths the file tools leave alone.
	Protected []string
	Folder    string // for the file tools and commands; "" is none
	// Upstreams are servers whose tools are in the catalogue, as "name/tool".
	Upstreams []Upstream
	StartWait time.Duration // how long the run waits for them; 0 is DefaultStartWait
	StateDir  string        // "" is the default one
	Limits    Limits

	// SandboxOff lets execute_command into the scope unconfined.
	SandboxOff bool
	// ConnectionClose answers every request with Connection: close.
	ConnectionClose bool
	Instructions    string
	// Secrets are masked in records, results, logs and transcript, besides the
	// run's token. Shorter than 8 bytes they are ignored.
	Secrets []string
	// Environ is the caller's environment; nil is os.Environ().
	Environ []string

	// Agent or Program is what the run starts; neither is an embedder's bridge.
	Agent   *Agent
	Program *Program

	// Follow gets the run's events, one at a time and in order, the last one
	// (Ended) before Close returns. nil: nobody follows.
	Follow  func(event.Event)
	Logger  *slog.Logger     // nil discards
	Now     func() time.Time // nil is time.Now
	Version string           // of the program, for the record
}

// Session is one run.
type Session struct {
	cfg      Config
	binding  call.Binding
	level    string
	scope    *catalogue.Scope
	gate     *gate.Gate
	endpoint *endpoint.Endpoint
	log      *audit.Log
	run      *state.Run
	secrets  *redact.Secrets
	token    string
	temp     string     // the run's TMPDIR, "" for none
	spec     *proc.Spec // of the agent or program, nil without
	follow   follower
	refusals counter
	events   *queue   // nil without a follower
	release  []func() // what Close gives back, last first
	desk     *desk    // nil where nothing can be asked
	mode     mode

	upstreams *upstreams // nil without

	commands sync.RWMutex // read-locked by each execute_command, locked for good by Close

	ready         chan struct{} // closed when tools/list was served
	markReady     func()
	listing       sync.Once
	authenticated chan struct{} // closed at the first good token
	markAuth      func()

	closing sync.Once
	telling sync.Once     // of the last event
	dead    chan struct{} // closed when Close is through
	err     error         // of Close; read after dead
	head    string

	mu         sync.Mutex
	incomplete error // the first line that could not be written
}

// New makes a run and opens its endpoint. Errors are *fault.Error of kind
// Usage, or Sandbox where the level can't be had. When ctx ends the session
// closes itself.
func New(ctx context.Context, cfg Config) (_ *Session, err error) {
	s := &Session{cfg: cfg, binding: cfg.Binding, level: Embedded, dead: make(chan struct{})}
	s.ready, s.markReady = latch()
	s.authenticated, s.markAuth = latch()
	var undo []func() // what only a failed start takes back
	defer func() {
		if err != nil {
			backward(undo)
			backward(s.release)
		}
	}()
	if err := s.defaults(); err != nil {
		return nil, err
	}
	dir, err := state.Open(s.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	sweepOnce(dir)
	if s.cfg.Follow != nil {
		s.events = newQueue(s.cfg.Follow)
		undo = append(undo, s.events.close)
	}

	if s.token, err = mint(); err != nil {
		return nil, err
	}
	if err := s.startUpstreams(ctx); err != nil {
		return nil, err
	}
	known, err := s.known()
	if err != nil {
		return nil, err
	}
	pol := cfg.Policy
	if pol == nil {
		if pol, err = policy.FromFlags(cfg.Allow, cfg.Ask, cfg.Plan, known); err != nil {
			return nil, err
		}
	}
	pol = pol.Bound(s.binding, s.modeNow)
	s.applyLimits(pol)
	tools, err := s.tools(dir, pol)
	if err != nil {
		return nil, err
	}
	all, err := catalogue.New(tools...)
	if err != nil {
		return nil, err
	}
	if s.scope, err = all.Scope(s.cfg.Server, pol.InScope); err != nil {
		return nil, err
	}

	_, commands := s.scope.Lookup(commandTools[0])
	if err := s.checkAsking(pol, commands); err != nil {
		return nil, err
	}

	listener, err := listen()
	if err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = listener.Close() })

	if s.run, err = dir.Begin(s.meta()); err != nil {
		return nil, err
	}
	undo = append(undo, s.run.Discard)
	if err := s.prepare("http://"+listener.Addr().String()+"/mcp", s.asking(pol)); err != nil {
		return nil, err
	}
	if s.temp != "" { // for the sweep after a kill -9
		s.run.Meta.TempDir = s.temp
		if err := s.run.Save(); err != nil {
			return nil, err
		}
	}
	s.secrets = redact.New(s.secretValues()...)
	if s.cfg.Follow != nil {
		s.follow.emit = s.emit
	}
	s.log, err = audit.Create(s.run.File("audit.jsonl"), s.opening(pol), audit.Options{
		Now: s.cfg.Now, Follow: s.follow.record, Mask: s.mask,
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Record, "is the disk full? without a record nothing runs", "audit record of run %s", s.binding.Run)
	}
	undo = append(undo, func() { _, _ = s.log.Close(audit.Record{Detail: "the run could not start"}) })

	var approver gate.Approver
	if s.asking(pol) {
		if s.desk, err = s.openDesk(dir, pol); err != nil {
			return nil, err
		}
		undo = append(undo, s.desk.close)
		approver = s.desk
	}
	s.gate = gate.New(gate.Config{
		Approver: approver,
		Binding:  s.binding, Catalogue: s.scope, Policy: pol, Record: s.log, Filter: filter{s.secrets},
		Limits: s.cfg.Limits, ToolLimits: toolLimits(pol, all.Names()), Incomplete: s.unrecorded, Panicked: s.panicked, Now: s.cfg.Now,
	})
	s.endpoint, err = endpoint.New(endpoint.Config{
		Listener: listener, Token: s.token, Name: s.cfg.Server, Version: s.cfg.Version, Instructions: s.cfg.Instructions,
		Tools: s.scope.List, Call: s.gate.Call, OnListed: s.listed, OnAuthenticated: s.markAuth,
		OnRefused: s.refused, ConnectionClose: s.cfg.ConnectionClose,
	})
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "endpoint")
	}
	if err := s.recordUpstreams(); err != nil {
		return nil, err
	}
	if s.desk != nil && s.cfg.Approvals.SameUser {
		s.note("approvals", "the policy accepts that code of this run could answer in a person's place")
	}
	if commands && s.cfg.SandboxOff {
		s.note("sandbox", "off: execute_command runs unconfined")
	}
	if name := s.unconfined(); name != "" {
		s.note("sandbox", "off: upstream "+name+" runs unconfined")
	}
	s.endpoint.Serve()
	if ctx.Done() != nil {
		made := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			<-made // release is ours until then
			_ = s.Close()
		})
		s.release = append(s.release, func() { stop() })
		close(made)
	}
	return s, nil
}

func (s *Session) defaults() error {
	c := &s.cfg
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Version == "" {
		c.Version = "drawbridge"
	}
	if c.Server == "" {
		c.Server = "drawbridge"
	}
	if err := catalogue.CheckServer(c.Server); err != nil {
		return err
	}
	if s.binding.Run == "" {
		s.binding.Run = state.NewID(c.Now())
	}
	if s.binding.Workspace == "" {
		s.binding.Workspace = "default"
	}
	for _, f := range []struct{ name, value string }{
		{"workspace", s.binding.Workspace}, {"channel", s.binding.Channel},
		{"user", s.binding.User}, {"agent", s.binding.Agent},
	} {
		if err := checkName(f.name, f.value); err != nil {
			return err
		}
	}
	if err := checkLimits(c.Limits); err != nil {
		return err
	}
	if c.StateDir == "" {
		var err error
		if c.StateDir, err = state.Default(lookup(c.Environ)); err != nil {
			return err
		}
	}
	if c.Folder != "" {
		folder, err := checkFolder("folder", c.Folder)
		if err != nil {
			return err
		}
		c.Folder = folder
	}
	switch {
	case c.Program != nil:
		s.level = Open
	case c.Agent != nil && !c.Agent.OwnTools.None():
		s.level = Open
	case c.Agent != nil:
		s.level = Sealed
	}
	return nil
}

func checkName(what, v string) error {
	if len(v) > call.MaxEcho {
		return fault.New(fault.Usage, "use a shorter name", "%s name is longer than %d bytes", what, call.MaxEcho)
	}
	// Two names that differ only in bytes that are no text would be one in the record.
	if v != strings.TrimSpace(v) || strings.ContainsFunc(v, unicode.IsControl) || call.Invisible(v) || !utf8.ValidString(v) {
		return fault.New(fault.Usage, "use UTF-8 without blanks at its ends and without characters that can't be seen", "%s name %q", what, v)
	}
	return nil
}

// checkFolder is the real path of a folder. what names it in errors.
func checkFolder(what, path string) (string, error) {
	const hint = "give a folder that exists"
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, hint, "%s %s", what, path)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, hint, "%s %s", what, path)
	}
	if !info.IsDir() {
		return "", fault.New(fault.Usage, "give a folder, not a file", "%s %s is not a directory", what, path)
	}
	f, err := os.Open(filepath.Join(abs, "."))
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, "give a folder that you can enter and read", "%s %s", what, path)
	}
	_ = f.Close()
	return abs, nil
}

// checkLimits refuses a negative limit: taking it for the default or for none
// would be a guess.
func checkLimits(l Limits) error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"calls", l.Calls}, {"concurrent calls", int64(l.Concurrent)}, {"output", int64(l.Output)},
		{"output of all calls", l.Total}, {"time of a call", int64(l.Call)}, {"grace", int64(l.Grace)},
	} {
		if f.value < 0 {
			return fault.New(fault.Usage, "give a positive limit; 0 is the default", "the limit of %s is negative", f.name)
		}
	}
	return nil
}

func mint() (string, error) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fault.Wrap(err, fault.Usage, "", "token")
	}
	return hex.EncodeToString(b[:]), nil
}

// secretValues are the token, what the caller named, and the credentials the
// child is given.
func (s *Session) secretValues() []string {
	values := slices.Concat([]string{s.token}, s.cfg.Secrets, s.upstreamSecrets())
	if s.spec == nil || s.spec.Terminal {
		return values
	}
	for _, kv := range s.spec.Env {
		if name, v, _ := strings.Cut(kv, "="); credential(name) && len(v) >= 8 {
			values = append(values, v)
		}
	}
	return values
}

// credential reports whether a variable of this name is likely to hold one.
func credential(name string) bool {
	return slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH"}, func(part string) bool {
		return strings.Contains(strings.ToUpper(name), part)
	})
}

func (s *Session) meta() state.Meta {
	return state.Meta{
		ID: s.binding.Run, Workspace: s.binding.Workspace, Channel: s.binding.Channel, User: s.binding.User,
		Agent: s.binding.Agent, Level: s.level, Folder: s.cfg.Folder, Scope: s.scope.Names(), Started: s.cfg.Now().UTC(),
	}
}

func (s *Session) opening(pol *policy.Policy) audit.Run {
	mode, _ := pol.Mode()
	r := audit.Run{
		Version: audit.Version, ID: s.binding.Run, Program: s.cfg.Version,
		Workspace: s.binding.Workspace, Channel: s.binding.Channel, User: s.binding.User, Agent: s.binding.Agent,
		Level: s.level, Mode: mode, Folder: s.cfg.Folder, Scope: s.scope.Names(),
		PolicyDigest: pol.Digest(), CatalogueDigest: s.scope.Digest(),
	}
	if s.spec != nil {
		b, _ := json.Marshal(append([]string{s.spec.Path}, s.spec.Args...)) // strings always marshal
		r.CommandDigest = gate.Digest(b)
	}
	return r
}
