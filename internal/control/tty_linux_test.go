package control

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// sitting is what a child does at a terminal of its own.
func sitting(file string) {
	t, err := OpenTerminal()
	must(err)
	answered := make(chan string, 1)
	t.Text = func(q approve.Question) string { return "question " + q.ID }
	t.Answer = func(_ context.Context, id string, a approve.Answer) error {
		answered <- fmt.Sprintf("%s %v %q", id, a.Yes, a.Note)
		return nil
	}
	t.Ask(question)
	text := <-answered
	t.Close()
	t.Close()
	note(file, text)
}

// pty opens a terminal and gives both its ends.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := control(raw, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	}); err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// screen is what a terminal has shown.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) follow(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) until(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(s.String(), what); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in %q", what, s)
		}
	}
}

func TestRealTerminal(t *testing.T) {
	master, slave := pty(t)
	file := filepath.Join(t.TempDir(), "said")
	// Typed ahead, whole lines and half a one.
	if _, err := master.WriteString("y\nr\ny"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{childName, "terminal", file}, slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var s screen
	done := make(chan struct{})
	go func() { s.follow(master); close(done) }()
	s.until(t, "n REASON")
	if _, err := master.WriteString("n not now\n"); err != nil {
		t.Fatal(err)
	}
	s.until(t, "denied Q1")
	if got := said(t, file); got != `Q1 false "not now"` {
		t.Errorf("answered %s; screen %q", got, &s)
	}
	_ = slave.Close()
	_ = cmd.Wait()
	<-done
}

// A process in the background is not stopped by its question, and takes nothing
// of what is typed for others.
func TestRealTerminalInTheBackground(t *testing.T) {
	master, slave := pty(t)
	file := filepath.Join(t.TempDir(), "said")
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{childName, "behind", "terminal", file}, slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var s screen
	done := make(chan struct{})
	go func() { s.follow(master); close(done) }()
	s.until(t, "n REASON")
	if _, err := master.WriteString("y\n"); err != nil {
		t.Fatal(err)
	}
	s.until(t, "foreground now")
	// What was typed meanwhile is dropped at the first look, which may drop this
	// too: typed again until it counts.
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.String(), "denied Q1") && time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		_, _ = master.WriteString("n\n")
	}
	if got := said(t, file); got != `Q1 false ""` {
		t.Errorf("answered %s; screen %q", got, &s)
	}
	_ = slave.Close()
	_ = cmd.Wait()
	<-done
}

// behind starts the rest in the background of the terminal, and a second later
// brings it to the foreground.
func behind(rest []string) {
	attr := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	p := spawn(attr, rest)
	time.Sleep(time.Second + readingTime)
	must(unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, p.Pid))
	fmt.Println("foreground now")
	_, _ = p.Wait()
}

// Code of a run can make a terminal, start a run there, and type.
func TestTerminalOfARunIsNotAsked(t *testing.T) {
	_, slave := pty(t)
	cmd := exec.Command("/proc/self/exe")
	var said bytes.Buffer
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{childName, "terminal", "/nowhere"}, slave, &said, &said
	cmd.Env = append(os.Environ(), proc.MarkerEnv+"=r1/x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	stop := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), ErrRefused.Error()+": this process belongs to run r1/x") {
		t.Errorf("%q, %v", &said, err)
	}
}

func TestNoTerminal(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.SysProcAttr = []string{childName, "terminal", "/nowhere"}, &syscall.SysProcAttr{Setsid: true}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "/dev/tty") {
		t.Errorf("%q, %v", out, err)
	}
}
