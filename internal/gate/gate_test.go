package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestAllowedCall(t *testing.T) {
	r := newRig(t)
	res, err := r.call("read", `{"a":1}`)
	if err != nil || res.IsError || text(res) != "ran" || res.Flags != (call.Flags{}) {
		t.Fatalf("%+v %v", res, err)
	}
	want := []line{
		{audit.Record{
			Seq: 1, Kind: audit.Begin, Tool: "read", Effects: "read", Origin: "endpoint", Arguments: json.RawMessage(`{"a":1}`),
			ArgumentsDigest: call.Digest([]byte(`{"a":1}`)), ArgumentsSize: 7, Decision: "allow", Layer: "agent", Rule: "allow *",
		}, false},
		{audit.Record{Seq: 2, Kind: audit.End, Call: 1, Tool: "read", Outcome: audit.OK, ResultSize: 3}, false},
	}
	got := r.rec.all()
	for i := range got {
		got[i].Micros = 0
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The line is with the recorder before the tool runs, and on disk where the
// tool can change anything.
func TestBeginComesFirst(t *testing.T) {
	r := newRig(t)
	for name, durable := range map[string]bool{"read": false, "write": true, "wreck": true} {
		r.tool(name, r.tools[name].Effects, func(context.Context, call.Invocation) (call.Result, error) {
			ls := r.rec.all()
			if l := ls[len(ls)-1]; l.Kind != audit.Begin || l.Tool != name || l.durable != durable || l.Decision != "allow" {
				t.Errorf("%s runs and the last line is %+v", name, l)
			}
			return call.Text("ran"), nil
		})
		if res, err := r.call(name, ""); err != nil || res.IsError {
			t.Errorf("%s: %v %v", name, res, err)
		}
	}
	if r.runs() != 3 {
		t.Errorf("%q ran", r.ran)
	}
}

// A tool that is hidden and a name that never existed are told apart by
// nothing: not the answer, not the record, not its shape.
func TestHiddenIsAsNeverExisted(t *testing.T) {
	type seen struct {
		res  call.Result
		text string
		line audit.Record
	}
	ask := func(name, args string, hidden bool) seen {
		r := newRig(t)
		if !hidden {
			delete(r.tools, "wreck")
		}
		g := New(func() Config {
			c := *r.cfg
			c.Catalogue = scoped{r.tools, "wreck"}
			return c
		}())
		defer g.Close()
		res, err := g.Call(context.Background(), request(name, args))
		na, ok := errors.AsType[*call.NotAvailable](err)
		if !ok || len(r.rec.all()) != 1 || r.runs() != 0 {
			t.Fatalf("%s: %v, record %s, ran %q", name, err, r.rec.kinds(), r.ran)
		}
		return seen{res, na.Error(), r.rec.all()[0].Record}
	}
	for _, args := range []string{"", `{}`, `{"cmd":"rm -rf ~"}`, `{"a":1,"a":2}`, `[`, `"x"`} {
		hidden, never := ask("wreck", args, true), ask("wreck", args, false)
		if !reflect.DeepEqual(hidden, never) {
			t.Errorf("arguments %s:\nhidden %+v\nnever  %+v", args, hidden, never)
		}
		if hidden.text != "tool 'wreck' is not available to this agent" || hidden.line.Kind != audit.Refused || hidden.line.Layer != "scope" ||
			hidden.line.Effects != "" || hidden.line.Decision != "deny" || hidden.line.Reason != hidden.text || hidden.line.ArgumentsSize != len(args) {
			t.Errorf("%+v", hidden)
		}
	}
	for _, name := range []string{"", "READ", "read ", " read", "read\x00", "mcp__s__read", "__proto__", "constructor", "re\u200bad", "*"} {
		if s := ask(name, "", false); s.text != fmt.Sprintf("tool '%s' is not available to this agent", name) || s.line.Tool != name {
			t.Errorf("%q: %+v", name, s)
		}
	}
}

// scoped hides one tool of a catalogue.
type scoped struct {
	catalogue
	hidden string
}

func (s scoped) Lookup(name string) (*call.Tool, bool) {
	if name == s.hidden {
		return nil, false
	}
	return s.catalogue.Lookup(name)
}

func TestNamesAreMaskedAndCut(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{secret, strings.Repeat("x", call.MaxEcho-8) + secret, strings.Repeat("é", 1<<20)} {
		_, err := r.call(name, "")
		ls := r.rec.all()
		l := ls[len(ls)-1]
		for _, s := range []string{err.Error(), l.Tool, l.Reason} {
			if strings.Contains(s, secret[:6]) || len(s) > call.MaxEcho+50 {
				t.Errorf("%d bytes: %.300q", len(s), s)
			}
		}
	}
}

func TestBadArguments(t *testing.T) {
	for args, says := range map[string]string{
		`[]`: "must be a JSON object", `null`: "must be a JSON object", `"x"`: "must be a JSON object", `1`: "must be a JSON object",
		`{`: "not valid JSON", `{} {}`: "not valid JSON", "{\"a\":\"\xff\"}": "not valid JSON",
		`{"a":1,"a":2}`: "the same key twice", `{"a":{"b":1,"\u0062":2}}`: "the same key twice",
		strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200): "nested deeper",
	} {
		r := newRig(t)
		res, err := r.call("write", args)
		r.wantRefused(t, res, err, "arguments", "", says)
		l := r.rec.all()[0]
		if l.Effects != "write" || l.ArgumentsDigest != call.Digest([]byte(args)) || l.ArgumentsSize != len(args) || !strings.Contains(text(res), "arguments: ") {
			t.Errorf("%.40s: %+v", args, l)
		}
		if r.runs() != 0 {
			t.Errorf("%.40s: it ran", args)
		}
	}
	// Present and empty is not absent.
	r := newRig(t)
	res, err := r.Call(context.Background(), call.Request{Tool: "read", Arguments: []byte{}})
	r.wantRefused(t, res, err, "arguments", "", "not valid JSON")
}

func TestSchema(t *testing.T) {
	r := newRig(t)
	var got any
	r.tools["read"].Validate = func(args any) error {
		got = args
		return errors.New("arguments.limit: got string, want integer")
	}
	res, err := r.call("read", `{"limit":"5","n":9007199254740993}`)
	r.wantRefused(t, res, err, "arguments", "schema", "arguments.limit: got string, want integer")
	if want := map[string]any{"limit": "5", "n": json.Number("9007199254740993")}; !reflect.DeepEqual(got, want) {
		t.Errorf("judged %#v", got)
	}
	// No arguments are an empty object, and judged too.
	if _, err := r.call("read", ""); err != nil || !reflect.DeepEqual(got, map[string]any{}) {
		t.Errorf("%#v %v", got, err)
	}
	if r.runs() != 0 {
		t.Error("it ran")
	}
}

// What is wrong with arguments is told in their own words: masked, and bounded.
func TestReasonsAreMaskedAndCut(t *testing.T) {
	long := strings.Repeat("k", 1<<20)
	cases := []string{
		`{"` + secret + `":1,"` + secret + `":2}`,
		`{"` + long + secret + `":1,"` + long + secret + `":2}`,
		`{"x":"` + secret + `"}`,
	}
	for at := range 2 * maxReason { // across both ends of the cut
		cases = append(cases, `{"x":"`+strings.Repeat("y", at)+secret+strings.Repeat("y", 2*maxReason-at)+`"}`)
	}
	r := newRig(t)
	r.tools["read"].Validate = func(args any) error { return fmt.Errorf("arguments: %v is wrong", args) }
	for _, args := range cases {
		r.rec.lines = nil
		res, err := r.call("read", args)
		l := r.rec.all()[0]
		if err != nil || !res.IsError || l.Kind != audit.Refused {
			t.Fatalf("%.40s: %v %v", args, res, err)
		}
		for _, s := range []string{text(res), l.Reason} {
			if strings.Contains(s, secret[:6]) || strings.Contains(s, secret[len(secret)-6:]) || len(s) > maxReason+100 || s == "" {
				t.Fatalf("%.40s: %d bytes: %.2000q", args, len(s), s)
			}
		}
	}
}

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name     string
		decision call.Decision
		says     string
		verdict  string
	}{
		{"deny", call.Decision{Verdict: call.Deny, Layer: "channel", Rule: "deny read", Reason: "not in this channel"}, "refused: not in this channel", "deny"},
		{"ask without anybody", call.Decision{Verdict: call.Ask, Layer: "channel", Rule: "deny read", Reason: "x"}, "nobody can be asked in this run", "ask"},
		{"a deny that gives no reason", call.Decision{Verdict: call.Deny, Layer: "channel", Rule: "deny read"}, "refused: the policy does not allow this call", "deny"},
		{"no verdict", call.Decision{Layer: "channel", Rule: "deny read"}, "refused: the policy", "deny"},
		{"a verdict nobody knows", call.Decision{Verdict: "ALLOW", Layer: "channel", Rule: "deny read"}, "refused: the policy", "deny"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) {
				r.cfg.Policy = policyFunc(func(req call.Request, tool *call.Tool, args map[string]any) call.Decision {
					if req.Tool != "read" || tool.Name != "read" || !reflect.DeepEqual(args, map[string]any{"a": json.Number("1")}) {
						t.Errorf("judged %v %v %v", req, tool, args)
					}
					return c.decision
				})
			})
			res, err := r.call("read", `{"a":1}`)
			r.wantRefused(t, res, err, "channel", "deny read", c.says)
			if l := r.rec.all()[0]; l.Decision != c.verdict || !strings.Contains(text(res), l.Reason) {
				t.Errorf("%+v", l)
			}
			if r.runs() != 0 {
				t.Error("it ran")
			}
		})
	}
}

