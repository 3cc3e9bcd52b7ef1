package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

var now = time.Date(2026, 12, 1, 14, 0, 0, 123, time.FixedZone("", 3600))

func service(t testing.TB) *memory.Service {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "drawbridge.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return memory.NewService(db.Notes(), func() time.Time { return now })
}

func all(t testing.TB, s *memory.Service, ws string) []memory.Note {
	t.Helper()
	var out []memory.Note
	for n, err := range s.List(t.Context(), ws, memory.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func usage(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Usage {
		t.Errorf("error %v (kind %d), want one with %q", err, fault.KindOf(err), want)
	}
}

func TestAddFillsInAndRefuses(t *testing.T) {
	s := service(t)
	n, err := s.Add(t.Context(), memory.Note{Workspace: "w", Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if len(n.ID) != 10 || !n.Time.Equal(now) || n.Time.Location() != time.UTC {
		t.Errorf("stored %+v", n)
	}
	if d := cmp.Diff([]memory.Note{n}, all(t, s, "w")); d != "" {
		t.Error(d)
	}
	long := strings.Repeat("x", memory.MaxField+1)
	for _, c := range []struct {
		note memory.Note
		want string
	}{
		{memory.Note{Text: "x"}, "no workspace given"},
		{memory.Note{Workspace: "w"}, "text is empty"},
		{memory.Note{Workspace: "w", Text: " \n\u3000"}, "text is empty"},
		{memory.Note{Workspace: "w", Text: "\xff"}, "text is not valid UTF-8"},
		{memory.Note{Workspace: "w", Text: strings.Repeat("x", memory.MaxText+1)}, "text is 65537 bytes, a note may have 65536"},
		{memory.Note{Workspace: "w", Text: "x", ID: "a b"}, "id is not"},
		{memory.Note{Workspace: "w", Text: "x", ID: strings.Repeat("a", 65)}, "id is not"},
		{memory.Note{Workspace: "w", Text: "x", ID: n.ID}, "exists already"},
		{memory.Note{Workspace: long, Text: "x"}, "workspace is longer"},
		{memory.Note{Workspace: "w", Text: "x", Run: long}, "run is longer"},
		{memory.Note{Workspace: "w", Text: "x", User: "a\nb"}, "user has a control character"},
		{memory.Note{Workspace: "w", Text: "x", Agent: "\xff"}, "agent is not valid UTF-8"},
		{memory.Note{Workspace: "w", Text: "x", Channel: "a\u2028b"}, "channel has a control character"},
		{memory.Note{Workspace: "w", Text: "x", Time: time.Unix(1<<40, 0)}, "time is not between"},
	} {
		_, err := s.Add(t.Context(), c.note)
		usage(t, err, c.want)
	}
	if _, err := s.Add(t.Context(), memory.Note{Workspace: "w", Text: strings.Repeat("x", memory.MaxText)}); err != nil {
		t.Error(err)
	}
	if got := len(all(t, s, "w")); got != 2 {
		t.Errorf("%d notes, want 2", got)
	}
}

func TestBlankWorkspaceIsRefusedEverywhere(t *testing.T) {
	s := service(t)
	_, err := s.Search(t.Context(), "", "x", 0)
	usage(t, err, "no workspace given")
	_, err = s.Delete(t.Context(), "", "x")
	usage(t, err, "no workspace given")
	_, err = s.DeleteRun(t.Context(), "", "x")
	usage(t, err, "no workspace given")
	_, err = s.Export(t.Context(), "", io.Discard)
	usage(t, err, "no workspace given")
	_, _, err = s.Import(t.Context(), "", strings.NewReader(""))
	usage(t, err, "no workspace given")
	for _, err = range s.List(t.Context(), "", memory.Filter{}) {
		usage(t, err, "no workspace given")
	}
	_, err = s.DeleteRun(t.Context(), "w", "")
	usage(t, err, "no run given")
}

// counting accepts notes without keeping them, and fails on demand.
type counting struct {
	memory.Store
	mu    sync.Mutex
	fail  error
	clash int // how many Adds find their ID taken
	added int
}

func (c *counting) Add(_ context.Context, notes []memory.Note) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return 0, c.fail
	}
	if c.clash > 0 {
		c.clash--
		return 0, nil
	}
	c.added += len(notes)
	return len(notes), nil
}

func TestRunLimit(t *testing.T) {
	store := &counting{}
	s := memory.NewService(store, nil)
	n := memory.Note{Workspace: "w", Text: "x", Run: "r1"}
	store.fail = errors.New("broken")
	for range 5 {
		if _, err := s.Add(t.Context(), n); err == nil {
			t.Fatal("no error")
		}
	}
	store.fail = nil
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for range 20 {
		wg.Go(func() {
			for range 51 {
				if _, err := s.Add(t.Context(), n); err != nil {
					usage(t, err, "this run has added 1000 notes, the most one run may add")
					mu.Lock()
					refused++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if store.added != memory.MaxPerRun || refused != 20 {
		t.Errorf("%d added, %d refused", store.added, refused)
	}
	n.Run = "r2"
	if _, err := s.Add(t.Context(), n); err != nil {
		t.Error(err)
	}
	n.Run = ""
	for range memory.MaxPerRun + 1 {
		if _, err := s.Add(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMadeUpIDThatIsTaken(t *testing.T) {
	store := &counting{clash: 3}
	if _, err := memory.NewService(store, nil).Add(t.Context(), memory.Note{Workspace: "w", Text: "x"}); err != nil || store.added != 1 {
		t.Errorf("%d added, %v", store.added, err)
	}
}

func TestSearchLimit(t *testing.T) {
	s := service(t)
	var lines strings.Builder
	for i := range 150 {
		fmt.Fprintf(&lines, `{"text":"word %d"}`+"\n", i)
	}
	if added, _, err := s.Import(t.Context(), "w", strings.NewReader(lines.String())); added != 150 || err != nil {
		t.Fatal(added, err)
	}
	for limit, want := range map[int]int{0: 10, -1: 10, 3: 3, 100: 100, 1000: 100} {
		got, err := s.Search(t.Context(), "w", "word", limit)
		if err != nil || len(got) != want {
			t.Errorf("limit %d: %d notes, %v; want %d", limit, len(got), err, want)
		}
	}
}

func TestExportImport(t *testing.T) {
	a, b := service(t), service(t)
	for _, n := range []memory.Note{
		{Workspace: "w", ID: "x.1", Text: "a<b && c>d \u2028 \"q\"\\\n\x00 部署 😀", Run: "r", Agent: "claude", Channel: "c", User: "kim", Time: now},
		{Workspace: "w", Text: "second"},
		{Workspace: "other", Text: "not exported"},
	} {
		if _, err := a.Add(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if n, err := a.Export(t.Context(), "w", &out); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines != 2 || bytes.Contains(out.Bytes(), []byte(`\u003c`)) || bytes.Contains(out.Bytes(), []byte(":null")) {
		t.Errorf("export:\n%s", &out)
	}
	for i, want := range []int{2, 0} {
		added, skipped, err := b.Import(t.Context(), "w", bytes.NewReader(out.Bytes()))
		if added != want || skipped != 2-want || err != nil {
			t.Errorf("import %d: %d added, %d skipped, %v", i+1, added, skipped, err)
		}
	}
	if d := cmp.Diff(all(t, a, "w"), all(t, b, "w")); d != "" {
		t.Error(d)
	}
	if got, err := b.Search(t.Context(), "w", "部署", 0); len(got) != 1 || err != nil {
		t.Errorf("an imported note is not found: %v", err)
	}
}

func TestImportByHand(t *testing.T) {
	s := service(t)
	in := "\uFEFF{\"text\":\"one\"}\r\n\n  \n{\"workspace\":\"w\",\"text\":\"two\",\"time\":\"2026-01-02T03:04:05+01:00\"}\n{\"text\":\"one\"}"
	for i, want := range []int{2, 0} {
		added, skipped, err := s.Import(t.Context(), "w", strings.NewReader(in))
		if added != want || skipped != 3-want || err != nil {
			t.Errorf("import %d: %d added, %d skipped, %v", i+1, added, skipped, err)
		}
	}
	got := all(t, s, "w")
	if len(got) != 2 || got[0].Text != "one" || !got[0].Time.Equal(now) || got[1].Time.Format(time.RFC3339) != "2026-01-02T02:04:05Z" {
		t.Errorf("%+v", got)
	}
}

func TestImportNamesTheLineAndImportsNothing(t *testing.T) {
	s := service(t)
	good := `{"text":"good"}` + "\n"
	for _, c := range []struct{ in, want string }{
		{good + "\n" + `{"text":"x"`, "line 3: not a note"},
		{good + `[]`, "line 2: not a note"},
		{good + `{"text":"x","txt":1}`, "line 2: not a note"},
		{good + `{"text":"x","text":"y"}`, "line 2: not a note"},
		{good + `{"Text":"x"}`, "line 2: not a note"},
		{good + `{"text":"x","time":"yesterday"}`, "line 2: not a note"},
		{good + `{"text":" "}`, "line 2: text is empty"},
		{good + `{"text":"x","id":"a/b"}`, "line 2: id is not"},
		{good + `{"text":"x","workspace":"other"}`, `line 2: the note belongs to workspace "other", not "w"`},
		{good + "{\"text\":\"\xff\"}", "line 2: not a note"},
		{good + `{"text":"` + strings.Repeat("x", memory.MaxText+1) + `"}`, "line 2: text is 65537 bytes"},
		{good + `{"text":"` + strings.Repeat("x", 10*memory.MaxText) + `"}`, "line 2: longer than"},
	} {
		added, skipped, err := s.Import(t.Context(), "w", strings.NewReader(c.in))
		usage(t, err, c.want)
		if added != 0 || skipped != 0 || !strings.Contains(fault.HintOf(err), "nothing was imported") {
			t.Errorf("%d added, %d skipped, hint %q", added, skipped, fault.HintOf(err))
		}
	}
	_, _, err := s.Import(t.Context(), "w", io.MultiReader(strings.NewReader(good), iotest.ErrReader(errors.New("torn"))))
	usage(t, err, "notes could not be read after line 1: torn")
	if got := all(t, s, "w"); len(got) != 0 {
		t.Errorf("%d notes were imported", len(got))
	}
}

type failingList struct{ memory.Store }

func (failingList) List(context.Context, string, memory.Filter) iter.Seq2[memory.Note, error] {
	return func(yield func(memory.Note, error) bool) {
		_ = yield(memory.Note{ID: "a", Text: "x"}, nil) && yield(memory.Note{}, fault.New(fault.Usage, "", "the database is damaged"))
	}
}

func TestExportFails(t *testing.T) {
	if _, err := memory.NewService(failingList{}, nil).Export(t.Context(), "w", io.Discard); err == nil {
		t.Error("a broken list exported without an error")
	}
	s := service(t)
	if _, err := s.Add(t.Context(), memory.Note{Workspace: "w", Text: "x"}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Export(t.Context(), "w", failingWriter{})
	usage(t, err, "notes could not be written: full")
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

func FuzzImport(f *testing.F) {
	for _, s := range []string{
		"", "\n", `{"text":"x"}`, `{"id":"a","workspace":"w","text":"x","run":"r","time":"2026-12-01T14:00:00.123Z"}` + "\n", `{"text":"x"}` + "\n{", "null", "[]", "\uFEFF{}", `{"text":"x","time":"9999-12-31T23:59:59Z"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		store := &counting{}
		added, skipped, err := memory.NewService(store, nil).Import(t.Context(), "w", strings.NewReader(in))
		if err != nil && (fault.KindOf(err) != fault.Usage || added+skipped+store.added != 0) {
			t.Fatalf("%d added, %d skipped, %d stored, %v", added, skipped, store.added, err)
		}
	})
}

func TestPropertyExportImport(t *testing.T) {
	a, b := service(t), service(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		ws := fmt.Sprint("w", count)
		n, err := a.Add(t.Context(), memory.Note{Workspace: ws, Text: "x" + rapid.String().Draw(rt, "text"), Time: time.Unix(rapid.Int64Range(-1e9, 4e9).Draw(rt, "time"), 7)})
		if err != nil {
			rt.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := a.Export(t.Context(), ws, &out); err != nil {
			rt.Fatal(err)
		}
		if _, _, err := b.Import(t.Context(), ws, &out); err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff([]memory.Note{n}, all(t, b, ws)); d != "" {
			rt.Fatal(d)
		}
	})
}
