package policyfile

import (
	"errors"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// Options are what a file is checked against.
type Options struct {
	// Tools are the names of all tools that are not an upstream's. A pattern in
	// the file that names none of them is an error.
	Tools []string
	// CLIs are the names of agent CLIs, which no agent of the file may carry.
	CLIs []string
	// Compile makes a condition of the text of a rule. Its errors are
	// *policy.ExprError. nil makes every rule with a when an error.
	Compile func(expr string) (policy.Condition, error)
}

// maxExpr is how many bytes the text of a condition may have.
const maxExpr = 8 << 10

// Parse reads and checks a whole file; path is only for messages. The error
// joins up to 20 *fault.Error of kind Usage, in the order they were found, each
// beginning with path:line:column.
func Parse(path string, data []byte, o Options) (*File, error) {
	f := &File{path: path, base: filepath.Base(path)}
	d := &decoder{path: path, base: f.base}
	d.decode(data, f)
	if len(d.errs) == 0 {
		c := checker{d, f, o, data}
		c.bounded(c.file)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return f, nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// checker looks for what the types of a file can't say.
type checker struct {
	*decoder
	f    *File
	o    Options
	data []byte
}

func (c checker) bounded(check func()) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(bomb); !ok {
				panic(r)
			}
		}
	}()
	check()
}

