package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestExitAndOutput(t *testing.T) {
	for _, c := range []struct {
		script, out, err string
		exit             Exit
	}{
		{"echo hi; echo no >&2", "hi\n", "no\n", Exit{}},
		{"exit 7", "", "", Exit{Code: 7}},
		{"kill -9 $$", "", "", Exit{Code: 137, Signal: "SIGKILL"}},
		{"kill -SEGV $$", "", "", Exit{Code: 139, Signal: "SIGSEGV"}},
		{"printf '%s' \"$" + MarkerEnv + "\" | wc -c | tr -d ' \\n'; pwd", "", "", Exit{}},
	} {
		t.Run(c.script, func(t *testing.T) {
			s := shell(t, c.script)
			e, out, errs := run(t, s)
			if c.out == "" && strings.Contains(c.script, MarkerEnv) {
				c.out = fmt.Sprintf("%d/\n", len(s.Marker))
			}
			if out != c.out || errs != c.err || e.Code != c.exit.Code || e.Signal != c.exit.Signal || e.Ended || e.LostHelper || e.Leftovers != nil {
				t.Errorf("got %q, %q, %+v", out, errs, e)
			}
		})
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("DRAWBRIDGE_TEST_SECRET", "x")
	s := Spec{Path: "/usr/bin/env", Args: []string{"env"}, Dir: "/", Marker: "m\xff" + marker(t),
		Env: []string{"A=1", MarkerEnv + "=other", "B=\xfe\xff"}}
	_, out, _ := run(t, s)
	if want := "A=1\nB=\xfe\xff\n" + MarkerEnv + "=" + s.Marker + "\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// Argument bytes pass unchanged, also those that are no text.
func TestArgumentsAreExact(t *testing.T) {
	s := Spec{Path: "/usr/bin/printf", Args: []string{"printf", "[%s]", "", "a b", "\xff\xfe", "\"\\\n"}, Dir: "/", Marker: marker(t)}
	_, out, _ := run(t, s)
	if out != "[][a b][\xff\xfe][\"\\\n]" {
		t.Errorf("got %q", out)
	}
}

func TestSameWriterSharesOnePipe(t *testing.T) {
	var both bytes.Buffer
	s := shell(t, "for i in 1 2 3 4; do echo out; echo err >&2; done")
	s.Stdout, s.Stderr = &both, &both
	wait(t, start(t, s))
	if both.String() != strings.Repeat("out\nerr\n", 4) {
		t.Errorf("got %q", both.String())
	}
}

func TestSignalsAreDefault(t *testing.T) {
	s := Spec{Path: "/bin/cat", Args: []string{"cat", "/proc/self/status"}, Dir: "/", Marker: marker(t)}
	_, out, _ := run(t, s)
	for _, name := range []string{"SigBlk", "SigIgn", "SigCgt"} {
		if !strings.Contains(out, name+":\t0000000000000000\n") {
			t.Errorf("%s is not empty in:\n%s", name, out)
		}
	}
}

// What the caller ignores or blocks is not handed on to a process that runs
// unattended.
func TestSignalsAreDefaultUnderNohup(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	s := shell(t, "trap '' HUP INT PIPE TSTP TTIN USR1; exec "+exe+" -test.run='^TestSignalsAreDefault$' -test.count=1 >"+out+" 2>&1")
	s.Env = append(s.Env, "TMPDIR="+t.TempDir())
	if e := wait(t, start(t, s)); e.Code != 0 {
		b, _ := os.ReadFile(out)
		t.Errorf("%+v:\n%s", e, b)
	}
}

func TestDescriptorsDoNotLeak(t *testing.T) {
	// One without close-on-exec, as a C library or a shell may leave it.
	leak, err := unix.Dup(1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	s := Spec{Path: "/bin/ls", Args: []string{"ls", "/proc/self/fd"}, Dir: "/", Marker: marker(t), Files: [][]byte{{1}, {2}}}
	_, out, _ := run(t, s)
	// 5 is the directory itself.
	if out != "0\n1\n2\n3\n4\n5\n" {
		t.Errorf("got %q", out)
	}
	s = shell(t, "for f in 0 1 2 3; do grep flags /proc/$$/fdinfo/$f; done")
	s.Stdin, s.Files = strings.NewReader("x"), [][]byte{{1}}
	_, out, _ = run(t, s)
	for l := range strings.Lines(out) {
		var flags int
		if _, err := fmt.Sscanf(l, "flags: %o", &flags); err != nil || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("descriptor with %q: nonblocking", l)
		}
	}
	if strings.Count(out, "\n") != 4 {
		t.Errorf("got %q", out)
	}
}

func TestFilesBeyondAPipe(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	s := shell(t, "cat /dev/fd/3 /dev/fd/4 <&-; cat <&5 | wc -c >&2")
	s.Files = [][]byte{big, []byte("second"), big[:1<<17]}
	e, out, errs := run(t, s)
	if e.Code != 0 || out != string(big)+"second" || strings.TrimSpace(errs) != "131072" {
		t.Errorf("%+v, %d bytes, %q", e, len(out), errs)
	}
}

func TestFilesNobodyReads(t *testing.T) {
	s := shell(t, "exit 3")
	s.Files = [][]byte{make([]byte, 1<<20)}
	s.Stdin = bytes.NewReader(make([]byte, 3<<20))
	if e := wait(t, start(t, s)); e.Code != 3 {
		t.Errorf("%+v", e)
	}
}

func TestField53_StdinIsWrittenThenClosed(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 3<<20)
	for name, c := range map[string]struct {
		in   io.Reader
		want string
	}{"nil": {nil, "0"}, "empty": {strings.NewReader(""), "0"}, "3 MB": {bytes.NewReader(big), "3145728"}} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, "wc -c")
			s.Stdin = c.in
			_, out, _ := run(t, s)
			if strings.TrimSpace(out) != c.want {
				t.Errorf("got %q", out)
			}
		})
	}
	s := shell(t, "readlink /proc/self/fd/0")
	if _, out, _ := run(t, s); out != "/dev/null\n" {
		t.Errorf("no stdin is %q", out)
	}
}

