package policyfile

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

func itoa(i int) string { return strconv.Itoa(i) }

// Selected is what a file says of one run.
type Selected struct {
	// Agent is the layer that grants; nil where no agent of the file was named.
	Agent *policy.Layer
	// Later are the layers of workspace and channel.
	Later  []policy.Layer
	CLI    string // of the agent, "" for none
	Server string // "" for none
	Folder string // of the workspace, "" for none; may begin with ~
	// Approvals are the file's; the zero value where it says nothing.
	Approvals Approvals

	f        *File
	name     string
	sandbox  *Sandbox
	upstream []policy.Pattern // allowed patterns that name upstreams' tools
}

// Layers are the layers of the file for this run, the one that grants first.
func (s *Selected) Layers() []policy.Layer {
	if s.Agent == nil {
		return s.Later
	}
	return slices.Concat([]policy.Layer{*s.Agent}, s.Later)
}

// AgentNames are the agents of the file, sorted.
func (f *File) AgentNames() []string { return slices.Sorted(maps.Keys(f.Agents)) }

// Select picks the layers of one run. agent "" is one that the file does not
// know: its layer is the caller's. A file that lists workspaces, and a workspace
// that lists channels, must know the one of the run, by its name or by *: a
// misspelled name would otherwise lose what narrows it. A run without a channel
// has no channel layer.
func (f *File) Select(agent, workspace, channel string) (*Selected, error) {
	s := &Selected{f: f, name: agent, Server: f.Server.Value}
	if f.Approvals != nil {
		s.Approvals = *f.Approvals
	}
	if agent != "" {
		a, ok := f.Agents[agent]
		if !ok {
			return nil, fault.New(fault.Usage, fault.Suggest(agent, f.AgentNames()), "%s: no agent is called %q", f.path, call.Clip(agent))
		}
		l := s.layer(policy.AgentLayer, &a.Section)
		if l.Allow == nil {
			l.Allow = []policy.Pattern{}
		}
		for _, p := range l.Allow {
			if _, ok := p.Upstream(); ok {
				s.upstream = append(s.upstream, p)
			}
		}
		s.Agent, s.CLI, s.sandbox = &l, a.CLI.Value, a.Sandbox
	}
	if len(f.Workspaces) == 0 {
		return s, nil
	}
	w, ok := entry(f.Workspaces, workspace)
	if !ok {
		return nil, fault.New(fault.Usage, or(fault.Suggest(workspace, names(f.Workspaces)), "name one with --workspace, or add * for every other one"),
			"%s: no workspace is called %q", f.path, call.Clip(workspace))
	}
	s.Later = append(s.Later, s.layer(policy.WorkspaceLayer, &w.Section))
	s.Folder = w.Folder.Value
	if channel == "" || len(w.Channels) == 0 {
		return s, nil
	}
	ch, ok := entry(w.Channels, channel)
	if !ok {
		return nil, fault.New(fault.Usage, or(fault.Suggest(channel, names(w.Channels)), "name one with --channel, or add * for every other one"),
			"%s: workspace %q has no channel that is called %q", f.path, call.Clip(workspace), call.Clip(channel))
	}
	s.Later = append(s.Later, s.layer(policy.ChannelLayer, &ch.Section))
	return s, nil
}

func entry[V any](m map[string]V, name string) (V, bool) {
	v, ok := m[name]
	if !ok {
		v, ok = m["*"]
	}
	return v, ok
}

func names[V any](m map[string]V) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(s string) bool { return s == "*" })
}

