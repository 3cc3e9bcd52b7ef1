package gate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

type toolFunc = func(context.Context, call.Invocation) (call.Result, error)

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name    string
		run     toolFunc
		outcome audit.Outcome
		text    string
		isError bool
		panics  int
	}{
		{"ok", func(context.Context, call.Invocation) (call.Result, error) { return call.Text("fine"), nil }, audit.OK, "fine", false, 0},
		{"nothing", func(context.Context, call.Invocation) (call.Result, error) { return call.Result{}, nil }, audit.OK, "", false, 0},
		{"isError", func(context.Context, call.Invocation) (call.Result, error) { return call.Errorf("no such file"), nil }, audit.Error, "no such file", true, 0},
		{"error", func(context.Context, call.Invocation) (call.Result, error) {
			return call.Text("x"), errors.New("went away")
		}, audit.Error, "went away", true, 0},
		{"an error with the secret", func(context.Context, call.Invocation) (call.Result, error) {
			return call.Result{}, errors.New("bad token " + secret)
		}, audit.Error, "bad token [masked]", true, 0},
		{"panic", func(context.Context, call.Invocation) (call.Result, error) { panic(secret) }, audit.Panic, "tool 'x' failed inside; whoever runs this agent finds the reason in the log", true, 1},
		{"panic(nil)", func(context.Context, call.Invocation) (call.Result, error) { panic(nil) }, audit.Panic, "tool 'x' failed inside; whoever runs this agent finds the reason in the log", true, 1},
		{"an error that is a nil pointer", func(context.Context, call.Invocation) (call.Result, error) {
			return call.Result{}, (*nilError)(nil)
		}, audit.Error, "<nil>", true, 0},
		{"Goexit", func(context.Context, call.Invocation) (call.Result, error) {
			runtime.Goexit()
			return call.Result{}, nil
		}, audit.Panic, "tool 'x' failed inside; whoever runs this agent finds the reason in the log", true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			// In a bubble a call that is never answered is a failure, not a wait.
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.tool("x", call.Write, c.run)
				start := time.Now()
				res, err := r.call("x", `{}`)
				if err != nil || text(res) != c.text || res.IsError != c.isError {
					t.Errorf("%+v %v", res, err)
				}
				if res.Content == nil {
					t.Error("content is nil, which some encode as null")
				}
				if ls := r.rec.all(); len(ls) != 2 || ls[1].Outcome != c.outcome || ls[1].Call != 1 || ls[1].Tool != "x" {
					t.Errorf("%+v", ls)
				}
				if len(r.panics) != c.panics || r.Busy() || time.Since(start) != 0 {
					t.Errorf("panics %v, busy %v, took %s", r.panics, r.Busy(), time.Since(start))
				}
			})
		})
	}
}

type nilError struct{ s string }

func (e *nilError) Error() string { return e.s }

// A tool that ends its goroutine panics in a way nobody can recover.
func TestPanicsAreToldWithTheirValue(t *testing.T) {
	r := newRig(t)
	boom := errors.New("boom")
	r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) { panic(boom) })
	r.tool("y", call.Read, func(context.Context, call.Invocation) (call.Result, error) { runtime.Goexit(); panic(0) })
	_, _ = r.call("x", "")
	_, _ = r.call("y", "")
	if want := []any{boom, nil}; !reflect.DeepEqual(r.panics, want) {
		t.Errorf("told %v, want %v", r.panics, want)
	}
}

