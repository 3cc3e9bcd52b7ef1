//go:build linux

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
)

// These tests run the command under limits of the system, and as somebody who
// is not root.

// TestFewDescriptors: below what a run needs it fails in words, wherever the
// descriptors run out, and takes back what it has made.
func TestFewDescriptors(t *testing.T) {
	p := newPlace(t, nil)
	worked, failed := 0, 0
	// Below 10 the language's own runtime does not start.
	for n := 10; n <= 64 && worked < 2; n += 1 + n/20 {
		c := p.prepare("run", "--agent", "scripted", "--allow", "memory_search", "--", `call memory_search {"query":"x"}`)
		c.through(fmt.Sprintf(`ulimit -n %d; exec "$@"`, n)).begin()
		select {
		case <-c.done:
		case <-time.After(patience):
			t.Fatalf("with %d descriptors it does not end\n%s", n, c.err)
		}
		switch code := c.ProcessState.ExitCode(); code {
		case 0:
			worked++
		case 1, 2, 3, 5:
			failed++
			c.says("drawbridge: error: ")
		default:
			t.Errorf("with %d descriptors: exit code %d\n%s", n, code, c.err)
		}
		if strings.Contains(c.err.String(), "goroutine ") {
			t.Errorf("with %d descriptors it crashed\n%s", n, c.err)
		}
		p.nothing("none", 0, 0)
		if left, _ := filepath.Glob(filepath.Join(p.temp, "*")); len(left) > 0 {
			t.Errorf("with %d descriptors left behind: %q", n, left)
		}
	}
	if worked == 0 || failed < 3 {
		t.Errorf("%d runs worked and %d failed: the limit was not where it matters", worked, failed)
	}
	// What failed is no run that goes on.
	dir, err := state.Open(p.state)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := dir.Runs()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range runs {
		if m.Status == state.Running {
			t.Errorf("run %s is said to be running", m.ID)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(p.state, "live", "*")); len(left) > 0 {
		t.Errorf("marks are left: %q", left)
	}
}

// TestRecordReachesALimit: the record may grow no further, at any byte of any
// line. Promise 2: what ran is on record, and the record is whole lines.
func TestRecordReachesALimit(t *testing.T) {
	const calls = 8
	var script strings.Builder
	for i := range calls {
		fmt.Fprintf(&script, "call write_file {\"path\":\"f-%d\",\"content\":%q}\n", i, strings.Repeat("x", 100*i))
	}
	incomplete := 0
	for blocks := 2; blocks <= 22; blocks += 3 { // of 512 bytes
		p := newPlace(t, nil)
		c := p.prepare("run", "--agent", "scripted", "--allow", "write_file", "--json", "--", script.String())
		c.through(fmt.Sprintf(`ulimit -f %d; exec "$@"`, blocks)).begin()
		select {
		case <-c.done:
		case <-time.After(patience):
			t.Fatalf("with %d blocks it does not end\n%s", blocks, c.err)
		}
		run := c.first(event.Ended).Run
		code := c.ProcessState.ExitCode()
		if run == "" {
			// Not even the first line, or what comes before it, could be written.
			if code != 5 && code != 2 {
				t.Errorf("with %d blocks: exit code %d\n%s", blocks, code, c.err)
			}
			c.says("error: ", "file too large")
			if left, _ := filepath.Glob(filepath.Join(p.folder, "f-*")); len(left) > 0 {
				t.Errorf("without a record there are %q", left)
			}
			continue
		}
		switch code {
		case 0:
			if left, _ := filepath.Glob(filepath.Join(p.folder, "f-*")); len(left) != calls {
				t.Errorf("with %d blocks there are %q", blocks, left)
			}
			continue
		case 5:
			incomplete++
			c.says("is incomplete", "file too large", "hint: ")
		default:
			t.Errorf("with %d blocks: exit code %d\n%s", blocks, code, c.err)
		}
		p.nothing(run, 0, 0)
		m, folder := p.meta(run)
		p.swept(folder)
		f, err := os.Open(filepath.Join(folder, "audit.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		rep, err := audit.Verify(f, m.Head)
		_ = f.Close()
		if err != nil || rep.Problem != "" || rep.Torn {
			t.Errorf("with %d blocks: %+v, %v", blocks, rep, err)
		}
		var begun []string
		b, err := os.ReadFile(filepath.Join(folder, "audit.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		_ = audit.Read(strings.NewReader(string(b)), func(r audit.Record) error {
			if r.Kind == audit.Begin {
				begun = append(begun, string(r.Arguments))
			}
			return nil
		})
		for i := range calls {
			file := fmt.Sprintf("f-%d", i)
			_, err := os.Stat(filepath.Join(p.folder, file))
			onRecord := slices.ContainsFunc(begun, func(args string) bool { return strings.Contains(args, `"`+file+`"`) })
			if ran := err == nil; ran != onRecord {
				t.Errorf("with %d blocks: %s ran: %v, on record: %v", blocks, file, ran, onRecord)
			}
		}
	}
	if incomplete < 3 {
		t.Errorf("%d incomplete records: the limit was not where it matters", incomplete)
	}
}

// nobody is a place of somebody who may do nothing but use it.
func nobody(t *testing.T) (*place, *syscall.SysProcAttr) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("whoever runs the tests is an ordinary user already")
	}
	const id = 65534
	p := newPlace(t, nil)
	base, err := os.MkdirTemp("", "db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	p.home, p.folder, p.temp = filepath.Join(base, "home"), filepath.Join(base, "work"), filepath.Join(base, "temp")
	for _, dir := range []string{p.home, p.folder, p.temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, id, id); err != nil {
			t.Skipf("this root can't give a folder away: %v", err)
		}
	}
	p.state = filepath.Join(p.home, ".local", "state", "drawbridge")
	p.env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + p.home, "TMPDIR=" + p.temp, "LANG=C.UTF-8"}
	return p, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
}

