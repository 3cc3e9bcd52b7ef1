// Command targets measures every number the project holds itself to and says
// for each whether it is met. It is what `make bench` runs. A number that is
// missed fails nothing; a void run, which says nothing, exits with 1.
//
//	go run ./bench/targets [-drawbridge bin/drawbridge] [-n 2000] [-tries 3]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/bench"
)

func main() {
	binary := flag.String("drawbridge", "bin/drawbridge", "the built command, as make build makes it")
	rounds := flag.Int("n", bench.DefaultRounds, "rounds of the interleaved run")
	tries := flag.Int("tries", 3, "interleaved runs, until one is not void")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	void, err := run(ctx, *binary, *rounds, *tries)
	switch e, ok := errors.AsType[*drawbridge.Error](err); {
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		if ok && e.Hint != "" {
			fmt.Fprintf(os.Stderr, "bench: hint: %s\n", e.Hint)
		}
		os.Exit(2)
	case void:
		fmt.Fprintln(os.Stderr, "bench: the interleaved run is void; try again on a quiet machine")
		os.Exit(1)
	}
}

func run(ctx context.Context, binary string, rounds, tries int) (void bool, err error) {
	binary, err = filepath.Abs(binary)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(binary); err != nil {
		return false, &drawbridge.Error{Kind: drawbridge.Usage, Message: "the command to measure", Hint: "build it with: make build", Err: err}
	}
	dir, err := bench.TempDir()
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)

	var l list
	// First, while the process is small.
	in, err := bench.Many(ctx, filepath.Join(dir, "many"), 1000)
	if err != nil {
		return false, err
	}
	shutdown, err := bench.Shutdown(ctx, filepath.Join(dir, "shutdown"), 200)
	if err != nil {
		return false, err
	}

	var report *bench.Report
	for i := range max(tries, 1) {
		report, err = bench.Run(ctx, bench.Options{Rounds: rounds, Dir: filepath.Join(dir, fmt.Sprint("table", i))})
		if err != nil {
			return false, err
		}
		if err := report.WriteTable(os.Stdout); err != nil {
			return false, err
		}
		fmt.Println()
		if !report.Void {
			break
		}
	}
	l.table(report)
	l.most("bridge shutdown p50, 4 idle connections and an open event stream", shutdown.P50/1000, 2, "ms", fmt.Sprintf("p95 %.2f ms, n %d", shutdown.P95/1000, shutdown.N))
	l.most("1,000 idle bridges: heap and stacks, each", float64(in.BytesEach)/1024, 100, "KiB", fmt.Sprintf("all started in %.0f ms", ms(in.Start)))
	l.most("1,000 bridges: all closed", ms(in.Close), 1000, "ms", "")
	l.most("1,000 bridges: goroutines left", float64(max(0, in.GoroutinesAfter-in.GoroutinesBefore)), 0, "", fmt.Sprintf("%d before", in.GoroutinesBefore))
	if err := l.memory(ctx, binary, dir); err != nil {
		return false, err
	}
	if err := l.policy(); err != nil {
		return false, err
	}
	if err := l.command(ctx, binary); err != nil {
		return false, err
	}
	return report.Void, l.write(os.Stdout)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// target is one line of the result.
type target struct {
	what             string
	got, limit, unit string
	verdict, detail  string
}

type list []target

// most adds a number that may be at most limit.
func (l *list) most(what string, got, limit float64, unit, detail string) {
	verdict := "pass"
	if got > limit {
		verdict = "OVER"
	}
	*l = append(*l, target{what, number(got), number(limit), unit, verdict, detail})
}

// unmeasured adds a number that this system does not tell.
func (l *list) unmeasured(what string, limit float64, unit, why string) {
	*l = append(*l, target{what, "-", number(limit), unit, "not measured", why})
}

func number(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}

func (l *list) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "target\tmeasured\tat most\t\t\t")
	for _, x := range *l {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", x.what, x.got, x.limit, x.unit, x.verdict, x.detail)
	}
	return t.Flush()
}

// What an allowed call may add to the bare handler.
const (
	addedMicros = 20
	addedRatio  = 0.25
)

// table begins the list.
func (l *list) table(r *bench.Report) {
	for _, mode := range []string{bench.Fresh, bench.KeepAlive} {
		bare, allowed := r.Row(bench.CaseBare, mode), r.Row(bench.CaseAllowed, mode)
		refused, token := r.Row(bench.CaseRefused, mode), r.Row(bench.CaseToken, mode)
		l.most("call allowed, "+mode+": added to the bare handler", allowed.Added, max(addedMicros, addedRatio*bare.P50), "us",
			fmt.Sprintf("x %.2f of %.1f us", allowed.Ratio, bare.P50))
		l.most("call refused, "+mode+", by call allowed", ratio(refused.P50, allowed.P50), 1.1, "x", "")
		l.most("wrong token, "+mode+", by the faster of both", ratio(token.P50, min(allowed.P50, refused.P50)), 1, "x", "")
	}
	if r.Void {
		for i := range *l {
			(*l)[i].verdict = "void"
		}
	}
	start := r.Row(bench.CaseStart, "")
	l.most("bridge start p50", start.P50/1000, 1, "ms", fmt.Sprintf("p95 %.2f ms", start.P95/1000))
	end := r.Row(bench.CaseClose, "")
	l.most("bridge shutdown p50, 4 idle connections", end.P50/1000, 2, "ms", fmt.Sprintf("p95 %.2f ms", end.P95/1000))
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}
