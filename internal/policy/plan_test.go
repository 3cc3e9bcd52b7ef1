package policy

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// in is a policy for a run that is in the mode now.
func in(mode string, layers ...Layer) *Policy {
	return New(layers...).Bound(call.Binding{}, func() string { return mode })
}

func judgeAs(p *Policy, name string, effects call.Effects, args map[string]any) call.Decision {
	return p.Decide(call.Request{Tool: name}, &call.Tool{Name: name, Effects: effects}, args)
}

func TestField50_PlanModeGoesByTheToolsOwnEffects(t *testing.T) {
	agent := Layer{Name: "agent", Allow: patterns(t, "a", "up/*"), Plan: true, PlanAt: "f:3"}
	refused := call.Decision{
		Verdict: call.Deny, Layer: "mode", Rule: "plan set by agent (f:3)",
		Reason: "this run is in plan mode, where only tools that read are run; put your plan before a person with the tool submit_plan, and call this again once the plan is approved",
	}
	granted := call.Decision{Verdict: call.Allow, Layer: "agent", Rule: "allow a"}
	for _, c := range []struct {
		mode    string
		effects call.Effects
		want    call.Decision
	}{
		{"", call.Read, granted},
		{"", call.Write, refused},
		{"", call.Destructive, refused},
		{"", "", refused},
		{"", "readonly", refused},
		{"", "READ", refused},
		{Plan, call.Read, granted},
		{Plan, call.Write, refused},
		{"ACT", call.Write, refused},
		{"bypass", call.Write, refused},
		{Act, call.Read, granted},
		{Act, call.Write, granted},
		{Act, call.Destructive, granted},
	} {
		// What a model sends has no say.
		for _, args := range []map[string]any{nil, {"mode": "act", "_meta": map[string]any{"mode": "act"}, "readOnlyHint": true, "plan": false}} {
			if d := judgeAs(in(c.mode, agent), "a", c.effects, args); d != c.want {
				t.Errorf("mode %q, effects %q, %v:\n got %+v\nwant %+v", c.mode, c.effects, args, d, c.want)
			}
		}
	}
	if d := judgeAs(in(Plan, agent), "up/note", call.Write, nil); d != refused {
		t.Errorf("an upstream's tool: %+v", d)
	}
	if d := judgeAs(in(Plan, agent), "b", call.Write, nil); d.Verdict != call.Deny || d.Layer != "agent" {
		t.Errorf("what no list grants: %+v", d)
	}
	if d := judgeAs(New(agent).Bound(call.Binding{}, nil), "a", call.Write, nil); d != refused {
		t.Errorf("without a word on the mode: %+v", d)
	}
}

func TestAnyLayerSetsPlanMode(t *testing.T) {
	for i, name := range []string{"agent", "workspace", "channel", "run"} {
		var layers []Layer
		for _, n := range []string{"agent", "workspace", "channel", "run"} {
			layers = append(layers, Layer{Name: n, Allow: patterns(t, "*")})
		}
		if mode, at := New(layers...).Mode(); mode != Act || at != "" {
			t.Errorf("%s %q without any", mode, at)
		}
		acting := New(layers...)
		layers[i].Plan = true
		p := New(layers...)
		if mode, at := p.Mode(); mode != Plan || at != name {
			t.Errorf("%s: %s set by %q", name, mode, at)
		}
		if d := judgeAs(p, "a", call.Write, nil); d.Verdict != call.Deny || d.Rule != "plan set by "+name {
			t.Errorf("%s: %+v", name, d)
		}
		if p.Digest() == acting.Digest() {
			t.Errorf("%s: plan mode is not in the digest", name)
		}
		layers[i].PlanAt = "f:9"
		moved := New(layers...)
		if _, at := moved.Mode(); at != name+" (f:9)" || moved.Digest() != p.Digest() {
			t.Errorf("%s: at %q, digest %s and %s", name, at, moved.Digest(), p.Digest())
		}
	}
	two := New(Layer{Name: "agent"}, Layer{Name: "workspace", Plan: true}, Layer{Name: "channel", Plan: true})
	if _, at := two.Mode(); at != "workspace" {
		t.Errorf("of two it names %q", at)
	}
}

