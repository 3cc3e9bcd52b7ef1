package celrule

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

func eval(t *testing.T, expr, args string) (bool, error) {
	t.Helper()
	c, err := Compile(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	m, err := call.DecodeObject([]byte(args))
	if err != nil {
		t.Fatal(err)
	}
	return c.Eval(&policy.Input{
		Tool: "execute_command", Args: m, Mode: "act",
		Binding: call.Binding{Run: "r", Workspace: "ws", Channel: "ch", User: "ada", Agent: "a"},
	})
}

func TestConditions(t *testing.T) {
	const args = `{"cmd":"ls | wc","path":"docs/a","url":"https://example.com/x","n":3,"f":2.5,"big":9007199254740993,"huge":18446744073709551615,
		"over":1e999,"list":["a","b"],"deep":{"a":[{"b":null}]},"yes":true}`
	for expr, want := range map[string]string{
		`tool == "execute_command" && mode == "act"`:                               "true",
		`binding.workspace == "ws" && binding.user == "ada" && binding.run == "r"`: "true",
		`!programs(args.cmd).all(p, p in ["ls", "wc"])`:                            "false",
		`programs(args.cmd).exists(p, p == "wc")`:                                  "true",
		`path_in(args.path, "docs")`:                                               "true",
		`host(args.url) == "example.com"`:                                          "true",
		`args.n == 3 && args.n > 2 && args.n < 3.5 && args.f == 2.5`:               "true",
		`args.big == 9007199254740993 && args.big != 9007199254740992`:             "true",
		`args.huge == 18446744073709551615u`:                                       "true",
		`args.list == ["a", "b"] && args.list.size() == 2`:                         "true",
		`args.deep.a[0].b == null`:                                                 "true",
		`has(args.cmd) && !has(args.other)`:                                        "true",
		`args.yes == true`:                                                         "true",
		`args.path.startsWith("docs/") && args.path.matches("^docs/[a-z]$")`:       "true",
		`args.other == 1`:                                                          "!",
		`args.deep.x == 1`:                                                         "!",
		`args.over > 1.0`:                                                          "!",
		`args.n == "3"`:                                                            "false",
		`args.n.startsWith("3")`:                                                   "!",
		`programs(args.n) == []`:                                                   "!",
		`programs("$x") == []`:                                                     "!",
		`path_in("../x", "docs")`:                                                  "!",
		`host("x") == "x"`:                                                         "!",
		`args.list[5] == "a"`:                                                      "!",
		`1 / (args.n - 3) == 1`:                                                    "!",
		`programs("$x").all(p, p == "ls") || true`:                                 "true",
		`args.other == 1 && false`:                                                 "false",
	} {
		yes, err := eval(t, expr, args)
		got := fmt.Sprint(yes)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", expr, got, err, want)
		}
	}
}

// Only the words of our own functions reach a model: CEL's may quote arguments.
func TestErrorsForTheModel(t *testing.T) {
	public := func(err error) string {
		if e, ok := errors.AsType[interface {
			error
			Public() string
		}](err); ok {
			return e.Public()
		}
		return ""
	}
	if _, err := eval(t, `programs(args.cmd) == []`, `{"cmd":"env s3cr3t"}`); !strings.HasPrefix(public(err), "programs: ") || strings.Contains(public(err), "s3cr3t") {
		t.Errorf("%v: %q", err, public(err))
	}
	if _, err := eval(t, `int(args.cmd) == 1`, `{"cmd":"s3cr3t"}`); err == nil || public(err) != "" {
		t.Errorf("%v: %q", err, public(err))
	}
}

func TestCompileRefuses(t *testing.T) {
	for expr, says := range map[string]string{
		`args.cmd ==`:                          "Syntax error",
		`argz.cmd == "x"`:                      "undeclared reference to 'argz'",
		`binding.wrkspace == "x"`:              "undefined field 'wrkspace'",
		`tool`:                                 "has to be true or false",
		`args.yes`:                             "has to be true or false",
		`1 + 1`:                                "has to be true or false",
		`programs(1) == []`:                    "no matching overload",
		`system("x")`:                          "undeclared reference to 'system'",
		`tool == 1`:                            "no matching overload",
		`mode.all(x, true)`:                    "cannot be range",
		strings.Repeat("(", 200) + "true":      "recursion",
		strings.Repeat("true && ", 2000) + "1": "size",
		``:                                     "Syntax error",
		`tool.matches("(")`:                    "",
	} {
		_, err := Compile(expr)
		if says == "" {
			continue
		}
		e, ok := errors.AsType[*policy.ExprError](err)
		if !ok || !strings.Contains(e.Message, says) || strings.Contains(e.Message, "\n") {
			t.Errorf("%.60s: %v, want one that says %s", expr, err, says)
		}
	}
	_, err := Compile("true &&\n  foo(1)")
	if e, ok := errors.AsType[*policy.ExprError](err); !ok || e.Line != 2 || e.Column < 3 || e.Column > 6 {
		t.Errorf("%+v", err)
	}
}

// CEL ends always; what explodes costs too much, and is an error.
func TestExplosions(t *testing.T) {
	list := `[` + strings.TrimSuffix(strings.Repeat("1,", 60), ",") + `]`
	for _, expr := range []string{
		strings.ReplaceAll(`L.all(a, L.all(b, L.all(c, a + b + c > 0)))`, "L", list),
		strings.ReplaceAll(`L.map(a, L.map(b, L.map(c, L))).size() > 0`, "L", list),
		strings.ReplaceAll(`L.all(a, L.all(b, programs(args.cmd).size() > 0))`, "L", list),
		`args.long.all(a, args.long.all(b, a == b))`,
	} {
		args := `{"cmd":"` + strings.Repeat("ls;", 400) + `","s":"` + strings.Repeat("a", 50_000) + `","long":[` + strings.TrimSuffix(strings.Repeat("1,", 5000), ",") + `]}`
		if _, err := eval(t, expr, args); err == nil {
			t.Errorf("%.60s comes through", expr)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{`args.a == 1`, `programs(args.a).all(p, p == "ls")`, `host(args.a) == "x" || path_in(args.a, "b")`, `binding.user != ""`, `[1].map(x, [x])[0] == [1]`, `"a".matches("(")`} {
		f.Add(s, `{"a":1}`)
	}
	f.Fuzz(func(t *testing.T, expr, args string) {
		c, err := Compile(expr)
		if err != nil {
			if _, ok := errors.AsType[*policy.ExprError](err); !ok {
				t.Fatal(err)
			}
			return
		}
		if m, err := call.DecodeObject([]byte(args)); err == nil {
			_, _ = c.Eval(&policy.Input{Args: m})
		}
	})
}

func BenchmarkPrograms(b *testing.B) {
	c, err := Compile(`!programs(args.cmd).all(p, p in ["ls", "wc"])`)
	if err != nil {
		b.Fatal(err)
	}
	in := &policy.Input{Args: map[string]any{"cmd": "ls -la | wc -l"}}
	for b.Loop() {
		if yes, err := c.Eval(in); err != nil || yes {
			b.Fatal(yes, err)
		}
	}
}
