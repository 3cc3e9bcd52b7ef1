package catalogue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func run(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil }

func tool(name string) call.Tool { return call.Tool{Name: name, Run: run, Effects: call.Read} }

func all(string) bool { return true }

func mustScope(t *testing.T, tools ...call.Tool) *Scope {
	t.Helper()
	c, err := New(tools...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Scope("s", all)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNewRefuses(t *testing.T) {
	with := func(change func(*call.Tool)) []call.Tool {
		x := tool("good_name")
		change(&x)
		return []call.Tool{x}
	}
	schema := func(s string) []call.Tool { return with(func(x *call.Tool) { x.InputSchema = []byte(s) }) }
	for _, c := range []struct {
		name  string
		tools []call.Tool
		says  string
	}{
		{"no name", []call.Tool{tool("")}, `tool name ""`},
		{"a blank name", []call.Tool{tool(" ")}, `tool name " "`},
		{"a name with a line break", []call.Tool{tool("a\n")}, `tool name "a\n"`},
		{"a name with a slash", []call.Tool{tool("a/b")}, `tool name "a/b"`},
		{"a name with a star", []call.Tool{tool("a*")}, `tool name "a*"`},
		{"a name with a blank at its end", []call.Tool{tool("a ")}, `tool name "a "`},
		{"a name that is not UTF-8", []call.Tool{tool("a\xff")}, "tool name"},
		{"a name nobody sees", []call.Tool{tool("a\u200bb")}, "tool name"},
		{"a name of 129", []call.Tool{tool(strings.Repeat("a", 129))}, "tool name"},
		{"a very long name", []call.Tool{tool(strings.Repeat("a ", 1<<20))}, "tool name"},
		{"no function", with(func(x *call.Tool) { x.Run = nil }), `"good_name" has no function`},
		{"unknown effects", with(func(x *call.Tool) { x.Effects = "Read" }), `"good_name" has unknown effects "Read"`},
		{"a schema that is no JSON", schema(`{"type":"object"`), `input schema of tool "good_name"`},
		{"a schema with a key twice", schema(`{"type":"object","type":"object"}`), `input schema of tool "good_name"`},
		{"a schema that is an array", schema(`[]`), `input schema of tool "good_name"`},
		{"a schema that is null", schema(`null`), `input schema of tool "good_name"`},
		{"a schema that is true", schema(`true`), `input schema of tool "good_name"`},
		{"a schema without a type", schema(`{}`), `input schema of tool "good_name"`},
		{"a schema of another type", schema(`{"type":"string"}`), `input schema of tool "good_name"`},
		{"a schema of several types", schema(`{"type":["object"]}`), `input schema of tool "good_name"`},
		{"a schema that is no schema", schema(`{"type":"object","properties":{"a":{"type":"int"}}}`), `input schema of tool "good_name"`},
		{"a schema with a bad pattern", schema(`{"type":"object","properties":{"a":{"pattern":"("}}}`), `input schema of tool "good_name"`},
		{"a schema with a number nobody can compare", schema(`{"type":"object","properties":{"a":{"minimum":1e99999999}}}`), `input schema of tool "good_name"`},
		{"a reference to nothing", schema(`{"type":"object","properties":{"a":{"$ref":"#/$defs/none"}}}`), `input schema of tool "good_name"`},
	} {
		_, err := New(c.tools...)
		if err == nil || !strings.Contains(err.Error(), c.says) || fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v (hint %q), want one that says %s", c.name, err, fault.HintOf(err), c.says)
		}
	}
}

// A built-in keeps its name and nothing that is named like it takes its calls.
func TestField41_NameTwice(t *testing.T) {
	for _, tools := range [][]call.Tool{
		{tool("memory_search"), tool("memory_search")},
		{tool("execute_command"), tool("other"), tool("execute_command")},
	} {
		if _, err := New(tools...); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is defined twice", tools[0].Name)) {
			t.Errorf("%v", err)
		}
	}
	// Names are exact bytes: case makes another tool.
	if _, err := New(tool("search"), tool("Search")); err != nil {
		t.Error(err)
	}
}

func TestEffectsDefaultToTheStrictest(t *testing.T) {
	s := mustScope(t, call.Tool{Name: "x", Run: run})
	if x, _ := s.Lookup("x"); x.Effects != call.Destructive {
		t.Errorf("effects %q", x.Effects)
	}
}

