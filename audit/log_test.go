package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testRun = Run{
	ID: "r1", Program: "drawbridge test", Workspace: "ws-personal", Channel: "ch-ops",
	User: "u1", Agent: "claude", Level: "sealed", Mode: "act", Folder: "/home/u/work",
	PolicyDigest: "p", CatalogueDigest: "c", CommandDigest: "d", Scope: []string{"memory_search"},
}

// faulty is a file whose calls can be made to fail.
type faulty struct {
	*os.File
	write    func(p []byte) (int, error)
	truncate func(int64) error
	sync     func() error
	writes   atomic.Int64
	syncs    atomic.Int64
}

func (f *faulty) Write(p []byte) (int, error) {
	f.writes.Add(1)
	if f.write != nil {
		return f.write(p)
	}
	return f.File.Write(p)
}

func (f *faulty) Truncate(n int64) error {
	if f.truncate != nil {
		return f.truncate(n)
	}
	return f.File.Truncate(n)
}

func (f *faulty) Sync() error {
	f.syncs.Add(1)
	if f.sync != nil {
		return f.sync()
	}
	return f.File.Sync()
}

func newLog(t testing.TB, o Options) (*Log, *faulty, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var ff *faulty
	l, err := create(path, testRun, o, func(f *os.File) file { ff = &faulty{File: f}; return ff })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ff.File.Close() })
	return l, ff, path
}

