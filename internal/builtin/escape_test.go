package builtin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func (b *box) context() context.Context { return context.Background() }

// neutral is the refusal for a path, the same whatever lies there.
func neutral(path string) string { return explain(path, errRefused).Error() }

func TestField96_PathEscapes(t *testing.T) {
	b := newBox(t)
	b.put("a/b", "fine")
	b.link("/etc", "etc")
	b.link("../ws-evil", "up")
	b.link(filepath.Join(b.base, "ws-evil"), "abs")
	b.link("../ws/a", "out-and-in")
	b.link("a/../../secret", "a2")
	b.link("up", "chain")
	b.link("../nothing-there", "dangling")
	b.link("/proc/self/root", "magic")
	b.link("loop", "loop")
	paths := []string{
		"../ws-evil/x", "..", "a/..", "a/../b", "a/../../ws-evil/x", ".././secret",
		b.folder + "-evil/x", b.folder + "/../ws-evil/x", b.base, "/etc/passwd", "/", "//etc/passwd",
		"/proc/self/root/etc/passwd", "/proc/self/cwd/x", "/proc/self/environ",
		"etc/passwd", "etc/drawbridge-new", "etc", "etc/", "up/x", "up/new", "up", "abs/x", "abs", "out-and-in/b", "a2", "chain/x", "dangling",
		"dangling/x", "magic/etc/passwd", "loop", "loop/x",
		"a//./b", "a//b", "a/./b", "././a/b", "%2e%2e/x", "%2E%2e/secret", "a/..%2f..%2fsecret", "a%2fb", "a%00b",
		`C:\x`, `C:/x`, "c:x", `..\secret`, `a\b`, "\\\\host\\share", "a\x00b", "secret\x00", "a\nb", "a/... /b", "...", ".. ", " ", "~", "~/x",
		strings.Repeat("a/", 200) + "x", strings.Repeat("x", 5000),
	}
	for _, p := range paths {
		want := neutral(p)
		b.everyTool(p, func(tool string, r call.Result) {
			// A folder that is a link inside may not be deleted or written
			// either; every answer is the one refusal.
			if !r.IsError || all(r) != want {
				t.Errorf("%s %q: got %q, want the refusal", tool, call.Clip(p), all(r))
			}
		})
	}
	if got := b.ok("read_file", args{"path": "a/b"}); got != "fine" {
		t.Errorf("a/b is %q", got)
	}
}

func TestPathsInside(t *testing.T) {
	b := newBox(t)
	b.put("a/b", "fine")
	b.put("we ird/..x/%41/ü😀.txt", "fine")
	b.link("a", "inside")
	b.link("../a/b", "dir/up-and-down")
	b.link(b.folder+"/a/b", "absolute")
	b.link("inside/b", "chain")
	for _, p := range []string{
		"a/b", "./a/b", b.folder + "/a/b", "we ird/..x/%41/ü😀.txt", "inside/b", "dir/up-and-down", "absolute", "chain",
	} {
		if got := b.ok("read_file", args{"path": p}); got != "fine" {
			t.Errorf("read %q: %q", p, got)
		}
	}
	// A link inside stays a link; what it leads to gets the content.
	b.ok("write_file", args{"path": "chain", "content": "new"})
	if target, _ := os.Readlink(filepath.Join(b.folder, "chain")); target != "inside/b" || b.get("a/b") != "new" {
		t.Errorf("write through a link: link %q, content %q", target, b.get("a/b"))
	}
	b.ok("delete_file", args{"path": "chain"})
	if b.exists("chain") || !b.exists("a/b") {
		t.Error("delete of a link must delete the link only")
	}
	// A folder reached by a link of its own accepts both spellings.
	real := t.TempDir()
	alias := filepath.Join(t.TempDir(), "alias")
	b.must(os.Symlink(real, alias))
	set, err := NewFiles(Files{Folder: alias})
	b.must(err)
	defer set.Close()
	for _, p := range []string{real + "/x", alias + "/x"} {
		if segs, err := set.segments(p); err != nil || len(segs) != 1 {
			t.Errorf("%s: %v %v", p, segs, err)
		}
	}
}

