package policyfile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/gate"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/celrule"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/policyfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	tools = []string{"aa", "ab", "ba", "bb", "cc"}
	opts  = policyfile.Options{Tools: tools, CLIs: []string{"claude"}, Compile: celrule.Compile}

	patternGen = rapid.SampledFrom([]string{"aa", "ab", "ba", "bb", "cc", "a*", "*b", "*", "*a*"})
	whenGen    = rapid.SampledFrom([]string{
		`args.x == 1`, `has(args.x) && args.x > 1`, `programs(args.cmd).exists(p, p == "rm")`, `!programs(args.cmd).all(p, p in ["ls"])`,
		`binding.channel == "ch"`, `tool.startsWith("a")`, `path_in(args.path, "docs")`, `mode == "plan"`,
	})
	argsGen = rapid.SampledFrom([]string{"", `{}`, `{"x":1}`, `{"x":2, "cmd":"ls"}`, `{"cmd":"rm a"}`, `{"cmd":"$x"}`, `{"x":"one","path":"docs/a"}`, `{"path":"../a","cmd":"ls"}`, `{"x":[1,{"y":null}]}`})
)

// list and section write random policies in YAML.
func list(t *rapid.T, name string) string {
	return "[" + strings.Join(rapid.SliceOfN(rapid.Map(patternGen, func(s string) string { return `"` + s + `"` }), 0, 3).Draw(t, name), ", ") + "]"
}

func section(t *rapid.T, indent string, agent bool) string {
	var b strings.Builder
	lists := map[bool]string{true: `allow: ["*"]`}[agent]
	if rapid.Bool().Draw(t, "allows") {
		lists = "allow: " + list(t, "allow")
	}
	if rapid.Bool().Draw(t, "denies") {
		lists = strings.TrimPrefix(lists+", deny: "+list(t, "deny"), ", ")
	}
	fmt.Fprintf(&b, "%stools: { %s }\n%srules:\n", indent, lists, indent)
	for range rapid.IntRange(1, 3).Draw(t, "rules") {
		fmt.Fprintf(&b, "%s  - then: %s\n", indent, rapid.SampledFrom([]string{"ask", "deny"}).Draw(t, "then"))
		if rapid.IntRange(0, 4).Draw(t, "conditional") > 0 {
			fmt.Fprintf(&b, "%s    when: '%s'\n", indent, whenGen.Draw(t, "when"))
		}
		fmt.Fprintf(&b, "%s    tools: [\"%s\"]\n", indent, patternGen.Draw(t, "tool"))
	}
	return b.String()
}

func file(t *rapid.T) *policyfile.File {
	text := "version: 1\nagents:\n  g:\n    cli: claude\n" + section(t, "    ", true) +
		"workspaces:\n  w:\n" + section(t, "    ", false) + "    channels:\n      ch:\n" + section(t, "        ", false)
	f, err := policyfile.Parse("p.yaml", []byte(text), opts)
	if err != nil {
		t.Fatal(err, text)
	}
	return f
}

type plain struct{}

func (plain) Arguments(raw []byte) []byte { return raw }
func (plain) Text(s string) (string, int) { return s, 0 }
func (plain) JSON(b []byte) ([]byte, int) { return b, 0 }

type sent struct{ tool, args string }

// play takes calls through a real gate with a real record, and returns the
// path of the record.
func play(t *rapid.T, dir string, p *policy.Policy, b call.Binding, calls []sent) string {
	var all []call.Tool
	for _, name := range tools {
		all = append(all, call.Tool{Name: name, Effects: call.Read, Run: func(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil }})
	}
	c, err := catalogue.New(all...)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := c.Scope("s", p.InScope)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.jsonl")
	_ = os.Remove(path)
	log, err := audit.Create(path, audit.Run{
		Version: audit.Version, ID: "r", Workspace: b.Workspace, Channel: b.Channel, User: b.User, Agent: b.Agent, Mode: "act", Scope: scope.Names(), PolicyDigest: p.Digest(),
	}, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := gate.New(gate.Config{Binding: b, Catalogue: scope, Policy: p, Record: log, Filter: plain{}})
	for _, s := range calls {
		req := call.Request{Tool: s.tool, Origin: call.FromEmbedder}
		if s.args != "" {
			req.Arguments = []byte(s.args)
		}
		_, _ = g.Call(context.Background(), req)
	}
	g.Close()
	if _, err := log.Close(audit.Record{}); err != nil {
		t.Fatal(err)
	}
	return path
}

func callsGen(t *rapid.T) []sent {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) sent {
		return sent{rapid.SampledFrom(append([]string{"nope"}, tools...)).Draw(t, "tool"), argsGen.Draw(t, "args")}
	}), 1, 8).Draw(t, "calls")
}

