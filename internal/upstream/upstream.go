// Package upstream is the client of other MCP servers. An Upstream is one server
// of one run: [Start] connects to it (over stdio or streamable HTTP, in whichever
// era of the protocol it speaks) and freezes its tools, [Upstream.Call] calls one
// of them, [Upstream.Close] ends it. A [Set] is all servers of a run.
//
// What passes is not changed. The arguments of a call go out as the very bytes
// they are, in a fresh envelope with an id of ours; the result comes back as the
// very bytes that came. (Over stdio a message is a line: line breaks between the
// tokens of the arguments, which mean nothing in JSON, become blanks.)
//
// A call is sent once. Where the connection breaks under way the call fails, at
// once, and says that it may have run; the next call connects anew. There is one
// exception, which is none: an HTTP server that answers 404 to a session id says
// that it did not take the call (MCP 2025-11-25, basic/transports, "Session
// Management"), which is then made in a new session.
//
// Definitions are frozen at the first complete listing, with a digest over the
// exact bytes of each. After every new connection the tools are listed again,
// and one whose definition is not the same is refused.
//
// Requests of the server are answered: ping, and everything else with -32601, as
// no capability of a client is announced. Its notifications are not passed on.
//
// The framing is our own, not that of the transports of the official SDK: those
// end the connection at the first line that is no message (a banner), hold one
// message of at most 16 MiB whose bytes are decoded and encoded again on the way,
// end the child alone and not what it started, follow redirects with credentials,
// and would be linked into every program that embeds a bridge. In tests the SDK's
// servers are what we are held against.
package upstream

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Upstream is one server of one run. Its methods may be called concurrently.
type Upstream struct {
	spec         Spec
	tools        []Definition
	byName       map[string]*Definition
	instructions string

	ids     atomic.Int64
	clean   atomic.Bool // the current connection has answered a call
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conn     *conn // the current connection, nil without
	starting *attempt
	legacy   bool      // known to be of the legacy era, or to die of the probe
	failures int       // starts since the last good answer
	lastTry  time.Time // when the last start began
}

// attempt is a new connection on its way, for all calls that wait for it.
type attempt struct {
	done chan struct{} // then conn and err are set
	conn *conn
	err  error
}

// conn is a connection after its handshake.
type conn struct {
	link
	version      string
	modern       bool
	instructions string
	refused      map[string]bool // tools that are not what they were
}

// Start connects to a server and lists its tools. ctx bounds that alone; the
// server lives until Close. The error is an *Error, or ctx's, and then nothing is
// left of the server.
func Start(ctx context.Context, spec Spec) (*Upstream, error) {
	spec.defaults()
	u := &Upstream{spec: spec}
	u.life, u.end = context.WithCancel(context.Background())
	c, tools, err := u.connect(ctx)
	if err != nil {
		u.Close()
		return nil, err
	}
	u.freeze(tools)
	u.conn, u.instructions = c, c.instructions
	u.lastTry = time.Now()
	return u, nil
}

func (u *Upstream) freeze(tools []Definition) {
	u.tools = tools
	u.byName = make(map[string]*Definition, len(tools))
	for i := range tools {
		d := &tools[i]
		u.byName[d.Name] = d
		if d.Hidden != "" {
			u.spec.Note("tool " + u.spec.quote(d.Name) + " is hidden: " + d.Hidden)
		}
	}
}

// Name is Spec.Name.
func (u *Upstream) Name() string { return u.spec.Name }

// Tools are the definitions of the first complete listing, in the server's order.
// The caller must not change them.
func (u *Upstream) Tools() []Definition { return u.tools }

// Instructions are what the server said to its client about itself. They are the
// server's words, as they came.
func (u *Upstream) Instructions() string { return u.instructions }

// Call calls a tool by the server's own name for it and returns its result
// object, exactly as it came; call.IsJSON holds of it. args is one JSON object.
// progress, where not nil, gets the params of each progress notification, exactly
// as they came, until Call returns; it must not block.
//
// The error is an *Error, or ctx's: when ctx ends the server is told that the call
// is cancelled, and Call returns without waiting for it.
func (u *Upstream) Call(ctx context.Context, name string, args []byte, progress func(params []byte)) ([]byte, error) {
	d := u.byName[name]
	if d == nil || d.Hidden != "" {
		return nil, u.spec.fail(Unavailable, "has no tool %s", u.spec.quote(name))
	}
	for again := false; ; again = true {
		c, err := u.connected(ctx)
		if err != nil {
			return nil, err
		}
		if c.refused[name] {
			return nil, u.spec.fail(Changed, "has changed the definition of tool %s since the run began (%s): the call was not sent", u.spec.quote(name), Changed)
		}
		a, err := c.ask(ctx, u.callOf(c, d, args, progress))
		if err == nil {
			u.answered()
			return u.result(a, c.modern)
		}
		if e, ok := errors.AsType[*Error](err); ok && e.session && !again {
			c.abandon(e)
			continue
		}
		return nil, err
	}
}

// result is what a call answered.
func (u *Upstream) result(a answer, modern bool) ([]byte, error) {
	if a.failure != nil {
		return nil, u.answeredError(a.failure)
	}
	members, ok := call.Members(a.result)
	if !ok {
		return nil, u.spec.fail(Malformed, "answered with a result that is no object")
	}
	for _, m := range members {
		if modern && m.Name == "resultType" && string(m.Value) == `"input_required"` {
			return nil, u.spec.fail(Malformed, "asks its client for input, which this run does not pass on")
		}
	}
	return a.result, nil
}

