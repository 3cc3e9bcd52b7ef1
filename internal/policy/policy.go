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

// Modes of a run. In Plan only tools with effects read run, until a person has
// approved a plan.
const (
	Act  = "act"
	Plan = "plan"
)

// PlanTool puts a plan before a person. It is in the scope of every run that
// begins in Plan, whatever the layers list, and of no other.
const PlanTool = "submit_plan"

// Policy is the layers of one run, frozen.
type Policy struct {
	layers  []Layer
	digest  string
	planAt  string // the layer, and place, that sets Plan; "" for Act
	binding call.Binding
	mode    func() string
	// known holds what the layers say of a tool, by name: the layers of a run
	// never change, and only the names of a catalogue are asked for.
	known *sync.Map
}

// FromFlags is the policy of a command line or an embedder: one agent layer
// that grants what allow names, asks a person about what ask names, and denies
// everything else. Empty lists name nothing. plan makes the run begin in plan
// mode. A blank or malformed entry, and a name or pattern that names no tool in
// known, are errors of kind Usage.
func FromFlags(allow, ask []string, plan bool, known []string) (*Policy, error) {
	granted, err := ParseList("allow", allow, known)
	if err != nil {
		return nil, err
	}
	asked, err := ParseList("ask", ask, known)
	if err != nil {
		return nil, err
	}
	l := Layer{Name: AgentLayer, Allow: granted, Plan: plan}
	if len(asked) > 0 {
		l.Rules = []Rule{{Tools: asked, Then: call.Ask}}
	}
	return New(l), nil
}

// New freezes layers. Without a layer nothing is granted.
func New(layers ...Layer) *Policy {
	p := &Policy{known: &sync.Map{}, mode: func() string { return "" }}
	h := sha256.New()
	for _, l := range layers {
		l = l.clone()
		p.layers = append(p.layers, l)
		fmt.Fprintf(h, "layer %q allow %t %q deny %q\n", l.Name, l.Allow != nil, l.Allow, l.Deny)
		for _, r := range l.Rules {
			fmt.Fprintf(h, "rule %t %q when %t %q then %q because %q\n", r.Tools != nil, r.Tools, r.When != nil, r.Text, r.Then, r.Reason)
		}
		if l.Plan {
			fmt.Fprintf(h, "mode plan\n")
			if p.planAt == "" {
				p.planAt = at(l.Name, l.PlanAt)
			}
		}
		fmt.Fprintf(h, "limits %+v\n", l.Limits)
		for _, t := range l.ToolLimits {
			fmt.Fprintf(h, "limits of %q %+v\n", t.Tools, t.Limits)
		}
	}
	p.digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return p
}

// Bound is p for the run that b is about, whose mode now mode says; rules may
// look at both. A nil mode is the one the run begins in.
func (p *Policy) Bound(b call.Binding, mode func() string) *Policy {
	q := *p
	q.binding = b
	if mode != nil {
		q.mode = mode
	}
	return &q
}

// Mode is the mode a run under p begins in. at names the layer, and the place,
// that sets Plan.
func (p *Policy) Mode() (mode, at string) {
	if p.planAt != "" {
		return Plan, p.planAt
	}
	return Act, ""
}

// now is the mode of the run. Whatever is not Act is Plan.
func (p *Policy) now() string {
	m := p.mode()
	if m == "" {
		m, _ = p.Mode()
	}
	if m != Act {
		return Plan
	}
	return Act
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
	if d.Verdict == call.Deny {
		return d
	}
	mode := p.now()
	if tool.Name == PlanTool && p.planAt != "" {
		return p.submitted(mode)
	}
	if mode == Plan && tool.Effects != call.Read {
		return call.Decision{
			Verdict: call.Deny, Layer: ModeLayer, Rule: "plan set by " + p.planAt,
			Reason: "this run is in plan mode, where only tools that read are run; put your plan before a person with the tool " + PlanTool + ", and call this again once the plan is approved",
		}
	}
	if len(j.rules) == 0 {
		return d
	}
	in := Input{Tool: tool.Name, Args: args, Binding: p.binding, Mode: mode}
	for _, r := range j.rules {
		if next := r.judge(&in); stricter(next.Verdict, d.Verdict) {
			d = next
		}
		if d.Verdict == call.Deny {
			break
		}
	}
	return d
}

// submitted is the decision on a call of PlanTool.
func (p *Policy) submitted(mode string) call.Decision {
	d := call.Decision{Verdict: call.Ask, Layer: ModeLayer, Rule: "plan set by " + p.planAt, Reason: "the run is in plan mode until a person approves its plan"}
	if mode != Plan {
		d.Verdict, d.Reason = call.Deny, "a plan was approved already; carry it out"
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
	if name == PlanTool && p.planAt != "" {
		return call.Decision{Verdict: call.Allow, Layer: ModeLayer, Rule: "plan set by " + p.planAt}
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
	// Decision holds for every call, unless one of Depends makes it stricter. In
	// plan mode a tool that does not read is denied besides.
	Decision call.Decision
	// Depends are the rules with a condition that can still change the verdict.
	Depends []Rule
}

// Explain says what p decides for a tool, and which layer and line of it.
func (p *Policy) Explain(name string) Explanation {
	j := p.judge(name)
	e := Explanation{Tool: name, Decision: j.base}
	if name == PlanTool && p.planAt != "" {
		e.Decision = p.submitted(p.now())
		return e
	}
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
		if e.Decision.Verdict == call.Ask || slices.ContainsFunc(e.Depends, func(r Rule) bool { return r.Then == call.Ask }) {
			asks = append(asks, name)
		}
	}
	return asks
}
