package drawbridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/drawbridgetest"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

func linux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("process supervision needs Linux")
	}
}

func config(t *testing.T) drawbridge.Config {
	return drawbridge.Config{
		Server: "osfoundry", Binding: drawbridge.Binding{Workspace: "ws-a"},
		Tools: []drawbridge.Tool{echo("echo", drawbridge.Read, nil), echo("other", drawbridge.Read, nil)},
		Allow: []string{"echo"}, Folder: t.TempDir(), StateDir: filepath.Join(t.TempDir(), "state"),
	}
}

func TestRun(t *testing.T) {
	linux(t)
	res, events, err := drawbridgetest.Play(t, config(t), `call echo {"a":1}
call other {}
say all done
`)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK || res.Text != "all done" || res.Calls != 1 || res.Refused != 1 || res.Level != "sealed" || !refuses(res.URL) {
		t.Errorf("Result = %+v", res)
	}
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, string(e.Kind))
		if e.Run != res.Run || e.Time.IsZero() {
			t.Errorf("event without run or time: %+v", e)
		}
	}
	all := strings.Join(kinds, " ")
	for _, want := range []string{"tools_listed", "started", "call", "tool_call", "tool_result", "text", "finished", "ended"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s event in: %s", want, all)
		}
	}
	if kinds[len(kinds)-1] != "ended" {
		t.Errorf("the last event is %s", kinds[len(kinds)-1])
	}
}

// What a run comes to, by how its agent behaves.
func TestRunEnds(t *testing.T) {
	linux(t)
	for name, c := range map[string]struct {
		script string
		change func(*drawbridge.RunConfig)
		kind   drawbridge.Kind
		want   string
	}{
		"failure reported":                    {"fail it broke", nil, drawbridge.AgentFailed, "it broke"},
		"no result, field 55 b":               {"call echo {}\nexit 0", nil, drawbridge.AgentFailed, "no result event"},
		"no result and a code, field 55 c":    {"warn out of cheese\ncall echo {}\nexit 9", nil, drawbridge.AgentFailed, "exit code 9"},
		"silence, field 55 a":                 {"call echo {}\nsleep 60s", func(c *drawbridge.RunConfig) { c.IdleTimeout = 500 * time.Millisecond }, drawbridge.AgentFailed, "printed nothing"},
		"never listed":                        {"no-handshake\nsay hello", nil, drawbridge.NotReady, "never connected"},
		"wrong token, field 19":               {"token 1234\nsay hello", nil, drawbridge.NotReady, "never authenticated"},
		"never listed in time":                {"no-handshake\nsleep 60s", func(c *drawbridge.RunConfig) { c.ReadyTimeout = 300 * time.Millisecond }, drawbridge.NotReady, "never connected"},
		"wall time":                           {"call echo {}\nsleep 60s", func(c *drawbridge.RunConfig) { c.Timeout = 500 * time.Millisecond }, drawbridge.WallTime, "longer than"},
		"wall time, ignoring TERM":            {"ignore\ncall echo {}\nsleep 60s", func(c *drawbridge.RunConfig) { c.Timeout = 500 * time.Millisecond }, drawbridge.WallTime, "longer than"},
		"sealed, and a tool that is not ours": {`print {"kind":"started","tools":["mcp__osfoundry__echo","Bash"],"status":"connected","server":"osfoundry"}` + "\nsleep 60s", nil, drawbridge.AgentFailed, "Bash"},
		"empty prompt":                        {" \n", nil, drawbridge.Usage, "empty"},
		"NUL in the prompt, field 64":         {"say a\x00b", nil, drawbridge.Usage, "NUL"},
		"no folder":                           {"say a", func(c *drawbridge.RunConfig) { c.Folder = "" }, drawbridge.Usage, "folder"},
		"unknown agent":                       {"say a", func(c *drawbridge.RunConfig) { c.Agent = "scirpted" }, drawbridge.Usage, "scirpted"},
		"claude that is nowhere": {"say a", func(c *drawbridge.RunConfig) {
			c.Agent = "claude"
			c.Environ = []string{"PATH=/nonexistent", "HOME=/nonexistent"}
		}, drawbridge.Usage, "claude"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := drawbridge.RunConfig{Config: config(t), Agent: "scripted", Prompt: c.script, Timeout: 30 * time.Second}
			if c.change != nil {
				c.change(&cfg)
			}
			began := time.Now()
			res, err := drawbridge.Run(t.Context(), cfg)
			if drawbridge.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("kind %d, error %v; want kind %d and %q", drawbridge.KindOf(err), err, c.kind, c.want)
			}
			if time.Since(began) > 25*time.Second {
				t.Errorf("it took %s", time.Since(began))
			}
			if res == nil {
				return
			}
			if res.OK || !refuses(res.URL) {
				t.Errorf("Result = %+v", res)
			}
			if left := proc.Alive(res.Run); len(left) > 0 {
				t.Errorf("processes left: %v", left)
			}
			drawbridgetest.Records(t, res.AuditFile, res.AuditHead)
		})
	}
}

func TestField54_ResultAndNoExit(t *testing.T) {
	linux(t)
	cfg := drawbridge.RunConfig{Config: config(t), Agent: "scripted", Prompt: "say the answer\nfinish\nsleep 300s", Timeout: time.Minute}
	res, err := drawbridge.Run(t.Context(), cfg)
	if err != nil || !res.OK || res.Text != "the answer" || !strings.Contains(strings.Join(res.Notes, "|"), "killed after result") {
		t.Errorf("%+v, %v", res, err)
	}
}