func TestCallLimit(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Limits.Calls = 2 })
	for range 2 {
		_, _ = r.call("none", "")    // a refused call is not counted
		_, _ = r.call("read", `bad`) // nor is this one
		if res, err := r.call("read", ""); err != nil || res.IsError {
			t.Fatalf("%v %v", res, err)
		}
	}
	for range 3 {
		res, err := r.call("read", "")
		r.wantRefused(t, res, err, "limits", "calls", "number of tool calls")
	}
	if r.runs() != 2 {
		t.Errorf("%d ran", r.runs())
	}
}

func TestConcurrentLimit(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Limits.Concurrent = 2 })
	started, release := make(chan struct{}), make(chan struct{})
	r.tool("slow", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		started <- struct{}{}
		<-release
		return call.Text("ran"), nil
	})
	done := make(chan struct{})
	for range 2 {
		go func() {
			_, _ = r.call("slow", "")
			done <- struct{}{}
		}()
		within(t, started, "start")
	}
	if !r.Busy() {
		t.Error("not busy")
	}
	res, err := r.call("read", "")
	r.wantRefused(t, res, err, "limits", "concurrent", "too many calls at once")
	close(release)
	within(t, done, "end")
	if res, err := r.call("read", ""); err != nil || res.IsError {
		t.Errorf("a place is free again: %v %v", res, err)
	}
	within(t, done, "end")
	if r.Busy() {
		t.Error("busy")
	}
}

