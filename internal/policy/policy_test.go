package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func pattern(t interface{ Fatal(...any) }, s string) Pattern {
	p, err := ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patterns(t interface{ Fatal(...any) }, list ...string) []Pattern {
	ps := []Pattern{}
	for _, s := range list {
		ps = append(ps, pattern(t, s))
	}
	return ps
}

func decide(p *Policy, name string) call.Decision {
	return p.Decide(call.Request{Tool: name}, &call.Tool{Name: name}, nil)
}

func TestField45_Patterns(t *testing.T) {
	names := []string{"git__log", "github__log", "git_log", "git__a__b", "git", "git/log", "git/a__b", "github/log", "git/log/x", ""}
	for p, want := range map[string][]string{
		"git__*":        {"git__log", "git__a__b"},
		"git*":          {"git__log", "github__log", "git_log", "git__a__b", "git"},
		"*":             {"git__log", "github__log", "git_log", "git__a__b", "git", ""},
		"git__*__x":     nil,
		"git__*__b":     {"git__a__b"},
		"git/*":         {"git/log", "git/a__b"},
		"git*/log":      {"git/log", "github/log"},
		"*/log":         {"git/log", "github/log"},
		"*/*":           {"git/log", "git/a__b", "github/log"},
		"git/l*g":       {"git/log"},
		"git/log":       {"git/log"},
		"git":           {"git"},
		"**":            {"git__log", "github__log", "git_log", "git__a__b", "git", ""},
		"*_*_*":         {"git__log", "github__log", "git__a__b"},
		"GIT":           nil,
		"git__log*log":  nil,
		"git__l*og":     {"git__log"},
		"git__log*":     {"git__log"},
		"*git__log":     {"git__log"},
		"*o*l*o*":       nil,
		"*i*l*g":        {"git__log", "github__log", "git_log"},
		"git__*a*_*__b": nil,
		"v2":            nil,
	} {
		var got []string
		for _, n := range names {
			if pattern(t, p).Match(n) {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s matches %q, want %q", p, got, want)
		}
	}
}

func TestField45_InvalidPatternIsAnError(t *testing.T) {
	for _, bad := range []string{
		"", " ", "\t", "g?t__x", "git__[ab]", "git__{a,b}", "a b", " a", "a ", "a\n", "!a", "a,b", "/", "/a", "a/", "a//b", "a/b/c", "//",
		"git\\*", "^a$", "é", "a\x00", "\xff", strings.Repeat("a ", 1<<20),
	} {
		_, err := ParsePattern(bad)
		if err == nil || fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" || len(err.Error()) > 1000 {
			t.Errorf("%.40q: %.300v", bad, err)
		}
	}
}

func TestField45_DenyBeatsAllow(t *testing.T) {
	git := []string{"git/log", "git/push"}
	p := New(Layer{Name: "agent", Allow: patterns(t, "git/*"), Deny: patterns(t, "git/push")})
	if d := decide(p, git[0]); d != (call.Decision{Verdict: call.Allow, Layer: "agent", Rule: "allow git/*"}) {
		t.Errorf("%+v", d)
	}
	if d := decide(p, git[1]); d.Verdict != call.Deny || d.Layer != "agent" || d.Rule != "deny git/push" || d.Reason == "" {
		t.Errorf("%+v", d)
	}
	exact := New(Layer{Name: "agent", Allow: patterns(t, "git/push"), Deny: patterns(t, "git/*")})
	if exact.InScope("git/push") {
		t.Error("an exact allow beats a pattern's deny")
	}
}

func TestField34_EmptyAllowGrantsNothing(t *testing.T) {
	known := []string{"memory_search", "read_file"}
	for _, allow := range [][]string{nil, {}} {
		p, err := FromFlags(allow, nil, false, known)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range append(known, "") {
			if d := decide(p, n); p.InScope(n) || d.Verdict != call.Deny || d.Reason == "" {
				t.Errorf("%#v: %q is %+v", allow, n, d)
			}
		}
	}
	for _, c := range []struct {
		allow []string
		says  string
		hint  string
	}{
		{[]string{""}, "blank", "a pattern is"},
		{[]string{" "}, "blank", "a pattern is"},
		{[]string{"read_file", ""}, "blank", "a pattern is"},
		{[]string{"nope"}, `"nope"`, "there are: memory_search, read_file"},
		{[]string{"memory_serach"}, `"memory_serach"`, "did you mean memory_search?"},
		{[]string{"read_file", "up/*"}, `"up/*"`, "there are"},
		{[]string{"write_*"}, `"write_*"`, ""},
		{[]string{"Read_file"}, `"Read_file"`, "did you mean read_file?"},
		{[]string{"read_file,memory_search"}, `','`, "a pattern is"},
	} {
		p, err := FromFlags(c.allow, nil, false, known)
		if err == nil || p != nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says) || !strings.Contains(fault.HintOf(err), c.hint) {
			t.Errorf("%q: %v (hint %q)", c.allow, err, fault.HintOf(err))
		}
	}
	if _, err := FromFlags([]string{"*"}, nil, false, nil); err == nil {
		t.Error("a pattern that names nothing is accepted")
	}
}

