package builtin

import (
	"context"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

const planSchema = `{"type":"object","properties":{` +
	`"plan":{"type":"string","minLength":1,"description":"the plan in Markdown: what you will change, in which order, and why"}` +
	`},"required":["plan"]}`

// Plan returns submit_plan. The gate runs it once a person has approved the plan
// in its arguments, which PlanOf shows them; accept then lets the run act.
func Plan(name string, accept func()) call.Tool {
	return call.Tool{
		Name: name,
		Description: "Put your plan before a person. Until it is approved only tools that read are run. " +
			"The answer says whether it was; if not, it has the person's reason, and you can submit another plan.",
		InputSchema: []byte(planSchema),
		Effects:     call.Read,
		Run: func(context.Context, call.Invocation) (call.Result, error) {
			accept()
			return call.Text("The plan is approved. Carry it out now: all your tools run from here on, as far as the policy lets them."), nil
		},
	}
}

// PlanOf is the plan in the arguments of submit_plan, "" for none.
func PlanOf(arguments []byte) string {
	var args struct {
		Plan string `json:"plan"`
	}
	if decode(call.Invocation{Arguments: arguments}, &args) != nil {
		return ""
	}
	return args.Plan
}

// Effects are those of every tool here, by name.
var Effects = map[string]call.Effects{
	"memory_search": call.Read, "memory_add": call.Write, "memory_delete": call.Destructive,
	"read_file": call.Read, "list_files": call.Read, "search_files": call.Read,
	"write_file": call.Write, "edit_file": call.Write, "delete_file": call.Destructive,
	"execute_command": call.Destructive,
	"submit_plan":     call.Read,
}
