package policy

import (
	"io"
	"slices"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Recorded is one call of a record, as the policy of its run decided it.
type Recorded struct {
	Line    int64 // of the record
	Tool    string
	Effects call.Effects
	Mode    string // of the run at that moment
	Verdict call.Verdict
	Layer   string
	Rule    string
	// Refused says that it did not run: by the policy, or because a person who
	// was asked did not say yes.
	Refused bool
	// Args are the decoded arguments; nil where the record does not hold them
	// as they were sent.
	Args map[string]any
}

// ModeNote is the What of the line that says that a run left plan mode.
const ModeNote = "mode"

// scopeLayer is what a record says of a name outside the scope.
const scopeLayer = "scope"

// Record is what a policy can be held against of one run.
type Record struct {
	Run   audit.Run
	Calls []Recorded
	// Other counts refusals that no policy made: a limit, broken arguments, the
	// end of the run.
	Other int
}

// ReadRecord reads the calls of a run's record. By their digest is told whether
// it holds arguments as they were sent, or masked.
func ReadRecord(r io.Reader) (*Record, error) {
	rec := &Record{}
	mode, at := Act, map[int64]int{} // where in rec.Calls a call is
	err := audit.Read(r, func(l audit.Record) error {
		switch {
		case l.Kind == audit.Open && l.Run != nil:
			rec.Run = *l.Run
			if l.Run.Mode == Plan {
				mode = Plan
			}
		case l.Kind == audit.Note && l.What == ModeNote:
			mode = Act
		case l.Kind == audit.End:
			if i, ok := at[l.Call]; ok && l.Outcome == audit.Denied {
				rec.Calls[i].Refused = true
			}
		case l.Kind == audit.Begin, l.Kind == audit.Refused && (l.Layer == scopeLayer || l.Layer == RulesLayer || l.Layer == ModeLayer):
			c := Recorded{
				Line: l.Seq, Tool: l.Tool, Effects: call.Effects(l.Effects), Mode: mode,
				Verdict: call.Verdict(l.Decision), Layer: l.Layer, Rule: l.Rule, Refused: l.Kind == audit.Refused,
			}
			at[l.Seq] = len(rec.Calls)
			if l.ArgumentsSize == 0 {
				c.Args = map[string]any{}
			} else if l.ArgumentsDigest == call.Digest(l.Arguments) {
				// What can't be decoded was refused before a policy saw it.
				c.Args, _ = call.DecodeObject(l.Arguments)
			}
			rec.Calls = append(rec.Calls, c)
		case l.Kind == audit.Refused:
			rec.Other++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rec, nil
}

// Difference is a recorded call that another policy decides otherwise, or may.
type Difference struct {
	Recorded
	Now call.Decision
	// Undecidable says what is missing to tell; "" where Now is certain.
	Undecidable string
}

// Replay says which calls of a record p decides otherwise than the policy they
// were made under. tools are the names p was written for: a recorded name that
// is not one of them was outside every scope.
func (p *Policy) Replay(rec *Record, tools []string) []Difference {
	mode := ""
	q := p.Bound(call.Binding{Run: rec.Run.ID, Workspace: rec.Run.Workspace, Channel: rec.Run.Channel, User: rec.Run.User, Agent: rec.Run.Agent}, func() string { return mode })
	var out []Difference
	for _, c := range rec.Calls {
		// A run that began to act has no moment at which another policy would have
		// had a plan of it.
		if mode = ""; rec.Run.Mode == Plan {
			if began, _ := p.Mode(); began == Plan {
				mode = c.Mode
			}
		}
		d := Difference{Recorded: c, Now: q.judge(c.Tool).base}
		switch {
		case c.Layer == scopeLayer && !slices.Contains(tools, c.Tool):
			// Only an embedder has tools that are not known here.
			if d.Now.Verdict == call.Deny || rec.Run.Level != "embedded" {
				continue
			}
			d.Undecidable = "no tool of that name is known here, and the policy would allow one"
		case c.Args == nil && len(q.Explain(c.Tool).Depends) > 0:
			d.Undecidable = "a rule looks at the arguments, and the record does not hold them as they were sent"
		default:
			d.Now = q.Decide(call.Request{Tool: c.Tool}, &call.Tool{Name: c.Tool, Effects: c.Effects}, c.Args)
		}
		if d.Undecidable != "" || d.Now.Verdict != c.Verdict {
			out = append(out, d)
		}
	}
	return out
}

// Suggestion is the least scope that lets through what runs did.
type Suggestion struct {
	Allow   []string       // tools that ran, sorted
	Asked   []string       // tools a person was to be asked about, that are not in Allow, sorted
	Unused  []string       // tools of the runs' scopes that are in neither, sorted
	Refused map[string]int // calls that were refused, by tool
	ByRules int            // of these, those a rule refused
}

// Suggest looks at what the runs executed. Its Allow and Asked beside the same
// rules decide every recorded call of one run as it was decided.
func Suggest(records ...*Record) Suggestion {
	ran, asked, had := map[string]bool{}, map[string]bool{}, map[string]bool{}
	s := Suggestion{Refused: map[string]int{}, Allow: []string{}}
	for _, rec := range records {
		for _, name := range rec.Run.Scope {
			had[name] = name != PlanTool
		}
		for _, c := range rec.Calls {
			if c.Tool == PlanTool && c.Layer == ModeLayer {
				continue // no list grants it
			}
			if c.Verdict == call.Allow {
				ran[c.Tool] = true
				continue
			}
			if c.Verdict == call.Ask {
				asked[c.Tool] = true
			}
			if !c.Refused {
				continue
			}
			s.Refused[c.Tool]++
			if c.Layer == RulesLayer {
				s.ByRules++
			}
		}
	}
	for name := range ran {
		s.Allow = append(s.Allow, name)
	}
	for name := range asked {
		if !ran[name] {
			s.Asked = append(s.Asked, name)
		}
	}
	for name, given := range had {
		if given && !ran[name] && !asked[name] {
			s.Unused = append(s.Unused, name)
		}
	}
	slices.Sort(s.Allow)
	slices.Sort(s.Asked)
	slices.Sort(s.Unused)
	return s
}
