//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/drawbridgetest"
	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// These tests kill one part of a run of the real Claude Code after another, and
// embed such a run.

// commandRun readies a run of the real claude that may use unconfined commands.
func commandRun(t *testing.T, m *model.Server, flags ...string) (*place, *command) {
	t.Helper()
	p := newPlace(t, m)
	args := append([]string{
		"run", "--agent", "claude", "--agent-path", Program(t, "claude"), "--allow", "execute_command", "--sandbox", "off", "--json",
	}, flags...)
	return p, p.prepare(append(args, "--", "go on")...)
}

// victims are who can be killed, by pid, of a run that pid drawbridge is of.
// helper holds what drawbridge started for the run, agent what that started.
func victims(t *testing.T, drawbridge int) (helpers, agents []int) {
	t.Helper()
	helpers = children(drawbridge)
	for _, h := range helpers {
		agents = append(agents, children(h)...)
	}
	if len(helpers) == 0 || len(agents) == 0 {
		t.Fatalf("helpers %v, agents %v", helpers, agents)
	}
	return helpers, agents
}

// Promise 3 with the real CLI: whoever is killed with -9, and whenever.
func TestClaudeRunKilledAtMoments(t *testing.T) {
	// The command's children get away from its group and its session.
	const escape = "setsid sleep 300 & (setsid sleep 300 &) ; sleep 300; touch ran"
	moments := []struct {
		name  string
		reach func(*place, *command)
		open  int // calls under way
	}{
		{"while it starts", func(p *place, c *command) {
			c.wait("the CLI", func() bool { return strings.Contains(strings.Join(p.alive(""), " "), "claude") })
		}, 0},
		{"during a call", func(p *place, c *command) {
			c.wait("the command", func() bool { return strings.Count(strings.Join(p.alive(""), " "), "sleep") == 3 })
		}, 1},
	}
	for _, moment := range moments {
		for _, victim := range []string{"agent", "helper", "drawbridge", "drawbridge and helper"} {
			t.Run(victim+" "+moment.name, func(t *testing.T) {
				t.Parallel()
				p, c := commandRun(t, Model(t, model.Step{Tool: "execute_command", Args: map[string]any{"cmd": escape}}, model.Step{Text: "done"}))
				c.begin()
				run := c.until(event.Notice).Run
				moment.reach(p, c)
				helpers, agents := victims(t, c.Process.Pid)
				ports := listening(c.Process.Pid)
				if len(ports) != 1 {
					t.Fatalf("drawbridge listens on %q", ports)
				}
				var port int
				if _, err := fmt.Sscanf(ports[0], "127.0.0.1:%d", &port); err != nil {
					t.Fatal(err)
				}
				var kill []int
				switch victim {
				case "agent":
					// Of the two helpers in a call one has the command.
					kill = slices.DeleteFunc(agents, func(pid int) bool { return name(pid) != "claude" })
				case "helper":
					kill = helpers
				case "drawbridge":
					kill = []int{c.Process.Pid}
				case "drawbridge and helper":
					kill = append(helpers, c.Process.Pid)
				}
				if len(kill) == 0 {
					t.Fatalf("nobody to kill among %v and %v", helpers, agents)
				}
				for _, pid := range kill {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				if !slices.Contains(kill, c.Process.Pid) {
					code := 1
					if moment.open == 0 {
						code = 3 // it never listed its tools
					}
					c.ends(code)
					c.says("error: ", "SIGKILL")
					p.nothing(run, port, 0)
					records := p.closed(run, code)
					if n := len(kindsOf(records, audit.Begin)); n != moment.open || len(kindsOf(records, audit.End)) != n {
						t.Errorf("%d calls on record", n)
					}
					return
				}
				c.ends(-1)
				if victim == "drawbridge" {
					p.nothing(run, port, 15*time.Second)
				}
				p.open(run, moment.open)
				// What nobody was left to end, the next start ends.
				p.do(0, "run", "--agent", "scripted", "--", "say next")
				p.nothing(run, port, 0)
				_, folder := p.meta(run)
				p.swept(folder)
				if _, err := os.Stat(filepath.Join(p.folder, "ran")); !errors.Is(err, os.ErrNotExist) {
					t.Error("the command went on")
				}
			})
		}
	}
}

// Runs of one person at once, as in a CI job: they share a state directory and
// a home, and nothing else.
func TestClaudeRunsAtOnce(t *testing.T) {
	Isolated(t)
	const runs = 3
	first := Model(t)
	p := newPlace(t, first)
	var commands [runs]*command
	var models [runs]*model.Server
	for i := range runs {
		w := fmt.Sprintf("ws-%d", i)
		p.do(0, "memory", "add", "--workspace", w, "the number is "+w)
		models[i] = Model(t, model.Step{Tool: "memory_search", Args: map[string]any{"query": "number"}},
			model.Step{Tool: "memory_add", Args: map[string]any{"text": "seen in " + w}}, model.Step{Text: "done " + w})
		commands[i] = p.prepare("run", "--agent", "claude", "--agent-path", Program(t, "claude"), "--workspace", w,
			"--allow", "memory_search,memory_add", "--json", "--", "go on")
		commands[i].Env = append(commands[i].Env, "ANTHROPIC_BASE_URL="+models[i].URL())
	}
	for _, c := range commands {
		c.begin()
	}
	for i, c := range commands {
		w := fmt.Sprintf("ws-%d", i)
		c.ends(0)
		end := c.first(event.Ended)
		if end.Text != "done "+w {
			t.Errorf("%s: %+v", w, end)
		}
		results := models[i].Results()
		if len(results) != 2 || !strings.Contains(results[0].Text, "the number is "+w) || strings.Count(results[0].Text, "the number is") != 1 {
			t.Errorf("%s was told %+v", w, results)
		}
		if got := kindsOf(p.closedWhileOthersRun(end.Run), audit.End); !slices.Equal(got, []string{"memory_search", "memory_add"}) {
			t.Errorf("%s: on record %q", w, got)
		}
		if out := p.do(0, "memory", "list", "--workspace", w); strings.Count(out, "seen in ") != 1 || !strings.Contains(out, "seen in "+w) {
			t.Errorf("%s holds\n%s", w, out)
		}
	}
	p.nothing("none", 0, 0)
}

// closedWhileOthersRun is closed without a look at what others still need.
func (p *place) closedWhileOthersRun(run string) []audit.Record {
	p.t.Helper()
	m, folder := p.meta(run)
	if left := proc.Alive(run); len(left) > 0 {
		p.t.Errorf("processes left: %v", left)
	}
	return drawbridgetest.Records(p.t, filepath.Join(folder, "audit.jsonl"), m.Head)
}

// An app runs the real CLI on its own live state.
func TestClaudeEmbedded(t *testing.T) {
	Isolated(t)
	m := Model(t,
		model.Step{Tool: "add", Args: map[string]any{"n": 7, "workspace": "other"}},
		model.Step{Tool: "add", Args: map[string]any{"n": "seven"}},
		model.Step{Tool: "bang"},
		model.Step{Raw: "mcp__app__hidden"},
		model.Step{Text: "done"},
	)
	var sum atomic.Int64
	var mu sync.Mutex
	var bindings []drawbridge.Binding
	add := drawbridge.Tool{
		Name: "add", Description: "adds to the app's sum", Effects: drawbridge.Write,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`),
		Run: func(_ context.Context, b drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
			var in struct{ N int64 }
			if err := json.Unmarshal(args, &in); err != nil {
				return drawbridge.ToolResult{}, err
			}
			mu.Lock()
			bindings = append(bindings, b)
			mu.Unlock()
			return drawbridge.ToolResult{Text: fmt.Sprintf("the sum is %d", sum.Add(in.N))}, nil
		},
	}
	bang := drawbridge.Tool{Name: "bang", Effects: drawbridge.Read, Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
		panic("out of order")
	}}
	hidden := drawbridge.Tool{Name: "hidden", Effects: drawbridge.Read, Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
		sum.Store(-1)
		return drawbridge.ToolResult{}, nil
	}}
	cfg := drawbridge.RunConfig{
		Config: drawbridge.Config{
			Binding: drawbridge.Binding{Workspace: "home", Channel: "desk", User: "ada"}, Server: "app",
			Tools: []drawbridge.Tool{add, bang, hidden}, Allow: []string{"add", "bang"}, Folder: t.TempDir(),
			StateDir: filepath.Join(t.TempDir(), "state"),
		},
		Agent: "claude", AgentPath: Program(t, "claude"), Environ: Environ(t, m), Prompt: "add seven", Timeout: 2 * time.Minute,
	}
	res, err := drawbridge.Run(t.Context(), cfg)
	if err != nil || res.Text != "done" || res.Level != "sealed" || res.Calls != 2 || res.Refused != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := m.Offered(); !slices.Equal(got, []string{"mcp__app__add", "mcp__app__bang"}) {
		t.Errorf("the model was offered %q", got)
	}
	results := m.Results()
	if len(results) != 4 || results[0].Text != "the sum is 7" || results[0].IsError {
		t.Fatalf("%+v", results)
	}
	for i, want := range []string{"n", "bang", "No such tool"} {
		if r := results[i+1]; !r.IsError || !strings.Contains(r.Text, want) {
			t.Errorf("result %d is %+v", i+1, r)
		}
	}
	if strings.Contains(results[2].Text, "out of order") || strings.Contains(results[2].Text, ".go:") {
		t.Errorf("the model is shown the inside of a panic: %s", results[2].Text)
	}
	mu.Lock()
	defer mu.Unlock()
	if sum.Load() != 7 || len(bindings) != 1 || bindings[0] != (drawbridge.Binding{Run: res.Run, Workspace: "home", Channel: "desk", User: "ada", Agent: "claude"}) {
		t.Errorf("sum %d, bindings %+v", sum.Load(), bindings)
	}
	if left := proc.Alive(res.Run); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	drawbridgetest.Records(t, res.AuditFile, res.AuditHead)
}

// The embedder gives up in the middle of a call: Run returns with everything
// dead, and the call was told.
func TestClaudeEmbeddedAndGivenUp(t *testing.T) {
	Isolated(t)
	m := Model(t, model.Step{Tool: "wait"}, model.Step{Text: "done"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan error, 16) // it may call again while it is being ended
	cfg := drawbridge.RunConfig{
		Config: drawbridge.Config{
			Tools: []drawbridge.Tool{{Name: "wait", Effects: drawbridge.Read, Run: func(call context.Context, _ drawbridge.Binding, _ json.RawMessage) (drawbridge.ToolResult, error) {
				cancel()
				select {
				case <-call.Done():
				case <-time.After(patience):
				}
				told <- call.Err()
				return drawbridge.ToolResult{Text: "too late"}, nil
			}}},
			Allow: []string{"wait"}, Folder: t.TempDir(), StateDir: filepath.Join(t.TempDir(), "state"),
		},
		Agent: "claude", AgentPath: Program(t, "claude"), Environ: Environ(t, m), Prompt: "wait", Timeout: 2 * time.Minute,
	}
	res, err := drawbridge.Run(ctx, cfg)
	if drawbridge.KindOf(err) != drawbridge.Interrupted {
		t.Fatalf("%+v, %v", res, err)
	}
	if left := proc.Alive(res.Run); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if err := <-told; !errors.Is(err, context.Canceled) {
		t.Errorf("the call was told %v", err)
	}
	records := drawbridgetest.Records(t, res.AuditFile, res.AuditHead)
	if begun, ended := kindsOf(records, audit.Begin), kindsOf(records, audit.End); len(begun) == 0 || len(ended) != len(begun) {
		t.Errorf("begun %q, ended %q", begun, ended)
	}
}
