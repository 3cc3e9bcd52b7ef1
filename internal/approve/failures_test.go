package approve_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func TestStoreFailures(t *testing.T) {
	locked := fault.New(fault.Usage, "try again", "the database is busy")
	t.Run("can't be opened, once", func(t *testing.T) {
		fail := true
		inBubble(t, func(c *approve.Config, o *office) {
			open := c.Open
			c.Open = func(ctx context.Context) (approve.Store, error) {
				if fail {
					return nil, errors.New("/secret/path: no such file")
				}
				return open(ctx)
			}
		}, func(o *office) {
			_, err := o.Ask(o.Context(), call("t", "{}"))
			o.refused(err, "could not be kept")
			if strings.Contains(err.Error(), "secret") || !strings.Contains(errors.Unwrap(err).Error(), "secret") {
				o.Errorf("%v around %v", err, errors.Unwrap(err))
			}
			fail = false
			o.answer(o.ask(call("t", "{}")), true, "kim")
		})
	})
	t.Run("an answer is not taken", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			o.store.set(func(m *mem) { m.err = locked })
			err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, Remember: true, By: "kim"})
			if !errors.Is(err, locked) || fault.HintOf(err) != "try again" || !strings.Contains(err.Error(), "still open: the database is busy") {
				o.Errorf("%v", err)
			}
			if len(o.Pending()) != 1 {
				o.Error("the question is gone")
			}
			o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "nobody has approved")
			o.store.set(func(m *mem) { m.err = nil })
			o.answer(a, false, "kim")
			o.is(a, approve.Denied)
			if b := o.ask(call("t", "{}")); b.q.State != "" {
				o.Errorf("an answer that was not taken is remembered")
			}
		})
	})
	t.Run("time is over all the same", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			b := o.ask(call("t", "{}"))
			o.store.set(func(m *mem) { m.err = locked })
			b.stop()
			time.Sleep(approve.DefaultExpiry)
			<-a.done
			<-b.done
			if a.q.State != approve.Expired || b.q.State != approve.Void {
				o.Errorf("%s, %s", a.q.State, b.q.State)
			}
			if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true}); !errors.Is(err, approve.ErrSettled) {
				o.Errorf("%v, want ErrSettled", err)
			}
		})
	})
	t.Run("what can't be kept as used does not run", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			o.answer(a, true, "kim")
			o.is(a, approve.Approved)
			o.store.set(func(m *mem) { m.err = locked })
			err := o.Use(o.Context(), a.id, "t", []byte("{}"))
			o.refused(err, "could not be kept")
			if !errors.Is(err, locked) {
				o.Errorf("%v", err)
			}
			o.store.set(func(m *mem) { m.err = nil })
			o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "used up or is void")
		})
	})
	t.Run("changed past the desk", func(t *testing.T) {
		for _, s := range []approve.State{approve.Approved, approve.Void, ""} {
			inBubble(t, nil, func(o *office) {
				a := o.ask(call("t", "{}"))
				if s == "" {
					_ = o.store.Forget(o.Context(), "r1")
				} else {
					_ = o.store.Settle(o.Context(), approve.Question{ID: a.id, State: s, By: "the agent"}, approve.Pending)
				}
				if len(o.Pending()) != 1 {
					o.Errorf("a store in which it is %q answers for a person", s)
				}
				o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "nobody has approved")
				if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true}); !errors.Is(err, approve.ErrSettled) {
					o.Errorf("%v, want ErrSettled", err)
				}
				<-a.done
				if a.q.State != approve.Void {
					o.Errorf("it is %s, want void", a.q.State)
				}
			})
		}
	})
	t.Run("approved, but the store was changed before its use", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			o.answer(a, true, "kim")
			o.is(a, approve.Approved)
			_ = o.store.Settle(o.Context(), approve.Question{ID: a.id, State: approve.Void}, approve.Approved)
			o.refused(o.Use(o.Context(), a.id, "t", []byte("{}")), "was not run")
		})
	})
}

