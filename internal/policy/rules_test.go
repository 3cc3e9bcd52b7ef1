package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// byKey is a condition that applies where an argument says so: true, false or
// an error.
type byKey string

var errKey = errors.New("s3cr3t")

func (k byKey) Eval(in *Input) (bool, error) {
	switch v := in.Args[string(k)].(type) {
	case bool:
		return v, nil
	case nil:
		return false, errKey
	}
	return false, words("no")
}

type words string

func (w words) Error() string  { return "private " + string(w) }
func (w words) Public() string { return string(w) }

var (
	ruleGen = rapid.Custom(func(t *rapid.T) Rule {
		r := Rule{Then: rapid.SampledFrom([]call.Verdict{call.Ask, call.Deny}).Draw(t, "then"), At: "f:1"}
		if rapid.Bool().Draw(t, "hasTools") {
			r.Tools = patterns(t, globs.Draw(t, "tools")...)
		}
		if rapid.Bool().Draw(t, "hasWhen") {
			k := rapid.SampledFrom([]byKey{"x", "y"}).Draw(t, "key")
			r.When, r.Text = k, string(k)
		}
		return r
	})
	ruledGen = rapid.Custom(func(t *rapid.T) Layer {
		l := layerGen.Draw(t, "layer")
		l.Rules = rapid.SliceOfN(ruleGen, 0, 3).Draw(t, "rules")
		l.Limits = Limits{Calls: rapid.Int64Range(0, 3).Draw(t, "calls"), Wall: time.Duration(rapid.IntRange(0, 3).Draw(t, "wall")), Budget: float64(rapid.IntRange(0, 3).Draw(t, "budget")) / 4}
		return l
	})
	argsGen = rapid.Custom(func(t *rapid.T) map[string]any {
		m := map[string]any{}
		for _, k := range []string{"x", "y"} {
			switch rapid.IntRange(0, 3).Draw(t, k) {
			case 0:
				m[k] = true
			case 1:
				m[k] = false
			case 2:
				m[k] = "no truth value"
			}
		}
		return m
	})
	policyGen = rapid.Custom(func(t *rapid.T) []Layer {
		a := agentGen.Draw(t, "agent")
		a.Rules = rapid.SliceOfN(ruleGen, 0, 2).Draw(t, "agent's rules")
		return append([]Layer{a}, rapid.SliceOfN(ruledGen, 0, 3).Draw(t, "later")...)
	})
)

func judge(p *Policy, name string, args map[string]any) call.Decision {
	return p.Decide(call.Request{Tool: name}, &call.Tool{Name: name}, args)
}

func TestAddingALayerOrRuleNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args := policyGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args")
		more := slices.Clone(layers)
		if rapid.Bool().Draw(t, "rule") {
			i := rapid.IntRange(0, len(more)-1).Draw(t, "at")
			more[i] = more[i].clone()
			more[i].Rules = slices.Insert(more[i].Rules, rapid.IntRange(0, len(more[i].Rules)).Draw(t, "rule at"), ruleGen.Draw(t, "rule"))
		} else {
			more = slices.Insert(more, rapid.IntRange(1, len(more)).Draw(t, "at"), ruledGen.Draw(t, "more"))
		}
		before, after := judge(New(layers...), name, args), judge(New(more...), name, args)
		if stricter(before.Verdict, after.Verdict) {
			t.Fatalf("%s was %+v and is %+v", name, before, after)
		}
		b, a := New(layers...).Limits(), New(more...).Limits()
		if b.Calls > 0 && (a.Calls == 0 || a.Calls > b.Calls) || b.Wall > 0 && (a.Wall == 0 || a.Wall > b.Wall) || b.Budget > 0 && (a.Budget == 0 || a.Budget > b.Budget) {
			t.Fatalf("limits %+v became %+v", b, a)
		}
	})
}

func TestOrderOfLayersAndRulesMeansNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args := policyGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		other := slices.Clone(layers)
		r.Shuffle(len(other)-1, func(i, j int) { other[i+1], other[j+1] = other[j+1], other[i+1] })
		for i := range other {
			other[i] = other[i].clone()
			rs := other[i].Rules
			r.Shuffle(len(rs), func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
		}
		// A rule means the same in whatever layer it stands.
		if k := len(other) - 1; k > 0 {
			other[0].Rules, other[k].Rules = other[k].Rules, other[0].Rules
		}
		if a, b := judge(New(layers...), name, args).Verdict, judge(New(other...), name, args).Verdict; a != b {
			t.Fatalf("%s: %s in one order and %s in another", name, a, b)
		}
		if a, b := New(layers...).Limits(), New(other...).Limits(); a != b {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func TestExplainIsWhatIsDecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args := policyGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args")
		p := New(layers...)
		e, d := p.Explain(name), judge(p, name, args)
		switch {
		case e.Decision.Layer == "" || d.Layer == "" || d.Layer == RulesLayer && d.Rule == "":
			t.Fatalf("no layer: %+v %+v", e, d)
		case stricter(e.Decision.Verdict, d.Verdict):
			t.Fatalf("explained as %+v, decided %+v", e.Decision, d)
		case len(e.Depends) == 0 && e.Decision.Verdict != d.Verdict:
			t.Fatalf("nothing depends on arguments: explained as %+v, decided %+v", e.Decision, d)
		case (d.Verdict == call.Allow) != (d.Reason == ""):
			t.Fatalf("%+v", d)
		case e.Decision.Verdict == call.Deny && len(e.Depends) > 0:
			t.Fatalf("%+v depends", e)
		}
	})
}

