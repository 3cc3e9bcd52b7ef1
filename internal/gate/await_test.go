package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// A yes is three lines, the first two on disk before anything runs, whatever the
// tool can do.
func TestApproved(t *testing.T) {
	const args = `{"path": "a.txt"}`
	digest := Digest([]byte(args))
	for name, effects := range map[string]call.Effects{"read": call.Read, "write": call.Write, "wreck": call.Destructive} {
		r, a := newAsking(t)
		gone := make(chan struct{})
		req := request(name, args)
		req.Gone = gone
		a.ask = func(_ context.Context, q call.Question) call.Answer {
			want := call.Question{Seq: 1, Tool: r.tools[name], Arguments: []byte(args), Decision: asks(), Gone: gone}
			if !reflect.DeepEqual(q, want) {
				t.Errorf("asked %+v, want %+v", q, want)
			}
			if got := r.rec.kinds(); got != "begin" {
				t.Errorf("asked with the record %q", got)
			}
			return call.Answer{ID: "k7", Yes: true, By: "uid 1000 pid 7", Reason: "once"}
		}
		a.use = func(id, tool string, arguments []byte) error {
			if id != "k7" || tool != name || string(arguments) != args || r.rec.kinds() != "begin answer" || r.runs() != 0 {
				t.Errorf("used %s for %s %s, record %s, ran %q", id, tool, arguments, r.rec.kinds(), r.ran)
			}
			return nil
		}
		res, err := r.Call(context.Background(), req)
		if err != nil || res.IsError || text(res) != "ran" || r.runs() != 1 || a.saw() != "ask, use k7" {
			t.Errorf("%s: %v %v, ran %q, told %s", name, res, err, r.ran, a.saw())
		}
		got := r.rec.all()
		for i := range got {
			got[i].Micros = 0
		}
		want := []line{
			{audit.Record{
				Seq: 1, Kind: audit.Begin, Tool: name, Effects: string(effects), Origin: "endpoint", Arguments: json.RawMessage(args),
				ArgumentsDigest: digest, ArgumentsSize: len(args), Decision: "ask", Layer: "rules", Rule: "ask when x",
			}, true},
			{audit.Record{
				Seq: 2, Kind: audit.Answer, Call: 1, Tool: name, Decision: "allow", Layer: "approval", Rule: "k7",
				Reason: "once", Detail: "uid 1000 pid 7",
			}, true},
			{audit.Record{Seq: 3, Kind: audit.End, Call: 1, Tool: name, Outcome: audit.OK, ResultSize: 3}, false},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// What is allowed needs nobody.
func TestAllowedIsNotAsked(t *testing.T) {
	r, a := newAsking(t, func(r *rig, _ *approver) {
		r.cfg.Policy = policyFunc(func(call.Request, *call.Tool, map[string]any) call.Decision { return allowed() })
	})
	if res, err := r.call("wreck", `{}`); err != nil || res.IsError || a.saw() != "" {
		t.Errorf("%v %v, told %s", res, err, a.saw())
	}
}

// Absent arguments stay absent in the question and in the use of its answer.
func TestArgumentsOfAQuestionAreThoseOfTheRequest(t *testing.T) {
	r, a := newAsking(t)
	for _, args := range [][]byte{nil, []byte(`{}`), []byte(" { } ")} {
		var asked, used []byte
		a.ask = func(_ context.Context, q call.Question) call.Answer {
			asked = q.Arguments
			return call.Answer{ID: "q", Yes: true}
		}
		a.use = func(_, _ string, arguments []byte) error { used = arguments; return nil }
		if _, err := r.Call(context.Background(), call.Request{Tool: "read", Arguments: args}); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(asked, args) || !reflect.DeepEqual(used, args) {
			t.Errorf("%#v was asked as %#v and used as %#v", args, asked, used)
		}
	}
}

func TestNotApproved(t *testing.T) {
	long := strings.Repeat("y", 2*maxReason)
	for _, c := range []struct {
		name    string
		answer  call.Answer
		kinds   string
		says    string
		reason  string // on the answer's line
		by      string
		outcome audit.Outcome
	}{
		{
			"no", call.Answer{ID: "k7", By: "uid 1"}, "begin answer end:denied",
			"refused: a person was asked about this call and said no", "", "uid 1", audit.Denied,
		},
		{
			"no, and why", call.Answer{ID: "k7", By: "uid 1", Reason: "use b.txt"}, "begin answer end:denied",
			"refused: a person was asked about this call and said no: use b.txt", "use b.txt", "uid 1", audit.Denied,
		},
		{
			"no, with a secret", call.Answer{ID: "k7", By: "uid 1", Reason: "it has " + secret}, "begin answer end:denied",
			"refused: a person was asked about this call and said no: it has [masked]", "it has [masked]", "uid 1", audit.Denied,
		},
		{
			"nobody answered", call.Answer{ID: "k7", By: "expired"}, "begin answer end:denied",
			"refused: a person was asked about this call, and nobody answered in time; go on without it, or say what you would need", "", "expired", audit.Denied,
		},
		{
			"taken back", call.Answer{ID: "k7", Ended: true}, "begin end:cancelled",
			"the call was taken back while a person was asked; it was not run", "", "", audit.Cancelled,
		},
		{
			"taken back before it was asked", call.Answer{Ended: true}, "begin end:cancelled",
			"the call was taken back while a person was asked; it was not run", "", "", audit.Cancelled,
		},
		{
			"taken back, and a yes", call.Answer{ID: "k7", Ended: true, Yes: true}, "begin end:cancelled",
			"the call was taken back while a person was asked; it was not run", "", "", audit.Cancelled,
		},
		{
			"could not be asked", call.Answer{Reason: "refused: 20 questions wait"}, "begin end:denied",
			"refused: 20 questions wait", "", "", audit.Denied,
		},
		{
			"could not be asked, with a secret", call.Answer{Reason: "refused: " + secret}, "begin end:denied",
			"refused: [masked]", "", "", audit.Denied,
		},
		{
			"a yes to no question", call.Answer{Yes: true, Reason: "refused: no"}, "begin end:denied",
			"refused: no", "", "", audit.Denied,
		},
		{
			"much to say", call.Answer{ID: "k7", Reason: long}, "begin answer end:denied",
			"refused: a person was asked about this call and said no: yyy", "yyy", "", audit.Denied,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, a := newAsking(t)
			a.ask = func(context.Context, call.Question) call.Answer { return c.answer }
			res, err := r.call("wreck", `{}`)
			if err != nil || !res.IsError || text(res) != c.says && !(c.name == "much to say" && strings.HasPrefix(text(res), c.says)) {
				t.Errorf("%q %v, want %q", text(res), err, c.says)
			}
			if len(text(res)) > 2*maxReason {
				t.Errorf("%d bytes for the model", len(text(res)))
			}
			if r.rec.kinds() != c.kinds || r.runs() != 0 || r.Busy() || len(r.incomplete) != 0 {
				t.Errorf("record %s, ran %q, told %v", r.rec.kinds(), r.ran, r.incomplete)
			}
			told := "ask"
			if c.answer.Yes {
				told = "ask, void " + c.answer.ID
			}
			if a.saw() != told {
				t.Errorf("the approver was told %s, want %s", a.saw(), told)
			}
			lines := r.rec.all()
			end := lines[len(lines)-1]
			if end.Call != 1 || end.Tool != "wreck" || end.Outcome != c.outcome || end.Micros != 0 {
				t.Errorf("%+v", end)
			}
			if len(lines) == 3 {
				l := lines[1]
				if l.Decision != "deny" || l.Layer != "approval" || l.Rule != "k7" || l.Call != 1 || l.Detail != c.by || !l.durable ||
					l.Reason != c.reason && !(c.name == "much to say" && strings.HasPrefix(l.Reason, c.reason) && len(l.Reason) < 2*maxReason) {
					t.Errorf("%+v", l)
				}
			}
		})
	}
}

// While a person thinks, the call is taken back by whoever is behind it, and
// Close waits for nobody's answer.
func TestTakenBackWhileItWaits(t *testing.T) {
	for name, end := range map[string]func(*rig, context.CancelFunc, chan struct{}){
		"the client is gone": func(_ *rig, _ context.CancelFunc, gone chan struct{}) { close(gone) },
		"cancelled":          func(_ *rig, cancel context.CancelFunc, _ chan struct{}) { cancel() },
		"the run ends":       func(r *rig, _ context.CancelFunc, _ chan struct{}) { r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, a := newAsking(t, func(_ *rig, a *approver) { a.ask = waiting })
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				gone := make(chan struct{})
				req := request("wreck", `{}`)
				req.Gone = gone
				done := make(chan call.Result)
				go func() {
					res, _ := r.Call(ctx, req)
					done <- res
				}()
				time.Sleep(time.Hour) // a person may take longer than a call may
				if !r.Busy() || r.rec.kinds() != "begin" {
					t.Fatalf("busy %v, record %s", r.Busy(), r.rec.kinds())
				}
				start := time.Now()
				end(r, cancel, gone)
				res := <-done
				if !res.IsError || text(res) != "the call was taken back while a person was asked; it was not run" || time.Since(start) != 0 {
					t.Errorf("%v after %s", res, time.Since(start))
				}
				if r.rec.kinds() != "begin end:cancelled" || r.runs() != 0 || a.saw() != "ask" || r.Busy() {
					t.Errorf("record %s, ran %q, told %s", r.rec.kinds(), r.ran, a.saw())
				}
			})
		})
	}
}