func waits(ctx context.Context, _ call.Invocation) (call.Result, error) {
	<-ctx.Done()
	return call.Text("late"), ctx.Err()
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tool("x", call.Read, waits)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		res, err := r.Call(ctx, request("x", ""))
		if err != nil || !res.IsError || text(res) != "the call was cancelled" {
			t.Errorf("%v %v", res, err)
		}
		if l := r.rec.all()[1]; l.Outcome != audit.Cancelled || l.Micros != 1e6 {
			t.Errorf("%+v", l)
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tool("x", call.Read, waits)
		start := time.Now()
		res, err := r.call("x", "")
		if err != nil || !res.IsError || text(res) != "the call took longer than a call may take, and was stopped" {
			t.Errorf("%v %v", res, err)
		}
		if took := time.Since(start); took != DefaultCall {
			t.Errorf("took %s, want the default of %s", took, DefaultCall)
		}
		if got := r.rec.kinds(); got != "begin end:cancelled" {
			t.Error(got)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tool("polite", call.Read, waits)
		r.tool("stuck", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			time.Sleep(time.Hour)
			return call.Text("too late"), nil
		})
		var wg sync.WaitGroup
		for _, name := range []string{"polite", "stuck"} {
			wg.Go(func() {
				if res, err := r.call(name, ""); err != nil || !res.IsError || strings.Contains(text(res), "late") {
					t.Errorf("%s: %v %v", name, res, err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		// What comes while it closes is refused, and on record.
		time.AfterFunc(time.Second, func() {
			res, err := r.call("read", "")
			r.wantRefused(t, res, err, "run", "ended", "the run is ending")
		})
		var first, second []Abandoned
		wg.Go(func() { second = r.Close() })
		first = r.Close()
		if took := time.Since(start); took != DefaultGrace {
			t.Errorf("took %s, want the grace of %s", took, DefaultGrace)
		}
		wg.Wait()
		if len(first) != 1 || first[0].Tool != "stuck" || !reflect.DeepEqual(first, second) {
			t.Errorf("%v and %v", first, second)
		}
		ends := strings.Count(r.rec.kinds(), "end:")
		if ends != 2 || !strings.Contains(r.rec.kinds(), "end:cancelled") || !strings.Contains(r.rec.kinds(), "end:abandoned") {
			t.Error(r.rec.kinds())
		}
		// What comes later is refused too; the record may be closed by now.
		lines := len(r.rec.all())
		for _, name := range []string{"read", "none"} {
			if res, err := r.call(name, ""); err != nil || !res.IsError || text(res) != "refused: the run has ended" {
				t.Errorf("%v %v", res, err)
			}
		}
		if len(r.rec.all()) != lines || len(r.incomplete) != 0 || len(r.ran) != 2 {
			t.Errorf("record %s, told %v, ran %q", r.rec.kinds(), r.incomplete, r.ran)
		}
		time.Sleep(2 * time.Hour) // the stuck one comes back
		if len(r.rec.all()) != lines {
			t.Errorf("record %s", r.rec.kinds())
		}
	})
}

// closing returns when Close has begun.
func closing(r *rig) {
	for {
		r.Gate.mu.Lock()
		begun := r.closing
		r.Gate.mu.Unlock()
		if begun {
			return
		}
		runtime.Gosched()
	}
}

// The end of the run while the line is being written is an end before the tool.
func TestRecheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		while func(*rig, context.CancelFunc)
		says  string
	}{
		{"cancelled", func(_ *rig, cancel context.CancelFunc) { cancel() }, "cancelled before it ran"},
		{"the run ended", func(r *rig, _ context.CancelFunc) { go r.Close(); closing(r) }, "cancelled before it ran"},
		{"detached", nil, "nobody waits for this call any more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 50 { // an end that depended on another goroutine would be seen sometimes
				r := newRig(t)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req := request("wreck", "")
				r.rec.before = func(x audit.Record) error {
					if x.Kind == audit.Begin && c.while != nil {
						c.while(r, cancel)
					}
					return nil
				}
				if c.name == "detached" {
					gone := make(chan struct{})
					close(gone)
					req.Gone = gone
				}
				res, err := r.Call(ctx, req)
				if err != nil || !res.IsError || !strings.Contains(text(res), c.says) {
					t.Fatalf("%v %v", res, err)
				}
				if r.runs() != 0 || r.rec.kinds() != "begin end:cancelled" {
					t.Fatalf("ran %q, record %s", r.ran, r.rec.kinds())
				}
			}
		})
	}
	r := newRig(t)
	req := request("read", "")
	req.Gone = make(chan struct{})
	if res, err := r.Call(context.Background(), req); err != nil || res.IsError {
		t.Errorf("%v %v", res, err)
	}
}

// Incomplete is told before Close returns: whoever closes a run asks then
// whether its record is whole.
func TestCloseWaitsForTheBadNews(t *testing.T) {
	for _, kind := range []audit.Kind{audit.Begin, audit.End, audit.Refused} {
		synctest.Test(t, func(t *testing.T) {
			var told atomic.Bool
			r := newRig(t, func(r *rig) {
				r.cfg.Incomplete = func(error) {
					time.Sleep(time.Second)
					told.Store(true)
				}
			})
			r.rec.before = func(x audit.Record) error {
				if x.Kind == kind {
					return errDisk
				}
				return nil
			}
			name := "read"
			if kind == audit.Refused {
				name = "none"
			}
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = r.call(name, "") })
			synctest.Wait()
			r.Close()
			if !told.Load() {
				t.Errorf("%s: Close returned first", kind)
			}
			wg.Wait()
		})
	}
}

