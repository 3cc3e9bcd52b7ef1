// Package endpoint is the HTTP MCP server of one run: one listener on loopback,
// one bearer token, both eras of the protocol. It decides whether a request
// reaches the gate and turns the answer into bytes; it has no way of its own to
// run a tool.
//
// A request is checked in this order, and the first check that fails answers
// it: Host and Origin (403), path (404), method (405), token (401), size (413),
// content type (415), and only then is the body read, once and strictly.
//
// Which protocol a request gets is its own choice and needs no session: modern
// _meta (revision 2026-07-28) means the modern, stateless rules; everything
// else, initialize first of all, means the legacy ones (2024-11-05 to
// 2025-11-25). No session id is minted and one that is sent is ignored: the
// token is the session. Batches, which only 2025-03-26 knew, are refused.
package endpoint

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Defaults of Config.
const (
	DefaultMaxBody       = 4 << 20
	DefaultHeaderTimeout = 10 * time.Second
	DefaultBodyTimeout   = 30 * time.Second
	DefaultStreamAfter   = time.Second
	DefaultHeartbeat     = 5 * time.Second
	DefaultMaxPending    = 256
)

const (
	// maxConns is how many connections may be open at once, with the token or
	// without. Only whoever holds the token can come near it, and only its own
	// run suffers: the newest connection is closed.
	maxConns = 1024
	// maxHeader bounds the bytes of a request's header, with the slack of
	// 4 KiB that net/http adds.
	maxHeader = 32 << 10
)

// Config says what an endpoint serves. Listener, Token and Call must be set.
type Config struct {
	// Listener is bound to 127.0.0.1 already. The endpoint closes it.
	Listener net.Listener
	// Token is the bearer token of the run: visible ASCII, not empty.
	Token string

	// Name and Version are the server's identity in the handshake.
	Name, Version string
	// Instructions reach the model through the handshake. Empty means none.
	Instructions string

	// Tools returns the JSON array of tool definitions, which goes verbatim
	// into the answer to tools/list. nil, and a nil or empty array, mean no
	// tools.
	Tools func() []byte
	// Call takes one tool call to the gate. An error that is a
	// *call.NotAvailable is answered by its text, any other error by a fixed
	// one: its words are not for the client.
	//
	// Call may return long after its time is over, or never, where it has called
	// req.Late: the client is answered by that.
	//
	// ctx ends when the endpoint is closed, and in the modern era when the client
	// goes away; what Call gives to req.Begun is called when the client cancels. A legacy client that
	// goes away cancels nothing (2025-11-25, basic/transports); req.Gone is closed
	// in both eras.
	Call func(ctx context.Context, req call.Request) (call.Result, error)

	// OnListed is told that tools/list was answered, OnAuthenticated that the
	// token was shown for the first time. Both may be nil and are called on the
	// goroutine of the request.
	OnListed        func()
	OnAuthenticated func()
	// OnRefused is told of each request that was refused before the gate, and
	// why: one of the Kind constants and a short detail, which may hold text of
	// the client but never the token. It is called before the answer is
	// written, may be called from many goroutines at once, and may be nil.
	OnRefused func(kind, detail string)

	// MaxBody is the largest request body in bytes. 0 means DefaultMaxBody.
	MaxBody int64
	// HeaderTimeout bounds how long a request's header may take, and how long
	// a new connection may stay silent. 0 means DefaultHeaderTimeout.
	HeaderTimeout time.Duration
	// BodyTimeout bounds how long a request's body may take. 0 means
	// DefaultBodyTimeout.
	BodyTimeout time.Duration
	// StreamAfter is how long a call may take before a client that accepts
	// one is answered by an event stream. 0 means DefaultStreamAfter.
	StreamAfter time.Duration
	// Heartbeat is the time between signs of life on such a stream. 0 means
	// DefaultHeartbeat.
	Heartbeat time.Duration
	// ConnectionClose ends the connection after every answer. The default
	// keeps connections open: one real CLI loses all its tools when the
	// connection of its 405 is closed.
	ConnectionClose bool
	// MaxPending is how many connections may be open that have not shown the
	// token yet. One more closes the oldest of them, so that another user of
	// the machine can't starve the run. 0 means DefaultMaxPending.
	MaxPending int
}

// Kinds of refusal, as OnRefused gets them.
const (
	KindHost     = "host"     // a Host header that is not ours
	KindOrigin   = "origin"   // an Origin header that is not ours
	KindPath     = "path"     // not the path of the endpoint
	KindMethod   = "method"   // an HTTP method other than POST
	KindToken    = "token"    // no token, a wrong one, or two
	KindSize     = "size"     // a body over MaxBody
	KindType     = "type"     // a body that is not declared as plain JSON
	KindTimeout  = "timeout"  // a body that took too long or ended early
	KindJSON     = "json"     // a body that is not JSON, or has two readings
	KindBatch    = "batch"    // a JSON-RPC batch
	KindEnvelope = "envelope" // JSON that is not a JSON-RPC 2.0 message
	KindVersion  = "version"  // a protocol version that is not served
	KindHeader   = "header"   // headers and body disagree, or one is missing
	KindParams   = "params"   // params that do not fit the method
	KindPending  = "pending"  // too many connections without the token
	KindConns    = "conns"    // too many connections
)

