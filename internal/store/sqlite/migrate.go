package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// applicationID marks the file as ours ("DrBr"), for us and for file(1).
const applicationID = 0x44724272

// migrations bring a database from the version that is their index to the next.
// A released one is never changed.
var migrations = []string{notesSchema, questionsSchema}

// migrate checks whose database this is and brings it up to date.
func (db *DB) migrate(ctx context.Context) error {
	conn, err := db.sql.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	version, err := versionOf(ctx, conn)
	if err != nil || version == len(migrations) {
		return err
	}
	if version == 0 {
		if err := useWAL(ctx, conn); err != nil {
			return err
		}
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// Another process may have been first; only under the lock is it certain.
	if version, err = versionOf(ctx, tx); err != nil {
		return err
	}
	for ; version < len(migrations); version++ {
		if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
			return err
		}
	}
	mark := fmt.Sprintf("PRAGMA application_id(%d); PRAGMA user_version(%d)", applicationID, version)
	if _, err := tx.ExecContext(ctx, mark); err != nil {
		return err
	}
	return tx.Commit()
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// versionOf is how many migrations the database has seen, 0 for a new file.
func versionOf(ctx context.Context, q queryer) (int, error) {
	var id, version, tables int
	err := q.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&id, &version, &tables)
	switch {
	case err != nil:
		return 0, err
	case id != applicationID && (id != 0 || version != 0 || tables != 0):
		return 0, fault.New(fault.Usage, "move the file away, or choose another state directory", "the database belongs to another program")
	case version > len(migrations):
		return 0, fault.New(fault.Usage, "upgrade drawbridge, or choose another state directory",
			"the database is from a newer drawbridge (its version is %d, this one knows up to %d)", version, len(migrations))
	}
	return version, nil
}

// useWAL is kept in the file, so it is done once. Two processes that switch the
// same new file at once get SQLITE_BUSY without any wait, to keep them from
// waiting for each other, so the wait is ours.
func useWAL(ctx context.Context, conn *sql.Conn) error {
	for wait := time.Millisecond; ; wait *= 2 {
		_, err := conn.ExecContext(ctx, "PRAGMA journal_mode(WAL)")
		e, ok := errors.AsType[*driver.Error](err)
		if !ok || e.Code()&0xFF != lib.SQLITE_BUSY || wait > busyFor {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
