package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

// scopeFlags are what run and exec have in common: whom the run works for and
// what it may call.
type scopeFlags struct {
	workspace, channel, user, folder, server, sandbox string
	allow                                             []string
	maxCalls                                          int64
	maxOutput                                         int
	callTimeout                                       time.Duration
}

func (f *scopeFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.workspace, "workspace", "default", "workspace the run is bound to: whose memory it sees")
	fl.StringVar(&f.channel, "channel", "", "channel the run is bound to")
	fl.StringVar(&f.user, "user", "", "user the run is bound to (default: you)")
	fl.StringVar(&f.folder, "folder", ".", "folder the run works in; the file tools can't leave it")
	fl.StringArrayVar(&f.allow, "allow", nil, "tools the run may see and call: names, or patterns with *, separated by commas; nothing is allowed by default")
	fl.StringVar(&f.server, "server-name", "drawbridge", "the middle of the tool name the model sees, mcp__NAME__tool")
	fl.StringVar(&f.sandbox, "sandbox", "", `"off" accepts that execute_command runs unconfined`)
	fl.Int64Var(&f.maxCalls, "max-calls", 0, "tool calls the run may make; further ones are refused (0: no limit)")
	fl.IntVar(&f.maxOutput, "max-output", 64<<10, "bytes of one tool result; the middle of a longer one is left out")
	fl.DurationVar(&f.callTimeout, "call-timeout", 10*time.Minute, "time one tool call may take")
	complete(c, "allow", session.Builtins())
	complete(c, "sandbox", []string{"off"})
}

// complete tells shell completion the values of a flag of c.
func complete(c *cobra.Command, flag string, values []string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // it fails for a flag that is not there, or twice
}

func (f *scopeFlags) config(c *cobra.Command, a *app) (drawbridge.Config, error) {
	var cfg drawbridge.Config
	if f.sandbox != "" && f.sandbox != "off" {
		return cfg, fault.New(fault.Usage, "this version has no sandbox yet; --sandbox=off accepts that", "--sandbox %q is not known", f.sandbox)
	}
	if err := notNegative(c); err != nil {
		return cfg, err
	}
	for _, name := range []string{"workspace", "timeout", "ready-timeout", "idle-timeout", "call-timeout", "max-output"} {
		if fl := c.Flags().Lookup(name); fl != nil && fl.Changed && (fl.Value.String() == "" || fl.Value.String() == "0" || fl.Value.String() == "0s") {
			return cfg, fault.New(fault.Usage, "give a value, or leave the flag out", "--%s is %q", name, fl.Value)
		}
	}
	if f.user == "" {
		f.user = currentUser()
	}
	for _, list := range f.allow {
		for _, name := range strings.Split(list, ",") {
			cfg.Allow = append(cfg.Allow, strings.TrimSpace(name))
		}
	}
	cfg.Binding = drawbridge.Binding{Workspace: f.workspace, Channel: f.channel, User: f.user}
	cfg.Server, cfg.Folder, cfg.StateDir = f.server, f.folder, a.stateDir
	cfg.Builtins = session.Builtins()
	cfg.SandboxOff = f.sandbox == "off"
	cfg.Limits = drawbridge.Limits{Calls: f.maxCalls, Output: f.maxOutput, Call: f.callTimeout}
	// A file in a folder is never read by itself: a cloned repository must not
	// say what may run.
	if _, err := os.Lstat(filepath.Join(f.folder, "drawbridge.yaml")); err == nil {
		fmt.Fprintln(a.err, "drawbridge: hint: drawbridge.yaml in the folder is not read: this version has no policy file, the command line is the whole policy")
	}
	if cfg.SandboxOff {
		fmt.Fprintln(a.err, "drawbridge: warning: --sandbox=off: commands run unconfined, with all you can do yourself")
	}
	return cfg, nil
}

// notNegative refuses numbers and times below zero in the flags of c.
func notNegative(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int64", "duration":
			if err == nil && strings.HasPrefix(f.Value.String(), "-") {
				err = fault.New(fault.Usage, "give a value that is not", "--%s is negative: %s", f.Name, f.Value)
			}
		}
	})
	return err
}

func currentUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return fmt.Sprintf("uid-%d", os.Getuid())
}

