package builtin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

func TestField24_FilesAreExact(t *testing.T) {
	b := newBox(t)
	for i, want := range []string{"a<b && c>d", "<-done & x", "\u2028\u2029\"\\u003c\"\t", "line\r\nline\r\n", "no end", "\ufeffbom", "e\u0301 \u200b😀"} {
		name := fmt.Sprint(i)
		b.ok("write_file", args{"path": name, "content": want})
		if b.get(name) != want {
			t.Errorf("%q was written as %q", want, b.get(name))
		}
		if got := b.ok("read_file", args{"path": name}); got != want {
			t.Errorf("%q was read as %q", want, got)
		}
	}
}

func TestRead(t *testing.T) {
	b := newBox(t)
	b.put("f", "one\ntwo\nthree")
	b.put("empty", "")
	b.put("binary", "PNG\x00\x01")
	b.put("latin", "caf\xe9\n")
	b.put("late", strings.Repeat("x\n", sniff)+"\x00")
	b.put("d/x", "")
	for _, tc := range []struct {
		a          args
		text, note string
	}{
		{args{"path": "f"}, "one\ntwo\nthree", ""},
		{args{"path": "f", "offset": 2}, "two\nthree", ""},
		{args{"path": "f", "offset": 3}, "three", ""},
		{args{"path": "f", "limit": 1}, "one\n", "[... 9 bytes left out ...] [lines 1 to 1 are shown; read on with offset 2]"},
		{args{"path": "f", "offset": 2.0, "limit": 1}, "two\n", "[... 5 bytes left out ...] [lines 2 to 2 are shown; read on with offset 3]"},
		{args{"path": "f", "limit": 1e300}, "one\ntwo\nthree", ""},
		{args{"path": "f", "path2": "x", "Path": "../secret"}, "one\ntwo\nthree", ""},
		{args{"path": "empty"}, "[the file is empty]", ""},
		{args{"path": "latin"}, "caf\uFFFD\n", ""},
	} {
		r := b.call("read_file", tc.a)
		note := ""
		if len(r.Content) > 1 {
			note = r.Content[1].Text
		}
		if r.IsError || r.Content[0].Text != tc.text || note != tc.note {
			t.Errorf("%v: %q, note %q", tc.a, r.Content[0].Text, note)
		}
	}
	b.fails("read_file", args{"path": "f", "offset": 4}, "has 3 lines: there is no line 4")
	b.fails("read_file", args{"path": "empty", "offset": 2}, "has 0 lines")
	b.fails("read_file", args{"path": "binary"}, "is a binary file of 5 bytes")
	b.fails("read_file", args{"path": "late", "offset": sniff}, "is a binary file")
	b.fails("read_file", args{"path": "d"}, "use list_files")
	b.fails("read_file", args{"path": "none"}, `"none": no such file or folder`)
	b.fails("read_file", args{"path": "none/x"}, "no such file or folder")
	b.fails("read_file", args{"path": "f/x"}, "not a folder")
	b.fails("read_file", args{"path": 7}, "do not fit read_file")
	b.fails("read_file", args{"path": strings.Repeat("x", 300)}, "file name too long")
	if r := b.call("read_file", args{"path": "latin"}); !r.Flags.Repaired {
		t.Error("a repaired text is not flagged")
	}
}

