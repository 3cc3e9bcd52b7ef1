//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// These tests hold what internal/agent says of the real Claude Code: that its
// command line does what it is meant to, and nothing less than that.

const server = "drawbridge"

const ours = "mcp__drawbridge__memory_search"

// stage is a person's machine: a home, a folder to work in, a model and a
// server.
type stage struct {
	model  *model.Server
	server *standin
	plan   agent.Plan
}

func newStage(t *testing.T, steps ...model.Step) *stage {
	t.Helper()
	Isolated(t)
	s := &stage{model: Model(t, steps...), server: newStandin(t, "memory_search")}
	s.plan = agent.Plan{
		Server: server, URL: s.server.url, Token: s.server.token, Prompt: []byte("find the thing"),
		Folder: t.TempDir(), PrivateDir: t.TempDir(), Environ: Environ(t, s.model),
	}
	// Its socket is in there, and a socket's path has at most 108 bytes.
	var err error
	if s.plan.TempDir, err = os.MkdirTemp("", "db"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(s.plan.TempDir) })
	return s
}

func (s *stage) home() string {
	for _, kv := range s.plan.Environ {
		if h, ok := strings.CutPrefix(kv, "HOME="); ok {
			return h
		}
	}
	return ""
}

func (s *stage) file(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

type outcome struct {
	events []event.Event
	stdout []byte
	stderr string
	code   int // 128+n where signal n ended it
	took   time.Duration
}

func (o outcome) first(k event.Kind) event.Event {
	i := slices.IndexFunc(o.events, func(e event.Event) bool { return e.Kind == k })
	if i < 0 {
		return event.Event{}
	}
	return o.events[i]
}

// run starts the CLI as agent.Command has it, without supervision, and returns
// when it has ended. seen is called with each event as it comes.
func (s *stage) run(t *testing.T, seen func(*os.Process, event.Event)) outcome {
	t.Helper()
	cli, err := agent.ByName("claude")
	if err != nil {
		t.Fatal(err)
	}
	in, err := cli.Find(Program(t, "claude"), s.plan.Environ)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cli.Command(in, s.plan)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, spec.Path)
	cmd.Args, cmd.Env, cmd.Dir, cmd.Stdin = spec.Args, spec.Env, spec.Dir, spec.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	for _, content := range spec.Files {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		go func() { w.Write(content); w.Close() }()
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	var o outcome
	parser := agent.ParserFor(cli, server)
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadBytes('\n')
		o.stdout = append(o.stdout, line...)
		for _, e := range parser.Line(line, false) {
			o.events = append(o.events, e)
			if seen != nil {
				seen(cmd.Process, e)
			}
		}
		if err != nil {
			break
		}
	}
	cmd.Wait()
	o.took, o.stderr, o.code = time.Since(began), stderr.String(), cmd.ProcessState.ExitCode()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.code = 128 + int(ws.Signal())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("exit %d after %s\nstderr: %s\nstdout:\n%s", o.code, o.took, o.stderr, o.stdout)
		}
	})
	return o
}

