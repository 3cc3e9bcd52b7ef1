//go:build linux

package e2e

import (
	"testing"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// An answer of the scripted model costs 0.00012 dollars by the prices that the
// pinned Claude Code has, also for a model it does not know.
func TestClaudeSpendsItsBudget(t *testing.T) {
	t.Parallel()
	search := model.Step{Tool: "memory_search", Args: map[string]any{"query": "x"}}
	for name, tc := range map[string]struct {
		flags []string
		code  int
		asked int // requests to the model
		says  string
	}{
		"in the middle":              {[]string{"--budget", "0.0002"}, 4, 2, "spent $0.00024 of a budget of $0.0002"},
		"in the middle, exactly":     {[]string{"--budget", "0.00024"}, 4, 2, "spent $0.00024 of a budget of $0.00024"},
		"with its last answer":       {[]string{"--budget", "0.0003"}, 4, 3, "spent $0.00036 of a budget of $0.0003"},
		"and has some left":          {[]string{"--budget", "0.01"}, 0, 3, ""},
		"by the policy":              {[]string{"--budget", "9"}, 4, 2, "of a budget of $0.00024"},
		"with a model it never knew": {[]string{"--budget", "0.0002", "--model", "no-such-model-9"}, 4, 2, "spent $0.00024 of a budget of $0.0002"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worker := "\n    tools: { allow: [memory_search] }"
			if name == "by the policy" {
				worker += "\n    limits: { budget: 0.00024 }"
			}
			m := Model(t, search, search, model.Step{Text: "done"})
			p, c := governedRun(t, m, worker, tc.flags...)
			c.begin().ends(tc.code)
			end := c.first(event.Ended)
			p.closed(end.Run, tc.code)
			p.nothing(end.Run, 0, 0)
			if n := len(m.Requests()); n != tc.asked {
				t.Errorf("the model was asked %d times, want %d", n, tc.asked)
			}
			if finished := c.first(event.Finished); finished.CostUSD == nil || (finished.Status == event.OverBudget) != (tc.code == 4) {
				t.Errorf("%+v", finished)
			}
			c.says(tc.says)
		})
	}
}
