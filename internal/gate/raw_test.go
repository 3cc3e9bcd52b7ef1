package gate

import (
	"context"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestField85_RawResults(t *testing.T) {
	long := strings.Repeat("x", 400)
	for _, c := range []struct {
		name, in, want string
		isError        bool
		end            audit.Record
	}{
		{name: "unchanged", in: ` { "content":[{"type":"text","text":"2 items"},{"type":"hologram","n":9007199254740993}],"structuredContent":{"b":1,"a":1.0},"isError":false,"_meta":{"k":1},"new":null}`},
		{name: "isError is kept", in: `{"isError":true,"structuredContent":[1]}`, isError: true},
		{name: "a known secret", in: `{"content":[{"type":"text","text":"` + secret + `"}],"_meta":{"s":"` + secret + `"}}`,
			want: `{"content":[{"type":"text","text":"[masked]"}],"_meta":{"s":"[masked]"}}`, end: audit.Record{Redacted: 2}},
		{name: "no UTF-8", in: "{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xfeb\"}]}", want: `{"content":[{"type":"text","text":"a` + "\uFFFD" + `b"}]}`,
			end: audit.Record{Repaired: true}},
		{name: "over the limit", in: `{"content":[{"type":"text","text":"` + long + `"}],"isError":true}`, isError: true,
			want: `{"content":[{"type":"text","text":"` + long[:225] + `\n[... 100 bytes left out ...]\n` + long[:75] + `"}],"isError":true}`, end: audit.Record{Cut: 100}},
		{name: "a secret is masked before the cut", in: `{"content":[{"type":"text","text":"` + long[:220] + secret + long + `"}]}`,
			want: `{"content":[{"type":"text","text":"` + long[:220] + `[mask\n[... 328 bytes left out ...]\n` + long[:75] + `"}]}`, end: audit.Record{Cut: 328, Redacted: 1}},
		{name: "invisible characters stay", in: `{"content":[{"type":"text","text":"a\u200bb"}]}`, end: audit.Record{Invisible: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.cfg.Limits.Output = 300 })
			r.tool("up/x", call.Write, func(context.Context, call.Invocation) (call.Result, error) {
				res, ok := call.RawResult([]byte(c.in))
				if !ok {
					t.Fatal("no result")
				}
				return res, nil
			})
			res, err := r.Call(t.Context(), call.Request{Tool: "up/x"})
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want == "" {
				want = c.in
			}
			if string(res.Raw) != want || res.IsError != c.isError {
				t.Errorf("isError %v\n%s\nwant\n%s", res.IsError, res.Raw, want)
			}
			lines := r.rec.all()
			end := lines[len(lines)-1]
			if end.Kind != audit.End || (end.Outcome == audit.Error) != c.isError || end.ResultSize != len(c.in) ||
				end.Cut != c.end.Cut || end.Redacted != c.end.Redacted || end.Repaired != c.end.Repaired || end.Invisible != c.end.Invisible {
				t.Errorf("%+v", end.Record)
			}
		})
	}
}

// What holds no secret, is UTF-8 and fits the limit leaves the gate as the very
// bytes that came in.
func TestRawResultsPassUnchanged(t *testing.T) {
	r := newRig(t)
	var raw []byte
	r.tool("up/x", call.Write, func(context.Context, call.Invocation) (call.Result, error) {
		res, ok := call.RawResult(raw)
		if !ok {
			t.Fatalf("%s is no result", raw)
		}
		return res, nil
	})
	rapid.Check(t, func(rt *rapid.T) {
		raw = []byte(object(3).Draw(rt, "result"))
		if !call.IsJSON(raw) {
			rt.Fatalf("the test made %s", raw)
		}
		res, err := r.Call(t.Context(), call.Request{Tool: "up/x"})
		if err != nil || string(res.Raw) != string(raw) {
			rt.Fatalf("%s became %s, %v", raw, res.Raw, err)
		}
	})
}

// object makes JSON objects as others write them.
func object(depth int) *rapid.Generator[string] {
	scalar := rapid.SampledFrom([]string{`9007199254740993`, `-0`, `1.10`, `1e400`, `"\ud83e\udd86"`, `"\/ \u003c <&> é"`, `""`, `null`, `true`, `[ ]`, `{ }`})
	value := scalar
	if depth > 0 {
		value = rapid.OneOf(scalar, object(depth-1), rapid.Map(object(depth-1), func(s string) string { return "[" + s + " ,\t1]" }))
	}
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteString("{ ")
		for i := range rapid.IntRange(0, 5).Draw(t, "members") {
			if i > 0 {
				b.WriteString(" ,\n")
			}
			b.WriteString(rapid.SampledFrom([]string{`"content"`, `"isError"`, `"_meta"`, `"\u0061"`, `"a"`, `"é"`, `""`}).Draw(t, "key"))
			b.WriteString(rapid.SampledFrom([]string{":", " : "}).Draw(t, "colon"))
			b.WriteString(value.Draw(t, "value"))
		}
		return b.String() + "}"
	})
}
