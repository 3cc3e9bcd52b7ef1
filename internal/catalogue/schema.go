package catalogue

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Compiled schemas are kept, since an embedder starts a bridge with the same
// tools for every run. The bounds are for one that makes its schemas up.
const (
	maxCompiled = 1024
	maxKept     = 64 << 10 // bytes of a schema that is kept
)

var compiled struct {
	sync.Mutex
	m map[string]func(any) error
}

func compile(schema []byte) (func(args any) error, error) {
	key := string(schema)
	compiled.Lock()
	defer compiled.Unlock()
	if v, ok := compiled.m[key]; ok {
		return v, nil
	}
	v, err := newValidator(schema)
	if err != nil {
		return nil, err
	}
	if len(schema) > maxKept {
		return v, nil
	}
	if compiled.m == nil || len(compiled.m) >= maxCompiled {
		compiled.m = map[string]func(any) error{}
	}
	compiled.m[key] = v
	return v, nil
}

func newValidator(schema []byte) (func(args any) error, error) {
	if err := call.CheckJSON(schema); err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	object, ok := doc.(map[string]any)
	if !ok || object["type"] != "object" {
		return nil, errors.New(`the top level has no "type": "object"`)
	}
	if err := checkNumbers(doc); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	// The default loader opens file:// addresses; an empty one opens nothing.
	c.UseLoader(jsonschema.SchemeURLLoader{})
	const base = "drawbridge:///tool"
	if err := c.AddResource(base, doc); err != nil {
		return nil, err
	}
	s, err := c.Compile(base)
	if err != nil {
		return nil, err
	}
	return func(args any) error {
		if err := checkNumbers(args); err != nil {
			return fmt.Errorf("arguments: %w", err)
		}
		err := s.Validate(args)
		if ve, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
			return errors.New(explain(ve))
		}
		return err
	}, nil
}

// The validator compares numbers as fractions of whole numbers: 1e1000000 costs
// it milliseconds and 400 KiB, and at ten times that it panics. No number that a
// float64 can hold is out of these bounds.
const (
	maxDigits   = 1100
	maxExponent = 1100
)

func checkNumbers(v any) error {
	switch v := v.(type) {
	case json.Number:
		_, exp, _ := strings.Cut(strings.ToLower(string(v)), "e")
		n, err := strconv.Atoi(cmp.Or(exp, "0"))
		if len(v) > maxDigits || err != nil || n > maxExponent || n < -maxExponent {
			return fmt.Errorf("the number %s is out of range", call.Clip(string(v)))
		}
	case []any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// english is made when the first call is wrong: every start of the command
// would pay for it.
var english = sync.OnceValue(func() *message.Printer { return message.NewPrinter(language.English) })

// explain names each field that is wrong, at most five, in words for the model
// that sent it. It quotes the arguments, uncut: whoever shows the text masks
// secrets first, and a secret that is cut in two is not found any more.
func explain(ve *jsonschema.ValidationError) string {
	var lines []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(lines) == 5 {
			return
		}
		if len(e.Causes) == 0 {
			at := strings.Join(append([]string{"arguments"}, e.InstanceLocation...), ".")
			lines = append(lines, at+": "+e.ErrorKind.LocalizedString(english()))
			return
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(ve)
	return strings.Join(lines, "; ")
}