func (a *app) runCommand() *cobra.Command {
	var (
		scope                       scopeFlags
		cli, path, model, own, file string
		args, env, dirs             []string
		timeout, readyTimeout, idle time.Duration
		asJSON                      bool
	)
	c := &cobra.Command{
		Use:   "run --agent NAME [flags] -- PROMPT",
		Short: "Run an agent CLI with the tools you allow and nothing else",
		Long: `Run an agent CLI headless. It gets one MCP server, the run's own bridge, and none
of its own tools: every effect passes the gate. The prompt comes from after --,
from --prompt-file, or from a pipe. Progress goes to standard error, the agent's
answer to standard output.

` + exitCodes,
		Example: `  drawbridge run --agent claude --allow memory_search -- "What do we know about the Q4 budget?"
  (cat review.txt; git diff) | drawbridge run --agent claude --allow read_file,search_files
  echo 'call memory_search {"query":"budget"}' | drawbridge run --agent scripted --allow memory_search`,
		RunE: func(c *cobra.Command, words []string) error {
			if cli == "" {
				return fault.New(fault.Usage, "there are: "+strings.Join(agent.Names(), ", "), "--agent is missing")
			}
			base, err := scope.config(c, a)
			if err != nil {
				return err
			}
			prompt, err := a.prompt(words, file)
			if err != nil {
				return err
			}
			ownTools, err := parseOwnTools(own)
			if err != nil {
				return err
			}
			cfg := drawbridge.RunConfig{
				Config: base, Agent: cli, AgentPath: path, AgentArgs: args, AgentEnv: env, Prompt: prompt, Model: model, Dirs: dirs,
				OwnTools: ownTools, Timeout: timeout, ReadyTimeout: readyTimeout, IdleTimeout: idle,
			}
			show := newShow(a, asJSON)
			cfg.Events = show.event
			if ownTools.All || len(ownTools.List) > 0 {
				fmt.Fprintln(a.err, "drawbridge: warning: level open: with tools of its own the agent can do whatever you can; the scope guards the bridge's tools only")
			}
			survivePipes()
			// Not before: waiting for a prompt that does not come ends as ever.
			ctx, stop := untilSignal(c.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			res, err := drawbridge.Run(ctx, cfg)
			if lost := show.done(res); err == nil {
				err = lost
			}
			return err
		},
	}
	scope.add(c)
	fl := c.Flags()
	fl.StringVar(&cli, "agent", "", "agent CLI: "+strings.Join(agent.Names(), ", "))
	fl.StringVar(&path, "agent-path", "", "where the agent CLI is (default: on the PATH)")
	fl.StringArrayVar(&args, "agent-arg", nil, "extra argument for the agent CLI; one that would undo what the run enforces is refused")
	fl.StringArrayVar(&env, "env", nil, "extra variable NAME=VALUE for the agent CLI")
	fl.StringArrayVar(&dirs, "add-dir", nil, "further folder the agent CLI may name")
	fl.StringVar(&model, "model", "", "model, as the agent CLI spells it")
	fl.StringVar(&own, "own-tools", "none", "own tools the agent keeps: none, all, or a list; any makes the level open")
	fl.StringVar(&file, "prompt-file", "", "file with the prompt; - is standard input")
	fl.DurationVar(&timeout, "timeout", session.DefaultWall, "wall time of the run")
	fl.DurationVar(&readyTimeout, "ready-timeout", session.DefaultReady, "time until the agent must have listed its tools")
	fl.DurationVar(&idle, "idle-timeout", session.DefaultIdle, "silence of the agent, while no tool runs, that ends the run")
	fl.BoolVar(&asJSON, "json", false, "print one event a line on standard output")
	complete(c, "agent", agent.Names())
	return c
}

func parseOwnTools(s string) (drawbridge.OwnTools, error) {
	switch s {
	case "none":
		return drawbridge.OwnTools{}, nil
	case "all":
		return drawbridge.OwnTools{All: true}, nil
	}
	var o drawbridge.OwnTools
	for _, name := range strings.Split(s, ",") {
		if name = strings.TrimSpace(name); name == "" {
			return o, fault.New(fault.Usage, "give none, all, or names separated by commas", "--own-tools has a blank name")
		}
		o.List = append(o.List, name)
	}
	return o, nil
}

// prompt takes the prompt from the one place it was given in.
func (a *app) prompt(words []string, file string) (string, error) {
	read := func(r io.Reader, from string) (string, error) {
		b, err := io.ReadAll(io.LimitReader(r, session.MaxPrompt+1))
		if err != nil {
			return "", fault.Wrap(err, fault.Usage, "give it after --, with --prompt-file, or through a pipe", "read the prompt from %s", from)
		}
		return string(b), nil
	}
	switch {
	case len(words) > 0 && file != "":
		return "", fault.New(fault.Usage, "give one of them", "there is a prompt after -- and a --prompt-file")
	case len(words) > 0:
		return strings.Join(words, " "), nil
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return "", fault.Wrap(err, fault.Usage, "give a file that you can read, or - for standard input", "prompt file")
		}
		defer f.Close()
		return read(f, file)
	case file == "-" || !isTerminal(a.in):
		return read(a.in, "standard input")
	}
	return "", nil // the session says that it is empty, and how to give one
}

