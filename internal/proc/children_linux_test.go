package proc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// childName makes the test binary a child that misbehaves as its arguments say.
const childName = "proc-test-child"

func TestMain(m *testing.M) {
	Helper()
	if os.Args[0] == childName {
		child(os.Args[1:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child does one thing after the other. Those that start another child give it
// all that follows.
func child(ops []string) {
	attr := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{}}
	for i, op := range ops {
		rest := ops[i+1:]
		switch op {
		case "noterm": // ignores what can be ignored
			signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
		case "subreaper": // keeps its orphans to itself
			must(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		case "setsid": // the next child
			attr.Sys.Setsid = true
		case "bare": // the next child has no environment
			attr.Env = []string{}
		case "closed": // the next child has no pipes, and another folder
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			must(err)
			attr.Files, attr.Dir = []*os.File{null, null, null}, "/"
		case "bg": // starts the rest, waits for nothing and goes on living
			spawn(attr, rest)
			nap()
			return
		case "leave": // starts the rest and ends
			spawn(attr, rest)
			return
		case "note": // appends its pid to a file, whose name follows
			f, err := os.OpenFile(rest[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			must(err)
			fmt.Fprintln(f, os.Getpid())
			f.Close()
			child(rest[1:])
			return
		case "stop":
			must(unix.Kill(os.Getpid(), unix.SIGSTOP))
			nap() // another thread may take the signal
		case "sleep":
			nap()
		case "embed": // a program that starts a tree: marker, then the tree's ops
			p, err := Start(context.Background(), childSpec(rest[0], rest[1:]...))
			must(err)
			fmt.Println(p.PID())
			_, err = p.Wait()
			must(err)
			return
		default:
			fmt.Fprintln(os.Stderr, "no such thing to do:", op)
			os.Exit(99)
		}
	}
}

func nap() { time.Sleep(2 * time.Minute) }

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
}

func spawn(attr *os.ProcAttr, ops []string) {
	_, err := os.StartProcess("/proc/self/exe", append([]string{childName}, ops...), attr)
	must(err)
}

func childSpec(marker string, ops ...string) Spec {
	exe, err := os.Executable()
	must(err)
	return Spec{Path: exe, Args: append([]string{childName}, ops...), Env: []string{"PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"},
		Dir: os.TempDir(), Marker: marker, Grace: 300 * time.Millisecond}
}

func shell(t *testing.T, script string) Spec {
	return Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Dir: "/", Marker: marker(t), Grace: 300 * time.Millisecond}
}

// marker is another one for every run of a test.
func marker(t *testing.T) string {
	return t.Name() + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

func start(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.End(); wait(t, p) })
	return p
}

// wait waits, and checks what holds for every tree after Wait.
func wait(t *testing.T, p *Process) Exit {
	t.Helper()
	type end struct {
		exit Exit
		err  error
	}
	got := make(chan end, 1)
	go func() {
		e, err := p.Wait()
		got <- end{e, err}
	}()
	select {
	case e := <-got:
		if e.err != nil {
			t.Error(e.err)
		}
		if pids := Alive(p.spec.Marker); len(pids) > 0 {
			t.Errorf("alive after Wait: %v", describe(pids))
		}
		select {
		case <-p.Exited():
		default:
			t.Error("Exited is open after Wait")
		}
		return e.exit
	case <-time.After(time.Minute):
		t.Fatalf("Wait hangs; alive: %v", describe(Alive(p.spec.Marker)))
		panic("unreachable")
	}
}

func describe(pids []int) (out []string) {
	for _, pid := range pids {
		p, _ := lookup(pid)
		out = append(out, fmt.Sprintf("%+v", p))
	}
	return out
}

// run runs s to its end with both outputs collected.
func run(t *testing.T, s Spec) (Exit, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	s.Stdout, s.Stderr = &out, &errs
	p := start(t, s)
	e := wait(t, p)
	return e, out.String(), errs.String()
}

// pidsIn waits until the file has n process ids.
func pidsIn(t *testing.T, file string, n int) []int {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		b, _ := os.ReadFile(file)
		if f := strings.Fields(string(b)); len(f) >= n && bytes.HasSuffix(b, []byte("\n")) {
			pids := make([]int, len(f))
			for i, s := range f {
				pids[i], _ = strconv.Atoi(s)
			}
			return pids
		}
	}
	t.Fatalf("%s has no %d process ids", file, n)
	return nil
}

func living(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		p, ok := lookup(pid)
		return !ok || p.dead()
	})
}

// gone waits until none of the processes is alive.
func gone(t *testing.T, pids func() []int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for len(pids()) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("alive: %v", describe(pids()))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// firstWrite closes seen at the first byte.
type firstWrite struct {
	w    io.Writer
	seen chan struct{}
	done bool
}

func (f *firstWrite) Write(b []byte) (int, error) {
	if !f.done {
		f.done = true
		close(f.seen)
	}
	return f.w.Write(b)
}
