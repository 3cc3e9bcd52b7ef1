package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/celrule"
	"github.com/drawbridge-mcp/drawbridge/internal/policy/policyfile"
)

// policyText is a policy file with an agent, a workspace and a channel, which
// with the command line are four layers, and 20 rules in them. Each layer has
// rules for every tool, for some and for one.
func policyText(tools []string, everywhere bool) string {
	rules := func(indent string, n int) string {
		var b strings.Builder
		for i := range n {
			when, of := []string{
				`binding.channel == "quiet" && tool.startsWith("send")`,
				`args.n > 1000 || args.path.startsWith("secret/")`,
				`!(args.path in ["docs/a", "docs/b", "docs/c"])`,
				`path_in(args.path, "secret")`,
				`args.n < 0 || args.n == 17`,
			}[i%5], fmt.Sprintf("tools: [\"tool_%d*\"], ", i)
			if everywhere || i%5 == 0 {
				of = ""
			}
			fmt.Fprintf(&b, "%s- { %swhen: '%s', then: deny }\n", indent, of, when)
		}
		return b.String()
	}
	return "version: 1\nagents:\n  worker:\n    tools: { allow: [" + strings.Join(tools, ", ") + "] }\n    rules:\n" + rules("      ", 10) +
		"workspaces:\n  w:\n    rules:\n" + rules("      ", 5) + "    channels:\n      c:\n        tools: { deny: [\"other_*\"] }\n        rules:\n" + rules("          ", 5)
}

func toolNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("tool_%d", i)
	}
	return append(names, "other_a")
}

// policyOf reads the text, as a run does, and adds the layer of the command
// line.
func policyOf(text string, tools []string) (*policy.Policy, error) {
	f, err := policyfile.Parse("drawbridge.yaml", []byte(text), policyfile.Options{Tools: tools, Compile: celrule.Compile})
	if err != nil {
		return nil, err
	}
	sel, err := f.Select("worker", "w", "c")
	if err != nil {
		return nil, err
	}
	all, err := policy.ParseList("allow", []string{"*"}, tools)
	if err != nil {
		return nil, err
	}
	layers := append(sel.Layers(), policy.Layer{Name: policy.RunLayer, Allow: all})
	return policy.New(layers...).Bound(call.Binding{Run: "r", Workspace: "w", Channel: "c", User: "u", Agent: "worker"}, nil), nil
}

// policy measures a decision, and what it takes to explain a policy.
func (l *list) policy() error {
	decide := func(everywhere bool) (p50, p95 time.Duration, err error) {
		names := toolNames(200)
		p, err := policyOf(policyText(names, everywhere), names)
		if err != nil {
			return 0, 0, err
		}
		var took []time.Duration
		for i := range 22_000 {
			t := call.Tool{Name: names[i%200]}
			args := map[string]any{"n": json.Number("3"), "path": "docs/a", "text": "a few words"}
			began := time.Now()
			d := p.Decide(call.Request{Tool: t.Name}, &t, args)
			took = append(took, time.Since(began))
			if d.Verdict != call.Allow {
				return 0, 0, fmt.Errorf("the policy to measure decides %+v", d)
			}
		}
		took = took[2000:] // warm-up
		slices.Sort(took)
		return took[len(took)/2], took[len(took)*95/100], nil
	}
	p50, p95, err := decide(false)
	if err != nil {
		return err
	}
	all, _, err := decide(true)
	if err != nil {
		return err
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	l.most("decision p50: 200 tools, 20 rules, four layers", us(p50), 5, "us", fmt.Sprintf("p95 %.1f us", us(p95)))
	l.most("the same, all 20 rules for every tool", us(all), 5, "us", "")

	names := toolNames(1000)
	text := policyText(names, false)
	var took []time.Duration
	for range 21 {
		began := time.Now()
		p, err := policyOf(text, names)
		if err != nil {
			return err
		}
		exposed := catalogue.Expose("drawbridge", names)
		for _, name := range names {
			e := p.Explain(name)
			fmt.Fprintln(io.Discard, name, exposed[name], e.Decision, e.Depends)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	l.most("policy explain for 1,000 tools, file read, p50", ms(took[len(took)/2]), 100, "ms", fmt.Sprintf("slowest of %d %.1f ms", len(took), ms(took[len(took)-1])))
	return nil
}
