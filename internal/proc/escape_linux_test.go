package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Each leaves n processes that note their pids, besides whatever leads there.
var escapes = map[string]struct {
	n   int
	ops []string // F stands for the file of the pids
}{
	"ignores TERM":           {1, []string{"noterm", "note", "F", "sleep"}},
	"stopped":                {1, []string{"note", "F", "stop"}},
	"background":             {2, []string{"note", "F", "bg", "note", "F", "sleep"}},
	"setsid":                 {2, []string{"note", "F", "setsid", "bg", "noterm", "note", "F", "sleep"}},
	"double fork":            {2, []string{"note", "F", "bg", "setsid", "leave", "leave", "noterm", "note", "F", "sleep"}},
	"daemon":                 {2, []string{"note", "F", "closed", "bg", "setsid", "leave", "setsid", "leave", "noterm", "note", "F", "sleep"}},
	"subreaper":              {3, []string{"subreaper", "note", "F", "bg", "setsid", "subreaper", "noterm", "note", "F", "bg", "setsid", "leave", "leave", "noterm", "note", "F", "sleep"}},
	"clears its environment": {2, []string{"note", "F", "bare", "bg", "bare", "setsid", "leave", "bare", "closed", "leave", "noterm", "note", "F", "sleep"}},
	"stopped daemon":         {2, []string{"note", "F", "bare", "closed", "bg", "setsid", "leave", "leave", "noterm", "note", "F", "stop"}},
}

func withFile(ops []string, file string) []string {
	out := slices.Clone(ops)
	for i := range out {
		if out[i] == "F" {
			out[i] = file
		}
	}
	return out
}

func TestEndReachesEveryDescendant(t *testing.T) {
	for name, c := range escapes {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			s := childSpec(marker(t), withFile(c.ops, file)...)
			s.Stdout, s.Stderr = io.Discard, os.Stderr
			p := start(t, s)
			pids := pidsIn(t, file, c.n)
			p.End()
			if e := wait(t, p); !e.Ended || e.LostHelper {
				t.Errorf("%+v", e)
			}
			if l := living(pids); len(l) > 0 {
				t.Errorf("alive: %v", describe(l))
			}
		})
	}
}

func TestField60_GrandchildKeepsThePipe(t *testing.T) {
	for script, code := range map[string]int{
		"sleep 300 & echo hi":                                              0,
		"echo hi; sleep 300 | cat":                                         -1,
		"echo hi; (sleep 300)":                                             -1,
		"setsid sleep 300 & echo hi":                                       0,
		"trap '' TERM; echo hi; sleep 300; :":                              -1,
		"trap '' TERM; (sleep 300 &) ; echo hi":                            0,
		"setsid sh -c 'trap \"\" TERM; sleep 300; :' & echo hi; sleep 0.1": 0,
	} {
		t.Run(script, func(t *testing.T) {
			var out bytes.Buffer
			fw := &firstWrite{w: &out, seen: make(chan struct{})}
			s := shell(t, script)
			s.Stdout = fw
			p := start(t, s)
			<-fw.seen
			if code < 0 {
				p.End()
			}
			e := wait(t, p)
			if out.String() != "hi\n" || e.Ended != (code < 0) || code >= 0 && e.Code != code {
				t.Errorf("%q %+v", out.String(), e)
			}
			if code == 0 && len(e.Leftovers) == 0 {
				t.Errorf("leftovers: %v", e.Leftovers)
			}
		})
	}
}

// The result is there and the process does not end: the caller says End.
func TestField54_ResultThenNoExit(t *testing.T) {
	for _, script := range []string{"echo result; sleep 600", "sleep 600 & echo result; wait"} {
		got := make(chan struct{})
		l := NewLines(100, func(b []byte, _ bool) {
			if string(b) == "result" {
				close(got)
			}
		})
		s := shell(t, script)
		s.Stdout = l
		p := start(t, s)
		<-got
		p.End()
		if e := wait(t, p); !e.Ended || e.Signal != "SIGTERM" {
			t.Errorf("%s: %+v", script, e)
		}
	}
}

