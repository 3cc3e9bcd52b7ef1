package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is a deadline that no test reaches.
func far() time.Time { return time.Now().Add(time.Hour) }

func TestInterleave(t *testing.T) {
	var calls []int
	before := map[[2]int]int{} // which probe came right after which
	var probes []probe
	for i := range 4 {
		probes = append(probes, probe{name: fmt.Sprint(i), once: func() (time.Duration, error) {
			if len(calls) > 0 {
				before[[2]int{calls[len(calls)-1], i}]++
			}
			calls = append(calls, i)
			return time.Duration(len(calls)), nil
		}})
	}
	took, err := interleave(t.Context(), probes, 1, 5, 50, far())
	if err != nil {
		t.Fatal(err)
	}
	if len(calls) != 55*4 {
		t.Fatalf("%d calls", len(calls))
	}
	for round := range 55 {
		if r := slices.Sorted(slices.Values(calls[round*4 : round*4+4])); !slices.Equal(r, []int{0, 1, 2, 3}) {
			t.Errorf("round %d ran %v", round, r)
		}
	}
	for i, ds := range took {
		if len(ds) != 50 {
			t.Errorf("probe %d has %d durations", i, len(ds))
		}
		if slices.Min(ds) <= 5*4 {
			t.Errorf("probe %d has a duration of the warm-up: %v", i, ds)
		}
	}
	for a := range 4 {
		for b := range 4 {
			if a != b && before[[2]int{a, b}] == 0 {
				t.Errorf("%d never came after %d", b, a)
			}
		}
	}
}

func TestInterleaveInBlocks(t *testing.T) {
	var calls []int
	var probes []probe
	for i := range 3 {
		probes = append(probes, probe{once: func() (time.Duration, error) {
			calls = append(calls, i)
			return 1, nil
		}})
	}
	took, err := interleave(t.Context(), probes, 4, 6, 10, far())
	if err != nil {
		t.Fatal(err)
	}
	for i, ds := range took {
		if len(ds) != 10 {
			t.Errorf("probe %d has %d durations", i, len(ds))
		}
	}
	for i := 0; i < len(calls); i += 4 {
		if b := calls[i : i+4]; b[0] != b[1] || b[0] != b[2] || b[0] != b[3] {
			t.Errorf("the block at %d is %v", i, b)
		}
	}
}

func TestInterleaveEnds(t *testing.T) {
	one := func(f func() error) []probe {
		return []probe{{name: "x", once: func() (time.Duration, error) { return 1, f() }}}
	}
	t.Run("deadline", func(t *testing.T) {
		took, err := interleave(t.Context(), one(func() error { return nil }), 1, 0, 100, time.Now().Add(-time.Second))
		if err != nil || len(took[0]) != 0 {
			t.Errorf("%v %v", took, err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		_, err := interleave(ctx, one(func() error {
			if n++; n == 3 {
				cancel()
			}
			return nil
		}), 1, 0, 100, far())
		if !errors.Is(err, context.Canceled) || n != 3 {
			t.Errorf("%v after %d", err, n)
		}
	})
	t.Run("failure", func(t *testing.T) {
		_, err := interleave(t.Context(), one(func() error { return io.ErrUnexpectedEOF }), 1, 0, 100, far())
		e, ok := errors.AsType[*drawbridge.Error](err)
		if !ok || !errors.Is(err, io.ErrUnexpectedEOF) || e.Message != "x" || e.Hint == "" {
			t.Errorf("%v", err)
		}
	})
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i)*time.Microsecond)
	}
	for _, tt := range []struct {
		took []time.Duration
		q    float64
		want float64
	}{
		{nil, 0.5, 0},
		{[]time.Duration{1500}, 0.5, 1.5},
		{[]time.Duration{1500}, 0.95, 1.5},
		{[]time.Duration{3000, 1000, 2000}, 0.5, 2},
		{hundred, 0.5, 51},
		{hundred, 0.95, 96},
		{hundred, 1, 100},
	} {
		if got := quantile(tt.took, tt.q); got != tt.want {
			t.Errorf("quantile %v of %d: %v, want %v", tt.q, len(tt.took), got, tt.want)
		}
	}
	if hundred[0] != 100*time.Microsecond {
		t.Error("the caller's durations were sorted")
	}
}

