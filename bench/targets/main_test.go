package main

import (
	"os"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/bench"
)

func TestVerdicts(t *testing.T) {
	var l list
	l.most("under", 1.5, 2, "ms", "")
	l.most("just", 2, 2, "ms", "")
	l.most("over", 2.01, 2, "ms", "")
	l.unmeasured("elsewhere", 32, "MiB", "no /proc")
	for i, want := range []string{"pass", "pass", "OVER", "not measured"} {
		if l[i].verdict != want {
			t.Errorf("%+v, want %s", l[i], want)
		}
	}
	var out strings.Builder
	if err := l.write(&out); err != nil || strings.Count(out.String(), "\n") != 5 {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// The allowed call may add 20 us or a quarter of the floor, whichever is larger.
func TestAllowedTarget(t *testing.T) {
	report := func(bare, allowed, refused, token float64) *bench.Report {
		r := &bench.Report{}
		for _, mode := range []string{bench.Fresh, bench.KeepAlive} {
			r.Rows = append(r.Rows,
				bench.Row{Case: bench.CaseBare, Connection: mode, P50: bare},
				bench.Row{Case: bench.CaseAllowed, Connection: mode, P50: allowed, Added: allowed - bare, Ratio: allowed / bare},
				bench.Row{Case: bench.CaseRefused, Connection: mode, P50: refused},
				bench.Row{Case: bench.CaseToken, Connection: mode, P50: token})
		}
		return r
	}
	for _, tt := range []struct {
		bare, allowed, refused, token float64
		want                          string
	}{
		{40, 60, 66, 60, "pass pass pass"},
		{40, 61, 61, 61, "OVER pass pass"},
		{100, 125, 100, 90, "pass pass pass"},
		{100, 126, 100, 101, "OVER pass OVER"},
		{40, 50, 56, 45, "pass OVER pass"},
	} {
		var l list
		l.table(report(tt.bare, tt.allowed, tt.refused, tt.token))
		for mode := range 2 {
			got := []string{l[3*mode].verdict, l[3*mode+1].verdict, l[3*mode+2].verdict}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%+v: %v", tt, got)
			}
		}
	}
}

func TestVoidHasNoVerdict(t *testing.T) {
	var l list
	l.table(&bench.Report{Void: true})
	for i, x := range l {
		if want := i < 6; (x.verdict == "void") != want {
			t.Errorf("%+v", x)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 2: "2", 0.5: "0.5", 100: "100", 14.549: "14.55", 1.104: "1.1"} {
		if got := number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

func TestHighWater(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system has no /proc")
	}
	if kib := highWater(os.Getpid()); kib < 1024 {
		t.Errorf("this process has used %d KiB", kib)
	}
	if kib := highWater(-1); kib != 0 {
		t.Errorf("no process has used %d KiB", kib)
	}
}

func TestNotes(t *testing.T) {
	path := t.TempDir() + "/notes"
	if err := writeNotes(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n != notes {
		t.Errorf("%d notes", n)
	}
	if n := strings.Count(string(b), "contract"); n != notes/1000 {
		t.Errorf("%d of them have the rare word", n)
	}
}

// The policies that are measured are whole, and every rule of them is judged.
func TestMeasuredPolicies(t *testing.T) {
	names := toolNames(200)
	for everywhere, concerned := range map[bool]int{false: 200 * 4, true: 200 * 20} {
		text := policyText(names, everywhere)
		p, err := policyOf(text, names)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, "then: deny"); n != 20 {
			t.Errorf("%d rules", n)
		}
		n := 0
		for _, name := range names[:200] {
			n += len(p.Explain(name).Depends)
		}
		if n < concerned || everywhere && n != concerned {
			t.Errorf("%d times a rule concerns a tool, want %d", n, concerned)
		}
		if p.InScope("other_a") {
			t.Error("the channel's layer is not there")
		}
	}
	var l list
	if err := l.policy(); err != nil || len(l) != 3 {
		t.Errorf("%v %+v", err, l)
	}
	var out strings.Builder
	_ = l.write(&out)
	t.Log(out.String())
}