func TestField62_BackgroundWorkIsNamedAndEnded(t *testing.T) {
	s := shell(t, "sh -c 'while :; do :; done' & echo result; exit 0")
	e, out, _ := run(t, s)
	if out != "result\n" || e.Code != 0 || e.Ended || !slices.Equal(e.Leftovers, []string{"sh"}) {
		t.Errorf("%q %+v", out, e)
	}
}

// What ends by itself right after the process is nothing to report.
func TestLeftoversThatEndByThemselves(t *testing.T) {
	e, _, _ := run(t, shell(t, "sleep 0.02 & exit 0"))
	if len(e.Leftovers) > 0 {
		t.Errorf("%+v", e)
	}
}

func TestLeftoverNamesAreTame(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "a) R 1\n\x1b[2J\xff")
	if err := os.Symlink("/bin/sleep", odd); err != nil {
		t.Fatal(err)
	}
	s := shell(t, `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "$P" 300 & done`)
	s.Env = append(s.Env, "P="+odd)
	e, _, _ := run(t, s)
	if len(e.Leftovers) != maxNames || e.Leftovers[0] != "a) R 1??[2J?" {
		t.Errorf("%q", e.Leftovers)
	}
}

// Forks faster than one looks, and each fork is gone when one looks closer.
func TestForkLoops(t *testing.T) {
	for name, script := range map[string]string{
		"breeder": "trap '' TERM; echo hi; while :; do sleep 300 & done",
		"mover":   "trap '' TERM; echo hi; f() { f & exit; }; f",
		"movers":  "trap '' TERM; echo hi; f() { f & exit; }; f & f & f & f & f & f & f & f & f",
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			fw := &firstWrite{w: &out, seen: make(chan struct{})}
			s := shell(t, script)
			s.Stdout = fw
			p := start(t, s)
			<-fw.seen
			p.End()
			wait(t, p)
		})
	}
}

// Processes that are not of the tree stay as they are, and their owner can
// still wait for them.
func TestOthersAreLeftAlone(t *testing.T) {
	own := exec.Command("/bin/sh", "-c", "read x; exit 42")
	in, err := own.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	other := start(t, shell(t, "sleep 300"))
	p := start(t, shell(t, "setsid sleep 300 & sleep 300"))
	p.End()
	wait(t, p)
	lost := start(t, shell(t, "setsid sleep 300 & sleep 300"))
	lost.helper.Kill()
	wait(t, lost)
	if len(living([]int{other.PID(), own.Process.Pid})) != 2 {
		t.Error("another process was ended")
	}
	in.Close()
	if err := own.Wait(); own.ProcessState.ExitCode() != 42 {
		t.Error(err)
	}
}

func TestLostHelper(t *testing.T) {
	for name, c := range escapes {
		if name == "clears its environment" || name == "stopped daemon" {
			continue // see TestLostHelperWithoutMarker
		}
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			p := start(t, childSpec(marker(t), withFile(c.ops, file)...))
			pids := pidsIn(t, file, c.n)
			if err := p.helper.Kill(); err != nil {
				t.Fatal(err)
			}
			if e := wait(t, p); !e.LostHelper || e.Ended || e.Signal != "SIGKILL" || e.Code != 137 {
				t.Errorf("%+v", e)
			}
			if l := living(pids); len(l) > 0 {
				t.Errorf("alive: %v", describe(l))
			}
		})
	}
}

// One that cleared its environment is found where it stayed in the session, or
// below one that is found.
func TestLostHelperWithoutMarker(t *testing.T) {
	for name, ops := range map[string][]string{
		"same session":  {"note", "F", "bare", "bg", "noterm", "note", "F", "sleep"},
		"below another": {"note", "F", "setsid", "bg", "note", "F", "bare", "setsid", "bg", "note", "F", "sleep"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			p := start(t, childSpec(marker(t), withFile(ops, file)...))
			pids := pidsIn(t, file, strings.Count(strings.Join(ops, " "), "F"))
			p.helper.Kill()
			if e := wait(t, p); !e.LostHelper {
				t.Errorf("%+v", e)
			}
			if l := living(pids); len(l) > 0 {
				t.Errorf("alive: %v", describe(l))
			}
		})
	}
}