// Endpoint is one run's MCP server. Its methods may be called at any time and
// from any goroutine.
type Endpoint struct {
	cfg      Config
	host     string // the one good Host header
	origin   string // the one good Origin header
	token    [sha256.Size]byte
	prepared prepared

	ctx    context.Context
	cancel context.CancelCauseFunc
	srv    *http.Server
	served chan struct{} // closed when the accept loop is over; nil before Serve

	authenticated atomic.Bool
	closing       sync.Once

	mu      sync.Mutex
	closed  bool
	conns   map[*conn]struct{}
	pending *list.List // of *conn, oldest first
	flights map[*flight]struct{}
}

// New returns an endpoint for cfg, which serves nothing before Serve. It fails
// where cfg names no usable token, no Call, or a listener that is not on
// 127.0.0.1. On an error the listener stays open.
func New(cfg Config) (*Endpoint, error) {
	if cfg.Listener == nil {
		return nil, errors.New("endpoint: no listener")
	}
	addr, ok := cfg.Listener.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.Equal(net.IPv4(127, 0, 0, 1)) {
		return nil, fmt.Errorf("endpoint: the listener is on %s, and only 127.0.0.1 is served", cfg.Listener.Addr())
	}
	if cfg.Token == "" {
		return nil, errors.New("endpoint: the token is empty")
	}
	for i := range len(cfg.Token) {
		if c := cfg.Token[i]; c <= ' ' || c > '~' {
			return nil, errors.New("endpoint: the token has bytes that no Authorization header can carry")
		}
	}
	if cfg.Call == nil {
		return nil, errors.New("endpoint: no Call")
	}
	setDefault(&cfg.MaxBody, DefaultMaxBody)
	setDefault(&cfg.HeaderTimeout, DefaultHeaderTimeout)
	setDefault(&cfg.BodyTimeout, DefaultBodyTimeout)
	setDefault(&cfg.StreamAfter, DefaultStreamAfter)
	setDefault(&cfg.Heartbeat, DefaultHeartbeat)
	setDefault(&cfg.MaxPending, DefaultMaxPending)
	if cfg.OnListed == nil {
		cfg.OnListed = func() {}
	}
	if cfg.OnAuthenticated == nil {
		cfg.OnAuthenticated = func() {}
	}
	if cfg.OnRefused == nil {
		cfg.OnRefused = func(kind, detail string) {}
	}

	host := fmt.Sprintf("127.0.0.1:%d", addr.Port)
	e := &Endpoint{
		cfg:      cfg,
		host:     host,
		origin:   "http://" + host,
		token:    sha256.Sum256([]byte(cfg.Token)),
		prepared: prepare(cfg.Name, cfg.Version, cfg.Instructions),
		conns:    map[*conn]struct{}{},
		pending:  list.New(),
		flights:  map[*flight]struct{}{},
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	e.srv = &http.Server{
		Handler: http.HandlerFunc(e.serveHTTP),
		// net/http would answer "OPTIONS *" by itself with a 200.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            cfg.HeaderTimeout,
		MaxHeaderBytes:               maxHeader,
		Protocols:                    &protocols,
		BaseContext:                  func(net.Listener) context.Context { return e.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		// What net/http would log is text of whoever connects.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if cfg.ConnectionClose {
		e.srv.SetKeepAlivesEnabled(false)
	}
	return e, nil
}

// URL is where the endpoint is served. It names the address, never a host
// name, which a client might resolve to another one.
func (e *Endpoint) URL() string { return e.origin + "/mcp" }

// Serve starts to serve in the background and returns. Only the first call has
// an effect, and none after Close.
func (e *Endpoint) Serve() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.served != nil {
		return
	}
	e.served = make(chan struct{})
	go func() {
		defer close(e.served)
		_ = e.srv.Serve(&listener{e.cfg.Listener, e})
	}()
}

// errClosed is why calls in flight end when the endpoint does.
var errClosed = errors.New("the run has ended")

// Close ends the endpoint: the port refuses first, then the calls in flight are
// cancelled, then the connections are dropped. It does not wait for a call that
// ignores its context; such a call's answer reaches nobody. When Close returns
// the port refuses, and every connection is closed. Calls after the first wait
// for it. The error is always nil.
func (e *Endpoint) Close() error {
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		served := e.served
		e.mu.Unlock()

		// An error here says that the listener was closed before.
		_ = e.cfg.Listener.Close()
		e.cancel(errClosed)
		// The server closes the connections it knows of; those it has not met
		// yet, or that were taken from it, are in conns alone.
		_ = e.srv.Close()
		for _, c := range e.open() {
			_ = c.Close()
		}
		if served != nil {
			<-served
		}
	})
	return nil
}

func (e *Endpoint) open() []*conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	cs := make([]*conn, 0, len(e.conns))
	for c := range e.conns {
		cs = append(cs, c)
	}
	return cs
}

// refused reports a refusal, with the token struck from what the client sent.
func (e *Endpoint) refused(kind, detail string) {
	const maxDetail = 80
	if detail != "" {
		detail = strings.ReplaceAll(detail, e.cfg.Token, "[token]")
		if len(detail) > maxDetail {
			detail = strings.ToValidUTF8(detail[:maxDetail], "")
		}
	}
	e.cfg.OnRefused(kind, detail)
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
