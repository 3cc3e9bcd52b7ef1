package session

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// The limits of a policy reach the gate, and a flag can only narrow them.
func TestLimitsOfAPolicy(t *testing.T) {
	star, err := policy.ParseList("allow", []string{"*"}, []string{"long"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		flags  Limits
		policy policy.Limits
		tools  []policy.ToolLimits
		calls  int // that run
		output int // bytes of one
	}{
		"none":             {calls: 5, output: 1000},
		"the policy's":     {policy: policy.Limits{Calls: 2, Output: 100}, calls: 2, output: 100},
		"a flag narrows":   {flags: Limits{Calls: 1, Output: 50}, policy: policy.Limits{Calls: 2, Output: 100}, calls: 1, output: 50},
		"a flag can't add": {flags: Limits{Calls: 4, Output: 500}, policy: policy.Limits{Calls: 2, Output: 100}, calls: 2, output: 100},
		"of a tool":        {tools: []policy.ToolLimits{{Tools: star[0], Limits: policy.Limits{Calls: 3, Output: 200}}}, calls: 3, output: 200},
		"total":            {policy: policy.Limits{Total: 1500}, calls: 2, output: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := baseConfig(t)
			cfg.Tools = []call.Tool{{Name: "long", Effects: call.Read, Run: func(context.Context, call.Invocation) (call.Result, error) {
				return call.Text(strings.Repeat("x", 1000)), nil
			}}}
			cfg.Limits = c.flags
			cfg.Policy = policy.New(policy.Layer{Name: policy.AgentLayer, Allow: star, Limits: c.policy, ToolLimits: c.tools})
			s := newer(t, cfg)
			ran := 0
			for range 5 {
				res, err := s.Call(t.Context(), "long", nil)
				if err != nil {
					t.Fatal(err)
				}
				if !res.IsError {
					ran++
					if n := strings.Count(res.Content[0].Text, "x"); n > c.output || n < c.output/2 {
						t.Errorf("%d bytes of a result, want about %d", n, c.output)
					}
				}
			}
			if ran != c.calls {
				t.Errorf("%d calls ran, want %d", ran, c.calls)
			}
		})
	}
}

func TestLeast(t *testing.T) {
	for _, c := range [][3]time.Duration{{0, 0, 0}, {0, 2, 2}, {2, 0, 2}, {2, 3, 2}, {3, 2, 2}, {-1, 2, -1}} {
		if got := least(c[0], c[1]); got != c[2] {
			t.Errorf("least(%d, %d) is %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