// Promise 2: a line that can't be written is a call that does not run.
func TestNoRecordNoRun(t *testing.T) {
	for _, name := range []string{"read", "write", "wreck"} {
		r := newRig(t, limited(Limits{Concurrent: 1}, map[string]Limits{name: {Concurrent: 1}}))
		r.rec.before = func(audit.Record) error { return errDisk }
		res, err := r.call(name, `{}`)
		if err != nil || !res.IsError || text(res) != "the call was not run: its audit record could not be written" {
			t.Errorf("%s: %v %v", name, res, err)
		}
		if r.runs() != 0 || len(r.rec.all()) != 0 {
			t.Errorf("%s: ran %q, record %s", name, r.ran, r.rec.kinds())
		}
		if len(r.incomplete) != 1 || !errors.Is(r.incomplete[0], errDisk) {
			t.Errorf("%s: told %v", name, r.incomplete)
		}
		if r.Busy() {
			t.Error("busy")
		}
		r.rec.before = nil
		if res, _ := r.call(name, `{}`); res.IsError {
			t.Errorf("%s: %v, although the disk has room again", name, res)
		}
	}
}

func TestNoRecordNoResult(t *testing.T) {
	r := newRig(t)
	r.tool("write", call.Write, func(context.Context, call.Invocation) (call.Result, error) { return call.Text("the result"), nil })
	r.rec.before = func(x audit.Record) error {
		if x.Kind == audit.End {
			return errDisk
		}
		return nil
	}
	res, err := r.call("write", `{}`)
	if err != nil || !res.IsError || !strings.Contains(text(res), "the tool ran, but its result is withheld") || strings.Contains(text(res), "the result\"") {
		t.Errorf("%v %v", res, err)
	}
	if len(res.Content) != 1 || r.runs() != 1 || len(r.incomplete) != 1 || !errors.Is(r.incomplete[0], errDisk) {
		t.Errorf("%v, told %v", res, r.incomplete)
	}
}

func TestRefusalWithoutARecordIsStillARefusal(t *testing.T) {
	r := newRig(t)
	r.rec.before = func(audit.Record) error { return errDisk }
	_, err := r.call("none", "")
	if _, ok := errors.AsType[*call.NotAvailable](err); !ok || len(r.incomplete) != 1 {
		t.Errorf("%v, told %v", err, r.incomplete)
	}
}

// A tool that appends a line itself, or ends the run from inside, is a caller
// like any other: nothing is locked while it runs.
func TestToolsMayCallTheGate(t *testing.T) {
	r := newRig(t)
	r.tool("outer", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		return r.call("read", `{"from":"inside"}`)
	})
	if res, err := r.call("outer", ""); err != nil || text(res) != "ran" {
		t.Errorf("%v %v", res, err)
	}
	if got := r.rec.kinds(); got != "begin begin end:ok end:ok" {
		t.Error(got)
	}
}

