package endpoint

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// good checks that whoever holds the token is served.
func (h *harness) good(t *testing.T) {
	t.Helper()
	if resp, body := h.dial(t).send(t, "POST", h.post(ping)); resp.StatusCode != 200 {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
}

// TestField95_BodyWithoutToken: 1 GB is announced, nothing of it is waited for.
func TestField95_BodyWithoutToken(t *testing.T) {
	h := start(t, nil)
	for _, header := range [][]string{
		{"-Authorization", "Content-Length: 1000000000"},
		{"-Authorization", "Content-Length: 300000"},
		{"-Authorization", "Content-Length: 1000000000", "Expect: 100-continue"},
		{"-Authorization", "-Content-Length", "Transfer-Encoding: chunked"},
		{"-Authorization", "Content-Length: 5"}, // and never sent
	} {
		c := h.dial(t)
		resp, _ := c.send(t, "POST", h.post("", header...))
		if resp.StatusCode != 401 || !resp.Close || resp.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%v: %s, close %v", header, resp.Status, resp.Close)
		}
		if n, _ := io.Copy(io.Discard, c.r); n != 0 {
			t.Errorf("%v: %d bytes after the answer", header, n)
		}
	}
	// Whoever keeps sending is cut off, and still gets to see why.
	c := h.dial(t)
	go func() {
		_, _ = io.WriteString(c, h.post("", "-Authorization", "Content-Length: 1000000000"))
		zeros := make([]byte, 1<<16)
		for {
			if _, err := c.Write(zeros); err != nil {
				return
			}
		}
	}()
	if resp, _ := c.read(t, "POST"); resp.StatusCode != 401 {
		t.Error(resp.Status)
	}
	h.good(t)
	if _, refused, _ := h.take(); cmp.Diff([]string{"token", "token", "token", "token", "token", "token"}, refused) != "" {
		t.Error(refused)
	}
}

// TestRefusalKeepsConnection: what is small is read, and the connection stays:
// one real CLI loses its tools when the connection of a refusal is closed.
func TestRefusalKeepsConnection(t *testing.T) {
	h := start(t, nil)
	c := h.dial(t)
	for _, size := range []int{0, 1, 5000, drainMax} {
		body := strings.Repeat("x", size)
		chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, body)
		if size == 0 {
			chunked = "0\r\n\r\n"
		}
		for _, req := range []string{
			h.post(body, "-Authorization"), h.post(body, "Content-Type: text/plain"), h.raw("PUT", "/mcp", body),
			h.post(chunked, "-Authorization", "-Content-Length", "Transfer-Encoding: chunked"),
		} {
			method, _, _ := strings.Cut(req, " ")
			if resp, _ := c.send(t, method, req); resp.Close || resp.StatusCode < 400 {
				t.Fatalf("size %d: %s, close %v", size, resp.Status, resp.Close)
			}
		}
	}
	if resp, _ := c.send(t, "POST", h.post(ping)); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

func TestField95_BodyTooLarge(t *testing.T) {
	h := start(t, func(c *Config) { c.MaxBody = 1000 })
	fill := func(n int) string { return ping + strings.Repeat(" ", n-len(ping)) }
	chunked := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s) }
	for _, tt := range []struct {
		req    string
		status int
	}{
		{h.post(fill(1000)), 200},
		{h.post(fill(1001)), 413},
		{h.post("", "Content-Length: 64000000"), 413},
		{h.post(chunked(fill(1000)), "-Content-Length", "Transfer-Encoding: chunked"), 200},
		{h.post(chunked(fill(1001)), "-Content-Length", "Transfer-Encoding: chunked"), 413},
		{h.post(chunked(fill(500000)), "-Content-Length", "Transfer-Encoding: chunked"), 413},
		// The size is judged before the content type, and after the token.
		{h.post("", "Content-Length: 64000000", "Content-Type: text/plain"), 413},
		{h.post("", "Content-Length: 64000000", "Authorization: Bearer x"), 401},
	} {
		if resp, body := h.dial(t).send(t, "POST", tt.req); resp.StatusCode != tt.status {
			t.Errorf("%s: %s, want %d", resp.Status, body, tt.status)
		}
	}
	h.good(t)
}

