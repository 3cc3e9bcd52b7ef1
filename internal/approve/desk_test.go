package approve_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

func TestAnswers(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		yes, no := o.ask(call("delete_file", `{"path":"a.txt"}`)), o.ask(call("delete_file", `{"path":"b.txt"}`))
		p := o.Pending()
		if len(p) != 2 || p[0].ID != yes.id || p[1].ID != no.id {
			o.Fatalf("pending: %v", p)
		}
		want := approve.Question{
			ID: yes.id, Run: "r1", Workspace: "ws", Channel: "ch", User: "kim", Agent: "researcher",
			Call: 7, Tool: "delete_file", Effects: "write", Arguments: `{"path": "a.txt"}`, ArgumentsSize: 16,
			ArgumentsDigest: approve.Digest([]byte(`{"path":"a.txt"}`)),
			PolicyDigest:    "sha256:p1", Layer: "agent researcher", Rule: "ask: *", Reason: "because",
			Asked: p[0].Asked, Expires: p[0].Asked.Add(approve.DefaultExpiry), State: approve.Pending,
		}
		if p[0] != want {
			o.Errorf("the question is\n%+v, want\n%+v", p[0], want)
		}
		time.Sleep(90 * time.Second)
		if err := o.Answer(o.Context(), no.id, approve.Answer{Note: "not\x1b[2J that one", By: "terminal", Remember: true}); err != nil {
			o.Fatal(err)
		}
		o.answer(yes, true, "uid 1000 pid 4711")
		o.is(no, approve.Denied)
		o.is(yes, approve.Approved)
		if no.q.By != "terminal" || no.q.Note != `not\u{1b}[2J that one` || no.q.Remember || no.q.Answered.Sub(no.q.Asked) != 90*time.Second {
			o.Errorf("denied: %+v", no.q)
		}
		if len(o.Pending()) != 0 {
			o.Errorf("still pending: %v", o.Pending())
		}
		o.refused(o.Use(o.Context(), no.id, "delete_file", []byte(`{"path":"b.txt"}`)), "used up or is void")
		if err := o.Use(o.Context(), yes.id, "delete_file", []byte(`{"path":"a.txt"}`)); err != nil {
			o.Error(err)
		}
		o.is(now(yes, approve.Used), approve.Used)
		if o.opened != 1 {
			o.Errorf("the store was opened %d times", o.opened)
		}
	})
}

// now is a with the state that it has by now.
func now(a *asking, s approve.State) *asking { b := *a; b.q.State = s; return &b }