func selected(t *rapid.T, f *policyfile.File, b call.Binding) *policy.Policy {
	sel, err := f.Select(b.Agent, b.Workspace, b.Channel)
	if err != nil {
		t.Fatal(err)
	}
	return policy.New(sel.Layers()...).Bound(b, nil)
}

func read(t *rapid.T, path string) *policy.Record {
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rec, err := policy.ReadRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestExplainAgreesWithTheGate(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		b := call.Binding{Run: "r", Workspace: "w", Channel: rapid.SampledFrom([]string{"", "ch"}).Draw(t, "channel"), User: "u", Agent: "g"}
		p := selected(t, file(t), b)
		calls := callsGen(t)
		rec := read(t, play(t, dir, p, b, calls))
		if len(rec.Calls) != len(calls) {
			t.Fatalf("%d calls, %d on record", len(calls), len(rec.Calls))
		}
		for i, s := range calls {
			args := map[string]any{}
			if s.args != "" {
				args, _ = call.DecodeObject([]byte(s.args))
			}
			got, want := rec.Calls[i], p.Decide(call.Request{Tool: s.tool}, &call.Tool{Name: s.tool}, args)
			e := p.Explain(s.tool)
			switch {
			case s.tool == "nope" || !p.InScope(s.tool):
				if got.Verdict != call.Deny || got.Layer != "scope" ||
					s.tool != "nope" && (e.Decision.Verdict != call.Deny || e.Decision.Layer == "" || !strings.Contains(e.Decision.Rule, "(p.yaml:")) {
					t.Fatalf("%+v: %+v, explained as %+v", s, got, e)
				}
			case got.Verdict != want.Verdict || got.Layer != want.Layer || got.Rule != want.Rule || !strings.Contains(got.Rule, "(p.yaml:"):
				t.Fatalf("%+v: the gate says %+v, explain %+v", s, got, want)
			case len(e.Depends) == 0 && e.Decision.Verdict != got.Verdict:
				t.Fatalf("%+v: the gate says %+v, explain %+v", s, got, e)
			}
		}
	})
}

func TestSuggestThenReplay(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		b := call.Binding{Run: "r", Workspace: "w", Channel: "ch", User: "u", Agent: "g"}
		f := file(t)
		p := selected(t, f, b)
		rec := read(t, play(t, dir, p, b, callsGen(t)))
		if d := p.Replay(rec, tools); len(d) > 0 {
			t.Fatalf("replayed under its own policy: %+v", d)
		}
		text, known := policyfile.Suggest(f, rec.Run, policy.Suggest(rec), opts)
		if !known {
			t.Fatal("the agent is not known")
		}
		least, err := policyfile.Parse("least.yaml", text, opts)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		q := selected(t, least, b)
		if d := q.Replay(rec, tools); len(d) > 0 {
			t.Fatalf("%+v under\n%s", d, text)
		}
		for _, name := range tools {
			if q.InScope(name) && !slices.ContainsFunc(rec.Calls, func(c policy.Recorded) bool { return c.Tool == name && c.Verdict != call.Deny }) {
				t.Fatalf("%s was never let through and is suggested:\n%s", name, text)
			}
		}
	})
}