func TestField24_TextArrivesAsItIs(t *testing.T) {
	for _, s := range []string{"a<b && c>d", "<-done & x", "a\u2028b\u2029c", `{"html":"<b>&</b>"}`, "\\u003c", "tab\tline\r\n", "é 漢 🦆", "\x00"} {
		r := newRig(t)
		r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			return call.Result{Content: []call.Block{{Text: s}, {JSON: []byte(`{"type":"image","data":"<&>"}`)}}, Structured: []byte(`{"n": 9007199254740993,"s":"<&>"}`)}, nil
		})
		res, err := r.call("x", "")
		want := call.Result{Content: []call.Block{{Text: s}, {JSON: []byte(`{"type":"image","data":"<&>"}`)}}, Structured: []byte(`{"n": 9007199254740993,"s":"<&>"}`)}
		if err != nil || !reflect.DeepEqual(res, want) {
			t.Errorf("%q: %+v %v", s, res, err)
		}
	}
}

func TestFlags(t *testing.T) {
	big := strings.Repeat("x", 2000)
	for _, c := range []struct {
		name  string
		in    call.Result
		out   string
		flags call.Flags
	}{
		{"a secret", call.Text("a " + secret + " b " + secret), "a [masked] b [masked]", call.Flags{Redacted: 2}},
		{"a secret in a block", call.Result{Content: []call.Block{{JSON: []byte(`{"t":"` + secret + `"}`)}}}, `{"t":"[masked]"}`, call.Flags{Redacted: 1}},
		{"no UTF-8", call.Text("a\xffb"), "a\uFFFDb", call.Flags{Repaired: true}},
		{"invisible", call.Text("a\u200bb"), "a\u200bb", call.Flags{Invisible: true}},
		{"invisible in a block", call.Result{Content: []call.Block{{JSON: []byte(`{"t":"\u200b"}`)}}}, `{"t":"\u200b"}`, call.Flags{Invisible: true}},
		{"no UTF-8, and more", call.Result{Content: []call.Block{{Text: "a\xffb"}, {Text: "c"}}}, "a\uFFFDb|c", call.Flags{Repaired: true}},
		{"invisible, and more", call.Result{Content: []call.Block{{Text: "a\u200bb"}, {Text: "c"}, {JSON: []byte(`{}`)}}}, "a\u200bb|c|{}", call.Flags{Invisible: true}},
		{"exactly the limit", call.Text(big[:1000]), big[:1000], call.Flags{}},
		{"one over", call.Text(big[:1001]), big[:750] + call.CutMarker(1) + big[:250], call.Flags{Cut: 1}},
		{"two blocks", call.Result{Content: []call.Block{{Text: big[:600]}, {Text: big[:600]}}}, big[:600] + "|" + big[:300] + call.CutMarker(200) + big[:100], call.Flags{Cut: 200}},
		{"a block too many", call.Result{Content: []call.Block{{Text: big[:1000]}, {Text: "abc"}, {JSON: []byte(`{}`)}}}, big[:1000] + "|" + call.CutMarker(5), call.Flags{Cut: 5}},
		{"a large block", call.Result{Content: []call.Block{{JSON: []byte(`"` + big + `"`)}, {Text: "abc"}}}, call.CutMarker(2002) + "|abc", call.Flags{Cut: 2002}},
		{"what the tool cut itself", call.Result{Content: []call.Block{{Text: "x"}}, Flags: call.Flags{Cut: 7}}, "x", call.Flags{Cut: 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(r *rig) { r.cfg.Limits.Output = 1000 })
			r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) { return c.in, nil })
			size := 0
			for _, b := range c.in.Content {
				size += len(b.Text) + len(b.JSON)
			}
			res, err := r.call("x", "")
			if err != nil || res.IsError || text(res) != c.out || res.Flags != c.flags {
				t.Errorf("%.100q... %+v %v", text(res), res.Flags, err)
			}
			l := r.rec.all()[1]
			if got := (call.Flags{Cut: l.Cut, Redacted: l.Redacted, Repaired: l.Repaired, Invisible: l.Invisible}); got != c.flags || l.ResultSize != size {
				t.Errorf("the record has %+v and size %d, want %d", got, l.ResultSize, size)
			}
		})
	}
}

func TestStructuredOverTheLimitIsLeftOut(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Limits.Output = 100 })
	large := []byte(`{"s":"` + strings.Repeat("x", 200) + `"}`)
	r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		return call.Result{Content: []call.Block{{Text: "t"}}, Structured: large}, nil
	})
	res, err := r.call("x", "")
	if err != nil || res.Structured != nil || text(res) != "t" || res.Flags.Cut != int64(len(large)) {
		t.Errorf("%+v %v", res, err)
	}
}

