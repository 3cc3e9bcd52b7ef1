package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Tell the story in one run, with nothing installed",
		Long: `Run the built-in scripted agent, which tries what a real one might, against a bridge
that allows it one tool. Everything that is printed is checked; exit code 1 means
that something was not so. State is kept in a temporary directory.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.demo(c.Context()) },
	}
}

const (
	demoNote   = "Q4 budget review: Thu 14:00."
	demoSecret = "Client X contract renews 2027-01-31"
	demoScript = `call memory_search {"query":"budget"}
call execute_command {"cmd":"rm -rf ~/work"}
call memory_search {"query":"contract","workspace_id":"ws-client"}
token 0000000000000000000000000000000000000000000000000000000000000000
call memory_search {"query":"budget"}
say done
`
)

// story prints what happened and keeps what did not happen as it must.
type story struct {
	a     *app
	wrong int
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.a.out, format+"\n", args...) }

func (s *story) check(ok bool, format string, args ...any) {
	mark := "ok   "
	if !ok {
		mark = "WRONG"
		s.wrong++
	}
	s.say("  %s %s", mark, visible(fmt.Sprintf(format, args...)))
}

func (a *app) demo(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "drawbridge-demo-")
	if err != nil {
		return fault.Wrap(err, fault.Usage, "set TMPDIR to a folder that you can write", "temporary directory")
	}
	defer os.RemoveAll(dir)
	s := &story{a: a}
	if err := s.play(ctx, dir); err != nil {
		return err
	}
	if s.wrong > 0 {
		s.say("%d checks failed", s.wrong)
		return exitCode(fault.Agent)
	}
	s.say("all of it held")
	return nil
}

func (s *story) play(ctx context.Context, dir string) error {
	stateDir, folder := dir+"/state", dir+"/work"
	if err := os.Mkdir(folder, 0o700); err != nil {
		return fault.Wrap(err, fault.Usage, "", "folder of the demo")
	}
	if err := seed(ctx, stateDir); err != nil {
		return err
	}
	s.say("Notes: in ws-personal %q, in ws-client %q.", demoNote, demoSecret)
	s.say("A run in ws-personal/ch-ops: of memory_search, memory_add and execute_command it is allowed memory_search.")

	var seen []string
	var results []drawbridge.Event
	began := time.Now()
	res, err := drawbridge.Run(ctx, drawbridge.RunConfig{
		Config: drawbridge.Config{
			Binding:  drawbridge.Binding{Workspace: "ws-personal", Channel: "ch-ops", User: "demo"},
			Server:   "osfoundry",
			Builtins: []string{"memory_search", "memory_add", "execute_command"},
			Allow:    []string{"memory_search"},
			Folder:   folder,
			StateDir: stateDir,
			Events: func(e drawbridge.Event) {
				switch e.Kind {
				case event.Started:
					seen = e.Tools
				case event.ToolResult:
					results = append(results, e)
				}
			},
		},
		Agent: "scripted", Prompt: demoScript, Timeout: time.Minute,
	})
	if err != nil {
		return err
	}
	for len(results) < 4 {
		results = append(results, drawbridge.Event{Result: "(no answer)"})
	}
	// The first line of a result is enough to tell the story.
	answer := func(i int) string {
		first, _, _ := strings.Cut(results[i].Result, "\n")
		return first
	}

	s.say("")
	s.check(len(seen) == 1 && seen[0] == "mcp__osfoundry__memory_search", "tools the agent sees: %s", strings.Join(seen, ", "))
	s.say("Call 1: memory_search \"budget\"")
	s.check(strings.Contains(answer(0), demoNote) && !results[0].IsError, "%s", answer(0))
	s.say("Call 2: execute_command \"rm -rf ~/work\", which the agent was never shown")
	s.check(strings.Contains(answer(1), "-32601") && strings.Contains(answer(1), "tool 'execute_command' is not available to this agent"), "%s", answer(1))
	s.say("Call 3: memory_search \"contract\" with workspace_id ws-client, where there is such a note")
	s.check(answer(2) == "no matching notes" && !results[2].IsError, "%s", answer(2))
	s.say("Call 4: memory_search with a wrong token")
	s.check(strings.Contains(answer(3), "401"), "%s", answer(3))
	s.say("")
	s.audit(res)
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", strings.TrimSuffix(strings.TrimPrefix(res.URL, "http://"), "/mcp"))
	if err == nil {
		_ = conn.Close()
	}
	s.check(err != nil, "after the run %s refuses connections", res.URL)
	s.say("%d ms from start to everything dead.", time.Since(began).Milliseconds())
	return nil
}

func seed(ctx context.Context, stateDir string) error {
	dir, err := state.Open(stateDir)
	if err != nil {
		return err
	}
	store, err := sqlite.Open(ctx, dir.Database())
	if err != nil {
		return err
	}
	defer store.Close()
	notes := memory.NewService(store.Notes(), nil)
	for _, n := range []memory.Note{
		{Workspace: "ws-personal", Text: demoNote, User: "demo"},
		{Workspace: "ws-client", Text: demoSecret, User: "demo"},
	} {
		if _, err := notes.Add(ctx, n); err != nil {
			return err
		}
	}
	// The third call proves nothing unless the note can be found.
	hits, err := notes.Search(ctx, "ws-client", "contract", 1)
	if err != nil {
		return err
	}
	if len(hits) != 1 {
		return fault.New(fault.Agent, "", "the note in ws-client can't be found by its own word")
	}
	return nil
}

// audit reads the record as anybody could.
func (s *story) audit(res *drawbridge.Result) {
	f, err := os.Open(res.AuditFile)
	if err != nil {
		s.check(false, "audit record: %v", err)
		return
	}
	defer f.Close()
	rep, err := audit.Verify(f, res.AuditHead)
	s.check(err == nil && rep.Problem == "" && rep.Closed, "audit record: %d lines, each with the hash of the line before, closed", rep.Lines)
	if _, err := f.Seek(0, 0); err != nil {
		s.check(false, "audit record: %v", err)
		return
	}
	var executed []string
	refused := 0
	err = audit.Read(f, func(r audit.Record) error {
		switch r.Kind {
		case audit.Begin:
			executed = append(executed, r.Tool)
		case audit.Refused:
			refused++
		}
		return nil
	})
	s.check(err == nil && len(executed) == 2 && executed[0] == "memory_search" && executed[1] == "memory_search",
		"audit record: %d executions (%s), %d refused", len(executed), strings.Join(executed, ", "), refused)
}
