package policyfile

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// Bounds of a file. What aliases repeat counts as often as it is repeated.
const (
	MaxFile   = 1 << 20 // bytes
	maxValues = 100_000
	maxDepth  = 64
	maxErrors = 20
)

// decoder turns YAML nodes into values by the field tags of their types.
type decoder struct {
	path   string // of the file, for messages
	base   string
	values int
	depth  int
	errs   []error
}

// bomb ends decoding: there is no point in more messages.
type bomb struct{}

func (d *decoder) failAt(p Pos, hint, format string, args ...any) {
	where := d.path
	if p.Line > 0 {
		where = fmt.Sprintf("%s:%d:%d", d.path, p.Line, p.Column)
	}
	d.errs = append(d.errs, fault.New(fault.Usage, hint, "%s: %s", where, fmt.Sprintf(format, args...)))
	if len(d.errs) >= maxErrors {
		panic(bomb{})
	}
}

func (d *decoder) fail(n *yaml.Node, hint, format string, args ...any) {
	d.failAt(pos(n), hint, format, args...)
}

func pos(n *yaml.Node) Pos { return Pos{n.Line, n.Column} }

// err is all that failed, in the order of the file.
func (d *decoder) err() error {
	if len(d.errs) == 1 {
		return d.errs[0]
	}
	return errors.Join(d.errs...)
}

// decode reads the one document of data into v, a pointer to a struct.
func (d *decoder) decode(data []byte, v any) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(bomb); !ok {
				panic(r)
			}
		}
	}()
	if len(data) > MaxFile {
		d.failAt(Pos{}, "a policy is written by hand: split it, or remove what is not one", "the file has more than %d bytes", MaxFile)
		return
	}
	if at, what := unreadable(data); what != "" {
		d.failAt(at, "save the file as UTF-8", "%s", what)
		return
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		d.syntax(err)
		return
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		d.failAt(Pos{1, 1}, "", "the file holds no document")
		return
	}
	d.value(doc.Content[0], reflect.ValueOf(v).Elem(), "")
}

// unreadable finds the first byte that is no UTF-8 or no text. A byte order
// mark at the start is fine (RFC 8259 says so of JSON; editors write it).
func unreadable(data []byte) (at Pos, what string) {
	at = Pos{1, 1}
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1:
			return at, fmt.Sprintf("byte 0x%02x is not UTF-8", data[0])
		case r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == 0x7f:
			return at, fmt.Sprintf("control character 0x%02x", r)
		case r == '\n':
			at = Pos{at.Line + 1, 0}
		}
		at.Column++
		data = data[n:]
	}
	return at, ""
}

func (d *decoder) syntax(err error) {
	p, what, hint := Pos{1, 1}, err.Error(), "see docs/policy.md; lists and maps are indented with spaces"
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		if p = (Pos{e.Mark.Line, e.Mark.Column}); p.Line <= 0 {
			p = Pos{1, 1}
		}
		what = e.Message
		if e.ContextMsg != "" {
			what += " " + e.ContextMsg
		}
	}
	switch {
	case strings.Contains(what, "found multiple"):
		what, hint = "there is more than one document", "a policy file is one document: remove the lines with ---"
	case strings.Contains(what, "no documents"):
		what, hint = "the file is empty", "drawbridge init writes one to start from"
	}
	d.failAt(p, hint, "not valid YAML: %s", call.Clip(what))
}

