package upstream

import (
	"fmt"
	"io"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// Defaults of Spec.
const (
	DefaultMaxMessage = 16 << 20
	DefaultStartTime  = time.Minute
	DefaultProbeWait  = 5 * time.Second
	DefaultEOFWait    = 4 * time.Second
	DefaultTermWait   = 2 * time.Second
)

// Spec says what server to use and how. Command or URL is required; Name is too.
type Spec struct {
	Name string // in messages

	// Command is the program of a stdio server, absolute, and its arguments.
	// Empty: URL is used.
	Command []string
	Env     []string // its whole environment
	Dir     string   // its working directory, absolute
	// Marker begins the mark of its process trees (proc.Spec.Marker): each has
	// "<Marker>/" and a random suffix. Required with Command.
	Marker string
	// Stderr gets what the server writes to standard error, and lines of its
	// standard output that are no messages. nil discards. It must not block.
	Stderr io.Writer

	URL string // of a streamable HTTP server
	// Headers go with every request. They can't replace those of the protocol.
	Headers map[string]string

	// Required is for a Set: it does not start without this server.
	Required bool

	Client, Version string // what the server is told of its client

	// MaxMessage is how many bytes one message of the server may have; about
	// twice as much is held while one is read. 0 is DefaultMaxMessage.
	MaxMessage int
	// StartTime bounds connecting and listing, each time. 0 is DefaultStartTime.
	StartTime time.Duration
	// ProbeWait is how long a server may leave server/discover unanswered before
	// initialize is tried beside it. 0 is DefaultProbeWait.
	ProbeWait time.Duration
	// A stdio server that is to end gets EOF, after EOFWait TERM, and after
	// TermWait KILL, with everything below it. 0 are the defaults.
	EOFWait, TermWait time.Duration

	// Mask takes known secrets out of text; nil changes nothing.
	Mask func(string) string
	// Note is told, in one line each, what a person should know: a tool that is
	// hidden, an end, a new start. It may be called from any goroutine. nil drops.
	Note func(text string)
}

func (s *Spec) defaults() {
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&s.StartTime, DefaultStartTime)
	def(&s.ProbeWait, DefaultProbeWait)
	def(&s.EOFWait, DefaultEOFWait)
	def(&s.TermWait, DefaultTermWait)
	if s.MaxMessage <= 0 {
		s.MaxMessage = DefaultMaxMessage
	}
	if s.Mask == nil {
		s.Mask = func(text string) string { return text }
	}
	if s.Note == nil {
		s.Note = func(string) {}
	}
	if s.Client == "" {
		s.Client = "drawbridge"
	}
	if s.Version == "" {
		s.Version = "0"
	}
}

// Code says what kind of failure an Error is.
type Code string

const (
	// Unavailable: the server can't be reached or started. The call was not sent.
	Unavailable Code = "unavailable"
	// Changed: the tool is not what it was when the run began. The call was not
	// sent.
	Changed Code = "definition_changed"
	// Died: the connection broke while the call was under way. It may have run,
	// and was not sent again.
	Died Code = "died"
	// TooLarge: the call ran, and its result is larger than Spec.MaxMessage.
	TooLarge Code = "too_large"
	// Answered: the server answered with a JSON-RPC error.
	Answered Code = "answered"
	// Malformed: what the server answered is no result.
	Malformed Code = "malformed"
	// Closed: the upstream was closed.
	Closed Code = "closed"
)

// Error is why there is no connection, or a call has no result. Its text is fit
// for a model: it names the upstream, and quotes of the server's own words at
// most call.MaxEcho bytes, masked.
type Error struct {
	Upstream string
	Code     Code
	Message  string
	// Size is how many bytes a TooLarge answer had, 0 where that is not known.
	Size int64
	// RPC is the code of a JSON-RPC error, where Code is Answered.
	RPC int64

	how     string // of Died: what happened, without the words about the call
	session bool   // the server does not know the session, and did not take the call
}

func (e *Error) Error() string { return "upstream " + e.Upstream + " " + e.Message }

func (s *Spec) fail(code Code, format string, args ...any) *Error {
	return &Error{Upstream: s.Name, Code: code, Message: fmt.Sprintf(format, args...)}
}

func (s *Spec) died(how string) *Error {
	e := s.fail(Died, "%s; the call may have run, and was not sent again", how)
	e.how = how
	return e
}

// quote is what of a server's own words goes into a message of ours.
func (s *Spec) quote(text string) string {
	return call.Clip(s.Mask(printable(text)))
}

func (s *Spec) closedError() *Error { return s.fail(Closed, "is closed: the run has ended") }
