package session

import (
	"sync"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// follower turns audit lines into events: the audit is the source, and nothing
// is told that is not on record.
type follower struct {
	emit func(event.Event)      // nil: nobody follows, and calls are only counted
	open map[int64]audit.Record // calls that have begun
	done int64                  // executed
	not  int64                  // refused
}

// record is called by the log, in order, one line at a time.
func (f *follower) record(r audit.Record) {
	switch r.Kind {
	case audit.End:
		f.done++
	case audit.Refused:
		f.not++
	}
	if f.emit == nil {
		return
	}
	switch r.Kind {
	case audit.Begin:
		if f.open == nil {
			f.open = map[int64]audit.Record{}
		}
		f.open[r.Seq] = r
	case audit.End:
		b := f.open[r.Call]
		delete(f.open, r.Call)
		f.emit(event.Event{
			Kind: event.Call, Time: r.Time, Tool: r.Tool, Decision: b.Decision, Layer: b.Layer, Rule: b.Rule,
			Arguments: b.Arguments, Outcome: string(r.Outcome), IsError: r.Outcome != audit.OK,
			Millis: float64(r.Micros) / 1000,
		})
	case audit.Refused:
		f.emit(event.Event{
			Kind: event.Call, Time: r.Time, Tool: r.Tool, Decision: r.Decision, Layer: r.Layer, Rule: r.Rule,
			Arguments: r.Arguments, Outcome: "refused", IsError: true, Text: r.Reason,
		})
	case audit.Early:
		f.emit(event.Event{Kind: event.Notice, Time: r.Time, Text: "refused a request to the endpoint (" + r.What + ")"})
	}
}

// emit queues one event for whoever follows.
func (s *Session) emit(e event.Event) {
	if s.cfg.Follow == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = s.cfg.Now().UTC()
	}
	e.Run = s.binding.Run
	s.events.put(e)
}

// queue hands events on in order, from a goroutine of its own: a follower may
// be slow, or call a tool itself, and neither may hold up the record.
type queue struct {
	mu     sync.Mutex
	more   *sync.Cond
	items  []event.Event
	closed bool
	done   chan struct{}
}

func newQueue(to func(event.Event)) *queue {
	q := &queue{done: make(chan struct{})}
	q.more = sync.NewCond(&q.mu)
	go func() {
		defer close(q.done)
		for {
			q.mu.Lock()
			for len(q.items) == 0 && !q.closed {
				q.more.Wait()
			}
			items := q.items
			q.items = nil
			closed := q.closed
			q.mu.Unlock()
			if len(items) == 0 && closed {
				return
			}
			for _, e := range items {
				to(e)
			}
		}
	}()
	return q
}

func (q *queue) put(e event.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.items = append(q.items, e)
		q.more.Signal()
	}
}

// close returns when every event put before it was handed on.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	<-q.done
}

// counter counts refusals by kind.
type counter struct {
	mu sync.Mutex
	n  map[string]int64
}

func (c *counter) first(kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int64{}
	}
	c.n[kind]++
	return c.n[kind] == 1
}

func (c *counter) count(kind string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[kind]
}

func (c *counter) totals() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := map[string]int64{}
	for k, v := range c.n {
		t["early."+k] = v
	}
	return t
}
