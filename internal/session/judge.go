package session

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// judge decides whether a CLI that ended by itself did its work.
func (w *watch) judge(exit proc.Exit) error {
	select {
	case err := <-w.stopped:
		return err
	default:
	}
	select {
	case <-w.s.ready:
	default:
		return w.notReady(w.how(exit))
	}
	w.mu.Lock()
	end := w.end
	w.mu.Unlock()
	switch {
	case end == nil:
		return fault.New(fault.Agent, w.hint(), "no result event: the agent ended without reporting a result (%s)", w.how(exit))
	case end.Status == event.OverBudget || w.a.Budget > 0 && end.CostUSD != nil && *end.CostUSD > w.a.Budget:
		return w.overBudget(end)
	case end.OK != nil && !*end.OK:
		return fault.New(fault.Agent, w.hint(), "the agent reported a failure: %s", firstLine(end.Text))
	case exit.Code != 0 && !exit.Ended:
		return fault.New(fault.Agent, w.hint(), "the agent failed (%s)", w.how(exit))
	}
	return nil
}

// overBudget says what was spent. It is the CLI's own account, given at its end.
func (w *watch) overBudget(end *event.Event) *fault.Error {
	spent := "an amount it does not report"
	if end.CostUSD != nil {
		spent = Dollars(*end.CostUSD)
	}
	may := "and ended by itself"
	if w.a.Budget > 0 {
		may = "of a budget of " + Dollars(w.a.Budget)
	}
	return fault.New(fault.Budget, "give more with --budget, or limits: { budget: } in the policy file", "the agent has spent %s %s", spent, may)
}

// Dollars is an amount of US dollars as people read it: with cents, and what is
// smaller only where there is some.
func Dollars(usd float64) string {
	text := strconv.FormatFloat(usd, 'f', 6, 64)
	for strings.HasSuffix(text, "0") && text[len(text)-3] != '.' {
		text = text[:len(text)-1]
	}
	return "$" + text
}

func budgetText(usd float64) string {
	if usd == 0 {
		return ""
	}
	return ", budget " + Dollars(usd)
}

func (w *watch) notReady(when string) *fault.Error {
	select {
	case <-w.s.authenticated:
		return fault.New(fault.NotReady, w.hint(), "the agent reached the bridge and never listed its tools (%s)", when)
	default:
	}
	if w.s.refusals.count("token") > 0 {
		return fault.New(fault.NotReady, w.hint(), "the agent never authenticated to the bridge: it came with a wrong token, or without one (%s)", when)
	}
	return fault.New(fault.NotReady, w.hint(), "the agent never connected to the bridge, so it had no tools (%s)", when)
}

func (w *watch) how(exit proc.Exit) string {
	if exit.Signal != "" {
		return "ended by " + exit.Signal
	}
	return fmt.Sprintf("exit code %d", exit.Code)
}

// hint shows the end of what the CLI wrote to stderr.
func (w *watch) hint() string {
	if text := strings.TrimSpace(w.errTail.text()); text != "" {
		return "the agent wrote to stderr: " + text
	}
	return "see " + w.s.run.File("transcript.jsonl")
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return call.Clip(s)
}

func or(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// ended tells the follower the last thing, and that there is no more. Only the
// first call counts.
func (s *Session) ended(rep Report, err error) {
	if s.events == nil {
		return
	}
	s.telling.Do(func() {
		code := 0
		text := rep.Text
		if err != nil {
			code = int(fault.KindOf(err))
			text = s.mask(err.Error())
		}
		ok := err == nil
		s.emit(event.Event{
			Kind: event.Ended, OK: &ok, Text: text, ExitCode: &code, Head: s.head, Level: s.level,
			Usage: rep.Usage, CostUSD: rep.CostUSD, Turns: rep.Turns, Millis: float64(rep.Duration.Microseconds()) / 1000,
		})
		s.events.close()
	})
}

// tail keeps the end of what the CLI writes to stderr, which may be asked for
// while it still writes.
type tail struct {
	mu   sync.Mutex
	kept call.HeadTail
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.Write(p)
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text, _, _ := t.kept.Text()
	return text
}
