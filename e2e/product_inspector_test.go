//go:build linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drawbridge-mcp/drawbridge"
	"github.com/drawbridge-mcp/drawbridge/audit"
	"github.com/drawbridge-mcp/drawbridge/drawbridgetest"
)

// inspect starts the MCP inspector and returns its exit code and what it
// printed.
func inspect(t *testing.T, url, token, era string, args ...string) (int, string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Program(t, "node"), append([]string{
		Program(t, "mcp-inspector"), "--cli", "--server-url", url, "--transport", "http",
		"--header", "Authorization: Bearer " + token, "--protocol-era", era,
	}, args...)...)
	cmd.Env, cmd.Dir = []string{"PATH=" + filepath.Dir(Program(t, "node")) + ":/usr/bin:/bin", "HOME=" + t.TempDir(), "LANG=C.UTF-8"}, t.TempDir()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// A bridge inside an app, seen by a client that is not ours: its list is the
// scope to the letter, a call reaches the app with the binding, what is
// structured arrives, and the record has all of it.
func TestInspectorOnAnEmbeddedBridge(t *testing.T) {
	Isolated(t)
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			var hidden atomic.Int64
			var binding atomic.Value
			stateDir := filepath.Join(t.TempDir(), "state")
			b, err := drawbridge.Start(t.Context(), drawbridge.Config{
				Binding: drawbridge.Binding{Workspace: "home", User: "ada"}, Server: "app", StateDir: stateDir, Allow: []string{"measure"},
				Tools: []drawbridge.Tool{{
					Name: "measure", Description: "measures a < b & c", Effects: drawbridge.Read,
					InputSchema: json.RawMessage(`{"type":"object","properties":{"room":{"type":"string"}},"required":["room"]}`),
					Run: func(_ context.Context, b drawbridge.Binding, args json.RawMessage) (drawbridge.ToolResult, error) {
						binding.Store(b)
						return drawbridge.ToolResult{Text: "it is 21 °C <warm>", Structured: json.RawMessage(`{"celsius":21,"asked":` + string(args) + `}`)}, nil
					},
				}, {
					Name: "hidden", Effects: drawbridge.Destructive,
					Run: func(context.Context, drawbridge.Binding, json.RawMessage) (drawbridge.ToolResult, error) {
						hidden.Add(1)
						return drawbridge.ToolResult{Text: "ran"}, nil
					},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()

			code, out, errs := inspect(t, b.URL(), b.Token(), era, "--method", "tools/list")
			var list struct {
				Tools []struct{ Name, Description string }
			}
			if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || len(list.Tools) != 1 || list.Tools[0].Name != "measure" || list.Tools[0].Description != "measures a < b & c" {
				t.Errorf("tools/list: %d, %v\n%s%s", code, err, out, errs)
			}

			code, out, errs = inspect(t, b.URL(), b.Token(), era, "--method", "tools/call", "--tool-name", "measure", "--tool-arg", "room=attic", "--tool-arg", "workspace=other")
			var result struct {
				Meta              map[string]any `json:"_meta"`
				Content           []struct{ Text string }
				StructuredContent struct {
					Celsius int
					Asked   map[string]string
				}
			}
			if err := json.Unmarshal([]byte(out), &result); err != nil || code != 0 || len(result.Content) == 0 || result.Content[0].Text != "it is 21 °C <warm>" ||
				result.StructuredContent.Celsius != 21 || result.StructuredContent.Asked["room"] != "attic" {
				t.Errorf("an allowed call: %d, %v\n%s%s", code, err, out, errs)
			}
			// Only an answer of the modern era names the server.
			if _, modern := result.Meta["io.modelcontextprotocol/serverInfo"]; modern != (era == "modern") {
				t.Errorf("the era spoken is not %s:\n%s", era, out)
			}
			if got, _ := binding.Load().(drawbridge.Binding); got.Workspace != "home" || got.User != "ada" || got.Run != b.ID() {
				t.Errorf("binding %+v", got)
			}

			if code, out, errs = inspect(t, b.URL(), b.Token(), era, "--method", "tools/call", "--tool-name", "measure"); code == 0 || !strings.Contains(out, "room") || !strings.Contains(out, `"isError": true`) {
				t.Errorf("arguments that do not fit: %d\n%s%s", code, out, errs)
			}
			if code, out, errs = inspect(t, b.URL(), b.Token(), era, "--method", "tools/call", "--tool-name", "hidden"); code == 0 || hidden.Load() != 0 {
				t.Errorf("a hidden tool: %d, it ran %d times\n%s%s", code, hidden.Load(), out, errs)
			}
			if code, out, errs = inspect(t, b.URL(), strings.Repeat("0", 64), era, "--method", "tools/list"); code == 0 || strings.Contains(out, "measure") {
				t.Errorf("a wrong token: %d\n%s%s", code, out, errs)
			}

			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if code, out, errs = inspect(t, b.URL(), b.Token(), era, "--method", "tools/list"); code == 0 || strings.Contains(out, "measure") {
				t.Errorf("after the end: %d\n%s%s", code, out, errs)
			}
			records := drawbridgetest.Records(t, filepath.Join(stateDir, "runs", b.ID(), "audit.jsonl"), b.AuditHead())
			if begun := kindsOf(records, audit.Begin); !slices.Equal(begun, []string{"measure"}) {
				t.Errorf("executed: %q", begun)
			}
			if refused := kindsOf(records, audit.Refused); len(refused) == 0 || refused[0] != "measure" {
				t.Errorf("refused: %q", refused)
			}
			if totals := records[len(records)-1].Totals; totals["early.token"] == 0 {
				t.Errorf("the wrong token is not counted: %v", totals)
			}
		})
	}
}