// TestField95_BigBody: a body of just the default size comes through whole.
func TestField95_BigBody(t *testing.T) {
	h := start(t, nil)
	frame := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"x":"%s"}}}`
	body := fmt.Sprintf(frame, strings.Repeat("y", DefaultMaxBody-len(frame)+2))
	if len(body) != DefaultMaxBody {
		t.Fatal(len(body))
	}
	resp, got := h.dial(t).send(t, "POST", h.post(body))
	if resp.StatusCode != 200 || len(got) < DefaultMaxBody-300 {
		t.Errorf("%s, %d bytes", resp.Status, len(got))
	}
}

func TestField95_DeepNesting(t *testing.T) {
	h := start(t, nil)
	c := h.dial(t)
	nest := func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"x":` +
			strings.Repeat("[", n) + strings.Repeat("]", n) + `}}}`
	}
	for _, tt := range []struct {
		body   string
		status int
	}{
		{nest(125), 200}, {nest(126), 400}, {nest(100000), 400},
		{strings.Repeat("[", 1<<20), 400}, {strings.Repeat(`{"a":`, 100000), 400},
	} {
		if resp, body := c.send(t, "POST", h.post(tt.body)); resp.StatusCode != tt.status {
			t.Errorf("%d bytes: %s, want %d: %.200s", len(tt.body), resp.Status, tt.status, body)
		}
	}
	_, refused, _ := h.take()
	if d := cmp.Diff([]string{"json", "json", "json", "json"}, refused); d != "" {
		t.Error(d)
	}
}

// TestField95_SlowClients: headers a byte a second, a body that never comes and
// silence all end in bounded time.
func TestField95_SlowClients(t *testing.T) {
	for _, tt := range []struct {
		name  string
		drive func(h *harness, c *client)
		want  time.Duration
		reply string
	}{
		{"silence", func(*harness, *client) {}, 10 * time.Second, ""},
		{"header", func(h *harness, c *client) {
			for _, b := range []byte(h.post(ping)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, 10 * time.Second, "HTTP/1.1 400 "},
		{"body", func(h *harness, c *client) {
			_, _ = io.WriteString(c, h.post("", "Content-Length: 4000000"))
		}, 30*time.Second + drainTime, "HTTP/1.1 408 "},
		{"body by the byte", func(h *harness, c *client) {
			_, _ = io.WriteString(c, h.post("", "Content-Length: 4000000"))
			for {
				if _, err := c.Write([]byte{' '}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}, 30*time.Second + drainTime, "HTTP/1.1 408 "},
		{"body without token", func(h *harness, c *client) {
			_, _ = io.WriteString(c, h.post("", "Content-Length: 400", "-Authorization"))
		}, 2 * drainTime, "HTTP/1.1 401 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, nil, func(h *harness, l *pipeListener) {
				c := l.dial()
				begin := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() { tt.drive(h, c) })
				got, _ := io.ReadAll(c.r)
				if d := time.Since(begin); d > tt.want+100*time.Millisecond {
					t.Errorf("closed after %v, want %v", d, tt.want)
				}
				if !strings.HasPrefix(string(got), tt.reply) || tt.reply == "" && len(got) > 0 {
					t.Errorf("got %q", got)
				}
				_ = c.Close()
				wg.Wait()
			})
		})
	}
}

// TestField95_IdleFlood: connections without the token make room for newer
// ones, and those that have shown it are left alone.
func TestField95_IdleFlood(t *testing.T) {
	h := start(t, func(c *Config) { c.MaxPending = 20 })
	own := h.dial(t)
	if resp, _ := own.send(t, "POST", h.post(ping)); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	var idle []*client
	for range 500 {
		idle = append(idle, h.dial(t))
	}
	h.good(t)
	if resp, _ := own.send(t, "POST", h.post(ping)); resp.StatusCode != 200 {
		t.Errorf("the run's own connection: %s", resp.Status)
	}
	h.rec.Lock()
	refused := len(h.refused)
	h.rec.Unlock()
	if refused < 480 {
		t.Errorf("%d refusals of 500 idle connections", refused)
	}
	h.Endpoint.mu.Lock()
	if n := h.pending.Len(); n > 20 {
		t.Errorf("%d connections pending", n)
	}
	h.Endpoint.mu.Unlock()
	_ = idle[0].SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := idle[0].Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the oldest is still open")
	}
}

func TestTooManyConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 1,024 connections")
	}
	h := start(t, nil)
	first := h.dial(t)
	for i := range maxConns {
		c := first
		if i > 0 {
			c = h.dial(t)
		}
		if i < maxConns {
			if resp, _ := c.send(t, "POST", h.post(ping)); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
		}
	}
	c := h.dial(t)
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("one connection too many was served")
	}
	if _, refused, _ := h.take(); cmp.Diff([]string{"conns"}, refused) != "" {
		t.Error(refused)
	}
	_ = first.Close()
	for range 100 {
		// The endpoint sees the end of first a moment later.
		h.Endpoint.mu.Lock()
		n := len(h.conns)
		h.Endpoint.mu.Unlock()
		if n < maxConns {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.good(t)
}

// TestField93_NoHost: HTTP/1.0 and odd request lines have no Host of ours.
func TestField93_NoHost(t *testing.T) {
	h := start(t, nil)
	for req, status := range map[string]int{
		"POST /mcp HTTP/1.0\r\nAuthorization: Bearer " + testToken + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}": 403,
		"POST http://evil.example/mcp HTTP/1.1\r\nHost: " + h.host + "\r\nContent-Length: 0\r\n\r\n":                                     403,
		"POST /mcp HTTP/1.1\r\nContent-Length: 0\r\n\r\n":                                                                                400,
		"POST /mcp HTTP/1.1\r\nHost: " + h.host + "\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n":                                  400,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                     403,
		"CONNECT " + h.host + " HTTP/1.1\r\nHost: x\r\n\r\n":   404,
		"OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n":     403,
		"GET /mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n":      403,
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": 400,
	} {
		resp, _ := h.dial(t).send(t, "POST", req)
		if resp.StatusCode != status {
			t.Errorf("%q: %s, want %d", req, resp.Status, status)
		}
		for k := range resp.Header {
			if strings.HasPrefix(k, "Access-Control") {
				t.Errorf("%q: %s", req, k)
			}
		}
	}
	if calls, _, _ := h.take(); calls != nil {
		t.Error(calls)
	}
}

// TestRefusalDetail: a detail is short and never holds the token, wherever the
// client put it.
func TestRefusalDetail(t *testing.T) {
	h := start(t, nil)
	c := h.dial(t)
	long := strings.Repeat("ü", 500)
	for _, req := range []string{
		h.raw("POST", "/mcp/"+testToken, ""), h.post("", "Host: "+testToken), h.post("", "Origin: "+testToken+long),
		h.post("", "Content-Type: x/"+testToken), h.raw(testToken, "/mcp", ""), h.post("", "Content-Encoding: "+testToken),
		h.post("", "Authorization: Bearer x"+testToken), h.post(ping, "MCP-Protocol-Version: "+testToken),
		h.post(`{"` + testToken + `":1,"` + testToken + `":2}`), h.post(testToken),
		h.post(`{"jsonrpc":"` + testToken + `","id":"` + testToken + `","method":"` + testToken + `"}`),
		h.raw("POST", "/"+strings.Repeat("%C3%BC", 100), ""), h.post("", "Origin: "+strings.Repeat("x", 50)+testToken),
	} {
		c.send(t, "POST", req)
	}
	_, refused, details := h.take()
	if len(refused) != 13 {
		t.Errorf("%d refusals: %v", len(refused), refused)
	}
	for i, d := range details {
		if strings.Contains(d, testToken[:16]) || len(d) > 80 {
			t.Errorf("%s: %q", refused[i], d)
		}
	}
}

