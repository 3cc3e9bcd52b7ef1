package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/drawbridgetest"
	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// built is the command under test, built from the sources around this package.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func commandPath(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		// The name is readable to an ordinary user, whom some tests start it as.
		if built.dir, built.err = os.MkdirTemp("", "dbe2e"); built.err != nil {
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(built.dir, "drawbridge"), "github.com/drawbridge-mcp/drawbridge/cmd/drawbridge")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the command: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "drawbridge")
}

// patience bounds every wait. Nothing is expected to take near as long.
const patience = 60 * time.Second

// place is a machine on which somebody uses the command: an empty home, a
// folder to work in, a clean environment, and a folder for temporary files
// that shows what was left in it.
type place struct {
	t                         testing.TB
	home, state, folder, temp string
	env                       []string
}

// newPlace is a place whose model is m; without one there is no key either.
func newPlace(t testing.TB, m *model.Server) *place {
	t.Helper()
	Isolated(t)
	p := &place{t: t, folder: t.TempDir()}
	if m != nil {
		p.env = Environ(t, m)
	} else {
		p.env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + t.TempDir(), "LANG=C.UTF-8"}
	}
	p.home = value(p.env, "HOME")
	p.state = filepath.Join(p.home, ".local", "state", "drawbridge")
	// Not t.TempDir: a socket's path has at most 108 bytes.
	var err error
	if p.temp, err = os.MkdirTemp("", "db"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(p.temp) })
	p.env = append(p.env, "TMPDIR="+p.temp)
	return p
}

func value(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// command is one start of the command, or of something that starts it.
type command struct {
	*exec.Cmd
	t        testing.TB
	out, err *watched
	done     chan struct{} // closed when it has ended
	failed   error         // of Wait; read after done
}

// prepare readies the command; change it and call begin.
func (p *place) prepare(args ...string) *command {
	p.t.Helper()
	c := &command{Cmd: exec.Command(commandPath(p.t), args...), t: p.t, out: newWatched(), err: newWatched(), done: make(chan struct{})}
	c.Dir, c.Env, c.Stdout, c.Stderr = p.folder, slices.Clone(p.env), c.out, c.err
	return c
}

func (p *place) start(args ...string) *command {
	p.t.Helper()
	return p.prepare(args...).begin()
}

// through has a shell start the command; script ends in a start of "$@".
func (c *command) through(script string) *command {
	c.Args = append([]string{"sh", "-c", script, "sh", c.Path}, c.Args[1:]...)
	c.Path = "/bin/sh"
	return c
}

func (c *command) begin() *command {
	c.t.Helper()
	if err := c.Start(); err != nil {
		c.t.Fatal(err)
	}
	return c.began()
}

// began watches over a command that was started.
func (c *command) began() *command {
	c.t.Helper()
	go func() { defer close(c.done); c.failed = c.Wait() }()
	c.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.done
		if c.t.Failed() {
			c.t.Logf("%q\nended with %v\nstderr:\n%s\nstdout:\n%.6000s", c.Args[1:], c.failed, c.err, c.out)
		}
	})
	return c
}

// ends waits for the command and checks its exit code; -1 is death by a signal.
func (c *command) ends(code int) {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatalf("the command does not end\n%s", c.err)
	}
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](c.failed); ok {
		got = exit.ExitCode()
	} else if c.failed != nil {
		c.t.Fatal(c.failed)
	}
	if got != code {
		c.t.Errorf("exit code %d, want %d\n%s", got, code, c.err)
	}
}

// says checks that the command has written each text to its standard error.
func (c *command) says(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		if !strings.Contains(c.err.String(), text) {
			c.t.Errorf("it does not say %q, but:\n%s", text, c.err)
		}
	}
}

// do runs the command to its end and returns its standard output.
func (p *place) do(code int, args ...string) string {
	p.t.Helper()
	c := p.start(args...)
	c.ends(code)
	return c.out.String()
}

// events are the lines of --json so far.
func (c *command) events() []event.Event {
	c.t.Helper()
	var all []event.Event
	for line := range strings.Lines(c.out.String()) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var e event.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			c.t.Fatalf("no event: %v: %.300s", err, line)
		}
		all = append(all, e)
	}
	return all
}

func (c *command) first(kind event.Kind) event.Event {
	c.t.Helper()
	all := c.events()
	i := slices.IndexFunc(all, func(e event.Event) bool { return e.Kind == kind })
	if i < 0 {
		return event.Event{}
	}
	return all[i]
}

