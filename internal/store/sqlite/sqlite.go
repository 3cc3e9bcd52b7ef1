// Package sqlite keeps Drawbridge's state in one SQLite file that many
// processes may use at once.
//
// The file is in WAL mode, so readers wait for nobody. Writers queue: each
// transaction that writes takes the lock when it begins, and waits up to 10 s
// for it, or until its context ends. Commits are synced in full
// (synchronous=FULL): a write is answered to an agent and recorded in an audit
// that survives a loss of power, so the write has to survive it too.
//
// The file and SQLite's -wal and -shm beside it have mode 0600 under any umask.
// On Windows they have what the directory passes on.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/memory"
)

// DB is an open database. It is safe for concurrent use.
type DB struct {
	path string
	sql  *sql.DB
	// writing holds a value while this process writes. SQLite lets one writer in
	// and makes the others poll; those of one process can simply queue, and leave
	// the connections to the readers.
	writing chan struct{}
}

const (
	// Each connection may cache half a MiB of pages, and there are at most two: a
	// run's process has to stay small.
	maxConns  = 2
	cacheKiB  = 512
	busyFor   = 10 * time.Second
	walMaxMiB = 8
)

// Open opens the database at path, an absolute or relative file name, and
// creates it, and a missing directory for it (0700), where there is none. It
// brings an older database up to date. A database of a newer Drawbridge, and a
// file that is something else, are refused and left as they are.
//
// Errors of Open and of everything reached from the DB are ctx.Err() where the
// context ended first, else a *fault.Error of kind Usage whose Message holds
// neither path nor driver text; they are in its Err.
func Open(ctx context.Context, path string) (*DB, error) {
	db := &DB{path: path, writing: make(chan struct{}, 1)}
	if err := db.open(ctx); err != nil {
		if db.sql != nil {
			db.sql.Close()
		}
		return nil, db.fault(ctx, err)
	}
	return db, nil
}

// Close waits for statements in flight and closes the file.
func (db *DB) Close() error { return db.fault(context.Background(), db.sql.Close()) }

// Notes is the memory kept in this database.
func (db *DB) Notes() memory.Store { return (*notes)(db) }

// Questions is what was asked and answered in this database. Its errors are
// also approve.ErrSettled and approve.ErrUnknown.
func (db *DB) Questions() approve.Store { return (*questions)(db) }

func (db *DB) open(ctx context.Context) error {
	abs, err := filepath.Abs(db.path)
	if err != nil {
		return err
	}
	db.path = abs
	if err := prepareFile(abs); err != nil {
		return err
	}
	if db.sql, err = sql.Open("sqlite", dsn(abs)); err != nil {
		return err
	}
	db.sql.SetMaxOpenConns(maxConns)
	db.sql.SetMaxIdleConns(maxConns)
	return db.migrate(ctx)
}

func dsn(path string) string {
	slashed := filepath.ToSlash(path)
	if runtime.GOOS == "windows" {
		slashed = "/" + slashed
	}
	q := url.Values{}
	q.Set("_txlock", "immediate")
	q.Set("_defensive", "1")
	q.Set("_dqs", "0")
	q.Set("_busy_timeout", fmt.Sprint(busyFor.Milliseconds()))
	q["_pragma"] = []string{
		"synchronous(FULL)",
		fmt.Sprintf("cache_size(-%d)", cacheKiB),
		fmt.Sprintf("journal_size_limit(%d)", walMaxMiB<<20),
		"trusted_schema(OFF)",
	}
	u := url.URL{Scheme: "file", Path: slashed, RawQuery: q.Encode()}
	return u.String()
}

// creating serializes prepareFile in this process. Closing any descriptor of a
// file drops every POSIX lock the process holds on it, so no connection may be
// open yet when the descriptor that created the file is closed.
var creating sync.Mutex

// prepareFile makes sure that path is a regular file with mode 0600. SQLite
// gives its -wal and -shm files the mode of the database. An existing file is
// never opened here, for the reason given at creating.
func prepareFile(path string) error {
	creating.Lock()
	defer creating.Unlock()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fault.Wrap(err, fault.Usage, "choose another state directory, or make this one writable", "the directory for the database can't be made")
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		return errors.Join(f.Chmod(0o600), f.Close())
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fault.Wrap(fmt.Errorf("%s: %s", path, info.Mode().Type()), fault.Usage, "move it away", "the database is not a regular file")
	}
	if info.Mode().Perm() == 0o600 || runtime.GOOS == "windows" {
		return nil
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		if err := os.Chmod(name, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// tx runs f in a transaction, and commits it when f returns nil.
func (db *DB) tx(ctx context.Context, readOnly bool, f func(*sql.Tx) error) error {
	if !readOnly {
		select {
		case db.writing <- struct{}{}:
			defer func() { <-db.writing }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	tx, err := db.sql.BeginTx(ctx, &sql.TxOptions{ReadOnly: readOnly})
	if err == nil {
		err = f(tx)
		if err == nil {
			err = tx.Commit()
		} else {
			tx.Rollback()
		}
	}
	return db.fault(ctx, err)
}

// fault turns err into what Open promises.
func (db *DB) fault(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	message, hint := "the database failed", "run `drawbridge doctor`"
	const full, damaged = "no space left for the database", "the database is damaged"
	if e, ok := errors.AsType[*driver.Error](err); ok {
		switch e.Code() & 0xFF {
		case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_PROTOCOL:
			message, hint = "the database is busy", "another process has been writing to it for a long time; try again when that is done"
		case lib.SQLITE_FULL:
			message, hint = full, "free space on its disk"
		case lib.SQLITE_READONLY, lib.SQLITE_PERM, lib.SQLITE_AUTH:
			message, hint = "the database can't be written", "make the file, its -wal and -shm and their directory writable"
		case lib.SQLITE_CANTOPEN:
			message, hint = "the database can't be opened", "make the file and its directory readable and writable"
		case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
			message, hint = damaged, "move the file and its -wal and -shm away and put a copy back; notes can be imported from an export"
		case lib.SQLITE_IOERR:
			message, hint = "the disk of the database failed", "see the system's log"
		case lib.SQLITE_NOMEM:
			message, hint = "no memory left for the database", ""
		}
	} else if errors.Is(err, fs.ErrPermission) {
		message, hint = "the database can't be opened", "make the file and its directory readable and writable"
	}
	return fault.Wrap(fmt.Errorf("%s: %w", db.path, err), fault.Usage, hint, "%s", message)
}
