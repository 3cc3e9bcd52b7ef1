package policy

import (
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Pattern names tools: exact bytes, with `*` for any run of bytes inside one
// segment. It never crosses the `/` between an upstream and its tool, so that
// `*` alone is every built-in and embedder tool and no upstream's.
type Pattern struct {
	text string
	star bool
	at   string
}

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
	return Pattern{text: s, star: strings.Contains(s, "*")}, nil
}

func (p Pattern) String() string { return p.text }

// At is p with the place it was written in, like drawbridge.yaml:12, which the
// decisions it makes name.
func (p Pattern) At(place string) Pattern {
	p.at = place
	return p
}

// Upstream reports whether p can name an upstream's tools, and the pattern of
// the upstream's name.
func (p Pattern) Upstream() (name Pattern, ok bool) {
	head, _, ok := strings.Cut(p.text, "/")
	return Pattern{text: head, star: strings.Contains(head, "*"), at: p.at}, ok
}

// Match reports whether p names the tool.
func (p Pattern) Match(name string) bool {
	if !p.star {
		return p.text == name
	}
	ph, pt, pok := strings.Cut(p.text, "/")
	nh, nt, nok := strings.Cut(name, "/")
	return pok == nok && !strings.Contains(nt, "/") && glob(ph, nh) && glob(pt, nt)
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

func first(ps []Pattern, name string) (Pattern, bool) {
	for _, p := range ps {
		if p.Match(name) {
			return p, true
		}
	}
	return Pattern{}, false
}

// ParseList reads the names and patterns of a flag or of an embedder's list,
// which errors call what. A blank or malformed entry, and one that names no tool
// in known, are errors of kind Usage. The list is never nil: an empty one names
// nothing.
func ParseList(what string, list, known []string) ([]Pattern, error) {
	ps := []Pattern{}
	for _, s := range list {
		p, err := ParsePattern(s)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, "", "%s", what)
		}
		if !slices.ContainsFunc(known, p.Match) {
			return nil, fault.New(fault.Usage, DidYouMean(s, known), "%s: no tool is called %q", what, call.Clip(s))
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// DidYouMean is a hint at the name in known that was meant, "" for none. It also
// knows a tool by the name a model sees.
func DidYouMean(written string, known []string) string {
	if _, tool, ok := strings.Cut(strings.TrimPrefix(written, "mcp__"), "__"); ok && slices.Contains(known, tool) {
		return "did you mean " + tool + "?"
	}
	return fault.Suggest(written, known)
}
