package builtin

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// sentinel is in every file that no tool may read.
const sentinel = "SENTINEL-5f1d"

// box is a run's folder with things around it that must stay as they are.
type box struct {
	t      fataler
	base   string // holds all of it
	folder string // base/ws
	set    *FileSet
	tools  map[string]call.Tool
	before map[string]string // outside, at the start
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := boxAt(t, t.TempDir(), Files{})
	t.Cleanup(func() {
		b.set.Close()
		b.outsideUntouched()
	})
	return b
}

func boxAt(t fataler, base string, c Files) *box {
	t.Helper()
	b := &box{t: t, base: base, folder: filepath.Join(base, "ws")}
	b.must(os.MkdirAll(b.folder, 0o755))
	for _, name := range []string{"secret", "ws-evil/x", "evil/hooks/pre-commit", "evil/config"} {
		b.put("../"+name, sentinel)
	}
	b.before = b.outside()
	c.Folder = b.folder
	set, err := NewFiles(c)
	b.must(err)
	b.set = set
	b.tools = map[string]call.Tool{}
	for _, tl := range set.Tools() {
		b.tools[tl.Name] = tl
	}
	return b
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// put writes a file past the tools; name is relative to the folder.
func (b *box) put(name, content string) {
	b.t.Helper()
	p := filepath.Join(b.folder, name)
	b.must(os.MkdirAll(filepath.Dir(p), 0o755))
	b.must(os.WriteFile(p, []byte(content), 0o644))
}

func (b *box) link(target, name string) {
	b.t.Helper()
	p := filepath.Join(b.folder, name)
	b.must(os.MkdirAll(filepath.Dir(p), 0o755))
	b.must(os.Symlink(target, p))
}

func (b *box) get(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.folder, name))
	b.must(err)
	return string(data)
}

func (b *box) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(b.folder, name))
	return err == nil
}

type args map[string]any

func (b *box) call(tool string, a args) call.Result {
	b.t.Helper()
	raw, err := json.Marshal(a)
	b.must(err)
	r, err := b.tools[tool].Run(b.context(), call.Invocation{Arguments: raw})
	b.must(err)
	if strings.Contains(all(r), sentinel) {
		b.t.Fatalf("%s %v showed what lies outside: %q", tool, a, all(r))
	}
	return r
}

// ok calls a tool that must succeed and returns its first text.
func (b *box) ok(tool string, a args) string {
	b.t.Helper()
	r := b.call(tool, a)
	if r.IsError {
		b.t.Fatalf("%s %v: %s", tool, a, all(r))
	}
	return r.Content[0].Text
}

// fails calls a tool that must answer isError with the words.
func (b *box) fails(tool string, a args, words string) {
	b.t.Helper()
	r := b.call(tool, a)
	if !r.IsError || !strings.Contains(all(r), words) {
		b.t.Fatalf("%s %v: got isError %v %q, want an error with %q", tool, a, r.IsError, all(r), words)
	}
}

func all(r call.Result) string {
	var parts []string
	for _, c := range r.Content {
		parts = append(parts, c.Text)
	}
	return strings.Join(parts, "\n")
}

// tree is every path below dir with its mode and content, but for skip.
func tree(dir, skip string) map[string]string {
	m := map[string]string{}
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if p == skip {
			return fs.SkipDir
		}
		rel, _ := filepath.Rel(dir, p)
		if err != nil {
			m[rel] = err.Error()
			return nil
		}
		switch {
		case d.Type().IsRegular():
			data, _ := os.ReadFile(p)
			m[rel] = string(data)
		case d.Type()&fs.ModeSymlink != 0:
			m[rel], _ = os.Readlink(p)
		default:
			m[rel] = d.Type().String()
		}
		return nil
	})
	return m
}

func (b *box) outside() map[string]string { return tree(b.base, b.folder) }

func (b *box) outsideUntouched() {
	b.t.Helper()
	if now := b.outside(); !maps.Equal(now, b.before) {
		b.t.Errorf("something outside the folder changed:\n%v\nwas\n%v", now, b.before)
	}
}

// everyTool calls each tool on a path in a way that would read or change it.
func (b *box) everyTool(path string, each func(tool string, r call.Result)) {
	b.t.Helper()
	for tool, a := range map[string]args{
		"read_file":    {"path": path},
		"list_files":   {"path": path},
		"search_files": {"path": path, "pattern": "SENT"},
		"write_file":   {"path": path, "content": "pwned"},
		"edit_file":    {"path": path, "old": "SENT", "new": "pwned"},
		"delete_file":  {"path": path},
	} {
		each(tool, b.call(tool, a))
	}
}
