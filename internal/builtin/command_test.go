//go:build linux

package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// shell runs one command in a folder of its own.
func shell(t *testing.T, c Commands, a args) call.Result {
	t.Helper()
	if err := proc.HelperReady(); err != nil {
		t.Skip(err.Error())
	}
	if c.Folder == "" {
		c.Folder = t.TempDir()
	}
	if c.Environ == nil {
		c.Environ = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	}
	if c.Marker == "" {
		c.Marker = "test-" + t.Name()
	}
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // against a hang
	defer cancel()
	r, err := Command(c).Run(ctx, call.Invocation{Arguments: raw})
	if err != nil {
		t.Fatalf("%v: %v", a, err)
	}
	return r
}

func TestCommandResults(t *testing.T) {
	defer goleak.VerifyNone(t)
	tests := []struct {
		cmd     string
		want    string
		isError bool
	}{
		{"echo hi", "hi\n|[exit code 0]", false},
		{"true", "[no output; exit code 0]", false},
		{"echo bad >&2; exit 3", "bad\n|[exit code 3]", false},
		{"nosuchprogram-x", "nosuchprogram-x: not found\n|[exit code 127]", false},
		{"kill -KILL $$", "[no output; killed by SIGKILL]", true},
		{"if", "|[exit code 2]", false},
		{"echo 1; echo 2 >&2; echo 3; echo 4 >&2", "1\n2\n3\n4\n|[exit code 0]", false},
		{"read x; echo $?; cat; tty", "1\nnot a tty\n|[exit code 1]", false},
		{"printf '\\377ok'", "\uFFFDok|[exit code 0]", false},
	}
	for _, tc := range tests {
		r := shell(t, Commands{}, args{"cmd": tc.cmd})
		got := strings.ReplaceAll(all(r), "\n[", "|[")
		if len(r.Content) > 1 {
			got = r.Content[0].Text + "|" + r.Content[1].Text
		}
		if !strings.HasSuffix(got, tc.want) || r.IsError != tc.isError {
			t.Errorf("%s: %q, isError %v; want %q", tc.cmd, got, r.IsError, tc.want)
		}
	}
	dir := t.TempDir()
	if got := shell(t, Commands{Folder: dir}, args{"cmd": "pwd"}).Content[0].Text; got != dir+"\n" {
		t.Errorf("pwd: %q", got)
	}
	for _, cmd := range []string{"", " \n", "a\x00b", strings.Repeat("x", maxCommand+1)} {
		if r := shell(t, Commands{}, args{"cmd": cmd}); !r.IsError {
			t.Errorf("%.10q: %s", cmd, all(r))
		}
	}
	r := shell(t, Commands{Folder: filepath.Join(dir, "gone")}, args{"cmd": "true"})
	if !r.IsError || !strings.Contains(all(r), "could not be started") {
		t.Errorf("missing folder: %s", all(r))
	}
}

func TestField24_CommandOutputIsExact(t *testing.T) {
	for _, want := range []string{"a<b && c>d", "<-done & x", "\u2028é\t\"\\u003c\""} {
		r := shell(t, Commands{}, args{"cmd": "printf %s '" + want + "'"})
		if r.Content[0].Text != want {
			t.Errorf("%q came as %q", want, r.Content[0].Text)
		}
	}
}

func TestField60_GrandchildrenDoNotHoldTheCall(t *testing.T) {
	defer goleak.VerifyNone(t)
	// A duration nobody else sleeps for finds the processes afterwards.
	nap := fmt.Sprintf("300.%d", os.Getpid())
	tests := []struct {
		cmd      string
		output   string
		timedOut bool
		leftover string
	}{
		{"sleep N & echo hi", "hi\n", false, "sleep"},
		{"setsid sleep N & echo hi", "hi\n", false, "sleep"},
		{"(setsid sh -c 'sleep N & sleep N' >/dev/null 2>&1 &) ; echo hi", "hi\n", false, "sh, sleep"},
		{"echo hi; sleep N | cat", "hi\n", true, ""},
		{"echo hi; (sleep N)", "hi\n", true, ""},
		{"trap '' TERM; echo hi; sleep N; sleep N", "hi\n", true, ""},
	}
	for _, tc := range tests {
		limit := 30
		if tc.timedOut {
			limit = 2
		}
		r := shell(t, Commands{}, args{"cmd": strings.ReplaceAll(tc.cmd, "N", nap), "timeout_seconds": limit})
		if r.Content[0].Text != tc.output || r.IsError != tc.timedOut {
			t.Errorf("%s: %q isError %v", tc.cmd, all(r), r.IsError)
		}
		if tc.timedOut && !strings.Contains(all(r), "[ended at the time limit of 2 s]") {
			t.Errorf("%s: %q", tc.cmd, all(r))
		}
		if tc.leftover != "" && !strings.Contains(all(r), "left running in the background and ended: "+tc.leftover) {
			t.Errorf("%s: %q names nothing left", tc.cmd, all(r))
		}
		if pids := sleepers(nap); len(pids) > 0 {
			t.Errorf("%s: alive %v", tc.cmd, pids)
		}
	}
}

// sleepers are the processes with this argument.
func sleepers(arg string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		data, _ := os.ReadFile(p)
		if a := strings.Split(string(data), "\x00"); slices.Contains(a, arg) {
			pids = append(pids, p)
		}
	}
	return pids
}

