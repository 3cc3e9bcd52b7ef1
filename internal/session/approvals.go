package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/builtin"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

// Approvals say how the questions of a run reach a person.
type Approvals struct {
	Expiry time.Duration // how long an answer counts; 0 is approve.DefaultExpiry
	Notify []string      // command that gets each question as JSON; empty is none
	// SameUser accepts that code of the run could answer in a person's place.
	SameUser bool
	// Terminal also asks at the terminal of this process, where it has one. It is
	// for a run whose agent does not share it.
	Terminal bool
	// Inside answers questions in place of socket, terminal and command: an
	// embedder asks in its own window. It is called on a goroutine of its own; ctx
	// is done when the question is settled without it. nil is not inside.
	Inside func(ctx context.Context, q approve.Question) approve.Answer
}

// desk is how calls of this run are put to a person: the approve.Desk and the
// doors a person can answer at.
type desk struct {
	s        *Session
	desk     *approve.Desk
	socket   *control.Server   // nil without
	terminal *control.Terminal // nil without
	hook     *approve.Hook     // nil without

	mu     sync.Mutex
	db     *sqlite.DB // nil until something is asked
	inside map[string]context.CancelFunc
}

// mode holds the mode of a run that began in plan mode.
type mode struct {
	mu    sync.Mutex
	acted bool
}

func (s *Session) modeNow() string {
	s.mode.mu.Lock()
	defer s.mode.mu.Unlock()
	if s.mode.acted {
		return policy.Act
	}
	return "" // the one the run began in
}

// act ends plan mode, for good.
func (s *Session) act() {
	s.mode.mu.Lock()
	defer s.mode.mu.Unlock()
	if !s.mode.acted {
		s.mode.acted = true
		s.note(policy.ModeNote, "act: the plan is approved")
		s.emit(event.Event{Kind: event.Notice, Text: "the plan is approved: the run acts from here on"})
	}
}

// asking reports whether a call of this run can come to be asked about.
func (s *Session) asking(pol *policy.Policy) bool {
	m, _ := pol.Mode()
	return m == policy.Plan || len(s.asked(pol)) > 0
}

// asked are the tools in scope that a rule can ask a person about.
func (s *Session) asked(pol *policy.Policy) []string {
	known, _ := s.known()
	return pol.Asks(known)
}

// checkAsking refuses an ask that code of the run could answer by itself.
// Whoever can act as the user can answer as the user.
func (s *Session) checkAsking(pol *policy.Policy, commands bool) error {
	if !s.asking(pol) || s.cfg.Approvals.SameUser {
		return nil
	}
	why := ""
	switch {
	case s.level == Open && s.cfg.Program != nil:
		why = "the program of this run runs unconfined"
	case s.level == Open:
		why = "the agent has tools of its own"
	case commands && s.cfg.SandboxOff:
		why = "execute_command runs unconfined"
	case s.unconfined() != "":
		why = "upstream " + s.unconfined() + " runs unconfined"
	case s.level == Embedded && s.cfg.Approvals.Inside == nil:
		why = "what an embedder starts can't be told from the embedder"
	default:
		return nil
	}
	what := "a plan"
	if tools := s.asked(pol); len(tools) > 0 {
		what = strings.Join(tools, ", ")
	}
	return fault.New(fault.Usage, "deny instead of asking, or leave out what runs unconfined; approvals: { same_user_can_answer: true } in the policy file accepts it, and the record says so",
		"a person is to be asked about %s, but code of the run could answer in their place: %s", what, why)
}