// show prints a run's events as they come.
type show struct {
	a    *app
	json *json.Encoder // nil for people
}

func newShow(a *app, asJSON bool) *show {
	s := &show{a: a}
	if asJSON {
		s.json = json.NewEncoder(a.out)
		s.json.SetEscapeHTML(false)
	}
	return s
}

func (s *show) event(e drawbridge.Event) {
	if s.json != nil {
		_ = s.json.Encode(e) // a reader that went away doesn't end the run
		return
	}
	say := func(format string, args ...any) { fmt.Fprintf(s.a.err, "drawbridge: "+format+"\n", args...) }
	switch e.Kind {
	case event.Notice:
		if e.Status == "starting" {
			say("run %s: agent %s, workspace %s%s, %s", e.Run, e.Agent, line(e.Workspace, 80), opt(", channel ", line(e.Channel, 80)), e.Text)
			return
		}
		say("notice: %s", line(e.Text, 400))
	case event.Started:
		say("agent started%s%s", opt(", version ", line(e.Version, 40)), opt(", model ", line(e.Model, 80)))
		if len(e.Tools) > 0 {
			say("tools the model sees: %s", line(strings.Join(e.Tools, ", "), 2000))
		} else {
			say("the model sees no tools")
		}
	case event.ToolsListed:
		say("tools listed: %s", line(strings.Join(e.Tools, ", "), 2000))
	case event.Call:
		if e.Outcome == "refused" {
			say("call %s%s: refused (%s%s): %s", line(e.Tool, 80), opt(" ", line(string(e.Arguments), 200)), e.Layer, opt(" ", e.Rule), line(e.Text, 200))
			return
		}
		say("call %s%s: %s, %s, %.1f ms", line(e.Tool, 80), opt(" ", line(string(e.Arguments), 200)), e.Decision, e.Outcome, e.Millis)
	case event.ToolCall:
		if e.Observed {
			say("observed: the agent says it calls its own tool %s%s", line(e.Tool, 80), opt(" ", line(string(e.Arguments), 200)))
		}
	case event.ToolResult:
		say("result: %s", line(e.Result, 300))
	case event.Text:
		say("agent: %s", line(e.Text, 2000))
	}
}

// done prints the answer and where the record is. The error is of an answer
// that could not be written, other than to a reader that went away.
func (s *show) done(res *drawbridge.Result) error {
	if res == nil || s.json != nil {
		return nil
	}
	fmt.Fprintf(s.a.err, "drawbridge: %d calls, %d refused, %s; record %s, head %s\n", res.Calls, res.Refused, res.Duration.Round(time.Millisecond), visible(res.AuditFile), res.AuditHead)
	text := res.Text
	if isTerminal(s.a.out) {
		text = visible(text)
	}
	if text == "" {
		return nil
	}
	if _, err := fmt.Fprintln(s.a.out, strings.TrimRight(text, "\n")); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fault.Wrap(err, fault.Usage, "the answer is in the run's transcript too", "write the answer")
	}
	return nil
}

func opt(label, v string) string {
	if v == "" {
		return ""
	}
	return label + v
}
