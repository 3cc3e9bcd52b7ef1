package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helperName is what a helper is called in the process table, and how a
// program sees that it was started as one.
const helperName = "drawbridge-helper"

// The descriptors a helper is started with, beside 0 and 1 (/dev/null) and 2,
// which is the status pipe once more: what a crash prints arrives there.
const (
	fdOrder  = 3 // the order, in memory
	fdDeath  = 4 // read end; a byte or its end says: end the tree
	fdStatus = 5 // write end; one report as JSON in a line
	fdChild  = 6 // what becomes the child's 0, 1, 2, ...
)

const (
	settleTime  = 100 * time.Millisecond // what ends by itself just after the process is no leftover
	shortGrace  = time.Second            // between TERM and KILL for leftovers, at most
	giveUpAfter = 10 * time.Second       // after the first KILL
)

// order is what the parent asks of a helper. Bytes, as no string of an exec
// needs to be valid text.
type order struct {
	Path, Dir []byte
	Args, Env [][]byte
	Fds       int // how many descriptors from fdChild on are the child's
	Grace     time.Duration
	Marker    []byte
	Terminal  bool
}

// report is what a helper tells the parent.
type report struct {
	Event     string   // see the constants
	PID       int      `json:",omitempty"`
	Errno     int      `json:",omitempty"`
	Code      int      `json:",omitempty"`
	Signal    string   `json:",omitempty"`
	Ended     bool     `json:",omitempty"`
	Leftovers []string `json:",omitempty"`
	Survivors []string `json:",omitempty"`
}

const (
	evStarted = "started" // PID
	evFailed  = "failed"  // Errno
	evExited  = "exited"  // Code, Signal
	evDone    = "done"    // Ended, Leftovers, Survivors; the last one
)

var helperSet atomic.Bool

// Helper must be the first line of main, and of TestMain where tests start
// processes. In a process that was started as a helper it does the helper's
// work and does not return; else it notes that this program is set up and
// returns at once.
func Helper() {
	if len(os.Args) > 0 && os.Args[0] == helperName {
		os.Exit(helperMain())
	}
	helperSet.Store(true)
}

// HelperReady reports whether Start can work: ErrNoHelper where this program
// has not called Helper, ErrUnsupported where the system lacks what ending a
// tree needs (process descriptors of Linux 5.3, and this process's own /proc).
func HelperReady() error {
	if !helperSet.Load() {
		return ErrNoHelper
	}
	return supported()
}

var supported = sync.OnceValue(func() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("%w 5.3 or newer: can't open a process descriptor: %w", ErrUnsupported, err)
	}
	unix.Close(fd)
	if self, err := filepath.EvalSymlinks("/proc/self"); err != nil || filepath.Base(self) != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w with the /proc of this process's own namespace mounted", ErrUnsupported)
	}
	return nil
})

// tree is the helper's view of what it looks after. All of it belongs to one
// goroutine: as that one alone reaps, the pid of a child it has not reaped is
// nobody else's.
type tree struct {
	order
	status    *json.Encoder
	main      int
	mainGone  bool
	ended     bool
	leftovers []string
}

// helperMain is a helper from start to end; the result is its exit code, 0
// when it has done what it could.
func helperMain() int {
	// The kernel sends PDEATHSIG when the thread that forked is gone, so this
	// goroutine keeps its thread until the process ends.
	runtime.LockOSThread()

	t := &tree{}
	f := os.NewFile(fdOrder, "order")
	b, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(b, &t.order)
	}
	if err != nil || t.Fds < 3 {
		fmt.Fprintf(os.Stderr, "%s is started by drawbridge, not by hand\n", helperName)
		return 2
	}
	f.Close()
	status := os.NewFile(fdStatus, "status")
	t.status = json.NewEncoder(status)
	// Whatever else this process was given, without close-on-exec too, ends here.
	if err := closeOnExec(fdOrder); err != nil {
		return t.failed(err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return t.failed(err)
	}
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, unix.SIGCHLD)
	t.swallowSignals()

	end := make(chan struct{})
	go func() {
		var b [1]byte
		for {
			if _, err := unix.Read(fdDeath, b[:]); err != unix.EINTR {
				break
			}
		}
		close(end)
	}()
	if err := t.start(); err != nil {
		return t.failed(err)
	}
	t.say(report{Event: evStarted, PID: t.main})
	t.say(report{Event: evDone, Survivors: t.watch(chld, end), Ended: t.ended, Leftovers: t.leftovers})
	return 0
}

func (t *tree) failed(err error) int {
	errno := unix.EINVAL
	errors.As(err, &errno)
	t.say(report{Event: evFailed, Errno: int(errno)})
	return 0
}

// say reports to the parent, if it is still there.
func (t *tree) say(r report) { _ = t.status.Encode(r) }

// swallowSignals makes the helper deaf to what can be sent to a group or by
// name. Handlers do that, not SIG_IGN: a handler becomes the default in the
// child, while SIG_IGN would stay, also one this process has inherited. At a
// terminal what the caller ignores stays ignored, as nohup means it.
func (t *tree) swallowSignals() {
	deaf := make(chan os.Signal, 1)
	for s := syscall.Signal(1); s <= 64; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP || t.Terminal && signal.Ignored(s) {
			continue
		}
		signal.Notify(deaf, s)
	}
	if !t.Terminal {
		for s := syscall.Signal(32); s <= 34; s++ {
			unignore(s)
		}
	}
}