func TestRulesSayWhatAndWhere(t *testing.T) {
	p := New(Layer{Name: "agent", Allow: []Pattern{pattern(t, "*").At("f:3")}, Rules: []Rule{
		{Tools: patterns(t, "a"), When: byKey("x"), Text: "args.x", Then: call.Deny, Reason: "not in x", At: "f:7"},
		{Tools: patterns(t, "b"), Then: call.Ask, At: "f:8"},
		{Tools: patterns(t, "c"), When: byKey("y"), Text: "args.y", Then: "allow", At: "f:9"}, // nothing lets a rule widen
	}})
	for _, c := range []struct {
		tool string
		args map[string]any
		want call.Decision
	}{
		{"a", map[string]any{"x": false}, call.Decision{Verdict: call.Allow, Layer: "agent", Rule: "allow * (f:3)"}},
		{"a", map[string]any{"x": true}, call.Decision{Verdict: call.Deny, Layer: "rules", Rule: "deny when args.x (f:7)", Reason: "not in x"}},
		{"a", nil, call.Decision{Verdict: call.Deny, Layer: "rules", Rule: "deny when args.x (f:7): can't be judged", Reason: "a rule of the policy can't be judged with these arguments, so the call is denied"}},
		{"a", map[string]any{"x": 1}, call.Decision{Verdict: call.Deny, Layer: "rules", Rule: "deny when args.x (f:7): can't be judged", Reason: "a rule of the policy can't be judged with these arguments, so the call is denied: no"}},
		{"b", nil, call.Decision{Verdict: call.Ask, Layer: "rules", Rule: "ask (f:8)", Reason: "a rule of the policy asks a person before this call"}},
		{"c", map[string]any{"y": true}, call.Decision{Verdict: call.Deny, Layer: "rules", Rule: "allow when args.y (f:9)", Reason: "a rule of the policy does not allow this call"}},
	} {
		if d := judge(p, c.tool, c.args); d != c.want {
			t.Errorf("%s %v:\n got %+v\nwant %+v", c.tool, c.args, d, c.want)
		}
	}
	if got := p.Asks([]string{"a", "b", "c"}); !slices.Equal(got, []string{"b"}) {
		t.Errorf("asks about %q", got)
	}
}

// Of rules that are equally strict the first is named, and one that can't be
// judged denies, whatever it would have said.
func TestWhichRuleDecides(t *testing.T) {
	p := New(Layer{Name: "agent", Allow: patterns(t, "*"), Rules: []Rule{
		{Tools: patterns(t, "a", "b"), Then: call.Ask, At: "f:1"},
		{Tools: patterns(t, "a"), Then: call.Ask, At: "f:2"},
		{Tools: patterns(t, "b"), Then: call.Deny, At: "f:3"},
		{Tools: patterns(t, "b"), Then: call.Ask, At: "f:4"},
		{Tools: patterns(t, "c"), When: byKey("x"), Text: "x", Then: call.Ask, At: "f:5"},
	}})
	for name, want := range map[string]string{"a": "ask ask (f:1)", "b": "deny deny (f:3)", "c": "deny ask when x (f:5): can't be judged"} {
		if d := judge(p, name, nil); string(d.Verdict)+" "+d.Rule != want {
			t.Errorf("%s: %s %s, want %s", name, d.Verdict, d.Rule, want)
		}
	}
	if e := p.Explain("a"); e.Decision.Rule != "ask (f:1)" || len(e.Depends) != 0 {
		t.Errorf("%+v", e)
	}
	if e := p.Explain("c"); e.Decision.Verdict != call.Allow || len(e.Depends) != 1 || e.Depends[0].At != "f:5" {
		t.Errorf("%+v", e)
	}
}

