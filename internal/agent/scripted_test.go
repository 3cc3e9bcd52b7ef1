package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// fakeServer is an MCP server of both eras that lists memory_search only.
type fakeServer struct {
	*httptest.Server
	stream bool // answer calls as event streams

	mu       sync.Mutex
	bodies   []string
	headers  []http.Header
	problems []string
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies, s.headers = append(s.bodies, string(body)), append(s.headers, r.Header.Clone())
	if r.Header.Get("Authorization") != "Bearer "+testToken {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":"unauthorized"}`)
		return
	}
	var in struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name, Cursor string
			Meta         map[string]any `json:"_meta"`
			Arguments    json.RawMessage
		}
	}
	if json.Unmarshal(body, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}`)
		return
	}
	version := r.Header.Get("MCP-Protocol-Version")
	modern := in.Params.Meta["io.modelcontextprotocol/protocolVersion"] == scriptedModern
	if modern && (version != scriptedModern || r.Header.Get("Mcp-Method") != in.Method || r.Header.Get("Mcp-Name") != in.Params.Name) {
		s.problems = append(s.problems, "headers of "+in.Method)
	}
	if !modern && in.Method != "initialize" && version != "2025-06-18" && in.ID != nil {
		s.problems = append(s.problems, "version "+version)
	}
	if in.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	reply := `"result":{}`
	switch in.Method {
	case "initialize":
		reply = `"result":{"protocolVersion":"2025-06-18","capabilities":{}}`
	case "tools/list":
		reply = `"result":{"tools":[{"name":"a"}],"nextCursor":"2"}`
		if in.Params.Cursor == "2" {
			reply = `"result":{"tools":[{"name":"memory_search"}]}`
		}
	case "tools/call":
		switch in.Params.Name {
		case "memory_search":
			text, _ := json.Marshal("got " + string(in.Params.Arguments))
			reply = `"result":{"content":[{"type":"text","text":` + string(text) + `}]}`
		case "bad":
			reply = `"result":{"content":[{"type":"text","text":"sorry"}],"isError":true}`
		default:
			code := -32601
			if modern {
				code = -32602
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusNotFound)
			}
			reply = fmt.Sprintf(`"error":{"code":%d,"message":"tool '%s' is not available to this agent"}`, code, in.Params.Name)
		}
	}
	answer := `{"jsonrpc":"2.0","id":` + string(in.ID) + `,` + reply + `}`
	if s.stream && in.Method == "tools/call" {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, ": hello\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\ndata: %s\r\ndata: %s\n\n: bye\n\n", answer[:10], answer[10:])
		return
	}
	io.WriteString(w, answer)
}

func (s *fakeServer) config() []byte {
	p := testPlan()
	p.URL = s.URL + "/mcp"
	b, _ := mcpConfig(p)
	return b
}

// play runs a script in this process and reads its stream.
func play(t *testing.T, s *fakeServer, script string, args ...string) (events []event.Event, code int, stderr string) {
	t.Helper()
	path := t.TempDir() + "/mcp.json"
	if err := os.WriteFile(path, s.config(), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = playScript(append([]string{"--mcp-config", path}, args...), strings.NewReader(script), &out, &errs)
	if strings.Contains(out.String()+errs.String(), testToken) && !strings.Contains(script, "TOKEN") {
		t.Error("the token is in the output")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) > 0 {
		t.Errorf("%q", s.problems)
	}
	return feed(ParserFor(scripted{}, "osfoundry"), 0, out.Bytes()), code, errs.String()
}

func TestScriptedStory(t *testing.T) {
	s := newFakeServer(t)
	got, code, _ := play(t, s, `