// unignore gives an ignored signal its default disposition back. It is for the
// ones os/signal leaves alone because C libraries use them inside
// (signal(7): 32, 33, and 34 with some).
func unignore(s syscall.Signal) {
	// The kernel's struct sigaction; the size of its mask is the last argument.
	var act, zero struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const ignored, maskSize = 1, 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&act)), maskSize, 0, 0)
	if errno == 0 && act.handler == ignored {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&zero)), 0, maskSize, 0, 0)
	}
}

// closeOnExec marks every descriptor from first on.
func closeOnExec(first int) error {
	if unix.CloseRange(uint(first), ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	// Before Linux 5.11.
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// start starts the process and lets go of its descriptors.
func (t *tree) start() error {
	var none unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil); err != nil {
		return err
	}
	attr := &syscall.ProcAttr{
		Dir: string(t.Dir),
		Env: texts(t.Env),
		Sys: &syscall.SysProcAttr{Setsid: !t.Terminal, Pdeathsig: unix.SIGKILL},
	}
	for i := range t.Fds {
		attr.Files = append(attr.Files, uintptr(fdChild+i))
	}
	var err error
	for range 20 {
		t.main, err = syscall.ForkExec(string(t.Path), texts(t.Args), attr)
		if err != unix.ETXTBSY {
			break
		}
		// A file that was just written may still be open in a fork of the
		// writer that has not come to its exec (golang/go#22315).
		time.Sleep(10 * time.Millisecond)
	}
	for i := range t.Fds {
		unix.Close(fdChild + i)
	}
	return err
}

// watch looks after the tree until nothing of it is left, and returns what
// could not be ended.
func (t *tree) watch(chld <-chan os.Signal, end <-chan struct{}) (survivors []string) {
	var settleAt, killAt, giveUpAt time.Time // zero is never
	settled := false
	pause := time.Millisecond
	for {
		if t.reap() {
			return t.outside()
		}
		now := time.Now()
		if t.mainGone && !settled && settleAt.IsZero() {
			settleAt = now.Add(settleTime)
		}
		if due(settleAt, now) {
			settled, settleAt = true, time.Time{}
			t.noteLeftovers()
			if killAt.IsZero() {
				t.signalAll(unix.SIGTERM)
			}
			killAt = sooner(killAt, now.Add(min(shortGrace, t.Grace)))
		}
		if due(killAt, now) {
			if giveUpAt.IsZero() {
				giveUpAt = now.Add(giveUpAfter)
			}
			left := t.signalAll(unix.SIGKILL)
			if now.After(giveUpAt) {
				return left
			}
			// Again, for what was born since: soon at first, seldom when
			// something can't die.
			killAt = now.Add(pause)
			pause = min(2*pause, 20*time.Millisecond)
		}
		var timer <-chan time.Time
		if next := sooner(settleAt, killAt); !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-chld:
		case <-timer:
		case <-end:
			end = nil
			t.reap()
			t.ended = !t.mainGone
			if killAt.IsZero() {
				t.signalAll(unix.SIGTERM)
				killAt = time.Now().Add(t.Grace)
			}
		}
	}
}

func due(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// reap collects every child that has ended and reports whether none is left.
// A process whose parent ends becomes a child of this one, so then the tree is
// dead, whatever its processes did to get away.
func (t *tree) reap() (none bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return true
		case pid == 0:
			return false
		case pid == t.main && !t.mainGone:
			t.mainGone = true
			r := report{Event: evExited, Code: ws.ExitStatus()}
			if ws.Signaled() {
				r.Code, r.Signal = 128+int(ws.Signal()), signalName(ws.Signal())
			}
			t.say(r)
		}
	}
}

func signalName(s unix.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return "SIG" + strconv.Itoa(int(s))
}

// signalAll sends sig to everything below this process and returns the names
// of what was there.
func (t *tree) signalAll(sig unix.Signal) (names []string) {
	all, set, err := descendants(os.Getpid())
	if err != nil {
		return []string{err.Error()}
	}
	// Below a subreaper a process keeps an ancestor in the set while it lives.
	ours := func(now info) bool { return set[now.ppid] }
	for _, p := range all {
		if err := p.signal(sig, ours); err != unix.ESRCH && len(names) < maxNames {
			names = append(names, fmt.Sprintf("%s (pid %d)", printable(p.name), p.pid))
		}
	}
	return names
}

func (t *tree) noteLeftovers() {
	all, _, _ := descendants(os.Getpid())
	for _, p := range all {
		t.addLeftover(p.name)
	}
}

func (t *tree) addLeftover(name string) {
	if len(t.leftovers) < maxNames {
		t.leftovers = append(t.leftovers, printable(name))
	}
}

// outside kills what carries the marker and is not below this process, such as
// what a server of the user's started on a process's behalf.
func (t *tree) outside() (survivors []string) {
	if !anyMarked(string(t.Marker)) {
		return nil
	}
	var buf []byte
	killed, err := sweep(func(p info) bool { return p.marked(string(t.Marker), &buf) })
	for _, v := range killed {
		t.addLeftover(v.name)
	}
	if err != nil {
		survivors = []string{err.Error()}
	}
	return survivors
}

func texts(bs [][]byte) []string {
	out := make([]string, len(bs))
	for i, b := range bs {
		out[i] = string(b)
	}
	return out
}

func bytesOf(ss []string) [][]byte {
	out := make([][]byte, len(ss))
	for i, s := range ss {
		out[i] = []byte(s)
	}
	return out
}
