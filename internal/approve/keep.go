package approve

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// storeTime bounds one use of the store. It is more than the store itself
	// waits for a lock, so that the store's own words come first.
	storeTime = 15 * time.Second
	// patience is how long a call that is over waits until that is kept, and how
	// long a store may take to notice that a context ended.
	patience = time.Second
	// closeTime bounds Close.
	closeTime = 3 * time.Second
)

// errLate: the store has not returned although its context ended.
var errLate = errors.New("the store does not answer")

// opened is the store, opened where it is not yet.
func (d *Desk) opened(ctx context.Context) (Store, error) {
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.store == nil {
		s, err := d.cfg.Open(ctx)
		if err != nil {
			return nil, err
		}
		d.store = s
	}
	return d.store, nil
}

// keep lets f use the store for a while that the context, the desk's end and
// storeTime bound. What f returns is what happened, except errLate: f is still
// at it, and late is called with what it returns one day.
func (d *Desk) keep(ctx context.Context, f func(context.Context, Store) error, late func(context.Context, Store, error)) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	unlink := context.AfterFunc(d.ended, cancel)
	done, gaveUp := make(chan error), make(chan struct{})
	go func() {
		defer cancel()
		defer unlink()
		s, err := d.opened(ctx)
		if err == nil {
			err = f(ctx, s)
		}
		select {
		case done <- err:
		case <-gaveUp:
			ctx, cancel := context.WithTimeout(context.Background(), storeTime)
			defer cancel()
			late(ctx, s, err)
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		close(gaveUp)
		return errLate
	}
}

// keepEnd keeps what became of a question, and waits a little for it. The caller
// is inside.
func (d *Desk) keepEnd(q Question, from State) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-d.later(q, from):
	case <-timer.C:
	}
}

// later keeps what became of a question, and closes the channel when it has
// tried. The caller is inside, or holds d.mu of a desk that Close does not wait
// for yet. A store that can't be written is no reason to do anything else: what
// counts is in memory, and in the record.
func (d *Desk) later(q Question, from State) <-chan struct{} {
	done := make(chan struct{})
	d.inside.Add(1)
	go func() {
		defer close(done)
		defer d.inside.Done()
		ctx, cancel := context.WithTimeout(context.Background(), storeTime)
		defer cancel()
		if s, err := d.opened(ctx); err == nil {
			_ = s.Settle(ctx, q, from)
		}
	}()
	return done
}

// waitFor waits for a group, but no longer than limit.
func waitFor(group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