# the story of a run
say hello there
call memory_search {"query":"<a&b>", "n":9007199254740993}
call execute_command {"cmd":"rm -rf ~/work"}
call bad
token wrong
call memory_search {}
token -
call memory_search
done with it
`)
	const ms, ec, bad = "mcp__osfoundry__memory_search", "mcp__osfoundry__execute_command", "mcp__osfoundry__bad"
	want := []event.Event{
		{Kind: event.Started, Status: "connected", Tools: []string{"mcp__osfoundry__a", ms}},
		{Kind: event.Text, Text: "hello there"},
		{Kind: event.ToolCall, Tool: ms, CallID: "call_1", Arguments: json.RawMessage(`{"query":"<a&b>","n":9007199254740993}`)},
		{Kind: event.ToolResult, Tool: ms, CallID: "call_1", Result: `got {"query":"<a&b>","n":9007199254740993}`},
		{Kind: event.ToolCall, Tool: ec, CallID: "call_2", Arguments: json.RawMessage(`{"cmd":"rm -rf ~/work"}`)},
		{Kind: event.ToolResult, Tool: ec, CallID: "call_2", Result: "error -32601: tool 'execute_command' is not available to this agent", IsError: true},
		{Kind: event.ToolCall, Tool: bad, CallID: "call_3"},
		{Kind: event.ToolResult, Tool: bad, CallID: "call_3", Result: "sorry", IsError: true},
		{Kind: event.ToolCall, Tool: ms, CallID: "call_4", Arguments: json.RawMessage(`{}`)},
		{Kind: event.ToolResult, Tool: ms, CallID: "call_4", Result: "http 401", IsError: true},
		{Kind: event.ToolCall, Tool: ms, CallID: "call_5"},
		{Kind: event.ToolResult, Tool: ms, CallID: "call_5", Result: "got "},
		{Kind: event.Text, Text: "done with it"},
		{Kind: event.Finished, OK: yes(), Text: "done with it", Turns: 5, Usage: &event.Usage{}, CostUSD: dollars(0)},
	}
	if diff := cmp.Diff(want, got); diff != "" || code != 0 {
		t.Errorf("exit %d: %s", code, diff)
	}
	var methods []string
	for _, b := range s.bodies[:4] {
		var m struct{ Method string }
		json.Unmarshal([]byte(b), &m)
		methods = append(methods, m.Method)
	}
	if !slices.Equal(methods, []string{"initialize", "notifications/initialized", "tools/list", "tools/list"}) {
		t.Errorf("handshake %q", methods)
	}
}

func TestScriptedModernEra(t *testing.T) {
	s := newFakeServer(t)
	got, _, _ := play(t, s, "modern\ncall memory_search {}\ncall nope\nlegacy\ninitialize\ncall memory_search {}")
	var results []string
	for _, e := range got {
		if e.Kind == event.ToolResult {
			results = append(results, e.Result)
		}
	}
	want := []string{"got {}", "http 404: error -32602: tool 'nope' is not available to this agent", "ok", "got {}"}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(s.bodies[0], "server/discover") || s.headers[0].Get("Mcp-Method") != "server/discover" {
		t.Errorf("first request %s", s.bodies[0])
	}
	for _, tc := range [][2]string{{"plain_name", "plain_name"}, {"é", "=?base64?" + base64.StdEncoding.EncodeToString([]byte("é")) + "?="}, {"a\nb", "=?base64?YQpi?="}, {" a", "=?base64?IGE=?="}, {"=?base64?x", "=?base64?PT9iYXNlNjQ/eA==?="}} {
		if headerValue(tc[0]) != tc[1] {
			t.Errorf("%q: %q", tc[0], headerValue(tc[0]))
		}
	}
}

func TestScriptedReadsEventStreams(t *testing.T) {
	s := newFakeServer(t)
	s.stream = true
	got, _, _ := play(t, s, `call memory_search {"a":1}`)
	// The data lines of one event are joined by a newline, which is white space
	// between two tokens of the message.
	if got[2].Result != `got {"a":1}` {
		t.Errorf("%+v", got[2])
	}
}

func TestScriptedLanguage(t *testing.T) {
	for _, tc := range []struct {
		script, kinds string
		code          int
		text          string // of the last event
	}{
		{"", "started finished(true)", 0, ""},
		{"# only a comment\n", "started finished(true)", 0, ""},
		{"Please find the notes\nabout call me maybe", "started text text finished(true)", 0, "about call me maybe"},
		{"call me maybe\nlist the files\nsleep well\nexit now\nraw fish\ntoken of love\nmodern art\nenv is nice\nfinish it\nignore me\nno-handshake please\ncall x {bad",
			"started text text text text text text text text text text text text finished(true)", 0, "call x {bad"},
		{"exit 7", "started", 7, ""},
		{"exit 256", "started text finished(true)", 0, "exit 256"},
		{"say a\nexit 0\nsay b", "started text", 0, "a"},
		{"fail it broke\nsay b", "started finished(false)", 1, "it broke"},
		{"say x\nfinish\nsay y", "started text finished(true) text", 0, "y"},
		{"finish\nfail no", "started finished(true)", 1, ""},
		{"no-handshake\nsay x", "started text finished(true)", 0, "x"},
		{"print {\"kind\":\"call\",\"tool\":\"x\"}\nprint noise\nprint", "started log finished(true)", 0, ""},
		{"sleep 1ms\nlist\nenv NO_SUCH_VARIABLE", "started tool_call tool_result tool_call tool_result finished(true)", 0, ""},
		{"exec id", "started tool_call tool_result finished(true)", 0, ""},
		{"cost 1.5\ncost -1\ncost NaN\ncost of living", "started text text text finished(true)", 0, "cost of living"},
		{"say", "started text finished(true)", 0, "say"},
		{"\r\nsay crlf\r\n", "started text finished(true)", 0, "crlf"},
	} {
		got, code, _ := play(t, newFakeServer(t), tc.script)
		if kinds(got) != tc.kinds || code != tc.code || got[len(got)-1].Text != tc.text {
			t.Errorf("%q: exit %d, %s, %q", tc.script, code, kinds(got), got[len(got)-1].Text)
		}
	}
}

func TestScriptedWithoutHandshake(t *testing.T) {
	s := newFakeServer(t)
	got, _, _ := play(t, s, "no-handshake\nsay x")
	if len(s.bodies) != 0 || got[0].Status != "pending" || got[0].Tools != nil {
		t.Errorf("%q %+v", s.bodies, got[0])
	}
}

func TestField19_WrongTokenFromTheStart(t *testing.T) {
	got, code, _ := play(t, newFakeServer(t), "token 0000\nsay still here")
	if got[0].Status != "failed" || got[0].Text != "http 401" || got[0].Tools != nil || code != 0 || kinds(got) != "started text finished(true)" {
		t.Errorf("exit %d: %+v", code, got)
	}
}

func TestScriptedRaw(t *testing.T) {
	s := newFakeServer(t)
	got, _, _ := play(t, s, "raw {\"jsonrpc\":\"2.0\",\"id\":1.50,\"method\":\"ping\"}\nraw {\"broken\nraw {\"method\":\"notifications/x\"}\nraw []")
	var results []string
	for _, e := range got {
		if e.Kind == event.ToolResult {
			results = append(results, fmt.Sprint(e.IsError, " ", e.Result))
		}
	}
	want := []string{
		`false http 200 {"jsonrpc":"2.0","id":1.50,"result":{}}`,
		`true http 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}`,
		"false http 202", `true http 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}`,
	}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
	if s.bodies[4] != `{"jsonrpc":"2.0","id":1.50,"method":"ping"}` || s.bodies[5] != `{"broken` {
		t.Errorf("%q", s.bodies)
	}
}

