package drawbridge_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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
		"over the budget":                     {"call echo {}\ncost 2.51\nsay done", func(c *drawbridge.RunConfig) { c.Budget = 2.5 }, drawbridge.OverBudget, "the agent has spent $2.51 of a budget of $2.50"},
		"over the budget, and failed":         {"cost 3\nfail it broke", func(c *drawbridge.RunConfig) { c.Budget = 2.5 }, drawbridge.OverBudget, "$3.00"},
		"over a budget of its own":            {`print {"kind":"finished","ok":false,"status":"over budget","cost_usd":0.000125}` + "\nexit 1", nil, drawbridge.OverBudget, "has spent $0.000125 and ended by itself"},
		"budget below 0":                      {"say a", func(c *drawbridge.RunConfig) { c.Budget = -1 }, drawbridge.Usage, "budget is -1"},
		"budget that is no number":            {"say a", func(c *drawbridge.RunConfig) { c.Budget = math.NaN() }, drawbridge.Usage, "budget is NaN"},
		"budget without end":                  {"say a", func(c *drawbridge.RunConfig) { c.Budget = math.Inf(1) }, drawbridge.Usage, "budget is +Inf"},
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

func TestBudgetIsKept(t *testing.T) {
	linux(t)
	for script, note := range map[string]string{
		"cost 2.5\nsay done": "",
		// A CLI that does not say what it cost.
		"say done\nprint " + `{"kind":"finished","ok":true,"text":"done"}` + "\nexit 0": "the agent reported no cost",
	} {
		cfg := drawbridge.RunConfig{Config: config(t), Agent: "scripted", Prompt: script, Timeout: time.Minute, Budget: 2.5}
		res, err := drawbridge.Run(t.Context(), cfg)
		if err != nil || !res.OK || res.Text != "done" || !strings.Contains(strings.Join(res.Notes, "|"), note) || note == "" && len(res.Notes) > 0 {
			t.Errorf("%q: %+v, %v", script, res, err)
		}
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
	// SECONDS is a number of the case's own, to find its processes by.
	seconds := 1_000_000 + os.Getpid()
	for name, script := range map[string]string{
		"background":     `exec sleep SECONDS & echo started`,
		"setsid":         `exec setsid sleep SECONDS & echo started`,
		"double fork":    `exec (setsid sh -c 'sleep SECONDS & sleep SECONDS &' >/dev/null 2>&1 &) ; echo started`,
		"ignores TERM":   `exec (trap '' TERM; sleep SECONDS; sleep SECONDS) & echo started`,
		"no environment": `exec env -i setsid sh -c 'sleep SECONDS' >/dev/null 2>&1 & echo started`,
		"holds the pipe": `exec setsid sh -c 'while :; do sleep 1; done # SECONDS' & echo started`,
	} {
		seconds++
		mark := strconv.Itoa(seconds)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := drawbridge.RunConfig{Config: config(t), Agent: "scripted", Timeout: time.Minute}
			cfg.OwnTools = drawbridge.OwnTools{All: true}
			cfg.Prompt = strings.ReplaceAll(script, "SECONDS", mark) + "\nsay done"
			res, err := drawbridge.Run(t.Context(), cfg)
			if err != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			if left := proc.Alive(res.Run); len(left) > 0 {
				t.Errorf("processes left: %v", left)
			}
			if left := running(t, mark); len(left) > 0 {
				t.Errorf("processes left that hide: %q", left)
			}
			if len(res.Leftovers) == 0 {
				t.Error("the run does not tell what it ended (field report 62)")
			}
		})
	}
}

