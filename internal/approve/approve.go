// Package approve holds the questions of a run: calls that a person must be
// asked about before they run. A question is bound to its run, tool, exact
// argument bytes and policy, expires, and is used at most once.
package approve

import (
	"context"
	"errors"
	"time"
)

// State is where a question stands. Every state but Pending and Approved is
// final; Approved becomes Used or Void.
type State string

const (
	Pending  State = "pending"
	Approved State = "approved"
	Denied   State = "denied"
	Expired  State = "expired" // nobody answered in time
	// Void: the run ended, the client gave up, or what was approved is not what
	// would run now. The call did not run.
	Void State = "void"
	Used State = "used" // approved, and the call ran
)

// Question is one question as it is kept and shown. All text in it is safe to
// print: secrets are masked and what a person can't see is made visible.
type Question struct {
	ID string // short, unique on this machine, typed by a person

	Run, Workspace, Channel, User, Agent string

	Call    int64 // Seq of the call's Begin line in the run's record
	Tool    string
	Effects string
	// Arguments are what a person is shown of the arguments: of long ones head
	// and tail. Digest and size are of the exact bytes.
	Arguments       string
	ArgumentsDigest string
	ArgumentsSize   int
	Plan            string // the Markdown of a submitted plan, "" for other calls
	PolicyDigest    string
	Layer, Rule     string // what asks
	Reason          string // why, in the policy's words

	Asked, Expires time.Time // UTC

	State    State
	By       string    // who answered: "terminal", "uid 1000 pid 4711", "remembered <id>"
	Answered time.Time // zero while pending
	Note     string    // the person's reason
	Remember bool      // the answer holds for the same call for the rest of the run
}

// Answer is what a person says to a question.
type Answer struct {
	Yes      bool
	Note     string // the reason, for the model and the record; at most 1,000 bytes are kept
	Remember bool   // with Yes: also for the same tool with the same arguments, in this run
	By       string // set by the door the answer came in by, never by who answers
}

var (
	// ErrUnknown: there is no such question.
	ErrUnknown = errors.New("no such question")
	// ErrSettled: it was answered before, or expired, or its run is over. The
	// answer changed nothing.
	ErrSettled = errors.New("the question is settled")
)

// Store keeps the questions of all runs, so that what was asked and answered
// outlives the run. Implementations are safe for concurrent use by many
// processes.
type Store interface {
	// Add keeps a pending question. An ID that is taken is an error.
	Add(ctx context.Context, q Question) error
	// Settle moves the question from one state to q.State and keeps By,
	// Answered, Note and Remember. It returns ErrSettled where the question is
	// no longer in from, and ErrUnknown where there is none; only one of several
	// callers at once succeeds.
	Settle(ctx context.Context, q Question, from State) error
	// Question finds one by its ID.
	Question(ctx context.Context, id string) (Question, error)
	// Questions lists them in the order they were asked: those of a run, or of
	// all runs where run is ""; only pending ones where pending is true.
	Questions(ctx context.Context, run string, pending bool) ([]Question, error)
	// Forget removes the questions of a run that is pruned.
	Forget(ctx context.Context, run string) error
}