func TestFromFlags(t *testing.T) {
	p, err := FromFlags([]string{"memory_*", "read_file"}, nil, false, []string{"memory_search", "memory_add", "read_file", "write_file"})
	if err != nil {
		t.Fatal(err)
	}
	for name, rule := range map[string]string{"memory_search": "allow memory_*", "memory_add": "allow memory_*", "read_file": "allow read_file"} {
		if d := decide(p, name); d != (call.Decision{Verdict: call.Allow, Layer: "agent", Rule: rule}) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	for _, name := range []string{"write_file", "up/memory_search", "memory", "READ_FILE", "read_file ", "__proto__"} {
		if p.InScope(name) {
			t.Errorf("%q is in scope", name)
		}
	}
}

func TestLaterLayers(t *testing.T) {
	agent := Layer{Name: "agent", Allow: patterns(t, "a", "b", "c")}
	for _, c := range []struct {
		name   string
		layers []Layer
		scope  string
		layer  string // that denies b
	}{
		{"no layer at all", nil, "", "default"},
		{"the agent's alone", []Layer{agent}, "abc", ""},
		{"one that says nothing", []Layer{agent, {Name: "run"}}, "abc", ""},
		{"one that denies", []Layer{agent, {Name: "run", Deny: patterns(t, "b")}}, "ac", "run"},
		{"one that keeps some", []Layer{agent, {Name: "run", Allow: patterns(t, "a", "d")}}, "a", "run"},
		{"one that keeps none", []Layer{agent, {Name: "run", Allow: []Pattern{}}}, "", "run"},
		{"one that grants nothing new", []Layer{{Name: "agent"}, {Name: "run", Allow: patterns(t, "*")}}, "", "agent"},
		{"one cannot undo another", []Layer{agent, {Name: "channel", Deny: patterns(t, "b")}, {Name: "run", Allow: patterns(t, "*")}}, "ac", "channel"},
	} {
		p := New(c.layers...)
		got := ""
		for _, n := range []string{"a", "b", "c", "d"} {
			if p.InScope(n) {
				got += n
			}
			if (decide(p, n).Verdict == call.Allow) != p.InScope(n) {
				t.Errorf("%s: Decide and InScope disagree about %s", c.name, n)
			}
		}
		if got != c.scope {
			t.Errorf("%s: scope %q, want %q", c.name, got, c.scope)
		}
		if d := decide(p, "b"); c.layer != "" && d.Layer != c.layer {
			t.Errorf("%s: b is denied by %q, want %q", c.name, d.Layer, c.layer)
		}
	}
}

// Short names over few letters, so that patterns and names often meet.
var (
	segment  = rapid.StringMatching(`[ab_]{1,5}`)
	nameGen  = rapid.Custom(func(t *rapid.T) string { return maybeTwo(t, segment) })
	globGen  = rapid.Custom(func(t *rapid.T) string { return maybeTwo(t, rapid.StringMatching(`[ab_*]{1,4}`)) })
	globs    = rapid.SliceOfN(globGen, 0, 4)
	layerGen = rapid.Custom(func(t *rapid.T) Layer {
		l := Layer{Name: "later", Deny: patterns(t, globs.Draw(t, "deny")...)}
		if rapid.Bool().Draw(t, "hasAllow") {
			l.Allow = patterns(t, globs.Draw(t, "allow")...)
		}
		return l
	})
	agentGen = rapid.Custom(func(t *rapid.T) Layer {
		return Layer{Name: "agent", Allow: patterns(t, append(globs.Draw(t, "allow"), "*", "*/*")...), Deny: patterns(t, globs.Draw(t, "deny")...)}
	})
	layersGen = rapid.Custom(func(t *rapid.T) []Layer {
		return append([]Layer{agentGen.Draw(t, "agent")}, rapid.SliceOfN(layerGen, 0, 3).Draw(t, "later")...)
	})
)

func maybeTwo(t *rapid.T, g *rapid.Generator[string]) string {
	s := g.Draw(t, "segment")
	if rapid.Bool().Draw(t, "two") {
		s += "/" + g.Draw(t, "second")
	}
	return s
}

// slowGlob is the definition: a star is any run of bytes.
func slowGlob(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return slowGlob(p[1:], s) || s != "" && slowGlob(p, s[1:])
	}
	return s != "" && p[0] == s[0] && slowGlob(p[1:], s[1:])
}

func TestMatchIsItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, name := globGen.Draw(t, "pattern"), nameGen.Draw(t, "name")
		pp, np := strings.Split(p, "/"), strings.Split(name, "/")
		want := len(pp) == len(np)
		for i := 0; want && i < len(pp); i++ {
			want = slowGlob(pp[i], np[i])
		}
		got := pattern(t, p).Match(name)
		if got != want {
			t.Fatalf("%s matches %s: %v, want %v", p, name, got, want)
		}
		if got && strings.Count(p, "/") != strings.Count(name, "/") {
			t.Fatalf("%s crossed the slash of %s", p, name)
		}
	})
}

func TestDenyBeatsAllow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name := layersGen.Draw(t, "layers"), nameGen.Draw(t, "name")
		p := New(layers...)
		for _, l := range layers {
			for _, x := range l.Deny {
				if x.Match(name) && p.InScope(name) {
					t.Fatalf("%s is denied by %s and in scope", name, x)
				}
			}
		}
	})
}

func TestAddingALayerNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name := layersGen.Draw(t, "layers"), nameGen.Draw(t, "name")
		more := slices.Insert(slices.Clone(layers), rapid.IntRange(1, len(layers)).Draw(t, "at"), layerGen.Draw(t, "more"))
		before, after := decide(New(layers...), name), decide(New(more...), name)
		if before.Verdict == call.Deny && after.Verdict != call.Deny {
			t.Fatalf("%s was denied by %s and is allowed with a layer more", name, before.Layer)
		}
	})
}

func TestOrderAfterTheFirstLayerDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers, name := layersGen.Draw(t, "layers"), nameGen.Draw(t, "name")
		other := slices.Clone(layers)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(other)-1, func(i, j int) { other[i+1], other[j+1] = other[j+1], other[i+1] })
		if a, b := decide(New(layers...), name).Verdict, decide(New(other...), name).Verdict; a != b {
			t.Fatalf("%s: %s in one order and %s in another", name, a, b)
		}
	})
}

// A denial names the place of the list that does not name the tool.
func TestUnnamedSaysWhere(t *testing.T) {
	agent := Layer{Name: "agent", Allow: patterns(t, "a", "b"), AllowAt: "f:3"}
	p := New(agent, Layer{Name: "channel", Allow: patterns(t, "a"), AllowAt: "f:9"})
	for name, want := range map[string]string{"b": "channel not in allow (f:9)", "c": "agent not in allow (f:3)"} {
		if d := decide(p, name); d.Verdict != call.Deny || d.Layer+" "+d.Rule != want {
			t.Errorf("%s: %+v, want %s", name, d, want)
		}
	}
}

