package gate

import (
	"fmt"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// tally is what one tool, or the whole run, has used of its limits.
type tally struct {
	begun   int64
	running int   // admitted and not answered
	out     int64 // bytes of results delivered
}

// admit lets a call begin, or says which limit is in the way. A limit that is
// refused at is not used up by the refusal.
func (g *Gate) admit(tool string) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return deny("run", "ended", "refused: the run is ending")
	}
	stuck := 0
	for _, name := range g.abandoned {
		if name == tool {
			stuck++
		}
	}
	t := g.tools[tool]
	if t == nil {
		t = &tally{}
		g.tools[tool] = t
	}
	if no := over(g.cfg.Limits, &g.all, len(g.abandoned), "", "this run"); no != nil {
		return no
	}
	if no := over(g.cfg.ToolLimits[tool], t, stuck, " of "+tool, "tool '"+tool+"'"); no != nil {
		return no
	}
	for _, t := range []*tally{&g.all, t} {
		t.begun++
		t.running++
	}
	return nil
}

func over(l Limits, t *tally, stuck int, of, who string) *refusal {
	switch {
	case l.Concurrent > 0 && t.running+stuck >= l.Concurrent:
		return deny("limits", "concurrent"+of, fmt.Sprintf("refused: too many calls%s at once; wait for one of them to finish and try again", of))
	case l.Calls > 0 && t.begun >= l.Calls:
		if of != "" {
			return deny("limits", "calls"+of, fmt.Sprintf("refused: %s has used up its number of calls; finish without it", who))
		}
		return deny("limits", "calls", "refused: this run has used up its number of tool calls; finish without further calls")
	case l.Total > 0 && t.out >= l.Total:
		return deny("limits", "total"+of, fmt.Sprintf("refused: %s has used up the bytes its results may have together; finish without it", who))
	}
	return nil
}

func (g *Gate) leave(tool string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all.running--
	g.tools[tool].running--
	g.fewer.Broadcast()
}

// length is how many bytes of content a result has.
func length(res call.Result) int {
	n := len(res.Raw) + len(res.Structured)
	for _, b := range res.Content {
		n += len(b.Text) + len(b.JSON)
	}
	return n
}

// output is how many bytes one result of the tool may have.
func (g *Gate) output(tool string) int {
	n := g.cfg.Limits.Output
	if t := g.cfg.ToolLimits[tool].Output; t > 0 {
		n = min(n, t)
	}
	return n
}

// callTime is how long one call of the tool may take.
func (g *Gate) callTime(tool string) time.Duration {
	d := g.cfg.Limits.Call
	if t := g.cfg.ToolLimits[tool].Call; t > 0 {
		d = min(d, t)
	}
	return d
}
