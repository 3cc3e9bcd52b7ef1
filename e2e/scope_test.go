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
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// These tests hold the scope against code that has the run's own token, and
// look for that token wherever it must not be.

const budget = "Q4 budget review: Thu 14:00."

const secretOfB = "Client X contract renews 2027-01-31"

// claudeRun readies a run of the real claude in ws-a, where a note of another
// workspace is there to be found.
func claudeRun(t *testing.T, m *model.Server, flags ...string) (*place, *command) {
	t.Helper()
	p := newPlace(t, m)
	p.do(0, "memory", "add", "--workspace", "ws-a", budget)
	p.do(0, "memory", "add", "--workspace", "ws-b", secretOfB)
	args := append([]string{
		"run", "--agent", "claude", "--agent-path", Program(t, "claude"), "--workspace", "ws-a", "--channel", "ch-ops",
		"--allow", "memory_search", "--server-name", "osfoundry", "--folder", p.folder, "--json",
	}, flags...)
	return p, p.prepare(append(args, "--", "When is the budget review?")...)
}

const offered = "mcp__osfoundry__memory_search"

func kindsOf(records []audit.Record, kind audit.Kind) (tools []string) {
	for _, r := range records {
		if r.Kind == kind {
			tools = append(tools, r.Tool)
		}
	}
	return tools
}

// connect is the run's endpoint, as anybody who has the token can reach it.
func connect(token string, port int) bridge {
	return bridge{fmt.Sprintf("http://127.0.0.1:%d/mcp", port), "Bearer " + token}
}

