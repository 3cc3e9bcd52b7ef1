package bench

import (
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
)

// How the connection of a case is used.
const (
	Fresh     = "fresh"      // a new one for each request
	KeepAlive = "keep-alive" // one for all requests
)

// MaxControl is the largest A/A ratio of a run whose numbers mean something.
const MaxControl = 1.03

// Row is one case of a report.
type Row struct {
	Case       string `json:"case"`
	Connection string `json:"connection,omitempty"` // Fresh, KeepAlive or ""
	N          int    `json:"n"`
	// P50 and P95 are in microseconds.
	P50 float64 `json:"p50_us"`
	P95 float64 `json:"p95_us"`
	// Floor is the case of the same connection it is compared with, "" for none:
	// Added is the difference of the P50s in microseconds, Ratio their quotient.
	Floor string  `json:"floor,omitempty"`
	Added float64 `json:"added_us,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
}

// Control is one and the same case measured as two: what their P50s differ by
// is noise. Ratio is the larger by the smaller.
type Control struct {
	Connection string  `json:"connection"`
	Ratio      float64 `json:"ratio"`
}

// Report is what [Run] found.
type Report struct {
	Version  string    `json:"version"` // of drawbridge
	Go       string    `json:"go"`
	Platform string    `json:"platform"` // linux/amd64
	CPUs     int       `json:"cpus"`
	Rounds   int       `json:"rounds"` // of the case with the fewest
	Seconds  float64   `json:"seconds"`
	Rows     []Row     `json:"rows"`
	Controls []Control `json:"controls"`
	// Void: a control is over MaxControl. The machine was too busy, and the rows
	// say more about that than about drawbridge.
	Void bool `json:"void"`
}

// Row finds a row. It is the zero Row where there is none.
func (r *Report) Row(name, connection string) Row {
	for _, row := range r.Rows {
		if row.Case == name && row.Connection == connection {
			return row
		}
	}
	return Row{}
}

func report(probes []probe, took [][]time.Duration) *Report {
	r := &Report{
		Version: drawbridge.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		CPUs: runtime.GOMAXPROCS(0),
	}
	for i, p := range probes {
		if i == 0 || len(took[i]) < r.Rounds {
			r.Rounds = len(took[i])
		}
		r.Rows = append(r.Rows, Row{
			Case: p.name, Connection: p.connection, N: len(took[i]), Floor: p.floor,
			P50: quantile(took[i], 0.50), P95: quantile(took[i], 0.95),
		})
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		if floor := r.Row(row.Floor, row.Connection); floor.P50 > 0 {
			row.Added, row.Ratio = row.P50-floor.P50, row.P50/floor.P50
		}
	}
	for _, mode := range []string{Fresh, KeepAlive} {
		a, b := r.Row(CaseBare, mode).P50, r.Row(CaseBareAgain, mode).P50
		c := Control{Connection: mode}
		if min(a, b) > 0 {
			c.Ratio = max(a, b) / min(a, b)
		}
		r.Controls = append(r.Controls, c)
		// A control that was not measured controls nothing.
		r.Void = r.Void || c.Ratio == 0 || c.Ratio > MaxControl
	}
	return r
}

// WriteTable writes the report for a person to read.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "drawbridge %s, %s, %s, %d CPUs; %d rounds in %.1f s\n\n", r.Version, r.Go, r.Platform, r.CPUs, r.Rounds, r.Seconds)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\tconnection\tp50 us\tp95 us\tn\tadded us\tx floor")
	for _, row := range r.Rows {
		added, ratio := "", ""
		if row.Ratio > 0 {
			added, ratio = fmt.Sprintf("%+.1f", row.Added), fmt.Sprintf("%.2f", row.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f\t%.1f\t%s\t%s\t%s\n", row.Case, row.Connection, row.P50, row.P95, strconv.Itoa(row.N), added, ratio)
	}
	_ = t.Flush() // to a strings.Builder
	b.WriteString(`
20 requests of one kind followed each other, then 20 of the next; starts and shutdowns were
rounds of their own, for what a shutdown writes to the disk. The floor is the bare net/http
handler, which reads the request and answers the same bytes (for the handshake, three
of them), over the same kind of connection; added and x floor compare the p50s.
`)
	for _, c := range r.Controls {
		fmt.Fprintf(&b, "A/A control, %s: the bare handler against itself is x %.3f (void above %.2f)\n", c.Connection, c.Ratio, MaxControl)
	}
	if r.Void {
		b.WriteString("VOID: the machine was too busy for these numbers to mean anything.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
