//go:build linux

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
)

// These tests hold what the command makes of a CLI that does not behave: the
// fake one of fakeMain, started like the real one.

// fakeRun readies a run of the fake CLI that plays prompt.
func fakeRun(t *testing.T, prompt string, flags ...string) (*place, *command) {
	t.Helper()
	p := newPlace(t, nil)
	args := append([]string{"run", "--agent", "claude", "--agent-path", stand(t, "claude"), "--allow", "memory_search", "--json"}, flags...)
	return p, p.prepare(append(args, "--", prompt)...)
}

// notices are what a run told a person, in one text.
func notices(c *command) string {
	var all []string
	for _, e := range c.events() {
		if e.Kind == event.Notice || e.Kind == event.Log {
			all = append(all, e.Text)
		}
	}
	return strings.Join(all, "\n")
}

// settled waits for the end of a run and checks all that holds of every end.
// It returns the last event.
func settled(p *place, c *command, code int) event.Event {
	p.t.Helper()
	c.ends(code)
	end := c.first(event.Ended)
	if end.ExitCode == nil || *end.ExitCode != code || end.OK == nil || *end.OK != (code == 0) {
		p.t.Errorf("the last event is %+v", end)
	}
	p.nothing(end.Run, 0, 0)
	p.closed(end.Run, code)
	return end
}

func TestField53_StandardInputOfEveryKind(t *testing.T) {
	inputs := map[string]func(*testing.T, *command){
		"a pipe that stays open": func(t *testing.T, c *command) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.Close(); _ = r.Close() })
			c.Stdin = r
		},
		"a terminal": func(t *testing.T, c *command) { c.Stdin = terminal(t) },
		"closed":     func(t *testing.T, c *command) { c.through(`exec "$@" <&-`) },
	}
	for name, give := range inputs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := fakeRun(t, "answer")
			give(t, c)
			if end := settled(p, c.begin(), 0); end.Text != "ok" || end.Millis > 20_000 {
				t.Errorf("%+v", end)
			}
		})
	}
}

// terminal is the far side of a new pseudoterminal.
func terminal(t *testing.T) *os.File {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminal: %v", err)
	}
	t.Cleanup(func() { _ = near.Close() })
	if err := unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skipf("no pseudoterminal: %v", err)
	}
	n, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skipf("no pseudoterminal: %v", err)
	}
	far, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminal: %v", err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return far
}

func TestField54_ResultAndNoExit(t *testing.T) {
	t.Run("the CLI stays", func(t *testing.T) {
		t.Parallel()
		p, c := fakeRun(t, "stay")
		if end := settled(p, c.begin(), 0); end.Text != "ok" || !strings.Contains(notices(c), "killed after result") {
			t.Errorf("%+v\n%s", end, notices(c))
		}
	})
	t.Run("a child holds its output", func(t *testing.T) {
		t.Parallel()
		p, c := fakeRun(t, "stay-child")
		if end := settled(p, c.begin(), 0); end.Text != "ok" || !strings.Contains(notices(c), "unfinished background work was ended: sleep") {
			t.Errorf("%+v\n%s", end, notices(c))
		}
	})
}

// The report saw it more often with six runs at once.
func TestField55_NoResult(t *testing.T) {
	for name, tt := range map[string]struct {
		prompt string
		says   []string
	}{
		"a silence":     {"silent", []string{"no result event", "printed nothing for 1s"}},
		"b exit 0":      {"quit 0", []string{"no result event", "exit code 0"}},
		"c exit 1":      {"quit 1", []string{"no result event", "exit code 1", "the last words"}},
		"d signal":      {"quit by a signal", []string{"no result event", "SIGKILL", "the last words"}},
		"e torn result": {"torn", []string{"no result event"}},
		"f exit 9":      {"quit 9", []string{"exit code 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := fakeRun(t, tt.prompt, "--idle-timeout", "1s")
			settled(p, c.begin(), 1)
			c.says(tt.says...)
		})
	}
}

