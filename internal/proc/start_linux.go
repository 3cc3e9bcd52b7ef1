package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultGrace = 3 * time.Second
	startLimit   = 30 * time.Second // a helper says in milliseconds how it went
	helperMargin = 15 * time.Second // beyond Grace, until a helper that does not end is killed
	drainTime    = time.Second      // for output in a pipe that somebody holds open
	writerLimit  = 10 * time.Second // for a Stdout or Stderr that blocks
)

// Process is a started process with everything below it. Its methods may be
// called from any goroutine.
type Process struct {
	spec   Spec
	pid    int
	helper *os.Process
	death  *os.File // closed says: end the tree

	mu      sync.Mutex
	ending  bool
	killer  *time.Timer // kills a helper that does not end
	over    bool        // the helper is gone
	noise   []byte      // what the helper printed and is no report
	done    *report     // the helper's last word
	started chan error  // gets one value
	exited  chan struct{}

	finished chan struct{} // then exit and err are set
	exit     Exit
	err      error
}

// Start starts what s says. When ctx is done the tree is ended as by End; that
// holds until Wait returns. Whoever starts a process must call Wait.
//
// The error is ErrNoHelper, ErrUnsupported, the cause of a ctx that is done
// already, a *StartError where the process could not be started, or says which
// field of s is wrong.
func Start(ctx context.Context, s Spec) (*Process, error) {
	if err := HelperReady(); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if s.Grace == 0 {
		s.Grace = defaultGrace
	}
	p := &Process{
		spec:     s,
		exit:     Exit{Code: 128 + int(unix.SIGKILL), Signal: "SIGKILL"},
		started:  make(chan error, 1),
		exited:   make(chan struct{}),
		finished: make(chan struct{}),
	}
	pl, err := newPlumbing(&s)
	if err != nil {
		pl.close()
		return nil, &StartError{Message: "can't prepare " + s.Path + ": " + err.Error(), Err: err}
	}
	// Only the marker: the helper needs nothing of the environment, and its own
	// is readable for as long as it lives. Under the race detector it would
	// sleep for a second before it exits.
	p.helper, err = os.StartProcess("/proc/self/exe", []string{helperName}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{MarkerEnv + "=" + s.Marker, "GOMAXPROCS=2", "GORACE=atexit_sleep_ms=0"},
		Files: pl.helperFiles(),
		Sys:   &syscall.SysProcAttr{Setsid: !s.Terminal},
	})
	closeAll(pl.theirs)
	if err != nil {
		pl.close()
		return nil, &StartError{Message: "can't start the process helper: " + err.Error(),
			Hint: "the system may be short of memory or processes", Err: err}
	}
	p.death = pl.death
	unhook := context.AfterFunc(ctx, p.End)
	go p.watch(pl, unhook)

	limit := time.AfterFunc(startLimit, func() { _ = p.helper.Kill() })
	defer limit.Stop()
	if err := <-p.started; err != nil {
		<-p.finished
		return nil, err
	}
	return p, nil
}

// PID is the process id of the process itself. It may be another's once Exited
// is closed.
func (p *Process) PID() int { return p.pid }

// Exited is closed when the process itself has ended. What it started may live
// on for the grace, and output may still come; Wait waits for both.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status is how the process itself ended, for whoever can't wait for the rest: exit
// code, or 128+signal and the signal's name. It is known once Exited is closed.
func (p *Process) Status() (code int, signal string) {
	select {
	case <-p.exited:
		return p.exit.Code, p.exit.Signal
	default:
		return 0, ""
	}
}

// End begins to end the tree and returns at once: TERM to every process of it,
// and KILL after the grace, or at most 1 s after the process itself is gone,
// until none is left. Ending again, or after the end, does nothing.
func (p *Process) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending || p.over {
		return
	}
	p.ending = true
	p.killer = time.AfterFunc(p.spec.Grace+helperMargin, func() { _ = p.helper.Kill() })
	// The byte arrives even while a fork of this process, on its way to
	// another program, still holds a copy of the pipe.
	_, _ = p.death.Write([]byte{0})
	_ = p.death.Close()
	// Somebody of the same user may have stopped it.
	_ = p.helper.Signal(unix.SIGCONT)
}

// Wait returns when every process of the tree is dead and the output is
// delivered. A process that fails is no error. The error says what could not
// be ended, or that Stdout or Stderr blocked for 10 s after the end. After an
// End, Wait returns in Grace and about 30 s even if nothing goes as it should.
func (p *Process) Wait() (Exit, error) {
	<-p.finished
	return p.exit, p.err
}

