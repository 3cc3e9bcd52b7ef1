package endpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// FuzzReadMessage holds the strict reading to encoding/json: whatever is
// accepted has one reading, and the lax parser has the same one.
func FuzzReadMessage(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range txtar.Parse(data).Files {
			if _, body, ok := bytes.Cut(part.Data, []byte("\n\n")); ok && part.Name == "request" {
				f.Add(bytes.TrimSpace(body))
			}
		}
	}
	f.Add([]byte(strings.Repeat("[", 100000)))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\ud800","method":"a"}`))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\r\n \"id\" : -0 ,\t\"method\":\"ping\"}\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, ref := readMessage(body)
		if ref != nil {
			if !json.Valid(ref.body) || ref.kind == "" || ref.status != http.StatusBadRequest {
				t.Fatalf("refusal %+v, body %s", ref, ref.body)
			}
			return
		}
		var lax struct {
			JSONRPC string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
			Method  string          `json:"method"`
			Params  json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(body, &lax); err != nil {
			t.Fatalf("accepted %q, which encoding/json refuses: %v", body, err)
		}
		if lax.JSONRPC != "2.0" || lax.Method != m.method || !bytes.Equal(lax.ID, m.id) || !bytes.Equal(lax.Params, m.params) {
			t.Fatalf("%q read as %q %q %q, by encoding/json as %q %q %q", body, m.id, m.method, m.params, lax.ID, lax.Method, lax.Params)
		}
		if m.kind == request && len(m.id) == 0 || m.kind == response && m.method != "" {
			t.Fatalf("%q read as kind %d", body, m.kind)
		}
		p, bad := readParams(m.params)
		if bad != nil || m.kind == response {
			return
		}
		var laxParams struct {
			Name      json.RawMessage `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if len(m.params) > 0 {
			if err := json.Unmarshal(m.params, &laxParams); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(p.name, laxParams.Name) || !bytes.Equal(p.arguments, orNil(laxParams.Arguments)) {
			t.Fatalf("%q: name %q, arguments %q", body, p.name, p.arguments)
		}
		for _, isModern := range []bool{false, true} {
			h := http.Header{}
			if isModern {
				h.Set("Mcp-Protocol-Version", modern)
			}
			if _, ref := era(m, p, h); ref != nil && !json.Valid(ref.body) {
				t.Fatalf("%s", ref.body)
			}
		}
	})
}

// FuzzHeaders: no header value makes the checks fall over or let pass what
// they must not.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{"", "Bearer ", "Bearer " + testToken, "application/json; charset=\"", "text/event-stream;q=", "=?base64?%?=", "=?base64??=", "a,;,=;q=0"} {
		f.Add(s)
	}
	e := &Endpoint{token: [32]byte{1}}
	f.Fuzz(func(t *testing.T, s string) {
		if e.tokenIs(s) {
			t.Error("a token without a known digest")
		}
		if isJSON(s) && !strings.Contains(strings.ToLower(s), "application/json") {
			t.Errorf("%q taken for JSON", s)
		}
		if acceptsStream([]string{s}) && !strings.Contains(strings.ToLower(s), "text/event-stream") {
			t.Errorf("%q taken for an event stream", s)
		}
		if headerIs(s, "get_time") && s != "get_time" && s != "=?base64?Z2V0X3RpbWU=?=" && !strings.ContainsAny(s, "\r\n") {
			t.Errorf("%q taken for get_time", s)
		}
	})
}

// TestField4_IDs: any id comes back as it was sent, in results and errors, and
// no other response than its own carries it.
func TestField4_IDs(t *testing.T) {
	h := start(t, nil)
	c := h.dial(t)
	rapid.Check(t, func(rt *rapid.T) {
		id := rapid.OneOf(
			rapid.Custom(func(rt *rapid.T) string {
				b, _ := json.Marshal(rapid.String().Draw(rt, "string"))
				return string(b)
			}),
			rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})`),
			rapid.StringMatching(`"(\\u00[4-6][0-9a-f]|\\n|\\/|[a-z<>& ])*"`),
		).Draw(rt, "id")
		rest := rapid.SampledFrom([]string{
			`"method":"ping"`, `"method":"nope"`, `"method":"tools/list","params":{"cursor":"x"}`, `"method":"tools/call"`,
			`"method":"tools/call","params":{"name":"get_time"}`, `"method":"tools/call","params":{"name":"hidden"}`,
			`"method":7`, `"method":"ping","Method":""`,
		}).Draw(rt, "rest")
		_, body := c.send(t, "POST", h.post(`{"jsonrpc":"2.0","id":`+id+`,`+rest+`}`))
		if !strings.HasPrefix(body, `{"jsonrpc":"2.0","id":`+id+`,"`) || !json.Valid([]byte(body)) {
			rt.Fatalf("id %s: %s", id, body)
		}
	})
}

