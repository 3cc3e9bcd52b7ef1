// Package gate is the one path every tool call takes. The endpoint, the
// embedder's own process and anything that is added later reach a tool through
// Gate.Call and through nothing else.
package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Catalogue holds the tools of the run's scope.
type Catalogue interface {
	// Lookup finds a tool in scope by its exact name. A name that is hidden
	// and one that never existed are the same false.
	Lookup(name string) (*call.Tool, bool)
}

// Policy judges a call to a tool in scope. It is pure: the same call is
// decided the same way, and nothing happens by deciding.
type Policy interface {
	Decide(req call.Request, tool *call.Tool, args map[string]any) call.Decision
}

// Record keeps the audit record. When Append returns nil the line is with the
// kernel, and where durable was asked for it is on disk.
type Record interface {
	Append(r audit.Record, durable bool) (audit.Record, error)
}

// Filter keeps known secrets out of records and results.
type Filter interface {
	// Arguments is what a record keeps of a call's arguments, nil for nothing.
	Arguments(raw []byte) []byte
	// Text masks known secrets and says how many it found.
	Text(s string) (string, int)
	// JSON does the same to a JSON value, which stays one.
	JSON(b []byte) ([]byte, int)
}

// Limits bound a run. A limit refuses calls and ends nothing.
type Limits struct {
	Calls      int64 // executed calls in the whole run; 0 is no limit
	Concurrent int   // calls at once; 0 is DefaultConcurrent
	Output     int   // bytes of one result; 0 is call.DefaultOutput
	// Call is how long one call may take; 0 is DefaultCall.
	Call time.Duration
	// Grace is how long a cancelled call's function may take to return before
	// it is recorded as abandoned; 0 is DefaultGrace.
	Grace time.Duration
}

// Defaults of Limits.
const (
	DefaultConcurrent = 32
	DefaultCall       = 10 * time.Minute
	DefaultGrace      = 5 * time.Second
)

// Config is what a gate is built from. Every field but Limits, Incomplete and
// Now is required.
type Config struct {
	Binding   call.Binding
	Catalogue Catalogue
	Policy    Policy
	Record    Record
	Filter    Filter
	Limits    Limits
	// Incomplete is told, once for each, that a line could not be written.
	Incomplete func(error)
	// Panicked is told of a panic in a tool, with its stack.
	Panicked func(tool string, value any, stack []byte)
	Now      func() time.Time
}

// Gate judges and runs the calls of one run.
type Gate struct {
	cfg    Config
	ctx    context.Context // of the run; done when the gate closes
	cancel context.CancelFunc

	calls sync.WaitGroup // under way; Add only under mu and before closing

	mu        sync.Mutex
	closing   bool
	begun     int64
	running   int
	abandoned []Abandoned
}

// ticket is a call that was admitted.
type ticket struct {
	seq   int64 // of its Begin line
	tool  string
	start time.Time
}