// No list and no rule has a say about submit_plan: it asks a person while the
// run is in plan mode, is refused afterwards, and is nowhere else.
func TestThePlanTool(t *testing.T) {
	deny := Rule{Then: call.Deny, At: "f:1"}
	failing := Rule{When: byKey("x"), Then: call.Ask, At: "f:2"}
	for name, layers := range map[string][]Layer{
		"nothing listed":  {{Name: "agent", Plan: true}},
		"granted":         {{Name: "agent", Allow: patterns(t, "*", PlanTool), Plan: true}},
		"denied by name":  {{Name: "agent", Deny: patterns(t, PlanTool), Plan: true}},
		"denied with all": {{Name: "agent", Plan: true}, {Name: "channel", Allow: []Pattern{}, Deny: patterns(t, "*", "*/*")}},
		"denied by rules": {{Name: "agent", Allow: patterns(t, "*"), Rules: []Rule{deny, failing}}, {Name: "run", Plan: true, Rules: []Rule{deny}}},
	} {
		for mode, want := range map[string]call.Verdict{"": call.Ask, Plan: call.Ask, "else": call.Ask, Act: call.Deny} {
			p := in(mode, layers...)
			at := "plan set by agent"
			if name == "denied by rules" {
				at = "plan set by run"
			}
			d := judgeAs(p, PlanTool, call.Read, nil)
			if d.Verdict != want || d.Layer != ModeLayer || d.Rule != at || d.Reason == "" || !p.InScope(PlanTool) {
				t.Errorf("%s, mode %q: %+v, in scope %v", name, mode, d, p.InScope(PlanTool))
			}
			if mode == Act && d.Reason != "a plan was approved already; carry it out" {
				t.Errorf("%s: %q", name, d.Reason)
			}
			if e := p.Explain(PlanTool); e.Decision != d || len(e.Depends) != 0 {
				t.Errorf("%s, mode %q: decided %+v, explained as %+v", name, mode, d, e)
			}
		}
		for i := range layers {
			layers[i].Plan = false
		}
		p := New(layers...)
		if listed := name == "granted" || name == "denied by rules"; p.InScope(PlanTool) != listed {
			t.Errorf("%s: in the scope of a run that acts: %v", name, p.InScope(PlanTool))
		}
		if d, e := judgeAs(p, PlanTool, call.Read, nil), p.Explain(PlanTool); d.Layer == ModeLayer || e.Decision.Layer == ModeLayer {
			t.Errorf("%s: decided %+v, explained as %+v", name, d, e)
		}
	}
}

// A rule can tell the modes apart.
func TestRulesSeeTheMode(t *testing.T) {
	for mode, want := range map[string]string{"": Plan, Plan: Plan, Act: Act, "other": Plan} {
		got := ""
		p := in(mode, Layer{Name: "agent", Allow: patterns(t, "a"), Plan: true, Rules: []Rule{{When: seen(func(in *Input) { got = in.Mode }), Then: call.Deny}}})
		if d := judgeAs(p, "a", call.Read, nil); d.Verdict != call.Allow || got != want {
			t.Errorf("mode %q is seen as %q: %+v", mode, got, d)
		}
	}
	// In plan mode a rule still makes a reading tool stricter.
	p := in(Plan, Layer{Name: "agent", Allow: patterns(t, "a"), Plan: true, Rules: []Rule{{Then: call.Ask, At: "f:1"}}})
	if d := judgeAs(p, "a", call.Read, nil); d.Verdict != call.Ask || d.Layer != RulesLayer {
		t.Errorf("%+v", d)
	}
}

func TestAskAndPlanFromFlags(t *testing.T) {
	known := []string{"read_file", "write_file", "delete_file"}
	p, err := FromFlags([]string{"read_file", "write_file"}, []string{"write_*", "delete_file"}, false, known)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]call.Decision{
		"read_file":  {Verdict: call.Allow, Layer: "agent", Rule: "allow read_file"},
		"write_file": {Verdict: call.Ask, Layer: "rules", Rule: "ask", Reason: "a rule of the policy asks a person before this call"},
		// To ask about a tool does not grant it.
		"delete_file": {Verdict: call.Deny, Layer: "agent", Reason: "the policy does not allow this tool"},
	} {
		if d := decide(p, name); d != want {
			t.Errorf("%s: %+v, want %+v", name, d, want)
		}
	}
	if got := p.Asks(known); !slices.Equal(got, []string{"write_file"}) {
		t.Errorf("asks about %q", got)
	}
	if mode, _ := p.Mode(); mode != Act {
		t.Errorf("mode %s", mode)
	}
	if bare, err := FromFlags(known, nil, false, known); err != nil || bare.Digest() != New(Layer{Name: AgentLayer, Allow: patterns(t, known...)}).Digest() {
		t.Errorf("without --ask it is not what the list says: %v", err)
	}
	planned, err := FromFlags([]string{"read_file"}, nil, true, known)
	if err != nil {
		t.Fatal(err)
	}
	if mode, at := planned.Mode(); mode != Plan || at != "agent" || !planned.InScope(PlanTool) {
		t.Errorf("mode %s set by %q", mode, at)
	}
	if got := planned.Asks(known); len(got) != 0 {
		t.Errorf("asks about %q", got)
	}
	for _, ask := range [][]string{{""}, {"nope"}, {"write_file", " "}, {PlanTool}} {
		if p, err := FromFlags(known, ask, false, known); err == nil || p != nil || fault.KindOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), "ask: ") {
			t.Errorf("ask %q: %v", ask, err)
		}
	}
}

