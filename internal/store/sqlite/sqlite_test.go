package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/store/storetest"
)

// childEnv makes the test binary one of many processes that write to the
// database it names.
const childEnv = "DRAWBRIDGE_TEST_DATABASE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv(answersEnv); path != "" {
		if err := answerAll(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const eachChild = 30

func child(path string) error {
	ctx := context.Background()
	db, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	service := memory.NewService(db.Notes(), nil)
	run := fmt.Sprint("run-", os.Getpid())
	for i := range eachChild {
		n, err := service.Add(ctx, memory.Note{Workspace: "w", Run: run, Text: fmt.Sprintf("note %d of %s", i, run)})
		if err != nil {
			return err
		}
		if i%3 == 0 {
			if _, err := service.Delete(ctx, "w", n.ID); err != nil {
				return err
			}
			if _, err := service.Add(ctx, memory.Note{Workspace: "w", Run: run, Text: n.Text}); err != nil {
				return err
			}
		}
		if _, err := service.Search(ctx, "w", "note of "+run, 5); err != nil {
			return err
		}
	}
	return nil
}

func open(t testing.TB) *DB {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "drawbridge.db"))
}

func openAt(t testing.TB, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestNotes(t *testing.T) {
	storetest.Notes(t, func(t *testing.T) memory.Store { return open(t).Notes() })
}

// TestEnglishIsStemmed is this store's own, beyond the contract.
func TestEnglishIsStemmed(t *testing.T) {
	store := open(t).Notes()
	if _, err := store.Add(t.Context(), []memory.Note{{ID: "a", Workspace: "w", Text: "The reviews were fixed"}}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"review", "reviewing", "fix", "fixes", "fixes*"} {
		if got, err := store.Search(t.Context(), "w", memory.ParseQuery(q), 1); err != nil || len(got) != 1 {
			t.Errorf("%s: %d notes, %v", q, len(got), err)
		}
	}
}

// TestProcesses starts many processes at once on a database that does not exist
// yet.
func TestProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "drawbridge.db")
	const processes = 6
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	db := openAt(t, path)
	ids := map[string]bool{}
	runs := map[string]int{}
	for n, err := range db.Notes().List(t.Context(), "w", memory.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids[n.ID] = true
		runs[n.Run]++
	}
	if len(ids) != processes*eachChild || len(runs) != processes {
		t.Errorf("%d notes of %d runs, want %d of %d", len(ids), len(runs), processes*eachChild, processes)
	}
	var check string
	if err := db.sql.QueryRow("PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("integrity check: %s, %v", check, err)
	}
}

func TestOpenAtOnceInOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			db, err := Open(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			n := memory.Note{ID: fmt.Sprint(i), Workspace: "w", Text: "word"}
			if k, err := db.Notes().Add(t.Context(), []memory.Note{n}); k != 1 || err != nil {
				t.Errorf("Add = %d, %v", k, err)
			}
		})
	}
	wg.Wait()
	got, err := openAt(t, path).Notes().Search(t.Context(), "w", memory.ParseQuery("word"), 100)
	if err != nil || len(got) != 8 {
		t.Errorf("%d notes, %v; want 8", len(got), err)
	}
}

// TestKilledWriter ends a process in the middle of its work: what it added
// stays, and nothing is half there.
func TestKilledWriter(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no kill -9 on this system")
	}
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	db := openAt(t, path)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, err := range db.Notes().List(t.Context(), "w", memory.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	for count() < 3 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	left := count()
	found, err := db.Notes().Search(t.Context(), "w", memory.ParseQuery("note"), 100)
	if err != nil || len(found) != left || left < 3 {
		t.Errorf("%d notes listed, %d found, %v", left, len(found), err)
	}
	if k, err := db.Notes().Add(t.Context(), []memory.Note{{ID: "after", Workspace: "w", Text: "after"}}); k != 1 || err != nil {
		t.Errorf("Add = %d, %v", k, err)
	}
}

