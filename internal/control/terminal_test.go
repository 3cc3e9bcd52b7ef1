package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// sat is a terminal at which a test sits. All of it runs in a bubble of synctest.
type sat struct {
	*Terminal
	keys *keyboard

	mu      sync.Mutex
	screen  bytes.Buffer
	answers []string
	fail    error
}

func (s *sat) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen.Write(b)
}

// keyboard keeps what is typed until it is read or flushed.
type keyboard struct {
	mu     sync.Mutex
	typed  []byte
	closed bool
	change chan struct{}
}

func (k *keyboard) Read(b []byte) (int, error) {
	for {
		k.mu.Lock()
		n, closed := copy(b, k.typed), k.closed
		k.typed = k.typed[n:]
		k.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		if closed {
			return 0, io.EOF
		}
		<-k.change
	}
}

func (k *keyboard) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	poke(k.change)
	return nil
}

func (k *keyboard) flush() {
	k.mu.Lock()
	k.typed = nil
	k.mu.Unlock()
}

func sit(t *testing.T) *sat {
	keys := &keyboard{change: make(chan struct{}, 1)}
	s := &sat{keys: keys}
	s.Terminal = &Terminal{
		In: keys, Out: s, Flush: keys.flush,
		Text: func(q approve.Question) string { return "question " + q.ID + "\n| " + q.Arguments },
		Answer: func(_ context.Context, id string, a approve.Answer) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.fail != nil {
				return s.fail
			}
			s.answers = append(s.answers, fmt.Sprintf("%s %v %v %q %s", id, a.Yes, a.Remember, a.Note, a.By))
			return nil
		},
	}
	t.Cleanup(s.Close)
	return s
}

// types types and waits until nothing more comes of it.
func (s *sat) types(text string) {
	s.keys.mu.Lock()
	s.keys.typed = append(s.keys.typed, text...)
	s.keys.mu.Unlock()
	poke(s.keys.change)
	synctest.Wait()
}

// shows waits d and returns what came on the screen since it was last asked.
func (s *sat) shows(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.screen.String()
	s.screen.Reset()
	return text
}

func (s *sat) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.answers)
}

func TestTerminalAnswers(t *testing.T) {
	for _, c := range []struct{ typed, answer, says string }{
		{"y\n", `Q1 true false "" terminal`, "approved Q1\n"},
		{"yes\r\n", `Q1 true false "" terminal`, "approved Q1\n"},
		{" Y \n", `Q1 true false "" terminal`, "approved Q1\n"},
		{"r\n", `Q1 true true "" terminal`, "approved Q1, and the same call"},
		{"n\n", `Q1 false false "" terminal`, "denied Q1\n"},
		{"n not  that file\n", `Q1 false false "not  that file" terminal`, "denied Q1\n"},
		{"no \xff\n", "Q1 false false \"\uFFFD\" terminal", "denied Q1\n"},
		{"", "", ""},
		{"y", "", ""},
		{"\n", "", "drawbridge: answer Q1"},
		{"you may\n", "", "drawbridge: answer Q1"},
		{"y if it must be\n", "", "drawbridge: answer Q1"},
		{"ye\n", "", "drawbridge: answer Q1"},
		{"\x1b[Ay\n", "", "drawbridge: answer Q1"},
		{"what?\nn\n", `Q1 false false "" terminal`, "denied Q1\n"},
		{strings.Repeat("y", 3*maxTyped) + "\n", "", "drawbridge: answer Q1"},
	} {
		t.Run(c.typed[:min(len(c.typed), 20)], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sit(t)
				s.Ask(question)
				if got := s.shows(time.Second); !strings.HasPrefix(got, "\nquestion Q1\n| {\"path\":\"a.txt\"}\ndrawbridge: answer Q1: ") {
					t.Errorf("shows %q", got)
				}
				s.types(c.typed)
				if got := strings.Join(s.got(), "; "); got != c.answer {
					t.Errorf("answered %s, want %s", got, c.answer)
				}
				if got := s.shows(0); !strings.Contains(got, c.says) {
					t.Errorf("says %q, want %q", got, c.says)
				}
			})
		})
	}
}

