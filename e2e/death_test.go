//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// dies waits for a command that was killed.
func (c *command) dies() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatal("it does not die")
	}
}

// afterlife is how long what a killed drawbridge leaves may live: its helper
// sends TERM, waits its grace, and then KILL.
const afterlife = 15 * time.Second

// TestDrawbridgeKilledAtMoments is promise 3 where nobody is left to keep it
// but the helper: kill -9 of drawbridge in every state of a run.
func TestDrawbridgeKilledAtMoments(t *testing.T) {
	const slow = `call execute_command {"cmd":"setsid sleep 300 & sleep 300; touch ran"}`
	for name, tt := range map[string]struct {
		flags      []string
		prompt     string
		moment     func(*place, *command)
		unfinished int
	}{
		"at its start": {[]string{"--agent", "claude", "--agent-path", "fake"}, "hang", func(_ *place, c *command) { c.until(event.Notice) }, 0},
		"before ready": {[]string{"--agent", "claude", "--agent-path", "fake"}, "hang", func(p *place, c *command) {
			c.until(event.Notice)
			c.wait("an agent", func() bool { return strings.Contains(strings.Join(p.alive(""), " "), " claude") })
		}, 0},
		"during a call": {[]string{"--agent", "scripted", "--allow", "execute_command", "--sandbox", "off"}, slow, func(p *place, c *command) {
			c.until(event.ToolsListed)
			c.wait("the beginning of a call", func() bool { return strings.Contains(strings.Join(p.alive(""), " "), "sleep") })
		}, 1},
		"after the result": {[]string{"--agent", "claude", "--agent-path", "fake"}, "stay", func(_ *place, c *command) { c.until(event.Finished) }, 0},
		"a deaf agent":     {[]string{"--agent", "scripted"}, "ignore\nsay deaf\nsleep 300s", func(_ *place, c *command) { c.until(event.Text) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, nil)
			for i, f := range tt.flags {
				if f == "fake" {
					tt.flags[i] = stand(t, "claude")
				}
			}
			c := p.start(append(append([]string{"run", "--json"}, tt.flags...), "--", tt.prompt)...)
			tt.moment(p, c)
			run := c.first(event.Notice).Run
			if before := p.alive(run, c.Process.Pid); len(before) < 2 && name != "at its start" {
				t.Fatalf("processes before: %q", before)
			}
			ports := listening(c.Process.Pid)
			if len(ports) != 1 {
				t.Fatalf("drawbridge listens on %q", ports)
			}
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			c.dies()
			p.nothing(run, portOf(t, ports[0]), afterlife)
			p.open(run, tt.unfinished)
			if out := p.do(0, "runs", "list"); !strings.Contains(out, "died") {
				t.Errorf("runs list says\n%s", out)
			}
			p.do(0, "audit", "verify", run)
			if left, _ := filepath.Glob(filepath.Join(p.temp, "drawbridge-*")); len(left) == 0 {
				t.Error("nothing is there to be swept: the test proves nothing")
			}
			p.do(0, "run", "--agent", "scripted", "--", "say next")
			_, folder := p.meta(run)
			p.swept(folder)
			if m, _ := p.meta(run); m.Status != state.Died {
				t.Errorf("after the sweep run.json says status %s", m.Status)
			}
			if _, err := os.Stat(filepath.Join(p.folder, "ran")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the command went on")
			}
		})
	}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	var port int
	for _, c := range addr[strings.LastIndexByte(addr, ':')+1:] {
		port = port*10 + int(c-'0')
	}
	if port == 0 {
		t.Fatalf("no port in %q", addr)
	}
	return port
}