func TestReplayTellsWhatItCant(t *testing.T) {
	parse := func(s string) *policy.Policy {
		f, err := policyfile.Parse("p.yaml", []byte("version: 1\nagents: { g: { tools: { allow: ['*'] }, rules: ["+s+"] } }\n"), opts)
		if err != nil {
			t.Fatal(err)
		}
		sel, err := f.Select("g", "w", "")
		if err != nil {
			t.Fatal(err)
		}
		return policy.New(sel.Layers()...)
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := audit.Create(path, audit.Run{Version: audit.Version, ID: "r", Agent: "g", Level: "embedded", Scope: []string{"aa"}}, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []audit.Record{
		{Kind: audit.Begin, Tool: "aa", Decision: "allow", Layer: "agent", Arguments: []byte(`{"cmd":"[masked]"}`), ArgumentsDigest: "sha256:00", ArgumentsSize: 20},
		{Kind: audit.Refused, Tool: "other", Decision: "deny", Layer: "scope"},
		{Kind: audit.Refused, Tool: "aa", Decision: "deny", Layer: "limits"},
	} {
		if _, err := log.Append(r, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Close(audit.Record{}); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	rec, err := policy.ReadRecord(in)
	if err != nil || rec.Other != 1 || len(rec.Calls) != 2 {
		t.Fatalf("%v %+v", err, rec)
	}
	if d := parse(`{ tools: [aa], when: 'args.cmd == "x"', then: deny }`).Replay(rec, tools); len(d) != 2 || d[0].Undecidable == "" || d[1].Undecidable == "" || d[1].Tool != "other" {
		t.Errorf("%+v", d)
	}
	if d := parse(`{ tools: [aa], then: deny }`).Replay(rec, tools); len(d) != 2 || d[0].Undecidable != "" || d[0].Now.Verdict != call.Deny {
		t.Errorf("%+v", d)
	}
}

func TestTable(t *testing.T) {
	f, err := policyfile.Parse("p.yaml", []byte(`version: 1
agents: { g: { tools: { allow: [aa] }, rules: [{ tools: [aa], when: 'args.n > 3', then: ask }] } }
`), opts)
	if err != nil {
		t.Fatal(err)
	}
	table, err := policyfile.ParseTests("t.yaml", []byte(`policy: p.yaml
tests:
  - { agent: g, tool: aa, args: { n: 1 }, want: allow, by: agent }
  - { agent: g, tool: aa, args: { n: 4 }, want: ask, by: rules }
  - { agent: g, tool: aa, want: deny }
  - { agent: g, tool: bb, want: deny }
  - { name: wrong, agent: g, tool: aa, args: { n: 4.5 }, want: allow }
  - { agent: g, tool: aa, args: { n: 1 }, want: allow, by: rules }
  - { agent: h, tool: aa, want: allow }
  - { agent: g, tool: az, want: deny }
`))
	if err != nil || table.Beside() != "p.yaml" {
		t.Fatal(err)
	}
	effects := map[string]call.Effects{}
	for _, name := range tools {
		effects[name] = call.Read
	}
	for i, says := range []string{"", "", "", "", "wrong: want allow, got ask by rules ask when args.n > 3 (p.yaml:2)", "want allow by rules, got it by agent", `no agent is called "h"`, `no tool is called "az"`} {
		if got := table.Tests[i].Run(f, effects); says == "" && got != "" || !strings.Contains(got, says) {
			t.Errorf("test %d: %q, want %q", i, got, says)
		}
	}
	for in, says := range map[string]string{
		"tests: []\n": "no tests", "tests: [{ agent: a, tool: b, want: yes }]\n": `tests[0].want: "yes" is no decision`, "tests: [{ agent: a, tool: b, wnt: deny }]\n": `unknown field "wnt"`,
		"tests: [{ agent: a, tool: b, want: deny, args: { d: 2020-01-01 } }]\n": "tests[0].args.d: 2020-01-01 is no JSON value", "tests: [{ tool: b, want: deny }]\n": "tests[0].agent is missing",
	} {
		if _, err := policyfile.ParseTests("t.yaml", []byte(in)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// 200 tools, 20 rules in CEL, four layers.
func BenchmarkDecideCEL(b *testing.B) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("tool_%d", i))
	}
	o := opts
	o.Tools = names
	rules := func(from int) string {
		s := "rules:\n"
		for i := range 5 {
			s += fmt.Sprintf("      - { tools: ['tool_%d*'], when: 'args.n > %d || args.path.startsWith(\"x\")', then: deny }\n", from+i, 1000+i)
		}
		return s
	}
	text := "version: 1\nagents:\n  g:\n    tools: { allow: ['*'] }\n    " + rules(0) + "workspaces:\n  w:\n    " + rules(5) + "    channels:\n      ch:\n        " +
		strings.ReplaceAll(rules(10)+strings.TrimPrefix(rules(15), "rules:\n"), "      - ", "          - ")
	f, err := policyfile.Parse("p.yaml", []byte(text), o)
	if err != nil {
		b.Fatal(err)
	}
	sel, err := f.Select("g", "w", "ch")
	if err != nil {
		b.Fatal(err)
	}
	p := policy.New(append(sel.Layers(), policy.Layer{Name: policy.RunLayer})...)
	args := map[string]any{"n": json.Number("3"), "path": "docs/a", "cmd": "ls"}
	ts := make([]*call.Tool, len(names))
	for i, n := range names {
		ts[i] = &call.Tool{Name: n}
	}
	i := 0
	for b.Loop() {
		if d := p.Decide(call.Request{}, ts[i%len(ts)], args); d.Verdict != call.Allow {
			b.Fatal(d)
		}
		i++
	}
}
