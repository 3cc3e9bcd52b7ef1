package gate

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func limited(l Limits, tools map[string]Limits) func(*rig) {
	return func(r *rig) {
		r.cfg.Limits, r.cfg.ToolLimits = l, tools
		r.tool("long", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			return call.Text(strings.Repeat("x", 1000)), nil
		})
	}
}

func TestCallLimitOfATool(t *testing.T) {
	r := newRig(t, limited(Limits{Calls: 4}, map[string]Limits{"read": {Calls: 2}}))
	for range 2 {
		if res, err := r.call("read", ""); err != nil || res.IsError {
			t.Fatalf("%v %v", res, err)
		}
	}
	res, err := r.call("read", "")
	r.wantRefused(t, res, err, "limits", "calls of read", "tool 'read' has used up its number of calls")
	for range 2 { // the refusal used up nothing of the run's
		if res, err := r.call("write", ""); err != nil || res.IsError {
			t.Fatalf("%v %v", res, err)
		}
	}
	res, err = r.call("write", "")
	r.wantRefused(t, res, err, "limits", "calls", "this run has used up")
}

func TestTotalLimit(t *testing.T) {
	r := newRig(t, limited(Limits{Total: 1500}, nil))
	for range 2 { // the one that crosses it is delivered
		if res, err := r.call("long", ""); err != nil || len(text(res)) != 1000 {
			t.Fatalf("%v %v", res, err)
		}
	}
	res, err := r.call("read", "")
	r.wantRefused(t, res, err, "limits", "total", "has used up the bytes its results may have together")

	r = newRig(t, limited(Limits{}, map[string]Limits{"long": {Total: 1000}}))
	if res, err := r.call("long", ""); err != nil || res.IsError {
		t.Fatalf("%v %v", res, err)
	}
	res, err = r.call("long", "")
	r.wantRefused(t, res, err, "limits", "total of long", "tool 'long' has used up the bytes")
	if res, err := r.call("read", ""); err != nil || res.IsError {
		t.Errorf("another tool: %v %v", res, err)
	}
}

// Calls made all at once get no further than one after the other.
func TestTotalLimitOfManyAtOnce(t *testing.T) {
	for name, limit := range map[string]func(*rig){
		"of the run": limited(Limits{Total: 1500, Concurrent: 20}, nil),
		"of a tool":  limited(Limits{Concurrent: 20}, map[string]Limits{"all": {Total: 1500}}),
	} {
		r := newRig(t, limit)
		var under sync.WaitGroup
		under.Add(20)
		r.tool("all", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			under.Done()
			under.Wait()
			return call.Text(strings.Repeat("x", 1000)), nil
		})
		var calls sync.WaitGroup
		var delivered atomic.Int64
		for range 20 {
			calls.Go(func() {
				if res, _ := r.call("all", ""); !res.IsError {
					delivered.Add(1)
				} else if !strings.Contains(text(res), "its result is withheld") || res.Flags.Cut != 1000 {
					t.Errorf("%v", res)
				}
			})
		}
		calls.Wait()
		if n := delivered.Load(); n != 2 {
			t.Errorf("%s: %d results of 1000 bytes, and 1500 may go out", name, n)
		}
	}
}

func TestOutputLimitOfATool(t *testing.T) {
	for limit, longest := range map[int]int{0: 500, 200: 200, 5000: 500} {
		r := newRig(t, limited(Limits{Output: 500}, map[string]Limits{"long": {Output: limit}}))
		res, err := r.call("long", "")
		if err != nil || res.Flags.Cut != int64(1000-longest) {
			t.Errorf("%d: cut %d, %v", limit, res.Flags.Cut, err)
		}
	}
}

func TestConcurrentLimitOfATool(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.ToolLimits = map[string]Limits{"slow": {Concurrent: 1}} })
	started, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.tool("slow", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		started <- struct{}{}
		<-release
		return call.Text("ran"), nil
	})
	go func() {
		_, _ = r.call("slow", "")
		close(done)
	}()
	within(t, started, "start")
	res, err := r.call("slow", "")
	r.wantRefused(t, res, err, "limits", "concurrent of slow", "too many calls of slow at once")
	if res, err := r.call("read", ""); err != nil || res.IsError {
		t.Errorf("another tool: %v %v", res, err)
	}
	close(release)
	within(t, done, "end")
	go func() { <-started }()
	if res, err := r.call("slow", ""); err != nil || res.IsError {
		t.Errorf("its place is free again: %v %v", res, err)
	}
}

// A function that was abandoned still takes its tool's place.
func TestAbandonedCountsForItsTool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		r := newRig(t, func(r *rig) {
			r.cfg.Limits.Grace = time.Second
			r.cfg.ToolLimits = map[string]Limits{"stuck": {Concurrent: 1, Call: 3 * time.Second}}
		})
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			<-stop
			return call.Text("late"), nil
		})
		began := time.Now()
		res, err := r.call("stuck", "")
		if err != nil || !res.IsError || time.Since(began) != 4*time.Second {
			t.Errorf("%v %v after %s", text(res), err, time.Since(began))
		}
		res, err = r.call("stuck", "")
		r.wantRefused(t, res, err, "limits", "concurrent of stuck", "too many calls of stuck")
		close(stop)
		synctest.Wait()
		if res, err := r.call("stuck", ""); err != nil || res.IsError {
			t.Errorf("%v %v", text(res), err)
		}
	})
}

// However calls interleave, no more run than the limits let through.
func TestLimitsUnderLoad(t *testing.T) {
	var now, most atomic.Int64
	r := newRig(t, func(r *rig) {
		r.cfg.Limits = Limits{Calls: 50}
		r.cfg.ToolLimits = map[string]Limits{"busy": {Calls: 20, Concurrent: 3}}
		r.tool("busy", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			return call.Text("ran"), nil
		})
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 40 {
				_, _ = r.call("busy", "")
				_, _ = r.call("read", "")
			}
		})
	}
	wg.Wait()
	begun := map[string]int{}
	for _, l := range r.rec.all() {
		if l.Kind == audit.Begin {
			begun[l.Tool]++
		}
	}
	if begun["busy"] > 20 || begun["busy"]+begun["read"] != 50 || most.Load() > 3 {
		t.Errorf("%v, %d at once", begun, most.Load())
	}
}

// One timer serves all calls: each ends at its own time, in whatever order they
// came.
func TestTimesOfManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := map[string]time.Duration{"long": time.Hour, "short": time.Second, "middle": time.Minute}
		r := newRig(t, func(r *rig) {
			r.cfg.Limits.Call = time.Hour
			r.cfg.ToolLimits = map[string]Limits{"short": {Call: time.Second}, "middle": {Call: time.Minute}}
		})
		var wg sync.WaitGroup
		for _, name := range []string{"long", "short", "middle", "short"} {
			r.tool(name, call.Read, func(ctx context.Context, inv call.Invocation) (call.Result, error) {
				if d, ok := ctx.Deadline(); !ok || time.Until(d) != times[name] {
					t.Errorf("%s: the deadline is in %s, %v", name, time.Until(d), ok)
				}
				return waits(ctx, inv)
			})
			wg.Go(func() {
				start := time.Now()
				if res, err := r.call(name, ""); err != nil || !res.IsError || time.Since(start) != times[name] {
					t.Errorf("%s: %v %v after %s", name, res, err, time.Since(start))
				}
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		time.Sleep(time.Hour)
		if res, _ := r.call("short", ""); !res.IsError {
			t.Errorf("%v", res)
		}
	})
}