func TestRulesSeeTheBinding(t *testing.T) {
	var got Input
	p := New(Layer{Name: "agent", Allow: patterns(t, "a"), Rules: []Rule{{When: seen(func(in *Input) { got = *in }), Then: call.Deny}}})
	b := call.Binding{Run: "r", Workspace: "w", Channel: "c", User: "u", Agent: "x"}
	args := map[string]any{"k": "v"}
	judge(p.Bound(b, nil), "a", args)
	if want := (Input{Tool: "a", Args: args, Binding: b, Mode: "act"}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

type seen func(*Input)

func (f seen) Eval(in *Input) (bool, error) { f(in); return false, nil }

func TestToolLimits(t *testing.T) {
	p := New(
		Layer{Name: "agent", Limits: Limits{Calls: 10, Output: 5}, ToolLimits: []ToolLimits{{pattern(t, "a*"), Limits{Calls: 5}}, {pattern(t, "ab"), Limits{Calls: 3, Total: 9}}}},
		Layer{Name: "channel", Limits: Limits{Calls: 20, Output: 4}, ToolLimits: []ToolLimits{{pattern(t, "*"), Limits{Call: time.Second}}}},
	)
	if got := p.Limits(); got != (Limits{Calls: 10, Output: 4}) {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]Limits{"ab": {Calls: 3, Total: 9, Call: time.Second}, "ac": {Calls: 5, Call: time.Second}, "b": {Call: time.Second}, "u/a": {}} {
		if got := p.ToolLimits(name); got != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDigestOfRulesAndLimits(t *testing.T) {
	r := Rule{Tools: patterns(t, "a"), When: byKey("x"), Text: "x", Then: call.Deny, At: "f:1"}
	change := func(f func(*Rule)) Layer { q := r; f(&q); return Layer{Name: "agent", Rules: []Rule{q}} }
	seen := map[string]int{}
	for i, l := range []Layer{
		{Name: "agent"}, {Name: "agent", Rules: []Rule{r}}, {Name: "agent", Rules: []Rule{r, r}},
		change(func(r *Rule) { r.Tools = nil }), change(func(r *Rule) { r.Tools = []Pattern{} }), change(func(r *Rule) { r.When, r.Text = nil, "" }),
		change(func(r *Rule) { r.Text = "y" }), change(func(r *Rule) { r.Then = call.Ask }), change(func(r *Rule) { r.Reason = "z" }),
		{Name: "agent", Limits: Limits{Calls: 1}}, {Name: "agent", Limits: Limits{Wall: 1}}, {Name: "agent", ToolLimits: []ToolLimits{{pattern(t, "a"), Limits{Calls: 1}}}},
	} {
		d := New(l).Digest()
		if j, dup := seen[d]; dup {
			t.Errorf("policies %d and %d have one digest", i, j)
		}
		seen[d] = i
	}
	moved := change(func(r *Rule) { r.At = "f:99" })
	if New(moved).Digest() != New(Layer{Name: "agent", Rules: []Rule{r}}).Digest() {
		t.Error("the place of a rule changes the digest")
	}
}

// bench is a policy of four layers, 20 rules and 200 tools.
func bench() (*Policy, []*call.Tool) {
	var layers []Layer
	var tools []*call.Tool
	for i := range 200 {
		tools = append(tools, &call.Tool{Name: fmt.Sprintf("tool_number_%d", i)})
	}
	for k, name := range []string{"agent", "workspace", "channel", "run"} {
		l := Layer{Name: name}
		for i := range 200 {
			p, _ := ParsePattern(fmt.Sprintf("tool_number_%d", i))
			l.Allow = append(l.Allow, p)
		}
		for i := range 5 {
			p, _ := ParsePattern(fmt.Sprintf("tool_*_%d*", k*5+i))
			l.Rules = append(l.Rules, Rule{Tools: []Pattern{p}, When: byKey("x"), Text: "x", Then: call.Deny})
		}
		layers = append(layers, l)
	}
	return New(layers...), tools
}

func BenchmarkDecide(b *testing.B) {
	p, tools := bench()
	args := map[string]any{"x": false, "cmd": "ls"}
	i := 0
	for b.Loop() {
		if d := p.Decide(call.Request{}, tools[i%len(tools)], args); d.Verdict != call.Allow {
			b.Fatal(d)
		}
		i++
	}
}

func BenchmarkExplain1000(b *testing.B) {
	var names []string
	l := Layer{Name: "agent"}
	for i := range 1000 {
		names = append(names, fmt.Sprintf("tool_number_%d", i))
		p, _ := ParsePattern(names[i])
		l.Allow = append(l.Allow, p)
	}
	for b.Loop() {
		p := New(l, l, l, l)
		for _, n := range names {
			if e := p.Explain(n); e.Decision.Verdict != call.Allow {
				b.Fatal(e)
			}
		}
	}
}

func TestLongRulesAreCut(t *testing.T) {
	r := Rule{Text: strings.Repeat("x", 10_000), Then: call.Deny, When: byKey("x")}
	if d := r.decision(); len(d.Rule) > 400 {
		t.Errorf("%d bytes", len(d.Rule))
	}
}