// A reader that never comes back, such as a terminal, does not keep Wait.
func TestField53_StdinReaderThatBlocks(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	s := shell(t, "echo hi")
	s.Stdin = r
	if _, out, _ := run(t, s); out != "hi\n" {
		t.Errorf("got %q", out)
	}
}

func TestField57_LongLinesThroughAPipe(t *testing.T) {
	const size = 20 << 20
	var got []string
	l := NewLines(1<<16, func(b []byte, cut bool) { got = append(got, fmt.Sprint(len(b), cut)) })
	s := shell(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; printf 'result'", size))
	s.Stdout = l
	wait(t, start(t, s))
	l.Close()
	if !slices.Equal(got, []string{"65536 true", "6 false"}) {
		t.Errorf("got %v", got)
	}
}

type failingWriter struct{ n int }

func (f *failingWriter) Write(b []byte) (int, error) {
	f.n++
	return 0, errors.New("disk full")
}

func TestWriteErrorDrainsOn(t *testing.T) {
	w := &failingWriter{}
	s := shell(t, "head -c 1000000 /dev/zero; exit 5")
	s.Stdout = w
	if e := wait(t, start(t, s)); e.Code != 5 || w.n != 1 {
		t.Errorf("%+v after %d writes", e, w.n)
	}
}

// A reader that is slower than the process still gets all of it.
func TestSlowWriterLosesNothing(t *testing.T) {
	var out bytes.Buffer
	first := make(chan struct{})
	s := shell(t, "echo; head -c 60000 /dev/zero") // fits in the pipe
	slow := writerFunc(func(b []byte) (int, error) {
		if out.Len() == 0 {
			<-first
		}
		return out.Write(b)
	})
	s.Stdout = slow
	p := start(t, s)
	over := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.over
	}
	for !over() {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(drainTime + 500*time.Millisecond)
	close(first)
	wait(t, p)
	if out.Len() != 60001 {
		t.Errorf("got %d bytes", out.Len())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	exe, _ := os.Executable()
	for _, c := range []struct {
		name string
		s    Spec
		is   error
		says string
	}{
		{"not found", Spec{Path: dir + "/nope", Dir: dir}, fs.ErrNotExist, "nope: no such file or directory"},
		{"parent is a file", Spec{Path: exe + "/x", Dir: dir}, unix.ENOTDIR, "not a directory"},
		{"directory", Spec{Path: dir, Dir: dir}, unix.EACCES, "it is a directory"},
		{"not executable", Spec{Path: file("plain", "#!/bin/sh\n", 0o600), Dir: dir}, fs.ErrPermission, "plain: it is not executable"},
		{"no interpreter", Spec{Path: file("script", "#!/no/such/python -u\n", 0o700), Dir: dir}, fs.ErrNotExist, `its interpreter "/no/such/python"`},
		{"windows line ends", Spec{Path: file("crlf", "#!/bin/sh\r\necho\r\n", 0o700), Dir: dir}, fs.ErrNotExist, `its interpreter "/bin/sh\r"`},
		{"no format", Spec{Path: file("text", "hello\n", 0o700), Dir: dir}, unix.ENOEXEC, "neither a script"},
		{"empty", Spec{Path: file("empty", "", 0o700), Dir: dir}, unix.ENOEXEC, "neither a script"},
		{"too long", Spec{Path: "/bin/true", Args: []string{"true", strings.Repeat("x", 3<<20)}, Dir: dir}, unix.E2BIG, "too long"},
		{"no folder", Spec{Path: "/bin/true", Dir: dir + "/gone"}, fs.ErrNotExist, "its working directory " + dir + "/gone: no such"},
		{"folder is a file", Spec{Path: "/bin/true", Dir: exe}, unix.ENOTDIR, "its working directory"},
		{"relative", Spec{Path: "true", Dir: dir}, nil, "not absolute"},
		{"relative folder", Spec{Path: "/bin/true", Dir: "x"}, nil, "not absolute"},
		{"NUL", Spec{Path: "/bin/true", Args: []string{"true", "a\x00b"}, Dir: dir}, nil, "argument 1 has a NUL"},
		{"NUL in a secret", Spec{Path: "/bin/true", Env: []string{"KEY=s3cret\x00"}, Dir: dir}, nil, `variable "KEY" has a NUL`},
		{"terminal with output", Spec{Path: "/bin/true", Dir: dir, Terminal: true, Stdout: io.Discard}, nil, "standard streams"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.s.Args == nil {
				c.s.Args = []string{"x"}
			}
			c.s.Marker = marker(t)
			// Pipes that would leak a goroutine if a failed start forgot them.
			if !c.s.Terminal {
				c.s.Stdin, c.s.Stdout = bytes.NewReader(make([]byte, 1<<20)), io.Discard
			}
			p, err := Start(t.Context(), c.s)
			if err == nil {
				p.End()
				p.Wait()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %q (%T), want %q, %v", err, err, c.says, c.is)
			}
			if se, ok := errors.AsType[*StartError](err); c.is != nil && (!ok || se.Hint == "") {
				t.Errorf("no hint: %#v", err)
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error tells a secret: %v", err)
			}
			if a := Alive(c.s.Marker); len(a) > 0 {
				t.Errorf("left: %v", a)
			}
		})
	}
	goleak.VerifyNone(t)
}

func TestStartWithoutHelper(t *testing.T) {
	helperSet.Store(false)
	defer helperSet.Store(true)
	if _, err := Start(t.Context(), shell(t, "true")); err != ErrNoHelper || HelperReady() != ErrNoHelper {
		t.Error(err)
	}
}

func TestHelperByHand(t *testing.T) {
	exe, _ := os.Executable()
	s := Spec{Path: exe, Args: []string{helperName}, Dir: "/", Marker: marker(t)}
	e, _, errs := run(t, s)
	if e.Code != 2 || !strings.Contains(errs, "not by hand") {
		t.Errorf("%+v %q", e, errs)
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	p, err := Start(ctx, shell(t, "sleep 300"))
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	cancel(why)
	if e := wait(t, p); !e.Ended || e.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
	if _, err := Start(ctx, shell(t, "true")); err != why {
		t.Error(err)
	}
}

func TestEndIsIdempotentAndLate(t *testing.T) {
	p := start(t, shell(t, "exit 4"))
	<-p.Exited()
	p.End()
	if e := wait(t, p); e.Ended || e.Code != 4 {
		t.Errorf("%+v", e)
	}
	p.End()
	p.End()
}

func TestEndLetsCleanUp(t *testing.T) {
	var out bytes.Buffer
	fw := &firstWrite{w: &out, seen: make(chan struct{})}
	s := shell(t, "trap 'sleep 0.2; echo cleaned; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	s.Stdout, s.Grace = fw, 20*time.Second
	p := start(t, s)
	<-fw.seen
	p.End()
	if e := wait(t, p); !e.Ended || e.Code != 9 || out.String() != "ready\ncleaned\n" {
		t.Errorf("%+v %q", e, out.String())
	}
}

// The helper itself tells nothing: it has no argument and only the marker.
func TestHelperShowsNoSecret(t *testing.T) {
	s := shell(t, "sleep 300 # s3cret-argument")
	s.Env = append(s.Env, "TOKEN=s3cret-variable")
	p := start(t, s)
	for _, f := range []string{"cmdline", "environ"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.helper.Pid, f))
		if err != nil || bytes.Contains(b, []byte("s3cret")) {
			t.Errorf("%s: %q %v", f, b, err)
		}
	}
	p.End()
	wait(t, p)
}

func TestReportsSurviveNoise(t *testing.T) {
	p := &Process{exited: make(chan struct{}), started: make(chan error, 1)}
	for _, l := range []string{"panic: x", `{"Event":"started","PID":5}`, `{"Event":"started","PID":6}`, "[]", `{"Event":"exited","Code":3}`, `{"Event":"exited","Code":4}`} {
		p.note([]byte(l), false)
	}
	if p.pid != 5 || p.exit.Code != 3 || string(p.noise) != "panic: x\n[]\n" {
		t.Errorf("%+v", p)
	}
}

func FuzzReports(f *testing.F) {
	b, _ := json.Marshal(report{Event: evDone, Leftovers: []string{"x"}})
	f.Add(b)
	f.Add([]byte(`{"Event":"failed","Errno":-1}`))
	f.Add([]byte("goroutine 1 [running]:"))
	f.Fuzz(func(t *testing.T, line []byte) {
		p := &Process{spec: Spec{Path: "/nope", Dir: "/"}, exited: make(chan struct{}), started: make(chan error, 1)}
		p.note(line, false)
		p.note(line, true)
	})
}

func FuzzShebang(f *testing.F) {
	for s, want := range map[string]string{"#!/bin/sh": "/bin/sh", "#! /bin/sh -e\nx": "/bin/sh", "#!/a\r\n": "/a\r", "": "", "#!": "", "ELF": ""} {
		if got := shebang([]byte(s)); got != want {
			f.Errorf("%q: %q, want %q", s, got, want)
		}
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s := shebang(b); strings.ContainsAny(s, " \t\n\x00") {
			t.Errorf("%q", s)
		}
	})
}

