package approve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// How says in words how the question was settled: who answered, when, why, and
// whether the call ran. "pending" for one that was not.
func (q Question) How() string {
	s := string(q.State)
	if q.By != "" {
		verb := "approved"
		if q.State == Denied {
			verb = "denied"
		}
		s = fmt.Sprintf("%s by %s", verb, q.By)
	}
	if !q.Answered.IsZero() {
		s += " at " + q.Answered.Format(time.RFC3339)
	}
	if q.Note != "" {
		s += " (" + q.Note + ")"
	}
	switch {
	case q.By != "" && q.State == Used:
		s += ", and the call ran"
	case q.By != "" && q.State == Void:
		s += ", but the call did not run"
	}
	return s
}

func settled(how string) error { return fmt.Errorf("%w: %s", ErrSettled, how) }

// Answer settles a pending question by a person's word. It returns ErrUnknown
// for an ID that is none of this run's; ErrSettled, with words that say how,
// for a question that is no longer pending; and the store's error where the
// answer could not be kept: then it does not count, and the question stays open.
func (d *Desk) Answer(ctx context.Context, id string, a Answer) error {
	e, err := d.turn(ctx, id)
	if err != nil {
		return err
	}
	defer d.inside.Done()
	q, err := d.answered(e, a)
	if err != nil {
		<-e.turn
		return err
	}
	late := func(ctx context.Context, s Store, err error) {
		defer func() { <-e.turn }()
		if err != nil {
			return
		}
		// The person was told that it was not taken.
		back := q
		back.State, back.By, back.Answered, back.Note, back.Remember = Pending, "", time.Time{}, "", false
		_ = s.Settle(ctx, back, q.State)
		if now := d.current(e); now.State != Pending {
			_ = s.Settle(ctx, now, Pending)
		}
	}
	err = d.keep(ctx, func(ctx context.Context, s Store) error { return s.Settle(ctx, q, Pending) }, late)
	if errors.Is(err, errLate) {
		if now := d.current(e); now.State != Pending {
			return settled(now.How())
		}
		return notTaken(err)
	}
	defer func() { <-e.turn }()
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.q.State != Pending {
		// It ended while the answer was being kept.
		if err == nil && q.State == Approved {
			void := q
			void.State = Void
			d.later(void, Approved)
		}
		return settled(e.q.How())
	}
	switch {
	case errors.Is(err, ErrSettled), errors.Is(err, ErrUnknown):
		// Somebody wrote the store past this desk: nothing is sure any more.
		d.overLocked(e, Void, "its entry in the store was changed by something else")
		return settled(e.q.How())
	case err != nil:
		return notTaken(err)
	}
	d.settleLocked(e, q)
	if q.Remember {
		d.yes[e.identity] = remembered{id, q.PolicyDigest}
	}
	return nil
}

// turn finds a question that is not final and makes the caller, who is then
// inside, the one who settles it.
func (d *Desk) turn(ctx context.Context, id string) (*entry, error) {
	d.mu.Lock()
	e, words := d.live[id], d.how[id]
	if e != nil {
		d.inside.Add(1)
	}
	d.mu.Unlock()
	switch {
	case e != nil:
	case words != "":
		return nil, settled(words)
	default:
		return nil, ErrUnknown
	}
	select {
	case e.turn <- struct{}{}:
		return e, nil
	case <-ctx.Done():
		d.inside.Done()
		return nil, notTaken(ctx.Err())
	}
}

// answered is the question as a makes it, or why it can't be answered.
func (d *Desk) answered(e *entry, a Answer) (Question, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late(e) {
		d.overLocked(e, Expired, "") // Ask keeps it
	}
	if e.q.State != Pending {
		return Question{}, settled(e.q.How())
	}
	q := e.q
	q.State = Denied
	if a.Yes {
		q.State, q.Remember = Approved, a.Remember
	}
	q.By, q.Answered = oneLine(a.By), d.cfg.Now().UTC().Round(0)
	if q.By == "" {
		q.By = "somebody"
	}
	q.Note = cut(d.cfg.Mask(a.Note), maxNote)
	return q, nil
}