func TestConnectionClose(t *testing.T) {
	h := start(t, func(c *Config) { c.ConnectionClose = true })
	for _, req := range []string{h.post(ping), h.raw("GET", "/mcp", ""), h.post(ping, "-Authorization")} {
		method, _, _ := strings.Cut(req, " ")
		c := h.dial(t)
		if resp, _ := c.send(t, method, req); !resp.Close {
			t.Errorf("%s: the connection stays", resp.Status)
		}
	}
}

func TestHooks(t *testing.T) {
	h := start(t, nil)
	c := h.dial(t)
	c.send(t, "POST", h.post(ping, "-Authorization"))
	c.send(t, "GET", h.raw("GET", "/mcp", ""))
	if h.authed != 0 {
		t.Error("authenticated without the token")
	}
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	c.send(t, "POST", h.post(`{"jsonrpc":"2.0","method":"tools/list"}`))
	c.send(t, "POST", h.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}`))
	if h.listed != 0 {
		t.Error("listed without an answer")
	}
	c.send(t, "POST", h.post(list))
	h.dial(t).send(t, "POST", h.post(list))
	h.rec.Lock()
	defer h.rec.Unlock()
	if h.listed != 2 || h.authed != 1 {
		t.Errorf("listed %d times, authenticated %d times", h.listed, h.authed)
	}
}

// TestField19_NeverAuthenticated: a wrong token shows up as such, so that a run
// can say that its CLI never got through.
func TestField19_NeverAuthenticated(t *testing.T) {
	h := start(t, nil)
	h.dial(t).send(t, "POST", h.post(ping, "Authorization: Bearer wrong"))
	_, refused, details := h.take()
	if h.authed != 0 || cmp.Diff([]string{"token wrong"}, []string{refused[0] + " " + details[0]}) != "" {
		t.Error(h.authed, refused, details)
	}
}

func TestField71_URL(t *testing.T) {
	h := start(t, nil)
	if want := "http://" + h.cfg.Listener.Addr().String() + "/mcp"; h.URL() != want || !strings.HasPrefix(want, "http://127.0.0.1:") {
		t.Errorf("URL is %s, want %s", h.URL(), want)
	}
}

func TestNewRefuses(t *testing.T) {
	listen := func(addr string) net.Listener {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Skip("cannot listen on " + addr + ": " + err.Error())
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	good := Config{Listener: listen("127.0.0.1:0"), Token: "t", Call: (&harness{}).call}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"Field94: empty token":  func(c *Config) { c.Token = "" },
		"Field94: blank token":  func(c *Config) { c.Token = "  " },
		"token with line break": func(c *Config) { c.Token = "a\r\nb" },
		"no gate":               func(c *Config) { c.Call = nil },
		"no listener":           func(c *Config) { c.Listener = nil },
		"Field71: any address":  func(c *Config) { c.Listener = listen("0.0.0.0:0") },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyIdle: a process may hold a thousand runs.
func TestManyIdle(t *testing.T) {
	const n = 1000
	before := inUse()
	goroutines := runtime.NumGoroutine()
	var hs []*harness
	for range n {
		hs = append(hs, start(t, nil))
	}
	if each := (inUse() - before) / n; each > 50<<10 {
		t.Errorf("%d bytes for one idle endpoint", each)
	}
	for _, h := range hs {
		_ = h.Close()
	}
	if g := runtime.NumGoroutine(); g > goroutines+n/100 {
		t.Errorf("%d goroutines left", g-goroutines)
	}
}

// inUse is the memory of heap and stacks.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestHijackedConnectionIsClosed: a refusal that still reads when the endpoint
// is closed does not outlive it.
func TestHijackedConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		h := startOn(t, l, nil)
		c := l.dial()
		_, _ = io.WriteString(c, h.post("", "-Authorization", "Content-Length: 1000000"))
		if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != 401 {
			t.Fatal(resp, err)
		}
		begin := time.Now()
		_ = h.Close()
		if _, err := io.ReadAll(c.r); err != nil && time.Since(begin) > 0 {
			t.Error(err)
		}
		synctest.Wait()
		if d := time.Since(begin); d > 0 {
			t.Errorf("closed after %v", d)
		}
	})
}
