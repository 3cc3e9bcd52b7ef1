// Package control is how a person's answer gets to a running run, and nobody
// else's: a socket in the run's folder, for the command line and whatever else
// the user runs, and the terminal of `drawbridge run`.
//
// The socket listens while a run lives that may ask. Who connects is judged by
// what the kernel says of the process, never by what it sends: it must be of the
// user who runs the run, and must not belong to any run, be it this one or
// another (proc.OriginOf). So a person in a shell, in tmux, over ssh, a cron job
// and a chat bot's daemon are heard; the agent, its tools, their background work
// and a drawbridge inside of a run are not, whatever they are started as.
//
// What that does not hold against: code that runs unconfined as the user can
// have another process of the user act for it (a tmux server, cron, ssh), and an
// agent that an embedder starts by itself can't be told from the embedder. Where
// that matters an ask must not be taken for a person's word; who starts a run
// decides that, not this package.
//
// # Protocol
//
// A connection carries one request. The server speaks first: a line of JSON with
// the version and a nonce, or an error. The client sends one line with both and
// what it wants, and gets one line back. The kernel's credentials of the process
// that sends the line must be those of the one that connected, and the nonce
// shows that it was sent while the server already held a descriptor of that
// process: so no other process can have taken its number over.
package control

import (
	"context"
	"errors"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// SocketName is the file of the socket in a run's folder.
const SocketName = "control.sock"

const (
	maxRequest = 64 << 10 // bytes of a request's line
	maxAnswer  = 4 << 20  // bytes of an answer's line
	maxText    = 4 << 10  // bytes of an error's text
	maxConns   = 32       // served at once; further ones wait
	limit      = 5 * time.Second
)

var (
	// ErrRefused: who asked belongs to a run, is another user's, or can't be
	// told. Nothing was shown or changed.
	ErrRefused = errors.New("answers are not taken from here")
	// ErrNobody: no run listens there. It may not ask, or is over.
	ErrNobody = errors.New("nobody takes answers there")
	// ErrUnsupported: this system has no sure way to tell who connects.
	ErrUnsupported = errors.New("answers from another process need Linux, where it can be told whether a process belongs to a run")
)

// Handler is the answering side of a run's desk. It is called from many
// goroutines at once.
type Handler interface {
	// Pending lists the questions nobody has answered yet.
	Pending() []approve.Question
	// Answer settles one. Errors that have approve.ErrUnknown or
	// approve.ErrSettled in their chain arrive at the client as such; the text
	// of every error does.
	Answer(ctx context.Context, id string, a approve.Answer) error
}

// Options of a Server. The zero value will do.
type Options struct {
	// Refused is told of each peer that was refused, with who it was and why in
	// one line of printable text. Anybody of the same user can cause any number
	// of calls. It may be called from many goroutines at once and must not
	// block. nil: nobody is told.
	Refused func(detail string)
}
