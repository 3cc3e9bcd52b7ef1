package session

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

const upstreamEnv = "SESSION_TEST_UPSTREAM"

const upstreamTools = `[{"name":"search","description":"finds <it>","inputSchema":{"type":"object","x":9007199254740993}},` +
	`{"name":"drop","inputSchema":{"type":"object"}},{"name":"bad","inputSchema":{"anyOf":[]}},{"name":"unseen","description":"a\u200b","inputSchema":{"type":"object"}}]`

// answerUpstream answers one message of a client, "" for none.
func answerUpstream(line []byte) string {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments json.RawMessage
		}
	}
	_ = json.Unmarshal(line, &m)
	switch m.Method {
	case "initialize":
		return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	case "tools/list":
		return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"tools":` + upstreamTools + `}}`
	case "tools/call":
		if m.Params.Name == "drop" {
			return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32000,"message":"no tables, ` + os.Getenv("DB_TOKEN") + `"}}`
		}
		env, _ := json.Marshal(os.Environ())
		return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{"z":9007199254740993 ,"content":[],"args":` + string(m.Params.Arguments) + `,"env":` + string(env) + `}}`
	}
	if len(m.ID) > 0 {
		return `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"?"}}`
	}
	return ""
}

// upstreamMain is the test binary as a stdio server.
func upstreamMain() {
	if os.Getenv(upstreamEnv) == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "started with", os.Getenv("DB_TOKEN"))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if a := answerUpstream(lines.Bytes()); a != "" {
			fmt.Println(a)
		}
	}
	os.Exit(0)
}

func stdioUpstream(t *testing.T) Upstream {
	t.Helper()
	linux(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Upstream{
		Name: "db", Command: []string{exe}, Env: map[string]string{upstreamEnv: "1", "DB_TOKEN": "tok-0123456789", "GORACE": "atexit_sleep_ms=0"}, SandboxOff: true,
		Effects: func(tool string) call.Effects {
			if tool == "search" {
				return call.Read
			}
			return ""
		},
	}
}

func httpUpstream(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) Upstream {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before != nil && before(w, r) {
			return
		}
		b, _ := io.ReadAll(r.Body)
		a := answerUpstream(b)
		if a == "" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, a)
	}))
	t.Cleanup(srv.Close)
	return Upstream{Name: "web", URL: srv.URL, Headers: map[string]string{"Authorization": "Bearer web-0123456789"}}
}

func TestToolsOfUpstreams(t *testing.T) {
	cfg := baseConfig(t)
	cfg.Environ = append(os.Environ(), "FOO_SECRET=not-for-servers")
	cfg.Upstreams = []Upstream{stdioUpstream(t), httpUpstream(t, nil)}
	cfg.Allow = []string{"db/*"}
	s := newer(t, cfg)
	if names := s.Tools(); len(names) != 2 || !strings.HasPrefix(names[0], "db_drop_") || !strings.HasPrefix(names[1], "db_search_") {
		t.Fatalf("%q", names)
	}
	if list := string(s.scope.List()); !strings.Contains(list, `"description":"finds <it>","inputSchema":{"type":"object","x":9007199254740993}}`) {
		t.Error(list)
	}
	if tool, _ := s.scope.Lookup("db/search"); tool.Effects != call.Read {
		t.Error(tool.Effects)
	}
	if tool, _ := s.scope.Lookup("db/drop"); tool.Effects != call.Destructive {
		t.Error(tool.Effects)
	}
	const args = `{"q": "größe","n":9007199254740993}`
	res, err := s.Call(t.Context(), s.Tools()[1], []byte(args))
	if err != nil || !strings.HasPrefix(string(res.Raw), `{"z":9007199254740993 ,"content":[],"args":`+args+`,`) {
		t.Fatalf("%s %v", res.Raw, err)
	}
	for what, bad := range map[string]bool{"not-for-servers": strings.Contains(string(res.Raw), "not-for-servers"), "the token": strings.Contains(string(res.Raw), "tok-0123456789"), "our token": strings.Contains(string(res.Raw), s.Token())} {
		if bad {
			t.Errorf("%s came back", what)
		}
	}
	if res.Flags.Redacted != 1 {
		t.Errorf("%+v", res.Flags)
	}
	// A JSON-RPC error is a result the model can read, with secrets masked.
	if res, err = s.Call(t.Context(), "db/drop", nil); err != nil || !res.IsError || res.Content[0].Text != "upstream db answered with error -32000: no tables, [redacted]" {
		t.Errorf("%+v %v", res, err)
	}
	for _, name := range []string{"db/bad", "db/unseen", "web/search", "search"} {
		if _, err := s.Call(t.Context(), name, nil); err == nil {
			t.Errorf("%s can be called", name)
		}
	}
	run := s.ID()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if pids := proc.Alive(run); len(pids) > 0 {
		t.Errorf("left running: %v", pids)
	}
	log, err := os.ReadFile(s.run.File("upstream-db.log"))
	if err != nil || string(log) != "started with [redacted]\n" {
		t.Errorf("%q %v", log, err)
	}
	var notes []string
	for _, r := range records(t, s) {
		if r.Kind == audit.Note {
			notes = append(notes, r.What+" "+r.Detail)
		}
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{"sandbox off: upstream db runs unconfined", "upstream db: tool bad is hidden: its input schema is not valid", "upstream db: tool unseen is hidden: its definition has characters that can't be seen"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
}

func TestUpstreamsAtStart(t *testing.T) {
	t.Run("one that is dead or slow keeps up no run", func(t *testing.T) {
		let := make(chan struct{})
		defer close(let)
		slow := httpUpstream(t, func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-let:
			case <-r.Context().Done():
			}
			return true
		})
		slow.Name = "slow"
		dead := httpUpstream(t, func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusUnauthorized); return true })
		dead.Name = "dead"
		cfg := baseConfig(t)
		cfg.Upstreams, cfg.StartWait, cfg.Allow = []Upstream{slow, httpUpstream(t, nil), dead}, 300*time.Millisecond, []string{"web/search"}
		s := newer(t, cfg)
		if len(s.Tools()) != 1 {
			t.Error(s.Tools())
		}
		_ = s.Close()
		var all string
		for _, r := range records(t, s) {
			all += r.Detail + "\n"
		}
		for _, want := range []string{"upstream slow did not list its tools in time", "upstream dead answered with HTTP status 401"} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is not in\n%s", want, all)
			}
		}
	})
	refused := func(name string, kind fault.Kind, says string, change func(*Config)) {
		t.Run(name, func(t *testing.T) {
			cfg := baseConfig(t)
			cfg.Upstreams = []Upstream{stdioUpstream(t)}
			change(&cfg)
			s, err := New(t.Context(), cfg)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || fault.KindOf(err) != kind || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "tok-0123456789") {
				t.Errorf("%v", err)
			}
		})
	}
	refused("no sandbox", fault.Sandbox, "upstream db needs a sandbox", func(c *Config) { c.Upstreams[0].SandboxOff = false })
	refused("a relative program", fault.Usage, "is a relative path", func(c *Config) { c.Upstreams[0].Command = []string{"./server"} })
	refused("no such program", fault.Usage, "is not on the PATH", func(c *Config) { c.Upstreams[0].Command = []string{"no-such-server"} })
	refused("two of one name", fault.Usage, "two upstreams are called db", func(c *Config) { c.Upstreams = append(c.Upstreams, c.Upstreams[0]) })
	refused("a name", fault.Usage, "not valid", func(c *Config) { c.Upstreams[0].Name = "a__b" })
	refused("a required one that fails", fault.Usage, "a required server is not there: upstream db ended (exit code 1)", func(c *Config) {
		c.Upstreams[0].Command, c.Upstreams[0].Required = []string{"sh", "-c", "echo tok-0123456789 >&2; exit 1"}, true
	})
	// Whoever can act as the user can answer as the user.
	refused("a person's answer", fault.Usage, "upstream db runs unconfined", func(c *Config) {
		c.Allow, c.Ask = []string{"db/search"}, []string{"db/search"}
		c.Agent = scriptedAgent(t, "x")
	})
}