// TestEndsWhileAnAnswerIsKept: the question ends in the moment between the
// store's yes and the desk's.
func TestEndsWhileAnAnswerIsKept(t *testing.T) {
	for name, end := range map[string]func(o *office, a *asking){
		"cancelled": func(_ *office, a *asking) { a.stop(); <-a.done },
		"closed":    func(o *office, _ *asking) { go o.Close() },
		"expired":   func(_ *office, a *asking) { time.Sleep(10 * time.Second); <-a.done },
	} {
		for _, yes := range []bool{true, false} {
			t.Run(fmt.Sprint(name, yes), func(t *testing.T) {
				inBubble(t, func(c *approve.Config, _ *office) { c.Expiry = 10 * time.Second }, func(o *office) {
					a := o.ask(call("t", "{}"))
					o.store.race = func() { end(o, a); time.Sleep(time.Millisecond) }
					err := o.Answer(o.Context(), a.id, approve.Answer{Yes: yes, Remember: true, By: "kim"})
					if !errors.Is(err, approve.ErrSettled) {
						o.Errorf("%v, want ErrSettled", err)
					}
					<-a.done
					synctest.Wait()
					want := approve.Denied
					if yes {
						want = approve.Void
					}
					if a.q.State == approve.Approved || o.store.state(a.id) != want {
						o.Errorf("it is %s, and in the store %s; want %s", a.q.State, o.store.state(a.id), want)
					}
					if name != "closed" {
						if b := o.ask(call("t", "{}")); b.q.State != "" {
							o.Error("an answer that was not taken is remembered")
						}
					}
				})
			})
		}
	}
}

// TestEndsWhileUseIsKept: the call is cancelled in the moment before it runs.
func TestEndsWhileUseIsKept(t *testing.T) {
	for name, end := range map[string]func(o *office, cancel func()){
		"cancelled": func(_ *office, cancel func()) { cancel() },
		"closed":    func(o *office, _ func()) { go o.Close(); time.Sleep(time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(o *office) {
				a := o.ask(call("t", "{}"))
				o.answer(a, true, "kim")
				o.is(a, approve.Approved)
				ctx, cancel := context.WithCancel(o.Context())
				o.store.race = func() { end(o, cancel) }
				o.refused(o.Use(ctx, a.id, "t", []byte("{}")), "cancelled before it ran")
				o.is(now(a, approve.Void), approve.Void)
				cancel()
			})
		})
	}
}

// TestSlowStore has one that answers only when its context ends.
func TestSlowStore(t *testing.T) {
	inBubble(t, nil, func(o *office) {
		a := o.ask(call("t", "{}"))
		o.store.set(func(m *mem) { m.slow = true })
		start := time.Now()
		if b := o.ask(call("t", "{}")); b.id != "" {
			o.Error("asked although it was not kept")
		} else {
			<-b.done
			o.refused(b.err, "could not be kept")
		}
		if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true}); !errors.Is(err, context.DeadlineExceeded) {
			o.Errorf("%v", err)
		}
		if d := time.Since(start); d != 30*time.Second {
			o.Errorf("two uses of the store took %v", d)
		}
		start = time.Now()
		a.stop()
		<-a.done
		if d := time.Since(start); a.q.State != approve.Void || d > time.Second {
			o.Errorf("%s after %v", a.q.State, d)
		}
		o.Close()
		if d := time.Since(start); d > 5*time.Second {
			o.Errorf("Close took %v", d)
		}
		time.Sleep(time.Minute)
	})
}