// until waits for an event of that kind.
func (c *command) until(kind event.Kind) event.Event {
	c.t.Helper()
	var e event.Event
	c.wait("an event "+string(kind), func() bool { e = c.first(kind); return e.Kind == kind })
	return e
}

// wait waits until the command's output, or its end, makes true what is asked.
func (c *command) wait(what string, is func() bool) {
	c.t.Helper()
	limit := time.After(patience)
	for !is() {
		select {
		case <-c.out.changed:
		case <-c.err.changed:
		case <-time.After(50 * time.Millisecond): // what is asked may be no output
			select {
			case <-c.done:
				if !is() {
					c.t.Fatalf("it ended without %s\n%s", what, c.err)
				}
				return
			default:
			}
		case <-limit:
			c.t.Fatalf("there is not %s\n%s", what, c.err)
		}
	}
}

// watched is output that a test can wait for.
type watched struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newWatched() *watched { return &watched{changed: make(chan struct{}, 1)} }

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

// meta is what run.json says of a run.
func (p *place) meta(run string) (state.Meta, string) {
	p.t.Helper()
	dir, err := state.Open(p.state)
	if err != nil {
		p.t.Fatal(err)
	}
	m, folder, err := dir.Find(run)
	if err != nil {
		p.t.Fatal(err)
	}
	return m, folder
}

// closed checks what a run left in its folder when drawbridge lived to its end:
// the exit code, a record that is whole and ends in the head, no private
// folder, no temporary one. It returns the record.
func (p *place) closed(run string, code int) []audit.Record {
	p.t.Helper()
	m, folder := p.meta(run)
	if m.Status != state.Ended || m.ExitCode == nil || *m.ExitCode != code {
		p.t.Errorf("run.json says status %s, exit code %v; want %d", m.Status, m.ExitCode, code)
	}
	p.swept(folder)
	return drawbridgetest.Records(p.t, filepath.Join(folder, "audit.jsonl"), m.Head)
}

func (p *place) swept(folder string) {
	p.t.Helper()
	if _, err := os.Stat(filepath.Join(folder, "private")); !errors.Is(err, os.ErrNotExist) {
		p.t.Errorf("the private folder is left: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.temp, "drawbridge-*")); len(left) > 0 {
		p.t.Errorf("temporary folders are left: %q", left)
	}
}

// open checks the record of a run whose drawbridge was killed: not closed, and
// else as written. unfinished is how many calls have no end.
func (p *place) open(run string, unfinished int) {
	p.t.Helper()
	m, folder := p.meta(run)
	if m.Status != state.Died {
		p.t.Errorf("run.json says status %s", m.Status)
	}
	f, err := os.Open(filepath.Join(folder, "audit.jsonl"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	rep, err := audit.Verify(f, "")
	if err != nil || rep.Problem != "" || rep.Closed || len(rep.Unfinished) != unfinished {
		p.t.Errorf("record: %+v, %v; want it open with %d unfinished calls", rep, err, unfinished)
	}
}

// alive are the processes of a run, by every trace of it: its mark, and this
// place's home in their environment. pid 0 is nobody.
func (p *place) alive(run string, except ...int) (found []string) {
	marked := proc.Alive(run)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil || slices.Contains(except, pid) {
			continue
		}
		env, _ := os.ReadFile(dir + "/environ")
		stat, err := os.ReadFile(dir + "/stat")
		if i := bytes.LastIndexByte(stat, ')'); err != nil || i+2 >= len(stat) || stat[i+2] == 'Z' {
			continue
		}
		if slices.Contains(marked, pid) || bytes.Contains(env, []byte("HOME="+p.home+"\x00")) {
			found = append(found, fmt.Sprintf("%d %s", pid, name(pid)))
		}
	}
	return found
}

func name(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(b))
}

// nothing checks that no process of the run is alive and that the endpoint
// refuses. within is for a run whose drawbridge was killed: nobody was there to
// wait for that.
func (p *place) nothing(run string, port int, within time.Duration) {
	p.t.Helper()
	limit := time.Now().Add(within)
	for {
		left := p.alive(run)
		open := port != 0 && accepts(port)
		if len(left) == 0 && !open {
			return
		}
		if time.Now().After(limit) {
			p.t.Errorf("alive: %q; the port accepts: %v", left, open)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func accepts(port int) bool {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}
