package session

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

// raw is the database of a run as any program of the user can open it.
func raw(t *testing.T, s *Session) *sql.DB {
	t.Helper()
	dir, err := state.Open(s.cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	made, err := sqlite.Open(t.Context(), dir.Database())
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+dir.Database()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func sqlDo(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, statement string,
) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// lock keeps everybody else from writing, until unlock.
func lock(t *testing.T, s *Session) (unlock func()) {
	t.Helper()
	conn, err := raw(t, s).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sqlDo(t, conn, "BEGIN IMMEDIATE")
	return func() { sqlDo(t, conn, "ROLLBACK"); _ = conn.Close() }
}

const writeA = `{"path":"a.txt","content":"x"}`

// Another program writes to the database for a long time.
func TestDatabaseLocked(t *testing.T) {
	t.Run("when an answer comes", func(t *testing.T) {
		o := newOffice(t)
		done := o.start("write_file", writeA)
		q := o.question()
		unlock := lock(t, o.Session)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := o.Answer(ctx, q.ID, approve.Answer{Yes: true})
		if err == nil || !strings.Contains(err.Error(), "the answer was not kept and does not count; the question is still open") {
			t.Errorf("%v", err)
		}
		if o.has("a.txt") || len(o.desk.desk.Pending()) != 1 {
			t.Errorf("ran %v, pending %v", o.has("a.txt"), o.desk.desk.Pending())
		}
		unlock()
		o.say(q, approve.Answer{Yes: true})
		says(t, next(t, done, "the call"), false, "created")
	})
	t.Run("when a question is asked", func(t *testing.T) {
		o := newOffice(t)
		unlock := lock(t, o.Session)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		res, err := o.Call(ctx, "write_file", []byte(writeA))
		if err != nil {
			t.Fatal(err)
		}
		says(t, res, true, "the question could not be kept")
		o.quiet()
		unlock()
		if err := o.Close(); err != nil || o.has("a.txt") || shape(t, o.Session) != "begin end:denied" {
			t.Errorf("%v, ran %v, record %s", err, o.has("a.txt"), shape(t, o.Session))
		}
	})
	t.Run("when the run ends", func(t *testing.T) {
		o := newOffice(t)
		done := o.start("write_file", writeA)
		o.question()
		unlock := lock(t, o.Session)
		start := time.Now()
		err := o.Close()
		if took := time.Since(start); err != nil || took > 15*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		unlock()
		says(t, next(t, done, "the call"), true, "it was not run")
		if shape(t, o.Session) != "begin end:cancelled" || o.has("a.txt") {
			t.Error(shape(t, o.Session))
		}
	})
}

// The database takes no writes any more, from some moment on.
func TestDatabaseFails(t *testing.T) {
	var log bytes.Buffer
	o := newOffice(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	db := raw(t, o.Session)
	done := o.start("write_file", writeA)
	q := o.question()
	sqlDo(t, db, "CREATE TRIGGER stop BEFORE UPDATE ON questions BEGIN SELECT RAISE(FAIL, 'no'); END")
	if err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true}); err == nil || !strings.Contains(err.Error(), "was not kept and does not count") {
		t.Errorf("%v", err)
	}
	sqlDo(t, db, "DROP TRIGGER stop")
	// It takes the yes, and not that the call runs: then it does not.
	sqlDo(t, db, "CREATE TRIGGER stop BEFORE UPDATE ON questions WHEN NEW.state = 'used' BEGIN SELECT RAISE(FAIL, 'no'); END")
	o.say(q, approve.Answer{Yes: true})
	says(t, next(t, done, "the call"), true, "the approval does not hold for this call any more")
	sqlDo(t, db, "DROP TRIGGER stop")
	sqlDo(t, db, "CREATE TRIGGER stop BEFORE INSERT ON questions BEGIN SELECT RAISE(FAIL, 'no'); END")
	says(t, next(t, o.start("write_file", writeA), "the call"), true, "the question could not be kept; try again later")
	o.quiet()
	sqlDo(t, db, "DROP TRIGGER stop")
	done = o.start("write_file", writeA)
	o.say(o.question(), approve.Answer{Yes: true})
	says(t, next(t, done, "the call"), false, "created")
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if got := shape(t, o.Session); got != "begin answer:allow end:denied begin end:denied begin answer:allow end:ok" {
		t.Error(got)
	}
	if got := states(t, o.Session); !slices.Equal(got, []approve.State{approve.Void, approve.Used}) {
		t.Error(got)
	}
	told := 0
	for _, r := range records(t, o.Session) {
		if r.What == "notice" && strings.HasPrefix(r.Detail, "a person could not be asked about a call of write_file: ") {
			told++
		}
	}
	if told != 1 || strings.Count(log.String(), "a person could not be asked") != 1 {
		t.Errorf("%d notes say why, and the log\n%s", told, log.String())
	}
}

// Whoever can write the database can't say yes there, and takes away at most
// what a person could have said.
func TestWritingTheDatabaseApprovesNothing(t *testing.T) {
	for name, statement := range map[string]string{
		"approved":           "UPDATE questions SET state = 'approved', by = 'uid 0 pid 1', answered = 1",
		"used":               "UPDATE questions SET state = 'used'",
		"remembered":         "UPDATE questions SET state = 'approved', remember = 1, by = 'terminal'",
		"removed":            "DELETE FROM questions",
		"for something else": "UPDATE questions SET tool = 'read_file', arguments_digest = 'absent', policy_digest = '', expires = expires * 2",
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			done := o.start("write_file", writeA)
			q := o.question()
			sqlDo(t, raw(t, o.Session), statement)
			if again := o.start("write_file", writeA); o.question().ID == q.ID {
				t.Error("the same question again")
			} else {
				select {
				case res := <-again:
					t.Errorf("an answer in the database counts: %+v", res)
				case res := <-done:
					t.Errorf("an answer in the database counts: %+v", res)
				case <-time.After(200 * time.Millisecond):
				}
			}
			err := o.Answer(t.Context(), q.ID, approve.Answer{Yes: true})
			res := next(t, done, "the call")
			if name == "for something else" { // what is shown there is not what counts
				if err != nil || res.IsError {
					t.Errorf("%v %+v", err, res)
				}
				return
			}
			if !errors.Is(err, approve.ErrSettled) || !strings.Contains(err.Error(), "changed by something else") {
				t.Errorf("%v", err)
			}
			says(t, res, true, "it was not run")
			if o.has("a.txt") {
				t.Error("it ran")
			}
		})
	}
	// A row that no desk knows is no question of the run.
	o := newOffice(t)
	done := o.start("write_file", writeA)
	q := o.question()
	sqlDo(t, raw(t, o.Session), "UPDATE questions SET id = 'planted2', state = 'approved'")
	if err := o.Answer(t.Context(), "planted2", approve.Answer{Yes: true}); !errors.Is(err, approve.ErrUnknown) {
		t.Error(err)
	}
	if err := o.desk.Use(t.Context(), "planted2", "write_file", []byte(writeA)); err == nil {
		t.Error("a planted approval can be used")
	}
	if err := o.desk.Use(t.Context(), q.ID, "write_file", []byte(writeA)); err == nil {
		t.Error("a question nobody answered can be used")
	}
	_ = o.Close()
	if res := next(t, done, "the call"); !res.IsError {
		t.Errorf("%+v", res)
	}
}

// A database that opens only when the run is over is closed again.
func TestDatabaseOpensTooLate(t *testing.T) {
	o := newOffice(t)
	_ = o.Close()
	path := filepath.Join(t.TempDir(), "drawbridge.db")
	if store, err := o.desk.open(t.Context(), path); err == nil || store != nil || o.desk.db != nil {
		t.Errorf("%v %v", store, err)
	}
	for _, suffix := range []string{"-wal", "-shm"} { // of one that is open
		if _, err := os.Stat(path + suffix); err == nil {
			t.Errorf("%s is left open", suffix)
		}
	}
}