// TestHangingStore has one that does not care about its context.
func TestHangingStore(t *testing.T) {
	hung := func(o *office) (free func()) {
		hang := make(chan struct{})
		o.store.set(func(m *mem) { m.hang = hang })
		return func() {
			o.store.set(func(m *mem) { m.hang = nil })
			close(hang)
			synctest.Wait()
		}
	}
	t.Run("Ask", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			free := hung(o)
			a := o.ask(call("t", "{}"))
			a.stop()
			<-a.done
			o.refused(a.err, "could not be kept")
			free()
			if len(o.store.list) != 1 || o.store.list[0].State != approve.Void || len(o.Pending()) != 0 {
				o.Errorf("left behind: %+v", o.store.list)
			}
		})
	})
	t.Run("a remembered Ask", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, Remember: true}); err != nil {
				o.Fatal(err)
			}
			free := hung(o)
			b := o.ask(call("t", "{}"))
			b.stop()
			<-b.done
			o.refused(b.err, "could not be kept")
			free()
			if len(o.store.list) != 2 || o.store.list[1].State != approve.Void {
				o.Errorf("left behind: %+v", o.store.list)
			}
		})
	})
	t.Run("Answer", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			free := hung(o)
			ctx, cancel := context.WithTimeout(o.Context(), time.Second)
			defer cancel()
			err := o.Answer(ctx, a.id, approve.Answer{Yes: true, By: "kim"})
			if err == nil || !strings.Contains(err.Error(), "does not count") {
				o.Errorf("%v", err)
			}
			if err := o.Answer(ctx, a.id, approve.Answer{Yes: true, By: "kim"}); !errors.Is(err, context.DeadlineExceeded) {
				o.Errorf("a second answer beside one that is being kept: %v", err)
			}
			free()
			if got := o.store.state(a.id); got != approve.Pending {
				o.Errorf("an answer that was not taken is %s in the store", got)
			}
			o.answer(a, false, "kim")
			o.is(a, approve.Denied)

			b := o.ask(call("t", "{}"))
			free = hung(o)
			done := make(chan error)
			go func() { done <- o.Answer(o.Context(), b.id, approve.Answer{Yes: true, By: "kim"}) }()
			synctest.Wait()
			b.stop()
			<-b.done
			if err := <-done; !errors.Is(err, approve.ErrSettled) {
				o.Errorf("%v, want ErrSettled", err)
			}
			free()
			o.is(b, approve.Void)

			// It had the answer, and did not say so, when the call left.
			c := o.ask(call("t", "{}"))
			hang := make(chan struct{})
			o.store.race = func() { <-hang }
			go func() { done <- o.Answer(o.Context(), c.id, approve.Answer{Yes: true, By: "kim"}) }()
			synctest.Wait()
			c.stop()
			<-c.done
			if err := <-done; !errors.Is(err, approve.ErrSettled) {
				o.Errorf("%v, want ErrSettled", err)
			}
			if got := o.store.state(c.id); got != approve.Approved {
				o.Fatalf("the store has it as %s: this tests nothing", got)
			}
			close(hang)
			o.is(c, approve.Void)
		})
	})
	t.Run("Use", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a := o.ask(call("t", "{}"))
			o.answer(a, true, "kim")
			o.is(a, approve.Approved)
			free := hung(o)
			ctx, cancel := context.WithTimeout(o.Context(), time.Second)
			defer cancel()
			o.refused(o.Use(ctx, a.id, "t", []byte("{}")), "was not run")
			free()
			o.is(now(a, approve.Void), approve.Void)
		})
	})
	t.Run("Close", func(t *testing.T) {
		inBubble(t, nil, func(o *office) {
			a, b := o.ask(call("t", "{}")), o.ask(call("t", "[]"))
			o.answer(b, true, "kim")
			o.is(b, approve.Approved)
			free := hung(o)
			c := o.ask(call("t", "3"))
			start := time.Now()
			o.Close()
			if d := time.Since(start); d > 3*time.Second {
				o.Errorf("Close took %v", d)
			}
			<-a.done
			<-c.done
			if d := time.Since(start); d > 3*time.Second {
				o.Errorf("the last Ask returned after %v", d)
			}
			if a.q.State != approve.Void || c.err == nil {
				o.Errorf("%s, %v", a.q.State, c.err)
			}
			free()
			o.is(a, approve.Void)
			o.is(now(b, approve.Void), approve.Void)
		})
	})
}

// TestClosedWhileAsking closes the desk in the moment a question is kept.
func TestClosedWhileAsking(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		inBubble(t, nil, func(o *office) {
			if quiet {
				a := o.ask(call("t", "{}"))
				if err := o.Answer(o.Context(), a.id, approve.Answer{Yes: true, Remember: true}); err != nil {
					o.Fatal(err)
				}
				o.is(a, approve.Approved)
			}
			hang := make(chan struct{})
			if quiet {
				close(hang)
				o.store.race = func() { go o.Close(); time.Sleep(time.Millisecond) }
			} else {
				o.store.set(func(m *mem) { m.hang = hang })
			}
			a := o.ask(call("t", "{}"))
			if !quiet {
				go o.Close()
				synctest.Wait()
				o.store.set(func(m *mem) { m.hang = nil })
				close(hang)
			}
			<-a.done
			synctest.Wait()
			if kept := o.store.list[len(o.store.list)-1]; a.err != nil || a.q.State != approve.Void || kept != a.q {
				o.Errorf("quiet %v: %+v, %v, and in the store %+v", quiet, a.q, a.err, kept)
			}
		})
	}
}
