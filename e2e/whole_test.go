//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/event"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// These tests run the drawbridge command with the real Claude Code.

// desk is where a person types: the command, an empty home, a model.
type desk struct {
	t     *testing.T
	model *model.Server
	bin   string
	env   []string
	dir   string
	state string
}

func newDesk(t *testing.T, steps ...model.Step) *desk {
	t.Helper()
	Isolated(t)
	d := &desk{t: t, model: Model(t, steps...), bin: commandPath(t), dir: t.TempDir()}
	d.state = filepath.Join(d.dir, "state", "drawbridge")
	temp, err := os.MkdirTemp("", "e2e") // short: sockets are made in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	d.env = append(Environ(t, d.model), "XDG_STATE_HOME="+filepath.Join(d.dir, "state"), "TMPDIR="+temp)
	return d
}

// command is drawbridge with args, bounded in time.
func (d *desk) command(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	d.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, d.bin, args...)
	c.Dir, c.Env = d.dir, d.env
	var out, err bytes.Buffer
	c.Stdout, c.Stderr = &out, &err
	return c, &out, &err
}

// do runs drawbridge and returns its exit code and what it printed.
func (d *desk) do(args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	c, out, errs := d.command(args...)
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return 0, out.String(), errs.String()
}

// claude are the arguments of a run with the real Claude Code.
func (d *desk) claude(args ...string) []string {
	return append([]string{"run", "--agent", "claude", "--agent-path", Program(d.t, "claude"), "--workspace", "ws-a",
		"--server-name", "osfoundry", "--allow", "memory_search"}, args...)
}

// run is the only run on record: its id and its lines.
func (d *desk) run() (id string, records []audit.Record, rep audit.Report) {
	d.t.Helper()
	files, _ := filepath.Glob(filepath.Join(d.state, "runs", "*", "audit.jsonl"))
	if len(files) != 1 {
		d.t.Fatalf("records: %v", files)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		d.t.Fatal(err)
	}
	if rep, err = audit.Verify(bytes.NewReader(raw), ""); err != nil || rep.Problem != "" {
		d.t.Errorf("the record: %v %s", err, rep.Problem)
	}
	if err := audit.Read(bytes.NewReader(raw), func(r audit.Record) error { records = append(records, r); return nil }); err != nil {
		d.t.Fatal(err)
	}
	return filepath.Base(filepath.Dir(files[0])), records, rep
}

