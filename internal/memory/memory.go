// Package memory keeps notes in workspaces and finds them by full text, in any
// script.
//
// A Service is what the tools and the command use; a Store is where the notes
// lie. Text is cut into tokens here, in Go (Segment, ParseQuery), so that every
// Store finds the same notes for the same words and no user text is ever read
// as a search language.
package memory

import (
	"context"
	"iter"
	"time"
)

// Limits of what is kept.
const (
	// MaxText is the most bytes the text of one note may have.
	MaxText = 64 << 10
	// MaxPerRun is the most notes one run may add, deleted ones included.
	MaxPerRun = 1000
	// MaxField is the most bytes each other field of a note may have.
	MaxField = 256
)

// Note is one remembered text and where it came from. Run, Agent, Channel and
// User are empty for a note a person added by hand.
type Note struct {
	// ID names the note within its workspace: letters, digits, '.', '_' and
	// '-', at most 64. It never changes.
	ID        string `json:"id"`
	Workspace string `json:"workspace"`
	Text      string `json:"text"`
	Run       string `json:"run,omitempty"`
	Agent     string `json:"agent,omitempty"`
	Channel   string `json:"channel,omitempty"`
	User      string `json:"user,omitempty"`
	// Time is when the note was added, UTC, kept to the nanosecond. Years 1700
	// to 2200.
	Time time.Time `json:"time"`
}

// Filter narrows a List. The zero value is every note of the workspace, oldest
// first.
type Filter struct {
	Run    string // only notes this run added; "" for no such limit
	Newest bool   // newest first
}

// Store keeps notes. "Oldest" and "newest" mean the order in which notes were
// added, which for imported notes need not be the order of their Times.
//
// Every method that reads or deletes takes the workspace and MUST NOT reach a
// note of another one; equal IDs in two workspaces are two notes. A workspace
// nobody added to is empty, not an error. Workspace names are compared byte by
// byte.
//
// Errors are ctx.Err() where the context ended first, else a *fault.Error whose
// Message can be shown to a model: it holds no driver text and no path, which
// belong in its Err. Methods may be called from many goroutines, and many
// processes may use one Store at once.
type Store interface {
	// Add stores the notes in their order, all or none, and durably: they
	// outlive a loss of power once Add has returned. A note whose ID its
	// workspace has already is skipped and changes nothing. It reports how many
	// were stored.
	Add(ctx context.Context, notes []Note) (added int, err error)

	// Search returns at most limit notes that have terms of q, best first:
	// those with every term before those with only some (of q.Loose). Within
	// both groups a rare term weighs more than a common one, a short note a
	// little more than a long one, and among equals the newest comes first.
	// To stay fast on common words a Store may look at only the newest
	// Candidates notes a term occurs in. No hit, an empty query and a limit
	// below 1 are an empty slice, never nil.
	Search(ctx context.Context, workspace string, q Query, limit int) ([]Note, error)

	// List yields the notes of a workspace. Notes added or deleted while it is
	// read may or may not be seen. The first error ends it.
	List(ctx context.Context, workspace string, f Filter) iter.Seq2[Note, error]

	// Delete removes the notes with these IDs and reports how many there were.
	Delete(ctx context.Context, workspace string, ids []string) (deleted int, err error)

	// DeleteRun removes the notes a run added to the workspace.
	DeleteRun(ctx context.Context, workspace, run string) (deleted int, err error)
}

// Candidates is how many of the newest notes with a term a Store looks at.
const Candidates = 200