// What is structured is masked, flagged and counted as everything else.
func TestStructuredIsMasked(t *testing.T) {
	r := newRig(t)
	r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
		return call.Result{Content: []call.Block{{Text: "t"}}, Structured: []byte(`{"s":"` + secret + `","i":"\u200b"}`)}, nil
	})
	res, err := r.call("x", "")
	want := call.Flags{Redacted: 1, Invisible: true}
	if err != nil || string(res.Structured) != `{"s":"[masked]","i":"\u200b"}` || res.Flags != want {
		t.Errorf("%s %+v %v", res.Structured, res.Flags, err)
	}
	if l := r.rec.all()[1]; l.ResultSize != 1+len(`{"s":"`+secret+`","i":"\u200b"}`) {
		t.Errorf("%+v", l)
	}
	r = newRig(t, func(r *rig) { r.cfg.Filter = nullFilter{} })
	if res, err := r.call("read", ""); err != nil || res.Structured != nil {
		t.Errorf("%s %v", res.Structured, err)
	}
}

// nullFilter makes something of nothing.
type nullFilter struct{ filter }

func (nullFilter) JSON([]byte) ([]byte, int) { return []byte("null"), 0 }

// A cut must not leave half a secret: every place of the secret around both
// ends of the cut.
func TestMaskingComesBeforeCutting(t *testing.T) {
	for at := range 1200 {
		r := newRig(t, func(r *rig) { r.cfg.Limits.Output = 400 })
		r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) {
			return call.Text(strings.Repeat(".", at) + secret + strings.Repeat(".", 1200-at)), nil
		})
		res, _ := r.call("x", "")
		for n := 4; n <= len(secret); n++ {
			if strings.Contains(text(res), secret[:n]) || strings.Contains(text(res), secret[len(secret)-n:]) {
				t.Fatalf("at %d: %q", at, text(res))
			}
		}
		r.Close()
	}
}

func TestField74_LargeOutput(t *testing.T) {
	for name, res := range map[string]call.Result{
		"5 MB of text":   call.Text(strings.Repeat("漢字", 1<<20)),
		"an error":       call.Errorf("%s", strings.Repeat("漢字", 1<<20)),
		"1,000 blocks":   {Content: blocks(1000, call.Block{Text: strings.Repeat("a", 1000)})},
		"empty blocks":   {Content: blocks(1_000_000, call.Block{})},
		"large objects":  {Content: blocks(10_000, call.Block{JSON: []byte(`"` + strings.Repeat("a", 1000) + `"`)})},
		"oversize ones":  {Content: blocks(100, call.Block{JSON: []byte(`"` + strings.Repeat("a", 100_000) + `"`)})},
		"bytes, no text": call.Text(strings.Repeat("\xff\xfe", 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.tool("x", call.Read, func(context.Context, call.Invocation) (call.Result, error) { return res, nil })
			got, err := r.call("x", "")
			n := 0
			for _, b := range got.Content {
				n += len(b.Text) + len(b.JSON)
			}
			if err != nil || got.IsError != res.IsError || n > 3*call.DefaultOutput+100 || len(got.Content) > call.DefaultOutput+1 {
				t.Errorf("%d bytes in %d blocks, isError %v, %v", n, len(got.Content), got.IsError, err)
			}
			if name != "empty blocks" && (got.Flags.Cut == 0 || !strings.Contains(text(got), "bytes left out ...]")) {
				t.Errorf("%+v: nothing says that it was cut", got.Flags)
			}
			if l := r.rec.all()[1]; l.Cut != got.Flags.Cut {
				t.Errorf("%+v", l)
			}
		})
	}
}

func blocks(n int, b call.Block) []call.Block {
	bs := make([]call.Block, n)
	for i := range bs {
		bs[i] = b
	}
	return bs
}

