package redact

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// nested is how deep JSON inside strings of JSON is read as such.
const nested = 3

// Arguments returns the arguments of a call as a record keeps them. Masked are:
//
//   - every known secret of s, in keys, strings and numbers, however escaped;
//   - the value, whatever its type, of a key whose words say that it is a secret
//     (authorization, password, token, apiKey, client_secret, ...), and of
//     "value" beside a "name" or "key" that does;
//   - in any string: credentials after Bearer and Basic, the userinfo and
//     secret parameters of URLs, assignments and options of that kind, private
//     keys in PEM (also without an end), and tokens of a known shape;
//   - the same inside a string that is JSON itself.
//
// Everything else comes back byte for byte, and arguments in which nothing is
// masked as the very slice. It returns nil for arguments, or a result, of more
// than max bytes, for what is not one JSON value with unique keys (RFC 8259
// section 4), and where a secret can't be taken out without breaking the JSON.
func Arguments(args []byte, s *Secrets, max int) []byte {
	return masked(args, s, max, false)
}

// Shown returns the arguments of a call as a person is shown them who is asked
// whether it may run: as Arguments does, but what only stands in the place of a
// secret is masked where it is opaque, and shown where it is not. Whoever writes
// the arguments could hide a command behind --token otherwise.
func Shown(args []byte, s *Secrets, max int) []byte {
	return masked(args, s, max, true)
}

func masked(args []byte, s *Secrets, max int, shown bool) []byte {
	if len(args) > max || !jsontext.Value(args).IsValid() {
		return nil
	}
	out := redactValue(args, s, nested, shown)
	if len(out) > max {
		return nil
	}
	// A secret may reach across tokens ([1,2,3,4]), and two masked keys may
	// have become one.
	if len(s.find(out, nil)) > 0 {
		return nil
	}
	if len(out) > 0 && &out[0] != &args[0] && !jsontext.Value(out).IsValid() {
		return nil
	}
	return out
}

// edit is a replacement of a part of the input.
type edit struct {
	span
	text []byte
}

// frame is an object or array that is being read.
type frame struct {
	object bool
	start  int
	class  keyClass // of the member in hand
	inside bool     // of a value that a key says is a secret, and that is shown
	named  bool     // a "name" member holds a secret-looking key
	role   byte     // of the member in hand: 'n'ame, 'v'alue or 0
	value  span     // of the "value" member
	next   bool     // in an array: the element before was an option like --token
}

type walker struct {
	in     []byte
	s      *Secrets
	depth  int
	shown  bool // only what is opaque is masked
	edits  []edit
	frames []frame
	masked int // keys that were masked
	spans  []span
	buf    []byte
}

