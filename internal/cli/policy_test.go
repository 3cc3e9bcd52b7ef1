package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// policy explain shows the name a model sees, also where it is an alias.
func TestExplainShowsAliases(t *testing.T) {
	names := []string{"read_file", "größe", "catalog.get-item", strings.Repeat("long_", 20) + "a", strings.Repeat("long_", 20) + "b"}
	all, err := policy.ParseList("allow", []string{"*"}, names)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{out: &out}
	a.explainTools(policy.New(policy.Layer{Name: policy.AgentLayer, Allow: all}), "drawbridge", names, false)
	lines := strings.Split(out.String(), "\n")
	for i, name := range names {
		fields := strings.Fields(lines[i+1])
		sees := fields[len(fields)-1]
		if sees != "mcp__drawbridge__"+catalogue.Expose("drawbridge", names)[name] || len(sees) > catalogue.MaxName || fields[0] != name {
			t.Errorf("%s: %q", name, lines[i+1])
		}
		for _, other := range names[:i] {
			if o := catalogue.Expose("drawbridge", names)[other]; strings.HasSuffix(sees, "__"+o) {
				t.Errorf("%s and %s are both %s", name, other, o)
			}
		}
	}
}
