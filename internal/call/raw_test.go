package call

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestElements(t *testing.T) {
	es, ok := Elements([]byte(` [ 1.0 , {"a":[2]},"x,]" , null ] `))
	if !ok || len(es) != 4 || string(es[0]) != "1.0" || string(es[1]) != `{"a":[2]}` || string(es[2]) != `"x,]"` || string(es[3]) != "null" {
		t.Errorf("%q %v", es, ok)
	}
	if es, ok := Elements([]byte(`[]`)); !ok || len(es) != 0 {
		t.Errorf("[]: %q %v", es, ok)
	}
	for _, no := range []string{``, `{}`, `null`, `"["`, `1`} {
		if _, ok := Elements([]byte(no)); ok {
			t.Errorf("%q is no array", no)
		}
	}
}

func TestIsJSON(t *testing.T) {
	for in, want := range map[string]bool{
		`{"a":1,"a":2}`: true, "{\"a\":\"\xff\"}": true, `{"\ud800":"\udc00"}`: true, ` [1e999] `: true,
		``: false, `{}{}`: false, `{"a":1}]`: false, `{"a":1},"id":2`: false, "{\"a\xff\":}": false, "\"\n\"": false,
	} {
		if got := IsJSON([]byte(in)); got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
	// A key that is no UTF-8 does not hide the others.
	ms, ok := Members([]byte("{\"\\ud800\":1,\"\xff\":2,\"a\":3}"))
	if !ok || len(ms) != 3 || ms[2].Name != "a" {
		t.Errorf("%v %v", ms, ok)
	}
}

func TestRawResult(t *testing.T) {
	for in, isError := range map[string]bool{
		`{}`: false, `{"isError":true}`: true, `{"isError":false}`: false, `{"IsError":true}`: false,
		`{"isError":true,"isError":false}`: true, `{"isError":null,"content":[]}`: false,
	} {
		r, ok := RawResult([]byte(in))
		if !ok || r.IsError != isError || string(r.Raw) != in {
			t.Errorf("%s: %+v %v", in, r, ok)
		}
	}
	for _, no := range []string{`[]`, `null`, `"x"`, `1`} {
		if _, ok := RawResult([]byte(no)); ok {
			t.Errorf("%s is no result", no)
		}
	}
	r, _ := RawResult([]byte(`{"content":[{"type":"text","text":"a\n<"},{"type":"image","data":"AA"},{"text":"t","type":"text","annotations":{}},7],"structuredContent":[9007199254740993]}`))
	content, structured := r.Parts()
	if len(content) != 4 || content[0].Text != "a\n<" || content[0].JSON != nil || string(content[1].JSON) != `{"type":"image","data":"AA"}` ||
		content[2].JSON == nil || string(content[3].JSON) != "7" || string(structured) != "[9007199254740993]" {
		t.Errorf("%q %s", content, structured)
	}
}

func TestCutRaw(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, c := range []struct {
		name, in, want string
		limit          int
		cut            int64
	}{
		{"each part fits for itself", `{"content":["` + long + `"],"structuredContent":{"a":"` + long + `"},"_meta":{"m":"` + long + `"}}`, "", 1100, 0},
		{"text keeps what stands beside it, and unknown members stay", `{"z":1.0,"content":[{"annotations":{"n":9007199254740993},"type":"text","text":"` + long + `","q":null}],"isError":true}`,
			`{"z":1.0,"content":[{"annotations":{"n":9007199254740993},"type":"text","text":"` + long[:75] + `\n[... 900 bytes left out ...]\n` + long[:25] + `","q":null}],"isError":true}`, 100, 900},
		{"an image is left out whole", `{"content":[{"type":"image","data":"` + long + `"},{"type":"text","text":"hi"}]}`,
			`{"content":[{"type":"text","text":"\n[... 1026 bytes left out ...]\n"},{"type":"text","text":"hi"}]}`, 100, 1026},
		{"one marker for all further blocks", `{"content":["` + long + `",1,2,3]}`,
			`{"content":[{"type":"text","text":"\n[... 1002 bytes left out ...]\n"},{"type":"text","text":"\n[... 3 bytes left out ...]\n"}]}`, 10, 1005},
		{"structured content and meta go", `{"structuredContent":{"a":"` + long + `"},"content":[],"_meta":{"m":"` + long + `"},"isError":false}`,
			`{"content":[],"isError":false}`, 100, 2016},
		{"content that is none", `{"content":"` + long + `"}`, `{"content":[{"type":"text","text":"\n[... 1002 bytes left out ...]\n"}]}`, 100, 1002},
	} {
		want := c.want
		if want == "" {
			want = c.in
		}
		got, cut := CutRaw([]byte(c.in), c.limit)
		if string(got) != want || cut != c.cut {
			t.Errorf("%s: cut %d\n%s\nwant %d\n%s", c.name, cut, got, c.cut, want)
		}
	}
}

// Whatever is cut stays one JSON object of bounded size, and what fits is the
// very same bytes.
func TestCutRawProperty(t *testing.T) {
	value := rapid.SampledFrom([]string{`1`, `"x"`, `null`, `{"a":[1,{"b":2}]}`, `9007199254740993`, `"é\u00e9"`, `[]`, `{}`})
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		b.WriteByte('{')
		n := rapid.IntRange(0, 6).Draw(t, "members")
		for i := range n {
			if i > 0 {
				b.WriteString(rapid.SampledFrom([]string{",", " ,\n "}).Draw(t, "comma"))
			}
			name := rapid.SampledFrom([]string{"content", "structuredContent", "isError", "_meta", "x", "\\u0063ontent"}).Draw(t, "name")
			fmt.Fprintf(&b, `"%s": `, name)
			if name == "content" && rapid.Bool().Draw(t, "list") {
				b.WriteByte('[')
				for j := range rapid.IntRange(0, 5).Draw(t, "blocks") {
					if j > 0 {
						b.WriteByte(',')
					}
					text, _ := json.Marshal(strings.Repeat(rapid.StringN(0, 3, -1).Draw(t, "text"), rapid.IntRange(0, 200).Draw(t, "times")))
					fmt.Fprintf(&b, `{"type":"text","text":%s}`, text)
				}
				b.WriteByte(']')
				continue
			}
			b.WriteString(value.Draw(t, "value"))
		}
		b.WriteByte('}')
		raw := b.Bytes()
		limit := rapid.IntRange(0, 400).Draw(t, "limit")
		got, cut := CutRaw(raw, limit)
		if _, ok := Members(got); !ok || !IsJSON(got) || !utf8.Valid(got) {
			t.Fatalf("%s became %s", raw, got)
		}
		if cut == 0 && !bytes.Equal(got, raw) && len(raw) <= limit {
			t.Fatalf("%s fits and became %s", raw, got)
		}
		if most := n*(6*limit+1000) + 100; len(got) > most {
			t.Fatalf("%d bytes of %d at limit %d", len(got), len(raw), limit)
		}
	})
}

// Foreign bytes break nothing, and where all fits they are the same.
func FuzzCutRaw(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"abc"}],"structuredContent":{"n":9007199254740993},"isError":true,"_meta":{"k":1}}`), 10)
	f.Add([]byte("{\"content\":[{\"text\":\"\xff\xfe\",\"type\":\"text\"}]}"), 1)
	f.Add([]byte(`{"content":[[],{},1,"x"],"content":null}`), 3)
	f.Add([]byte(`{"\ud800":{"content":[]},"content":[{"type":"text","text":"\ud800 \u0000"}]}`), 4)
	f.Fuzz(func(t *testing.T, raw []byte, limit int) {
		if !IsJSON(raw) {
			return
		}
		r, ok := RawResult(raw)
		if !ok {
			return
		}
		r.Parts()
		got, cut := CutRaw(raw, limit)
		if !IsJSON(got) {
			t.Fatalf("%q at %d is %q", raw, limit, got)
		}
		if len(raw) <= limit && (cut != 0 || !bytes.Equal(got, raw)) {
			t.Fatalf("%q at %d is %q", raw, limit, got)
		}
	})
}
