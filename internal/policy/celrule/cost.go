package celrule

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// maxCost bounds one evaluation, whatever the arguments: to about 0.1 s for what
// people write, and some seconds for the worst that could be found. A step costs
// 1, and what reads text or makes some of it an eighth of its bytes, so that all arguments a
// request can have (4 MiB) can be read in one condition.
const maxCost = 600_000

var errCost = errors.New("the condition takes too long with these arguments")

// costs charge calls. The model that cel-go brings charges 1 for a call whose
// operands have no type before the call is made, as arguments have none, however
// long they are.
type costs struct {
	patterns map[string]uint64 // steps a byte of text may take, by pattern
}

// CallCost implements cost.ActualCostEstimator.
func (c costs) CallCost(function, overload string, args []ref.Val, _ ref.Val) *uint64 {
	n := uint64(1)
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.OldIn:
		for _, a := range args {
			n += deep(a.Value(), maxCost)
		}
	case "programs", "path_in", "host":
		for _, a := range args {
			n += 10 + 8*flat(a)
		}
	case overloads.StartsWith, overloads.EndsWith:
		for _, a := range args[1:] {
			n += flat(a)
		}
	case overloads.Matches:
		n += matchCost(args, c.patterns)
	default:
		for _, a := range args {
			n += flat(a)
		}
	}
	return &n
}

// flat is what reading a value itself costs, not what it holds.
func flat(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return uint64(len(v)) / 8
	case types.Bytes:
		return uint64(len(v)) / 8
	}
	return 0
}

// deep is what comparing a value costs; it stops where that is more than most.
func deep(v any, most uint64) uint64 {
	n := uint64(1)
	switch v := v.(type) {
	case string:
		n += uint64(len(v)) / 8
	case []byte:
		n += uint64(len(v)) / 8
	case types.String, types.Bytes:
		n += flat(v.(ref.Val))
	case map[string]any:
		for k, m := range v {
			if n += uint64(len(k))/8 + deep(m, most-min(n, most)); n > most {
				break
			}
		}
	case []any:
		for _, m := range v {
			if n += deep(m, most-min(n, most)); n > most {
				break
			}
		}
	case []ref.Val:
		for _, m := range v {
			if n += deep(m.Value(), most-min(n, most)); n > most {
				break
			}
		}
	case map[ref.Val]ref.Val:
		for k, m := range v {
			if n += deep(k.Value(), most-min(n, most)); n > most {
				break
			}
			n += deep(m.Value(), most-min(n, most))
		}
	case traits.Sizer:
		if size, ok := v.Size().(types.Int); ok {
			n += uint64(size)
		}
	}
	return n
}

// cheap reports whether no arguments can make an expression expensive, so that
// nothing has to be counted: it has no loop, makes no value, and compares with
// something that is no list and no map.
func cheap(checked *ast.AST) bool {
	yes := true
	scalar := func(e ast.Expr) bool {
		switch checked.GetType(e.ID()).Kind() {
		case types.BoolKind, types.IntKind, types.UintKind, types.DoubleKind, types.StringKind, types.NullTypeKind:
			return true
		}
		return false
	}
	ast.PostOrderVisit(checked.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.LiteralKind, ast.IdentKind, ast.SelectKind:
		case ast.ListKind:
			for _, m := range e.AsList().Elements() {
				yes = yes && m.Kind() == ast.LiteralKind
			}
		case ast.CallKind:
			call := e.AsCall()
			switch call.FunctionName() {
			case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, overloads.StartsWith, overloads.EndsWith:
			case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
				yes = yes && (scalar(call.Args()[0]) || scalar(call.Args()[1]))
			case operators.In:
				yes = yes && call.Args()[1].Kind() == ast.ListKind
			default:
				yes = false
			}
		default:
			yes = false
		}
	}))
	return yes
}

// patterns finds the regular expressions of an expression, and refuses one that
// is not written out: an argument could hold one that takes forever.
func patterns(checked *ast.AST) (map[string]uint64, *common.Error) {
	found := map[string]uint64{}
	var wrong *common.Error
	ast.PostOrderVisit(checked.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches || wrong != nil {
			return
		}
		call := e.AsCall()
		last := call.Args()[len(call.Args())-1]
		at := checked.SourceInfo().GetStartLocation(last.ID())
		if last.Kind() != ast.LiteralKind {
			wrong = &common.Error{Location: at, Message: "the pattern of matches has to be written out"}
			return
		}
		text, _ := last.AsLiteral().Value().(string)
		steps, err := steps(text)
		if err != nil {
			wrong = &common.Error{Location: at, Message: err.Error()}
			return
		}
		found[text] = steps
	}))
	return found, wrong
}

// maxSteps is how many instructions a regular expression may have, repetitions
// written out.
const maxSteps = 2000

func steps(pattern string) (uint64, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, fmt.Errorf("matches: %w", err)
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, fmt.Errorf("matches: %w", err)
	}
	if len(prog.Inst) > maxSteps {
		return 0, fmt.Errorf("matches: the pattern has %d steps, more than %d", len(prog.Inst), maxSteps)
	}
	return uint64(len(prog.Inst)), nil
}

func matchCost(args []ref.Val, patterns map[string]uint64) uint64 {
	text, ok1 := args[0].(types.String)
	pattern, ok2 := args[1].(types.String)
	if !ok1 || !ok2 {
		return 0 // an error, and not a match
	}
	return uint64(len(text)) * patterns[string(pattern)] / 200
}

// matching runs patterns that were compiled with their rule, and none that would
// take too long: one match can't be interrupted. They go by overload, because the
// library's own goes by function and comes later.
func matching(found map[string]uint64) []*interpreter.RegexOptimization {
	compile := func(c interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, err
		}
		return interpreter.NewCall(c.ID(), c.Function(), c.OverloadID(), c.Args(), func(args ...ref.Val) ref.Val {
			text, ok := args[0].(types.String)
			switch {
			case !ok:
				return types.MaybeNoSuchOverloadErr(args[0])
			case matchCost(args, found) > maxCost:
				return types.WrapErr(errCost)
			}
			return types.Bool(re.MatchString(string(text)))
		}), nil
	}
	var all []*interpreter.RegexOptimization
	for _, overload := range []string{overloads.Matches, overloads.MatchesString} {
		all = append(all, &interpreter.RegexOptimization{Function: overloads.Matches, OverloadID: overload, RegexIndex: 1, Factory: compile})
	}
	return all
}