func TestScriptedOwnTools(t *testing.T) {
	got, _, _ := play(t, newFakeServer(t), "exec echo $((6*7)); echo $SCRIPTED_URL | cut -c1-17\nexec exit 3\nexec (/bin/sleep 5 &) ; echo left", "--own-tools")
	if !slices.Contains(got[0].Tools, "exec") || !slices.Equal(Foreign(scripted{}, "osfoundry", got[0].Tools), []string{"exec"}) {
		t.Errorf("%q", got[0].Tools)
	}
	if got[2].Result != "42\nhttp://127.0.0.1:" || got[4].Result != "exit status 3" || !got[4].IsError || got[6].Result != "left" {
		t.Errorf("%+v", got)
	}
	for _, e := range got[1:7] {
		if !e.Observed {
			t.Errorf("%+v is not observed", e)
		}
	}
	sealed, _, _ := play(t, newFakeServer(t), "exec echo hi")
	if sealed[2].Result != "own tools are off" || !sealed[2].IsError || Foreign(scripted{}, "osfoundry", sealed[0].Tools) != nil {
		t.Errorf("%+v", sealed)
	}

	p := testPlan()
	for _, tc := range []struct {
		own  OwnTools
		args []string
		on   bool
	}{{OwnTools{}, nil, false}, {OwnTools{All: true}, nil, true}, {OwnTools{List: []string{"exec"}}, nil, true}} {
		p.OwnTools = tc.own
		spec, err := scripted{}.Command(Installation{Path: "/x"}, p)
		if err != nil || slices.Contains(spec.Args, "--own-tools") != tc.on {
			t.Errorf("%+v: %q %v", tc.own, spec.Args, err)
		}
	}
	p.OwnTools = OwnTools{List: []string{"Bash"}}
	_, err := scripted{}.Command(Installation{}, p)
	refused(t, err, "Bash")
	p.OwnTools, p.Args = OwnTools{}, []string{"--x"}
	_, err = scripted{}.Command(Installation{}, p)
	refused(t, err, "--x")
}