// What was typed before a person can have read the question is no answer to it.
func TestTerminalTakesNothingTypedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sit(t)
		s.types("y\n")
		s.Ask(question)
		s.Ask(approve.Question{ID: "Q2"})
		s.types("y\n")
		time.Sleep(readingTime - time.Millisecond)
		s.types("y\nr\ny")
		s.shows(time.Minute)
		if s.got() != nil {
			t.Fatalf("answered %q", s.got())
		}
		// Only the first line is for Q1, and the rest is for nobody: Q2 was not
		// there yet. Nor is what is read in the time of reading.
		s.types("n no\ny\ny\n")
		s.types("y\n")
		s.shows(time.Minute)
		if got := s.got(); !slices.Equal(got, []string{`Q1 false false "no" terminal`}) {
			t.Fatalf("answered %q", got)
		}
		s.Settled(approve.Question{ID: "Q2", State: approve.Void})
		s.types("y\n") // nothing waits; a Read is still under way
		s.Ask(approve.Question{ID: "Q3"})
		s.types("y\n")
		s.shows(time.Minute)
		if got := s.got(); len(got) != 1 {
			t.Fatalf("answered %q", got)
		}
		s.types("r\n")
		if got := s.got(); !slices.Equal(got[1:], []string{`Q3 true true "" terminal`}) {
			t.Errorf("answered %q", got)
		}
	})
}

func TestTerminalShowsOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sit(t)
		for i := range 4 {
			s.Ask(approve.Question{ID: fmt.Sprintf("Q%d", i)})
		}
		if got := s.shows(time.Minute); strings.Count(got, "question Q") != 1 {
			t.Errorf("%q", got)
		}
		s.Settled(approve.Question{ID: "Q1", State: approve.Denied, By: "uid 1 pid 2 (x)"})
		s.Settled(approve.Question{ID: "elsewhere", State: approve.Denied})
		s.types("y\n")
		if got := s.shows(time.Minute); !strings.Contains(got, "approved Q0\n\nquestion Q2\n") || strings.Contains(got, "Q1") {
			t.Errorf("%q", got)
		}
		s.Settled(approve.Question{ID: "Q2", State: approve.Expired})
		if got := s.shows(time.Minute); !strings.Contains(got, "question Q2 needs no answer any more: expired\n\nquestion Q3\n") {
			t.Errorf("%q", got)
		}
		s.types("n\n")
		if got := s.got(); !slices.Equal(got, []string{`Q0 true false "" terminal`, `Q3 false false "" terminal`}) {
			t.Errorf("%q", got)
		}
		if len(s.queue) > 0 {
			t.Errorf("left: %+v", s.queue)
		}
	})
}

func TestTerminalAnsweredElsewhere(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := sit(t)
			s.Ask(question)
			time.Sleep(after)
			q := question
			q.State, q.By = approve.Approved, "uid 1000 pid 4711 (draw\x1b[2J)"
			s.Settled(q)
			if got := s.shows(time.Minute); !strings.Contains(got, `question Q1 was answered by uid 1000 pid 4711 (draw\u{1b}[2J): approved`) {
				t.Errorf("%q", got)
			}
			s.types("y\n")
			if s.got() != nil {
				t.Errorf("answered %q", s.got())
			}
		})
	}
}

func TestTerminalAnswerNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sit(t)
		s.fail = errors.New("the database is locked\x1b[2J")
		s.Ask(question)
		s.shows(time.Minute)
		s.types("y\n")
		if got := s.shows(0); !strings.Contains(got, `the answer was not taken: the database is locked\u{1b}[2J`) || !strings.Contains(got, "drawbridge: answer Q1") {
			t.Errorf("%q", got)
		}
		s.mu.Lock()
		s.fail = fmt.Errorf("%w: denied by somebody", approve.ErrSettled)
		s.mu.Unlock()
		s.types("y\n")
		if got := s.shows(0); !strings.Contains(got, "question Q1: the question is settled: denied by somebody") {
			t.Errorf("%q", got)
		}
	})
}

func TestTerminalEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sit(t)
		s.Ask(question)
		s.shows(time.Minute)
		s.keys.Close()
		s.Ask(approve.Question{ID: "Q2"})
		if got := s.shows(time.Minute); !strings.Contains(got, endedText) {
			t.Errorf("%q", got)
		}
		s.Settled(approve.Question{ID: "Q1", State: approve.Void})
		if got := s.shows(time.Minute); !strings.Contains(got, "question Q2\n") || !strings.Contains(got, endedText) {
			t.Errorf("%q", got)
		}
		s.Close()
		s.Close()
		s.Ask(question)
		if got := s.shows(time.Minute); got != "" {
			t.Errorf("after Close: %q", got)
		}
	})
}

// A screen that takes nothing, as after Ctrl-S, holds nobody up.
func TestTerminalThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sit(t)
		r, w := io.Pipe()
		s.Out = w
		began := time.Now()
		s.Ask(question)
		s.Settled(question)
		s.Close()
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("took %s", d)
		}
		r.Close()
	})
}
