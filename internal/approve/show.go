package approve

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// What is shown of a question, in bytes, the marker for what is left out aside.
const (
	MaxArguments = 4 << 10
	MaxPlan      = 32 << 10

	maxNote = 1000 // also of a reason
	maxWord = 256  // a name, a rule, who answered
)

// Visible is s on one line and with nothing in it that a terminal obeys or a
// person can't see: control characters (so every escape sequence), marks that
// reorder text, zero-width characters, tags, spaces other than U+0020, what
// Unicode has not assigned or left to private use, and piles of combining marks
// stand as \n, \t, \r, \u{202e}, bytes that are no UTF-8 as \x{ff}. What is
// visible already comes back as it is.
func Visible(s string) string {
	out, _ := appendVisible(nil, s, false, -1)
	return string(out)
}

// blank are symbols that look like a space.
const blank = "\u2800\U0001D159"

// maxMarks is how many combining marks one character may carry. More than any
// script needs would paint over the lines above and below.
const maxMarks = 4

// appendVisible appends what Visible returns, with line ends as they are where
// lines is set, and stops before more than max bytes of it; a negative max is no
// limit. n is how much of s that is.
func appendVisible(dst []byte, s string, lines bool, max int) (_ []byte, n int) {
	start := len(dst)
	var before rune
	marks := 0
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		was := len(dst)
		after := r
		switch {
		case r == '\n' && lines:
			dst = append(dst, '\n')
		case r == utf8.RuneError && size == 1:
			dst = fmt.Appendf(dst, `\x{%02x}`, s[n])
			after = '}'
		case r == '\ufe0f' && unicode.Is(unicode.So, before), // a symbol as an emoji
			plain(r) && marks <= maxMarks:
			dst = append(dst, s[n:n+size]...)
		default:
			dst = append(dst, escaped(r)...)
			after = '}'
		}
		if max >= 0 && len(dst)-start > max {
			return dst[:was], n
		}
		before = after
		n += size
	}
	return dst, n
}

func plain(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= ' ' && r != 0x7f
	}
	return unicode.IsPrint(r) && !unicode.Is(unicode.Variation_Selector, r) &&
		!strings.ContainsRune(blank, r) && !call.Invisible(string(r))
}

func escaped(r rune) string {
	switch r {
	case '\n':
		return `\n`
	case '\t':
		return `\t`
	case '\r':
		return `\r`
	}
	return fmt.Sprintf(`\u{%x}`, r)
}

// brief is s visible, with its line ends, and of what is longer than max bytes
// the first three quarters and the last quarter.
func brief(s string, max int) string {
	out, n := appendVisible(make([]byte, 0, min(len(s), max)), s, true, max)
	if n == len(s) {
		return string(out)
	}
	out, n = appendVisible(out[:0], s, true, max-max/4)
	from, left := len(s), max/4
	for from > n {
		r, size := utf8.DecodeLastRuneInString(s[n:from])
		w := size
		if r == utf8.RuneError || !plain(r) || unicode.Is(unicode.M, r) {
			w = len(escaped(unicode.MaxRune))
		}
		if left -= w; left < 0 {
			break
		}
		from -= size
	}
	out = fmt.Appendf(out, "\n[... %d of %d bytes left out ...]\n", from-n, len(s))
	out, _ = appendVisible(out, s[from:], true, -1)
	return string(out)
}

// cut is Visible of at most max bytes.
func cut(s string, max int) string {
	out, n := appendVisible(nil, s, false, max)
	if n == len(s) {
		return string(out)
	}
	out, _ = appendVisible(out[:0], s, false, max-len("..."))
	return string(out) + "..."
}

func oneLine(s string) string { return cut(s, maxWord) }

// readable is JSON with every character that needs no escape as itself: what a
// client wrote as \u0072\u006d is rm. What is no JSON comes back as it is.
func readable(b []byte) string {
	out, err := jsontext.AppendFormat(nil, b, jsontext.SpaceAfterColon(true), jsontext.SpaceAfterComma(true))
	if err != nil {
		return string(b)
	}
	return string(out)
}

// Text is the question as a person reads it at any door. It has several lines
// and ends with a line end. Each line of what the agent wrote begins with "| "
// and is at most 80 columns wide, so that none of it can pass for a line of
// ours, whatever the fields hold and a terminal wraps.
func (q Question) Text() string { return q.text(time.Now()) }

func (q Question) text(now time.Time) string {
	var b strings.Builder
	id := oneLine(q.ID)
	fmt.Fprintf(&b, "question %s: may this call run?\n", id)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-10s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	var of []string
	for _, w := range []struct{ name, value string }{
		{"agent", q.Agent}, {"workspace", q.Workspace}, {"channel", q.Channel}, {"user", q.User},
	} {
		if w.value != "" {
			of = append(of, w.name+" "+oneLine(w.value))
		}
	}
	row("run", "%s%s", oneLine(q.Run), inBrackets(strings.Join(of, ", ")))
	row("tool", "%s%s", oneLine(q.Tool), inBrackets(oneLine(q.Effects)))
	if why := joined(": ", joined(", ", oneLine(q.Layer), oneLine(q.Rule)), cut(q.Reason, maxNote)); why != "" {
		row("why", "%s", why)
	}
	digest := oneLine(q.ArgumentsDigest)
	switch {
	case digest == absent:
		row("arguments", "none")
	case q.Arguments == "":
		row("arguments", "can't be shown; %d bytes, %s", q.ArgumentsSize, digest)
	default:
		row("arguments", "%d bytes, %s", q.ArgumentsSize, digest)
		quote(&b, brief(q.Arguments, 2*MaxArguments))
	}
	if q.Plan != "" {
		row("plan", "turns the run from plan to act")
		quote(&b, brief(q.Plan, 2*MaxPlan))
	}
	if q.State != Pending {
		row("state", "%s", cut(q.How(), 2*maxNote))
		return b.String()
	}
	left := "now"
	if d := q.Expires.Sub(now).Round(time.Second); d > 0 {
		left = "in " + d.String()
	}
	row("expires", "%s, at %s", left, q.Expires.UTC().Format(time.RFC3339))
	row("answer", "drawbridge approve %s", id)
	row("or", "drawbridge deny %s --reason TEXT", id)
	return b.String()
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func joined(sep string, a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + sep + b
}

// columns is how wide a line of quote may be.
const columns = 80

// quote writes visible text line by line behind "| ".
func quote(b *strings.Builder, s string) {
	const mark = "| "
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		b.WriteString(mark)
		at := len(mark)
		for _, r := range line {
			w := 1
			if r >= 0x1100 { // wide, or might be
				w = 2
			}
			if at += w; at > columns {
				b.WriteString("\n" + mark)
				at = len(mark) + w
			}
			b.WriteRune(r)
		}
		b.WriteByte('\n')
	}
}