func mustAppend(t testing.TB, l *Log, r Record) Record {
	t.Helper()
	got, err := l.Append(r, false)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func verify(t testing.TB, b []byte, head string) Report {
	t.Helper()
	rep, err := Verify(bytes.NewReader(b), head)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestLogWhole(t *testing.T) {
	var followed []Record
	l, ff, path := newLog(t, Options{Follow: func(r Record) { followed = append(followed, r) }})
	begin := mustAppend(t, l, Record{Kind: Begin, Tool: "memory_search", Arguments: json.RawMessage(`{"query": "Q4"}`), Decision: "allow"})
	if begin.Call != begin.Seq || begin.Seq != 2 {
		t.Errorf("begin has seq %d, call %d; want 2, 2", begin.Seq, begin.Call)
	}
	mustAppend(t, l, Record{Kind: End, Call: begin.Call, Tool: "memory_search", Outcome: OK, Micros: 12, ResultSize: 30})
	mustAppend(t, l, Record{Kind: Refused, Tool: "execute_command", Decision: "deny", Layer: "scope"})
	if got := l.Totals(); got["begin"] != 1 || got["refused"] != 1 {
		t.Errorf("totals %v", got)
	}
	head, err := l.Close(Record{Totals: map[string]int64{"bad_token": 3, "begin": 99}})
	if err != nil {
		t.Fatal(err)
	}
	if n := ff.writes.Load(); n != 5 {
		t.Errorf("%d writes for 5 lines", n)
	}
	again, err := l.Close(Record{})
	if again != head || err != nil {
		t.Errorf("second Close: %q, %v", again, err)
	}
	if _, err := l.Append(Record{Kind: Note}, false); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	b := read(t, path)
	rep := verify(t, b, head)
	if rep.Problem != "" || !rep.Closed || rep.Torn || rep.Lines != 5 || rep.Head != head || len(rep.Unfinished) != 0 {
		t.Errorf("%+v", rep)
	}
	if diff := cmp.Diff(&Run{}, rep.Run); rep.Run == nil || rep.Run.ID != "r1" || rep.Run.Version != Version {
		t.Error(diff)
	}
	var fromFile []Record
	if err := Read(bytes.NewReader(b), func(r Record) error { fromFile = append(fromFile, r); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(followed, fromFile); diff != "" {
		t.Errorf("followed and read differ:\n%s", diff)
	}
	want := map[string]int64{"open": 1, "begin": 1, "end": 1, "refused": 1, "bad_token": 3}
	if diff := cmp.Diff(want, fromFile[4].Totals); diff != "" {
		t.Error(diff)
	}
}

// A record names tool, outcome and sizes, one line a refusal and two a call,
// and neither it nor its directory entry is readable by others.
func TestField52_EveryAttemptLeavesALine(t *testing.T) {
	l, _, path := newLog(t, Options{})
	b := mustAppend(t, l, Record{Kind: Begin, Tool: "a", Decision: "allow", ArgumentsSize: 2})
	mustAppend(t, l, Record{Kind: End, Call: b.Call, Tool: "a", Outcome: OK, ResultSize: 7})
	mustAppend(t, l, Record{Kind: Refused, Tool: "b", Decision: "deny", Layer: "agent"})
	mustAppend(t, l, Record{Kind: Refused, Tool: "c", Decision: "deny", Layer: "mode", Rule: "plan"})
	ask := mustAppend(t, l, Record{Kind: Begin, Tool: "d", Decision: "ask"})
	mustAppend(t, l, Record{Kind: Answer, Call: ask.Call, Decision: "deny", Reason: "rejected"})
	late := mustAppend(t, l, Record{Kind: Begin, Tool: "e", Decision: "ask"})
	mustAppend(t, l, Record{Kind: Answer, Call: late.Call, Decision: "deny", Reason: "no answer in time"})
	up := mustAppend(t, l, Record{Kind: Begin, Tool: "f", Decision: "allow"})
	mustAppend(t, l, Record{Kind: End, Call: up.Call, Outcome: Error, Reason: "upstream ended"})
	mustAppend(t, l, Record{Kind: Early, What: "bad_json"})
	mustAppend(t, l, Record{Kind: Early, What: "bad_token"})
	head, err := l.Close(Record{Totals: map[string]int64{"bad_json": 1, "bad_token": 1}})
	if err != nil {
		t.Fatal(err)
	}
	rep := verify(t, read(t, path), head)
	if rep.Problem != "" || len(rep.Unfinished) != 0 || rep.Lines != 14 {
		t.Errorf("%+v", rep)
	}
}

func TestField104_FileMode(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("windows has no umask")
	}
	for _, mask := range []int{0, 0o077, 0o777} {
		old := umask(mask)
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l, err := Create(path, testRun, Options{})
		umask(old)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("umask %o: mode %v", mask, info.Mode())
		}
		if _, err := l.Close(Record{}); err != nil {
			t.Error(err)
		}
	}
}

func TestField104_MaskIsAppliedToEveryText(t *testing.T) {
	const token = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
	l, _, path := newLog(t, Options{Mask: func(s string) string { return strings.ReplaceAll(s, token, "[redacted]") }})
	got := mustAppend(t, l, Record{Kind: Refused, Tool: token, Layer: token, Rule: token, Reason: "x" + token, What: token, Detail: token})
	if got.Tool != "[redacted]" {
		t.Errorf("tool %q", got.Tool)
	}
	if _, err := l.Close(Record{Detail: token}); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(read(t, path), []byte(token)) {
		t.Error("the token is in the record")
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(path, testRun, Options{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if string(read(t, path)) != "x" {
		t.Error("the file was touched")
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err == nil {
		if _, err := Create(link, testRun, Options{}); !errors.Is(err, os.ErrExist) {
			t.Errorf("through a link: %v", err)
		}
	}
	full := filepath.Join(dir, "full")
	_, err := create(full, testRun, Options{}, func(f *os.File) file {
		return &faulty{File: f, write: func([]byte) (int, error) { return 0, syscall.ENOSPC }}
	})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("disk full: %v", err)
	}
	if _, err := os.Stat(full); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed Create left its file: %v", err)
	}
}

func TestAppendRefuses(t *testing.T) {
	l, _, path := newLog(t, Options{})
	before := read(t, path)
	for name, r := range map[string]Record{
		"open":          {Kind: Open},
		"close":         {Kind: Close},
		"no kind":       {},
		"unknown":       {Kind: "begin "},
		"not JSON":      {Kind: Begin, Arguments: json.RawMessage(`{"a":`)},
		"two values":    {Kind: Begin, Arguments: json.RawMessage(`{} {}`)},
		"breaks out":    {Kind: Begin, Arguments: json.RawMessage(`{},"decision":"allow"`)},
		"duplicate":     {Kind: Begin, Arguments: json.RawMessage(`{"a":1,"\u0061":2}`)},
		"deep dup":      {Kind: Begin, Arguments: json.RawMessage(`[{"b":{"a":1,"a":2}}]`)},
		"invalid UTF-8": {Kind: Begin, Arguments: json.RawMessage("\"\xff\"")},
		"too deep":      {Kind: Begin, Arguments: json.RawMessage(strings.Repeat("[", 5000) + strings.Repeat("]", 5000))},
		"too long":      {Kind: Begin, Detail: strings.Repeat("x", MaxLine)},
	} {
		if _, err := l.Append(r, true); err == nil {
			t.Errorf("%s: no error", name)
		} else if errors.Is(err, ErrBroken) {
			t.Errorf("%s: broke the log: %v", name, err)
		}
	}
	if !bytes.Equal(before, read(t, path)) {
		t.Error("a refused record left bytes")
	}
	mustAppend(t, l, Record{Kind: Note, Run: &testRun, Totals: map[string]int64{"x": 1}})
	head, err := l.Close(Record{})
	if err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, read(t, path), head); rep.Problem != "" {
		t.Error(rep.Problem)
	}
}

// A full disk refuses the call and leaves the record whole; with room again
// the next line follows the last good one.
func TestDiskFull(t *testing.T) {
	for _, partial := range []int{0, 1, 50} {
		l, ff, path := newLog(t, Options{})
		good := read(t, path)
		ff.write = func(p []byte) (int, error) {
			n, _ := ff.File.Write(p[:partial])
			return n, syscall.ENOSPC
		}
		_, err := l.Append(Record{Kind: Begin, Tool: "a"}, true)
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrBroken) {
			t.Errorf("%d bytes written: %v", partial, err)
		}
		if !bytes.Equal(good, read(t, path)) {
			t.Errorf("%d bytes written: they are still there", partial)
		}
		ff.write = nil
		if r := mustAppend(t, l, Record{Kind: Note, What: "room again"}); r.Seq != 2 {
			t.Errorf("seq %d", r.Seq)
		}
		head, err := l.Close(Record{})
		if err != nil {
			t.Fatal(err)
		}
		if rep := verify(t, read(t, path), head); rep.Problem != "" || rep.Lines != 3 {
			t.Errorf("%+v", rep)
		}
	}
}

func TestDiskFullAtClose(t *testing.T) {
	l, ff, path := newLog(t, Options{})
	ff.write = func([]byte) (int, error) { return 0, syscall.ENOSPC }
	head, err := l.Close(Record{})
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrChanged) {
		t.Errorf("%v", err)
	}
	if rep := verify(t, read(t, path), head); rep.Problem != "" || rep.Closed || rep.Lines != 1 {
		t.Errorf("%+v", rep)
	}
}

func TestShortWriteWithoutError(t *testing.T) {
	l, ff, _ := newLog(t, Options{})
	ff.write = func(p []byte) (int, error) { return ff.File.Write(p[:len(p)-1]) }
	if _, err := l.Append(Record{Kind: Note}, false); err == nil {
		t.Error("no error")
	}
	ff.write = nil
	if _, err := l.Close(Record{}); err != nil {
		t.Error(err)
	}
}

func TestBroken(t *testing.T) {
	t.Run("truncate", func(t *testing.T) {
		l, ff, path := newLog(t, Options{})
		ff.write = func(p []byte) (int, error) { n, _ := ff.File.Write(p[:10]); return n, syscall.EIO }
		ff.truncate = func(int64) error { return syscall.EROFS }
		_, err := l.Append(Record{Kind: Note}, false)
		if !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%v", err)
		}
		ff.write, ff.truncate = nil, nil
		if _, err := l.Append(Record{Kind: Note}, false); !errors.Is(err, ErrBroken) {
			t.Errorf("second append: %v", err)
		}
		head, err := l.Close(Record{})
		if !errors.Is(err, ErrBroken) || !errors.Is(err, ErrChanged) {
			t.Errorf("close: %v", err)
		}
		if rep := verify(t, read(t, path), head); rep.Problem != "" || !rep.Torn || rep.Lines != 1 {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("fsync", func(t *testing.T) {
		l, ff, _ := newLog(t, Options{})
		ff.sync = func() error { return syscall.EIO }
		if _, err := l.Append(Record{Kind: Begin}, true); !errors.Is(err, ErrBroken) {
			t.Errorf("%v", err)
		}
		ff.sync = nil
		if _, err := l.Append(Record{Kind: Begin}, true); !errors.Is(err, ErrBroken) {
			t.Errorf("after a failed fsync: %v", err)
		}
		if _, err := l.Close(Record{}); !errors.Is(err, ErrBroken) {
			t.Errorf("close: %v", err)
		}
	})
}

// Appends that arrive while an fsync runs share the next one, and none of
// them returns on the strength of one that began before its write.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ff, _ := newLog(t, Options{})
		gate := make(chan struct{})
		ff.sync = func() error { <-gate; return nil }
		const n = 20
		var done atomic.Int64
		var wg sync.WaitGroup
		add := func() {
			wg.Go(func() {
				if _, err := l.Append(Record{Kind: Begin, Tool: "a"}, true); err != nil {
					t.Error(err)
				}
				done.Add(1)
			})
		}
		add()
		synctest.Wait()
		for range n - 1 {
			add()
		}
		synctest.Wait()
		if got := l.Totals()["begin"]; got != n {
			t.Errorf("%d of %d lines were written during the fsync", got, n)
		}
		if done.Load() != 0 {
			t.Error("an append returned before any fsync did")
		}
		gate <- struct{}{}
		synctest.Wait()
		if got := done.Load(); got != 1 {
			t.Errorf("%d appends returned after the first fsync, want 1", got)
		}
		gate <- struct{}{}
		synctest.Wait()
		if got := done.Load(); got != n {
			t.Errorf("%d appends returned after the second fsync, want %d", got, n)
		}
		if got := ff.syncs.Load(); got != 2 {
			t.Errorf("%d fsyncs for %d appends, want 2", got, n)
		}
		close(gate)
		wg.Wait()
		if _, err := l.Close(Record{}); err != nil {
			t.Error(err)
		}
	})
}

