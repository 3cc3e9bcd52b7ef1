package redact

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSecretsJSON(t *testing.T) {
	for _, c := range []struct {
		secret, in, want string
		n                int
	}{
		{"s3cr3t-value", `{"a":"x s3cr3t-value y","b":9007199254740993}`, `{"a":"x [redacted] y","b":9007199254740993}`, 1},
		{"s3cr3t-value", `{"s3cr3t-value": ["s3cr3t-value"]}`, `{"[redacted]": ["[redacted]"]}`, 2},
		{"12345678", `{"n":12345678,"m":-9123456780.5e1,"s":"12345678"}`, `{"n":"[redacted]","m":"[redacted]","s":"[redacted]"}`, 3},
		{"n1234567", `["a\n1234567b","\n12345678"]`, `["a[redacted]b","[redacted]8"]`, 2},
		{`abcdefg\`, `["abcdefg\"rest", "abcdefg\\n"]`, `["[redacted]rest", "[redacted]n"]`, 2},
		{`val","ue`, `{"k":["val","ue"]}`, `{"k":["[redacted]","[redacted]"]}`, 1},
		{`1,"abcd":2`, `{"z":1,"abcd":2}`, `{"z":"[redacted]","[redacted]":"[redacted]"}`, 1},
		{"00e4secret", `["\u00e4secret!"]`, `["[redacted]!"]`, 1},
		{"s3cr3t-value", `{"a":1}`, `{"a":1}`, 0},
		{"s3cr3t-value", `"s3cr3t-value`, `"[redacted]`, 1},
	} {
		got, n := New(c.secret).JSON([]byte(c.in))
		if string(got) != c.want || n != c.n {
			t.Errorf("%q in %s: %d %s, want %d %s", c.secret, c.in, n, got, c.n, c.want)
		}
	}
	in := []byte(`{"a":1}`)
	if got, _ := New("s3cr3t-value").JSON(in); &got[0] != &in[0] {
		t.Error("what holds no secret is another slice")
	}
}

// A value stays JSON whatever of it is a secret, and keeps what is none.
func TestSecretsJSONProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9"\\\n,:{}é]{0,12}`)
		v := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			v[word.Draw(t, "key")] = rapid.OneOf(rapid.Map(word, func(s string) any { return s }),
				rapid.Map(rapid.Int(), func(i int) any { return i }), rapid.Map(rapid.SliceOfN(word, 0, 3), func(s []string) any { return s })).Draw(t, "value")
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		from := rapid.IntRange(0, len(b)-1).Draw(t, "from")
		secret := strings.TrimSpace(string(b[from:min(len(b), from+rapid.IntRange(8, 20).Draw(t, "length"))]))
		got, n := New(secret).JSON(b)
		if !json.Valid(got) {
			t.Fatalf("%q in %s leaves %s", secret, b, got)
		}
		if n == 0 && !bytes.Equal(got, b) {
			t.Fatalf("nothing found, and %s became %s", b, got)
		}
	})
}
