package policyfile

import (
	"maps"
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// command is the tool that runs programs, and with them whatever they contain.
const command = "execute_command"

// CanAsk reports whether a run under p may ask a person about one of
// the tools or about a plan.
func CanAsk(p *policy.Policy, tools []string) bool {
	mode, _ := p.Mode()
	return mode == policy.Plan || len(p.Asks(tools)) > 0
}

// Answerable says why code of a run under p, made of s, could answer questions
// in a person's place; "" where it can't be told from the file, as for
// --own-tools.
func (s *Selected) Answerable(p *policy.Policy) string {
	switch {
	case s.Agent != nil && s.CLI == "":
		return "without cli it is for drawbridge exec, whose program runs unconfined"
	case p.InScope(command):
		return command + " is allowed, and runs unconfined in this version"
	}
	return ""
}

// selfAnswered is the first run of an agent that asks and could answer itself,
// and why; "" for none.
func (f *File) selfAnswered(agent string, tools []string) (where, why string) {
	if f.Approvals != nil && f.Approvals.SameUser {
		return "", ""
	}
	try := func(workspace, channel string) bool {
		s, err := f.Select(agent, workspace, channel)
		if err != nil {
			return false
		}
		p := policy.New(s.Layers()...)
		if !CanAsk(p, tools) {
			return false
		}
		why = s.Answerable(p)
		return why != ""
	}
	if len(f.Workspaces) == 0 {
		try("", "")
		return "", why
	}
	for _, w := range slices.Sorted(maps.Keys(f.Workspaces)) {
		for _, ch := range append([]string{""}, slices.Sorted(maps.Keys(f.Workspaces[w].Channels))...) {
			if try(w, ch) {
				return " in workspace " + strings.Join(slices.DeleteFunc([]string{call.Clip(w), call.Clip(ch)}, func(s string) bool { return s == "" }), ", channel "), why
			}
		}
	}
	return "", ""
}
