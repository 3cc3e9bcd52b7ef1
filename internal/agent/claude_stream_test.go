package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// feed gives b to p the way a run does: through bounded lines.
func feed(p Parser, max int, b ...[]byte) []event.Event {
	var events []event.Event
	lines := proc.NewLines(max, func(line []byte, cut bool) { events = append(events, p.Line(line, cut)...) })
	for _, part := range b {
		lines.Write(part)
	}
	lines.Close()
	return events
}

func read(s string) []event.Event { return feed(ParserFor(claude{}, "osfoundry"), 0, []byte(s)) }

func kinds(events []event.Event) string {
	var ks []string
	for _, e := range events {
		k := string(e.Kind)
		if e.OK != nil {
			k += fmt.Sprintf("(%v)", *e.OK)
		}
		ks = append(ks, k)
	}
	return strings.Join(ks, " ")
}

func yes() *bool { v := true; return &v }
func no() *bool  { v := false; return &v }

func dollars(f float64) *float64 { return &f }

func TestClaudeStreamOfAnOpenRun(t *testing.T) {
	b, err := os.ReadFile("testdata/claude-open.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	own := []string{
		"Task", "Bash", "CronCreate", "CronDelete", "CronList", "Edit", "EnterWorktree", "ExitWorktree", "ListAgents", "Monitor", "NotebookEdit", "Read",
		"ReportFindings", "ScheduleWakeup", "SendMessage", "Skill", "TaskStop", "ToolSearch", "WebFetch", "WebSearch", "Workflow", "Write",
	}
	const ours = "mcp__osfoundry__memory_search"
	const hidden = "mcp__osfoundry__execute_command"
	want := []event.Event{
		{Kind: event.Started, Model: "claude-opus-5-5", Version: "2.1.332", Status: "connected", Tools: append(slices.Clone(own), ours)},
		{Kind: event.ToolCall, Tool: ours, CallID: "toolu_00_0", Arguments: json.RawMessage(`{"query":"foo"}`)},
		{Kind: event.ToolResult, Tool: ours, CallID: "toolu_00_0", Result: `HIT: result of memory_search for {"query": "foo"}`},
		{Kind: event.ToolCall, Tool: hidden, CallID: "toolu_01_0", Arguments: json.RawMessage(`{"command":"id"}`)},
		{Kind: event.ToolResult, Tool: hidden, CallID: "toolu_01_0", Result: "<tool_use_error>Error: No such tool available: " + hidden + "</tool_use_error>", IsError: true},
		{Kind: event.Text, Text: "DONE final"},
		{Kind: event.Finished, Status: "success", Text: "DONE final", OK: yes(), Usage: &event.Usage{Input: 15, Output: 15}, CostUSD: dollars(0.00036), Turns: 3},
	}
	for name, p := range map[string]Parser{"told": ParserFor(claude{}, "osfoundry"), "not told": claude{}.Parser()} {
		got := feed(p, 0, b)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if f := Foreign(claude{}, "osfoundry", got[0].Tools); !slices.Equal(f, own) {
			t.Errorf("%s: foreign %q", name, f)
		}
	}
}

