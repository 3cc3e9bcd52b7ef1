package agent

import (
	"slices"
	"strings"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// flag is one option of a CLI that a user may give with --agent-arg.
type flag struct {
	names []string // the first one is passed on
	value bool     // takes one
}

// passArgs checks the user's extra arguments against the options that a run
// does not depend on, and returns them in the form --name=value. That form has
// one reading: no value can pass for an option, and no option with a list of
// values can take in what follows it.
//
// The list is of what is allowed, because a CLI gains options every week and
// one of them is sure to load a server, a hook or a tool.
func passArgs(cli string, args []string, allowed []flag, refused map[string]string) ([]string, error) {
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, inline := strings.Cut(arg, "=")
		at := slices.IndexFunc(allowed, func(f flag) bool { return slices.Contains(f.names, name) })
		switch {
		case strings.Contains(arg, "\x00"):
			return nil, fault.New(fault.Usage, "take the NUL byte out", "agent argument %q holds a NUL byte", clip(arg, 64))
		case !strings.HasPrefix(arg, "-") || arg == "-" || arg == "--":
			return nil, fault.New(fault.Usage, "the prompt goes after -- or to standard input, a value goes to its option as --option=value",
				"agent argument %q is not an option", clip(arg, 64))
		case at < 0:
			hint, ok := refused[name]
			if !ok {
				hint = "these can be passed on: " + strings.Join(flagNames(allowed), ", ")
			}
			return nil, fault.New(fault.Usage, hint, "agent argument %s would not leave the run as it is enforced on %s", clip(name, 64), cli)
		case !allowed[at].value && inline:
			return nil, fault.New(fault.Usage, "leave the value out", "agent argument %s takes no value", name)
		case !allowed[at].value:
			out = append(out, allowed[at].names[0])
			continue
		case !inline:
			i++
			if i == len(args) {
				return nil, fault.New(fault.Usage, "give it as "+name+"=value", "agent argument %s has no value", name)
			}
			value = args[i]
			if strings.Contains(value, "\x00") {
				return nil, fault.New(fault.Usage, "take the NUL byte out", "the value of agent argument %s holds a NUL byte", name)
			}
		}
		out = append(out, allowed[at].names[0]+"="+value)
	}
	return out, nil
}

func flagNames(flags []flag) []string {
	names := make([]string, len(flags))
	for i, f := range flags {
		names[i] = f.names[0]
	}
	return names
}
