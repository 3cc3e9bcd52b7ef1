package policyfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/celrule"
)

var known = []string{"memory_search", "read_file", "delete_file", "execute_command", "write_file"}

func options() Options {
	return Options{Tools: known, CLIs: []string{"claude", "scripted"}, Compile: celrule.Compile}
}

func parse(data string) (*File, error) { return Parse("/etc/p.yaml", []byte(data), options()) }

func mustParse(t interface {
	Helper()
	Fatal(...any)
}, data string) *File {
	t.Helper()
	f, err := parse(data)
	if err != nil {
		t.Fatal(err, data)
	}
	return f
}

const design = `version: 1
server: osfoundry
upstreams:
  github: { command: github-mcp-server, args: [stdio], env: { GITHUB_TOKEN: "${GITHUB_TOKEN}" } }
  docs:   { url: "https://docs.example/mcp", headers: { Authorization: "Bearer ${DOCS_TOKEN}" }, effects: { "get_*": read }, sandbox: "off" }
agents:
  researcher:
    cli: claude
    tools:
      allow: [memory_search, read_file, "github/search_*", execute_command]
      deny:  [delete_file]
    rules:
      - tools: [execute_command]
        when: '!programs(args.cmd).all(p, p in ["ls", "wc"])'
        then: ask
    limits: { calls: 200, wall: 30m, output: 256KiB, tools: { "memory_*": { calls: 5, call: 3s } } }
    sandbox: { write: ["."], network: [] }
workspaces:
  ws-personal:
    folder: ~/work
    channels:
      ch-ops:  { tools: { deny: [execute_command] } }
      ch-plan: { mode: plan }
`

func TestTheDesignsExample(t *testing.T) {
	f := mustParse(t, design)
	sel, err := f.Select("researcher", "ws-personal", "ch-ops")
	if err != nil {
		t.Fatal(err)
	}
	if sel.CLI != "claude" || sel.Server != "osfoundry" || sel.Folder != "~/work" {
		t.Errorf("%+v", sel)
	}
	p := policy.New(sel.Layers()...)
	for name, want := range map[string]string{
		"memory_search": "allow agent allow memory_search (p.yaml:10)", "delete_file": "deny agent deny delete_file (p.yaml:11)",
		"execute_command": "deny channel deny execute_command (p.yaml:22)", "write_file": "deny agent not in allow (p.yaml:10)",
		"github/search_code": "allow agent allow github/search_* (p.yaml:10)", "docs/get": "deny agent not in allow (p.yaml:10)",
	} {
		if d := p.Explain(name).Decision; fmt.Sprint(d.Verdict, " ", d.Layer, " ", d.Rule) != want {
			t.Errorf("%s: %+v, want %s", name, d, want)
		}
	}
	if l := p.Limits(); l != (policy.Limits{Calls: 200, Output: 256 << 10, Wall: 30 * time.Minute}) {
		t.Errorf("%+v", l)
	}
	if l := p.ToolLimits("memory_search"); l != (policy.Limits{Calls: 5, Call: 3 * time.Second}) {
		t.Errorf("%+v", l)
	}
	sel, err = f.Select("researcher", "ws-personal", "")
	if err != nil {
		t.Fatal(err)
	}
	e := policy.New(sel.Layers()...).Explain("execute_command")
	if len(e.Depends) != 1 || e.Depends[0].At != "p.yaml:13" || e.Depends[0].Then != call.Ask {
		t.Errorf("%+v", e)
	}
}

// Everything this version can't enforce is a start error, in words.
func TestWhatIsNotBuiltDoesNotStart(t *testing.T) {
	f := mustParse(t, design)
	env := func(name string) (string, bool) { return "s3cr3t", name == "GITHUB_TOKEN" }
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		channel string
		getenv  func(string) (string, bool)
		says    string
		kind    fault.Kind
	}{
		{"", env, "agent researcher is allowed github/search_*, and upstreams are not built yet", fault.Usage},
		{"", none, "/etc/p.yaml:4:77: upstreams.github.env.GITHUB_TOKEN: variable GITHUB_TOKEN is not set", fault.Usage},
	} {
		sel, err := f.Select("researcher", "ws-personal", c.channel)
		if err != nil {
			t.Fatal(err)
		}
		if err := sel.Startable(true, c.getenv); err == nil || !strings.Contains(err.Error(), c.says) || fault.KindOf(err) != c.kind || fault.HintOf(err) == "" || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%v, want one that says %s", err, c.says)
		}
	}
	boxed := mustParse(t, "version: 1\nagents:\n  a:\n    sandbox: { network: [] }\n")
	sel, err := boxed.Select("a", "default", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := sel.Startable(false, none); err == nil || fault.KindOf(err) != fault.Sandbox {
		t.Errorf("%v", err)
	}
	if err := sel.Startable(true, none); err != nil {
		t.Errorf("%v", err)
	}
}