func TestField104_Mode0600(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no file modes on this system")
	}
	path := filepath.Join(t.TempDir(), "new", "drawbridge.db")
	check := func() {
		t.Helper()
		for _, name := range []string{path, path + "-wal", path + "-shm"} {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %o", filepath.Base(name), info.Mode().Perm())
			}
		}
	}
	for _, mask := range []int{0, 0o777} {
		path += fmt.Sprint(mask)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		restore := umask(mask)
		db, err := Open(t.Context(), path)
		if err == nil {
			_, err = db.Notes().Add(t.Context(), []memory.Note{{ID: "a", Workspace: "w", Text: "x"}})
		}
		restore()
		if err != nil {
			t.Fatal(err)
		}
		check()
		db.Close()
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	db := openAt(t, path)
	if _, err := db.Notes().Delete(t.Context(), "w", []string{"a"}); err != nil {
		t.Fatal(err)
	}
	check()
}

// faulted checks that err is a fault whose message has what, and neither path
// nor driver text.
func faulted(t *testing.T, err error, what string) {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("%v (%T), want a fault with %q", err, err, what)
	}
	if !strings.Contains(f.Message, what) || f.Kind != fault.Usage || f.Hint == "" {
		t.Errorf("message %q, kind %d, hint %q; want %q", f.Message, f.Kind, f.Hint, what)
	}
	if regexp.MustCompile(`(?i)sqlite|/|\(\d+\)|\n`).MatchString(f.Message) {
		t.Errorf("message %q says too much", f.Message)
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	db := openAt(t, path)
	if _, err := db.sql.Exec("PRAGMA user_version(99)"); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), path)
	faulted(t, err, "from a newer drawbridge (its version is 99")
}

func TestForeignFileIsRefusedAndLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec("CREATE TABLE t (x)"); err != nil {
		t.Fatal(err)
	}
	other.Close()
	before, _ := os.ReadFile(path)
	_, err = Open(t.Context(), path)
	faulted(t, err, "belongs to another program")
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "text")
	if err := os.WriteFile(path, bytes.Repeat([]byte("not a database\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), path)
	faulted(t, err, "the database is damaged")

	path = filepath.Join(dir, "torn.db")
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	corpus(t, db.Notes(), 500)
	db.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 4096; i < len(b); i++ {
		b[i] ^= 0x5A
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db = openAt(t, path)
	_, err = db.Notes().Search(t.Context(), "big", memory.ParseQuery("the"), 10)
	faulted(t, err, "the database is damaged")
	_, err = db.Notes().Add(t.Context(), []memory.Note{{ID: "a", Workspace: "big", Text: "x"}})
	faulted(t, err, "the database is damaged")
}

func TestFull(t *testing.T) {
	db := open(t)
	db.sql.SetMaxOpenConns(1) // the limit below belongs to a connection
	if _, err := db.sql.Exec("PRAGMA max_page_count(1)"); err != nil {
		t.Fatal(err)
	}
	notes := []memory.Note{{ID: "a", Workspace: "w", Text: "small"}, {ID: "b", Workspace: "w", Text: strings.Repeat("big ", 10_000)}}
	k, err := db.Notes().Add(t.Context(), notes)
	faulted(t, err, "no space left")
	if k != 0 {
		t.Errorf("Add = %d beside an error", k)
	}
	got, err := db.Notes().Search(t.Context(), "w", memory.ParseQuery("small"), 10)
	if err != nil || len(got) != 0 {
		t.Errorf("half of a failed Add is there: %v, %v", got, err)
	}
}

func TestCannotBeWritten(t *testing.T) {
	db := open(t)
	db.sql.SetMaxOpenConns(1)
	if _, err := db.sql.Exec("PRAGMA query_only(1)"); err != nil {
		t.Fatal(err)
	}
	_, err := db.Notes().Add(t.Context(), []memory.Note{{ID: "a", Workspace: "w", Text: "x"}})
	faulted(t, err, "can't be written")

	_, err = Open(t.Context(), t.TempDir())
	faulted(t, err, "not a regular file")

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), filepath.Join(file, "drawbridge.db"))
	faulted(t, err, "the directory for the database can't be made")
}

func TestDirectoryNotWritable(t *testing.T) {
	if os.Getuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("root may write everywhere, and Windows has no such mode")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), filepath.Join(dir, "drawbridge.db"))
	faulted(t, err, "can't be opened")
}

func TestBusyEndsWithTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	holder, waiter := openAt(t, path), openAt(t, path)
	tx, err := holder.sql.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = waiter.Notes().Add(ctx, []memory.Note{{ID: "a", Workspace: "w", Text: "x"}})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > busyFor/2 {
		t.Errorf("after %v: %v, want the end of the context", time.Since(start), err)
	}
	if got, err := waiter.Notes().Search(t.Context(), "w", memory.ParseQuery("x"), 1); err != nil || len(got) != 0 {
		t.Errorf("a reader beside a writer: %v, %v", got, err)
	}
}

func TestOddPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b.db", "q?x=1.db", "h#1.db", "p%41.db", "ä&=.db"} {
		path := filepath.Join(dir, name)
		openAt(t, path)
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	t.Chdir(dir)
	openAt(t, "relative.db")
	if _, err := os.Stat(filepath.Join(dir, "relative.db")); err != nil {
		t.Error(err)
	}
}

// TestSearchReadsItsOwnWorkspaceOnly holds what makes search fast: both the
// index and the table are walked by key, and nothing is sorted.
func TestSearchReadsItsOwnWorkspaceOnly(t *testing.T) {
	db := open(t)
	rows, err := db.sql.Query("EXPLAIN QUERY PLAN "+selectCandidates, `"a"`, 1, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, detail)
	}
	for _, bad := range []string{"TEMP B-TREE", "SCAN n"} {
		if strings.Contains(plan.String(), bad) {
			t.Errorf("the plan has %q:\n%s", bad, &plan)
		}
	}
	if !strings.Contains(plan.String(), "VIRTUAL TABLE INDEX") || !strings.Contains(plan.String(), "><") {
		t.Errorf("the plan does not bound the keys:\n%s", &plan)
	}
}

// TestSearchOfACommonWord is the small brother of BenchmarkSearch: every kind of
// search on a corpus where the words are common. The bound is against a hang.
func TestSearchOfACommonWord(t *testing.T) {
	db := open(t)
	corpus(t, db.Notes(), 3000)
	service := memory.NewService(db.Notes(), nil)
	for _, s := range searches {
		start := time.Now()
		got, err := service.Search(t.Context(), s.workspace, s.query, 10)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if empty := s.name == "none" || s.name == "elsewhere"; empty != (len(got) == 0) {
			t.Errorf("%s: %d notes", s.name, len(got))
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", s.name, d)
		}
	}
}

// TestLibcIsTheOneSQLiteWants: modernc.org/sqlite is generated code that fits
// one version of modernc.org/libc, and module resolution may pick a newer one.
func TestLibcIsTheOneSQLiteWants(t *testing.T) {
	version := func(file, module string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v\S+)`).FindSubmatch(b)
		if m == nil {
			t.Fatalf("%s does not name %s", file, module)
		}
		return string(m[1])
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}", "modernc.org/sqlite").Output()
	if err != nil {
		t.Skip("the go command is not here: ", err)
	}
	ours := version(filepath.Join("..", "..", "..", "go.mod"), "modernc.org/libc")
	theirs := version(strings.TrimSpace(string(out)), "modernc.org/libc")
	if ours != theirs {
		t.Errorf("go.mod has modernc.org/libc %s, modernc.org/sqlite wants %s: go get modernc.org/libc@%s", ours, theirs, theirs)
	}
}
