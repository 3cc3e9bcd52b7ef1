package session

import (
	"sync"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// follower turns audit lines into events: the audit is the source, and nothing
// is told that is not on record.
type follower struct {
	emit func(event.Event)      // nil: nobody follows, and calls are only counted
	open map[int64]audit.Record // calls that have begun
	done int64                  // executed
	not  int64                  // refused
	asks map[int64]bool         // calls that wait for a person's yes
}

// record is called by the log, in order, one line at a time.
func (f *follower) record(r audit.Record) {
	switch r.Kind {
	case audit.Begin:
		if r.Decision == string(call.Ask) {
			if f.asks == nil {
				f.asks = map[int64]bool{}
			}
			f.asks[r.Seq] = true
		}
	case audit.Answer:
		if r.Decision == string(call.Allow) {
			delete(f.asks, r.Call)
		}
	case audit.End:
		if r.Outcome == audit.Denied || f.asks[r.Call] {
			f.not++
		} else {
			f.done++
		}
		delete(f.asks, r.Call)
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
	case audit.Answer:
		if b, ok := f.open[r.Call]; ok {
			b.Reason = r.Reason
			f.open[r.Call] = b
		}
	case audit.End:
		b := f.open[r.Call]
		delete(f.open, r.Call)
		f.emit(event.Event{
			Kind: event.Call, Time: r.Time, Tool: r.Tool, Decision: b.Decision, Layer: b.Layer, Rule: b.Rule,
			Arguments: b.Arguments, Outcome: string(r.Outcome), IsError: r.Outcome != audit.OK,
			Millis: float64(r.Micros) / 1000, Text: b.Reason,
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

// room is how many bytes of events may wait for a follower before the agent's
// stream has to wait for it, as it would at a pipe that nobody reads.
const room = 4 << 20

// queue hands events on in order, from a goroutine of its own: a follower may
// be slow, or call a tool itself, and neither may hold up the record. A nil
// queue has no follower.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	items   []event.Event
	bytes   int  // of the events put and not yet handed on
	frozen  bool // the run is ending: nobody waits for room any more
	left    bool // events were left out since
	closed  bool
	done    chan struct{}
}

func newQueue(to func(event.Event)) *queue {
	q := &queue{done: make(chan struct{})}
	q.changed = sync.NewCond(&q.mu)
	go q.run(to)
	return q
}

func (q *queue) run(to func(event.Event)) {
	defer func() { // also where the follower calls runtime.Goexit, as a test does that fails in it
		q.mu.Lock()
		q.closed, q.items, q.bytes = true, nil, 0
		q.changed.Broadcast()
		q.mu.Unlock()
		close(q.done)
	}()
	for {
		q.mu.Lock()
		for len(q.items) == 0 && !q.closed {
			q.changed.Wait()
		}
		items := q.items
		q.items = nil
		q.mu.Unlock()
		if len(items) == 0 {
			return
		}
		for _, e := range items {
			to(e)
			q.mu.Lock()
			q.bytes -= size(e)
			q.changed.Broadcast()
			q.mu.Unlock()
		}
	}
}

func (q *queue) put(e event.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return
	case q.frozen && q.bytes > room && told(e):
		if q.left {
			return
		}
		q.left = true
		e = event.Event{Kind: event.Notice, Time: e.Time, Run: e.Run, Text: "events of the agent's stream are left out here, because they were not read in time; the transcript has them"}
	}
	q.items = append(q.items, e)
	q.bytes += size(e)
	q.changed.Broadcast()
}

// told reports whether e is only the agent's own account of what happens.
func told(e event.Event) bool {
	switch e.Kind {
	case event.Text, event.Log, event.ToolCall, event.ToolResult:
		return true
	}
	return false
}

// size is about how much memory e takes.
func size(e event.Event) int {
	return 256 + len(e.Text) + len(e.Result) + len(e.Arguments) + len(e.Tool)
}

// await returns when there is room for further events of the agent's stream.
func (q *queue) await() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes > room && !q.frozen && !q.closed {
		q.changed.Wait()
	}
}

// freeze ends the waiting for room: what does not fit is left out from now on.
func (q *queue) freeze() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frozen = true
	q.changed.Broadcast()
}

// close returns when every event put before it was handed on.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.changed.Broadcast()
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
