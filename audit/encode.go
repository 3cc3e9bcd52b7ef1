package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// MaxLine is how many bytes a line may have, without its newline. Append
// refuses a longer record and Verify a longer line, so that both work in
// bounded memory.
const MaxLine = 8 << 20

var (
	errCanonical = errors.New("it is not spelled the way a record is: another reader could read it differently")
	errUTF8      = errors.New("it is not valid UTF-8")
)

// appendLine appends r in the one spelling this format has: members in the
// order of the struct, absent where zero, no white space between them, strings
// escaped only where appendString says so. One spelling is what makes
// duplicate keys, unknown members and case variants visible: a line that is
// not equal to its own decoded and encoded form is refused.
func appendLine(b []byte, r *Record) []byte {
	b = append(b, `{"seq":`...)
	b = strconv.AppendInt(b, r.Seq, 10)
	b = append(b, `,"prev":`...)
	b = appendString(b, r.Prev)
	b = append(b, `,"time":"`...)
	b = r.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","kind":`...)
	b = appendString(b, string(r.Kind))
	if r.Run != nil {
		b = append(b, `,"run":`...)
		b = appendRun(b, r.Run)
	}
	b = intMember(b, "call", r.Call)
	b = stringMember(b, "tool", r.Tool)
	b = stringMember(b, "effects", r.Effects)
	b = stringMember(b, "origin", r.Origin)
	if len(r.Arguments) > 0 {
		b = append(b, `,"arguments":`...)
		b = appendOneLine(b, r.Arguments)
	}
	b = stringMember(b, "arguments_digest", r.ArgumentsDigest)
	b = intMember(b, "arguments_size", int64(r.ArgumentsSize))
	b = stringMember(b, "decision", r.Decision)
	b = stringMember(b, "layer", r.Layer)
	b = stringMember(b, "rule", r.Rule)
	b = stringMember(b, "reason", r.Reason)
	b = stringMember(b, "outcome", string(r.Outcome))
	b = intMember(b, "us", r.Micros)
	b = intMember(b, "result_size", int64(r.ResultSize))
	b = intMember(b, "cut", r.Cut)
	b = intMember(b, "redacted", int64(r.Redacted))
	b = trueMember(b, "repaired", r.Repaired)
	b = trueMember(b, "invisible", r.Invisible)
	b = stringMember(b, "what", r.What)
	b = stringMember(b, "detail", r.Detail)
	if len(r.Totals) > 0 {
		b = append(b, `,"totals":{`...)
		keys := make([]string, 0, len(r.Totals))
		for k := range r.Totals {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, k)
			b = append(b, ':')
			b = strconv.AppendInt(b, r.Totals[k], 10)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func appendRun(b []byte, r *Run) []byte {
	b = append(b, `{"version":`...)
	b = strconv.AppendInt(b, int64(r.Version), 10)
	for _, m := range [...]struct {
		name, value string
		optional    bool
	}{
		{"id", r.ID, false},
		{"program", r.Program, false},
		{"workspace", r.Workspace, false},
		{"channel", r.Channel, false},
		{"user", r.User, false},
		{"agent", r.Agent, false},
		{"level", r.Level, false},
		{"mode", r.Mode, false},
		{"folder", r.Folder, true},
		{"policy_digest", r.PolicyDigest, false},
		{"catalogue_digest", r.CatalogueDigest, false},
		{"command_digest", r.CommandDigest, true},
	} {
		if m.optional && m.value == "" {
			continue
		}
		b = append(b, `,"`...)
		b = append(b, m.name...)
		b = append(b, `":`...)
		b = appendString(b, m.value)
	}
	b = append(b, `,"scope":[`...)
	for i, s := range r.Scope {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, `]}`...)
}

func stringMember(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, s)
}

func intMember(b []byte, name string, n int64) []byte {
	if n == 0 {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return strconv.AppendInt(b, n, 10)
}

func trueMember(b []byte, name string, v bool) []byte {
	if !v {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, `":true`...)
}

// appendString quotes s. Besides what RFC 8259 section 7 demands it escapes
// DEL, the C1 controls and the Unicode line separators: a line has to stay one
// line in every reader, and must hold nothing a terminal obeys. Bytes that are
// not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < 0x7F && c != '"' && c != '\\' {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = appendEscape(b, rune(c))
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, s[start:i]...)
			b = append(b, "\uFFFD"...)
			start = i + size
		case r < 0xA0 || r == 0x2028 || r == 0x2029:
			b = append(b, s[start:i]...)
			b = appendEscape(b, r)
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// appendOneLine appends a JSON value verbatim, but for the line ends that may
// stand between its tokens: each becomes a space.
func appendOneLine(b, value []byte) []byte {
	n := len(b)
	b = append(b, value...)
	for i, c := range b[n:] {
		if c == '\n' || c == '\r' {
			b[n+i] = ' '
		}
	}
	return b
}

// decodeLine reads one line, without its newline, and refuses what another
// reader could read differently. scratch is reused and returned.
func decodeLine(line, scratch []byte) (Record, []byte, error) {
	var r Record
	if !utf8.Valid(line) {
		return r, scratch, errUTF8
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, scratch, fmt.Errorf("it is not a line of a record: %w", err)
	}
	if len(r.Arguments) > 0 {
		if err := checkValue(r.Arguments); err != nil {
			return r, scratch, fmt.Errorf("its arguments are not one plain JSON value: %w", err)
		}
	}
	scratch = appendLine(scratch[:0], &r)
	if !bytes.Equal(scratch, line) {
		return r, scratch, errCanonical
	}
	return r, scratch, nil
}
