package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// site is an HTTP server that says exactly what it is told to.
type site struct {
	*httptest.Server
	modern bool
	// call answers a tools/call.
	call func(w http.ResponseWriter, r *http.Request, id, line string)
	// before sees every request first; true means that it is dealt with.
	before func(w http.ResponseWriter, r *http.Request, method, id string) bool

	mu   sync.Mutex
	seen []string // "METHOD path method header..."
	last http.Header
}

func (s *site) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

func (s *site) count(part string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.seen {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

func (s *site) header(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.last.Values(name), "|")
}

func jsonAnswer(w http.ResponseWriter, id, result string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func newSite(t *testing.T, change func(*site)) (*site, Spec, *logged) {
	s := &site{}
	if change != nil {
		change(s)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			ID     json.RawMessage
			Method string
			Error  json.RawMessage
		}
		_ = json.Unmarshal(body, &m)
		id := string(m.ID)
		s.log("%s %s %s %s%s", r.Method, r.URL.Path, m.Method, id, m.Error)
		s.mu.Lock()
		if r.Method == http.MethodPost && m.Method != "notifications/cancelled" {
			s.last = r.Header.Clone()
		}
		s.mu.Unlock()
		switch {
		case s.before != nil && s.before(w, r, m.Method, id):
		case r.Method == http.MethodDelete:
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case m.Method == "server/discover" && s.modern:
			jsonAnswer(w, id, `{"supportedVersions":["2026-07-28","2025-11-25"],"resultType":"complete"}`)
		case m.Method == "server/discover":
			http.Error(w, "Bad Request: no session", http.StatusBadRequest)
		case m.Method == "initialize":
			jsonAnswer(w, id, `{"protocolVersion":"2025-03-26","capabilities":{}}`)
		case m.Method == "tools/list":
			jsonAnswer(w, id, `{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"},"o":{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"Deep-S"},"b":{"type":"boolean","x-mcp-header":"b"}}}}}},{"name":"größe","inputSchema":{"type":"object"}}]}`)
		case m.Method == "tools/call" && s.call != nil:
			s.call(w, r, id, string(body))
		case m.Method == "tools/call":
			jsonAnswer(w, id, `{"content":[],"line":`+string(body)+`}`)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(s.Close)
	l := &logged{}
	return s, Spec{Name: "up", URL: s.URL + "/mcp?key=s3cr3t", Note: l.note, Client: "test", Version: "1", Headers: map[string]string{"Authorization": "Bearer T", "mcp-name": "x", "accept": "text/html"}}, l
}

func TestHeaders(t *testing.T) {
	s, spec, _ := newSite(t, nil)
	u := start(t, spec)
	if b := works(t, u, `{"n":1}`); !bytes.Contains(b, []byte(`"params":{"name":"echo","arguments":{"n":1}}}`)) {
		t.Errorf("%s", b)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer T", "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-03-26",
		"Mcp-Name": "", "Mcp-Method": "", "Mcp-Session-Id": "", "Mcp-Param-N": "", "Accept-Encoding": "", "User-Agent": "test/1",
	} {
		if got := s.header(name); got != want {
			t.Errorf("legacy %s: %q", name, got)
		}
	}

	s, spec, _ = newSite(t, func(s *site) { s.modern = true })
	u = start(t, spec)
	works(t, u, `{"n":1e2,"o":{"s":" größe","b":true}}`)
	for name, want := range map[string]string{
		"Mcp-Protocol-Version": modern, "Mcp-Method": "tools/call", "Mcp-Name": "echo", "Mcp-Param-N": "100", "Mcp-Param-Deep-S": "=?base64?IGdyw7bDn2U=?=", "Mcp-Param-B": "true",
	} {
		if got := s.header(name); got != want {
			t.Errorf("modern %s: %q", name, got)
		}
	}
	if _, err := u.Call(t.Context(), "größe", []byte(`{}`), nil); err != nil || s.header("Mcp-Name") != "=?base64?Z3LDtsOfZQ==?=" || s.header("Mcp-Param-N") != "" {
		t.Errorf("%v %s", err, s.header("Mcp-Name"))
	}
	works(t, u, `{"n":9007199254740993,"o":null}`)
	if got := s.header("Mcp-Param-N"); got != "" {
		t.Errorf("a number that has no exact header: %s", got)
	}
}

func TestAnswersOverHTTP(t *testing.T) {
	sse := func(format string) func(w http.ResponseWriter, _ *http.Request, id, _ string) {
		return func(w http.ResponseWriter, _ *http.Request, id, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, strings.ReplaceAll(format, "ID", id))
		}
	}
	plain := func(status int, kind, body string) func(w http.ResponseWriter, _ *http.Request, id, _ string) {
		return func(w http.ResponseWriter, _ *http.Request, id, _ string) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			fmt.Fprint(w, strings.ReplaceAll(body, "ID", id))
		}
	}
	const ok = `{"jsonrpc":"2.0","id":ID,"result":{"ok":9007199254740993 }}`
	for _, c := range []struct {
		name string
		call func(w http.ResponseWriter, r *http.Request, id, line string)
		want string
		code Code
		says string
	}{
		{"JSON", plain(200, "application/json", ok), `{"ok":9007199254740993 }`, "", ""},
		{"a batch", plain(200, "application/json", `[`+ok+`]`), `{"ok":9007199254740993 }`, "", ""},
		{"no content type", plain(200, "", ok), `{"ok":9007199254740993 }`, "", ""},
		{"events", sse("\xef\xbb\xbf: hi\r\nevent: message\r\nid: 1\r\ndata: " + ok + "\r\n\r\n"), `{"ok":9007199254740993 }`, "", ""},
		{"events with CR alone", sse("data:{\"jsonrpc\":\"2.0\",\rdata:\"id\":ID,\rdata:\"result\":{}}\r\r"), `{}`, "", ""},
		{"noise among events", sse("retry: x\n\ndata: nonsense\n\ndata\n\ndata: {\"id\":99,\"result\":{}}\n\ndata: {\"method\":\"x\"}\n\n:\n\ndata: " + ok + "\n\n"), `{"ok":9007199254740993 }`, "", ""},
		{"the stream ends", sse("data: {\"method\":\"x\"}\n\n"), "", Died, "ended its answer before the result"},
		{"half an event", sse("data: " + ok + "\n"), "", Died, "ended its answer before the result"},
		{"an empty 202", plain(202, "", ""), "", Malformed, "no message (HTTP status 202)"},
		{"HTML", plain(200, "text/html", "<p>"), "", Malformed, `content type "text/html"`},
		{"another id", plain(200, "application/json", `{"jsonrpc":"2.0","id":12345,"result":{}}`), "", Malformed, "answered another request"},
		{"broken JSON", plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}`), "", Malformed, "no message"},
		{"an error", plain(400, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"bad"}}`), "", Answered, "error -32602: bad"},
		{"an error without an id", plain(200, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}`), "", Answered, "error -32700: parse"},
		{"401", plain(401, "text/plain", "no"), "", Malformed, "HTTP status 401: it does not take the credentials"},
		{"500", plain(500, "text/html", "<h1>"), "", Malformed, "HTTP status 500"},
		{"too large, announced", func(w http.ResponseWriter, _ *http.Request, id, _ string) {
			jsonAnswer(w, id, `"`+strings.Repeat("x", 2<<20)+`"`)
		}, "", TooLarge, "larger than the 1048576 bytes"},
		{"too large, in pieces", func(w http.ResponseWriter, _ *http.Request, id, _ string) {
			w.Header().Set("Content-Type", "application/json")
			for range 64 {
				_, _ = w.Write(bytes.Repeat([]byte(" "), 1<<20))
				w.(http.Flusher).Flush()
			}
		}, "", TooLarge, "larger than the 1048576 bytes"},
		{"too large an event", sse("data: \"" + strings.Repeat("x", 2<<20) + "\"\n\n"), "", TooLarge, "larger than the 1048576 bytes"},
		{"compressed", func(w http.ResponseWriter, _ *http.Request, id, _ string) {
			w.Header().Set("Content-Encoding", "gzip")
			jsonAnswer(w, id, `{}`)
		}, "", Malformed, "content encoding gzip"},
		{"the connection breaks", func(w http.ResponseWriter, _ *http.Request, _, _ string) { panic(http.ErrAbortHandler) }, "", Died, "broke the connection"},
		{"a redirect in the origin", func(w http.ResponseWriter, r *http.Request, id, line string) {
			if r.URL.Path == "/there" {
				jsonAnswer(w, id, `{"there":true}`)
				return
			}
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}, `{"there":true}`, "", ""},
		{"a redirect that changes the method", func(w http.ResponseWriter, r *http.Request, _, _ string) {
			http.Redirect(w, r, "/there", http.StatusFound)
		}, "", Unavailable, "redirects with HTTP status 302"},
		{"a redirect in circles", func(w http.ResponseWriter, r *http.Request, _, _ string) {
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}, "", Unavailable, "redirects with HTTP status 307, which is not followed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, spec, _ := newSite(t, func(s *site) { s.call = c.call; s.modern = c.name == "JSON" })
			spec.MaxMessage = 1 << 20
			u := start(t, spec)
			b, err := u.Call(t.Context(), "echo", []byte(`{}`), nil)
			if string(b) != c.want {
				t.Errorf("%s", b)
			}
			if c.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e, ok := err.(*Error); !ok || e.Code != c.code || !strings.Contains(e.Message, c.says) || strings.Contains(e.Message, "s3cr3t") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRedirectToAnotherOriginIsRefused(t *testing.T) {
	var got atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	defer thief.Close()
	_, spec, _ := newSite(t, func(s *site) {
		s.before = func(w http.ResponseWriter, r *http.Request, _, _ string) bool {
			http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
			return true
		}
	})
	_, err := Start(t.Context(), spec)
	if e, ok := err.(*Error); !ok || e.Code != Unavailable || !strings.Contains(e.Message, "redirects to another origin, "+thief.URL) {
		t.Errorf("%v", err)
	}
	if got.Load() != 0 {
		t.Errorf("%d requests arrived there", got.Load())
	}
}

func TestField2_WhateverANotificationIsAnswered(t *testing.T) {
	for _, status := range []int{200, 202, 204} {
		s, spec, _ := newSite(t, func(s *site) {
			s.before = func(w http.ResponseWriter, _ *http.Request, method, _ string) bool {
				if method != "notifications/initialized" {
					return false
				}
				w.WriteHeader(status)
				if status == 200 {
					fmt.Fprint(w, "{}")
				}
				return true
			}
		})
		works(t, start(t, spec), `{}`)
		if s.count("notifications/initialized") != 1 {
			t.Error(s.seen)
		}
	}
}

func TestSessions(t *testing.T) {
	var session atomic.Int64
	var known sync.Map
	change := func(s *site) {
		s.before = func(w http.ResponseWriter, r *http.Request, method, _ string) bool {
			id := r.Header.Get("Mcp-Session-Id")
			switch method {
			case "server/discover":
			case "initialize":
				if id != "" {
					s.log("initialize with a session")
				}
				id = fmt.Sprintf("s-%d", session.Add(1))
				known.Store(id, true)
				w.Header().Set("Mcp-Session-Id", id)
			default:
				if _, ok := known.Load(id); !ok {
					http.Error(w, "no such session", http.StatusNotFound)
					return true
				}
			}
			if r.Method == http.MethodDelete {
				s.log("bye %s", id)
			}
			return false
		}
	}
	t.Run("TestField90_an expired one is made anew, and the call sent again once", func(t *testing.T) {
		s, spec, _ := newSite(t, change)
		u := start(t, spec)
		works(t, u, `{"a":1}`)
		known.Clear()
		works(t, u, `{"a":2}`)
		if s.count("initialize with a session") != 0 || s.count(" initialize ") != 2 || s.count("tools/call") != 3 || s.count("tools/list") != 2 {
			t.Error(s.seen)
		}
		u.Close()
		if s.count("bye s-2") != 1 || s.count("DELETE") != 1 {
			t.Error(s.seen)
		}
	})
	t.Run("a server that never knows it is asked twice and no more", func(t *testing.T) {
		s, spec, _ := newSite(t, func(s *site) {
			change(s)
			s.call = func(w http.ResponseWriter, r *http.Request, _, _ string) { http.Error(w, "?", http.StatusNotFound) }
		})
		u := start(t, spec)
		if e := fails(t, u, t.Context(), "echo", Unavailable); !strings.Contains(e.Message, "was not taken") || s.count("tools/call") != 2 {
			t.Error(e, s.seen)
		}
	})
	t.Run("one that is no header is not sent", func(t *testing.T) {
		s, spec, _ := newSite(t, func(s *site) {
			s.before = func(w http.ResponseWriter, r *http.Request, method, _ string) bool {
				w.Header().Set("Mcp-Session-Id", strings.Repeat("x", 2000))
				return false
			}
		})
		works(t, start(t, spec), `{}`)
		if got := s.header("Mcp-Session-Id"); got != "" {
			t.Error(got)
		}
	})
}

// The server stops and comes back: the call that finds nobody fails, unsent, and
// the next one works in a new session.
func TestServerComesBack(t *testing.T) {
	var down atomic.Bool
	s, spec, l := newSite(t, func(s *site) {
		s.before = func(w http.ResponseWriter, _ *http.Request, _, _ string) bool {
			if down.Load() {
				panic(http.ErrAbortHandler)
			}
			return false
		}
	})
	u := start(t, spec)
	works(t, u, `{}`)
	down.Store(true)
	fails(t, u, t.Context(), "echo", Died)
	fails(t, u, t.Context(), "echo", Unavailable)
	down.Store(false)
	works(t, u, `{}`)
	if s.count("tools/call") != 3 || !l.has("was connected again") {
		t.Error(s.seen, l.text())
	}
}

func TestCancelOverHTTP(t *testing.T) {
	for _, isModern := range []bool{false, true} {
		ended := make(chan struct{}, 1)
		s, spec, _ := newSite(t, func(s *site) {
			s.modern = isModern
			s.call = func(w http.ResponseWriter, r *http.Request, id, _ string) {
				w.Header().Set("Content-Type", "text/event-stream")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				ended <- struct{}{}
			}
		})
		u := start(t, spec)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := u.Call(ctx, "echo", []byte(`{}`), nil); err != context.Canceled {
			t.Error(err)
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("the stream is still open")
		}
		// In the modern era the closed stream is the cancellation.
		for !isModern && s.count("notifications/cancelled") == 0 {
			time.Sleep(time.Millisecond)
		}

		done := make(chan error, 1)
		go func() {
			_, err := u.Call(t.Context(), "echo", []byte(`{}`), nil)
			done <- err
		}()
		for s.count("tools/call") < 2 {
			time.Sleep(time.Millisecond)
		}
		if n := s.count("notifications/cancelled"); isModern && n != 0 {
			t.Errorf("told %d times", n)
		}
		u.Close()
		if e, ok := (<-done).(*Error); !ok || e.Code != Closed {
			t.Errorf("%v", e)
		}
	}
}

func TestRequestsOfTheServerOverHTTP(t *testing.T) {
	answered := make(chan string, 8)
	s, spec, l := newSite(t, func(s *site) {
		s.call = func(w http.ResponseWriter, r *http.Request, id, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"ping\"}\n\n", id)
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"e\",\"method\":\"elicitation/create\"}\n\n")
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":1}}\n\n", id)
			w.(http.Flusher).Flush()
			for range 2 {
				<-answered
			}
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", id)
		}
		s.before = func(w http.ResponseWriter, r *http.Request, method, id string) bool {
			if method == "" && r.Method == http.MethodPost {
				w.WriteHeader(http.StatusAccepted)
				answered <- id
				return true
			}
			return false
		}
	})
	u := start(t, spec)
	var progress []string
	if _, err := u.Call(t.Context(), "echo", []byte(`{}`), func(p []byte) { progress = append(progress, string(p)) }); err != nil {
		t.Fatal(err)
	}
	if s.count(`"e"{"code":-32601`) != 1 || len(progress) != 1 || !l.has("keeps the one it began with") {
		t.Error(s.seen, progress, l.text())
	}
}

// A stream that ends early is gone on with where its events have ids; the call is
// not sent again.
func TestStreamIsResumed(t *testing.T) {
	s, spec, _ := newSite(t, func(s *site) {
		s.call = func(w http.ResponseWriter, r *http.Request, id, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "id: %s\nretry: 1\ndata:\n\n", id)
		}
		s.before = func(w http.ResponseWriter, r *http.Request, _, _ string) bool {
			if r.Method != http.MethodGet {
				return false
			}
			s.log("resume after %s", r.Header.Get("Last-Event-Id"))
			w.Header().Set("Content-Type", "text/event-stream")
			if s.count("resume") == 1 {
				fmt.Fprintf(w, "data: {\"method\":\"notifications/x\"}\n\n")
				return true
			}
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resumed\":true}}\n\n", r.Header.Get("Last-Event-Id"))
			return true
		}
	})
	u := start(t, spec)
	if b := works(t, u, `{}`); string(b) != `{"resumed":true}` || s.count("tools/call") != 1 || s.count("resume after ") != 2 {
		t.Errorf("%s %v", b, s.seen)
	}
}

func TestHandshakesOverHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w http.ResponseWriter, r *http.Request, method, id string) bool
		says   string
	}{
		"401":     {func(w http.ResponseWriter, _ *http.Request, _, _ string) bool { w.WriteHeader(401); return true }, "HTTP status 401: it does not take the credentials in headers, or wants some"},
		"nothing": {func(w http.ResponseWriter, _ *http.Request, _, _ string) bool { w.WriteHeader(404); return true }, "there is no streamable HTTP server at this url"},
		"a version nobody knows": {func(w http.ResponseWriter, _ *http.Request, method, id string) bool {
			if method == "initialize" {
				jsonAnswer(w, id, `{"protocolVersion":"1999-01-01\u001b"}`)
			}
			return method == "initialize"
		}, `speaks version "1999-01-01" of the protocol`},
		"discovers another version": {func(w http.ResponseWriter, _ *http.Request, method, id string) bool {
			if method == "server/discover" {
				jsonAnswer(w, id, `{"supportedVersions":["2027-01-01"]}`)
			}
			return method == "server/discover"
		}, ""},
		"fails on the probe": {func(w http.ResponseWriter, _ *http.Request, method, _ string) bool {
			if method == "server/discover" {
				w.WriteHeader(500)
			}
			return method == "server/discover"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, spec, _ := newSite(t, func(s *site) { s.before = c.before })
			u, err := Start(t.Context(), spec)
			if c.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				works(t, u, `{}`)
				u.Close()
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, bad := range []string{"ftp://127.0.0.1/x", "http://u:p@127.0.0.1/", "http://", "://"} {
		if _, err := Start(t.Context(), Spec{Name: "up", URL: bad}); err == nil || !strings.Contains(err.Error(), "has no url") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1": true, "::1": true, "10.1.2.3": true, "93.184.216.34": true, "2606:2800:220:1::1": true, "fd12::1": true,
		"169.254.169.254": false, "169.254.0.1": false, "fe80::1": false, "fe80::1%eth0": false, "::ffff:169.254.169.254": false, "fd00:ec2::254": false,
		"100.100.100.200": false, "192.0.0.192": false, "168.63.129.16": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
		"64:ff9b::a9fe:a9fe": false, "2002:a9fe:a9fe::1": false, "64:ff9b::808:808": true,
	} {
		if why := forbidden(netip.MustParseAddr(addr)); (why == "") != ok {
			t.Errorf("%s: %q", addr, why)
		}
	}
	// The address is judged when it is connected to; the one that is named is let.
	for raw, refused := range map[string]bool{"http://[::ffff:169.254.169.254]:1/": false, "http://169.254.169.254:1/": false, "http://name.example:1/": true} {
		w, err := openWeb(&Spec{URL: raw})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err = dialer(w.url)(ctx, "tcp", "169.254.169.254:1")
		if got := err != nil && strings.Contains(err.Error(), errForbidden.Error()); got != refused {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
