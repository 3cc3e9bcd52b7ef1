package session

import (
	"context"
	"maps"
	"slices"

	"github.com/drawbridge-mcp/drawbridge/internal/builtin"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/policy"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/redact"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

var (
	memoryTools  = []string{"memory_search", "memory_add", "memory_delete"}
	fileTools    = []string{"read_file", "list_files", "search_files", "write_file", "edit_file", "delete_file"}
	commandTools = []string{"execute_command"}
)

// Builtins are the names of the tools the product brings, in a fixed order.
func Builtins() []string { return slices.Concat(memoryTools, fileTools, commandTools) }

// Effects are those of every tool the product brings, by name.
func Effects() map[string]call.Effects { return maps.Clone(builtin.Effects) }

// known lists every name this run's catalogue could hold.
func (s *Session) known() ([]string, error) {
	var names []string
	for _, t := range s.cfg.Tools {
		names = append(names, t.Name)
	}
	for _, b := range s.cfg.Builtins {
		if !slices.Contains(Builtins(), b) {
			return nil, fault.New(fault.Usage, fault.Suggest(b, Builtins()), "no built-in tool is called %q", call.Clip(b))
		}
		names = append(names, b)
	}
	if s.upstreams != nil {
		for _, t := range s.upstreams.tools {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// tools makes what is in scope. A built-in that is not in scope opens nothing:
// no database, no folder.
func (s *Session) tools(dir *state.Dir, pol *policy.Policy) ([]call.Tool, error) {
	tools := slices.Clone(s.cfg.Tools)
	if s.upstreams != nil {
		tools = append(tools, s.upstreams.tools...)
	}
	if mode, _ := pol.Mode(); mode == policy.Plan {
		tools = append(tools, builtin.Plan(policy.PlanTool, s.act))
	}
	wanted := func(names []string) []string {
		var in []string
		for _, n := range names {
			if slices.Contains(s.cfg.Builtins, n) && pol.InScope(n) {
				in = append(in, n)
			}
		}
		return in
	}
	if names := wanted(memoryTools); names != nil {
		store, err := sqlite.Open(context.Background(), dir.Database())
		if err != nil {
			return nil, err
		}
		s.release = append(s.release, func() { _ = store.Close() })
		tools = pick(tools, builtin.Memory(memory.NewService(store.Notes(), s.cfg.Now)), names)
	}
	needFolder := func(tool string) error {
		if s.cfg.Folder == "" {
			return fault.New(fault.Usage, "give the run a folder", "tool %q works inside the run's folder, and there is none", tool)
		}
		return nil
	}
	if names := wanted(fileTools); names != nil {
		if err := needFolder(names[0]); err != nil {
			return nil, err
		}
		files, err := builtin.NewFiles(builtin.Files{Folder: s.cfg.Folder, Home: lookup(s.cfg.Environ)("HOME"), Protected: s.protected(dir), MaxRead: int64(s.toolOutput())})
		if err != nil {
			return nil, err
		}
		s.release = append(s.release, func() { _ = files.Close() })
		tools = pick(tools, files.Tools(), names)
	}
	if names := wanted(commandTools); names != nil {
		if err := needFolder(names[0]); err != nil {
			return nil, err
		}
		if !s.cfg.SandboxOff {
			return nil, fault.New(fault.Sandbox, "name the tools without it (a pattern may take it in), or accept with --sandbox=off that a command can do whatever you can",
				"execute_command needs a sandbox, and this version has none yet")
		}
		if err := helper(); err != nil {
			return nil, err
		}
		temp, err := s.tempDir()
		if err != nil {
			return nil, err
		}
		tools = append(tools, s.awaited(builtin.Command(builtin.Commands{
			Folder: s.cfg.Folder, Environ: s.cfg.Environ, Output: s.toolOutput(), Marker: s.binding.Run, TempDir: temp,
		})))
	}
	return tools, nil
}

// awaited is t whose calls Close waits for, however short the grace: their
// processes are of this run.
func (s *Session) awaited(t call.Tool) call.Tool {
	run := t.Run
	t.Run = func(ctx context.Context, inv call.Invocation) (call.Result, error) {
		if !s.commands.TryRLock() {
			return call.Errorf("the run has ended"), nil
		}
		defer s.commands.RUnlock()
		return run(ctx, inv)
	}
	return t
}

// toolOutput is what the built-in tools cut their results to: with their own
// words around it a result fits the run's limit and is not cut again.
func (s *Session) toolOutput() int {
	limit := s.cfg.Limits.Output
	if limit <= 0 {
		limit = call.DefaultOutput
	}
	return max(limit-512, limit/2)
}

func pick(to, from []call.Tool, names []string) []call.Tool {
	for _, t := range from {
		if slices.Contains(names, t.Name) {
			to = append(to, t)
		}
	}
	return to
}

func helper() error {
	if err := proc.HelperReady(); err != nil {
		return fault.Wrap(err, fault.Usage, "run agents and commands on Linux, in a program that calls drawbridge.Helper() first", "processes can't be supervised")
	}
	return nil
}

// filter is the gate's view of the secrets.
type filter struct{ s *redact.Secrets }

// maxRecorded is how many bytes of arguments a record keeps; of larger ones it
// holds the digest and the size.
const maxRecorded = 16 << 10

func (f filter) Arguments(raw []byte) []byte          { return redact.Arguments(raw, f.s, maxRecorded) }
func (f filter) Text(text string) (string, int)       { return f.s.String(text) }
func (f filter) JSON(b []byte) (masked []byte, n int) { return f.s.JSON(b) }
