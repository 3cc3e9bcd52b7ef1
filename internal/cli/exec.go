package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

func (a *app) execCommand() *cobra.Command {
	var (
		scope        scopeFlags
		requireReady bool
	)
	c := &cobra.Command{
		Use:   "exec [flags] -- COMMAND ARGS...",
		Short: "Run any program as the agent, with a bridge in its environment",
		Long: `Run any program as the agent, the way ssh-agent does. It keeps your environment and
your terminal, and finds the bridge in three variables:

  DRAWBRIDGE_URL         address of the endpoint
  DRAWBRIDGE_TOKEN       bearer token of the run
  DRAWBRIDGE_MCP_CONFIG  path of an mcpServers file (0600), gone after the run

The level is open: the scope guards the bridge's tools only, and the program can do
whatever you can. So it could also answer questions in your place: --ask, --plan and
rules that ask are errors here, unless the policy file accepts that with
approvals: { same_user_can_answer: true }.

When it ends, everything it started is ended too. exec returns the program's exit
code, 128+N where signal N ended it; 2 where it could not be started, 5 where the
record is incomplete.`,
		Example: `  drawbridge exec --allow memory_search -- sh -c 'my-agent --mcp-config "$DRAWBRIDGE_MCP_CONFIG"'`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 {
				return fault.New(fault.Usage, "give a program after --", "nothing to run")
			}
			chosen, err := scope.choose(a, c)
			if err != nil {
				return err
			}
			path, err := exec.LookPath(words[0])
			if err == nil {
				path, err = filepath.Abs(path)
			}
			if err != nil {
				return fault.Wrap(err, fault.Usage, "give its path, or a name that is on the PATH", "program %s", words[0])
			}
			fmt.Fprintln(a.err, "drawbridge: level open: the program can do whatever you can; the scope guards the bridge's tools only")
			survivePipes()
			// An interrupt from the terminal reaches the program itself, and what
			// it means is the program's to say. A TERM sent to us ends it.
			_, forget := untilSignal(context.Background(), os.Interrupt, syscall.SIGQUIT)
			defer forget()
			ctx, stop := untilSignal(c.Context(), syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			cfg := chosen.cfg
			if cfg.Binding.Agent == "" {
				cfg.Binding.Agent = filepath.Base(path)
			}
			cfg.Program = &session.Program{Path: path, Args: words, RequireReady: requireReady}
			chosen.say(a)
			s, err := session.New(context.Background(), cfg)
			if err != nil {
				return err
			}
			defer s.Close()
			code, listed, err := s.RunProgram(ctx)
			if !listed && err == nil {
				fmt.Fprintln(a.err, "drawbridge: warning: the program never listed its tools from the bridge; --require-ready makes that an error")
			}
			fmt.Fprintf(a.err, "drawbridge: run %s, record %s, head %s\n", s.ID(), visible(filepath.Join(s.Folder(), "audit.jsonl")), s.Head())
			if err != nil {
				return err
			}
			if code != 0 {
				return exitCode(code)
			}
			return nil
		},
	}
	scope.add(c)
	c.Flags().SetInterspersed(false) // what follows the program is the program's
	c.Flags().BoolVar(&requireReady, "require-ready", false, "exit with 3 where the program never listed its tools")
	return c
}