func TestBadFiles(t *testing.T) {
	agent := func(s string) string { return "version: 1\nagents:\n  a:\n    " + s + "\n" }
	up := func(s string) string { return "version: 1\nupstreams:\n  u: " + s + "\n" }
	for _, c := range []struct{ in, says, hint string }{
		{"", "p.yaml:1:1: not valid YAML: the file is empty", "drawbridge init"},
		{"# only a comment\n", "the file is empty", "drawbridge init"},
		{"version: 1\n---\nversion: 1\n", "more than one document", "---"},
		{"- 1\n", "p.yaml:1:1: the file is a list, and has to be a map", ""},
		{"version: 1\n  agents: {}", "p.yaml:2:", "spaces"},
		{"version: 1\nagents:\n\ta: {}", "p.yaml:3:1: not valid YAML", "spaces"},
		{"agents: {}\n", "version is missing", ""},
		{"version: 2\n", "version 2 is not known", "version: 1"},
		{"version: '1'\n", "p.yaml:1:10: version is text, and has to be a whole number", ""},
		{"version: 1\nagentz: {}\n", `p.yaml:2:1: unknown field "agentz"`, "did you mean agents?"},
		{"version: 1\nversion: 1\n", "p.yaml:2:1: version stands twice", "remove one"},
		{"version: 1\n\"ver\\x73ion\": 1\n", "p.yaml:2:1: version stands twice", "remove one"},
		{"version: 1\n<<: {}\n", "p.yaml:2:1: merge keys", ""},
		{"version: 1\n1: {}\n", "p.yaml:2:1: a key of the file is a number (1)", "quotes"},
		{"version: 1\n'': {}\n", "p.yaml:2:1: \"\" is a blank name", ""},
		{"version: 1\nagents: { ' a': {} }\n", "p.yaml:2:11: agents: \" a\" is a blank name", ""},
		{"version: 1\nagents:\n", "p.yaml:2:8: agents is nothing, and has to be a map", "{}"},
		{"version: 1\nserver: a__b\n", `p.yaml:2:9: server name "a__b" is not valid`, "double underscore"},
		{"version: 1\nserver: yes\nagents: { claude: {} }\n", `p.yaml:3:11: agents.claude: "claude" is the name of an agent CLI`, "name of its own"},
		{agent("cli: cluade"), `p.yaml:4:10: agents.a.cli: no agent CLI is called "cluade"`, "did you mean claude?"},
		{agent("tools: []"), "p.yaml:4:12: agents.a.tools is a list, and has to be a map", ""},
		{agent("tools: { alow: [] }"), `p.yaml:4:14: agents.a.tools: unknown field "alow"`, "did you mean allow?"},
		{agent("rules: [{ tools: [read_file], then: allow }]"), "p.yaml:4:41: agents.a.rules[0].then: allow is no use", "ask or deny"},
		{agent("rules: [{ then: denny }]"), `agents.a.rules[0].then: "denny" is neither ask nor deny`, "did you mean deny?"},
		{agent("rules: [{ when: 'true' }]"), "agents.a.rules[0].then is missing", ""},
		{agent("rules: [{ tools: [], then: deny }]"), "agents.a.rules[0].tools is empty: the rule would never apply", "leave tools out"},
		{agent("rules: [{ when: tool == 1, then: deny }]"), "p.yaml:4:26: agents.a.rules[0].when: found no matching overload", "CEL"},
		{agent("rules:\n      - when: |\n          true &&\n            foo(1)\n        then: deny"), "p.yaml:7:16: agents.a.rules[0].when: undeclared reference to 'foo'", "CEL"},
		{agent("rules: [{ when: \"true && x\", then: deny }]"), "p.yaml:4:30: agents.a.rules[0].when: undeclared reference to 'x'", "CEL"},
		{agent("rules: [{ when: '" + strings.Repeat("true && ", 2000) + "true', then: deny }]"), "agents.a.rules[0].when has more than 8192 bytes", ""},
		{agent("rules: [{ when: '', then: deny }]"), "agents.a.rules[0].when is blank", ""},
		{agent("limits: { calls: 0 }"), "p.yaml:4:22: agents.a.limits.calls is 0, and has to be 1 or more", "leave it out"},
		{agent("limits: { calls: -1 }"), "has to be 1 or more", ""},
		{agent("limits: { calls: 1.5 }"), "agents.a.limits.calls is a number", ""},
		{agent("limits: { calls: 0x10 }"), "0x10 is not a whole number this language takes", "digits"},
		{agent("limits: { calls: 99999999999999999999 }"), "agents.a.limits.calls", ""},
		{agent("limits: { output: 5MB }"), `agents.a.limits.output: "5MB" is no size`, "KiB"},
		{agent("limits: { output: 99GiB }"), "99GiB is less than 1 byte or more than 2 GiB", ""},
		{agent("limits: { wall: 30 }"), `agents.a.limits.wall: "30" is no time span`, "30m"},
		{agent("limits: { wall: -1m }"), "is no time span", ""},
		{agent("limits: { tools: { read_fil: { calls: 1 } } }"), `agents.a.limits.tools: no tool is called "read_fil"`, "did you mean read_file?"},
		{agent("limits: { tools: { read_file: { wall: 1s } } }"), `unknown field "wall"`, ""},
		{agent("limits: { budget: 0.00 }"), "agents.a.limits.budget is 0.00, and has to be more than 0", "leave it out"},
		{agent("limits: { budget: -1 }"), `p.yaml:4:23: agents.a.limits.budget: "-1" is no amount of dollars`, "2.50"},
		{agent("limits: { budget: $2 }"), `"$2" is no amount of dollars`, ""},
		{agent("limits: { budget: '2' }"), `"2" is no amount of dollars`, ""},
		{agent("limits: { budget: 1e3 }"), `"1e3" is no amount of dollars`, ""},
		{agent("limits: { budget: 010 }"), `"010" is no amount of dollars`, ""},
		{agent("limits: { budget: .inf }"), `".inf" is no amount of dollars`, ""},
		{agent("limits: { budget: 1000000 }"), `"1000000" is no amount of dollars`, ""},
		{agent("limits: { budget: [1] }"), "agents.a.limits.budget", ""},
		{agent("limits: { tools: { read_file: { budget: 1 } } }"), `unknown field "budget"`, ""},
		{agent("mode: paln"), `agents.a.mode: "paln" is no mode`, "did you mean plan?"},
		{"version: 1\nworkspaces: { w: { folder: work } }\n", `workspaces.w.folder: "work" is relative`, "~/"},
		{"version: 1\nworkspaces: { w: { folder: '${HOME}/x' } }\n", "workspaces.w.folder: ${...} is filled in only in env and headers", ""},
		{up("{}"), "upstreams.u has neither command nor url", ""},
		{up("{ command: a, url: 'http://x' }"), "upstreams.u has a command and a url", ""},
		{up("{ command: '${X}' }"), "upstreams.u.command: ${...} is filled in only", ""},
		{up("{ command: a, headers: { A: b } }"), "upstreams.u has a command and headers", ""},
		{up("{ url: 'http://x', args: [a] }"), "upstreams.u has a url", ""},
		{up("{ url: 'ftp://x' }"), "upstreams.u.url: not the address of an HTTP server", ""},
		{up("{ url: 'https://u:p@x' }"), "upstreams.u.url: not the address", "headers"},
		{up("{ type: sse, url: 'http://x' }"), `upstreams.u.type: "sse" does not fit`, "replaced by http"},
		{up("{ command: a, env: { A: '${A-b}' } }"), "upstreams.u.env.A has a ${ that begins no variable", ""},
		{up("{ command: a, sandbox: off }"), "upstreams.u.sandbox is", ""},
		{up("{ command: a, effects: { x: reads } }"), `upstreams.u.effects: "reads" is no effect`, "did you mean read?"},
		{up("{ command: a, effects: { u/x: read } }"), `upstreams.u.effects: "u/x" is no tool name`, ""},
		{up("{ command: a, disabled: true }"), `unknown field "disabled"`, ""},
		{"version: !!python/object 1\n", "version is a value of type !!python/object", ""},
		{"version: 1\nserver: *x\n", "p.yaml:2:9: not valid YAML: unknown anchor 'x'", ""},
		{"version: 1\nserver: \"\x00\"\n", "p.yaml:2:10: control character 0x00", "UTF-8"},
		{"version: 1\nserver: \xff\n", "p.yaml:2:9: byte 0xff is not UTF-8", "UTF-8"},
	} {
		_, err := parse(c.in)
		if strings.Contains(c.says, "sandbox is") && err == nil {
			continue // YAML 1.1 reads off as false, 1.2 as text
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(fault.HintOf(err), c.hint) ||
			fault.KindOf(err) != fault.Usage || len(err.Error()) > 20_000 || !strings.HasPrefix(err.Error(), "/etc/p.yaml") {
			t.Errorf("%.80q:\n got %.600v (hint %q)\nwant %s (hint %s)", c.in, err, fault.HintOf(err), c.says, c.hint)
		}
	}
}

func TestField34_AllowOfTheFile(t *testing.T) {
	for allow, says := range map[string]string{
		"":                                "none",
		"tools: {}":                       "none",
		"tools: { allow: [] }":            "none",
		"tools: { allow: null }":          "agents.a.tools.allow is nothing, and has to be a list",
		"tools: { allow: }":               "agents.a.tools.allow is nothing, and has to be a list",
		"tools: { allow: [''] }":          "agents.a.tools.allow[0] is blank",
		"tools: { allow: [' '] }":         "agents.a.tools.allow[0] is blank",
		"tools: { allow: [null] }":        "agents.a.tools.allow[0] is nothing",
		"tools: { allow: '' }":            "agents.a.tools.allow is text, and has to be a list",
		"tools: { allow: read_file }":     "agents.a.tools.allow is text, and has to be a list",
		"tools: { allow: { a: b } }":      "agents.a.tools.allow is a map, and has to be a list",
		"tools: { allow: [[read_file]] }": "agents.a.tools.allow[0] is a list, and has to be text",
		"tools: { allow: [1] }":           "agents.a.tools.allow[0] is a number (1), and has to be text",
		"tools: { allow: [true] }":        "agents.a.tools.allow[0] is a truth value (true), and has to be text",
		"tools: { allow: [nope] }":        `no tool is called "nope"`,
		"tools: { deny: [delete_fil] }":   `no tool is called "delete_fil"`,
		"tools: { allow: ['up/x'] }":      `no upstream is called "up"`,
	} {
		f, err := parse("version: 1\nagents:\n  a: { " + allow + " }\n")
		if says != "none" {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want one that says %s", allow, err, says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", allow, err)
			continue
		}
		sel, err := f.Select("a", "default", "")
		if err != nil {
			t.Fatal(err)
		}
		p := policy.New(sel.Layers()...)
		for _, name := range append(known, "", "up/x") {
			if p.InScope(name) {
				t.Errorf("%s: %q is in scope", allow, name)
			}
		}
	}
	// In a later layer, missing says nothing and empty takes everything away.
	for allow, want := range map[string]bool{"": true, "tools: {}": true, "tools: { deny: [] }": true, "tools: { allow: [] }": false} {
		f := mustParse(t, "version: 1\nagents: { a: { tools: { allow: [read_file] } } }\nworkspaces: { w: { "+allow+" } }\n")
		sel, err := f.Select("a", "w", "")
		if err != nil || policy.New(sel.Layers()...).InScope("read_file") != want {
			t.Errorf("%q: %v, want %v", allow, err, want)
		}
	}
}

