// Package celrule compiles the conditions of policy rules: CEL (the Common
// Expression Language, cel.dev) over tool, args, binding and mode, with three
// functions that read what a call is about: programs, path_in and host. It is
// apart from package policy because it is heavy, and only the command needs it.
package celrule

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"

	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// maxText is how many code points an expression may have, which bounds the work
// of compiling it.
const maxText = 8 << 10

// Binding is what rules see as binding: a type, so that a misspelled field is
// found when a rule is compiled.
type Binding struct {
	Run       string `cel:"run"`
	Workspace string `cel:"workspace"`
	Channel   string `cel:"channel"`
	User      string `cel:"user"`
	Agent     string `cel:"agent"`
}

// unknowable is an error of one of our functions. Its words quote no argument.
type unknowable struct{ what string }

func (e *unknowable) Error() string { return e.what }

// Public is e for the model: it can say the same in another way.
func (e *unknowable) Public() string { return e.what }

// Compile type-checks a condition. Errors are *policy.ExprError. The condition
// is safe for concurrent use, and costs bounded time whatever the arguments.
func Compile(expr string) (policy.Condition, error) {
	env, err := theEnv()
	if err != nil {
		return nil, &policy.ExprError{Message: plain(err.Error())}
	}
	compiled, issues := env.Compile(expr)
	if list := issues.Errors(); len(list) > 0 {
		return nil, wrong(list[0])
	}
	checked := compiled.NativeRep()
	if t := compiled.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, &policy.ExprError{Line: 1, Column: 1, Message: fmt.Sprintf("the expression is %s, and has to be true or false", t)}
	}
	found, bad := patterns(checked)
	if bad != nil {
		return nil, wrong(bad)
	}
	p, err := program(env, checked, found)
	if err != nil {
		return nil, &policy.ExprError{Message: plain(err.Error())}
	}
	return condition{p}, nil
}

func wrong(e *cel.Error) error {
	return &policy.ExprError{Line: e.Location.Line(), Column: e.Location.Column() + 1, Message: plain(e.Message)}
}

// plain is one line of a message of CEL.
func plain(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

type condition struct{ program cel.Program }

// Eval implements policy.Condition.
func (c condition) Eval(in *policy.Input) (bool, error) {
	vars, ok := in.Memo.(*activation)
	if !ok {
		vars = &activation{in: in}
		in.Memo = vars
	}
	out, _, err := c.program.Eval(vars)
	if err != nil {
		if e, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && e.Cause == interpreter.CostLimitExceeded {
			return false, errCost
		}
		if u, ok := errors.AsType[*unknowable](err); ok {
			return false, u
		}
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, errors.New("not a truth value")
	}
	return bool(b), nil
}

// activation hands the variables over when they are asked for.
type activation struct {
	in            *policy.Input
	args, binding any // nil until they are asked for
}

// ResolveName implements cel.Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "tool":
		return types.String(a.in.Tool), true
	case "mode":
		return types.String(a.in.Mode), true
	case "binding":
		if a.binding == nil {
			a.binding = Binding(a.in.Binding)
		}
		return a.binding, true
	case "args":
		if a.args == nil {
			a.args = types.NewStringInterfaceMap(types.DefaultTypeAdapter, object(a.in.Args))
		}
		return a.args, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (a *activation) Parent() cel.Activation { return nil }

func object(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = value(v)
	}
	return out
}

// value makes numbers of decoded JSON comparable: whole ones are int or uint
// where they fit, others double. One that no double holds is an error as soon as
// a rule looks at it.
func value(v any) any {
	switch v := v.(type) {
	case json.Number:
		s := string(v)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return types.Int(i)
		}
		if u, err := strconv.ParseUint(s, 10, 64); err == nil {
			return types.Uint(u)
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsInf(f, 0) {
			return types.NewErr("a number that is too large")
		}
		return types.Double(f)
	case map[string]any:
		return object(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = value(v[i])
		}
		return out
	}
	return v
}
