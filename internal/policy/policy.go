// Package policy decides. It turns layers (here: the command line's) into a
// scope and into decisions that name the layer and the rule that made them.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Pattern names tools: exact bytes, with `*` for any run of bytes inside one
// segment. It never crosses the `/` between an upstream and its tool, so that
// `*` alone is every built-in and embedder tool and no upstream's.
type Pattern struct{ text string }

// ParsePattern refuses everything that is not a pattern, instead of skipping it.
func ParsePattern(s string) (Pattern, error) {
	const hint = "a pattern is a tool's name, with * for any characters inside it; upstream tools are upstream/name"
	if strings.TrimSpace(s) == "" {
		return Pattern{}, fault.New(fault.Usage, hint, "blank tool name")
	}
	for _, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.*/", r)
		if !ok {
			return Pattern{}, fault.New(fault.Usage, hint, "tool pattern %q: %q is not allowed in it", call.Clip(s), r)
		}
	}
	parts := strings.Split(s, "/")
	if len(parts) > 2 || parts[0] == "" || parts[len(parts)-1] == "" {
		return Pattern{}, fault.New(fault.Usage, hint, "tool pattern %q has a misplaced /", call.Clip(s))
	}
	return Pattern{text: s}, nil
}

func (p Pattern) String() string { return p.text }

// Match reports whether p names the tool.
func (p Pattern) Match(name string) bool {
	pp, np := strings.Split(p.text, "/"), strings.Split(name, "/")
	if len(pp) != len(np) {
		return false
	}
	for i := range pp {
		if !glob(pp[i], np[i]) {
			return false
		}
	}
	return true
}

func glob(pattern, s string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	if !strings.HasPrefix(s, head) {
		return false
	}
	s = s[len(head):]
	for {
		part, tail, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], tail
	}
}

// Layer is one source of narrowing. The first layer grants, the others can
// only take away.
type Layer struct {
	Name string
	// Allow is, in the first layer, all that is granted. In a later one it takes
	// away every tool it does not name; there nil says nothing, and an empty
	// list that is not nil names nothing.
	Allow []Pattern
	// Deny takes away what it names, whatever Allow says in any layer.
	Deny []Pattern
}

func first(ps []Pattern, name string) (Pattern, bool) {
	for _, p := range ps {
		if p.Match(name) {
			return p, true
		}
	}
	return Pattern{}, false
}

// Policy is the layers of one run, frozen.
type Policy struct {
	layers []Layer
	digest string
}

// FromFlags is the policy of a command line or an embedder: one agent layer
// that grants what allow names, and denies everything else. An empty list
// grants nothing. A blank or malformed entry, and a name or pattern that names
// no tool in known, are errors of kind Usage.
func FromFlags(allow, known []string) (*Policy, error) {
	layer := Layer{Name: "agent"}
	for _, s := range allow {
		p, err := ParsePattern(s)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, "", "allow")
		}
		if !slices.ContainsFunc(known, p.Match) {
			return nil, fault.New(fault.Usage, suggest(s, known), "allow: no tool is called %q", call.Clip(s))
		}
		layer.Allow = append(layer.Allow, p)
	}
	return New(layer), nil
}

// suggest also knows a tool by the name a model sees.
func suggest(written string, known []string) string {
	if _, tool, ok := strings.Cut(strings.TrimPrefix(written, "mcp__"), "__"); ok && slices.Contains(known, tool) {
		return "did you mean " + tool + "?"
	}
	return fault.Suggest(written, known)
}

// New freezes layers. Without a layer nothing is granted.
func New(layers ...Layer) *Policy {
	p := &Policy{}
	h := sha256.New()
	for _, l := range layers {
		l.Allow, l.Deny = slices.Clone(l.Allow), slices.Clone(l.Deny)
		p.layers = append(p.layers, l)
		fmt.Fprintf(h, "layer %q allow %t %q deny %q\n", l.Name, l.Allow != nil, l.Allow, l.Deny)
	}
	p.digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return p
}

// Digest names this policy in records.
func (p *Policy) Digest() string { return p.digest }

// InScope reports whether a run under p may see and call the tool at all.
func (p *Policy) InScope(name string) bool { return p.judge(name).Verdict != call.Deny }

// Decide judges one call. args is not looked at yet: rules on arguments come
// with the policy file.
func (p *Policy) Decide(_ call.Request, tool *call.Tool, _ map[string]any) call.Decision {
	return p.judge(tool.Name)
}

func (p *Policy) judge(name string) call.Decision {
	denied := func(layer, rule string) call.Decision {
		return call.Decision{Verdict: call.Deny, Layer: layer, Rule: rule, Reason: "the policy does not allow this tool"}
	}
	if len(p.layers) == 0 {
		return denied("default", "")
	}
	for _, l := range p.layers {
		if x, ok := first(l.Deny, name); ok {
			return denied(l.Name, "deny "+x.text)
		}
	}
	granted, ok := first(p.layers[0].Allow, name)
	if !ok {
		return denied(p.layers[0].Name, "")
	}
	for _, l := range p.layers[1:] {
		if l.Allow == nil {
			continue
		}
		if _, ok := first(l.Allow, name); !ok {
			return denied(l.Name, "")
		}
	}
	return call.Decision{Verdict: call.Allow, Layer: p.layers[0].Name, Rule: "allow " + granted.text}
}
