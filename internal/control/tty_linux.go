package control

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// pollTime is how long a Read of the terminal waits before it looks whether it
// is still wanted, in milliseconds.
const pollTime = 200

// HasTerminal reports whether OpenTerminal would open one.
func HasTerminal() bool {
	t, err := OpenTerminal()
	if err != nil {
		return false
	}
	_ = t.In.(io.Closer).Close()
	return true
}

// OpenTerminal opens the controlling terminal of this process. The error is the
// system's where there is none, and has ErrRefused in its chain where this process
// belongs to a run: whoever started it may hold the terminal's other end. The
// caller sets Text and Answer, and closes it. Whether a person watches it is for
// the caller to tell, by where its own standard error goes.
func OpenTerminal() (*Terminal, error) {
	o, err := proc.OriginOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	if o.Run != "" {
		return nil, refusal("this process belongs to run %s, whose code could type", o.Run)
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t := &tty{f: f, fd: int(f.Fd())}
	return &Terminal{In: t, Out: f, Flush: t.flush}, nil
}

// tty reads from a terminal only while this process is in its foreground: a read
// from the background would stop the whole process.
type tty struct {
	f  *os.File
	fd int

	mu     sync.Mutex
	closed bool
	stale  bool // what was typed came before a question, or was for others
}

func (t *tty) Read(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, io.EOF
	}
	ready := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ready, pollTime); n == 0 || err != nil {
		return 0, notInterrupted(err)
	}
	if !t.foreground() {
		t.stale = true
		time.Sleep(pollTime * time.Millisecond)
		return 0, nil
	}
	if t.stale {
		t.stale = false
		t.drop()
		return 0, nil
	}
	n, err := unix.Read(t.fd, b)
	if err != nil {
		return 0, notInterrupted(err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func notInterrupted(err error) error {
	if err == unix.EINTR || err == unix.EAGAIN {
		return nil
	}
	return err
}

// Close waits for a Read under way, which takes no longer than its poll.
func (t *tty) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	return t.f.Close()
}

func (t *tty) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
	case t.foreground():
		t.stale = false
		t.drop()
	default:
		t.stale = true
	}
}

func (t *tty) drop() { _ = unix.IoctlSetInt(t.fd, unix.TCFLSH, unix.TCIFLUSH) }

func (t *tty) foreground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