func TestScriptedConfigs(t *testing.T) {
	entry := func(url, auth string) string {
		return `{"mcpServers":{"s":{"type":"http","url":"` + url + `","headers":{"Authorization":"` + auth + `"}}}}`
	}
	for name, tc := range map[string]struct{ config, says string }{
		"not JSON":      {"x", "not an mcpServers document"},
		"none":          {`{"mcpServers":{}}`, "names 0 servers"},
		"two":           {`{"mcpServers":{"a":{},"b":{}}}`, "names 2 servers"},
		"another host":  {entry("http://192.0.2.1/mcp", "Bearer x"), "loopback"},
		"a name":        {entry("http://localhost/mcp", "Bearer x"), "loopback"},
		"not http":      {entry("file:///etc/passwd", "Bearer x"), "loopback"},
		"not a bearer":  {entry("http://127.0.0.1:1/mcp", "Basic x"), "bearer"},
		"unset, lookup": {entry("http://127.0.0.1:1/mcp", ""), "bearer"},
	} {
		path := t.TempDir() + "/c"
		os.WriteFile(path, []byte(tc.config), 0o600)
		var out, errs bytes.Buffer
		if code := playScript([]string{"--mcp-config", path}, strings.NewReader("say x"), &out, &errs); code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), tc.says) {
			t.Errorf("%s: exit %d, %s", name, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := playScript([]string{"--what"}, strings.NewReader(""), &out, &errs); code != 2 {
		t.Error(code)
	}
	dead := newFakeServer(t)
	dead.Close()
	got, code, _ := play(t, dead, "call x")
	if code != 0 || got[0].Status != "failed" || got[0].Text != "connection refused" || got[2].Result != "connection refused" {
		t.Errorf("%+v", got)
	}
}

// process is the scripted agent as a process of its own, started as a run does
// it but for the supervision.
func process(t *testing.T, s *fakeServer, script string) *exec.Cmd {
	t.Helper()
	p := testPlan()
	p.URL, p.Prompt, p.Folder, p.TempDir = s.URL+"/mcp", []byte(script), t.TempDir(), t.TempDir()
	in, err := scripted{}.Find("", nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := scripted{}.Command(in, p)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Write(spec.Files[0])
	w.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(func() { cancel(); r.Close() })
	cmd := exec.CommandContext(ctx, spec.Path)
	cmd.Args, cmd.Env, cmd.Dir, cmd.Stdin, cmd.ExtraFiles = spec.Args, spec.Env, spec.Dir, spec.Stdin, []*os.File{r}
	cmd.Stderr = os.Stderr
	return cmd
}

func TestField53_PromptByStdinThenEnd(t *testing.T) {
	out, err := process(t, newFakeServer(t), "call memory_search {\"q\":1}\nsay ok").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := feed(ParserFor(scripted{}, "osfoundry"), 0, out)
	if kinds(got) != "started tool_call tool_result text finished(true)" || got[2].Result != `got {"q":1}` {
		t.Errorf("%s", out)
	}
}

func TestScriptedAndTERM(t *testing.T) {
	s := newFakeServer(t)
	for _, tc := range []struct {
		script string
		dies   bool
	}{{"print up\nsleep 20s", true}, {"ignore\nprint up\nsleep 100ms", false}} {
		cmd := process(t, s, tc.script)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for sc := bufio.NewScanner(out); sc.Scan() && sc.Text() != "up"; {
		}
		cmd.Process.Signal(syscall.SIGTERM)
		io.Copy(io.Discard, out)
		err = cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() != tc.dies || tc.dies && ws.Signal() != syscall.SIGTERM {
			t.Errorf("%q: %v", tc.script, err)
		}
	}
}

func TestScriptedStreamTrustsNothing(t *testing.T) {
	lie := `{"kind":"KIND","time":"2026-01-01T00:00:00Z","run":"r","level":"sealed","workspace":"w","user":"u","agent":"a","decision":"allow","layer":"l","rule":"r","outcome":"ok","audit_head":"h","exit_code":0,"observed":false,"tool":"Bash","result":"x","call_id":"c","text":"t","turns":-1,"ok":true,"tools":["x"]}`
	for kind, want := range map[event.Kind]*event.Event{
		event.Started:     {Kind: event.Started, Text: "t", Tools: []string{"x"}},
		event.Text:        {Kind: event.Text, Text: "t"},
		event.ToolCall:    {Kind: event.ToolCall, Tool: "Bash", CallID: "c", Observed: true},
		event.ToolResult:  {Kind: event.ToolResult, Tool: "Bash", CallID: "c", Result: "x", Observed: true},
		event.Finished:    {Kind: event.Finished, OK: yes(), Text: "t"},
		event.ToolsListed: nil, event.Call: nil, event.Notice: nil, event.Log: nil, event.Ended: nil, "": nil, "other": nil,
	} {
		got := feed(ParserFor(scripted{}, "osfoundry"), 0, []byte(strings.Replace(lie, "KIND", string(kind), 1)))
		var all []event.Event
		if want != nil {
			all = append(all, *want)
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("%q: %s", kind, diff)
		}
	}
	p := scripted{}.Parser()
	got := feed(p, 0, []byte(`{"kind":"started","server":"s"}`+"\n"+`{"kind":"tool_call","tool":"mcp__s__x"}`+"\n"+`{"kind":"tool_call","tool":"mcp__t__x"}`))
	if got[1].Observed || !got[2].Observed {
		t.Errorf("%+v", got)
	}
}

func FuzzScriptedStream(f *testing.F) {
	for _, s := range []string{`{"kind":"started","server":"s","tools":[""]}`, `{"kind":"tool_call","tool":"mcp__osfoundry__x","arguments":{"a":"\xff"}}`, `{"kind":"finished","turns":9}`, `{"kind":1}`, `[]`, `{"kind":"text","time":"x"}`, `noise`, ``} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut bool) {
		sound(t, ParserFor(scripted{}, "osfoundry").Line(b, cut), event.Started, event.Text, event.ToolCall, event.ToolResult, event.Log, event.Finished)
		sound(t, scripted{}.Parser().Line(b, cut), event.Started, event.Text, event.ToolCall, event.ToolResult, event.Log, event.Finished)
	})
}

