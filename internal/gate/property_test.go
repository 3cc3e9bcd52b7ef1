package gate

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// For any calls at once, whatever their tools do and whenever the gate closes:
// every execution has its Begin before it and one End after it, what is refused
// never ran, and every call that found the record open left its lines.
func TestEveryExecutionIsOnRecord(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"ok", "fails", "panics", "exits", "waits", "denied", "none"}
		plan := rapid.SliceOfN(rapid.SampledFrom(names), 1, 24).Draw(rt, "calls")
		workers := rapid.IntRange(1, 6).Draw(rt, "workers")
		closeAt := rapid.IntRange(0, len(plan)).Draw(rt, "close at")
		failing := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 5).Draw(rt, "lines that fail")

		var mu sync.Mutex
		n := 0
		executed := map[string]int{} // by tool
		r := newRig(t, func(r *rig) {
			r.cfg.Limits = Limits{Calls: rapid.Int64Range(0, 20).Draw(rt, "limit"), Concurrent: rapid.IntRange(1, 4).Draw(rt, "concurrent")}
			r.cfg.Policy = policyFunc(func(req call.Request, _ *call.Tool, _ map[string]any) call.Decision {
				if req.Tool == "denied" {
					return call.Decision{Verdict: call.Deny, Layer: "x", Reason: "no"}
				}
				return allowed()
			})
		})
		r.rec.before = func(audit.Record) error {
			mu.Lock()
			defer mu.Unlock()
			n++
			for _, f := range failing {
				if f == n {
					return errDisk
				}
			}
			return nil
		}
		for _, name := range names[:6] {
			r.tool(name, call.Write, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
				begun, ended := 0, 0
				for _, l := range r.rec.all() {
					if l.Tool == name && l.Kind == audit.Begin {
						begun++
					}
					if l.Tool == name && l.Kind == audit.End {
						ended++
					}
				}
				mu.Lock()
				executed[name]++
				if begun < executed[name] || name == "denied" {
					t.Errorf("execution %d of %s has %d lines before it", executed[name], name, begun)
				}
				if ended >= executed[name] {
					t.Errorf("execution %d of %s ended before it began", executed[name], name)
				}
				mu.Unlock()
				switch name {
				case "fails":
					return call.Result{}, errors.New("no")
				case "panics":
					panic("x")
				case "exits":
					runtime.Goexit()
				case "waits":
					<-ctx.Done()
				}
				return call.Text("ran"), nil
			})
		}

		var wg sync.WaitGroup
		next := make(chan string)
		for range workers {
			wg.Go(func() {
				for name := range next {
					ctx, cancel := context.WithCancel(context.Background())
					if name == "waits" {
						go func() { runtime.Gosched(); cancel() }()
					}
					_, _ = r.Call(ctx, request(name, `{}`))
					cancel()
				}
			})
		}
		closed := make(chan struct{})
		for i, name := range plan {
			if i == closeAt {
				go func() { r.Close(); close(closed) }()
			}
			next <- name
		}
		close(next)
		wg.Wait()
		if closeAt == len(plan) {
			r.Close()
		} else {
			<-closed
		}

		open, ends := map[int64]string{}, map[int64]int{}
		var begins, refused int
		for _, l := range r.rec.all() {
			switch l.Kind {
			case audit.Begin:
				begins++
				open[l.Seq] = l.Tool
			case audit.End:
				ends[l.Call]++
				if open[l.Call] != l.Tool || ends[l.Call] > 1 {
					t.Errorf("line %d ends %d, which is %q, for the %d. time", l.Seq, l.Call, open[l.Call], ends[l.Call])
				}
			case audit.Refused:
				refused++
			}
		}
		ran := 0
		for name, times := range executed {
			ran += times
			has := 0
			for _, tool := range open {
				if tool == name {
					has++
				}
			}
			if times > has {
				t.Errorf("%s ran %d times and has %d lines", name, times, has)
			}
		}
		if ran > begins || r.cfg.Limits.Calls > 0 && int64(ran) > r.cfg.Limits.Calls {
			t.Errorf("%d ran, %d lines, limit %d", ran, begins, r.cfg.Limits.Calls)
		}
		missing := begins - len(ends)
		if missing > len(r.incomplete) {
			t.Errorf("%d lines are missing and %d were told", missing, len(r.incomplete))
		}
		if closeAt == len(plan) && begins+refused+len(r.incomplete)-missing != len(plan) {
			t.Errorf("%d calls left %d lines, and %d were told of", len(plan), begins+refused, len(r.incomplete))
		}
	})
}
