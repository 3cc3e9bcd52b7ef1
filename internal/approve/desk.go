package approve

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Defaults of Config.
const (
	DefaultExpiry   = 10 * time.Minute
	DefaultMaxOpen  = 20
	DefaultMaxAsked = 1000
)

// Config is what a desk is made of. Run and Open are required.
type Config struct {
	Run, Workspace, Channel, User, Agent string

	// PolicyDigest is the digest of the policy in force now; nil is "" for ever.
	// An approval given under another one is void.
	PolicyDigest func() string
	// Open opens the store, at the first question: a run that asks nothing opens
	// none. It is called again, for the next question, after an error.
	Open func(ctx context.Context) (Store, error)

	// Expiry is how long an answer counts, by a clock that nobody sets, and that
	// stands still while the machine sleeps; 0 is DefaultExpiry.
	Expiry   time.Duration
	MaxOpen  int // questions waiting at once; 0 is DefaultMaxOpen
	MaxAsked int // questions put to a person in the whole run; 0 is DefaultMaxAsked

	// Show is the arguments as the record keeps them, secrets masked, and nil
	// where they can't be shown. A nil Show shows none.
	Show func(raw []byte) []byte
	// Mask takes known secrets out of text; nil leaves text as it is.
	Mask func(string) string

	// Asked is told of each question a person is to answer, Settled when it
	// leaves Pending, however, and after Asked. Neither hears of a question that a
	// remembered answer settled. They must not block; nil is nobody.
	Asked, Settled func(Question)
	// Now is the wall clock, for the times that people read; nil is time.Now.
	// Expiry does not follow it.
	Now func() time.Time
}

// Call is a call that needs a person's answer.
type Call struct {
	Seq           int64 // of its Begin line
	Tool, Effects string
	Arguments     []byte // exactly as they were sent, nil where they were absent
	Plan          string // the Markdown of a submitted plan, "" for other calls
	Layer, Rule   string // what asks
	Reason        string // why, in the policy's words
	// Gone is closed when nobody waits for the call any more; nil is never.
	Gone <-chan struct{}
}

// Refusal is why a call must not run. Error is words for the model, without
// what the cause, Err, may hold (paths); that is for the log.
type Refusal struct {
	Text string
	Err  error
}

func (r *Refusal) Error() string { return r.Text }
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(cause error, format string, args ...any) *Refusal {
	return &Refusal{Text: fmt.Sprintf(format, args...), Err: cause}
}

// identity is what makes two calls the same one to a person who answers.
type identity struct{ tool, digest string }

// remembered is a yes for the rest of the run.
type remembered struct{ id, policy string }

// entry is a question that is not final, or about to be so.
type entry struct {
	identity
	seq   int64         // in the order they were asked
	start time.Time     // by the monotonic clock
	turn  chan struct{} // held by who settles the question in the store
	left  chan struct{} // closed when the question leaves Pending
	quiet bool          // settled by a remembered answer: nobody was shown it
	q     Question      // guarded by Desk.mu
}

// Desk holds the questions of one run. It is safe for concurrent use.
//
// What the desk holds in memory decides what runs. An answer counts when the
// store has it too; an expiry and an end count at once, and are kept where the
// store can keep them.
type Desk struct {
	cfg     Config
	ended   context.Context // done when the desk is closed
	end     context.CancelFunc
	opening sync.Mutex
	store   Store

	mu     sync.Mutex
	closed bool
	open   int // pending, or about to be
	asked  int // put to a person so far
	seq    int64
	live   map[string]*entry
	how    map[string]string // how a question was settled, in words
	yes    map[identity]remembered
	inside sync.WaitGroup // calls in Ask, Answer and Use, and what is still being kept
}

