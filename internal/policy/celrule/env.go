package celrule

import (
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// theEnv is the standard language and what ours has besides. It is built when the
// first rule is compiled: it takes longer than most commands run.
var theEnv = sync.OnceValues(newEnv)

func newEnv() (*cel.Env, error) {
	text := cel.StringType
	return cel.NewEnv(
		cel.ParserExpressionSizeLimit(maxText), cel.ParserRecursionLimit(64), cel.CrossTypeNumericComparisons(false),
		cel.Types(cel.NativeTypeFor[Binding](types.ParseStructTags(true))),
		cel.Variable("tool", text),
		cel.Variable("args", cel.MapType(text, cel.DynType)),
		cel.Variable("binding", cel.ObjectType("celrule.Binding")),
		cel.Variable("mode", text),
		cel.Function("programs", cel.Overload("programs_string", []*cel.Type{text}, cel.ListType(text),
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				list, err := Programs(string(v.(types.String)))
				if err != nil {
					return types.WrapErr(err)
				}
				return types.DefaultTypeAdapter.NativeToValue(list)
			}))),
		cel.Function("path_in", cel.Overload("path_in_string_string", []*cel.Type{text, text}, cel.BoolType,
			cel.BinaryBinding(func(p, dir ref.Val) ref.Val {
				in, err := PathIn(string(p.(types.String)), string(dir.(types.String)))
				if err != nil {
					return types.WrapErr(err)
				}
				return types.Bool(in)
			}))),
		cel.Function("host", cel.Overload("host_string", []*cel.Type{text}, text,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				h, err := Host(string(v.(types.String)))
				if err != nil {
					return types.WrapErr(err)
				}
				return types.String(h)
			}))),
	)
}

// program makes a checked expression ready to be evaluated. Its cost is counted
// while it is evaluated, unless it is cheap: counting takes as long as most
// conditions.
func program(env *cel.Env, checked *ast.AST, found map[string]uint64) (cel.Program, error) {
	options := uncounted(found)
	if !cheap(checked) {
		options = append(options, cel.CostTracking(costs{found}), cel.CostLimit(maxCost))
	}
	return env.PlanProgram(checked, options...)
}

// uncounted are the options of every program.
func uncounted(found map[string]uint64) []cel.ProgramOption {
	return []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.OptimizeRegex(matching(found)...)}
}
