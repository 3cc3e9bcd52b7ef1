// Package redact takes secrets out of bytes that are kept or shown.
//
// Secrets masks values that are known, exactly and in the encodings in which
// they usually travel. It is for everything: logs, transcripts, results.
// Arguments masks what merely looks like a secret, and is for the arguments in
// a record only: what a tool receives is never changed by it.
//
// Neither can recognise a secret that somebody set out to hide (reversed, say,
// or split in two). What a run must not give away it must not be given.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Mask stands where a secret was.
const Mask = "[redacted]"

// MinSecret is how many bytes a value must have to be masked. Shorter ones
// would be found in text that has nothing to do with them.
const MinSecret = 8

// Secrets is a set of known values. It is immutable and safe for concurrent
// use; nil and the zero value mask nothing.
//
// Where two secrets overlap, one Mask stands for both, so that no rest of the
// second one stays.
type Secrets struct {
	patterns [][]byte // longest first
	longest  int
	first    [256]bool // first bytes of patterns

	// Of every pattern the first MinSecret bytes are its window. shift says,
	// for a hash of the last block of bytes of the window in hand, how far
	// the next window in which a pattern can begin is away; where that is 0,
	// ends lists the patterns to compare (Wu and Manber, "A fast algorithm for
	// multi-pattern searching", 1994).
	shift []uint8
	ends  map[uint32][]int32
	bits  uint32
}

const block = 3

// New returns the set of the given values, each without white space around it
// and also as base64 (standard and URL alphabet, wherever in a longer text it
// stands), hexadecimal, percent-encoded and escaped as in a JSON string, once
// or twice. Values shorter than MinSecret bytes, and those that Mask itself
// contains, are left out.
func New(values ...string) *Secrets {
	s := &Secrets{}
	seen := make(map[string]bool)
	add := func(p string) {
		if len(p) >= MinSecret && !seen[p] {
			seen[p] = true
			s.patterns = append(s.patterns, []byte(p))
		}
	}
	for _, v := range values {
		v = strings.TrimSpace(v)
		if len(v) < MinSecret || strings.Contains(Mask, v) {
			continue
		}
		add(v)
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			add(enc.EncodeToString([]byte(v)))
			// In a longer text the value starts at one of three places of a
			// group. The characters it shares with its neighbours vary.
			for lead := range 3 {
				text := enc.EncodeToString(append(make([]byte, lead), v...))
				add(text[(lead*8+5)/6 : (lead+len(v))*8/6])
			}
		}
		h := hex.EncodeToString([]byte(v))
		add(h)
		add(strings.ToUpper(h))
		for _, e := range []string{url.QueryEscape(v), url.PathEscape(v), percent(v)} {
			add(e)
			add(lowerEscapes(e))
		}
		for _, ascii := range []bool{false, true} {
			for _, html := range []bool{false, true} {
				once := escapeJSON(v, ascii, html)
				add(once)
				add(escapeJSON(once, false, false))
			}
		}
		add(strings.ReplaceAll(escapeJSON(v, false, false), "/", `\/`))
	}
	s.index()
	return s
}

func (s *Secrets) index() {
	slices.SortStableFunc(s.patterns, func(a, b []byte) int { return len(b) - len(a) })
	s.bits = 10
	for 1<<s.bits < 16*MinSecret*len(s.patterns) && s.bits < 20 {
		s.bits++
	}
	const far = MinSecret - block + 1
	s.shift = bytes.Repeat([]byte{far}, 1<<s.bits)
	s.ends = make(map[uint32][]int32, len(s.patterns))
	for i, p := range s.patterns {
		s.longest = max(s.longest, len(p))
		s.first[p[0]] = true
		for end := block; end <= MinSecret; end++ {
			h := s.hash(p[end-block : end])
			s.shift[h] = min(s.shift[h], uint8(MinSecret-end))
			if end == MinSecret {
				s.ends[h] = append(s.ends[h], int32(i))
			}
		}
	}
}

func (s *Secrets) hash(b []byte) uint32 {
	v := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
	return v * 0x9E3779B1 >> (32 - s.bits)
}

// span is a range of bytes to mask.
type span struct{ start, end int }

// find appends where in b a secret is: in order of start, overlapping ones
// joined.
func (s *Secrets) find(b []byte, spans []span) []span {
	if s == nil || len(s.patterns) == 0 {
		return spans
	}
	base := len(spans)
	for i := MinSecret; i <= len(b); {
		h := s.hash(b[i-block : i])
		if far := s.shift[h]; far > 0 {
			i += int(far)
			continue
		}
		start := i - MinSecret
		for _, p := range s.ends[h] {
			pattern := s.patterns[p]
			if !bytes.HasPrefix(b[start:], pattern) {
				continue
			}
			end := start + len(pattern)
			if n := len(spans); n > base && start < spans[n-1].end {
				spans[n-1].end = max(spans[n-1].end, end)
			} else {
				spans = append(spans, span{start, end})
			}
			break // the first to fit is the longest
		}
		i++
	}
	return spans
}