// TestField51_ApprovalFitsOneCall: what a person said holds for one execution of
// the very call they saw.
func TestField51_ApprovalFitsOneCall(t *testing.T) {
	const tool, args = "delete_file", `{"path":"a.txt"}`
	for name, other := range map[string]struct {
		tool string
		args []byte
	}{
		"other arguments":             {tool, []byte(`{"path":"b.txt"}`)},
		"the same in other bytes":     {tool, []byte(`{"path": "a.txt"}`)},
		"no arguments":                {tool, nil},
		"none, but there":             {tool, []byte{}},
		"another tool":                {"delete_folder", []byte(args)},
		"another case":                {"Delete_file", []byte(args)},
		"tool and arguments shifted":  {tool + args, nil},
		"the digest as the arguments": {tool, []byte(approve.Digest([]byte(args)))},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(o *office) {
				a := o.ask(call(tool, args))
				o.answer(a, true, "kim")
				o.is(a, approve.Approved)
				o.refused(o.Use(o.Context(), a.id, other.tool, other.args), "another call")
				o.is(now(a, approve.Void), approve.Void)
				o.refused(o.Use(o.Context(), a.id, tool, []byte(args)), "used up or is void")
			})
		})
	}
	t.Run("absent, null, {} and nothing are four calls", func(t *testing.T) {
		forms := [][]byte{nil, {}, []byte("null"), []byte("{}"), []byte(" {}")}
		for _, asked := range forms {
			for _, used := range forms {
				inBubble(t, nil, func(o *office) {
					a := o.ask(approve.Call{Tool: tool, Arguments: asked})
					o.answer(a, true, "kim")
					<-a.done
					same := string(asked) == string(used) && (asked == nil) == (used == nil)
					if err := o.Use(o.Context(), a.id, tool, used); (err == nil) != same {
						o.Errorf("asked about %q, used for %q: %v", asked, used, err)
					}
				})
			}
		}
	})
	t.Run("the same call twice asks twice", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call(tool, args))
			o.answer(a, true, "kim")
			o.is(a, approve.Approved)
			if err := o.Use(o.Context(), a.id, tool, []byte(args)); err != nil {
				o.Fatal(err)
			}
			o.refused(o.Use(o.Context(), a.id, tool, []byte(args)), "used up or is void")
			b := o.ask(call(tool, args))
			if p := o.Pending(); len(p) != 1 || p[0].ID != b.id || b.id == a.id {
				o.Errorf("pending: %v", p)
			}
		})
	})
	t.Run("a late answer does nothing", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call(tool, args))
			time.Sleep(approve.DefaultExpiry)
			o.is(a, approve.Expired)
			err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, By: "kim"})
			if !errors.Is(err, approve.ErrSettled) || !strings.Contains(err.Error(), "expired at 2000-01-01T00:10:00Z") {
				o.Errorf("%v, want ErrSettled", err)
			}
			o.is(a, approve.Expired)
			o.refused(o.Use(o.Context(), a.id, tool, []byte(args)), "used up or is void")
		})
	})
	t.Run("of two approvers one wins", func(t *testing.T) {
		for range 20 {
			inBubble(t, nil, func(o *office) {
				a := o.ask(call(tool, args))
				errs := make([]error, 6)
				var wg sync.WaitGroup
				for i := range errs {
					wg.Go(func() {
						errs[i] = o.Answer(o.Context(), a.id, approve.Answer{Yes: i%2 == 0, By: fmt.Sprint("person ", i)})
					})
				}
				wg.Wait()
				<-a.done
				won := 0
				for i, err := range errs {
					switch {
					case err == nil:
						won++
						if a.q.By != fmt.Sprint("person ", i) || (a.q.State == approve.Approved) != (i%2 == 0) {
							o.Errorf("person %d won, and the question is %s by %s", i, a.q.State, a.q.By)
						}
					case !errors.Is(err, approve.ErrSettled) || !strings.Contains(err.Error(), "by "+a.q.By+" at 2000-01-01T00:00:00Z"):
						o.Errorf("%v, want how it was settled", err)
					}
				}
				if won != 1 {
					o.Errorf("%d won", won)
				}
			})
		}
	})
	t.Run("nobody of this run", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			if err := o.Answer(o.Context(), "nobody22", approve.Answer{Yes: true}); !errors.Is(err, approve.ErrUnknown) {
				o.Errorf("%v, want ErrUnknown", err)
			}
			o.refused(o.Use(o.Context(), "nobody22", tool, nil), "used up or is void")
			o.Void("nobody22")
		})
	})
}

func TestUseBeforeTheAnswer(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		a := o.ask(call("t", "{}"))
		o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "nobody has approved")
		o.Void(a.id)
		o.answer(a, true, "kim")
		o.is(a, approve.Approved)
	})
}

func TestPolicyChanged(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		a := o.ask(call("t", "{}"))
		if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, Remember: true}); err != nil {
			o.Fatal(err)
		}
		o.is(a, approve.Approved)
		o.policy = "sha256:p2"
		o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "policy has changed")
		o.is(now(a, approve.Void), approve.Void)
		b := o.ask(call("t", "{}"))
		o.policy = "sha256:p1"
		c := o.ask(call("t", "{}"))
		if p := o.Pending(); len(p) != 2 || p[0].ID != b.id || p[1].ID != c.id {
			o.Errorf("a yes under another policy was remembered: pending %v", p)
		}
	})
}

func TestRemembered(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		a := o.ask(call("t", `{"n":1}`))
		if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, Remember: true, By: "kim"}); err != nil {
			o.Fatal(err)
		}
		o.is(a, approve.Approved)
		told := len(o.told)
		o.Void(a.id) // the call it was asked for is gone; the answer holds
		var ids []string
		for range 3 {
			b := o.ask(call("t", `{"n":1}`))
			o.is(b, approve.Approved)
			if b.id == a.id || b.q.By != "remembered "+a.id || b.q.Remember {
				o.Errorf("remembered: %+v", b.q)
			}
			ids = append(ids, b.id)
			if err := o.Answer(o.Context(), b.id, approve.Answer{}); !errors.Is(err, approve.ErrSettled) {
				o.Errorf("%v, want ErrSettled", err)
			}
			if err := o.Use(o.Context(), b.id, "t", []byte(`{"n":1}`)); err != nil {
				o.Error(err)
			}
			o.refused(o.Use(o.Context(), b.id, "t", []byte(`{"n":1}`)), "used up or is void")
			if err := o.Answer(o.Context(), b.id, approve.Answer{}); !errors.Is(err, approve.ErrUnknown) {
				o.Errorf("%v, want ErrUnknown: what nobody was asked is not remembered", err)
			}
			o.is(now(b, approve.Used), approve.Used)
		}
		if ids[0] == ids[1] || ids[1] == ids[2] {
			o.Errorf("ids: %v", ids)
		}
		if len(o.told) != told {
			o.Errorf("told of what nobody is asked: %v", o.told[told:])
		}
		for _, c := range []approve.Call{call("t", `{"n":2}`), call("u", `{"n":1}`), call("t", "")} {
			if b := o.ask(c); b.q.State != "" {
				o.Errorf("%s %s was settled by another call's answer", c.Tool, c.Arguments)
			}
		}
	})
	inBubble(t, nil, func(o *office) {
		a := o.ask(call("t", "{}"))
		if err := o.Answer(o.Context(), a.id, approve.Answer{Remember: true}); err != nil {
			o.Fatal(err)
		}
		o.is(a, approve.Denied)
		if b := o.ask(call("t", "{}")); b.q.State != "" {
			o.Errorf("a no was remembered: %+v", b.q)
		}
	})
}

