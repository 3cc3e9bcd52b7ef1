package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// pipeListener serves connections that live in memory, so that time can be
// made up.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

func (l *pipeListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4321}
}

func (l *pipeListener) dial() *client {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return newClient(ours)
}

// inBubble runs f with an endpoint in made-up time.
func inBubble(t *testing.T, gate func(context.Context, call.Request) (call.Result, error), f func(*harness, *pipeListener)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		h := startOn(t, l, func(c *Config) {
			if gate != nil {
				c.Call = gate
			}
		})
		f(h, l)
		_ = h.Close()
		synctest.Wait()
	})
}

func sleeps(d time.Duration) func(context.Context, call.Request) (call.Result, error) {
	return func(ctx context.Context, _ call.Request) (call.Result, error) {
		select {
		case <-time.After(d):
			return call.Result{Content: []call.Block{{JSON: []byte("{\"type\":\"text\",\r\n\"text\":\"a\\nb\"}")}}}, nil
		case <-ctx.Done():
			return call.Result{}, ctx.Err()
		}
	}
}

const slowCall = `{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"slow","_meta":{"progressToken":%s}}}`

// TestField27_Field73_LongCall: a call of minutes is answered early with a
// header, shows signs of life, and is not cut by anything.
func TestField27_Field73_LongCall(t *testing.T) {
	const last = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"s\",\"result\":{\"content\":[{\"type\":\"text\",\ndata: \"text\":\"a\\nb\"}]}}\n\n"
	beat := func(token string, n int) string {
		return fmt.Sprintf("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d}}\n\n", token, n)
	}
	for _, tt := range []struct{ token, want string }{
		{`"a\u003c"`, beat(`"a\u003c"`, 1) + beat(`"a\u003c"`, 2) + last},
		{`9007199254740993`, beat(`9007199254740993`, 1) + beat(`9007199254740993`, 2) + last},
		{`0`, beat(`0`, 1) + beat(`0`, 2) + last},
		{`null`, ": the call is still running\n\n: the call is still running\n\n" + last},
		{`1.5`, ": the call is still running\n\n: the call is still running\n\n" + last},
		{`{}`, ": the call is still running\n\n: the call is still running\n\n" + last},
	} {
		t.Run(tt.token, func(t *testing.T) {
			inBubble(t, sleeps(12*time.Second), func(h *harness, l *pipeListener) {
				c := l.dial()
				begin := time.Now()
				_, _ = io.WriteString(c, h.post(fmt.Sprintf(slowCall, tt.token)))
				resp, err := http.ReadResponse(c.r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(begin); d != time.Second {
					t.Errorf("the header came after %v, want 1s", d)
				}
				if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "text/event-stream" {
					t.Errorf("status %d, content type %q", resp.StatusCode, ct)
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(begin); d != 12*time.Second {
					t.Errorf("the answer came after %v, want 12s", d)
				}
				if d := cmp.Diff(tt.want, string(body)); d != "" {
					t.Error(d)
				}
				// The connection is still good.
				if resp, _ := c.send(t, "POST", h.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); resp.StatusCode != 200 {
					t.Errorf("status %d after the stream", resp.StatusCode)
				}
				_ = c.Close()
			})
		})
	}
}

func TestField27_VeryLongCall(t *testing.T) {
	inBubble(t, sleeps(7*time.Minute), func(h *harness, l *pipeListener) {
		c := l.dial()
		_, _ = io.WriteString(c, h.post(fmt.Sprintf(slowCall, "1")))
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(body), "notifications/progress"); n != 83 {
			t.Errorf("%d signs of life in 7 minutes, want one each 5 s", n)
		}
		if !strings.Contains(string(body[strings.LastIndex(string(body), "event:"):]), `"id":"s","result"`) {
			t.Error("the answer is not the last event")
		}
		_ = c.Close()
	})
}

// TestField14_SlowCallWithoutStream: who does not name the event stream gets
// one JSON body, however late.
func TestField14_SlowCallWithoutStream(t *testing.T) {
	for _, accept := range []string{"-Accept", "Accept: */*", "Accept: application/json", "Accept: text/event-stream;q=0", "Accept: text/*"} {
		inBubble(t, sleeps(70*time.Second), func(h *harness, l *pipeListener) {
			c := l.dial()
			resp, body := func() (*http.Response, string) {
				_, _ = io.WriteString(c, h.post(fmt.Sprintf(slowCall, "1"), accept))
				return c.read(t, "POST")
			}()
			if ct := resp.Header.Get("Content-Type"); ct != "application/json" || !strings.Contains(body, `"result"`) {
				t.Errorf("%s: %s %s", accept, ct, body)
			}
			_ = c.Close()
		})
	}
}

func TestAcceptsStream(t *testing.T) {
	for line, want := range map[string]bool{
		"application/json, text/event-stream": true, "text/event-stream": true, "TEXT/Event-Stream ; Q=0.1": true,
		"application/json,text/event-stream;q=1": true, "text/event-stream;q=0.000": false, "text/event-stream; Q = 0": false,
		"text/event-streams": false, "*/*": false, "": false, "application/json;x=text/event-stream": false,
	} {
		if got := acceptsStream([]string{line}); got != want {
			t.Errorf("acceptsStream(%q) = %v", line, got)
		}
	}
	if acceptsStream(nil) || !acceptsStream([]string{"application/json", "text/event-stream"}) {
		t.Error("no line, or two")
	}
}

// TestNothingAfterTheAnswer: a beat whose timer fired just before the answer
// writes nothing after it.
func TestNothingAfterTheAnswer(t *testing.T) {
	h := start(t, nil)
	for _, open := range []bool{false, true} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/mcp", nil)
		r.Header.Set("Accept", "text/event-stream")
		a := h.startAnswer(w, r, []byte("1"))
		if open {
			a.beat()
			a.beat()
		}
		a.finish(http.StatusOK, []byte("{}"))
		want := w.Body.String()
		a.beat()
		if got := w.Body.String(); got != want || !strings.Contains(got, "{}") {
			t.Errorf("open %v: %q after the answer %q", open, got, want)
		}
	}
}

