package call

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func nest(open, shut string, n int) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(shut, n)
}

func TestCheckJSON(t *testing.T) {
	for _, good := range []string{
		`{}`, `[]`, `0`, `-0`, `1e5`, `9007199254740993`, `"x"`, `null`, `true`, " \t\r\n{\n} \t\r\n",
		`{"a":1,"A":1}`, `{"a":{"a":{"a":1}}}`, `[{"a":1},{"a":1}]`, `"\ud83e\udd86"`, `{"":0}`,
		nest("[", "]", MaxDepth), nest(`{"a":`, "}", MaxDepth),
	} {
		if err := CheckJSON([]byte(good)); err != nil {
			t.Errorf("%.60q: %v", good, err)
		}
	}
	for _, c := range []struct {
		in     string
		syntax bool
	}{
		{``, true}, {` `, true}, {"\n", true}, {`{`, true}, {`{"a"`, true}, {`{"a":}`, true}, {`[1,]`, true}, {`{,}`, true}, {`{"a":1,}`, true},
		{`01`, true}, {`+1`, true}, {`.5`, true}, {`1.`, true}, {`NaN`, true}, {`nul`, true}, {`'a'`, true}, {`{a:1}`, true}, {`// c` + "\n1", true},
		{"\"\x01\"", true}, {"\"\n\"", true}, {`"\x"`, true}, {"\xef\xbb\xbf{}", true}, {"\x00", true},
		{`{}{}`, true}, {`{} x`, true}, {`1 2`, true}, {`[]]`, true}, {"{}\x00", true}, {"{}\f", true},
		{"\"\xff\"", true}, {"{\"\xff\":1}", true}, {`"\ud800"`, true}, {`"\udc00\ud800"`, true}, {`{"\ud800":1}`, true},

		{`{"a":1,"a":2}`, false}, {`{"a":1,"b":2,"a":1}`, false}, {`[[{"x":{"a":1,"a":1}}]]`, false},
		{`{"a":1,"\u0061":2}`, false}, {`{"\/":1,"/":2}`, false}, {`{"\ud83e\udd86":1,"🦆":2}`, false}, {`{"":1,"":2}`, false},
		{nest("[", "]", MaxDepth+1), false}, {nest(`{"a":`, "}", MaxDepth+1), false}, {strings.Repeat("[", 1<<20), false},
	} {
		err := CheckJSON([]byte(c.in))
		if err == nil || errors.Is(err, ErrSyntax) != c.syntax {
			t.Errorf("%.60q: %v, want an error with ErrSyntax=%v", c.in, err, c.syntax)
		}
	}
}

func TestMembers(t *testing.T) {
	for _, no := range []string{`[]`, `1`, `null`, `"x"`, ``} {
		if ms, ok := Members([]byte(no)); ok || ms != nil {
			t.Errorf("%s: %v %v", no, ms, ok)
		}
	}
	ms, ok := Members([]byte(" {\n\"z\" : 9007199254740993 , \"\\u0061\":{ \"n\": [1.0, 2] },\"é\":\"\\u00e9<&>\"} "))
	want := []Member{{"z", []byte(`9007199254740993`), 9}, {"a", []byte(`{ "n": [1.0, 2] }`), 37}, {"é", []byte(`"\u00e9<&>"`), 60}}
	if !ok || !reflect.DeepEqual(ms, want) {
		t.Errorf("got %v", ms)
	}
	if ms, ok := Members([]byte(`{}`)); !ok || len(ms) != 0 {
		t.Errorf("{}: %v %v", ms, ok)
	}
}

func TestDecodeObject(t *testing.T) {
	m, err := DecodeObject([]byte(`{"n":9007199254740993,"d":[1.10],"t":"a<b & c\u2028"}`))
	want := map[string]any{"n": json.Number("9007199254740993"), "d": []any{json.Number("1.10")}, "t": "a<b & c\u2028"}
	if err != nil || !reflect.DeepEqual(m, want) {
		t.Errorf("%#v %v", m, err)
	}
	for _, bad := range []string{`[]`, `null`, `"x"`, `1`, ``, `{"a":1,"a":1}`, `{} {}`} {
		if m, err := DecodeObject([]byte(bad)); err == nil || m != nil {
			t.Errorf("%q: %v %v", bad, m, err)
		}
	}
	// No error is a syntax error unless it is one: the endpoint answers those
	// with another code.
	if _, err := DecodeObject([]byte(`[]`)); errors.Is(err, ErrSyntax) {
		t.Error(err)
	}
}

// Whatever CheckJSON accepts, encoding/json and Members read alike.
func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{
		`{"a":1,"b":{"a":[1,2,{"x":null}]},"\u0063":"\ud83e\udd86"}`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, "{\"a\":\"\xff\"}",
		` [1] `, `{}{}`, `{"n":1e400}`, `{"":""}`, "\xef\xbb\xbf{}", nest("[", "]", 127), `{"a":tru}`, `"\ud800"`, `{"a" :1 , "b":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		err := CheckJSON(b)
		if !bytes.Equal(in, b) {
			t.Fatal("CheckJSON changed its input")
		}
		if err != nil {
			Members(b) // must not panic either
			InvisibleJSON(b)
			return
		}
		if !json.Valid(b) {
			t.Fatalf("%q is accepted, and encoding/json does not", b)
		}
		ms, ok := Members(b)
		var std map[string]json.RawMessage
		if isObject := json.Unmarshal(b, &std) == nil && std != nil; isObject != ok {
			t.Fatalf("%q: an object to Members: %v, to encoding/json: %v", b, ok, isObject)
		}
		if len(ms) != len(std) {
			t.Fatalf("%q: %d members, encoding/json has %d", b, len(ms), len(std))
		}
		for _, m := range ms {
			if v, ok := std[m.Name]; !ok || !bytes.Equal(v, m.Value) {
				t.Fatalf("%q: member %q is %q, to encoding/json %q", b, m.Name, m.Value, v)
			}
		}
		if m, err := DecodeObject(b); (err == nil) != ok || len(m) != len(ms) {
			t.Fatalf("%q: DecodeObject: %d members, %v", b, len(m), err)
		}
	})
}

func TestInvisibleJSON(t *testing.T) {
	for in, want := range map[string]bool{
		`{"a":"plain é 🦆 ❤️"}`: false, `{"a":"\u200b"}`: true, `{"a\u202e":1}`: true, "[\"\u200b\"]": true,
		`{"a":"\udb40\udc41"}`: true, `{"a":"\\u200b"}`: false, `{}`: false, `{"a":1,"a":"\u200b"}`: true, `{`: false,
	} {
		if got := InvisibleJSON([]byte(in)); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
}

func TestMaxValues(t *testing.T) {
	array := func(n int) []byte { return []byte(`{"x":[0` + strings.Repeat(",0", n-1) + `]}`) }
	if _, err := DecodeObject(array(MaxValues - 2)); err != nil {
		t.Errorf("%d values: %v", MaxValues, err)
	}
	if _, err := DecodeObject(array(MaxValues - 1)); err == nil || errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), "100000 values") {
		t.Errorf("one more: %v", err)
	}
	// Text may have as many commas as it likes.
	if _, err := DecodeObject([]byte(`{"x":"` + strings.Repeat("0,", 2*MaxValues) + `"}`)); err != nil {
		t.Error(err)
	}
}
