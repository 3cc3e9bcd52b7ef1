package call

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep a JSON value from a client may nest.
const MaxDepth = 128

// ErrSyntax marks bytes that are not one JSON value. Any other error of this
// file is a value that is JSON and still has two readings, or is too deep.
var ErrSyntax = errors.New("not valid JSON")

// Member is one member of an object, its value verbatim.
type Member struct {
	Name  string
	Value []byte // aliases the input
}

// CheckJSON reports whether b is exactly one JSON value that every parser reads
// alike: valid UTF-8, no object with the same key twice at any depth
// (RFC 8259 section 4 leaves their meaning open), at most MaxDepth deep.
func CheckJSON(b []byte) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(b))
	for {
		_, err := dec.ReadToken()
		if err == io.EOF && dec.StackDepth() == 0 && dec.InputOffset() > 0 {
			return nil
		}
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

// Members splits the object b into its members, in order. b must have passed
// CheckJSON; ok is false where b is not an object.
func Members(b []byte) (ms []Member, ok bool) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(b))
	if dec.PeekKind() != '{' {
		return nil, false
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, false
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, false
		}
		key := name.String()
		v, err := dec.ReadValue()
		if err != nil {
			return nil, false
		}
		end := dec.InputOffset()
		ms = append(ms, Member{Name: key, Value: b[end-int64(len(v)) : end]})
	}
	return ms, true
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
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("must be a JSON object")
	}
	return m, nil
}
