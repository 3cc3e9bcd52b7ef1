package approve_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// office is a desk in a bubble, its store and what was told.
type office struct {
	*testing.T
	*approve.Desk
	store  *mem
	policy string
	clock  time.Duration // how far the wall clock is off
	told   []string      // "asked ID", "settled ID STATE"
	mu     sync.Mutex
	opened int
}

// inBubble runs f with a desk, whose config is changed by change before, and
// closes it.
func inBubble(t *testing.T, change func(*approve.Config, *office), f func(o *office)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t, change)
		defer func() {
			o.Close()
			if p := o.Pending(); len(p) > 0 {
				t.Errorf("pending after Close: %v", p)
			}
		}()
		f(o)
	})
}

func newOffice(t *testing.T, change func(*approve.Config, *office)) *office {
	o := &office{T: t, store: &mem{}, policy: "sha256:p1"}
	note := func(format string, args ...any) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.told = append(o.told, fmt.Sprintf(format, args...))
	}
	cfg := approve.Config{
		Run: "r1", Workspace: "ws", Channel: "ch", User: "kim", Agent: "researcher",
		PolicyDigest: func() string { return o.policy },
		Open:         func(context.Context) (approve.Store, error) { o.opened++; return o.store, nil },
		Show:         func(b []byte) []byte { return b },
		Asked:        func(q approve.Question) { note("asked %s", q.ID) },
		Settled:      func(q approve.Question) { note("settled %s %s", q.ID, q.State) },
		Now:          func() time.Time { return time.Now().Add(o.clock) },
	}
	if change != nil {
		change(&cfg, o)
	}
	o.Desk = approve.New(cfg)
	return o
}

// asking is a call that waits.
type asking struct {
	id   string
	gone chan struct{}
	stop context.CancelFunc
	done chan struct{}
	q    approve.Question // after done
	err  error
}

func call(tool, args string) approve.Call {
	c := approve.Call{Seq: 7, Tool: tool, Effects: "write", Layer: "agent researcher", Rule: "ask: *", Reason: "because"}
	if args != "" {
		c.Arguments = []byte(args)
	}
	return c
}

// ask lets a call ask, and returns when it waits or is over.
func (o *office) ask(c approve.Call) *asking {
	o.Helper()
	known := map[string]bool{}
	for _, q := range o.Pending() {
		known[q.ID] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &asking{gone: make(chan struct{}), stop: cancel, done: make(chan struct{})}
	c.Gone = a.gone
	go func() {
		defer close(a.done)
		defer cancel()
		a.q, a.err = o.Ask(ctx, c)
	}()
	synctest.Wait()
	for _, q := range o.Pending() {
		if !known[q.ID] {
			a.id = q.ID
		}
	}
	select {
	case <-a.done:
		a.id = a.q.ID
	default:
	}
	return a
}

func (o *office) answer(a *asking, yes bool, by string) {
	o.Helper()
	if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: yes, By: by}); err != nil {
		o.Fatal(err)
	}
}

// is waits for the end of a call and checks what came of it, in memory and in
// the store.
func (o *office) is(a *asking, s approve.State) {
	o.Helper()
	<-a.done
	synctest.Wait()
	if a.err != nil || a.q.State != s {
		o.Fatalf("the question is %s, %v; want %s", a.q.State, a.err, s)
	}
	if got := o.store.state(a.id); got != s {
		o.Errorf("the store has it as %s, want %s", got, s)
	}
}

func (o *office) refused(err error, text string) {
	o.Helper()
	r, ok := errors.AsType[*approve.Refusal](err)
	if !ok || !strings.Contains(r.Text, text) || !strings.HasPrefix(r.Text, "refused: ") || r.Error() != r.Text {
		o.Errorf("%v, want a refusal with %q", err, text)
	}
}