// Between the yes and the call everything is asked again, and a yes that will
// not be used is given back.
func TestDoubtAfterAYes(t *testing.T) {
	yes := call.Answer{ID: "k7", Yes: true, By: "uid 1"}
	later := func(d call.Decision) func(*rig, *approver, context.CancelFunc, chan struct{}) {
		return func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer {
				r.setPolicy(func() call.Decision { return d })
				return yes
			}
		}
	}
	const (
		denied  = "begin answer end:denied"
		changed = "refused: what is decided about this call has changed since a person was asked; call it again to see what holds now"
		unsure  = "refused: the approval does not hold for this call any more"
	)
	for _, c := range []struct {
		name   string
		set    func(*rig, *approver, context.CancelFunc, chan struct{})
		says   string
		kinds  string
		told   string
		panics int
		lost   int // lines
	}{
		{"the policy denies", later(call.Decision{Verdict: call.Deny, Layer: "mode", Reason: "plan"}), changed, denied, "ask, void k7", 0, 0},
		{"the policy allows", later(allowed()), changed, denied, "ask, void k7", 0, 0},
		{"the policy says nothing", later(call.Decision{}), changed, denied, "ask, void k7", 0, 0},
		{"the policy panics", func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer {
				r.setPolicy(func() call.Decision { panic("boom") })
				return yes
			}
		}, changed, denied, "ask, void k7", 1, 0},
		{"cancelled", func(_ *rig, a *approver, cancel context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { cancel(); return yes }
		}, "the call was cancelled before it ran", "begin answer end:cancelled", "ask, void k7", 0, 0},
		{"the client is gone", func(_ *rig, a *approver, _ context.CancelFunc, gone chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { close(gone); return yes }
		}, "nobody waits for this call any more; it was not run", "begin answer end:cancelled", "ask, void k7", 0, 0},
		{"the run ends", func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { go r.Close(); closing(r); return yes }
		}, "the call was cancelled before it ran", "begin answer end:cancelled", "ask, void k7", 0, 0},
		{"it ends while the answer is written", func(r *rig, a *approver, cancel context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			r.rec.before = func(x audit.Record) error {
				if x.Kind == audit.Answer {
					cancel()
				}
				return nil
			}
		}, "the call was cancelled before it ran", "begin answer end:cancelled", "ask, void k7", 0, 0},
		{"the approval is used up", func(_ *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			a.use = func(string, string, []byte) error { return errors.New("used up, see " + secret) }
		}, unsure, denied, "ask, use k7, void k7", 0, 0},
		{"Ask panics", func(_ *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { panic("boom") }
		}, "refused: the person could not be asked", "begin end:denied", "ask", 1, 0},
		{"Use panics", func(_ *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			a.use = func(string, string, []byte) error { panic("boom") }
		}, unsure, denied, "ask, use k7, void k7", 1, 0},
		{"Void panics too", func(_ *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			a.use = func(string, string, []byte) error { panic("boom") }
			a.void = func(string) { panic("boom") }
		}, unsure, denied, "ask, use k7, void k7", 2, 0},
		{"the answer can't be recorded", func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			r.rec.before = func(x audit.Record) error {
				if x.Kind == audit.Answer {
					return errDisk
				}
				return nil
			}
		}, "the call was not run: the answer to its question could not be recorded", "begin end:denied", "ask, void k7", 0, 1},
		{"the recorder panics", func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return yes }
			r.rec.before = panicOn(audit.Answer)
		}, "the call was not run: the answer to its question could not be recorded", "begin end:denied", "ask, void k7", 1, 1},
		{"a no that can't be recorded", func(r *rig, a *approver, _ context.CancelFunc, _ chan struct{}) {
			a.ask = func(context.Context, call.Question) call.Answer { return call.Answer{ID: "k7", By: "uid 1"} }
			r.rec.before = panicOn(audit.Answer)
		}, "the call was not run: the answer to its question could not be recorded", "begin end:denied", "ask", 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, a := newAsking(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			gone := make(chan struct{})
			c.set(r, a, cancel, gone)
			req := request("wreck", `{}`)
			req.Gone = gone
			res, err := r.Call(ctx, req)
			if err != nil || !res.IsError || text(res) != c.says {
				t.Errorf("%q %v, want %q", text(res), err, c.says)
			}
			if r.rec.kinds() != c.kinds || r.runs() != 0 || a.saw() != c.told || r.Busy() {
				t.Errorf("record %s, ran %q, told %s", r.rec.kinds(), r.ran, a.saw())
			}
			if len(r.panics) != c.panics || len(r.incomplete) != c.lost {
				t.Errorf("panics %v, incomplete %v", r.panics, r.incomplete)
			}
			if c.kinds == denied {
				if l := r.rec.all()[1]; l.Decision != "allow" {
					t.Errorf("the person's yes is recorded as %+v", l)
				}
			}
		})
	}
}

