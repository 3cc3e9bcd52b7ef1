// Package fault is the one error type a person meets: what went wrong, where,
// and what to do about it, with a kind that decides the exit code.
package fault

import (
	"errors"
	"fmt"
)

// Kind tells the audiences of an error apart. The numbers are the exit codes
// of the command and are part of its contract.
type Kind int

const (
	// Agent: the agent CLI failed, or said that it failed.
	Agent Kind = 1
	// Usage: a flag, a file or the surroundings are not as they must be.
	Usage Kind = 2
	// NotReady: the agent never listed its tools from the bridge.
	NotReady Kind = 3
	// Budget: a budget ended the run.
	Budget Kind = 4
	// Record: the audit record is incomplete.
	Record Kind = 5
	// Wall: the wall time of the run was over.
	Wall Kind = 124
	// Sandbox: what the level or the sandbox needs could not be set up.
	Sandbox Kind = 126
	// Interrupted: a person or the system asked the run to end.
	Interrupted Kind = 130
)

// Error is an error with a hint. Message has no capital, no full stop and
// names the offending piece; Hint says what to do and may be empty.
type Error struct {
	Kind    Kind
	Message string
	Hint    string
	// Err is the cause, nil where Message says it all. Error() appends it.
	Err error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// New returns an error of kind k without a cause.
func New(k Kind, hint, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Wrap returns an error of kind k around err.
func Wrap(err error, k Kind, hint, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Hint: hint, Err: err}
}

// KindOf is the kind of the outermost Error in err's chain, and Agent (1)
// where there is none: an error nobody classified is a failure, never a success.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Agent
}

// HintOf is the first non-empty hint in the tree of err, outermost first, or "".
func HintOf(err error) string {
	if e, ok := err.(*Error); ok && e.Hint != "" {
		return e.Hint
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return HintOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if h := HintOf(err); h != "" {
				return h
			}
		}
	}
	return ""
}
