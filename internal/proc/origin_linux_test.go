package proc

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whatever a process of a run does to look like another one.
func TestOriginOfARun(t *testing.T) {
	for name, c := range escapes {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			s := childSpec(marker(t), withFile(c.ops, file)...)
			s.Stdout, s.Stderr = io.Discard, os.Stderr
			p := start(t, s)
			want := printable(s.Marker)
			for _, pid := range append(pidsIn(t, file, c.n), p.PID(), p.helper.Pid) {
				o, err := OriginOf(pid)
				if errors.Is(err, os.ErrProcessDone) { // the one that left
					continue
				}
				if err != nil || o.Run != want {
					t.Errorf("process %d: %+v, %v; want run %s", pid, o, err, want)
				}
			}
		})
	}
}

func TestOriginOfThisProcess(t *testing.T) {
	o, err := OriginOf(os.Getpid())
	if err != nil || o.Run != "" || o.Name == "" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, env := range [][]string{nil, {"X=1"}, {}, {MarkerEnv + "="}} {
		cmd := exec.Command("/bin/sleep", "300")
		cmd.Env = env
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		o, err := OriginOf(cmd.Process.Pid)
		if err != nil || o != (Origin{Name: "sleep"}) {
			t.Errorf("environment %q: %+v, %v", env, o, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// The mark alone is enough, where no helper is above any more.
func TestOriginByMarkAlone(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "env -i /bin/sleep 300; :")
	cmd.Env = []string{"A=" + strings.Repeat("x", 100<<10), MarkerEnv + "=some/run"}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	var below []info
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		below, _, _ = descendants(cmd.Process.Pid)
		if i := slices.IndexFunc(below, func(p info) bool { return p.name == "sleep" }); i >= 0 {
			below = below[i:]
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no sleep")
		}
	}
	for _, pid := range []int{cmd.Process.Pid, below[0].pid} {
		if o, err := OriginOf(pid); err != nil || o.Run != "some/run" {
			t.Errorf("%+v, %v", o, err)
		}
	}
}

// A helper is known by its name where its environment can't be read, as that of
// another user's can't.
func TestOriginByHelperName(t *testing.T) {
	cmd := &exec.Cmd{Path: "/bin/sleep", Args: []string{helperName, "300"}, Env: []string{}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if o, err := OriginOf(cmd.Process.Pid); err != nil || o.Run != helperName {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestOriginThatCannotBeTold(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A zombie shows no environment.
	var status unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &status, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if o, err := OriginOf(cmd.Process.Pid); err == nil {
		t.Errorf("zombie: %+v", o)
	}
	_ = cmd.Wait()
	for _, pid := range []int{cmd.Process.Pid, 0, -1, 1 << 30} {
		if o, err := OriginOf(pid); err == nil {
			t.Errorf("%d: %+v", pid, o)
		}
	}
	if _, err := readProcMax("/proc/self/environ", 3); !errors.Is(err, errTooLong) {
		t.Error(err)
	}
}

// Deeper than anybody's shell is no origin that can be told.
func TestOriginOfADeepProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	script := `i=$1; if [ $i = 0 ]; then echo $$ >"$2"; exec sleep 300; fi; sh -c "$0" "$0" $((i-1)) "$2"; :`
	s := Spec{Path: "/bin/sh", Args: []string{"sh", "-c", script, script, "300", file}, Env: []string{"PATH=/usr/bin:/bin"},
		Dir: "/", Marker: marker(t), Grace: 300 * time.Millisecond}
	start(t, s)
	pid := pidsIn(t, file, 1)[0]
	if o, err := OriginOf(pid); err == nil && o.Run == "" {
		t.Errorf("%+v, %v", o, err)
	} else if err == nil || !strings.Contains(err.Error(), "ancestors") {
		t.Errorf("%+v, %v", o, err)
	}
}