// TestOrdinaryUser is the main path and promise 3 without any privilege: what
// ends a run must not need one.
func TestOrdinaryUser(t *testing.T) {
	// SECONDS is a number of the case's own, to find its processes by.
	const script = `call execute_command {"cmd":"(setsid sh -c 'trap \"\" TERM; sleep SECONDS; sleep SECONDS' &) ; CLEAR setsid sleep SECONDS & id -u > uid; MORE"}`
	seconds := 2_000_000 + os.Getpid()%1000*1000
	for name, tt := range map[string]struct {
		clear  string // of the environment, and the mark in it, for one that has left the session
		more   string
		end    func(*command)
		code   int
		within time.Duration
	}{
		"it ends":                {"env -i", "true", func(*command) {}, 0, 0},
		"its time is over":       {"env -i", "sleep SECONDS", func(*command) {}, 124, 0},
		"it is interrupted":      {"env -i", "sleep SECONDS", func(c *command) { _ = c.Process.Signal(syscall.SIGINT) }, 130, 0},
		"drawbridge is killed":   {"env -i", "sleep SECONDS", func(c *command) { _ = c.Process.Kill() }, -1, 15 * time.Second},
		"its helpers are killed": {"", "sleep SECONDS", func(c *command) { killAll(children(c.Process.Pid)) }, 1, 0},
	} {
		seconds++
		mark := fmt.Sprint(seconds)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, attr := nobody(t)
			timeout := "1m"
			if tt.code == 124 {
				timeout = "2s"
			}
			c := p.prepare("run", "--agent", "scripted", "--allow", "execute_command", "--sandbox", "off", "--timeout", timeout, "--json", "--",
				strings.NewReplacer("CLEAR", tt.clear, "MORE", strings.ReplaceAll(tt.more, "SECONDS", mark), "SECONDS", mark).Replace(script))
			c.SysProcAttr = attr
			c.begin()
			run := c.until(event.ToolsListed).Run
			var port int
			if tt.code != 0 {
				c.wait("the commands", func() bool { return len(withArgument(mark)) >= 4 })
				if ports := listening(c.Process.Pid); len(ports) == 1 {
					_, _ = fmt.Sscanf(ports[0], "127.0.0.1:%d", &port)
				}
				tt.end(c)
			}
			c.ends(tt.code)
			p.nothing(run, port, tt.within)
			for deadline := time.Now().Add(tt.within); len(withArgument(mark)) > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Errorf("alive: %q", withArgument(mark))
					break
				}
			}
			if uid, err := os.ReadFile(filepath.Join(p.folder, "uid")); err != nil || strings.TrimSpace(string(uid)) != "65534" {
				t.Errorf("the command ran as %q, %v", uid, err)
			}
			if tt.code == -1 {
				next := p.prepare("run", "--agent", "scripted", "--", "say next")
				next.SysProcAttr = attr
				next.begin().ends(0)
			}
			// A state directory is looked into by its owner alone.
			_ = filepath.WalkDir(p.home, func(path string, _ fs.DirEntry, _ error) error { return os.Lchown(path, 0, 0) })
			if tt.code != -1 {
				p.closed(run, tt.code)
				return
			}
			p.open(run, 1)
			_, folder := p.meta(run)
			p.swept(folder)
		})
	}
}

func killAll(pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// withArgument are the command lines that hold mark, those of drawbridge and
// its helpers aside.
func withArgument(mark string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if err == nil && strings.Contains(line, mark) && !strings.Contains(line, "drawbridge") {
			found = append(found, line)
		}
	}
	return found
}
