package bench

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
)

// Shutdown times [drawbridge.Bridge.Close] of n bridges, each with 4 idle
// connections and a call under way whose event stream is open. It takes a bit
// more than a second for each 50 of them, because that is how long a call
// takes before it is answered by a stream.
func Shutdown(ctx context.Context, dir string, n int) (Row, error) {
	var took []time.Duration
	for len(took) < n {
		batch, err := shutdown(ctx, dir, min(50, n-len(took)))
		if err != nil {
			return Row{}, err
		}
		took = append(took, batch...)
	}
	return Row{
		Case: "bridge shutdown, 4 idle connections and an open event stream", N: n,
		P50: quantile(took, 0.50), P95: quantile(took, 0.95),
	}, nil
}

func shutdown(ctx context.Context, dir string, n int) ([]time.Duration, error) {
	deadline := time.Now().Add(time.Minute)
	var (
		bridges []*drawbridge.Bridge
		open    clients
		streams clients
	)
	defer func() {
		for _, b := range bridges {
			_ = b.Close()
		}
		open.close()
	}()
	for range n {
		b, err := start(ctx, dir)
		if err != nil {
			return nil, err
		}
		bridges = append(bridges, b)
		idle, err := connect(b, 4, deadline)
		open = append(open, idle...)
		if err != nil {
			return nil, failed(err, "idle connections")
		}
		c, err := dial(host(b), deadline)
		if err != nil {
			return nil, failed(err, "a long call")
		}
		open, streams = append(open, c), append(streams, c)
		if _, err := c.conn.Write(request(host(b), "/mcp", b.Token(), callLong)); err != nil {
			return nil, failed(err, "a long call")
		}
	}
	for _, c := range streams {
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			return nil, failed(err, "an event stream")
		}
		// The body ends with the bridge and is read by nobody.
		if t := resp.Header.Get("Content-Type"); !strings.HasPrefix(t, "text/event-stream") {
			return nil, failed(errAnswer, "an event stream of type %q", t)
		}
	}
	took := make([]time.Duration, 0, n)
	for _, b := range bridges {
		began := time.Now()
		if err := b.Close(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// Idle is what many bridges in one process cost.
type Idle struct {
	Bridges int
	// BytesEach is what the heap and the stacks grew by, after a collection.
	BytesEach int64
	Start     time.Duration // of all, one after the other
	Close     time.Duration // of all, at once
	// Goroutines are those there were before, and those left after the last
	// Close returned and what it had ended was given a second to be gone.
	GoroutinesBefore, GoroutinesAfter int
}

// Many starts n bridges, leaves them idle, and closes them.
func Many(ctx context.Context, dir string, n int) (Idle, error) {
	in := Idle{Bridges: n}
	// The first start in a process also fills caches that stay.
	b, err := start(ctx, dir)
	if err != nil {
		return in, err
	}
	if err := b.Close(); err != nil {
		return in, err
	}
	before := inUse()
	in.GoroutinesBefore = runtime.NumGoroutine()
	bridges := make([]*drawbridge.Bridge, 0, n)
	defer func() {
		for _, b := range bridges {
			_ = b.Close()
		}
	}()
	began := time.Now()
	for range n {
		b, err := start(ctx, dir)
		if err != nil {
			return in, err
		}
		bridges = append(bridges, b)
	}
	in.Start = time.Since(began)
	in.BytesEach = (inUse() - before) / int64(n)

	began = time.Now()
	var all sync.WaitGroup
	errs := make([]error, n)
	for i, b := range bridges {
		all.Go(func() { errs[i] = b.Close() })
	}
	all.Wait()
	in.Close = time.Since(began)
	for _, err := range errs {
		if err != nil {
			return in, err
		}
	}
	for range 100 {
		if in.GoroutinesAfter = runtime.NumGoroutine(); in.GoroutinesAfter <= in.GoroutinesBefore {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return in, nil
}

func inUse() int64 {
	// The second collection frees what finalizers of the first let go.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
