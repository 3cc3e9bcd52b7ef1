package gate

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// A result that comes within the grace is a result.
func TestResultWithinTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.tool("x", call.Read, func(ctx context.Context, _ call.Invocation) (call.Result, error) {
			<-ctx.Done()
			time.Sleep(DefaultGrace - time.Millisecond)
			return call.Text("partial"), nil
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		res, err := r.Call(ctx, request("x", ""))
		if err != nil || res.IsError || text(res) != "partial" || r.rec.kinds() != "begin end:ok" {
			t.Errorf("%v %v %s", res, err, r.rec.kinds())
		}
	})
}

func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.cfg.Limits.Concurrent = 2 })
		release := make(chan struct{})
		r.tool("stuck", call.Write, func(context.Context, call.Invocation) (call.Result, error) {
			<-release
			return call.Text("too late"), nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		res, err := r.Call(ctx, request("stuck", ""))
		if err != nil || !res.IsError || strings.Contains(text(res), "too late") {
			t.Errorf("%v %v", res, err)
		}
		if took := time.Since(start); took != time.Second+DefaultGrace {
			t.Errorf("took %s", took)
		}
		if got := r.rec.kinds(); got != "begin end:abandoned" || r.Busy() {
			t.Errorf("%s, busy %v", got, r.Busy())
		}
		// It still holds its place, or a client could pile functions up.
		again, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if res, _ := r.Call(again, request("stuck", "")); !res.IsError {
			t.Errorf("%v", res)
		}
		res, err = r.call("read", "")
		r.wantRefused(t, res, err, "limits", "concurrent", "too many calls at once")

		if got, want := r.Close(), []Abandoned{{"stuck", 1}, {"stuck", 3}}; !reflect.DeepEqual(got, want) {
			t.Errorf("Close names %v, want %v", got, want)
		}
		lines := len(r.rec.all())
		close(release)
		synctest.Wait()
		if got := r.Close(); len(got) != 0 || len(r.rec.all()) != lines {
			t.Errorf("what came back is still named: %v, record %s", got, r.rec.kinds())
		}
	})
}

// An abandoned function that comes back gives its place back.
func TestAbandonedReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) { r.cfg.Limits = Limits{Concurrent: 1, Call: time.Second, Grace: time.Second} })
		release := make(chan struct{})
		r.tool("stuck", call.Write, func(context.Context, call.Invocation) (call.Result, error) {
			<-release
			panic("even so")
		})
		_, _ = r.call("stuck", "")
		if res, _ := r.call("read", ""); !res.IsError {
			t.Error("two at once")
		}
		close(release)
		synctest.Wait()
		if res, _ := r.call("read", ""); res.IsError {
			t.Errorf("%v", res)
		}
		if got := r.Close(); len(got) != 0 {
			t.Errorf("%v", got)
		}
	})
}

// A function that comes back while it is being given up is not answered by: the
// caller is kept until the answer that counts is out.
func TestFunctionComesBackWhileItIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back, written := make(chan struct{}), make(chan struct{})
		r := newRig(t, func(r *rig) {
			r.rec.before = func(x audit.Record) error {
				if x.Outcome == audit.Abandoned {
					close(back)
					<-written
				}
				return nil
			}
		})
		r.tool("stuck", call.Write, func(context.Context, call.Invocation) (call.Result, error) {
			<-back
			return call.Text("too late"), nil
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req := request("stuck", "")
		var answered atomic.Bool
		req.Late = func(call.Result) {
			time.Sleep(time.Second) // a client that reads slowly
			answered.Store(true)
		}
		returned := make(chan struct{})
		go func() {
			_, _ = r.Call(ctx, req)
			if !answered.Load() {
				t.Error("Call returned before the answer was out")
			}
			close(returned)
		}()
		<-back
		synctest.Wait()
		close(written)
		<-returned
		if got := r.rec.kinds(); got != "begin end:abandoned" {
			t.Error(got)
		}
		if got := r.Close(); len(got) != 0 {
			t.Errorf("what came back is still named: %v", got)
		}
	})
}