func TestClaudeStreamOfASealedRun(t *testing.T) {
	b, err := os.ReadFile("testdata/claude-sealed.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	got := feed(ParserFor(claude{}, "drawbridge"), 0, b)
	if k := kinds(got); k != "started tool_call tool_result tool_call tool_result tool_call tool_result text finished(true)" {
		t.Fatal(k)
	}
	if f := Foreign(claude{}, "drawbridge", got[0].Tools); f != nil || len(got[0].Tools) != 1 {
		t.Errorf("tools %q, foreign %q", got[0].Tools, f)
	}
	for i, observed := range []bool{false, false, false, true, true, false, false, false, false} {
		if got[i].Observed != observed {
			t.Errorf("event %d (%s %s) observed: %v", i, got[i].Kind, got[i].Tool, got[i].Observed)
		}
	}
}

const okResult = `{"type":"result","subtype":"success","is_error":false,"result":"ok"}`

func TestField58_NoiseArraysAndUnknownTypes(t *testing.T) {
	for _, tc := range []struct{ in, kinds, text string }{
		{"Now using node v20\n" + okResult, "log finished(true)", "Now using node v20"},
		{"\n\r\n  \n" + okResult, "finished(true)", ""},
		{okResult + "\r\n", "finished(true)", ""},
		{okResult, "finished(true)", ""},
		{`[{"type":"system"},` + okResult + `,7,null,"x",[` + okResult + `]]`, "finished(true)", ""},
		{`[{"type":"system","subtype":"init"}`, "log", `[{"type":"system","subtype":"init"}`},
		{`{"type":"brand_new","result":"x"}` + "\n" + okResult, "finished(true)", ""},
		{okResult + "\n" + `{"type":"resu`, "finished(true) log", `{"type":"resu`},
		{`{"type":"resu`, "log", `{"type":"resu`},
		{"\xff\xfe{", "log", "\uFFFD{"},
		{`{}`, "", ""},
		{`null`, "log", "null"},
		{`"result"`, "log", `"result"`},
		{`{"Type":"result"}`, "", ""},
		{`{"type":["result"]}`, "", ""},
		{`{"type":"assistant"}`, "", ""},
		{`{"type":"assistant","message":{"content":"hi"}}`, "text", ""},
		{`{"type":"assistant","message":{"content":{"type":"text","text":"x"}}}`, "", ""},
		{`{"type":"assistant","message":{"content":[null,1,{"type":"thinking","thinking":"x"},{"type":"text","text":"a"},{"type":"text"}]}}`, "text", ""},
		{`{"type":"user","message":{"content":"the prompt"}}`, "", ""},
		{`{"type":"system","subtype":"brand_new"}`, "", ""},
		{`{"type":"stream_event","event":{"type":"message_start"}}`, "", ""},
	} {
		got := read(tc.in)
		if kinds(got) != tc.kinds {
			t.Errorf("%q: %s, want %s", tc.in, kinds(got), tc.kinds)
		}
		for _, e := range got {
			if e.Kind == event.Log && (e.Text != tc.text || !e.Observed) {
				t.Errorf("%q: log %q", tc.in, e.Text)
			}
		}
	}
}

func TestField57_LongLines(t *testing.T) {
	toolResult := func(n int) []byte {
		return []byte(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"` + strings.Repeat("x", n) + `"}]}}` + "\n")
	}
	for _, n := range []int{70 << 10, 1 << 20, 20 << 20, 100 << 20} {
		got := feed(ParserFor(claude{}, "s"), 8<<20, toolResult(n), []byte(okResult))
		last := got[len(got)-1]
		if len(got) != 2 || last.Kind != event.Finished || last.OK == nil || !*last.OK || last.Text != "ok" {
			t.Fatalf("%d bytes: %s", n, kinds(got))
		}
		switch {
		case n > 8<<20 && (got[0].Kind != event.Log || !strings.Contains(got[0].Text, `"user"`)):
			t.Errorf("%d bytes: %+v", n, got[0])
		case n < 8<<20 && (got[0].Kind != event.ToolResult || len(got[0].Result) > call.DefaultOutput+100 || !strings.Contains(got[0].Result, "bytes left out")):
			t.Errorf("%d bytes: %s, %d bytes of result", n, got[0].Kind, len(got[0].Result))
		}
	}
}

func TestField57_ResultLineLongerThanTheLimit(t *testing.T) {
	big := strings.Repeat("y", 2<<20)
	for _, tc := range []struct {
		line, kinds, says string
	}{
		{`{"type":"result","subtype":"success","is_error":false,"num_turns":2,"result":"` + big + `"}`, "finished(true)", "longer than the limit"},
		{`{"duration_api_ms":1,"is_error":true,"num_turns":3,"subtype":"success","result":"` + big + `","type":"result"}`, "finished(false)", "longer than the limit"},
		{`{"type":"result","result":"short","is_error":false,"modelUsage":"` + big + `"}`, "finished(true)", "short"},
		{`{"type":"result","x":"` + big + `","is_error":false}`, "finished", "longer than the limit"},
		// What a tool printed can't pass for the end of the run.
		{`{"type":"user","message":{"content":"{\"type\":\"result\",\"is_error\":false,\"num_turns\":1,` + big, "log", `"user"`},
		{`{"message":{"type":"result","is_error":false,"num_turns":1,"x":"` + big, "log", "left out"},
		{`[` + okResult + `,"` + big, "log", "left out"},
		{big, "log", "left out"},
	} {
		got := feed(ParserFor(claude{}, "s"), 1<<20, []byte(tc.line))
		if kinds(got) != tc.kinds || !strings.Contains(got[0].Text, tc.says) {
			t.Errorf("%.80s: %s %.80q", tc.line, kinds(got), got[0].Text)
		}
	}
}