// watch follows the helper to its end and cleans up.
func (p *Process) watch(pl *plumbing, unhook func() bool) {
	defer close(p.finished)
	var feeding, copying sync.WaitGroup
	for _, c := range pl.inputs {
		feeding.Go(c.feed)
	}
	for _, c := range pl.outputs {
		copying.Go(c.copy)
	}
	reports := make(chan struct{})
	go func() {
		defer close(reports)
		l := NewLines(64<<10, p.note)
		_, _ = io.Copy(l, pl.status)
		_ = l.Close()
	}()

	// The exit of the helper counts, not the end of the status pipe, as others
	// of the same user could open and hold that.
	state, waitErr := p.helper.Wait()
	unhook()
	p.mu.Lock()
	p.over = true
	if p.killer != nil {
		p.killer.Stop()
	}
	_ = p.death.Close()
	p.mu.Unlock()

	pl.status.SetReadDeadline(time.Now().Add(drainTime))
	<-reports
	pl.status.Close()

	// An embedder may reap its children itself, and then there is no state.
	lost := p.done == nil || waitErr == nil && !state.Success()
	alive := true
	select {
	case <-p.exited:
		alive = false
	default:
	}
	var errs []error
	select {
	case p.started <- p.lostError(state):
		// Never started; whoever did start unnoticed is swept.
	default:
	}
	if lost {
		p.exit.LostHelper, p.exit.Ended = true, p.ending && alive
		errs = append(errs, p.sweepLost(alive))
	}
	if p.done != nil {
		p.exit.Ended, p.exit.Leftovers = p.done.Ended, append(p.done.Leftovers, p.exit.Leftovers...)
		if len(p.done.Survivors) > 0 {
			errs = append(errs, fmt.Errorf("still alive after KILL: %s", strings.Join(p.done.Survivors, ", ")))
		}
	}
	if alive {
		close(p.exited)
	}
	for _, c := range pl.inputs {
		c.pipe.Close()
	}
	within(&feeding, drainTime)
	for _, c := range pl.outputs {
		c.pipe.SetReadDeadline(time.Now().Add(drainTime))
	}
	if !within(&copying, drainTime+writerLimit) {
		errs = append(errs, errors.New("what reads the process's output has been blocked for 10 s after its end"))
	}
	p.err = errors.Join(errs...)
}

// note takes one line of the status pipe. It runs in the goroutine that watch
// waits for before it looks at what note has set.
func (p *Process) note(line []byte, cut bool) {
	var r report
	if cut || json.Unmarshal(line, &r) != nil {
		if len(p.noise) < 4096 {
			p.noise = append(append(p.noise, line[:min(len(line), 1024)]...), '\n')
		}
		return
	}
	switch r.Event {
	case evStarted:
		if p.pid == 0 {
			p.pid = r.PID
			p.tell(nil)
		}
	case evFailed:
		p.done = &r
		p.tell(explain(p.spec, unix.Errno(r.Errno)))
	case evExited:
		select {
		case <-p.exited:
		default:
			p.exit.Code, p.exit.Signal = r.Code, r.Signal
			close(p.exited)
		}
	case evDone:
		p.done = &r
	}
}

// tell gives Start its answer; only the first counts.
func (p *Process) tell(err error) {
	select {
	case p.started <- err:
	default:
	}
}

func (p *Process) lostError(state *os.ProcessState) error {
	how := "is gone"
	if state != nil {
		how = "ended with " + state.String()
	}
	msg := "can't start " + p.spec.Path + ": the process helper " + how
	if n := strings.TrimSpace(string(p.noise)); n != "" {
		msg += ": " + printable(n)
	}
	return &StartError{Message: msg, Err: errors.New("lost helper"),
		Hint: "the program must call Helper as the very first thing in main"}
}

// sweepLost ends what a killed helper has left. The kernel has killed the
// process itself (PDEATHSIG); the rest is found by the marker, by ancestry,
// and by the session of the process if that was still there.
func (p *Process) sweepLost(alive bool) error {
	session := 0
	if alive && !p.spec.Terminal {
		session = p.pid
	}
	var buf []byte
	killed, err := sweep(func(q info) bool {
		return session != 0 && (q.sid == session || q.pid == session) || q.marked(p.spec.Marker, &buf)
	})
	for _, v := range killed {
		if v.pid != p.pid && len(p.exit.Leftovers) < maxNames {
			p.exit.Leftovers = append(p.exit.Leftovers, v.name)
		}
	}
	return err
}

// within waits for g, at most d.
func within(g *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

func (s *Spec) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("can't start %s: "+format, append([]any{s.Path}, args...)...)
	}
	switch {
	case !filepath.IsAbs(s.Path):
		return fmt.Errorf("can't start %q: the path is not absolute", s.Path)
	case len(s.Args) == 0:
		return bad("there is no argument 0")
	case !filepath.IsAbs(s.Dir):
		return bad("its working directory %q is not absolute", s.Dir)
	case s.Marker == "":
		return bad("it has no marker")
	case s.Grace < 0:
		return bad("its grace %v is negative", s.Grace)
	case s.Terminal && (s.Stdin != nil || s.Stdout != nil || s.Stderr != nil):
		return bad("a process at the terminal has the caller's standard streams")
	}
	for i, a := range s.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return bad("argument %d has a NUL byte", i)
		}
	}
	for _, e := range s.Env {
		if strings.IndexByte(e, 0) >= 0 {
			name, _, _ := strings.Cut(e, "=")
			return bad("environment variable %q has a NUL byte", name)
		}
	}
	if strings.IndexByte(s.Path+s.Dir+s.Marker, 0) >= 0 {
		return bad("path, working directory or marker has a NUL byte")
	}
	return nil
}

// order is s as the helper reads it.
func (s *Spec) order() ([]byte, error) {
	env := make([]string, 0, len(s.Env)+1)
	for _, e := range s.Env {
		if !strings.HasPrefix(e, MarkerEnv+"=") {
			env = append(env, e)
		}
	}
	return json.Marshal(order{
		Path: []byte(s.Path), Dir: []byte(s.Dir), Args: bytesOf(s.Args),
		Env: bytesOf(append(env, MarkerEnv+"="+s.Marker)), Fds: 3 + len(s.Files),
		Grace: s.Grace, Marker: []byte(s.Marker), Terminal: s.Terminal,
	})
}