// running lists the command lines on this machine that hold mark.
func running(t *testing.T, mark string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("no processes to see: %v", err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
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

// Promise 4: the token is nowhere but where the client needs it, although the
// agent says it in every way it can.
func TestPromise4_NoTokenAnywhere(t *testing.T) {
	linux(t)
	cfg := config(t)
	var token, log strings.Builder
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	file := func(name string) string {
		b, err := os.ReadFile(filepath.Join(cfg.Folder, name))
		if err != nil {
			t.Errorf("the agent did not tell its %s: %v", name, err)
		}
		return strings.TrimSpace(string(b))
	}
	cfg.Tools = append(cfg.Tools, drawbridge.Tool{
		// It calls the bridge as code of the agent would that knows the token.
		Name: "leak", Effects: drawbridge.Read,
		Run: func(ctx context.Context, _ drawbridge.Binding, _ json.RawMessage) (drawbridge.ToolResult, error) {
			token.WriteString(file("token"))
			var said strings.Builder
			for _, message := range []string{
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"TOKEN","arguments":{"q":"TOKEN"}}}`,
				`{"jsonrpc":"2.0","id":"TOKEN","method":"tools/call","params":{"name":"echo","arguments":{"q":"TOKEN"}}}`,
				`{"jsonrpc":"2.0","id":1,"method":"TOKEN"}`,
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bang","arguments":{}}}`,
			} {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, file("url"), strings.NewReader(strings.ReplaceAll(message, "TOKEN", token.String())))
				if err != nil {
					return drawbridge.ToolResult{}, err
				}
				req.Header.Set("Authorization", "Bearer "+token.String())
				req.Header.Set("Content-Type", "application/json")
				req.Close = true
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					return drawbridge.ToolResult{}, err
				}
				b, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil {
					return drawbridge.ToolResult{}, err
				}
				said.Write(b)
			}
			return drawbridge.ToolResult{}, errors.New(said.String() + token.String())
		},
	}, drawbridge.Tool{
		Name: "bang", Effects: drawbridge.Read,
		Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
			panic("with " + token.String())
		},
	})
	cfg.Allow = []string{"echo", "leak", "bang"}
	run := drawbridge.RunConfig{Config: cfg, Agent: "scripted", Timeout: time.Minute, OwnTools: drawbridge.OwnTools{All: true}}
	run.Prompt = `exec echo "$SCRIPTED_TOKEN" > token; echo "$SCRIPTED_URL" > url; cat /proc/[0-9]*/cmdline > argv; tr '\0' '\n' < /proc/$PPID/environ > environ
call leak
exec echo "$SCRIPTED_TOKEN"; printf %s "$SCRIPTED_TOKEN" | base64 -w0; echo "$SCRIPTED_TOKEN" >&2
exec echo "$SCRIPTED_TOKEN" >/proc/$PPID/fd/2; printf '{"kind":"text","text":"%s"}\n' "$SCRIPTED_TOKEN" >/proc/$PPID/fd/1
exec printf '{"kind":"finished","ok":false,"text":"it was %s"}\n' "$SCRIPTED_TOKEN" >/proc/$PPID/fd/1
exit 9`
	var told strings.Builder
	run.Events = func(e drawbridge.Event) {
		b, _ := json.Marshal(e)
		told.Write(b)
	}
	res, err := drawbridge.Run(t.Context(), run)
	if len(token.String()) != 64 {
		t.Fatalf("the agent could not tell its token: %q, %v", token.String(), err)
	}
	if drawbridge.KindOf(err) != drawbridge.AgentFailed || !strings.Contains(err.Error(), "it was [redacted]") {
		t.Errorf("the run ended with %v", err)
	}
	held := map[string]string{
		"an event": told.String(), "the log": log.String(), "the error": err.Error(), "a command line": file("argv"),
		"the environment of the agent": file("environ"), "the result": fmt.Sprintf("%+v", *res),
	}
	if fault, ok := errors.AsType[*drawbridge.Error](err); ok {
		held["the hint"] = fault.Hint
	}
	for _, must := range []string{"bang", "panicked"} {
		if !strings.Contains(log.String(), must) {
			t.Errorf("no %q in the log: %s", must, log.String())
		}
	}
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
		held[path] = string(b)
		info, err := d.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil || seen < 4 {
		t.Errorf("%d files seen, %v", seen, err)
	}
	for what, text := range held {
		for how, form := range map[string]string{
			"": token.String(), " in base64": base64.StdEncoding.EncodeToString([]byte(token.String())),
		} {
			if strings.Contains(text, form) {
				t.Errorf("%s holds the token%s", what, how)
			}
		}
	}
	masked := false
	for _, r := range drawbridgetest.Records(t, res.AuditFile, res.AuditHead) {
		if r.Kind == audit.Begin && r.Tool == "echo" {
			masked = strings.Contains(string(r.Arguments), "[redacted]")
		}
	}
	if !masked {
		t.Error("the call with the token in its arguments is not on record, masked")
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