// Lines of 70 KB to 300 MB, and the memory they take.
func TestField57_LinesOfAnyLength(t *testing.T) {
	p, c := fakeRun(t, "long")
	c.begin()
	peak := 0
	c.wait("its end", func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		if _, rest, ok := bytes.Cut(status, []byte("VmHWM:")); ok {
			_, _ = fmt.Sscan(string(rest), &peak)
		}
		select {
		case <-c.done:
			return true
		default:
			return false
		}
	})
	end := settled(p, c, 0)
	if end.Text != "ok" {
		t.Errorf("the result is %q", end.Text)
	}
	if n := strings.Count(notices(c), "was longer than 8388608 bytes and was skipped"); n != 3 {
		t.Errorf("%d notices of skipped lines: %s", n, notices(c))
	}
	if !slices.ContainsFunc(c.events(), func(e event.Event) bool { return e.Kind == event.Text && e.Text == "after the long lines" }) {
		t.Error("what came after the long lines was lost")
	}
	// 300 MB in one line, and what is kept of it is a fraction.
	if t.Logf("at most %d KiB resident", peak); peak == 0 || peak > 96<<10 {
		t.Errorf("%d KiB resident", peak)
	}
}

func TestField58_NoiseOnTheStream(t *testing.T) {
	p, c := fakeRun(t, "noise")
	end := settled(p, c.begin(), 0)
	if end.Text != "no newline after this" {
		t.Errorf("the result is %q", end.Text)
	}
	if !strings.Contains(notices(c), "Now using node v20") {
		t.Errorf("the noise is not in the log: %s", notices(c))
	}
	if !slices.ContainsFunc(c.events(), func(e event.Event) bool { return e.Kind == event.Text && e.Text == "in an array" }) {
		t.Error("the events of an array were lost")
	}
	_, folder := p.meta(end.Run)
	if b, err := os.ReadFile(filepath.Join(folder, "transcript.jsonl")); err != nil || !bytes.Contains(b, []byte("Now using node v20")) {
		t.Errorf("transcript: %v", err)
	}
}

func TestField60_GrandchildHoldsThePipe(t *testing.T) {
	for name, cmd := range map[string]string{
		"background":   "sleep 300 & echo hi",
		"setsid":       "setsid sleep 300 & echo hi",
		"double fork":  "(setsid sh -c 'sleep 300 & sleep 300 &' &); echo hi",
		"ignores TERM": "sh -c \"trap '' TERM; sleep 300; sleep 300\" & echo hi",
		"no mark":      "env -i setsid sleep 300 & echo hi",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := fakeRun(t, "shell "+cmd)
			settled(p, c.begin(), 0)
			if all := notices(c); !strings.Contains(all, "hi") || !strings.Contains(all, "unfinished background work was ended") {
				t.Errorf("notices: %s", all)
			}

			p, c = fakeRun(t, "shell-stay "+cmd, "--timeout", "2s")
			settled(p, c.begin(), 124)
			c.says("the run took longer than 2s")
		})
	}
	t.Run("in the foreground", func(t *testing.T) {
		t.Parallel()
		p, c := fakeRun(t, "shell sleep 300 | cat", "--timeout", "2s")
		settled(p, c.begin(), 124)
	})
}

func TestField62_BackgroundWork(t *testing.T) {
	p, c := fakeRun(t, "shell while :; do :; done &")
	settled(p, c.begin(), 0)
	if !strings.Contains(notices(c), "unfinished background work was ended: sh") {
		t.Errorf("notices: %s", notices(c))
	}
}

func TestField63_StartedInsideAnotherSession(t *testing.T) {
	p, c := fakeRun(t, "environment")
	c.Env = append(c.Env, "CLAUDECODE=1", "CLAUDE_CODE_ENTRYPOINT=cli", "CLAUDE_CODE_SESSION_ACCESS_TOKEN=zzz",
		"AWS_SECRET_ACCESS_KEY=zzz", "FOO_TOKEN=zzz", "LD_PRELOAD=", "NODE_OPTIONS=--no-warnings", "DRAWBRIDGE_TOKEN=zzz")
	end := settled(p, c.begin(), 0)
	names := strings.Fields(end.Text)
	for _, name := range []string{"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ACCESS_TOKEN", "AWS_SECRET_ACCESS_KEY", "FOO_TOKEN", "LD_PRELOAD", "NODE_OPTIONS", "DRAWBRIDGE_TOKEN"} {
		if slices.Contains(names, name) {
			t.Errorf("the agent has %s", name)
		}
	}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if !slices.Contains(names, name) {
			t.Errorf("the agent lacks %s", name)
		}
	}
}

