package proc

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestParseStat(t *testing.T) {
	const tail = " S 10 20 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 123456 1 2\n"
	want := info{pid: 12, ppid: 10, sid: 30, state: 'S', threads: 9, start: 123456}
	for _, name := range []string{"sh", "a b", ")", "x) R 1 1 1", "(((", "\n", ""} {
		want.name = name
		if got, ok := parseStat([]byte("12 (" + name + ")" + tail)); !ok || got != want {
			t.Errorf("%q: %+v %v", name, got, ok)
		}
	}
	for _, bad := range []string{"", "12", "12 (sh)", "12 (sh) S 1", "12 )sh(" + tail, "x (sh)" + tail,
		"12 (sh) S 10 20 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 -1 1 2", " (sh)" + tail} {
		if got, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		f.Add(b)
		if p, ok := parseStat(b); !ok || p.pid != os.Getpid() || p.ppid != os.Getppid() || p.dead() {
			f.Errorf("%+v", p)
		}
	}
	f.Add([]byte("1 (x)) S"))
	f.Add([]byte("(1) ("))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseStat(b); ok && len(p.name) > len(b) {
			t.Errorf("%+v", p)
		}
	})
}

func TestDead(t *testing.T) {
	for _, c := range []struct {
		state   byte
		threads int
		want    bool
	}{{'Z', 1, true}, {'Z', 0, true}, {'X', 1, true}, {'Z', 2, false}, {'S', 1, false}, {'T', 1, false}, {'D', 1, false}} {
		if got := (info{state: c.state, threads: c.threads}).dead(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestHasVariable(t *testing.T) {
	const v = MarkerEnv + "=run-1"
	for in, want := range map[string]bool{
		"":                        false,
		v:                         true,
		v + "\x00":                true,
		"A=1\x00" + v + "\x00B=2": true,
		v + "0\x00":               false,
		"X" + v + "\x00":          false,
		"A=" + v + "\x00":         false,
	} {
		if got := hasVariable([]byte(in), v); got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
}

func TestHasPrefix(t *testing.T) {
	const v = MarkerEnv + "=run/"
	for in, want := range map[string]bool{
		"":                       false,
		v + "a\x00":              true,
		"A=1\x00" + v + "b\x00":  true,
		MarkerEnv + "=run\x00":   false,
		"A=" + v + "c\x00":       false,
		MarkerEnv + "=runs/\x00": false,
	} {
		if got := hasPrefix([]byte(in), v); got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
}

// The commands of a run have markers below the run's.
func TestSweepFindsMarkersBelow(t *testing.T) {
	m := "below-" + strconv.Itoa(os.Getpid())
	var cmds []*exec.Cmd
	for _, marker := range []string{m + "/1", m + "x"} {
		c := exec.Command("/bin/sleep", "300")
		c.Env = []string{MarkerEnv + "=" + marker}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { // children of ours that Sweep hits need a reaper
			defer close(ended)
			_ = c.Wait()
		}()
		defer func() {
			_ = c.Process.Kill()
			<-ended
		}()
		cmds = append(cmds, c)
	}
	if got := Alive(m); len(got) != 1 || got[0] != cmds[0].Process.Pid {
		t.Errorf("Alive = %v, want %d", got, cmds[0].Process.Pid)
	}
	killed, err := Sweep(m)
	if err != nil || len(killed) != 1 || killed[0] != cmds[0].Process.Pid {
		t.Errorf("Sweep = %v, %v", killed, err)
	}
}