// The last thing before a tool runs is to use the answer up; nothing that can
// keep the call from running comes after it.
func TestUseComesLast(t *testing.T) {
	r, a := newAsking(t)
	r.setPolicy(func() call.Decision { a.say("decide"); return asks() })
	r.rec.before = func(x audit.Record) error { a.say("%s", x.Kind); return nil }
	r.tool("wreck", call.Destructive, func(context.Context, call.Invocation) (call.Result, error) {
		a.say("run")
		return call.Text("ran"), nil
	})
	if _, err := r.call("wreck", `{}`); err != nil {
		t.Fatal(err)
	}
	if want := "decide, begin, ask, answer, decide, use q1, run, end"; a.saw() != want {
		t.Errorf("%s, want %s", a.saw(), want)
	}
}

// One yes is one execution: the same call asks again, and so does every other.
func TestField51_EachCallAsksAgain(t *testing.T) {
	r, a := newAsking(t)
	a.use = func(id, _ string, _ []byte) error {
		if strings.Count(a.saw(), "use "+id) != 1 {
			return errors.New("used up")
		}
		return nil
	}
	for i, c := range [][2]string{{"wreck", `{"path":"a"}`}, {"wreck", `{"path":"a"}`}, {"wreck", `{"path":"b"}`}, {"write", `{"path":"a"}`}, {"wreck", ""}, {"wreck", "{}"}} {
		if res, err := r.call(c[0], c[1]); err != nil || res.IsError {
			t.Fatalf("%v %v", res, err)
		}
		if a.asked != i+1 || r.runs() != i+1 {
			t.Errorf("%d calls, %d questions, %d ran", i+1, a.asked, r.runs())
		}
	}
	// An approver that gives an old answer to a new question has it refused.
	a.ask = func(context.Context, call.Question) call.Answer { return call.Answer{ID: "q1", Yes: true} }
	if res, err := r.call("wreck", `{"path":"a"}`); err != nil || !res.IsError || r.runs() != 6 {
		t.Errorf("%v %v, %d ran", res, err, r.runs())
	}
}