// Reading part after part, as the notes say, gives the whole file.
func TestField74_LongFilesComeInParts(t *testing.T) {
	base := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		b := boxAt(rt, filepath.Join(base, fmt.Sprint(n)), Files{MaxRead: 1 << 10})
		defer b.set.Close()
		lines := rapid.SliceOfN(rapid.StringMatching(`[a-zé😀 ]{0,150}\n`), 1, 60).Draw(rt, "lines")
		want := strings.Join(lines, "")
		if rapid.Bool().Draw(rt, "unended") {
			want += "x"
		}
		b.put("f", want)
		a := args{"path": "f"}
		if limit := rapid.IntRange(0, 20).Draw(rt, "limit"); limit > 0 {
			a["limit"] = limit
		}
		got := ""
		for range 200 {
			r := b.call("read_file", a)
			text := r.Content[0].Text
			if r.IsError || len(all(r)) > 1<<10 || !utf8.ValidString(text) {
				rt.Fatalf("%v: isError %v, %d bytes", a, r.IsError, len(all(r)))
			}
			got += text
			if len(r.Content) == 1 {
				break
			}
			next := 0
			i := strings.Index(r.Content[1].Text, "read on with offset ")
			fmt.Sscanf(r.Content[1].Text[i:], "read on with offset %d", &next)
			a["offset"] = next
		}
		if got != want {
			rt.Fatalf("got %q, want %q", got, want)
		}
	})
	b := newBox(t)
	b.put("line", strings.Repeat("é", 100_000)+"\nafter\n")
	r := b.call("read_file", args{"path": "line"})
	if r.IsError || !utf8.ValidString(all(r)) || len(all(r)) > call.DefaultOutput || r.Flags.Cut == 0 ||
		!strings.HasSuffix(all(r), "[line 1 goes on; the next line is offset 2]") {
		t.Errorf("long line: %d bytes, %+v, %q", len(all(r)), r.Flags, r.Content[len(r.Content)-1].Text)
	}
	if got := b.ok("read_file", args{"path": "line", "offset": 2}); got != "after\n" {
		t.Errorf("after the long line: %q", got)
	}
}

func FuzzReadLines(f *testing.F) {
	f.Add([]byte("one\ntwo\n"), int64(1), int64(10), 800)
	f.Add([]byte("é\r\n\n\n\xff\xfe"), int64(2), int64(1), 5)
	f.Add(bytes.Repeat([]byte("x"), 200_000), int64(1), int64(1), 100)
	f.Add(append(bytes.Repeat([]byte("x"), 65_536), "\nnext"...), int64(2), int64(9), 70_000)
	f.Fuzz(func(t *testing.T, data []byte, from, limit int64, room int) {
		if from < 1 || limit < 1 || room < 4 || room > 1<<20 {
			return
		}
		p, err := readLines(t.Context(), bytes.NewReader(data), from, limit, room)
		if err != nil {
			return
		}
		if len(p.text) > room {
			t.Fatalf("%d bytes in a room of %d", len(p.text), room)
		}
		if len(p.text) == 0 {
			if lines := int64(bytes.Count(data, []byte("\n"))); p.lines < lines || p.lines > lines+1 {
				if from <= lines {
					t.Fatalf("line %d of %d is missing", from, lines)
				}
			}
			return
		}
		if got := data[p.end-int64(len(p.text)) : p.end]; !bytes.Equal(got, p.text) {
			t.Fatalf("text %q is not what ends at %d", p.text, p.end)
		}
		if before := data[:p.end-int64(len(p.text))]; int64(bytes.Count(before, []byte("\n"))) != from-1 {
			t.Fatalf("text does not start at line %d", from)
		}
	})
}

func TestWrite(t *testing.T) {
	b := newBox(t)
	if got := b.ok("write_file", args{"path": "new/deep/f", "content": "1"}); got != "created new/deep/f (1 bytes)" {
		t.Error(got)
	}
	b.must(os.Chmod(filepath.Join(b.folder, "new/deep/f"), 0o751))
	if got := b.ok("write_file", args{"path": "new/deep/f", "content": ""}); got != "wrote new/deep/f (0 bytes)" {
		t.Error(got)
	}
	info, err := os.Stat(filepath.Join(b.folder, "new/deep/f"))
	b.must(err)
	if runtime.GOOS != "windows" && info.Mode() != 0o751 {
		t.Errorf("mode became %v", info.Mode())
	}
	b.put("ro", "keep")
	b.must(os.Chmod(filepath.Join(b.folder, "ro"), 0o444))
	b.fails("write_file", args{"path": "ro", "content": "x"}, "is read-only")
	b.fails("edit_file", args{"path": "ro", "old": "keep", "new": "x"}, "is read-only")
	b.fails("write_file", args{"path": "new/deep", "content": "x"}, "is a folder")
	b.fails("write_file", args{"path": "ro/x", "content": "x"}, "not a folder")
	b.fails("write_file", args{"path": strings.Repeat("x", 300), "content": "x"}, "file name too long")
	b.ok("write_file", args{"path": strings.Repeat("x", 255), "content": "x"})
	b.link("new/missing", "dangling")
	b.ok("write_file", args{"path": "dangling", "content": "through"})
	if b.get("new/missing") != "through" || b.get("ro") != "keep" {
		t.Error("content")
	}
	for p := range tree(b.folder, "") {
		if strings.Contains(p, ".tmp") {
			t.Errorf("%s was left behind", p)
		}
	}
}

