// Package bench measures what a bridge costs on this machine, beside what a bare
// net/http handler costs in the very same run. It is what `drawbridge bench` and
// `make bench` print, and where the numbers in docs/PERFORMANCE.md come from.
//
// An absolute time says more about a machine than about a program, so the numbers
// to hold on to are the ratios. All requests are interleaved, and one of them is
// measured as two: where these differ, the run is void.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
)

// The cases of a report. CaseBare is the floor, CaseBareAgain the same thing
// once more.
const (
	CaseEcho      = "bare TCP echo"
	CaseBare      = "bare net/http handler"
	CaseBareAgain = "the same again (A/A control)"
	CaseAllowed   = "call allowed"
	CaseRefused   = "call refused"
	CaseToken     = "wrong token (401)"
	CaseBareThree = "bare handler, three POSTs"
	CaseHandshake = "handshake, three POSTs"
	CaseStart     = "bridge start"
	CaseClose     = "bridge shutdown, 4 idle connections"
)

// Bounds of Options.
const (
	DefaultRounds = 2000
	MinRounds     = 100
	MaxRounds     = 20_000
	DefaultTime   = 3 * time.Minute
)

// requestBlock is how many requests of one kind follow each other before it is
// the next kind's turn.
const requestBlock = 20

// Options say how long to measure.
type Options struct {
	// Rounds is how often each case is timed, MinRounds to MaxRounds; 0 is
	// DefaultRounds. A tenth more, at most 200, is warm-up and thrown away.
	Rounds int
	// Time ends a run whose rounds take longer; the report has the rounds that
	// were done. 0 is DefaultTime.
	Time time.Duration
	// Dir is an empty directory for state, to be removed by the caller.
	Dir string
}