func (s *Selected) layer(name string, sec *Section) policy.Layer {
	f := s.f
	l := policy.Layer{Name: name, AllowAt: f.place(sec.At)}
	if t := sec.Tools; t != nil {
		if t.Allow != nil {
			l.Allow, l.AllowAt = t.Allow.List, f.place(t.Allow.At)
		}
		if t.Deny != nil {
			l.Deny = t.Deny.List
		}
	}
	for _, r := range sec.Rules {
		rule := policy.Rule{When: r.compiled, Text: strings.TrimSpace(r.When.Value), Then: call.Verdict(r.Then.Value), Reason: r.Reason.Value, At: f.place(r.At)}
		if r.Tools != nil {
			rule.Tools = r.Tools.List
		}
		l.Rules = append(l.Rules, rule)
	}
	if lim := sec.Limits; lim != nil {
		l.Limits = lim.limits()
		l.Limits.Wall, l.Limits.Budget = lim.Wall.Value, lim.Budget.Value
		for _, name := range slices.Sorted(maps.Keys(lim.Tools)) {
			if p, err := policy.ParsePattern(name); err == nil { // Parse has seen to it
				t := lim.Tools[name]
				l.ToolLimits = append(l.ToolLimits, policy.ToolLimits{Tools: p, Limits: t.limits()})
			}
		}
	}
	if sec.Mode.Value == policy.Plan {
		l.Plan, l.PlanAt = true, f.place(sec.Mode.At)
	}
	return l
}

func (t *ToolLimits) limits() policy.Limits {
	return policy.Limits{
		Calls: t.Calls.Value, Concurrent: int(t.Concurrent.Value), Output: int(t.Output.Value), Total: t.Total.Value, Call: t.Call.Value,
	}
}

// Startable is nil where everything the file asks of this run can be enforced
// by this version. sandboxOff accepts that there is no sandbox.
func (s *Selected) Startable(sandboxOff bool, getenv func(string) (string, bool)) error {
	f := s.f
	if len(s.upstream) > 0 {
		p := s.upstream[0]
		up, _ := p.Upstream()
		for _, name := range slices.Sorted(maps.Keys(f.Upstreams)) {
			if up.Match(name) {
				if err := f.unset(name, getenv); err != nil {
					return err
				}
			}
		}
		return fault.New(fault.Usage, "leave tools of upstreams out of allow", "%s: agent %s is allowed %s, and upstreams are not built yet", f.path, call.Clip(s.name), p)
	}
	if b := s.sandbox; b != nil && !sandboxOff {
		return fault.New(fault.Sandbox, "--sandbox=off accepts that nothing is confined", "%s:%d:%d: agent %s asks for a sandbox, and this version has none yet",
			f.path, b.At.Line, b.At.Column, call.Clip(s.name))
	}
	return nil
}

// unset is an error for the first variable an upstream needs and does not have.
func (f *File) unset(upstream string, getenv func(string) (string, bool)) error {
	u := f.Upstreams[upstream]
	for _, m := range []struct {
		name string
		in   map[string]Secret
	}{{"env", u.Env}, {"headers", u.Headers}} {
		for _, key := range slices.Sorted(maps.Keys(m.in)) {
			if _, err := m.in[key].Expand(getenv); err != nil {
				at := m.in[key].At
				return fault.New(fault.Usage, "set it, or write the value", "%s:%d:%d: upstreams.%s.%s.%s: %v", f.path, at.Line, at.Column, upstream, m.name, call.Clip(key), err)
			}
		}
	}
	return nil
}

// Expand fills the variables in. One that is not set is an error, also where
// others would send the ${NAME} as it is; an empty one is a value.
func (s Secret) Expand(getenv func(string) (string, bool)) (string, error) {
	var err error
	out := variable().ReplaceAllStringFunc(s.Value, func(m string) string {
		name := m[2 : len(m)-1]
		v, ok := getenv(name)
		if !ok && err == nil {
			err = fmt.Errorf("variable %s is not set", name)
		}
		return v
	})
	if err != nil {
		return "", err
	}
	return out, nil
}

// HomeFolder is folder with ~ filled in. home may be "" where it is not needed.
func HomeFolder(folder, home string) (string, error) {
	rest, ok := strings.CutPrefix(folder, "~")
	if !ok {
		return folder, nil
	}
	if !filepath.IsAbs(home) {
		return "", fault.New(fault.Usage, "set HOME, or write the path out", "folder %s: there is no home directory", folder)
	}
	return filepath.Join(home, rest), nil
}
