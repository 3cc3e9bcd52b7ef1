package endpoint

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "5f0c2d9e8b7a6f1e3d4c5b6a79881726354453627180f9e8d7c6b5a493827160"

// testTools is what the test run may see: bytes that a decoder would change.
const testTools = `[{"name":"get_time","inputSchema":{"type":"object","x":9007199254740993,"a<b":1.0}},{"name":"read_file","inputSchema":{"type":"object"}}]`

// harness is an endpoint with a gate of a few tools and a record of what reached
// it.
type harness struct {
	*Endpoint
	rec     sync.Mutex
	calls   []string
	refused []string
	details []string
	listed  int
	authed  int
}

// start serves an endpoint on loopback until the test ends. change may be nil.
func start(t testing.TB, change func(*Config)) *harness {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, ln, change)
}

func startOn(t testing.TB, ln net.Listener, change func(*Config)) *harness {
	t.Helper()
	h := &harness{}
	cfg := Config{
		Listener: ln, Token: testToken, Name: "drawbridge", Version: "0",
		Tools:           func() []byte { return []byte(testTools) },
		Call:            h.call,
		OnListed:        func() { h.note(func() { h.listed++ }) },
		OnAuthenticated: func() { h.note(func() { h.authed++ }) },
		OnRefused: func(kind, detail string) {
			h.note(func() { h.refused, h.details = append(h.refused, kind), append(h.details, detail) })
		},
	}
	if change != nil {
		change(&cfg)
	}
	if inner := cfg.Call; inner != nil { // as the gate does it
		cfg.Call = func(ctx context.Context, req call.Request) (call.Result, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			req.Begun(func() { cancel(errCancelled) })
			return inner(ctx, req)
		}
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.Endpoint = e
	e.Serve()
	t.Cleanup(func() { _ = e.Close() })
	return h
}

func (h *harness) note(f func()) {
	h.rec.Lock()
	defer h.rec.Unlock()
	f()
}

// take returns what was recorded since the last call of it.
func (h *harness) take() (calls, refused, details []string) {
	h.rec.Lock()
	defer h.rec.Unlock()
	calls, refused, details = h.calls, h.refused, h.details
	h.calls, h.refused, h.details = nil, nil, nil
	return calls, refused, details
}

func (h *harness) call(ctx context.Context, req call.Request) (call.Result, error) {
	h.note(func() { h.calls = append(h.calls, strings.TrimSpace(req.Tool+" "+string(req.Arguments))) })
	switch req.Tool {
	case "get_time":
		return call.Text("12:00"), nil
	case "read_file":
		return call.Text(string(req.Arguments)), nil
	case "odd":
		return call.Text("a<b && c>d <-done \u2028\x00\"\\ \xff"), nil
	case "none":
		return call.Result{}, nil
	case "rich":
		return call.Result{
			Content:    []call.Block{{Text: "2 items"}, {JSON: []byte(`{"type":"image","data":"","x":1.0}`)}},
			Structured: []byte(`{"n":9007199254740993,"items":[1,2]}`),
			Flags:      call.Flags{Cut: 7, Redacted: 1, Repaired: true, Invisible: true},
		}, nil
	case "denied":
		return call.Errorf("the policy refuses this"), nil
	case "broken":
		return call.Result{}, errors.New("secret detail")
	case "panics":
		panic("secret detail")
	}
	return call.Result{}, &call.NotAvailable{Tool: req.Tool}
}

func (h *harness) dial(t testing.TB) *client {
	t.Helper()
	c, err := net.Dial("tcp", h.host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newClient(c)
}

// client speaks bytes.
type client struct {
	net.Conn
	r *bufio.Reader
}

func newClient(c net.Conn) *client { return &client{c, bufio.NewReader(c)} }

// send writes s and reads one response whole.
func (c *client) send(t testing.TB, method, s string) (*http.Response, string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("write: %v", err)
	}
	return c.read(t, method)
}

func (c *client) read(t testing.TB, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the body: %v", err)
	}
	return resp, string(body)
}

// post is a good POST of body; headers are lines that replace or add to it.
func (h *harness) post(body string, headers ...string) string {
	return h.raw("POST", "/mcp", body, headers...)
}

// raw builds a request. A header line "-Name" takes a default one away, one
// that names a default replaces it, and any other is added.
func (h *harness) raw(method, target, body string, headers ...string) string {
	def := [][2]string{
		{"Host", h.host},
		{"Authorization", "Bearer " + testToken},
		{"Content-Type", "application/json"},
		{"Accept", "application/json, text/event-stream"},
		{"Content-Length", strconv.Itoa(len(body))},
	}
	var added strings.Builder
	for _, line := range headers {
		line = strings.NewReplacer("$HOST", h.host, "$TOKEN", testToken).Replace(line)
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "-"), ":")
		for i, d := range def {
			if strings.EqualFold(d[0], name) {
				def[i][0] = ""
			}
		}
		if line[0] != '-' {
			added.WriteString(line + "\r\n")
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", method, target)
	for _, d := range def {
		if d[0] != "" {
			fmt.Fprintf(&b, "%s: %s\r\n", d[0], d[1])
		}
	}
	return b.String() + added.String() + "\r\n" + body
}

