package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

const big = 1 << 20

func TestField104_ArgumentsOfTheReport(t *testing.T) {
	in := `{"headers":{"Authorization":"Bearer S1"},"apiKey":"S2","nested":[{"Password":"S3"}],"url":"https://u:S4@h/?token=S5","body":"-----BEGIN PRIVATE KEY-----S6"}`
	want := `{"headers":{"Authorization":"[redacted]"},"apiKey":"[redacted]","nested":[{"Password":"[redacted]"}],"url":"https://[redacted]@h/?token=[redacted]","body":"[redacted]"}`
	if out := Arguments([]byte(in), nil, big); string(out) != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
}

func TestField104_Keys(t *testing.T) {
	for _, key := range []string{
		"authorization", "Authorization", "Proxy-Authorization", "token", "TOKEN", "accessToken", "access_token", "refresh-token",
		"github.token", "GITHUB_TOKEN", "OAuthToken", "csrfToken", "tokenValue", "token_secret", "authtoken", "id_token",
		"apiKey", "api_key", "api-key", "API_KEY", "APIKey", "apikey", "X-Api-Key", "apiKeys", "openaiApiKey", "OPENAI_API_KEY",
		"password", "Password", "passwd", "PGPASSWORD", "dbPassword", "password2", "user_password", "pwd", "passphrase",
		"secret", "client_secret", "clientSecret", "clientsecret", "secrets", "secret_id", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id",
		"cookie", "Set-Cookie", "Cookies", "credential", "credentials", "privateKey", "private_key", "privatekey", "signingKey", "auth",
		`\u0074oken`, `pass\u0077ord`,
	} {
		for _, value := range []string{`"x"`, `12`, `{"a":["x"]}`, `["x",{}]`, `true`, `null`, `""`} {
			in := fmt.Sprintf(`{"a":1, "%s" : %s ,"z":[]}`, key, value)
			want := fmt.Sprintf(`{"a":1, "%s" : "[redacted]" ,"z":[]}`, key)
			if out := Arguments([]byte(in), nil, big); string(out) != want {
				t.Errorf("%s: %s", in, out)
			}
		}
	}
	for _, key := range []string{
		"max_tokens", "maxTokens", "total_tokens", "input_tokens", "token_count", "tokenCount", "token_limit", "tokenizer", "token_type",
		"pageToken", "next_page_token", "nextToken", "continuation_token", "token_url", "key", "keys", "primary_key", "keyboard", "author",
		"authors", "secretary", "password_policy", "passwordless", "secret_name", "cookie_policy", "compass", "monkey", "id", "",
		"authorized", "tokens_used", "stop_tokens", "public_key", "session_id", "name", "value", "日本語",
	} {
		in := fmt.Sprintf(`{"%s":"x"}`, key)
		if out := Arguments([]byte(in), nil, big); string(out) != in {
			t.Errorf("%s: %s", in, out)
		}
	}
	for in, want := range map[string]string{
		`{"tokens":5}`:                              `{"tokens":5}`,
		`{"tokens":-5e3}`:                           `{"tokens":-5e3}`,
		`{"tokens":["a"]}`:                          `{"tokens":"[redacted]"}`,
		`{"tokens":"a"}`:                            `{"tokens":"[redacted]"}`,
		`[{"name":"Authorization","value":"x"}]`:    `[{"name":"Authorization","value":"[redacted]"}]`,
		`[{"value":{"a":1},"key":"DB_PASSWORD"}]`:   `[{"value":"[redacted]","key":"DB_PASSWORD"}]`,
		`[{"name":"color","value":"x"}]`:            `[{"name":"color","value":"x"}]`,
		`[{"name":"password"},{"value":"x"}]`:       `[{"name":"password"},{"value":"x"}]`,
		`["login","--password","x","--user","y"]`:   `["login","--password","[redacted]","--user","y"]`,
		`{"password":"hunter2 Bearer abcdefgh123"}`: `{"password":"[redacted]"}`,
		`{"password":{"url":"https://u:p@h"}}`:      `{"password":"[redacted]"}`,
		`{"body":"{\"password\":\"S\",\"n\":1.0}"}`: `{"body":"{\"password\":\"[redacted]\",\"n\":1.0}"}`,
		`{"body":" [{\"a\":\"https://u:p@h\"}] "}`:  `{"body":" [{\"a\":\"https://[redacted]@h\"}] "}`,
		`{"big":9007199254740993,"f":1.0,"e":1E+2}`: `{"big":9007199254740993,"f":1.0,"e":1E+2}`,
		`"Bearer abcdefgh123"`:                      `"Bearer [redacted]"`,
		`{"https://u:p@h":1,"https://u:q@h":2}`:     `{"https://[redacted]@h":1,"https://[redacted]@h 2":2}`,
	} {
		if out := Arguments([]byte(in), nil, big); string(out) != want {
			t.Errorf("%s: %s, want %s", in, out, want)
		}
	}
}