// TestExpiryFollowsNoClock sets the wall clock while questions wait.
func TestExpiryFollowsNoClock(t *testing.T) {
	for _, jump := range []time.Duration{0, -24 * time.Hour, 24 * time.Hour} {
		inBubble(t, nil, func(o *office) {
			a, b := o.ask(call("t", "{}")), o.ask(call("t", "[]"))
			o.clock = jump
			time.Sleep(approve.DefaultExpiry - time.Second)
			if len(o.Pending()) != 2 {
				o.Fatalf("jump %v: expired early", jump)
			}
			o.answer(a, true, "kim")
			o.is(a, approve.Approved)
			time.Sleep(time.Second)
			o.is(b, approve.Expired)
			o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "expired")
			o.is(now(a, approve.Void), approve.Void)
			if d := b.q.Expires.Sub(b.q.Asked); d != approve.DefaultExpiry {
				o.Errorf("expires after %v", d)
			}
		})
	}
}

// TestAnswerAtTheLastMoment: whatever timer is late, time that is over is over.
func TestAnswerAtTheLastMoment(t *testing.T) {
	block := make(chan struct{})
	inBubble(t, func(c *approve.Config, _ *office) {
		c.Expiry = time.Minute
		c.Asked = func(approve.Question) { <-block }
	}, func(o *office) {
		block = make(chan struct{})
		a := o.ask(call("t", "{}"))
		time.Sleep(time.Minute)
		if len(o.Pending()) != 0 {
			o.Error("pending although its time is over")
		}
		if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true}); !errors.Is(err, approve.ErrSettled) {
			o.Errorf("%v, want ErrSettled", err)
		}
		close(block)
		o.is(a, approve.Expired)
	})
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(o *office, a *asking)
		note string
	}{
		"the call is cancelled": {func(_ *office, a *asking) { a.stop() }, "the call was cancelled"},
		"the client is gone":    {func(_ *office, a *asking) { close(a.gone) }, "nobody waits for the call any more"},
		"the desk closes":       {func(o *office, _ *asking) { o.Close(); o.Close() }, "the run ended"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(o *office) {
				a := o.ask(call("t", "{}"))
				time.Sleep(time.Minute)
				c.end(o, a)
				o.is(a, approve.Void)
				if a.q.Note != c.note || a.q.By != "" || a.q.Answered.Sub(a.q.Asked) != time.Minute {
					o.Errorf("%+v", a.q)
				}
				err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, By: "kim"})
				if !errors.Is(err, approve.ErrSettled) || !strings.Contains(err.Error(), c.note) {
					o.Errorf("%v, want ErrSettled and %q", err, c.note)
				}
				o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "used up or is void")
				if want := []string{"asked " + a.id, "settled " + a.id + " void"}; fmt.Sprint(o.told) != fmt.Sprint(want) {
					o.Errorf("told %v, want %v", o.told, want)
				}
			})
		})
	}
}

func TestClosed(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		yes := o.ask(call("t", "{}"))
		if err := o.Answer(o.Context(), yes.id, approve.Answer{Yes: true, Remember: true, By: "kim", Note: "go"}); err != nil {
			o.Fatal(err)
		}
		o.is(yes, approve.Approved)
		o.Close()
		o.is(now(yes, approve.Void), approve.Void)
		o.refused(o.Use(o.Context(), yes.id, "t", []byte("{}")), "used up or is void")
		for _, args := range []string{"{}", "[]"} {
			_, err := o.Ask(o.Context(), call("t", args))
			o.refused(err, "the run is ending")
		}
		err := o.Answer(o.Context(), yes.id, approve.Answer{})
		if err == nil || err.Error() != "the question is settled: approved by kim at 2000-01-01T00:00:00Z (go), but the call did not run" {
			o.Error(err)
		}
	})
}

