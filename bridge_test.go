package drawbridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/drawbridgetest"
)

func TestMain(m *testing.M) {
	if os.Getenv("TEST_WITHOUT_HELPER") == "" {
		drawbridge.Helper()
	}
	goleak.VerifyTestMain(m)
}

// echo answers with its arguments and the binding it was run for.
func echo(name string, effects drawbridge.Effects, runs *atomic.Int64) drawbridge.Tool {
	return drawbridge.Tool{
		Name: name, Description: "Echo.", Effects: effects,
		Run: func(_ context.Context, b drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
			if runs != nil {
				runs.Add(1)
			}
			return drawbridge.ToolResult{Text: fmt.Sprintf("%s|%s|%s|%s", b.Workspace, b.Channel, b.User, args)}, nil
		},
	}
}

func refuses(url string) bool {
	c, err := net.DialTimeout("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"), time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err != nil
}

func TestBridge(t *testing.T) {
	b := drawbridgetest.Start(t, drawbridge.Config{
		Server:  "osfoundry",
		Binding: drawbridge.Binding{Workspace: "ws", Channel: "ch", User: "ada"},
		Tools:   []drawbridge.Tool{echo("echo", drawbridge.Read, nil), echo("hidden", drawbridge.Read, nil)},
		Allow:   []string{"echo"},
	})
	if got := b.Tools(); len(got) != 1 || got[0] != "echo" {
		t.Errorf("Tools() = %q", got)
	}
	want := `{"mcpServers":{"osfoundry":{"type":"http","url":"` + b.URL() + `","headers":{"Authorization":"Bearer ` + b.Token() + `"},"timeout":120000}}}`
	if got := string(b.MCPConfig()); got != want {
		t.Errorf("MCPConfig() = %s\nwant %s", got, want)
	}

	res, err := b.Call(t.Context(), "echo", json.RawMessage(`{"n":9007199254740993}`))
	if err != nil || res.Text != `ws|ch|ada|{"n":9007199254740993}` {
		t.Errorf("Call = %+v, %v", res, err)
	}
	_, hidden := b.Call(t.Context(), "hidden", nil)
	_, never := b.Call(t.Context(), "xidden", nil)
	if !errors.Is(hidden, drawbridge.ErrNotAvailable) || strings.ReplaceAll(hidden.Error(), "hidden", "xidden") != never.Error() {
		t.Errorf("a hidden tool answers %v, one that never existed %v", hidden, never)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := b.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ready before anybody listed = %v", err)
	}
	if status, body := drawbridgetest.Post(t, b, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 200 || strings.Contains(body, "hidden") || !strings.Contains(body, `"echo"`) {
		t.Errorf("tools/list = %d %s", status, body)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v", err)
	}

	if err := b.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
	if !refuses(b.URL()) {
		t.Error("the port still answers after Close")
	}
	if res, err := b.Call(t.Context(), "echo", nil); err != nil || !res.IsError {
		t.Errorf("Call after Close = %+v, %v", res, err)
	}
}

// Promise 1, and field reports 35 and 48.
func TestPromise1_NothingWidensOrRebinds(t *testing.T) {
	var ran atomic.Int64
	b := drawbridgetest.Start(t, drawbridge.Config{
		Binding: drawbridge.Binding{Workspace: "ws-a", Channel: "ch-a", User: "ada"},
		Tools:   []drawbridge.Tool{echo("echo", drawbridge.Read, nil), echo("other", drawbridge.Destructive, &ran)},
		Allow:   []string{"echo"},
	})
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"workspace":"ws-b","workspace_id":"ws-b","channel":"x","user":"eve","allowed_tools":["*"]},"_meta":{"workspace":"ws-b","allowed_tools":["*"]}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"admin","version":"ws-b"}}}`,
	} {
		status, body := drawbridgetest.Post(t, b, message)
		if status != 200 || strings.Contains(body, `"ws-b|`) {
			t.Errorf("%s\n= %d %s", message, status, body)
		}
		if strings.Contains(message, "tools/call") && !strings.Contains(body, "ws-a|ch-a|ada|") {
			t.Errorf("the binding changed: %s", body)
		}
	}
	if _, body := drawbridgetest.Post(t, b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"other","arguments":{}}}`); !strings.Contains(body, "-32601") {
		t.Errorf("a tool outside the scope answered %s", body)
	}
	if ran.Load() != 0 {
		t.Error("a tool outside the scope ran")
	}
}

// Promise 2: the line is there before the effect.
func TestPromise2_RecordBeforeEffect(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var b *drawbridge.Bridge
	var before string
	b = drawbridgetest.Start(t, drawbridge.Config{
		StateDir: state,
		Tools: []drawbridge.Tool{{Name: "effect", Effects: drawbridge.Write, Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
			raw, err := os.ReadFile(filepath.Join(state, "runs", b.ID(), "audit.jsonl"))
			before = string(raw)
			return drawbridge.ToolResult{}, err
		}}},
		Allow: []string{"effect"},
	})
	if res, err := b.Call(t.Context(), "effect", json.RawMessage(`{"mark":"zebra"}`)); err != nil || res.IsError {
		t.Fatal(res, err)
	}
	if !strings.Contains(before, `"begin"`) || !strings.Contains(before, "zebra") {
		t.Errorf("while the tool ran its record was\n%s", before)
	}
}

// A tool of the embedder's that never looks at its context keeps nobody: its
// client is answered, others are served, and the record names it.
func TestField73_ToolThatNeverReturns(t *testing.T) {
	release := make(chan struct{})
	stuck := func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
		<-release
		return drawbridge.ToolResult{Text: "too late"}, nil
	}
	b := drawbridgetest.Start(t, drawbridge.Config{
		Tools:  []drawbridge.Tool{{Name: "stuck", Effects: drawbridge.Read, Run: stuck}, echo("echo", drawbridge.Read, nil)},
		Allow:  []string{"*"},
		Limits: drawbridge.Limits{Call: 10 * time.Millisecond, Grace: 10 * time.Millisecond},
	})
	defer close(release)
	const says = "the call took longer than a call may take, and was stopped"
	for range 3 {
		if status, body := drawbridgetest.Post(t, b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stuck"}}`); status != 200 || !strings.Contains(body, says) {
			t.Errorf("%d %s", status, body)
		}
		if status, body := drawbridgetest.Post(t, b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`); status != 200 || strings.Contains(body, "isError") {
			t.Errorf("%d %s", status, body)
		}
	}
	if res, err := b.Call(t.Context(), "stuck", nil); err != nil || !res.IsError || res.Text != says {
		t.Errorf("%+v %v", res, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestContextClosesTheBridge(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b, err := drawbridge.Start(ctx, drawbridge.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	deadline := time.Now().Add(10 * time.Second)
	for !refuses(b.URL()) {
		if time.Now().After(deadline) {
			t.Fatal("the port still answers after its context ended")
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// The callback may call back into the bridge, as an app that reacts would.
func TestEventsMayCallTools(t *testing.T) {
	var b *drawbridge.Bridge
	got := make(chan string, 10)
	ready := make(chan struct{})
	b = drawbridgetest.Start(t, drawbridge.Config{
		Tools: []drawbridge.Tool{echo("echo", drawbridge.Read, nil)}, Allow: []string{"echo"},
		Events: func(e drawbridge.Event) {
			if e.Kind == "call" && !strings.Contains(string(e.Arguments), "again") {
				<-ready
				res, err := b.Call(context.Background(), "echo", json.RawMessage(`{"again":1}`))
				got <- fmt.Sprint(res.Text, err)
			}
		},
	})
	close(ready)
	if _, err := b.Call(t.Context(), "echo", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-got:
		if !strings.Contains(s, "again") {
			t.Error(s)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the callback is stuck")
	}
}

// Promise 6 and 7: what can't be is refused in words.
func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	e := echo("echo", "", nil)
	for name, c := range map[string]struct {
		cfg  drawbridge.Config
		kind drawbridge.Kind
		want string
	}{
		"unknown tool":         {drawbridge.Config{Tools: []drawbridge.Tool{e}, Allow: []string{"ecco"}}, drawbridge.Usage, `no tool is called "ecco"`},
		"blank tool":           {drawbridge.Config{Tools: []drawbridge.Tool{e}, Allow: []string{" "}}, drawbridge.Usage, "blank"},
		"unknown builtin":      {drawbridge.Config{Builtins: []string{"memory_serch"}}, drawbridge.Usage, "memory_serch"},
		"bad pattern":          {drawbridge.Config{Tools: []drawbridge.Tool{e}, Allow: []string{"e?ho"}}, drawbridge.Usage, "e?ho"},
		"server name":          {drawbridge.Config{Server: "a__b"}, drawbridge.Usage, "a__b"},
		"twice":                {drawbridge.Config{Tools: []drawbridge.Tool{e, e}, Allow: []string{"echo"}}, drawbridge.Usage, "twice"},
		"shadowed builtin":     {drawbridge.Config{Tools: []drawbridge.Tool{echo("memory_search", "", nil)}, Builtins: []string{"memory_search"}, Allow: []string{"memory_search"}}, drawbridge.Usage, "twice"},
		"schema":               {drawbridge.Config{Tools: []drawbridge.Tool{{Name: "x", Run: e.Run, InputSchema: json.RawMessage(`{"type":"string"}`)}}, Allow: []string{"x"}}, drawbridge.Usage, `input schema of tool "x"`},
		"folder missing":       {drawbridge.Config{Folder: filepath.Join(dir, "none")}, drawbridge.Usage, "none"},
		"folder a file":        {drawbridge.Config{Folder: file}, drawbridge.Usage, "not a directory"},
		"file tool, no folder": {drawbridge.Config{Builtins: []string{"read_file"}, Allow: []string{"read_file"}}, drawbridge.Usage, "folder"},
		"command unconfined":   {drawbridge.Config{Folder: dir, Builtins: []string{"execute_command"}, Allow: []string{"execute_command"}}, drawbridge.SandboxFailed, "sandbox"},
		"state dir open":       {drawbridge.Config{StateDir: open}, drawbridge.Usage, "read by others"},
		"state dir a file":     {drawbridge.Config{StateDir: file}, drawbridge.Usage, file},
		"control character":    {drawbridge.Config{Binding: drawbridge.Binding{Workspace: "a\x1bb"}}, drawbridge.Usage, "workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.StateDir == "" {
				c.cfg.StateDir = state
			}
			b, err := drawbridge.Start(t.Context(), c.cfg)
			if err == nil {
				_ = b.Close()
				t.Fatal("it started")
			}
			if drawbridge.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("kind %d, %v; want kind %d and %q", drawbridge.KindOf(err), err, c.kind, c.want)
			}
		})
	}
	entries, err := os.ReadDir(filepath.Join(state, "runs"))
	if err != nil || len(entries) != 0 {
		t.Errorf("failed starts left %v, %v", entries, err)
	}
}

// Field report 34: what the list of allowed tools may look like.
func TestField34_EmptyAllowsNothing(t *testing.T) {
	for _, allow := range [][]string{nil, {}} {
		b := drawbridgetest.Start(t, drawbridge.Config{Tools: []drawbridge.Tool{echo("echo", "", nil)}, Allow: allow})
		if status, body := drawbridgetest.Post(t, b, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 200 || !strings.Contains(body, `"tools":[]`) {
			t.Errorf("Allow %#v lists %d %s", allow, status, body)
		}
		if _, err := b.Call(t.Context(), "echo", nil); !errors.Is(err, drawbridge.ErrNotAvailable) {
			t.Errorf("Allow %#v: a call answered %v", allow, err)
		}
	}
}

// A record that somebody changed while the run wrote it fails the run.
func TestChangedRecordFailsTheRun(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	b, err := drawbridge.Start(t.Context(), drawbridge.Config{StateDir: state, Tools: []drawbridge.Tool{echo("echo", "", nil)}, Allow: []string{"echo"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Call(t.Context(), "echo", json.RawMessage(`{"x":"before"}`)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(state, "runs", b.ID(), "audit.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(raw), "before", "behind", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); drawbridge.KindOf(err) != drawbridge.RecordIncomplete {
		t.Errorf("Close = %v", err)
	}
	if rep, err := audit.Verify(strings.NewReader(string(raw)), b.AuditHead()); err != nil || rep.Problem == "" {
		t.Errorf("the file before its close verifies against the final head: %+v, %v", rep, err)
	}
}

func TestThousandBridges(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var all []*drawbridge.Bridge
	for range 1000 {
		b, err := drawbridge.Start(t.Context(), drawbridge.Config{StateDir: state, Tools: []drawbridge.Tool{echo("echo", "", nil)}, Allow: []string{"echo"}})
		if err != nil {
			t.Fatalf("bridge %d: %v", len(all), err)
		}
		all = append(all, b)
	}
	for _, b := range all {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An embedder asks in its own window; a no tells the model why, and a yes counts
// for one call.
func TestApprove(t *testing.T) {
	var ran atomic.Int64
	type said struct {
		q drawbridge.Question
		a chan drawbridge.Answer
	}
	asked := make(chan said)
	b := drawbridgetest.Start(t, drawbridge.Config{
		Binding: drawbridge.Binding{Workspace: "ws", User: "ada"},
		Tools:   []drawbridge.Tool{echo("send", drawbridge.Destructive, &ran), echo("look", drawbridge.Read, nil)},
		Allow:   []string{"*"}, Ask: []string{"send"},
		Approve: func(ctx context.Context, q drawbridge.Question) drawbridge.Answer {
			s := said{q, make(chan drawbridge.Answer)}
			select {
			case asked <- s:
				return <-s.a
			case <-ctx.Done():
				return drawbridge.Answer{}
			}
		},
	})
	if res, err := b.Call(t.Context(), "look", nil); err != nil || res.IsError {
		t.Errorf("%+v %v", res, err)
	}
	for _, c := range []struct {
		answer drawbridge.Answer
		text   string
		runs   int64
	}{
		{drawbridge.Answer{}, "refused: a person was asked about this call and said no", 0},
		{drawbridge.Answer{Reason: "not on a Friday"}, "refused: a person was asked about this call and said no: not on a Friday", 0},
		{drawbridge.Answer{Yes: true}, `ws||ada|{"to":"all"}`, 1},
		{drawbridge.Answer{Yes: true, Remember: true}, `ws||ada|{"to":"all"}`, 2},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := <-asked
			if s.q.Tool != "send" || s.q.Workspace != "ws" || s.q.Arguments != `{"to": "all"}` || ran.Load() > c.runs {
				t.Errorf("%+v", s.q)
			}
			s.a <- c.answer
		}()
		res, err := b.Call(t.Context(), "send", json.RawMessage(`{"to":"all"}`))
		<-done
		if err != nil || res.Text != c.text || res.IsError == c.answer.Yes || ran.Load() != c.runs {
			t.Errorf("%+v: %+v %v, ran %d times", c.answer, res, err, ran.Load())
		}
	}
	if res, err := b.Call(t.Context(), "send", json.RawMessage(`{"to":"all"}`)); err != nil || res.IsError || ran.Load() != 3 {
		t.Errorf("the answer was to be remembered: %+v %v", res, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if res, err := b.Call(ctx, "send", json.RawMessage(`{"to":"one"}`)); err != nil || !res.IsError || ran.Load() != 3 {
		t.Errorf("other arguments: %+v %v", res, err)
	}
}

func TestPlan(t *testing.T) {
	plans := 0
	b := drawbridgetest.Start(t, drawbridge.Config{
		Tools: []drawbridge.Tool{echo("send", drawbridge.Write, nil), echo("look", drawbridge.Read, nil)},
		Allow: []string{"send", "look"}, Plan: true,
		Approve: func(_ context.Context, q drawbridge.Question) drawbridge.Answer {
			if plans++; plans == 1 {
				return drawbridge.Answer{Reason: "name the people"}
			}
			return drawbridge.Answer{Yes: q.Plan == "# Send\nto all"}
		},
	})
	if got := strings.Join(b.Tools(), " "); got != "look send submit_plan" {
		t.Errorf("the tools are %s", got)
	}
	for _, c := range []struct{ tool, args, says string }{
		{"look", `{}`, "|||"},
		{"send", `{}`, "this run is in plan mode"},
		{"submit_plan", `{"plan":"send"}`, "said no: name the people"},
		{"send", `{}`, "this run is in plan mode"},
		{"submit_plan", `{"plan":"# Send\nto all"}`, "The plan is approved"},
		{"send", `{}`, "|||{}"},
		{"submit_plan", `{"plan":"again"}`, "a plan was approved already"},
	} {
		if res, err := b.Call(t.Context(), c.tool, json.RawMessage(c.args)); err != nil || !strings.Contains(res.Text, c.says) {
			t.Errorf("%s: %+v %v", c.tool, res, err)
		}
	}
	if plans != 2 {
		t.Errorf("%d plans were shown", plans)
	}
}