// synthetic is a report in which the bare handler took a and b us.
func synthetic(a, b float64) *Report {
	us := func(v float64) []time.Duration { return []time.Duration{time.Duration(v * 1000)} }
	var probes []probe
	var took [][]time.Duration
	for _, mode := range []string{Fresh, KeepAlive} {
		probes = append(probes, probe{name: CaseBare, connection: mode}, probe{name: CaseBareAgain, connection: mode, floor: CaseBare},
			probe{name: CaseAllowed, connection: mode, floor: CaseBare})
		took = append(took, us(a), us(b), us(a+15))
	}
	return report(append(probes, probe{name: CaseStart}), append(took, us(500)))
}

func TestControlVoids(t *testing.T) {
	for _, tt := range []struct {
		a, b float64
		void bool
	}{{100, 100, false}, {100, 103, false}, {103, 100, false}, {100, 103.1, true}, {103.1, 100, true}, {0, 100, true}, {0, 0, true}} {
		r := synthetic(tt.a, tt.b)
		var out strings.Builder
		if err := r.WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		if r.Void != tt.void || strings.Contains(out.String(), "VOID") != tt.void {
			t.Errorf("%v and %v: void is %v, controls %v\n%s", tt.a, tt.b, r.Void, r.Controls, out.String())
		}
	}
	if r := report(nil, nil); !r.Void {
		t.Error("without a control a run is not void")
	}
}