func TestTheFolderItself(t *testing.T) {
	b := newBox(t)
	b.link(".", "self")
	b.link("..", "parent")
	for _, p := range []string{"", ".", "./", b.folder, b.folder + "/", "self", "self/"} {
		for _, tool := range []string{"write_file", "edit_file", "delete_file"} {
			r := b.call(tool, args{"path": p, "content": "x", "old": "x", "new": "y"})
			if !r.IsError {
				t.Errorf("%s %q: %s", tool, p, all(r))
			}
		}
	}
	if !b.exists("self") {
		t.Error("self is gone")
	}
	b.fails("read_file", args{"path": "."}, "use list_files")
}

// churn keeps replacing the entry name of the folder, in turn, by each of
// makers until stop is closed.
func (b *box) churn(name string, stop chan struct{}, makers ...func(path string)) *sync.WaitGroup {
	var wg sync.WaitGroup
	wg.Go(func() {
		path := filepath.Join(b.folder, name)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// Made aside and renamed, so that the entry is there all the time
			// and the tool meets it in every state.
			next := filepath.Join(b.folder, fmt.Sprintf("%s-next-%d", name, i%2))
			os.RemoveAll(next)
			time.Sleep(time.Duration(i%5) * 100 * time.Microsecond) // lets a call through now and then
			makers[i%len(makers)](next)
			if os.Rename(next, path) != nil { // a folder in the way of a link
				os.Rename(path, next+"-old")
				os.Rename(next, path)
				os.RemoveAll(next + "-old")
			}
		}
	})
	return &wg
}

func TestField96_LinkSwappedDuringUse(t *testing.T) {
	b := newBox(t)
	b.put(".git/config", sentinel)
	b.put(".git/hooks/pre-commit", "hook")
	dir := func(p string) {
		os.MkdirAll(p+"/hooks", 0o755)
		os.WriteFile(p+"/config", []byte("inside SENT"), 0o644)
		os.WriteFile(p+"/x", []byte("inside SENT"), 0o644)
		os.WriteFile(p+"/hooks/pre-commit", []byte("inside SENT"), 0o644)
	}
	file := func(p string) { os.WriteFile(p, []byte("inside SENT"), 0o644) }
	to := func(target string) func(string) { return func(p string) { os.Symlink(target, p) } }
	stop := make(chan struct{})
	wg1 := b.churn("d", stop, dir, to("../evil"), dir, to("../ws-evil"), dir, to(".git"))
	wg2 := b.churn("f", stop, file, to("../secret"), file, to(".git/config"), file, to("../made-outside"))
	start := time.Now()
	did := map[string]int{}
	const tools = 6
	for time.Since(start) < time.Second || len(did) < tools && time.Since(start) < 20*time.Second {
		for _, p := range []string{"d/x", "d/config", "d/hooks/pre-commit", "f", "d/hooks", "d"} {
			b.everyTool(p, func(tool string, r call.Result) { // call fails the test when it sees the sentinel
				if !r.IsError {
					did[tool]++
				}
			})
			b.call("write_file", args{"path": "d/hooks/deep/er/new", "content": "pwned"})
		}
	}
	close(stop)
	wg1.Wait()
	wg2.Wait()
	b.outsideUntouched()
	if b.get(".git/config") != sentinel || b.get(".git/hooks/pre-commit") != "hook" {
		t.Error("a protected file changed")
	}
	if got := fmt.Sprint(tree(filepath.Join(b.folder, ".git"), "")); strings.Contains(got, "pwned") {
		t.Errorf("something was created in .git: %s", got)
	}
	if len(did) < tools {
		t.Errorf("not every tool succeeded now and then, so the race proves little: %v", did)
	}
}

// The moment between looking at an entry and opening it, held still: what was a
// folder or a file when it was looked at is a link to something inside by now.
func TestField96_LinkInThePlaceOfWhatWasSeen(t *testing.T) {
	b := newBox(t)
	b.put(".git/config", sentinel)
	b.link(".git", "d")
	b.link(".git/config", "f")
	if sub, _, err := enter(b.set.root, "d"); err != errMoved {
		t.Errorf("entered %v, %v", sub, err)
	}
	if file, _, err := open(b.set.root, "f"); err != errMoved {
		t.Errorf("opened %v, %v", file, err)
	}
	b.put("now", "x")
	p, err := b.set.op().walk(t.Context(), []string{"now"}, mode{write: true})
	b.must(err)
	defer p.close()
	b.must(os.Remove(filepath.Join(b.folder, "now")))
	b.link(".git/config", "now")
	if err := replace(t.Context(), p, []byte("pwned")); err != errMoved || b.get(".git/config") != sentinel {
		t.Errorf("replaced: %v", err)
	}
}