func (u *Upstream) answeredError(f *failure) *Error {
	e := u.spec.fail(Answered, "answered with error %d: %s", f.code, u.spec.quote(f.message))
	e.RPC = f.code
	return e
}

// answered notes that a connection does its work: the next start need not wait.
func (u *Upstream) answered() {
	if u.clean.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clean.Store(true)
	u.failures = 0
}

const (
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// patience is how long a call waits for a start that must not come yet.
	patience = time.Second
)

// pause is how long the next start has to wait. u.mu is held.
func (u *Upstream) pause() time.Duration {
	if u.failures == 0 {
		return 0
	}
	d := maxBackoff
	if u.failures < 8 {
		d = min(d, firstBackoff<<(u.failures-1))
	}
	return time.Until(u.lastTry.Add(d))
}

// connected is the current connection, or a new one.
func (u *Upstream) connected(ctx context.Context) (*conn, error) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return nil, u.spec.closedError()
	}
	if c := u.conn; c != nil {
		select {
		case <-c.lost():
			u.conn = nil
			u.running.Go(c.close)
		default:
			u.mu.Unlock()
			return c, nil
		}
	}
	a := u.starting
	if a == nil {
		wait := u.pause()
		if wait > patience {
			n := u.failures
			u.mu.Unlock()
			return nil, u.spec.fail(Unavailable, "does not stay up (started %d times); it is started again in %d s: the call was not sent", n, int(wait.Seconds()+1))
		}
		a = &attempt{done: make(chan struct{})}
		u.starting = a
		u.failures++
		u.clean.Store(false)
		u.running.Go(func() { u.restart(a, wait) })
	}
	u.mu.Unlock()
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// restart makes a new connection and holds its tools against the frozen ones.
func (u *Upstream) restart(a *attempt, wait time.Duration) {
	defer close(a.done)
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-u.life.Done():
		}
	}
	u.mu.Lock()
	u.lastTry = time.Now()
	u.mu.Unlock()
	c, tools, err := u.connect(u.life)
	if err == nil {
		c.refused = u.compare(tools)
		u.spec.Note("was connected again")
	} else {
		u.spec.Note("could not be connected again: " + err.Error())
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.starting = nil
	if err == nil && u.closed {
		c.abandon(u.spec.closedError())
		u.running.Go(c.close)
		c, err = nil, u.spec.closedError()
	}
	if err != nil && u.life.Err() != nil {
		err = u.spec.closedError()
	}
	a.conn, a.err, u.conn = c, err, c
}

// compare names the frozen tools that are not among tools as they were.
func (u *Upstream) compare(tools []Definition) map[string]bool {
	now := make(map[string]string, len(tools))
	for _, d := range tools {
		now[d.Name] = d.Digest
	}
	refused := map[string]bool{}
	for _, d := range u.tools {
		if now[d.Name] != d.Digest {
			refused[d.Name] = true
			u.spec.Note("tool " + u.spec.quote(d.Name) + " has another definition than when the run began, and is refused (" + string(Changed) + ")")
		}
	}
	return refused
}

// connect makes a connection, with its handshake, and lists the tools.
func (u *Upstream) connect(ctx context.Context) (*conn, []Definition, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, u.spec.StartTime, u.spec.fail(Unavailable, "did not list its tools within %v", u.spec.StartTime))
	defer cancel()
	l, err := u.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := u.handshake(ctx, l)
	if !u.legacy && err != nil && ctx.Err() == nil && len(u.spec.Command) > 0 && isLost(l) {
		// Some servers die of a request they do not know before initialize.
		u.discard(l)
		u.legacy = true
		if l, err = u.open(ctx); err != nil {
			return nil, nil, err
		}
		c, err = u.handshake(ctx, l)
	}
	var tools []Definition
	if err == nil {
		u.legacy = !c.modern
		tools, err = u.list(ctx, c)
	}
	if err != nil {
		u.discard(l)
		if e, ok := errors.AsType[*Error](err); ok && e.Code == Died {
			err = u.spec.fail(Unavailable, "%s, before it had listed its tools", e.how)
		}
		if cause := context.Cause(ctx); ctx.Err() != nil {
			err = cause
		}
		return nil, nil, err
	}
	return c, tools, nil
}

func (u *Upstream) open(ctx context.Context) (link, error) {
	if len(u.spec.Command) > 0 {
		return startStdio(ctx, &u.spec)
	}
	return openWeb(&u.spec)
}

// discard ends a connection that came to nothing, without the time for it to
// finish.
func (u *Upstream) discard(l link) {
	l.abandon(u.spec.fail(Unavailable, "was given up"))
	l.close()
}

func isLost(l link) bool {
	select {
	case <-l.lost():
		return true
	default:
		return false
	}
}

// Close ends the server and what it started, and returns when nothing is left.
// Calls under way fail. Closing again waits for the same.
func (u *Upstream) Close() {
	u.mu.Lock()
	if !u.closed {
		u.closed = true
		u.end()
		if c := u.conn; c != nil {
			u.conn = nil
			u.running.Go(c.close)
		}
	}
	u.mu.Unlock()
	u.running.Wait()
}

func (u *Upstream) nextID() int64 { return u.ids.Add(1) }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
