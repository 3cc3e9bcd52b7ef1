package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"iter"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/memory"
)

// A note's key is its workspace's number in the high bits and its place in the
// order of additions in the low seqBits. So a workspace is a range of keys, in
// the table and in the index alike: a search walks its own workspace's entries
// only, newest first, however many notes others have.
//
// The index holds memory.Segment of the text and no copy of either. Its
// tokenizer is 'ascii', not 'unicode61': segments need no more than splitting at
// spaces, and unicode61 would split again by a table of Unicode older than
// Go's. porter adds English stemming.
const notesSchema = `
CREATE TABLE workspaces (
	num  INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE,
	last INTEGER NOT NULL -- place of the newest note there ever was
) STRICT;
CREATE TABLE notes (
	key     INTEGER PRIMARY KEY,
	id      TEXT NOT NULL,
	run     TEXT NOT NULL,
	agent   TEXT NOT NULL,
	channel TEXT NOT NULL,
	user    TEXT NOT NULL,
	time    INTEGER NOT NULL, -- ns since 1970
	text    TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX notes_id ON notes (id, key >> 40);
CREATE VIRTUAL TABLE notes_index USING fts5 (
	segments, content = '', contentless_delete = 1, tokenize = 'porter ascii'
);
CREATE TRIGGER notes_deleted AFTER DELETE ON notes BEGIN
	DELETE FROM notes_index WHERE rowid = old.key;
END;
`

const seqBits = 40

// span is the keys of one workspace.
type span struct{ num, last int64 }

func (s span) lo() int64 { return s.num << seqBits }
func (s span) hi() int64 { return s.lo() | (1<<seqBits - 1) }

// notes implements memory.Store.
type notes DB

func find(ctx context.Context, q queryer, workspace string) (span, error) {
	var s span
	err := q.QueryRowContext(ctx, "SELECT num, last FROM workspaces WHERE name = ?", workspace).Scan(&s.num, &s.last)
	if errors.Is(err, sql.ErrNoRows) {
		return span{}, nil // no note has a key in the range of number 0
	}
	return s, err
}