func (c checker) file() {
	f := c.f
	if f.Version != 1 {
		c.failAt(Pos{1, 1}, "write version: 1", "version %d is not known", f.Version)
	}
	if f.Server.Value != "" {
		if err := catalogue.CheckServer(f.Server.Value); err != nil {
			c.failAt(f.Server.At, fault.HintOf(err), "%v", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Upstreams)) {
		c.upstream(name, f.Upstreams[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.Agents)) {
		a := f.Agents[name]
		path := "agents." + call.Clip(name)
		if slices.Contains(c.o.CLIs, name) {
			c.failAt(a.At, "give it a name of its own", "%s: %q is the name of an agent CLI", path, call.Clip(name))
		}
		if a.CLI.Value != "" && !slices.Contains(c.o.CLIs, a.CLI.Value) {
			c.failAt(a.CLI.At, fault.Suggest(a.CLI.Value, c.o.CLIs), "%s.cli: no agent CLI is called %q", path, call.Clip(a.CLI.Value))
		}
		c.section(path, &a.Section)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Workspaces)) {
		w := f.Workspaces[name]
		path := "workspaces." + call.Clip(name)
		c.literal(path+".folder", w.Folder)
		if v := w.Folder.Value; v != "" && !filepath.IsAbs(v) && v != "~" && !strings.HasPrefix(v, "~/") {
			c.failAt(w.Folder.At, "give an absolute path, or one that begins with ~/", "%s.folder: %q is relative", path, call.Clip(v))
		}
		c.section(path, &w.Section)
		for _, channel := range slices.Sorted(maps.Keys(w.Channels)) {
			ch := w.Channels[channel]
			c.section(path+".channels."+call.Clip(channel), &ch.Section)
		}
	}
}

func (c checker) section(path string, s *Section) {
	if s.Tools != nil {
		c.patterns(path+".tools.allow", s.Tools.Allow)
		c.patterns(path+".tools.deny", s.Tools.Deny)
	}
	for i := range s.Rules {
		c.rule(path, i, &s.Rules[i])
	}
	if s.Limits != nil {
		for _, name := range slices.Sorted(maps.Keys(s.Limits.Tools)) {
			p, err := policy.ParsePattern(name)
			if err != nil {
				c.failAt(s.Limits.Tools[name].At, fault.HintOf(err), "%s.limits.tools: %v", path, err)
				continue
			}
			c.named(path+".limits.tools", p, s.Limits.Tools[name].At)
		}
	}
	if m := s.Mode.Value; m != "" && m != "act" && m != "plan" {
		c.failAt(s.Mode.At, fault.Suggest(m, []string{"act", "plan"}), "%s.mode: %q is no mode", path, call.Clip(m))
	}
}

func (c checker) patterns(path string, ps *Patterns) {
	if ps == nil {
		return
	}
	for i, p := range ps.List {
		c.named(path, p, ps.at[i])
	}
}

// named fails where p names nothing: a misspelled deny would deny nothing.
func (c checker) named(path string, p policy.Pattern, at Pos) {
	up, ok := p.Upstream()
	names := c.o.Tools
	what := "tool"
	if ok {
		p, names, what = up, slices.Sorted(maps.Keys(c.f.Upstreams)), "upstream"
	}
	if slices.ContainsFunc(names, p.Match) {
		return
	}
	hint := policy.DidYouMean(p.String(), names)
	if ok && hint == "" {
		hint = "upstreams are listed under upstreams:"
	}
	c.failAt(at, hint, "%s: no %s is called %q", path, what, call.Clip(p.String()))
}

func (c checker) rule(path string, i int, r *Rule) {
	where := func(field string) string { return path + ".rules[" + itoa(i) + "]." + field }
	c.patterns(where("tools"), r.Tools)
	if r.Tools != nil && len(r.Tools.List) == 0 {
		c.failAt(r.Tools.At, "leave tools out to mean every tool", "%s is empty: the rule would never apply", where("tools"))
	}
	switch r.Then.Value {
	case string(call.Ask), string(call.Deny):
	case string(call.Allow):
		c.failAt(r.Then.At, "a rule only makes stricter: ask or deny", "%s: allow is no use", where("then"))
	default:
		c.failAt(r.Then.At, fault.Suggest(r.Then.Value, []string{"ask", "deny"}), "%s: %q is neither ask nor deny", where("then"), call.Clip(r.Then.Value))
	}
	if r.When.Value == "" {
		return
	}
	if len(r.When.Value) > maxExpr {
		c.failAt(r.When.At, "make two rules of it", "%s has more than %d bytes", where("when"), maxExpr)
		return
	}
	if c.o.Compile == nil {
		c.failAt(r.When.At, "", "%s: rules with a condition can't be used here", where("when"))
		return
	}
	cond, err := c.o.Compile(r.When.Value)
	if err != nil {
		at := r.When.At
		if e, ok := errors.AsType[*policy.ExprError](err); ok {
			at = c.inside(at, e)
		}
		c.failAt(at, "when is a CEL expression over tool, args, binding and mode; see docs/policy.md", "%s: %s", where("when"), err)
		return
	}
	r.compiled = cond
}

// inside is where in the file a place in an expression is: exact for one on a
// single line and for a block, the start of the text otherwise.
func (c checker) inside(at Pos, e *policy.ExprError) Pos {
	lines := strings.Split(string(c.data), "\n")
	if e.Line < 1 || at.Line > len(lines) {
		return at
	}
	first := []rune(lines[at.Line-1])
	if at.Column > len(first) {
		return at
	}
	switch first[at.Column-1] {
	case '|', '>':
		n := at.Line + e.Line
		if first[at.Column-1] == '>' || n > len(lines) {
			return Pos{at.Line + 1, 1}
		}
		line := lines[at.Line] // the first of a block sets its indent
		return Pos{n, len(line) - len(strings.TrimLeft(line, " ")) + e.Column}
	case '"', '\'':
		at.Column++
	}
	if e.Line == 1 {
		at.Column += e.Column - 1
	}
	return at
}

// literal fails where a value looks as if variables were filled in, and they
// are not.
func (c checker) literal(path string, t Text) {
	if strings.Contains(t.Value, "${") {
		c.failAt(t.At, "write the value out", "%s: ${...} is filled in only in env and headers of upstreams", path)
	}
}

func (c checker) upstream(name string, u Upstream) {
	path := "upstreams." + call.Clip(name)
	c.literal(path+".command", u.Command)
	c.literal(path+".cwd", u.Cwd)
	c.literal(path+".url", u.URL)
	for i, arg := range u.Args {
		c.literal(path+".args["+itoa(i)+"]", arg)
	}
	if err := catalogue.CheckServer(name); err != nil {
		c.failAt(u.At, fault.HintOf(err), "%s: %v", path, err)
	}
	kind := "stdio"
	switch {
	case u.Command.Value != "" && u.URL.Value != "":
		c.failAt(u.At, "keep one of them", "%s has a command and a url", path)
	case u.URL.Value != "":
		kind = "http"
	case u.Command.Value == "":
		c.failAt(u.At, "give a command, or a url", "%s has neither command nor url", path)
	}
	if t := u.Type.Value; t != "" && t != kind {
		hint := fault.Suggest(t, []string{"stdio", "http"})
		if t == "sse" {
			hint = "that transport was replaced by http in MCP 2025-03-26"
		}
		c.failAt(u.Type.At, hint, "%s.type: %q does not fit (%s is what it has to be here)", path, call.Clip(t), kind)
	}
	if kind == "http" {
		if len(u.Args) > 0 || len(u.Env) > 0 || u.Cwd.Value != "" {
			c.failAt(u.At, "args, env and cwd are for a command", "%s has a url", path)
		}
		if p, err := url.Parse(u.URL.Value); err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" || p.User != nil || p.Fragment != "" {
			c.failAt(u.URL.At, "write https://host/path; credentials go into headers", "%s.url: not the address of an HTTP server", path)
		}
	} else if len(u.Headers) > 0 {
		c.failAt(u.At, "headers are for a url; a command has env", "%s has a command and headers", path)
	}
	if v := u.Sandbox.Value; v != "" && v != "off" {
		c.failAt(u.Sandbox.At, "write off, in quotes, or leave it out", "%s.sandbox: %q is not known", path, call.Clip(v))
	}
	for _, tool := range slices.Sorted(maps.Keys(u.Effects)) {
		e := u.Effects[tool]
		if p, err := policy.ParsePattern(tool); err != nil || strings.Contains(p.String(), "/") {
			c.failAt(e.At, "name the tool as the upstream does, without the upstream's own name", "%s.effects: %q is no tool name", path, call.Clip(tool))
		}
		if !slices.Contains([]string{string(call.Read), string(call.Write), string(call.Destructive)}, e.Value) {
			c.failAt(e.At, fault.Suggest(e.Value, []string{"read", "write", "destructive"}), "%s.effects: %q is no effect", path, call.Clip(e.Value))
		}
	}
}