// Every prompt arrives whole, and no option of ours takes in a word.
func TestField64_65_PromptArrivesWhole(t *testing.T) {
	long := func(n int) string { return strings.Repeat("0123456789 '\"$(x)%PATH%\n", n/24+1)[:n] }
	for name, tt := range map[string]struct {
		prompt string
		file   bool // as an argument it is longer than the system allows
		flags  []string
	}{
		"127 KB":       {long(127 << 10), false, nil},
		"129 KB":       {long(129 << 10), true, nil},
		"3 MB":         {long(3 << 20), true, nil},
		"1 character":  {"x", false, nil},
		"a dash":       {"-p --output-format text", false, nil},
		"a heading":    {"## Plan x", false, []string{"--add-dir", ".", "--agent-arg", "--disallowedTools=Bash", "--own-tools", "Read,Grep"}},
		"shell syntax": {"'\"$(x)%PATH%` & echo pwned %USERNAME% ^ \"\n", false, nil},
		"no UTF-8":     {"\xff\xfe", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, c := fakeRun(t, tt.prompt, tt.flags...)
			if tt.file {
				file := filepath.Join(p.folder, "prompt")
				if err := os.WriteFile(file, []byte(tt.prompt), 0o600); err != nil {
					t.Fatal(err)
				}
				c.Args = append(c.Args[:len(c.Args)-2], "--prompt-file", file)
			}
			end := settled(p, c.begin(), 0)
			sum := sha256.Sum256([]byte(tt.prompt))
			if want := fmt.Sprintf("%s %d 1 words []", hex.EncodeToString(sum[:]), len(tt.prompt)); end.Text != want {
				t.Errorf("it got %s, want %s", end.Text, want)
			}
		})
	}
	t.Run("NUL", func(t *testing.T) {
		t.Parallel()
		_, c := fakeRun(t, "unused")
		c.Args = c.Args[:len(c.Args)-2]
		c.Stdin = strings.NewReader("a\x00b")
		c.begin().ends(2)
		c.says("NUL byte at offset 1")
	})
}

// An environment of 3 MB, which drawbridge can be started with and must not
// hand on.
func TestField64_LargeEnvironment(t *testing.T) {
	p, c := fakeRun(t, "answer")
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		t.Fatal(err)
	}
	// What a new program may be given is a quarter of the stack's limit.
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &unix.Rlimit{Cur: min(64<<20, stack.Max), Max: stack.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_STACK, &stack) }()
	for i := range 30 {
		c.Env = append(c.Env, fmt.Sprintf("FILLER_%d=%s", i, strings.Repeat("x", 100<<10)))
	}
	c.begin()
	if end := settled(p, c, 0); end.Text != "ok" {
		t.Errorf("%+v", end)
	}
}

// Field 19, 72: a run whose agent had no tools is no success, whatever the
// agent says.
func TestField19_72_NoToolsIsNoSuccess(t *testing.T) {
	for name, tt := range map[string]struct {
		prompt string
		says   []string
	}{
		"wrong token":   {"wrong-token", []string{"never authenticated to the bridge", "wrong token"}},
		"still pending": {"not-connected pending", []string{"never connected"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, nil)
			c := p.start("run", "--agent", "claude", "--agent-path", stand(t, "claude"), "--allow", "memory_search", "--json", "--", tt.prompt)
			c.ends(3)
			c.says(tt.says...)
			end := c.first(event.Ended)
			p.nothing(end.Run, 0, 0)
			p.closed(end.Run, 3)
			if started := c.first(event.Started); started.Status == "" || started.Status == "connected" {
				t.Errorf("%+v", started)
			}
		})
	}
	t.Run("the real claude with a wrong token", func(t *testing.T) {
		m := Model(t, model.Step{Text: "I have no tools, but all is well"})
		p := newPlace(t, m)
		claude := Program(t, "claude")
		wrapper := filepath.Join(t.TempDir(), "claude")
		script := "#!/bin/sh\n[ \"$1\" = --version ] && exec " + claude + " --version\n" +
			`sed 's/Bearer [0-9a-f]*/Bearer 0000000000000000000000000000000000000000000000000000000000000000/' <&3 > "$TMPDIR/config"` + "\n" +
			`exec ` + claude + ` "$@" 3<"$TMPDIR/config"` + "\n"
		if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		c := p.start("run", "--agent", "claude", "--agent-path", wrapper, "--allow", "memory_search", "--json", "--", "hello")
		c.ends(3)
		c.says("never authenticated to the bridge")
		end := c.first(event.Ended)
		p.nothing(end.Run, 0, 0)
		p.closed(end.Run, 3)
		// It said that it was done, which is why its word is not taken.
		if finished := c.first(event.Finished); finished.OK == nil || !*finished.OK {
			t.Errorf("%+v", finished)
		}
	})
}
