package upstream

import "bytes"

// frames is an io.Writer that cuts what a server prints into lines, in bounded
// memory. It is for one goroutine.
type frames struct {
	max int
	// line gets each whole line of at most max bytes, without its end. The bytes
	// are the receiver's where owned, else valid during the call only.
	line func(b []byte, owned bool)
	// over gets what could be made out of a line that is longer.
	over func(s *scan, size int64)

	buf  []byte
	scan *scan // set while the line is too long
	size int64
}

func (f *frames) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part, ended := p, i >= 0
		if ended {
			part, p = p[:i], p[i+1:]
		} else {
			p = nil
		}
		f.add(part, ended)
	}
	return n, nil
}

func (f *frames) add(part []byte, ended bool) {
	switch {
	case f.scan != nil:
		f.scan.feed(part)
		f.size += int64(len(part))
	case len(f.buf) == 0 && ended && len(part) <= f.max:
		f.line(part, false)
		return
	case len(f.buf)+len(part) > f.max:
		f.scan = &scan{}
		f.scan.feed(f.buf)
		f.scan.feed(part)
		f.size = int64(len(f.buf) + len(part))
		f.buf = nil
	default:
		f.grow(len(part))
		f.buf = append(f.buf, part...)
	}
	if !ended {
		return
	}
	if f.scan != nil {
		f.over(f.scan, f.size)
		f.scan = nil
		return
	}
	line := f.buf
	f.buf = nil
	f.line(line, true)
}

// grow makes room for n more bytes, twice as much as before but no more than one
// line can have.
func (f *frames) grow(n int) {
	if need := len(f.buf) + n; need > cap(f.buf) {
		bigger := make([]byte, len(f.buf), min(max(2*cap(f.buf), need, 4<<10), f.max))
		copy(bigger, f.buf)
		f.buf = bigger
	}
}

// scan finds the id of a message that is too large to be held, wherever in it the
// id stands. It checks nothing.
type scan struct {
	depth   int
	inside  bool   // a string
	escaped bool   // the next byte of it
	value   bool   // after the colon of a member of the message
	text    []byte // the string or number at hand, its beginning
	key     string
	id      []byte
	request bool // it has a method
}

// maxScanned is how many bytes of a key or an id are kept.
const maxScanned = 64

func (s *scan) feed(b []byte) {
	for len(b) > 0 {
		if s.inside && !s.escaped {
			i := bytes.IndexAny(b, `"\`)
			if i < 0 {
				i = len(b)
			}
			s.keep(b[:i])
			if b = b[i:]; len(b) == 0 {
				return
			}
		}
		c := b[0]
		b = b[1:]
		switch {
		case s.escaped:
			s.escaped = false
			s.keep([]byte{c})
		case s.inside && c == '\\':
			s.escaped = true
			s.keep([]byte{c})
		case s.inside: // the closing quote
			s.inside = false
			if s.depth == 1 && !s.value {
				s.key = string(s.text)
			}
		case c == '"':
			s.inside, s.text = true, s.text[:0]
			if s.value && s.depth == 1 {
				s.text = append(s.text, c) // an id that is a string is none of ours
			}
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			s.end()
			s.depth--
		case c == ':' && s.depth == 1:
			s.value, s.text = true, s.text[:0]
			s.request = s.request || s.key == "method"
		case c == ',':
			s.end()
		case s.depth == 1 && s.value && c != ' ' && c != '\t' && c != '\r' && c != '\n':
			s.keep([]byte{c})
		}
	}
}

func (s *scan) keep(b []byte) {
	if s.depth == 1 {
		s.text = append(s.text, b[:min(len(b), maxScanned-min(len(s.text), maxScanned))]...)
	}
}

// end is the end of a member's value.
func (s *scan) end() {
	if s.depth != 1 {
		return
	}
	if s.key == "id" && s.value {
		s.id = bytes.Clone(s.text)
	}
	s.value, s.key = false, ""
}

// message is what is known of it.
func (s *scan) message() message {
	m := message{id: s.id}
	if s.request {
		m.method = "?"
	}
	return m
}
