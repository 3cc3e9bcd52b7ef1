package builtin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func TestProtectedFiles(t *testing.T) {
	for _, there := range []bool{false, true} {
		b := newBox(t)
		if there { // else none of them exists yet
			for _, p := range []string{".git/hooks/pre-commit", ".git/config", "sub/deep/.git/config", ".mcp.json", ".claude/settings.json", ".vscode/tasks.json"} {
				b.put(p, "SENT was here")
			}
		}
		was := tree(b.folder, "")
		for _, p := range []string{
			".git", ".git/hooks", ".git/hooks/pre-commit", ".git/config", ".git/config.worktree", ".git/commondir",
			".git/modules/lib/config", ".git/modules/lib/hooks/x", ".git/worktrees/w/gitdir", ".git/info/attributes",
			"sub/deep/.git/config", "sub/deep/.git/hooks/new", "sub/.git", "new/.git", "new/.git/hooks/x",
			".GIT/config", ".Git/Hooks/pre-commit", "sub/.giT/config", ".git./config", ".git /config", ".git. . /hooks/x",
			".git::$INDEX_ALLOCATION/config", ".git:x/config", ".git/config::$DATA", "git~1/config", "GIT~1/hooks/x",
			".g\u200cit/config", ".git\u200b/config", "\ufeff.git/config", ".g\u0456t/../x",
			".git/con\uFB01g", ".git/hoo\u212As/x", "\uFF0Egit/config", ".\uFF27\uFF29\uFF34/config",
			".mcp.json", ".MCP.json", ".mcp.json.", "sub/.mcp.json", "mcp~1.jso",
			".claude", ".claude/settings.json", ".claude/new/x", ".Claude/settings.json", "sub/.claude/x", "CLAUDE~1/x",
			".codex/config.toml", ".gemini/settings.json", ".qwen/settings.json", "sub/.QWEN/x",
			".vscode/tasks.json", ".VSCODE/x", ".v\u017Fcode/tasks.json",
		} {
			for tool, a := range map[string]args{
				"write_file":  {"path": p, "content": "pwned"},
				"edit_file":   {"path": p, "old": "SENT", "new": "pwned"},
				"delete_file": {"path": p},
			} {
				if r := b.call(tool, a); !r.IsError || all(r) != neutral(p) {
					t.Errorf("%s %q (there: %v): %q", tool, p, there, all(r))
				}
			}
		}
		if now := tree(b.folder, ""); len(now) != len(was) {
			t.Errorf("the folder changed: %v", now)
		}
	}
}

func TestProtectedThroughLinks(t *testing.T) {
	b := newBox(t)
	b.put(".git/config", "SENT")
	b.put(".git/hooks/pre-commit", "SENT")
	b.put(".git/HEAD", "ref: refs/heads/main\n")
	b.put("docs/x", "x")
	b.link(".git", "repo")
	b.link(".git/hooks", "hooks")
	b.link(".git/hooks/new", "hook")
	b.link("../.git/config", "docs/config")
	b.link("docs/fresh/.git", "made") // dangling: creating through it would make it
	b.link(".mcp.json", "json")
	for _, p := range []string{"repo", "repo/config", "repo/hooks/x", "hooks/pre-commit", "hooks/new", "hook", "docs/config", "made/config", "made", "json"} {
		for tool, a := range map[string]args{
			"write_file":  {"path": p, "content": "pwned"},
			"edit_file":   {"path": p, "old": "SENT", "new": "pwned"},
			"delete_file": {"path": p},
		} {
			if r := b.call(tool, a); !r.IsError {
				t.Errorf("%s %q: %q", tool, p, all(r))
			}
		}
	}
	if b.exists("docs/fresh") || b.exists(".mcp.json") || b.exists(".git/hooks/new") || b.get(".git/config") != "SENT" {
		t.Error("a protected file was reached through a link")
	}
	// Of a repository everything but the configuration can be read.
	for _, p := range []string{".git/HEAD", "repo/HEAD"} {
		b.ok("read_file", args{"path": p})
	}
	for _, p := range []string{".git/config", "repo/config", "docs/config", ".GIT/config"} {
		b.fails("read_file", args{"path": p}, neutral(p))
	}
	if got := b.ok("search_files", args{"pattern": "SENT"}); !strings.HasPrefix(got, "no line matches") {
		t.Errorf("search entered .git: %s", got)
	}
	if got := b.ok("search_files", args{"pattern": "SENT", "path": ".git"}); got != ".git/hooks/pre-commit:1:SENT\n" {
		t.Errorf("search in .git: %q", got)
	}
}