func TestReportCompares(t *testing.T) {
	r := synthetic(60, 60)
	row := r.Row(CaseAllowed, KeepAlive)
	if row.Added != 15 || row.Ratio != 1.25 || row.P50 != 75 || row.N != 1 {
		t.Errorf("%+v", row)
	}
	if row := r.Row(CaseStart, ""); row.Ratio != 0 || row.P50 != 500 {
		t.Errorf("a case without a floor: %+v", row)
	}
	if row := r.Row(CaseEcho, Fresh); row != (Row{}) {
		t.Errorf("a case that is not there: %+v", row)
	}
	var out strings.Builder
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"call allowed", "75.0", "+15.0", "1.25", "p50 us", "A/A control, fresh", "A/A control, keep-alive"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// The floor has to answer what the endpoint answers, else it is none.
func TestFloorAnswersTheSameBytes(t *testing.T) {
	s, err := newSetup(t.Context(), t.TempDir()+"/state", far())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ours := host(s.bridge)
	read := func(addr, path, body string) string {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(request(addr, path, s.bridge.Token(), body)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		resp.Header.Del("Date")
		var out bytes.Buffer
		if err := resp.Write(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for i, body := range []string{handshakeFirst, handshakeSecond, handshakeThird, callAllowed} {
		want := read(ours, "/mcp", body)
		if got := read(s.floor.addr, floorPath(i), body); got != want {
			t.Errorf("answer %d: the floor answers\n%s\nand the endpoint\n%s", i, got, want)
		}
		if strings.Contains(want, `"error"`) {
			t.Errorf("answer %d is an error: %s", i, want)
		}
	}
	if got := read(ours, "/mcp", callRefused); !strings.Contains(got, "not available to this agent") {
		t.Errorf("the refused call is answered by %s", got)
	}
}

// The whole of it, as short as it gets. How long anything takes is not asserted.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Options{Rounds: MinRounds, Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Rounds != MinRounds || len(r.Controls) != 2 {
		t.Errorf("%d rounds, controls %v", r.Rounds, r.Controls)
	}
	var seen []string
	for _, row := range r.Rows {
		seen = append(seen, strings.TrimSpace(row.Case+" "+row.Connection))
		if row.N != MinRounds || row.P50 <= 0 || row.P95 < row.P50 {
			t.Errorf("%+v", row)
		}
		if (row.Floor != "") != (row.Ratio > 0) {
			t.Errorf("compared with %q: %+v", row.Floor, row)
		}
	}
	want := []string{CaseStart, CaseClose}
	for _, mode := range []string{Fresh, KeepAlive} {
		for _, c := range []string{CaseEcho, CaseBare, CaseBareAgain, CaseAllowed, CaseRefused, CaseToken, CaseBareThree, CaseHandshake} {
			want = append(want, c+" "+mode)
		}
	}
	slices.Sort(seen)
	slices.Sort(want)
	if !slices.Equal(seen, want) {
		t.Errorf("cases\n%q\nwant\n%q", seen, want)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, n := range []int{-1, 1, MinRounds - 1, MaxRounds + 1} {
		_, err := Run(t.Context(), Options{Rounds: n, Dir: t.TempDir()})
		if e, ok := errors.AsType[*drawbridge.Error](err); !ok || e.Kind != drawbridge.Usage || e.Hint == "" {
			t.Errorf("%d rounds: %v", n, err)
		}
	}
	dir := t.TempDir() + "/state"
	_, err := Run(t.Context(), Options{Rounds: MaxRounds, Time: time.Nanosecond, Dir: dir})
	if e, ok := errors.AsType[*drawbridge.Error](err); !ok || e.Hint == "" || !strings.Contains(e.Message, "rounds in") {
		t.Errorf("without time: %v", err)
	}
	if live, err := os.ReadDir(dir + "/live"); err != nil || len(live) > 0 {
		t.Errorf("runs still marked alive: %v %v", live, err)
	}
}

func TestShutdown(t *testing.T) {
	row, err := Shutdown(t.Context(), t.TempDir()+"/state", 3)
	if err != nil || row.N != 3 || row.P50 <= 0 {
		t.Errorf("%+v %v", row, err)
	}
}

func TestMany(t *testing.T) {
	in, err := Many(t.Context(), t.TempDir()+"/state", 20)
	if err != nil || in.Bridges != 20 || in.BytesEach <= 0 || in.Close <= 0 || in.GoroutinesAfter > in.GoroutinesBefore {
		t.Errorf("%+v %v", in, err)
	}
}

var answers = []struct {
	raw    string
	status int // 0 is an error
}{
	{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200},
	{"HTTP/1.1 202 Accepted\r\ncontent-length:0\r\n\r\n", 202},
	{"HTTP/1.1 401 \nDate: x\nContent-Length: 1\n\nx", 401},
	{"HTTP/1.1 200 OK\r\n\r\n{}", 0},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", 0},
	{"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}", 0},
	{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}", 0},
	{"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n", 0},
	{"HTTP/1.1 2\r\n", 0},
	{"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 0},
	{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", 0},
	{strings.Repeat("x", 10_000), 0},
	{"", 0},
}

func TestReadAnswer(t *testing.T) {
	for _, tt := range answers {
		r := bufio.NewReader(strings.NewReader(tt.raw))
		status, err := readAnswer(r)
		if (err != nil) != (tt.status == 0) || err == nil && status != tt.status {
			t.Errorf("%.60q: %d %v", tt.raw, status, err)
		}
		if rest, _ := io.ReadAll(r); err == nil && len(rest) > 0 {
			t.Errorf("%.60q: %q is left", tt.raw, rest)
		}
	}
}

// Whatever a server sends is an error or a status of three digits, never a panic.
func FuzzReadAnswer(f *testing.F) {
	for _, tt := range answers {
		f.Add([]byte(tt.raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		status, err := readAnswer(bufio.NewReader(bytes.NewReader(raw)))
		if err == nil && (status < 0 || status > 999) {
			t.Errorf("%q: status %d", raw, status)
		}
	})
}
