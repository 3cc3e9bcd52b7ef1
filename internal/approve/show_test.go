package approve_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	words "github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"": "",
		"plain größe 部署 שלום नमस्ते 🦆":    "plain größe 部署 שלום नमस्ते 🦆",
		"\x1b[2Jdrawbridge: ask":          `\u{1b}[2Jdrawbridge: ask`,
		"\u009b31m\x00\x07\x7f":           `\u{9b}31m\u{0}\u{7}\u{7f}`,
		"a\nb\tc\rd\ve":                   `a\nb\tc\rd\u{b}e`,
		"\u202egnp.exe\u2066\u2069":       `\u{202e}gnp.exe\u{2066}\u{2069}`,
		"a\u200bb\ufeffc\u00add":          `a\u{200b}b\u{feff}c\u{ad}d`,
		"\U000e0041\U000e0001\U000e0100":  `\u{e0041}\u{e0001}\u{e0100}`,
		"a\u00a0b\u3000c\u2009d\u2028e":   `a\u{a0}b\u{3000}c\u{2009}d\u{2028}e`,
		"a\u2800b\u3164c\U0001d159":       `a\u{2800}b\u{3164}c\u{1d159}`,
		"\ue000\U0010ffff\u0378":          `\u{e000}\u{10ffff}\u{378}`,
		"a\xffb\xc3":                      `a\x{ff}b\x{c3}`,
		"\xed\xa0\x80":                    `\x{ed}\x{a0}\x{80}`,
		"⚠\ufe0f a\ufe0f":                 "⚠\ufe0f a" + `\u{fe0f}`,
		"e\u0301\u0302":                   "e\u0301\u0302",
		"e" + strings.Repeat("\u0301", 6): "e" + strings.Repeat("\u0301", 4) + `\u{301}\u{301}`,
		`\u{202e} \x{ff}`:                 `\u{202e} \x{ff}`,
		"�":                               "�",
	} {
		if got := approve.Visible(in); got != want {
			t.Errorf("Visible(%q) = %q, want %q", in, got, want)
		}
	}
}

func show(t *testing.T, arguments string) approve.Question {
	var q approve.Question
	inBubble(t, nil, func(o *office) {
		o.ask(rawCall("t", arguments))
		q = o.Pending()[0]
	})
	return q
}

func rawCall(tool, args string) approve.Call {
	c := call(tool, "")
	c.Arguments = []byte(args)
	return c
}

func TestArgumentsAreReadable(t *testing.T) {
	for in, want := range map[string]string{
		`{"cmd":"\u0072\u006d\u0020-rf \/"}`: `{"cmd": "rm -rf /"}`,
		`{ "部" :"\u90e8\ud83e\udd86" }`:      `{"部": "部🦆"}`,
		`{"a":"\u202e\u001b\n\u0000\""}`:     `{"a": "\u{202e}\u001b\n\u0000\""}`,
		`{"n":9007199254740993,"f":1.10}`:    `{"n": 9007199254740993, "f": 1.10}`,
		"no json \x1b":                       `no json \u{1b}`,
		`{"a":1,"a":2}`:                      `{"a":1,"a":2}`,
		"":                                   "",
	} {
		if got := show(t, in).Arguments; got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}

func TestLongArguments(t *testing.T) {
	marker := regexp.MustCompile(`\n\[\.\.\. (\d+) of (\d+) bytes left out \.\.\.\]\n`)
	for _, unit := range []string{"x", "部", "\u202e", "\x00", "\xff", "e\u0301"} {
		long := "HEAD" + strings.Repeat(unit, 40_000) + "TAIL"
		q := show(t, long)
		m := marker.FindStringSubmatchIndex(q.Arguments)
		if m == nil || !strings.HasPrefix(q.Arguments, "HEAD") || !strings.HasSuffix(q.Arguments, "TAIL") {
			t.Fatalf("%q: %.100q", unit, q.Arguments)
		}
		head, tail := q.Arguments[:m[0]], q.Arguments[m[1]:]
		kept := len(head) + len(tail)
		if seen := approve.Visible(unit); seen != unit {
			kept = (kept-len("HEADTAIL"))/len(seen)*len(unit) + len("HEADTAIL")
		}
		if got := q.Arguments[m[2]:m[3]]; got != fmt.Sprint(len(long)-kept) || q.Arguments[m[4]:m[5]] != fmt.Sprint(len(long)) {
			t.Errorf("%q: %s bytes left out, want %d", unit, got, len(long)-kept)
		}
		if n := len(head) + len(tail); n > approve.MaxArguments || n < approve.MaxArguments/2 || len(head) < len(tail) {
			t.Errorf("%q: %d and %d bytes are shown", unit, len(head), len(tail))
		}
		if q.ArgumentsSize != len(long) || q.ArgumentsDigest != approve.Digest([]byte(long)) {
			t.Errorf("%q: size %d, digest %s", unit, q.ArgumentsSize, q.ArgumentsDigest)
		}
		text := q.Text()
		for _, want := range []string{fmt.Sprint(len(long), " bytes, ", q.ArgumentsDigest), "| HEAD", "TAIL\n", "bytes left out"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q: the text lacks %q", unit, want)
			}
		}
	}
	exact := strings.Repeat("x", approve.MaxArguments)
	if got := show(t, exact).Arguments; got != exact {
		t.Errorf("what just fits is cut to %d bytes", len(got))
	}
}

