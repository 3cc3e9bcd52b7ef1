package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// recorded writes a record and reads it again.
func recorded(t *testing.T, run audit.Run, lines ...audit.Record) *Record {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	run.Version = audit.Version
	log, err := audit.Create(path, run, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if _, err := log.Append(l, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Close(audit.Record{}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := ReadRecord(f)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// begin is the first line of a call whose arguments are recorded as they were sent.
func begin(tool string, effects call.Effects, verdict call.Verdict, layer, args string) audit.Record {
	r := audit.Record{Kind: audit.Begin, Tool: tool, Effects: string(effects), Decision: string(verdict), Layer: layer, Rule: "r", ArgumentsSize: len(args)}
	if args != "" {
		r.Arguments, r.ArgumentsDigest = []byte(args), digest(args)
	}
	return r
}

func refused(tool string, effects call.Effects, layer, args string) audit.Record {
	r := begin(tool, effects, call.Deny, layer, args)
	r.Kind = audit.Refused
	return r
}

// plannedRun is one in which a write is refused, a first plan too, a second one
// is approved, and then the write is asked about and denied, and asked about and
// approved.
func plannedRun(t *testing.T) *Record {
	return recorded(t, audit.Run{ID: "r", Agent: "g", Mode: Plan, Scope: []string{"look", "write", "wipe", PlanTool}},
		refused("write", call.Write, ModeLayer, `{"x":true}`), // line 2
		begin(PlanTool, call.Read, call.Ask, ModeLayer, `{"plan":"1"}`),
		audit.Record{Kind: audit.Answer, Call: 3, Tool: PlanTool, Decision: "deny"},
		audit.Record{Kind: audit.End, Call: 3, Tool: PlanTool, Outcome: audit.Denied},
		begin("look", call.Read, call.Allow, "agent", ""), // 6
		audit.Record{Kind: audit.End, Call: 6, Tool: "look", Outcome: audit.OK},
		audit.Record{Kind: audit.Note, What: "ready"},
		begin(PlanTool, call.Read, call.Ask, ModeLayer, `{"plan":"2"}`), // 9
		audit.Record{Kind: audit.Answer, Call: 9, Tool: PlanTool, Decision: "allow"},
		audit.Record{Kind: audit.Note, What: ModeNote, Detail: "act"},
		audit.Record{Kind: audit.End, Call: 9, Tool: PlanTool, Outcome: audit.OK},
		begin("write", call.Write, call.Ask, RulesLayer, `{"x":true}`), // 13
		begin("write", call.Write, call.Ask, RulesLayer, `{"x":true}`), // 14
		audit.Record{Kind: audit.Answer, Call: 14, Tool: "write", Decision: "allow"},
		audit.Record{Kind: audit.End, Call: 13, Tool: "write", Outcome: audit.Denied},
		audit.Record{Kind: audit.End, Call: 14, Tool: "write", Outcome: audit.OK},
		refused(PlanTool, call.Read, ModeLayer, `{"plan":"3"}`), // 18
		refused("none", "", "scope", ""),
		refused("look", call.Read, "limits", ""),
		refused("look", call.Read, "arguments", ""),
		audit.Record{Kind: audit.End, Call: 77, Tool: "look", Outcome: audit.Denied}, // of no call
	)
}

// plannedPolicy is the policy plannedRun was made under.
func plannedPolicy(t *testing.T) *Policy {
	return New(Layer{Name: "agent", Allow: patterns(t, "look", "write", "wipe"), Plan: true, Rules: []Rule{
		{Tools: patterns(t, "write"), When: byKey("x"), Text: "x", Then: call.Ask},
	}})
}

func TestReadRecordOfARunThatAsks(t *testing.T) {
	rec := plannedRun(t)
	type brief struct {
		line    int64
		tool    string
		mode    string
		verdict call.Verdict
		refused bool
	}
	var got []brief
	for _, c := range rec.Calls {
		got = append(got, brief{c.Line, c.Tool, c.Mode, c.Verdict, c.Refused})
	}
	want := []brief{
		{2, "write", Plan, call.Deny, true}, {3, PlanTool, Plan, call.Ask, true}, {6, "look", Plan, call.Allow, false},
		{9, PlanTool, Plan, call.Ask, false}, {13, "write", Act, call.Ask, true}, {14, "write", Act, call.Ask, false},
		{18, PlanTool, Act, call.Deny, true}, {19, "none", Act, call.Deny, true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if rec.Other != 2 || rec.Run.Mode != Plan || rec.Run.ID != "r" {
		t.Errorf("%d others, run %+v", rec.Other, rec.Run)
	}
	if c := rec.Calls[0]; c.Effects != call.Write || c.Layer != ModeLayer || c.Rule != "r" || !reflect.DeepEqual(c.Args, map[string]any{"x": true}) {
		t.Errorf("%+v", c)
	}
	if c := rec.Calls[2]; !reflect.DeepEqual(c.Args, map[string]any{}) {
		t.Errorf("no arguments are %v", c.Args)
	}
}

// Only what stands in the record as it was sent is arguments.
func TestReadRecordTrustsTheDigest(t *testing.T) {
	masked, absent := begin("a", call.Read, call.Allow, "agent", `{"k":"[masked]"}`), begin("a", call.Read, call.Allow, "agent", `{"k":1}`)
	masked.ArgumentsDigest, absent.Arguments = digest(`{"k":"secret"}`), nil
	acting := recorded(t, audit.Run{Mode: Act}, masked, absent, begin("a", call.Read, call.Allow, "agent", `{"k":true}`),
		audit.Record{Kind: audit.End, Call: 77, Tool: "a", Outcome: audit.Denied}) // of no call
	if c := acting.Calls; c[0].Args != nil || c[1].Args != nil || c[2].Args["k"] != true {
		t.Errorf("%+v", c)
	}
	for _, c := range acting.Calls {
		if c.Mode != Act || c.Refused {
			t.Errorf("%+v", c)
		}
	}
}

// Lines of other kinds are no calls, and turn no mode, whatever they say.
func TestReadRecordGoesByTheKind(t *testing.T) {
	rec := recorded(t, audit.Run{ID: "r", Mode: Plan},
		audit.Record{Kind: audit.Early, What: ModeNote},
		audit.Record{Kind: audit.Answer, Call: 1, Tool: "a", Layer: RulesLayer, Decision: "deny"},
		audit.Record{Kind: audit.Note, What: "notice", Layer: scopeLayer},
		begin("a", call.Read, call.Allow, "agent", ""),
	)
	if len(rec.Calls) != 1 || rec.Calls[0].Mode != Plan || rec.Other != 0 || rec.Run.ID != "r" {
		t.Errorf("%+v", rec)
	}
}

// What a record does not hold can't be decided again, and is said to be so.
func TestReplayTellsWhatItCant(t *testing.T) {
	masked := begin("a", call.Read, call.Allow, "agent", `{"x":"[masked]"}`)
	masked.ArgumentsDigest = digest(`{"x":"secret"}`)
	lines := []audit.Record{masked, refused("other", "", scopeLayer, ""), refused("b", "", scopeLayer, "")}
	rule := func(r ...Rule) *Policy { return New(Layer{Name: "agent", Allow: patterns(t, "a", "other"), Rules: r}) }
	depends, denies := Rule{Tools: patterns(t, "a"), When: byKey("x"), Then: call.Deny}, Rule{Tools: patterns(t, "a"), Then: call.Deny}
	for name, c := range map[string]struct {
		level string
		p     *Policy
		tools []string
		want  []string // tool and what is said of it
	}{
		"a rule on arguments":  {"sealed", rule(depends), []string{"a", "b"}, []string{"a: a rule looks at the arguments, and the record does not hold them as they were sent"}},
		"a rule without":       {"sealed", rule(denies), []string{"a", "b"}, []string{"a: deny"}},
		"no rule":              {"sealed", rule(), []string{"a", "b"}, nil},
		"out of every scope":   {"sealed", New(Layer{Name: "agent"}), []string{"a", "b"}, []string{"a: deny"}},
		"an embedder's tool":   {"embedded", rule(), []string{"a", "b"}, []string{"other: no tool of that name is known here, and the policy would allow one"}},
		"one not granted":      {"embedded", New(Layer{Name: "agent", Allow: patterns(t, "a")}), []string{"a", "b"}, nil},
		"a tool that is known": {"sealed", rule(), []string{"a", "b", "other"}, []string{"other: allow"}},
		"granted now":          {"sealed", New(Layer{Name: "agent", Allow: patterns(t, "*")}), []string{"a", "b"}, []string{"b: allow"}},
	} {
		var got []string
		for _, d := range c.p.Replay(recorded(t, audit.Run{Mode: Act, Level: c.level}, lines...), c.tools) {
			said := d.Undecidable
			if said == "" {
				said = string(d.Now.Verdict)
			}
			got = append(got, d.Tool+": "+said)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestReadRecordOfNoRecord(t *testing.T) {
	if rec, err := ReadRecord(strings.NewReader("{}\n{}\n")); err == nil {
		t.Errorf("%+v", rec)
	}
}

func TestReplayOfPlanMode(t *testing.T) {
	rec, tools := plannedRun(t), []string{"look", "write", "wipe"}
	lines := func(p *Policy) (l []int64) {
		for _, d := range p.Replay(rec, tools) {
			l = append(l, d.Line)
		}
		return l
	}
	if got := lines(plannedPolicy(t)); len(got) != 0 {
		t.Errorf("under its own policy lines %v differ", got)
	}
	// Without plan mode the first write is only asked about, and no plan is.
	acting := plannedPolicy(t).layers[0]
	acting.Plan = false
	if got := lines(New(acting)); !slices.Equal(got, []int64{2, 3, 9}) {
		t.Errorf("without plan mode lines %v differ", got)
	}
	// Nobody is asked any more.
	free := plannedPolicy(t).layers[0]
	free.Rules = nil
	if got := lines(New(free)); !slices.Equal(got, []int64{13, 14}) {
		t.Errorf("without the rule lines %v differ", got)
	}
	// A run that began to act has no moment at which its plan was approved.
	acted := recorded(t, audit.Run{Mode: Act},
		begin("look", call.Read, call.Allow, "agent", ""),
		begin("write", call.Write, call.Allow, "agent", `{"x":false}`),
		audit.Record{Kind: audit.Note, What: ModeNote},
		begin("write", call.Write, call.Allow, "agent", `{"x":false}`),
	)
	d := plannedPolicy(t).Replay(acted, tools)
	if len(d) != 2 || d[0].Tool != "write" || d[0].Now.Layer != ModeLayer || d[1].Now.Layer != ModeLayer || d[0].Undecidable != "" {
		t.Errorf("%+v", d)
	}
}

func TestSuggestOfARunThatAsks(t *testing.T) {
	got := Suggest(plannedRun(t))
	want := Suggestion{
		Allow: []string{"look"}, Asked: []string{"write"}, Unused: []string{"wipe"},
		Refused: map[string]int{"write": 2, "none": 1}, ByRules: 1,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// What ran unasked in one run needs no asking for the other's sake.
	other := recorded(t, audit.Run{Mode: Act, Scope: []string{"write"}},
		begin("write", call.Write, call.Allow, "agent", ""), refused("look", call.Read, RulesLayer, `{}`))
	got = Suggest(plannedRun(t), other)
	if !slices.Equal(got.Allow, []string{"look", "write"}) || len(got.Asked) != 0 || !slices.Equal(got.Unused, []string{"wipe"}) || got.ByRules != 2 {
		t.Errorf("%+v", got)
	}
	// An embedder's tool of that name is a tool, and the lists are sorted.
	many := recorded(t, audit.Run{Mode: Act, Scope: []string{"z", "y", "c", "b"}},
		begin(PlanTool, call.Read, call.Allow, "agent", ""), begin("c", call.Read, call.Ask, RulesLayer, ""), begin("b", call.Read, call.Ask, RulesLayer, ""),
		begin("a", call.Read, call.Allow, "agent", ""), begin("e", call.Read, call.Ask, RulesLayer, ""), begin("d", call.Read, call.Ask, RulesLayer, ""))
	for range 10 { // the order of a map
		got = Suggest(many)
		if !slices.Equal(got.Allow, []string{"a", PlanTool}) || !slices.Equal(got.Asked, []string{"b", "c", "d", "e"}) || !slices.Equal(got.Unused, []string{"y", "z"}) {
			t.Errorf("%+v", got)
		}
	}
	if got := Suggest(); got.Allow == nil || len(got.Allow)+len(got.Asked)+len(got.Unused)+len(got.Refused) > 0 {
		t.Errorf("of nothing: %+v", got)
	}
}

// For any policy, and any run under it that may plan and ask: its own policy
// decides everything again as it did, and so does the least scope of it.
func TestSuggestedIsDecidedAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := plannedGen.Draw(t, "layers")
		mode := ""
		p := New(layers...).Bound(call.Binding{}, func() string { return mode })
		began, _ := p.Mode()
		rec := &Record{Run: audit.Run{Mode: began}}
		var names []string
		effects := map[string]call.Effects{PlanTool: call.Read}
		for i := range rapid.IntRange(1, 8).Draw(t, "calls") {
			if began == Plan && mode == "" && rapid.IntRange(0, 4).Draw(t, "approved") == 0 {
				mode = Act
			}
			name := nameGen.Draw(t, "name")
			if began == Plan && rapid.IntRange(0, 3).Draw(t, "plan") == 0 {
				name = PlanTool
			} else {
				names = append(names, name)
			}
			if effects[name] == "" {
				effects[name] = rapid.SampledFrom([]call.Effects{call.Read, call.Write}).Draw(t, "effects")
			}
			now := began
			if mode != "" {
				now = mode
			}
			c := Recorded{Line: int64(i + 2), Tool: name, Effects: effects[name], Mode: now, Args: argsGen.Draw(t, "args")}
			if p.InScope(name) {
				d := judgeAs(p, name, c.Effects, c.Args)
				c.Verdict, c.Layer, c.Refused = d.Verdict, d.Layer, d.Verdict == call.Deny || d.Verdict == call.Ask && rapid.Bool().Draw(t, "no")
			} else {
				c.Verdict, c.Layer, c.Refused = call.Deny, scopeLayer, true
			}
			rec.Calls = append(rec.Calls, c)
		}
		if d := p.Replay(rec, names); len(d) > 0 {
			t.Fatalf("under its own policy: %+v", d)
		}
		s := Suggest(rec)
		least := Layer{Name: "agent", Plan: began == Plan}
		for _, name := range slices.Concat(s.Allow, s.Asked) {
			if name == PlanTool {
				t.Fatal("a list can't grant submit_plan")
			}
			least.Allow = append(least.Allow, pattern(t, name))
		}
		for _, l := range layers {
			least.Rules = append(least.Rules, l.Rules...)
		}
		if d := New(least).Replay(rec, names); len(d) > 0 {
			t.Fatalf("with %q, asked about %q: %+v", s.Allow, s.Asked, d)
		}
	})
}
