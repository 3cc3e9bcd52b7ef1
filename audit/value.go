package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// maxDepth is how deep arguments may nest. The endpoint admits far less; this
// only keeps the recursion below from eating the stack.
const maxDepth = 1000

var (
	errSyntax    = errors.New("a syntax error")
	errDuplicate = errors.New("the same key twice in one object")
	errDepth     = fmt.Errorf("nested deeper than %d levels", maxDepth)
)

// checkValue reports whether b is exactly one JSON value in valid UTF-8 without
// white space around it and without the same key twice in any of its objects
// (RFC 8259 section 4 leaves open which one counts).
func checkValue(b []byte) error {
	if !utf8.Valid(b) {
		return errUTF8
	}
	s := scanner{b: b}
	if err := s.value(0); err != nil {
		return err
	}
	if s.i != len(b) {
		return errSyntax
	}
	return nil
}

type scanner struct {
	b []byte
	i int
}

func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

func (s *scanner) value(depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	switch s.peek() {
	case '{':
		return s.object(depth)
	case '[':
		return s.array(depth)
	case '"':
		_, err := s.str()
		return err
	}
	start := s.i
	for s.i < len(s.b) && bytes.IndexByte([]byte("+-.0123456789aeflnrstuE"), s.b[s.i]) >= 0 {
		s.i++
	}
	if !json.Valid(s.b[start:s.i]) {
		return errSyntax
	}
	return nil
}

func (s *scanner) array(depth int) error {
	s.i++
	if s.space(); s.peek() == ']' {
		s.i++
		return nil
	}
	for {
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return nil
		default:
			return errSyntax
		}
	}
}

func (s *scanner) object(depth int) error {
	s.i++
	if s.space(); s.peek() == '}' {
		s.i++
		return nil
	}
	var names keySet
	for {
		s.space()
		if s.peek() != '"' {
			return errSyntax
		}
		name, err := s.str()
		if err != nil {
			return err
		}
		if !names.add(name) {
			return errDuplicate
		}
		if s.space(); s.peek() != ':' {
			return errSyntax
		}
		s.i++
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return errSyntax
		}
	}
}

// str reads a string and returns what it says.
func (s *scanner) str() ([]byte, error) {
	start := s.i
	escaped := false
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			if !escaped {
				return s.b[start+1 : s.i-1], nil
			}
			var v string
			if json.Unmarshal(s.b[start:s.i], &v) != nil {
				return nil, errSyntax
			}
			return []byte(v), nil
		case c == '\\':
			escaped = true
			s.i++
		case c < 0x20:
			return nil, errSyntax
		}
	}
	return nil, errSyntax
}

// keySet compares the few keys an object usually has one by one, and turns to
// a map before that gets slow.
type keySet struct {
	few  [8][]byte
	n    int
	many map[string]struct{}
}

func (k *keySet) add(name []byte) bool {
	if k.many != nil {
		if _, ok := k.many[string(name)]; ok {
			return false
		}
		k.many[string(name)] = struct{}{}
		return true
	}
	for _, have := range k.few[:k.n] {
		if bytes.Equal(have, name) {
			return false
		}
	}
	if k.n < len(k.few) {
		k.few[k.n] = name
		k.n++
		return true
	}
	k.many = make(map[string]struct{}, 4*len(k.few))
	for _, have := range k.few {
		k.many[string(have)] = struct{}{}
	}
	k.many[string(name)] = struct{}{}
	return true
}
