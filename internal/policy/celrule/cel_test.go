package celrule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

func evaluate(t *testing.T, expr, args string) (bool, error) {
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
		yes, err := evaluate(t, expr, args)
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
	if _, err := evaluate(t, `programs(args.cmd) == []`, `{"cmd":"env s3cr3t"}`); !strings.HasPrefix(public(err), "programs: ") || strings.Contains(public(err), "s3cr3t") {
		t.Errorf("%v: %q", err, public(err))
	}
	if _, err := evaluate(t, `int(args.cmd) == 1`, `{"cmd":"s3cr3t"}`); err == nil || public(err) != "" {
		t.Errorf("%v: %q", err, public(err))
	}
}

func TestCompileRefuses(t *testing.T) {
	for expr, says := range map[string]string{
		`args.cmd ==`:                            "Syntax error",
		`argz.cmd == "x"`:                        "undeclared reference to 'argz'",
		`binding.wrkspace == "x"`:                "undefined field 'wrkspace'",
		`tool`:                                   "has to be true or false",
		`args.yes`:                               "has to be true or false",
		`1 + 1`:                                  "has to be true or false",
		`programs(1) == []`:                      "no matching overload",
		`system("x")`:                            "undeclared reference to 'system'",
		`tool == 1`:                              "no matching overload",
		`mode.all(x, true)`:                      "cannot be range",
		strings.Repeat("(", 200) + "true":        "recursion",
		strings.Repeat("true && ", 2000) + "1":   "size",
		``:                                       "Syntax error",
		`tool.matches("(")`:                      "matches: error parsing regexp",
		`tool.matches(args.re)`:                  "the pattern of matches has to be written out",
		`tool.matches("a" + "b")`:                "the pattern of matches has to be written out",
		`tool.matches("(a{1,50}b{1,50}){1,20}")`: "steps, more than 2000",
	} {
		_, err := Compile(expr)
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
	repeat := func(s string, n int) string { return "[" + strings.TrimSuffix(strings.Repeat(s+",", n), ",") + "]" }
	literal := func(expr string) string { return strings.ReplaceAll(expr, "L", repeat("1", 70)) }
	args := `{"cmd":"` + strings.Repeat("ls;", 400) + `","s":"` + strings.Repeat("a", 50_000) + `","big":"` + strings.Repeat("a", 2_000_000) +
		`","long":` + repeat("1", 5000) + `,"deep":` + repeat(`{"a":`+repeat(`["x",{"y":[1]}]`, 40)+`}`, 300) + `}`
	// dear and fine say whether the expression is given up.
	const dear, fine = true, false
	for expr, gone := range map[string]bool{
		literal(`L.all(a, L.all(b, L.all(c, a + b + c > 0)))`):                           dear,
		literal(`L.map(a, L.map(b, L.map(c, L))).size() > 0`):                            dear,
		literal(`L.map(a, L.map(b, L.map(c, args.big + args.big))).size() > 0`):          dear,
		literal(`L.all(a, L.all(b, programs(args.cmd).size() > 0))`):                     dear,
		`args.long.all(a, args.long.all(b, a == b))`:                                     dear,
		`args.long.map(a, args.long).map(a, string(args.big)).size() > 0`:                dear,
		`args.long.map(a, args.s + "x").size() > 0`:                                      dear,
		`args.long.all(a, args.big.size() > 3)`:                                          dear,
		`args.long.all(a, args.big < args.big || true)`:                                  dear,
		`args.deep.exists(a, args.deep.exists(b, a == b && false))`:                      dear,
		`args.deep.exists(a, a in args.deep && false)`:                                   dear,
		`args.big.matches("(a*)*` + strings.Repeat("(b|a*)", 50) + `c")`:                 dear,
		`args.big.contains("secret") || args.s.size() > 3`:                               fine,
		`args.big.matches("(?i)ignore (all|previous)") || args.big.startsWith("a")`:      fine,
		`args.long.all(a, a == 1 && !args.s.startsWith("x"))`:                            fine,
		`args.deep == args.deep && args.deep[0].a[39][1].y[0] == 1`:                      fine,
		`args.long.size() == 5000 && (args.long + args.long).size() == 10000`:            fine,
		`programs(args.cmd) == ["ls"]`:                                                   fine,
		strings.TrimSuffix(strings.Repeat(`args.s == "x" || `, 30), " || ") + ` || true`: fine,
	} {
		began := time.Now()
		yes, err := evaluate(t, expr, args)
		if gone != errors.Is(err, errCost) || gone == fine && (err != nil || !yes) {
			t.Errorf("%.90s: %v %v", expr, yes, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%.90s took %s", expr, took)
		}
	}
}

// A match that would take too long is not begun: what counts comes only after it.
func TestLongMatchIsNotBegun(t *testing.T) {
	pattern := `(a*)*` + strings.Repeat("(b|a*)", 50) + `c`
	for _, expr := range []string{`args.big.matches("` + pattern + `")`, `matches(args.big, "` + pattern + `")`, `tool.matches("` + pattern + `")`} {
		env, err := theEnv()
		if err != nil {
			t.Fatal(err)
		}
		compiled, issues := env.Compile(expr)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		found, _ := patterns(compiled.NativeRep())
		p, err := env.PlanProgram(compiled.NativeRep(), uncounted(found)...)
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Repeat("a", 2_000_000)
		if _, _, err := p.Eval(map[string]any{"args": map[string]any{"big": long}, "tool": long}); !errors.Is(err, errCost) {
			t.Errorf("%.40s: %v", expr, err)
		}
	}
}

// What is not counted can't be made expensive by arguments.
func TestCheap(t *testing.T) {
	for expr, want := range map[string]bool{
		`args.n > 3 || args.path.startsWith("x")`: true, `binding.channel == "c" && mode != "plan"`: true, `tool in ["a", "b"]`: true, `has(args.x) && args.x.y[0] == null`: false,
		`!(args.path in ["a", "b"])`: true, `args.a == args.b`: false, `args.a == [1]`: false, `args.a in args.b`: false, `args.a + "x" == "yx"`: false, `size(args.a) > 3`: false,
		`args.a.contains("x")`: false, `args.a.matches("x")`: false, `args.a.all(x, x == 1)`: false, `[1, 2].all(x, args.a == x)`: false, `programs(args.cmd) == []`: false,
		`path_in(args.path, "x")`: false, `host(args.url) == "x"`: false, `string(args.a) == "x"`: false, `{"a": args.a}.a == 1`: false, `tool in [args.a]`: false, `args == {}`: false,
	} {
		env, err := theEnv()
		if err != nil {
			t.Fatal(err)
		}
		compiled, issues := env.Compile(expr)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", expr, issues.Err())
		}
		if got := cheap(compiled.NativeRep()); got != want {
			t.Errorf("%s: %v", expr, got)
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