// One that is stopped goes on, so that it can clean up.
func TestEndLetsTheStoppedCleanUp(t *testing.T) {
	var out bytes.Buffer
	fw := &firstWrite{w: &out, seen: make(chan struct{})}
	s := shell(t, "trap 'echo cleaned; exit 9' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
	s.Stdout, s.Grace = fw, 20*time.Second
	p := start(t, s)
	<-fw.seen
	gone(t, func() []int {
		q, _ := lookup(p.PID())
		if q.state == 'T' {
			return nil
		}
		return []int{p.PID()}
	})
	p.End()
	if e := wait(t, p); e.Code != 9 || out.String() != "ready\ncleaned\n" {
		t.Errorf("%+v %q", e, out.String())
	}
}

// A helper that somebody has stopped still ends the tree when told to.
func TestStoppedHelper(t *testing.T) {
	p := start(t, shell(t, "sleep 300"))
	if err := unix.Kill(p.helper.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.End()
	if e := wait(t, p); !e.Ended || e.LostHelper {
		t.Errorf("%+v", e)
	}
}

// What can be sent by name or to a group does not end the helper.
func TestHelperIsDeaf(t *testing.T) {
	p := start(t, shell(t, "sleep 300"))
	for s := syscall.Signal(1); s < 65; s++ {
		switch s {
		case unix.SIGKILL, unix.SIGSTOP, 32, 33, 34:
			continue
		}
		if err := unix.Kill(p.helper.Pid, s); err != nil {
			t.Fatal(s, err)
		}
	}
	p.End()
	if e := wait(t, p); !e.Ended || e.LostHelper || e.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
}

// embedder starts a program that starts a tree with ops, and returns it with
// the pid of the tree's process.
func embedder(t *testing.T, marker string, ops ...string) (*exec.Cmd, int) {
	t.Helper()
	exe, _ := os.Executable()
	cmd := exec.Command(exe)
	cmd.Args = append([]string{childName, "embed", marker}, ops...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid int
	if _, e := fmt.Sscan(line, &pid); e != nil {
		t.Fatal(line, err, e)
	}
	return cmd, pid
}

// Promise 3: kill -9 of the program leaves nothing.
func TestKilledEmbedder(t *testing.T) {
	for name, c := range escapes {
		t.Run(name, func(t *testing.T) {
			file, m := filepath.Join(t.TempDir(), "pids"), marker(t)
			cmd, _ := embedder(t, m, withFile(c.ops, file)...)
			pids := pidsIn(t, file, c.n)
			if len(living(pids)) != c.n || len(Alive(m)) == 0 {
				t.Fatal("nothing there to be killed")
			}
			cmd.Process.Kill()
			gone(t, func() []int { return living(pids) })
			gone(t, func() []int { return Alive(m) })
		})
	}
}

// Both the program and its helper are killed: what is left is swept at the
// next start, and nothing else is.
func TestSweepAfterBothAreKilled(t *testing.T) {
	file, m := filepath.Join(t.TempDir(), "pids"), marker(t)
	cmd, main := embedder(t, m, withFile(escapes["daemon"].ops, file)...)
	pids := pidsIn(t, file, 2)
	stranger := start(t, shell(t, "sleep 300"))
	q, _ := lookup(main)
	unix.Kill(cmd.Process.Pid, unix.SIGSTOP)
	unix.Kill(q.ppid, unix.SIGKILL)
	cmd.Process.Kill()
	cmd.Wait()
	// Of the process itself the kernel sees to that.
	gone(t, func() []int { return living(pids[:1]) })
	daemon := pids[1:]
	if len(living(daemon)) != 1 {
		t.Fatal("the daemon is gone before the sweep")
	}
	killed, err := Sweep(m)
	if err != nil || !slices.Contains(killed, daemon[0]) {
		t.Error(killed, err)
	}
	if l := append(living(pids), Alive(m)...); len(l) > 0 {
		t.Errorf("alive: %v", describe(l))
	}
	if len(living([]int{stranger.PID()})) != 1 {
		t.Error("a stranger was killed")
	}
	if killed, err := Sweep(m); len(killed) > 0 || err != nil {
		t.Error(killed, err)
	}
	if _, err := Sweep(""); err == nil {
		t.Error("an empty marker is no error")
	}
}

// Started by somebody else on the tree's behalf: not below the helper, but marked.
func TestMarkedOutsideTheTree(t *testing.T) {
	s := shell(t, "echo hi")
	other := exec.Command("/bin/sleep", "300")
	other.Env = []string{MarkerEnv + "=" + s.Marker}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	e, _, _ := run(t, s)
	var ee *exec.ExitError
	if err := other.Wait(); !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Error(err)
	}
	if !slices.Equal(e.Leftovers, []string{"sleep"}) {
		t.Errorf("%+v", e)
	}
}

// A stranger that holds the output pipe delays Wait by a second, not for ever.
func TestStrangerHoldsThePipe(t *testing.T) {
	var out bytes.Buffer
	fw := &firstWrite{w: &out, seen: make(chan struct{})}
	s := shell(t, "echo hi; sleep 300")
	s.Stdout = fw
	p := start(t, s)
	<-fw.seen
	held, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", p.PID()), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	status, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", p.helper.Pid, fdStatus), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	p.End()
	began := time.Now()
	wait(t, p)
	if d := time.Since(began); d > 20*time.Second || out.String() != "hi\n" {
		t.Errorf("%v, %q", d, out.String())
	}
}

// A descriptor of a process is asked again before anything is sent: the pid of
// one that is gone, or that has become another's, is not hit.
func TestNoKillByARecycledPid(t *testing.T) {
	p := start(t, shell(t, "sleep 300"))
	now, ok := lookup(p.PID())
	if !ok {
		t.Fatal("not found")
	}
	yes := func(info) bool { return true }
	recycled := now
	recycled.start--
	if err := recycled.signal(unix.SIGKILL, yes); err != unix.ESRCH {
		t.Errorf("another start time: %v", err)
	}
	if err := now.signal(unix.SIGKILL, func(info) bool { return false }); err != unix.ESRCH {
		t.Errorf("not ours: %v", err)
	}
	if len(living([]int{p.PID()})) != 1 {
		t.Fatal("it was killed")
	}
	if err := now.signal(unix.SIGKILL, yes); err != nil {
		t.Error(err)
	}
	if e := wait(t, p); e.Signal != "SIGKILL" {
		t.Errorf("%+v", e)
	}
	if err := now.signal(unix.SIGKILL, yes); err != unix.ESRCH {
		t.Errorf("gone: %v", err)
	}
}

// Whatever a tree is made of, and however it ends, nothing of it is alive
// after Wait.
func TestNothingIsAliveAfterWait(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 15 {
			return // each starts a dozen processes
		}
		file := filepath.Join(dir, fmt.Sprint(n))
		var ops []string
		notes := 0
		for range rapid.IntRange(1, 4).Draw(rt, "depth") {
			ops = append(ops, rapid.SliceOfDistinct(rapid.SampledFrom([]string{"noterm", "subreaper", "setsid", "bare", "closed"}), rapid.ID).Draw(rt, "how")...)
			ops = append(ops, "note", file, rapid.SampledFrom([]string{"bg", "leave"}).Draw(rt, "start"))
			notes++
		}
		ops = append(ops, "note", file, rapid.SampledFrom([]string{"sleep", "stop"}).Draw(rt, "end"))
		p := start(t, childSpec(fmt.Sprint(marker(t), n), ops...))
		switch rapid.SampledFrom([]string{"now", "later", "late"}).Draw(rt, "when") {
		case "later":
			// Those at the end of a tree whose first process left may be killed
			// before they can note anything.
			pidsIn(t, file, 1)
		case "late":
			select {
			case <-p.Exited():
			case <-time.After(200 * time.Millisecond):
			}
		}
		p.End()
		wait(t, p)
		b, _ := os.ReadFile(file)
		var pids []int
		for f := range strings.FieldsSeq(string(b)) {
			var pid int
			fmt.Sscan(f, &pid)
			pids = append(pids, pid)
		}
		if l := living(pids); len(l) > 0 {
			rt.Fatalf("%v: alive: %v", ops, describe(l))
		}
	})
}
