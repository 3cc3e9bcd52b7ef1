package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

const (
	// lastWords is how long an answer may take to arrive that was written before
	// the server ended.
	lastWords = 5 * time.Millisecond
	// outgoing is how many messages may wait for a server that does not read.
	outgoing = 64
	// batch is how many bytes of waiting messages are written at once.
	batch = 64 << 10
)

// stdio is a server that is a child process: a message is a line (2025-11-25,
// basic/transports, "stdio").
type stdio struct {
	spec  *Spec
	proc  *proc.Process
	out   outbox
	noise noise
	dead  chan struct{} // closed with why set
	ended chan struct{} // nothing is left

	mu      sync.Mutex
	why     *Error
	waiting map[int64]*waiter
	listed  bool // a change of the list was noted
	chatted bool // a line that is no message was noted
}

// waiter is one request on its way.
type waiter struct {
	done     chan outcome // gets one value
	progress func([]byte)
}

type outcome struct {
	answer answer
	err    error
}

func startStdio(ctx context.Context, spec *Spec) (*stdio, error) {
	s := &stdio{
		spec: spec, dead: make(chan struct{}), ended: make(chan struct{}), waiting: map[int64]*waiter{},
		out:   outbox{messages: make(chan []byte, outgoing), shut: make(chan struct{}), broken: make(chan struct{})},
		noise: noise{to: spec.Stderr},
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p, err := proc.Start(context.WithoutCancel(ctx), proc.Spec{
		Path: spec.Command[0], Args: spec.Command, Env: spec.Env, Dir: spec.Dir, Marker: spec.Marker + "/" + rand.Text(),
		Stdin: &s.out, Stdout: &frames{max: spec.MaxMessage, line: s.line, over: s.over}, Stderr: &s.noise, Grace: spec.TermWait,
	})
	if err != nil {
		s.out.close()
		text := err.Error()
		if e, ok := errors.AsType[*proc.StartError](err); ok && e.Hint != "" {
			text += " (" + e.Hint + ")"
		}
		return nil, spec.fail(Unavailable, "can't be started: %s", spec.Mask(text))
	}
	s.proc = p
	go s.watch()
	return s, nil
}

// watch follows the server to its end.
func (s *stdio) watch() {
	defer close(s.ended)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_, _ = s.proc.Wait()
	}()
	select {
	case <-s.proc.Exited():
	case <-s.out.broken: // it lives and hears nothing any more
		s.abandon(s.spec.died("closed its standard input" + s.said()))
		s.proc.End()
		<-s.proc.Exited()
	}
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select { // for the answers that are in the pipe
	case <-waited:
	case <-t.C:
	}
	s.abandon(s.spec.died("ended (" + words(s.proc.Status()) + ")" + s.said()))
	s.out.close()
	<-waited
}

func words(code int, signal string) string {
	if signal != "" {
		return signal
	}
	return "exit code " + itoa(int64(code))
}

// said is the end of what the server wrote to standard error.
func (s *stdio) said() string {
	if last := s.spec.quote(s.noise.last()); last != "" {
		return "; it last said: " + last
	}
	return ""
}

func (s *stdio) lost() <-chan struct{} { return s.dead }

func (s *stdio) settle(string) {}

func (s *stdio) abandon(e *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return
	}
	s.why = e
	close(s.dead)
	for id, w := range s.waiting {
		delete(s.waiting, id)
		w.done <- outcome{err: e}
	}
}

func (s *stdio) close() {
	wait := s.spec.EOFWait
	if isLost(s) {
		wait = 0
	}
	s.abandon(s.spec.closedError())
	s.out.close()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-s.ended:
		return
	case <-t.C:
	}
	s.proc.End()
	<-s.ended
}

func (s *stdio) ask(ctx context.Context, r request) (answer, error) {
	w := &waiter{done: make(chan outcome, 1), progress: r.progress}
	s.mu.Lock()
	if s.why != nil {
		defer s.mu.Unlock()
		return answer{}, s.unsent()
	}
	s.waiting[r.id] = w
	s.mu.Unlock()
	if err := s.send(ctx, r.body); err != nil {
		s.forget(r.id)
		return answer{}, err
	}
	select {
	case got := <-w.done:
		return got.answer, got.err
	case <-ctx.Done():
	}
	if s.forget(r.id) && !r.quiet {
		select { // best effort: a server that does not read is not waited for
		case s.out.messages <- append(cancelled(r.id), '\n'):
		default:
		}
	}
	return answer{}, ctx.Err()
}

// unsent is why a link that is dead takes nothing. s.mu is held.
func (s *stdio) unsent() error {
	e := *s.why
	if e.Code == Died {
		e.Code, e.Message = Unavailable, "has ended: the call was not sent"
	}
	return &e
}

func (s *stdio) forget(id int64) (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was = s.waiting[id]
	delete(s.waiting, id)
	return was
}

func (s *stdio) tell(ctx context.Context, _ string, body []byte) error { return s.send(ctx, body) }

