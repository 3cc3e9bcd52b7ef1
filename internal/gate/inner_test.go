package gate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Nothing of a call is kept when it is done: its context ends, the run forgets
// it, and one timer is there for all.
func TestACallLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var last context.Context
		r.tool("read", call.Read, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
			last = ctx
			return call.Text("ran"), nil
		})
		_, _ = r.call("read", "")
		timer := r.Gate.watch
		time.Sleep(2 * DefaultCall)
		_, _ = r.call("read", "")
		if last.Err() == nil || len(r.Gate.under) != 0 || r.Gate.watch != timer {
			t.Errorf("its context ended with %v, %d are under way, another timer %v", last.Err(), len(r.Gate.under), r.Gate.watch != timer)
		}
		r.Close()
		if r.Gate.watch.Stop() {
			t.Error("the timer runs on after Close")
		}
	})
}

// The earlier end counts: the client's own, or the time that a call may take.
func TestTheDeadlineOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for own, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, time.Hour: DefaultCall, 0: DefaultCall} {
			r.tool("read", call.Read, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
				if d, ok := ctx.Deadline(); !ok || time.Until(d) != want || ctx.Err() != nil {
					t.Errorf("the client's ends in %s: the call's in %s, %v", own, time.Until(d), ctx.Err())
				}
				return call.Text("ran"), nil
			})
			ctx, cancel := context.Background(), context.CancelFunc(func() {})
			if own > 0 {
				ctx, cancel = context.WithTimeout(ctx, own)
			}
			if _, err := r.Call(ctx, request("read", "")); err != nil || r.runs() == 0 {
				t.Error(err)
			}
			cancel()
		}
	})
}

func TestArgumentsThatFit(t *testing.T) {
	r := newRig(t)
	r.tools["read"].Validate = func(any) error { return nil }
	if res, err := r.call("read", `{"a":1}`); err != nil || res.IsError || r.runs() != 1 {
		t.Errorf("%v %v", res, err)
	}
}

// What begins while the run ends starts no timer, however late it is noticed.
func TestNoTimerAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := newAsking(t)
		var wg sync.WaitGroup
		a.use = func(string, string, []byte) error {
			wg.Go(func() { r.Close() })
			synctest.Wait()
			return nil
		}
		r.tool("read", call.Read, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
			if ctx.Err() == nil {
				t.Error("it may go on although the run has ended")
			}
			r.Gate.expire()
			time.Sleep(time.Second)
			return call.Text("ran"), nil
		})
		if _, err := r.call("read", ""); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if r.runs() != 1 || r.Gate.watch != nil || !r.Gate.watched.IsZero() {
			t.Errorf("%d ran, watched until %s", r.runs(), r.Gate.watched)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			time.Sleep(time.Second)
			return call.Text("ran"), nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.call("stuck", "") })
		synctest.Wait()
		wg.Go(func() { r.Close() })
		synctest.Wait()
		r.Gate.expire() // its timer had fired just before
		if r.Gate.watch.Stop() {
			t.Error("the timer is set again")
		}
		wg.Wait()
	})
}

// An answer is made once: the function that comes back and the end of its grace
// may come at the same moment.
func TestAnAnswerIsSettledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).Gate
		late := func(call.Result) { t.Error("answered twice") }
		out := make(chan struct{})
		close(out)
		first := &ticket{told: out}
		if !g.settle(first) || g.settle(first) {
			t.Error("settled twice, or never")
		}
		g.outwait(first, late)
		if first.grace != nil {
			t.Error("the grace of an answer that is made begins")
		}
		second := &ticket{}
		g.outwait(second, late)
		if !g.settle(second) || second.grace.Stop() {
			t.Error("the grace runs on")
		}
		if g.abandon(second) || len(g.abandoned) != 0 { // its grace was over just before
			t.Error("abandoned although it came back")
		}
		time.Sleep(2 * DefaultGrace)
	})
}

// With Late the tool runs where it was asked for, and its answer comes there,
// but for one that is over its time.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			<-release
			return call.Result{}, errors.New("too late")
		})
		late := make(chan call.Result, 2)
		req := request("stuck", "")
		req.Late = func(res call.Result) { late <- res }
		returned := false
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = r.Call(context.Background(), req)
			returned = true
		})
		time.Sleep(DefaultCall + DefaultGrace)
		synctest.Wait()
		if len(late) != 1 || returned || text(<-late) != "the call took longer than a call may take, and was stopped" {
			t.Errorf("%d late answers, returned %v", len(late), returned)
		}
		close(release)
		wg.Wait()
		if len(late) != 0 || r.rec.kinds() != "begin end:abandoned" {
			t.Errorf("%d more, record %s", len(late), r.rec.kinds())
		}
		req.Tool = "read"
		if res, err := r.Call(context.Background(), req); err != nil || text(res) != "ran" || len(late) != 0 {
			t.Errorf("%v %v, %d late", res, err, len(late))
		}
		// A panic of whoever takes a late answer takes nothing else down.
		release = make(chan struct{})
		req = request("stuck", "")
		req.Late = func(call.Result) { panic("boom") }
		wg.Go(func() { _, _ = r.Call(context.Background(), req) })
		time.Sleep(DefaultCall + DefaultGrace)
		synctest.Wait()
		if len(r.panics) != 1 || r.Busy() {
			t.Errorf("panics %v, busy %v", r.panics, r.Busy())
		}
		close(release)
		wg.Wait()
	})
}

// Close names what still runs in the order it began.
func TestCloseNamesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			<-release
			return call.Result{}, nil
		})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _, _ = r.call("stuck", "") })
		}
		synctest.Wait()
		still := r.Close()
		for i, a := range still {
			if a.Tool != "stuck" || i > 0 && a.Call <= still[i-1].Call {
				t.Errorf("%v", still)
				break
			}
		}
		if len(still) != 10 {
			t.Errorf("%d", len(still))
		}
		close(release)
		wg.Wait()
		if n := len(r.rec.all()); n != 20 || r.rec.all()[19].Outcome != audit.Abandoned {
			t.Errorf("record %s", r.rec.kinds())
		}
	})
}

// What is abandoned of one tool takes no place of another.
func TestAbandonedOfAnotherTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(Limits{Call: time.Second}, map[string]Limits{"read": {Concurrent: 1}, "stuck": {Concurrent: 1}}))
		release := make(chan struct{})
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			<-release
			return call.Result{}, nil
		})
		_, _ = r.call("stuck", "")
		if res, err := r.call("read", ""); err != nil || res.IsError {
			t.Errorf("%v %v", res, err)
		}
		res, err := r.call("stuck", "")
		r.wantRefused(t, res, err, "limits", "concurrent of stuck", "too many calls of stuck at once")
		close(release)
	})
}
