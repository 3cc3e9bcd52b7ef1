// Package catalogue is the tools a run could name, and the scope: the part of
// them it may see and call. Both are frozen when they are made.
package catalogue

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// MaxName is how long a name may be as a model sees it; the model APIs refuse a
// whole request for one longer name.
const MaxName = 64

var (
	toolName   = lazy(`^[A-Za-z0-9_-]{1,64}$`)
	serverName = lazy(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,30}[A-Za-z0-9])?$`)
)

// Catalogue is every tool a run could name.
type Catalogue struct {
	tools map[string]*call.Tool
	names []string
}

// New checks and freezes tools. A name that stands twice, one that can't be
// read, a schema that is not one and a tool without a function are errors of
// kind Usage that name the tool. No schema is one that takes any object, and no
// effects are Destructive: the strictest. A tool with a Definition is an upstream's,
// and its name is "upstream/tool".
func New(tools ...call.Tool) (*Catalogue, error) {
	c := &Catalogue{tools: make(map[string]*call.Tool, len(tools))}
	for _, t := range tools {
		name := t.Name
		if t.Definition != nil {
			server, tool, _ := strings.Cut(t.Name, "/")
			if err := CheckServer(server); err != nil {
				return nil, err
			}
			name = tool
		}
		if !checkName(name) {
			return nil, fault.New(fault.Usage, "use 1 to 128 bytes of what can be read, best A-Z a-z 0-9 _ -, without / and * and without blanks at its ends", "tool name %q is not valid", call.Clip(t.Name))
		}
		if _, dup := c.tools[t.Name]; dup {
			return nil, fault.New(fault.Usage, "give each tool a name of its own; built-in tools keep theirs", "tool %q is defined twice", t.Name)
		}
		if t.Run == nil {
			return nil, fault.New(fault.Usage, "set the function that runs it", "tool %q has no function", t.Name)
		}
		switch t.Effects {
		case call.Read, call.Write, call.Destructive:
		case "":
			t.Effects = call.Destructive
		default:
			return nil, fault.New(fault.Usage, "use read, write or destructive", "tool %q has unknown effects %q", t.Name, t.Effects)
		}
		if len(bytes.TrimSpace(t.InputSchema)) == 0 {
			t.InputSchema = []byte(`{"type":"object"}`)
		}
		t.InputSchema = bytes.Clone(t.InputSchema)
		validate, err := compile(t.InputSchema)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, `the input schema is a JSON Schema object with "type": "object"`, "input schema of tool %q", t.Name)
		}
		t.Validate = validate
		c.tools[t.Name] = &t
		c.names = append(c.names, t.Name)
	}
	slices.Sort(c.names)
	return c, nil
}

// CheckTool is nil where New takes a tool of an upstream with this name of its own
// and this input schema, and else says why not: one that is not taken is left out,
// and harms no other.
func CheckTool(name string, schema []byte) error {
	if !checkName(name) {
		return errors.New("its name is longer than 128 bytes, or has characters that can't be read, a / or a *")
	}
	if len(bytes.TrimSpace(schema)) == 0 {
		return errors.New("it has no input schema")
	}
	if _, err := compile(schema); err != nil {
		return fmt.Errorf("its input schema is not valid: %s", call.Clip(strings.Join(strings.Fields(err.Error()), " ")))
	}
	return nil
}

// Names lists every tool, sorted.
func (c *Catalogue) Names() []string { return slices.Clone(c.names) }

// CheckServer is nil where name can be the middle of mcp__name__tool, and else
// an error of kind Usage.
// A double or edge underscore would make the parts ambiguous.
func CheckServer(name string) error {
	if !serverName().MatchString(name) || strings.Contains(name, "__") {
		return fault.New(fault.Usage, "use up to 32 of A-Z a-z 0-9 _ -, beginning and ending with a letter or digit, without a double underscore", "server name %q is not valid", call.Clip(name))
	}
	return nil
}

// Scope is the part of a catalogue one run may see and call.
type Scope struct {
	tools  map[string]*call.Tool // by exposed name, and by the tool's own
	names  []string
	list   []byte
	digest string
}

// Scope keeps the tools allowed says yes to, by their own names. They are listed
// by the names Expose gives all tools of c beside server.
func (c *Catalogue) Scope(server string, allowed func(name string) bool) (*Scope, error) {
	s := &Scope{tools: map[string]*call.Tool{}, names: []string{}}
	for name, exposed := range Expose(server, c.names) {
		if allowed(name) {
			s.tools[exposed] = c.tools[name]
			s.names = append(s.names, exposed)
		}
	}
	slices.Sort(s.names)
	var list bytes.Buffer
	list.WriteByte('[')
	for _, exposed := range s.names {
		t := s.tools[exposed]
		def, err := definition(exposed, t)
		if err != nil {
			return nil, err
		}
		if list.Len() > 1 {
			list.WriteByte(',')
		}
		list.Write(def)
	}
	for _, exposed := range s.names {
		// A name that has an alias is no exposed name of any other tool: either
		// model APIs would not take it, or it is too long to be one.
		s.tools[s.tools[exposed].Name] = s.tools[exposed]
	}
	list.WriteByte(']')
	s.list = list.Bytes()
	sum := sha256.Sum256(s.list)
	s.digest = "sha256:" + hex.EncodeToString(sum[:])
	return s, nil
}

// Lookup finds a tool by the exact name it is listed by, or by its own.
func (s *Scope) Lookup(name string) (*call.Tool, bool) {
	t, ok := s.tools[name]
	return t, ok
}

// Names lists the exposed names of the scope, sorted. Never nil.
func (s *Scope) Names() []string { return slices.Clone(s.names) }

// List is the JSON array of definitions as tools/list answers it, in the order
// of Names. The caller must not change it.
func (s *Scope) List() []byte { return s.list }

// Digest is over List.
func (s *Scope) Digest() string { return s.digest }

func definition(exposed string, t *call.Tool) ([]byte, error) {
	if t.Definition != nil {
		return renamed(exposed, t)
	}
	type annotations struct {
		ReadOnly    bool `json:"readOnlyHint"`
		Destructive bool `json:"destructiveHint"`
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		InputSchema json.RawMessage `json:"inputSchema"`
		Annotations annotations     `json:"annotations"`
	}{exposed, t.Description, t.InputSchema, annotations{t.Effects == call.Read, t.Effects == call.Destructive}})
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "definition of tool %q", t.Name)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// renamed is the definition of an upstream's tool with its name replaced, and not
// another byte.
func renamed(exposed string, t *call.Tool) ([]byte, error) {
	if err := call.CheckJSON(t.Definition); err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "definition of tool %q", t.Name)
	}
	members, _ := call.Members(t.Definition)
	for _, m := range members {
		if m.Name == "name" {
			name, _ := json.Marshal(exposed) // of A-Z a-z 0-9 _ -
			return slices.Concat(t.Definition[:m.At], name, t.Definition[m.At+len(m.Value):]), nil
		}
	}
	return nil, fault.New(fault.Usage, "", "definition of tool %q has no name", t.Name)
}

// lazy compiles a pattern when it is first used: every start of the program, and
// of each helper, would pay for it otherwise.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