// TestCloseWaits: when Close returns, the store has what there is to have.
func TestCloseWaits(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		a, b := o.ask(call("t", "{}")), o.ask(call("t", "[]"))
		o.answer(b, true, "kim")
		o.is(b, approve.Approved)
		o.store.set(func(m *mem) { m.wait = 700 * time.Millisecond })
		o.Close()
		if x, y := o.store.state(a.id), o.store.state(b.id); x != approve.Void || y != approve.Void {
			o.Errorf("the store has %s and %s", x, y)
		}
		o.is(a, approve.Void)
	})
}

func TestPanicInAsked(t *testing.T) {
	inBubble(t, func(c *approve.Config, _ *office) {
		c.Asked = func(approve.Question) { panic("a door") }
	}, func(o *office) {
		func() {
			defer func() { _ = recover() }()
			_, _ = o.Ask(o.Context(), call("t", "{}"))
			o.Error("no panic")
		}()
		if q := o.store.list; len(q) != 1 || q[0].State != approve.Void || len(o.Pending()) != 0 {
			o.Errorf("left behind: %+v", q)
		}
	})
}

// TestFlood: an agent can't bury the question that matters under others, nor
// fill the store.
func TestFlood(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		var waiting []*asking
		for i := range approve.DefaultMaxOpen {
			waiting = append(waiting, o.ask(call("t", fmt.Sprint(i))))
		}
		_, err := o.Ask(o.Context(), call("t", "one more"))
		o.refused(err, "20 questions of this run are waiting for a person")
		if len(o.store.list) != 20 {
			o.Errorf("%d kept", len(o.store.list))
		}
		o.answer(waiting[3], false, "kim")
		o.is(waiting[3], approve.Denied)
		o.ask(call("t", "one more"))
		if len(o.Pending()) != 20 {
			o.Errorf("%d pending", len(o.Pending()))
		}
	})
	inBubble(t, func(c *approve.Config, _ *office) { c.MaxAsked = 3 }, func(o *office) {
		o.store.err = errors.New("locked")
		if a := o.ask(call("t", "{}")); a.err == nil {
			o.Error("asked without a store")
		}
		o.store.err = nil
		for range 3 {
			a := o.ask(call("t", "{}"))
			a.stop()
			o.is(a, approve.Void)
		}
		_, err := o.Ask(o.Context(), call("t", "{}"))
		o.refused(err, "this run has asked 3 questions")
	})
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	inBubble(t, func(c *approve.Config, _ *office) { c.MaxAsked, c.MaxOpen = 500, 500 }, func(o *office) {
		for range 500 {
			a := o.ask(call("t", "{}"))
			a.stop()
			<-a.done
			if len(a.q.ID) != 8 || strings.Trim(a.q.ID, "23456789abcdefghjkmnpqrstuvwxyz") != "" || seen[a.q.ID] {
				o.Errorf("id %q", a.q.ID)
			}
			seen[a.q.ID] = true
		}
	})
}

func TestSecretsAreMasked(t *testing.T) {
	inBubble(t, func(c *approve.Config, _ *office) {
		c.Mask = func(s string) string { return strings.ReplaceAll(s, "hunter2222", "[masked]") }
		c.Show = func(b []byte) []byte {
			if strings.Contains(string(b), "unshowable") {
				return nil
			}
			return []byte(`{"password":"[masked]"}`)
		}
	}, func(o *office) {
		c := call("t", `{"password":"hunter2222"}`)
		c.Plan, c.Reason = strings.Repeat("x", approve.MaxPlan-3)+"hunter2222", "hunter2222"
		a := o.ask(c)
		if err := o.Answer(o.Context(), a.id, approve.Answer{Note: strings.Repeat("ä", 495) + "hunter2222", By: "kim"}); err != nil {
			o.Fatal(err)
		}
		o.is(a, approve.Denied)
		b := o.ask(call("t", "unshowable"))
		if p := o.Pending(); p[0].ID != b.id || p[0].Arguments != "" || p[0].ArgumentsSize != 10 {
			o.Errorf("%+v", p)
		}
		if all := fmt.Sprintf("%+v", o.store.list); strings.Contains(all, "hunter") || !strings.Contains(all, "[masked]") {
			o.Errorf("a secret was kept: %.3000s", all)
		}
		if len(a.q.Note) > 1000 {
			o.Errorf("a note of %d bytes", len(a.q.Note))
		}
	})
}