func TestField104_Shapes(t *testing.T) {
	const jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
	for in, want := range map[string]string{
		"curl -H 'Authorization: Bearer abc' https://h":                         "curl -H 'Authorization: [redacted]' https://h",
		`curl -H "authorization: token x" -H "X-Api-Key: abc" u`:                `curl -H "authorization: [redacted]" -H "X-Api-Key: [redacted]" u`,
		"Cookie: a=b; c=\"d\"\r\nHost: h":                                       "Cookie: [redacted]\r\nHost: h",
		"use bearer eyabc123.def":                                               "use bearer [redacted]",
		"Basic dXNlcjpodW50ZXIy, ok":                                            "Basic [redacted], ok",
		"postgres://app:pa$$w0rd@db:5432/x?sslmode=off":                         "postgres://[redacted]@db:5432/x?sslmode=off",
		"git clone https://ghtoken@github.com/x/y":                              "git clone https://[redacted]@github.com/x/y",
		"https://h/cb?code=0123456789abcdef&state=1&sig=x#f":                    "https://h/cb?code=[redacted]&state=1&sig=[redacted]",
		"https://h/?api_key=a&page_token=b&access_token=c":                      "https://h/?api_key=[redacted]&page_token=b&access_token=[redacted]",
		"GITHUB_TOKEN=abc make":                                                 "GITHUB_TOKEN=[redacted] make",
		`export PGPASSWORD="a b" X=1`:                                           `export PGPASSWORD="[redacted]" X=1`,
		"mysql --password=x --user=y":                                           "mysql --password=[redacted] --user=y",
		"tool --api-key x --name y":                                             "tool --api-key [redacted] --name y",
		"Server=h;User=sa;Password=a,b;":                                        "Server=h;User=sa;Password=[redacted];",
		"password: hunter2\nuser: x":                                            "password: [redacted]\nuser: x",
		`{"secret": "x", broken`:                                                `{"secret": "[redacted]", broken`,
		`say \"token\": \"a b\" and more`:                                       `say \"token\": \"[redacted]\" and more`,
		"a -----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY----- b": "a [redacted] b",
		"a -----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPEN":               "a [redacted]",
		"-----BEGIN PGP PRIVATE KEY BLOCK":                                      "[redacted]",
		"key sk-proj-0123456789_abcdefg-x.":                                     "key [redacted].",
		"ghp_0123456789abcdefghijABCDEFGHIJ012345":                              "[redacted]",
		"x=github_pat_11ABCDEFG0123456789_abcdef;":                              "x=[redacted];",
		"xoxb-1234567890-abc (AKIAIOSFODNN7EXAMPLE)":                            "[redacted] ([redacted])",
		"AIzaSyA0123456789abcdefghijklmnopqrstuv":                               "[redacted]",
		"jwt " + jwt + " end":                                                   "jwt [redacted] end",
		"AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQ":                             "[redacted]",
		"日本 ghs_0123456789abcdefghij 語":                                         "日本 [redacted] 語",
	} {
		q := quote([]byte(in))
		var got string
		out := Arguments(q, nil, big)
		if json.Unmarshal(out, &got) != nil || got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	for _, in := range []string{
		"The token budget is 5: see the secret: it is in the cookie jar.", "token", "bearer of bad news", "Basic Authentication", "basic understanding",
		"Bearer token is required", "ssh://git@github.com/x", "git@github.com:x/y.git", "https://h/@scope/pkg?page=2&key=name", "mail a@b.example",
		"if token == nil { return }", "max_tokens=5", "tokens=5", "sk-learn-and-other-things", "npm_config_registry", "-----BEGIN CERTIFICATE-----",
		"task-1234567890123456789", "x:y", "==", "=", ":", "--", "-----BEGIN ", "eyJ", "AKIA", "a.b.c", "ls -la --color=auto", "Token: a coin", " ",
		"ASIA is a continent", "const token = next()", "password =", "see page?token", "://", "https://@h", "hash_0123456789abcdef0123456789abcdef",
	} {
		q := quote([]byte(in))
		if out := Arguments(q, nil, big); !bytes.Equal(out, q) {
			t.Errorf("%q became %s", in, out)
		}
	}
}

func TestField104_KnownSecretsInArguments(t *testing.T) {
	s := New(runToken, "1234567890", `a"b\c/d<é>`, "[1,2,3,4]")
	esc := strings.Builder{}
	for _, c := range runToken {
		fmt.Fprintf(&esc, `\u%04X`, c)
	}
	for in, want := range map[string]string{
		`{"q":"` + runToken + `"}`:                           `{"q":"[redacted]"}`,
		`{"q":"x` + esc.String() + `y"}`:                     `{"q":"x[redacted]y"}`,
		`{"` + esc.String() + `":1}`:                         `{"[redacted]":1}`,
		`{"` + runToken + `":1,"x` + runToken + `":2}`:       `{"[redacted]":1,"x[redacted] 2":2}`,
		`{"n":1234567890}`:                                   `{"n":"[redacted]"}`,
		`[-12345678901.5e3]`:                                 `["[redacted]"]`,
		`["a\"b\\c\/d\u003c\u00E9>"]`:                        `["[redacted]"]`,
		`{"body":"{\"x\":\"` + runToken + `\"}"}`:            `{"body":"{\"x\":\"[redacted]\"}"}`,
		`{"body":"{\"x\":\"\\u0035` + runToken[1:] + `\"}"}`: `{"body":"{\"x\":\"[redacted]\"}"}`,
		`{"a":[1,2,3,4]}`:                                    "",
		`{"[redacted]":1,"` + runToken + `":2}`:              "",
	} {
		if out := Arguments([]byte(in), s, big); string(out) != want {
			t.Errorf("%s: %s, want %s", in, out, want)
		}
	}
}

func TestArgumentsNil(t *testing.T) {
	for _, in := range []string{"", " ", "{", `{"a":1,"a":2}`, `{"a":1} {}`, "\"\xff\"", `"\ud800"`, "nul", `{"password":1,}`, "\x00"} {
		if out := Arguments([]byte(in), nil, big); out != nil {
			t.Errorf("%q: %q", in, out)
		}
	}
	if out := Arguments([]byte(`{"a":1}`), nil, 6); out != nil {
		t.Errorf("larger than max: %s", out)
	}
	if out := Arguments([]byte(`{"token":1}`), nil, 11); out != nil {
		t.Errorf("the result is larger than max: %s", out)
	}
	if out := Arguments([]byte(`{"a":1}`), nil, 7); string(out) != `{"a":1}` {
		t.Errorf("just max: %s", out)
	}
	if out := Arguments([]byte(strings.Repeat("[", 9000)+strings.Repeat("]", 9000)), nil, big); len(out) != 18000 {
		t.Errorf("deep: %d bytes", len(out))
	}
}

// What holds no secret comes back as the very bytes.
func TestArgumentsUnchanged(t *testing.T) {
	word := rapid.StringMatching(`[a-m 0-9äß語.,!?/-]{0,30}`)
	leaf := rapid.OneOf(
		rapid.Map(word, func(s string) string { return string(quote([]byte(s))) }),
		rapid.SampledFrom([]string{"null", "true", "-0.0", "1E400", "9007199254740993", `"\u0041\/\n"`, "[ ]", "{\t}"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("{")
		for i, v := range rapid.SliceOfN(leaf, 0, 8).Draw(t, "values") {
			if i > 0 {
				b.WriteString(rapid.SampledFrom([]string{",", " ,\n"}).Draw(t, "comma"))
			}
			fmt.Fprintf(&b, `"k%d":[%s]`, i, v)
		}
		b.WriteString("}")
		in := []byte(b.String())
		out := Arguments(in, New(runToken), big)
		if len(out) != len(in) || &out[0] != &in[0] {
			t.Fatalf("%s became %s", in, out)
		}
	})
}

// A known secret is in the output in no spelling of JSON, wherever it was.
func TestArgumentsNeverHoldAKnownSecret(t *testing.T) {
	values := []string{runToken, `q"uo\te<&>`, "ünïcödé\U0001F512", "12345678"}
	s := New(values...)
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SampledFrom(values).Draw(t, "value")
		spell := func(text string) string {
			var b strings.Builder
			for _, r := range text {
				if q := string(quote([]byte(string(r)))); r > 0xFFFF || rapid.Bool().Draw(t, "plain") {
					b.WriteString(q[1 : len(q)-1])
				} else {
					fmt.Fprintf(&b, rapid.SampledFrom([]string{`\u%04x`, `\u%04X`}).Draw(t, "case"), r)
				}
			}
			return `"` + b.String() + `"`
		}
		text := spell(rapid.String().Draw(t, "before") + v + rapid.String().Draw(t, "after"))
		form := rapid.SampledFrom([]string{`{"a":%s}`, `[[%s]]`, `{%s:1}`, `%s`, `{"a":[{"b":%s}],"c":1}`, "JSON"}).Draw(t, "form")
		var in string
		if form == "JSON" {
			in = `{"body":` + spell(`{"x":`+text+`}`) + `}`
		} else {
			in = fmt.Sprintf(form, text)
		}
		out := Arguments([]byte(in), s, big)
		if out == nil {
			t.Fatalf("nil for %s", in)
		}
		checkClean(t, out, values)
	})
}

