package policyfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// Table is a file of tests of a policy.
type Table struct {
	Policy Text   `json:"policy,omitzero"`
	Tests  []Test `json:"tests"`

	path string
}

// Test is one call and the decision it has to get.
type Test struct {
	At        Pos       `json:"-"`
	Name      Text      `json:"name,omitzero"`
	Agent     Text      `json:"agent"`
	Workspace Text      `json:"workspace,omitzero"`
	Channel   Text      `json:"channel,omitzero"`
	User      Text      `json:"user,omitzero"`
	Mode      Text      `json:"mode,omitzero"` // "" is the one a run begins in
	Tool      Text      `json:"tool"`
	Args      Arguments `json:"args,omitempty"`
	Want      Text      `json:"want"`
	By        Text      `json:"by,omitzero"`
}

// Arguments are the arguments of a call, as JSON would decode them.
type Arguments map[string]any

// ParseTests reads a file of tests. Errors are as those of Parse.
func ParseTests(path string, data []byte) (*Table, error) {
	t := &Table{path: path}
	d := &decoder{path: path, base: filepath.Base(path)}
	d.decode(data, t)
	if len(d.errs) == 0 {
		checker{decoder: d}.bounded(func() {
			for i, test := range t.Tests {
				if w := test.Want.Value; !slices.Contains([]string{"allow", "ask", "deny"}, w) {
					d.failAt(test.Want.At, fault.Suggest(w, []string{"allow", "ask", "deny"}), "tests[%d].want: %q is no decision", i, call.Clip(w))
				}
				if m := test.Mode.Value; m != "" && m != policy.Act && m != policy.Plan {
					d.failAt(test.Mode.At, fault.Suggest(m, []string{policy.Act, policy.Plan}), "tests[%d].mode: %q is no mode", i, call.Clip(m))
				}
			}
			if len(t.Tests) == 0 {
				d.failAt(Pos{1, 1}, "", "there are no tests in it")
			}
		})
	}
	return t, d.err()
}

// Beside is the policy file the table names, "" for none.
func (t *Table) Beside() string {
	p := t.Policy.Value
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(filepath.Dir(t.path), p)
}

// Run says what is wrong with the decision of f, "" for nothing. tools are all
// tools there are, with their effects.
func (t *Test) Run(f *File, tools map[string]call.Effects) string {
	workspace := or(t.Workspace.Value, "default")
	sel, err := f.Select(t.Agent.Value, workspace, t.Channel.Value)
	if err != nil {
		return err.Error()
	}
	effects, ok := tools[t.Tool.Value]
	if !ok {
		return strings.TrimSpace(fmt.Sprintf("no tool is called %q; %s", call.Clip(t.Tool.Value), fault.Suggest(t.Tool.Value, slices.Sorted(maps.Keys(tools)))))
	}
	args := t.Args
	if args == nil {
		args = Arguments{}
	}
	p := policy.New(sel.Layers()...).Bound(call.Binding{Workspace: workspace, Channel: t.Channel.Value, User: t.User.Value, Agent: t.Agent.Value}, func() string { return t.Mode.Value })
	d := p.Decide(call.Request{Tool: t.Tool.Value}, &call.Tool{Name: t.Tool.Value, Effects: effects}, args)
	name := ""
	if t.Name.Value != "" {
		name = t.Name.Value + ": "
	}
	switch {
	case string(d.Verdict) != t.Want.Value:
		return fmt.Sprintf("%swant %s, got %s by %s %s", name, t.Want.Value, d.Verdict, d.Layer, d.Rule)
	case t.By.Value != "" && d.Layer != t.By.Value:
		return fmt.Sprintf("%swant %s by %s, got it by %s %s", name, t.Want.Value, call.Clip(t.By.Value), d.Layer, d.Rule)
	}
	return ""
}

func (a *Arguments) read(d *decoder, n *yaml.Node, path string) {
	if d.want(n, yaml.MappingNode, "", path, "a map of arguments") {
		*a, _ = d.json(n, path).(map[string]any)
	}
}

// json is the value of a node as a decoder of JSON would make it.
func (d *decoder) json(n *yaml.Node, path string) any {
	if d.values++; d.values > maxValues {
		d.fail(n, "", "the file has more than %d values, counting what aliases repeat", maxValues)
		panic(bomb{})
	}
	if d.depth++; d.depth > maxDepth {
		d.fail(n, "", "nested deeper than %d levels", maxDepth)
		panic(bomb{})
	}
	defer func() { d.depth-- }()
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		d.each(n, path, func(key, val *yaml.Node) { m[key.Value] = d.json(val, dot(path)+call.Clip(key.Value)) })
		return m
	case yaml.SequenceNode:
		list := []any{}
		for i, c := range n.Content {
			list = append(list, d.json(c, fmt.Sprintf("%s[%d]", path, i)))
		}
		return list
	}
	switch n.ShortTag() {
	case "!!str":
		return n.Value
	case "!!null":
		return nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true")
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value)
		}
	}
	d.fail(n, "put it in quotes, or write it as JSON does", "%s: %s is no JSON value", path, call.Clip(n.Value))
	return nil
}