// A link or a file that lies where the new content is going to be made is
// neither followed nor taken over.
func TestField69_LinkAtTheTemporaryPath(t *testing.T) {
	b := newBox(t)
	b.put("f", "old")
	p, err := b.set.op().walk(t.Context(), []string{"f"}, mode{write: true})
	b.must(err)
	defer p.close()
	for _, temp := range []string{"planted-link", "planted-file"} {
		if temp == "planted-link" {
			b.link("../made-outside", temp)
		} else {
			b.put(temp, "theirs")
		}
		if err := replaceBy(t.Context(), p, []byte("new"), temp); err == nil {
			t.Errorf("%s was taken over", temp)
		}
		if !b.exists(temp) || b.get("f") != "old" {
			t.Errorf("%s: gone, or f changed", temp)
		}
	}
	if b.get("planted-file") != "theirs" {
		t.Error("a file was overwritten")
	}
	// The name can't be known beforehand.
	if a, b := tempName(), tempName(); a == b {
		t.Error("the name repeats")
	}
}

func TestEdit(t *testing.T) {
	b := newBox(t)
	b.put("f", "a b a\n")
	b.put("crlf", "x\r\ny\r\n")
	b.put("bytes", "\xff\xfe old")
	b.put("binary", "old\x00")
	b.fails("edit_file", args{"path": "f", "old": "a", "new": "c"}, "found 2 times")
	b.fails("edit_file", args{"path": "f", "old": "zz", "new": "c"}, "was not found")
	b.fails("edit_file", args{"path": "f", "old": "", "new": "c"}, "old is empty")
	b.fails("edit_file", args{"path": "f", "old": "a", "new": "a"}, "nothing to change")
	b.fails("edit_file", args{"path": "crlf", "old": "x\ny", "new": "c"}, `with \r\n line ends`)
	b.fails("edit_file", args{"path": "binary", "old": "old", "new": "c"}, "binary")
	b.fails("edit_file", args{"path": "none", "old": "a", "new": "c"}, "no such file")
	b.fails("edit_file", args{"path": ".", "old": "a", "new": "c"}, "can't be used")
	b.fails("edit_file", args{"path": "f", "old": "a", "new": strings.Repeat("x", maxEdit), "all": true}, "more than the limit")
	if b.get("f") != "a b a\n" {
		t.Error("a refused edit changed the file")
	}
	if got := b.ok("edit_file", args{"path": "f", "old": "b a", "new": "B$1"}); got != "replaced 1 occurrence in f" || b.get("f") != "a B$1\n" {
		t.Errorf("%s: %q", got, b.get("f"))
	}
	b.put("f", "aaa")
	if got := b.ok("edit_file", args{"path": "f", "old": "a", "new": "ab", "all": true}); got != "replaced 3 occurrences in f" || b.get("f") != "ababab" {
		t.Errorf("%s: %q", got, b.get("f"))
	}
	b.ok("edit_file", args{"path": "bytes", "old": "old", "new": "new"})
	if b.get("bytes") != "\xff\xfe new" {
		t.Error("other bytes of the file changed")
	}
}