// Promises 1, 2 and 4 of a sealed run of the real Claude Code: everything its
// model can't even try, because the CLI refuses it, is tried raw.
func TestClaudeRunWhoseTokenIsKnown(t *testing.T) {
	m := Model(t,
		model.Step{Tool: "memory_search", Args: map[string]any{"query": "budget", "workspace_id": "ws-b", "workspace": "ws-b"}},
		model.Step{Tool: "memory_search", Args: map[string]any{"query": "contract", "workspace_id": "ws-b"}},
		model.Step{Raw: "mcp__osfoundry__execute_command", Args: map[string]any{"cmd": "touch ran"}},
		model.Step{Raw: "Bash", Args: map[string]any{"command": "touch ran", "description": "x"}},
		// Time for what is done below while the run is at work.
		model.Step{Text: "Thursday at 14:00.", Delay: 3 * time.Second},
	)
	wire := newWire(t)
	p, c := claudeRun(t, m)
	spy := newSpy(t)
	c.begin()
	run := c.until(event.ToolsListed).Run
	token, port := wire.learn()
	c.wait("the last question to the model", func() bool { return len(m.Results()) == 4 })

	// The refusals the model can't reach, because its CLI makes them: raw, with
	// the run's own token.
	b := connect(token, port)
	for _, tool := range everyName() {
		s := b.call(tool)
		if allowed := tool == "memory_search"; allowed != (s.Code == 0) || !allowed && (s.Code != -32601 || !strings.HasSuffix(s.Text, "is not available to this agent")) {
			t.Errorf("%+v", s)
		}
		if strings.Contains(s.Text, secretOfB) {
			t.Errorf("%q reaches another workspace: %s", tool, s.Text)
		}
	}
	for _, wrong := range []string{"", "Bearer " + strings.Repeat("0", 64), "Bearer " + token + "0", "Basic " + token} {
		if status, body := (bridge{b.url, wrong}).post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 401 {
			t.Errorf("%q: %d %s", wrong, status, body)
		}
	}
	found, read := onDisk(token, p.home, p.folder, p.temp)
	if len(found) > 0 || read < 5 {
		t.Errorf("while it runs the token is in %q of %d files", found, read)
	}

	c.ends(0)
	// Promise 3, at once and not in a while.
	p.nothing(run, port, 0)
	records := p.closed(run, 0)

	if got := m.Offered(); !slices.Equal(got, []string{offered}) {
		t.Errorf("the model was offered %q", got)
	}
	results := m.Results()
	if len(results) != 4 {
		t.Fatalf("%+v", results)
	}
	if !strings.Contains(results[0].Text, budget) || results[0].IsError || strings.Contains(results[0].Text, secretOfB) {
		t.Errorf("%+v", results[0])
	}
	if results[1].Text != "no matching notes" || results[1].IsError {
		t.Errorf("%+v", results[1])
	}
	for _, r := range results[2:] {
		if !r.IsError || !strings.Contains(r.Text, "No such tool") {
			t.Errorf("%+v", r)
		}
	}
	if left, _ := os.ReadDir(p.folder); len(left) > 0 {
		t.Errorf("the folder holds %v", left)
	}

	// What was told while it ran.
	events := c.events()
	if first := events[0]; first.Kind != event.Notice || first.Status != "starting" || first.Level != "sealed" || first.Workspace != "ws-a" || first.Channel != "ch-ops" {
		t.Errorf("%+v", first)
	}
	if started := c.first(event.Started); !slices.Equal(started.Tools, []string{offered}) || started.Status != "connected" {
		t.Errorf("%+v", started)
	}
	end := events[len(events)-1]
	if end.Kind != event.Ended || end.OK == nil || !*end.OK || end.Text != "Thursday at 14:00." || end.ExitCode == nil || *end.ExitCode != 0 || end.Usage == nil || end.Turns != 5 {
		t.Errorf("%+v", end)
	}
	for _, e := range events {
		if e.Run != run || e.Time.IsZero() {
			t.Errorf("without a run or a time: %+v", e)
		}
	}

	// What is on record: the two calls of the model and the raw one, all
	// refusals, and the first wrong token.
	if got := kindsOf(records, audit.Begin); !slices.Equal(got, []string{"memory_search", "memory_search", "memory_search"}) {
		t.Errorf("executed: %q", got)
	}
	if got := kindsOf(records, audit.Refused); len(got) != len(everyName())-1 {
		t.Errorf("refused: %q", got)
	}
	if first := records[0].Run; first == nil || first.Level != "sealed" || first.Workspace != "ws-a" || !slices.Equal(first.Scope, []string{"memory_search"}) {
		t.Errorf("%+v", first)
	}
	if last := records[len(records)-1]; last.Totals["early.token"] != 4 {
		t.Errorf("totals %v", last.Totals)
	}
	if !strings.Contains(string(records[slices.IndexFunc(records, func(r audit.Record) bool { return r.Kind == audit.Begin })].Arguments), `"workspace_id":"ws-b"`) {
		t.Error("the argument that changes nothing is not on record")
	}
	p.do(0, "audit", "verify", run, "--head", end.Head)
	p.do(5, "audit", "verify", run, "--head", strings.Repeat("0", 64))

	// Promise 4.
	found, read = onDisk(token, p.home, p.folder, p.temp)
	argv, env := spy.saw(token)
	if len(found) > 0 || read < 5 || argv > 0 || env > 0 || strings.Contains(c.out.String()+c.err.String(), token) {
		t.Errorf("the token is in %q of %d files, %d command lines, %d environments, or in the output", found, read, argv, env)
	}
	if argv, _ := spy.saw("--strict-mcp-config"); argv == 0 {
		t.Error("the command lines of the run were not seen")
	}
}

