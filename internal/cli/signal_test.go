//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// command is the drawbridge command as a process of its own.
type command struct {
	*exec.Cmd
	t     *testing.T
	state string
	err   *watched
}

func start(t *testing.T, shell string, args ...string) *command {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("runs need Linux")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "drawbridge"
	if shell != "" { // which ends in a start of "$@"
		link := filepath.Join(home, "drawbridge")
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
		cmd = exec.Command("/bin/sh", append([]string{"-c", shell, "sh", link}, args...)...)
	}
	// What the test itself was started to ignore (under nohup, say) would stay
	// ignored in the command, as it should.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	t.Cleanup(func() { signal.Stop(caught) })
	c := &command{Cmd: cmd, t: t, state: filepath.Join(home, ".local", "state", "drawbridge"), err: &watched{changed: make(chan struct{}, 1)}}
	c.Dir = home
	c.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=")
	c.Stderr = c.err
	return c
}

// watched is output that a test can wait for.
type watched struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// says waits until the command has written text to its stderr.
func (c *command) says(text string) {
	c.t.Helper()
	limit := time.After(30 * time.Second)
	for !strings.Contains(c.err.String(), text) {
		select {
		case <-c.err.changed:
		case <-limit:
			c.t.Fatalf("it does not say %q, but:\n%s", text, c.err)
		}
	}
}

// ends waits for the command and checks its exit code: -1 for a signal.
func (c *command) ends(code int) {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			c.t.Errorf("%v\n%s", err, c.err)
		} else if ok && exit.ExitCode() != code || !ok && code != 0 {
			c.t.Errorf("it ended with %v, want code %d\n%s", err, code, c.err)
		}
	case <-time.After(60 * time.Second):
		_ = c.Process.Kill()
		<-done
		c.t.Fatalf("it does not end:\n%s", c.err)
	}
}

// left checks what the one run left behind: a closed record, its exit code, and
// no process.
func (c *command) left(code int) {
	c.t.Helper()
	dir, err := state.Open(c.state)
	if err != nil {
		c.t.Fatal(err)
	}
	meta, folder, err := dir.Find("last")
	if err != nil {
		c.t.Fatal(err)
	}
	if meta.Status != state.Ended || meta.ExitCode == nil || *meta.ExitCode != code {
		c.t.Errorf("run.json says %+v, want exit code %d", meta, code)
	}
	f, err := os.Open(filepath.Join(folder, "audit.jsonl"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if rep, err := audit.Verify(f, meta.Head); err != nil || rep.Problem != "" || !rep.Closed {
		c.t.Errorf("record: %+v, %v", rep, err)
	}
	if alive := proc.Alive(meta.ID); len(alive) > 0 {
		c.t.Errorf("processes left: %v", alive)
	}
	if _, err := os.Stat(filepath.Join(folder, "private")); !errors.Is(err, os.ErrNotExist) {
		c.t.Errorf("the private folder is left: %v", err)
	}
}

// over waits until run.json says that the one run has ended.
func (c *command) over() {
	c.t.Helper()
	dir, err := state.Open(c.state)
	if err != nil {
		c.t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		meta, _, err := dir.Find("last")
		if err == nil && meta.Status == state.Ended {
			return
		}
		if time.Now().After(limit) {
			c.t.Fatalf("the run does not end: %+v, %v\n%s", meta, err, c.err)
		}
	}
}

func (c *command) run() *command {
	c.t.Helper()
	if err := c.Start(); err != nil {
		c.t.Fatal(err)
	}
	return c
}

func (c *command) signal(s os.Signal) {
	c.t.Helper()
	if err := c.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func TestRunIsInterrupted(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		signal syscall.Signal
	}{
		"INT":                      {"list\nsleep 300s", syscall.SIGINT},
		"TERM":                     {"list\nsleep 300s", syscall.SIGTERM},
		"HUP":                      {"list\nsleep 300s", syscall.SIGHUP},
		"INT, and an agent's deaf": {"ignore\nlist\nsleep 300s", syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, "", "run", "--agent", "scripted", "--", tt.script).run()
			c.says("agent started")
			c.signal(tt.signal)
			c.signal(tt.signal) // as timeout(1) does; it must not cut the end short
			c.ends(130)
			c.says("error: interrupted")
			c.left(130)
		})
	}
}

// nohup, and a shell's &, hand down ignored signals.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	c := start(t, `trap '' HUP INT; exec "$@"`, "run", "--agent", "scripted", "--", "list\nsleep 1s\nsay through").run()
	c.says("agent started")
	c.signal(syscall.SIGHUP)
	c.signal(syscall.SIGINT)
	c.ends(0)
	c.left(0)
}

func TestWaitingForAPromptCanBeInterrupted(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"run", "--agent", "scripted"}, {"memory", "import", "--workspace", "w"}} {
		c := start(t, `echo up >&2; exec "$@"`, args...)
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		c.run().says("up")
		time.AfterFunc(300*time.Millisecond, func() { _ = c.Process.Signal(os.Interrupt) })
		c.ends(-1)
	}
}

func TestClosedStandardInput(t *testing.T) {
	t.Parallel()
	c := start(t, `exec "$@" <&-`, "run", "--agent", "scripted").run()
	c.ends(2)
	c.says("hint: give it after --")
	c = start(t, `exec "$@" <&- >&-`, "run", "--agent", "scripted", "--", "say into the void").run()
	c.ends(0)
	c.left(0)
}

// A reader of events that goes away ends nothing.
func TestReaderGoesAway(t *testing.T) {
	t.Parallel()
	c := start(t, "", "run", "--agent", "scripted", "--json", "--", "say one\nsleep 500ms\nsay two\nsay three")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.run()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !json.Valid([]byte(line)) {
		t.Errorf("the first line is %q, %v", line, err)
	}
	_ = out.Close()
	c.ends(0)
	c.left(0)
}

// A reader that stops reading makes the agent wait, and is no way to fill
// memory; the run still ends in its time.
func TestReaderIsStuck(t *testing.T) {
	t.Parallel()
	say := strings.Repeat("say "+strings.Repeat("x", 100_000)+"\n", 150)
	c := start(t, "", "run", "--agent", "scripted", "--timeout", "3s", "--json")
	c.Stdin = strings.NewReader(say)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.run()
	lines := bufio.NewReaderSize(out, 1<<20)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	c.over()
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	c.ends(124)
	c.left(124)
	all := strings.Split(strings.TrimSpace(string(rest)), "\n")
	if last := all[len(all)-1]; !strings.Contains(last, `"kind":"ended"`) {
		t.Errorf("the last event is %.200s", last)
	}
	if len(rest) > 12<<20 {
		t.Errorf("%d bytes of events had been kept for a reader that did not read", len(rest))
	}
}

func TestExecSignals(t *testing.T) {
	t.Run("TERM ends the program and what it started", func(t *testing.T) {
		t.Parallel()
		c := start(t, "", "exec", "--", "sh", "-c", "setsid sh -c 'sleep 300; sleep 300' & echo up >&2; wait").run()
		c.says("up")
		c.signal(syscall.SIGTERM)
		c.ends(143)
		c.left(143)
	})
	t.Run("INT and QUIT are the program's to judge", func(t *testing.T) {
		t.Parallel()
		c := start(t, "", "exec", "--", "sh", "-c", "echo up >&2; sleep 1; exit 7").run()
		c.says("up")
		c.signal(syscall.SIGINT)
		c.signal(syscall.SIGQUIT)
		c.ends(7)
		c.left(7)
	})
}
