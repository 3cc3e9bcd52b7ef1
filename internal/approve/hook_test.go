package approve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// bell is a hook and what became of it.
type bell struct {
	approve.Hook
	mu      sync.Mutex
	started []string
	failed  []string
	now     int
	most    int
}

func newBell(run func(ctx context.Context, argv []string, stdin []byte) error) *bell {
	b := &bell{}
	b.Command = []string{"notify-send", "drawbridge"}
	b.Start = func(ctx context.Context, argv []string, stdin []byte) error {
		var q struct{ ID string }
		_ = json.Unmarshal(stdin, &q)
		b.mu.Lock()
		b.started = append(b.started, q.ID)
		b.now++
		b.most = max(b.most, b.now)
		b.mu.Unlock()
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.now--
		}()
		return run(ctx, argv, stdin)
	}
	b.Failed = func(q approve.Question, err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = append(b.failed, fmt.Sprint(q.ID, ": ", err))
	}
	return b
}

// seen is how many commands ran at once, which were started, and what failed.
func (b *bell) seen() (most int, started, failed []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most, slices.Clone(b.started), slices.Sorted(slices.Values(b.failed))
}

func TestHookGetsTheQuestion(t *testing.T) {
	var stdin []byte
	var argv []string
	ran := make(chan struct{})
	b := newBell(func(_ context.Context, a []string, in []byte) error {
		defer close(ran)
		stdin, argv = in, a
		return nil
	})
	defer b.Close()
	b.Asked(approve.Question{
		ID: "k7mf2qxa", Run: "r1", Call: 7, Tool: "delete_file", Effects: "destructive",
		Arguments: `{"path": "a<b>.txt"}`, ArgumentsDigest: "sha256:00ff", ArgumentsSize: 16, Reason: "because",
		Asked: time.Date(2026, 12, 1, 14, 32, 0, 0, time.UTC), Expires: time.Date(2026, 12, 1, 14, 42, 0, 0, time.UTC), State: approve.Pending,
	})
	<-ran
	if !slices.Equal(argv, b.Command) {
		t.Errorf("ran %q", argv)
	}
	if n := bytes.Count(stdin, []byte("\n")); n != 1 || !bytes.HasSuffix(stdin, []byte("}\n")) {
		t.Errorf("no line: %q", stdin)
	}
	var got map[string]any
	if err := json.Unmarshal(stdin, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"event": "asked", "id": "k7mf2qxa", "run": "r1", "call": 7.0, "tool": "delete_file", "effects": "destructive",
		"arguments": `{"path": "a<b>.txt"}`, "arguments_digest": "sha256:00ff", "arguments_size": 16.0, "reason": "because",
		"asked": "2026-12-01T14:32:00Z", "expires": "2026-12-01T14:42:00Z", "state": "pending",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestHookIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBell(func(ctx context.Context, _ []string, _ []byte) error { <-ctx.Done(); return errors.New("killed") })
		b.MaxQueue = 3
		start := time.Now()
		for i := range 9 {
			b.Asked(approve.Question{ID: fmt.Sprint(i)})
		}
		if time.Since(start) != 0 {
			t.Error("Asked waited")
		}
		synctest.Wait()
		if most, started, failed := b.seen(); most != 4 || len(started) != 4 || len(failed) != 2 {
			t.Errorf("%d at once, started %v, failed %v", most, started, failed)
		}
		time.Sleep(approve.DefaultHookTime)
		synctest.Wait()
		if most, started, failed := b.seen(); most != 4 || len(started) != 7 || len(failed) != 6 {
			t.Errorf("%d at once, started %v, failed %v", most, started, failed)
		}
		time.Sleep(approve.DefaultHookTime)
		synctest.Wait()
		want := []string{
			"0: " + approve.ErrHookTime.Error(), "1: " + approve.ErrHookTime.Error(), "2: " + approve.ErrHookTime.Error(), "3: " + approve.ErrHookTime.Error(),
			"4: " + approve.ErrHookTime.Error(), "5: " + approve.ErrHookTime.Error(), "6: " + approve.ErrHookTime.Error(),
			"7: " + approve.ErrHookQueue.Error(), "8: " + approve.ErrHookQueue.Error(),
		}
		if _, _, failed := b.seen(); !slices.Equal(failed, want) {
			t.Errorf("failed: %q", failed)
		}
		b.Asked(approve.Question{ID: "later"})
		synctest.Wait()
		if _, started, _ := b.seen(); len(started) != 8 {
			t.Error("nothing runs after all was done")
		}
		b.Close()
	})
}

func TestHookEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBell(func(ctx context.Context, _ []string, _ []byte) error { <-ctx.Done(); return ctx.Err() })
		for i := range 6 {
			b.Asked(approve.Question{ID: fmt.Sprint(i)})
		}
		synctest.Wait()
		b.Close()
		if _, _, failed := b.seen(); len(failed) != 6 {
			t.Errorf("Close returned before its commands: failed %v", failed)
		}
		b.Close()
		b.Asked(approve.Question{ID: "after"})
		synctest.Wait()
		_, started, failed := b.seen()
		if len(started) != 4 || b.now != 0 || len(failed) != 6 {
			t.Errorf("started %v, %d still run, failed %v", started, b.now, failed)
		}
		for _, f := range failed {
			if f[1:] != ": "+approve.ErrHookEnded.Error() {
				t.Error(f)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := newBell(func(context.Context, []string, []byte) error { <-hang; return nil })
		b.Asked(approve.Question{ID: "a"})
		start := time.Now()
		b.Close()
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("Close took %v", d)
		}
		close(hang)
	})
}

func TestHookFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("exit status 3")
		b := newBell(func(context.Context, []string, []byte) error { return broken })
		o := newOffice(t, func(c *approve.Config, _ *office) { c.Asked = b.Asked })
		a := o.ask(call("t", "{}"))
		if _, _, failed := b.seen(); !slices.Equal(failed, []string{a.id + ": exit status 3"}) {
			t.Errorf("failed: %q", failed)
		}
		o.answer(a, true, "kim")
		o.is(a, approve.Approved)
		o.Close()
		b.Close()
	})
	var none approve.Hook
	none.Asked(approve.Question{})
	none.Close()
	quiet := approve.Hook{Command: []string{"x"}, Start: func(context.Context, []string, []byte) error { return errors.New("x") }}
	quiet.Asked(approve.Question{})
	quiet.Close()
}