// nothingLeft fails where a process or a temporary folder of the run is left.
func (d *desk) nothingLeft(id string) {
	d.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for len(proc.Alive(id)) > 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if left := proc.Alive(id); len(left) > 0 {
		d.t.Errorf("processes left: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(d.state, "runs", "*", "private")); len(left) > 0 {
		d.t.Errorf("left: %v", left)
	}
}

func (d *desk) temporary() []string {
	for _, kv := range d.env {
		if dir, ok := strings.CutPrefix(kv, "TMPDIR="); ok {
			left, _ := filepath.Glob(filepath.Join(dir, "drawbridge-*"))
			return left
		}
	}
	return nil
}

func kinds(records []audit.Record) string {
	var all []string
	for _, r := range records {
		if r.Kind == audit.Begin || r.Kind == audit.End || r.Kind == audit.Refused {
			all = append(all, string(r.Kind)+":"+r.Tool)
		}
	}
	return strings.Join(all, " ")
}

// The main job on real input.
func TestClaudeRun(t *testing.T) {
	d := newDesk(t,
		model.Step{Tool: "memory_search", Args: map[string]any{"query": "budget"}},
		model.Step{Tool: "memory_search", Args: map[string]any{"query": "contract", "workspace_id": "ws-b"}},
		model.Step{Raw: "mcp__osfoundry__execute_command", Args: map[string]any{"cmd": "touch pwned"}},
		model.Step{Raw: "Bash", Args: map[string]any{"command": "touch pwned"}},
		model.Step{Text: "It is Thursday."})
	d.do("memory", "add", "--workspace", "ws-a", "Q4 budget review: Thu 14:00.")
	d.do("memory", "add", "--workspace", "ws-b", "Client X contract renews 2027-01-31")

	code, out, errs := d.do(d.claude("--json", "--", "When is the budget review?")...)
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	if got := d.model.Offered(); !slices.Equal(got, []string{"mcp__osfoundry__memory_search"}) {
		t.Errorf("the model was offered %q", got)
	}
	results := d.model.Results()
	if len(results) != 4 {
		t.Fatalf("the model got %d results", len(results))
	}
	if !strings.Contains(results[0].Text, "Q4 budget review: Thu 14:00.") || results[1].Text != "no matching notes" {
		t.Errorf("the model was told %q and %q", results[0].Text, results[1].Text)
	}
	if !results[2].IsError || !results[3].IsError {
		t.Errorf("what it was not offered: %+v", results[2:])
	}
	if _, err := os.Stat(filepath.Join(d.dir, "pwned")); err == nil {
		t.Error("a tool that was not offered ran")
	}
	var last event.Event
	for line := range strings.Lines(out) {
		last = event.Event{}
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatalf("not an event: %q", line)
		}
	}
	if last.Kind != event.Ended || last.OK == nil || !*last.OK || last.Text != "It is Thursday." || last.Head == "" {
		t.Errorf("the last event is %+v", last)
	}
	id, records, rep := d.run()
	if got := kinds(records); got != "begin:memory_search end:memory_search begin:memory_search end:memory_search" {
		t.Errorf("the record says %s", got)
	}
	if !rep.Closed || rep.Head != last.Head || records[0].Run.Level != "sealed" {
		t.Errorf("%+v, head %s", rep, last.Head)
	}
	d.nothingLeft(id)
	if left := d.temporary(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Field reports 32 and 33: the agent has a shell and the token, and calls
// everything it can think of.
func TestField32_33_ClaudeRefusedRaw(t *testing.T) {
	d := newDesk(t, model.Step{Raw: "Bash", Args: map[string]any{"command": "sh ./attack.sh > answers.txt 2>&1", "description": "x"}}, model.Step{Text: "done"})
	tools := []string{"memory_search", "memory_add", "memory_delete", "read_file", "write_file", "delete_file", "execute_command", "never_existed"}
	script := "set -u\n"
	for _, tool := range tools {
		script += fmt.Sprintf(`curl -s --noproxy '*' -H "Authorization: Bearer $DRAWBRIDGE_TOKEN" -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{"query":"x","path":"pwned","content":"x","cmd":"touch pwned","text":"x"}}}' "$DRAWBRIDGE_URL"; echo`+"\n", tool)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "attack.sh"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	d.env = append(d.env, "IS_SANDBOX=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	claude := fmt.Sprintf(`printf 'go on' | %s -p --output-format stream-json --verbose --permission-mode bypassPermissions --mcp-config "$DRAWBRIDGE_MCP_CONFIG" --strict-mcp-config --setting-sources ""`, Program(t, "claude"))
	code, out, errs := d.do("exec", "--workspace", "ws-a", "--allow", "memory_search", "--require-ready", "--", "sh", "-c", claude)
	if code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	answers, err := os.ReadFile(filepath.Join(d.dir, "answers.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(answers), "-32601"); n != len(tools)-1 {
		t.Errorf("%d refusals in\n%s", n, answers)
	}
	for _, tool := range tools[1:] {
		if !strings.Contains(string(answers), "tool '"+tool+"' is not available to this agent") {
			t.Errorf("no refusal of %s", tool)
		}
	}
	if _, err := os.Stat(filepath.Join(d.dir, "pwned")); err == nil {
		t.Error("a refused tool ran")
	}
	id, records, _ := d.run()
	want := "begin:memory_search end:memory_search"
	for _, tool := range tools[1:] {
		want += " refused:" + tool
	}
	if got := kinds(records); got != want {
		t.Errorf("the record says %s", got)
	}
	d.nothingLeft(id)
}

// start starts a run whose model hangs in its second turn and waits until the
// first tool call is on record.
func (d *desk) start(args ...string) (*exec.Cmd, *bytes.Buffer, string) {
	d.t.Helper()
	c, _, errs := d.command(d.claude(args...)...)
	if err := c.Start(); err != nil {
		d.t.Fatal(err)
	}
	deadline := time.Now().Add(40 * time.Second)
	for time.Now().Before(deadline) {
		files, _ := filepath.Glob(filepath.Join(d.state, "runs", "*", "audit.jsonl"))
		if len(files) == 1 {
			if raw, _ := os.ReadFile(files[0]); bytes.Contains(raw, []byte(`"kind":"end"`)) {
				return c, errs, filepath.Base(filepath.Dir(files[0]))
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	d.t.Fatalf("the first call never came\n%s", errs.String())
	return nil, nil, ""
}

func hanging() []model.Step {
	return []model.Step{
		{Tool: "memory_search", Args: map[string]any{"query": "budget"}},
		{Text: "too late", Delay: time.Minute},
	}
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	var kids []int
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			kid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			kids = append(kids, kid)
		}
	}
	return kids
}

func TestClaudeKilled(t *testing.T) {
	d := newDesk(t, hanging()...)
	c, errs, id := d.start("--", "go on")
	helper := children(c.Process.Pid)
	if len(helper) != 1 {
		t.Fatalf("children of drawbridge: %v", helper)
	}
	for _, pid := range children(helper[0]) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := c.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 1 || !strings.Contains(errs.String(), "SIGKILL") {
		t.Errorf("%v\n%s", err, errs)
	}
	_, _, rep := d.run()
	if !rep.Closed {
		t.Errorf("%+v", rep)
	}
	d.nothingLeft(id)
	if left := d.temporary(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Promise 3, the hardest part: kill -9 of drawbridge itself.
func TestDrawbridgeKilled(t *testing.T) {
	d := newDesk(t, hanging()...)
	c, _, id := d.start("--", "go on")
	url := listening(c.Process.Pid)
	if len(url) != 1 {
		t.Fatalf("drawbridge listens on %v", url)
	}
	if alive := proc.Alive(id); len(alive) < 2 {
		t.Fatalf("processes of the run: %v", alive)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	deadline := time.Now().Add(20 * time.Second)
	for len(proc.Alive(id)) > 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if left := proc.Alive(id); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if conn, err := net.DialTimeout("tcp", url[0], time.Second); err == nil {
		_ = conn.Close()
		t.Error("the port still answers")
	}
	_, records, rep := d.run()
	if rep.Closed || !strings.Contains(kinds(records), "end:memory_search") {
		t.Errorf("%+v\n%s", rep, kinds(records))
	}
	if _, out, _ := d.do("runs", "list"); !strings.Contains(out, "died") {
		t.Errorf("runs list says\n%s", out)
	}
	if len(d.temporary()) == 0 {
		t.Error("nothing to sweep: the test proves nothing")
	}
	// The next start sweeps.
	if code, _, errs := d.do("run", "--agent", "scripted", "--", "say hello"); code != 0 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	if left := d.temporary(); len(left) > 0 {
		t.Errorf("not swept: %v", left)
	}
}

// listening lists the loopback addresses pid listens on.
func listening(pid int) []string {
	inodes := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(to[len("socket:"):], "[]")] = true
		}
	}
	var addrs []string
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 9 && f[3] == "0A" && inodes[f[9]] {
			if _, port, ok := strings.Cut(f[1], ":"); ok {
				n, _ := strconv.ParseUint(port, 16, 16)
				addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", n))
			}
		}
	}
	return addrs
}

func TestHelperKilled(t *testing.T) {
	d := newDesk(t, hanging()...)
	c, errs, id := d.start("--", "go on")
	for _, pid := range children(c.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := c.Wait()
	if err == nil {
		t.Errorf("exit code 0\n%s", errs)
	}
	d.nothingLeft(id)
	if _, _, rep := d.run(); !rep.Closed {
		t.Errorf("%+v", rep)
	}
}

func TestInterrupted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			d := newDesk(t, hanging()...)
			c, errs, id := d.start("--", "go on")
			_ = c.Process.Signal(sig)
			err := c.Wait()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != 130 {
				t.Errorf("%v\n%s", err, errs)
			}
			if _, _, rep := d.run(); !rep.Closed {
				t.Errorf("%+v", rep)
			}
			d.nothingLeft(id)
		})
	}
}

// The real MCP inspector, in both eras: it sees and calls the scope, and not
// more.
func TestInspector(t *testing.T) {
	for _, era := range []string{"legacy", "modern", "auto"} {
		t.Run(era, func(t *testing.T) {
			d := newDesk(t, model.Step{Text: "unused"})
			d.do("memory", "add", "--workspace", "ws-a", "Q4 budget review: Thu 14:00.")
			inspect := func(token, rest string) (int, string) {
				script := fmt.Sprintf(`%s --cli --server-url "$DRAWBRIDGE_URL" --transport http --header "Authorization: Bearer %s" --protocol-era %s %s`,
					Program(t, "mcp-inspector"), token, era, rest)
				code, out, errs := d.do("exec", "--workspace", "ws-a", "--allow", "memory_search", "--", "sh", "-c", script)
				return code, out + errs
			}
			if code, out := inspect("$DRAWBRIDGE_TOKEN", "--method tools/list"); code != 0 || strings.Count(out, `"inputSchema"`) != 1 || !strings.Contains(out, `"memory_search"`) {
				t.Errorf("tools/list: %d\n%s", code, out)
			}
			if code, out := inspect("$DRAWBRIDGE_TOKEN", "--method tools/call --tool-name memory_search --tool-arg query=budget"); code != 0 || !strings.Contains(out, "Thu 14:00") {
				t.Errorf("an allowed call: %d\n%s", code, out)
			}
			if code, out := inspect("$DRAWBRIDGE_TOKEN", "--method tools/call --tool-name execute_command --tool-arg cmd=id"); code == 0 || strings.Contains(out, "uid=") {
				t.Errorf("a hidden tool: %d\n%s", code, out)
			}
			if code, out := inspect("wrong", "--method tools/list"); code == 0 || strings.Contains(out, "inputSchema") {
				t.Errorf("a wrong token: %d\n%s", code, out)
			}
		})
	}
}

// Field reports 19 and 72: a CLI that says it has no server, and does its work
// without tools.
func TestField19_72_NeverReady(t *testing.T) {
	d := newDesk(t, model.Step{Text: "unused"})
	fake := filepath.Join(d.dir, "claude")
	script := `#!/bin/sh
case "$1" in --version) echo "2.1.332 (Claude Code)"; exit 0;; esac
cat > /dev/null
echo '{"type":"system","subtype":"init","mcp_servers":[{"name":"osfoundry","status":"failed"}],"tools":[],"claude_code_version":"2.1.332"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"I had no tools, but here you are"}'
`
	if err := os.WriteFile(fake, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	code, _, errs := d.do("run", "--agent", "claude", "--agent-path", fake, "--server-name", "osfoundry", "--allow", "memory_search", "--", "go on")
	if code != 3 || !strings.Contains(errs, "never connected") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
