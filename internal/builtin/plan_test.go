package builtin

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/catalogue"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

// Effects is what plan mode and tables of tests go by where no tool is made.
func TestEffects(t *testing.T) {
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "drawbridge.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	files, err := NewFiles(Files{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	tools := append(Memory(memory.NewService(db.Notes(), nil)), files.Tools()...)
	tools = append(tools, Command(Commands{Folder: t.TempDir(), Marker: "r"}), Plan("submit_plan", func() {}))
	got := map[string]call.Effects{}
	for _, tool := range tools {
		got[tool.Name] = tool.Effects
	}
	if !maps.Equal(got, Effects) {
		t.Errorf("the tools say %v\nEffects says   %v", got, Effects)
	}
}

func TestPlan(t *testing.T) {
	accepted := 0
	plan := Plan("submit_plan", func() { accepted++ })
	all, err := catalogue.New(plan)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := all.Scope("s", func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	listed, _ := scope.Lookup("submit_plan")
	for args, ok := range map[string]bool{
		`{"plan":"# do it"}`: true, `{"plan":"x","more":1}`: true, `{}`: false, `{"plan":""}`: false, `{"plan":1}`: false,
		`{"plan":null}`: false, `{"plan":["x"]}`: false, `{"Plan":"x"}`: false, `{"markdown":"x"}`: false,
	} {
		decoded, err := call.DecodeObject([]byte(args))
		if err != nil {
			t.Fatal(err)
		}
		if err := listed.Validate(decoded); (err == nil) != ok {
			t.Errorf("%s: %v", args, err)
		} else if err != nil && !strings.Contains(err.Error(), "plan") {
			t.Errorf("%s: %v does not name the field", args, err)
		}
	}
	for _, word := range []string{"plan", "person", "read", "reason"} {
		if !strings.Contains(plan.Description, word) {
			t.Errorf("the description has no %q: %s", word, plan.Description)
		}
	}
	if accepted != 0 {
		t.Error("accepted before it ran")
	}
	res, err := plan.Run(t.Context(), call.Invocation{Arguments: []byte(`{"plan":"x"}`)})
	if err != nil || res.IsError || accepted != 1 || !strings.Contains(res.Content[0].Text, "The plan is approved. Carry it out now") {
		t.Errorf("%+v %v, accepted %d", res, err, accepted)
	}
}

// A person must be shown the plan that was judged: where two readings could
// differ there is no plan, and the arguments are shown as they are.
func TestPlanOf(t *testing.T) {
	huge := strings.Repeat("# step\n", 500_000)
	hugeJSON, err := json.Marshal(map[string]string{"plan": huge})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{`{"plan":"# one\n- two"}`, "# one\n- two"},
		{` { "note":{"plan":"inner"}, "\u0070lan" : "x" } `, "x"},
		{`{"plan":"good","plan":"bad"}`, ""},
		{`{"plan":"good","\u0070lan":"bad"}`, ""},
		{`{"plan":"good","x":{"a":1,"a":2}}`, ""},
		{`{"Plan":"bad"}`, ""},
		{`{"plan":"good","Plan":"bad","PLAN":"bad"}`, "good"},
		{`{"plan":null}`, ""},
		{`{"plan":1}`, ""},
		{`{"plan":["x"]}`, ""},
		{`{"plan":"` + "\xff" + `"}`, ""},
		{`{"plan":"x"} {"plan":"y"}`, ""},
		{`[{"plan":"x"}]`, ""},
		{`"plan"`, ""},
		{`null`, ""},
		{`{}`, ""},
		{`{`, ""},
		{``, ""},
		{string(hugeJSON), huge},
		{strings.Repeat(`{"plan":`, 200_000), ""},
	} {
		if got := PlanOf([]byte(c.args)); got != c.want {
			t.Errorf("%.60q: %.60q, want %.60q", c.args, got, c.want)
		}
	}
	if got := PlanOf(nil); got != "" {
		t.Errorf("%q", got)
	}
}
