package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
	"github.com/drawbridge-mcp/drawbridge/internal/store/storetest"
)

// answersEnv makes the test binary a process that tries to settle every pending
// question of the database it names, and prints the IDs it did settle.
const answersEnv = "DRAWBRIDGE_TEST_ANSWERS"

func answerAll(path string) error {
	ctx := context.Background()
	db, err := Open(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	s := db.Questions()
	list, err := s.Questions(ctx, "", false)
	if err != nil {
		return err
	}
	for _, q := range list {
		q.State, q.By, q.Answered = approve.Approved, fmt.Sprint("pid ", os.Getpid()), time.Now()
		switch err := s.Settle(ctx, q, approve.Pending); {
		case err == nil:
			fmt.Println(q.ID)
		case !errors.Is(err, approve.ErrSettled):
			return err
		}
	}
	return nil
}

func TestQuestions(t *testing.T) {
	storetest.Questions(t, func(t *testing.T) (a, b approve.Store) {
		path := filepath.Join(t.TempDir(), "drawbridge.db")
		return openAt(t, path).Questions(), openAt(t, path).Questions()
	})
}

func pending(id string) approve.Question {
	return approve.Question{ID: id, Run: "r", State: approve.Pending, Asked: time.Unix(1, 0).UTC()}
}

// TestProcessesSettle has each question settled by exactly one of many
// processes.
func TestProcessesSettle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	s := openAt(t, path).Questions()
	const questions, processes = 25, 3
	for i := range questions {
		if err := s.Add(t.Context(), pending(fmt.Sprintf("id%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	won := map[string]int{}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), answersEnv+"="+path)
			var failed bytes.Buffer
			cmd.Stderr = &failed
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v: %s", err, &failed)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range strings.Fields(string(out)) {
				won[id]++
			}
		})
	}
	wg.Wait()
	if len(won) != questions {
		t.Errorf("%d of %d questions were settled", len(won), questions)
	}
	for id, n := range won {
		if n != 1 {
			t.Errorf("%s was settled %d times", id, n)
		}
	}
}

func TestQuestionsWhileLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	holder, waiter := openAt(t, path), openAt(t, path)
	q := pending("a")
	if err := waiter.Questions().Add(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	tx, err := holder.sql.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	denied := q
	denied.State = approve.Denied
	if err := waiter.Questions().Settle(ctx, denied, approve.Pending); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > busyFor/2 {
		t.Errorf("after %v: %v, want the end of the context", time.Since(start), err)
	}
	if got, err := waiter.Questions().Question(t.Context(), "a"); err != nil || got.State != approve.Pending {
		t.Errorf("a reader beside a writer: %s, %v; want pending", got.State, err)
	}
	// One connection, so that the shorter wait below is the one in use.
	waiter.sql.SetMaxOpenConns(1)
	if _, err := waiter.sql.Exec("PRAGMA busy_timeout(20)"); err != nil {
		t.Fatal(err)
	}
	faulted(t, waiter.Questions().Settle(t.Context(), denied, approve.Pending), "the database is busy")
	faulted(t, waiter.Questions().Add(t.Context(), pending("b")), "the database is busy")
}

func TestQuestionsReadOnly(t *testing.T) {
	db := open(t)
	s := db.Questions()
	q := pending("a")
	if err := s.Add(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	db.sql.SetMaxOpenConns(1)
	if _, err := db.sql.Exec("PRAGMA query_only(1)"); err != nil {
		t.Fatal(err)
	}
	approved := q
	approved.State = approve.Approved
	faulted(t, s.Settle(t.Context(), approved, approve.Pending), "can't be written")
	faulted(t, s.Add(t.Context(), pending("b")), "can't be written")
	faulted(t, s.Forget(t.Context(), "r"), "can't be written")
	if list, err := s.Questions(t.Context(), "", true); err != nil || len(list) != 1 {
		t.Errorf("pending: %v, %v; want the one", list, err)
	}
}

// TestOlderDatabaseIsBroughtUpToDate opens one from before there were questions.
func TestOlderDatabaseIsBroughtUpToDate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	now := migrations
	migrations = now[:1]
	db, err := Open(t.Context(), path)
	migrations = now
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Notes().Add(t.Context(), []memory.Note{{ID: "n", Workspace: "w", Text: "before"}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db := openAt(t, path)
		if _, err := db.Questions().Questions(t.Context(), "", false); err != nil {
			t.Fatal(err)
		}
		got, err := db.Notes().Search(t.Context(), "w", memory.ParseQuery("before"), 2)
		if err != nil || len(got) != 1 {
			t.Errorf("%d notes, %v; want the one from before", len(got), err)
		}
	}
}

// TestQuestionsAreFoundByIndex holds that what is asked all the time does not
// walk what has piled up.
func TestQuestionsAreFoundByIndex(t *testing.T) {
	db := open(t)
	for where, index := range map[string]string{
		"WHERE state = 'pending' ORDER BY num":               "questions_pending",
		"WHERE run = 'r' ORDER BY num":                       "questions_run",
		"WHERE run = 'r' AND state = 'pending' ORDER BY num": "questions_",
		"WHERE id = 'a'":                                     "sqlite_autoindex_questions_1",
	} {
		var id, parent, unused int
		var detail string
		err := db.sql.QueryRow("EXPLAIN QUERY PLAN SELECT note FROM questions "+where).Scan(&id, &parent, &unused, &detail)
		if err != nil || !strings.Contains(detail, "INDEX "+index) {
			t.Errorf("%s: %s, %v; want %s", where, detail, err, index)
		}
	}
}
