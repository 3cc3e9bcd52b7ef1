// Package policy decides. It turns layers into a scope and into decisions that
// name the layer and the rule that made them. The first layer grants; every
// other one, and every rule, can only take away or make stricter. Of all that
// concern a call the strictest wins, so that no order of layers or rules means
// anything.
//
// Where layers come from is not its business: policyfile reads them from YAML,
// celrule compiles the conditions of rules.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Act is the only mode of a run in this version.
const Act = "act"

// Policy is the layers of one run, frozen.
type Policy struct {
	layers  []Layer
	digest  string
	binding call.Binding
	// known holds what the layers say of a tool, by name: the layers of a run
	// never change, and only the names of a catalogue are asked for.
	known *sync.Map
}

// FromFlags is the policy of a command line or an embedder: one agent layer
// that grants what allow names, and denies everything else. An empty list
// grants nothing. A blank or malformed entry, and a name or pattern that names
// no tool in known, are errors of kind Usage.
func FromFlags(allow, known []string) (*Policy, error) {
	ps, err := ParseAllow(allow, known)
	if err != nil {
		return nil, err
	}
	return New(Layer{Name: AgentLayer, Allow: ps}), nil
}

// New freezes layers. Without a layer nothing is granted.
func New(layers ...Layer) *Policy {
	p := &Policy{known: &sync.Map{}}
	h := sha256.New()
	for _, l := range layers {
		l = l.clone()
		p.layers = append(p.layers, l)
		fmt.Fprintf(h, "layer %q allow %t %q deny %q\n", l.Name, l.Allow != nil, l.Allow, l.Deny)
		for _, r := range l.Rules {
			fmt.Fprintf(h, "rule %t %q when %t %q then %q because %q\n", r.Tools != nil, r.Tools, r.When != nil, r.Text, r.Then, r.Reason)
		}
		fmt.Fprintf(h, "limits %+v\n", l.Limits)
		for _, t := range l.ToolLimits {
			fmt.Fprintf(h, "limits of %q %+v\n", t.Tools, t.Limits)
		}
	}
	p.digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return p
}

// Bound is p for the run that b is about; rules may look at it.
func (p *Policy) Bound(b call.Binding) *Policy {
	q := *p
	q.binding = b
	return &q
}

// Digest names this policy in records: two that decide differently have two
// digests. Where a rule stands in a file, and comments, change nothing in it.
func (p *Policy) Digest() string { return p.digest }

// InScope reports whether a run under p may see and call the tool at all.
func (p *Policy) InScope(name string) bool { return p.judge(name).base.Verdict != call.Deny }

// Decide judges one call. args are the decoded arguments, numbers as
// json.Number. A rule that can't be evaluated denies.
func (p *Policy) Decide(_ call.Request, tool *call.Tool, args map[string]any) call.Decision {
	j := p.judge(tool.Name)
	d := j.base
	if d.Verdict == call.Deny || len(j.rules) == 0 {
		return d
	}
	in := Input{Tool: tool.Name, Args: args, Binding: p.binding, Mode: Act}
	for _, r := range j.rules {
		if next, ok := r.judge(&in); ok && stricter(next.Verdict, d.Verdict) {
			d = next
		}
		if d.Verdict == call.Deny {
			break
		}
	}
	return d
}

// Limits are the strictest that any layer sets for the whole run.
func (p *Policy) Limits() Limits {
	var l Limits
	for _, layer := range p.layers {
		l = l.strictest(layer.Limits)
	}
	return l
}

// ToolLimits are the strictest that any layer sets for one tool. Each tool a
// pattern matches has them for itself.
func (p *Policy) ToolLimits(name string) Limits {
	var l Limits
	for _, layer := range p.layers {
		for _, t := range layer.ToolLimits {
			if t.Tools.Match(name) {
				l = l.strictest(t.Limits)
			}
		}
	}
	return l
}

// judged is what holds for every call of one tool, and the rules that look at
// a call before it is decided.
type judged struct {
	base  call.Decision
	rules []*Rule
}

func (p *Policy) judge(name string) *judged {
	if j, ok := p.known.Load(name); ok {
		return j.(*judged)
	}
	j := &judged{base: p.scope(name)}
	if j.base.Verdict != call.Deny {
		for i := range p.layers {
			for k := range p.layers[i].Rules {
				if r := &p.layers[i].Rules[k]; r.concerns(name) {
					j.rules = append(j.rules, r)
				}
			}
		}
	}
	kept, _ := p.known.LoadOrStore(name, j)
	return kept.(*judged)
}

// scope is what the layers' lists say of a tool.
func (p *Policy) scope(name string) call.Decision {
	denied := func(layer, rule string) call.Decision {
		return call.Decision{Verdict: call.Deny, Layer: layer, Rule: rule, Reason: "the policy does not allow this tool"}
	}
	if len(p.layers) == 0 {
		return denied("default", "")
	}
	for _, l := range p.layers {
		if x, ok := first(l.Deny, name); ok {
			return denied(l.Name, at("deny "+x.text, x.at))
		}
	}
	granted, ok := first(p.layers[0].Allow, name)
	if !ok {
		return denied(p.layers[0].Name, p.layers[0].unnamed())
	}
	for _, l := range p.layers[1:] {
		if l.Allow == nil {
			continue
		}
		if _, ok := first(l.Allow, name); !ok {
			return denied(l.Name, l.unnamed())
		}
	}
	return call.Decision{Verdict: call.Allow, Layer: p.layers[0].Name, Rule: at("allow "+granted.text, granted.at)}
}

// Explanation is what a policy says of one tool before any call of it.
type Explanation struct {
	Tool string
	// Decision holds for every call, unless one of Depends makes it stricter.
	Decision call.Decision
	// Depends are the rules with a condition that can still change the verdict.
	Depends []Rule
}

// Explain says what p decides for a tool, and which layer and line of it.
func (p *Policy) Explain(name string) Explanation {
	j := p.judge(name)
	e := Explanation{Tool: name, Decision: j.base}
	for _, r := range j.rules {
		if r.When == nil && stricter(r.Then, e.Decision.Verdict) {
			e.Decision = r.decision()
		}
	}
	if e.Decision.Verdict == call.Deny {
		return e
	}
	for _, r := range j.rules {
		if r.When != nil { // also an ask after an ask: an error in it denies
			e.Depends = append(e.Depends, *r)
		}
	}
	return e
}

func stricter(a, b call.Verdict) bool {
	order := []call.Verdict{call.Allow, call.Ask, call.Deny}
	return slices.Index(order, a) > slices.Index(order, b)
}

func at(rule, place string) string {
	if place == "" {
		return rule
	}
	return rule + " (" + place + ")"
}

// Asks are those of names that a rule of p can ask a person about.
func (p *Policy) Asks(names []string) []string {
	var asks []string
	for _, name := range names {
		e := p.Explain(name)
		if e.Decision.Verdict == call.Ask || e.Decision.Verdict == call.Allow &&
			slices.ContainsFunc(e.Depends, func(r Rule) bool { return r.Then == call.Ask }) {
			asks = append(asks, name)
		}
	}
	return asks
}