func TestField54_ResultIsReportedAtItsLine(t *testing.T) {
	p := ParserFor(claude{}, "s")
	if got := p.Line([]byte(okResult), false); kinds(got) != "finished(true)" {
		t.Error(kinds(got))
	}
}

func TestField55_NoResultNoFinish(t *testing.T) {
	b, err := os.ReadFile("testdata/claude-open.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	for n := range len(lines) - 2 {
		for _, e := range feed(ParserFor(claude{}, "osfoundry"), 0, lines[:n]...) {
			if e.Kind == event.Finished {
				t.Fatalf("finished after %d lines", n)
			}
		}
	}
}

func TestField72_StatusOfTheServer(t *testing.T) {
	for _, tc := range []struct{ servers, status, text string }{
		{`[{"name":"osfoundry","status":"connected"}]`, "connected", ""},
		{`[{"name":"osfoundry","status":"pending"}]`, "pending", ""},
		{`[{"name":"osfoundry","status":"failed"}]`, "failed", ""},
		{`[{"name":"osfoundry","status":"needs-auth"}]`, "needs-auth", ""},
		{`[{"name":"bridge","status":"connected"}]`, "absent", "bridge"},
		{`[{"name":"x","status":"connected"},{"name":"osfoundry","status":"pending"}]`, "pending", "not the bridge: x"},
		{`[]`, "absent", ""},
		{`null`, "absent", ""},
		{`{"osfoundry":"connected"}`, "absent", ""},
	} {
		got := read(`{"type":"system","subtype":"init","mcp_servers":` + tc.servers + `,"tools":[]}`)
		if len(got) != 1 || got[0].Status != tc.status || !strings.Contains(got[0].Text, tc.text) || (tc.text == "") != (got[0].Text == "") {
			t.Errorf("%s: %+v", tc.servers, got)
		}
	}
	if got := feed(claude{}.Parser(), 0, []byte(`{"type":"system","subtype":"init","mcp_servers":[{"name":"any","status":"connected"}]}`+"\n"+
		`{"type":"assistant","message":{"content":[{"type":"tool_use","name":"mcp__any__x"},{"type":"tool_use","name":"mcp__other__x"}]}}`)); got[0].Status != "connected" || got[1].Observed || !got[2].Observed {
		t.Errorf("%+v", got)
	}
}

func TestClaudeResults(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want event.Event
	}{
		{`"is_error":true,"subtype":"success","result":"API Error: 401"`, event.Event{OK: no(), Status: "success", Text: "API Error: 401"}},
		{`"subtype":"error_max_turns","is_error":true,"errors":["reached 3 turns","b"]`, event.Event{OK: no(), Status: "error_max_turns", Text: "reached 3 turns\nb"}},
		{`"subtype":"error_max_budget_usd","is_error":true,"errors":["Reached maximum budget ($0.0002)"],"total_cost_usd":0.00024`,
			event.Event{OK: no(), Status: event.OverBudget, Text: "Reached maximum budget ($0.0002)", CostUSD: new(0.00024)}},
		{`"subtype":"success"`, event.Event{OK: yes(), Status: "success"}},
		{`"subtype":"error_during_execution"`, event.Event{OK: no(), Status: "error_during_execution"}},
		{`"result":"x"`, event.Event{Text: "x"}},
		{`"is_error":"false","subtype":"success"`, event.Event{OK: yes(), Status: "success"}},
		{`"is_error":false,"is_error":true`, event.Event{OK: no()}},
		{`"is_error":false,"result":{"a":1},"total_cost_usd":"1","num_turns":-4,"usage":[]`, event.Event{OK: yes()}},
		{`"is_error":false,"total_cost_usd":-1,"num_turns":1e300`, event.Event{OK: yes()}},
		{`"is_error":false,"usage":{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":3,"cache_creation_input_tokens":4}`,
			event.Event{OK: yes(), Usage: &event.Usage{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4}}},
	} {
		tc.want.Kind = event.Finished
		if diff := cmp.Diff([]event.Event{tc.want}, read(`{"type":"result",`+tc.in+`}`)); diff != "" {
			t.Errorf("%s: %s", tc.in, diff)
		}
	}
}

