// Package proc starts a process tree, watches it and ends it, whatever the
// processes in it do to get away. It is a leaf.
//
// The embedder's process stays as it was: no subreaper, no wait4(-1), no signal
// handlers. All of that is done by a helper, the same binary re-executed, one
// for each tree: it becomes subreaper, starts the process, reaps, and kills
// everything below it when told to, when the process ends, or when its death
// pipe closes because whoever started it is gone.
package proc

import (
	"errors"
	"io"
	"time"
)

// ErrNoHelper: this binary's main (or TestMain) does not call Helper first.
var ErrNoHelper = errors.New("the process helper is not set up in this program: drawbridge.Helper() has to be the first line of main, and of TestMain")

// ErrUnsupported: this system has no way to end a whole process tree for sure.
var ErrUnsupported = errors.New("process supervision needs Linux")

// MarkerEnv is the environment variable that marks every process of a tree
// with its Spec.Marker, so that one which left the tree can still be found.
const MarkerEnv = "DRAWBRIDGE_RUN"

// Origin is where a process comes from, as far as runs are concerned.
type Origin struct {
	// Name is the process's own in the process table, at most 15 bytes, with
	// unprintable characters replaced. It chose that name itself.
	Name string
	// Run is the marker (see MarkerEnv) of the outermost run it belongs to, ""
	// where it belongs to none.
	Run string
}

// StartError is why a process could not be started. It has the error of the
// system in its chain, so errors.Is(err, fs.ErrNotExist) and the like hold.
type StartError struct {
	Message string // what and where
	Hint    string // what to do about it; may be empty
	Err     error  // never nil
}

func (e *StartError) Error() string { return e.Message }

func (e *StartError) Unwrap() error { return e.Err }

// Spec says what to start. Nothing of the caller's process is inherited but
// what is named here.
type Spec struct {
	Path string   // absolute
	Args []string // with Args[0]
	Env  []string // the whole environment; MarkerEnv is set to Marker in it
	Dir  string   // absolute
	// Marker goes to MarkerEnv; not empty, and of this tree alone.
	Marker string
	// Stdin is written to the process and closed; nil is /dev/null. What the
	// process does not read is dropped when it ends. A Read that blocks beyond
	// that keeps one goroutine until it returns, and delays Wait by 1 s.
	Stdin io.Reader
	// Stdout and Stderr get what the process prints, each from one goroutine.
	// A write error stops the copying and drains on. nil discards. Where both
	// are the same writer they share one pipe, which keeps their order.
	Stdout, Stderr io.Writer
	// Files are given as descriptors 3, 4, ...: each a pipe that holds these
	// bytes and then ends.
	Files [][]byte
	// Grace is the time between TERM and KILL; zero is 3 s. What outlives the
	// process itself has at most 1 s of it.
	Grace time.Duration
	// Terminal leaves standard streams, session, process group and ignored
	// signals as the caller has them, for a program a person started
	// (`drawbridge exec`), so that Ctrl-C and Ctrl-Z reach it as usual. The
	// caller should not die of SIGINT and SIGQUIT meanwhile: its death ends
	// the tree. Stdin, Stdout and Stderr must be nil.
	Terminal bool
}

// Exit is how a tree ended.
type Exit struct {
	Code   int    // exit code, or 128+signal
	Signal string // "SIGKILL" and the like; "" where it exited
	// Ended says that End (or the death of the context) ended it.
	Ended bool
	// Leftovers are command names of descendants that were alive after the
	// process itself had ended, and were killed. At most 16, unprintable
	// characters replaced; a process chooses its own name.
	Leftovers []string
	// LostHelper: the helper was killed; the tree was swept by marker. A
	// process that had cleared its environment and left its session may have
	// got away. Code and Signal are those of the kill where they are unknown.
	LostHelper bool
}
