package catalogue

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Compiled schemas are kept, since an embedder starts a bridge with the same
// tools for every run. The bound is for one that makes its schemas up.
const maxCompiled = 1024

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
		err := s.Validate(args)
		if ve, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
			return errors.New(explain(ve))
		}
		return err
	}, nil
}

var english = message.NewPrinter(language.English)

// explain names each field that is wrong, in words for the model that sent it.
func explain(ve *jsonschema.ValidationError) string {
	var lines []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(lines) == 5 {
			return
		}
		if len(e.Causes) == 0 {
			at := "arguments"
			for _, p := range e.InstanceLocation {
				at += "." + call.Clip(p)
			}
			lines = append(lines, fmt.Sprintf("%s: %s", at, call.Clip(e.ErrorKind.LocalizedString(english))))
			return
		}
		for _, c := range e.Causes {
			walk(c)
		}
	}
	walk(ve)
	return strings.Join(lines, "; ")
}
