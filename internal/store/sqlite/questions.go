package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// Times are ns since 1970, 0 for none. num is the order in which the questions
// were asked, whatever the clock did.
const questionsSchema = `
CREATE TABLE questions (
	num              INTEGER PRIMARY KEY,
	id               TEXT NOT NULL UNIQUE,
	run              TEXT NOT NULL,
	workspace        TEXT NOT NULL,
	channel          TEXT NOT NULL,
	user             TEXT NOT NULL,
	agent            TEXT NOT NULL,
	call             INTEGER NOT NULL,
	tool             TEXT NOT NULL,
	effects          TEXT NOT NULL,
	arguments        TEXT NOT NULL,
	arguments_digest TEXT NOT NULL,
	arguments_size   INTEGER NOT NULL,
	plan             TEXT NOT NULL,
	policy_digest    TEXT NOT NULL,
	layer            TEXT NOT NULL,
	rule             TEXT NOT NULL,
	reason           TEXT NOT NULL,
	asked            INTEGER NOT NULL,
	expires          INTEGER NOT NULL,
	state            TEXT NOT NULL,
	by               TEXT NOT NULL,
	answered         INTEGER NOT NULL,
	note             TEXT NOT NULL,
	remember         INTEGER NOT NULL
) STRICT;
CREATE INDEX questions_run ON questions (run);
CREATE INDEX questions_pending ON questions (num) WHERE state = 'pending';
`

const questionColumns = `id, run, workspace, channel, user, agent, call, tool, effects,
	arguments, arguments_digest, arguments_size, plan, policy_digest, layer, rule, reason,
	asked, expires, state, by, answered, note, remember`

// questions implements approve.Store.
type questions DB

func (s *questions) Add(ctx context.Context, q approve.Question) error {
	if q.State != approve.Pending {
		return fault.New(fault.Usage, "ask it again", "a question can only be kept while it is pending (this one is %s)", q.State)
	}
	return (*DB)(s).tx(ctx, false, func(tx *sql.Tx) error {
		added, err := affected(tx.ExecContext(ctx, "INSERT INTO questions ("+questionColumns+`)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			q.ID, q.Run, q.Workspace, q.Channel, q.User, q.Agent, q.Call, q.Tool, q.Effects,
			q.Arguments, q.ArgumentsDigest, q.ArgumentsSize, q.Plan, q.PolicyDigest, q.Layer, q.Rule, q.Reason,
			nanos(q.Asked), nanos(q.Expires), string(q.State), q.By, nanos(q.Answered), q.Note, q.Remember))
		if err == nil && added == 0 {
			err = fault.New(fault.Usage, "ask it again", "there is a question %s already", q.ID)
		}
		return err
	})
}

func (s *questions) Settle(ctx context.Context, q approve.Question, from approve.State) error {
	var no error
	err := (*DB)(s).tx(ctx, false, func(tx *sql.Tx) error {
		settled, err := affected(tx.ExecContext(ctx, `UPDATE questions
			SET state = ?, by = ?, answered = ?, note = ?, remember = ? WHERE id = ? AND state = ?`,
			string(q.State), q.By, nanos(q.Answered), q.Note, q.Remember, q.ID, string(from)))
		if err != nil || settled == 1 {
			return err
		}
		no = approve.ErrSettled
		var known bool
		if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM questions WHERE id = ?)", q.ID).Scan(&known); err != nil {
			return err
		}
		if !known {
			no = approve.ErrUnknown
		}
		return nil
	})
	if err != nil {
		return err
	}
	return no
}

func (s *questions) Question(ctx context.Context, id string) (approve.Question, error) {
	q, err := scanQuestion(s.sql.QueryRowContext(ctx, "SELECT "+questionColumns+" FROM questions WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return approve.Question{}, approve.ErrUnknown
	}
	return q, (*DB)(s).fault(ctx, err)
}

func (s *questions) Questions(ctx context.Context, run string, pending bool) ([]approve.Question, error) {
	list, err := s.list(ctx, run, pending)
	if err != nil {
		return nil, (*DB)(s).fault(ctx, err)
	}
	return list, nil
}

func (s *questions) list(ctx context.Context, run string, pending bool) ([]approve.Question, error) {
	where, args := "", []any{}
	switch {
	case run != "" && pending:
		where, args = "WHERE run = ? AND state = 'pending' ", []any{run}
	case run != "":
		where, args = "WHERE run = ? ", []any{run}
	case pending:
		where = "WHERE state = 'pending' "
	}
	rows, err := s.sql.QueryContext(ctx, "SELECT "+questionColumns+" FROM questions "+where+"ORDER BY num", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []approve.Question
	for rows.Next() {
		q, err := scanQuestion(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	return list, rows.Err()
}

func (s *questions) Forget(ctx context.Context, run string) error {
	return (*DB)(s).tx(ctx, false, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM questions WHERE run = ?", run)
		return err
	})
}

func scanQuestion(row interface{ Scan(...any) error }) (q approve.Question, err error) {
	var asked, expires, answered int64
	err = row.Scan(&q.ID, &q.Run, &q.Workspace, &q.Channel, &q.User, &q.Agent, &q.Call, &q.Tool, &q.Effects,
		&q.Arguments, &q.ArgumentsDigest, &q.ArgumentsSize, &q.Plan, &q.PolicyDigest, &q.Layer, &q.Rule, &q.Reason,
		&asked, &expires, &q.State, &q.By, &answered, &q.Note, &q.Remember)
	q.Asked, q.Expires, q.Answered = utc(asked), utc(expires), utc(answered)
	return q, err
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func utc(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