// The tools that a person can come to be asked about: whatever a condition may
// say, and not what is denied anyway.
func TestAsks(t *testing.T) {
	p := New(Layer{Name: "agent", Allow: patterns(t, "always", "sometimes", "never", "denied", "errs"), Rules: []Rule{
		{Tools: patterns(t, "always", "denied", "hidden"), Then: call.Ask},
		{Tools: patterns(t, "sometimes"), When: byKey("x"), Then: call.Ask},
		{Tools: patterns(t, "denied"), Then: call.Deny},
		{Tools: patterns(t, "errs"), When: byKey("x"), Then: call.Deny},
	}})
	if got := p.Asks([]string{"always", "sometimes", "never", "denied", "errs", "hidden"}); !slices.Equal(got, []string{"always", "sometimes"}) {
		t.Errorf("%q", got)
	}
}

var effectsGen = rapid.SampledFrom([]call.Effects{call.Read, call.Write, call.Destructive, ""})

// plannedGen draws a policy in which any layer may set plan mode.
var plannedGen = rapid.Custom(func(t *rapid.T) []Layer {
	layers := policyGen.Draw(t, "layers")
	for i := range layers {
		layers[i].Plan = rapid.IntRange(0, 3).Draw(t, "plan") == 0
	}
	return layers
})

var modeGen = rapid.SampledFrom([]string{"", Plan, Act})

func TestPlanModeNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args, effects := plannedGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args"), effectsGen.Draw(t, "effects")
		more := slices.Clone(layers)
		more[rapid.IntRange(0, len(more)-1).Draw(t, "at")].Plan = true
		// In the mode it begins in, and in whatever mode a run that plans comes to.
		before, after := judgeAs(New(layers...), name, effects, args), judgeAs(New(more...), name, effects, args)
		if stricter(before.Verdict, after.Verdict) {
			t.Fatalf("%s was %+v and is %+v in plan mode", name, before, after)
		}
		if after.Verdict != call.Deny && effects != call.Read {
			t.Fatalf("%s with effects %q is %+v in plan mode", name, effects, after)
		}
		// A plan that was approved leaves what the layers grant, and no more.
		bare := slices.Clone(layers)
		for i := range bare {
			bare[i].Plan = false
		}
		acting, approved := judgeAs(New(bare...), name, effects, args), judgeAs(in(Act, more...), name, effects, args)
		if acting != approved {
			t.Fatalf("%s is %+v without plan mode, and %+v after a plan", name, acting, approved)
		}
	})
}

func TestWhereAPlanIsSetMeansNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args, effects, mode := policyGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args"), effectsGen.Draw(t, "effects"), modeGen.Draw(t, "mode")
		var got []call.Verdict
		for i := range layers {
			set := slices.Clone(layers)
			set[i].Plan = true
			got = append(got, judgeAs(in(mode, set...), name, effects, args).Verdict, judgeAs(in(mode, set...), PlanTool, call.Read, nil).Verdict)
			if got[2*i] != got[0] || got[2*i+1] != got[1] {
				t.Fatalf("%s: %v", name, got)
			}
		}
	})
}

// What Explain says of a tool that reads holds in plan mode too; of one that
// does not, it is what holds once a plan is approved.
func TestExplainInPlanMode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name, args, effects, mode := plannedGen.Draw(t, "layers"), nameGen.Draw(t, "name"), argsGen.Draw(t, "args"), effectsGen.Draw(t, "effects"), modeGen.Draw(t, "mode")
		p := in(mode, layers...)
		e, d := p.Explain(name), judgeAs(p, name, effects, args)
		switch {
		case stricter(e.Decision.Verdict, d.Verdict):
			t.Fatalf("explained as %+v, decided %+v", e.Decision, d)
		case d.Layer == ModeLayer && effects == call.Read:
			t.Fatalf("%+v of a tool that reads", d)
		case d.Layer != ModeLayer && len(e.Depends) == 0 && e.Decision.Verdict != d.Verdict:
			t.Fatalf("explained as %+v, decided %+v", e.Decision, d)
		}
	})
}