// The time a call may take, and the time on record, begin with the answer.
func TestTheWaitIsNotTheCallsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := newAsking(t, func(r *rig, _ *approver) { r.cfg.Limits.Call = time.Minute })
		a.ask = func(ctx context.Context, _ call.Question) call.Answer {
			if _, ok := ctx.Deadline(); ok {
				t.Error("the question has the call's deadline")
			}
			time.Sleep(time.Hour)
			return call.Answer{ID: "q", Yes: true}
		}
		r.tool("slow", call.Read, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
			time.Sleep(59 * time.Second)
			return call.Text("ran"), ctx.Err()
		})
		r.tool("slower", call.Read, waits)
		if res, err := r.call("slow", ""); err != nil || res.IsError {
			t.Errorf("%v %v", res, err)
		}
		if l := r.rec.all()[2]; l.Outcome != audit.OK || l.Micros != 59e6 {
			t.Errorf("%+v", l)
		}
		start := time.Now()
		res, err := r.call("slower", "")
		if err != nil || !res.IsError || !strings.Contains(text(res), "longer than a call may take") || time.Since(start) != time.Hour+time.Minute {
			t.Errorf("%v %v after %s", res, err, time.Since(start))
		}
	})
}

// The time of one call is over while another waits for a person, who is not
// hurried by it.
func TestOneCallsTimeIsNotAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := newAsking(t, func(r *rig, _ *approver) { r.cfg.Limits.Call = time.Minute })
		a.ask = func(ctx context.Context, q call.Question) call.Answer {
			wait := time.Duration(0)
			if q.Tool.Name == "write" {
				wait = time.Hour
			}
			select {
			case <-time.After(wait):
				return call.Answer{ID: q.Tool.Name, Yes: true}
			case <-ctx.Done():
				return call.Answer{ID: q.Tool.Name, Ended: true}
			}
		}
		r.tool("slow", call.Read, waits)
		var wg sync.WaitGroup
		wg.Go(func() {
			if res, _ := r.call("write", ""); res.IsError {
				t.Errorf("%v", res)
			}
		})
		for range 2 {
			if res, _ := r.call("slow", ""); !res.IsError {
				t.Errorf("%v", res)
			}
		}
		wg.Wait()
	})
}