// A fault in what the gate is built from refuses the call and is told; it takes
// neither the process nor a place among the calls.
func TestPanicsOfTheGatesOwnParts(t *testing.T) {
	boom := func() { panic("boom") }
	for _, c := range []struct {
		name   string
		change func(*rig)
		says   string
		kinds  string
		told   int // Incomplete
		ran    int
	}{
		{"the policy", func(r *rig) {
			r.cfg.Policy = policyFunc(func(call.Request, *call.Tool, map[string]any) call.Decision { boom(); return allowed() })
		}, "could not be judged", "refused", 0, 0},
		{"the schema", func(r *rig) { r.tools["read"].Validate = func(any) error { boom(); return nil } }, "could not be judged", "refused", 0, 0},
		{"the catalogue", func(r *rig) { r.cfg.Catalogue = nil }, "could not be judged", "refused", 0, 0},
		{"the recorder, before", func(r *rig) { r.rec.before = panicOn(audit.Begin) }, "was not run", "", 1, 0},
		{"the recorder, after", func(r *rig) { r.rec.before = panicOn(audit.End) }, "withheld", "begin", 1, 1},
		{"the filter, of arguments", func(r *rig) { r.cfg.Filter = faulty{arguments: true} }, "was not run", "", 1, 0},
		{"the filter, of the result", func(r *rig) { r.cfg.Filter = faulty{result: true} }, "could not be checked for secrets", "begin end:ok", 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.change)
			res, err := r.call("read", `{}`)
			if err != nil || !res.IsError || !strings.Contains(text(res), c.says) {
				t.Errorf("%v %v, want %q", res, err, c.says)
			}
			if r.rec.kinds() != c.kinds || len(r.incomplete) != c.told || r.runs() != c.ran || len(r.panics) != 1 || r.panics[0] == "no stack" {
				t.Errorf("record %s, told %v, ran %q, panics %v", r.rec.kinds(), r.incomplete, r.ran, r.panics)
			}
			if r.Busy() {
				t.Error("it holds its place")
			}
			if got := r.Close(); len(got) != 0 {
				t.Errorf("%v", got)
			}
		})
	}
}

func panicOn(k audit.Kind) func(audit.Record) error {
	return func(r audit.Record) error {
		if r.Kind == k {
			panic("boom")
		}
		return nil
	}
}

// faulty is a filter that panics on arguments, or on the text "ran".
type faulty struct{ arguments, result bool }

func (f faulty) Arguments(raw []byte) []byte {
	if f.arguments {
		panic("boom")
	}
	return filter{}.Arguments(raw)
}

func (f faulty) Text(s string) (string, int) {
	if f.result && s == "ran" {
		panic("boom")
	}
	return filter{}.Text(s)
}

func (f faulty) JSON(b []byte) ([]byte, int) { return filter{}.JSON(b) }

func TestZeroConfigHasDefaults(t *testing.T) {
	g := New(Config{
		Catalogue: catalogue{"read": {Name: "read"}}, Policy: policyFunc(nil), Filter: filter{},
		Record: &record{before: func(audit.Record) error { return errDisk }},
	})
	defer g.Close()
	if _, err := g.Call(context.Background(), request("x", "")); fmt.Sprint(err) != "tool 'x' is not available to this agent" {
		t.Error(err)
	}
	if res, err := g.Call(context.Background(), request("read", "")); err != nil || !res.IsError { // the policy panics
		t.Errorf("%v %v", res, err)
	}
	want := Limits{Concurrent: DefaultConcurrent, Output: call.DefaultOutput, Call: DefaultCall, Grace: DefaultGrace}
	if g.cfg.Limits != want {
		t.Errorf("%+v", g.cfg.Limits)
	}
}

// A clock that panics keeps no call from ending, and so no run from closing.
func TestClockThatPanics(t *testing.T) {
	r := newRig(t, func(r *rig) { r.cfg.Now = func() time.Time { panic("no time") } })
	if res, err := r.call("read", ""); err != nil || res.IsError {
		t.Errorf("%v %v", res, err)
	}
	r.Close()
}

// What Begun is given cancels the call: before it runs, while it runs, and after
// it nothing.
func TestBegun(t *testing.T) {
	r := newRig(t)
	r.tool("slow", call.Read, waits)
	var stop func()
	req := request("slow", "")
	req.Begun = func(cancel func()) { cancel() }
	if res, err := r.Call(context.Background(), req); err != nil || text(res) != "the call was cancelled before it ran" || r.runs() != 0 {
		t.Errorf("%v %v", res, err)
	}
	began := make(chan struct{})
	req.Begun = func(cancel func()) { stop = cancel; close(began) }
	go func() { <-began; stop() }()
	if res, err := r.Call(context.Background(), req); err != nil || !strings.Contains(text(res), "the call was cancelled") {
		t.Errorf("%v %v", res, err)
	}
	stop()
	req = request("none", "")
	req.Begun = func(func()) { t.Error("a refused call has begun") }
	if _, err := r.Call(context.Background(), req); err == nil {
		t.Error("not refused")
	}
}

// The times on record are those of the clock the gate was given.
func TestItsClockIsTheOneItWasGiven(t *testing.T) {
	var now atomic.Int64
	r := newRig(t, func(r *rig) { r.cfg.Now = func() time.Time { return time.Unix(now.Add(7), 0) } })
	if _, err := r.call("read", ""); err != nil {
		t.Fatal(err)
	}
	if l := r.rec.all()[1]; l.Micros != 7e6 {
		t.Errorf("%+v", l)
	}
}