// redactValue masks a valid JSON value, and returns it as it is where there is
// nothing to mask.
func redactValue(in []byte, s *Secrets, depth int, shown bool) []byte {
	w := &walker{in: in, s: s, depth: depth, shown: shown}
	w.walk()
	if len(w.edits) == 0 {
		return in
	}
	// Of two edits at the same place the larger one wins, and the later one of
	// two as large: that of a whole value is made after those inside it.
	slices.Reverse(w.edits)
	slices.SortStableFunc(w.edits, func(a, b edit) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	out := make([]byte, 0, len(in)+len(w.edits)*len(Mask))
	at := 0
	for _, e := range w.edits {
		if e.start < at {
			continue
		}
		out = append(out, in[at:e.start]...)
		out = append(out, e.text...)
		at = e.end
	}
	return append(out, in[at:]...)
}

var maskString = []byte(`"` + Mask + `"`)

func (w *walker) walk() {
	key := false
	for i := 0; i < len(w.in); {
		switch c := w.in[i]; c {
		case ' ', '\t', '\r', '\n', ':':
			i++
		case ',':
			i++
			key = w.frames[len(w.frames)-1].object
		case '{', '[':
			w.frames = append(w.frames, frame{object: c == '{', start: i, inside: w.shown && w.secret(false)})
			key = c == '{'
			i++
		case '}', ']':
			i++
			top := w.frames[len(w.frames)-1]
			w.frames = w.frames[:len(w.frames)-1]
			if top.named && top.value.end > 0 {
				w.hide(top.value)
			}
			w.done(span{top.start, i}, nil, false)
			key = false
		case '"':
			end := stringEnd(w.in, i)
			text := w.text(i, end)
			if key {
				w.key(span{i, end}, text)
				key = false
			} else {
				w.str(span{i, end}, text)
				w.done(span{i, end}, text, false)
			}
			i = end
		default:
			end := i
			for end < len(w.in) && bytes.IndexByte([]byte(" \t\r\n,]}"), w.in[end]) < 0 {
				end++
			}
			if w.spans = w.s.find(w.in[i:end], w.spans[:0]); len(w.spans) > 0 {
				w.edits = append(w.edits, edit{span{i, end}, maskString})
			}
			w.done(span{i, end}, nil, c == '-' || c >= '0' && c <= '9')
			i = end
		}
	}
}

// stringEnd is the index after the string that starts at i.
func stringEnd(b []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		i += n
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

// text is what the string at in[i:end] says, valid until the next call.
func (w *walker) text(i, end int) []byte {
	raw := w.in[i+1 : end-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	w.buf, _ = jsontext.AppendUnquote(w.buf[:0], w.in[i:end])
	return w.buf
}

// key reads the name of an object's member.
func (w *walker) key(at span, text []byte) {
	f := &w.frames[len(w.frames)-1]
	f.class, f.role = classify(text), 0
	switch {
	case bytes.EqualFold(text, []byte("name")), bytes.EqualFold(text, []byte("key")), bytes.EqualFold(text, []byte("header")):
		f.role = 'n'
	case bytes.EqualFold(text, []byte("value")):
		f.role = 'v'
	}
	if masked := w.maskText(text, false); masked != nil {
		w.masked++
		if w.masked > 1 {
			masked = fmt.Appendf(masked, " %d", w.masked)
		}
		w.edits = append(w.edits, edit{at, quote(masked)})
	}
}

// str reads a string that is a value.
func (w *walker) str(at span, text []byte) {
	if masked := w.maskText(text, true); masked != nil {
		w.edits = append(w.edits, edit{at, quote(masked)})
	}
}

// done ends a value: in an object the member's, in an array the element.
// text is that of a string.
func (w *walker) done(at span, text []byte, number bool) {
	if len(w.frames) == 0 {
		return
	}
	f := &w.frames[len(w.frames)-1]
	if !f.object {
		if f.inside || f.next && text != nil {
			w.hide(at)
		}
		option, ok := bytes.CutPrefix(text, []byte("--"))
		f.next = ok && classify(option) == secret && bytes.IndexByte(option, '=') < 0 && bytes.IndexByte(option, ' ') < 0
		return
	}
	if w.secret(number) {
		w.hide(at)
	}
	switch f.role {
	case 'n':
		f.named = f.named || text != nil && classify(text) == secret
	case 'v':
		f.value = at
	}
}

// secret reports whether the value in hand is one by its key.
func (w *walker) secret(number bool) bool {
	if len(w.frames) == 0 {
		return false
	}
	f := w.frames[len(w.frames)-1]
	return f.inside || f.object && (f.class == secret || f.class == notCount && !number)
}

// hide masks a whole value.
func (w *walker) hide(at span) {
	if b := w.in[at.start:at.end]; w.shown && !opaque(bytes.Trim(b, `"`)) {
		return
	}
	w.edits = append(w.edits, edit{at, maskString})
}

// maskText is text masked, nil where there is nothing to mask.
func (w *walker) maskText(text []byte, value bool) []byte {
	if value && w.depth > 0 {
		t := bytes.TrimSpace(text)
		if len(t) > 1 && (t[0] == '{' || t[0] == '[') && jsontext.Value(t).IsValid() {
			// Edits are relative to t; the white space around it stays.
			if out := redactValue(t, w.s, w.depth-1, w.shown); len(out) > 0 && &out[0] != &t[0] {
				i := bytes.Index(text, t)
				text = slices.Concat(text[:i], out, text[i+len(t):])
				if known, n := w.s.Bytes(text); n > 0 {
					return known
				}
				return text
			}
			// Nothing in it as JSON; as text, only known secrets count, for
			// the shapes were looked for in each of its strings.
			if known, n := w.s.Bytes(text); n > 0 {
				return known
			}
			return nil
		}
	}
	w.spans = w.s.find(text, w.spans[:0])
	if w.shown {
		w.spans = opaqueShapes(text, w.spans)
	} else {
		w.spans = shapes(text, w.spans, false)
	}
	if len(w.spans) == 0 {
		return nil
	}
	return mask(text, join(w.spans))
}

// join sorts spans and joins those that overlap.
func join(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	out := spans[:1]
	for _, sp := range spans[1:] {
		if last := &out[len(out)-1]; sp.start < last.end {
			last.end = max(last.end, sp.end)
		} else {
			out = append(out, sp)
		}
	}
	return out
}

func quote(text []byte) []byte {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return maskString
	}
	return out
}