func TestField35_48_ArgumentsChangeNothing(t *testing.T) {
	for _, args := range []string{
		`{"query":"x","workspace_id":"ws-B"}`, `{"workspace":"ws-B","channel":"other","user":"root","agent":"admin","run":"r2"}`,
		`{"Binding":{"Workspace":"ws-B"}}`, `{"path":"a","allowed_tools":["*"]}`, `{"_meta":{"channel":"x","allowed_tools":["*"]}}`,
		" {\n\"n\" : 9007199254740993 , \"z\":1.0,\"a\":\"\\u0061<&>\u2028\" }\t", `{"__proto__":{"scope":"*"}}`,
	} {
		r := newRig(t)
		r.tools["read"].Run = func(_ context.Context, inv call.Invocation) (call.Result, error) {
			if inv.Binding != binding {
				t.Errorf("%s: the binding is %+v", args, inv.Binding)
			}
			if string(inv.Arguments) != args {
				t.Errorf("the tool got %q, want %q", inv.Arguments, args)
			}
			return call.Text("ran"), nil
		}
		if res, err := r.call("read", args); err != nil || res.IsError {
			t.Errorf("%s: %v %v", args, res, err)
		}
		// It changes nothing, and it is on record.
		if l := r.rec.all()[0]; string(l.Arguments) != args || l.ArgumentsDigest != call.Digest([]byte(args)) {
			t.Errorf("the record has %s", l.Arguments)
		}
		if _, err := r.call("none", ""); err == nil {
			t.Errorf("%s: widened the scope", args)
		}
	}
	// No arguments are an empty object to the tool and nothing in the record.
	r := newRig(t)
	r.tools["read"].Run = func(_ context.Context, inv call.Invocation) (call.Result, error) {
		return call.Text(string(inv.Arguments)), nil
	}
	if res, err := r.call("read", ""); err != nil || text(res) != "{}" {
		t.Errorf("%v %v", res, err)
	}
	if l := r.rec.all()[0]; l.Arguments != nil || l.ArgumentsDigest != "" || l.ArgumentsSize != 0 {
		t.Errorf("%+v", l)
	}
}

// One record per attempt, with the tool as it was sent and what came of it.
func TestField52_EveryAttemptIsOnRecord(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.cfg.Limits.Calls = 4
		r.cfg.Policy = policyFunc(func(req call.Request, _ *call.Tool, _ map[string]any) call.Decision {
			if req.Tool == "wreck" {
				return call.Decision{Verdict: call.Deny, Layer: "channel", Rule: "deny wreck", Reason: "no"}
			}
			return allowed()
		})
	})
	r.tool("fails", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		return call.Result{}, errors.New("upstream went away")
	})
	r.tool("panics", call.Read, func(context.Context, call.Invocation) (call.Result, error) { panic("x") })
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx        context.Context
		tool, args string
		want       string
	}{
		{context.Background(), "read", `{}`, "begin end:ok"},
		{context.Background(), "execute_command", `{"cmd":"ls"}`, "refused"},
		{context.Background(), "wreck", `{}`, "refused"},
		{context.Background(), "read", `{"a":1,"a":2}`, "refused"},
		{context.Background(), "fails", ``, "begin end:error"},
		{context.Background(), "panics", ``, "begin end:panic"},
		{gone, "write", ``, "begin end:cancelled"},
		{context.Background(), "read", ``, "refused"}, // over the limit
	} {
		r.rec.lines = nil
		_, _ = r.Call(c.ctx, request(c.tool, c.args))
		if got := r.rec.kinds(); got != c.want {
			t.Errorf("%s %s: record %q, want %q", c.tool, c.args, got, c.want)
		}
		for _, l := range r.rec.all() {
			if l.Tool != c.tool || l.Kind != audit.End && (l.Origin != "endpoint" || l.Decision == "" || l.Layer == "") {
				t.Errorf("%s: %+v", c.tool, l)
			}
		}
	}
}

// An agent that is refused over and over leaves a line each time, and after
// the first thousand no longer what it sent.
func TestManyRefusals(t *testing.T) {
	r := newRig(t)
	for range maxWholeRefusals + 1 {
		if _, err := r.call("no_such_tool", `{"a":1}`); err == nil {
			t.Fatal("not refused")
		}
	}
	lines := r.rec.all()
	if len(lines) != maxWholeRefusals+1 {
		t.Fatalf("%d lines", len(lines))
	}
	last := lines[maxWholeRefusals]
	if lines[maxWholeRefusals-1].Arguments == nil || last.Arguments != nil || last.ArgumentsDigest == "" || last.ArgumentsSize != 7 {
		t.Errorf("the last lines are %+v and %+v", lines[maxWholeRefusals-1], last)
	}
}
