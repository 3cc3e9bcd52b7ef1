package session

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

func linux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("process supervision needs Linux")
	}
}

func scriptedAgent(t *testing.T, prompt string) *Agent {
	t.Helper()
	cli, err := agent.ByName("scripted")
	if err != nil {
		t.Fatal(err)
	}
	return &Agent{CLI: cli, Prompt: []byte(prompt)}
}

func baseConfig(t *testing.T) Config {
	return Config{StateDir: filepath.Join(t.TempDir(), "state"), Folder: t.TempDir()}
}

// newer starts a session or fails the test.
func newer(t *testing.T, cfg Config) *Session {
	t.Helper()
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func records(t *testing.T, s *Session) []audit.Record {
	t.Helper()
	f, err := os.Open(s.run.File("audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []audit.Record
	if err := audit.Read(f, func(r audit.Record) error { all = append(all, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// Whatever start fails on, it leaves no file, no folder, no open port and no
// goroutine (TestMain).
func TestFailedStartLeavesNothing(t *testing.T) {
	linux(t)
	for name, change := range map[string]func(*Config){
		"tool":           func(c *Config) { c.Allow = []string{"nosuch"} },
		"server":         func(c *Config) { c.Server = "a b" },
		"workspace":      func(c *Config) { c.Binding.Workspace = "a\xffb" },
		"run id":         func(c *Config) { c.Binding.Run = "../x" },
		"limit":          func(c *Config) { c.Limits.Grace = -1 },
		"sandbox":        func(c *Config) { c.Allow = []string{"execute_command"} },
		"empty prompt":   func(c *Config) { c.Agent.Prompt = nil },
		"long prompt":    func(c *Config) { c.Agent.Prompt = make([]byte, MaxPrompt+1) },
		"negative time":  func(c *Config) { c.Agent.Wall = -1 },
		"negative wait":  func(c *Config) { c.Approvals.Expiry = -1 },
		"further folder": func(c *Config) { c.Agent.Dirs = []string{"/nonexistent"} },
		"agent path":     func(c *Config) { c.Agent.Path = "/nonexistent" },
		"agent argument": func(c *Config) { c.Agent.Args = []string{"--yolo"} },
		"variable":       func(c *Config) { c.Agent.Env = []string{"TMPDIR=/x"} },
		"variable 2":     func(c *Config) { c.Agent.Env = []string{"no value"} },
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			told := 0
			cfg := baseConfig(t)
			cfg.Builtins, cfg.Allow = Builtins(), []string{"memory_*", "read_file"}
			cfg.Agent = scriptedAgent(t, "say a")
			cfg.Follow = func(event.Event) { told++ }
			change(&cfg)
			s, err := New(t.Context(), cfg)
			if err == nil {
				_ = s.Close()
				t.Fatal("it started")
			}
			if k := fault.KindOf(err); k != fault.Usage && k != fault.Sandbox {
				t.Errorf("kind %d: %v", k, err)
			}
			if _, ok := errors.AsType[*fault.Error](err); !ok {
				t.Errorf("not a fault: %v", err)
			}
			for _, dir := range []string{tmp, filepath.Join(cfg.StateDir, "runs"), filepath.Join(cfg.StateDir, "live")} {
				if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
					t.Errorf("%s holds %v", dir, left)
				}
			}
			if told > 0 {
				t.Errorf("%d events of a run that never was", told)
			}
		})
	}
}

func TestTakenRunID(t *testing.T) {
	cfg := baseConfig(t)
	cfg.Binding.Run = "mine"
	first := newer(t, cfg)
	if _, err := New(t.Context(), cfg); fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "mine") {
		t.Errorf("a second run of the same id: %v", err)
	}
	if _, err := os.Stat(first.run.File("run.json")); err != nil {
		t.Errorf("the first run lost its folder: %v", err)
	}
}

// An embedder hears the end of its bridge too, once, and last.
func TestEmbeddedEnd(t *testing.T) {
	for name, end := range map[string]func(*Session, context.CancelFunc){
		"Close":       func(s *Session, _ context.CancelFunc) { _ = s.Close() },
		"the context": func(s *Session, cancel context.CancelFunc) { cancel() },
		"many at once": func(s *Session, cancel context.CancelFunc) {
			var g sync.WaitGroup
			for range 8 {
				g.Go(func() { _ = s.Close() })
			}
			cancel()
			g.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var told []event.Event
			cfg := baseConfig(t)
			cfg.Follow = func(e event.Event) { told = append(told, e) }
			s, err := New(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Call(ctx, "nosuch", nil); err == nil {
				t.Error("a tool outside the scope ran")
			}
			end(s, cancel)
			<-s.dead
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if n := len(told); n != 2 || told[0].Kind != event.Call || told[1].Kind != event.Ended || !*told[1].OK || told[1].Head != s.Head() {
				t.Errorf("told %+v", told)
			}
		})
	}
}

// Two clients that list at once are one run that is ready.
func TestListedOnce(t *testing.T) {
	var told []event.Event
	cfg := baseConfig(t)
	cfg.Follow = func(e event.Event) { told = append(told, e) }
	s := newer(t, cfg)
	var g sync.WaitGroup
	for range 20 {
		g.Go(s.listed)
	}
	g.Wait()
	_ = s.Close()
	if len(told) != 2 || told[0].Kind != event.ToolsListed {
		t.Errorf("told %+v", told)
	}
	n := 0
	for _, r := range records(t, s) {
		if r.What == "ready" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d lines say ready", n)
	}
}

// A request that is refused while the record is being closed is no missing line.
func TestRefusalAfterTheClose(t *testing.T) {
	s := newer(t, baseConfig(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.refused("token", "")
	s.listed()
	if err := s.recordError(); err != nil {
		t.Errorf("a late refusal makes the record incomplete: %v", err)
	}
}

// Promise 3: a command whose call was abandoned is dead when Close returns.
func TestPromise3_AbandonedCommandIsDead(t *testing.T) {
	linux(t)
	cfg := baseConfig(t)
	cfg.Builtins, cfg.Allow, cfg.SandboxOff = Builtins(), []string{"execute_command"}, true
	cfg.Limits.Grace = time.Millisecond
	s := newer(t, cfg)
	up := filepath.Join(cfg.Folder, "up")
	returned := make(chan call.Result, 1)
	go func() {
		args, _ := json.Marshal(map[string]string{"cmd": "trap '' TERM; echo > up; while :; do sleep 300; done"})
		res, _ := s.Call(context.Background(), "execute_command", args)
		returned <- res
	}()
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(up); err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the command does not start")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left := proc.Alive(s.ID()); len(left) > 0 {
		t.Errorf("alive after Close: %v", left)
	}
	if res := <-returned; !res.IsError {
		t.Errorf("the call answered %+v", res)
	}
	if _, err := os.Stat(s.temp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
	if !slices.ContainsFunc(records(t, s), func(r audit.Record) bool { return r.Outcome == audit.Abandoned }) {
		t.Error("the record does not say that the call was abandoned")
	}
	if res, err := s.awaited(call.Tool{}).Run(t.Context(), call.Invocation{}); err != nil || !res.IsError {
		t.Errorf("a command after the close: %+v, %v", res, err)
	}
}

func TestSandboxOffIsRecorded(t *testing.T) {
	linux(t)
	for _, allow := range []string{"execute_command", "memory_search"} {
		cfg := baseConfig(t)
		cfg.Builtins, cfg.Allow, cfg.SandboxOff = Builtins(), []string{allow}, true
		s := newer(t, cfg)
		_ = s.Close()
		said := slices.ContainsFunc(records(t, s), func(r audit.Record) bool { return r.What == "sandbox" })
		if want := allow == "execute_command"; said != want {
			t.Errorf("%s: recorded %v, want %v", allow, said, want)
		}
	}
}

// An agent that is not started is not said to have ended well.
func TestInterruptedBeforeItStarts(t *testing.T) {
	linux(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg := baseConfig(t)
	cfg.Agent = scriptedAgent(t, "say a")
	s, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := s.RunAgent(ctx)
	if fault.KindOf(err) != fault.Interrupted || rep.OK || rep.AgentCode != -1 {
		t.Errorf("%+v, %v", rep, err)
	}
	for _, r := range records(t, s) {
		if r.What == "agent" && r.Detail != "the agent was not started" {
			t.Errorf("the record says %q", r.Detail)
		}
	}

	cfg = baseConfig(t)
	cfg.Program = &Program{Path: "/bin/sh", Args: []string{"sh", "-c", "echo > ran"}}
	if s, err = New(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if code, _, err := s.RunProgram(ctx); fault.KindOf(err) != fault.Interrupted || code != int(fault.Interrupted) {
		t.Errorf("%d, %v", code, err)
	}
	if _, err := os.Stat(filepath.Join(cfg.Folder, "ran")); err == nil {
		t.Error("the program ran")
	}
}

// The CLI writes to stderr while the run gives up on it.
func TestNotReadyShowsStderr(t *testing.T) {
	linux(t)
	cfg := baseConfig(t)
	cfg.Agent = scriptedAgent(t, "no-handshake\n"+strings.Repeat("warn still looking\nsleep 1ms\n", 2000)+"sleep 60s")
	cfg.Agent.Ready = 500 * time.Millisecond
	s, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.RunAgent(t.Context())
	if fault.KindOf(err) != fault.NotReady || !strings.Contains(fault.HintOf(err), "still looking") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

// Field report 69: what a killed drawbridge left behind goes at the next start.
func TestField69_SweptAtTheNextStart(t *testing.T) {
	linux(t)
	path := filepath.Join(t.TempDir(), "state")
	dir, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(t.TempDir(), tempPrefix+"x")
	run := filepath.Join(path, "runs", "dead")
	for _, d := range []string{tmp, filepath.Join(run, privateName), filepath.Join(path, "live")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	meta, err := json.Marshal(state.Meta{ID: "dead", Status: state.Running, TempDir: tmp})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		filepath.Join(run, "run.json"): meta, filepath.Join(run, privateName, "mcp.json"): []byte("token"),
		filepath.Join(run, "audit.jsonl"): []byte("kept"), filepath.Join(path, "live", "dead"): nil,
		filepath.Join(tmp, tempMark): []byte("dead"),
	} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newer(t, Config{StateDir: path})
	for _, gone := range []string{tmp, filepath.Join(run, privateName)} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	if _, err := os.Stat(filepath.Join(run, "audit.jsonl")); err != nil {
		t.Errorf("the record went too: %v", err)
	}
	if m, _, err := dir.Find("dead"); err != nil || m.Status != state.Died {
		t.Errorf("%+v, %v", m, err)
	}
}

// A run.json that somebody wrote names a folder that is no run's, and what is
// no file stands where files are read.
func TestSweepTrustsNoRunJSON(t *testing.T) {
	linux(t)
	path := filepath.Join(t.TempDir(), "state")
	dir, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(t.TempDir(), tempPrefix+"src")
	other := filepath.Join(t.TempDir(), tempPrefix+"other")
	for _, d := range []string{mine, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(other, tempMark), []byte("another run"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, temp := range map[string]string{"planted": mine, "planted2": other} {
		if err := os.Mkdir(filepath.Join(path, "runs", id), 0o700); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(state.Meta{ID: id, Status: state.Running, TempDir: temp})
		for _, f := range []string{filepath.Join(path, "runs", id, "run.json"), filepath.Join(path, "live", id)} {
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{"fifo", "fifo2"} {
		if err := os.Mkdir(filepath.Join(path, "runs", id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(path, "runs", "fifo", "run.json"), filepath.Join(path, "live", "fifo2")} {
		if err := exec.Command("mkfifo", f).Run(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(path, "live", "fifo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Sweep(dir)
		_, _ = dir.Runs()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("a FIFO in the state directory stops the sweep")
	}
	for _, d := range []string{mine, other} {
		if _, err := os.Stat(d); err != nil {
			t.Errorf("a folder that is not the run's was removed: %v", err)
		}
	}
}

// Promise 3, while another goroutine is between the fork and the exec of a
// process: the copy of the listening socket there must not answer.
func TestPromise3_PortRefusesWhileAForkHoldsIt(t *testing.T) {
	linux(t)
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	held, err := l.(listener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("the port still answers")
	}
	if err := l.Close(); err == nil {
		t.Error("a second Close says nothing")
	}
}

// After a close the port refuses, whoever still knows it.
func TestPortRefusesAfterClose(t *testing.T) {
	s := newer(t, baseConfig(t))
	addr := strings.TrimSuffix(strings.TrimPrefix(s.URL(), "http://"), "/mcp")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = s.Close()
	if again, err := net.Dial("tcp", addr); err == nil {
		_ = again.Close()
		t.Error("the port still answers")
	}
}