// scalar is a type that reads its own node.
type scalar interface {
	read(d *decoder, n *yaml.Node, path string)
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if d.values++; d.values > maxValues {
		d.fail(n, "write it out, or make it smaller", "the file has more than %d values, counting what aliases repeat", maxValues)
		panic(bomb{})
	}
	if d.depth++; d.depth > maxDepth {
		d.fail(n, "", "nested deeper than %d levels", maxDepth)
		panic(bomb{})
	}
	defer func() { d.depth-- }()
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if s, ok := v.Addr().Interface().(scalar); ok {
		s.read(d, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Map:
		d.mapping(n, v, path)
	case reflect.Slice:
		if !d.want(n, yaml.SequenceNode, "", path, "a list, like [a, b]") {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, c := range n.Content {
			d.value(c, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Bool:
		if d.want(n, yaml.ScalarNode, "!!bool", path, "true or false") {
			v.SetBool(strings.EqualFold(n.Value, "true"))
		}
	case reflect.Int64:
		v.SetInt(d.integer(n, path))
	default:
		panic("no decoder for " + v.Type().String())
	}
}

// want fails where n is of another kind or type.
func (d *decoder) want(n *yaml.Node, kind yaml.Kind, tag, path, what string) bool {
	got := n.ShortTag()
	if n.Kind == kind && (tag == "" && (got == "!!seq" || got == "!!map") || got == tag) {
		return true
	}
	name := map[string]string{
		"!!null": "nothing", "!!bool": "a truth value", "!!int": "a number", "!!float": "a number", "!!str": "text",
		"!!seq": "a list", "!!map": "a map", "!!timestamp": "a date",
	}[got]
	hint := ""
	switch {
	case name == "":
		name = "a value of type " + call.Clip(got)
	case got == "!!null" && kind != yaml.ScalarNode:
		hint = "write [] or {} for an empty one, or leave the key out"
	case tag == "!!str" && n.Kind == yaml.ScalarNode && got != "!!null":
		name += " (" + call.Clip(n.Value) + ")"
		hint = fmt.Sprintf("put it in quotes: %q", call.Clip(n.Value))
	}
	d.fail(n, hint, "%s is %s, and has to be %s", or(path, "the file"), name, what)
	return false
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// each calls f for the members of a map, and fails on keys that are no names or
// stand twice.
func (d *decoder) each(n *yaml.Node, path string, f func(key, val *yaml.Node)) bool {
	if !d.want(n, yaml.MappingNode, "", path, "a map, like {key: value}") {
		return false
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.ShortTag() == "!!merge" {
			d.fail(key, "write the fields out", "%smerge keys are not part of this language", of(path))
			continue
		}
		if !d.want(key, yaml.ScalarNode, "!!str", "a key of "+or(path, "the file"), "text") {
			continue
		}
		name := key.Value
		switch {
		case strings.TrimSpace(name) != name || name == "":
			d.fail(key, "give it a name", "%s%q is a blank name, or one with blanks at its ends", of(path), call.Clip(name))
		case seen[name]:
			d.fail(key, "remove one of them", "%s%s stands twice", dot(path), call.Clip(name))
		default:
			seen[name] = true
			f(key, val)
		}
	}
	return true
}

// of is the beginning of a message about the map at path.
func of(path string) string {
	if path == "" {
		return ""
	}
	return path + ": "
}

func dot(path string) string {
	if path == "" {
		return ""
	}
	return path + "."
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	fields := fieldsOf(v)
	given := map[string]bool{}
	ok := d.each(n, path, func(key, val *yaml.Node) {
		field, ok := fields[key.Value]
		if !ok {
			var names []string
			for name := range fields {
				names = append(names, name)
			}
			slices.Sort(names)
			d.fail(key, fault.Suggest(key.Value, names), "%sunknown field %q", of(path), call.Clip(key.Value))
			return
		}
		given[key.Value] = true
		d.value(val, field.Value, dot(path)+key.Value)
	})
	if !ok {
		return
	}
	setPos(v, pos(n))
	for _, name := range slices.Sorted(keys(fields)) {
		if fields[name].required && !given[name] {
			d.fail(n, "", "%s%s is missing", dot(path), name)
		}
	}
}

type field struct {
	reflect.Value
	required bool
}

// fieldsOf are the fields of a struct and of those it embeds, by their names.
func fieldsOf(v reflect.Value) map[string]field {
	out := map[string]field{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			for name, in := range fieldsOf(v.Field(i)) {
				out[name] = in
			}
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			out[name] = field{v.Field(i), !strings.HasPrefix(options, "omit")}
		}
	}
	return out
}

func keys(m map[string]field) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// setPos sets the At of a struct, and of those it embeds.
func setPos(v reflect.Value, p Pos) {
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Anonymous:
			setPos(v.Field(i), p)
		case f.Name == "At":
			v.Field(i).Set(reflect.ValueOf(p))
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	out := reflect.MakeMap(v.Type())
	d.each(n, path, func(key, val *yaml.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(val, item, dot(path)+call.Clip(key.Value))
		if item.Kind() == reflect.Struct && item.Type() != reflect.TypeFor[Text]() && item.Type() != reflect.TypeFor[Secret]() {
			setPos(item, pos(key))
		}
		out.SetMapIndex(reflect.ValueOf(key.Value), item)
	})
	v.Set(out)
}

func (d *decoder) integer(n *yaml.Node, path string) int64 {
	if !d.want(n, yaml.ScalarNode, "!!int", path, "a whole number") {
		return 0
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		d.fail(n, "write it with digits only", "%s: %s is not a whole number this language takes", path, call.Clip(n.Value))
	}
	return v
}

func (t *Text) read(d *decoder, n *yaml.Node, path string) {
	if !d.want(n, yaml.ScalarNode, "!!str", path, "text") {
		return
	}
	t.Value, t.At = n.Value, pos(n)
	if strings.TrimSpace(n.Value) == "" {
		d.fail(n, "leave the key out where there is nothing to say", "%s is blank", path)
	}
}

var variable = lazy(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// lazy compiles a pattern when it is first used: every start of the program, and
// of each helper, would pay for it otherwise.
func lazy(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

func (s *Secret) read(d *decoder, n *yaml.Node, path string) {
	if !d.want(n, yaml.ScalarNode, "!!str", path, "text") {
		return
	}
	s.Value, s.At = n.Value, pos(n)
	if strings.Contains(variable().ReplaceAllString(n.Value, ""), "${") {
		d.fail(n, "write ${NAME}, with letters, digits and _", "%s has a ${ that begins no variable", path)
	}
}

func (c *Count) read(d *decoder, n *yaml.Node, path string) {
	c.At = pos(n)
	if c.Value = d.integer(n, path); c.Value <= 0 && n.ShortTag() == "!!int" {
		d.fail(n, "leave it out for no limit", "%s is %s, and has to be 1 or more", path, call.Clip(n.Value))
	}
}

var size = lazy(`^([0-9]{1,15}) ?(B|KiB|MiB|GiB)?$`)

func (s *Size) read(d *decoder, n *yaml.Node, path string) {
	s.At = pos(n)
	m := size().FindStringSubmatch(n.Value)
	if n.Kind != yaml.ScalarNode || m == nil {
		d.fail(n, "write a number of bytes, or one with KiB, MiB or GiB", "%s: %q is no size", path, call.Clip(n.Value))
		return
	}
	v, _ := strconv.ParseInt(m[1], 10, 64) // at most 15 digits
	unit := map[string]int64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[m[2]]
	if v < 1 || v > math.MaxInt32/unit {
		d.fail(n, "leave it out for no limit", "%s: %s is less than 1 byte or more than 2 GiB", path, n.Value)
		return
	}
	s.Value = v * unit
}

func (t *Duration) read(d *decoder, n *yaml.Node, path string) {
	t.At = pos(n)
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v <= 0 {
		d.fail(n, "write it like 90s, 30m or 1h30m", "%s: %q is no time span", path, call.Clip(n.Value))
		return
	}
	t.Value = v
}

var dollars = lazy(`^(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?$`)

func (u *Dollars) read(d *decoder, n *yaml.Node, path string) {
	u.At = pos(n)
	if tag := n.ShortTag(); tag != "!!int" && tag != "!!float" || !dollars().MatchString(n.Value) {
		d.fail(n, "write it like 2.50, in US dollars", "%s: %q is no amount of dollars", path, call.Clip(n.Value))
		return
	}
	v, _ := strconv.ParseFloat(n.Value, 64) // at most 12 digits
	if v == 0 {
		d.fail(n, "leave it out for no limit", "%s is %s, and has to be more than 0", path, n.Value)
		return
	}
	u.Value = v
}

func (p *Patterns) read(d *decoder, n *yaml.Node, path string) {
	if !d.want(n, yaml.SequenceNode, "", path, "a list of tools, like [read_file]") {
		return
	}
	p.At, p.List = pos(n), []policy.Pattern{}
	for i, c := range n.Content {
		var t Text
		before := len(d.errs)
		d.value(c, reflect.ValueOf(&t).Elem(), fmt.Sprintf("%s[%d]", path, i))
		if len(d.errs) > before {
			continue
		}
		pattern, err := policy.ParsePattern(t.Value)
		if err != nil {
			d.fail(c, fault.HintOf(err), "%s[%d]: %v", path, i, err)
			continue
		}
		p.List = append(p.List, pattern.At(fmt.Sprintf("%s:%d", d.base, c.Line)))
		p.at = append(p.at, pos(c))
	}
}
