package gate

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of one call. The standard library's would do, as
// two in a row, each with a timer or a goroutine of its own: that took longer
// than judging the call.
type callContext struct {
	context.Context // the client's, for its values
	unhook          func() bool

	mu   sync.Mutex
	done chan struct{} // made when it is first asked for
	err  error
	ends time.Time // zero before the call's time begins
	end  func()    // called, on a goroutine of its own, when the context is done
}

// follow makes c end with the client's context.
func (c *callContext) follow(parent context.Context) {
	c.Context = parent
	if parent.Done() != nil {
		c.unhook = context.AfterFunc(parent, func() { c.cancel(parent.Err()) })
	}
}

// cancel ends c with err, if it has not ended.
func (c *callContext) cancel(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancelLocked(err)
}

func (c *callContext) cancelLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	if c.end != nil {
		go c.end()
	}
}

// atEnd has f called when c is done; nil takes that back.
func (c *callContext) atEnd(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end = f
	if f != nil && c.err != nil {
		go f()
	}
}

// release lets go of the client's context.
func (c *callContext) release() {
	if c.unhook != nil {
		c.unhook()
	}
	c.cancel(context.Canceled)
}

func (c *callContext) begin(ends time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = ends
}

// Deadline implements context.Context.
func (c *callContext) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.Context.Deadline()
	if c.ends.IsZero() || ok && d.Before(c.ends) {
		return d, ok
	}
	return c.ends, true
}

// Done implements context.Context.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.unhook != nil {
		if err := c.Context.Err(); err != nil { // told on another goroutine, which may come late
			c.cancelLocked(err)
		}
	}
	return c.err
}
