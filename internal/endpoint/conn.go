package endpoint

import (
	"container/list"
	"net"
)

// connKey finds a request's *conn in its context.
type connKey struct{}

// conn is one connection, known to the endpoint from accept to close.
type conn struct {
	net.Conn
	e *Endpoint
	// elem is the place in e.pending, nil once the token was shown. Guarded by
	// e.mu.
	elem *list.Element
	// shown is for the goroutine that serves the connection.
	shown bool
}

// Close also forgets the connection. It may be called more than once.
func (c *conn) Close() error {
	c.e.mu.Lock()
	delete(c.e.conns, c)
	c.e.settle(c)
	c.e.mu.Unlock()
	return c.Conn.Close()
}

// settle takes c out of the pending ones. e.mu is held.
func (e *Endpoint) settle(c *conn) {
	if c.elem != nil {
		e.pending.Remove(c.elem)
		c.elem = nil
	}
}

// authenticate notes that c has shown the token.
func (e *Endpoint) authenticate(c *conn) {
	if !c.shown {
		c.shown = true
		e.mu.Lock()
		e.settle(c)
		e.mu.Unlock()
	}
	if !e.authenticated.Load() && e.authenticated.CompareAndSwap(false, true) {
		e.cfg.OnAuthenticated()
	}
}

// listener hands out connections that the endpoint keeps count of.
type listener struct {
	net.Listener
	e *Endpoint
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, e: l.e}
		full, oldest, closed := l.e.admit(c)
		switch {
		case closed:
			_ = nc.Close()
			return nil, net.ErrClosed
		case full:
			l.e.refused(KindConns, "")
			_ = nc.Close()
			continue
		case oldest != nil:
			l.e.refused(KindPending, "")
			_ = oldest.Close()
		}
		return c, nil
	}
}

// admit adds c. oldest is the connection that has to make room for it.
func (e *Endpoint) admit(c *conn) (full bool, oldest *conn, closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false, nil, true
	}
	if len(e.conns) >= maxConns {
		return true, nil, false
	}
	e.conns[c] = struct{}{}
	c.elem = e.pending.PushBack(c)
	if e.pending.Len() > e.cfg.MaxPending {
		oldest = e.pending.Front().Value.(*conn)
	}
	return false, oldest, false
}
