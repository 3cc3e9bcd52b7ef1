//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// These tests have the real Claude Code refused, asked about and made to plan by
// a policy file, with a person in another process.

const askToAdd = `
    tools: { allow: [memory_add, memory_search] }
    rules:
      - { tools: [memory_add], then: ask, reason: notes are for ever }`

// governedRun readies a run of the real claude as the agent "worker" of a policy
// file, whose other members are given.
func governedRun(t *testing.T, m *model.Server, worker string, flags ...string) (*place, *command) {
	t.Helper()
	p := newPlace(t, m)
	file := filepath.Join(p.home, "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nagents:\n  worker:\n    cli: claude"+worker+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"run", "--config", file, "--agent", "worker", "--agent-path", Program(t, "claude"), "--folder", p.folder, "--json",
	}, flags...)
	return p, p.prepare(append(args, "--", "go on")...)
}

// waitsWith are the questions that runs of this place wait with, as a person
// finds them.
func (p *place) waitsWith(flags ...string) (all []approve.Question) {
	p.t.Helper()
	for line := range strings.Lines(p.do(0, append([]string{"approvals", "--json"}, flags...)...)) {
		var q approve.Question
		if err := json.Unmarshal([]byte(line), &q); err != nil {
			p.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, q)
	}
	return all
}

// question waits until the run has asked n questions, and returns the last one.
func (c *command) question(n int) event.Event {
	c.t.Helper()
	var last event.Event
	c.wait(fmt.Sprintf("question %d", n), func() bool {
		seen := 0
		for _, e := range c.events() {
			if e.Kind == event.Asked {
				seen, last = seen+1, e
			}
		}
		return seen >= n
	})
	return last
}

// linesOf are the lines of each call of tool, in the order they were begun.
func linesOf(records []audit.Record, tool string) (calls [][]audit.Record) {
	at := map[int64]int{}
	for _, r := range records {
		switch r.Kind {
		case audit.Begin, audit.Answer, audit.End:
		default:
			continue
		}
		if r.Tool != tool {
			continue
		}
		id := r.Call
		if r.Kind == audit.Begin {
			id = r.Seq
			at[id] = len(calls)
			calls = append(calls, nil)
		}
		calls[at[id]] = append(calls[at[id]], r)
	}
	return calls
}

func (p *place) notes() string {
	p.t.Helper()
	return p.do(0, "memory", "list", "--workspace", "default")
}

func TestClaudeIsDeniedByARule(t *testing.T) {
	t.Parallel()
	m := Model(t,
		model.Step{Tool: "write_file", Args: map[string]any{"path": "secrets/key.txt", "content": "x"}},
		model.Step{Tool: "write_file", Args: map[string]any{"path": "notes.txt", "content": "seen"}},
		model.Step{Text: "done"},
	)
	p, c := governedRun(t, m, `
    tools: { allow: [read_file, write_file] }
    rules:
      - tools: [write_file]
        when: path_in(args.path, "secrets")
        then: deny
        reason: files in secrets are for people`)
	c.begin().ends(0)
	end := c.first(event.Ended)
	records := p.closed(end.Run, 0)

	results := m.Results()
	if len(results) != 2 || !results[0].IsError || !strings.Contains(results[0].Text, "files in secrets are for people") || results[1].IsError {
		t.Errorf("the model was told %+v", results)
	}
	if end.Text != "done" || end.OK == nil || !*end.OK {
		t.Errorf("%+v", end)
	}
	if _, err := os.Lstat(filepath.Join(p.folder, "secrets")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made of the denied call: %v", err)
	}
	if b, _ := os.ReadFile(filepath.Join(p.folder, "notes.txt")); string(b) != "seen" {
		t.Errorf("the allowed call wrote %q", b)
	}
	calls := linesOf(records, "write_file")
	if refused := kindsOf(records, audit.Refused); !slices.Equal(refused, []string{"write_file"}) || len(calls) != 1 || !strings.Contains(string(calls[0][0].Arguments), "notes.txt") {
		t.Fatalf("refused %q, called %+v", refused, calls)
	}
	i := slices.IndexFunc(records, func(r audit.Record) bool { return r.Kind == audit.Refused })
	if r := records[i]; r.Decision != "deny" || r.Reason != "files in secrets are for people" || r.Rule == "" {
		t.Errorf("%+v", r)
	}
}