// Field 32: with its own shell the agent calls the bridge past the CLI. The
// scope is what holds.
func TestField32_ClaudeWithItsOwnShell(t *testing.T) {
	wire := newWire(t)
	attack := stand(t, "attack")
	// Where an agent finds its token differs; that it does is taken for granted.
	m := Model(t,
		model.Step{Raw: "Bash", Args: map[string]any{"command": "while [ ! -e bridge.json ]; do sleep 0.1; done; " + attack + " bridge.json | tee answers.jsonl", "description": "x"}},
		model.Step{Text: "done"},
	)
	p, c := claudeRun(t, m, "--own-tools", "Bash")
	victim := filepath.Join(p.folder, "victim.txt")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.begin()
	run := c.until(event.Started).Run
	token, port := wire.learn()
	b := connect(token, port)
	config, _ := json.Marshal(map[string]any{"mcpServers": map[string]any{"b": map[string]any{"url": b.url, "headers": map[string]string{"Authorization": b.authorization}}}})
	if err := os.WriteFile(filepath.Join(p.folder, "bridge.new"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(p.folder, "bridge.new"), filepath.Join(p.folder, "bridge.json")); err != nil {
		t.Fatal(err)
	}
	c.ends(0)
	p.nothing(run, port, 0)
	c.says("warning: level open")
	records := p.closed(run, 0)
	checkAttack(t, p, records, "memory_search")
	if got := c.first(event.Started).Tools; !slices.Equal(got, []string{"Bash", offered}) {
		t.Errorf("tools %q", got)
	}
	// What it did with a tool of its own is known from its own words alone.
	if call := c.first(event.ToolCall); call.Tool != "Bash" || !call.Observed {
		t.Errorf("%+v", call)
	}
	if !slices.ContainsFunc(records, func(r audit.Record) bool {
		return r.Kind == audit.Note && r.What == "observed" && strings.Contains(r.Detail, "Bash")
	}) {
		t.Error("the call of its own tool is not on record")
	}
	if end := c.first(event.Ended); end.Level != "open" {
		t.Errorf("%+v", end)
	}
	// After the run the token is worth nothing.
	if status, text := b.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 0 || !strings.Contains(text, "refused") {
		t.Errorf("after the run: %d %s", status, text)
	}
}

// checkAttack judges what attackMain wrote to answers.jsonl: allowed ran, and
// nothing else did.
func checkAttack(t *testing.T, p *place, records []audit.Record, allowed ...string) {
	t.Helper()
	f, err := os.ReadFile(filepath.Join(p.folder, "answers.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(f)) {
		var s said
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		n++
		if slices.Contains(allowed, s.Tool) {
			if s.Status != 200 || s.Code != 0 {
				t.Errorf("%+v", s)
			}
			continue
		}
		if s.Status != 200 || s.Code != -32601 || s.Text != "tool '"+s.Tool+"' is not available to this agent" && !strings.Contains(s.Tool, "\x00") {
			t.Errorf("%+v", s)
		}
	}
	if n != len(everyName()) {
		t.Errorf("%d answers:\n%s", n, f)
	}
	if b, err := os.ReadFile(filepath.Join(p.folder, "victim.txt")); err != nil || string(b) != "precious" {
		t.Errorf("the victim is %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(p.folder, "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refused command ran")
	}
	if got := kindsOf(records, audit.Begin); !slices.Equal(got, allowed) {
		t.Errorf("executed: %q", got)
	}
	if got := kindsOf(records, audit.Refused); len(got) != n-len(allowed) {
		t.Errorf("refused: %q", got)
	}
}

// Field 32, 68: code that is started with the bridge in its environment, and
// reads its config.
func TestField32_ExecReadsItsConfig(t *testing.T) {
	p := newPlace(t, nil)
	attack := stand(t, "attack")
	if err := os.WriteFile(filepath.Join(p.folder, "victim.txt"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := p.start("exec", "--allow", "memory_search,list_files", "--", "sh", "-c",
		`printf %s "$DRAWBRIDGE_URL" > url; cp "$DRAWBRIDGE_MCP_CONFIG" later.json; `+attack+` "$DRAWBRIDGE_MCP_CONFIG" > answers.jsonl`)
	c.ends(0)
	m, _ := p.meta("last")
	var port int
	url, _ := os.ReadFile(filepath.Join(p.folder, "url"))
	if _, err := fmt.Sscanf(string(url), "http://127.0.0.1:%d/mcp", &port); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	p.nothing(m.ID, port, 0)
	records := p.closed(m.ID, 0)
	var executed []string
	for _, n := range everyName() {
		if n == "memory_search" || n == "list_files" {
			executed = append(executed, n)
		}
	}
	checkAttack(t, p, records, executed...)
}

// Field 33: a CLI that takes no notice of any flag.
func TestField33_FlagsDoNotMatter(t *testing.T) {
	p := newPlace(t, nil)
	c := p.start("run", "--agent", "claude", "--agent-path", stand(t, "claude"), "--allow", "memory_search,memory_add", "--json",
		"--", "greedy memory_search memory_add memory_delete delete_file execute_command")
	c.ends(0)
	end := c.first(event.Ended)
	if want := "memory_search 0, memory_add 0, memory_delete -32601, delete_file -32601, execute_command -32601"; end.Text != want {
		t.Errorf("%q, want %q", end.Text, want)
	}
	records := p.closed(end.Run, 0)
	if got := kindsOf(records, audit.Refused); !slices.Equal(got, []string{"memory_delete", "delete_file", "execute_command"}) {
		t.Errorf("refused: %q", got)
	}
}
