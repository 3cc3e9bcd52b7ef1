// Package cli is the drawbridge command: one file for each subcommand. It holds
// no judgement of its own; a tool runs only through the root package's Bridge.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// app is what every subcommand works with.
type app struct {
	in       *os.File
	out, err io.Writer
	stateDir string
}

// Main runs the command line of this process and returns its exit code.
func Main() int {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	return a.execute(context.Background(), os.Args[1:])
}

// untilSignal is ctx until the process is asked to end, for what has to come to
// an end by itself: a run and its record. Whatever only reads or waits for its
// input is better served by the signal's own effect. A signal that was ignored
// when the process started stays so, as nohup means it.
func untilSignal(ctx context.Context, signals ...os.Signal) (context.Context, func()) {
	signals = slices.DeleteFunc(signals, signal.Ignored)
	if len(signals) == 0 { // which NotifyContext takes for all of them
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, signals...)
}

// graceful is a command whose context ends when a person or the system asks it
// to end.
func graceful(c *cobra.Command) *cobra.Command {
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, stop := untilSignal(c.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		c.SetContext(ctx)
		return run(c, args)
	}
	return c
}

// survivePipes makes a write to a standard stream that nobody reads any more
// an error. Else it would be the death of this process, and of its run.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	all := []error{err}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		all = list.Unwrap()
	}
	for _, err := range all {
		a.say("error", err.Error())
		if hint := fault.HintOf(err); hint != "" {
			a.say("hint", hint)
		}
	}
	return int(fault.KindOf(err))
}

// say writes to standard error. Every line of text, which may hold words of an
// agent, stands behind a prefix of ours.
func (a *app) say(what, text string) {
	text = strings.TrimRight(visible(text), "\n")
	fmt.Fprintf(a.err, "drawbridge: %s: %s\n", what, strings.ReplaceAll(text, "\n", "\ndrawbridge:   | "))
}

// exitCode ends the command with a code and without a word.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

const exitCodes = `Exit codes:
  0    done
  1    the agent failed, or a check of this command did; a question was settled before
  2    usage, configuration or surroundings
  3    the agent never listed its tools from the bridge
  4    the run cost more than its budget
  5    the audit record is incomplete or was changed
  124  the wall time was over
  126  the sandbox or the level asked for could not be set up
  130  interrupted
A call that is refused, by the policy or by a person, ends nothing. exec returns the
code of its program.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "drawbridge",
		Short: "Run an agent CLI behind a bridge that decides what it may call",
		Long: `Drawbridge runs an agent CLI and gives that one run its own MCP endpoint: on a
loopback port, with a token minted for the run, listing only the tools in the
run's scope and refusing every other call before anything executes.

` + exitCodes,
		Version:       drawbridge.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fault.Wrap(err, fault.Usage, "see "+c.CommandPath()+" --help", "command line")
	})
	root.PersistentFlags().StringVar(&a.stateDir, "state-dir", "", "where records and memory are kept (default $XDG_STATE_HOME/drawbridge)")
	root.AddCommand(a.runCommand(), a.execCommand(), graceful(a.demoCommand()), graceful(a.benchCommand()), a.memoryCommand(),
		a.approvalsCommand(), a.approveCommand(), a.denyCommand(), a.auditCommand(), a.runsCommand(), a.policyCommand(), a.initCommand(), a.doctorCommand(), a.versionCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	usage(root)
	return root
}

// usage makes cobra's own errors (unknown command, wrong number of arguments)
// errors of kind Usage, all the way down.
func usage(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				var names []string
				for _, sub := range c.Commands() {
					names = append(names, sub.Name())
				}
				hint := "see " + c.CommandPath() + " --help"
				if len(args) > 0 && len(names) > 0 {
					if s := fault.Suggest(args[0], names); s != "" {
						hint = s
					}
				}
				return fault.Wrap(err, fault.Usage, hint, "command line")
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		usage(sub)
	}
}

// group is a command that only has subcommands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(subs...)
	return c
}

// state opens the state directory.
func (a *app) state() (*state.Dir, error) {
	path := a.stateDir
	if path == "" {
		var err error
		if path, err = state.Default(os.Getenv); err != nil {
			return nil, err
		}
	}
	return state.Open(path)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// visible shows control characters and marks that reorder text, so that what a
// model or a repository wrote can't pass for words of ours on a terminal.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case unicode.IsControl(r), r == '\u2028', r == '\u2029', r > 0x9f && call.Invisible(string(r)):
			fmt.Fprintf(&b, "\\u{%x}", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// line is visible on one line, at most n bytes of it.
func line(s string, n int) string {
	s = visible(strings.NewReplacer("\n", " ", "\t", " ", "\r", " ").Replace(s))
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "") + "..."
	}
	return s
}
