package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/session"
)

func (a *app) runCommand() *cobra.Command {
	var (
		scope                       scopeFlags
		path, model, own, file      string
		args, env, dirs             []string
		timeout, readyTimeout, idle time.Duration
		budget                      float64
		asJSON                      bool
	)
	c := &cobra.Command{
		Use:   "run --agent NAME [flags] -- PROMPT",
		Short: "Run an agent CLI with the tools you allow and nothing else",
		Long: `Run an agent CLI headless. It gets one MCP server, the run's own bridge, and none
of its own tools: every effect passes the gate. The prompt comes from after --,
from --prompt-file, or from a pipe. Progress goes to standard error, the agent's
answer to standard output.

NAME is an agent of the policy file, which says what it may call (--allow then only
narrows that), or an agent CLI, which may call what --allow names.

With --ask, and where a rule of the policy says so, a call waits until a person has
said yes: at this terminal, where standard error is one, or with drawbridge approve
from any other shell. With --plan nothing but reading is run until a person has
approved the agent's plan. A no, and no answer in time, refuse the call and end nothing.

` + exitCodes,
		Example: `  drawbridge run --agent claude --allow memory_search -- "What do we know about the Q4 budget?"
  (cat review.txt; git diff) | drawbridge run --agent claude --allow read_file,search_files
  drawbridge run --agent researcher --workspace ws-personal -- "Find the open questions in docs/"
  drawbridge run --agent claude --allow read_file,write_file --ask write_file -- "Mend the typos in README.md"
  drawbridge run --agent claude --allow read_file,list_files,write_file --plan -- "Split docs/guide.md by topic"
  echo 'call memory_search {"query":"budget"}' | drawbridge run --agent scripted --allow memory_search`,
		RunE: func(c *cobra.Command, words []string) error {
			chosen, err := scope.choose(a, c)
			if err != nil {
				return err
			}
			if chosen.cli == nil {
				return chosen.noCLI()
			}
			prompt, err := a.prompt(words, file)
			if err != nil {
				return err
			}
			ownTools, err := parseOwnTools(own)
			if err != nil {
				return err
			}
			cfg := chosen.cfg
			if !c.Flags().Changed("timeout") {
				timeout = 0 // a limit of the policy comes before the default
			}
			cfg.Agent = &session.Agent{
				CLI: chosen.cli, Path: path, Prompt: []byte(prompt), Model: model, Dirs: dirs, OwnTools: ownTools, Args: args, Env: env,
				Wall: timeout, Budget: budget, Ready: readyTimeout, Idle: idle,
			}
			show := newShow(a, asJSON)
			cfg.Follow = show.event
			// The agent of a run has no terminal, so whoever types there is no agent, but
			// where the run is started from inside of another one.
			cfg.Approvals.Terminal = isTerminal(a.err) && control.HasTerminal()
			show.quiet = cfg.Approvals.Terminal
			if !ownTools.None() {
				fmt.Fprintln(a.err, "drawbridge: warning: level open: with tools of its own the agent can do whatever you can; the scope guards the bridge's tools only")
			}
			if !asJSON {
				chosen.say(a)
			}
			survivePipes()
			// Not before: waiting for a prompt that does not come ends as ever.
			ctx, stop := untilSignal(c.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			// The session outlives the context by the time it takes to end the agent.
			s, err := session.New(context.WithoutCancel(ctx), cfg)
			if err != nil {
				return err
			}
			defer s.Close()
			rep, err := s.RunAgent(ctx)
			if lost := show.done(s, rep); err == nil {
				err = lost
			}
			return err
		},
	}
	scope.add(c)
	fl := c.Flags()
	fl.StringVar(&path, "agent-path", "", "where the agent CLI is (default: on the PATH)")
	fl.StringArrayVar(&args, "agent-arg", nil, "extra argument for the agent CLI; one that would undo what the run enforces is refused")
	fl.StringArrayVar(&env, "env", nil, "extra variable NAME=VALUE for the agent CLI")
	fl.StringArrayVar(&dirs, "add-dir", nil, "further folder the agent CLI may name")
	fl.StringVar(&model, "model", "", "model, as the agent CLI spells it")
	fl.StringVar(&own, "own-tools", "none", "own tools the agent keeps: none, all, or a list; any makes the level open")
	fl.StringVar(&file, "prompt-file", "", "file with the prompt; - is standard input")
	fl.DurationVar(&timeout, "timeout", session.DefaultWall, "wall time of the run")
	fl.Float64Var(&budget, "budget", 0, "US dollars the run may cost, by what the agent reports (0: no limit but the policy's)")
	fl.DurationVar(&readyTimeout, "ready-timeout", session.DefaultReady, "time until the agent must have listed its tools")
	fl.DurationVar(&idle, "idle-timeout", session.DefaultIdle, "silence of the agent, while no tool runs, that ends the run")
	fl.BoolVar(&asJSON, "json", false, "print one event a line on standard output")
	return c
}

func parseOwnTools(s string) (agent.OwnTools, error) {
	switch s {
	case "none":
		return agent.OwnTools{}, nil
	case "all":
		return agent.OwnTools{All: true}, nil
	}
	var o agent.OwnTools
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
	a     *app
	json  *json.Encoder // nil for people
	quiet bool          // about questions, which the terminal shows
}

func newShow(a *app, asJSON bool) *show {
	s := &show{a: a}
	if asJSON {
		s.json = json.NewEncoder(a.out)
		s.json.SetEscapeHTML(false)
	}
	return s
}

func (s *show) event(e event.Event) {
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
	case event.Asked:
		if s.quiet {
			return
		}
		say("a person is asked about a call of %s; without an answer it is not run", line(e.Tool, 80))
		fmt.Fprint(s.a.err, e.Text) // made for this: each line of the agent's is marked
	case event.Answered:
		if !s.quiet {
			say("question %s: %s%s%s", e.Approval, e.Outcome, opt(" by ", line(e.By, 80)), opt(": ", line(e.Text, 400)))
		}
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
func (s *show) done(run *session.Session, res session.Report) error {
	if s.json != nil {
		return nil
	}
	fmt.Fprintf(s.a.err, "drawbridge: %d calls, %d refused, %s; record %s, head %s\n", res.Calls, res.Refused, res.Duration.Round(time.Millisecond),
		visible(filepath.Join(run.Folder(), "audit.jsonl")), run.Head())
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