// When the shared fsync fails, everybody who waited for it is told.
func TestGroupCommitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ff, _ := newLog(t, Options{})
		gate := make(chan struct{})
		ff.sync = func() error { <-gate; return syscall.EIO }
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := l.Append(Record{Kind: Begin}, true); errors.Is(err, ErrBroken) {
					failed.Add(1)
				}
			})
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		if failed.Load() != 5 {
			t.Errorf("%d of 5 were told", failed.Load())
		}
		l.Close(Record{})
	})
}

func TestConcurrent(t *testing.T) {
	var followed []int64
	l, _, path := newLog(t, Options{Follow: func(r Record) { followed = append(followed, r.Seq) }})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				b, err := l.Append(Record{Kind: Begin, Tool: fmt.Sprint(i)}, j%10 == 0)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := l.Append(Record{Kind: End, Call: b.Call, Outcome: OK}, false); err != nil {
					t.Error(err)
				}
				l.Head()
			}
		})
	}
	wg.Wait()
	head, err := l.Close(Record{})
	if err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, read(t, path), head); rep.Problem != "" || rep.Lines != 802 {
		t.Errorf("%+v", rep)
	}
	if !slices.IsSorted(followed) || len(followed) != 802 {
		t.Errorf("followed %d lines, sorted %v", len(followed), slices.IsSorted(followed))
	}
}