// New returns an open gate.
func New(cfg Config) *Gate {
	if cfg.Limits.Concurrent <= 0 {
		cfg.Limits.Concurrent = DefaultConcurrent
	}
	if cfg.Limits.Output <= 0 {
		cfg.Limits.Output = call.DefaultOutput
	}
	if cfg.Limits.Call <= 0 {
		cfg.Limits.Call = DefaultCall
	}
	if cfg.Limits.Grace <= 0 {
		cfg.Limits.Grace = DefaultGrace
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Incomplete == nil {
		cfg.Incomplete = func(error) {}
	}
	if cfg.Panicked == nil {
		cfg.Panicked = func(string, any, []byte) {}
	}
	g := &Gate{cfg: cfg}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Call takes one call all the way. The error is a *call.NotAvailable, for a
// name outside the scope; every other refusal is an isError result, because a
// model reads those and learns, where some clients repeat a call on an error.
func (g *Gate) Call(ctx context.Context, req call.Request) (call.Result, error) {
	tool, args, no := g.resolve(req)
	if no != nil {
		return g.refuse(req, tool, no)
	}
	decision, no := g.decide(req, tool, args)
	if no != nil {
		return g.refuse(req, tool, no)
	}
	t, no := g.begin(req, tool, decision)
	if no != nil {
		return g.refuse(req, tool, no)
	}
	defer g.leave()
	ctx, stop := g.during(ctx)
	defer stop()
	if no := g.recheck(ctx, req); no != nil {
		return g.end(t, call.Errorf("%s", no.text), audit.Cancelled), nil
	}
	res, outcome := g.run(ctx, t, tool, req)
	return g.end(t, res, outcome), nil
}

// refusal says why a call does not run.
type refusal struct {
	decision   call.Decision
	text       string // for the model
	err        error  // instead of text: the call is answered by an error
	unrecorded error  // why its line could not be written: there is none to write
}

func deny(layer, rule, text string) *refusal {
	return &refusal{
		decision: call.Decision{Verdict: call.Deny, Layer: layer, Rule: rule, Reason: text},
		text:     text,
	}
}

// resolve finds the tool and reads the arguments, once and strictly.
func (g *Gate) resolve(req call.Request) (*call.Tool, map[string]any, *refusal) {
	tool, ok := g.cfg.Catalogue.Lookup(req.Tool)
	if !ok {
		name, _ := g.cfg.Filter.Text(req.Tool)
		err := &call.NotAvailable{Tool: name}
		no := deny("scope", "", err.Error())
		no.err = err
		return nil, nil, no
	}
	args := map[string]any{}
	if req.Arguments != nil {
		var err error
		if args, err = call.DecodeObject(req.Arguments); err != nil {
			return tool, nil, deny("arguments", "", "arguments: "+err.Error())
		}
	}
	if tool.Validate != nil {
		if err := tool.Validate(args); err != nil {
			return tool, nil, deny("arguments", "schema", err.Error())
		}
	}
	return tool, args, nil
}

func (g *Gate) decide(req call.Request, tool *call.Tool, args map[string]any) (call.Decision, *refusal) {
	d := g.cfg.Policy.Decide(req, tool, args)
	switch d.Verdict {
	case call.Allow:
		return d, nil
	case call.Ask:
		d.Reason = "a person must be asked before this call, and nobody can be asked in this run"
	}
	return d, &refusal{decision: d, text: "refused: " + d.Reason}
}

// begin makes the record durable and only then lets the call on.
func (g *Gate) begin(req call.Request, tool *call.Tool, d call.Decision) (*ticket, *refusal) {
	t := &ticket{tool: tool.Name}
	if no := g.admit(t); no != nil {
		return nil, no
	}
	line := g.line(req, tool, d)
	line.Kind = audit.Begin
	line, err := g.cfg.Record.Append(line, tool.Effects != call.Read)
	if err != nil {
		g.leave()
		g.cfg.Incomplete(err)
		no := deny("audit", "", "the call was not run: its audit record could not be written")
		no.unrecorded = err
		return nil, no
	}
	t.seq = line.Seq
	return t, nil
}

func (g *Gate) admit(t *ticket) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closing:
		return deny("run", "ended", "refused: the run is ending")
	case g.running >= g.cfg.Limits.Concurrent:
		return deny("limits", "concurrent", "refused: too many calls at once; wait for one of them to finish and try again")
	case g.cfg.Limits.Calls > 0 && g.begun >= g.cfg.Limits.Calls:
		return deny("limits", "calls", "refused: this run has used up its number of tool calls; finish without further calls")
	}
	g.begun++
	g.running++
	g.calls.Add(1)
	t.start = g.cfg.Now()
	return nil
}

func (g *Gate) leave() {
	g.mu.Lock()
	g.running--
	g.mu.Unlock()
	g.calls.Done()
}

// during ties ctx to the life of the run and to the time one call may take.
func (g *Gate) during(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Limits.Call)
	stop := context.AfterFunc(g.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// recheck asks again what may have changed while the record was written.
func (g *Gate) recheck(ctx context.Context, req call.Request) *refusal {
	if ctx.Err() != nil {
		return deny("run", "cancelled", "the call was cancelled before it ran")
	}
	if req.Attached != nil && !req.Attached() {
		return deny("run", "detached", "nobody waits for this call any more; it was not run")
	}
	return nil
}

func (g *Gate) refuse(req call.Request, tool *call.Tool, no *refusal) (call.Result, error) {
	if no.unrecorded == nil {
		line := g.line(req, tool, no.decision)
		line.Kind = audit.Refused
		line.Reason = no.decision.Reason
		if _, err := g.cfg.Record.Append(line, false); err != nil {
			g.cfg.Incomplete(err)
		}
	}
	if no.err != nil {
		return call.Result{}, no.err
	}
	return call.Errorf("%s", no.text), nil
}

// Abandoned is a call whose function had not returned when its time was over.
type Abandoned struct {
	Tool string
	Call int64 // Seq of its Begin line
}

// Close lets no further call in, cancels those under way and returns when each
// has its End line, which takes at most Limits.Grace. It names the calls whose
// functions still run: nothing they return is delivered. Close is idempotent.
func (g *Gate) Close() []Abandoned {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.cancel()
	g.calls.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.abandoned
}

// Busy reports whether a call is under way.
func (g *Gate) Busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running > 0
}

func (g *Gate) append(r audit.Record) error {
	_, err := g.cfg.Record.Append(r, false)
	if err != nil {
		g.cfg.Incomplete(err)
	}
	return err
}

var errWithheld = errors.New("the tool ran, but its result is withheld: the audit record could not be written")