func TestField38_UpstreamNames(t *testing.T) {
	for _, name := range []string{"a__b", "a_", "_a", "a.b", "a b", "-a"} {
		_, err := parse(fmt.Sprintf("version: 1\nupstreams: { %q: { command: x } }\n", name))
		if err == nil || !strings.Contains(err.Error(), "p.yaml:2:14: upstreams."+name) || fault.HintOf(err) == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
	f := mustParse(t, "version: 1\nupstreams: { a: { command: x }, my_db: { command: x } }\nagents: { g: { tools: { allow: [a/b__c] } } }\n")
	sel, err := f.Select("g", "default", "")
	if err != nil {
		t.Fatal(err)
	}
	p := policy.New(sel.Layers()...)
	for name, want := range map[string]bool{"a/b__c": true, "a__b/c": false, "a__b__c": false, "my_db/b__c": false, "a/c": false, "a/_c": false} {
		if p.InScope(name) != want {
			t.Errorf("%s: in scope is %v", name, !want)
		}
	}
}

func TestField45_PatternsOfTheFile(t *testing.T) {
	for _, bad := range []string{"g?t__x", "git__[ab]", "a b", "a/b/c", "/a", "a/", "git__*,x"} {
		_, err := parse(fmt.Sprintf("version: 1\nagents: { a: { tools: { allow: [%q] } } }\n", bad))
		if err == nil || !strings.Contains(err.Error(), "p.yaml:2:33: agents.a.tools.allow[0]") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	f := mustParse(t, "version: 1\nupstreams: { git: { command: x }, github: { command: x } }\nagents: { a: { tools: { deny: [git/push], allow: ['git/*', '*'] } } }\n")
	sel, err := f.Select("a", "default", "")
	if err != nil {
		t.Fatal(err)
	}
	p := policy.New(sel.Layers()...)
	for name, want := range map[string]bool{"git/log": true, "git/push": false, "github/log": false, "read_file": true} {
		if p.InScope(name) != want {
			t.Errorf("%s: in scope is %v", name, !want)
		}
	}
}

func TestField25_PolicyWithBOM(t *testing.T) {
	f, err := parse("\xef\xbb\xbfversion: 1\r\nagents:\r\n  a: { tools: { allow: [read_file] } }\r\n")
	if err != nil || len(f.Agents) != 1 {
		t.Errorf("%v", err)
	}
	if _, err := parse("\xef\xbb\xbfversion: 1\nagentz: {}\n"); err == nil || !strings.Contains(err.Error(), ":2:1:") {
		t.Errorf("%v", err)
	}
}

func TestBombs(t *testing.T) {
	bomb := "version: 1\nagents:\n  a: { tools: { allow: &a [" + strings.TrimSuffix(strings.Repeat("read_file,", 100), ",") + "] } }\n"
	for i := range 2000 {
		bomb += fmt.Sprintf("  b%d: { tools: { allow: *a } }\n", i)
	}
	lol := "version: 1\nserver: &a [x,x,x,x,x,x,x,x,x]\nupstreams: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nagents: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nworkspaces: [*c,*c,*c,*c,*c,*c]\n"
	for name, in := range map[string]string{
		"aliases": bomb, "10 MB": "version: 1\n" + strings.Repeat("# comment\n", 1<<20), "deep": "version: " + strings.Repeat("[", 9000), "deeper": strings.Repeat("[", 1<<19),
		"lol": lol, "itself": "version: 1\nagents: &a { a: *a }\n", "many errors": "version: 1\nagents:\n" + strings.Repeat("  a: 1\n", 10_000),
	} {
		start := time.Now()
		_, err := parse(in)
		if err == nil || fault.KindOf(err) != fault.Usage || len(err.Error()) > 20_000 || time.Since(start) > 20*time.Second {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	// An alias that does no harm is fine.
	f := mustParse(t, "version: 1\nagents: { a: { tools: { allow: &x [read_file] } }, b: { tools: { allow: *x } } }\n")
	if len(f.Agents["b"].Tools.Allow.List) != 1 {
		t.Error("the alias was lost")
	}
	// So is a table of tests that repeats.
	if _, err := ParseTests("t.yaml", []byte("tests: [{ agent: a, tool: b, want: deny, args: &a { x: *a } }]\n")); err == nil {
		t.Error("an alias of itself comes through")
	}
}

func TestSelect(t *testing.T) {
	f := mustParse(t, `version: 1
agents: { a: { cli: claude } }
workspaces:
  ws-one: { channels: { ch-a: {}, ch-b: {} } }
  ws-two: { channels: { "*": { tools: { deny: [read_file] } } } }
`)
	for _, c := range []struct{ agent, workspace, channel, says, hint string }{
		{"a", "ws-one", "ch-a", "", ""}, {"a", "ws-one", "", "", ""}, {"a", "ws-two", "any", "", ""}, {"", "ws-one", "", "", ""},
		{"b", "ws-one", "", `no agent is called "b"`, "did you mean a?"},
		{"a", "ws-onne", "", `no workspace is called "ws-onne"`, "did you mean ws-one?"},
		{"a", "default", "", `no workspace is called "default"`, "ws-one, ws-two"},
		{"a", "*", "", `no workspace is called "*"`, ""},
		{"a", "ws-one", "ch-c", `workspace "ws-one" has no channel that is called "ch-c"`, "did you mean ch-a?"},
	} {
		_, err := f.Select(c.agent, c.workspace, c.channel)
		if c.says == "" {
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(fault.HintOf(err), c.hint) || fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v (%s)", c, err, fault.HintOf(err))
		}
	}
}

func TestExpand(t *testing.T) {
	env := func(n string) (string, bool) {
		v, ok := map[string]string{"A": "${B}", "E": ""}[n]
		return v, ok
	}
	for in, want := range map[string]string{"Bearer ${A}": "Bearer ${B}", "${E}": "", "$A": "$A", "a$": "a$", "${A}${E}": "${B}"} {
		if got, err := (Secret{Text{Value: in}}).Expand(env); err != nil || got != want {
			t.Errorf("%s: %q %v", in, got, err)
		}
	}
	if got, err := (Secret{Text{Value: "${A} ${NONE}"}}).Expand(env); err == nil || got != "" || !strings.Contains(err.Error(), "NONE") {
		t.Errorf("%q %v", got, err)
	}
}

func TestWarnings(t *testing.T) {
	f := mustParse(t, strings.ReplaceAll(design, `"ls", "wc"`, `"ls", "git", "/usr/bin/python3"`)+"      '*': {}\n")
	got := strings.Join(f.Warnings(known, func(string) (string, bool) { return "", false }), "\n")
	for _, want := range []string{
		"/etc/p.yaml:7: agents.researcher asks a person in workspace ws-personal, and code of the run could answer instead: execute_command is allowed",
		"/etc/p.yaml:14: agents.researcher.rules[0] trusts git, which runs anything", "trusts /usr/bin/python3",
		"/etc/p.yaml:17: agents.researcher.sandbox", "/etc/p.yaml:10: agents.researcher is allowed github/search_*: upstreams are not built yet",
		"variable DOCS_TOKEN is not set", "variable GITHUB_TOKEN is not set",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "trusts ls") {
		t.Error(got)
	}
	empty := mustParse(t, "version: 1\nagents: { a: {} }\n")
	if got := strings.Join(empty.Warnings(known, nil), "\n"); !strings.Contains(got, "agents.a is allowed no tool") || !strings.Contains(got, "names no cli") {
		t.Error(got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(design))
	f.Add([]byte("version: 1\nagents: &a { a: *a }\n"))
	f.Add([]byte("version: 1\nagents: { a: { rules: [{ when: 'tool == \"x\"', then: ask }], limits: { output: 1KiB, wall: 1m } } }"))
	f.Add([]byte("tests: [{ agent: a, tool: b, want: deny, args: { x: [1, 1.5, null, 'a'] } }]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := options()
		o.Compile = func(string) (policy.Condition, error) { return nil, nil }
		file, err := Parse("p.yaml", data, o)
		if err != nil {
			if fault.KindOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), "p.yaml") {
				t.Fatalf("%v", err)
			}
		} else {
			for _, name := range file.AgentNames() {
				_, _ = file.Select(name, "default", "")
			}
			_ = file.Warnings(known, func(string) (string, bool) { return "", false })
		}
		if table, err := ParseTests("p.yaml", data); err == nil && len(table.Tests) == 0 {
			t.Fatal("a table without tests")
		}
	})
}

// A warning of what checkAsking of a run would refuse, where the file alone tells.
func TestWarningsOfAsks(t *testing.T) {
	const ask = "rules: [{ tools: [write_file], then: ask }]"
	for _, c := range []struct{ name, agent, rest, want string }{
		{"rule", "cli: claude, tools: { allow: [write_file, execute_command] }, " + ask, "", "agents.a asks a person, and code of the run could answer instead: execute_command is allowed"},
		{"plan", "cli: claude, mode: plan, tools: { allow: [execute_command] }", "", "execute_command is allowed"},
		{"no cli", "tools: { allow: [write_file] }, " + ask, "", "whose program runs unconfined"},
		{"channel asks", "cli: claude, tools: { allow: [write_file, execute_command] }", "workspaces: { w: { channels: { c: { " + ask + " } } } }", "asks a person in workspace w, channel c, and"},
		{"no commands", "cli: claude, tools: { allow: [write_file] }, " + ask, "", ""},
		{"nothing to ask", "cli: claude, tools: { allow: [execute_command] }, " + ask, "", ""},
		{"taken away where it asks", "cli: claude, tools: { allow: [write_file, execute_command] }", "workspaces: { w: { tools: { deny: [execute_command] }, " + ask + " }, x: {} }", ""},
		{"accepted", "cli: claude, tools: { allow: [write_file, execute_command] }, " + ask, "approvals: { same_user_can_answer: true }", ""},
	} {
		f := mustParse(t, "version: 1\nagents: { a: { "+c.agent+" } }\n"+c.rest+"\n")
		got := strings.Join(f.Warnings(known, func(string) (string, bool) { return "", false }), "\n")
		if asks := strings.Contains(got, "could answer instead"); asks != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
