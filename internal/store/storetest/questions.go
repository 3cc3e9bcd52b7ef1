package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// Questions runs the contract of approve.Store. open returns an empty store by
// two handles, as two processes have it; a store that is one value in one
// process is its own second handle. Closing is left to t.Cleanup.
func Questions(t *testing.T, open func(t *testing.T) (a, b approve.Store)) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a, b approve.Store)
	}{
		{"RoundTrip", questionRoundTrip},
		{"AddRefuses", addRefuses},
		{"Settle", settles},
		{"Order", questionOrder},
		{"Forget", forgets},
		{"ContextEnds", questionContextEnds},
		{"OneOfManySettles", oneOfManySettles},
		{"PropertyModel", questionModel},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := open(t)
			test.run(t, a, b)
		})
	}
}

// asked is a pending question in which no field is zero that may be set.
func asked(id, run string) approve.Question {
	return approve.Question{
		ID: id, Run: run, Workspace: "ws-personal", Channel: "ch-ops", User: "kim", Agent: "researcher",
		Call: 7, Tool: "delete_file", Effects: "destructive",
		Arguments: "{\"path\": \"größe 部署\"}\n", ArgumentsDigest: "sha256:00ff", ArgumentsSize: 1 << 40,
		Plan: "# Plan\n1. it's \"quoted\"; --", PolicyDigest: "sha256:11", Layer: "agent researcher", Rule: "policy.yaml:12", Reason: "because",
		Asked: day, Expires: day.Add(10 * time.Minute), State: approve.Pending,
	}
}

func answered(q approve.Question, to approve.State) approve.Question {
	q.State, q.By, q.Note, q.Remember = to, "uid 1000 pid 4711", "fine\u0301 with me", true
	q.Answered = day.Add(time.Minute + time.Nanosecond)
	return q
}

func ask(t testing.TB, s approve.Store, qs ...approve.Question) {
	t.Helper()
	for _, q := range qs {
		if err := s.Add(t.Context(), q); err != nil {
			t.Fatalf("Add(%s): %v", q.ID, err)
		}
	}
}

func questionIDs(t tb, s approve.Store, run string, pending bool) []string {
	t.Helper()
	list, err := s.Questions(context.Background(), run, pending)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, q := range list {
		out = append(out, q.ID)
	}
	return out
}

func questionRoundTrip(t *testing.T, a, b approve.Store) {
	full, small := asked("aaaa2222", "r"), approve.Question{ID: "bbbb3333", State: approve.Pending}
	ask(t, a, full, small)
	for _, q := range []approve.Question{full, small} {
		got, err := b.Question(t.Context(), q.ID)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "Question", got, q)
	}
	list, err := b.Questions(t.Context(), "r", false)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "Questions", list, []approve.Question{full})

	done := answered(full, approve.Approved)
	other := done
	other.Tool, other.ArgumentsDigest, other.Run, other.Expires = "another", "sha256:22", "another", day
	if err := a.Settle(t.Context(), other, approve.Pending); err != nil {
		t.Fatal(err)
	}
	got, err := b.Question(t.Context(), full.ID)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "settled, and nothing but the answer changed", got, done)
}

func addRefuses(t *testing.T, a, b approve.Store) {
	q := asked("aaaa2222", "r")
	ask(t, a, q)
	again := q
	again.Tool = "another"
	if err := b.Add(t.Context(), again); err == nil {
		t.Error("an ID was kept twice")
	}
	if got, err := a.Question(t.Context(), q.ID); err != nil || got.Tool != q.Tool {
		t.Errorf("the first is now %+v, %v", got, err)
	}
	for _, s := range []approve.State{"", approve.Approved, approve.Denied, approve.Expired, approve.Void, approve.Used} {
		q := asked("bbbb3333", "r")
		q.State = s
		if err := a.Add(t.Context(), q); err == nil {
			t.Errorf("a question that is %q was kept", s)
		}
	}
	want(t, "questions", questionIDs(t, b, "", false), []string{q.ID})
}