// A terminal is what the caller has: here, pipes of its own.
func TestTerminalKeepsSessionAndStreams(t *testing.T) {
	exe, _ := os.Executable()
	s := Spec{Path: exe, Args: []string{exe, "-test.run=^TestTerminalInner$", "-test.count=1", "-test.v"}, Dir: "/",
		Marker: marker(t), Env: []string{"DRAWBRIDGE_TEST_TERMINAL=1", "PATH=/usr/bin:/bin"}, Stdin: strings.NewReader("typed\n")}
	e, out, errs := run(t, s)
	if e.Code != 0 || !strings.Contains(out, "inner says typed") {
		t.Errorf("%+v\n%s\n%s", e, out, errs)
	}
}

func TestTerminalInner(t *testing.T) {
	if os.Getenv("DRAWBRIDGE_TEST_TERMINAL") == "" {
		t.Skip("runs inside TestTerminalKeepsSessionAndStreams")
	}
	s := shell(t, `read x; echo "inner says $x"; test "$(cut -d' ' -f5,6 /proc/$$/stat)" = "$WANT"`)
	sid, _ := unix.Getsid(0)
	s.Env = append(s.Env, fmt.Sprintf("WANT=%d %d", unix.Getpgrp(), sid))
	s.Terminal = true
	if e := wait(t, start(t, s)); e.Code != 0 {
		t.Errorf("not in the caller's group and session: %+v", e)
	}
}