// send queues a message as one line. Line breaks in it stand between tokens: in
// strings JSON has them escaped.
func (s *stdio) send(ctx context.Context, body []byte) error {
	for i, c := range body {
		if c == '\n' || c == '\r' {
			body[i] = ' '
		}
	}
	select {
	case s.out.messages <- append(body, '\n'):
		return nil
	case <-s.dead:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.unsent()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// line takes one line of standard output.
func (s *stdio) line(b []byte, owned bool) {
	b = bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")))
	if len(b) == 0 {
		return
	}
	if (b[0] == '{' || b[0] == '[') && each(b, func(m message) { s.take(m, owned) }) {
		return
	}
	s.mu.Lock()
	first := !s.chatted
	s.chatted = true
	s.mu.Unlock()
	if first {
		s.spec.Note("writes to its standard output what is no message; it is kept with its errors: " + s.spec.quote(string(b[:min(len(b), call.MaxEcho)])))
	}
	_, _ = s.noise.Write(append(bytes.Clone(b[:min(len(b), batch)]), '\n'))
	// An answer that is broken is not waited for.
	var broken scan
	broken.feed(b)
	s.settleWith(broken.message(), func() outcome {
		return outcome{err: s.spec.fail(Malformed, "answered with what is no JSON")}
	})
}

func (s *stdio) take(m message, owned bool) {
	switch {
	case m.method == "":
		s.settleWith(m, func() outcome {
			a := m.answer()
			if !owned || cap(a.result) > 2*len(a.result)+batch {
				a.result = bytes.Clone(a.result)
			}
			if a.failure != nil {
				a.failure.data = bytes.Clone(a.failure.data)
			}
			return outcome{answer: a}
		})
	case m.id != nil:
		select { // a server that asks and does not read is not waited for
		case s.out.messages <- append(reply(m), '\n'):
		default:
		}
	case m.method == "notifications/tools/list_changed":
		s.mu.Lock()
		first := !s.listed
		s.listed = true
		s.mu.Unlock()
		if first {
			s.spec.Note(listChanged)
		}
	default:
		m.progress(func(id int64) func([]byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if w := s.waiting[id]; w != nil {
				return w.progress
			}
			return nil
		})
	}
}

const listChanged = "says that its list of tools has changed: this run keeps the one it began with"

// over takes what is left of a line that is too long.
func (s *stdio) over(sc *scan, size int64) {
	s.settleWith(sc.message(), func() outcome { return outcome{err: s.spec.tooLarge(size)} })
}

func (s *Spec) tooLarge(size int64) *Error {
	e := s.fail(TooLarge, "ran the call, and its result is larger than the %d bytes one may have", s.MaxMessage)
	if size > 0 {
		e.Message += " (" + itoa(size) + ")"
	}
	e.Message += ": it was left out"
	e.Size = size
	return e
}

// settleWith gives the request that m answers its reply. An answer to none, or a
// second one, is dropped.
func (s *stdio) settleWith(m message, with func() outcome) {
	id, ok := m.answers()
	if !ok {
		return
	}
	s.mu.Lock()
	w := s.waiting[id]
	delete(s.waiting, id)
	s.mu.Unlock()
	if w != nil {
		w.done <- with()
	}
}

// outbox is the standard input of a server. Whoever copies from it writes what is
// sent, several messages at once where they wait.
type outbox struct {
	messages chan []byte
	shut     chan struct{}
	broken   chan struct{} // closed when a write has failed
	once     sync.Once
}

func (o *outbox) close() { o.once.Do(func() { close(o.shut) }) }

// Read is for WriteTo to be an io.Reader's.
func (o *outbox) Read([]byte) (int, error) { return 0, io.EOF }

// WriteTo writes messages until the outbox is closed, then those that wait still.
func (o *outbox) WriteTo(w io.Writer) (total int64, err error) {
	var all []byte
	for open := true; open; {
		var m []byte
		select {
		case m = <-o.messages:
		case <-o.shut:
			open = false
		}
		all = append(all[:0], m...)
		for len(all) < batch {
			select {
			case m = <-o.messages:
				all = append(all, m...)
				continue
			default:
			}
			break
		}
		if len(all) == 0 {
			continue
		}
		n, err := w.Write(all)
		total += int64(n)
		if err != nil {
			close(o.broken)
			return total, err
		}
		if cap(all) > 4*batch {
			all = nil
		}
	}
	return total, nil
}

// noise is what a server writes beside its messages. It keeps the end.
type noise struct {
	to io.Writer

	mu  sync.Mutex
	end []byte
	cut bool // the beginning of the first line in end is missing
}

const maxNoise = 2 << 10

func (n *noise) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.to != nil {
		_, _ = n.to.Write(b)
	}
	n.cut = n.cut || len(b) > maxNoise
	n.end = append(n.end, b[max(0, len(b)-maxNoise):]...)
	if over := len(n.end) - maxNoise; over > 0 {
		n.end, n.cut = append(n.end[:0], n.end[over:]...), true
	}
	return len(b), nil
}

// last is the last line that says something. One without its beginning is none:
// it may begin with a part of a secret.
func (n *noise) last() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(n.end)), "\n")
	if n.cut && len(lines) == 1 {
		return ""
	}
	return lines[len(lines)-1]
}