func settles(t *testing.T, a, b approve.Store) {
	for _, path := range [][]approve.State{
		{approve.Pending, approve.Approved, approve.Used, approve.Void},
		{approve.Pending, approve.Approved, approve.Void},
		{approve.Pending, approve.Approved, approve.Pending, approve.Denied},
		{approve.Pending, approve.Expired},
		{approve.Pending, approve.Void},
	} {
		q := asked(fmt.Sprintf("id%v", path), "r")
		ask(t, a, q)
		states := []approve.State{approve.Pending, approve.Approved, approve.Denied, approve.Expired, approve.Void, approve.Used}
		for i, to := range path[1:] {
			for _, from := range states {
				if from == path[i] {
					continue
				}
				if err := b.Settle(t.Context(), answered(q, to), from); !errors.Is(err, approve.ErrSettled) {
					t.Errorf("%v: from %s, where it is %s: %v, want ErrSettled", path, from, path[i], err)
				}
			}
			if err := a.Settle(t.Context(), answered(q, to), path[i]); err != nil {
				t.Fatalf("%v: to %s: %v", path, to, err)
			}
			if got, err := b.Question(t.Context(), q.ID); err != nil || got.State != to {
				t.Errorf("%v: it is %s, %v; want %s", path, got.State, err, to)
			}
		}
	}
	if err := a.Settle(t.Context(), answered(asked("nobody", "r"), approve.Denied), approve.Pending); !errors.Is(err, approve.ErrUnknown) {
		t.Errorf("an unknown question: %v, want ErrUnknown", err)
	}
	if _, err := a.Question(t.Context(), "nobody"); !errors.Is(err, approve.ErrUnknown) {
		t.Errorf("an unknown question: %v, want ErrUnknown", err)
	}
}

// questionOrder has a clock that runs backwards.
func questionOrder(t *testing.T, a, b approve.Store) {
	var all, ofR []string
	for i := range 20 {
		q := asked(fmt.Sprintf("%c-id", 'z'-i), []string{"r", "other", ""}[i%3])
		q.Asked = day.Add(-time.Duration(i) * time.Hour)
		ask(t, []approve.Store{a, b}[i%2], q)
		all = append(all, q.ID)
		if q.Run == "r" {
			ofR = append(ofR, q.ID)
		}
	}
	want(t, "all", questionIDs(t, a, "", false), all)
	want(t, "of r", questionIDs(t, b, "r", false), ofR)
	if err := a.Settle(t.Context(), answered(asked(ofR[1], "r"), approve.Denied), approve.Pending); err != nil {
		t.Fatal(err)
	}
	gone := func(id string) bool { return id == ofR[1] }
	want(t, "pending", questionIDs(t, b, "", true), slices.DeleteFunc(slices.Clone(all), gone))
	want(t, "pending of r", questionIDs(t, b, "r", true), slices.DeleteFunc(slices.Clone(ofR), gone))
	want(t, "of a run that asked nothing", questionIDs(t, b, "nobody", false), []string{})
}