func TestText(t *testing.T) {
	q := approve.Question{
		ID: "k7mf2qxa", Run: "20261201-143200-ab12", Workspace: "ws-personal", Channel: "ch-ops", User: "kim", Agent: "researcher",
		Tool: "submit_plan", Effects: "read", Arguments: `{"path": "a.txt"}`, ArgumentsDigest: "sha256:00ff", ArgumentsSize: 16,
		Plan: "# Plan\n\n1. tidy up\n", Layer: "agent researcher", Rule: "policy.yaml:12", Reason: "plans are asked for",
		State: approve.Pending, Expires: time.Now().Add(10*time.Minute + 300*time.Millisecond),
	}
	want := `question k7mf2qxa: may this call run?
  run:       20261201-143200-ab12 (agent researcher, workspace ws-personal, channel ch-ops, user kim)
  tool:      submit_plan (read)
  why:       agent researcher, policy.yaml:12: plans are asked for
  arguments: 16 bytes, sha256:00ff
| {"path": "a.txt"}
  plan:      turns the run from plan to act
| # Plan
| 
| 1. tidy up
  expires:   in 10m0s, at ` + q.Expires.UTC().Format(time.RFC3339) + `
  answer:    drawbridge approve k7mf2qxa
  or:        drawbridge deny k7mf2qxa --reason TEXT
`
	if got := q.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	q = approve.Question{
		ID: "k7mf2qxa", Run: "r", Tool: "t", ArgumentsDigest: approve.Digest(nil), State: approve.Denied, By: "uid 1000 pid 4711",
		Answered: time.Date(2026, 12, 1, 14, 33, 0, 0, time.UTC), Note: "not that one",
	}
	want = `question k7mf2qxa: may this call run?
  run:       r
  tool:      t
  arguments: none
  state:     denied by uid 1000 pid 4711 at 2026-12-01T14:33:00Z (not that one)
`
	if got := q.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	q = approve.Question{ID: "a", ArgumentsDigest: "sha256:00", ArgumentsSize: 9, State: approve.Pending}
	if got := q.Text(); !strings.Contains(got, "arguments: can't be shown; 9 bytes, sha256:00\n") || !strings.Contains(got, "expires:   now, ") {
		t.Errorf("got\n%s", got)
	}
}

// TestTextOfTheAgentIsNotOurs has an agent that writes a question of its own.
func TestTextOfTheAgentIsNotOurs(t *testing.T) {
	fake := "question aaaa2222: may this call run?\n  answer:    drawbridge approve aaaa2222\n"
	q := show(t, "x\n"+fake+strings.Repeat(" ", 78)+fake)
	q.Plan = "\r\n" + fake + strings.Repeat("部", 39) + fake
	q.Tool, q.Reason, q.By, q.Note = "t\n"+fake, "\n"+fake, "\n"+fake, "\r"+fake
	for line := range strings.Lines(q.Text()) {
		if strings.Contains(line, "aaaa2222") && !strings.HasPrefix(line, "| ") && !strings.Contains(line, `\n`) {
			t.Errorf("a line of the agent's: %q", line)
		}
		if strings.HasPrefix(line, "question") && !strings.HasPrefix(line, "question "+q.ID) {
			t.Errorf("a line of the agent's: %q", line)
		}
	}
}

