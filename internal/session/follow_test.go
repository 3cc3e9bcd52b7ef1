package session

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

func text(n int) event.Event {
	return event.Event{Kind: event.Text, Text: strings.Repeat("x", n)}
}

func TestQueueKeepsOrder(t *testing.T) {
	var got []int
	q := newQueue(func(e event.Event) { got = append(got, e.Turns) })
	for i := range 1000 {
		q.put(event.Event{Turns: i})
	}
	q.close()
	q.put(event.Event{Turns: 1000})
	q.close()
	for i, n := range got {
		if i != n {
			t.Fatalf("event %d is number %d", i, n)
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d events, want the 1000 before the close", len(got))
	}
}

// An agent's stream waits for a follower that is slow, and no longer than until
// the run ends.
func TestQueueHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		var kinds []event.Kind
		q := newQueue(func(e event.Event) { <-open; kinds = append(kinds, e.Kind) })
		q.put(text(room / 2))
		q.await() // there is room
		q.put(text(room))
		waiting := make(chan struct{})
		go func() {
			q.await()
			close(waiting)
		}()
		synctest.Wait()
		select {
		case <-waiting:
			t.Fatal("nothing waits, although there is no room")
		default:
		}
		q.put(event.Event{Kind: event.Call}) // what the gate did never waits
		q.freeze()
		<-waiting
		q.await()
		q.put(text(1)) // left out
		q.put(text(1))
		q.put(event.Event{Kind: event.Finished})
		q.put(event.Event{Kind: event.Ended})
		close(open)
		q.close()
		want := []event.Kind{event.Text, event.Text, event.Call, event.Notice, event.Finished, event.Ended}
		if len(kinds) != len(want) {
			t.Fatalf("told %v, want %v", kinds, want)
		}
		for i := range want {
			if kinds[i] != want[i] {
				t.Fatalf("told %v, want %v", kinds, want)
			}
		}
	})
}

func TestQueueHasRoomAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		q := newQueue(func(event.Event) { time.Sleep(time.Second); n++ })
		for range 20 {
			q.put(text(room))
			q.await()
		}
		q.close()
		if n != 20 {
			t.Errorf("%d events told, want all 20", n)
		}
	})
}

// A test that fails inside its follower ends that goroutine, and must not hang.
func TestQueueOutlivesItsFollower(t *testing.T) {
	q := newQueue(func(event.Event) { runtime.Goexit() })
	q.put(text(2 * room))
	q.await()
	q.put(text(1))
	q.close()
}

func TestNilQueue(t *testing.T) {
	var q *queue
	q.await()
	q.freeze()
}

func TestCounter(t *testing.T) {
	var c counter
	var g sync.WaitGroup
	first := make(chan bool, 100)
	for range 100 {
		g.Go(func() { first <- c.first("token") })
	}
	g.Wait()
	close(first)
	n := 0
	for f := range first {
		if f {
			n++
		}
	}
	if n != 1 || c.count("token") != 100 || c.count("host") != 0 || c.totals()["early.token"] != 100 {
		t.Errorf("%d were the first, totals %v", n, c.totals())
	}
}

// What a person was asked about counts as executed where they said yes, whatever
// else kept it from running.
func TestAskedCallsAreCounted(t *testing.T) {
	yes, no := audit.Record{Kind: audit.Answer, Decision: "allow"}, audit.Record{Kind: audit.Answer, Decision: "deny"}
	for _, c := range []struct {
		lines     []audit.Record
		done, not int64
	}{
		{[]audit.Record{yes, {Outcome: audit.OK}}, 1, 0},
		{[]audit.Record{no, {Outcome: audit.Denied}}, 0, 1},
		{[]audit.Record{yes, {Outcome: audit.Denied}}, 0, 1}, // the yes did not hold
		{[]audit.Record{{Outcome: audit.Denied}}, 0, 1},      // nobody could be asked
		{[]audit.Record{{Outcome: audit.Cancelled}}, 0, 1},   // the client gave up
	} {
		var f follower
		f.record(audit.Record{Seq: 2, Kind: audit.Begin, Decision: "ask"})
		for _, l := range c.lines {
			l.Call = 2
			if l.Kind == "" {
				l.Kind = audit.End
			}
			f.record(l)
		}
		f.record(audit.Record{Seq: 9, Kind: audit.Begin, Decision: "allow"})
		f.record(audit.Record{Call: 9, Kind: audit.End, Outcome: audit.Cancelled})
		if f.done != c.done+1 || f.not != c.not || len(f.asks) != 0 {
			t.Errorf("%+v: %d executed, %d refused, %v", c.lines, f.done, f.not, f.asks)
		}
	}
}
