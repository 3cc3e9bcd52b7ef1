package session

import (
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/gate"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// strictest narrows limits by those of a policy. Zero is no limit in either.
func strictest(l Limits, p policy.Limits) Limits {
	l.Calls = least(l.Calls, p.Calls)
	l.Concurrent = least(l.Concurrent, p.Concurrent)
	l.Output = least(l.Output, p.Output)
	l.Total = least(l.Total, p.Total)
	l.Call = least(l.Call, p.Call)
	return l
}

// least is the smaller of those that are set. A negative a stays what it is: an
// error that is told elsewhere.
func least[N int | int64 | float64 | time.Duration](a, b N) N {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// applyLimits takes the policy's limits over into what the run is made of. A
// policy's limit also replaces a default, which is why it comes first.
func (s *Session) applyLimits(pol *policy.Policy) error {
	l := pol.Limits()
	s.cfg.Limits = strictest(s.cfg.Limits, l)
	if a := s.cfg.Agent; a != nil {
		a.Wall, a.Budget = least(a.Wall, l.Wall), least(a.Budget, l.Budget)
	} else if l.Budget > 0 {
		return fault.New(fault.Usage, "use drawbridge run with an agent CLI, or leave the budget out", "the policy has a budget of %s, and nobody would report what this run costs", Dollars(l.Budget))
	}
	if p := s.cfg.Program; p != nil {
		p.Wall = least(p.Wall, l.Wall)
	}
	return nil
}

// toolLimits are the limits of single tools in scope.
func toolLimits(pol *policy.Policy, names []string) map[string]gate.Limits {
	m := map[string]gate.Limits{}
	for _, name := range names {
		if l := strictest(Limits{}, pol.ToolLimits(name)); l != (Limits{}) {
			m[name] = l
		}
	}
	return m
}