// TestDrawbridgeKilledAtAnyMoment kills it wherever it happens to be, and asks
// only what always holds: nothing lives on, and what is on record is true.
func TestDrawbridgeKilledAtAnyMoment(t *testing.T) {
	script := strings.Repeat("call memory_search {\"query\":\"x\"}\ncall memory_add {\"text\":\"x\"}\ncall delete_file {\"path\":\"x\"}\n", 60) + "sleep 300s"
	p := newPlace(t, nil)
	records, torn := 0, 0
	for range 12 {
		c := p.start("run", "--agent", "scripted", "--allow", "memory_search,memory_add", "--json", "--", script)
		delay := time.Duration(rand.IntN(400)) * time.Millisecond
		time.Sleep(delay)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		c.dies()
		p.nothing("none", 0, afterlife)
	}
	p.do(0, "run", "--agent", "scripted", "--", "say next")
	dir, err := state.Open(p.state)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := dir.Runs()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range runs[:len(runs)-1] {
		_, folder := p.meta(m.ID)
		p.swept(folder)
		b, err := os.ReadFile(filepath.Join(folder, "audit.jsonl"))
		if errors.Is(err, fs.ErrNotExist) || len(b) == 0 {
			continue // killed before its first line
		}
		rep, err := audit.Verify(bytes.NewReader(b), "")
		if err != nil || rep.Problem != "" || rep.Closed || len(rep.Unfinished) > 1 {
			t.Errorf("run %s: %+v, %v", m.ID, rep, err)
		}
		records++
		if rep.Torn {
			torn++
		}
	}
	t.Logf("%d records, %d of them torn, of %d runs", records, torn, len(runs)-1)
	if left, _ := filepath.Glob(filepath.Join(p.state, "live", "*")); len(left) > 0 {
		t.Errorf("marks of dead runs are left: %q", left)
	}
}

// Promise 4: what drawbridge prints when it is asked for a dump of itself. It
// dies of that, and its run with it.
func TestField67_DumpWithoutTheToken(t *testing.T) {
	wire := newWire(t)
	p, c := fakeRun(t, "ask")
	c.Env = append(c.Env, "GOTRACEBACK=system")
	c.begin()
	run := c.until(event.Call).Run
	token, port := wire.learn()
	if err := c.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	c.ends(2)
	dump := c.err.String()
	if !strings.Contains(dump, "SIGQUIT") || strings.Count(dump, "goroutine ") < 5 {
		t.Errorf("no dump:\n%s", dump)
	}
	if strings.Contains(dump+c.out.String(), token) {
		t.Error("the dump holds the token")
	}
	p.nothing(run, port, afterlife)
	if found, read := onDisk(token, p.home, p.folder, p.temp); len(found) > 0 || read < 3 {
		t.Errorf("the token is in %q of %d files", found, read)
	}
	p.open(run, 0)
}

// What a run leaves when everything of it is killed, whatever the umask was,
// and what the next one makes of it. The token of the dead one opens nothing.
func TestField69_KilledUnderAnyUmask(t *testing.T) {
	wire := newWire(t)
	p, c := fakeRun(t, "ask")
	c.through(`umask 0; exec "$@"`).begin()
	run := c.until(event.Call).Run
	old, port := wire.learn()
	modes := func() {
		t.Helper()
		for _, root := range []string{p.state, p.temp} {
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || path == p.temp {
					return nil
				}
				if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 && (root == p.state || d.IsDir()) {
					t.Errorf("%s has mode %v", path, info.Mode())
				}
				return nil
			})
		}
	}
	modes()
	_ = c.Process.Kill()
	c.dies()
	p.nothing(run, port, afterlife)
	modes()

	second := newWire(t)
	next := p.start("run", "--agent", "claude", "--agent-path", stand(t, "claude"), "--allow", "memory_search", "--json", "--", "ask")
	next.until(event.Call)
	token, port := second.learn()
	if token == old {
		t.Error("two runs have one token")
	}
	if status, body := connect(old, port).post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); status != 401 {
		t.Errorf("the token of the dead run: %d %s", status, body)
	}
	_, folder := p.meta(run)
	if _, err := os.Stat(filepath.Join(folder, "private")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead run's private folder is left: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(p.temp, "drawbridge-*")); len(left) != 1 {
		t.Errorf("temporary folders: %q", left)
	}
	if err := next.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	next.ends(130)
}
