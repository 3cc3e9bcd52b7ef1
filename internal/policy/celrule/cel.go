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
	"reflect"
	"strconv"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/drawbridge-mcp/drawbridge/internal/policy"
)

// maxCost bounds one evaluation. A comparison costs 1, a string function about
// a tenth of the bytes it reads; it is some milliseconds at most.
const maxCost = 100_000

// maxNodes bounds the size of an expression, in code points, and with it the
// work of compiling it.
const maxNodes = 8 << 10

// Binding is what rules see as binding.
type Binding struct {
	Run       string `cel:"run"`
	Workspace string `cel:"workspace"`
	Channel   string `cel:"channel"`
	User      string `cel:"user"`
	Agent     string `cel:"agent"`
}

// env is built when the first rule is compiled: it takes longer than most
// commands run.
var env = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.ParserExpressionSizeLimit(maxNodes),
		cel.ParserRecursionLimit(64),
		nativeBinding,
		cel.Variable("tool", cel.StringType),
		cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("binding", cel.ObjectType("celrule.Binding")),
		cel.Variable("mode", cel.StringType),
		cel.Function("programs", cel.Overload("programs_string", []*cel.Type{cel.StringType}, cel.ListType(cel.StringType),
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				list, err := Programs(string(v.(types.String)))
				if err != nil {
					return wrap(err)
				}
				return types.DefaultTypeAdapter.NativeToValue(list)
			}))),
		cel.Function("path_in", cel.Overload("path_in_string_string", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType,
			cel.BinaryBinding(func(p, dir ref.Val) ref.Val {
				in, err := PathIn(string(p.(types.String)), string(dir.(types.String)))
				if err != nil {
					return wrap(err)
				}
				return types.Bool(in)
			}))),
		cel.Function("host", cel.Overload("host_string", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				h, err := Host(string(v.(types.String)))
				if err != nil {
					return wrap(err)
				}
				return types.String(h)
			}))),
	)
})

// nativeBinding makes Binding known by its fields, so that a misspelled one is
// found when a rule is compiled. Package ext of CEL does the same, and links
// much more.
func nativeBinding(e *cel.Env) (*cel.Env, error) {
	provider, adapter, err := types.ComposeTypes(e.CELTypeProvider(), e.CELTypeAdapter(), reflect.TypeFor[Binding](), types.ParseStructTags(true))
	if err != nil {
		return nil, err
	}
	if e, err = cel.CustomTypeAdapter(adapter)(e); err != nil {
		return nil, err
	}
	return cel.CustomTypeProvider(provider)(e)
}

// unknowable is an error of one of our functions. Its words quote no argument.
type unknowable struct{ what string }

func (e *unknowable) Error() string { return e.what }

// Public is e for the model: it can say the same in another way.
func (e *unknowable) Public() string { return e.what }

func wrap(err error) ref.Val { return types.WrapErr(err) }

// Compile type-checks a condition. Errors are *policy.ExprError. The condition
// is safe for concurrent use, and costs bounded time whatever the arguments.
func Compile(expr string) (policy.Condition, error) {
	e, err := env()
	if err != nil {
		return nil, &policy.ExprError{Message: err.Error()}
	}
	ast, issues := e.Compile(expr)
	if issues != nil && issues.Err() != nil {
		first := issues.Errors()[0]
		return nil, &policy.ExprError{Line: first.Location.Line(), Column: first.Location.Column() + 1, Message: plain(first.Message)}
	}
	if !ast.OutputType().IsExactType(cel.BoolType) {
		return nil, &policy.ExprError{Line: 1, Column: 1, Message: fmt.Sprintf("the expression is %s, and has to be true or false", ast.OutputType())}
	}
	prg, err := e.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(costs{}), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, &policy.ExprError{Message: plain(err.Error())}
	}
	return condition{prg}, nil
}

// plain is one line of a message of CEL.
func plain(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

type condition struct{ prg cel.Program }

// Eval implements policy.Condition.
func (c condition) Eval(in *policy.Input) (bool, error) {
	vars, ok := in.Memo.(*activation)
	if !ok {
		vars = &activation{in: in}
		in.Memo = vars
	}
	out, _, err := c.prg.Eval(vars)
	if err != nil {
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
	in   *policy.Input
	args ref.Val
}

// ResolveName implements cel.Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "tool":
		return types.String(a.in.Tool), true
	case "mode":
		return types.String(a.in.Mode), true
	case "binding":
		return Binding(a.in.Binding), true
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

// costs charges our functions for what they read.
type costs struct{}

// CallCost implements cost.ActualCostEstimator.
func (costs) CallCost(_, overload string, args []ref.Val, _ ref.Val) *uint64 {
	switch overload {
	case "programs_string", "path_in_string_string", "host_string":
		n := uint64(10)
		for _, a := range args {
			if s, ok := a.(types.String); ok {
				n += uint64(len(s)) / 2
			}
		}
		return &n
	}
	return nil
}