// Promise 3: nothing is left, however a process tries to get away.
func TestPromise3_NothingIsLeft(t *testing.T) {
	linux(t)
	for name, script := range map[string]string{
		"background":     `exec sleep 300 & echo started`,
		"setsid":         `exec setsid sleep 300 & echo started`,
		"double fork":    `exec (setsid sh -c 'sleep 300 & sleep 300 &' >/dev/null 2>&1 &) ; echo started`,
		"ignores TERM":   `exec (trap '' TERM; sleep 300; sleep 300) & echo started`,
		"no environment": `exec env -i setsid sh -c 'sleep 300' >/dev/null 2>&1 & echo started`,
		"holds the pipe": `exec setsid sh -c 'while :; do sleep 1; done' & echo started`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := drawbridge.RunConfig{Config: config(t), Agent: "scripted", Prompt: script + "\nsay done", Timeout: time.Minute}
			cfg.OwnTools = drawbridge.OwnTools{All: true}
			before := sleepers(t)
			res, err := drawbridge.Run(t.Context(), cfg)
			if err != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if left := proc.Alive(res.Run); len(left) > 0 {
				t.Errorf("processes left: %v", left)
			}
			_ = before
			if len(res.Leftovers) == 0 {
				t.Error("the run does not tell what it ended (field report 62)")
			}
		})
	}
}

// sleepers lists the processes below this one.
func sleepers(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("ps", "--no-headers", "-o", "pid,args", "--ppid", "1").Output()
	if err != nil {
		return nil
	}
	return strings.Split(string(out), "\n")
}

// An embedder's own children are its own.
func TestEmbeddersChildrenAreLeftAlone(t *testing.T) {
	linux(t)
	mine := exec.Command("sleep", "300")
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = mine.Process.Kill()
		_ = mine.Wait()
	}()
	quick := exec.Command("sh", "-c", "exit 7")
	if err := quick.Start(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := drawbridgetest.Play(t, config(t), "call echo {}"); err != nil {
		t.Fatal(err)
	}
	if err := mine.Process.Signal(os.Signal(os.Interrupt)); err != nil {
		t.Errorf("the embedder's child is gone: %v", err)
	}
	var exit *exec.ExitError
	if err := quick.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the embedder's child was reaped by somebody else: %v", err)
	}
}

// Without Helper in main, Run says so. The test binary is started again without
// it.
func TestRunWithoutHelper(t *testing.T) {
	linux(t)
	if os.Getenv("TEST_WITHOUT_HELPER") != "" {
		_, err := drawbridge.Run(context.Background(), drawbridge.RunConfig{Config: config(t), Agent: "scripted", Prompt: "say a"})
		if !errors.Is(err, drawbridge.ErrNoHelper) || drawbridge.KindOf(err) != drawbridge.Usage {
			t.Errorf("Run without Helper = %v", err)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRunWithoutHelper$")
	cmd.Env = append(os.Environ(), "TEST_WITHOUT_HELPER=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Promise 4: the token is nowhere but where the client needs it.
func TestPromise4_NoTokenAnywhere(t *testing.T) {
	linux(t)
	cfg := config(t)
	var token string
	cfg.Tools = append(cfg.Tools, drawbridge.Tool{Name: "leak", Effects: drawbridge.Read, Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
		return drawbridge.ToolResult{}, nil
	}})
	cfg.Allow = []string{"echo"}
	run := drawbridge.RunConfig{Config: cfg, Agent: "scripted", Timeout: time.Minute, OwnTools: drawbridge.OwnTools{All: true}}
	// The agent says its token in every way it can.
	run.Prompt = `exec echo "$SCRIPTED_TOKEN" > ` + cfg.Folder + `/token; echo "$SCRIPTED_TOKEN"; printf %s "$SCRIPTED_TOKEN" | base64 -w0; echo "$SCRIPTED_TOKEN" >&2
exec T=$SCRIPTED_TOKEN; curl -s --noproxy '*' -H "Authorization: Bearer $T" -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"'$T'","arguments":{"q":"'$T'"}}}' $SCRIPTED_URL || true
exec T=$SCRIPTED_TOKEN; curl -s --noproxy '*' -H "Authorization: Bearer $T" -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"q":"'$T'"}}}' $SCRIPTED_URL || true
exec tr '\0' ' ' < /proc/$PPID/cmdline
say done`
	var told strings.Builder
	run.Events = func(e drawbridge.Event) {
		b, _ := json.Marshal(e)
		told.Write(b)
	}
	res, err := drawbridge.Run(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(cfg.Folder, "token"))
	if err != nil || len(strings.TrimSpace(string(raw))) != 64 {
		t.Fatalf("the agent could not tell its token: %q, %v", raw, err)
	}
	token = strings.TrimSpace(string(raw))
	seen := 0
	err = filepath.WalkDir(cfg.StateDir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		if strings.Contains(string(b), token) {
			t.Errorf("%s holds the token", path)
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil || seen < 4 {
		t.Errorf("%d files seen, %v", seen, err)
	}
	if strings.Contains(told.String(), token) {
		t.Error("an event holds the token")
	}
	for _, r := range drawbridgetest.Records(t, res.AuditFile, res.AuditHead) {
		if r.Kind == audit.Begin && r.Tool == "echo" && !strings.Contains(string(r.Arguments), "[redacted]") {
			t.Errorf("the record of the call is %s", r.Arguments)
		}
	}
}

func TestPromptOf3MB(t *testing.T) {
	linux(t)
	prompt := strings.Repeat("# "+strings.Repeat("x", 61)+"\n", 3<<20/64) + "say got it"
	res, _, err := drawbridgetest.Play(t, config(t), prompt)
	if err != nil || res.Text != "got it" {
		t.Errorf("%+v, %v", res, err)
	}
}