func TestPrivateFilesAreNotRead(t *testing.T) {
	b := newBox(t)
	for _, p := range []string{".mcp.json", ".claude/.credentials.json", ".codex/auth.json", ".gemini/oauth.json", ".qwen/x", "sub/.git/modules/m/config"} {
		b.put(p, sentinel)
		b.everyTool(p, func(tool string, r call.Result) {
			if !r.IsError || all(r) != neutral(p) {
				t.Errorf("%s %s: %s", tool, p, all(r))
			}
		})
	}
	b.call("search_files", args{"pattern": "SENT"}) // call looks for the sentinel
	if got := b.ok("list_files", args{}); !strings.Contains(got, ".claude/ (protected)\n") {
		t.Errorf("list: %s", got)
	}
	if got := b.ok("list_files", args{"recursive": true}); strings.Contains(got, "credentials") {
		t.Errorf("list: %s", got)
	}
}

// A hard link is the same file under a name that no rule knows.
func TestHardLinks(t *testing.T) {
	b := newBox(t)
	b.put(".git/config", "SENT")
	b.must(os.Link(filepath.Join(b.folder, ".git/config"), filepath.Join(b.folder, "alias")))
	b.must(os.Link(filepath.Join(b.base, "secret"), filepath.Join(b.folder, "alias2")))
	b.ok("write_file", args{"path": "alias", "content": "pwned"})
	b.ok("edit_file", args{"path": "alias2", "old": "SENT", "new": "pwned"})
	if b.get(".git/config") != "SENT" {
		t.Error("a write went through the hard link")
	}
	b.outsideUntouched()
}

func TestNoRepositoryCanBeMade(t *testing.T) {
	for _, order := range [][]string{
		{"r/config", "r/objects/x", "r/refs/x", "!r/HEAD"},
		{"r/HEAD", "r/refs/heads/x", "!r/objects/info/x"},
		{"r/HEAD", "!r/commondir"},
		{"HEAD", "objects/x", "!refs/x"},
	} {
		b := newBox(t)
		for _, p := range order {
			if p, bad := strings.CutPrefix(p, "!"); bad {
				b.fails("write_file", args{"path": p, "content": "x"}, neutral(p))
				if b.exists(p) {
					t.Errorf("%s exists", p)
				}
			} else {
				b.ok("write_file", args{"path": p, "content": "x"})
			}
		}
	}
	b := newBox(t)
	for _, p := range []string{"bare.git/HEAD", "bare.git/objects/x", "bare.git/refs/x"} {
		b.put(p, "x")
	}
	b.fails("write_file", args{"path": "bare.git/config", "content": "x"}, neutral("bare.git/config"))
	b.fails("write_file", args{"path": "bare.git/hooks/x", "content": "x"}, neutral("bare.git/hooks/x"))
}

func TestFurtherProtectedPaths(t *testing.T) {
	base := t.TempDir()
	ws := filepath.Join(base, "ws")
	b := boxAt(t, base, Files{Protected: []string{
		filepath.Join(ws, "policy.yaml"), filepath.Join(ws, "state/dir"), filepath.Join(ws, "later/policy.yaml"), filepath.Join(base, "secret"),
	}})
	defer b.set.Close()
	b.put("policy.yaml", sentinel)
	b.put("state/dir/db", sentinel)
	b.put("state/other", "SENT")
	b.must(os.Link(filepath.Join(ws, "policy.yaml"), filepath.Join(ws, "alias")))
	b.must(os.Link(filepath.Join(base, "secret"), filepath.Join(ws, "alias2")))
	b.link("state/dir", "inside")
	for _, p := range []string{"policy.yaml", "POLICY.yaml", "state/dir", "state/dir/db", "state/DIR/db", "state/dir/new", "inside", "inside/db", "alias", "alias2", "later/policy.yaml", "later/policy.yaml/x"} {
		if p == "POLICY.yaml" || p == "state/DIR/db" { // may be another file here, and is refused anyway
			b.fails("write_file", args{"path": p, "content": "x"}, neutral(p))
			continue
		}
		b.everyTool(p, func(tool string, r call.Result) {
			if !r.IsError || all(r) != neutral(p) {
				t.Errorf("%s %s: %s", tool, p, all(r))
			}
		})
	}
	if got := b.ok("search_files", args{"pattern": "SENT"}); got != "state/other:1:SENT\n" {
		t.Errorf("search: %q", got)
	}
	b.ok("write_file", args{"path": "later/other", "content": "x"})
	if b.get("policy.yaml") != sentinel || b.get("state/dir/db") != sentinel {
		t.Error("a protected file changed")
	}
	b.outsideUntouched()
}

func TestNewFilesRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []Files{
		{}, {Folder: "relative"}, {Folder: "/"}, {Folder: "/proc/self"}, {Folder: "/sys"},
		{Folder: filepath.Join(dir, "missing")}, {Folder: file},
		{Folder: dir, Protected: []string{"relative"}}, {Folder: dir, Protected: []string{dir}}, {Folder: dir, Protected: []string{filepath.Dir(dir)}},
	} {
		set, err := NewFiles(c)
		if err == nil {
			set.Close()
			t.Errorf("%+v was accepted", c)
			continue
		}
		if fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v has kind %d, hint %q", c, err, fault.KindOf(err), fault.HintOf(err))
		}
	}
}
