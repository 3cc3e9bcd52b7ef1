package approve_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// asked is what a run of the machine knows of one question.
type asked struct {
	*asking
	call      approve.Call
	policy    string
	start     time.Time
	answered  bool
	yes       bool
	cancelled bool
	quiet     bool // nobody was asked
	over      bool // used, voided, or refused by Use
	used      int
}

// TestPropertyDesk lets random calls ask, people answer, clients leave, time
// pass, the policy change and the store fail. A call is let through exactly when
// a person said yes to that very call, in time, under the same policy, and it
// was not let through before; and what the store has agrees.
func TestPropertyDesk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without its Deadline, which can't be asked for in a bubble.
		rapid.Check(struct{ testing.TB }{t}, func(r *rapid.T) { machine(t, r) })
	})
}

func machine(t *testing.T, r *rapid.T) {
	o := newOffice(t, func(c *approve.Config, _ *office) { c.MaxOpen = 4 })
	defer o.Close()
	var all []*asked
	closed, fails := false, false
	memory := map[string]*asked{}
	identity := func(c approve.Call) string { return c.Tool + "\x00" + approve.Digest(c.Arguments) }
	calls := rapid.Custom(func(r *rapid.T) approve.Call {
		return call(rapid.SampledFrom([]string{"t", "u"}).Draw(r, "tool"), rapid.SampledFrom([]string{"", "{}", "[]"}).Draw(r, "args"))
	})
	pick := func(r *rapid.T) *asked {
		if len(all) == 0 {
			r.Skip("nothing was asked")
		}
		return all[rapid.IntRange(0, len(all)-1).Draw(r, "question")]
	}
	late := func(a *asked) bool { return time.Since(a.start) >= approve.DefaultExpiry }
	open := func(a *asked) bool { return !a.answered && !a.cancelled && !closed && !late(a) }
	r.Repeat(map[string]func(*rapid.T){
		"ask": func(r *rapid.T) {
			c := calls.Draw(r, "call")
			waiting := 0
			for _, a := range all {
				if open(a) {
					waiting++
				}
			}
			yes := memory[identity(c)]
			if yes != nil && yes.policy != o.policy {
				delete(memory, identity(c))
				yes = nil
			}
			a := &asked{asking: o.ask(c), call: c, policy: o.policy, start: time.Now()}
			if refuse := closed || fails || yes == nil && waiting >= 4; refuse != (a.err != nil) {
				r.Fatalf("asked: %v; closed %v, store fails %v, %d waiting", a.err, closed, fails, waiting)
			} else if refuse {
				return
			}
			if yes != nil {
				if a.q.State != approve.Approved || a.q.By != "remembered "+yes.id {
					r.Fatalf("not remembered: %+v", a.q)
				}
				a.answered, a.yes, a.quiet = true, true, true
			} else if a.id == "" || a.q.State != "" {
				r.Fatalf("not asked: %+v", a.q)
			}
			all = append(all, a)
		},
		"answer": func(r *rapid.T) {
			a := pick(r)
			answer := approve.Answer{Yes: rapid.Bool().Draw(r, "yes"), Remember: rapid.Bool().Draw(r, "remember"), By: "kim"}
			err := o.Answer(o.Context(), a.id, answer)
			switch {
			case !open(a):
				if !errors.Is(err, approve.ErrSettled) && !(a.quiet && errors.Is(err, approve.ErrUnknown)) {
					r.Fatalf("late answer: %v", err)
				}
			case fails:
				if err == nil || errors.Is(err, approve.ErrSettled) {
					r.Fatalf("answer without a store: %v", err)
				}
			case err != nil:
				r.Fatal(err)
			default:
				a.answered, a.yes = true, answer.Yes
				if answer.Yes && answer.Remember {
					memory[identity(a.call)] = a
				}
			}
		},
		"use": func(r *rapid.T) {
			a, c := pick(r), calls.Draw(r, "call")
			if rapid.Bool().Draw(r, "the same") {
				c = a.call
			}
			may := a.yes && !a.over && !closed && !late(a) && a.policy == o.policy && identity(c) == identity(a.call) && !fails
			err := o.Use(o.Context(), a.id, c.Tool, c.Arguments)
			if may != (err == nil) {
				r.Fatalf("Use = %v, want it to work: %v; %+v", err, may, a)
			}
			if err == nil {
				a.used++
			}
			a.over = a.over || a.answered
		},
		"void": func(r *rapid.T) {
			a := pick(r)
			o.Void(a.id)
			a.over = a.over || a.answered
		},
		"leave": func(r *rapid.T) {
			a := pick(r)
			if was := open(a); rapid.Bool().Draw(r, "cancel") {
				a.stop()
				a.cancelled = a.cancelled || was
			} else {
				select {
				case <-a.gone:
				default:
					close(a.gone)
				}
				a.cancelled = a.cancelled || was
			}
			synctest.Wait()
		},
		"wait": func(r *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 400).Draw(r, "seconds")) * time.Second)
			synctest.Wait()
		},
		"set the clock": func(r *rapid.T) { o.clock = time.Duration(rapid.IntRange(-1e6, 1e6).Draw(r, "s")) * time.Second },
		"policy":        func(r *rapid.T) { o.policy = rapid.SampledFrom([]string{"p1", "p2"}).Draw(r, "digest") },
		"store": func(r *rapid.T) {
			fails = rapid.IntRange(0, 3).Draw(r, "fails") == 0
			o.store.set(func(m *mem) {
				m.err = nil
				if fails {
					m.err = errors.New("locked")
				}
			})
		},
		"close": func(r *rapid.T) {
			if rapid.IntRange(0, 9).Draw(r, "really") == 0 {
				o.Close()
				closed = true
			}
		},
		"": func(r *rapid.T) {
			synctest.Wait()
			pending := 0
			for _, a := range all {
				if a.used > 1 {
					r.Fatalf("used %d times: %+v", a.used, a)
				}
				if open(a) {
					pending++
					continue
				}
				select {
				case <-a.done:
				default:
					r.Fatalf("still waiting: %+v", a)
				}
				if got := a.q.State == approve.Approved; got != a.yes {
					r.Fatalf("%s, and a person said yes: %v", a.q.State, a.yes)
				}
				if s := o.store.state(a.id); s == approve.Used && a.used == 0 || a.used == 1 && s != approve.Used || s == approve.Approved && a.over && !everFailed(o) {
					r.Fatalf("used %d times, and the store has it as %s", a.used, s)
				}
			}
			if got := len(o.Pending()); got != pending {
				r.Fatalf("%d pending, want %d", got, pending)
			}
		},
	})
	o.Close()
	synctest.Wait()
	for _, a := range all {
		<-a.done
		if err := o.Use(context.Background(), a.id, a.call.Tool, a.call.Arguments); err == nil {
			r.Fatal(fmt.Sprint("used after Close: ", a.q))
		}
	}
}

// everFailed reports whether the store missed something.
func everFailed(o *office) bool {
	o.store.mu.Lock()
	defer o.store.mu.Unlock()
	return o.store.failed > 0
}