// Bytes returns b with every secret masked, and how many places were. Without
// any it returns b itself.
func (s *Secrets) Bytes(b []byte) ([]byte, int) {
	spans := s.find(b, nil)
	if len(spans) == 0 {
		return b, 0
	}
	return mask(b, spans), len(spans)
}

// String is Bytes for a string.
func (s *Secrets) String(text string) (string, int) {
	if s == nil || len(s.patterns) == 0 || len(text) < MinSecret {
		return text, 0
	}
	spans := s.find([]byte(text), nil)
	if len(spans) == 0 {
		return text, 0
	}
	return string(mask([]byte(text), spans)), len(spans)
}

func mask(b []byte, spans []span) []byte {
	out := make([]byte, 0, len(b)+len(spans)*len(Mask))
	at := 0
	for _, sp := range spans {
		out = append(out, b[at:sp.start]...)
		out = append(out, Mask...)
		at = sp.end
	}
	return append(out, b[at:]...)
}

// Writer returns a writer that passes on to w what is written to it with every
// secret masked, also one that arrives in pieces. It keeps back only bytes that
// may be the beginning of a secret, fewer than the longest has, until more
// comes or Close. Close does not close w. The writer is for one goroutine at a
// time; an error of w is returned from then on.
func (s *Secrets) Writer(w io.Writer) io.WriteCloser { return &writer{s: s, w: w} }

type writer struct {
	s       *Secrets
	w       io.Writer
	pending []byte
	covered int // how much of pending a Mask already written stands for
	err     error
}

const chunk = 32 << 10

func (w *writer) Write(p []byte) (int, error) {
	total := len(p)
	if w.err == nil && (w.s == nil || w.s.longest == 0) {
		var n int
		n, w.err = w.w.Write(p)
		return n, w.err
	}
	for len(p) > 0 && w.err == nil {
		n := min(len(p), chunk)
		w.pending = append(w.pending, p[:n]...)
		p = p[n:]
		w.pass(w.pending, w.s.tail(w.pending))
	}
	if w.err != nil {
		return total - len(p), w.err
	}
	return total, nil
}

func (w *writer) Close() error {
	if w.err == nil && len(w.pending) > 0 {
		w.pass(w.pending, len(w.pending))
	}
	if w.err == nil {
		w.err = io.ErrClosedPipe
		return nil
	}
	if w.err == io.ErrClosedPipe {
		return nil
	}
	return w.err
}

// pass writes b up to keep, masked, and makes the rest pending. No secret
// that begins before keep goes on past the end of b.
func (w *writer) pass(b []byte, keep int) {
	spans := w.s.find(b, nil)
	out := make([]byte, 0, keep+len(Mask))
	at := 0
	if w.covered > 0 {
		at = w.covered
		for len(spans) > 0 && spans[0].start < w.covered {
			at = max(at, spans[0].end)
			spans = spans[1:]
		}
	}
	for _, sp := range spans {
		if sp.start >= keep {
			break
		}
		out = append(out, b[at:sp.start]...)
		out = append(out, Mask...)
		at = sp.end
	}
	if at < keep {
		out = append(out, b[at:keep]...)
	}
	w.covered = max(at-keep, 0)
	if len(out) > 0 {
		_, w.err = w.w.Write(out)
	}
	w.pending = w.pending[:copy(w.pending, b[keep:])]
}

// tail is where the bytes at the end of b begin that may be the beginning of a
// secret.
func (s *Secrets) tail(b []byte) int {
	for i := max(len(b)-s.longest+1, 0); i < len(b); i++ {
		if !s.first[b[i]] {
			continue
		}
		for _, p := range s.patterns {
			if len(p) <= len(b)-i {
				break
			}
			if bytes.HasPrefix(p, b[i:]) {
				return i
			}
		}
	}
	return len(b)
}

// percent encodes every byte that is not a letter or digit.
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isAlnum(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// lowerEscapes turns %2F into %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:i+3], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
}

// escapeJSON is what s looks like inside a JSON string: with everything
// beyond ASCII as \u escapes where ascii is set, and with <, > and & too where
// html is.
func escapeJSON(s string, ascii, html bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && s[i] >= 0x80 && !strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteByte(s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20, html && (r == '<' || r == '>' || r == '&'), ascii && r >= 0x7F && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