// Ctrl-C reaches the process and not the helper, which still ends what is left;
// Ctrl-Z stops the process and CONT makes it go on.
func TestTerminalSignalsOfTheGroup(t *testing.T) {
	exe, _ := os.Executable()
	var out bytes.Buffer
	fw := &firstWrite{w: &out, seen: make(chan struct{})}
	// The outer shell stands for drawbridge's caller; its group is the terminal's.
	s := shell(t, "exec "+exe+" -test.run='^TestTerminalSignalsInner$' -test.count=1 -test.v")
	s.Env = append(s.Env, "DRAWBRIDGE_TEST_TERMINAL=1")
	s.Stdout, s.Stderr = fw, fw
	if e := wait(t, start(t, s)); e.Code != 0 {
		t.Errorf("%+v\n%s", e, out.String())
	}
}

func TestTerminalSignalsInner(t *testing.T) {
	if os.Getenv("DRAWBRIDGE_TEST_TERMINAL") == "" {
		t.Skip("runs inside TestTerminalSignalsOfTheGroup")
	}
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP)
	defer signal.Stop(ignored)
	file := filepath.Join(t.TempDir(), "pids")
	s := childSpec(marker(t), "setsid", "bg", "noterm", "note", file, "sleep")
	s.Terminal = true
	p := start(t, s)
	pid := pidsIn(t, file, 1)[0]
	state := func() byte {
		q, _ := lookup(p.PID())
		return q.state
	}
	until := func(what string, ok func() bool) {
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: state %c", what, state())
			}
		}
	}
	group := func(sig syscall.Signal) {
		if err := unix.Kill(-unix.Getpgrp(), sig); err != nil {
			t.Fatal(err)
		}
	}
	// SIGTSTP of an orphaned group is dropped by the kernel, so STOP stands for it.
	if err := unix.Kill(p.PID(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until("stops", func() bool { return state() == 'T' })
	group(unix.SIGCONT)
	until("goes on", func() bool { return state() == 'S' })
	group(unix.SIGTSTP)
	if h, _ := lookup(p.helper.Pid); h.state == 'T' {
		t.Error("the helper was stopped")
	}
	group(unix.SIGCONT)
	group(unix.SIGINT)
	if e := wait(t, p); e.Signal != "SIGINT" && e.Code != 2 || e.Ended || e.LostHelper || len(e.Leftovers) != 1 {
		t.Errorf("%+v", e)
	}
	if l := living([]int{pid}); len(l) > 0 {
		t.Errorf("alive: %v", describe(l))
	}
}

func BenchmarkTrue(b *testing.B) {
	for b.Loop() {
		p, err := Start(b.Context(), Spec{Path: "/bin/true", Args: []string{"true"}, Dir: "/", Marker: "bench-true", Stdout: io.Discard})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPlainTrue(b *testing.B) {
	for b.Loop() {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
	}
}