// A call that waits for a person is under way: it holds its place.
func TestWaitingCountsAsConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := newAsking(t, func(r *rig, _ *approver) { r.cfg.Limits.Concurrent = 2 })
		a.ask = func(_ context.Context, q call.Question) call.Answer {
			time.Sleep(time.Hour)
			return call.Answer{ID: fmt.Sprint(q.Seq), Yes: q.Seq == 1, By: "uid 1"}
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { _, _ = r.call("read", "") })
		}
		synctest.Wait()
		res, err := r.call("read", "")
		r.wantRefused(t, res, err, "limits", "concurrent", "too many calls at once")
		wg.Wait()
		if a.asked != 2 || r.runs() != 1 || r.Busy() {
			t.Errorf("%d asked, ran %q", a.asked, r.ran)
		}
		a.ask = nil
		if res, err := r.call("read", ""); err != nil || res.IsError {
			t.Errorf("the place is not free again: %v %v", res, err)
		}
	})
}

// Nobody is asked about a call that a limit refuses, or whose line could not be
// written.
func TestNotAskedInVain(t *testing.T) {
	r, a := newAsking(t, func(r *rig, _ *approver) { r.cfg.Limits.Calls = 2 })
	r.rec.before = func(audit.Record) error { return errDisk }
	res, err := r.call("read", "")
	if err != nil || !res.IsError || text(res) != "the call was not run: its audit record could not be written" || a.saw() != "" {
		t.Errorf("%v %v, told %s", res, err, a.saw())
	}
	r.rec.before = nil
	if _, err := r.call("none", ""); err == nil {
		t.Error("a tool that is not there")
	}
	if _, err := r.call("read", "[]"); err != nil {
		t.Error(err)
	}
	if a.saw() != "" {
		t.Errorf("told %s", a.saw())
	}
	for {
		res, err := r.call("read", "")
		if r.runs() != a.asked {
			t.Fatalf("%d ran, %d asked", r.runs(), a.asked)
		}
		if res.IsError {
			r.wantRefused(t, res, err, "limits", "calls", "number of tool calls")
			break
		}
	}
}

// One record per attempt that a person was asked about.
func TestField52_EveryAnswerIsOnRecord(t *testing.T) {
	r, a := newAsking(t)
	for _, c := range []struct {
		answer call.Answer
		want   string
	}{
		{call.Answer{ID: "a", Yes: true, By: "uid 1"}, "begin answer end:ok"},
		{call.Answer{ID: "b", By: "uid 1"}, "begin answer end:denied"},
		{call.Answer{ID: "c", By: "expired"}, "begin answer end:denied"},
		{call.Answer{ID: "d", Ended: true}, "begin end:cancelled"},
		{call.Answer{Reason: "refused: x"}, "begin end:denied"},
	} {
		r.rec.lines = nil
		a.ask = func(context.Context, call.Question) call.Answer { return c.answer }
		_, _ = r.call("write", `{}`)
		if got := r.rec.kinds(); got != c.want {
			t.Errorf("%+v: record %q, want %q", c.answer, got, c.want)
		}
		for _, l := range r.rec.all() {
			if l.Tool != "write" || l.Kind != audit.Begin && l.Call != 1 {
				t.Errorf("%+v", l)
			}
		}
	}
}