// The name a model sees is known too, and only where there is such a tool.
func TestDidYouMean(t *testing.T) {
	known := []string{"read_file", "write_file"}
	for written, want := range map[string]string{
		"mcp__drawbridge__read_file": "did you mean read_file?",
		"osfoundry__write_file":      "did you mean write_file?",
		"read_fil":                   "did you mean read_file?",
		"mcp__drawbridge__zzzzzzzz":  "there are: read_file, write_file",
		"zzzzzzzz":                   "there are: read_file, write_file",
	} {
		if got := DidYouMean(written, known); got != want {
			t.Errorf("%s: %q, want %q", written, got, want)
		}
	}
	if got := DidYouMean("x", []string{""}); strings.Contains(got, "did you mean") {
		t.Errorf("%q", got)
	}
}

func TestFrozen(t *testing.T) {
	l := []Layer{{
		Name: "agent", Allow: patterns(t, "a", "e"), Deny: patterns(t, "b"),
		Rules:      []Rule{{Tools: patterns(t, "e"), Then: call.Deny}, {Tools: patterns(t, "a"), Then: call.Ask}},
		ToolLimits: []ToolLimits{{pattern(t, "a"), Limits{Calls: 1}}},
	}}
	p := New(l...)
	digest := p.Digest()
	l[0].Allow[0], l[0].Deny[0] = pattern(t, "*"), pattern(t, "c")
	l[0].Rules[0].Tools[0], l[0].Rules[1] = pattern(t, "x"), Rule{Tools: patterns(t, "x")}
	l[0].ToolLimits[0].Limits.Calls = 9
	l[0] = Layer{Name: "agent", Allow: patterns(t, "*")}
	if p.InScope("x") || !p.InScope("a") || p.Digest() != digest || decide(p, "e").Verdict != call.Deny || decide(p, "a").Verdict != call.Ask || p.ToolLimits("a").Calls != 1 {
		t.Error("a caller changed a policy")
	}
}

func TestDigestTellsPoliciesApart(t *testing.T) {
	seen := map[string]int{}
	for i, layers := range [][]Layer{
		{},
		{{Name: "agent"}},
		{{Name: "run"}},
		{{Name: "agent"}, {Name: "agent"}},
		{{Name: "agent"}, {Name: "agent", Allow: []Pattern{}}},
		{{Name: "agent", Allow: patterns(t, "a")}},
		{{Name: "agent", Deny: patterns(t, "a")}},
		{{Name: "agent", Allow: patterns(t, "a", "b")}},
		{{Name: "agent", Allow: patterns(t, "a"), Deny: patterns(t, "b")}},
		{{Name: `agent" allow ["a"]`}},
	} {
		d := New(layers...).Digest()
		if j, dup := seen[d]; dup || !strings.HasPrefix(d, "sha256:") || len(d) != len("sha256:")+64 {
			t.Errorf("policies %d and %d: %s", i, j, d)
		}
		seen[d] = i
	}
}

func FuzzParsePattern(f *testing.F) {
	for _, s := range []string{"git/*", "*", "", "a/b/c", "g?t", "a*b*c", "\xff", "mcp__x__*"} {
		f.Add(s, "git/log")
	}
	f.Fuzz(func(t *testing.T, s, name string) {
		p, err := ParsePattern(s)
		if err != nil {
			return
		}
		if p.String() != s {
			t.Fatalf("%q became %q", s, p)
		}
		if p.Match(name) && strings.Count(s, "/") != strings.Count(name, "/") {
			t.Fatalf("%q crossed a slash of %q", s, name)
		}
		if !strings.Contains(s, "*") && p.Match(name) != (s == name) {
			t.Fatalf("%q against %q", s, name)
		}
	})
}
