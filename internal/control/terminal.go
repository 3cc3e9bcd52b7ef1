package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

const (
	readingTime = 500 * time.Millisecond // between showing a question and taking an answer
	maxTyped    = 8 << 10                // bytes of a line
)

// Terminal shows questions where a person sits, one at a time, and takes what
// the person types: `y`, `n` with or without a reason, or `r`, which is a yes
// that holds for the same call in the rest of the run. A question may be
// answered elsewhere meanwhile.
//
// Only what was typed after a question was shown counts: what arrives in its
// first half second is dropped, as nobody can have read it by then.
//
// It is for a run whose agent has no terminal (`drawbridge run`). The program of
// `drawbridge exec` shares the caller's, and could type: no Terminal there. What
// an agent writes must reach Out only in lines that begin with something of ours,
// and Text sees to that for a question.
//
// The fields must be set before the first call, and not be changed after. Ask,
// Settled and Close may be called from any goroutine.
type Terminal struct {
	// In is read from one goroutine, and only while a question waits for its
	// answer. A Read may return nothing without an error.
	In  io.Reader
	Out io.Writer
	// Flush drops what was typed and not read yet; nil where nothing can be.
	Flush func()
	// Text is what is shown of a question. It ends its lines itself, but the last.
	Text func(approve.Question) string
	// Answer takes the person's answer to the desk.
	Answer func(ctx context.Context, id string, a approve.Answer) error

	once    sync.Once
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // the queue has changed
	typed   chan []byte
	want    chan struct{} // lets the reader begin
	reading atomic.Bool
	ended   bool           // nothing more is typed; of the goroutine that shows
	loops   sync.WaitGroup // the one that shows, and a reader that can be stopped

	mu      sync.Mutex
	queue   []approve.Question // the first is being shown where shown is true
	shown   bool
	settled *approve.Question // the one being shown, when it was settled elsewhere
}

const endedText = "nothing can be typed here any more: answer with drawbridge approve or drawbridge deny"

func (t *Terminal) start() {
	t.once.Do(func() {
		t.ctx, t.cancel = context.WithCancel(context.Background())
		t.wake, t.want, t.typed = make(chan struct{}, 1), make(chan struct{}, 1), make(chan []byte, 16)
		t.loops.Go(t.show)
		if _, ok := t.In.(io.Closer); ok {
			t.loops.Go(t.read)
		} else {
			go t.read()
		}
	})
}

// Ask queues a question. It does not block.
func (t *Terminal) Ask(q approve.Question) {
	t.start()
	t.mu.Lock()
	t.queue = append(t.queue, q)
	t.mu.Unlock()
	poke(t.wake)
}

// Settled takes a question away, and says how it was settled where it is the one
// being shown. It does not block. It may be called for a question that was
// answered here, or was never asked here.
func (t *Terminal) Settled(q approve.Question) {
	t.start()
	t.mu.Lock()
	for i, have := range t.queue {
		if have.ID != q.ID {
			continue
		}
		if i == 0 && t.shown {
			t.settled = &q
		} else {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
		}
		break
	}
	t.mu.Unlock()
	poke(t.wake)
}