func checkClean(t interface{ Fatalf(string, ...any) }, out []byte, values []string) {
	if !jsontext.Value(out).IsValid() {
		t.Fatalf("not valid: %s", out)
	}
	dec := jsontext.NewDecoder(bytes.NewReader(out))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return
		}
		for _, v := range values {
			text := tok.String()
			if inner := jsontext.Value(strings.TrimSpace(text)); len(inner) > 0 && inner[0] == '{' && inner.IsValid() {
				checkClean(t, inner, values)
			}
			if strings.Contains(text, v) {
				t.Fatalf("%q is in %s", v, out)
			}
		}
	}
}

func FuzzArguments(f *testing.F) {
	for _, s := range []string{
		`{"headers":{"Authorization":"Bearer S1"},"apiKey":"S2","url":"https://u:S4@h/?token=S5","body":"-----BEGIN PRIVATE KEY-----S6"}`,
		`{"hunter2hunter2":{"a":"\u0068unter2hunter2"}}`, `[{"name":"token","value":1}]`, `["--token","x"]`, `{"a":"{\"b\":\"{\\\"password\\\":1}\"}"}`,
		`{"a":1,"a":2}`, `"sk-sk-sk-eyJ.eyJ."`, `"Cookie: \"\\\"password\\\": "`, `{"tokens":[1,{"tokens":2}]}`, `"=:==--:://@"`,
	} {
		f.Add([]byte(s), "hunter2hunter2")
	}
	f.Fuzz(func(t *testing.T, in []byte, value string) {
		s := New(value)
		out := Arguments(in, s, big)
		if out == nil {
			if !jsontext.Value(in).IsValid() || len(s.patterns) > 0 {
				return
			}
			if Arguments(in, nil, big) == nil && !bytes.Contains(in, []byte("redacted")) {
				// Two masked keys may become one, and only then.
				return
			}
		}
		if len(s.patterns) > 0 {
			if bytes.Contains(out, []byte(strings.TrimSpace(value))) {
				t.Fatalf("%q is in %s", value, out)
			}
			checkClean(t, out, []string{strings.TrimSpace(value)})
		} else {
			checkClean(t, out, nil)
		}
	})
}