func TestDefinitions(t *testing.T) {
	zebra := call.Tool{
		Name: "zebra", Effects: call.Read, Run: run,
		Description: "a<b && c>d \"quoted\" \u2028 é",
		InputSchema: []byte(`{ "type" : "object",
			"properties": {"z": {"type":"integer","maximum":9007199254740993}, "a": {"description":"<&>"}}, "x-unknown": [1.0] }`),
	}
	s := mustScope(t, zebra, call.Tool{Name: "ant", Effects: call.Write, Run: run}, call.Tool{Name: "bee", Run: run})
	want := `[{"name":"ant","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false,"destructiveHint":false}},` +
		`{"name":"bee","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false,"destructiveHint":true}},` +
		`{"name":"zebra","description":"a<b && c>d \"quoted\" \u2028 é",` +
		`"inputSchema":{"type":"object","properties":{"z":{"type":"integer","maximum":9007199254740993},"a":{"description":"<&>"}},"x-unknown":[1.0]},` +
		`"annotations":{"readOnlyHint":true,"destructiveHint":false}}]`
	if got := string(s.List()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var defs []struct{ Description string }
	if err := json.Unmarshal(s.List(), &defs); err != nil || defs[2].Description != zebra.Description {
		t.Errorf("%v %q", err, defs)
	}
	if got := s.Names(); !slices.Equal(got, []string{"ant", "bee", "zebra"}) {
		t.Errorf("names %q", got)
	}

	t.Run("the order of registration changes nothing", func(t *testing.T) {
		other := mustScope(t, call.Tool{Name: "bee", Run: run}, call.Tool{Name: "ant", Effects: call.Write, Run: run}, zebra)
		if !bytes.Equal(other.List(), s.List()) || other.Digest() != s.Digest() {
			t.Error("another list or digest")
		}
	})
	t.Run("any change is another digest", func(t *testing.T) {
		zebra.Description += "."
		if mustScope(t, zebra).Digest() == mustScope(t, tool("zebra")).Digest() {
			t.Error("the same digest")
		}
	})
	t.Run("frozen", func(t *testing.T) {
		schema := []byte(`{"type":"object","additionalProperties":false}`)
		c, err := New(call.Tool{Name: "x", Run: run, InputSchema: schema})
		if err != nil {
			t.Fatal(err)
		}
		copy(schema[len(schema)-6:], "true ")
		s, err := c.Scope("s", all)
		if err != nil || !bytes.Contains(s.List(), []byte(`"additionalProperties":false`)) {
			t.Errorf("%s %v", s.List(), err)
		}
		c.Names()[0] = "y"
		s.Names()[0] = "y"
		if _, ok := s.Lookup("x"); !ok || c.Names()[0] != "x" || s.Names()[0] != "x" {
			t.Error("a caller changed the catalogue")
		}
	})
}

func TestField22_EmptyIsAList(t *testing.T) {
	c, err := New(tool("x"))
	if err != nil {
		t.Fatal(err)
	}
	none, err := c.Scope("s", func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	nothing := mustScope(t)
	for _, s := range []*Scope{none, nothing} {
		if string(s.List()) != "[]" || s.Names() == nil || len(s.Names()) != 0 {
			t.Errorf("list %s, names %#v", s.List(), s.Names())
		}
	}
}

func TestField38_ServerNames(t *testing.T) {
	for _, good := range []string{"a", "drawbridge", "osfoundry", "my_db", "my-db", "A1", "a-_b", strings.Repeat("a", 32)} {
		if err := CheckServer(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", " ", "a__b", "a_", "_a", "__", "_", "-a", "a-", "a.b", "a/b", "a b", "a\n", "é", "a___b", strings.Repeat("a", 33), strings.Repeat("a", 1<<20),
	} {
		err := CheckServer(bad)
		if err == nil || fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" || len(err.Error()) > 1000 {
			t.Errorf("%.40q: %.300v", bad, err)
		}
	}
	// Tools may begin with underscores: a lookup takes the whole name and
	// splits nothing.
	s := mustScope(t, tool("c"), tool("b__c"))
	for name, want := range map[string]bool{"c": true, "b__c": true, "_c": false, "__c": false, "mcp__s__c": false, "s__c": false, "C": false, "c ": false} {
		if _, ok := s.Lookup(name); ok != want {
			t.Errorf("%q: %v", name, ok)
		}
	}
}

func TestField42_InheritedNames(t *testing.T) {
	s := mustScope(t, tool("x"))
	for _, name := range []string{"__proto__", "constructor", "toString", "valueOf", "hasOwnProperty", "", "\x00"} {
		if x, ok := s.Lookup(name); ok || x != nil {
			t.Errorf("%q is found", name)
		}
	}
	// A tool may be called so: it is a name like any other.
	s = mustScope(t, tool("__proto__"))
	if _, ok := s.Lookup("__proto__"); !ok || !bytes.Contains(s.List(), []byte(`"name":"__proto__"`)) {
		t.Errorf("%s", s.List())
	}
}