func forgets(t *testing.T, a, b approve.Store) {
	ask(t, a, asked("a", "r"), asked("b", "other"), asked("c", "r"), asked("d", ""))
	for range 2 {
		if err := a.Forget(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "left", questionIDs(t, b, "", false), []string{"b", "d"})
	if err := b.Settle(t.Context(), answered(asked("a", "r"), approve.Approved), approve.Pending); !errors.Is(err, approve.ErrUnknown) {
		t.Errorf("a forgotten question was settled: %v", err)
	}
}

func questionContextEnds(t *testing.T, a, b approve.Store) {
	ask(t, a, asked("a", "r"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(what string, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want context.Canceled", what, err)
		}
	}
	check("Add", a.Add(ctx, asked("b", "r")))
	check("Settle", a.Settle(ctx, answered(asked("a", "r"), approve.Approved), approve.Pending))
	_, err := a.Question(ctx, "a")
	check("Question", err)
	_, err = a.Questions(ctx, "", false)
	check("Questions", err)
	check("Forget", a.Forget(ctx, "r"))
	want(t, "nothing changed", questionIDs(t, b, "", true), []string{"a"})
}

func oneOfManySettles(t *testing.T, a, b approve.Store) {
	const rounds, each = 10, 6
	for round := range rounds {
		q := asked(fmt.Sprint("q", round), "r")
		ask(t, a, q)
		var mu sync.Mutex
		var won []string
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range each {
			wg.Go(func() {
				s := []approve.Store{a, b}[i%2]
				mine := answered(q, []approve.State{approve.Approved, approve.Denied, approve.Expired}[i%3])
				mine.By = fmt.Sprint("person ", i)
				<-start
				err := s.Settle(t.Context(), mine, approve.Pending)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, mine.By)
				case !errors.Is(err, approve.ErrSettled):
					t.Errorf("Settle: %v, want ErrSettled", err)
				}
			})
		}
		close(start)
		wg.Wait()
		got, err := b.Question(t.Context(), q.ID)
		if err != nil || len(won) != 1 || got.By != won[0] {
			t.Fatalf("%d succeeded (%v), and the store has %q, %v", len(won), won, got.By, err)
		}
	}
}

// questionModel compares random sequences of operations with a map.
func questionModel(t *testing.T, a, b approve.Store) {
	count := 0
	states := []approve.State{approve.Pending, approve.Approved, approve.Denied, approve.Expired, approve.Void, approve.Used}
	rapid.Check(t, func(t *rapid.T) {
		count++
		var model []approve.Question
		find := func(id string) int {
			return slices.IndexFunc(model, func(q approve.Question) bool { return q.ID == id })
		}
		store := rapid.SampledFrom([]approve.Store{a, b})
		id := rapid.Map(rapid.StringMatching(`[a-d]`), func(s string) string { return fmt.Sprint(count, s) })
		run := rapid.Map(rapid.SampledFrom([]string{"r1", "r2"}), func(s string) string { return fmt.Sprint(s, "-", count) })
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				q := asked(id.Draw(t, "id"), run.Draw(t, "run"))
				err := store.Draw(t, "store").Add(context.Background(), q)
				if known := find(q.ID) >= 0; known != (err != nil) {
					t.Fatalf("Add = %v, known %v", err, known)
				} else if !known {
					model = append(model, q)
				}
			},
			"settle": func(t *rapid.T) {
				from, to := rapid.SampledFrom(states).Draw(t, "from"), rapid.SampledFrom(states).Draw(t, "to")
				q := answered(asked(id.Draw(t, "id"), ""), to)
				err := store.Draw(t, "store").Settle(context.Background(), q, from)
				i := find(q.ID)
				switch {
				case i < 0:
					if !errors.Is(err, approve.ErrUnknown) {
						t.Fatalf("Settle = %v, want ErrUnknown", err)
					}
				case model[i].State != from:
					if !errors.Is(err, approve.ErrSettled) {
						t.Fatalf("Settle from %s of one that is %s = %v, want ErrSettled", from, model[i].State, err)
					}
				case err != nil:
					t.Fatal(err)
				default:
					model[i] = answered(model[i], to)
				}
			},
			"forget": func(t *rapid.T) {
				run := run.Draw(t, "run")
				if err := store.Draw(t, "store").Forget(context.Background(), run); err != nil {
					t.Fatal(err)
				}
				model = slices.DeleteFunc(model, func(q approve.Question) bool { return q.Run == run })
			},
			"list": func(t *rapid.T) {
				run, pending := run.Draw(t, "run"), rapid.Bool().Draw(t, "pending")
				list, err := store.Draw(t, "store").Questions(context.Background(), run, pending)
				if err != nil {
					t.Fatal(err)
				}
				var hits []approve.Question
				for _, q := range model {
					if q.Run == run && (!pending || q.State == approve.Pending) {
						hits = append(hits, q)
					}
				}
				if d := cmp.Diff(hits, list); d != "" {
					t.Fatalf("list of %s, pending %v:\n%s", run, pending, d)
				}
			},
		})
	})
}