func (d *Desk) late(e *entry) bool { return time.Since(e.start) >= d.cfg.Expiry }

func notTaken(err error) error {
	return fault.Wrap(err, fault.KindOf(err), fault.HintOf(err), "the answer was not kept and does not count; the question is still open")
}

// Use says that an approved call runs now. It returns nil once for a question,
// and only while the question is Approved, has not expired, the policy is the
// one it was asked under, tool and arguments are the very ones it was asked
// about, and the store has it as Used. On any doubt the error is a *Refusal, the
// call must not run, and the question is Void.
func (d *Desk) Use(ctx context.Context, id, tool string, arguments []byte) error {
	e, q, err := d.using(id, identity{tool, Digest(arguments)})
	if err != nil {
		return err
	}
	defer d.inside.Done()
	err = d.keep(ctx, func(ctx context.Context, s Store) error { return s.Settle(ctx, q, Approved) },
		func(ctx context.Context, s Store, err error) {
			if err == nil {
				void := q
				void.State = Void
				_ = s.Settle(ctx, void, Used)
			}
		})
	d.mu.Lock()
	defer d.mu.Unlock()
	from := Used
	switch {
	case err != nil:
		from = Approved
		err = refuse(err, "refused: a person approved this call, but that it runs could not be kept; it was not run")
	case ctx.Err() != nil || d.closed:
		err = refuse(ctx.Err(), "refused: a person approved this call, but it was cancelled before it ran")
	default:
		return nil
	}
	void := q
	void.State = Void
	d.settleLocked(e, void)
	d.later(void, from)
	return err
}

// using checks an approved question against what would run now, and takes it
// out of reach of anybody else. Without an error the caller is inside.
func (d *Desk) using(id string, now identity) (*entry, Question, error) {
	policy := oneLine(d.cfg.PolicyDigest())
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.live[id]
	if e == nil {
		return nil, Question{}, refuse(cause(d.how[id]), "refused: the approval of this call was used up or is void")
	}
	var no *Refusal
	switch {
	case e.q.State != Approved:
		return nil, Question{}, refuse(nil, "refused: nobody has approved this call")
	case e.identity != now:
		no = refuse(nil, "refused: a person approved another call than this one")
	case e.q.PolicyDigest != policy:
		no = refuse(nil, "refused: the policy has changed since a person approved this call; ask again")
	case d.late(e):
		no = refuse(nil, "refused: the approval of this call has expired")
	}
	if no != nil {
		d.voidLocked(e)
		return nil, Question{}, no
	}
	q := e.q
	q.State = Used
	d.settleLocked(e, q)
	d.inside.Add(1)
	return e, q, nil
}

func cause(words string) error {
	if words == "" {
		return ErrUnknown
	}
	return settled(words)
}

// Void says that an approved call will not run. It does nothing to a question
// that is not Approved, and does not wait until it is kept.
func (d *Desk) Void(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.live[id]; e != nil && e.q.State == Approved {
		d.voidLocked(e)
	}
}

// Pending is the questions that can be answered now, in the order they were
// asked.
func (d *Desk) Pending() []Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	var entries []*entry
	for _, e := range d.live {
		if e.q.State == Pending && !d.late(e) {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	list := make([]Question, len(entries))
	for i, e := range entries {
		list[i] = e.q
	}
	return list
}

// Close makes every question Void that is not final; each Ask returns, and
// nothing can be asked, answered or used any more. It returns when that is kept,
// or after 3 s where the store does not get on. Close is idempotent.
func (d *Desk) Close() {
	d.mu.Lock()
	d.closed = true
	for _, e := range d.live {
		d.endLocked(e)
	}
	d.mu.Unlock()
	d.end()
	waitFor(&d.inside, closeTime)
}