// Time must grow with the input and not faster: texts made of nothing but
// beginnings.
func TestNoQuadraticTime(t *testing.T) {
	for _, part := range []string{"sk-", "eyJ.", "eyJaaaaaaaa.", "-----BEGIN ", "-----BEGIN RSA PRIVATE KEY", "bearer ", "basic ", "a://", "://:", "password:", "--token ", "a=", "=", "ghp_", "--", `\"a\":`, "5e88489"} {
		in := quote([]byte(strings.Repeat(part, 1<<20/len(part))))
		if Arguments(in, New(runToken), 4<<20) == nil || Shown(in, New(runToken), 4<<20) == nil {
			t.Errorf("%q: nil", part)
		}
	}
}

func BenchmarkArguments32K(b *testing.B) {
	s := New(runToken, "sk-0123456789abcdefghijkl")
	in := fmt.Appendf(nil, `{"path":"notes.md","text":%s,"limit":5}`, quote(prose(32<<10)))
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if out := Arguments(in, s, big); len(out) == 0 {
			b.Fatal("nil")
		}
	}
}

func BenchmarkArgumentsSmall(b *testing.B) {
	s := New(runToken)
	in := []byte(`{"query":"Q4 budget review","limit":5}`)
	b.ReportAllocs()
	for b.Loop() {
		Arguments(in, s, big)
	}
}
