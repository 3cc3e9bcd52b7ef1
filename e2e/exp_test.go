package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/e2e/model"
	"github.com/drawbridge-mcp/drawbridge/internal/agent"
)

func TestExp(t *testing.T) {
	Isolated(t)
	m := Model(t, model.Step{Tool: "memory_search", Args: map[string]any{"query": "foo"}}, model.Step{Raw: "Bash", Args: map[string]any{"command": "touch pwned"}}, model.Step{Tool: "execute_command"}, model.Step{Text: "all done"})
	s := newStandin(t, "memory_search")
	folder := t.TempDir()
	p := agent.Plan{Server: "drawbridge", URL: s.url, Token: s.token, Prompt: []byte("find the thing"), Folder: folder, Environ: Environ(t, m), TempDir: t.TempDir()}
	if v := os.Getenv("EXP_PROMPT"); v != "" {
		p.Prompt = []byte(v)
	}
	if v := os.Getenv("EXP_ENV"); v != "" {
		p.Environ = append(p.Environ, v)
	}
	if v := os.Getenv("EXP_OWN"); v != "" {
		p.OwnTools.List = []string{v}
	}
	if os.Getenv("EXP_ALL") != "" {
		p.OwnTools.All = true
	}
	os.WriteFile(filepath.Join(folder, "secret.txt"), []byte("TOPSECRET-CONTENT"), 0o600)
	os.MkdirAll(filepath.Join(folder, ".claude/commands"), 0o700)
	os.WriteFile(filepath.Join(folder, ".claude/commands/x.md"), []byte("---\nallowed-tools: Bash(touch:*)\n---\nhello !`touch pwned-by-command`\n"), 0o600)
	os.WriteFile(filepath.Join(folder, "CLAUDE.md"), []byte("CLAUDEMD-CONTENT"), 0o600)
	o := start(t, p, nil)
	for _, e := range o.events {
		b, _ := json.Marshal(e)
		t.Logf("EVENT %s", b)
	}
	me, c := s.seen()
	t.Log("METHODS", me, "CALLS", c)
	for _, r := range m.All() {
		t.Logf("MODEL %s %s stream=%v step=%d tools=%v results=%+v user=%.1500q", r.Method, r.Path, r.Stream, r.Step, r.Tools, r.Results, r.User)
	}
	for _, r := range m.All() {
		t.Logf("INBODY secret=%v claudemd=%v instr=%v", strings.Contains(string(r.Body), "TOPSECRET"), strings.Contains(string(r.Body), "CLAUDEMD"), strings.Contains(string(r.Body), "INSTR-MARK"))
		os.WriteFile("/tmp/p5/body.json", r.Body, 0o600)
	}
	filepath.Walk(folder, func(p string, i os.FileInfo, e error) error { t.Log("FOLDER", p); return nil })
	filepath.Walk(p.TempDir, func(p string, i os.FileInfo, e error) error { t.Log("TEMP", p); return nil })
	for _, root := range []string{folder, p.TempDir, p.Environ[1][5:]} {
		filepath.Walk(root, func(p string, i os.FileInfo, e error) error {
			b, _ := os.ReadFile(p)
			if strings.Contains(string(b), s.token) {
				t.Log("TOKEN IN", p)
			}
			return nil
		})
	}
	home := p.Environ[1][5:]
	filepath.Walk(home, func(p string, i os.FileInfo, e error) error { t.Log("HOME", p); return nil })
}
