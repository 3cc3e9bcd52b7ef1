package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Tell what is there, what is missing, and how to get it",
		Long:  "Look for agent CLIs, the state directory, what the levels need and whether questions can be answered from here. Exit code 2 where no run can start: the state directory or the supervision of processes is missing.",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			bad := false
			row := func(ok bool, what, detail, hint string) {
				mark := "ok     "
				if !ok {
					mark = "missing"
				}
				fmt.Fprintf(a.out, "%s  %-18s %s\n", mark, what, line(detail, 400))
				if hint != "" {
					fmt.Fprintf(a.out, "         %-18s hint: %s\n", "", line(hint, 400))
				}
			}
			later := func(what, detail, hint string) {
				fmt.Fprintf(a.out, "%s  %-18s %s\n         %-18s hint: %s\n", "later  ", what, detail, "", hint)
			}
			if dir, err := a.state(); err != nil {
				bad = true
				row(false, "state directory", err.Error(), fault.HintOf(err))
			} else {
				row(true, "state directory", dir.Path(), "")
			}
			supervised := proc.HelperReady()
			if supervised != nil {
				bad = true
				row(false, "supervision", supervised.Error(), "run agents on Linux")
			} else {
				row(true, "supervision", "every process of a run can be ended", "")
			}
			for _, name := range agent.Names() {
				cli, err := agent.ByName(name)
				if err != nil {
					return err
				}
				found, err := cli.Find("", os.Environ())
				if err != nil {
					row(false, "agent "+name, err.Error(), fault.HintOf(err))
					continue
				}
				detail := found.Path
				if found.Version != "" {
					detail = "version " + found.Version + " at " + detail
				}
				row(true, "agent "+name, detail, "")
			}
			row(supervised == nil, "level sealed", "the agent's own tools are off; every effect passes the gate", "")
			later("level confined", "this version has no sandbox", "use sealed; or --own-tools, which is level open")
			row(supervised == nil, "level open", "for exec and --own-tools: the scope guards the bridge's tools only", "")
			if ask, err := canAsk(c.Context()); err != nil {
				row(false, "questions", err.Error(), fault.HintOf(err))
			} else {
				row(true, "questions", ask, "")
			}
			later("execute_command", "needs the sandbox, which this version has not", "--sandbox=off accepts that commands run unconfined")
			if bad {
				return exitCode(fault.Usage)
			}
			return nil
		},
	}
}

// nothing is a desk without questions.
type nothing struct{}

func (nothing) Pending() []approve.Question                          { return nil }
func (nothing) Answer(context.Context, string, approve.Answer) error { return approve.ErrUnknown }

// canAsk tries whether a question of a run could be answered from here, and
// says how.
func canAsk(ctx context.Context) (how string, err error) {
	folder, err := os.MkdirTemp("", "drawbridge-doctor-")
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, "set TMPDIR to a directory that you can write", "temporary directory")
	}
	defer os.RemoveAll(folder)
	s, err := control.Listen(folder, nothing{}, control.Options{})
	if err != nil {
		return "", fault.Wrap(err, fault.Usage, "runs that ask, and plan mode, do not start without it", "control socket")
	}
	defer s.Close()
	switch _, err := control.Pending(ctx, folder); {
	case errors.Is(err, control.ErrRefused):
		return "", fault.New(fault.Usage, "answer from a shell that no run has started", "answers are not taken from here: this process belongs to a run")
	case err != nil:
		return "", err
	}
	how = "answered with drawbridge approve and deny, from any shell of yours"
	if isTerminal(os.Stderr) && control.HasTerminal() {
		how += "; a run in the foreground asks at this terminal too"
	}
	return how, nil
}
