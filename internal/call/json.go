package call

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep a JSON value from a client may nest.
const MaxDepth = 128

// MaxValues is how many values the arguments of one call may hold: built, four
// megabytes of small ones take a hundred.
const MaxValues = 100_000

// ErrSyntax marks bytes that are not one JSON value in UTF-8. Any other error of
// CheckJSON and DecodeObject is about a value that is JSON: it has two readings,
// nests too deep or is no object. The texts of all of them may quote the input.
var ErrSyntax = errors.New("not valid JSON")

// Member is one member of an object, its value verbatim.
type Member struct {
	Name  string
	Value []byte // aliases the input
	At    int    // where in the input Value begins
}

// CheckJSON reports whether b is exactly one JSON value that every parser reads
// alike: valid UTF-8 without unpaired surrogates, no object with the same key
// twice at any depth, however it is escaped (RFC 8259 section 4 leaves their
// meaning open), at most MaxDepth deep.
func CheckJSON(b []byte) error {
	// Nearly every message is good and can't be too deep: judged without building
	// anything. What fails here is read again, for its reason.
	if bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) <= MaxDepth && jsontext.Value(b).IsValid() {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(b))
	for {
		_, err := dec.ReadToken()
		if err != nil {
			return jsonError(err)
		}
		if dec.StackDepth() > MaxDepth {
			return fmt.Errorf("nested deeper than %d levels", MaxDepth)
		}
		if dec.StackDepth() == 0 {
			rest := b[dec.InputOffset():]
			if len(bytes.TrimLeft(rest, " \t\r\n")) > 0 {
				return fmt.Errorf("%w: more follows the first value", ErrSyntax)
			}
			return nil
		}
	}
}

// IsJSON reports whether b is one JSON value, however it is meant: the same key
// may stand twice, and strings may hold bytes that are no UTF-8. It is what must
// hold of foreign bytes before they are put into a message of ours.
func IsJSON(b []byte) bool {
	return jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// Members splits the object b into its members, in order. b must have passed
// CheckJSON or IsJSON; ok is false where b is not an object.
func Members(b []byte) (ms []Member, ok bool) {
	r := reader{b: b}
	if r.next() != '{' {
		return nil, false
	}
	ms = make([]Member, 0, 4)
	ok = r.object(func(name string) bool {
		r.next()
		start := r.i
		if !r.skip() {
			return false
		}
		ms = append(ms, Member{Name: name, Value: b[start:r.i], At: start})
		return true
	})
	if !ok {
		return nil, false
	}
	return ms, true
}

// Elements is Members for an array.
func Elements(b []byte) (es [][]byte, ok bool) {
	r := reader{b: b}
	if !r.take('[') {
		return nil, false
	}
	for first := true; !r.take(']'); first = false {
		if !first && !r.take(',') {
			return nil, false
		}
		r.next()
		start := r.i
		if !r.skip() {
			return nil, false
		}
		es = append(es, b[start:r.i])
	}
	return es, true
}

// InvisibleJSON is Invisible for the strings and keys of a JSON value, escaped
// or not. Of bytes that are not JSON it reports what comes before the error.
func InvisibleJSON(b []byte) bool {
	if !bytes.Contains(b, []byte(`\u`)) && !bytes.ContainsFunc(b, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return false
		}
		if t.Kind() == '"' && Invisible(t.String()) {
			return true
		}
	}
}

func jsonError(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Errorf("the same key twice: %w", err)
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends too early", ErrSyntax)
	}
	return fmt.Errorf("%w: %w", ErrSyntax, err)
}

// DecodeObject reads b, which must be one JSON object that passes CheckJSON.
// Numbers stay json.Number, so that none is rounded.
func DecodeObject(b []byte) (map[string]any, error) {
	if err := CheckJSON(b); err != nil {
		return nil, err
	}
	r := reader{b: b}
	v, ok := r.value()
	if r.n > MaxValues {
		return nil, fmt.Errorf("more than %d values", MaxValues)
	}
	if !ok {
		return nil, ErrSyntax
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("must be a JSON object")
	}
	return m, nil
}
