package session

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

func init() { sit = sitting }

// sitting is a run at a terminal: what its code can reach of it, and where it asks.
func sitting() {
	must := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	reach := func(who string, f func() error) { fmt.Printf("%s: %v\n", who, f() == nil) }
	reach("the process itself", func() error {
		f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
		}
		return err
	})
	tmp, err := os.MkdirTemp("", "sit")
	must(err)
	defer os.RemoveAll(tmp)
	base := Config{
		StateDir: filepath.Join(tmp, "state"), Folder: tmp, Builtins: Builtins(), Allow: []string{"write_file", "execute_command"},
		Ask: []string{"write_file"}, SandboxOff: true, Approvals: Approvals{SameUser: true, Terminal: true, Expiry: 20 * time.Second},
	}
	s, err := New(context.Background(), base)
	must(err)
	fmt.Println("asks at the terminal:", s.desk.terminal != nil)
	call := func() chan string {
		done := make(chan string, 1)
		go func() {
			res, err := s.Call(context.Background(), "write_file", []byte(writeA))
			must(err)
			done <- res.Content[0].Text
		}()
		for len(s.desk.desk.Pending()) == 0 {
			time.Sleep(time.Millisecond)
		}
		return done
	}
	elsewhere := call()
	time.Sleep(100 * time.Millisecond) // it is shown
	must(s.desk.desk.Answer(context.Background(), s.desk.desk.Pending()[0].ID, approve.Answer{By: "elsewhere"}))
	fmt.Println("answered elsewhere:", <-elsewhere)
	typed := call()
	fmt.Println("type now")
	fmt.Println("typed:", <-typed)
	reach("a shell of a tool", func() error {
		res, err := s.Call(context.Background(), "execute_command", []byte(`{"cmd":"exec 3<>/dev/tty || exit 1; echo open"}`))
		must(err)
		if strings.Contains(res.Content[0].Text, "open\n") {
			return nil
		}
		return errors.New(res.Content[0].Text)
	})
	must(s.Close())
	base.Program = &Program{Path: "/bin/sh", Args: []string{"sh", "-c", "exec 3<>/dev/tty"}}
	s, err = New(context.Background(), base)
	must(err)
	fmt.Println("asks at the terminal it shares:", s.desk.terminal != nil)
	reach("a program", func() error {
		code, _, err := s.RunProgram(context.Background())
		if err == nil && code != 0 {
			err = errors.New(strconv.Itoa(code))
		}
		return err
	})
	base.Program, base.Approvals.Terminal = nil, false
	s, err = New(context.Background(), base)
	must(err)
	fmt.Println("asks where it was not to:", s.desk.terminal != nil)
	must(s.Close())
	signal.Ignore(syscall.SIGHUP)
	must(unix.IoctlSetInt(0, unix.TIOCNOTTY, 0))
	base.Approvals.Terminal = true
	s, err = New(context.Background(), base)
	must(err)
	fmt.Println("asks at no terminal:", s.desk.terminal != nil)
	must(s.Close())
	fmt.Println("left behind:", goleak.Find(goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop")))
}

// A person is asked at the terminal and may type there. Code of the run can't; and
// where it could, nobody is asked.
func TestAtATerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	defer master.Close()
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed == nil {
			n, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || failed != nil {
		t.Skip("no terminal can be made here: ", err, failed)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made here: ", err)
	}
	defer slave.Close()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe)
	c.Env = append(os.Environ(), envChild+"=sit")
	c.Stdin = slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		var b bytes.Buffer
		_, _ = io.Copy(&b, master) // until the last one closes the other end
		shown <- b.String()
	}()
	var out strings.Builder
	stop := make(chan struct{})
	for in := bufio.NewScanner(stdout); in.Scan(); {
		fmt.Fprintln(&out, in.Text())
		switch {
		case in.Text() == "type now":
			go func() { // what comes before the question can be read is dropped
				for {
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Millisecond):
						_, _ = master.WriteString("y\n")
					}
				}
			}()
		case strings.HasPrefix(in.Text(), "typed:"):
			close(stop)
		}
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	_ = slave.Close()
	screen := next(t, shown, "the terminal")
	for _, want := range []string{"was answered by elsewhere: denied", "may this call run?", "drawbridge: approved "} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q on the screen:\n%s", want, screen)
		}
	}
	for _, want := range []string{
		"the process itself: true", "asks at the terminal: true", "a shell of a tool: false",
		"asks at the terminal it shares: false", "a program: true", "answered elsewhere: refused: a person was asked about this call and said no",
		"typed: created a.txt (1 bytes)", "asks where it was not to: false", "asks at no terminal: false", "left behind: <nil>",
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
