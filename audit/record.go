// Package audit is the format of a run's record and the proof that a record is
// whole. It uses the standard library only, so that a verifier elsewhere can
// import it without the rest of Drawbridge.
//
// A record is a file of JSON lines. Each line carries the SHA-256 of the line
// before it (its bytes, without the newline), so a line that was changed,
// removed, added or moved breaks the chain at a line that Verify names. The
// hash of the last line is the head. Whoever holds the head from elsewhere (it
// is printed when a run ends) can also tell a record that was cut at its end or
// rewritten from its first line; whoever controls both the file and the head
// can forge both, and nothing in this package proves anything against them.
package audit

import (
	"encoding/json"
	"time"
)

// Version is the format this package writes.
const Version = 1

// Kind says what a line records.
type Kind string

const (
	// Open is the first line: what the run is bound to and by which rules.
	Open Kind = "open"
	// Refused is a call that did not run: one line.
	Refused Kind = "refused"
	// Begin is a call about to run. It is written before the effect.
	Begin Kind = "begin"
	// Answer is a person's answer to a question about a call.
	Answer Kind = "answer"
	// End is the outcome of a Begin.
	End Kind = "end"
	// Early is a request refused before the gate: the first of its kind. The
	// totals are in Close.
	Early Kind = "early"
	// Note is something about the run itself: ready, a warning, the agent's end.
	Note Kind = "note"
	// Close is the last line, written when the endpoint is dead.
	Close Kind = "close"
)

// Outcome says how a call ended.
type Outcome string

const (
	OK         Outcome = "ok"         // the tool answered
	Error      Outcome = "error"      // the tool answered isError or failed
	Panic      Outcome = "panic"      // the tool panicked
	Cancelled  Outcome = "cancelled"  // the client or the end of the run cancelled it
	Abandoned  Outcome = "abandoned"  // it was still running when the run ended
	Denied     Outcome = "denied"     // a person said no, nobody answered in time, or the yes did not hold: it did not run
	Unrecorded Outcome = "unrecorded" // its line could not be written, so it did not run
)

// Record is one line. Fields that do not apply are absent.
type Record struct {
	Seq  int64     `json:"seq"`  // line number, from 1
	Prev string    `json:"prev"` // SHA-256 of the line before, hex; 64 zeros on line 1
	Time time.Time `json:"time"` // UTC
	Kind Kind      `json:"kind"`

	Run *Run `json:"run,omitempty"` // on Open

	// Call joins the lines of one call: the Seq of its first line.
	Call int64 `json:"call,omitempty"`
	// Tool is the name as it was sent, at most 256 bytes of it.
	Tool    string `json:"tool,omitempty"`
	Effects string `json:"effects,omitempty"`
	Origin  string `json:"origin,omitempty"` // endpoint or embedder
	// Arguments are the arguments with known secrets and values of
	// secret-looking keys masked; absent where they are larger than what a
	// record keeps. ArgumentsDigest and ArgumentsSize are of the exact bytes.
	Arguments       json.RawMessage `json:"arguments,omitempty"`
	ArgumentsDigest string          `json:"arguments_digest,omitempty"`
	ArgumentsSize   int             `json:"arguments_size,omitempty"`

	Decision string `json:"decision,omitempty"`
	Layer    string `json:"layer,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Reason   string `json:"reason,omitempty"`

	Outcome    Outcome `json:"outcome,omitempty"`
	Micros     int64   `json:"us,omitempty"` // how long the tool ran
	ResultSize int     `json:"result_size,omitempty"`
	Cut        int64   `json:"cut,omitempty"`
	Redacted   int     `json:"redacted,omitempty"`
	Repaired   bool    `json:"repaired,omitempty"`
	Invisible  bool    `json:"invisible,omitempty"`

	What   string           `json:"what,omitempty"` // of an Early or a Note
	Detail string           `json:"detail,omitempty"`
	Totals map[string]int64 `json:"totals,omitempty"` // on Close: by kind and by early refusal
}

// Run is what an Open line says of the run.
type Run struct {
	Version   int    `json:"version"` // of the format
	ID        string `json:"id"`
	Program   string `json:"program"` // drawbridge and its version
	Workspace string `json:"workspace"`
	Channel   string `json:"channel"`
	User      string `json:"user"`
	Agent     string `json:"agent"`
	Level     string `json:"level"` // sealed, confined, open; "embedded" without an agent CLI
	Mode      string `json:"mode"`
	Folder    string `json:"folder,omitempty"`

	PolicyDigest    string   `json:"policy_digest"`
	CatalogueDigest string   `json:"catalogue_digest"`
	CommandDigest   string   `json:"command_digest,omitempty"` // of the agent's command line
	Scope           []string `json:"scope"`                    // names the run may call
}
