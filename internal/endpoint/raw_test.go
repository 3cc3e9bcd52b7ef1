package endpoint

import (
	"bytes"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestAppendRaw(t *testing.T) {
	const server = `"io.modelcontextprotocol/serverInfo":{"name":"d"}`
	cut := call.Flags{Cut: 7}
	const flags = `"drawbridge/flags":{"cut":7}`
	for _, c := range []struct {
		name, in string
		flags    call.Flags
		server   string
		want     string
	}{
		{"legacy, nothing to say", ` {"a":9007199254740993 , "_meta":null} `, call.Flags{}, "", ` {"a":9007199254740993 , "_meta":null} `},
		{"no members", `{}`, cut, "", `{"_meta":{` + flags + `}}`},
		{"no _meta", `{"content":[ ] }`, cut, "", `{"content":[ ] ,"_meta":{` + flags + `}}`},
		{"an empty _meta", `{"_meta":{ },"z":1.0}`, cut, "", `{"_meta":{ ` + flags + `},"z":1.0}`},
		{"a _meta", `{"_meta":{"k" : {"b":1}},"z":1.0}`, cut, "", `{"_meta":{"k" : {"b":1},` + flags + `},"z":1.0}`},
		{"the last _meta", `{"_meta":{"a":1},"_meta":{"b":2}}`, cut, "", `{"_meta":{"a":1},"_meta":{"b":2,` + flags + `}}`},
		{"a null _meta", `{"_meta":null,"z":1}`, cut, "", `{"_meta":{` + flags + `},"z":1}`},
		{"a _meta that is none", `{"_meta":"x"}`, cut, "", `{"_meta":"x"}`},
		{"flags of somebody else", `{"_meta":{"drawbridge/flags":{"cut":1},"k":1}}`, cut, "", `{"_meta":{"drawbridge/flags":{"cut":7},"k":1}}`},
		{"flags of somebody else, and none of ours", `{"_meta":{"drawbridge/flags":{"cut":1}}}`, call.Flags{}, "", `{"_meta":{"drawbridge/flags":{"cut":1}}}`},

		{"modern", `{}`, call.Flags{}, server, `{"_meta":{` + server + `},"resultType":"complete"}`},
		{"modern from modern", `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"u"}},"x":1}`, call.Flags{}, server,
			`{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"u"}},"x":1}`},
		{"modern with a _meta", `{"_meta":{"k":1},"x":1}`, call.Flags{}, server, `{"_meta":{"k":1,` + server + `},"x":1,"resultType":"complete"}`},
		{"modern and flagged", `{"_meta":{"drawbridge/flags":1,"k":1},"resultType":"x"}`, cut, server,
			`{"_meta":{"drawbridge/flags":{"cut":7},"k":1,` + server + `},"resultType":"x"}`},
	} {
		got := string(appendRaw([]byte("pre"), []byte(c.in), c.flags, c.server))
		if got != "pre"+c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
	// As an answer it is the result of the message, whole.
	r, _ := call.RawResult([]byte(`{"n":9007199254740993}`))
	if got := string(appendCallResult(nil, []byte(`"7"`), r, "")); got != `{"jsonrpc":"2.0","id":"7","result":{"n":9007199254740993}}` {
		t.Error(got)
	}
}

// Nothing of a result is touched: what is put in can be taken out again.
func FuzzAppendRaw(f *testing.F) {
	f.Add([]byte(`{"content":[],"_meta":{"a":1}}`), true)
	f.Add([]byte(`{"_meta":null}`), false)
	f.Add([]byte("{\"\xff\":1,\"_meta\":{\"\\ud800\":2}}"), true)
	f.Fuzz(func(t *testing.T, raw []byte, modern bool) {
		r, ok := call.Result{}, call.IsJSON(raw)
		if ok {
			r, ok = call.RawResult(raw)
		}
		if !ok {
			return
		}
		if got := appendRaw(nil, r.Raw, call.Flags{}, ""); !bytes.Equal(got, raw) {
			t.Fatalf("%q became %q", raw, got)
		}
		server := ""
		if modern {
			server = `"io.modelcontextprotocol/serverInfo":{}`
		}
		got := appendRaw(nil, r.Raw, call.Flags{Repaired: true}, server)
		if !call.IsJSON(got) {
			t.Fatalf("%q became %q", raw, got)
		}
		before, _ := call.Members(raw)
		after, ok := call.Members(got)
		if !ok || len(after) < len(before) {
			t.Fatalf("%q became %q", raw, got)
		}
		for i, m := range before {
			if m.Name != "_meta" && (after[i].Name != m.Name || !bytes.Equal(after[i].Value, m.Value)) {
				t.Fatalf("%q became %q", raw, got)
			}
		}
	})
}