// openDesk makes the desk of a run that may ask.
func (s *Session) openDesk(dir *state.Dir, pol *policy.Policy) (*desk, error) {
	a := s.cfg.Approvals
	d := &desk{s: s}
	d.desk = approve.New(approve.Config{
		Run: s.binding.Run, Workspace: s.binding.Workspace, Channel: s.binding.Channel, User: s.binding.User, Agent: s.binding.Agent,
		PolicyDigest: pol.Digest, Expiry: a.Expiry, Now: s.cfg.Now, Mask: s.mask,
		Show: func(raw []byte) []byte { return filter{s.secrets}.Arguments(raw) },
		Open: func(ctx context.Context) (approve.Store, error) {
			db, err := sqlite.Open(ctx, dir.Database())
			if err != nil {
				return nil, err
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.db = db
			return db.Questions(), nil
		},
		Asked: d.asked, Settled: d.settled,
	})
	if a.Inside != nil {
		d.inside = map[string]context.CancelFunc{}
		return d, nil
	}
	var err error
	d.socket, err = control.Listen(s.run.Path(), d.desk, control.Options{Refused: func(detail string) {
		if s.refusals.first("control") {
			s.append(audit.Record{Kind: audit.Early, What: "control", Detail: call.Clip(s.mask(detail))})
		}
	}})
	if errors.Is(err, control.ErrUnsupported) && a.Terminal {
		err = nil // the terminal is a door everywhere
	}
	if err != nil {
		d.close()
		return nil, err
	}
	if a.Terminal {
		if t, err := control.OpenTerminal(); err == nil {
			t.Text, t.Answer = approve.Question.Text, d.desk.Answer
			d.terminal = t
		}
	}
	if len(a.Notify) > 0 {
		argv, err := notifier(a.Notify)
		if err != nil {
			d.close()
			return nil, err
		}
		d.hook = &approve.Hook{Command: argv, Start: s.notify, Failed: func(q approve.Question, err error) {
			s.note("notice", "the command that is told of questions failed for "+q.ID+": "+err.Error())
			s.emit(event.Event{Kind: event.Notice, Text: "the command that is told of questions failed: " + err.Error()})
		}}
	}
	return d, nil
}

// notifier is the command with the path of its program filled in.
func notifier(argv []string) ([]string, error) {
	if err := helper(); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(argv[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "give its path, or a name that is on the PATH", "the program of approvals.notify, %s", argv[0])
	}
	return append([]string{path}, argv[1:]...), nil
}

// close lets no answer in any more and gives back what waits. Calls that wait
// have ended by then.
func (d *desk) close() {
	if d.socket != nil {
		d.socket.Close()
	}
	d.desk.Close()
	if d.terminal != nil {
		d.terminal.Close()
	}
	if d.hook != nil {
		d.hook.Close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.db != nil {
		_ = d.db.Close()
	}
}

func (d *desk) asked(q approve.Question) {
	d.s.emit(event.Event{
		Kind: event.Asked, Approval: q.ID, Tool: q.Tool, Layer: q.Layer, Rule: q.Rule, Arguments: d.arguments(q), Text: q.Text(), Expires: &q.Expires,
	})
	if d.inside != nil {
		d.ask(q)
	}
	if d.terminal != nil {
		d.terminal.Ask(q)
	}
	if d.hook != nil {
		d.hook.Asked(q)
	}
}

// arguments are those of q where they are shown whole.
func (d *desk) arguments(q approve.Question) []byte {
	if b := []byte(q.Arguments); call.CheckJSON(b) == nil && !bytes.ContainsRune(b, '\n') {
		return b
	}
	return nil
}

// ask has the embedder answer q.
func (d *desk) ask(q approve.Question) {
	ctx, cancel := context.WithCancel(context.Background())
	d.mu.Lock()
	d.inside[q.ID] = cancel
	d.mu.Unlock()
	go func() {
		defer func() {
			if v := recover(); v != nil { // the question stays open, and expires
				d.s.panicked("", v, debug.Stack())
			}
		}()
		a := d.s.cfg.Approvals.Inside(ctx, q)
		a.By = "embedder"
		if err := d.desk.Answer(ctx, q.ID, a); err != nil && ctx.Err() == nil {
			d.s.cfg.Logger.Error("an answer did not count", "question", q.ID, "err", err)
		}
	}()
}

func (d *desk) settled(q approve.Question) {
	d.mu.Lock()
	if cancel := d.inside[q.ID]; cancel != nil {
		cancel()
		delete(d.inside, q.ID)
	}
	d.mu.Unlock()
	d.s.emit(event.Event{Kind: event.Answered, Approval: q.ID, Tool: q.Tool, Outcome: string(q.State), By: q.By, Text: q.Note})
	if d.terminal != nil {
		d.terminal.Settled(q)
	}
}

// Ask implements gate.Approver.
func (d *desk) Ask(ctx context.Context, q call.Question) call.Answer {
	c := approve.Call{
		Seq: q.Seq, Tool: q.Tool.Name, Effects: string(q.Tool.Effects), Arguments: q.Arguments,
		Layer: q.Decision.Layer, Rule: q.Decision.Rule, Reason: q.Decision.Reason, Gone: q.Gone,
	}
	if q.Decision.Layer == policy.ModeLayer {
		c.Plan = builtin.PlanOf(q.Arguments)
	}
	got, err := d.desk.Ask(ctx, c)
	if err != nil {
		d.s.cfg.Logger.Error("a person could not be asked", "tool", c.Tool, "err", err)
		if cause := errors.Unwrap(err); cause != nil {
			d.s.note("notice", "a person could not be asked about a call of "+c.Tool+": "+cause.Error())
		}
		return call.Answer{Reason: err.Error()}
	}
	a := call.Answer{ID: got.ID, By: got.By, Reason: got.Note}
	switch got.State {
	case approve.Approved:
		a.Yes = true
	case approve.Denied:
	case approve.Expired:
		a.By, a.Reason = "expired", ""
	default:
		a.Ended = true
	}
	return a
}

// Use implements gate.Approver.
func (d *desk) Use(ctx context.Context, id, tool string, arguments []byte) error {
	return d.desk.Use(ctx, id, tool, arguments)
}

// Void implements gate.Approver.
func (d *desk) Void(id string) { d.desk.Void(id) }

// notify runs the command that tells a person of a question. It is not of the
// run, which must not reach it: it may hold credentials.
func (s *Session) notify(ctx context.Context, argv []string, stdin []byte) error {
	p, err := proc.Start(ctx, proc.Spec{
		Path: argv[0], Args: argv, Env: s.cfg.Environ, Dir: string(filepath.Separator), Stdin: bytes.NewReader(stdin),
		Marker: s.binding.Run + "/" + rand.Text(),
	})
	if err != nil {
		return err
	}
	exit, err := p.Wait()
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errors.New("it took too long and was ended")
	case exit.Code != 0:
		return errors.New("it ended with exit code " + strconv.Itoa(exit.Code))
	}
	return nil
}