// TestField36_Variants: any other spelling that folds to a known key is refused
// wherever it stands.
func TestField36_Variants(t *testing.T) {
	fold := map[rune][]string{'s': {"S", "ſ"}, 'k': {"K", "\u212a"}}
	rapid.Check(t, func(rt *rapid.T) {
		place := rapid.IntRange(0, 2).Draw(rt, "place")
		keys := [][]string{envelopeKeys, paramsKeys, metaKeys}[place]
		key := []rune(rapid.SampledFrom(keys).Draw(rt, "key"))
		i := rapid.IntRange(0, len(key)-1).Draw(rt, "i")
		to := strings.ToUpper(string(key[i]))
		if to == string(key[i]) {
			to = strings.ToLower(to)
		}
		if f := fold[key[i]]; f != nil {
			to = rapid.SampledFrom(f).Draw(rt, "fold")
		}
		name := string(key[:i]) + to + string(key[i+1:])
		if name == string(key) {
			rt.Skip("not a letter")
		}
		frame := []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping",%q:1}`, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{%q:1}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{%q:1}}}`,
		}[place]
		m, ref := readMessage([]byte(fmt.Sprintf(strings.ReplaceAll(frame, "%q", `"%s"`), name)))
		if place == 0 {
			if ref == nil {
				rt.Fatalf("%q accepted in the envelope", name)
			}
			return
		}
		if _, bad := readParams(m.params); bad == nil || !bad.ambiguous {
			rt.Fatalf("%q accepted in place %d", name, place)
		}
	})
}

// TestCallResult_RoundTrip: whatever text a tool answers is what the client
// decodes, and the answer is always one JSON value.
func TestCallResult_RoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String().Draw(rt, "text")
		r := call.Result{Content: []call.Block{{Text: text}}, IsError: rapid.Bool().Draw(rt, "isError")}
		r.Flags.Redacted = rapid.IntRange(0, 1).Draw(rt, "redacted")
		if rapid.Bool().Draw(rt, "structured") {
			r.Structured = []byte(`{"n":1.0}`)
		}
		server := rapid.SampledFrom([]string{"", `"s":{}`}).Draw(rt, "server")
		b := appendCallResult(nil, []byte("1"), r, server)
		if err := call.CheckJSON(b); err != nil {
			rt.Fatalf("%v: %s", err, b)
		}
		var got struct {
			Result struct {
				Content []struct{ Text string }
				IsError bool
			}
		}
		if err := json.Unmarshal(b, &got); err != nil || got.Result.Content[0].Text != strings.ToValidUTF8(text, "\uFFFD") || got.Result.IsError != r.IsError {
			rt.Fatalf("%v: %s", err, b)
		}
		if bytes.Contains(b, []byte(`\u003c`)) && !strings.Contains(text, `\u003c`) {
			rt.Fatalf("escaped: %s", b)
		}
	})
}

// TestAppendEvent: an event decodes to its data, line breaks between tokens
// turned into line feeds.
func TestAppendEvent(t *testing.T) {
	for data, want := range map[string]string{
		`{}`:           "event: message\ndata: {}\n\n",
		"{\n}":         "event: message\ndata: {\ndata: }\n\n",
		"{\r\n\r\"\"}": "event: message\ndata: {\ndata: \ndata: \"\"}\n\n",
	} {
		if got := string(appendEvent(nil, []byte(data))); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
	}
}
