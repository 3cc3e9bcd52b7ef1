package policy

import (
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// The names of layers in decisions.
const (
	AgentLayer     = "agent"
	WorkspaceLayer = "workspace"
	ChannelLayer   = "channel"
	RulesLayer     = "rules" // a rule on arguments, in whatever layer it stands
	RunLayer       = "run"   // flags of the command line beside a policy agent
	ModeLayer      = "mode"  // plan mode, whichever layer sets it
)

// Layer is one source of narrowing. The first layer grants, the others can
// only take away.
type Layer struct {
	Name string
	// Allow is, in the first layer, all that is granted. In a later one it takes
	// away every tool it does not name; there nil says nothing, and an empty
	// list that is not nil names nothing.
	Allow []Pattern
	// AllowAt is the place Allow stands in, or the layer where it has none; ""
	// for a command line.
	AllowAt string
	// Deny takes away what it names, whatever Allow says in any layer.
	Deny []Pattern
	// Rules look at calls of tools that no list took away.
	Rules []Rule
	// Plan makes the run begin in mode Plan. PlanAt is where that is written.
	Plan   bool
	PlanAt string
	// Limits are for the whole run, ToolLimits for one tool each.
	Limits     Limits
	ToolLimits []ToolLimits
}

func (l Layer) clone() Layer {
	l.Allow, l.Deny = slices.Clone(l.Allow), slices.Clone(l.Deny)
	l.Rules, l.ToolLimits = slices.Clone(l.Rules), slices.Clone(l.ToolLimits)
	for i := range l.Rules {
		l.Rules[i].Tools = slices.Clone(l.Rules[i].Tools)
	}
	return l
}

// unnamed is the rule that denies a tool Allow does not name.
func (l Layer) unnamed() string {
	if l.AllowAt == "" {
		return ""
	}
	return at("not in allow", l.AllowAt)
}

// Input is what a rule sees of a call.
type Input struct {
	Tool    string
	Args    map[string]any // numbers are json.Number
	Binding call.Binding
	Mode    string
	// Memo is the conditions' own, for what they convert once for a call.
	Memo any
}

// Condition is the when of a rule, compiled. It is pure, safe for concurrent
// use, and bounded in time.
type Condition interface {
	// Eval reports whether the rule applies. The call is denied where it fails.
	// An error that has the method Public is shown to the model and recorded;
	// every other one may quote arguments and is not.
	Eval(in *Input) (bool, error)
}

// Rule makes some calls stricter.
type Rule struct {
	Tools  []Pattern    // which tools; nil is every tool
	When   Condition    // nil applies to every call
	Text   string       // of When
	Then   call.Verdict // Ask or Deny; anything else counts as Deny
	Reason string       // for the model; "" is a sentence of ours
	At     string       // the place it stands in
}

func (r *Rule) concerns(name string) bool {
	if r.Tools == nil {
		return true
	}
	_, ok := first(r.Tools, name)
	return ok
}

// judge is the decision of r on a call, one without a verdict where r does not
// apply.
func (r *Rule) judge(in *Input) call.Decision {
	if r.When == nil {
		return r.decision()
	}
	yes, err := r.When.Eval(in)
	if err != nil {
		d := r.decision()
		d.Verdict = call.Deny
		d.Rule += ": can't be judged"
		d.Reason = "a rule of the policy can't be judged with these arguments, so the call is denied"
		if e, ok := errors.AsType[interface {
			error
			Public() string
		}](err); ok {
			d.Reason += ": " + e.Public()
		}
		return d
	}
	if !yes {
		return call.Decision{}
	}
	return r.decision()
}

func (r *Rule) decision() call.Decision {
	d := call.Decision{Verdict: r.Then, Layer: RulesLayer, Rule: at(r.String(), r.At), Reason: r.Reason}
	if d.Verdict != call.Ask {
		d.Verdict = call.Deny
	}
	if d.Reason == "" {
		d.Reason = "a rule of the policy does not allow this call"
		if d.Verdict == call.Ask {
			d.Reason = "a rule of the policy asks a person before this call"
		}
	}
	return d
}

// String is r without its tools and its place.
func (r *Rule) String() string {
	if r.Text == "" {
		return string(r.Then)
	}
	return string(r.Then) + " when " + call.Clip(r.Text)
}

// Limits bound a run or one tool. Zero is no limit.
type Limits struct {
	Calls      int64         // executed calls
	Concurrent int           // calls under way at once
	Output     int           // bytes of one result
	Total      int64         // bytes of all results together
	Call       time.Duration // time one call may take
	Wall       time.Duration // time of the whole run; not for one tool
	Budget     float64       // US dollars the run may cost; not for one tool
}

// ToolLimits are the limits of each tool that Tools matches, for itself.
type ToolLimits struct {
	Tools  Pattern
	Limits Limits
}

// strictest is, field by field, the smaller of those that are set.
func (l Limits) strictest(o Limits) Limits {
	v, w := reflect.ValueOf(&l).Elem(), reflect.ValueOf(o)
	for i := range v.NumField() {
		if n := size(w.Field(i)); n > 0 && (size(v.Field(i)) <= 0 || n < size(v.Field(i))) {
			v.Field(i).Set(w.Field(i))
		}
	}
	return l
}

func size(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	return float64(v.Int())
}

// ExprError is why a condition does not compile, and where in its text.
type ExprError struct {
	Line, Column int // from 1; 0 for the whole
	Message      string
}

func (e *ExprError) Error() string { return e.Message }