// TestWire runs testdata/*.txtar: raw requests and the bytes they must get.
// Every file is one run of an endpoint, over one connection as long as the
// endpoint keeps it. Its parts:
//
//	-- request --    METHOD TARGET, header lines (see raw), empty line, body
//	-- response --   status, header lines ("!Name": must be absent), empty line, body
//	-- calls --      what reached the gate since the last response, if not nothing
//	-- refused --    the kinds of refusal since the last response, if not none
//
// A body that ends in [...] is the beginning of the one that must come. $HOST
// and $TOKEN stand for those of the run, \xNN in a body for a byte.
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no wire tests", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			runWire(t, txtar.Parse(data).Files)
		})
	}
}

func runWire(t *testing.T, parts []txtar.File) {
	h := start(t, func(c *Config) {
		if strings.Contains(t.Name(), "Instructions") {
			c.Instructions = "search <first>"
		}
		if strings.Contains(t.Name(), "NoTools") {
			c.Tools = func() []byte { return nil }
		}
	})
	var c *client
	var request, name string
	for i := 0; i < len(parts); i++ {
		text := strings.TrimSuffix(string(parts[i].Data), "\n")
		switch parts[i].Name {
		case "request":
			request = text
			continue
		case "response":
			name = fmt.Sprintf("part %d, %s", i, request)
		default:
			t.Fatalf("part %d: unknown part %q", i, parts[i].Name)
		}
		var wantCalls, wantRefused []string
		for ; i+1 < len(parts) && (parts[i+1].Name == "calls" || parts[i+1].Name == "refused"); i++ {
			lines := strings.Split(strings.TrimSpace(string(parts[i+1].Data)), "\n")
			if parts[i+1].Name == "calls" {
				wantCalls = lines
			} else {
				wantRefused = lines
			}
		}

		first, rest, _ := strings.Cut(request, "\n")
		method, target, _ := strings.Cut(first, " ")
		head, body, _ := strings.Cut("\n"+rest, "\n\n")
		head = strings.TrimSpace(head)
		body = unescape(t, strings.ReplaceAll(body, "$TOKEN", testToken))
		var headers []string
		if head != "" {
			headers = strings.Split(head, "\n")
		}
		if c == nil {
			c = h.dial(t)
		}
		resp, got := c.send(t, method, h.raw(method, target, body, headers...))

		status, wantRest, _ := strings.Cut(text, "\n")
		wantHead, wantBody, _ := strings.Cut("\n"+wantRest, "\n\n")
		if strconv.Itoa(resp.StatusCode) != status {
			t.Errorf("%s\nstatus %d, want %s\n%s", name, resp.StatusCode, status, got)
		}
		for line := range strings.Lines(strings.TrimPrefix(wantHead, "\n")) {
			checkHeader(t, name, resp.Header, strings.TrimSpace(line))
		}
		wantBody, cut := strings.CutSuffix(unescape(t, wantBody), "[...]")
		if cut && strings.HasPrefix(got, wantBody) {
			wantBody = got
		}
		if got != wantBody {
			t.Errorf("%s\nbody: %s", name, cmp.Diff(wantBody, got))
		}
		for k := range resp.Header {
			if strings.HasPrefix(k, "Access-Control-") || k == "Mcp-Session-Id" || k == "Location" {
				t.Errorf("%s\nheader %s must never be sent", name, k)
			}
		}
		if resp.ContentLength < 0 && method != "HEAD" {
			t.Errorf("%s\nno Content-Length", name)
		}
		calls, refused, _ := h.take()
		if d := cmp.Diff(wantCalls, calls); d != "" {
			t.Errorf("%s\ncalls that reached the gate: %s", name, d)
		}
		if d := cmp.Diff(wantRefused, refused); d != "" {
			t.Errorf("%s\nrefusals: %s", name, d)
		}
		if resp.Close {
			c = nil
		}
	}
}

func checkHeader(t *testing.T, name string, h http.Header, line string) {
	t.Helper()
	k, v, ok := strings.Cut(line, ": ")
	switch {
	case strings.HasPrefix(line, "!"):
		if got, ok := h[textproto.CanonicalMIMEHeaderKey(line[1:])]; ok {
			t.Errorf("%s\nheader %s is %q, want none", name, line[1:], got)
		}
	case !ok:
		t.Fatalf("%s\nbad header line %q", name, line)
	case cmp.Diff([]string{v}, h[textproto.CanonicalMIMEHeaderKey(k)]) != "":
		t.Errorf("%s\nheader %s is %q, want %q", name, k, h[textproto.CanonicalMIMEHeaderKey(k)], v)
	}
}

// unescape replaces \xNN.
func unescape(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	for i := 0; i < len(s); i++ {
		if strings.HasPrefix(s[i:], `\x`) {
			n, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteByte(byte(n))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