func TestClaudeSealed(t *testing.T) {
	s := newStage(t,
		model.Step{Tool: "memory_search", Args: map[string]any{"query": "foo"}},
		model.Step{Raw: "Bash", Args: map[string]any{"command": "touch pwned", "description": "x"}},
		model.Step{Raw: "Read", Args: map[string]any{"file_path": "/etc/hostname"}},
		model.Step{Tool: "execute_command", Args: map[string]any{"cmd": "id"}},
		model.Step{Text: "all done"},
	)
	s.plan.CallTimeout = 2 * time.Minute
	var exposed []string
	o := s.run(t, func(p *os.Process, e event.Event) {
		if e.Kind != event.Started {
			return
		}
		for _, name := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.Pid, name))
			if err != nil || len(b) == 0 || bytes.Contains(b, []byte(s.plan.Token)) {
				exposed = append(exposed, name)
			}
		}
	})
	if o.code != 0 || o.stderr != "" {
		t.Errorf("exit %d, stderr %q", o.code, o.stderr)
	}
	started := o.first(event.Started)
	if !slices.Equal(started.Tools, []string{ours}) || started.Status != "connected" || started.Version == "" || started.Text != "" {
		t.Errorf("%+v", started)
	}
	if got := s.model.Offered(); !slices.Equal(got, []string{ours}) {
		t.Errorf("the model was offered %q", got)
	}
	results := s.model.Results()
	if len(results) != 4 || results[0].Text != "found it" || results[0].IsError {
		t.Fatalf("%+v", results)
	}
	for _, r := range results[1:] {
		if !r.IsError || !strings.Contains(r.Text, "No such tool") {
			t.Errorf("%+v", r)
		}
	}
	if _, calls := s.server.seen(); len(calls) != 1 || !strings.Contains(calls[0], `"arguments":{"query":"foo"}`) {
		t.Errorf("calls %q", calls)
	}
	end := o.first(event.Finished)
	if end.OK == nil || !*end.OK || end.Text != "all done" || end.Turns != 5 || end.Usage == nil || *end.Usage != (event.Usage{Input: 25, Output: 25}) {
		t.Errorf("%+v", end)
	}
	if len(exposed) > 0 {
		t.Errorf("the token is in %q", exposed)
	}
	if entries, _ := os.ReadDir(s.plan.Folder); len(entries) > 0 {
		t.Errorf("the folder holds %v", entries)
	}
	for _, root := range []string{s.home(), s.plan.TempDir, s.plan.PrivateDir} {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(s.plan.Token)) {
				t.Errorf("the token is in %s", path)
			}
			return nil
		})
	}
	methods, _ := s.server.seen()
	t.Logf("ended after %s; the server saw %q", o.took.Round(time.Millisecond), methods)
}