func TestChangedWhileRunning(t *testing.T) {
	edit := func(f func(b []byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, f(read(t, path)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		tamper func(t *testing.T, path string)
		want   string
	}{
		"a byte": {edit(func(b []byte) []byte { return bytes.Replace(b, []byte("before"), []byte("BEFORE"), 1) }), "line 2"},
		"a line less": {edit(func(b []byte) []byte {
			ls := bytes.SplitAfter(b, []byte("\n"))
			return bytes.Join(slices.Delete(ls, 1, 2), nil)
		}), "line 2"},
		"a line more": {edit(func(b []byte) []byte { return append(b, "{}\n"...) }), "line 4"},
		"emptied":     {edit(func([]byte) []byte { return nil }), "line 1"},
		"removed":     {func(t *testing.T, path string) { os.Remove(path) }, "no such file"},
		"replaced": {func(t *testing.T, path string) {
			b := read(t, path)
			os.Remove(path)
			os.WriteFile(path, b, 0o600)
		}, "another file"},
		"a pipe": {func(t *testing.T, path string) { os.Remove(path); mkfifo(t, path) }, "another file"},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, path := newLog(t, Options{})
			mustAppend(t, l, Record{Kind: Note, Detail: "before"})
			mustAppend(t, l, Record{Kind: Note, Detail: "second"})
			c.tamper(t, path)
			mustAppend(t, l, Record{Kind: Note, Detail: "after"})
			_, err := l.Close(Record{})
			if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