func TestTimeLimit(t *testing.T) {
	// Asking for more than the limit does not get more.
	r := shell(t, Commands{Wall: 500 * time.Millisecond}, args{"cmd": "sleep 100", "timeout_seconds": 1000})
	if !r.IsError || !strings.Contains(all(r), "time limit of 0.5 s") {
		t.Errorf("%s", all(r))
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	_, err := Command(Commands{Folder: t.TempDir(), Marker: "m"}).Run(ctx, call.Invocation{Arguments: []byte(`{"cmd":"sleep 100"}`)})
	if err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

func TestField68_TokenIsNotInTheCommandsEnvironment(t *testing.T) {
	token := strings.Repeat("5e", 32)
	environ := []string{"PATH=" + os.Getenv("PATH"), "DRAWBRIDGE_TOKEN=" + token, "OSF_MCP_TOKEN=" + token, "LC_TOKEN=" + token, "XDG_CONFIG=" + token}
	r := shell(t, Commands{Environ: environ}, args{"cmd": "env; tr '\\0' '\\n' </proc/self/environ; tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' ' ' </proc/$PPID/cmdline; echo [$DRAWBRIDGE_TOKEN]"})
	if got := all(r); strings.Contains(got, token) || !strings.Contains(got, "[]") {
		t.Errorf("%s", got)
	}
}

func TestField92_CommandEnvironment(t *testing.T) {
	environ := []string{
		"PATH=/usr/bin:.:bin::/bin", "HOME=/home/u", "USER=u", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "TZ=UTC", "TMPDIR=/var/tmp",
		"ANTHROPIC_API_KEY=k1", "AWS_SECRET_ACCESS_KEY=k2", "FOO_TOKEN=k3", "LD_PRELOAD=/x.so", "LD_LIBRARY_PATH=/x", "NODE_OPTIONS=--require=x",
		"BASH_ENV=/x", "ENV=/x", "PYTHONSTARTUP=/x", "GIT_SSH_COMMAND=x", "GIT_CONFIG_COUNT=1", "SSH_AUTH_SOCK=/x", "HTTPS_PROXY=http://u:p@h",
		"PROMPT_COMMAND=x", "BASH_FUNC_ls%%=() { x; }", "IFS=x", "PAGER=less", "EDITOR=vi", "LC_SECRET=k4", "DRAWBRIDGE_TOKEN=k5", "NOEQUALS", "=x",
	}
	want := append([]string{"PWD", "DRAWBRIDGE_RUN", "PATH=/usr/bin:/bin", "HOME=/home/u", "USER=u", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "TZ=UTC", "TMPDIR=/tmp/run"}, quiet...)
	r := shell(t, Commands{Environ: environ, TempDir: "/tmp/run", Marker: "mark"}, args{"cmd": "env"})
	for _, line := range strings.Split(strings.TrimSpace(r.Content[0].Text), "\n") {
		name, _, _ := strings.Cut(line, "=")
		if !slices.Contains(want, line) && !slices.Contains(want, name) && name != "_" && name != "OLDPWD" && name != "SHLVL" {
			t.Errorf("the command has %s", line)
		}
	}
	for _, w := range want {
		if !strings.Contains("\n"+r.Content[0].Text, "\n"+w) {
			t.Errorf("the command lacks %s", w)
		}
	}
	if env := Environment(nil, ""); !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=/") }) {
		t.Errorf("without an environment: %v", env)
	}
}

func TestField74_LongOutputIsCut(t *testing.T) {
	r := shell(t, Commands{Output: 8 << 10}, args{"cmd": "echo first; yes 'é€😀' | head -c 10000000; echo; echo last; exit 1"})
	text := r.Content[0].Text
	if r.IsError || !utf8.ValidString(text) || !strings.HasPrefix(text, "first\n") || !strings.HasSuffix(text, "\nlast\n") {
		t.Errorf("isError %v, %.40q ... %.40q", r.IsError, text, text[len(text)-40:])
	}
	size := len(all(r))
	if size > 8<<10 || r.Flags.Cut < 9_900_000 || !strings.Contains(text, strings.TrimSpace(call.CutMarker(r.Flags.Cut))) || r.Flags.Repaired {
		t.Errorf("%d bytes, flags %+v", size, r.Flags)
	}
	if !strings.HasSuffix(all(r), "[exit code 1]") {
		t.Errorf("the exit code is missing: %.80q", all(r)[size-80:])
	}
}

func TestField100_NothingWaitsForAPerson(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	asks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer asks.Close()
	dir := t.TempDir()
	c := Commands{Folder: dir, Wall: 20 * time.Second}
	var commits strings.Builder
	for i := range 500 {
		fmt.Fprintf(&commits, "commit refs/heads/main\ncommitter a <a@example.org> %d +0000\ndata 2\nc\n", 1700000000+i)
		fmt.Fprintf(&commits, "M 644 inline f\ndata <<E\n%d\nE\n\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "commits"), []byte(commits.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	r := shell(t, c, args{"cmd": "git init -q -b main . && git fast-import --quiet <commits && git reset -q --hard && git config user.name a && git config user.email a@example.org"})
	if !strings.HasSuffix(all(r), "exit code 0]") {
		t.Fatal(all(r))
	}
	for cmd, want := range map[string]string{
		"git log": "exit code 0]",
		"git commit --allow-empty -m x && git commit --allow-empty --amend": "exit code 0]",
		"git commit --allow-empty":                    "exit code 1]", // the message stays empty
		"git rebase -i HEAD~2":                        "exit code 0]",
		"git fetch https://127.0.0.1:1/x":             "exit code 128]",
		"git -c http.proxy= fetch " + asks.URL + "/x": "exit code 128]",
		"sudo -S true":                                "exit code ",
		"read x":                                      "exit code 1]",
		"cat":                                         "exit code 0]",
		"man sh; less f":                              "exit code ",
	} {
		r := shell(t, c, args{"cmd": cmd})
		if r.IsError || !strings.Contains(all(r), want) {
			t.Errorf("%s: isError %v, %.300s", cmd, r.IsError, all(r))
		}
	}
}