// Close shows and takes nothing more. Where In can be closed it is, and Close
// returns when it is no longer read; but it waits for no longer than a second,
// as a terminal that was stopped with Ctrl-S takes nothing.
func (t *Terminal) Close() {
	t.start()
	t.cancel()
	if c, ok := t.In.(io.Closer); ok {
		_ = c.Close()
	}
	done := make(chan struct{})
	go func() {
		t.loops.Wait()
		close(done)
	}()
	limit := time.NewTimer(time.Second)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (t *Terminal) say(format string, args ...any) {
	fmt.Fprintf(t.Out, "drawbridge: "+format+"\n", args...)
}

// show has the questions, one after the other.
func (t *Terminal) show() {
	for {
		t.mu.Lock()
		var q approve.Question
		t.shown, t.settled = len(t.queue) > 0, nil
		if t.shown {
			q = t.queue[0]
		}
		t.mu.Unlock()
		if t.shown {
			t.one(q)
			t.mu.Lock()
			t.queue, t.shown = t.queue[1:], false
			t.mu.Unlock()
			if t.ctx.Err() != nil {
				return
			}
			continue
		}
		select {
		case <-t.wake:
		case <-t.ctx.Done():
			return
		}
	}
}

// one shows a question until it is answered, here or elsewhere.
func (t *Terminal) one(q approve.Question) {
	fmt.Fprintf(t.Out, "\n%s\n", strings.TrimRight(t.Text(q), "\n"))
	read := time.NewTimer(readingTime)
	defer read.Stop()
	for waiting := true; waiting; {
		select {
		case <-read.C:
			waiting = false
		case <-t.wake:
			if t.elsewhere(q) {
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
	if t.Flush != nil {
		t.Flush()
	}
	if t.ended {
		t.say(endedText)
	} else {
		t.prompt(q)
	}
	for len(t.typed) > 0 {
		<-t.typed
	}
	t.reading.Store(true)
	defer t.reading.Store(false)
	poke(t.want)
	var line []byte
	for {
		select {
		case b := <-t.typed:
			if b == nil {
				t.ended = true
				fmt.Fprintln(t.Out)
				t.say(endedText)
				continue
			}
			line = append(line, b...)
			for {
				first, rest, ended := bytes.Cut(line, []byte("\n"))
				if !ended {
					break
				}
				if t.take(q, string(first)) {
					return // what else was typed was typed before the next question
				}
				line = rest
			}
			line = line[:min(len(line), maxTyped)]
		case <-t.wake:
			if t.elsewhere(q) {
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *Terminal) prompt(q approve.Question) {
	fmt.Fprintf(t.Out, "drawbridge: answer %s: y, n REASON, or r (yes, and for the same call in the rest of this run): ", q.ID)
}

// elsewhere reports, and says, that the question being shown was settled.
func (t *Terminal) elsewhere(q approve.Question) bool {
	t.mu.Lock()
	s := t.settled
	t.mu.Unlock()
	if s == nil {
		return false
	}
	fmt.Fprintln(t.Out)
	switch s.State {
	case approve.Approved, approve.Used, approve.Denied:
		word := "approved"
		if s.State == approve.Denied {
			word = "denied"
		}
		t.say("question %s was answered by %s: %s", q.ID, approve.Visible(s.By), word)
	default:
		t.say("question %s needs no answer any more: %s", q.ID, approve.Visible(string(s.State)))
	}
	return true
}

// take takes one line and reports whether it settled the question.
func (t *Terminal) take(q approve.Question, line string) bool {
	a, ok := parseTyped(line)
	if !ok {
		t.prompt(q)
		return false
	}
	err := t.Answer(t.ctx, q.ID, a)
	switch {
	case errors.Is(err, approve.ErrSettled) || errors.Is(err, approve.ErrUnknown):
		t.say("question %s: %s", q.ID, approve.Visible(err.Error()))
	case err != nil:
		t.say("the answer was not taken: %s", approve.Visible(err.Error()))
		t.prompt(q)
		return false
	case a.Yes && a.Remember:
		t.say("approved %s, and the same call in the rest of this run", q.ID)
	case a.Yes:
		t.say("approved %s", q.ID)
	default:
		t.say("denied %s", q.ID)
	}
	return true
}

// parseTyped reads a line. What is anything else than one of the three answers
// is none.
func parseTyped(line string) (approve.Answer, bool) {
	word, reason, _ := strings.Cut(strings.TrimSpace(strings.ToValidUTF8(line, "\uFFFD")), " ")
	a := approve.Answer{By: "terminal", Note: strings.TrimSpace(reason)}
	switch strings.ToLower(word) {
	case "y", "yes":
		a.Yes = true
	case "r":
		a.Yes, a.Remember = true, true
	case "n", "no":
		return a, true
	}
	return a, a.Yes && a.Note == ""
}

// read reads while a question waits for its answer. What a Read brings that was
// under way after that is dropped before the next question takes anything. A nil
// is the end of the input.
func (t *Terminal) read() {
	buf := make([]byte, 1024)
	for {
		select {
		case <-t.want:
		case <-t.ctx.Done():
			return
		}
		for t.reading.Load() {
			n, err := t.In.Read(buf)
			if n > 0 {
				select {
				case t.typed <- bytes.Clone(buf[:n]):
				case <-t.ctx.Done():
					return
				}
			}
			if err != nil {
				select {
				case t.typed <- nil:
				case <-t.ctx.Done():
				}
				return
			}
		}
	}
}