func TestConcurrentEditsAreAllKept(t *testing.T) {
	b := newBox(t)
	b.put("f", "end\n")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { b.call("edit_file", args{"path": "f", "old": "end\n", "new": fmt.Sprintf("%d\nend\n", i)}) })
	}
	wg.Wait()
	if n := strings.Count(b.get("f"), "\n"); n != 21 {
		t.Errorf("%d lines: %q", n, b.get("f"))
	}
}

func TestDelete(t *testing.T) {
	b := newBox(t)
	b.put("d/f", "x")
	b.fails("delete_file", args{"path": "d"}, "is a folder and not empty")
	b.fails("delete_file", args{"path": "none"}, "no such file")
	b.ok("delete_file", args{"path": "d/f"})
	b.ok("delete_file", args{"path": "d/"})
	if b.exists("d") {
		t.Error("d is there")
	}
	b.put("e/f", "x")
	b.link("e", "to-folder")
	b.link("e/none", "dangling")
	b.ok("delete_file", args{"path": "dangling"})
	b.ok("delete_file", args{"path": "to-folder"})
	if b.exists("dangling") || b.exists("to-folder") || !b.exists("e/f") {
		t.Error("links")
	}
}

func TestList(t *testing.T) {
	b := newBox(t)
	if got := b.ok("list_files", args{}); got != "[the folder is empty]" {
		t.Error(got)
	}
	for _, p := range []string{"b/c/d.go", "b/a.go", "a.go", ".git/HEAD", "new\nline", "bidi\u202e", `back\slash`, "ü"} {
		b.put(p, "")
	}
	b.link("../secret", "out")
	b.link("b", "in")
	want := ".git/\na.go\nb/\n\"back\\\\slash\"\n\"bidi\\u202e\"\nin (link)\n\"new\\nline\"\nout (link)\nü\n"
	if got := b.ok("list_files", args{"path": "."}); got != want {
		t.Errorf("%q", got)
	}
	if got := b.ok("list_files", args{"recursive": true}); got != want+"b/a.go\nb/c/\nb/c/d.go\n" {
		t.Errorf("%q", got)
	}
	if got := b.ok("list_files", args{"path": "in"}); got != "b/a.go\nb/c/\n" {
		t.Errorf("through a link: %q", got)
	}
	if got := b.ok("list_files", args{"path": "a.go"}); got != "a.go\n" {
		t.Errorf("a file: %q", got)
	}
	b.fails("list_files", args{"path": "none"}, "no such file or folder")
	for i := range maxEntries + 5 {
		b.put(fmt.Sprintf("many/%d", i), "")
	}
	r := b.call("list_files", args{"path": "many"})
	if strings.Count(r.Content[0].Text, "\n") != maxEntries || !strings.Contains(all(r), "there are more") {
		t.Errorf("many: %s", r.Content[len(r.Content)-1].Text)
	}
}