// thinks is how long the person of TestClaudeWaitsForAPerson takes: longer than
// the 60 s after which clients give a silent call up.
const thinks = 90 * time.Second

func TestClaudeWaitsForAPerson(t *testing.T) {
	t.Parallel()
	m := Model(t, model.Step{Tool: "memory_add", Args: json.RawMessage(`{"text":  "the \u0062ridge is down"}`)}, model.Step{Text: "done"})
	p, c := governedRun(t, m, askToAdd)
	c.begin()
	asked := c.question(1)
	limit := time.After(thinks)
	select {
	case <-limit:
	case <-c.done:
		t.Fatal("it did not wait")
	}
	open := p.waitsWith()
	if len(open) != 1 || open[0].ID != asked.Approval || open[0].Run != asked.Run || open[0].Reason != "notes are for ever" {
		t.Fatalf("waiting: %+v", open)
	}
	if got := p.notes(); strings.Contains(got, "bridge") {
		t.Errorf("it ran before the answer: %s", got)
	}
	if n := len(m.Requests()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
	p.do(0, "approve", strings.ToLower(asked.Approval[:5]), "--reason", "go")
	c.ends(0)
	records := p.closed(asked.Run, 0)

	results := m.Results()
	if len(results) != 1 || results[0].IsError || c.first(event.Ended).Text != "done" {
		t.Errorf("the model was told %+v", results)
	}
	if got := p.notes(); strings.Count(got, "the bridge is down") != 1 {
		t.Errorf("notes: %s", got)
	}
	calls := linesOf(records, "memory_add")
	if len(calls) != 1 || len(calls[0]) != 3 || len(kindsOf(records, audit.Refused)) != 0 {
		t.Fatalf("on record: %+v", calls)
	}
	begin, answer, ended := calls[0][0], calls[0][1], calls[0][2]
	if begin.Kind != audit.Begin || begin.Decision != "ask" || begin.ArgumentsDigest != open[0].ArgumentsDigest || begin.ArgumentsSize != open[0].ArgumentsSize || begin.Seq != open[0].Call {
		t.Errorf("asked about %+v, begun %+v", open[0], begin)
	}
	if answer.Kind != audit.Answer || answer.Decision != "allow" || answer.Rule != asked.Approval || answer.Reason != "go" || !strings.Contains(answer.Detail, "uid ") || answer.Time.Sub(begin.Time) < thinks {
		t.Errorf("%+v", answer)
	}
	if ended.Kind != audit.End || ended.Outcome != audit.OK {
		t.Errorf("%+v", ended)
	}
	// A second answer comes too late, after the run as well.
	if c := p.start("deny", asked.Approval); true {
		c.ends(1)
		c.says("is settled")
	}
}

func TestClaudeIsAnsweredByNobody(t *testing.T) {
	t.Parallel()
	m := Model(t, model.Step{Tool: "memory_add", Args: map[string]any{"text": "unanswered"}}, model.Step{Text: "done without"})
	p, c := governedRun(t, m, askToAdd)
	file := filepath.Join(p.home, "policy.yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, "approvals: { expiry: 2s }\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.begin().ends(0)
	end := c.first(event.Ended)
	records := p.closed(end.Run, 0)
	results := m.Results()
	if len(results) != 1 || !results[0].IsError || !strings.Contains(results[0].Text, "nobody answered in time") || end.Text != "done without" {
		t.Errorf("the model was told %+v, and ended with %q", results, end.Text)
	}
	if got := c.first(event.Answered); got.Outcome != "expired" {
		t.Errorf("%+v", got)
	}
	calls := linesOf(records, "memory_add")
	if len(calls) != 1 || len(calls[0]) != 3 || calls[0][1].Decision != "deny" || calls[0][2].Outcome != audit.Denied {
		t.Errorf("on record: %+v", calls)
	}
	if got := p.notes(); strings.Contains(got, "unanswered") {
		t.Errorf("notes: %s", got)
	}
}

func TestClaudePlansThenActs(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct{ worker, flag string }{
		"by a flag":     {"\n    tools: { allow: [read_file, write_file] }", "--plan"},
		"by the policy": {"\n    mode: plan\n    tools: { allow: [read_file, write_file] }", "--plan=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			write := model.Step{Tool: "write_file", Args: map[string]any{"path": "out.txt", "content": "acted"}}
			m := Model(t,
				write,
				model.Step{Tool: "submit_plan", Args: map[string]any{"plan": "# First\n\nDelete everything."}},
				write,
				model.Step{Tool: "submit_plan", Args: map[string]any{"plan": "# Second\n\nWrite out.txt."}},
				write,
				model.Step{Text: "done"},
			)
			p, c := governedRun(t, m, how.worker, how.flag)
			c.begin()
			first := c.question(1)
			if open := p.waitsWith(); len(open) != 1 || !strings.Contains(open[0].Plan, "Delete everything.") || open[0].Tool != "submit_plan" {
				t.Errorf("waiting: %+v", open)
			}
			p.do(0, "deny", first.Approval, "--reason", "too much; write one file")
			second := c.question(2)
			if second.Approval == first.Approval || !strings.Contains(second.Text, "Write out.txt.") {
				t.Errorf("%+v", second)
			}
			if _, err := os.Lstat(filepath.Join(p.folder, "out.txt")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it wrote while it planned: %v", err)
			}
			p.do(0, "approve", second.Approval)
			c.ends(0)
			records := p.closed(first.Run, 0)

			results := m.Results()
			if len(results) != 5 {
				t.Fatalf("the model was told %+v", results)
			}
			for i, want := range []string{"submit_plan", "too much; write one file", "submit_plan", "The plan is approved", ""} {
				if r := results[i]; !strings.Contains(r.Text, want) || r.IsError != (i < 3) {
					t.Errorf("result %d is %+v", i, r)
				}
			}
			if b, _ := os.ReadFile(filepath.Join(p.folder, "out.txt")); string(b) != "acted" {
				t.Errorf("the write after the plan wrote %q", b)
			}
			requests := m.Requests()
			for i, r := range requests {
				if !slices.Equal(r.Tools, requests[0].Tools) {
					t.Errorf("request %d offers %q, the first one %q", i, r.Tools, requests[0].Tools)
				}
			}
			want := []string{"mcp__drawbridge__read_file", "mcp__drawbridge__submit_plan", "mcp__drawbridge__write_file"}
			if got := m.Offered(); !slices.Equal(got, want) {
				t.Errorf("the model was offered %q", got)
			}
			if got := kindsOf(records, audit.Refused); !slices.Equal(got, []string{"write_file", "write_file"}) {
				t.Errorf("refused: %q", got)
			}
			if got := kindsOf(records, audit.Begin); !slices.Equal(got, []string{"submit_plan", "submit_plan", "write_file"}) {
				t.Errorf("begun: %q", got)
			}
		})
	}
}

// Code of the run that has its token can ask for more, and move nothing that
// waits: each call is a question of its own.
func TestClaudeWaitsWhileItsTokenIsUsed(t *testing.T) {
	t.Parallel()
	wire := newWire(t)
	m := Model(t, model.Step{Tool: "memory_add", Args: map[string]any{"text": "the model's"}}, model.Step{Text: "done"})
	p, c := governedRun(t, m, askToAdd)
	c.begin()
	first := c.question(1)
	ports := listening(c.Process.Pid)
	if len(ports) != 1 {
		t.Fatalf("drawbridge listens on %q", ports)
	}
	token, port := wire.learnOf(portOf(t, ports[0]))
	b := connect(token, port)

	if s := b.call("memory_search"); s.Failed || s.Code != 0 {
		t.Errorf("%+v", s)
	}
	answered := make(chan said, 1)
	go func() { answered <- b.call("memory_add") }()
	second := c.question(2)
	// The ids of questions are in the agent's reach too, and no use to it.
	for _, tool := range []string{"approve", "approvals/answer", first.Approval} {
		if s := b.call(tool); s.Code != -32601 {
			t.Errorf("%+v", s)
		}
	}
	open := p.waitsWith("--run", first.Run)
	if len(open) != 2 || open[0].ID != first.Approval || open[1].ID != second.Approval || open[0].ArgumentsDigest == open[1].ArgumentsDigest {
		t.Fatalf("waiting: %+v", open)
	}
	p.do(0, "deny", second.Approval, "--reason", "not asked for")
	if s := <-answered; !s.Failed || !strings.Contains(s.Text, "not asked for") {
		t.Errorf("%+v", s)
	}
	if open := p.waitsWith(); len(open) != 1 || open[0].ID != first.Approval {
		t.Fatalf("waiting: %+v", open)
	}
	p.do(0, "approve", first.Approval)
	c.ends(0)
	records := p.closed(first.Run, 0)
	if r := m.Results(); len(r) != 1 || r[0].IsError {
		t.Errorf("the model was told %+v", r)
	}
	if got := p.notes(); strings.Count(got, "the model's") != 1 || strings.Contains(got, "planted") {
		t.Errorf("notes: %s", got)
	}
	if calls := linesOf(records, "memory_add"); len(calls) != 2 || calls[0][2].Outcome != audit.OK || calls[1][2].Outcome != audit.Denied {
		t.Errorf("on record: %+v", calls)
	}
}

// Whoever is killed with -9 while a person is asked: nothing runs, nothing is
// left that waits.
func TestClaudeKilledWhileAPersonIsAsked(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"agent", "drawbridge"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			m := Model(t, model.Step{Tool: "memory_add", Args: map[string]any{"text": "orphaned"}}, model.Step{Text: "done"})
			p, c := governedRun(t, m, askToAdd)
			c.begin()
			asked := c.question(1)
			ports := listening(c.Process.Pid)
			if len(ports) != 1 {
				t.Fatalf("drawbridge listens on %q", ports)
			}
			port := portOf(t, ports[0])
			_, agents := victims(t, c.Process.Pid)
			kill := []int{c.Process.Pid}
			if victim == "agent" {
				kill = slices.DeleteFunc(agents, func(pid int) bool { return name(pid) != "claude" })
			}
			if len(kill) != 1 {
				t.Fatalf("to kill there are %v", kill)
			}
			_ = syscall.Kill(kill[0], syscall.SIGKILL)

			var records []audit.Record
			_, folder := p.meta(asked.Run)
			if victim == "agent" {
				c.ends(1)
				c.says("SIGKILL")
				p.nothing(asked.Run, port, 0)
				records = p.closed(asked.Run, 1)
				if calls := linesOf(records, "memory_add"); len(calls) != 1 || calls[0][len(calls[0])-1].Outcome != audit.Cancelled {
					t.Errorf("on record: %+v", calls)
				}
			} else {
				c.ends(-1)
				p.nothing(asked.Run, port, 15*time.Second)
				p.open(asked.Run, 1)
			}
			if open := p.waitsWith(); len(open) != 0 {
				t.Errorf("waiting: %+v", open)
			}
			late := p.start("approve", asked.Approval)
			late.ends(1)
			late.says("is settled")
			p.do(0, "run", "--agent", "scripted", "--", "say next")
			p.nothing(asked.Run, port, 0)
			p.swept(folder)
			if _, err := os.Lstat(filepath.Join(folder, control.SocketName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if all := p.waitsWith("--all"); len(all) != 1 || all[0].ID != asked.Approval || all[0].State != approve.Void {
				t.Errorf("of the question there is %+v", all)
			}
			if got := p.notes(); strings.Contains(got, "orphaned") {
				t.Errorf("notes: %s", got)
			}
		})
	}
}