const (
	handshakeFirst  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	handshakeSecond = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	handshakeThird  = `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`
	callAllowed     = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"get_time","arguments":{"zone":"utc"},"_meta":{"progressToken":3}}}`
	callRefused     = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"set_time","arguments":{"zone":"utc"},"_meta":{"progressToken":3}}}`
	callLong        = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"wait","arguments":{}}}`
)

var wrongToken = strings.Repeat("0", 64)

// start lowers a bridge with a tool that answers a constant, one that is not in
// the scope, and one that returns when it has to.
func start(ctx context.Context, dir string) (*drawbridge.Bridge, error) {
	schema := json.RawMessage(`{"type":"object","properties":{"zone":{"type":"string"}},"required":["zone"]}`)
	constant := func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
		return drawbridge.ToolResult{Text: "12:00"}, nil
	}
	wait := func(ctx context.Context, _ drawbridge.Binding, _ json.RawMessage) (drawbridge.ToolResult, error) {
		<-ctx.Done()
		return drawbridge.ToolResult{}, ctx.Err()
	}
	return drawbridge.Start(ctx, drawbridge.Config{
		Tools: []drawbridge.Tool{
			{Name: "get_time", Description: "The time in a zone.", InputSchema: schema, Effects: drawbridge.Read, Run: constant},
			{Name: "set_time", Description: "Set the time.", InputSchema: schema, Effects: drawbridge.Destructive, Run: constant},
			{Name: "wait", Description: "Wait for the end.", Effects: drawbridge.Read, Run: wait},
		},
		Allow: []string{"get_time", "wait"}, StateDir: dir,
	})
}

// host is the address in a bridge's URL.
func host(b *drawbridge.Bridge) string {
	return strings.TrimSuffix(strings.TrimPrefix(b.URL(), "http://"), "/mcp")
}

// Run measures the table. Errors are of type [*drawbridge.Error]; a run that is
// void is none, see [Report.Void].
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if o.Rounds < MinRounds || o.Rounds > MaxRounds {
		return nil, &drawbridge.Error{
			Kind: drawbridge.Usage, Message: fmt.Sprintf("%d rounds", o.Rounds),
			Hint: fmt.Sprintf("measure %d to %d rounds", MinRounds, MaxRounds),
		}
	}
	if o.Time <= 0 {
		o.Time = DefaultTime
	}
	began := time.Now()
	deadline := began.Add(o.Time)
	s, err := newSetup(ctx, o.Dir, deadline.Add(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer s.close()
	// A shutdown has the record written to the disk, and what the kernel does
	// for that would slow down whatever is timed next: starts and shutdowns,
	// which have no floor, are rounds of their own.
	warmup := min(o.Rounds/10, 200)
	took, err := interleave(ctx, s.requests, requestBlock, warmup, o.Rounds, deadline)
	if err != nil {
		return nil, err
	}
	lives, err := interleave(ctx, s.lives, 1, warmup, o.Rounds, deadline)
	if err != nil {
		return nil, err
	}
	r := report(append(s.requests, s.lives...), append(took, lives...))
	r.Seconds = time.Since(began).Seconds()
	if r.Rounds < MinRounds {
		return nil, &drawbridge.Error{
			Kind: drawbridge.AgentFailed, Message: fmt.Sprintf("only %d rounds in %s", r.Rounds, o.Time),
			Hint: "try again on a quiet machine",
		}
	}
	return r, nil
}

// setup is what the probes of a run work on.
type setup struct {
	ctx      context.Context
	dir      string
	deadline time.Time // of every connection
	bridge   *drawbridge.Bridge
	floor    *floor
	requests []probe
	lives    []probe
	open     []*client
	spare    []*drawbridge.Bridge // started and not shut down yet
}

func newSetup(ctx context.Context, dir string, deadline time.Time) (_ *setup, err error) {
	s := &setup{ctx: ctx, dir: dir, deadline: deadline}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.bridge, err = start(ctx, dir); err != nil {
		return nil, err
	}
	ours, token := host(s.bridge), s.bridge.Token()
	var answers []answer
	for _, body := range []string{handshakeFirst, handshakeSecond, handshakeThird, callAllowed} {
		a, err := ask(ctx, ours, request(ours, "/mcp", token, body))
		if err != nil {
			return nil, failed(err, "the first request")
		}
		answers = append(answers, a)
	}
	if s.floor, err = newFloor(answers); err != nil {
		return nil, failed(err, "the floor")
	}
	bare := s.floor.addr
	post := func(host, path, token, body string, status int) message {
		return message{request(host, path, token, body), status}
	}
	floorCall := []message{post(bare, floorPath(3), token, callAllowed, http.StatusOK)}
	floorThree := []message{
		post(bare, floorPath(0), token, handshakeFirst, http.StatusOK),
		post(bare, floorPath(1), token, handshakeSecond, http.StatusAccepted),
		post(bare, floorPath(2), token, handshakeThird, http.StatusOK),
	}
	handshake := []message{
		post(ours, "/mcp", token, handshakeFirst, http.StatusOK),
		post(ours, "/mcp", token, handshakeSecond, http.StatusAccepted),
		post(ours, "/mcp", token, handshakeThird, http.StatusOK),
	}
	for _, mode := range []string{Fresh, KeepAlive} {
		if err := s.echo(mode, floorCall[0].raw); err != nil {
			return nil, failed(err, CaseEcho)
		}
		for _, p := range []struct {
			name, floor, addr string
			messages          []message
		}{
			{CaseBare, "", bare, floorCall},
			{CaseBareAgain, CaseBare, bare, floorCall},
			{CaseAllowed, CaseBare, ours, []message{post(ours, "/mcp", token, callAllowed, http.StatusOK)}},
			{CaseRefused, CaseBare, ours, []message{post(ours, "/mcp", token, callRefused, http.StatusOK)}},
			{CaseToken, CaseBare, ours, []message{post(ours, "/mcp", wrongToken, callAllowed, http.StatusUnauthorized)}},
			{CaseBareThree, "", bare, floorThree},
			{CaseHandshake, CaseBareThree, ours, handshake},
		} {
			if err := s.posts(p.name, mode, p.floor, p.addr, p.messages); err != nil {
				return nil, failed(err, "%s", p.name)
			}
		}
	}
	return s, s.live()
}

// message is one request and the status of its answer.
type message struct {
	raw    []byte
	status int
}

// posts adds a probe that sends messages one after the other.
func (s *setup) posts(name, mode, floor, addr string, messages []message) error {
	p := probe{name: name, connection: mode, floor: floor}
	if mode == KeepAlive {
		c, err := s.dial(addr)
		if err != nil {
			return err
		}
		p.once = func() (time.Duration, error) {
			began := time.Now()
			for _, m := range messages {
				if err := c.post(m.raw, m.status); err != nil {
					return 0, err
				}
			}
			return time.Since(began), nil
		}
	} else {
		used := make([]*client, 0, len(messages))
		p.once = func() (time.Duration, error) {
			// What a client does after the answer keeps nobody waiting.
			defer func() {
				for _, c := range used {
					c.close()
				}
				used = used[:0]
			}()
			began := time.Now()
			for _, m := range messages {
				c, err := dial(addr, s.deadline)
				if err != nil {
					return 0, err
				}
				used = append(used, c)
				if err := c.post(m.raw, m.status); err != nil {
					return 0, err
				}
			}
			return time.Since(began), nil
		}
	}
	s.requests = append(s.requests, p)
	return nil
}

func (s *setup) echo(mode string, raw []byte) error {
	buf := make([]byte, len(raw))
	exchange := func(c *client) error {
		if _, err := c.conn.Write(raw); err != nil {
			return err
		}
		_, err := io.ReadFull(c.r, buf)
		return err
	}
	p := probe{name: CaseEcho, connection: mode}
	if mode == KeepAlive {
		c, err := s.dial(s.floor.echo)
		if err != nil {
			return err
		}
		p.once = func() (time.Duration, error) {
			began := time.Now()
			err := exchange(c)
			return time.Since(began), err
		}
	} else {
		p.once = func() (time.Duration, error) {
			began := time.Now()
			c, err := dial(s.floor.echo, s.deadline)
			if err != nil {
				return 0, err
			}
			defer c.close()
			err = exchange(c)
			return time.Since(began), err
		}
	}
	s.requests = append(s.requests, p)
	return nil
}

// live adds the start of a bridge and the shutdown of one that was started
// before, with connections of clients that are idle.
func (s *setup) live() error {
	begin := func() (time.Duration, error) {
		began := time.Now()
		b, err := start(s.ctx, s.dir)
		took := time.Since(began)
		if err == nil {
			s.spare = append(s.spare, b)
		}
		return took, err
	}
	end := func() (time.Duration, error) {
		b := s.spare[0]
		s.spare = s.spare[1:]
		idle, err := connect(b, 4, s.deadline)
		defer idle.close()
		if err != nil {
			_ = b.Close()
			return 0, err
		}
		began := time.Now()
		err = b.Close()
		return time.Since(began), err
	}
	s.lives = []probe{{name: CaseStart, once: begin}, {name: CaseClose, once: end}}
	_, err := begin() // a shutdown may come before the first start
	return err
}

func (s *setup) dial(addr string) (*client, error) {
	c, err := dial(addr, s.deadline)
	if err == nil {
		s.open = append(s.open, c)
	}
	return c, err
}

func (s *setup) close() {
	clients(s.open).close()
	for _, b := range s.spare {
		_ = b.Close()
	}
	if s.floor != nil {
		s.floor.close()
	}
	if s.bridge != nil {
		_ = s.bridge.Close()
	}
}

type clients []*client

func (cs clients) close() {
	for _, c := range cs {
		c.close()
	}
}

// connect opens n connections that have listed the tools and are idle.
func connect(b *drawbridge.Bridge, n int, deadline time.Time) (clients, error) {
	var cs clients
	addr := host(b)
	list := request(addr, "/mcp", b.Token(), handshakeThird)
	for range n {
		c, err := dial(addr, deadline)
		if err != nil {
			return cs, err
		}
		cs = append(cs, c)
		if err := c.post(list, http.StatusOK); err != nil {
			return cs, err
		}
	}
	return cs, nil
}

// failed is the error of something that should have worked.
func failed(err error, format string, args ...any) error {
	return &drawbridge.Error{
		Kind: drawbridge.AgentFailed, Message: strings.TrimSpace(fmt.Sprintf(format, args...)),
		Hint: "is the machine out of ports, files or memory?", Err: err,
	}
}

// TempDir makes a directory for Options.Dir, in $TMPDIR.
func TempDir() (string, error) {
	dir, err := os.MkdirTemp("", "drawbridge-bench-")
	if err != nil {
		return "", &drawbridge.Error{
			Kind: drawbridge.Usage, Message: "temporary directory",
			Hint: "set TMPDIR to a folder that you can write", Err: err,
		}
	}
	return dir, nil
}