// New returns an open desk.
func New(cfg Config) *Desk {
	if cfg.Expiry <= 0 {
		cfg.Expiry = DefaultExpiry
	}
	if cfg.MaxOpen <= 0 {
		cfg.MaxOpen = DefaultMaxOpen
	}
	if cfg.MaxAsked <= 0 {
		cfg.MaxAsked = DefaultMaxAsked
	}
	if cfg.PolicyDigest == nil {
		cfg.PolicyDigest = func() string { return "" }
	}
	if cfg.Show == nil {
		cfg.Show = func([]byte) []byte { return nil }
	}
	if cfg.Mask == nil {
		cfg.Mask = func(s string) string { return s }
	}
	if cfg.Asked == nil {
		cfg.Asked = func(Question) {}
	}
	if cfg.Settled == nil {
		cfg.Settled = func(Question) {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	d := &Desk{cfg: cfg, live: map[string]*entry{}, how: map[string]string{}, yes: map[identity]remembered{}}
	d.ended, d.end = context.WithCancel(context.Background())
	return d
}

// Ask puts a call to a person and returns when the question is Approved,
// Denied, Expired, or Void because ctx ended, c.Gone was closed or the desk was.
// An Approved question still has to be used, or voided. The error is a *Refusal:
// nobody was asked, and the call must not run.
func (d *Desk) Ask(ctx context.Context, c Call) (Question, error) {
	e := d.entry(c)
	first, err := d.admit(e)
	if err != nil {
		return Question{}, err
	}
	defer d.inside.Done()
	if err := d.add(ctx, e, first); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if first == "" {
			d.open--
			d.asked--
		}
		return Question{}, refuse(err, "refused: a person must be asked before this call, and the question could not be kept; try again later, or go on without this call")
	}
	return d.await(ctx, e, c.Gone), nil
}

func (d *Desk) entry(c Call) *entry {
	now := d.cfg.Now().UTC().Round(0)
	e := &entry{
		identity: identity{c.Tool, Digest(c.Arguments)},
		start:    time.Now(),
		turn:     make(chan struct{}, 1),
		left:     make(chan struct{}),
	}
	e.q = Question{
		ID: newID(), State: Pending, Call: c.Seq,
		Run: oneLine(d.cfg.Run), Workspace: oneLine(d.cfg.Workspace), Channel: oneLine(d.cfg.Channel),
		User: oneLine(d.cfg.User), Agent: oneLine(d.cfg.Agent),
		Tool: oneLine(c.Tool), Effects: oneLine(c.Effects),
		ArgumentsDigest: e.digest, ArgumentsSize: len(c.Arguments),
		Plan:         brief(d.cfg.Mask(c.Plan), MaxPlan),
		PolicyDigest: oneLine(d.cfg.PolicyDigest()),
		Layer:        oneLine(c.Layer), Rule: oneLine(c.Rule), Reason: cut(d.cfg.Mask(c.Reason), maxNote),
		Asked: now, Expires: now.Add(d.cfg.Expiry),
	}
	if c.Arguments != nil {
		e.q.Arguments = brief(readable(d.cfg.Show(c.Arguments)), MaxArguments)
	}
	return e
}

// admit counts a call in, or finds the ID of the question whose answer holds
// for it.
func (d *Desk) admit(e *entry) (first string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return "", refuse(nil, "refused: the run is ending")
	}
	d.seq++
	e.seq = d.seq
	if r, ok := d.yes[e.identity]; ok {
		if r.policy == e.q.PolicyDigest {
			d.inside.Add(1)
			return r.id, nil
		}
		delete(d.yes, e.identity)
	}
	switch {
	case d.open >= d.cfg.MaxOpen:
		return "", refuse(nil, "refused: %d questions of this run are waiting for a person; wait until one is answered, or go on without this call", d.open)
	case d.asked >= d.cfg.MaxAsked:
		return "", refuse(nil, "refused: this run has asked %d questions, and asks no more; go on without this call", d.asked)
	}
	d.open++
	d.asked++
	d.inside.Add(1)
	return "", nil
}

// add keeps the question and makes it one that can be answered. With first it
// is settled by that question's answer.
func (d *Desk) add(ctx context.Context, e *entry, first string) error {
	q := e.q
	err := d.keep(ctx, func(ctx context.Context, s Store) error {
		if err := s.Add(ctx, q); err != nil || first == "" {
			return err
		}
		from := q.State
		q.State, q.By, q.Answered = Approved, "remembered "+first, q.Asked
		if err := s.Settle(ctx, q, from); err != nil {
			abandon(ctx, s, q, from)
			return err
		}
		return nil
	}, func(ctx context.Context, s Store, err error) {
		if err == nil {
			abandon(ctx, s, q, q.State)
		}
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[e.q.ID] = e
	if first != "" {
		e.q, e.quiet = q, true
		close(e.left)
	}
	if d.closed {
		d.endLocked(e)
	}
	return nil
}

// abandon leaves no open question in the store that nobody will settle.
func abandon(ctx context.Context, s Store, q Question, from State) {
	q.State, q.Note = Void, "it could not be asked"
	_ = s.Settle(context.WithoutCancel(ctx), q, from) // it is void with the run, at the latest
}

// await waits for the end of a question that can be answered.
func (d *Desk) await(ctx context.Context, e *entry, gone <-chan struct{}) Question {
	q := d.current(e)
	defer func() {
		if d.over(e, Void, "the call ended") { // by a panic in Asked
			d.keepEnd(d.current(e), Pending)
		}
	}()
	if q.State == Pending {
		d.cfg.Asked(q)
		timer := time.NewTimer(d.cfg.Expiry - time.Since(e.start))
		defer timer.Stop()
		select {
		case <-e.left:
		case <-timer.C:
			d.over(e, Expired, "")
		case <-ctx.Done():
			d.over(e, Void, "the call was cancelled")
		case <-gone:
			d.over(e, Void, "nobody waits for the call any more")
		}
		q = d.current(e)
		d.cfg.Settled(q)
	}
	if q.State == Expired || q.State == Void && q.By == "" {
		d.keepEnd(q, Pending)
	}
	return q
}

// over ends a question that nobody has answered, and reports whether it did.
func (d *Desk) over(e *entry, to State, note string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.overLocked(e, to, note)
}

func (d *Desk) overLocked(e *entry, to State, note string) bool {
	if e.q.State != Pending {
		return false
	}
	q := e.q
	q.State, q.Answered, q.Note = to, d.cfg.Now().UTC().Round(0), note
	d.settleLocked(e, q)
	return true
}

// voidLocked ends a question that is approved, and keeps that when it can.
func (d *Desk) voidLocked(e *entry) {
	q := e.q
	q.State = Void
	d.settleLocked(e, q)
	d.later(q, Approved)
}

// endLocked ends any question because the run does. One that is pending is kept
// by its Ask.
func (d *Desk) endLocked(e *entry) {
	if !d.overLocked(e, Void, "the run ended") {
		d.voidLocked(e)
	}
}

func (d *Desk) current(e *entry) Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.q
}

// settleLocked makes q the state of e. d.mu is held.
func (d *Desk) settleLocked(e *entry, q Question) {
	if e.q.State == Pending {
		d.open--
		close(e.left)
	}
	e.q = q
	if q.State == Approved {
		return
	}
	delete(d.live, q.ID)
	if !e.quiet {
		d.how[q.ID] = q.How()
	}
}