func FuzzScript(f *testing.F) {
	for _, s := range []string{"say x", "call x {}", "call x {", "token a\nmodern\nlist", "raw", "raw {", "fail x", "exit 1", "env A", "\x00", "call \xff {\"a\":\"\xff\"}", "sleep 0s", "print \xff", "say \xff"} {
		f.Add(s)
	}
	config, _ := mcpConfig(Plan{Server: "s", URL: "http://127.0.0.1:1/mcp", Token: "t"})
	path := f.TempDir() + "/c"
	if err := os.WriteFile(path, config, 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script string) {
		// These act on the test itself.
		if strings.Contains(script, "sleep") || strings.Contains(script, "ignore") {
			return
		}
		var out, errs bytes.Buffer
		playScript([]string{"--mcp-config", path}, strings.NewReader("no-handshake\n"+script), &out, &errs)
		if strings.Contains(errs.String(), "can't be written") {
			t.Errorf("%q: %s", script, errs.String())
		}
	})
}

func FuzzEventStream(f *testing.F) {
	for _, s := range []string{"", "data: {}\n\n", "data:{\r\ndata:}\r\n\r\n", "data: {\"method\":\"x\"}\n\ndata: {\"id\":1}", ": c\n", "data\n\n", "data: [1]\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := lastMessage(bytes.NewReader(b))
		if err != nil || m != nil && !json.Valid(m) {
			t.Errorf("%q: %q %v", b, m, err)
		}
	})
}