func TestSearch(t *testing.T) {
	b := newBox(t)
	b.put("a.go", "func A() {}\r\nx.y\nfunc B() {}")
	b.put("src/b.ts", "Func\n")
	b.put("src/deep/c.go", "xzy\n")
	b.put("bin", "func\x00")
	b.put(".git/x", "func")
	b.put("long", strings.Repeat("é", 5000)+"needle"+strings.Repeat("é", 5000)+"\n")
	b.link("a.go", "again")
	for _, tc := range []struct {
		a    args
		want string
	}{
		{args{"pattern": "func"}, "a.go:1:func A() {}\na.go:3:func B() {}\n"},
		{args{"pattern": "func", "ignore_case": true, "path": "src"}, "src/b.ts:1:Func\n"},
		{args{"pattern": "x.y"}, "a.go:2:x.y\n"},
		{args{"pattern": "x.y", "regex": true, "glob": "*.go"}, "a.go:2:x.y\nsrc/deep/c.go:1:xzy\n"},
		{args{"pattern": "x.y", "regex": true, "glob": "src/**/*.go"}, "src/deep/c.go:1:xzy\n"},
		{args{"pattern": "^func .\\(", "regex": true, "path": "a.go"}, "a.go:1:func A() {}\na.go:3:func B() {}\n"},
		{args{"pattern": "nothing"}, "no line matches (4 files searched)"},
		{args{"pattern": ".*("}, "no line matches (4 files searched)"},
	} {
		if got := b.ok("search_files", tc.a); got != tc.want {
			t.Errorf("%v: %q", tc.a, got)
		}
	}
	if got := b.ok("search_files", args{"pattern": "needle"}); len(got) > maxShown+50 || !utf8.ValidString(got) || !strings.Contains(got, "needle") {
		t.Errorf("long line: %d bytes", len(got))
	}
	b.fails("search_files", args{"pattern": "(", "regex": true}, "RE2")
	b.fails("search_files", args{"pattern": "x", "glob": "[a"}, "glob")
	b.fails("search_files", args{"pattern": ""}, "1 to 1000 bytes")
	b.fails("search_files", args{"pattern": "x", "path": "none"}, "no such file")
	b.put("hits", strings.Repeat("hit\n", maxMatches+1))
	r := b.call("search_files", args{"pattern": "hit"})
	if strings.Count(r.Content[0].Text, "\n") != maxMatches || !strings.Contains(all(r), "200 matches are shown") {
		t.Errorf("hits: %s", r.Content[len(r.Content)-1].Text)
	}
	b.set.searchTime = -time.Second
	if r := b.call("search_files", args{"pattern": "hit"}); !strings.Contains(all(r), "time limit") {
		t.Error(all(r))
	}
	b.set.searchTime, b.set.searchBytes = time.Minute, 10
	if r := b.call("search_files", args{"pattern": "zzz"}); !strings.Contains(all(r), "limit of bytes") {
		t.Error(all(r))
	}
}

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		glob, path string
		want       bool
	}{
		{"*.go", "a/b/c.go", true}, {"*.go", "a/b/c.ts", false}, {"a/*.go", "a/c.go", true}, {"a/*.go", "a/b/c.go", false},
		{"**/*.go", "c.go", true}, {"a/**", "a/b/c", true}, {"a/**/c", "a/c", true}, {"a/**/c", "b/c", false},
		{"/a/*", "a/b", true}, {"**/b/**/d", "a/b/c/d", true}, {strings.Repeat("**/", 200) + "x", strings.Repeat("a/", 120) + "y", false},
	} {
		if got := globMatch(tc.glob, strings.Split(tc.path, "/")); got != tc.want {
			t.Errorf("%.40s %.40s: %v", tc.glob, tc.path, got)
		}
	}
}

const crashEnv = "DRAWBRIDGE_TEST_CRASH"

// writeForever is what the process does that TestKilledWrite kills.
func writeForever(base string) {
	set, err := NewFiles(Files{Folder: base})
	if err != nil {
		os.Exit(1)
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		if _, err := set.write(context.Background(), writeArgs{Path: "f", Content: strings.Repeat(string(rune('a'+i%26)), 1<<20)}); err != nil {
			os.Exit(2)
		}
	}
}

func TestKilledWriteLeavesOldOrNew(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), bytes.Repeat([]byte{'a'}, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(slices.Clone(os.Environ()), crashEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // into the middle of something
		cmd.Process.Kill()
		cmd.Wait()
		data, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil || len(data) != 1<<20 || len(bytes.Trim(data, string(data[:1]))) != 0 {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	}
}

// What lies around the work is not the work: keys and start files in a home,
// hooks in a repository.
func TestNewFilesRefusesHomeAndProtectedFolders(t *testing.T) {
	top := t.TempDir()
	home := filepath.Join(top, "home")
	work := filepath.Join(home, "work")
	hooks := filepath.Join(work, ".git", "hooks")
	agents := filepath.Join(work, ".Claude")
	for _, d := range []string{hooks, agents} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(top, "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	for folder, ok := range map[string]bool{top: false, home: false, link: false, hooks: false, agents: false, work: true} {
		f, err := NewFiles(Files{Folder: folder, Home: home})
		if f != nil {
			_ = f.Close()
		}
		if (err == nil) != ok {
			t.Errorf("folder %s: %v", folder, err)
		}
	}
}
