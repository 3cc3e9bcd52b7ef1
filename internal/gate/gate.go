// Package gate is the one path every tool call takes. The endpoint, the
// embedder's own process and anything that is added later reach a tool through
// Gate.Call and through nothing else.
package gate

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
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

// Approver puts calls to a person.
type Approver interface {
	// Ask returns when the question is answered, or taken back because ctx is
	// done, q.Gone is closed or the run ends. It does not run the call.
	Ask(ctx context.Context, q call.Question) call.Answer
	// Use takes the yes to the question id for a call of this tool with these very
	// arguments: once, and only while it still holds.
	Use(ctx context.Context, id, tool string, arguments []byte) error
	// Void gives a yes back that will not be used.
	Void(id string)
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
	Calls int64 // executed calls in the whole run; 0 is no limit
	// Concurrent is how many calls may be under way at once, those counted in
	// whose function was abandoned and has not returned; 0 is DefaultConcurrent.
	Concurrent int
	Output     int // bytes of one result; 0 is call.DefaultOutput
	// Total is how many bytes all results may have together, 0 is no limit. The
	// result that crosses it is delivered; further calls are refused, and those
	// that were under way have their result withheld.
	Total int64
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

// Config is what a gate is built from. Every field but Approver, Limits, ToolLimits,
// Incomplete, Panicked and Now is required. Incomplete and Panicked must not call Close,
// which waits for the call that tells them.
type Config struct {
	Binding   call.Binding
	Catalogue Catalogue
	Policy    Policy
	Record    Record
	Filter    Filter
	// Approver answers where the policy says ask. nil: nobody can be asked, and
	// such a call is refused.
	Approver Approver
	Limits   Limits
	// ToolLimits hold for one tool each, by its name, beside Limits; 0 is no
	// limit of its own, and Grace is not looked at.
	ToolLimits map[string]Limits
	// Incomplete is told, once for each, that a line could not be written.
	Incomplete func(error)
	// Panicked is told of a panic in a tool, with its stack, and of one in what
	// the gate itself is built from, with tool "": such a call is refused, or
	// its result withheld.
	Panicked func(tool string, value any, stack []byte)
	Now      func() time.Time
}

// Gate judges and runs the calls of one run.
type Gate struct {
	cfg     Config
	refused atomic.Int64

	mu        sync.Mutex
	fewer     sync.Cond // inside or all.running went down
	closing   bool      // nothing begins any more, a refusal is still recorded
	closed    bool      // nothing is recorded any more
	inside    int       // calls in Call, refused ones too
	all       tally     // of the run; running are those of inside that were admitted
	tools     map[string]*tally
	abandoned map[int64]string // the functions still running, by ticket.seq
	under     map[*ticket]struct{}
	watch     *time.Timer // fires at the end of the oldest call's time, nil before the first
	watched   time.Time   // when watch fires, zero where it is not set
}

// ticket is a call that was admitted.
type ticket struct {
	seq   int64 // of its Begin line
	tool  string
	start time.Time // of the tool, by the run's clock; zero before
	ends  time.Time // of the time it may take, monotonic; zero while it waits for a person
	ctx   callContext

	// Guarded by Gate.mu.
	settled bool          // the answer is made, by the function or without it
	grace   *time.Timer   // runs once the context is done
	told    chan struct{} // closed when the answer without the function is out; nil before it is made
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
	g := &Gate{cfg: cfg, tools: map[string]*tally{}, abandoned: map[int64]string{}, under: map[*ticket]struct{}{}}
	g.fewer.L = &g.mu
	return g
}

// Call takes one call all the way. The error is a *call.NotAvailable, for a
// name outside the scope; every other refusal is an isError result, because a
// model reads those and learns, where some clients repeat a call on an error.
func (g *Gate) Call(ctx context.Context, req call.Request) (call.Result, error) {
	if !g.enter() {
		return call.Errorf("refused: the run has ended"), nil
	}
	tool, decision, no := g.judge(req)
	if no != nil {
		return g.refuse(req, tool, no)
	}
	t, no := g.begin(req, tool, decision)
	if no != nil {
		return g.refuse(req, tool, no)
	}
	g.during(ctx, t)
	if req.Begun != nil {
		req.Begun(func() { t.ctx.cancel(context.Canceled) })
	}
	if a := g.await(&t.ctx, t, tool, req, decision); a != nil {
		return g.end(t, *a), nil
	}
	g.limit(t)
	return g.run(t, tool, req), nil
}

// refusal says why a call does not run.
type refusal struct {
	decision   call.Decision
	text       string // for the model
	err        error  // instead of text: the call is answered by an error
	unrecorded bool   // its line could not be written: there is none to write
}

func deny(layer, rule, text string) *refusal {
	return &refusal{
		decision: call.Decision{Verdict: call.Deny, Layer: layer, Rule: rule, Reason: text},
		text:     text,
	}
}

// maxReason is how many bytes a refusal may have that tells what is wrong with
// the arguments: it names what the client sent, in the client's own words.
const maxReason = 4 * call.MaxEcho

// say is text that holds a client's own words, fit for a record and an answer:
// masked before it is cut, for a cut must not leave half a secret behind.
func (g *Gate) say(text string) string {
	text, _ = g.cfg.Filter.Text(text)
	text, _, _ = clip(text, maxReason)
	return text
}

// safely runs f and reports whether it came through without a panic. A panic in
// what the gate is built from refuses a call and takes no process down.
func (g *Gate) safely(f func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			g.cfg.Panicked("", v, debug.Stack())
		}
	}()
	f()
	return true
}

// now is the run's clock.
func (g *Gate) now() (t time.Time) {
	g.safely(func() { t = g.cfg.Now() })
	return t
}

