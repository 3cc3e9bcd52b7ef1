// Package call holds the words that travel with one tool call: who it is for,
// what was asked, what was decided and what came of it. It is a leaf.
package call

import (
	"context"
	"fmt"
	"unicode/utf8"
)

// Binding says whom a run works for. It is fixed when the run starts and is
// read from no request.
type Binding struct {
	Run, Workspace, Channel, User, Agent string
}

// Effects is what a tool can do to the world. The order Read < Write <
// Destructive is one of strictness.
type Effects string

const (
	Read        Effects = "read"
	Write       Effects = "write"
	Destructive Effects = "destructive"
)

// Origin is the door a request came in by.
type Origin string

const (
	FromEndpoint Origin = "endpoint"
	FromEmbedder Origin = "embedder"
)

// Request is one tool call as it reaches the gate.
type Request struct {
	// Tool is the name exactly as it was sent.
	Tool string
	// Arguments are the bytes exactly as they were sent; nil where the member
	// was absent or null. The tool receives these very bytes.
	Arguments []byte
	Origin    Origin
	// Gone is closed when nobody waits for the answer any more: the call does
	// not run then, if it has not begun. nil is never.
	Gone <-chan struct{}
	// Late lets the tool run on the goroutine of whoever asks, which is quicker
	// and can be kept by a function that does not come back. It gets the answer,
	// once and from another goroutine, where the time of such a call is over;
	// what is returned later, if anything ever is, is to be thrown away. It is
	// called on the same goroutine where the function ends that with
	// runtime.Goexit. nil: the tool runs on a goroutine of its own, and whoever
	// asks is answered by returning, always.
	Late func(Result)
}

// Tool is one entry of a catalogue.
type Tool struct {
	Name        string
	Description string
	// InputSchema is a JSON Schema object, as it is listed to the client.
	InputSchema []byte
	// Definition is what the client is told of an upstream's tool: the upstream's
	// own definition, of which only the name is replaced. nil makes one of the
	// other fields.
	Definition []byte
	Effects    Effects
	// Validate reports how decoded arguments break InputSchema, naming the
	// field. Set by the catalogue.
	Validate func(args any) error
	// Run is called by the gate and by nothing else.
	Run func(ctx context.Context, inv Invocation) (Result, error)
}

// Invocation is what a tool gets to work with.
type Invocation struct {
	Binding   Binding
	Arguments []byte // never nil: "{}" where the request had none
}

// Verdict is allow, ask or deny, in order of strictness.
type Verdict string

const (
	Allow Verdict = "allow"
	Ask   Verdict = "ask"
	Deny  Verdict = "deny"
)

// Decision is a verdict and the layer and rule that made it.
type Decision struct {
	Verdict Verdict
	Layer   string
	Rule    string
	// Reason is shown to the model with a denial. Never empty for Ask and Deny.
	Reason string
}

// Question is a call that a person must be asked about before it runs.
type Question struct {
	Seq       int64 // of the call's Begin line
	Tool      *Tool
	Arguments []byte // the very bytes that will run; nil where the request had none
	Decision  Decision
	Gone      <-chan struct{} // as in the request
}

// Answer is what came of a Question.
type Answer struct {
	ID  string // names the question; "" where it could not be asked
	Yes bool
	// By says who answered, or why nobody did: "expired".
	By string
	// Reason is the person's own words, "" for none; where it could not be
	// asked, why, in words for the model.
	Reason string
	// Ended says that the question was taken back, because the client, the call
	// or the run is gone.
	Ended bool
}

// Result is what a tool answered.
type Result struct {
	// Raw is the result object of an upstream exactly as it came, members that
	// nobody here knows included; IsJSON holds of it. Content and Structured are
	// nil then, and IsError says what Raw does. nil: the other fields are the
	// result.
	Raw     []byte
	Content []Block
	// Structured is the verbatim structuredContent object, nil for none.
	Structured []byte
	IsError    bool
	// Flags say what was changed between the tool and the client.
	Flags Flags
}

// Block is one content block: Text, or where JSON is set that very object.
type Block struct {
	Text string
	JSON []byte
}

// Flags is written to the record and, where not zero, to the result's _meta.
type Flags struct {
	Cut       int64 `json:"cut,omitempty"`       // bytes left out by the size limit
	Redacted  int   `json:"redacted,omitempty"`  // known secrets masked
	Repaired  bool  `json:"repaired,omitempty"`  // invalid UTF-8 was replaced
	Invisible bool  `json:"invisible,omitempty"` // has characters a person can't see (kept)
}

// Text is a result of one text block.
func Text(s string) Result { return Result{Content: []Block{{Text: s}}} }

// Errorf is an isError result: words the model reads and can act on.
func Errorf(format string, args ...any) Result {
	r := Text(fmt.Sprintf(format, args...))
	r.IsError = true
	return r
}

// NotAvailable is the one answer for a name outside the scope, whether it is
// hidden or never existed.
type NotAvailable struct{ Tool string }

func (e *NotAvailable) Error() string {
	return fmt.Sprintf("tool '%s' is not available to this agent", Clip(e.Tool))
}

// MaxEcho is how many bytes of a client's own text are echoed in a message or
// a record.
const MaxEcho = 256

// Clip cuts s to MaxEcho bytes, at most three fewer so as to cut no rune.
func Clip(s string) string {
	if len(s) <= MaxEcho {
		return s
	}
	n := MaxEcho
	for n > MaxEcho-(utf8.UTFMax-1) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