func TestClaudeResultInAnyKeyOrder(t *testing.T) {
	b, err := os.ReadFile("testdata/claude-open.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	last := lines[len(lines)-1]
	want := read(string(last))
	ms, ok := call.Members(last)
	if !ok || kinds(want) != "finished(true)" {
		t.Fatal(kinds(want))
	}
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
		var parts []string
		for _, m := range ms {
			name, _ := json.Marshal(m.Name)
			parts = append(parts, string(name)+":"+string(m.Value))
		}
		if diff := cmp.Diff(want, read("{"+strings.Join(parts, ",")+"}")); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestClaudeToolBlocks(t *testing.T) {
	got := read(`{"type":"assistant","message":{"content":[{"type":"server_tool_use","id":"s","name":"mcp__osfoundry__x","input":{"a": 1}},{"type":"tool_use","id":"t","name":"mcp__osfoundry__big","input":"` + strings.Repeat("z", 100<<10) + `"}]}}` + "\n" +
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"s","content":[{"type":"text","text":"a"},{"type":"image"},7,{"type":"text","text":"b"}]},{"type":"tool_result","tool_use_id":"unknown"},{"type":"tool_result","tool_use_id":"t","content":{"x":1}}]}}`)
	if !got[0].Observed || string(got[0].Arguments) != `{"a":1}` {
		t.Errorf("%+v", got[0])
	}
	if len(got[1].Arguments) > 100 || got[1].Observed {
		t.Errorf("%.100s", got[1].Arguments)
	}
	if got[2].Result != "a\n[image]\nb" || !got[2].Observed {
		t.Errorf("%+v", got[2])
	}
	if got[3].Tool != "" || !got[3].Observed {
		t.Errorf("%+v", got[3])
	}
	if got[4].Result != `{"x":1}` || got[4].Tool != "mcp__osfoundry__big" || got[4].Observed {
		t.Errorf("%+v", got[4])
	}
}

func TestOpenCallsAreBounded(t *testing.T) {
	var c openCalls
	for i := range maxOpenCalls + 10 {
		c.open(event.Event{Tool: "t", CallID: fmt.Sprint(i)})
	}
	if len(c) != maxOpenCalls {
		t.Error(len(c))
	}
	if tool, _ := c.close("9"); tool != "" {
		t.Error("the oldest is still there")
	}
	if tool, observed := c.close("1033"); tool != "t" || observed {
		t.Error(tool, observed)
	}
}

// sound is what holds for every event a parser makes of any bytes.
func sound(t *testing.T, events []event.Event, allowed ...event.Kind) {
	t.Helper()
	for _, e := range events {
		if !slices.Contains(allowed, e.Kind) {
			t.Fatalf("kind %q", e.Kind)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if !utf8.Valid(b) {
			t.Fatalf("%q", b)
		}
		if e.Run != "" || e.Decision != "" || e.Layer != "" || e.Rule != "" || e.Outcome != "" || e.Level != "" || e.Head != "" || e.ExitCode != nil || e.User != "" || e.Workspace != "" || !e.Time.IsZero() {
			t.Fatalf("the stream set what only our side knows: %s", b)
		}
		if e.Kind == event.Log && len(e.Text) > maxLog+100 || len(e.Result) > call.DefaultOutput+100 {
			t.Fatalf("%d bytes of log, %d of result", len(e.Text), len(e.Result))
		}
	}
}

func FuzzClaudeStream(f *testing.F) {
	for _, name := range []string{"testdata/claude-open.jsonl", "testdata/claude-sealed.jsonl"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			f.Add(line, false)
			f.Add(line[:len(line)/2], true)
		}
	}
	for _, s := range []string{"", "{", "[", `[{}]`, `{"type":"result","usage":{"input_tokens":1e400}}`, `{"type":"result","total_cost_usd":1e400}`, "\xff", `{"type":"user","message":{"content":[{"type":"tool_result","content":[[]]}]}}`, `{"type":"assistant","message":{"content":[{"type":"tool_use","input":{"a":1,"a":2}}]}}`, "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"tool_use\",\"name\":\"\xff\",\"input\":\"\xff\"}]}}"} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut bool) {
		for _, p := range []Parser{ParserFor(claude{}, "osfoundry"), claude{}.Parser()} {
			for range 2 {
				sound(t, p.Line(b, cut), event.Started, event.Text, event.ToolCall, event.ToolResult, event.Log, event.Finished)
			}
		}
	})
}