// waiting is a gate whose calls say when they begin and wait for their end.
type waiting struct {
	began chan call.Request
	ended chan error // the cause, once a call's context is over
	goOn  chan struct{}
}

func newWaiting() *waiting {
	return &waiting{make(chan call.Request, 8), make(chan error, 8), make(chan struct{})}
}

func (w *waiting) call(ctx context.Context, req call.Request) (call.Result, error) {
	w.began <- req
	select {
	case <-ctx.Done():
		w.ended <- context.Cause(ctx)
		return call.Result{}, ctx.Err()
	case <-w.goOn:
		w.ended <- nil
		return call.Text("done"), nil
	}
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func modernCall(h *harness) string {
	return h.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow",`+modernMeta+`}}`,
		"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: slow")
}

// TestField73_Disconnect: a legacy client that goes away cancels nothing, and
// the gate can see that it is gone; a modern one cancels its call.
func gone(req call.Request) bool {
	select {
	case <-req.Gone:
		return true
	default:
		return false
	}
}

func TestField73_Disconnect(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		pause := func() {
			if streaming {
				time.Sleep(3 * time.Second)
			}
			synctest.Wait()
		}
		t.Run(fmt.Sprintf("legacy,streaming=%v", streaming), func(t *testing.T) {
			var g *waiting // its channels belong into the bubble
			gate := func(ctx context.Context, req call.Request) (call.Result, error) { return g.call(ctx, req) }
			inBubble(t, gate, func(h *harness, l *pipeListener) {
				g = newWaiting()
				c := l.dial()
				go io.Copy(io.Discard, c)
				_, _ = io.WriteString(c, h.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}`))
				req := <-g.began
				pause()
				if gone(req) {
					t.Error("not attached while the client waits")
				}
				_ = c.Close()
				pause()
				if !gone(req) {
					t.Error("attached after the client is gone")
				}
				select {
				case err := <-g.ended:
					t.Errorf("the call ended by %v", err)
				default:
				}
				close(g.goOn)
				if err := <-g.ended; err != nil {
					t.Error(err)
				}
			})
		})
		t.Run(fmt.Sprintf("modern,streaming=%v", streaming), func(t *testing.T) {
			var g *waiting // its channels belong into the bubble
			gate := func(ctx context.Context, req call.Request) (call.Result, error) { return g.call(ctx, req) }
			inBubble(t, gate, func(h *harness, l *pipeListener) {
				g = newWaiting()
				c := l.dial()
				go io.Copy(io.Discard, c)
				_, _ = io.WriteString(c, modernCall(h))
				req := <-g.began
				pause()
				_ = c.Close()
				if err := <-g.ended; err == nil || !gone(req) {
					t.Errorf("cause %v, attached %v", err, !gone(req))
				}
			})
		})
	}
}

// TestCancelled: notifications/cancelled ends the one call that has the id, and
// none where two have it; the answer is one the model can read.
func TestCancelled(t *testing.T) {
	g := newWaiting()
	h := start(t, func(c *Config) { c.Call = g.call })
	cancel := func(id string) {
		t.Helper()
		resp, _ := h.dial(t).send(t, "POST", h.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`,"reason":"x"}}`))
		if resp.StatusCode != 202 {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	begin := func(id string) *client {
		c := h.dial(t)
		_, _ = io.WriteString(c, h.post(`{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"slow"}}`))
		<-g.began
		return c
	}
	one, text := begin(`1`), begin(`"1"`)
	twinA, twinB := begin(`7`), begin(`7`)
	for _, id := range []string{`7`, `2`, `null`, `1.0`, `[1]`} {
		cancel(id)
	}
	cancel(`1`)
	if err := <-g.ended; !errors.Is(err, errCancelled) {
		t.Errorf("cause %v", err)
	}
	_, body := one.read(t, "POST")
	if want := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the call was cancelled by the client"}],"isError":true}}`; body != want {
		t.Errorf("got %s", body)
	}
	if len(g.ended) != 0 {
		t.Error("another call was cancelled too")
	}
	close(g.goOn)
	for _, c := range []*client{text, twinA, twinB} {
		if _, body := c.read(t, "POST"); !strings.Contains(body, "done") {
			t.Errorf("got %s", body)
		}
	}
}

// TestClose: the port refuses, calls are cancelled, connections are dropped,
// and it takes no time, with idle connections and an open stream.
func TestClose(t *testing.T) {
	g := newWaiting()
	h := start(t, func(c *Config) { c.Call, c.StreamAfter = g.call, time.Millisecond })
	idle := h.dial(t)
	if resp, _ := idle.send(t, "POST", h.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	fresh := h.dial(t)
	streaming := h.dial(t)
	_, _ = io.WriteString(streaming, h.post(fmt.Sprintf(slowCall, "1")))
	if _, err := http.ReadResponse(streaming.r, nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if c, err := net.Dial("tcp", h.host); err == nil {
		_ = c.Close()
		t.Error("the port still accepts")
	}
	if err := <-g.ended; !errors.Is(err, errClosed) {
		t.Errorf("cause %v", err)
	}
	for _, c := range []*client{idle, fresh, streaming} {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) {
			t.Error("a connection stayed open")
		}
	}
	h.Endpoint.mu.Lock()
	defer h.Endpoint.mu.Unlock()
	if n := len(h.conns); n != 0 {
		t.Errorf("%d connections left", n)
	}
}

func TestCloseDoesNotWaitForTools(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	h := start(t, func(c *Config) {
		c.Call = func(context.Context, call.Request) (call.Result, error) {
			close(began)
			<-release
			return call.Text("late"), nil
		}
	})
	c := h.dial(t)
	_, _ = io.WriteString(c, h.post(fmt.Sprintf(slowCall, "1")))
	<-began
	closed := make(chan struct{})
	go func() { _ = h.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for a tool that does not listen")
	}
}

// A call whose function keeps the request's goroutine is answered whole by
// another one, once, and takes its connection along.
func TestLateAnswer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after time.Duration // of the answer; the stream opens after 1 s
		ctype string
		ends  func() // how the function ends
	}{
		{"one body", time.Second / 2, "application/json", func() {}},
		{"a stream", 3 * time.Second, "text/event-stream", func() {}},
		{"one body, then a panic", time.Second / 2, "application/json", func() { panic("x") }},
		{"one body, then Goexit", time.Second / 2, "application/json", runtime.Goexit},
		{"a stream, then Goexit", 3 * time.Second, "text/event-stream", runtime.Goexit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var release chan struct{}
			stuck := func(_ context.Context, req call.Request) (call.Result, error) {
				if req.Tool != "slow" {
					return call.Text("other"), nil
				}
				time.AfterFunc(tt.after, func() { req.Late(call.Errorf("in time")) })
				<-release
				tt.ends()
				return call.Text("too late"), nil
			}
			inBubble(t, stuck, func(h *harness, l *pipeListener) {
				release = make(chan struct{}) // of the bubble
				c := l.dial()
				_, _ = io.WriteString(c, h.post(fmt.Sprintf(slowCall, "1")))
				resp, err := http.ReadResponse(c.r, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil || !strings.Contains(string(body), `"text":"in time"}],"isError":true`) || resp.Header.Get("Content-Type") != tt.ctype {
					t.Errorf("%v %v %q", err, resp.Header, body)
				}
				if tt.ctype == "application/json" && !resp.Close {
					t.Error("the client is not told that the connection ends")
				}
				if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
					t.Errorf("after the answer: %q %v", rest, err)
				}
				// Its id is free again, and the others are served.
				h.mu.Lock()
				if n := len(h.flights); n != 0 {
					t.Errorf("%d calls in flight", n)
				}
				h.mu.Unlock()
				other := l.dial()
				if _, body := other.send(t, "POST", h.post(strings.ReplaceAll(fmt.Sprintf(slowCall, "1"), "slow", "quick"))); !strings.Contains(body, "other") {
					t.Error(body)
				}
				_ = other.Close()
				close(release)
				synctest.Wait()
			})
		})
	}
}

// A function that ends its goroutine does it to the request's: the answer still
// gets out.
func TestGoexit(t *testing.T) {
	h := start(t, func(c *Config) {
		c.Call = func(_ context.Context, req call.Request) (call.Result, error) {
			defer req.Late(call.Errorf("ended inside"))
			runtime.Goexit()
			panic("not reached")
		}
	})
	c := h.dial(t)
	if resp, body := c.send(t, "POST", h.post(fmt.Sprintf(slowCall, "1"))); resp.StatusCode != 200 || !strings.Contains(body, "ended inside") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestCloseBeforeServe(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Config{Listener: ln, Token: "t", Call: (&harness{}).call})
	if err != nil {
		t.Fatal(err)
	}
	_ = e.Close()
	e.Serve()
	if c, err := net.Dial("tcp", e.host); err == nil {
		_ = c.Close()
		t.Error("the port still accepts")
	}
}