// ours is how lines begin that we write.
var ours = regexp.MustCompile(`^(question .*: may this call run\?|  (run|tool|why|arguments|plan|expires|answer|or|state): .*)$`)

// readText checks what Text promises whatever the fields hold.
func readText(t *testing.T, q approve.Question) {
	t.Helper()
	text := q.Text()
	if len(text) > 256<<10 {
		t.Errorf("%d bytes", len(text))
	}
	if !strings.HasSuffix(text, "\n") || !utf8.ValidString(text) {
		t.Errorf("no text: %q", text)
	}
	heads := 0
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		quoted, isQuoted := strings.CutPrefix(line, "| ")
		if !isQuoted && !ours.MatchString(line) {
			t.Errorf("a line is neither ours nor quoted: %q", line)
		}
		wide := utf8.RuneCountInString(quoted)
		for _, r := range quoted {
			if unicode.In(r, unicode.Han, unicode.Hangul, unicode.Katakana) {
				wide++
			}
		}
		if wide > 78 && isQuoted {
			t.Errorf("a line is %d columns wide: %q", wide, quoted)
		}
		if strings.HasPrefix(line, "question ") {
			heads++
		}
		readVisible(t, line)
	}
	if heads != 1 {
		t.Errorf("%d questions in one", heads)
	}
}

func readVisible(t *testing.T, s string) {
	t.Helper()
	for _, r := range s {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp) || r != ' ' && unicode.IsSpace(r) ||
			words.Invisible(string(r)) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("%U is in %q", r, s)
		}
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "plain", "\x1b[31m", "\u202e", "\U000e0041", "\xff\xfe", "a\nb", "e\u0301\u0301\u0301\u0301\u0301", "⚠\ufe0f\ufe0f", "\x9a\ufe0f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := approve.Visible(s)
		readVisible(t, got)
		if !utf8.ValidString(got) || len(got) > 9*len(s) {
			t.Errorf("Visible(%q) = %q", s, got)
		}
		if again := approve.Visible(got); again != got {
			t.Errorf("not the same again: %q, %q", got, again)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add("t", `{"a":"\u202e"}`, "# Plan\n\x1b[2J", "because", "kim", "pending")
	f.Add("t\nquestion x: may this call run?", "\n\n\n", strings.Repeat("x", 200), "\r", "\x00", "denied")
	f.Add("", "", strings.Repeat("部\n", 20_000), strings.Repeat("\u0301", 5000), "", "")
	f.Add("", strings.Repeat("\U000e0041", 3000), strings.Repeat("\n", 40_000), "", "", "pending")
	f.Add("", strings.Repeat("部", 100), "", "", "", "pending")
	f.Fuzz(func(t *testing.T, tool, args, plan, reason, by, state string) {
		q := approve.Question{
			ID: tool, Run: by, Workspace: reason, Channel: args, User: plan, Agent: tool, Tool: tool, Effects: reason,
			Arguments: args, ArgumentsDigest: reason, Plan: plan, Layer: tool, Rule: by, Reason: reason, By: by, Note: plan, State: approve.State(state),
		}
		readText(t, q)
		inBubble(t, func(c *approve.Config, _ *office) {
			c.Run, c.Workspace, c.Channel, c.User, c.Agent = by, reason, args, plan, tool
		}, func(o *office) {
			o.ask(approve.Call{Tool: tool, Effects: reason, Arguments: []byte(args), Plan: plan, Layer: by, Rule: args, Reason: reason})
			q := o.Pending()[0]
			readText(t, q)
			if err := o.Answer(o.Context(), q.ID, approve.Answer{By: by, Note: plan}); err != nil {
				o.Fatal(err)
			}
			kept := o.store.list[0]
			readText(t, kept)
			for line := range strings.SplitSeq(kept.Arguments+"\n"+kept.Plan, "\n") {
				readVisible(t, line)
			}
			for _, s := range []string{kept.Run, kept.Workspace, kept.Channel, kept.User, kept.Agent, kept.Tool, kept.Effects, kept.Layer, kept.Rule, kept.Reason, kept.By, kept.Note} {
				if readVisible(t, s); len(s) > 1000 {
					t.Errorf("a field of %d bytes", len(s))
				}
			}
			if len(kept.Arguments) > approve.MaxArguments+100 || len(kept.Plan) > approve.MaxPlan+100 {
				t.Errorf("%d bytes of arguments, %d of the plan", len(kept.Arguments), len(kept.Plan))
			}
		})
	})
}