// judge is resolve and decide. A panic on the way is a denial, as any other
// failure to judge is.
func (g *Gate) judge(req call.Request) (tool *call.Tool, d call.Decision, no *refusal) {
	judged := g.safely(func() {
		var args map[string]any
		if tool, args, no = g.resolve(req); no == nil {
			d, no = g.decide(req, tool, args)
		}
	})
	if !judged {
		no = deny("gate", "panic", "refused: the call could not be judged")
	}
	return tool, d, no
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
			return tool, nil, deny("arguments", "", g.say("arguments: "+err.Error()))
		}
	}
	if tool.Validate != nil {
		if err := tool.Validate(args); err != nil {
			return tool, nil, deny("arguments", "schema", g.say(err.Error()))
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
		if g.cfg.Approver != nil {
			return d, nil
		}
		d.Reason = "a person must be asked before this call, and nobody can be asked in this run"
	default: // also a verdict that is none
		d.Verdict = call.Deny
	}
	if d.Reason == "" {
		d.Reason = "the policy does not allow this call"
	}
	return d, &refusal{decision: d, text: "refused: " + d.Reason}
}

// begin makes the record durable and only then lets the call on.
func (g *Gate) begin(req call.Request, tool *call.Tool, d call.Decision) (*ticket, *refusal) {
	if no := g.admit(tool.Name); no != nil {
		return nil, no
	}
	line, err := g.write(tool.Effects != call.Read || d.Verdict == call.Ask, func() audit.Record {
		r := g.line(req, tool, d)
		r.Kind = audit.Begin
		return r
	})
	if err != nil {
		g.leave(tool.Name)
		no := deny("audit", "", "the call was not run: its audit record could not be written")
		no.unrecorded = true
		return nil, no
	}
	return &ticket{seq: line.Seq, tool: tool.Name}, nil
}

// enter reports whether a call, or its refusal, can still be recorded.
func (g *Gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

func (g *Gate) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.fewer.Broadcast()
}

// during ties ctx to the life of the run.
func (g *Gate) during(ctx context.Context, t *ticket) {
	t.ctx.follow(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		t.ctx.cancel(context.Canceled)
		return
	}
	g.under[t] = struct{}{}
}

// limit begins the time that the call may take.
func (g *Gate) limit(t *ticket) {
	t.start = g.now()
	ends := time.Now().Add(g.callTime(t.tool))
	t.ctx.begin(ends)
	g.mu.Lock()
	defer g.mu.Unlock()
	t.ends = ends
	if !g.closing && (g.watched.IsZero() || ends.Before(g.watched)) {
		g.rewatch(ends)
	}
}

// done lets go of a call that was admitted.
func (g *Gate) done(t *ticket) {
	t.ctx.release()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.under, t)
	for _, used := range [...]*tally{&g.all, g.tools[t.tool]} {
		used.running--
	}
	g.inside--
	g.fewer.Broadcast()
}

// rewatch sets the timer. g.mu is held.
func (g *Gate) rewatch(at time.Time) {
	g.watched = at
	if g.watch == nil {
		g.watch = time.AfterFunc(time.Until(at), g.expire)
		return
	}
	g.watch.Reset(time.Until(at))
}

// expire ends the calls whose time is over.
func (g *Gate) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watched = time.Time{}
	now, next := time.Now(), time.Time{}
	for t := range g.under {
		switch {
		case t.ends.IsZero():
		case !t.ends.After(now):
			t.ctx.cancel(context.DeadlineExceeded)
		case next.IsZero() || t.ends.Before(next):
			next = t.ends
		}
	}
	if !next.IsZero() && !g.closing {
		g.rewatch(next)
	}
}

// maxWholeRefusals is how many refused calls of a run are recorded with their
// arguments. Of further ones the record holds digest and size: an agent that
// is refused over and over must not fill the disk with what it sends.
const maxWholeRefusals = 1000

func (g *Gate) refuse(req call.Request, tool *call.Tool, no *refusal) (call.Result, error) {
	defer g.exit()
	if !no.unrecorded {
		brief := g.refused.Add(1) > maxWholeRefusals
		// The call is refused either way, and Incomplete is told of a failure.
		_, _ = g.write(false, func() audit.Record {
			r := g.line(req, tool, no.decision)
			r.Kind = audit.Refused
			r.Reason = no.decision.Reason
			if brief {
				r.Arguments = nil
			}
			return r
		})
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
// has its End line, which takes at most Limits.Grace. It names, in the order they
// began, the calls whose functions still run: nothing they return is delivered.
// A call that comes while Close waits is refused and recorded; one that comes
// later is refused without a record. Close is idempotent.
func (g *Gate) Close() []Abandoned {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closing = true
	for t := range g.under {
		t.ctx.cancel(context.Canceled)
	}
	if g.watch != nil {
		g.watch.Stop()
	}
	for g.all.running > 0 {
		g.fewer.Wait()
	}
	g.closed = true
	for g.inside > 0 {
		g.fewer.Wait()
	}
	var still []Abandoned
	for seq, tool := range g.abandoned {
		still = append(still, Abandoned{Tool: tool, Call: seq})
	}
	slices.SortFunc(still, func(a, b Abandoned) int { return cmp.Compare(a.Call, b.Call) })
	return still
}

// Busy reports whether a call is under way.
func (g *Gate) Busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all.running > 0
}

// write appends the line that r makes. Incomplete is told of any failure, and
// before the call leaves, so that Close returns after it.
func (g *Gate) write(durable bool, r func() audit.Record) (line audit.Record, err error) {
	if !g.safely(func() { line, err = g.cfg.Record.Append(r(), durable) }) {
		err = errPanic
	}
	if err != nil {
		g.cfg.Incomplete(err)
	}
	return line, err
}

var errPanic = errors.New("a panic while an audit line was written")
