package catalogue

import (
	"context"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func upstreamTool(name, definition string) call.Tool {
	return call.Tool{
		Name: name, InputSchema: []byte(`{"type":"object"}`), Definition: []byte(definition),
		Run: func(context.Context, call.Invocation) (call.Result, error) { return call.Text("ran"), nil },
	}
}

// Of an upstream's definition only the name is replaced.
func TestUpstreamDefinitionsPassUnchanged(t *testing.T) {
	c, err := New(
		upstreamTool("git/log", `{ "description":"a <b>","name" : "log" ,"inputSchema":{"type":"object","x":9007199254740993},"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"new":[1.0]}`),
		upstreamTool("git/Größe (cm)", `{"name":"Gr\u00f6\u00dfe (cm)"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Scope("drawbridge", func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	names := s.Names()
	if len(names) != 2 || !strings.HasPrefix(names[0], "git_Gr__") || !strings.HasPrefix(names[1], "git_log_") {
		t.Fatalf("%q", names)
	}
	want := `[{"name":"` + names[0] + `"},{ "description":"a <b>","name" : "` + names[1] + `" ,"inputSchema":{"type":"object","x":9007199254740993},"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"new":[1.0]}]`
	if string(s.List()) != want {
		t.Errorf("%s\nwant\n%s", s.List(), want)
	}
	for _, name := range []string{"git/log", names[1]} {
		if tool, ok := s.Lookup(name); !ok || tool.Name != "git/log" || tool.Effects != call.Destructive {
			t.Errorf("%s: %+v", name, tool)
		}
	}
	if _, ok := s.Lookup("log"); ok {
		t.Error("an upstream's tool is known without its upstream")
	}
}

func TestField38_NamesOfUpstreamsAreUnambiguous(t *testing.T) {
	for _, name := range []string{"a__b/c", "a_/c", "/c", "a/", "a/b/c", "c", "a/b*", "a/ b", "a/b\u200b"} {
		if _, err := New(upstreamTool(name, `{"name":"c"}`)); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	// An embedder's tool can't pass for an upstream's.
	own := upstreamTool("a/b", "")
	own.Definition = nil
	if _, err := New(own); err == nil {
		t.Error("an own tool is called a/b")
	}
	c, err := New(upstreamTool("a/b__c", `{"name":"b__c"}`), upstreamTool("a/_c", `{"name":"_c"}`), upstreamTool("my_db/c", `{"name":"c"}`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Scope("drawbridge", func(name string) bool { return name == "a/b__c" })
	if err != nil || len(s.Names()) != 1 {
		t.Fatal(s, err)
	}
	if tool, ok := s.Lookup(s.Names()[0]); !ok || tool.Name != "a/b__c" {
		t.Errorf("%+v", tool)
	}
}

func TestField84_CheckTool(t *testing.T) {
	for schema, why := range map[string]string{
		`{"type":"object","properties":{"a":{"type":"array"}}}`:                                                    "",
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"self":{"$ref":"#"}}}`: "",
		`{"anyOf":[{"type":"object"}]}`:                                                                            `no "type": "object"`, `{}`: `no "type": "object"`, `null`: `no "type": "object"`, `{"type":"string"}`: `no "type": "object"`,
		`{"$ref":"#/$defs/A","$defs":{"A":{"type":"object"}}}`: `no "type": "object"`, ``: "no input schema",
		`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`: "not valid", `{"type":"object","required":7}`: "not valid", `{"type":"object","a":1,"a":1}`: "not valid",
	} {
		err := CheckTool("t", []byte(schema))
		if (err == nil) != (why == "") || err != nil && (!strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", schema, err)
		}
	}
	if err := CheckTool("a/b", []byte(`{"type":"object"}`)); err == nil {
		t.Error("a/b")
	}
}
