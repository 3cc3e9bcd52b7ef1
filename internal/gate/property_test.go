package gate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// For any calls at once, whatever their tools do and whenever the gate closes:
// every execution has its Begin before it and one End after it, what is refused
// never ran, and every call that found the record open left its lines. What a
// person is asked about ran where there is a yes before it that was used for it,
// and every other yes was given back.
func TestEveryExecutionIsOnRecord(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"ok", "fails", "panics", "exits", "waits", "denied", "approved", "disapproved", "withdrawn", "thought over", "none"}
		plan := rapid.SliceOfN(rapid.SampledFrom(names), 1, 24).Draw(rt, "calls")
		workers := rapid.IntRange(1, 6).Draw(rt, "workers")
		closeAt := rapid.IntRange(0, len(plan)).Draw(rt, "close at")
		failing := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 5).Draw(rt, "lines that fail")

		var mu sync.Mutex
		n := 0
		executed := map[string]bool{} // by digest of the arguments, which tell the calls apart
		asked := map[string]bool{"approved": true, "disapproved": true, "withdrawn": true, "thought over": true}
		people := &people{yes: map[string]string{}}
		r := newRig(t, func(r *rig) {
			r.cfg.Limits = Limits{Calls: rapid.Int64Range(0, 20).Draw(rt, "limit"), Concurrent: rapid.IntRange(1, 4).Draw(rt, "concurrent")}
			r.cfg.Policy = policyFunc(func(req call.Request, _ *call.Tool, _ map[string]any) call.Decision {
				switch {
				case req.Tool == "denied":
					return call.Decision{Verdict: call.Deny, Layer: "x", Reason: "no"}
				case asked[req.Tool]:
					return asks()
				}
				return allowed()
			})
			r.cfg.Approver = people
		})
		answers := 0 // that could not be written
		r.rec.before = func(x audit.Record) error {
			mu.Lock()
			defer mu.Unlock()
			n++
			for _, f := range failing {
				if f == n {
					if x.Kind == audit.Answer {
						answers++
					}
					return errDisk
				}
			}
			return nil
		}
		for _, name := range names[:len(names)-1] {
			r.tool(name, call.Write, func(ctx context.Context, inv call.Invocation) (call.Result, error) {
				id := call.Digest(inv.Arguments)
				begin := lineOf(r.rec.all(), id)
				if begin == nil || begin.Kind != audit.Begin || begin.Tool != name || !begin.durable || endOf(r.rec.all(), begin.Seq) != 0 {
					t.Errorf("%s runs, and its line is %+v", name, begin)
				} else if asked[name] != (answerOf(r.rec.all(), begin.Seq) == "allow") || asked[name] != people.has(id, "used") {
					t.Errorf("%s runs, answered %q", name, answerOf(r.rec.all(), begin.Seq))
				}
				mu.Lock()
				if executed[id] {
					t.Errorf("%s ran twice", inv.Arguments)
				}
				executed[id] = true
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
		next := make(chan int)
		for range workers {
			wg.Go(func() {
				for i := range next {
					name := plan[i]
					ctx, cancel := context.WithCancel(context.Background())
					if name == "waits" || name == "thought over" {
						go func() { runtime.Gosched(); cancel() }()
					}
					_, _ = r.Call(ctx, request(name, fmt.Sprintf(`{"i":%d}`, i)))
					cancel()
				}
			})
		}
		closed := make(chan struct{})
		for i := range plan {
			if i == closeAt {
				go func() { r.Close(); close(closed) }()
			}
			next <- i
		}
		close(next)
		wg.Wait()
		if closeAt == len(plan) {
			r.Close()
		} else {
			<-closed
		}

		lines := r.rec.all()
		begins, refused, missing := 0, 0, 0
		for _, l := range lines {
			switch l.Kind {
			case audit.Begin:
				begins++
				switch endOf(lines, l.Seq) {
				case 0:
					missing++
				case 1:
				default:
					t.Errorf("line %d has several ends", l.Seq)
				}
			case audit.Refused:
				refused++
				if executed[l.ArgumentsDigest] {
					t.Errorf("%s is refused and ran", l.Arguments)
				}
			}
		}
		if len(executed) > begins || r.cfg.Limits.Calls > 0 && int64(len(executed)) > r.cfg.Limits.Calls {
			t.Errorf("%d ran, %d began, limit %d", len(executed), begins, r.cfg.Limits.Calls)
		}
		if missing > len(r.incomplete) {
			t.Errorf("%d ends are missing and %d were told of", missing, len(r.incomplete))
		}
		if closeAt == len(plan) && begins+refused+len(r.incomplete)-missing-answers != len(plan) {
			t.Errorf("%d calls left %d lines, and %d were told of, %d of them ends, %d answers", len(plan), begins+refused, len(r.incomplete), missing, answers)
		}
		if r.Busy() {
			t.Error("busy after all")
		}
		for id, state := range people.yes {
			if want := map[bool]string{true: "used", false: "given back"}[executed[id]]; state != want {
				t.Errorf("a yes is %s, want %s", state, want)
			}
		}
	})
}

// people answer by the tool's name. yes is what became of each yes, by the
// digest of its arguments.
type people struct {
	mu  sync.Mutex
	yes map[string]string
}

func (p *people) Ask(ctx context.Context, q call.Question) call.Answer {
	id := call.Digest(q.Arguments)
	switch q.Tool.Name {
	case "disapproved":
		return call.Answer{ID: id, By: "uid 1", Reason: "no"}
	case "thought over":
		<-ctx.Done()
		return call.Answer{ID: id, Ended: true}
	}
	p.set(id, "given")
	return call.Answer{ID: id, Yes: true, By: "uid 1"}
}

func (p *people) Use(_ context.Context, id, tool string, arguments []byte) error {
	if tool == "withdrawn" || id != call.Digest(arguments) || !p.has(id, "given") {
		return errors.New("it does not hold")
	}
	p.set(id, "used")
	return nil
}

func (p *people) Void(id string) {
	if p.has(id, "given") {
		p.set(id, "given back")
	}
}

func (p *people) set(id, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.yes[id] = state
}

func (p *people) has(id, state string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.yes[id] == state
}

// lineOf is the first line of the call with these arguments.
func lineOf(lines []line, digest string) *line {
	for i := range lines {
		if lines[i].ArgumentsDigest == digest {
			return &lines[i]
		}
	}
	return nil
}

// endOf counts the End lines of a call.
func endOf(lines []line, begin int64) (n int) {
	for _, l := range lines {
		if l.Kind == audit.End && l.Call == begin {
			n++
		}
	}
	return n
}

// answerOf is what the record has of a person's answer to a call.
func answerOf(lines []line, begin int64) string {
	for _, l := range lines {
		if l.Kind == audit.Answer && l.Call == begin && l.durable {
			return l.Decision
		}
	}
	return ""
}