// TestClaudeLeavesTheRestOut: what lies in the folder and the home of a person
// must not reach a run: servers, hooks, commands, rules, files named in the
// prompt.
func TestClaudeLeavesTheRestOut(t *testing.T) {
	s := newStage(t, model.Step{Text: "done"})
	other := newStandin(t, "other_tool")
	mark := filepath.Join(s.plan.TempDir, "ran")
	servers := `{"mcpServers":{"other":{"type":"http","url":"` + other.url + `","headers":{"Authorization":"Bearer ` + other.token + `"}}}}`
	hooks := `{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":"touch ` + mark + `"}]}],"UserPromptSubmit":[{"hooks":[{"type":"command","command":"touch ` + mark + `"}]}]},"enableAllProjectMcpServers":true}`
	for _, root := range []string{s.home(), s.plan.Folder} {
		s.file(t, root+"/.mcp.json", servers)
		s.file(t, root+"/.claude.json", servers)
		s.file(t, root+"/.claude/settings.json", hooks)
		s.file(t, root+"/.claude/settings.local.json", hooks)
		s.file(t, root+"/CLAUDE.md", "RULE-CONTENT")
		s.file(t, root+"/.claude/CLAUDE.md", "RULE-CONTENT")
		s.file(t, root+"/.claude/commands/x.md", "---\nallowed-tools: Bash(touch:*)\n---\nhello !`touch "+mark+"`\n")
	}
	s.file(t, s.plan.Folder+"/secret.txt", "SECRET-CONTENT")
	for _, prompt := range []string{"look at @secret.txt and @/etc/hostname and @" + s.plan.Folder + "/secret.txt", "/x", "!touch " + mark, "# remember this"} {
		s.plan.Prompt = []byte(prompt)
		before := len(s.model.All())
		o := s.run(t, nil)
		if o.code != 0 {
			t.Errorf("%q: exit %d", prompt, o.code)
		}
		if started := o.first(event.Started); !slices.Equal(started.Tools, []string{ours}) || started.Text != "" {
			t.Errorf("%q: %+v", prompt, started)
		}
		requests := s.model.All()[before:]
		if len(requests) != 1 || !strings.Contains(requests[0].User, prompt) {
			t.Errorf("%q: %d requests, %+v", prompt, len(requests), requests)
		}
		for _, r := range requests {
			for _, leak := range []string{"SECRET-CONTENT", "RULE-CONTENT", "Called the Read tool"} {
				if bytes.Contains(r.Body, []byte(leak)) {
					t.Errorf("%q: the model got %s", prompt, leak)
				}
			}
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a hook or a command ran")
	}
	if methods, _ := other.seen(); len(methods) > 0 {
		t.Errorf("another server was asked: %q", methods)
	}
}

func TestField64_ClaudeGetsALongPromptWhole(t *testing.T) {
	s := newStage(t, model.Step{Text: "done"})
	line := "0123456789 abcdefghijklmnopqrstuvwxyz '\"$(x)%PATH%\n"
	prompt := func(size int) []byte { return []byte("## Plan x\n" + strings.Repeat(line, size/len(line)) + "end") }
	s.plan.Prompt = prompt(1 << 20)
	o := s.run(t, nil)
	requests := s.model.Requests()
	if o.code != 0 || len(requests) == 0 {
		t.Fatalf("exit %d, %d requests", o.code, len(requests))
	}
	if sha256.Sum256([]byte(requests[0].User)) != sha256.Sum256(s.plan.Prompt) {
		t.Errorf("%d bytes arrived of %d", len(requests[0].User), len(s.plan.Prompt))
	}
	// More than a model takes is said by the CLI, and is a failure.
	s.plan.Prompt = prompt(3 << 20)
	o = s.run(t, nil)
	if end := o.first(event.Finished); o.code != 1 || end.OK == nil || *end.OK || !strings.Contains(end.Text, "too long") {
		t.Errorf("exit %d, %+v", o.code, end)
	}
}

func TestClaudeOwnToolsAreForeign(t *testing.T) {
	cli, _ := agent.ByName("claude")
	s := newStage(t, model.Step{Raw: "Read", Args: map[string]any{"file_path": "{}"}}, model.Step{Text: "done"})
	s.plan.OwnTools.List = []string{"Read", "Grep"}
	o := s.run(t, nil)
	if got := agent.Foreign(cli, server, o.first(event.Started).Tools); !slices.Contains(got, "Read") || slices.Contains(got, "Bash") || slices.Contains(got, ours) {
		t.Errorf("foreign %q", got)
	}
	if call := o.first(event.ToolCall); call.Tool != "Read" || !call.Observed {
		t.Errorf("%+v", call)
	}

	s.plan.OwnTools = agent.OwnTools{All: true}
	o = s.run(t, nil)
	if got := agent.Foreign(cli, server, o.first(event.Started).Tools); !slices.Contains(got, "Bash") {
		t.Errorf("foreign %q", got)
	}
	// A name that claude does not know leaves no tool, and no word about it.
	s.plan.OwnTools = agent.OwnTools{List: []string{"NoSuchTool"}}
	o = s.run(t, nil)
	if got := agent.Foreign(cli, server, o.first(event.Started).Tools); got != nil {
		t.Errorf("foreign %q", got)
	}
}

func TestField72_ClaudeWithoutItsServer(t *testing.T) {
	s := newStage(t, model.Step{Text: "done"})
	for name, change := range map[string]func(){
		"wrong token": func() { s.plan.Token = strings.Repeat("0", 64) },
		"no server":   func() { s.plan.URL = "http://127.0.0.1:9/mcp" },
	} {
		change()
		o := s.run(t, nil)
		started := o.first(event.Started)
		// It carries on and exits 0, so its exit code must not be believed.
		if o.code != 0 || started.Status == "connected" || started.Status == "" || len(started.Tools) > 0 {
			t.Errorf("%s: exit %d, %+v", name, o.code, started)
		}
		t.Logf("%s: status %q", name, started.Status)
	}
}

func TestClaudeModelFails(t *testing.T) {
	s := newStage(t, model.Step{Status: 401})
	o := s.run(t, nil)
	if end := o.first(event.Finished); o.code != 1 || end.OK == nil || *end.OK || end.Status != "success" {
		t.Errorf("exit %d, %+v", o.code, end)
	}
	s = newStage(t, model.Step{Status: 529, Times: 1}, model.Step{Text: "x"})
	o = s.run(t, nil)
	if end := o.first(event.Finished); o.code != 0 || end.OK == nil || !*end.OK {
		t.Errorf("exit %d, %+v", o.code, end)
	}
}

func TestClaudeEndsOnTERM(t *testing.T) {
	s := newStage(t, model.Step{Tool: "memory_search"}, model.Step{Text: "done"})
	s.server.delay = 30 * time.Second
	var sent time.Time
	o := s.run(t, func(p *os.Process, e event.Event) {
		if e.Kind == event.ToolCall {
			sent = time.Now()
			p.Signal(syscall.SIGTERM)
		}
	})
	if o.code != 143 {
		t.Errorf("exit %d", o.code)
	}
	t.Logf("ended %s after TERM", time.Since(sent).Round(time.Millisecond))
}

// TestClaudeTakesEveryArgument: each option that may be passed on is one the
// pinned version has, in the form it is passed on in.
func TestClaudeTakesEveryArgument(t *testing.T) {
	s := newStage(t, model.Step{Tool: "memory_search"}, model.Step{Text: "done"})
	sys := filepath.Join(s.plan.TempDir, "system.txt")
	s.file(t, sys, "SYSTEM-FROM-FILE")
	for _, args := range [][]string{
		{"--append-system-prompt", "--tools default APPENDED", "--effort", "low", "--max-turns", "9", "--fallback-model", "claude-haiku-4-5", "-n", "x"},
		{"--system-prompt=REPLACED", "--exclude-dynamic-system-prompt-sections", "--disallowedTools=Bash", "--autocompact=auto"},
		{"--system-prompt-file", sys, "--session-id", "3572b8ee-6712-4eac-b69c-4f96aa3111fb", "--include-partial-messages", "--forward-subagent-text"},
		{"--append-system-prompt-file", sys, "--betas", "x-2025-01-01", "--system-prompt-snapshot", "off"},
	} {
		s.plan.Args, s.plan.Model, s.plan.Dirs = args, "claude-sonnet-5", []string{s.plan.TempDir}
		before := len(s.model.All())
		o := s.run(t, nil)
		started := o.first(event.Started)
		if o.code != 0 || !slices.Equal(started.Tools, []string{ours}) || started.Model != "claude-sonnet-5" {
			t.Errorf("%q: exit %d, %+v, %s", args, o.code, started, o.stderr)
		}
		if end := o.first(event.Finished); end.OK == nil || !*end.OK || end.Text != "done" {
			t.Errorf("%q: %+v", args, end)
		}
		all := s.model.All()[before:]
		if len(all) == 0 {
			t.Fatalf("%q: the model was not asked", args)
		}
		for _, mark := range []string{"APPENDED", "REPLACED", "SYSTEM-FROM-FILE"} {
			asked := strings.Contains(strings.Join(args, " "), mark) || mark == "SYSTEM-FROM-FILE" && slices.Contains(args, sys)
			if strings.Contains(all[0].System, mark) != asked {
				t.Errorf("%q: %s in the system prompt: %v", args, mark, !asked)
			}
		}
	}
}

func TestInspectorStarts(t *testing.T) {
	Isolated(t)
	s := newStandin(t, "memory_search")
	m := Model(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program(t, "node"), Program(t, "mcp-inspector"), "--cli", "--server-url", s.url, "--transport", "http",
		"--header", "Authorization: Bearer "+s.token, "--protocol-era", "legacy", "--method", "tools/list")
	cmd.Env, cmd.Dir, cmd.WaitDelay = Environ(t, m), t.TempDir(), 5*time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var got struct{ Tools []struct{ Name string } }
	if err != nil || json.Unmarshal(out, &got) != nil || len(got.Tools) != 1 || got.Tools[0].Name != "memory_search" {
		t.Errorf("%v\n%s\n%s", err, out, stderr.String())
	}
}
