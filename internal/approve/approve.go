// Package approve holds the questions of a run: calls that a person must be
// asked about before they run. A question is bound to its run, tool, exact
// argument bytes and policy, expires, and is used at most once.
//
// A run has one Desk. Whoever runs calls has three words with it: Ask, which
// waits for the answer; Use, immediately before the effect; Void, where an
// approved call will not run after all. Doors (a terminal, the control socket)
// list what is Pending and Answer. The Store keeps what was asked and answered;
// it can take an answer away from a desk, and never add one: what is approved
// is what this process was told through Answer, whatever is written in a file.
package approve

import (
	"context"
	"errors"
	"time"
)

// State is where a question stands. Every state but Pending and Approved is
// final; Approved becomes Used or Void, and Used becomes Void only where the
// run or its client ended before the call could begin.
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
// print: secrets are masked and what a person can't see is made visible. Only
// Arguments and Plan have line ends, and are bounded by MaxArguments and MaxPlan.
type Question struct {
	ID string `json:"id"` // short, unique on this machine, typed by a person

	Run       string `json:"run"`
	Workspace string `json:"workspace,omitempty"`
	Channel   string `json:"channel,omitempty"`
	User      string `json:"user,omitempty"`
	Agent     string `json:"agent,omitempty"`

	Call    int64  `json:"call"` // Seq of the call's Begin line in the run's record
	Tool    string `json:"tool"`
	Effects string `json:"effects"`
	// Arguments are what a person is shown of the arguments, "" where they can't
	// be shown: JSON without needless escapes, and of what is long head and tail.
	// Digest (see Digest) and size in bytes are of the exact bytes.
	Arguments       string `json:"arguments,omitempty"`
	ArgumentsDigest string `json:"arguments_digest"`
	ArgumentsSize   int    `json:"arguments_size"`
	// Plan is the Markdown of a submitted plan, "" for other calls.
	Plan         string `json:"plan,omitempty"`
	PolicyDigest string `json:"policy_digest,omitempty"`
	// Layer and Rule are what asks, Reason why, in the policy's words.
	Layer  string `json:"layer,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Reason string `json:"reason,omitempty"`

	// Asked and Expires are UTC, of the wall clock and for people: what counts is
	// the time that has passed.
	Asked   time.Time `json:"asked"`
	Expires time.Time `json:"expires"`

	State State `json:"state"`
	// By is who answered: "terminal", "uid 1000 pid 4711", "remembered <id>";
	// "" where nobody did.
	By       string    `json:"by,omitempty"`
	Answered time.Time `json:"answered,omitzero"` // when it left Pending, UTC; zero before
	// Note is the person's reason; where nobody answered, why the question is void.
	Note     string `json:"note,omitempty"`
	Remember bool   `json:"remember,omitempty"` // the answer holds for the same call for the rest of the run
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
// processes, and return ctx.Err() where the context ended first. A run that was
// killed leaves pending questions behind: pending in the store means something
// only while the run lives.
type Store interface {
	// Add keeps a pending question. An ID that is taken, and a question that is
	// not Pending, are errors.
	Add(ctx context.Context, q Question) error
	// Settle moves the question from one state to q.State and keeps By,
	// Answered, Note and Remember. It returns ErrSettled where the question is
	// no longer in from, and ErrUnknown where there is none; only one of several
	// callers at once succeeds. Nothing else of q is kept.
	Settle(ctx context.Context, q Question, from State) error
	// Question finds one by its ID, or returns ErrUnknown.
	Question(ctx context.Context, id string) (Question, error)
	// Questions lists them in the order they were asked: those of a run, or of
	// all runs where run is ""; only pending ones where pending is true.
	Questions(ctx context.Context, run string, pending bool) ([]Question, error)
	// Forget removes the questions of a run that is pruned. A run without
	// questions is no error.
	Forget(ctx context.Context, run string) error
}