func (n *notes) Add(ctx context.Context, list []memory.Note) (added int, err error) {
	err = (*DB)(n).tx(ctx, false, func(tx *sql.Tx) error {
		added = 0
		insert, err := tx.PrepareContext(ctx, `INSERT INTO notes (key, id, run, agent, channel, user, time, text)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`)
		if err != nil {
			return err
		}
		defer insert.Close()
		index, err := tx.PrepareContext(ctx, "INSERT INTO notes_index (rowid, segments) VALUES (?, ?)")
		if err != nil {
			return err
		}
		defer index.Close()

		spans := map[string]*span{}
		for _, note := range list {
			s := spans[note.Workspace]
			if s == nil {
				s = new(span)
				if _, err := tx.ExecContext(ctx, "INSERT INTO workspaces (name, last) VALUES (?, 0) ON CONFLICT DO NOTHING", note.Workspace); err != nil {
					return err
				}
				if *s, err = find(ctx, tx, note.Workspace); err != nil {
					return err
				}
				spans[note.Workspace] = s
			}
			key := s.lo() | (s.last + 1)
			res, err := insert.ExecContext(ctx, key, note.ID, note.Run, note.Agent, note.Channel, note.User, note.Time.UnixNano(), note.Text)
			if err != nil {
				return err
			}
			if rows, err := res.RowsAffected(); err != nil || rows == 0 {
				if err != nil {
					return err
				}
				continue
			}
			if _, err := index.ExecContext(ctx, key, memory.Segment(note.Text)); err != nil {
				return err
			}
			s.last++
			added++
		}
		for _, s := range spans {
			if _, err := tx.ExecContext(ctx, "UPDATE workspaces SET last = ? WHERE num = ?", s.last, s.num); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return added, nil
}

func (n *notes) Search(ctx context.Context, workspace string, q memory.Query, limit int) ([]memory.Note, error) {
	found := []memory.Note{}
	if len(q.Terms) == 0 || limit < 1 {
		return found, nil
	}
	err := (*DB)(n).tx(ctx, true, func(tx *sql.Tx) error {
		s, err := find(ctx, tx, workspace)
		if err != nil || s.num == 0 {
			return err
		}
		keys, err := rank(ctx, tx, s, q, limit)
		if err != nil {
			return err
		}
		for _, key := range keys {
			note, err := scanNote(workspace, tx.QueryRowContext(ctx, selectNotes+"WHERE key = ?", key))
			if err != nil {
				return err
			}
			found = append(found, note)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// rank is not bm25, whose FTS5 function reads all entries of every term, of all
// workspaces, before the first note is ranked: over 100 ms for a word that is in
// most of 100,000 notes. Here at most memory.Candidates entries of a term are
// read, and how common it is follows from how far back those reach. The one
// thing that walks further is looking for common words together that never are.
func rank(ctx context.Context, tx *sql.Tx, s span, q memory.Query, limit int) ([]int64, error) {
	every := make([]string, len(q.Terms))
	for i, t := range q.Terms {
		every[i] = match(t)
	}
	hits, err := candidates(ctx, tx, s, strings.Join(every, " AND "))
	if err != nil {
		return nil, err
	}
	keys := best(hits)
	loose := q.Loose()
	if len(keys) >= limit || len(loose.Terms) < 2 {
		return keys[:min(limit, len(keys))], nil
	}
	some := map[int64]float64{}
	for _, t := range loose.Terms {
		hits, err := candidates(ctx, tx, s, match(t))
		if err != nil {
			return nil, err
		}
		idf := rarity(hits, s)
		for key, weight := range hits {
			some[key] += idf * weight
		}
	}
	for _, key := range keys {
		delete(some, key)
	}
	keys = append(keys, best(some)...)
	return keys[:min(limit, len(keys))], nil
}

const selectCandidates = `SELECT i.rowid, octet_length(n.text)
	FROM notes_index AS i CROSS JOIN notes AS n ON n.key = i.rowid
	WHERE i.notes_index MATCH ? AND i.rowid BETWEEN ? AND ?
	ORDER BY i.rowid DESC LIMIT ?`

// candidates is the newest notes that match, each with its weight for length:
// 1 below 1 KiB, then less with every doubling, 0.5 at 64 KiB.
func candidates(ctx context.Context, tx *sql.Tx, s span, match string) (map[int64]float64, error) {
	rows, err := tx.QueryContext(ctx, selectCandidates, match, s.lo(), s.hi(), memory.Candidates)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	hits := map[int64]float64{}
	for rows.Next() {
		var key int64
		var size uint
		if err := rows.Scan(&key, &size); err != nil {
			return nil, err
		}
		hits[key] = 1 / (1 + float64(bits.Len(size/1024))/7)
	}
	return hits, rows.Err()
}

// rarity is the inverse document frequency as in BM25, always above 0.
func rarity(hits map[int64]float64, s span) float64 {
	all, with := float64(s.last), float64(len(hits))
	if len(hits) == memory.Candidates {
		oldest := s.hi()
		for key := range hits {
			oldest = min(oldest, key)
		}
		with *= all / float64(s.lo()+s.last-oldest+1)
	}
	return math.Log(1 + (all-with+0.5)/(with+0.5))
}

func best(scores map[int64]float64) []int64 {
	keys := make([]int64, 0, len(scores))
	for key := range scores {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b int64) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(b, a))
	})
	return keys
}

// match is a term as an FTS5 expression. Every token is a quoted string.
func match(t memory.Term) string {
	prefix := ""
	if t.Prefix {
		prefix = " *"
	}
	m := quote(strings.Join(t.Words, " ")) + prefix
	if t.Whole != "" {
		m = "(" + m + " OR " + quote(t.Whole) + prefix + ")"
	}
	return m
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

const selectNotes = "SELECT key, id, run, agent, channel, user, time, text FROM notes "

func scanNote(workspace string, row interface{ Scan(...any) error }) (memory.Note, error) {
	_, note, err := scanKeyed(workspace, row)
	return note, err
}

func scanKeyed(workspace string, row interface{ Scan(...any) error }) (key int64, note memory.Note, err error) {
	var ns int64
	err = row.Scan(&key, &note.ID, &note.Run, &note.Agent, &note.Channel, &note.User, &ns, &note.Text)
	note.Workspace = workspace
	note.Time = time.Unix(0, ns).UTC()
	return key, note, err
}

// pageSize bounds what List holds: 64 notes of at most 64 KiB.
const pageSize = 64

// List reads page by page and holds no transaction while the caller works: one
// that stayed open would keep the WAL from being folded back.
func (n *notes) List(ctx context.Context, workspace string, f memory.Filter) iter.Seq2[memory.Note, error] {
	return func(yield func(memory.Note, error) bool) {
		s, err := find(ctx, n.sql, workspace)
		if err != nil {
			yield(memory.Note{}, (*DB)(n).fault(ctx, err))
			return
		}
		lo, hi := s.lo(), s.hi()
		order := "ORDER BY key LIMIT ?"
		if f.Newest {
			order = "ORDER BY key DESC LIMIT ?"
		}
		for {
			page, last, err := n.page(ctx, workspace, order, lo, hi, f.Run)
			if err != nil {
				yield(memory.Note{}, (*DB)(n).fault(ctx, err))
				return
			}
			for _, note := range page {
				if !yield(note, nil) {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
			if f.Newest {
				hi = last - 1
			} else {
				lo = last + 1
			}
		}
	}
}

func (n *notes) page(ctx context.Context, workspace, order string, lo, hi int64, run string) (page []memory.Note, last int64, err error) {
	rows, err := n.sql.QueryContext(ctx, selectNotes+"WHERE key BETWEEN ? AND ? AND (? = '' OR run = ?) "+order, lo, hi, run, run, pageSize)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		key, note, err := scanKeyed(workspace, rows)
		if err != nil {
			return nil, 0, err
		}
		page, last = append(page, note), key
	}
	return page, last, rows.Err()
}

func (n *notes) Delete(ctx context.Context, workspace string, ids []string) (deleted int, err error) {
	err = (*DB)(n).tx(ctx, false, func(tx *sql.Tx) error {
		deleted = 0
		s, err := find(ctx, tx, workspace)
		if err != nil {
			return err
		}
		for _, id := range ids {
			k, err := affected(tx.ExecContext(ctx, "DELETE FROM notes WHERE id = ? AND key >> 40 = ?", id, s.num))
			if err != nil {
				return err
			}
			deleted += k
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

func (n *notes) DeleteRun(ctx context.Context, workspace, run string) (deleted int, err error) {
	err = (*DB)(n).tx(ctx, false, func(tx *sql.Tx) error {
		s, err := find(ctx, tx, workspace)
		if err != nil {
			return err
		}
		deleted, err = affected(tx.ExecContext(ctx, "DELETE FROM notes WHERE key BETWEEN ? AND ? AND run = ?", s.lo(), s.hi(), run))
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

func affected(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	k, err := res.RowsAffected()
	return int(k), err
}
