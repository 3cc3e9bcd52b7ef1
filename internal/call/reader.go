package call

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// reader walks JSON that has passed CheckJSON or IsJSON: it knows where a value ends and
// checks nothing again. On other bytes it stops early and never panics.
type reader struct {
	b []byte
	i int
	n int // values built
}

// next skips white space and is the first byte after it, 0 at the end.
func (r *reader) next() byte {
	for ; r.i < len(r.b); r.i++ {
		switch c := r.b[r.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// take steps over c.
func (r *reader) take(c byte) bool {
	if r.next() != c {
		return false
	}
	r.i++
	return true
}

// object calls member at each value, which it must step over.
func (r *reader) object(member func(name string) bool) bool {
	if !r.take('{') {
		return false
	}
	for first := true; !r.take('}'); first = false {
		if !first && !r.take(',') || r.next() != '"' {
			return false
		}
		name, ok := r.str()
		if !ok || !r.take(':') || !member(name) {
			return false
		}
	}
	return true
}

// quoted steps over a string and returns it with its quotes.
func (r *reader) quoted() (s []byte, escaped, ok bool) {
	start := r.i
	for r.i++; ; r.i++ {
		n := bytes.IndexAny(r.b[min(r.i, len(r.b)):], `"\\`)
		if n < 0 {
			return nil, false, false
		}
		r.i += n
		if r.b[r.i] == '"' {
			r.i++
			return r.b[start:r.i], escaped, true
		}
		escaped = true
		r.i++
	}
}

func (r *reader) str() (string, bool) {
	s, escaped, ok := r.quoted()
	switch {
	case !ok:
		return "", false
	case !escaped:
		return string(s[1 : len(s)-1]), true
	}
	// The error is about what is no UTF-8, which the text has replaced.
	text, _ := jsontext.AppendUnquote(nil, s)
	return string(text), true
}

// skip steps over a value.
func (r *reader) skip() bool {
	for depth := 0; ; {
		switch c := r.next(); c {
		case 0:
			return false
		case '{', '[':
			depth++
			r.i++
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
			r.i++
		case ',', ':':
			if depth == 0 {
				return false
			}
			r.i++
			continue
		case '"':
			if _, _, ok := r.quoted(); !ok {
				return false
			}
		default:
			r.literal()
		}
		if depth == 0 {
			return true
		}
	}
}

// literal steps over a number, true, false or null.
func (r *reader) literal() []byte {
	start := r.i
	for r.i++; r.i < len(r.b); r.i++ {
		switch r.b[r.i] {
		case ' ', '\t', '\r', '\n', ',', ':', '}', ']', '{', '[', '"':
			return r.b[start:r.i]
		}
	}
	return r.b[start:]
}

// value builds a value as encoding/json does with UseNumber.
func (r *reader) value() (any, bool) {
	if r.n++; r.n > MaxValues {
		return nil, false
	}
	switch c := r.next(); c {
	case 0:
		return nil, false
	case '{':
		m := map[string]any{}
		ok := r.object(func(name string) bool {
			v, ok := r.value()
			m[name] = v
			return ok
		})
		return m, ok
	case '[':
		r.i++
		a := []any{}
		for !r.take(']') {
			if len(a) > 0 && !r.take(',') {
				return nil, false
			}
			v, ok := r.value()
			if !ok {
				return nil, false
			}
			a = append(a, v)
		}
		return a, true
	case '"':
		return r.str()
	default:
		switch l := r.literal(); {
		case c == 'n':
			return nil, true
		case c == 't', c == 'f':
			return c == 't', true
		default:
			return json.Number(l), true
		}
	}
}