// Whatever links there are and whatever paths are asked for: nothing outside is
// read or changed, and no protected file changes.
func TestNothingOutsideIsReached(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		b := boxAt(rt, filepath.Join(base, fmt.Sprint(n)), Files{})
		defer b.set.Close()
		b.put(".git/config", sentinel)
		b.put("sub/.git/hooks/post-checkout", "hook")
		b.put(".mcp.json", sentinel)
		b.put("a/f", "SENT")
		b.put("f", "SENT")
		names := []string{"a", "b", "c", "f", ".git", "sub", "config", "hooks", ".mcp.json", "HEAD", "objects", "refs"}
		some := func(label string, more ...string) string {
			parts := rapid.SliceOfN(rapid.SampledFrom(append(more, names...)), 1, 4).Draw(rt, label)
			return strings.Join(parts, "/")
		}
		for range rapid.IntRange(0, 6).Draw(rt, "links") {
			target := some("target", "..", "..", "..", ".", "evil", "ws-evil", "ws", "secret", "x")
			if rapid.Bool().Draw(rt, "absolute") {
				target = b.base + "/" + target
			}
			at := filepath.Join(b.folder, some("at"))
			if rel, _ := filepath.Rel(b.folder, at); !strings.Contains(rel, ".git") {
				os.MkdirAll(filepath.Dir(at), 0o755)
				os.Symlink(target, at)
			}
		}
		b.before = b.outside()
		guarded := func() map[string]string {
			m := map[string]string{}
			for p, c := range tree(b.folder, "") {
				if strings.Contains(p, ".git") || strings.Contains(p, ".mcp.json") {
					m[p] = c
				}
			}
			return m
		}
		was := guarded()
		for range rapid.IntRange(1, 6).Draw(rt, "calls") {
			p := some("path", "..", ".", "", "ws-evil", "secret", "evil", "x", ".GIT", ".git.", "new")
			if rapid.Bool().Draw(rt, "absolute path") {
				p = b.folder + rapid.SampledFrom([]string{"/", "-evil/", "/../", ""}).Draw(rt, "join") + p
			}
			b.everyTool(p, func(string, call.Result) {})
		}
		b.outsideUntouched()
		for p, c := range guarded() {
			if old, ok := was[p]; !ok || old != c {
				rt.Fatalf("protected %s became %q", p, c)
			}
		}
		if got := guarded(); !maps.Equal(got, was) {
			rt.Fatalf("protected files went: %v was %v", got, was)
		}
		os.RemoveAll(b.base)
	})
}

func FuzzSegments(f *testing.F) {
	for _, s := range []string{"", ".", "a/b", "/w/a/b", "/w/a", "/w/a-evil/x", "/w/a/../x", "..", "a/../b", "%2e%2e/x", `C:\x`, "a\x00", "~", "...", "a//b", ".git/config", "\u200b.git", "a:b", "%", "%zz/x"} {
		f.Add(s)
	}
	set := &FileSet{prefixes: []string{"/w/a"}}
	f.Fuzz(func(t *testing.T, path string) {
		segs, err := set.segments(path)
		if err != nil {
			if segs != nil {
				t.Fatal("names with an error")
			}
			return
		}
		for _, s := range segs {
			if strings.Trim(s, ". ") == "" || strings.ContainsAny(s, "/\\\x00") {
				t.Fatalf("%q has the name %q", path, s)
			}
		}
		if joined := filepath.Join(segs...); len(segs) > 0 && !filepath.IsLocal(joined) {
			t.Fatalf("%q is %q, which is not local", path, joined)
		}
		// One spelling: but for "./", a trailing slash and the folder's own
		// path in front, the path is the names.
		rel := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(path, "/w/a"), "/"), "./"), "/")
		if got := strings.Join(segs, "/"); got != rel && rel != "." && path != "." {
			t.Fatalf("%q was read as %q", path, got)
		}
	})
}

func FuzzKey(f *testing.F) {
	for _, s := range []string{".git", ".GIT", ".git. .", ".g\u200cit", ".git::$DATA", "con\uFB01g", "hoo\u212As", ".v\u017Fcode", "e\u0301", "\u1E9E", "İ", "\xff.git"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k := key(s)
		if key(k) != k {
			t.Fatalf("key(%q) = %q, and of that %q", s, k, key(k))
		}
		if key(strings.ToUpper(k)) != key(strings.ToLower(strings.ToUpper(k))) {
			t.Fatalf("%q depends on case", k)
		}
	})
}
