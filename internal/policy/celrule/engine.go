package celrule

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/containers"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/decls"
	"cel.dev/cel-go/common/stdlib"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
	"cel.dev/cel-go/parser"
)

// engine is the standard language and what ours has besides. It is put together
// from the parts of cel-go, as its package cel does it, because that package
// links protobuf descriptors that are set up at every start of the program (200
// KB, and 0.8 MB of binary). Safe for concurrent use.
type engine struct {
	parser   *parser.Parser
	checker  *checker.Env
	provider types.Provider
	adapter  types.Adapter
	dispatch interpreter.Dispatcher
	attrs    interpreter.AttributeFactory
}

// theEngine is built when the first rule is compiled: it takes longer than most
// commands run.
var theEngine = sync.OnceValues(newEngine)

func newEngine() (*engine, error) {
	p, err := parser.NewParser(parser.Macros(parser.AllMacros...), parser.ExpressionSizeCodePointLimit(maxText), parser.MaxRecursionDepth(64))
	if err != nil {
		return nil, err
	}
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	e := &engine{parser: p, dispatch: interpreter.NewDispatcher()}
	if e.provider, e.adapter, err = types.ComposeTypes(registry, registry, reflect.TypeFor[Binding](), types.ParseStructTags(true)); err != nil {
		return nil, err
	}
	if e.checker, err = checker.NewEnv(containers.DefaultContainer, e.provider, checker.CrossTypeNumericComparisons(false)); err != nil {
		return nil, err
	}
	ours, err := functions()
	if err != nil {
		return nil, err
	}
	all := append(stdlib.Functions(), ours...)
	if err := errors.Join(e.checker.AddIdents(append(stdlib.Types(), variables()...)...), e.checker.AddFunctions(all...)); err != nil {
		return nil, err
	}
	for _, f := range all {
		overloads, err := f.Bindings()
		if err == nil {
			err = e.dispatch.Add(overloads...)
		}
		if err != nil {
			return nil, err
		}
	}
	e.attrs = interpreter.NewAttributeFactory(containers.DefaultContainer, e.adapter, e.provider)
	return e, nil
}

func variables() []*decls.VariableDecl {
	return []*decls.VariableDecl{
		decls.NewVariable("tool", types.StringType),
		decls.NewVariable("args", types.NewMapType(types.StringType, types.DynType)),
		decls.NewVariable("binding", types.NewObjectType("celrule.Binding")),
		decls.NewVariable("mode", types.StringType),
	}
}

func functions() ([]*decls.FunctionDecl, error) {
	text := types.StringType
	programs, err1 := decls.NewFunction("programs", decls.Overload("programs_string", []*types.Type{text}, types.NewListType(text),
		decls.UnaryBinding(func(v ref.Val) ref.Val {
			list, err := Programs(string(v.(types.String)))
			if err != nil {
				return types.WrapErr(err)
			}
			return types.DefaultTypeAdapter.NativeToValue(list)
		})))
	pathIn, err2 := decls.NewFunction("path_in", decls.Overload("path_in_string_string", []*types.Type{text, text}, types.BoolType,
		decls.BinaryBinding(func(p, dir ref.Val) ref.Val {
			in, err := PathIn(string(p.(types.String)), string(dir.(types.String)))
			if err != nil {
				return types.WrapErr(err)
			}
			return types.Bool(in)
		})))
	host, err3 := decls.NewFunction("host", decls.Overload("host_string", []*types.Type{text}, text,
		decls.UnaryBinding(func(v ref.Val) ref.Val {
			h, err := Host(string(v.(types.String)))
			if err != nil {
				return types.WrapErr(err)
			}
			return types.String(h)
		})))
	return []*decls.FunctionDecl{programs, pathIn, host}, errors.Join(err1, err2, err3)
}

// check parses an expression and finds its types. wrong is the first thing that
// is wrong with it.
func (e *engine) check(expr string) (_ *ast.AST, wrong *common.Error, err error) {
	source, err := common.NewTextSourceWithLimit(expr, maxText)
	if err != nil {
		return nil, nil, err
	}
	parsed, all := e.parser.Parse(source)
	if list := all.GetErrors(); len(list) > 0 {
		return nil, list[0], nil
	}
	checked, all := checker.Check(parsed, source, e.checker)
	if list := all.GetErrors(); len(list) > 0 {
		return nil, list[0], nil
	}
	return checked, nil, nil
}

// program makes an expression ready to be evaluated. Its cost is counted while it
// is evaluated, unless it is cheap: counting takes as long as most conditions.
func (e *engine) program(checked *ast.AST) (interpreter.InterpretableV2, *common.Error, error) {
	found, wrong := patterns(checked)
	if wrong != nil {
		return nil, wrong, nil
	}
	options := []interpreter.PlannerOption{interpreter.Optimize(), interpreter.CompileRegexConstants(matching(found))}
	if !cheap(checked) {
		tracker, err := cost.NewTracker(costs{found}, cost.TrackerLimit(maxCost), cost.TrackerLimitExceededHandler(func() { panic(errCost) }))
		if err != nil {
			return nil, nil, err
		}
		options = append(options, interpreter.CostObserver(interpreter.CostTrackerFactory(tracker.Clone)))
	}
	p, err := interpreter.NewInterpreter(e.dispatch, containers.DefaultContainer, e.provider, e.adapter, e.attrs).NewInterpretable(checked, options...)
	return p, nil, err
}

// eval evaluates a program. A panic in it is an error: the call is denied, and
// the process lives.
func eval(p interpreter.InterpretableV2, vars interpreter.Activation) (out ref.Val, err error) {
	frame, err := interpreter.NewExecutionFrame(vars)
	if err != nil {
		return nil, err
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("evaluation: %w", r)
		default:
			err = fmt.Errorf("evaluation: %v", r)
		}
		frame.Close()
	}()
	out = p.Exec(frame)
	if failed, ok := out.(*types.Err); ok {
		return nil, failed
	}
	return out, nil
}
